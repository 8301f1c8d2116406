//! Lanes over queue pairs of InfiniBand or RoCE, between hosts.
//!
//! After NCCL's transport of this kind (its `net_ib`), whose names are kept:
//! RDMA WRITE with an immediate number, clear-to-send entries that the reader writes, several queue
//! pairs per connection.
//!
//! | part | contents |
//! |---|---|
//! | `filter` | which ports `CCL_IB_HCA` admits |
//! | `port` | which ports there are and by which address they are reached |
//! | `hca` | a device of the process: its completion queue, and who waits for what |
//! | `staging` | the registered memory in which messages lie |
//! | `link` | the two ends of a lane |
//! | `seen` | what readers of the recorder see of queue pairs |
//! | `watch` | what they see of ports, and what devices report |
//! | `setup`, `talk`, `line` | what both sides tell each other, and over what |
//! | `accept`, `carrier` | the reader's side of setting a lane up, and the writer's |
//!
//! **What is whose.** A device belongs to the process (`hca`); queue pairs belong to one
//! communicator, one peer and one direction, so that an error of one ends only that communicator.

pub(crate) mod accept;
pub(crate) mod carrier;
pub mod filter;
pub(crate) mod hca;
pub(crate) mod line;
pub mod link;
pub mod port;
mod seen;
pub(crate) mod setup;
pub(crate) mod staging;
pub(crate) mod talk;
#[cfg(test)]
#[cfg(not(miri))]
pub(crate) mod testing;
#[cfg(test)]
#[cfg(not(miri))]
mod tests;
pub(crate) mod watch;
