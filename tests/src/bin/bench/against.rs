//! `bench against PROGRAM`: this build compared with another build's `bench` program, on an
//! otherwise idle machine.
//!
//! The workers of both run batches of all-reduce, in turns, in fresh processes each. The comparison
//! is by the mean time of an operation over all batches of a window.

use std::path::Path;

use crate::statistics::{Class, middle, verdict};
use crate::{LEVEL_1, Timed, ours_of};

const SIZES: [usize; 4] = [8, 64 << 10, 1 << 20, 16 << 20];
/// The most that this build may take of the other's time, with 95 % confidence.
const LIMIT: f64 = 1.03;
/// Milliseconds of a batch.
const BATCH: f64 = 20.0;

/// Compares with the program at `other`: this many pairs of windows of `seconds` for each size.
pub(crate) fn against(other: &Path, pairs: usize, seconds: f64) {
    let this = std::env::current_exe().unwrap();
    println!(
        "this build beside {}: {pairs} pairs of windows of {seconds} s for each size\n",
        other.display()
    );
    let batches = (seconds * 1e3 / BATCH).ceil() as usize;
    let mut class = Class::default();
    for bytes in SIZES {
        let window = |program: &Path| -> Timed {
            ours_of(program, (bytes, BATCH, batches), &[LEVEL_1]).pop().expect("one variant was asked for")
        };
        let (mut new, mut old, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..pairs {
            let (ours, theirs) = if pair.is_multiple_of(2) {
                let ours = window(&this);
                (ours, window(other))
            } else {
                let theirs = window(other);
                (window(&this), theirs)
            };
            let mean = |timed: &Timed| timed.us.iter().sum::<f64>() / timed.us.len() as f64;
            ratios.push(mean(&ours) / mean(&theirs));
            new.extend(ours.us);
            old.extend(theirs.us);
        }
        println!("  {bytes:>8} bytes  this {} us, the other {} us", middle(&new), middle(&old));
        println!("  {bytes:>8} bytes  {}", class.add(ratios));
    }
    let bound = class.upper_bound();
    println!(
        "  this / the other = {:.3}, upper 95 % bound {bound:.3}; to be at most {LIMIT}: {}",
        class.mean(),
        verdict(bound <= LIMIT)
    );
}
