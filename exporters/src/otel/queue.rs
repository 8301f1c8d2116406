//! What is to be sent, and the account of it. Bounded: what finds no room is dropped, and counted.
//!
//! Every fact is in one place: queued, in flight, or settled as delivered, dropped or unknown. So
//! `made = delivered + dropped + unknown` once nothing is queued or in flight. One batch is in flight at a time: what a broken
//! connection leaves in doubt is at most that.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl::clock::{self, Ns};

use super::fact::Fact;

/// Facts that are kept while the collector is slow or away: 8 seconds of 8,000 operations each, in 10 MB.
const MOST_QUEUED: usize = 1 << 16;
const _: () = assert!(MOST_QUEUED * size_of::<Fact>() <= 10 << 20);
/// Facts of one request, as in OpenTelemetry's own SDKs.
pub(super) const BATCH: usize = 512;
/// How long a batch may wait for more.
const GATHER: Duration = Duration::from_millis(200);

/// The account of an exporter, in spans; `lost` in events.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Spans made of what was read.
    pub made: u64,
    /// Spans that the collector accepted, each counted once.
    pub delivered: u64,
    /// Spans that the collector has not: no room in the queue, no connection, refused.
    pub dropped: u64,
    /// Spans of requests that were sent whole and never answered: the collector may have them.
    pub unknown: u64,
    /// Events that were overwritten before they were read, or could not be told whose they were.
    pub lost: u64,
}

impl Counts {
    /// Whether everything that happened arrived.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.dropped == 0 && self.unknown == 0 && self.lost == 0
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { made, delivered, dropped, unknown, lost } = self;
        write!(
            f,
            "{made} spans made, {delivered} delivered, {dropped} dropped, {unknown} unknown; {lost} events lost"
        )
    }
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// Accepted, all but so many.
    Delivered {
        rejected: u64,
    },
    Dropped,
    Unknown,
}

#[derive(Default, Debug)]
struct State {
    /// By emitter: a request has one resource.
    lanes: BTreeMap<u64, VecDeque<Fact>>,
    queued: usize,
    in_flight: u64,
    /// The lane that was served last: the next one comes first.
    served: u64,
    /// Nothing comes any more, and nothing is sent after this.
    closed: Option<Ns>,
    /// The sender has ended.
    ended: bool,
    counts: Counts,
}

#[derive(Default, Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Counts events that nobody will tell of.
    pub(super) fn lost(&self, events: u64) {
        self.lock().counts.lost += events;
    }

    /// Queues what there is room for.
    pub(super) fn push(&self, facts: Vec<Fact>) {
        let mut state = self.lock();
        state.counts.made += facts.len() as u64;
        for fact in facts {
            if state.queued < MOST_QUEUED && state.closed.is_none() {
                state.queued += 1;
                state.lanes.entry(fact.owner.emitter.number).or_default().push_back(fact);
            } else {
                state.counts.dropped += 1;
            }
        }
        if state.queued >= BATCH {
            self.changed.notify_all();
        }
    }

    /// The next batch, all of one emitter; waits until it is worth a request. `None` once it is closed and there is no more.
    pub(super) fn take(&self) -> Option<Vec<Fact>> {
        let mut state = self.lock();
        if state.queued < BATCH {
            let gather = |state: &mut State| state.queued < BATCH && state.closed.is_none();
            state = self.wait(state, GATHER, gather);
        }
        while state.queued == 0 && state.closed.is_none() {
            state = self.wait(state, GATHER, |state| state.queued < BATCH && state.closed.is_none());
        }
        let after = state.served;
        let next = state.lanes.range(after + 1..).chain(state.lanes.range(..=after)).next();
        let (number, count) = next.map(|(number, lane)| (*number, lane.len().min(BATCH)))?;
        state.served = number;
        let lane = state.lanes.get_mut(&number)?;
        let batch: Vec<Fact> = lane.drain(..count).collect();
        if lane.is_empty() {
            state.lanes.remove(&number);
        }
        state.queued -= batch.len();
        state.in_flight = batch.len() as u64;
        Some(batch)
    }

    /// Settles the batch in flight.
    pub(super) fn settle(&self, fate: Fate) {
        let mut state = self.lock();
        // Given up meanwhile: it was counted then.
        let batch = std::mem::take(&mut state.in_flight);
        let counts = &mut state.counts;
        match fate {
            Fate::Delivered { rejected } => {
                counts.dropped += rejected.min(batch);
                counts.delivered += batch - rejected.min(batch);
            }
            Fate::Dropped => counts.dropped += batch,
            Fate::Unknown => counts.unknown += batch,
        }
    }

    /// Waits as long as that, or until it is closed.
    pub(super) fn pause(&self, time: Duration) {
        let state = self.lock();
        drop(self.wait(state, time, |state| state.closed.is_none()));
    }

    /// Nothing more comes; what is queued may be sent until `until`.
    pub(super) fn close(&self, until: Ns) {
        self.lock().closed = Some(until);
        self.changed.notify_all();
    }

    /// When sending must be over, if it is closed.
    pub(super) fn closes(&self) -> Option<Ns> {
        self.lock().closed
    }

    /// Drops what is queued.
    pub(super) fn drop_queued(&self) {
        let mut state = self.lock();
        state.counts.dropped += state.queued as u64;
        state.queued = 0;
        state.lanes.clear();
    }

    /// The sender has ended.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits for the end of the sender, as long as that; then whatever it still does is in doubt. The account is final.
    pub(super) fn await_end(&self, time: Duration) -> Counts {
        let state = self.lock();
        let mut state = self.wait(state, time, |state| !state.ended);
        state.counts.unknown += std::mem::take(&mut state.in_flight);
        state.counts.dropped += std::mem::take(&mut state.queued) as u64;
        state.lanes.clear();
        state.counts
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        time: Duration,
        go_on: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout_while(state, time, go_on);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether sending must be over.
    pub(super) fn is_late(&self) -> bool {
        self.closes().is_some_and(|until| clock::now() >= until)
    }
}

#[cfg(test)]
pub(super) mod tests;
