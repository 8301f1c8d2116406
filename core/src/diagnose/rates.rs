//! Rates of ranks: from the counters of two snapshots of a job and the time between them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::snapshot::{CommSnapshot, Snapshot};
use crate::types::{CommId, Rank};

/// The counters so far: operations and bytes by rank and communicator.
#[derive(Clone, Default, Debug)]
pub struct Counted(BTreeMap<Rank, BTreeMap<CommId, (u64, u64)>>);

/// The rate of a rank or communicator.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Rate {
    /// Operations that ended, per second.
    pub ops_per_s: f64,
    /// Bytes that links moved, both ways, per second.
    pub bytes_per_s: f64,
}

impl std::ops::Add for Rate {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            ops_per_s: self.ops_per_s + other.ops_per_s,
            bytes_per_s: self.bytes_per_s + other.bytes_per_s,
        }
    }
}

impl Counted {
    /// The counters of a snapshot.
    #[must_use]
    pub fn of(job: &Snapshot) -> Self {
        let of_comm = |comm: &CommSnapshot| {
            let pairs = comm.p2p.as_ref().map_or(0, |p2p| p2p.completed);
            let bytes = comm.links.iter().fold(0u64, |sum, link| sum.saturating_add(link.bytes));
            (comm.id, (comm.op.completed.saturating_add(pairs), bytes))
        };
        Self(job.ranks.iter().map(|rank| (rank.rank, rank.comms.iter().map(of_comm).collect())).collect())
    }

    /// The rates of a rank in each of its communicators since `before`, `passed` ago.
    ///
    /// `None` if `before` does not have the rank. A communicator created since then counts from
    /// zero.
    #[must_use]
    pub fn by_comm(&self, before: &Self, passed: Duration, rank: Rank) -> Option<BTreeMap<CommId, Rate>> {
        let (now, before) = (self.0.get(&rank)?, before.0.get(&rank)?);
        let per_second =
            |now: u64, before: u64| now.saturating_sub(before) as f64 / passed.as_secs_f64().max(1e-9);
        let rate = |(comm, (ops, bytes)): (&CommId, &(u64, u64))| {
            let had = before.get(comm).copied().unwrap_or_default();
            (*comm, Rate { ops_per_s: per_second(*ops, had.0), bytes_per_s: per_second(*bytes, had.1) })
        };
        Some(now.iter().map(rate).collect())
    }

    /// The sum of the rates in all of its communicators.
    #[must_use]
    pub fn of_rank(&self, before: &Self, passed: Duration, rank: Rank) -> Option<Rate> {
        let comms = self.by_comm(before, passed, rank)?;
        Some(comms.into_values().fold(Rate::default(), |sum, rate| sum + rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{LinkSnapshot, OpSnapshot, RankSnapshot};

    fn job(comms: &[(u64, u64, u64)]) -> Snapshot {
        let comm = |(id, completed, bytes): &(u64, u64, u64)| CommSnapshot {
            id: CommId(*id),
            op: OpSnapshot { completed: *completed, ..OpSnapshot::default() },
            links: vec![LinkSnapshot { bytes: *bytes, ..LinkSnapshot::default() }],
            ..CommSnapshot::default()
        };
        let rank = RankSnapshot { comms: comms.iter().map(comm).collect(), ..RankSnapshot::default() };
        Snapshot { ranks: vec![rank], ..Snapshot::default() }
    }

    #[test]
    fn rates_count_what_came_since_the_snapshot_before() {
        let check = |now: &Snapshot, before: &Snapshot, expect: Option<(f64, f64)>| {
            let passed = Duration::from_millis(500);
            let rate = Counted::of(now).of_rank(&Counted::of(before), passed, Rank(0));
            assert_eq!(rate.map(|rate| (rate.ops_per_s, rate.bytes_per_s)), expect);
        };
        let (before, now) = (job(&[(1, 10, 1000)]), job(&[(1, 15, 3000), (2, 2, 500)]));
        check(&now, &before, Some((14.0, 5000.0)));
        // Rows of ended communicators go away; no rate is negative.
        check(&before, &now, Some((0.0, 0.0)));
        // A rank that was not there.
        check(&now, &Snapshot::default(), None);
    }
}
