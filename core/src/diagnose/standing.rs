//! The standing of a rank in a communicator: the queries that all views share.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::snapshot::{
    BlockedOn, CommSnapshot, Direction, LinkSnapshot, OpSnapshot, OpState, RankSnapshot, SetUp, Snapshot,
    State, Waits,
};
use crate::types::{ChannelId, CommId, Phase, Rank};

/// The displayed name of a communicator: its name, or its id if it has none.
#[must_use]
pub fn comm_name(name: &str, id: CommId) -> String {
    if name.is_empty() { id.to_string() } else { name.to_string() }
}

/// The displayed name of a call: `AllReduce #7`. Calls of the library that are no operations, or
/// several, have no number: `finish()`, `split()`.
#[must_use]
pub fn call_name(op: &str, seq: u64) -> String {
    if op.ends_with("()") { op.to_string() } else { format!("{op} #{seq}") }
}

/// Whether a kind of operation is a send or a receive, which two ranks carry out.
#[must_use]
pub fn is_pair(kind: &str) -> bool {
    matches!(kind, "Send" | "Recv")
}

/// The call that is missing where a rank has not joined `call` of this kind: a receive for a send,
/// a send for a receive, else `call` itself.
pub(super) fn lacked(kind: &str, call: &str) -> String {
    counterpart(kind).map_or_else(|| call.into(), |other| format!("{other} for {call}"))
}

/// What a send or receive needs at the other end; `None` for other kinds.
pub(super) fn counterpart(kind: &str) -> Option<&'static str> {
    match kind {
        "Send" => Some("Recv"),
        "Recv" => Some("Send"),
        _ => None,
    }
}

/// Whether `other` has called the counterpart of call `seq` of `rank`, a send or receive of this
/// kind. Both sides count the operations of a pair alike. The answer comes from its link or, before
/// there is one, from its operation.
pub(super) fn has_called(other: &CommSnapshot, rank: Rank, kind: &str, seq: u64) -> bool {
    let ours = if kind == "Recv" { Direction::Recv } else { Direction::Send };
    let is_its = |link: &&LinkSnapshot| {
        link.channel == ChannelId::P2P && link.peer == Some(rank) && link.direction != ours
    };
    let called =
        |its: &OpSnapshot| its.peer == Some(rank) && counterpart(kind) == Some(&its.kind) && its.seq >= seq;
    other.links.iter().filter(is_its).any(|link| link.op >= seq) || other.p2p.as_ref().is_some_and(called)
}

/// The operation of ranks that wait in `finish()`.
pub(crate) const FINISH: &str = "finish()";
/// The operation of ranks whose init failed.
pub(super) const INIT: &str = "init()";

/// Shorter waits are not reported: every healthy job is full of them, and they have no meaning.
pub const SAID_NS: u64 = 100_000_000;
/// The same if no holder is known: on a busy machine messages take long.
const UNNAMED_NS: u64 = 1_000_000_000;
/// Shorter waits are no reason for concern: they come from a checkpoint, a first contact or a busy
/// machine.
pub(super) const SUSPECT_NS: u64 = 1_000_000_000;
/// The time between two readings of a job in which something waits: longer than a message takes on
/// a busy machine, and short for someone who waits for the answer.
pub const BETWEEN: Duration = Duration::from_millis(250);
/// How many times as long as 99 of 100 operations of its kind and size class one may take before it
/// is of concern.
const MANY: u64 = 8;

/// From when on a wait is of concern in an operation of this `p99_ns`, 0 if not known; `stall_ns`
/// is `CCL_STALL_AFTER`.
pub(crate) const fn suspect_ns(p99_ns: u64, stall_ns: u64) -> u64 {
    let usual_ns = p99_ns.saturating_mul(MANY);
    let suspect_ns = if usual_ns > SUSPECT_NS { usual_ns } else { SUSPECT_NS };
    if stall_ns < suspect_ns { stall_ns } else { suspect_ns }
}

/// The meaning of a wait by its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// Healthy jobs have it, too.
    Normal,
    /// It may be a fault.
    Suspect,
    /// It is as long as `CCL_STALL_AFTER`.
    Stalled,
}

/// The meaning of a wait of this length in an operation of this `p99_ns`, 0 if not known;
/// `stall_ns` is `CCL_STALL_AFTER`.
#[must_use]
pub const fn severity(since_ns: u64, p99_ns: u64, stall_ns: u64) -> Severity {
    match since_ns {
        _ if since_ns >= stall_ns => Severity::Stalled,
        _ if since_ns >= suspect_ns(p99_ns, stall_ns) => Severity::Suspect,
        _ => Severity::Normal,
    }
}

impl BlockedOn {
    /// Whether it has lasted long enough to be reported.
    #[must_use]
    pub const fn is_long(&self) -> bool {
        let is_named = !self.missing.is_empty() || !self.inside.is_empty() || !self.unseen.is_empty();
        self.since_ns >= if is_named { SAID_NS } else { UNNAMED_NS }
    }

    /// Whether it names this rank as one that blocks the others.
    #[must_use]
    pub fn is_held_by(&self, rank: Rank) -> bool {
        self.missing.contains(&rank) || self.inside.contains(&rank)
    }
}

/// The service thread of a process gives a sign of life once a second, and so does a thread that
/// waits in a call.
const SIGN_EVERY_NS: u64 = 1_000_000_000;
/// A rank that was silent for this long while others were not fell silent before them.
pub(super) const CLEARLY_NS: u64 = SIGN_EVERY_NS + SIGN_EVERY_NS / 2;

/// If all ranks have ended, the index of the rank that fell silent clearly before the others, and
/// by how much at least. Only if all are on one host, with one clock.
pub(crate) fn silent_first(ranks: &[RankSnapshot]) -> Option<(usize, u64)> {
    let mut signs: Vec<(u64, usize)> = (0..).zip(ranks).map(|(at, rank)| (rank.to_real_ns, at)).collect();
    signs.sort_unstable();
    let [(first, at), (second, _), ..] = signs[..] else { return None };
    let apart_ns = second.saturating_sub(first);
    let is_one = ranks.iter().all(|rank| rank.is_gone() && rank.host == ranks[at].host);
    (first > 0 && is_one && apart_ns >= CLEARLY_NS).then(|| (at, apart_ns - SIGN_EVERY_NS))
}

impl Snapshot {
    /// The entries that are worth reporting: those that are long enough, or that name a holder that
    /// is gone while others live.
    pub fn said(&self) -> impl Iterator<Item = &BlockedOn> {
        let for_the_gone = |one: &BlockedOn| {
            // Few ranks are gone, and screens ask this for every rank.
            let gone = self.ranks.iter().filter(|rank| rank.is_gone());
            let mut rows = gone.flat_map(|rank| &rank.comms).filter(|row| row.id == one.comm);
            rows.any(|row| one.is_held_by(row.rank) && self.is_gone(one.comm, row.rank))
                && one.by.iter().any(|rank| !self.is_gone(one.comm, *rank))
        };
        self.blocked_on.iter().filter(move |one| one.is_long() || for_the_gone(one))
    }

    /// Whether nothing failed, and no rank has waited for long enough to be reported.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.failures.is_empty() && self.not_joined.is_empty() && self.said().next().is_none()
    }

    /// The communicator of the first thing to say of the job: a verdict, or what is none yet.
    #[must_use]
    pub fn foremost_comm(&self) -> Option<CommId> {
        let judged = self.verdicts.iter().map(|one| one.comm).find(|id| *id != CommId::default());
        let failed = || self.failures.first().filter(|_| !self.ended_waiting()).map(|one| one.comm);
        let joining = || self.not_joined.first().map(|one| one.comm);
        judged.or_else(failed).or_else(joining).or_else(|| self.said().next().map(|one| one.comm))
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

    /// Whether the processes of all ranks that were read are stopped.
    #[must_use]
    pub fn is_all_stopped(&self) -> bool {
        !self.ranks.is_empty() && self.ranks.iter().all(|rank| rank.state == State::Stopped)
    }

    /// Whether ranks were read and their processes have all ended: nothing changes any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.ranks.is_empty() && self.ranks.iter().all(RankSnapshot::is_gone)
    }

    /// The time from the last sign of life of a rank that is gone, from which its ages count, to
    /// the reading of the others of its kernel; 0 if it lives, or if none of these does: in files
    /// nothing is later.
    #[must_use]
    pub fn since_gone_ns(&self, rank: &RankSnapshot) -> u64 {
        let is_timed = |one: &RankSnapshot| one.to_mono_ns != 0 && !one.boot_id.is_empty();
        let lives = |other: &&RankSnapshot| !other.is_gone() && other.boot_id == rank.boot_id;
        let living = self.ranks.iter().filter(lives).filter(|other| is_timed(other));
        let now_ns = living.map(|other| other.to_mono_ns).max().filter(|_| rank.is_gone() && is_timed(rank));
        now_ns.map_or(0, |now_ns| now_ns.saturating_sub(rank.to_mono_ns))
    }

    /// Whether that rank of a communicator is to blame for a failure that followed no other.
    #[must_use]
    pub fn is_blamed(&self, comm: CommId, rank: Rank) -> bool {
        let mut causes = self.failures.iter().filter(|failure| failure.follows.is_none());
        causes.any(|failure| failure.comm == comm && failure.blamed.contains(&rank))
    }

    /// Whether that rank of a communicator blocks others, or is to blame for a failure.
    #[must_use]
    pub fn blocks_others(&self, comm: CommId, rank: Rank) -> bool {
        self.said().any(|one| one.comm == comm && one.is_held_by(rank)) || self.is_blamed(comm, rank)
    }

    /// Whether the process of that rank of a communicator was read, and has ended or left.
    #[must_use]
    pub fn is_gone(&self, comm: CommId, rank: Rank) -> bool {
        self.state_of(comm, rank).is_some_and(State::is_gone)
    }

    /// These ranks of a communicator as ranks of the job, in order. A rank that was not read keeps
    /// its number in the communicator.
    #[must_use]
    pub fn job_ranks(&self, comm: CommId, ranks: &[Rank]) -> Vec<Rank> {
        let rows = self.ranks.iter().flat_map(|one| one.comms.iter().map(move |row| (row, one.rank)));
        let of: BTreeMap<Rank, Rank> =
            rows.filter(|(row, _)| row.id == comm).map(|(row, rank)| (row.rank, rank)).collect();
        let mut found: Vec<Rank> = ranks.iter().map(|rank| of.get(rank).copied().unwrap_or(*rank)).collect();
        found.sort_unstable();
        found
    }

    /// Whether the ranks of a communicator of this size are those of the job, as far as is known.
    pub(super) fn has_ranks(&self, comm: CommId, nranks: u32) -> bool {
        nranks as usize >= self.ranks.len() + self.missing.len() && !self.numbers_differ(comm)
    }

    /// Whether a rank that was read has another number in that communicator than in the job.
    pub(super) fn numbers_differ(&self, comm: CommId) -> bool {
        let differs =
            |rank: &RankSnapshot| rank.comms.iter().any(|row| row.id == comm && row.rank != rank.rank);
        self.ranks.iter().any(differs)
    }

    /// The ranks of the job that are in a communicator and were read.
    #[must_use]
    pub fn ranks_of(&self, comm: CommId) -> Vec<Rank> {
        let is_in = |rank: &&RankSnapshot| rank.comms.iter().any(|row| row.id == comm);
        self.ranks.iter().filter(is_in).map(|rank| rank.rank).collect()
    }

    /// That rank of a communicator as a rank of the job.
    #[must_use]
    pub fn job_rank(&self, comm: CommId, rank: Rank) -> Rank {
        self.job_ranks(comm, &[rank])[0]
    }

    /// The state of the process of that rank of a communicator; `None` if it was not read.
    pub(crate) fn state_of(&self, comm: CommId, rank: Rank) -> Option<State> {
        let is_it = |row: &CommSnapshot| (row.id, row.rank) == (comm, rank);
        self.ranks.iter().find(|one| one.comms.iter().any(is_it)).map(|one| one.state)
    }
}

impl State {
    /// Whether its process no longer takes part in the job: it has ended, or left.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        matches!(self, Self::Dead | Self::Exited | Self::Left)
    }
}

impl RankSnapshot {
    /// Whether its process no longer takes part in the job: it has ended, or left.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.state.is_gone()
    }

    /// Whether its process was seen alive after it left, which is normal.
    #[must_use]
    pub const fn lives_on(&self) -> bool {
        matches!((self.state, self.letter), (State::Left, Some(_)))
    }

    /// Whether one of its operations or communicators failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.comms.iter().any(CommSnapshot::has_failed)
    }
}

impl CommSnapshot {
    /// Whether it has ended by a failure, or an operation of it failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failure.is_some() || self.has_failed_operation()
    }

    fn has_failed_operation(&self) -> bool {
        let mut operations = std::iter::once(&self.op).chain(&self.p2p);
        operations.any(|op| op.state == OpState::Failed)
    }

    /// The operation to show.
    ///
    /// It is the collective, or the send or receive if only that is under way or failed, or if
    /// there was no collective.
    #[must_use]
    pub fn operation(&self) -> &OpSnapshot {
        let is_told = |p2p: &&OpSnapshot| p2p.state != OpState::Idle || self.op.kind.is_empty();
        let pair = self.p2p.as_ref().filter(|p2p| self.op.state == OpState::Idle && is_told(p2p));
        pair.unwrap_or(&self.op)
    }

    /// The phase or the operation that its rank is in, or was in last: `in init: CheckIn`,
    /// `in finish()`, `AllReduce #5`; `-` if nothing was called.
    #[must_use]
    pub fn activity(&self) -> String {
        let op = self.operation();
        match (op.kind.as_str(), &self.phase) {
            (_, Some(_)) if self.finishes() => format!("in {FINISH}"),
            (_, Some(phase)) => format!("in init: {}", phase.phase),
            ("", None) => "-".into(),
            (kind, None) => call_name(kind, op.seq),
        }
    }

    /// How long it has been in its phase or in the operation to show, or since that ended.
    ///
    /// `None` if nothing was called.
    #[must_use]
    pub fn standing_ns(&self) -> Option<u64> {
        let op = self.operation();
        let of_op = Some(op.age_ns).filter(|_| !op.kind.is_empty());
        self.phase.as_ref().map(|phase| phase.duration_ns).or(of_op)
    }

    /// The number of the last collective that it called.
    #[must_use]
    pub fn last_called(&self) -> u64 {
        self.op.called.max(if self.op.state == OpState::Idle { 0 } else { self.op.seq })
    }

    /// Whether it waits in `finish()` for the others.
    #[must_use]
    pub fn finishes(&self) -> bool {
        self.phase.as_ref().is_some_and(|phase| phase.phase == Phase::Finish.name())
    }

    /// The `p99_ns` of the operation that uses this channel.
    #[must_use]
    pub fn p99_ns(&self, channel: ChannelId) -> u64 {
        let pair = self.p2p.as_ref().filter(|_| channel == ChannelId::P2P);
        pair.unwrap_or(&self.op).p99_ns
    }

    /// The link that has waited longest; `None` if none waits.
    #[must_use]
    pub fn longest_wait(&self) -> Option<&LinkSnapshot> {
        self.links.iter().filter(|link| link.is_waiting()).max_by_key(|link| link.since_ns)
    }

    /// How long it has waited, if that is long enough to be reported, and for which rank, if it is
    /// for one.
    ///
    /// The operation decides first: it may wait before a link exists.
    #[must_use]
    pub fn long_wait(&self) -> Option<(u64, Option<Rank>)> {
        let of_operation = self.operation().wait.as_ref().filter(|wait| wait.since_ns >= SAID_NS);
        let on = |waits: Waits, peer: Option<Rank>| peer.filter(|_| waits.is_for_rank());
        of_operation.map(|wait| (wait.since_ns, on(wait.waits, Some(wait.peer)))).or_else(|| {
            let link = self.longest_wait()?;
            Some((link.long_wait_ns()?, on(link.waits, link.waits_for.or(link.peer))))
        })
    }
}

impl LinkSnapshot {
    /// Whether its driver waits.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        !matches!(self.waits, Waits::Nothing | Waits::Unknown)
    }

    /// How long its driver has waited, if the wait is long enough to be reported.
    #[must_use]
    pub fn long_wait_ns(&self) -> Option<u64> {
        Some(self.since_ns).filter(|since_ns| self.is_waiting() && *since_ns >= SAID_NS)
    }

    /// How far its set-up is, while it is not up.
    #[must_use]
    pub fn sets_up(&self) -> Option<SetUp> {
        self.set_up.filter(|state| *state != SetUp::Connected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Failure, NotJoined, Verdict};

    #[test]
    fn a_wait_is_suspect_by_what_such_operations_take() {
        const S: u64 = 1_000_000_000;
        let check = |p99_ns: u64, stall_ns: u64, from_ns: u64| {
            assert_eq!(suspect_ns(p99_ns, stall_ns), from_ns, "{p99_ns} {stall_ns}");
            assert_eq!(severity(from_ns - 1, p99_ns, stall_ns), Severity::Normal);
            let is = if from_ns == stall_ns { Severity::Stalled } else { Severity::Suspect };
            assert_eq!(severity(from_ns, p99_ns, stall_ns), is);
            assert_eq!(severity(stall_ns, p99_ns, stall_ns), Severity::Stalled);
        };
        check(0, 30 * S, S);
        check(S / 8, 30 * S, S);
        check(S / 4, 30 * S, 2 * S);
        check(3 * S, 30 * S, 24 * S);
        check(4 * S, 30 * S, 30 * S);
        check(u64::MAX, 30 * S, 30 * S);
        check(0, S / 2, S / 2);
        check(3 * S, S / 2, S / 2);
    }

    #[test]
    fn the_foremost_communicator_is_that_of_a_verdict_and_before_there_is_one_that_of_what_is_wrong() {
        let wait = |since_ns| BlockedOn {
            comm: CommId(1),
            missing: vec![Rank(2)],
            since_ns,
            ..BlockedOn::default()
        };
        let said = |job: &Snapshot| (job.is_calm(), job.foremost_comm().map(|id| id.0));
        let mut job = Snapshot { blocked_on: vec![wait(1)], ..Snapshot::default() };
        assert_eq!(said(&job), (true, None), "a short wait");
        job.blocked_on.push(wait(SAID_NS));
        assert_eq!(said(&job), (false, Some(1)));
        job.not_joined = vec![NotJoined { comm: CommId(2), ..NotJoined::default() }];
        assert_eq!(said(&job), (false, Some(2)));
        job.not_joined.clear();
        let follows = Some(CommId(1));
        job.failures = vec![Failure { comm: CommId(3), follows, ..Failure::default() }];
        assert_eq!(said(&job), (false, Some(1)), "they were ended while they waited");
        job.failures[0].follows = None;
        assert_eq!(said(&job), (false, Some(3)));
        job.verdicts = [0, 4].map(|id| Verdict { comm: CommId(id), ..Verdict::default() }).into();
        assert_eq!(said(&job), (false, Some(4)));
    }
}
