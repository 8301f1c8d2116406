//! What the example programs share. The programs are in `src/bin`, and use ccl as anybody's would.
//!
//! | program | what it shows |
//! |---|---|
//! | `hello` | the smallest program: one all-reduce |
//! | `train_digits` | data-parallel training of a small network; its ranks end bit for bit equal |
//! | `straggler` | one rank is late at every step; who, only its caller knows |
//! | `hang` | one rank does not come; who and when, only its caller knows |
//! | `demo` | runs `train_digits` on two hosts with a straggler drawn at random, and finds it from outside |
//!
//! | room | what it holds |
//! |---|---|
//! | [`digits`] | the images, and a fixed order of them |
//! | [`network`] | a perceptron with one hidden layer: loss, gradient, update |
//! | [`trainer`] | which rank sees which images, and one step of training |
//! | [`calls`] | one collective of any kind, its result checked |
//! | [`drawn`] | who is late, as the caller drew it |
//! | [`readings`] | what many snapshots of a running job add up to |
//!
//! The training itself knows no ccl: `train_digits` calls it, so that what a user must write stands in one file.

pub mod calls;
pub mod digits;
pub mod drawn;
pub mod network;
pub mod readings;
pub mod trainer;

use std::io::Write;

/// Says on standard error why a program fails.
pub fn complain(error: &dyn std::error::Error) {
    // In one piece: several ranks may share standard error. Nothing else can be done where it is gone.
    let _ = std::io::stderr().write_all(format!("error: {error}\n").as_bytes());
}
