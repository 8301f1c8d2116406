//! The queue pairs of links: one row each. Its link's owner writes it, the service thread does not
//! touch it, and it is given back with the link.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::decode::{Clock, Comms, of_row};
use super::layout::{RowState, Table, link_id, queue_pair};
use super::mapping::Span;
use super::state::{Recorder, end};
use super::words::{TableRows, halves, state, string_within, word};
use super::writer::private;
use crate::clock::Raw;
use crate::snapshot::bounds::MAX_CELLS;
use crate::snapshot::{QueuePairSnapshot, QueuePairState, WorkFailure};
use crate::sys::verbs::Address;
use crate::sys::verbs::words::status_name;
use crate::types::{ChannelId, Direction, Rank};

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

/// Adds the queue pairs to the links.
pub(super) fn queue_pairs(words: &[AtomicU64], clock: &Clock, comms: &mut Comms) {
    for row in TableRows::of(words, Table::QueuePairs).iter().take(MAX_CELLS) {
        let what = word(row, queue_pair::WHAT);
        let (to, generation) = halves(word(row, queue_pair::PEER));
        let (Some(_), Some(comm)) = (state(what), of_row(comms, what, generation)) else { continue };
        let Some(direction) = Direction::from_u8((what >> 8) as u8) else { continue };
        let place = (ChannelId((what >> 32) as u16), direction.into(), Some(Rank(to)));
        let link = comm.links.binary_search_by_key(&place, |link| (link.channel, link.direction, link.peer));
        let Some(link) = link.ok().and_then(|at| comm.links.get_mut(at)) else { continue };
        let seen = one(words, row, what, clock);
        if word(row, queue_pair::WHAT) == what && word(row, queue_pair::PEER) >> 32 == u64::from(generation) {
            link.queue_pairs.push(seen);
        }
    }
    for link in comms.iter_mut().flatten().flat_map(|(_, comm)| &mut comm.links) {
        link.queue_pairs.sort_by_key(|pair| pair.nth);
    }
}

fn one(words: &[AtomicU64], row: &[AtomicU64], what: u64, clock: &Clock) -> QueuePairSnapshot {
    let at = |n: usize| word(row, n);
    // Read in this order, the second is at least as large as the first; a copy may not have been
    // made in it.
    let completed = at(queue_pair::COMPLETED);
    let posted = at(queue_pair::POSTED).max(completed);
    let (status, vendor) = halves(at(queue_pair::ERROR));
    let error = (status != 0).then(|| WorkFailure {
        status,
        name: status_name(status).into(),
        vendor,
        ago_ns: clock.age_ns(at(queue_pair::ERROR_AT)),
    });
    let (own, other) = halves(at(queue_pair::NUMBERS));
    let address =
        |first: usize, is_gid: bool| Address::of_words([at(first), at(first + 1)], is_gid).to_string();
    let completed_at = Some(at(queue_pair::COMPLETED_AT)).filter(|raw| *raw != 0);
    QueuePairSnapshot {
        nth: u32::from((what >> 16) as u8),
        device: string_within(words, at(queue_pair::DEVICE), MAX_NAME),
        port: (own >> 24) as u8,
        number: own & 0x00ff_ffff,
        address: address(queue_pair::OWN, what >> 24 & 1 != 0),
        peer_port: (other >> 24) as u8,
        peer_number: other & 0x00ff_ffff,
        peer_address: address(queue_pair::OTHER, what >> 25 & 1 != 0),
        state: QueuePairState::numbered(at(queue_pair::STATE) as u8),
        posted,
        completed,
        credits: at(queue_pair::CREDITS),
        bytes: at(queue_pair::BYTES),
        completed_ns: completed_at.map(|raw| clock.age_ns(raw)),
        error,
    }
}
