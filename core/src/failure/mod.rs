//! Failure handling: how the ranks of a communicator agree on why it ended.
//!
//! | module | what it holds |
//! |---|---|
//! | `gossip` | the machine: messages, stream ends and time in; messages and one decision out |
//! | `task` | runs the machine on real streams, in the service thread |
//! | `edge` | the stream to the next rank, opened again where that rank has left; and probes |
//! | `lines` | what arrives from the processes of this host, for all communicators |

pub(crate) mod edge;
pub mod gossip;
pub(crate) mod lines;
pub(crate) mod task;
