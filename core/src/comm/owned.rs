//! Calls under way that own their buffers: what the driver keeps of each until it has ended.
//!
//! An entry is made before the engine knows the buffer, so that in every case, even after a panic,
//! the memory that a link may write is not freed. The engine carries the [`Ticket`] of the entry
//! and returns it when the operation ends, so no search is needed.

use std::task::Waker;

use crate::engine::Ticket;
use crate::error::Result;

/// Passes the result of an operation to its handle, and returns the waker to run. It holds the
/// buffer.
pub(super) type Settle = Box<dyn FnOnce(Result<()>) -> Option<Waker> + Send>;

/// The entries, by ticket.
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
    /// Adds an entry.
    pub(super) fn keep(&mut self, settle: Settle) -> Ticket {
        if let Some(ticket) = self.free.pop() {
            self.places[ticket.index()] = Some(settle);
            return ticket;
        }
        self.places.push(Some(settle));
        Ticket::new(self.places.len() - 1)
    }

    /// Removes the entry of an operation that has ended.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Settle> {
        let settle = self.places.get_mut(ticket.index())?.take()?;
        self.free.push(ticket);
        Some(settle)
    }

    /// Removes all entries.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Settle> + use<> {
        self.free.clear();
        std::mem::take(&mut self.places).into_iter().flatten()
    }

    /// Whether none is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.places.len() == self.free.len()
    }
}
