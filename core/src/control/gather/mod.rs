//! Gathering across hosts: from one process the state of ranks on hosts whose files and /proc
//! cannot be reached.
//!
//! The *leaders* of a communicator, the lowest rank of each host, form a tree (`tree`). Each
//! keeps a connection to its parent, an *edge*, from init on. A question is a *wave* (`wave`): it
//! goes over the edges of all communicators of a process, and every process that it reaches
//! answers with a row for each process of its host (`local`; `readings`: when) and with what others
//! answer it. A process that gets a wave twice says so. A leader that does not answer is replaced
//! by another rank of its host.
//!
//! `wave` is a state machine without I/O, `task` runs it in the service thread, `message` is
//! what travels, `answer` what is gathered. What arrives is hostile until it is checked.
//! Gathering executes nothing and changes nothing in the processes it asks.

mod answer;
mod ask;
mod local;
mod message;
mod readings;
mod task;
mod tree;
mod wave;

pub use answer::{Gathered, GatheredRow, Lack};
pub(crate) use local::read as read_host;
pub(crate) use task::{Gathering, Member, Ticket, Way};
pub(crate) use tree::HostTree;
pub(crate) use wave::Piece;

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
