//! Following events: reads the events of all rings that were written since the last call.
//!
//! A client that follows events asks often, so only the header, the descriptors and the new slots
//! of a file are read, in that order.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use super::layout::{Table, ring, slot};
use super::ring::{Reading, read};
use super::words::{MAX_BYTES, TableSpan, state, word};
use crate::snapshot::bounds::MAX_RINGS;
use crate::types::{CommId, Rank};

/// The position of a reader of events in each ring.
#[derive(Clone, Default, Debug)]
pub struct Cursor {
    next: BTreeMap<usize, u64>,
}

/// The result of one read of one ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingReading {
    /// The ring's number.
    pub ring: usize,
    /// The communicator and rank whose engine wrote it.
    ///
    /// `None` for the service thread, or for events of an owner before the last one.
    pub owner: Option<(CommId, Rank)>,
    /// The events.
    pub reading: Reading,
}

/// Some words of a mapping.
pub(super) enum Piece<'a> {
    /// A part of the mapping itself.
    Mapped(&'a [AtomicU64]),
    /// Words read from the file.
    Copied(Vec<AtomicU64>),
}

impl std::ops::Deref for Piece<'_> {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        match self {
            Self::Mapped(words) => words,
            Self::Copied(words) => words,
        }
    }
}

/// The new events of all rings.
///
/// `words` begin with the header. `piece` fetches a number of words from a word of the mapping on,
/// or fewer if the mapping ends before.
pub(super) fn events<'a>(
    words: &[AtomicU64],
    cursor: &mut Cursor,
    piece: impl Fn(usize, usize) -> Option<Piece<'a>>,
) -> Vec<RingReading> {
    let mut found = Vec::new();
    let (Some(rings), Some(slots)) = (TableSpan::of(words, Table::Rings), TableSpan::of(words, Table::Slots))
    else {
        return found;
    };
    let Some(rows) = rings.stride.checked_mul(rings.count).and_then(|count| piece(rings.first, count)) else {
        return found;
    };
    // Rings share no slot: together they yield at most what fits into a file, even if several claim
    // the same slots.
    let mut left = slots.count.min(MAX_BYTES as usize / 8 / slots.stride);
    for (at, row) in rows.chunks_exact(rings.stride).enumerate().take(MAX_RINGS) {
        if state(word(row, ring::STATE)).is_none() || slots.stride < slot::WORDS {
            continue;
        }
        // The head is read before the slots: each event that it counts is in its slot or is
        // overwritten.
        let head = word(row, ring::HEAD);
        let size = |n: usize| usize::try_from(word(row, n)).ok().filter(|n| *n <= slots.count);
        let (Some(first), Some(count)) = (size(ring::FIRST), size(ring::SLOTS)) else { continue };
        let Some(rest) = left.checked_sub(count) else { continue };
        left = rest;
        let next = cursor.next.entry(at).or_default();
        let oldest = (*next).max(head.saturating_sub(count as u64));
        let wanted = head.saturating_sub(oldest) as usize;
        // From the oldest event to the end of the ring, and from the ring's beginning.
        let begin = if count == 0 { 0 } else { (oldest % count as u64) as usize };
        let before_end = wanted.min(count - begin);
        let fetch = |slot: usize, of: usize| {
            piece(slots.first.checked_add((first + slot).checked_mul(slots.stride)?)?, of * slots.stride)
        };
        let parts = [fetch(begin, before_end), fetch(0, wanted - before_end)];
        let slot = |number: u64| {
            // The events of an earlier owner may all be older than the oldest one still held.
            let at = number.checked_sub(oldest)? as usize;
            let (part, at) = if at < before_end { (&parts[0], at) } else { (&parts[1], at - before_end) };
            part.as_ref()?.get(at * slots.stride..)?.get(..slots.stride)
        };
        let start = word(row, ring::START).min(head);
        let comm = CommId(word(row, ring::COMM));
        let owner = (comm != CommId(0)).then(|| (comm, Rank(word(row, ring::RANK) as u32)));
        // First the events of earlier owners, then those of the last owner.
        for (owner, until) in [(None, start), (owner, head)] {
            let reading = read(count as u64, until, *next, slot);
            *next = reading.next;
            if reading.lost > 0 || !reading.events.is_empty() {
                found.push(RingReading { ring: at, owner, reading });
            }
        }
    }
    found
}
