//! How many rows each table has, and where it begins.

use crate::recorder::layout::{
    HEADER_BYTES, TABLES, Table, comm, durations, histogram, history, link, link_id, peer, port, queue_pair,
    ring, slot, socket,
};

/// The number of rows of each table.
///
/// The numbers fit a process of a large job on a large host: one rank with 96 communicators at a
/// time, that is a world, 64 groups of its host's 8 ranks, and room for half as many. A host of 64
/// ranks makes 63 + 1 shared lanes, 4 ring lanes and at most 126 pair lanes per communicator, so
/// 2,048 cells hold 10 such communicators, or 78 of 8 ranks. The peers are those of ten
/// communicators of 200 ranks. 96 communicators whose rings use two channels of two streams have
/// 768 sockets, and two kinds of operations each; where they use queue pairs instead, one per lane
/// end, they have 384. A host has eight devices of two ports at most.
///
/// All of it, with the rings, is below 2 MiB and 64 KiB: see the test. The file's pages are
/// allocated and mapped when it is made, so a row costs its bytes also while it is free: 1 KiB for
/// a communicator, 2 KiB for its history and for the durations of one kind. Rows that find no space
/// are recorded in private memory, invisible from outside, and counted in `OVERFLOW`; so are the
/// events of a thread that finds no ring. Communicators among them, while they are in use, count in
/// `WITHOUT_ROW`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Rows of `Comms`, and of `History`.
    pub comms: usize,
    /// Rows of `Durations`.
    pub durations: usize,
    /// Rows of `LinkIds` and `Links`.
    pub links: usize,
    /// Rows of `Peers`.
    pub peers: usize,
    /// Bytes of `Strings`.
    pub strings: usize,
    /// Rows of `Sockets`.
    pub sockets: usize,
    /// Rows of `QueuePairs`.
    pub queue_pairs: usize,
    /// Rows of `Ports`.
    pub ports: usize,
    /// The largest ring has 4,096 slots shifted right by this.
    pub ring_shift: u32,
}

/// Slots of the rings at shift 0.
///
/// Most processes drive all their communicators with one thread, which gets the largest; further
/// threads get smaller ones.
pub const RING_SLOTS: [usize; 16] =
    [4096, 2048, 1024, 1024, 512, 512, 512, 512, 256, 256, 256, 256, 256, 256, 256, 256];

impl Capacity {
    /// The normal capacity.
    pub const FULL: Self = Self {
        comms: 96,
        durations: 192,
        links: 2048,
        peers: 2048,
        strings: 128 << 10,
        sockets: 768,
        queue_pairs: 384,
        ports: 16,
        ring_shift: 0,
    };

    /// The capacities to try one after the other where memory is short.
    pub const LADDER: [Self; 3] = [
        Self::FULL,
        Self { ring_shift: 2, ..Self::FULL },
        Self {
            comms: 16,
            durations: 16,
            links: 512,
            peers: 256,
            strings: 32 << 10,
            sockets: 64,
            queue_pairs: 64,
            ports: 8,
            ring_shift: 4,
        },
    ];

    /// The number of slots of each ring.
    pub fn rings(self) -> impl Iterator<Item = usize> {
        RING_SLOTS.into_iter().map(move |slots| slots >> self.ring_shift)
    }
    /// The rows of a table, and the bytes of each.
    #[must_use]
    pub fn rows(self, table: Table) -> (usize, usize) {
        match table {
            Table::Comms => (self.comms, comm::WORDS * 8),
            Table::Histograms => (0, histogram::KINDS * histogram::CLASSES * histogram::CELL * 8),
            Table::LinkIds => (self.links, link_id::WORDS * 8),
            Table::Links => (self.links, link::WORDS * 8),
            Table::Peers => (self.peers, peer::WORDS * 8),
            Table::Strings => (self.strings / 8, 8),
            Table::Rings => (RING_SLOTS.len(), ring::WORDS * 8),
            Table::Slots => (self.rings().sum(), slot::WORDS * 8),
            Table::Sockets => (self.sockets, socket::WORDS * 8),
            Table::Durations => (self.durations, durations::WORDS * 8),
            Table::History => (self.comms, history::WORDS * 8),
            Table::QueuePairs => (self.queue_pairs, queue_pair::WORDS * 8),
            Table::Ports => (self.ports, port::WORDS * 8),
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
