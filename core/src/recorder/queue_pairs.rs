//! The queue pairs of links: one row each. Its link's owner writes it, the service thread does not
//! touch it, and it is given back with the link.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::layout::{RowState, Table, link_id, queue_pair};
use super::mapping::{Span, private};
use super::state::{Recorder, end};
use crate::clock::Raw;
use crate::snapshot::QueuePairState;
use crate::sys::verbs::Address;

/// The longest name of a device that is read.
pub(super) const MAX_NAME: usize = 64;

type Row = Span<{ queue_pair::WORDS }>;

/// One end of a connection of queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePairEnd {
    /// The port of its device.
    pub port: u8,
    /// Its number, which the device gave it.
    pub number: u32,
    /// The address of the port.
    pub address: Address,
}

/// A queue pair of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePair<'a> {
    /// The name of its device.
    pub device: &'a str,
    /// Where it is.
    pub own: QueuePairEnd,
    /// Where the one that it is connected to is.
    pub other: QueuePairEnd,
}

/// The row of one queue pair. Its only writer is the owner of the link.
pub struct QueuePairCell {
    words: Row,
    /// The recorder and the row in it, to give it back; `None` for private memory.
    place: Option<(Arc<Recorder>, usize)>,
}

impl QueuePairCell {
    /// In memory that no reader sees.
    pub(super) fn unseen() -> Self {
        Self { words: private(), place: None }
    }

    /// Stores its state.
    pub fn state(&self, state: QueuePairState) {
        self.words[queue_pair::STATE].store(u64::from(state.number()), Ordering::Relaxed);
    }
    /// Counts a write that was posted, of so many bytes.
    #[inline]
    pub fn posted(&self, bytes: u64) {
        for (at, more) in [(queue_pair::POSTED, 1), (queue_pair::BYTES, bytes)] {
            let word = &self.words[at];
            word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }
    /// Stores how many writes have completed, and when the last work request did.
    #[inline]
    pub fn completed(&self, count: u64, at: Raw) {
        self.words[queue_pair::COMPLETED_AT].store(at.0, Ordering::Relaxed);
        self.words[queue_pair::COMPLETED].store(count, Ordering::Release);
    }
    /// Stores the bytes that have arrived.
    #[inline]
    pub fn arrived(&self, bytes: u64) {
        self.words[queue_pair::BYTES].store(bytes, Ordering::Relaxed);
    }
    /// Stores for how many messages there is room, or how many notices are owed.
    #[inline]
    pub fn credits(&self, count: u64) {
        self.words[queue_pair::CREDITS].store(count, Ordering::Relaxed);
    }
    /// Stores why a work request failed: its status, and the device's own code.
    pub fn failed(&self, status: u32, vendor: u32, at: Raw) {
        self.words[queue_pair::ERROR_AT].store(at.0, Ordering::Relaxed);
        let error = u64::from(status) | u64::from(vendor) << 32;
        self.words[queue_pair::ERROR].store(error, Ordering::Release);
    }
}

impl fmt::Debug for QueuePairCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |at: usize| self.words[at].load(Ordering::Relaxed);
        write!(f, "QueuePairCell({} >= {})", word(queue_pair::POSTED), word(queue_pair::COMPLETED))
    }
}

impl Drop for QueuePairCell {
    fn drop(&mut self) {
        if let Some((recorder, at)) = self.place.take()
            && !recorder.is_stale()
        {
            end(&self.words[queue_pair::WHAT]);
            recorder.lock().queue_pairs.give(at);
        }
    }
}

impl Recorder {
    /// Takes a row for a queue pair of the link whose row is `link`.
    pub(super) fn queue_pair(self: &Arc<Self>, link: usize, nth: u8, pair: &QueuePair<'_>) -> QueuePairCell {
        let at = self.take(|rows| rows.queue_pairs.take());
        let words: Row = self.span(Table::QueuePairs, at);
        let Some(at) = at else { return QueuePairCell { words, place: None } };
        let id: Span<{ link_id::WORDS }> = self.span(Table::LinkIds, Some(link));
        let what = id[link_id::WHAT].load(Ordering::Relaxed);
        let put = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
        put(queue_pair::WHAT, RowState::Free as u64);
        fence(Ordering::Release);
        (queue_pair::STATE..queue_pair::WORDS).for_each(|at| put(at, 0));
        put(queue_pair::PEER, id[link_id::PEER].load(Ordering::Relaxed));
        put(queue_pair::DEVICE, self.string(pair.device));
        let QueuePair { own, other, .. } = pair;
        let place = |end: &QueuePairEnd| u64::from(end.number & 0x00ff_ffff) | u64::from(end.port) << 24;
        put(queue_pair::NUMBERS, place(own) | place(other) << 32);
        for (at, end) in [(queue_pair::OWN, own), (queue_pair::OTHER, other)] {
            let [low, high] = end.address.words();
            put(at, low);
            put(at + 1, high);
        }
        // Direction, channel and communicator are those of the link's word.
        let kinds = u64::from(own.address.is_gid()) << 24 | u64::from(other.address.is_gid()) << 25;
        let what = RowState::Live as u64 | what & !0xffff_00ff | u64::from(nth) << 16 | kinds;
        words[queue_pair::WHAT].store(what, Ordering::Release);
        QueuePairCell { words, place: Some((Arc::clone(self), at)) }
    }
}
