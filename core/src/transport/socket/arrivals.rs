//! Streams from the data listener that carry no data, kept until the failure gossip or the
//! gathering of state takes them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::sys::fds::Fd;
use crate::types::{ChannelId, Rank};

/// A stream from another rank, and the channel that it named.
pub(crate) type Arrived = (Rank, ChannelId, Fd);

/// Streams from other ranks, for one purpose.
#[derive(Default)]
pub(crate) struct Arrivals {
    streams: Mutex<Vec<Arrived>>,
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

    pub(crate) fn put(&self, arrived: Arrived) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(arrived);
        if let Some(call) = &*self.called.lock().unwrap_or_else(PoisonError::into_inner) {
            call();
        }
    }

    /// The number of streams that were not taken yet.
    pub(crate) fn len(&self) -> usize {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn take(&self) -> Vec<Arrived> {
        std::mem::take(&mut self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
