//! A collective communicator whose every step can be observed.
//!
//! ```text
//!   call -> collective -> plan -> engine moves steps over links -> completion
//!           (data)        (data)  |
//!                                 +-> recorder: cells, ring buffer -> snapshot -> diagnose
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`comm`] | the public interface: init, calls and the end of a communicator |
//! | [`collective`] | a request as data, and the 32 bytes that two ranks must agree on |
//! | [`bootstrap`] | unique id, root, ring, barrier, rendezvous: state machines, and their driver |
//! | [`plan`] | pure: topology, request, rank -> steps; and the proof that they are correct |
//! | [`engine`] | executes steps over links; no I/O and no clock of its own |
//! | [`simulate`] | many ranks in one process: plan and engine over simulated links |
//! | [`proxy`] | moves the messages of links over the network, on behalf of the engine |
//! | [`transport`] | memory, sockets, queue pairs, the simulator, and fault injection around them |
//! | [`reduce`] | the element-wise kernels |
//! | [`event`] | events as data |
//! | [`observer`] | the callback that runs inline when a call begins and ends |
//! | [`recorder`] | the mapping with current state and history, readable after death too |
//! | [`snapshot`], [`diagnose`] | one reading of a mapping; which rank blocks which others |
//! | [`control`] | the socket that inspectors attach to |
//! | [`failure`] | how ranks learn of a failure and agree on its cause |
//! | [`reactor`] | the service thread and its tasks |
//! | [`types`], [`error`] | the basic types; what can go wrong, and where it did |
//! | [`config`], [`clock`], [`memory`], [`sys`] | settings, time, buffers, system calls |
//! | [`text`], [`notice`] | foreign text made safe to print; messages on standard error |
//! | [`seed`] | random numbers that are the same everywhere |
//!
//! **The stable interface** under semantic versioning is the items that this page lists below. The
//! settings and exit statuses are specified in README.md, the JSON schemas in SCHEMAS.md, and the
//! layout of the recorder in [`recorder::layout`]. The modules are public so that exporters,
//! inspector and tests can be separate crates. They are hidden from these pages and change without
//! notice.

#[doc(hidden)]
pub mod bootstrap;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod collective;
#[doc(hidden)]
pub mod comm;
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod control;
#[doc(hidden)]
pub mod diagnose;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod event;
#[doc(hidden)]
pub mod failure;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod notice;
#[doc(hidden)]
pub mod observer;
#[doc(hidden)]
pub mod plan;
#[doc(hidden)]
pub mod proxy;
#[doc(hidden)]
pub mod reactor;
#[doc(hidden)]
pub mod recorder;
#[doc(hidden)]
pub mod reduce;
#[doc(hidden)]
pub mod seed;
#[doc(hidden)]
pub mod simulate;
#[doc(hidden)]
pub mod snapshot;
#[doc(hidden)]
pub mod sys;
#[doc(hidden)]
pub mod text;
#[doc(hidden)]
pub mod transport;
#[doc(hidden)]
pub mod types;

pub use bootstrap::id::UniqueId;
pub use bootstrap::root_task::{RootHandle, create as create_id};
pub use collective::Request;
pub use comm::group::Group;
pub use comm::{Collective, Communicator, Config, Invitation, Joining, Pending, Prepared, Reduction};
pub use config::{Key, Settings};
pub use error::{At, Error, ErrorKind, Result};
pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
pub use memory::{Element, Region};
pub use observer::{Call, CallObserver, set_observer};
pub use types::{ChannelId, CollKind, CommId, Datatype, JobId, Phase, Rank, ReduceOp};
