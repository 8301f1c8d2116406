//! Messages whose bytes lie in a caller's memory and in no slot.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::{Lendable, ViewMut};
use crate::plan::PAIR_SLOT_BYTES;

/// Messages in a row, of the largest size, whose bytes follow each other.
#[derive(Debug)]
struct Span {
    first: u64,
    count: u64,
    bytes: ViewMut,
    memory: Arc<Lendable>,
}

/// The messages of one end of a lane that need no slot there, in their order.
#[derive(Debug, Default)]
pub(in crate::transport::ib) struct Lent(VecDeque<Span>);

impl Lent {
    /// From the message of this number on, they lie in these bytes.
    pub(super) fn add(&mut self, first: u64, bytes: ViewMut, memory: Arc<Lendable>) {
        let count = bytes.len() as u64 / u64::from(PAIR_SLOT_BYTES);
        self.0.push_back(Span { first, count, bytes, memory });
    }

    /// Where a message lies, and whose memory that is; `None` of one that needs a slot.
    #[inline]
    pub(super) fn of(&self, number: u64) -> Option<(ViewMut, &Arc<Lendable>)> {
        let span = self.0.iter().find(|span| number < span.first + span.count)?;
        let index = number.checked_sub(span.first)? as usize;
        let bytes = span.bytes.part(index * PAIR_SLOT_BYTES as usize, PAIR_SLOT_BYTES as usize);
        Some((span.memory.part(bytes.read())?, &span.memory))
    }

    /// The messages before this one have ended.
    pub(super) fn ended(&mut self, before: u64) {
        while self.0.front().is_some_and(|span| span.first + span.count <= before) {
            self.0.pop_front();
        }
    }
}
