//! Streams of the failure gossip from the data listener, kept until the gossip takes them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::sys::fds::Fd;
use crate::types::Rank;

/// Streams from ranks whose next rank in the gossip ring is now this one.
#[derive(Default)]
pub(crate) struct Arrivals {
    streams: Mutex<Vec<(Rank, Fd)>>,
    called: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Arrivals")
    }
}

impl Arrivals {
    /// Calls `call` now, and then each time a stream is put here, so that none is missed.
    pub(crate) fn call(self: &Arc<Self>, call: impl Fn() + Send + 'static) {
        let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        call();
        *called = Some(Box::new(call));
    }

    pub(crate) fn put(&self, from: Rank, stream: Fd) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push((from, stream));
        if let Some(call) = &*self.called.lock().unwrap_or_else(PoisonError::into_inner) {
            call();
        }
    }

    pub(crate) fn take(&self) -> Vec<(Rank, Fd)> {
        std::mem::take(&mut self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
