//! Where everything stands in a recorder's mapping: a public promise, append-only.
//!
//! ```text
//!   header (4 KiB) | comms | histograms | link ids | links | peers | strings | ring descriptors | ring slots | sockets
//! ```
//!
//! The header ends with a directory: one entry {table, offset, stride, count, version} per table. A reader walks by what the
//! directory says, never by its own constants: words that a row of an older writer does not have read as zero, words that a row of a
//! newer one has beyond ours are passed over, tables it does not know are ignored. So fields and tables are only ever added
//! at the end, and a number, once given a meaning, keeps it.
//!
//! Everything is a little-endian 64-bit word, written through an atomic. Ring descriptors lie before the slots, so that a
//! copy made in ascending order has each ring's head before its slots: what the head counts is there, or overwritten and counted as lost.

/// The first word: `CCLRECRD`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CCLRECRD");
/// The version of this layout. It grows with every addition.
pub const VERSION: u32 = 3;
/// The oldest reader that understands it. It grows only if something changed its meaning.
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
    /// Operations that failed, and communicators that failed between two.
    pub const FAILED: usize = 8;
    /// The process in its own pid namespace, and in the upper half in the one of its /proc.
    pub const PID: usize = 9;
    /// Inode of the pid namespace.
    pub const PID_NAMESPACE: usize = 10;
    /// CLOCK_REALTIME in nanoseconds when the recorder was made.
    pub const MADE_AT: usize = 11;
    /// The effective user.
    pub const UID: usize = 12;
    /// The job: public id of the first communicator that has one.
    pub const JOB: usize = 13;
    /// Version of the library: major << 32 | minor << 16 | patch.
    pub const LIBRARY: usize = 14;
    /// Nanoseconds per tick of the raw counter, as measured by the process; 32.32 fixed point.
    pub const NS_PER_TICK: usize = 15;
    /// The level of what has no level of its own, and of communicators to come.
    pub const LEVEL: usize = 16;
    /// Where the mapping lies: see [`super::Home`].
    pub const HOME: usize = 17;
    /// The first clock anchor: raw, monotonic, realtime.
    pub const FIRST_ANCHOR: usize = 18;
    /// Rows, links, histograms, rings, peers and strings that found no place, one word each: see [`super::Table`].
    pub const OVERFLOW: usize = 24;
    /// Reference of the path of the file.
    pub const PATH: usize = 34;
    /// Reference of the path of the control socket; 0 while there is none.
    pub const CONTROL: usize = 35;
    /// Reference of the settings that differ from their defaults.
    pub const SETTINGS: usize = 36;
    /// The latch of the last clock anchor; once a second, the service thread's sign of life.
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
    /// First word of the directory.
    pub const DIRECTORY_AT: usize = 128;
}

/// Where a mapping lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Home {
    /// Private memory of the process: nobody else can read it.
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
    /// Histograms of durations, one block per communicator and rank: [`histogram`].
    Histograms = 2,
    /// Which link a progress cell tells of: [`link_id`].
    LinkIds = 3,
    /// Progress cells: [`link`].
    Links = 4,
    /// Members of communicators: [`peer`].
    Peers = 5,
    /// Bytes of strings, referred to by `offset | len << 32`; 0 is no string.
    Strings = 6,
    /// Descriptors of rings: [`ring`].
    Rings = 7,
    /// Slots of rings: [`slot`].
    Slots = 8,
    /// The kernel's account of the sockets of links: [`socket`].
    Sockets = 9,
}

/// All tables, in the order of the file.
pub const TABLES: [Table; 9] = [
    Table::Comms,
    Table::Histograms,
    Table::LinkIds,
    Table::Links,
    Table::Peers,
    Table::Strings,
    Table::Rings,
    Table::Slots,
    Table::Sockets,
];

/// The state of a row of `Comms`, `LinkIds`, `Peers`, `Rings` or `Sockets`: the low byte of its first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum RowState {
    /// Never used, or being written.
    Free = 0,
    /// In use.
    Live = 1,
    /// Given back; what it tells stays readable until the row is needed again.
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
    /// This rank in the communicator that the job began with.
    pub const WORLD: usize = 4;
    /// Level of detail, changeable while it runs.
    pub const LEVEL: usize = 5;
    /// Raw time of the driver's last sign of life.
    pub const DRIVEN: usize = 6;
    /// Raw time when the row was made.
    pub const MADE: usize = 7;
    /// Name, as text.
    pub const NAME: usize = 8;
    /// Words of the name.
    pub const NAME_WORDS: usize = 8;
    /// The phase of making under way plus 1; 0: none.
    pub const PHASE: usize = 16;
    /// Raw time when that began.
    pub const PHASE_SINCE: usize = 17;
    /// Per phase, how long it took in nanoseconds plus 1; 0: not ended.
    pub const PHASES: usize = 18;
    /// Words for phases; more than there are.
    pub const PHASES_WORDS: usize = 14;
    /// The op cell of collectives: [`super::op`].
    pub const COLL: usize = 32;
    /// The op cell of send and receive.
    pub const P2P: usize = 64;
    /// The latch of the user's tag.
    pub const TAG_LATCH: usize = 96;
    /// Index of the histogram block plus 1; 0: none.
    pub const HISTOGRAM: usize = 97;
    /// Two copies of the user's tag, as text.
    pub const TAG: usize = 104;
    /// Words of one copy.
    pub const TAG_WORDS: usize = 12;
    /// Words of a row.
    pub const WORDS: usize = 128;
}

/// Words of an op cell. All of `called` to `failed` are single facts with one writer, monotone, read in the order
/// completed, started, called.
pub mod op {
    /// Sequence number last completed (collectives), or how many were (send and receive).
    pub const COMPLETED: usize = 0;
    /// Sequence number last started.
    pub const STARTED: usize = 1;
    /// Sequence number last called, or how many were.
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
    /// Two copies of the fact: the operation under way, or else the last one.
    pub const FACT: usize = 8;
    /// Words of one copy.
    pub const FACT_WORDS: usize = 8;
    /// In a copy: the descriptor, four words.
    pub const FACT_DESCRIPTOR: usize = 0;
    /// In a copy: raw time since when it is under way.
    pub const FACT_SINCE: usize = 4;
    /// In a copy: the peer of send and receive plus 1.
    pub const FACT_PEER: usize = 5;
    /// Words of an op cell.
    pub const WORDS: usize = 24;
}

/// Words of a row of `LinkIds`.
pub mod link_id {
    /// [`super::RowState`] | direction << 8 | transport << 16 | has a peer << 24 | channel << 32 | comm row << 48. Stored last.
    pub const WHAT: usize = 0;
    /// The peer, and in the upper half the generation of the comm row.
    pub const PEER: usize = 1;
    /// Why this transport, as a number of [`TransportReason`](crate::types::TransportReason); 0: not recorded.
    pub const WHY: usize = 2;
    /// Words of a row.
    pub const WORDS: usize = 3;
}

/// Words of a progress cell: one cache line, read in the order done, moved, posted.
pub mod link {
    /// Messages taken by the peer, or freed here.
    pub const DONE: usize = 0;
    /// Messages handed to the peer's memory or the kernel, or arrived.
    pub const MOVED: usize = 1;
    /// Messages published, or slots offered.
    pub const POSTED: usize = 2;
    /// Bytes moved in all.
    pub const BYTES: usize = 3;
    /// Sequence number of the operation it last worked for.
    pub const OP: usize = 4;
    /// What is waited for, and in the upper half the peer.
    pub const WAITS: usize = 5;
    /// Raw time since when; stored before `WAITS`.
    pub const SINCE: usize = 6;
    /// How often it waited longer than it spins.
    pub const WAITED: usize = 7;
    /// Words of a cell.
    pub const WORDS: usize = 8;
}

/// Words of a row of `Peers`.
pub mod peer {
    /// [`super::RowState`] | comm row << 16 | generation of the comm row << 32. Stored last.
    pub const STATE: usize = 0;
    /// The rank, and in the upper half its pid as it sees it.
    pub const RANK: usize = 1;
    /// Reference of its host name.
    pub const HOST: usize = 2;
    /// Reference of the path of its recorder.
    pub const RECORDER: usize = 3;
    /// Reference of the path of its control socket.
    pub const CONTROL: usize = 4;
    /// Its rank in the communicator that the job began with.
    pub const WORLD: usize = 5;
    /// Words of a row.
    pub const WORDS: usize = 8;
}

/// Words of a ring's descriptor.
pub mod ring {
    /// [`super::RowState`], and in the upper half the generation.
    pub const STATE: usize = 0;
    /// Its first slot.
    pub const FIRST: usize = 1;
    /// Its slots: a power of two.
    pub const SLOTS: usize = 2;
    /// Events ever written to it.
    pub const HEAD: usize = 3;
    /// Events written before its present owner.
    pub const START: usize = 4;
    /// Communicator id of its owner; 0: the service thread.
    pub const COMM: usize = 5;
    /// The owner's rank in it.
    pub const RANK: usize = 6;
    /// Words of a descriptor.
    pub const WORDS: usize = 8;
}

/// Words of a row of `Sockets`: one stream of a link over TCP.
pub mod socket {
    /// [`super::RowState`] | direction << 8 | number among the streams of its link << 16 | address family (4 or 6) << 24 | channel << 32 |
    /// comm row << 48. Stored last.
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
    /// In a copy: raw time when the kernel was asked.
    pub const SAMPLE_RAW: usize = 0;
    /// In a copy: the kernel's number of the state | timeouts in a row << 8 | probes in a row << 16 | backoff << 24 | congestion
    /// window in segments << 32.
    pub const SAMPLE_STATE: usize = 1;
    /// In a copy: smoothed round trip in microseconds, and in the upper half its variation.
    pub const SAMPLE_RTT: usize = 2;
    /// In a copy: segments sent and not acknowledged, and in the upper half segments sent again so far.
    pub const SAMPLE_SENT: usize = 3;
    /// In a copy: bytes that wait in the kernel to be sent.
    pub const SAMPLE_UNSENT: usize = 4;
    /// In a copy: milliseconds since data came, and in the upper half since an acknowledgement did.
    pub const SAMPLE_HEARD: usize = 5;
    /// Words of a row.
    pub const WORDS: usize = 24;
}

/// Words of a slot.
pub mod slot {
    /// 2n + 1 while event n is written, 2n + 2 when it stands.
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

/// A block of histograms: per kind and size class one cell.
pub mod histogram {
    /// Kinds a block has room for.
    pub const KINDS: usize = 8;
    /// Size classes.
    pub const CLASSES: usize = 8;
    /// In a cell: the sum of the durations in nanoseconds.
    pub const SUM_NS: usize = 0;
    /// In a cell: the sum of the bytes.
    pub const SUM_BYTES: usize = 1;
    /// In a cell: the buckets.
    pub const BUCKETS: usize = 2;
    /// Buckets of a cell: bucket b counts durations below 2^(8 + b) ns that the one before does not; the last, all others.
    pub const BUCKETS_COUNT: usize = 30;
    /// Words of a cell.
    pub const CELL: usize = 32;
    /// Words of a block.
    pub const WORDS: usize = KINDS * CLASSES * CELL;

    /// The bucket of a duration.
    #[inline]
    #[must_use]
    pub const fn bucket(ns: u64) -> usize {
        let above = (64 - (ns >> 8).leading_zeros()) as usize;
        if above < BUCKETS_COUNT { above } else { BUCKETS_COUNT - 1 }
    }
    /// The upper bound of a bucket in nanoseconds, exclusive; `None` for the last.
    #[must_use]
    pub const fn bound_ns(bucket: usize) -> Option<u64> {
        if bucket + 1 < BUCKETS_COUNT { Some(1 << (8 + bucket)) } else { None }
    }
    /// The size class: up to 256 B, 4 KiB, 64 KiB, 1 MiB, 16 MiB, 256 MiB, 4 GiB, above.
    #[inline]
    #[must_use]
    pub const fn class(bytes: u64) -> usize {
        let bits = 64 - bytes.saturating_sub(1).leading_zeros() as usize;
        let class = bits.saturating_sub(5) / 4;
        if class < CLASSES { class } else { CLASSES - 1 }
    }
    /// The most bytes of a size class; `None` for the last.
    #[must_use]
    pub const fn class_bytes(class: usize) -> Option<u64> {
        if class + 1 < CLASSES { Some(256 << (4 * class)) } else { None }
    }
}

/// How many rows each table has.
///
/// Chosen for the process of a large job on a large host: one rank, the world and seven dozen splits of it... of which 64 at a time;
/// a host of 64 ranks makes 63 + 1 wide lanes, 4 ring lanes and at most 126 pair lanes per communicator, so 2,048 cells hold
/// 10 such communicators; peers of ten communicators of 200 ranks; 64 communicators whose rings go over two channels of two streams have
/// 512 sockets. All of it with the rings is below 1.75 MiB: see the test. What finds no place is recorded in private
/// memory, unseen from outside, and counted in `OVERFLOW`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Rows of `Comms`.
    pub comms: usize,
    /// Blocks of `Histograms`.
    pub histograms: usize,
    /// Rows of `LinkIds` and `Links`.
    pub links: usize,
    /// Rows of `Peers`.
    pub peers: usize,
    /// Bytes of `Strings`.
    pub strings: usize,
    /// Rows of `Sockets`.
    pub sockets: usize,
    /// The largest ring is 4,096 slots shifted right by this.
    pub ring_shift: u32,
}

/// Slots of the rings at shift 0: one for the engine that most processes have, smaller ones for more.
pub const RING_SLOTS: [usize; 9] = [4096, 2048, 2048, 1024, 1024, 512, 512, 512, 512];

impl Capacity {
    /// The normal one.
    pub const FULL: Self = Self {
        comms: 64,
        histograms: 16,
        links: 2048,
        peers: 2048,
        strings: 128 << 10,
        sockets: 512,
        ring_shift: 0,
    };

    /// What to try one after the other where memory is short.
    pub const LADDER: [Self; 3] = [
        Self::FULL,
        Self { ring_shift: 2, ..Self::FULL },
        Self {
            comms: 16,
            histograms: 2,
            links: 512,
            peers: 256,
            strings: 32 << 10,
            sockets: 64,
            ring_shift: 4,
        },
    ];

    /// Slots of each ring.
    pub fn rings(self) -> impl Iterator<Item = usize> {
        RING_SLOTS.into_iter().map(move |slots| slots >> self.ring_shift)
    }
    /// Rows of a table, and bytes of each.
    #[must_use]
    pub fn rows(self, table: Table) -> (usize, usize) {
        match table {
            Table::Comms => (self.comms, comm::WORDS * 8),
            Table::Histograms => (self.histograms, histogram::WORDS * 8),
            Table::LinkIds => (self.links, link_id::WORDS * 8),
            Table::Links => (self.links, link::WORDS * 8),
            Table::Peers => (self.peers, peer::WORDS * 8),
            Table::Strings => (self.strings / 8, 8),
            Table::Rings => (RING_SLOTS.len(), ring::WORDS * 8),
            Table::Slots => (self.rings().sum(), slot::WORDS * 8),
            Table::Sockets => (self.sockets, socket::WORDS * 8),
        }
    }
    /// The byte at which a table begins.
    #[must_use]
    pub fn offset(self, table: Table) -> usize {
        let before = TABLES.iter().take_while(|t| **t != table);
        HEADER_BYTES + before.map(|t| self.bytes(*t)).sum::<usize>()
    }
    /// Bytes of the whole mapping.
    #[must_use]
    pub fn total(self) -> usize {
        HEADER_BYTES + TABLES.iter().map(|t| self.bytes(*t)).sum::<usize>()
    }
    fn bytes(self, table: Table) -> usize {
        let (count, stride) = self.rows(table);
        (count * stride).next_multiple_of(64)
    }
}

/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Words of an entry of the directory: table, offset, stride, count, version, three unused.
pub const ENTRY_WORDS: usize = 8;

/// A text in `WORDS` words: its length in bytes, then its bytes. What does not fit is cut at a character.
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

/// Reads a text back, whatever the words hold.
#[must_use]
pub fn decode_text(words: &[u64]) -> String {
    let Some((&len, rest)) = words.split_first() else { return String::new() };
    let bytes: Vec<u8> = rest.iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = usize::try_from(len).map_or(bytes.len(), |len| len.min(bytes.len()));
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_one_that_was_published() {
        let at = |table| Capacity::FULL.offset(table);
        assert_eq!(at(Table::Comms), 4096);
        assert_eq!(at(Table::Histograms), 69_632);
        assert_eq!(at(Table::LinkIds), 331_776);
        assert_eq!(at(Table::Links), 380_928);
        assert_eq!(at(Table::Peers), 512_000);
        assert_eq!(at(Table::Strings), 643_072);
        assert_eq!(at(Table::Rings), 774_144);
        assert_eq!(at(Table::Slots), 774_720);
        assert_eq!(at(Table::Sockets), 1_561_152);
        assert_eq!(Capacity::FULL.total(), 1_659_456);
        assert_eq!([comm::COLL, comm::P2P, comm::TAG, comm::WORDS], [32, 64, 104, 128]);
        assert_eq!([op::LATCH, op::FACT, op::WORDS], [7, 8, 24]);
        assert_eq!([socket::LATCH, socket::SAMPLE, socket::SAMPLE_HEARD, socket::WORDS], [7, 8, 5, 24]);
        assert_eq!([header::ANCHOR_LATCH, header::HOST, header::DIRECTORY_AT], [40, 56, 128]);
    }

    #[test]
    fn tables_are_aligned_to_lines_and_fit_their_budget() {
        for capacity in Capacity::LADDER {
            for table in TABLES {
                assert_eq!(capacity.offset(table) % 64, 0, "{table:?}");
            }
            assert!(capacity.total() <= 7 << 18, "{} bytes", capacity.total());
            assert!(capacity.rings().all(usize::is_power_of_two));
        }
        const {
            assert!(header::DIRECTORY_AT * 8 + TABLES.len() * ENTRY_WORDS * 8 <= HEADER_BYTES);
            assert!(header::HOST_ID + header::TEXTS[2] <= header::DIRECTORY_AT);
            assert!(header::ANCHOR + 2 * header::ANCHOR_WORDS <= header::BOOT);
            assert!(header::OVERFLOW + TABLES.len() < header::PATH);
            assert!(comm::COLL + op::WORDS <= comm::P2P && comm::P2P + op::WORDS <= comm::TAG_LATCH);
            assert!(socket::SAMPLE + 2 * socket::SAMPLE_WORDS <= socket::WORDS);
            assert!(comm::TAG + 2 * comm::TAG_WORDS <= comm::WORDS);
            assert!(crate::types::Phase::ALL.len() <= comm::PHASES_WORDS);
            assert!(crate::types::CollKind::ALL.len() <= histogram::KINDS);
        }
    }

    #[test]
    fn buckets_and_classes_contain_what_they_say() {
        for ns in [0, 1, 255, 256, 257, 511, 512, 1 << 20, (1 << 37) - 1, 1 << 37, u64::MAX] {
            let bucket = histogram::bucket(ns);
            assert!(histogram::bound_ns(bucket).is_none_or(|bound| ns < bound), "{ns} in {bucket}");
            assert!(bucket == 0 || histogram::bound_ns(bucket - 1).is_some_and(|bound| ns >= bound));
        }
        for bytes in [0, 1, 255, 256, 257, 4096, 4097, 1 << 20, 4 << 30, (4 << 30) + 1, u64::MAX] {
            let class = histogram::class(bytes);
            assert!(histogram::class_bytes(class).is_none_or(|most| bytes <= most), "{bytes} in {class}");
            assert!(class == 0 || histogram::class_bytes(class - 1).is_some_and(|most| bytes > most));
        }
    }

    #[test]
    fn texts_are_cut_at_characters_and_read_whatever_stands_there() {
        assert_eq!(decode_text(&encode_text::<3>("step 12")), "step 12");
        assert_eq!(decode_text(&encode_text::<2>("1234567ä")), "1234567");
        assert_eq!(decode_text(&encode_text::<2>("")), "");
        assert_eq!(decode_text(&[u64::MAX, 0x4141]), "AA\0\0\0\0\0\0");
        assert_eq!(decode_text(&[4, u64::MAX]), "\u{fffd}\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(decode_text(&[]), "");
    }
}
