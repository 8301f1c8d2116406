//! What readers of the recorder see of the queue pairs of a lane's end. Nothing here changes what
//! the lane does.
//!
//! A queue pair has its row once its link is the engine's. A message costs a few stores, and a look
//! that finds something completed one reading of the clock.

use std::sync::atomic::Ordering;

use super::hca::Failed;
use super::link::{Half, Receiver, Sender, Strand};
use crate::clock;
use crate::recorder::{LinkCell, QueuePair, QueuePairCell, QueuePairEnd};
use crate::transport::Change;

/// Where a queue pair is, and its row.
#[derive(Debug)]
pub(super) struct Seen {
    device: String,
    own: QueuePairEnd,
    other: QueuePairEnd,
    /// `None` until the link is the engine's.
    cell: Option<QueuePairCell>,
    /// How many work requests of either kind had completed as of the last look.
    completed: u64,
}

impl Seen {
    pub(super) const fn new(device: String, own: QueuePairEnd, other: QueuePairEnd) -> Self {
        Self { device, own, other, cell: None, completed: 0 }
    }

    /// A write of so many bytes was posted that will say when it has completed.
    #[inline]
    pub(super) fn posted(&self, bytes: usize) {
        if let Some(cell) = &self.cell {
            cell.posted(bytes as u64);
        }
    }
}

impl Half {
    /// Takes the rows of its queue pairs.
    pub(super) fn watched(&mut self, link: &LinkCell, credits: u64) {
        for (nth, Strand { pair, seen, .. }) in (0..).zip(&mut self.strands) {
            let Seen { device, own, other, .. } = seen;
            let cell = link.queue_pair(nth, &QueuePair { device, own: *own, other: *other });
            let state = pair.qp.state().into();
            cell.state(state);
            seen.cell = Some(cell);
            self.changes.push(Change::State { number: pair.qp.number(), state });
        }
        self.credits(credits);
    }

    /// Stores for how many messages there is room, or how many notices are owed.
    #[inline]
    pub(super) fn credits(&self, count: u64) {
        self.strands
            .iter()
            .filter_map(|strand| strand.seen.cell.as_ref())
            .for_each(|cell| cell.credits(count));
    }

    /// Stores what has completed since the last look.
    #[inline]
    pub(super) fn tell_completed(&mut self) {
        let mut now = None;
        for (Strand { seen, .. }, count) in self.strands.iter_mut().zip(&self.end.counts) {
            let Some(cell) = &seen.cell else { continue };
            let [sent, arrived, bytes] =
                [&count.sent, &count.arrived, &count.bytes].map(|count| count.load(Ordering::Relaxed));
            if seen.completed != sent + arrived {
                seen.completed = sent + arrived;
                cell.completed(sent, *now.get_or_insert_with(clock::raw));
                if bytes > 0 {
                    cell.arrived(bytes);
                }
            }
        }
    }

    /// Stores that a work request has failed, and what has become of the queue pairs.
    pub(super) fn tell_failed(&mut self, failed: &Failed) {
        self.tell_completed();
        let completion = &failed.completion;
        for Strand { pair, seen, .. } in &self.strands {
            let Some(cell) = &seen.cell else { continue };
            let (number, state) = (pair.qp.number(), pair.qp.state().into());
            cell.state(state);
            if number == completion.queue_pair {
                let (status, vendor) = (completion.status, completion.vendor);
                cell.failed(status, vendor, clock::raw());
                self.changes.push(Change::Failed { number, status, vendor });
            }
            self.changes.push(Change::State { number, state });
        }
    }
}

impl Sender {
    /// Shows its queue pairs from now on.
    pub(crate) fn watched(&mut self, cell: &LinkCell) {
        self.half.watched(cell, self.room());
    }
    /// What has become of its queue pairs since the last call.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.half.changes)
    }
}

impl Receiver {
    /// Shows its queue pairs from now on.
    pub(crate) fn watched(&mut self, cell: &LinkCell) {
        self.half.watched(cell, self.owed());
    }
    /// What has become of its queue pairs since the last call.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.half.changes)
    }
}
