//! Code shared by the example programs. The programs are in `src/bin`, and use ccl as any user's
//! program would.
//!
//! | program | what it shows |
//! |---|---|
//! | `hello` | the smallest program: one all-reduce |
//! | `train_digits` | data-parallel training of a small network; its ranks end bit for bit equal |
//! | `straggler` | one rank is late at every step; only the caller knows which |
//! | `hang` | one rank does not make a call; only the caller knows which rank and call |
//! | `grid` | tensor, data and pipeline groups; one rank deviates in one of them |
//! | `ccl-perf` | measures collectives and checks their results, with the options of nccl-tests |
//! | `demo` | runs `train_digits` on two hosts with a random straggler, and finds it from outside |
//!
//! | module | what it holds |
//! |---|---|
//! | [`digits`] | the images, and a fixed order of them |
//! | [`network`] | a perceptron with one hidden layer: loss, gradient, update |
//! | [`trainer`] | which rank sees which images, and one step of training |
//! | [`calls`] | one collective of any kind, its result checked |
//! | [`grid`] | which ranks are in which groups, and their communicators |
//! | [`perf`] | the parts of `ccl-perf` |
//! | [`drawn`] | the late rank, as the caller drew it |
//! | [`readings`] | the sum of many snapshots of a running job |
//!
//! The training itself does not use ccl: `train_digits` calls both, so that all code a user must
//! write is in one file.

pub mod calls;
pub mod digits;
pub mod drawn;
pub mod grid;
pub mod network;
pub mod perf;
pub mod readings;
pub mod trainer;

use std::io::Write;

/// Prints on standard error why a program fails.
pub fn complain(error: &dyn std::error::Error) {
    // In one write: several ranks may share standard error. If standard error is gone, nothing else
    // can be done.
    let _ = std::io::stderr().write_all(format!("error: {error}\n").as_bytes());
}
