//! Words of a row of `QueuePairs`: one queue pair of an end of a lane. From layout 12 on.
//!
//! The first line says which it is, the second one what it does. The second one's only writer is
//! the owner of the link.

/// The identity of the queue pair. Stored last.
///
/// [`super::RowState`] | direction << 8 | number among the queue pairs of its link << 16 | whether
/// its address is a GID << 24 | whether that of the other one is << 25 | channel << 32 | comm row
/// << 48.
pub const WHAT: usize = 0;
/// The peer, and in the upper half the generation of the comm row.
pub const PEER: usize = 1;
/// Reference of the name of its device.
pub const DEVICE: usize = 2;
/// Its number | its port << 24 | the other one's number << 32 | the other one's port << 56.
pub const NUMBERS: usize = 3;
/// The address of its port, two words: the bytes of the GID, or the LID.
pub const OWN: usize = 4;
/// The same of the other one.
pub const OTHER: usize = 6;
/// Its state: a number of [`QueuePairState`](crate::snapshot::QueuePairState); 0: not recorded.
pub const STATE: usize = 8;
/// Its writes that were posted, as far as each says when it has completed.
pub const POSTED: usize = 9;
/// How many of these have completed. Read before [`POSTED`], so it is never more.
pub const COMPLETED: usize = 10;
/// Of a writer, the messages that its reader has room for; of a reader, the messages that it has
/// freed and not yet told the writer of.
pub const CREDITS: usize = 11;
/// The bytes that it has been told to write, or that have arrived on it.
pub const BYTES: usize = 12;
/// Raw time when its owner last saw that something had completed; 0: nothing has.
pub const COMPLETED_AT: usize = 13;
/// The status of the first work request that failed, and in the upper half the device's own code;
/// 0: none has failed. Stored after [`ERROR_AT`].
pub const ERROR: usize = 14;
/// Raw time when its owner saw that.
pub const ERROR_AT: usize = 15;
/// Words of a row.
pub const WORDS: usize = 16;
