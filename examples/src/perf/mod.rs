//! The parts of `ccl-perf`: it measures collectives and checks their results, like nccl-tests.
//!
//! | module | what it holds |
//! |---|---|
//! | [`sizes`] | which sizes are measured |
//! | [`datum`] | the types of elements: their names, their bits, their numbers |
//! | [`inputs`] | the inputs of the checks, as functions of rank and index |
//! | [`expected`] | what results must be, computed without ccl |

pub mod datum;
pub mod expected;
pub mod inputs;
pub mod sizes;
