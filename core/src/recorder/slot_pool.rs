//! The free and taken rows of the tables: kept in private memory, under one lock, off the data
//! path.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Weak;

use super::codec::Owner;
use super::layout::Capacity;
use crate::clock::Ns;
use crate::sys::fds::Fd;
use crate::sys::tcp::TcpInfo;

/// A socket that is sampled.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) fd: Weak<Fd>,
    /// The last sample, and when it was taken.
    pub(super) before: (TcpInfo, Ns),
}

/// The rows of one table.
///
/// Never-used rows are taken first, then those given back longest ago, so that ended rows stay
/// readable.
#[derive(Debug)]
pub(super) struct Pool {
    fresh: usize,
    count: usize,
    ended: VecDeque<usize>,
}

impl Pool {
    const fn new(count: usize) -> Self {
        Self { fresh: 0, count, ended: VecDeque::new() }
    }
    pub(super) fn take(&mut self) -> Option<usize> {
        if self.fresh < self.count {
            self.fresh += 1;
            return Some(self.fresh - 1);
        }
        self.ended.pop_front()
    }
    pub(super) fn give(&mut self, at: usize) {
        self.ended.push_back(at);
    }
}

/// A ring of the mapping.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct RingSlot {
    /// Whether a thread writes it.
    pub(super) is_taken: bool,
    /// Whose its last events are.
    pub(super) last: Option<Owner>,
    /// The number of marks in it so far.
    pub(super) marks: u64,
}

/// The rows of all tables, and the strings stored so far.
#[derive(Debug)]
pub(super) struct SlotPools {
    pub(super) comms: Pool,
    pub(super) durations: Pool,
    pub(super) histories: Pool,
    pub(super) links: Pool,
    pub(super) peers: Pool,
    pub(super) sockets: Pool,
    pub(super) queue_pairs: Pool,
    pub(super) ports: Pool,
    /// The row of each port that is sampled, by device and number.
    pub(super) known_ports: BTreeMap<(String, u8), usize>,
    /// Per socket row in use, the descriptor, as long as its link holds it.
    pub(super) watched: BTreeMap<usize, Watched>,
    /// The rings; the largest come first.
    pub(super) rings: Vec<RingSlot>,
    /// References of the stored strings. None is ever removed: each split names the same peers'
    /// paths.
    pub(super) strings: BTreeMap<String, u64>,
    pub(super) string_bytes: usize,
    /// The part of `string_bytes` that failure messages asked for.
    pub(super) failure_bytes: usize,
}

impl SlotPools {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self {
            comms: Pool::new(capacity.comms),
            durations: Pool::new(capacity.durations),
            histories: Pool::new(capacity.comms),
            links: Pool::new(capacity.links),
            peers: Pool::new(capacity.peers),
            sockets: Pool::new(capacity.sockets),
            queue_pairs: Pool::new(capacity.queue_pairs),
            ports: Pool::new(capacity.ports),
            known_ports: BTreeMap::new(),
            watched: BTreeMap::new(),
            rings: capacity.rings().map(|_| RingSlot::default()).collect(),
            strings: BTreeMap::new(),
            string_bytes: 0,
            failure_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_given_back_is_the_last_to_be_taken_again() {
        let mut pool = Pool::new(3);
        assert_eq!((pool.take(), pool.take()), (Some(0), Some(1)));
        pool.give(1);
        pool.give(0);
        assert_eq!((pool.take(), pool.take(), pool.take(), pool.take()), (Some(2), Some(1), Some(0), None));
    }
}
