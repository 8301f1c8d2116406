//! Verdicts on what has failed: the failure recorded its cause, and the cells hold both sides.

use super::passed::Passed;
use super::{Groups, link, named, process, verb};
use crate::diagnose::failed::calls::pair;
use crate::diagnose::standing::INIT;
use crate::diagnose::{call_name, comm_name, duration, lacked, ranks_text};
use crate::snapshot::{
    BlockedOn, Called, Class, CommSnapshot, Confidence, Culprit, Failure, OpSnapshot, OpState,
    QueuePairSnapshot, RankSnapshot, Reason, Side, Snapshot, Standing, Verdict,
};
use crate::text::harmless;
use crate::types::Rank;

/// What the reason of an abort by a watchdog begins with.
const BY_WATCHDOG: &str = "CCL_ON_STALL=abort";
/// The longest message of ranks in a sentence, in bytes.
const MAX_CAUSE: usize = 200;
/// The longest quoted message of ranks, in bytes.
const MAX_TEXT: usize = 2 << 10;
/// A process that fails this long before its last sign of life ends because of that.
const ENDING_NS: u64 = 10_000_000;
/// A process samples its shortages once a second: an older sample is of an earlier time.
const SAMPLED_NS: u64 = 2_000_000_000;
/// The most calls of a mismatch that are listed.
const MAX_CALLS: usize = 8;

/// The verdicts on the failures that follow from no other.
pub(super) fn verdicts(job: &Snapshot) -> Vec<Verdict> {
    job.failures
        .iter()
        .filter(|failure| failure.follows.is_none())
        .flat_map(|one| of_failure(job, one))
        .collect()
}

fn of_failure(job: &Snapshot, failure: &Failure) -> Vec<Verdict> {
    let mut groups = Groups::default();
    for culprit in &failure.culprits {
        let rank = process::of(job, culprit.rank);
        groups.add(what(job, failure, rank), culprit.clone());
    }
    // Blamed are also ranks that could not be read.
    let read: Vec<Rank> = failure.culprits.iter().map(|culprit| culprit.rank).collect();
    // Only where their numbers are those of the job.
    let unread = job.job_ranks(failure.comm, &failure.blamed).into_iter();
    for rank in unread.filter(|rank| !read.contains(rank) && is_of_job(job, failure)) {
        groups.add(what(job, failure, None), Culprit { rank, ..Culprit::default() });
    }
    let lacking = lacking(job, failure);
    if !lacking.0.is_empty() {
        groups = lacking;
        // The ranks that never came are a second cause.
        let missing = job.job_ranks(failure.comm, &failure.missing).into_iter();
        for rank in missing.filter(|rank| process::of(job, *rank).is_none() && is_of_job(job, failure)) {
            groups.add(what(job, failure, None), Culprit { rank, ..Culprit::default() });
        }
    }
    if groups.0.is_empty() {
        groups.0.insert(what(job, failure, None), Vec::new());
    }
    let verdicts = groups.0.into_iter().map(|(what, culprits)| verdict(job, failure, what, culprits));
    verdicts.map(|one| given_up(job, failure, &one).unwrap_or(one)).collect()
}

/// The processes that lacked something for connections, in an init that timed out: what was sampled
/// last of those that have ended, or now, if it has just timed out.
fn lacking(job: &Snapshot, failure: &Failure) -> Groups {
    let mut groups = Groups::default();
    let is_in = |rank: &&RankSnapshot| {
        let is_of_then = rank.is_gone() || failure.since_ns < SAMPLED_NS;
        is_of_then && rank.comms.iter().any(|row| row.id == failure.comm && row.has_failed())
    };
    let has_timed_out = failure.op == INIT && failure.error == "Timeout";
    for rank in job.ranks.iter().filter(is_in).filter(|_| has_timed_out) {
        if let Some(reason) = process::lacks(rank) {
            groups.add((Class::StuckLocal, reason), process::culprit(rank));
        }
    }
    groups
}

/// Whether the ranks of the communicator that failed are those of the job.
fn is_of_job(job: &Snapshot, failure: &Failure) -> bool {
    let rows = job.ranks.iter().flat_map(|rank| &rank.comms).filter(|row| row.id == failure.comm);
    job.has_ranks(failure.comm, rows.map(|row| row.nranks).max().unwrap_or(0))
}

/// Ranks of the communicator that failed: as those of the job, or where these cannot be told, by
/// their own numbers.
fn ranks_of(job: &Snapshot, failure: &Failure, ranks: &[Rank]) -> String {
    match is_of_job(job, failure) {
        true => ranks_text(&job.job_ranks(failure.comm, ranks)),
        false => format!("{} of {}", ranks_text(ranks), comm_name(&failure.name, failure.comm)),
    }
}

/// Where a watchdog gave an operation up, what it had told: that is the cause.
fn given_up(job: &Snapshot, failure: &Failure, verdict: &Verdict) -> Option<Verdict> {
    let [gave_up] = verdict.culprits.as_slice() else { return None };
    let told = process::of(job, gave_up.rank)?.facts.stall.as_ref()?;
    let is_it = verdict.class == Class::Aborted && failure.text.contains(BY_WATCHDOG);
    if !is_it || told.standing != Standing::Stalled {
        return None;
    }
    let accused = job.ranks.iter().filter(|rank| super::key_of([rank.rank]) == told.key);
    let culprits: Vec<Culprit> = accused.map(process::culprit).collect();
    let (side, confidence) = match told.class {
        Class::NotJoined | Class::Deadlock => (Side::Application, Confidence::Certain),
        Class::Link => (Side::Network, Confidence::Probable),
        _ => process::side(told.reason),
    };
    let text = &told.text;
    Some(Verdict {
        class: told.class,
        reason: told.reason,
        why: format!(
            "{text}; because of that the watchdog of {} gave it up ({BY_WATCHDOG})",
            ranks_text(&[gave_up.rank])
        ),
        culprits,
        side,
        confidence,
        ..verdict.clone()
    })
}

/// What a rank to blame did, or what happened to it.
fn what(job: &Snapshot, failure: &Failure, rank: Option<&RankSnapshot>) -> (Class, Reason) {
    let itself = || rank.and_then(|rank| process::condition(job, rank));
    match failure.error.as_str() {
        "Mismatch" => (Class::Mismatch, field(job, failure)),
        // No rank is to blame for a link that failed.
        "Peer" if failure.blamed.is_empty() => (Class::Link, Reason::Unreachable),
        "Peer" => (Class::PeerDead, rank.map_or(Reason::Killed, process::end)),
        "Aborted" if rank.is_some_and(|rank| process::end(rank) == Reason::Panicked) => {
            (Class::PeerDead, Reason::Panicked)
        }
        "Aborted" => (Class::Aborted, Reason::Aborts),
        "Timeout" if rank.is_none() && has_passed(job, failure) => (Class::Mismatch, Reason::Calls),
        "Timeout" => {
            let is_late = !failure.missing.is_empty() || rank.and_then(|it| late_ns(failure, it)).is_some();
            // Before its call it needs no connection.
            itself().filter(|(_, reason)| !(is_late && process::is_lack(*reason))).unwrap_or_else(|| {
                match is_late {
                    true if failure.op == INIT => (Class::NotJoined, Reason::NeverJoined),
                    true => (Class::NotJoined, Reason::UserCode),
                    false if !link::bad_pairs(job, failure.comm, failure.since_ns).is_empty() => {
                        (Class::Link, Reason::Unreachable)
                    }
                    false => (Class::StuckLocal, Reason::Inside),
                }
            })
        }
        _ if failure.op == INIT => (Class::Aborted, Reason::Aborts),
        // The machine refused a rank something.
        "System" | "Unavailable" if itself().is_none() => (Class::Aborted, Reason::Aborts),
        _ => itself().unwrap_or((Class::StuckLocal, Reason::Inside)),
    }
}

/// Whether nobody is to blame for a timeout, and it waited for a rank that had completed its call
/// and owed no message.
fn has_passed(job: &Snapshot, failure: &Failure) -> bool {
    let Failure { comm, op, seq, .. } = failure.clone();
    let one = BlockedOn { comm, op, seq, by: failure.ranks.clone(), ..BlockedOn::default() };
    failure.blamed.is_empty() && Passed::of(job, &one).is_some_and(|passed| !passed.is_owed)
}

/// How much later than others a rank came to an operation that timed out, at least; `None` if it
/// did not fail in it.
fn late_ns(failure: &Failure, rank: &RankSnapshot) -> Option<u64> {
    let row = rank.comms.iter().find(|row| row.id == failure.comm)?;
    let is_it = row.op.state == OpState::Failed && row.op.seq == failure.seq && failure.missing.is_empty();
    is_it.then(|| failure.lasted_ns.saturating_sub(row.op.lasted_ns))
}

/// The first field in which the calls of a mismatch differ.
fn field(job: &Snapshot, failure: &Failure) -> Reason {
    if failure.calls.iter().any(|called| called.call == crate::diagnose::FINISH) {
        return Reason::Finished;
    }
    if let Some([(_, one), (_, other)]) = pair(&failure.text) {
        return match () {
            () if one.count != other.count => Reason::Count,
            () if one.dtype != other.dtype => Reason::Dtype,
            () => Reason::Calls,
        };
    }
    let is_it = |row: &&CommSnapshot| row.id == failure.comm;
    let rows = || job.ranks.iter().flat_map(|rank| &rank.comms).filter(is_it);
    let op_of = |called: &Called| -> Option<&OpSnapshot> {
        let row = rows().find(|row| called.ranks.contains(&row.rank))?;
        Some(&row.op).filter(|op| op.seq == failure.seq)
    };
    let ops: Vec<&OpSnapshot> = failure.calls.iter().filter_map(op_of).collect();
    let Some((first, others)) = ops.split_first() else { return Reason::Calls };
    let differs = |is: fn(&OpSnapshot, &OpSnapshot) -> bool| others.iter().any(|other| is(first, other));
    match () {
        () if differs(|a, b| a.kind != b.kind) => Reason::Kind,
        () if differs(|a, b| a.dtype != b.dtype) => Reason::Dtype,
        () if differs(|a, b| a.op != b.op) => Reason::Operator,
        () if differs(|a, b| a.root != b.root) => Reason::Root,
        // A block is not compared with the sum of all.
        () if differs(|a, b| a.uneven != b.uneven) => Reason::Calls,
        () if differs(|a, b| a.count != b.count) => Reason::Count,
        () => Reason::Calls,
    }
}

fn verdict(
    job: &Snapshot,
    failure: &Failure,
    (class, reason): (Class, Reason),
    culprits: Vec<Culprit>,
) -> Verdict {
    let comm = comm_name(&failure.name, failure.comm);
    let op = match failure.op.as_str() {
        "" => comm,
        op => format!("{} of {comm}", call_name(op, failure.seq)),
    };
    let victims: Vec<Rank> = job
        .job_ranks(failure.comm, &failure.ranks)
        .into_iter()
        .filter(|rank| !culprits.iter().any(|culprit| culprit.rank == *rank))
        .collect();
    let (side, confidence) = match class {
        Class::Mismatch if culprits.is_empty() || failure.op == INIT => {
            (Side::Application, Confidence::Probable)
        }
        Class::Aborted if matches!(failure.error.as_str(), "System" | "Unavailable") => {
            (Side::Machine, Confidence::Probable)
        }
        Class::Mismatch | Class::Aborted | Class::NotJoined => (Side::Application, Confidence::Certain),
        Class::Link => (Side::Network, Confidence::Probable),
        _ => process::side(reason),
    };
    let text = text(job, failure, (class, reason), &culprits, &op);
    let lasted = match failure.lasted_ns {
        0 => String::new(),
        ns => format!(", after {} in it", duration(ns)),
    };
    let victims_text = match victims.as_slice() {
        [] => String::new(),
        some => format!("; {op} failed on {} {}{lasted}", ranks_text(some), when(job, failure, some)),
    };
    Verdict {
        class,
        standing: Standing::Stalled,
        reason,
        comm: failure.comm,
        name: failure.name.clone(),
        op: failure.op.clone(),
        seq: failure.seq,
        since_ns: failure.since_ns,
        side,
        confidence,
        why: format!("{text}{victims_text}{}", absent(job, failure, class)),
        evidence: evidence(job, failure, &culprits),
        culprits,
        victims,
        ..Verdict::default()
    }
}

/// The sentence on the ranks that are to blame for the failure of `op`.
fn text(
    job: &Snapshot,
    failure: &Failure,
    (class, reason): (Class, Reason),
    culprits: &[Culprit],
    op: &str,
) -> String {
    let who = named(culprits);
    let has = verb(culprits.len(), "has", "have");
    match (class, culprits.is_empty()) {
        (Class::Mismatch, true) if failure.op == INIT => format!("the ranks do not fit together in {op}"),
        (Class::Mismatch, false) if failure.op == INIT => format!("{who} does not fit the others in {op}"),
        (Class::Mismatch, true) => format!("ranks called different things in {op}"),
        (Class::Mismatch, false) => format!("{who} called something else than the others in {op}"),
        (Class::Link, _) => {
            let how =
                if failure.error == "Timeout" { "carried nothing until it timed out" } else { "failed" };
            format!("{} {how}, and no process is to blame: host or network", link_of(job, failure, op))
        }
        (Class::Aborted, true) if is_refusal(failure) => format!("{op} failed: {}", cause_of(failure)),
        (Class::Aborted, false) if is_refusal(failure) => {
            format!("{who} could not complete {op}: {}", cause_of(failure))
        }
        (Class::Aborted, false) => format!("{who} gave {op} up"),
        (Class::NotJoined, true) => {
            let has = verb(failure.blamed.len(), "has", "have");
            let who = ranks_of(job, failure, &failure.blamed);
            match failure.op == INIT {
                true => format!("{who} {has} not come to its init, which timed out"),
                false => format!("{who} had not called {} when it timed out", lacked(&failure.op, op)),
            }
        }
        (Class::NotJoined, false) => {
            let late = |one: &Culprit| late_ns(failure, process::of(job, one.rank)?);
            match culprits.iter().filter_map(late).min() {
                Some(ns) => format!("{who} came to {op} at least {} after the first rank", duration(ns)),
                None if failure.op == INIT => format!("{who} {has} not come to {op}, which timed out"),
                None => format!("{who} had not called {} when it timed out", lacked(&failure.op, op)),
            }
        }
        (Class::StuckLocal, true) => {
            format!("{op} timed out: who held it up does not follow from what was read")
        }
        (Class::StuckLocal, false) if reason == Reason::Inside => {
            format!("{who} {has} not come out of {op}, which timed out on the others")
        }
        (Class::PeerDead, true) if !failure.blamed.is_empty() => {
            let (who, count) = (ranks_of(job, failure, &failure.blamed), failure.blamed.len());
            format!("{who} {}", process::ended(reason, count))
        }
        (_, true) => format!("{op} failed, and nobody says who is to blame"),
        _ => format!("{who} {}", process::ended(reason, culprits.len())),
    }
}

/// Whether something could not be done, and nobody gave it up.
fn is_refusal(failure: &Failure) -> bool {
    failure.op == INIT || matches!(failure.error.as_str(), "System" | "Unavailable")
}

/// The link of an operation that failed, and where.
fn link_of(job: &Snapshot, failure: &Failure, op: &str) -> String {
    let Some((rank, peer, pair)) = link::bad_pairs(job, failure.comm, failure.since_ns).into_iter().next()
    else {
        return format!("a link of {op}");
    };
    let [rank, peer] = [rank, peer].map(|rank| ranks_of(job, failure, &[rank]));
    let QueuePairSnapshot { device, port, peer_address, .. } = pair;
    format!("the link of {op} between {rank} ({device} port {port}) and {peer} ({peer_address})")
}

/// What made an init fail, as the ranks were told, or else the kind of error.
fn cause_of(failure: &Failure) -> std::borrow::Cow<'_, str> {
    match failure.text.as_str() {
        "" => failure.error.as_str().into(),
        text => harmless(text, MAX_CAUSE),
    }
}

/// Who had not come either to an init that failed by something else.
fn absent(job: &Snapshot, failure: &Failure, class: Class) -> String {
    match failure.missing.as_slice() {
        some if failure.op == INIT && class != Class::NotJoined && !some.is_empty() => {
            format!("; {} had not come to it", ranks_of(job, failure, some))
        }
        _ => String::new(),
    }
}

/// How long ago it failed on these ranks. The times of a process that is gone end with its last
/// sign of life.
fn when(job: &Snapshot, failure: &Failure, ranks: &[Rank]) -> String {
    let is_gone = |rank: &Rank| process::of(job, *rank).is_some_and(RankSnapshot::is_gone);
    let has_failed =
        |rank: &&RankSnapshot| rank.comms.iter().any(|row| row.id == failure.comm && row.has_failed());
    let is_over = job.ranks.iter().filter(has_failed).all(RankSnapshot::is_gone);
    let since = duration(failure.since_ns);
    match is_over && ranks.iter().all(is_gone) {
        true if failure.since_ns < ENDING_NS => "when they ended".into(),
        true => format!("{since} before their last sign of life"),
        false => format!("{since} ago"),
    }
}

/// What was seen, a line each: what each group called, what the ranks were told, the processes.
fn evidence(job: &Snapshot, failure: &Failure, culprits: &[Culprit]) -> Vec<String> {
    let called = |called: &Called| {
        format!("{} called {}", ranks_text(&job.job_ranks(failure.comm, &called.ranks)), called.call)
    };
    let mut lines: Vec<String> = failure.calls.iter().take(MAX_CALLS).map(called).collect();
    if !failure.text.is_empty() {
        // The text has the ranks of the communicator.
        let whose = match job.numbers_differ(failure.comm) {
            true => format!(", in ranks of {}", comm_name(&failure.name, failure.comm)),
            false => String::new(),
        };
        lines.push(format!("the ranks were told{whose}: {}", harmless(&failure.text, MAX_TEXT)));
    }
    let pairs = link::bad_pairs(job, failure.comm, failure.since_ns).into_iter();
    // Work that only stood is cited as a cause if no rank is to blame.
    let is_cause = failure.error == "Timeout" || failure.error == "Peer" && failure.blamed.is_empty();
    let pairs = pairs.filter(|(.., pair)| is_cause || pair.error.is_some());
    lines.extend(pairs.take(MAX_CALLS).map(|(rank, _, pair)| {
        let why = link::of_pair(pair, pair.completed_ns.unwrap_or(failure.lasted_ns));
        format!("{}: {why}", ranks_of(job, failure, &[rank]))
    }));
    let processes = culprits.iter().filter_map(|culprit| process::of(job, culprit.rank));
    lines.extend(processes.take(MAX_CALLS).flat_map(process::evidence));
    lines
}
