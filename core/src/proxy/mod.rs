//! The proxy moves the network steps of operations, on behalf of the engine: the messages of links
//! that carry bytes only when they are pumped. It is no thread: whoever turns the engine turns it.
//!
//! An operation that uses such links is one *proxy operation*; its links (a channel, a peer and a
//! direction each) are its *sub-operations*. A proxy operation is moved only while it holds a
//! *slot* of the process's [`Pool`]: the operations that hold one are the active list. The others
//! wait for a slot, which their cells show. An operation that holds a slot and does not advance
//! gives it to one that waits, so all are moved again and again, however few slots there are, and
//! none waits for another one's end.
//!
//! A sub-operation has the counters of its link, which are NCCL's: posted, transmitted or received,
//! done ([`transport`](crate::transport)). They are kept nowhere else.
//!
//! A *step* is one message of a link. Its states have NCCL's names:
//! [`ProxyState`](crate::types::ProxyState).
//!
//! Links through memory have no part in this.

mod pool;
mod sub;

pub use pool::{Claim, LOOK, Pool};
pub(crate) use sub::Sub;
