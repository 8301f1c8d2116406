//! Verdicts on what waits: the ranks that block others.

use std::collections::BTreeSet;

use super::circle::Circle;
use super::link::{self, Bad};
use super::passed::Passed;
use super::sentence::told;
use super::{Groups, passed, process, verb};
use crate::diagnose::failed::operations;
use crate::diagnose::lacking::Lacking;
use crate::diagnose::{call_name, comm_name, duration, is_pair, lacked, ranks_text, suspect_ns};
use crate::snapshot::{
    BlockedOn, Class, CommSnapshot, Confidence, Culprit, Direction, OpSnapshot, OpState, RankSnapshot,
    Reason, Side, Snapshot, Standing, State, Verdict, Waits,
};
use crate::types::Rank;

/// The most time between two readings of one look.
const BETWEEN_NS: u64 = 500_000_000;
/// The most lines about links of a verdict.
const MAX_LINES: usize = 4;

/// The verdicts on the waits of a job.
pub(super) fn verdicts(job: &Snapshot, before: Option<&Snapshot>, stall_ns: u64) -> Vec<Verdict> {
    let judged_ns = suspect_ns(0, stall_ns);
    let circle = Circle::of(job, judged_ns);
    // A rank whose calls come and go is in no circle, though one of its threads waits in one call.
    let earlier_ns = judged_ns.saturating_sub(BETWEEN_NS);
    let is_circle = before.is_none_or(|before| Circle::of(before, earlier_ns).edges == circle.edges);
    let circle = if is_circle { circle } else { Circle::default() };
    let mut found = Vec::new();
    let is_long = |one: &&BlockedOn| one.since_ns >= judged_ns || is_for_gone(job, one);
    // Of those that were ended together, the last ones failed by the end of the first.
    let counts = |one: &&BlockedOn| !has_failed(job, one) || is_over(job, one);
    for one in job.said().filter(is_long).filter(counts) {
        let is_confirmed = is_over(job, one) || before.is_some_and(|before| lasts(before, job, one));
        let is_usual = one.since_ns < suspect_ns(one.p99_ns, stall_ns);
        for mut verdict in of_wait(job, one, &circle) {
            let is_patient = is_patient(job, one, &verdict);
            if is_usual && is_patient {
                continue;
            }
            let is_confirmed = is_confirmed && before.is_none_or(|before| is_kept(before, &verdict));
            verdict.standing = standing(&verdict, is_confirmed, is_patient, stall_ns);
            match found.iter().position(|other| is_same(other, &verdict)) {
                None => found.push(verdict),
                Some(at) => found[at] = merged(found[at].clone(), verdict),
            }
        }
    }
    found
}

/// Whether two waits lead to the same: those of a circle, those for one host that does not answer,
/// and those of a send and its receive.
fn is_same(a: &Verdict, b: &Verdict) -> bool {
    let are_within = |a: &Verdict, b: &Verdict| a.culprits.iter().all(|one| b.victims.contains(&one.rank));
    let are_ends = || is_pair(&a.op) && is_pair(&b.op) && are_within(a, b) && are_within(b, a);
    let is_it = match a.reason {
        Reason::Cycle => a.culprits == b.culprits,
        Reason::Unreachable => a.comm == b.comm && (a.culprits == b.culprits || are_ends()),
        Reason::Lossy | Reason::Throttled | Reason::Inside => a.comm == b.comm && are_ends(),
        _ => false,
    };
    is_it && (a.class, a.reason) == (b.class, b.reason)
}

/// One of two that are the same: of two ends that which waits for an answer, which tells more.
fn merged(a: Verdict, b: Verdict) -> Verdict {
    let standing = a.standing.max(b.standing);
    let (mut one, other) = if a.victims.is_empty() { (b, a) } else { (a, b) };
    if one.culprits == other.culprits {
        one.victims.extend(other.victims);
        one.victims.sort_unstable();
        one.victims.dedup();
    }
    Verdict { standing, ..one }
}

/// Whether all that are waited for have failed there: they were read later than those that wait,
/// and the failure says why.
fn has_failed(job: &Snapshot, one: &BlockedOn) -> bool {
    let has = |culprit: &Culprit| {
        let rows = process::of(job, culprit.rank).into_iter().flat_map(|rank| &rank.comms);
        rows.filter(|row| row.id == one.comm).any(CommSnapshot::has_failed)
    };
    !one.culprits.is_empty() && one.culprits.iter().all(has)
}

/// Whether somebody lives who waits for a rank that is gone.
fn is_for_gone(job: &Snapshot, one: &BlockedOn) -> bool {
    one.culprits.iter().filter_map(|culprit| process::of(job, culprit.rank)).any(RankSnapshot::is_gone)
}

/// Whether all that wait are gone: nothing changes any more.
fn is_over(job: &Snapshot, one: &BlockedOn) -> bool {
    !one.by.is_empty() && one.by.iter().all(|rank| job.is_gone(one.comm, *rank))
}

/// Whether an earlier reading shows the same wait, which has lasted since.
fn lasts(before: &Snapshot, job: &Snapshot, now: &BlockedOn) -> bool {
    let apart_ns = job.to_real_ns.abs_diff(before.to_real_ns);
    before.blocked_on.iter().any(|then| {
        let is_same = (then.comm, &then.op, then.seq) == (now.comm, &now.op, now.seq);
        let holders = |one: &BlockedOn| {
            one.missing.iter().chain(&one.inside).chain(&one.unseen).copied().collect::<BTreeSet<Rank>>()
        };
        // A wait that began anew is shorter than the time between the readings.
        is_same && holders(then) == holders(now) && now.since_ns >= apart_ns
    })
}

/// Whether the culprits were so in an earlier reading too, where one reading shows a moment only: a
/// thread that reads a file is in an uninterruptible wait now and then.
fn is_kept(before: &Snapshot, verdict: &Verdict) -> bool {
    let was = |culprit: &Culprit| {
        process::of(before, culprit.rank).is_some_and(|it| match verdict.reason {
            Reason::Uninterruptible => it.letter == Some('D'),
            _ => it.facts.lacks.is_some(),
        })
    };
    let is_momentary = verdict.reason == Reason::Uninterruptible || process::is_lack(verdict.reason);
    !is_momentary || verdict.culprits.iter().all(was)
}

/// Whether it may be no fault, but work that takes long.
fn is_patient(job: &Snapshot, one: &BlockedOn, verdict: &Verdict) -> bool {
    match verdict.reason {
        Reason::Inside | Reason::Lost => true,
        // In user code, more threads than processors, or a quota, may be meant so.
        Reason::Starved => !one.missing.is_empty(),
        // A task that waits may do other work, and end the circle.
        Reason::Cycle => has_polled(job, &verdict.culprits),
        _ => matches!(verdict.class, Class::NotJoined | Class::Unread),
    }
}

/// Whether a task of one of these waits for an operation that it polled.
fn has_polled(job: &Snapshot, culprits: &[Culprit]) -> bool {
    let ranks = culprits.iter().filter_map(|culprit| process::of(job, culprit.rank));
    let rows = ranks.flat_map(|rank| &rank.comms);
    let mut waits = rows.flat_map(operations).filter_map(|op| op.wait.as_ref());
    waits.any(|wait| wait.polled)
}

/// How sure it is that somebody has to act.
fn standing(verdict: &Verdict, is_confirmed: bool, is_patient: bool, stall_ns: u64) -> Standing {
    let is_long = verdict.since_ns >= if is_patient { stall_ns } else { suspect_ns(0, stall_ns) };
    if is_long && (is_confirmed || is_patient) { Standing::Stalled } else { Standing::Suspect }
}

/// The verdicts on one wait: one for each group of culprits that the same is wrong with.
fn of_wait(job: &Snapshot, one: &BlockedOn, circle: &Circle) -> Vec<Verdict> {
    let mut groups = Groups::default();
    for culprit in &one.culprits {
        let Some(rank) = process::of(job, culprit.rank) else { continue };
        groups.add(what(job, one, rank, circle), culprit.clone());
    }
    if one.culprits.is_empty() {
        unnamed(job, one, circle, &mut groups);
    }
    if let Some(those) = groups.0.get_mut(&(Class::Deadlock, Reason::Cycle)) {
        *those = circle.members(job).collect();
    }
    if let Some(those) = groups.0.get_mut(&(Class::Link, Reason::Unreachable))
        && let Some(silent) = link::bad(job, one).and_then(|bad| bad.silent())
        && let Some(rank) = process::of(job, job.job_rank(one.comm, silent))
    {
        *those = vec![process::culprit(rank)];
    }
    groups.0.into_iter().map(|(what, culprits)| verdict(job, one, what, culprits, circle)).collect()
}

/// What is wrong where no rank that was read is named as the one that others wait for.
fn unnamed(job: &Snapshot, one: &BlockedOn, circle: &Circle, groups: &mut Groups) {
    let unread = |rank: &Rank| {
        let missing = job.missing.iter().find(|missing| missing.rank == *rank);
        let (pid, host) = missing.map(|missing| (missing.pid, missing.host.clone())).unwrap_or_default();
        Culprit { rank: *rank, pid, host }
    };
    let bad = link::bad(job, one);
    if !one.unseen.is_empty() {
        let what = bad.as_ref().map_or((Class::Unread, Reason::NotRead), |bad| (Class::Link, bad.reason));
        job.job_ranks(one.comm, &one.unseen).iter().for_each(|rank| groups.add(what, unread(rank)));
        return;
    }
    let living = || job.ranks.iter().filter(|rank| !rank.is_gone());
    if living().next().is_some() && living().all(|rank| rank.state == State::Stopped) {
        let what = (Class::StuckLocal, Reason::Stopped);
        living().for_each(|rank| groups.add(what, process::culprit(rank)));
        return;
    }
    // A frozen process records a wait that may be over: waits do not say who holds the others up.
    // Streams to it are slow, too, until its kernel has taken all it can.
    let is_over = living().next().is_none();
    let is_cut = bad.as_ref().is_some_and(|bad| bad.reason == Reason::Unreachable);
    let is_lost = !is_cut && circle.edges.is_empty();
    let has_part = |rank: &&RankSnapshot| rank.comms.iter().any(|row| row.id == one.comm);
    let row = |rank: &RankSnapshot| rank.comms.iter().find(|row| row.id == one.comm).cloned();
    let is_cause = |rank: &RankSnapshot, reason| {
        !process::is_lack(reason) || row(rank).is_some_and(|row| is_connecting(job, &row))
    };
    let held = |rank: &RankSnapshot| match is_over {
        true => process::condition(job, rank),
        false => process::held(rank).map(|reason| (Class::StuckLocal, reason)),
    };
    let those = job.ranks.iter().filter(|rank| is_over || !rank.is_gone()).filter(has_part);
    let halted = those.filter(|_| is_over || is_lost).filter_map(|rank| {
        let what = held(rank).filter(|(_, reason)| is_cause(rank, *reason))?;
        Some((what, rank))
    });
    let halted: Vec<_> = halted.collect();
    if !halted.is_empty() {
        halted.into_iter().for_each(|(what, rank)| groups.add(what, process::culprit(rank)));
        return;
    }
    if let Some(passed) = Passed::of(job, one).filter(|passed| is_lost && !passed.is_owed) {
        groups.0.insert((Class::Mismatch, Reason::Calls), passed.culprits(job, one));
        return;
    }
    let what = match &bad {
        Some(bad) => (Class::Link, bad.reason),
        None if circle.edges.is_empty() => (Class::Link, Reason::Lost),
        None => (Class::Deadlock, Reason::Cycle),
    };
    let those = groups.0.entry(what).or_default();
    if let Some(Bad { reason, ends: (rank, peer), .. }) = bad {
        // Who does not answer, or both ends of what carries too little.
        let both = [peer, rank];
        let ends = if reason == Reason::Unreachable { &both[..1] } else { &both };
        let ends = job.job_ranks(one.comm, ends);
        those.extend(ends.iter().filter_map(|rank| process::of(job, *rank)).map(process::culprit));
    }
}

/// What is wrong with a rank that others wait for.
fn what(job: &Snapshot, one: &BlockedOn, rank: &RankSnapshot, circle: &Circle) -> (Class, Reason) {
    let is_in_circle = circle.has(rank.rank);
    let row = rank.comms.iter().find(|row| row.id == one.comm);
    let is_missing = row.is_some_and(|row| one.missing.contains(&row.rank));
    let is_running = row.is_some_and(|row| matches!(row.op.state, OpState::Running | OpState::Unknown));
    let is_inside_earlier = is_running && !is_pair(&one.op);
    let is_called = !is_missing || is_inside_earlier;
    let is_cause = |reason: Reason| match reason {
        // What waits in a circle needs no processor.
        Reason::Starved => !is_in_circle,
        // Before its call it needs no connection.
        _ => !process::is_lack(reason) || is_called && row.is_some_and(|row| is_connecting(job, row)),
    };
    if let Some(what) = process::condition(job, rank).filter(|(_, reason)| is_cause(*reason)) {
        return what;
    }
    if is_in_circle {
        return (Class::Deadlock, Reason::Cycle);
    }
    match link::bad(job, one) {
        Some(bad) if !is_missing || is_inside_earlier => (Class::Link, bad.reason),
        _ if is_missing && !is_inside_earlier && (is_running || elsewhere(rank, one).next().is_some()) => {
            (Class::NotJoined, Reason::Elsewhere)
        }
        _ if is_missing && !is_inside_earlier => (Class::NotJoined, Reason::UserCode),
        _ => (Class::StuckLocal, Reason::Inside),
    }
}

/// Whether a connection to or from that rank of its communicator is awaited.
fn is_connecting(job: &Snapshot, row: &CommSnapshot) -> bool {
    let rows = job.ranks.iter().flat_map(|rank| &rank.comms).filter(|other| other.id == row.id);
    let mut rows = rows.map(|other| (other, other.rank == row.rank));
    rows.any(|(other, is_own)| {
        let mut waits = operations(other).filter_map(|op| op.wait.as_ref());
        waits.any(|wait| wait.waits == Waits::Connect && (is_own || wait.peer == row.rank))
            || other
                .links
                .iter()
                .any(|link| link.waits == Waits::Connect && (is_own || link.peer == Some(row.rank)))
    })
}

/// The other operations that a rank is inside of: in other communicators, or beside a collective a
/// send or receive.
fn elsewhere<'a>(
    rank: &'a RankSnapshot,
    one: &'a BlockedOn,
) -> impl Iterator<Item = (&'a CommSnapshot, &'a OpSnapshot)> {
    let rows = rank.comms.iter().filter(|row| row.id != one.comm && !row.ended);
    let own = rank.comms.iter().filter(|row| row.id == one.comm && !is_pair(&one.op));
    let pairs = own.filter_map(|row| Some((row, row.p2p.as_ref()?)));
    rows.map(|row| (row, row.operation())).chain(pairs).filter(|(_, op)| op.state == OpState::Running)
}

fn verdict(
    job: &Snapshot,
    one: &BlockedOn,
    (class, reason): (Class, Reason),
    culprits: Vec<Culprit>,
    circle: &Circle,
) -> Verdict {
    let op = format!("{} of {}", call_name(&one.op, one.seq), comm_name(&one.name, one.comm));
    let mut victims: BTreeSet<Rank> = job.job_ranks(one.comm, &one.by).into_iter().collect();
    for behind in &one.behind {
        victims.extend(job.job_ranks(behind.comm, &behind.by));
    }
    if class == Class::Deadlock {
        victims.extend(circle.edges.keys().chain(&circle.behind));
    }
    culprits.iter().filter(|_| class != Class::Deadlock).for_each(|one| {
        victims.remove(&one.rank);
    });
    let it = verb(culprits.len(), "it", "them");
    let mut by: Vec<Rank> = job.job_ranks(one.comm, &one.by);
    by.retain(|rank| !culprits.iter().any(|culprit| culprit.rank == *rank));
    let is_past = is_over(job, one);
    let wait = if is_past { "waited" } else { verb(by.len(), "waits", "wait") };
    let waits = format!("{} {wait} for {it} in {op} for {}", ranks_text(&by), duration(one.since_ns));
    let waits = if by.is_empty() { String::new() } else { format!("; {waits}") };
    let lacked = first_lacked(job, one, &culprits, &op);
    let passed = Passed::of(job, one).filter(|_| class == Class::Mismatch);
    let (side, confidence, text) = match reason {
        Reason::Cycle => (Side::Application, Confidence::Certain, circle.text(is_past)),
        Reason::Calls => {
            let text = passed.as_ref().map_or_else(String::new, |it| it.text(job, one, &culprits));
            (Side::Application, Confidence::Probable, text)
        }
        _ => of_network(job, one, reason, (&op, is_past))
            .unwrap_or_else(|| told(reason, &culprits, &lacked, is_past)),
    };
    let mut verdict = Verdict {
        class,
        reason,
        victims: victims.into_iter().collect(),
        comm: one.comm,
        name: one.name.clone(),
        op: one.op.clone(),
        seq: one.seq,
        since_ns: one.since_ns,
        side,
        confidence,
        why: format!("{text}{waits}"),
        evidence: evidence(job, one, &culprits),
        culprits,
        ..Verdict::default()
    };
    match reason {
        Reason::Cycle if has_polled(job, &verdict.culprits) => {
            let since = duration(one.since_ns);
            verdict.confidence = Confidence::Probable;
            verdict.why = format!("{text}, for {since}; tasks wait there, and may do other work");
        }
        Reason::Calls => {
            verdict.evidence.extend(passed.map(|it| it.evidence(job, one)));
            verdict.why = format!("{text}, for {}", duration(one.since_ns));
        }
        Reason::Cycle | Reason::Lost => verdict.why = format!("{text}, for {}", duration(one.since_ns)),
        _ => {}
    }
    verdict
}

/// What is said of the network between ranks that wait for each other, or of a message between
/// them.
fn of_network(
    job: &Snapshot,
    one: &BlockedOn,
    reason: Reason,
    (op, is_past): (&str, bool),
) -> Option<(Side, Confidence, String)> {
    let (confidence, text) = match (reason, &one.link) {
        (Reason::Lost, Some(link)) if link.waits == Waits::Connect => {
            (Confidence::Possible, link::not_set_up(job, one, link, (op, is_past)))
        }
        (Reason::Lost, _) => (Confidence::Possible, passed::lost(job, one, (op, is_past))?),
        (Reason::Unreachable, _) => {
            (Confidence::Probable, link::bad(job, one).and_then(|bad| bad.text(job, one.comm))?)
        }
        _ => return None,
    };
    Some((Side::Network, confidence, text))
}

/// The call of that communicator that the culprits lack or are inside of: `op`, in which the others
/// wait, or the same earlier one.
fn first_lacked(job: &Snapshot, one: &BlockedOn, culprits: &[Culprit], op: &str) -> String {
    let has_culprit = |lacking: &Lacking| {
        let ranks = job.job_ranks(one.comm, &lacking.ranks);
        culprits.iter().any(|culprit| ranks.contains(&culprit.rank))
    };
    let all = job.lacking(one);
    let mut those = all.iter().filter(|lacking| has_culprit(lacking));
    match (those.next(), those.next()) {
        (Some(Lacking { inside, seq, .. }), None) if inside.is_some() || *seq < one.seq => {
            let call = inside.clone().unwrap_or_else(|| format!("#{seq}"));
            format!("{call} of {}", comm_name(&one.name, one.comm))
        }
        _ if one.inside.is_empty() => lacked(&one.op, op),
        _ => op.to_string(),
    }
}

/// What was seen, a line each.
fn evidence(job: &Snapshot, one: &BlockedOn, culprits: &[Culprit]) -> Vec<String> {
    let mut lines = Vec::new();
    let (is, has, ago, due) = match is_over(job, one) {
        true => ("was", "had", "before its last sign of life", "was due for"),
        false => ("is", "has", "ago", "is due since"),
    };
    for rank in culprits.iter().take(MAX_LINES).filter_map(|culprit| process::of(job, culprit.rank)) {
        lines.extend(process::evidence(rank));
        lines.extend(rank.comms.iter().filter(|row| row.id == one.comm).map(|row| {
            let op = row.operation();
            let call = call_name(&op.kind, op.seq);
            let was_inside = op.state == OpState::Running && rank.is_gone() && !is_over(job, one);
            let later_ns = if was_inside { 0 } else { job.since_gone_ns(rank) };
            let (rank, since) = (rank.rank, duration(op.age_ns.saturating_add(later_ns)));
            match op.state {
                _ if op.kind.is_empty() => format!("rank {rank}: it {has} called nothing there yet"),
                _ if was_inside => format!("rank {rank}: it was inside {call}, for {since}, when it ended"),
                OpState::Running => format!("rank {rank}: it {has} been inside {call} for {since}"),
                OpState::Failed => format!("rank {rank}: {call} failed {since} {ago}"),
                OpState::Idle => format!("rank {rank}: it left {call} {since} {ago}"),
                OpState::Unknown => {
                    format!("rank {rank}: it {is} inside call #{}, which could not be read", op.seq)
                }
            }
        }));
        let rows = rank.comms.iter().filter(|row| row.id == one.comm);
        let short = rows
            .flat_map(operations)
            .filter(|op| op.wait.as_ref().is_some_and(|wait| wait.waits == Waits::Proxy));
        lines.extend(short.map(|op| {
            let call = call_name(&op.kind, op.seq);
            format!("rank {}: its {call} waits for a slot of the proxy, which other operations of its process hold", rank.rank)
        }));
        let others = elsewhere(rank, one).filter(|(row, _)| row.id != one.comm);
        lines.extend(others.take(MAX_LINES).map(|(row, op)| {
            let (call, comm) = (call_name(&op.kind, op.seq), comm_name(&row.name, row.id));
            format!("rank {}: it {has} been inside {call} of {comm} for {}", rank.rank, duration(op.age_ns))
        }));
    }
    lines.extend(link::bad(job, one).map(|bad| bad.evidence()));
    if let Some(link) = &one.link {
        let [rank, peer] = [link.rank, link.peer].map(|rank| job.job_rank(one.comm, rank));
        let way = if link.direction == Direction::Recv { "from" } else { "to" };
        let (channel, since) = (link.channel, duration(link.since_ns));
        lines.push(match link.waits {
            Waits::Connect => {
                format!("rank {rank}: its lane {way} rank {peer} on channel {channel} {has} been awaited for {since}")
            }
            _ => format!(
                "rank {rank}: message {} {way} rank {peer} on channel {channel} ({}) {due} {since}",
                link.step.saturating_add(1),
                link.transport
            ),
        });
    }
    lines
}
