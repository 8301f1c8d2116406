//! Where chains of waits end, in a line each: for screens, which show a wait before it has lasted
//! long enough for a verdict.

use std::collections::BTreeSet;

use super::{call_name, comm_name, counterpart};
use crate::snapshot::{BlockedOn, Snapshot};
use crate::types::{CommId, Rank};

/// The most ranks or groups of ranks that are told apart among those that hold the job up.
pub(super) const MAX_ENDS: usize = 256;

/// Where a chain of waits ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitEnd {
    /// The ranks of the job that block others.
    pub ranks: Vec<Rank>,
    /// `not called`
    pub how: &'static str,
    /// `AllReduce #5`, or `#4` if that is the call that they lack.
    pub op: String,
    /// `world`
    pub comm: String,
    /// How long the others have waited.
    pub since_ns: u64,
    /// The ranks of the job that wait for them, directly or in communicators behind.
    pub by: BTreeSet<Rank>,
}

impl Snapshot {
    /// Whom ranks wait for in the end, the longest wait first.
    #[must_use]
    pub fn waits(&self) -> Vec<WaitEnd> {
        let numbers = self.numbers();
        let of = |comm: CommId, ranks: &[Rank]| {
            let found: Vec<Rank> =
                ranks.iter().filter_map(|rank| numbers.get(&(comm, *rank)).copied()).collect();
            found
        };
        let wait = |one| {
            let mut end = self.wait_end(one);
            let behind = one.behind.iter().flat_map(|other| of(other.comm, &other.by));
            let by = of(one.comm, &one.by).into_iter().chain(behind);
            end.by = by.filter(|rank| !end.ranks.contains(rank)).collect();
            end
        };
        self.said().take(MAX_ENDS).map(wait).collect()
    }

    /// The same for one of them, without the ranks behind.
    pub(super) fn wait_end(&self, one: &BlockedOn) -> WaitEnd {
        let (ranks, how) = match (one.missing.as_slice(), one.inside.as_slice()) {
            ([], []) if one.unseen.is_empty() && self.is_all_stopped() => (&one.by, "all are stopped"),
            ([], []) if one.unseen.is_empty() => (&one.by, "all wait for each other"),
            ([], []) => (&one.unseen, "could not be read"),
            ([], _) => (&one.inside, "holds it up"),
            (_, _) => match counterpart(&one.op) {
                Some("Recv") => (&one.missing, "no Recv called"),
                Some(_) => (&one.missing, "no Send called"),
                None => (&one.missing, "not called"),
            },
        };
        // A rank that lacks an earlier call than the one the others wait in is blamed for that
        // earlier call.
        let (ranks, how, op) = match self.lacking(one).into_iter().next() {
            None => (ranks.clone(), how, call_name(&one.op, one.seq)),
            Some(lacks) => match lacks.inside {
                Some(inside) => (lacks.ranks, "holds it up", inside),
                None => (lacks.ranks, how, format!("#{}", lacks.seq)),
            },
        };
        WaitEnd {
            ranks: self.job_ranks(one.comm, &ranks),
            how,
            op,
            comm: comm_name(&one.name, one.comm),
            since_ns: one.since_ns,
            by: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{CommSnapshot, RankSnapshot};

    fn blocked(op: &str, missing: &[u32]) -> BlockedOn {
        let missing = missing.iter().copied().map(Rank).collect();
        let (op, by, since_ns) = (op.into(), vec![Rank(0), Rank(1)], 1_000_000_000);
        BlockedOn { comm: CommId(1), op, seq: 5, missing, by, since_ns, ..BlockedOn::default() }
    }

    #[test]
    fn who_blocks_others_is_said_with_what_it_has_not_done() {
        let check = |one: BlockedOn, ranks: &[u32], how: &str| {
            let job = Snapshot { blocked_on: vec![one], ..Snapshot::default() };
            let end = job.waits().remove(0);
            let numbers: Vec<u32> = end.ranks.iter().map(|rank| rank.0).collect();
            assert_eq!((numbers.as_slice(), end.how), (ranks, how));
        };
        check(blocked("AllReduce", &[2]), &[2], "not called");
        check(blocked("Send", &[2]), &[2], "no Recv called");
        check(blocked("Recv", &[2]), &[2], "no Send called");
        let unnamed = blocked("AllReduce", &[]);
        check(BlockedOn { inside: vec![Rank(3)], ..unnamed.clone() }, &[3], "holds it up");
        check(BlockedOn { unseen: vec![Rank(3)], ..unnamed.clone() }, &[3], "could not be read");
        check(unnamed, &[0, 1], "all wait for each other");
    }

    #[test]
    fn of_a_rank_the_call_that_it_lacks_is_said() {
        let comm = CommSnapshot { id: CommId(1), rank: Rank(2), ..CommSnapshot::default() };
        let rank = RankSnapshot { comms: vec![comm], ..RankSnapshot::default() };
        let blocked_on = vec![blocked("AllReduce", &[2])];
        let mut job = Snapshot { ranks: vec![rank], blocked_on, ..Snapshot::default() };
        assert_eq!((job.waits()[0].op.as_str(), job.waits()[0].how), ("#1", "not called"));
        job.ranks[0].comms[0].op.called = 4;
        assert_eq!((job.waits()[0].op.as_str(), job.waits()[0].how), ("AllReduce #5", "not called"));
    }
}
