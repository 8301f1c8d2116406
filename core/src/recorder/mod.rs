//! The recorder: a shared mapping of the process's current state and recent events.
//!
//! Any process with the right to read the file can read it, even after the writer has died.
//!
//! ```text
//!   engine --CommRow, LinkCell--> cells (now)     \
//!          --Events-------------> rings (so far)   \   one file
//!   service -anchor-------------> header, clocks   /  per process  --Reader--> snapshot
//!           -sample_sockets-----> sockets of links/
//!           -sample_ports-------> ports          /
//! ```
//!
//! State is kept in tables and history in ring buffers. Nothing rebuilds state from events, so a
//! lost event never makes an operation look stuck. Every word is an atomic at an offset that
//! [`layout`] fixes. Writers never wait, allocate or fail on the data path; rows that find no free
//! slot are recorded in private memory and counted. Correctness never depends on the recorder: with
//! `CCL_OBSERVE=0` the same stores go to private memory.
//!
//! **Alive** is the record lock on byte 0 of the file. The kernel frees the lock when the process
//! dies, and also when the process closes any descriptor of the file. So a process never opens its
//! own recorder; it borrows it ([`Reader::of_process`]).
//!
//! **Leaving**: the file is unlinked when the last owner of the recorder is gone or the process
//! exits, if no operation failed and none was under way; otherwise it stays as evidence. After an
//! init that failed it stays until one of the process succeeds or begins anew. A process
//! that exits while it still shares a communicator with other ranks has not left, so its file stays
//! too. A forked child has private zeros in place of the mapping and removes nothing.
//!
//! | module | what it holds |
//! |---|---|
//! | `layout`, `mapping` | where each word is; the memory of the words |
//! | `protocol` | how facts of several words are written while others read them |
//! | `process`, `state` | the recorder of the process; what is said of a recorder as a whole |
//! | `place`, `whose` | the folder and the file; the recorders of a process, the writer of a file |
//! | `slot_pool` | which rows of the tables are free |
//! | `writer`, `cells` | the writers' handles of rows; the cells, rewritten with every step |
//! | `ring`, `codec` | the history of a thread's events; an event as words |
//! | `history`, `past` | times of past operations; what a row keeps of those that ended |
//! | `sockets` | the sockets of links, with the kernel's counters |
//! | `queue_pairs`, `pairs_read`, `ports` | queue pairs of links, written and read; their ports |
//! | `ending` | how the process ended, and what its memory group counted |
//! | `watch` | what the watchdog reads and writes |
//! | `reader`, `capture` | reading a recorder; its bytes at one moment, to be read elsewhere |
//! | `decode`, `words` | from words to snapshots; words that somebody else wrote |
//! | `tail` | following the events of all rings |

pub mod capture;
mod cells;
mod codec;
mod decode;
mod ending;
mod history;
pub mod layout;
mod mapping;
mod pairs_read;
mod past;
pub mod place;
mod ports;
mod process;
mod protocol;
mod queue_pairs;
pub mod reader;
mod ring;
mod slot_pool;
mod sockets;
mod state;
mod tail;
mod watch;
mod whose;
mod words;
mod writer;

pub use cells::{Attention, LinkCell, OpWait};

pub use capture::Capture;
pub use codec::Owner;
pub use past::Times;
pub use ports::{PortCounts, PortSample};
pub use process::tail;
pub use queue_pairs::{QueuePair, QueuePairCell, QueuePairEnd};
pub use reader::Reader;
pub use ring::Events;
pub use state::Recorder;
pub use tail::Recorded;
pub use whose::note_signal;
pub use writer::{CommInfo, CommRow, Peer};

#[cfg(test)]
mod tests;
