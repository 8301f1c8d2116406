//! Rates of ranks: from the counters of two snapshots of a job and the time between them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use ccl::snapshot::{CommSnapshot, Snapshot};
use ccl::types::{CommId, Rank};

/// The counters so far: operations and bytes by rank and communicator.
#[derive(Clone, Default, Debug)]
pub(crate) struct Counted(BTreeMap<Rank, BTreeMap<CommId, (u64, u64)>>);

/// The rate of a rank or communicator.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Rate {
    /// Operations that ended, per second.
    pub(crate) ops_per_s: f64,
    /// Bytes that links moved, both ways, per second.
    pub(crate) bytes_per_s: f64,
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
    pub(crate) fn of(job: &Snapshot) -> Self {
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
    pub(crate) fn by_comm(
        &self,
        before: &Self,
        passed: Duration,
        rank: Rank,
    ) -> Option<BTreeMap<CommId, Rate>> {
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
    pub(crate) fn of_rank(&self, before: &Self, passed: Duration, rank: Rank) -> Option<Rate> {
        let comms = self.by_comm(before, passed, rank)?;
        Some(comms.into_values().fold(Rate::default(), |sum, rate| sum + rate))
    }
}
