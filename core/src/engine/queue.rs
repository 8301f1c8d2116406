//! Operations that run one after another, in the order of submission.

use std::collections::VecDeque;

use crate::engine::op::{Op, Ticket};

/// A queue of them; the first is under way.
#[derive(Default, Debug)]
pub(super) struct Queue {
    ops: VecDeque<Op>,
    /// The tickets of those that have one, by number. Beside the operations, which are moved about.
    tickets: VecDeque<(u64, Ticket)>,
}

impl Queue {
    #[inline]
    pub(super) fn push(&mut self, op: Op, ticket: Option<Ticket>) {
        self.tickets.extend(ticket.map(|ticket| (op.number(), ticket)));
        self.ops.push_back(op);
    }

    #[inline]
    pub(super) fn first(&self) -> Option<&Op> {
        self.ops.front()
    }

    /// The first has ended: its ticket, if it has one.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Ticket> {
        let ended = self.ops.pop_front()?.number();
        let (number, _) = self.tickets.front()?;
        if *number != ended {
            return None;
        }
        self.tickets.pop_front().map(|(_, ticket)| ticket)
    }

    /// Whether one that was put in here has ended: those before it have, and what is left was
    /// called later.
    #[inline]
    pub(super) fn has_ended(&self, number: u64) -> bool {
        self.first().is_none_or(|first| first.number() > number)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Takes all out; nobody is told of their tickets.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Op> {
        self.tickets.clear();
        self.ops.drain(..)
    }
}
