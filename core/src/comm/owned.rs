//! Calls under way that own their buffers: what the driver keeps of each until it has ended.
//!
//! It is kept before the engine gets to know the buffer, so that whatever happens on the way, a
//! panic included, nobody frees what a link may write. The engine carries its [`Ticket`] and tells
//! of it when the operation ends: nobody looks for it.

use std::task::Waker;

use crate::engine::Ticket;
use crate::error::Result;

/// Tells a handle how its operation ended; who waits for that. It holds the buffer.
pub(super) type Settle = Box<dyn FnOnce(Result<()>) -> Option<Waker> + Send>;

/// What is kept, by its ticket.
#[derive(Default)]
pub(super) struct Owned {
    places: Vec<Option<Settle>>,
    free: Vec<Ticket>,
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Owned({} calls)", self.places.len() - self.free.len())
    }
}

impl Owned {
    /// Keeps one more.
    pub(super) fn keep(&mut self, settle: Settle) -> Ticket {
        if let Some(ticket) = self.free.pop() {
            self.places[ticket.index()] = Some(settle);
            return ticket;
        }
        self.places.push(Some(settle));
        Ticket::new(self.places.len() - 1)
    }

    /// Takes one out that has ended.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Settle> {
        let settle = self.places.get_mut(ticket.index())?.take()?;
        self.free.push(ticket);
        Some(settle)
    }

    /// Takes all out.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Settle> + use<> {
        self.free.clear();
        std::mem::take(&mut self.places).into_iter().flatten()
    }

    /// Whether none is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.places.len() == self.free.len()
    }
}
