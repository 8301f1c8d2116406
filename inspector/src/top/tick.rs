//! One reading of a job, and what has changed since the one before. Pure.

use std::time::Duration;

use ccl::diagnose::Counted;
use ccl::snapshot::{
    BlockedOn, CommSnapshot, Failure, Missing, NotJoined, OpState, RankSnapshot, Snapshot, State, Verdict,
    Waits,
};
use ccl::types::{CommId, JobId, Rank};
use serde::Serialize;

/// The schema of [`Tick`]: a public promise, fields are added and never changed.
pub(super) const SCHEMA: &str = "ccl.top/2";

/// A job at one moment.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub(super) struct Tick {
    /// [`SCHEMA`].
    pub(super) schema: &'static str,
    /// The job.
    pub(super) job: JobId,
    /// When, in nanoseconds since 1970.
    pub(super) real_ns: u64,
    /// Whether all ranks are in `ranks`.
    pub(super) complete: bool,
    /// The verdicts, as in `ccl.snapshot/2`.
    pub(super) verdicts: Vec<Verdict>,
    /// The ranks that block others for long enough to be reported, as in `ccl.snapshot/2`.
    pub(super) blocked_on: Vec<BlockedOn>,
    /// Failures, as in `ccl.snapshot/2`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) failures: Vec<Failure>,
    /// Communicators whose init waits for ranks, as in `ccl.snapshot/2`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) not_joined: Vec<NotJoined>,
    /// The ranks.
    pub(super) ranks: Vec<Line>,
    /// The ranks that could not be read, as in `ccl.snapshot/2`.
    pub(super) missing: Vec<Missing>,
}

/// A rank at one moment: of its communicators, the one in which an operation is under way longest.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub(super) struct Line {
    /// The rank in the job.
    pub(super) rank: Rank,
    /// Its pid, as it sees it.
    pub(super) pid: u32,
    /// Its host.
    pub(super) host: String,
    /// The state of its process.
    pub(super) state: State,
    /// The communicator; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) comm: Option<CommId>,
    /// The communicator's name.
    pub(super) name: String,
    /// The phase of init that is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) phase: Option<String>,
    /// The operation under way, or else the last one.
    pub(super) op: Op,
    /// Operations that ended, per second since the tick before; null in the first.
    pub(super) ops_per_s: Option<f64>,
    /// Bytes that its links moved, both ways, per second since the tick before; null in the first.
    pub(super) bytes_per_s: Option<f64>,
    /// The longest wait of its links; absent if none waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waits: Option<LongestWait>,
}

/// An operation.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub(super) struct Op {
    /// `AllReduce`, `split()`, ...; empty if there was none.
    pub(super) kind: String,
    /// The number of the call.
    pub(super) seq: u64,
    /// Its state.
    pub(super) state: OpState,
    /// Running: how long since it began. Idle and failed: how long since it ended.
    pub(super) age_ns: u64,
    /// The user's label for where the program is.
    pub(super) tag: String,
}

/// The link of a rank that has waited longest.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub(super) struct LongestWait {
    /// The rank it waits for, in its communicator.
    pub(super) waits_for: Option<Rank>,
    /// The reason.
    pub(super) why: Waits,
    /// How long it has waited.
    pub(super) since_ns: u64,
}

impl Tick {
    /// A snapshot as a tick; `before` has the counters of the tick before, and the time since then.
    pub(super) fn new(job: &Snapshot, counted: &Counted, before: Option<(&Counted, Duration)>) -> Self {
        let line = |rank: &RankSnapshot| {
            let rate = before.and_then(|(before, passed)| counted.of_rank(before, passed, rank.rank));
            Line {
                rank: rank.rank,
                pid: rank.pid,
                host: rank.host.clone(),
                state: rank.state,
                ops_per_s: rate.map(|rate| rate.ops_per_s),
                bytes_per_s: rate.map(|rate| rate.bytes_per_s),
                ..shown(rank).map(about).unwrap_or_default()
            }
        };
        Self {
            schema: SCHEMA,
            job: job.job,
            real_ns: job.to_real_ns,
            complete: job.complete,
            verdicts: job.verdicts.clone(),
            ranks: job.ranks.iter().map(line).collect(),
            blocked_on: job.said().cloned().collect(),
            failures: job.failures.clone(),
            not_joined: job.not_joined.clone(),
            missing: job.missing.clone(),
        }
    }
}

/// The communicator that matters most.
///
/// One that failed, else the one inside which the rank has been longest, else the one it used last.
fn shown(rank: &RankSnapshot) -> Option<&CommSnapshot> {
    let weight = |comm: &&CommSnapshot| {
        let op = comm.operation();
        match op.state {
            OpState::Failed => (3, op.age_ns),
            OpState::Running => (2, op.age_ns),
            OpState::Idle if op.kind.is_empty() => (0, 0),
            OpState::Idle | OpState::Unknown => (1, u64::MAX - op.age_ns),
        }
    };
    rank.comms.iter().filter(|comm| !comm.ended || comm.op.state == OpState::Failed).max_by_key(weight)
}

fn about(comm: &CommSnapshot) -> Line {
    let op = comm.operation();
    Line {
        comm: Some(comm.id),
        name: comm.name.clone(),
        phase: comm.phase.as_ref().map(|phase| phase.phase.clone()),
        op: Op {
            kind: op.kind.clone(),
            seq: op.seq,
            state: op.state,
            age_ns: comm.phase.as_ref().map_or(op.age_ns, |phase| phase.duration_ns),
            tag: comm.op.tag.clone(),
        },
        waits: comm.longest_wait().map(|link| LongestWait {
            waits_for: link.waits_for.or(link.peer),
            why: link.waits,
            since_ns: link.since_ns,
        }),
        ..Line::default()
    }
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::{LinkSnapshot, OpSnapshot};

    use super::*;

    fn comm(id: u64, state: OpState, age_ns: u64, completed: u64, bytes: u64) -> CommSnapshot {
        let link = LinkSnapshot { bytes, ..LinkSnapshot::default() };
        let op = OpSnapshot { kind: "AllReduce".into(), state, age_ns, completed, ..OpSnapshot::default() };
        CommSnapshot { id: CommId(id), op, links: vec![link], ..CommSnapshot::default() }
    }

    fn job(comms: Vec<CommSnapshot>) -> Snapshot {
        let rank = RankSnapshot { comms, ..RankSnapshot::default() };
        Snapshot { ranks: vec![rank], ..Snapshot::default() }
    }

    fn line(job: &Snapshot, before: Option<&Snapshot>) -> Line {
        let counted = before.map(Counted::of);
        let before = counted.as_ref().map(|counted| (counted, Duration::from_millis(500)));
        Tick::new(job, &Counted::of(job), before).ranks.remove(0)
    }

    #[test]
    fn rates_count_what_came_since_the_tick_before() {
        let at = |completed, bytes| job(vec![comm(1, OpState::Idle, 0, completed, bytes)]);
        let rates = |before: Option<&Snapshot>| {
            let line = line(&at(15, 3000), before);
            (line.ops_per_s, line.bytes_per_s)
        };
        assert_eq!(rates(None), (None, None));
        assert_eq!(rates(Some(&at(10, 1000))), (Some(10.0), Some(4000.0)));
    }

    #[test]
    fn the_communicator_in_which_the_rank_is_longest_is_shown() {
        let check = |comms: &[(OpState, u64)], expect: Option<u64>| {
            let comms = comms.iter().zip(1..).map(|((state, age), id)| comm(id, *state, *age, 0, 0));
            assert_eq!(line(&job(comms.collect()), None).comm, expect.map(CommId));
        };
        check(&[], None);
        check(&[(OpState::Idle, 50), (OpState::Idle, 5)], Some(2));
        check(&[(OpState::Idle, 5), (OpState::Running, 7), (OpState::Running, 9)], Some(3));
        let mut unused = comm(1, OpState::Idle, 0, 0, 0);
        unused.op.kind.clear();
        assert_eq!(line(&job(vec![unused, comm(2, OpState::Idle, 50, 0, 0)]), None).comm, Some(CommId(2)));
        check(&[(OpState::Failed, 1), (OpState::Running, 7)], Some(1));
    }

    #[test]
    fn the_longest_wait_is_shown() {
        let mut one = comm(1, OpState::Running, 9, 0, 0);
        assert_eq!(line(&job(vec![one.clone()]), None).waits, None);
        for (rank, since_ns) in [(2, 30), (3, 40), (4, 20)] {
            let link = LinkSnapshot {
                waits: Waits::Peer,
                waits_for: Some(Rank(rank)),
                since_ns,
                ..LinkSnapshot::default()
            };
            one.links.push(link);
        }
        let expect = LongestWait { waits_for: Some(Rank(3)), why: Waits::Peer, since_ns: 40 };
        assert_eq!(line(&job(vec![one]), None).waits, Some(expect));
    }
}
