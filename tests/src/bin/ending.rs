//! One rank that ends as its argument says, or goes on for ever: `ending exit`.
//!
//! Rank 0 does what is said; the others wait for it in a barrier. To ccl it is a program like any
//! other.

use std::process::ExitCode;
use std::time::Duration;

use ccl::{Communicator, Rank, clock};

fn sleep_for_ever() -> ! {
    loop {
        clock::sleep(Duration::from_secs(3600));
    }
}

fn end_by(signal: i32) -> ! {
    // SAFETY: a process may send any signal to itself.
    unsafe { libc::kill(libc::getpid(), signal) };
    sleep_for_ever()
}

/// Takes memory until there is none left.
fn take_all() -> ! {
    let mut all = Vec::new();
    loop {
        all.push(vec![1_u8; 1 << 20]);
        std::hint::black_box(&all);
    }
}

/// Moves this process to a control group, and computes without end.
fn compute_in(group: &str) -> ! {
    let file = std::path::Path::new(group).join("cgroup.procs");
    std::fs::write(&file, std::process::id().to_string()).expect("the test made the group");
    loop {
        std::hint::spin_loop();
    }
}

/// What rank 0 does once the others may wait for it.
fn end(comm: Communicator, how: &str, group: &str) {
    match how {
        "exit" => std::process::exit(3),
        "return" => std::mem::forget(comm),
        "drop" => drop(comm),
        "panic" => panic!("told to"),
        "panic-elsewhere" => {
            // Another thread has the communicator, which no unwinding drops.
            let thread = std::thread::spawn(move || comm.barrier().map(|()| sleep_for_ever()));
            clock::sleep(Duration::from_millis(200));
            assert!(thread.is_finished(), "told to");
        }
        "survive" => {
            std::thread::spawn(|| panic!("told to")).join().expect_err("it panics");
            // Longer than a panic counts.
            clock::sleep(Duration::from_secs(8));
            end_by(libc::SIGKILL)
        }
        "kill" => end_by(libc::SIGKILL),
        "term" => end_by(libc::SIGTERM),
        "memory" => take_all(),
        "starve" => compute_in(group),
        _ => sleep_for_ever(),
    }
}

fn main() -> ExitCode {
    ccl_exporters::init_from_env();
    let mut words = std::env::args().skip(1);
    let how = words.next().unwrap_or_default();
    let group = words.next().unwrap_or_default();
    let comm = Communicator::from_env().expect("the test says who this is");
    comm.barrier().expect("all are there");
    if comm.rank() == Rank(0) {
        end(comm, &how, &group);
        return ExitCode::SUCCESS;
    }
    match comm.barrier().and_then(|()| comm.finish()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
