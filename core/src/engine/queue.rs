//! Operations that run one after another, in the order of submission.

use std::collections::VecDeque;

use crate::engine::op::{Begun, Op, Ticket};
use crate::recorder::Attention;

/// A queue of operations; the first one is under way.
#[derive(Default, Debug)]
pub(super) struct Queue {
    /// Apart from the others, so that an operation with none before it is moved once: that is most
    /// of the cost of a short one.
    first: Option<Op>,
    later: VecDeque<Op>,
    /// The operations that were begun and may not be waited for yet: their numbers and their
    /// callers' handles. These are kept apart, so that operations are small.
    begun: VecDeque<(u64, Begun)>,
}

impl Queue {
    /// Adds the operation with this number that `make` makes.
    #[inline(always)]
    pub(super) fn push(&mut self, number: u64, make: impl FnOnce() -> Op, begun: Option<Begun>) -> &mut Op {
        if let Some(begun) = begun {
            self.begun.push_back((number, begun));
        }
        if self.first.is_none() {
            return self.first.get_or_insert_with(make);
        }
        self.later.push_back(make());
        let last = self.later.len() - 1;
        &mut self.later[last]
    }

    #[inline]
    pub(super) fn first(&self) -> Option<&Op> {
        self.first.as_ref()
    }

    /// The operation behind the first one.
    #[inline]
    pub(super) fn second(&self) -> Option<&Op> {
        self.later.front()
    }

    /// Removes the first operation, which has ended; returns its ticket, if any.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<Ticket> {
        let ended = self.first.as_ref()?.number();
        self.first = self.later.pop_front();
        let (number, _) = self.begun.front()?;
        if *number != ended {
            return None;
        }
        self.begun.pop_front().map(|(_, begun)| begun.ticket)
    }

    /// Whether an operation of this queue has ended: then the remaining ones were called later.
    #[inline]
    pub(super) fn has_ended(&self, number: u64) -> bool {
        self.first().is_none_or(|first| first.number() > number)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Who waits for one of them.
    pub(super) fn attention(&self) -> Attention {
        if usize::from(self.first.is_some()) + self.later.len() > self.begun.len() {
            return Attention::Thread;
        }
        self.begun.iter().map(|(_, begun)| begun.attention()).max().unwrap_or_default()
    }

    /// Records that a thread waits for all of them.
    pub(super) fn attend(&self) {
        self.begun.iter().for_each(|(_, begun)| begun.attend());
    }

    /// Takes out all operations; their tickets are not reported.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Op> {
        self.begun.clear();
        self.first.take().into_iter().chain(self.later.drain(..))
    }
}
