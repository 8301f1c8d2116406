//! Failures and the ranks to blame: considered before waits, because a failure records its cause.
//!
//! A failing rank records the operation, the kind of error, the message that all ranks share and,
//! where all agree on one, the rank to blame: the rank that died or aborted. Two kinds need a look
//! at the other ranks. The message of a *mismatch* names two sides; the cells hold what each rank
//! called under that number, `finish()` too, and those who called something else than most did are
//! to blame. Ranks that went on are counted where it follows what they called (`failed/calls.rs`).
//! For a *timeout* the ranks to blame are those that had not called the operation, are still in it
//! and have not noticed, or came to it after it had failed. Nothing is said that does not follow
//! from the snapshots.
//!
//! A program that fails in one communicator leaves all of them, and the other ranks fail in turn:
//! a failure *follows* another one if the process to blame had failed there before, or if the same
//! death is seen there. Those that follow come after those that do not. What a job has recovered
//! from is no failure of it any more (`failed/replaced.rs`).

pub(super) mod calls;
mod init;
pub(super) mod replaced;

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnose::standing::{INIT, has_called};
use crate::diagnose::{is_pair, killed};
use crate::snapshot::{
    BlockedOn, CommSnapshot, Failure, FailureSnapshot, OpSnapshot, OpState, RankSnapshot, State,
};
use crate::types::{CommId, Rank};

/// A rank that was in a failed operation for less than this part of the time of another rank came
/// after it had failed.
const PART: u64 = 20;

/// A process that lived on for this long after it failed did not fail by its end.
const LIVED_NS: u64 = 1_000_000_000;

/// The failures in these ranks of one job, the earliest first; those that follow from others last.
#[must_use]
pub fn failed(ranks: &[RankSnapshot]) -> Vec<Failure> {
    let mut comms: BTreeMap<CommId, Members<'_>> = BTreeMap::new();
    for rank in ranks {
        for comm in &rank.comms {
            let members = comms.entry(comm.id).or_default();
            // Two rows of one rank: the row that has ended is the older one.
            if members.get(&comm.rank).is_none_or(|(_, before)| before.ended && !comm.ended) {
                members.insert(comm.rank, (rank.state, comm));
            }
        }
    }
    let mut found: Vec<Failure> = comms.values().filter_map(of_comm).collect();
    let times = Times::of(ranks);
    found.sort_by_key(|one| (times.first(one.comm), one.comm));
    for at in 0..found.len() {
        found[at].follows = times.cause(&found, at);
    }
    found.sort_by_key(|one| one.follows.is_some());
    found
}

/// When each process failed in each communicator, in nanoseconds since 1970.
struct Times<'a> {
    ranks: &'a [RankSnapshot],
    /// By communicator, and the index of the process.
    of: BTreeMap<CommId, BTreeMap<usize, u64>>,
}

impl<'a> Times<'a> {
    fn of(ranks: &'a [RankSnapshot]) -> Self {
        let mut of: BTreeMap<CommId, BTreeMap<usize, u64>> = BTreeMap::new();
        for (who, rank) in ranks.iter().enumerate() {
            for comm in rank.comms.iter().filter(|comm| comm.has_failed()) {
                let at = rank.to_real_ns.saturating_sub(age_ns(comm));
                let earliest = of.entry(comm.id).or_default().entry(who).or_insert(at);
                *earliest = at.min(*earliest);
            }
        }
        Self { ranks, of }
    }

    /// When a communicator failed first.
    fn first(&self, comm: CommId) -> u64 {
        self.of.get(&comm).and_then(|times| times.values().min()).copied().unwrap_or(0)
    }

    /// The process of the one rank to blame for a failure.
    fn blamed(&self, failure: &Failure) -> Option<usize> {
        let [rank] = failure.blamed[..] else { return None };
        let is_it = |row: &CommSnapshot| (row.id, row.rank) == (failure.comm, rank);
        self.ranks.iter().position(|one| one.comms.iter().any(is_it))
    }

    /// The communicator whose failure led to this one, of failures that are sorted by time.
    fn cause(&self, found: &[Failure], at: usize) -> Option<CommId> {
        let failure = &found[at];
        if !matches!(failure.error.as_str(), "Aborted" | "Peer") {
            return None;
        }
        let who = self.blamed(failure)?;
        let failed_at = |comm: CommId| self.of.get(&comm).and_then(|times| times.get(&who)).copied();
        // It failed elsewhere before, not by its own doing.
        let before =
            found.iter().filter(|other| other.comm != failure.comm && self.blamed(other) != Some(who));
        let before = before.filter_map(|other| Some((failed_at(other.comm)?, other.comm)));
        let earliest = before.filter(|(at, _)| self.is_before(*at, who, failure.comm)).min();
        // Or its end is seen in several of its communicators.
        let same = || {
            let is_same = |other: CommId| match (failed_at(failure.comm), failed_at(other)) {
                (Some(one), Some(other)) => one.abs_diff(other) <= LIVED_NS,
                (Some(at), None) | (None, Some(at)) => !self.lived_on(who, at),
                (None, None) => true,
            };
            let same = found.iter().filter(|other| self.blamed(other) == Some(who) && is_same(other.comm));
            let first = self.missed_first(who, &same.map(|other| other.comm).collect::<Vec<_>>())?;
            (first != failure.comm).then_some(first)
        };
        earliest.map(|(_, comm)| comm).or_else(same)
    }

    /// Whether a process gave signs of life for long after this time.
    fn lived_on(&self, who: usize, at: u64) -> bool {
        self.ranks[who].to_real_ns.saturating_sub(at) > LIVED_NS
    }

    /// Whether a communicator failed later than at this time of a process. The clocks of two
    /// kernels differ: the process's own time there counts, or else the times of its kernel. If
    /// there is none, a process that is gone was lost there, and that was the last of it.
    fn is_before(&self, at: u64, who: usize, comm: CommId) -> bool {
        let Some(times) = self.of.get(&comm) else { return false };
        let kernel = killed::kernel(&self.ranks[who]);
        let near = || times.iter().filter(|(one, _)| kernel == killed::kernel(&self.ranks[**one]));
        let then = times.get(&who).copied().or_else(|| near().map(|(_, at)| *at).min());
        then.map_or_else(|| self.ranks[who].is_gone(), |then| at <= then)
    }

    /// The communicator in which a process was missed first that has ended, of those in which its
    /// end is seen: the one that it was inside of. Otherwise one in which others made a call that
    /// it had not made, and of these one that no other comes before. If there are several, the one
    /// that it used least recently, as programs use their communicators in turn.
    fn missed_first(&self, who: usize, comms: &[CommId]) -> Option<CommId> {
        let (inside, missed): (Vec<CommId>, _) =
            comms.iter().partition(|comm| self.unused_ns(who, **comm) == u64::MAX);
        let is_missed =
            |comm: &CommId| self.ranks.iter().any(|one| self.misses(one, who, *comm) == Some(true));
        let missed: Vec<CommId> = missed.into_iter().filter(is_missed).collect();
        // A rank of both that made the call of one had not come to the other.
        let comes_before = |one: CommId, other: CommId| {
            let waits = |rank| (self.misses(rank, who, one), self.misses(rank, who, other));
            self.ranks.iter().any(|rank| waits(rank) == (Some(true), Some(false)))
        };
        let first = missed.iter().filter(|comm| !missed.iter().any(|other| comes_before(*other, **comm)));
        let first: Vec<CommId> = first.copied().collect();
        let some = [inside, first, missed, comms.to_vec()].into_iter().find(|some| !some.is_empty())?;
        some.into_iter().max_by_key(|comm| self.unused_ns(who, *comm))
    }

    /// Whether a process that is in a communicator failed there in a call that `who` had not made.
    fn misses(&self, rank: &RankSnapshot, who: usize, comm: CommId) -> Option<bool> {
        let op = failed_operation(row(rank, comm)?);
        let made = row(&self.ranks[who], comm).map_or(0, CommSnapshot::last_called);
        Some(op.is_some_and(|op| is_pair(&op.kind) || op.seq > made))
    }

    /// How long a process had not used a communicator when it was last seen; the longest time if it
    /// was inside an operation of it, none if it had never used it.
    fn unused_ns(&self, who: usize, comm: CommId) -> u64 {
        let rows = self.ranks[who].comms.iter().filter(|row| row.id == comm);
        let unused = rows.map(|row| row.operation()).filter(|op| !op.kind.is_empty());
        unused.map(|op| if op.state == OpState::Idle { op.age_ns } else { u64::MAX }).max().unwrap_or(0)
    }
}

fn row(rank: &RankSnapshot, comm: CommId) -> Option<&CommSnapshot> {
    rank.comms.iter().find(|row| row.id == comm)
}

/// How long ago a communicator failed on a rank.
fn age_ns(comm: &CommSnapshot) -> u64 {
    let op = failed_operation(comm).map(|op| op.age_ns);
    op.max(comm.failure.as_ref().map(|failure| failure.age_ns)).unwrap_or(0)
}

/// Whether a waiting rank is inside an operation that may still end: a rank that failed no longer
/// waits.
#[must_use]
pub fn is_under_way(ranks: &[RankSnapshot], one: &BlockedOn) -> bool {
    let lives = ranks.iter().filter(|rank| !rank.is_gone()).flat_map(|rank| &rank.comms);
    let mut waiters = lives.filter(|comm| comm.id == one.comm && one.by.contains(&comm.rank));
    waiters.any(|comm| operations(comm).any(|op| op.state == OpState::Running))
}

type Members<'a> = BTreeMap<Rank, (State, &'a CommSnapshot)>;

pub(super) fn operations(comm: &CommSnapshot) -> impl Iterator<Item = &OpSnapshot> {
    std::iter::once(&comm.op).chain(&comm.p2p)
}

fn failed_operation(comm: &CommSnapshot) -> Option<&OpSnapshot> {
    operations(comm).filter(|op| op.state == OpState::Failed).max_by_key(|op| op.age_ns)
}

fn of_comm(members: &Members<'_>) -> Option<Failure> {
    let failed: Vec<&CommSnapshot> =
        members.values().map(|(_, comm)| *comm).filter(|comm| comm.has_failed()).collect();
    let first = failed.first()?;
    let is_init =
        init::of(&failed).next().is_some() && !failed.iter().any(|comm| failed_operation(comm).is_some());
    let cause = shared(&failed);
    let own = if is_init { init::own_cause(members, &failed, cause) } else { None };
    let cause = own.as_ref().or(cause);
    let error = cause.map(|cause| cause.error.clone());
    let operations = || failed.iter().filter_map(|comm| Some((comm.rank, failed_operation(comm)?)));
    let is_mismatch = |error: &String| error == "Mismatch";
    let errors = || error.iter().chain(operations().map(|(_, op)| &op.error).filter(|_| error.is_none()));
    let text = cause.map_or("", |cause| cause.text.as_str());
    let differs = errors().any(is_mismatch).then(|| calls::differs(members, text)).flatten();
    // The earliest: ranks that went on fail in a later one. Pairs count separately; the pair with
    // the blamed rank is preferred.
    let blamed = cause.and_then(|cause| cause.blamed);
    let first_failed = operations().map(|(_, op)| op).min_by_key(|op| {
        let is_pair = is_pair(&op.kind);
        let of_pair = is_pair && (op.peer.is_none() || op.peer != blamed);
        (is_pair, of_pair, if is_pair { 0 } else { op.seq }, std::cmp::Reverse(op.age_ns))
    });
    // Ranks that failed in an earlier operation had not reached the one in which the calls differ,
    // and those that failed in a later one have completed it.
    let operation = differs.as_ref().map_or(first_failed, |differs| Some(&differs.op));
    let collective = operation.filter(|op| !is_pair(&op.kind)).map(|op| op.seq);
    let is_in_it = |op: &OpSnapshot| collective.is_none_or(|seq| !is_pair(&op.kind) && op.seq == seq);
    let inside = || operations().filter(|(_, op)| is_in_it(op));
    let ages = failed.iter().map(|comm| age_ns(comm));
    let ranks: Vec<Rank> = inside().map(|(rank, _)| rank).collect();
    let mut failure = Failure {
        comm: first.id,
        name: first.name.clone(),
        error: error.clone().or_else(|| Some(operation?.error.clone())).unwrap_or_default(),
        op: match operation {
            Some(op) => op.kind.clone(),
            None if is_init => INIT.into(),
            None => String::new(),
        },
        seq: operation.map_or(0, |op| op.seq),
        ranks: if ranks.is_empty() { failed.iter().map(|comm| comm.rank).collect() } else { ranks },
        text: text.to_string(),
        since_ns: ages.max().unwrap_or(0),
        lasted_ns: inside().map(|(_, op)| op.lasted_ns).max().unwrap_or(0),
        calls: differs.as_ref().map_or_else(|| calls::of_pair(text), |differs| differs.calls.clone()),
        ..Failure::default()
    };
    failure.missing = if is_init { init::never_came(&failed, cause) } else { not_called(members, &failure) };
    failure.blamed = match failure.error.as_str() {
        "Mismatch" if is_init => cause.and_then(|cause| cause.blamed).into_iter().collect(),
        "Mismatch" => differs.map_or_else(Vec::new, |differs| differs.minority(members, first.nranks)),
        "Timeout" if !is_init || !failure.missing.is_empty() => timed_out(members, &failure),
        "Timeout" if cause.is_none_or(|cause| cause.blamed.is_none()) => init::stopped(members),
        "Peer" if cause.is_none_or(|cause| is_init && cause.blamed.is_none()) => lost(members),
        _ => cause.and_then(|cause| cause.blamed).into_iter().collect(),
    };
    Some(failure)
}

/// The cause that most ranks recorded, preferably one that blames a rank.
fn shared<'a>(failed: &[&'a CommSnapshot]) -> Option<&'a FailureSnapshot> {
    let causes = || failed.iter().filter_map(|comm| comm.failure.as_ref());
    let tellers = |cause: &FailureSnapshot| {
        causes().filter(|other| (&other.text, other.blamed) == (&cause.text, cause.blamed)).count()
    };
    causes().max_by_key(|cause| (cause.blamed.is_some(), tellers(cause), cause.age_ns))
}

/// The ranks that had not called the operation when it failed. A rank that learns of a failure
/// begins no more operations.
fn not_called(members: &Members<'_>, failure: &Failure) -> Vec<Rank> {
    if !is_pair(&failure.op) {
        let has_called = |rank: &Rank| failure.calls.iter().any(|called| called.ranks.contains(rank));
        let lacks = |comm: &CommSnapshot| {
            let is_before = failure.seq > 0 && comm.last_called() < failure.seq;
            is_before && !has_left(comm) && !has_called(&comm.rank)
        };
        return members.iter().filter(|(_, (_, comm))| lacks(comm)).map(|(rank, _)| *rank).collect();
    }
    let of_pair = |rank: &Rank| {
        let op = members.get(rank)?.1.p2p.as_ref().filter(|op| op.state == OpState::Failed)?;
        let peer = op.peer?;
        let (_, other) = members.get(&peer)?;
        (!has_left(other) && !has_called(other, *rank, &op.kind, op.seq)).then_some(peer)
    };
    failure.ranks.iter().filter_map(of_pair).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whether it left a communicator in good order.
fn has_left(comm: &CommSnapshot) -> bool {
    comm.ended && !comm.has_failed()
}

/// The ranks to blame for a timeout: those that had not called, else those that are still inside,
/// else those that came when it had failed.
fn timed_out(members: &Members<'_>, failure: &Failure) -> Vec<Rank> {
    let known = [failure.missing.clone(), still_inside(members, failure)];
    known.into_iter().find(|some| !some.is_empty()).unwrap_or_else(|| came_late(members, failure))
}

/// The ranks that came to a collective after it had failed on the others: they fail at once.
fn came_late(members: &Members<'_>, failure: &Failure) -> Vec<Rank> {
    let is_late = |comm: &CommSnapshot| {
        let is_it = !is_pair(&failure.op) && comm.op.state == OpState::Failed && comm.op.seq == failure.seq;
        is_it && comm.op.lasted_ns < failure.lasted_ns / PART
    };
    members.iter().filter(|(_, (_, comm))| is_late(comm)).map(|(rank, _)| *rank).collect()
}

/// The ranks that are still inside an operation that failed on others, or inside an earlier one
/// that holds it up: of several begun together, the ranks have called all. Of these, those that are
/// stopped, else those that have come least far.
fn still_inside(members: &Members<'_>, failure: &Failure) -> Vec<Rank> {
    let is_inside = |comm: &CommSnapshot| {
        !is_pair(&failure.op) && comm.op.state == OpState::Running && comm.op.seq <= failure.seq
    };
    let inside = || members.iter().filter(|(_, (_, comm))| is_inside(comm));
    let is_stopped = |state: State| state == State::Stopped;
    let some_stopped = inside().any(|(_, (state, _))| is_stopped(*state));
    let first = inside().map(|(_, (_, comm))| comm.op.seq).min();
    let holds = |(state, comm): &(State, &CommSnapshot)| match some_stopped {
        true => is_stopped(*state),
        false => Some(comm.op.seq) == first,
    };
    inside().filter(|(_, member)| holds(member)).map(|(rank, _)| *rank).collect()
}

/// If no rank is blamed for a lost peer: the ranks that are gone, did not fail and had not left.
fn lost(members: &Members<'_>) -> Vec<Rank> {
    let lost = members.iter().filter(|(_, (state, comm))| {
        state.is_gone() && !comm.ended && comm.failure.is_none() && failed_operation(comm).is_none()
    });
    lost.map(|(rank, _)| *rank).collect()
}

#[cfg(test)]
mod tests;
