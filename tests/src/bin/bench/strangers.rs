//! All-reduce beside strangers: other processes that keep processors busy, as a data loader does.
//! This program starts and ends them.
//!
//! ccl and Open MPI are compared by the mean time of an operation over a window, in fresh processes
//! for each, in turns.

use std::path::Path;
use std::process::{Child, Command};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::statistics::{Class, verdict};
use crate::windows::{Window, ours, theirs};

/// Sizes of a class.
const SIZES: [usize; 4] = [8, 64 << 10, 1 << 20, 16 << 20];
/// The most that a class, and a single size, may take of Open MPI's time.
///
/// On the mean, with 95 % confidence for the class.
const LIMITS: (f64, f64) = (1.2, 2.0);

/// The program of a stranger: spins until it is killed, or its parent ends.
pub(crate) fn spin() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let parent = getppid();
    // The parent may have ended before this request.
    while getppid() == parent {
        (0..1_000_000).for_each(|turn| _ = std::hint::black_box(turn));
    }
}

/// Strangers; killed when dropped.
struct Strangers(Vec<Child>);

impl Strangers {
    fn start(count: usize) -> Self {
        let start = |_| Command::new(std::env::current_exe().unwrap()).arg("stranger").spawn().unwrap();
        Self((0..count).map(start).collect())
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        for stranger in &mut self.0 {
            let _ = stranger.kill();
            let _ = stranger.wait();
        }
    }
}

/// Compares with Open MPI beside one and two strangers.
///
/// Runs this many pairs of windows of `seconds` for each size.
pub(crate) fn strangers(program: &Path, pairs: usize, seconds: f64) {
    for count in [1, 2] {
        println!(
            "beside {count} stranger(s): {pairs} pairs of windows of {seconds} s for each size, fresh processes each"
        );
        let mut class = Class::default();
        for bytes in SIZES {
            let windows: Vec<_> =
                (0..pairs).map(|pair| pair_of(program, count, bytes, seconds, pair)).collect();
            for (name, windows) in [
                ("ccl", windows.iter().map(|(ours, _)| *ours).collect::<Vec<_>>()),
                ("Open MPI", windows.iter().map(|(_, theirs)| *theirs).collect()),
            ] {
                println!("  {bytes:>8} bytes  {name:8} {}", Window::describe(&windows));
            }
            let ratios: Vec<f64> = windows.iter().map(|(ours, theirs)| ours.mean() / theirs.mean()).collect();
            println!("  {bytes:>8} bytes  {}", class.add(ratios));
        }
        let (bound, largest) = (class.upper_bound(), class.largest());
        println!(
            "  beside {count} stranger(s), ccl / Open MPI = {:.3}, upper 95 % bound {bound:.3}; to be at most {}: {}",
            class.mean(),
            LIMITS.0,
            verdict(bound <= LIMITS.0)
        );
        println!(
            "  the largest ratio of a size {largest:.3}; to be at most {}: {}\n",
            LIMITS.1,
            verdict(largest <= LIMITS.1)
        );
    }
}

/// A window of ccl and one of Open MPI; which is first changes from pair to pair.
fn pair_of(program: &Path, count: usize, bytes: usize, seconds: f64, pair: usize) -> (Window, Window) {
    let _strangers = Strangers::start(count);
    if pair.is_multiple_of(2) {
        let ours = ours(bytes, seconds);
        (ours, theirs(program, bytes, seconds))
    } else {
        let theirs = theirs(program, bytes, seconds);
        (ours(bytes, seconds), theirs)
    }
}
