//! The state of a job in one line: what failed, else which ranks have not joined, else which ranks
//! block others.

use super::{call_name, comm_name};
use crate::snapshot::{BlockedOn, Failure, NotJoined, Snapshot, State};
use crate::types::{CommId, Rank};

/// The first thing to say of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Headline<'a> {
    /// It has failed, by these ranks if they are known.
    Failed(Culprits),
    /// The init of a communicator waits for ranks.
    NotJoined(&'a NotJoined),
    /// These ranks block others.
    BlockedOn(Culprits),
}

/// The ranks that are to blame for a failure, or that block others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Culprits {
    /// The ranks of the job; empty if it is not known who is to blame for a failure.
    pub ranks: Vec<Rank>,
    /// The state of a single rank's process; `None` if it runs or was not read.
    pub state: Option<State>,
    /// `AllReduce #5`; empty if the communicator failed outside of operations.
    pub op: String,
    /// `world`
    pub comm: String,
    /// `not called`
    pub how: &'static str,
    /// How long ago it failed, or how long the others have waited.
    pub since_ns: u64,
    /// The longest `p99_ns` of the operations that wait; 0 if not known.
    pub p99_ns: u64,
    /// The ranks of the job on which it failed, or that wait.
    pub by: Vec<Rank>,
    /// The number of further failures or waits.
    pub more: usize,
}

impl Snapshot {
    /// The first thing to say of the job; `None` if there is nothing to report.
    #[must_use]
    pub fn headline(&self) -> Option<Headline<'_>> {
        let failed = || self.first_failure().map(|failure| Headline::Failed(self.failed(failure)));
        let joining = || self.not_joined.first().map(Headline::NotJoined);
        let blocked = || self.said().next().map(|one| Headline::BlockedOn(self.blocking(one)));
        failed().or_else(joining).or_else(blocked)
    }

    /// The communicator of the first thing to say of the job.
    #[must_use]
    pub fn headline_comm(&self) -> Option<CommId> {
        let failed = self.first_failure().map(|failure| failure.comm);
        let joining = || self.not_joined.first().map(|one| one.comm);
        failed.or_else(joining).or_else(|| self.said().next().map(|one| one.comm))
    }

    /// The first failure, unless ranks failed only as their processes were ended while they waited.
    fn first_failure(&self) -> Option<&Failure> {
        self.failures.first().filter(|_| !self.ended_waiting())
    }

    /// Whether all failures follow a wait: ranks waited for long, and failed as their processes
    /// were ended.
    #[must_use]
    pub fn ended_waiting(&self) -> bool {
        let follow = self.failures.iter().all(|failure| failure.follows.is_some());
        !self.failures.is_empty() && follow && self.said().next().is_some()
    }

    /// Whether all ranks were read, with all their communicators: then nobody waits unseen.
    #[must_use]
    pub fn is_all_seen(&self) -> bool {
        self.complete && self.ranks.iter().all(|rank| rank.comms_without_row == 0)
    }

    fn failed(&self, failure: &Failure) -> Culprits {
        Culprits {
            ranks: self.job_ranks(failure.comm, &failure.blamed),
            state: self.state_of_one(failure.comm, &failure.blamed),
            op: match failure.op.as_str() {
                "" => String::new(),
                op => call_name(op, failure.seq),
            },
            comm: comm_name(&failure.name, failure.comm),
            how: how_failed(&failure.error),
            since_ns: failure.since_ns,
            p99_ns: 0,
            by: self.job_ranks(failure.comm, &failure.ranks),
            more: self.failures.len() - 1,
        }
    }

    pub(super) fn blocking(&self, one: &BlockedOn) -> Culprits {
        let (ranks, how) = match (one.missing.as_slice(), one.inside.as_slice()) {
            ([], []) if one.unseen.is_empty() && self.is_all_stopped() => (&one.by, "all are stopped"),
            ([], []) if one.unseen.is_empty() => (&one.by, "all wait for each other"),
            ([], []) => (&one.unseen, "could not be read"),
            ([], _) => (&one.inside, "holds it up"),
            (_, _) => match one.op.as_str() {
                "Send" => (&one.missing, "no Recv called"),
                "Recv" => (&one.missing, "no Send called"),
                _ => (&one.missing, "not called"),
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
        Culprits {
            state: self.state_of_one(one.comm, &ranks),
            ranks: self.job_ranks(one.comm, &ranks),
            op,
            comm: comm_name(&one.name, one.comm),
            how,
            since_ns: one.since_ns,
            p99_ns: one.p99_ns,
            by: self.job_ranks(one.comm, &one.by),
            more: self.said().count() - 1,
        }
    }

    fn state_of_one(&self, comm: CommId, ranks: &[Rank]) -> Option<State> {
        let [rank] = ranks else { return None };
        self.state_of(comm, *rank).filter(|state| !matches!(state, State::Running | State::Unknown))
    }
}

/// How an operation failed, in words.
pub(super) fn how_failed(error: &str) -> &'static str {
    match error {
        "Mismatch" => "mismatch",
        "Peer" => "peer gone",
        "Timeout" => "time-out",
        "Aborted" => "aborted",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{CommSnapshot, RankSnapshot};

    const SECOND: u64 = 1_000_000_000;

    fn blocked(op: &str, missing: &[u32]) -> BlockedOn {
        let missing = missing.iter().copied().map(Rank).collect();
        let (op, by) = (op.into(), vec![Rank(0), Rank(1)]);
        BlockedOn { comm: CommId(1), op, seq: 5, missing, by, since_ns: SECOND, ..BlockedOn::default() }
    }

    fn culprits(job: &Snapshot) -> Culprits {
        match job.headline() {
            Some(Headline::Failed(culprits) | Headline::BlockedOn(culprits)) => culprits,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_failed_is_said_first_and_then_who_has_not_joined() {
        let mut job = Snapshot::default();
        assert_eq!(job.headline(), None);
        job.blocked_on = vec![BlockedOn { since_ns: 1, ..blocked("AllReduce", &[2]) }];
        assert_eq!(job.headline(), None, "a short wait");
        job.blocked_on.push(blocked("AllReduce", &[2]));
        assert!(matches!(job.headline(), Some(Headline::BlockedOn(_))));
        job.not_joined = vec![NotJoined::default()];
        assert!(matches!(job.headline(), Some(Headline::NotJoined(_))));
        job.not_joined.clear();
        let follows = Some(CommId(1));
        job.failures = vec![Failure { error: "Peer".into(), follows, ..Failure::default() }; 3];
        assert!(matches!(job.headline(), Some(Headline::BlockedOn(_))), "they were ended while they waited");
        assert_eq!(job.headline_comm(), Some(CommId(1)));
        job.failures = vec![Failure { error: "Peer".into(), ..Failure::default() }; 3];
        let said = culprits(&job);
        assert_eq!((said.how, said.more, said.op.as_str()), ("peer gone", 2, ""));
    }

    #[test]
    fn who_blocks_others_is_said_with_what_it_has_not_done() {
        let check = |one: BlockedOn, ranks: &[u32], how: &str| {
            let job = Snapshot { blocked_on: vec![one], ..Snapshot::default() };
            let said = culprits(&job);
            let numbers: Vec<u32> = said.ranks.iter().map(|rank| rank.0).collect();
            assert_eq!((numbers.as_slice(), said.how), (ranks, how));
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
    fn of_a_single_rank_the_state_is_said_and_the_call_it_lacks() {
        let comm = CommSnapshot { id: CommId(1), rank: Rank(2), ..CommSnapshot::default() };
        let rank = RankSnapshot { state: State::Stopped, comms: vec![comm], ..RankSnapshot::default() };
        let blocked_on = vec![blocked("AllReduce", &[2])];
        let mut job = Snapshot { ranks: vec![rank], blocked_on, ..Snapshot::default() };
        let said = culprits(&job);
        assert_eq!((said.state, said.op.as_str(), said.how), (Some(State::Stopped), "#1", "not called"));
        job.ranks[0].state = State::Running;
        job.ranks[0].comms[0].op.called = 4;
        let said = culprits(&job);
        assert_eq!((said.state, said.op.as_str(), said.how), (None, "AllReduce #5", "not called"));
    }
}
