//! Failure handling: how the ranks of a communicator agree on why it ended.
//!
//! | module | what it holds |
//! |---|---|
//! | `gossip` | the machine: messages, stream ends and time in; messages and one decision out |
//! | `task` | runs the machine on real streams, in the service thread |
//! | `edge` | the stream to the next rank, opened again where that rank has left |
//! | `line` | whole messages on one stream |

pub(crate) mod edge;
pub mod gossip;
mod line;
pub(crate) mod task;
