//! The layout of a recorder's mapping: a public, append-only contract.
//!
//! ```text
//!   header (4 KiB) | comms | histograms | link ids | links | peers | strings | ring descriptors
//!     | ring slots | sockets | durations | history | queue pairs | ports
//! ```
//!
//! The header ends with a directory of one entry {table, offset, stride, count, version} per table.
//! A reader goes by the directory, never by its own constants. Words that a row of an older writer
//! lacks read as zero, words that a row of a newer writer has beyond ours are skipped, and unknown
//! tables are ignored. So fields and tables are only ever added at the end, and a number keeps the
//! meaning it was once given.
//!
//! Everything is a little-endian 64-bit word, written through an atomic. Ring descriptors lie
//! before the slots, so that a copy made in ascending order reads each ring's head before its
//! slots: each event that the head counts is in its slot, or is overwritten and counted as lost.

mod capacity;
pub mod durations;
mod ending;
pub mod histogram;
pub mod history;
pub mod port;
pub mod queue_pair;
pub mod watch;

pub use capacity::{Capacity, RING_SLOTS};
pub use ending::Ending;

/// The first word: `CCLRECRD`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CCLRECRD");
/// The version of this layout. It grows with every addition.
pub const VERSION: u32 = 14;
/// The oldest reader that understands this layout. It grows only if a meaning changes.
pub const READABLE_SINCE: u32 = 1;

/// Words of a cache line.
pub const LINE: usize = 8;

/// Words of the header.
pub mod header {
    /// [`super::MAGIC`], stored last when a recorder is made.
    pub const MAGIC: usize = 0;
    /// Layout version, and in the upper half the oldest reader that understands it.
    pub const VERSION: usize = 1;
    /// Bytes of the header.
    pub const BYTES: usize = 2;
    /// Bytes of the whole mapping.
    pub const TOTAL: usize = 3;
    /// Offset of the directory in bytes.
    pub const DIRECTORY: usize = 4;
    /// Bytes per entry of the directory.
    pub const DIRECTORY_STRIDE: usize = 5;
    /// Entries of the directory.
    pub const DIRECTORY_COUNT: usize = 6;
    /// 1 once the process has left in good order.
    pub const LEFT: usize = 7;
    /// The number of failed operations, and of communicators that failed between two operations.
    pub const FAILED: usize = 8;
    /// The pid in the process's own pid namespace, and in the upper half in the namespace of its
    /// /proc.
    pub const PID: usize = 9;
    /// Inode of the pid namespace.
    pub const PID_NAMESPACE: usize = 10;
    /// CLOCK_REALTIME in nanoseconds when the recorder was made.
    pub const MADE_AT: usize = 11;
    /// The effective user.
    pub const UID: usize = 12;
    /// The public job id of the first communicator that has one.
    pub const JOB: usize = 13;
    /// Version of the library: major << 32 | minor << 16 | patch.
    pub const LIBRARY: usize = 14;
    /// Nanoseconds per tick of the raw counter as the process measured it; 32.32 fixed point.
    pub const NS_PER_TICK: usize = 15;
    /// The level of everything that has no level of its own, and of later communicators.
    pub const LEVEL: usize = 16;
    /// The kind of memory that holds the mapping: see [`super::Home`].
    pub const HOME: usize = 17;
    /// The first clock anchor: raw, monotonic, realtime.
    pub const FIRST_ANCHOR: usize = 18;
    /// Rows of tables 1 to 9 that found no space, one word per table: see [`overflow`]. For rings
    /// it counts the events of threads that found none.
    pub const OVERFLOW: usize = 24;
    /// Reference of the path of the file.
    pub const PATH: usize = 34;
    /// Reference of the path of the control socket; 0 while none exists.
    pub const CONTROL: usize = 35;
    /// Reference of the settings that differ from their defaults.
    pub const SETTINGS: usize = 36;
    /// When the process was started, in clock ticks since boot as in /proc/PID/stat; 0: unknown.
    pub const STARTED: usize = 37;
    /// Hash of the launcher's name for the job; 0: none. From layout 8 on.
    pub const LAUNCH: usize = 38;
    /// The launcher's number of the process plus 1; 0: none. From layout 8 on.
    pub const LAUNCH_RANK: usize = 39;
    /// The latch of the last clock anchor, which the service thread renews once a second.
    pub const ANCHOR_LATCH: usize = 40;
    /// Two copies of the last clock anchor: raw, monotonic, realtime.
    pub const ANCHOR: usize = 41;
    /// Words of one copy.
    pub const ANCHOR_WORDS: usize = 3;
    /// Boot id of the kernel, as text.
    pub const BOOT: usize = 48;
    /// Host name, as text.
    pub const HOST: usize = 56;
    /// `CCL_HOSTID`, as text.
    pub const HOST_ID: usize = 72;
    /// Words of the texts `BOOT`, `HOST` and `HOST_ID`.
    pub const TEXTS: [usize; 3] = [8, 16, 16];
    /// The same as [`OVERFLOW`] for tables 10 and above.
    pub const OVERFLOW_MORE: usize = 88;
    /// The number of communicators in use that have no row of `Comms`. From layout 8 on.
    ///
    /// Rows that communicators needed in vain count in [`OVERFLOW`] also when those have ended.
    pub const WITHOUT_ROW: usize = 120;
    /// How the process ended, as it said itself: [`super::Ending`], and in the upper half the
    /// signal. From layout 9 on.
    pub const END: usize = 121;
    /// The kills for want of memory that its memory group had counted when the recorder was made,
    /// plus 1; 0: not known. From layout 9 on.
    pub const OOM_FIRST: usize = 122;
    /// The same now; sampled once a second.
    pub const OOM_LATEST: usize = 123;
    /// Reference of the path of that group's folder. From layout 9 on.
    pub const CGROUP: usize = 124;
    /// The inode of that folder: the same path may lead to another group elsewhere.
    pub const CGROUP_INODE: usize = 125;
    /// A number of [`Lacks`](crate::snapshot::Lacks); 0: nothing is lacking. From layout 11 on.
    pub const LACKS: usize = 126;
    /// First word of the directory.
    pub const DIRECTORY_AT: usize = 128;

    /// The word that counts the rows of a table that found no space.
    #[must_use]
    pub const fn overflow(table: super::Table) -> usize {
        let number = table as usize;
        if OVERFLOW + number < PATH { OVERFLOW + number } else { OVERFLOW_MORE + number - 10 }
    }
}

/// The kind of memory that holds a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Home {
    /// Private memory of the process, which no other process can read.
    Heap = 0,
    /// A file.
    File = 1,
    /// A memfd, because no file could be made.
    Memfd = 2,
}

/// The tables, by their number in the directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u64)]
pub enum Table {
    /// One row per communicator and rank: [`comm`].
    Comms = 1,
    /// Before layout 7, histograms of a fixed number of kinds, one block per communicator and rank:
    /// [`histogram`].
    Histograms = 2,
    /// The identity of the link that a progress cell describes: [`link_id`].
    LinkIds = 3,
    /// Progress cells: [`link`].
    Links = 4,
    /// Members of communicators: [`peer`].
    Peers = 5,
    /// Bytes of strings, referred to by `offset | len << 32`; the reference 0 means no string.
    Strings = 6,
    /// Descriptors of rings: [`ring`].
    Rings = 7,
    /// Slots of rings: [`slot`].
    Slots = 8,
    /// The kernel's counters of the sockets of links: [`socket`].
    Sockets = 9,
    /// Histograms of durations, one row per communicator, rank and kind: [`durations`].
    Durations = 10,
    /// When collectives were called and ended, one row per communicator and rank: [`history`].
    History = 11,
    /// The queue pairs of links: [`queue_pair`]. From layout 12 on.
    QueuePairs = 12,
    /// The ports of devices that have queue pairs: [`port`]. From layout 12 on.
    Ports = 13,
}

/// All tables, in the order of the file.
pub const TABLES: [Table; 13] = [
    Table::Comms,
    Table::Histograms,
    Table::LinkIds,
    Table::Links,
    Table::Peers,
    Table::Strings,
    Table::Rings,
    Table::Slots,
    Table::Sockets,
    Table::Durations,
    Table::History,
    Table::QueuePairs,
    Table::Ports,
];

/// The state of a row of a table that has such: the low byte of its first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum RowState {
    /// Never used, or being written.
    Free = 0,
    /// In use.
    Live = 1,
    /// Given back; its content stays readable until the row is needed again.
    Ended = 2,
}

/// Words of a row of `Comms`.
pub mod comm {
    /// [`super::RowState`], and in the upper half the generation of the row.
    pub const STATE: usize = 0;
    /// Communicator id.
    pub const ID: usize = 1;
    /// Public job id.
    pub const JOB: usize = 2;
    /// This rank, and in the upper half the number of ranks.
    pub const RANK: usize = 3;
    /// This rank's number in the root communicator, which init made.
    pub const WORLD: usize = 4;
    /// Level of detail, which can be changed at any time.
    pub const LEVEL: usize = 5;
    /// Raw time of the driver's last sign of life.
    pub const DRIVEN: usize = 6;
    /// Raw time when the row was made.
    pub const MADE: usize = 7;
    /// Name, as text.
    pub const NAME: usize = 8;
    /// Words of the name.
    pub const NAME_WORDS: usize = 8;
    /// The phase of init under way plus 1; 0: none.
    pub const PHASE: usize = 16;
    /// Raw time when that phase began.
    pub const PHASE_SINCE: usize = 17;
    /// Per phase, its duration in nanoseconds plus 1; 0: not ended.
    pub const PHASES: usize = 18;
    /// Words for phases, more than there are phases.
    pub const PHASES_WORDS: usize = 14;
    /// The op cell of collectives: [`super::op`].
    pub const COLL: usize = 32;
    /// The op cell of send and receive.
    pub const P2P: usize = 64;
    /// The latch of the user's tag.
    pub const TAG_LATCH: usize = 96;
    /// Before layout 7, the index of the histogram block plus 1; 0: none.
    pub const HISTOGRAM: usize = 97;
    /// Class of the error that ended it plus 1; in the upper half the blamed rank plus 1, if agreed
    /// on.
    ///
    /// Stored last.
    pub const FAILED: usize = 98;
    /// Raw time of that failure.
    pub const FAILED_AT: usize = 99;
    /// Reference of the message that all ranks fail with.
    pub const FAILED_TEXT: usize = 100;
    /// CLOCK_MONOTONIC in nanoseconds when init gives up; 0: init is over.
    pub const INIT_UNTIL: usize = 101;
    /// The number of ranks that had not checked in, plus 1; 0: the root has not reported any.
    ///
    /// The number is from the root's last report. The upper half holds the first range of these
    /// ranks: its first rank | (its length less 1) << 16. Stored after [`ABSENT_MORE`].
    pub const ABSENT: usize = 102;
    /// The next two ranges; a range that would exceed the number of absent ranks is not one.
    pub const ABSENT_MORE: usize = 103;
    /// Two copies of the user's tag, as text.
    pub const TAG: usize = 104;
    /// Words of one copy.
    pub const TAG_WORDS: usize = 12;
    /// Words of a row.
    pub const WORDS: usize = 128;
}

/// Words of an op cell.
///
/// Each of the words from `COMPLETED` to `FAILED` is a single monotone fact with one writer. They
/// are read in the order completed, started, called.
pub mod op {
    /// Sequence number last completed (collectives), or how many completed (send and receive).
    pub const COMPLETED: usize = 0;
    /// Sequence number last started.
    pub const STARTED: usize = 1;
    /// Sequence number last called, or how many were called.
    pub const CALLED: usize = 2;
    /// Raw time of the last completion.
    pub const COMPLETED_AT: usize = 3;
    /// Sequence number that failed; 0: none.
    pub const FAILED: usize = 4;
    /// Class of its error plus 1.
    pub const ERROR: usize = 5;
    /// Raw time of the failure.
    pub const FAILED_AT: usize = 6;
    /// The latch of the fact.
    pub const LATCH: usize = 7;
    /// Two copies of the fact: the operation under way, or else the last operation.
    pub const FACT: usize = 8;
    /// Words of one copy: the descriptor in four, then those below.
    pub const FACT_WORDS: usize = 8;
    /// In a copy: raw time since which the operation is under way.
    pub const FACT_SINCE: usize = 4;
    /// In a copy: the peer of send and receive plus 1.
    pub const FACT_PEER: usize = 5;
    /// In a copy: how the operation is shared out, two words; 0 if not recorded.
    ///
    /// Algorithm plus 1 | channels << 16 | most bytes of a message << 32, and the topology's hash.
    pub const FACT_OUTLINE: usize = 6;
    /// The longest wait: reason | direction << 8 | channel << 16, upper half the peer; 0: none.
    ///
    /// The direction's byte also has [`UNATTENDED`] or [`POLLED`], if no thread waits.
    pub const WAITS: usize = 24;
    /// A bit beside the direction: nobody waits for the call.
    pub const UNATTENDED: u64 = 0x80;
    /// A bit beside the direction: a task waits for the call, and no thread.
    pub const POLLED: u64 = 0x40;
    /// Raw time when the wait began.
    ///
    /// Stored between two stores of `WAITS`, the first of which stores 0.
    pub const WAITS_SINCE: usize = 25;
    /// Words of an op cell.
    pub const WORDS: usize = 32;
}

/// Words of a row of `LinkIds`.
pub mod link_id {
    /// The identity of the link. Stored last.
    ///
    /// [`super::RowState`] | direction << 8 | transport << 16 | has a peer << 24 | reads the peer's
    /// shared lane << 25, from layout 14 on | channel << 32 | comm row << 48.
    pub const WHAT: usize = 0;
    /// The peer, and in the upper half the generation of the comm row.
    pub const PEER: usize = 1;
    /// The transport's [`TransportReason`](crate::types::TransportReason) number; 0: not recorded.
    pub const WHY: usize = 2;
    /// Words of a row.
    pub const WORDS: usize = 3;
}

/// Words of a progress cell: one cache line, read in the order done, moved, posted.
pub mod link {
    /// Messages taken by the peer, or messages freed on this side.
    pub const DONE: usize = 0;
    /// Messages handed to the peer's memory or the kernel, or messages arrived.
    pub const MOVED: usize = 1;
    /// Messages published, or slots offered.
    pub const POSTED: usize = 2;
    /// Bytes moved in total.
    pub const BYTES: usize = 3;
    /// Sequence number of the send or receive it last worked for; 0 for collectives.
    pub const OP: usize = 4;
    /// The reason of its wait | while it is set up, from layout 12 on, the number of the set-up's
    /// [`SetupState`](crate::types::SetupState) plus 1 << 8, and in the upper half the peer.
    pub const WAITS: usize = 5;
    /// Raw time when the wait began; stored before `WAITS`.
    pub const SINCE: usize = 6;
    /// The number of waits that lasted longer than a message takes.
    pub const WAITED: usize = 7;
    /// Words of a cell.
    pub const WORDS: usize = 8;
}

/// Words of a row of `Peers`.
pub mod peer {
    /// [`super::RowState`] | comm row << 16 | generation of the comm row << 32. Stored last.
    pub const STATE: usize = 0;
    /// The rank, and in the upper half its pid in its own pid namespace.
    pub const RANK: usize = 1;
    /// Reference of its host name.
    pub const HOST: usize = 2;
    /// Reference of the path of its recorder.
    pub const RECORDER: usize = 3;
    /// Reference of the path of its control socket.
    pub const CONTROL: usize = 4;
    /// Its number in the root communicator.
    pub const WORLD: usize = 5;
    /// Its group plus 1, once the ranks have agreed on groups: who shares memory with whom.
    pub const GROUP: usize = 6;
    /// Words of a row.
    pub const WORDS: usize = 8;
}

/// Words of a ring's descriptor.
///
/// A ring belongs to the thread that writes it. Marks among its events say of which communicator
/// and rank the next ones are, at every change and once in a quarter of its slots at least. Before
/// layout 7 a ring belonged to a communicator.
pub mod ring {
    /// [`super::RowState`], and in the upper half the generation.
    pub const STATE: usize = 0;
    /// The index of the ring's first slot.
    pub const FIRST: usize = 1;
    /// The number of its slots, a power of two.
    pub const SLOTS: usize = 2;
    /// The number of events ever written to it, with the marks.
    pub const HEAD: usize = 3;
    /// Before layout 7, the number of events written before its present owner.
    pub const START: usize = 4;
    /// Before layout 7, the communicator id of its owner; 0: the service thread.
    pub const COMM: usize = 5;
    /// Before layout 7, the owner's rank in that communicator.
    pub const RANK: usize = 6;
    /// The kernel's number of the thread that writes it, or did so last; 0: not recorded.
    pub const THREAD: usize = 7;
    /// Words of a descriptor.
    pub const WORDS: usize = 8;
}

/// Words of a row of `Sockets`: one stream of a link over TCP.
pub mod socket {
    /// The identity of the socket. Stored last.
    ///
    /// [`super::RowState`] | direction << 8 | number among the streams of its link << 16 | address
    /// family (4 or 6) << 24 | channel << 32 | comm row << 48.
    pub const WHAT: usize = 0;
    /// The peer, and in the upper half the generation of the comm row.
    pub const PEER: usize = 1;
    /// The local port | the remote port << 16.
    pub const PORTS: usize = 2;
    /// The bytes of the local address, two words.
    pub const LOCAL: usize = 3;
    /// The bytes of the remote address, two words.
    pub const REMOTE: usize = 5;
    /// The latch of the sample.
    pub const LATCH: usize = 7;
    /// Two copies of the last sample.
    pub const SAMPLE: usize = 8;
    /// Words of one copy.
    pub const SAMPLE_WORDS: usize = 6;
    /// In a copy: raw time of the sample.
    pub const SAMPLE_RAW: usize = 0;
    /// In a copy: the state of the connection.
    ///
    /// The kernel's number of the TCP state | timeouts in a row << 8 | probes in a row << 16 |
    /// backoff << 24 | congestion window in segments << 32.
    pub const SAMPLE_STATE: usize = 1;
    /// In a copy: smoothed round trip in microseconds, and in the upper half its variation.
    pub const SAMPLE_RTT: usize = 2;
    /// In a copy: segments sent but not acknowledged, and in the upper half segments resent so far.
    pub const SAMPLE_SENT: usize = 3;
    /// In a copy: bytes in the kernel that are not yet sent, and in the upper half what happened
    /// since the sample before, from layout 10 on: percent of the time with something to send |
    /// percent held up by the receiver's window << 8 | segments resent << 16.
    pub const SAMPLE_UNSENT: usize = 4;
    /// In a copy: milliseconds since the last data, and in the upper half since the last
    /// acknowledgement.
    pub const SAMPLE_HEARD: usize = 5;
    /// Words of a row.
    pub const WORDS: usize = 24;
}

/// Words of a slot.
pub mod slot {
    /// 2n + 1 while event n is being written, 2n + 2 once it is complete.
    pub const SEQ: usize = 0;
    /// Raw time.
    pub const RAW: usize = 1;
    /// The event: six words.
    pub const EVENT: usize = 2;
    /// Words of an encoded event.
    pub const EVENT_WORDS: usize = 6;
    /// Words of a slot.
    pub const WORDS: usize = 8;
}

/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Words of an entry of the directory: table, offset, stride, count, version, three unused.
pub const ENTRY_WORDS: usize = 8;

/// Encodes a text in `WORDS` words: its length in bytes, then its bytes.
///
/// A text that does not fit is cut at a character boundary.
#[must_use]
pub fn encode_text<const WORDS: usize>(text: &str) -> [u64; WORDS] {
    let mut end = text.len().min((WORDS - 1) * 8);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut words = [0; WORDS];
    words[0] = end as u64;
    for (word, bytes) in words[1..].iter_mut().zip(text.as_bytes()[..end].chunks(8)) {
        let mut full = [0; 8];
        full[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(full);
    }
    words
}

/// Decodes a text, whatever the words hold.
#[must_use]
pub fn decode_text(words: &[u64]) -> String {
    let Some((&len, rest)) = words.split_first() else { return String::new() };
    let bytes: Vec<u8> = rest.iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = usize::try_from(len).map_or(bytes.len(), |len| len.min(bytes.len()));
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[cfg(test)]
mod tests;
