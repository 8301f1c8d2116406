//! How ranks find each other, authenticate, and exchange the data that is needed to create a
//! communicator.
//!
//! ```text
//!  rendezvous -> unique id -> join: check in at the root -> ring -> introductions
//!    -> all-gathers, messages -> the ring is kept for the failure gossip
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`id`], [`rendezvous`] | root address and secret; how ranks learn both from the environment |
//! | [`auth`], [`handshake`], [`greet`] | keys, proofs; handshake of each connection; on sockets |
//! | [`driver`], [`root_task`] | a rank, and the root, on real sockets: used by other modules |
//! | `root`, `member`, `ring`, `p2p` | both as state machines: no own I/O, clock or randomness |
//! | `lobby`, `dial` | their parts: unauthenticated connections; repeated connection attempts |
//! | `door`, `launch` | one listener and its roots; how jobs at one address are told apart |
//! | `machine`, `net`, `sim_net` | interface below them; real sockets; simulated test network |
//! | `ending` | how all ranks leave together; what a slower neighbour still sends |
//! | `messages`, `frame`, [`fault`] | messages of bounded size; why it failed, naming the rank |
//! | [`interfaces`], [`host`], `agreement` | address to use; shared hosts; equal settings |
//!
//! Not implemented: several roots for one job, the network transport as carrier of the ring, and
//! the launchers Open MPI, MPICH and Slurm.

pub(crate) mod agreement;
pub mod auth;
mod dial;
mod door;
pub mod driver;
mod ending;
pub mod fault;
pub(crate) mod frame;
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
pub use ending::BootstrapRest;
pub use id::UniqueId;
pub(crate) use launch::Launched;
pub use root_task::{RootHandle, create, create_near};
