//! Messages whose bytes lie in a caller's memory and in no slot.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::{Lendable, ViewMut};

/// Messages of one operation, in a row: those behind which there is room.
#[derive(Debug)]
struct Span {
    first: u64,
    count: u64,
    bytes: ViewMut,
    /// The bytes of each.
    size: usize,
    memory: Arc<Lendable>,
}

/// The bytes of a message in a caller's memory.
#[derive(Debug)]
pub(super) struct OwnBytes<'a> {
    /// From its first byte on, room for any message.
    pub(super) bytes: ViewMut,
    /// The bytes that are due.
    pub(super) size: usize,
    pub(super) memory: &'a Arc<Lendable>,
}

/// The messages of one end of a lane that need no slot there, in their order.
#[derive(Debug)]
pub(in crate::transport::ib) struct Lent {
    /// The longest message of the lane: a peer whose call differs may send one that is longer than
    /// the due one, and must not write behind the operation's bytes.
    room: usize,
    spans: VecDeque<Span>,
}

impl Lent {
    /// None yet, of a lane whose messages have so many bytes at most.
    pub(in crate::transport::ib) const fn new(room: usize) -> Self {
        Self { room, spans: VecDeque::new() }
    }

    /// From the message of this number on, they lie in these bytes, so many each.
    pub(super) fn add(&mut self, first: u64, (bytes, size): (ViewMut, usize), memory: Arc<Lendable>) {
        let rest = bytes.len().checked_sub(self.room);
        if let Some(rest) = rest.filter(|_| (1..=self.room).contains(&size)) {
            let count = (rest / size + 1) as u64;
            self.spans.push_back(Span { first, count, bytes, size, memory });
        }
    }

    /// The bytes of a message in the caller's memory; `None` if the message needs a slot.
    #[inline]
    pub(super) fn of(&self, number: u64) -> Option<OwnBytes<'_>> {
        let span = self.spans.iter().find(|span| number < span.first + span.count)?;
        let index = number.checked_sub(span.first)? as usize;
        let bytes = span.memory.part(span.bytes.part(index * span.size, self.room).read())?;
        Some(OwnBytes { bytes, size: span.size, memory: &span.memory })
    }

    /// The messages before this one have ended.
    pub(super) fn ended(&mut self, before: u64) {
        while self.spans.front().is_some_and(|span| span.first + span.count <= before) {
            self.spans.pop_front();
        }
    }
}
