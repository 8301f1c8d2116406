//! The queue of spans to send, and their counts. It is bounded: facts that find no space are
//! dropped, and counted.
//!
//! Every fact is in one state: queued, in flight, or settled as delivered, dropped or unknown. So
//! `made = delivered + dropped + unknown` once nothing is queued or in flight. One batch is in
//! flight at a time, so a broken connection leaves at most one batch in doubt.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl::clock::{self, Ns};

use super::fact::Fact;
use super::settings::Batch;

const _: () = assert!((1 << 16) * size_of::<Fact>() <= 10 << 20, "what Batch says of its default");

/// The counts of an exporter, in spans; `lost` in events.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Spans made from the events that were read.
    pub made: u64,
    /// Spans that the collector accepted, each counted once.
    pub delivered: u64,
    /// Spans that the collector does not have: the queue was full, it was unreachable, or it
    /// refused them.
    pub dropped: u64,
    /// Spans of requests that were sent completely and never answered: the collector may have them.
    pub unknown: u64,
    /// Events that were overwritten before they were read, or whose owner is unknown.
    pub lost: u64,
}

impl Counts {
    /// Whether everything that happened was delivered.
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

/// The outcome of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// Accepted, except for `rejected` spans.
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
    /// The lane that was served last: the next lane comes first.
    served: u64,
    /// No more facts are accepted, and nothing is sent after this time.
    closed: Option<Ns>,
    /// The sender has ended.
    ended: bool,
    counts: Counts,
    /// The reason of the last failed attempt.
    failure: Option<String>,
}

#[derive(Default, Debug)]
pub(super) struct Queue {
    batch: Batch,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    pub(super) fn new(batch: Batch) -> Self {
        Self { batch, ..Self::default() }
    }

    /// Records why an attempt to send failed.
    pub(super) fn failed(&self, why: String) {
        self.lock().failure = Some(why);
    }

    /// The reason of the last failed attempt.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Counts events that are not exported.
    pub(super) fn lost(&self, events: u64) {
        let mut state = self.lock();
        state.counts.lost = state.counts.lost.saturating_add(events);
    }

    /// Queues the facts that there is space for.
    pub(super) fn push(&self, facts: Vec<Fact>) {
        let mut state = self.lock();
        state.counts.made += facts.len() as u64;
        for fact in facts {
            if state.queued < self.batch.queue && state.closed.is_none() {
                state.queued += 1;
                state.lanes.entry(fact.owner.emitter.number).or_default().push_back(fact);
            } else {
                state.counts.dropped += 1;
            }
        }
        if state.queued >= self.batch.most {
            self.changed.notify_all();
        }
    }

    /// Takes the next batch, all of one emitter; waits until it is worth a request. `None` once the
    /// queue is closed and empty.
    pub(super) fn take(&self) -> Option<Vec<Fact>> {
        let Batch { delay, most, .. } = self.batch;
        let mut state = self.lock();
        if state.queued < most {
            let gather = |state: &mut State| state.queued < most && state.closed.is_none();
            state = self.wait(state, delay, gather);
        }
        while state.queued == 0 && state.closed.is_none() {
            state = self.wait(state, delay, |state| state.queued < most && state.closed.is_none());
        }
        let after = state.served;
        let next = state.lanes.range(after + 1..).chain(state.lanes.range(..=after)).next();
        let (number, count) = next.map(|(number, lane)| (*number, lane.len().min(most)))?;
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
        // If it was given up meanwhile, it was already counted.
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

    /// Waits for `time`, or until the queue is closed.
    pub(super) fn pause(&self, time: Duration) {
        let state = self.lock();
        drop(self.wait(state, time, |state| state.closed.is_none()));
    }

    /// Closes the queue; the queued facts may be sent until `until`.
    pub(super) fn close(&self, until: Ns) {
        self.lock().closed = Some(until);
        self.changed.notify_all();
    }

    /// When sending must be over, if the queue is closed.
    pub(super) fn closes(&self) -> Option<Ns> {
        self.lock().closed
    }

    /// Drops the queued facts.
    pub(super) fn drop_queued(&self) {
        let mut state = self.lock();
        state.counts.dropped += state.queued as u64;
        state.queued = 0;
        state.lanes.clear();
    }

    /// Records that the sender has ended.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits at most `time` for the end of the sender; then its batch in flight is in doubt. The
    /// counts are final.
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
