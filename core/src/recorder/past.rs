//! What a communicator's row keeps of the operations that have ended.

use std::sync::atomic::{AtomicU64, Ordering};

use super::cells;
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
    /// Since when it was under way: the operation before it may have ended later than its call.
    pub began: Raw,
    /// For how many ticks it waited, waits that were shorter than a message takes left out.
    pub waited_ticks: u64,
    /// When it ended.
    pub ended: Raw,
}

impl Times {
    /// The times of an operation that was under way from its call on, and never waited.
    #[must_use]
    pub const fn between(called: Raw, ended: Raw) -> Self {
        Self { called, began: called, waited_ticks: 0, ended }
    }
}

impl CommRow {
    /// Records that a collective completed.
    #[inline]
    pub fn completed(&self, descriptor: &Descriptor, times: Times) {
        let cell = self.cell(comm::COLL);
        if self.level() > 0 {
            let waited_ns = self.keep(cell, descriptor, descriptor.kind, times);
            let history = self.history.get_or_init(|| {
                let (words, row) = self.take_row(Table::History, |rows| &mut rows.histories, 0);
                History { words, row }
            });
            history.keep(descriptor.seq, (times.called, times.ended), waited_ns);
        }
        cell[op::COMPLETED_AT].store(times.ended.0, Ordering::Relaxed);
        cell[op::COMPLETED].store(descriptor.seq, Ordering::Release);
    }

    /// Records that a send or receive completed.
    #[inline]
    pub fn p2p_completed(&self, descriptor: &Descriptor, times: Times) {
        let cell = self.cell(comm::P2P);
        if self.level() > 0 {
            let kind = if descriptor.root == self.me { CollKind::Send } else { CollKind::Recv };
            self.keep(cell, descriptor, kind, times);
        }
        let completed = cell[op::COMPLETED].load(Ordering::Relaxed) + 1;
        cell[op::COMPLETED_AT].store(times.ended.0, Ordering::Relaxed);
        cell[op::COMPLETED].store(completed, Ordering::Release);
    }

    /// Counts an operation among those of its kind and size; returns for how many nanoseconds it
    /// waited. The cell still holds the end of the operation before.
    #[inline]
    fn keep(&self, cell: &[AtomicU64], descriptor: &Descriptor, kind: CollKind, times: Times) -> u64 {
        let before = cell[op::COMPLETED_AT].load(Ordering::Relaxed);
        // The first call of all has none before it.
        let outside = if before == 0 { 0 } else { times.called.0.saturating_sub(before) };
        let waited_ns = self.ns(times.waited_ticks);
        let Durations { words, .. } = self.durations(kind);
        let add = |at: usize, more: u64| {
            words[at].store(words[at].load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(durations::OUTSIDE_NS, self.ns(outside));
        if waited_ns > 0 {
            add(durations::WAITED_NS, waited_ns);
        }
        let took_ns = self.ns(times.ended.0.saturating_sub(times.began.0));
        cells::count(words, descriptor.bytes(), took_ns);
        waited_ns
    }
}
