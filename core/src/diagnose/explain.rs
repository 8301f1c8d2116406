//! One collective on all ranks: who called it when, who waited, who ended last.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::late::{Members, members};
use super::{FINISH, call_name, comm_name, duration, is_pair, ranks_text};
use crate::snapshot::{
    Called, ClockOffset, CommSnapshot, Failure, OpSnapshot, OpState, PastOp, RankSnapshot, Snapshot,
};
use crate::types::{CommId, Rank};

/// Times of one rank closer than this are one time.
const SAME_NS: u64 = 1_000;

/// An operation, as far as the ranks that were read tell.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Explained {
    /// The communicator.
    pub comm: CommId,
    /// Its name.
    pub name: String,
    /// The number of its ranks.
    pub nranks: u32,
    /// `AllReduce`, ...; empty if no rank tells any more.
    pub kind: String,
    /// The number of the call.
    pub seq: u64,
    /// The element type; empty if no rank tells any more, as the next ones up to `chunk_bytes`.
    pub dtype: String,
    /// How elements are combined.
    pub op: String,
    /// The root; 0 of an operation without one.
    pub root: Rank,
    /// The number of elements.
    pub count: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Whether the blocks of the ranks differ; absent if not, or if it is over.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub uneven: bool,
    /// How it is shared out: `Ring`, `Direct`, ...
    pub algorithm: String,
    /// The number of its channels.
    pub channels: u16,
    /// The most bytes of a message.
    pub chunk_bytes: u32,
    /// If ranks called different things under that number: each call and its ranks, which are those
    /// of the communicator; the largest group first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Called>,
    /// The user's note on where the program is, if it is the last operation of a rank.
    pub tag: String,
    /// The ranks that were read, in order.
    pub ranks: Vec<ExplainedRank>,
    /// The ranks of the communicator that were not read.
    pub unseen: Vec<Rank>,
    /// The path that decided how long it took, in a sentence.
    pub path: String,
}

/// The operation on one rank. Times count from the first call of all ranks.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainedRank {
    /// The rank in the communicator.
    pub rank: Rank,
    /// The rank in the job.
    pub job_rank: Rank,
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// Its host.
    pub host: String,
    /// How far the rank is.
    pub stage: Stage,
    /// When it called; absent if that is not recorded, as the next ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub called_ns: Option<u64>,
    /// When the operation got under way: at once, or when the one before had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began_ns: Option<u64>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ns: Option<u64>,
    /// For how long it waited for other ranks; of one under way, its present wait, and of one that
    /// failed, the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ns: Option<u64>,
    /// The rank of the communicator that it waits for, or waited for when it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Rank>,
    /// The rank of the job that it waits for, or waited for when it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for_job_rank: Option<Rank>,
}

/// How far a rank is with an operation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It has not called it.
    Uncalled,
    /// It has called it, and an earlier one is under way.
    Queued,
    /// It is inside.
    Inside,
    /// It has ended it.
    Ended,
    /// It failed in it.
    Failed,
    /// It has ended it so long ago that its times are not kept.
    Forgotten,
    /// A stage that this version does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The text of a stage.
impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Uncalled => "not called",
            Self::Queued => "queued",
            Self::Inside => "inside",
            Self::Ended => "ended",
            Self::Failed => "failed",
            Self::Forgotten => "forgotten",
            Self::Unknown => "unknown",
        })
    }
}

/// Explains an operation of one of these communicators, of all if `among` is `None`.
///
/// It is the one of this number; without a number the one under way, else the last one that all
/// ranks kept. `clock` is as for [`lateness`](super::lateness). `None` if no collective was called.
#[must_use]
pub fn explain(
    job: &Snapshot,
    among: Option<&BTreeSet<CommId>>,
    seq: Option<u64>,
    clock: impl Fn(&RankSnapshot) -> Option<ClockOffset>,
) -> Option<Explained> {
    let mut comms = members(job);
    comms.retain(|id, members| {
        among.is_none_or(|among| among.contains(id)) && members.values().any(|(_, comm)| comm.op.called > 0)
    });
    let first = job.foremost_comm();
    // One that holds the job up, else one under way, else the largest.
    let (id, members) = comms.into_iter().max_by_key(|(id, members)| {
        let is_under_way = members.values().any(|(_, comm)| comm.op.state == OpState::Running);
        let of_one = members.values().next();
        let is_first = of_one.map(|(rank, _)| std::cmp::Reverse(rank.rank));
        let is_sound = !members.values().any(|(_, comm)| comm.has_failed());
        (first == Some(*id), is_under_way, is_sound, members.len(), is_first)
    })?;
    let of_failure = || job.failures.iter().find(|failure| failure.comm == id && is_collective(failure));
    let seq = seq.or_else(|| Some(of_failure()?.seq)).unwrap_or_else(|| shown(&members));
    Some(of_members(job, &members, seq, &clock))
}

/// Whether a collective failed.
fn is_collective(failure: &Failure) -> bool {
    failure.seq > 0 && !is_pair(&failure.op)
}

/// The number of the operation that is shown if none is asked for, and no failure stands.
fn shown(members: &Members<'_>) -> u64 {
    let rows = || members.values().map(|(_, comm)| comm);
    let failed = rows().filter(|comm| comm.op.state == OpState::Failed).map(|comm| comm.op.seq).min();
    let running = rows().filter(|comm| comm.op.state == OpState::Running).map(|comm| comm.op.seq).min();
    let kept = |seq: u64| rows().all(|comm| past(comm, seq).is_some());
    let last = || rows().flat_map(|comm| &comm.history.ops).map(|op| op.seq).filter(|seq| kept(*seq)).max();
    let any = || rows().map(|comm| comm.op.completed).max();
    failed.or(running).or_else(last).or_else(any).unwrap_or(0)
}

fn past(comm: &CommSnapshot, seq: u64) -> Option<&PastOp> {
    let at = comm.history.ops.binary_search_by_key(&seq, |op| op.seq).ok()?;
    comm.history.ops.get(at)
}

fn of_members(
    job: &Snapshot,
    members: &Members<'_>,
    seq: u64,
    clock: &impl Fn(&RankSnapshot) -> Option<ClockOffset>,
) -> Explained {
    let Some((_, first)) = members.values().next() else { return Explained::default() };
    let nranks = first.nranks;
    let mut told = Explained {
        comm: first.id,
        name: comm_name(&first.name, first.id),
        nranks,
        seq,
        unseen: (0..nranks.min(1 << 16)).map(Rank).filter(|rank| !members.contains_key(rank)).collect(),
        ..Explained::default()
    };
    let mut failed = job.failures.iter().filter(|failure| (failure.comm, failure.seq) == (first.id, seq));
    let calls = failed.find(|failure| is_collective(failure)).map(|failure| failure.calls.clone());
    told.calls = calls.unwrap_or_default();
    // Of several calls that of the largest group; of `finish()` nothing can be described.
    let most = told.calls.iter().find(|called| called.call != FINISH).cloned();
    let is_meant = |comm: &CommSnapshot| most.as_ref().is_some_and(|most| most.ranks.contains(&comm.rank));
    let is_it = |comm: &CommSnapshot| comm.op.seq == seq && !comm.op.kind.is_empty();
    let mut those = members.values().filter(|(_, comm)| is_it(comm));
    let last = members.values().map(|(_, comm)| comm.op.called).max().unwrap_or(0);
    match (those.clone().find(|(_, comm)| is_meant(comm)).or_else(|| those.next()), &most) {
        // Those who called something else say nothing of what most called and have gone on from.
        (Some((_, comm)), Some(most)) if !is_meant(comm) => {
            told.kind = most.call.split_whitespace().next().unwrap_or_default().into();
        }
        (Some((_, comm)), _) => told.describe(comm),
        (None, _) if last < seq => {}
        (None, _) => {
            // What has only made calls of one kind has made that call too.
            let kinds = members.values().flat_map(|(_, comm)| &comm.history.kinds);
            let is_collective = |kind: &&str| !is_pair(kind);
            let kinds: BTreeSet<&str> = kinds.map(|kind| kind.kind.as_str()).filter(is_collective).collect();
            if let [kind] = kinds.into_iter().collect::<Vec<_>>()[..] {
                told.kind = kind.into();
            }
        }
    }
    told.ranks = members.values().map(|(rank, comm)| of_rank(job, rank, comm, seq, clock)).collect();
    let times = told.ranks.iter().filter_map(|rank| rank.called_ns.or(rank.began_ns));
    let first_ns = times.min().unwrap_or(0);
    for rank in &mut told.ranks {
        for time in [&mut rank.called_ns, &mut rank.began_ns, &mut rank.ended_ns].into_iter().flatten() {
            *time = time.saturating_sub(first_ns);
        }
    }
    told.path = if last < seq { told.uncalled(last) } else { told.path() };
    told
}

/// The operation on one rank, with times of the common clock.
fn of_rank(
    job: &Snapshot,
    rank: &RankSnapshot,
    comm: &CommSnapshot,
    seq: u64,
    clock: &impl Fn(&RankSnapshot) -> Option<ClockOffset>,
) -> ExplainedRank {
    let op = &comm.op;
    let mut told = ExplainedRank {
        rank: comm.rank,
        job_rank: rank.rank,
        pid: rank.pid,
        host: rank.host.clone(),
        ..ExplainedRank::default()
    };
    let before = past(comm, seq.saturating_sub(1)).filter(|before| before.seq != seq).map(|op| op.ended_ns);
    let is_here = op.seq == seq;
    told.stage = match op.state {
        OpState::Failed if is_here => Stage::Failed,
        OpState::Running if is_here => Stage::Inside,
        _ if past(comm, seq).is_some() => Stage::Ended,
        _ if op.completed >= seq => Stage::Forgotten,
        _ if op.called >= seq => Stage::Queued,
        _ => Stage::Uncalled,
    };
    match (told.stage, past(comm, seq)) {
        (Stage::Ended, Some(op)) => {
            told.called_ns = Some(op.called_ns);
            told.began_ns = Some(op.called_ns.max(before.unwrap_or(0)));
            told.ended_ns = Some(op.ended_ns);
            told.waited_ns = Some(op.waited_ns);
        }
        (Stage::Inside | Stage::Failed, _) => {
            let then = rank.to_mono_ns.saturating_sub(op.age_ns);
            let began = if told.stage == Stage::Failed { then.saturating_sub(op.lasted_ns) } else { then };
            let is_known = rank.to_mono_ns != 0;
            told.began_ns = is_known.then_some(began);
            // Behind another one it was called before it was under way.
            let waited_in_line = before.is_some_and(|ended| began <= ended.saturating_add(SAME_NS));
            told.called_ns = told.began_ns.filter(|_| !waited_in_line);
            told.ended_ns = (is_known && told.stage == Stage::Failed).then_some(then);
            if let Some(wait) = &op.wait {
                // The wait of one that failed ended then.
                let since_then = if told.stage == Stage::Failed { op.age_ns } else { 0 };
                told.waited_ns = Some(wait.since_ns.saturating_sub(since_then));
                told.waits_for = Some(wait.peer);
                told.waits_for_job_rank = Some(job.job_rank(comm.id, wait.peer));
            }
        }
        _ => {}
    }
    let offset = clock(rank);
    for time in [&mut told.called_ns, &mut told.began_ns, &mut told.ended_ns] {
        *time =
            time.zip(offset).map(|(ns, offset)| ns.saturating_add_signed(offset.offset_ns.saturating_neg()));
    }
    told
}

impl Explained {
    /// Says what was called, as the cell of a rank does.
    fn describe(&mut self, comm: &CommSnapshot) {
        let OpSnapshot { kind, dtype, op, root, algorithm, channels, chunk_bytes, tag, .. } = comm.op.clone();
        (self.kind, self.dtype, self.op, self.root) = (kind, dtype, op, root);
        (self.count, self.bytes, self.uneven) = (comm.op.count, comm.op.bytes, comm.op.uneven);
        // The program has set its tag anew since it came out, or has called more.
        let is_in = comm.op.state != OpState::Idle && comm.op.called <= comm.op.seq;
        self.tag = if is_in { tag } else { String::new() };
        (self.algorithm, self.channels, self.chunk_bytes) = (algorithm, channels, chunk_bytes);
    }

    /// Its name: `AllReduce #5`.
    #[must_use]
    pub fn call(&self) -> String {
        if self.kind.is_empty() {
            format!("operation #{}", self.seq)
        } else {
            call_name(&self.kind, self.seq)
        }
    }

    /// The ranks of the job at this stage.
    fn at(&self, stage: Stage) -> Vec<Rank> {
        let mut ranks: Vec<Rank> =
            self.ranks.iter().filter(|rank| rank.stage == stage).map(|rank| rank.job_rank).collect();
        ranks.sort_unstable();
        ranks
    }

    /// Nobody has called it: what was called last.
    fn uncalled(&self, last: u64) -> String {
        let nobody = if self.unseen.is_empty() { "no rank" } else { "no rank that was read" };
        match last {
            0 => format!("{nobody} has called anything there"),
            _ => format!("{nobody} has called it: the last one is #{last}"),
        }
    }

    /// The critical path.
    fn path(&self) -> String {
        let mut parts = Vec::new();
        if self.calls.len() > 1 {
            parts.push("the ranks called different things".into());
        }
        let arrived = |rank: &&ExplainedRank| rank.called_ns.or(rank.began_ns);
        let called = || self.ranks.iter().filter(|rank| arrived(rank).is_some());
        let absent = self.at(Stage::Uncalled);
        if let (true, Some(last)) = (absent.is_empty(), called().max_by_key(arrived)) {
            let first = called().min_by_key(arrived).unwrap_or(last);
            let later = arrived(&last).unwrap_or(0);
            let who = format!("rank {}", last.job_rank);
            match first.job_rank == last.job_rank {
                true => parts.push(format!("{who} called it")),
                false if later < SAME_NS => {}
                false => {
                    let first = first.job_rank;
                    parts.push(format!("{who} called last, {} after rank {first}", duration(later)));
                }
            }
        }
        let ended = || self.ranks.iter().filter(|rank| rank.stage == Stage::Ended && rank.ended_ns.is_some());
        let all = ended().count();
        if all > 1 {
            let mut waits: Vec<u64> = ended().filter_map(|rank| rank.waited_ns).collect();
            waits.sort_unstable();
            if let (Some(shortest), Some(longest)) = (waits.first(), waits.last()) {
                parts.push(format!("the ranks waited for {} to {}", duration(*shortest), duration(*longest)));
            }
            if let Some(last) = ended().max_by_key(|rank| rank.ended_ns) {
                let took = duration(last.ended_ns.unwrap_or(0));
                parts.push(format!("rank {} ended last, {took} after the first call", last.job_rank));
            }
        }
        let mut say = |ranks: &[Rank], one: &str, many: &str| {
            if !ranks.is_empty() {
                parts.push(format!("{} {}", ranks_text(ranks), if ranks.len() == 1 { one } else { many }));
            }
        };
        say(&absent, "has not called it", "have not called it");
        say(&self.at(Stage::Inside), "is inside", "are inside");
        say(&self.at(Stage::Queued), "has it behind an earlier one", "have it behind an earlier one");
        say(&self.at(Stage::Failed), "failed in it", "failed in it");
        let past = "ended it too long ago for its times to be kept";
        say(&self.at(Stage::Forgotten), past, past);
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::kernel_clock;
    use crate::snapshot::{Direction, History, OpWait, Waits};
    use crate::types::ChannelId;

    const MS: u64 = 1_000_000;

    /// A rank that kept operations 1 to `completed`, each called `late_ms` after a multiple of
    /// 100 ms and ended 60 ms after that multiple.
    fn rank(number: u32, completed: u64, late_ms: u64) -> RankSnapshot {
        let op = |seq: u64| PastOp {
            seq,
            called_ns: (seq * 100 + late_ms) * MS,
            waited_ns: (50 - late_ms) * MS,
            ended_ns: (seq * 100 + 60 + u64::from(number)) * MS,
            ..PastOp::default()
        };
        let seen = OpSnapshot {
            kind: "AllReduce".into(),
            algorithm: "Ring".into(),
            channels: 2,
            seq: completed,
            called: completed,
            started: completed,
            completed,
            ..OpSnapshot::default()
        };
        let comm = CommSnapshot {
            id: CommId(7),
            name: "world".into(),
            rank: Rank(number),
            nranks: 3,
            op: seen,
            history: History { ops: (1..=completed).map(op).collect(), kinds: Vec::new() },
            ..CommSnapshot::default()
        };
        let to_mono_ns = 2_000 * MS;
        RankSnapshot { rank: Rank(number), to_mono_ns, comms: vec![comm], ..RankSnapshot::default() }
    }

    fn explained(ranks: Vec<RankSnapshot>, seq: Option<u64>) -> Explained {
        let job = Snapshot { ranks, ..Snapshot::default() };
        explain(&job, None, seq, kernel_clock(&job)).unwrap()
    }

    #[test]
    fn the_last_operation_that_all_kept_has_its_critical_path() {
        let told = explained(vec![rank(0, 9, 0), rank(1, 8, 40), rank(2, 9, 1)], None);
        assert_eq!((told.seq, told.call().as_str(), told.channels), (8, "AllReduce #8", 2));
        assert_eq!(
            told.path,
            "rank 1 called last, 40.0 ms after rank 0; the ranks waited for 10.0 ms to 50.0 ms; \
             rank 2 ended last, 62.0 ms after the first call"
        );
        let one = &told.ranks[1];
        assert_eq!((one.stage, one.called_ns, one.began_ns), (Stage::Ended, Some(40 * MS), Some(40 * MS)));
        assert_eq!((one.ended_ns, one.waited_ns, one.waits_for), (Some(61 * MS), Some(10 * MS), None));
    }

    #[test]
    fn an_operation_under_way_tells_who_lacks_and_whom_each_waits_for() {
        let mut ranks = vec![rank(0, 9, 0), rank(1, 9, 0), rank(2, 9, 0)];
        for (rank, age_ms) in ranks[..2].iter_mut().zip([700, 500]) {
            let op = &mut rank.comms[0].op;
            (op.state, op.seq, op.called, op.started, op.age_ns) =
                (OpState::Running, 10, 10, 10, age_ms * MS);
            let wait = OpWait { waits: Waits::Peer, peer: Rank(2), since_ns: 400 * MS, ..OpWait::default() };
            op.wait = Some(OpWait { direction: Direction::Recv, channel: ChannelId(0), ..wait });
        }
        ranks.iter_mut().for_each(|rank| rank.comms[0].op.tag = "epoch 3".into());
        ranks[2].comms[0].op.state = OpState::Idle;
        let told = explained(ranks.clone(), None);
        assert_eq!((told.seq, told.path.as_str()), (10, "rank 2 has not called it; ranks 0-1 are inside"));
        assert_eq!(told.tag, "epoch 3");
        // Who has come out of it may have gone on in the program.
        assert_eq!(explained(ranks.clone(), Some(9)).tag, "");
        let one = &told.ranks[1];
        assert_eq!((one.stage, one.called_ns, one.waits_for), (Stage::Inside, Some(200 * MS), Some(Rank(2))));
        assert_eq!((one.waited_ns, one.ended_ns), (Some(400 * MS), None));
        assert_eq!((told.ranks[2].stage, told.ranks[2].called_ns), (Stage::Uncalled, None));
        // Rank 1 had called it before the one before ended: when is not recorded.
        ranks[1].comms[0].op.age_ns = 2_000 * MS - 961 * MS;
        let told = explained(ranks.clone(), None);
        assert_eq!((told.ranks[1].called_ns, told.ranks[1].began_ns.is_some()), (None, true));
        // It failed half a second before the reading.
        let op = &mut ranks[1].comms[0].op;
        (op.state, op.age_ns, op.lasted_ns) = (OpState::Failed, 500 * MS, 300 * MS);
        op.wait.as_mut().unwrap().since_ns = 700 * MS;
        let told = explained(ranks, None);
        let one = &told.ranks[1];
        assert_eq!((one.stage, one.ended_ns.unwrap() - one.began_ns.unwrap()), (Stage::Failed, 300 * MS));
        // It has not waited since.
        assert_eq!(one.waited_ns, Some(200 * MS));
    }

    #[test]
    fn of_a_mismatch_each_call_is_told_with_its_ranks() {
        let mut ranks = vec![rank(0, 9, 0), rank(1, 9, 0), rank(2, 9, 0)];
        for (rank, kind) in ranks.iter_mut().zip(["Reduce", "AllReduce", "AllReduce"]) {
            let op = &mut rank.comms[0].op;
            (op.state, op.seq, op.called, op.kind) = (OpState::Failed, 10, 10, kind.into());
        }
        let called = |ranks: &[u32], call: &str| Called {
            ranks: ranks.iter().copied().map(Rank).collect(),
            call: call.into(),
        };
        let calls = vec![called(&[1, 2], "AllReduce of 1 F32"), called(&[0], "Reduce of 1 F32")];
        let failure = |seq, op: &str| Failure {
            comm: CommId(7),
            seq,
            op: op.into(),
            calls: calls.clone(),
            ..Failure::default()
        };
        let mut job = Snapshot { ranks, failures: vec![failure(10, "AllReduce")], ..Snapshot::default() };
        let of = |job: &Snapshot| explain(job, None, None, kernel_clock(job)).unwrap();
        let told = of(&job);
        assert_eq!((told.seq, told.call().as_str(), &told.calls), (10, "AllReduce #10", &calls));
        assert_eq!(told.path, "the ranks called different things; ranks 0-2 failed in it");
        // They have failed in a later one than that in which they differ.
        job.failures = vec![failure(9, "AllReduce")];
        assert_eq!((of(&job).seq, of(&job).calls.len()), (9, 2));
        // The largest group has called finish(): what the other one called is described.
        let called_finish = called(&[1, 2], "finish()");
        job.failures =
            vec![Failure { calls: vec![called_finish, calls[1].clone()], ..failure(10, "Reduce") }];
        assert_eq!(of(&job).call(), "Reduce #10");
        // The largest group completed it, and has gone on since.
        job.failures = vec![failure(10, "AllReduce")];
        job.ranks[1..].iter_mut().for_each(|rank| rank.comms[0].op.seq = 11);
        assert_eq!(of(&job).call(), "AllReduce #10");
        // A send is no collective.
        job.failures = vec![failure(10, "Send")];
        assert_eq!(of(&job).calls, []);
    }

    #[test]
    fn any_number_is_explained_as_far_as_it_is_kept() {
        let mut ranks = vec![rank(0, 9, 0), rank(1, 9, 0)];
        ranks[1].comms[0].history.ops.remove(3);
        ranks[1].comms[0].op.called = 11;
        let stages = |seq: u64| {
            let told = explained(ranks.clone(), Some(seq));
            told.ranks.iter().map(|rank| rank.stage).collect::<Vec<_>>()
        };
        assert_eq!(stages(4), [Stage::Ended, Stage::Forgotten]);
        assert_eq!(stages(10), [Stage::Uncalled, Stage::Queued]);
        assert_eq!(stages(u64::MAX), [Stage::Uncalled, Stage::Uncalled]);
        let path = |seq: u64| explained(ranks.clone(), Some(seq)).path;
        assert_eq!(path(12), "no rank that was read has called it: the last one is #11");
        assert_eq!(path(4), "rank 0 called it; rank 1 ended it too long ago for its times to be kept");
        assert_eq!(stages(0), [Stage::Forgotten, Stage::Forgotten]);
        let told = explained(ranks.clone(), Some(4));
        assert_eq!(
            (told.kind.as_str(), told.call().as_str(), told.unseen),
            ("", "operation #4", vec![Rank(2)])
        );
        // Hostile times.
        for op in &mut ranks[0].comms[0].history.ops {
            (op.called_ns, op.ended_ns) = (u64::MAX, u64::MAX);
        }
        ranks[1].comms[0].op =
            OpSnapshot { seq: 9, age_ns: u64::MAX, state: OpState::Failed, ..OpSnapshot::default() };
        assert!(!explained(ranks.clone(), Some(9)).path.is_empty());
        assert!(explain(&Snapshot::default(), None, None, |_| None).is_none());
    }
}
