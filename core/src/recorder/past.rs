//! What a communicator's row keeps of the operations that have ended.

use std::sync::atomic::Ordering;

use super::history::History;
use super::layout::{Table, comm, durations, op};
use super::writer::{CommRow, Durations};
use crate::clock::Raw;
use crate::collective::Descriptor;
use crate::types::CollKind;

/// The times of an operation that completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// When it was called.
    pub called: Raw,
    /// For how many ticks it waited, waits that were shorter than a message takes left out.
    pub waited_ticks: u64,
    /// When it ended.
    pub ended: Raw,
}

impl CommRow {
    /// Keeps the times of a collective. Call it before [`completed`](Self::completed), which
    /// replaces the end of the operation before.
    #[inline]
    pub fn keep(&self, descriptor: &Descriptor, times: Times) {
        if self.level() == 0 {
            return;
        }
        let waited_ns = self.ns(times.waited_ticks);
        let history = self.history.get_or_init(|| {
            let (words, row) = self.take_row(Table::History, |rows| &mut rows.histories, 0);
            History { words, row }
        });
        history.keep(descriptor.seq, (times.called, times.ended), waited_ns);
        self.sum(comm::COLL, descriptor.kind, times.called, waited_ns);
    }

    /// Sums the times of a send or receive. Call it before
    /// [`p2p_completed`](Self::p2p_completed).
    #[inline]
    pub fn keep_p2p(&self, kind: CollKind, times: Times) {
        if self.level() > 0 {
            self.sum(comm::P2P, kind, times.called, self.ns(times.waited_ticks));
        }
    }

    fn sum(&self, cell: usize, kind: CollKind, called: Raw, waited_ns: u64) {
        let before = self.cell(cell)[op::COMPLETED_AT].load(Ordering::Relaxed);
        // The first call of all has none before it.
        let outside = if before == 0 { 0 } else { self.ns(called.0.saturating_sub(before)) };
        let Durations { words, .. } = self.durations(kind);
        for (at, more) in [(durations::WAITED_NS, waited_ns), (durations::OUTSIDE_NS, outside)] {
            words[at].store(words[at].load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }
}
