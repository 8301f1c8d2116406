//! The last minutes of a job, so that the user can step back. Bounded in bytes and in time.

use std::collections::{BTreeMap, VecDeque};
use std::mem::size_of;
use std::sync::Arc;

use ccl::diagnose::Rate;
use ccl::recorder::reader::Histogram;
use ccl::snapshot::{
    CommSnapshot, LinkSnapshot, OpSnapshot, PhaseSnapshot, PortSnapshot, QueuePairSnapshot, RankSnapshot,
    Snapshot, SocketSnapshot,
};
use ccl::types::{CommId, Rank};

/// The most bytes kept.
const BYTES_MAX: usize = 64 << 20;
/// How far back it reaches.
const KEPT_NS: u64 = 600_000_000_000;
/// The least time between two kept shots, unless the ranks that block others have changed.
const APART_NS: u64 = 1_000_000_000;

/// Rates by rank of the job and communicator.
///
/// There is no rate for a rank or communicator that did not exist before.
pub(crate) type Rates = BTreeMap<(Rank, CommId), Rate>;

/// A snapshot, the time when it was taken, and other data read then.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Shot {
    /// In nanoseconds since 1970, by this process's clock.
    pub(crate) taken_ns: u64,
    /// The job.
    pub(crate) snapshot: Snapshot,
    /// The durations of operations so far; `None` if the screen did not need them.
    pub(crate) histograms: Option<Arc<[Histogram]>>,
    /// The rates of each rank in each communicator, in about the last second.
    pub(crate) rates: Rates,
}

/// Shots, oldest first.
#[derive(Clone, Default, Debug)]
pub(crate) struct History {
    shots: VecDeque<(Arc<Shot>, usize)>,
    bytes: usize,
}

impl History {
    /// Keeps a shot, if it differs enough from the last one.
    pub(crate) fn push(&mut self, shot: &Arc<Shot>) {
        self.push_within(shot, BYTES_MAX);
    }

    fn push_within(&mut self, shot: &Arc<Shot>, bytes_max: usize) {
        if let Some((last, _)) = self.shots.back() {
            let soon = shot.taken_ns.saturating_sub(last.taken_ns) < APART_NS;
            if soon && culprits(&last.snapshot).eq(culprits(&shot.snapshot)) {
                return;
            }
        }
        let bytes = weight(&shot.snapshot) + shot.histograms.as_deref().map_or(0, weight_of_durations);
        self.shots.push_back((shot.clone(), bytes));
        self.bytes += bytes;
        while let Some((oldest, bytes)) = self.shots.front() {
            let is_old = shot.taken_ns.saturating_sub(oldest.taken_ns) > KEPT_NS;
            // The last one stays, however large it is.
            if self.shots.len() == 1 || !(is_old || self.bytes > bytes_max) {
                break;
            }
            self.bytes -= bytes;
            self.shots.pop_front();
        }
    }

    /// The last one before this moment.
    pub(crate) fn before(&self, taken_ns: u64) -> Option<Arc<Shot>> {
        self.shots.iter().rev().map(|(shot, _)| shot).find(|shot| shot.taken_ns < taken_ns).cloned()
    }

    /// The first one after this moment.
    pub(crate) fn after(&self, taken_ns: u64) -> Option<Arc<Shot>> {
        self.shots.iter().map(|(shot, _)| shot).find(|shot| shot.taken_ns > taken_ns).cloned()
    }
}

/// The ranks that block others, and in which operation, for waits long enough to be reported.
fn culprits(job: &Snapshot) -> impl Iterator<Item = impl PartialEq> {
    job.said().map(|one| (one.comm, one.op.as_str(), one.seq, &one.missing, &one.inside))
}

/// The approximate memory of histograms; those that several shots share count each time.
fn weight_of_durations(histograms: &[Histogram]) -> usize {
    let one = |one: &Histogram| size_of::<Histogram>() + size_of_val(one.buckets.as_slice()) + one.name.len();
    histograms.iter().map(one).sum()
}

/// The approximate memory of a snapshot.
fn weight(job: &Snapshot) -> usize {
    let op = |op: &OpSnapshot| {
        [&op.kind, &op.tag, &op.dtype, &op.op, &op.plan, &op.error]
            .into_iter()
            .map(String::len)
            .sum::<usize>()
    };
    let link = |link: &LinkSnapshot| {
        size_of::<LinkSnapshot>()
            + link.sockets.len() * (size_of::<SocketSnapshot>() + 48)
            + link.queue_pairs.len() * (size_of::<QueuePairSnapshot>() + 48)
    };
    let comm = |comm: &CommSnapshot| {
        size_of::<CommSnapshot>()
            + comm.links.iter().map(link).sum::<usize>()
            + comm.phases.len() * (size_of::<PhaseSnapshot>() + 16)
            + comm.name.len()
            + op(&comm.op)
            + comm.p2p.as_ref().map_or(0, op)
            + 128
    };
    let ranks = job.ranks.iter().map(|rank| {
        size_of::<RankSnapshot>()
            + [&rank.recorder, &rank.host, &rank.host_id].into_iter().map(String::len).sum::<usize>()
            + rank.comms.iter().map(comm).sum::<usize>()
            + rank.ports.len() * (size_of::<PortSnapshot>() + 48)
    });
    let blocked_on = job.blocked_on.iter().map(|one| {
        512 + one.name.len() + one.tag.len() + 4 * (one.by.len() + one.missing.len() + one.unseen.len())
    });
    ranks.sum::<usize>()
        + blocked_on.sum::<usize>()
        // The rates.
        + job.ranks.iter().map(|rank| 64 + 48 * rank.comms.len()).sum::<usize>()
        + job.missing.iter().map(|one| 128 + one.host.len() + one.why.len()).sum::<usize>()
        + job.notes.iter().map(String::len).sum::<usize>()
        + size_of::<Shot>()
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::BlockedOn;

    use super::*;

    fn shot(seconds: f64, ranks: usize) -> Arc<Shot> {
        let snapshot = Snapshot { ranks: vec![RankSnapshot::default(); ranks], ..Snapshot::default() };
        Arc::new(Shot { taken_ns: (seconds * 1e9) as u64, snapshot, ..Shot::default() })
    }

    fn times(history: &History) -> Vec<u64> {
        history.shots.iter().map(|(shot, _)| shot.taken_ns / 100_000_000).collect()
    }

    #[test]
    fn one_a_second_is_kept_and_every_change_of_the_awaited() {
        let mut history = History::default();
        for tenths in 0..25 {
            history.push(&shot(f64::from(tenths) / 10.0, 1));
        }
        assert_eq!(times(&history), [0, 10, 20]);
        let mut changed = Shot::clone(&shot(2.5, 1));
        changed.snapshot.blocked_on =
            vec![BlockedOn { missing: vec![Rank(2)], since_ns: 1 << 30, ..BlockedOn::default() }];
        history.push(&Arc::new(changed));
        assert_eq!(times(&history), [0, 10, 20, 25]);
    }

    #[test]
    fn it_steps_both_ways_and_ends_on_both_sides() {
        let mut history = History::default();
        (1..4).for_each(|second| history.push(&shot(f64::from(second), 1)));
        let at = |found: Option<Arc<Shot>>| found.map(|shot| shot.taken_ns / 1_000_000_000);
        assert_eq!(at(history.before(3_500_000_000)), Some(3));
        assert_eq!(at(history.before(3_000_000_000)), Some(2));
        assert_eq!(at(history.before(1_000_000_000)), None);
        assert_eq!(at(history.after(1_000_000_000)), Some(2));
        assert_eq!(at(history.after(3_000_000_000)), None);
    }

    #[test]
    fn what_is_old_or_too_much_goes_and_the_last_one_stays() {
        let mut history = History::default();
        for minute in 0..20 {
            history.push(&shot(60.0 * f64::from(minute), 1));
        }
        assert_eq!(times(&history).first(), Some(&(9 * 600)));
        let limit = 4 * weight(&shot(0.0, 10).snapshot);
        let mut history = History::default();
        (0..20).for_each(|second| history.push_within(&shot(f64::from(second), 10), limit));
        assert_eq!(times(&history).len(), 4);
        assert!(history.bytes <= limit);
        history.push_within(&shot(30.0, 1000), limit);
        assert_eq!(times(&history), [300]);
    }
}
