//! How ranks find each other, prove who they are, and exchange what the makers of a communicator need.
//!
//! ```text
//!  rendezvous -> unique id -> join: check in at the root -> ring -> introductions -> all-gathers, messages -> the ring is kept for news
//! ```
//!
//! | room | what it holds |
//! |---|---|
//! | [`id`], [`rendezvous`] | where the root is and what the secret is; how ranks learn that from their environment |
//! | [`auth`], [`handshake`], [`greet`] | what every connection between ranks begins with; on real sockets |
//! | [`driver`], [`root_task`] | the bootstrap of one rank, and the root, on real sockets: what others call |
//! | `root`, `member`, `ring`, `p2p` | the same as state machines: no I/O, no clock, no randomness of their own |
//! | `lobby`, `dial` | their common parts: who has not proven itself yet; a connection that is tried until it is up |
//! | `door`, `launch` | one listener and the roots behind it; what tells jobs apart that meet at one place |
//! | `machine`, `net`, `sim_net` | the seam below them; real sockets; a simulated network for tests |
//! | `messages`, `frame`, [`fault`] | what travels, bounded before it is allocated; why it failed, naming the rank |
//! | [`interfaces`], [`host`], `agreement` | which address to use; who shares a host or process; settings that must be equal |
//!
//! What is absent: several roots for one job, the network transport as carrier of the ring, and the launchers Open MPI, MPICH and Slurm.

mod agreement;
pub mod auth;
mod dial;
mod door;
pub mod driver;
pub mod fault;
mod frame;
pub mod greet;
pub mod handshake;
pub mod host;
pub mod id;
pub mod interfaces;
mod launch;
mod lobby;
mod machine;
mod member;
mod messages;
mod net;
pub(crate) mod notice;
mod p2p;
pub mod rendezvous;
mod ring;
mod root;
pub mod root_task;
#[cfg(test)]
mod sim_net;
#[cfg(test)]
mod sim_tests;

pub use driver::{Bootstrap, RingStream, RingStreams};
pub use id::UniqueId;
pub use root_task::{RootHandle, create, create_near};
