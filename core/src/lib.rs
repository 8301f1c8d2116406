//! A collective communicator whose every step can be seen.
//!
//! ```text
//!   call -> collective (data) -> plan (data) -> engine moves steps over transport links -> completion
//!                                                 |
//!                                                 +-> recorder: cells (now), ring (so far) -> snapshot -> diagnose
//! ```
//!
//! | room | what it holds |
//! |---|---|
//! | [`comm`] | the door: making, calling and leaving a communicator |
//! | [`collective`] | a request as data, and the 32 bytes two ranks must agree on |
//! | [`group`] | send and receive that progress together |
//! | [`bootstrap`] | unique id, root, ring, barrier, rendezvous: state machines without I/O, and their driver |
//! | [`plan`] | pure: topology, request, rank -> steps; and the proof that they are right |
//! | [`engine`] | executes steps over links; no I/O and no clock of its own |
//! | [`simulate`] | many ranks in one process: plan and engine over simulated links |
//! | [`transport`] | memory, sockets, the simulator, and faults around any of them |
//! | [`reduce`] | the element-wise kernels |
//! | [`event`] | what happened, as data |
//! | [`observer`] | who is told inline that a call begins and ends |
//! | [`recorder`] | the mapping that tells now and so far, to others and after death |
//! | [`snapshot`], [`diagnose`] | one reading of a mapping; who is awaited, by whom |
//! | [`control`] | the service thread, the socket that inspectors attach to, news between ranks |
//! | [`types`], [`error`] | the nouns; what can go wrong, and where it did |
//! | [`config`], [`clock`], [`memory`], [`sys`] | settings, time, buffers, the floor below |
//! | [`text`] | text of others, made fit to be printed |
//! | [`seed`] | numbers that are drawn the same everywhere |

pub mod bootstrap;
pub mod clock;
pub mod collective;
pub mod comm;
pub mod config;
pub mod control;
pub mod diagnose;
pub mod engine;
pub mod error;
pub mod event;
pub mod group;
pub mod memory;
pub mod observer;
pub mod plan;
pub mod recorder;
pub mod reduce;
pub mod seed;
pub mod simulate;
pub mod snapshot;
pub mod sys;
pub mod text;
pub mod transport;
pub mod types;

pub use collective::Request;
pub use comm::{Communicator, Config};
pub use error::{Error, ErrorKind, Result};
pub use memory::{Element, Region};
pub use types::{ChannelId, CollKind, Datatype, Rank, ReduceOp};
