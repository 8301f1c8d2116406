//! What the process of a rank shows of itself, whatever its communicators show.

use super::told;
use crate::diagnose::joining::in_init_ns;
use crate::diagnose::{comm_name, duration, ranks_text};
use crate::snapshot::{
    Class, CommSnapshot, Confidence, Culprit, End, Lacks, OpSnapshot, OpState, RankSnapshot, Reason, Side,
    Snapshot, Standing, State, ThreadFacts, Verdict,
};
use crate::types::{CommId, Rank, SERVICE_THREAD};

/// How long a service thread must be silent before a stopped process that nobody waits for is said.
const STOPPED_NS: u64 = 1_000_000_000;
/// The same of a process that runs: on a busy machine the thread may be late by seconds.
const SILENT_NS: u64 = 5_000_000_000;
/// The most processes of a verdict on all of them of which is said what was seen.
const MAX_SEEN: usize = 4;
/// The functions of the kernel in which the threads of a frozen control group sleep, of version 1
/// and of version 2. The last has become part of `get_signal` in some kernels (seen in 6.18), in
/// which else only threads sleep that are stopped.
const FREEZERS: [&str; 3] = ["__refrigerator", "do_freezer_trap", "get_signal"];
/// Waits that the kernel freezes as they are, from Linux 6.1 on, without ending them
/// (`TASK_FREEZABLE`). Any signal ends them, so a thread in one is in state D only if it is frozen.
///
/// The last two are on the way back from a system call, where nothing else waits like that.
const FREEZABLE: [&str; 9] = [
    "futex_do_wait",
    "futex_wait_queue",
    "hrtimer_nanosleep",
    "do_nanosleep",
    "do_sigtimedwait",
    "unix_stream_read_generic",
    "unix_stream_data_wait",
    "do_syscall_64",
    "exit_to_user_mode_loop",
];

/// What is wrong with a process itself; `None` if nothing is.
///
/// Where all are gone, as in files, their deaths do not distinguish them. What the watchdogs told
/// does.
pub(super) fn condition(job: &Snapshot, rank: &RankSnapshot) -> Option<(Class, Reason)> {
    let all_gone = job.is_over();
    let halted = halted(rank);
    let lacks = lacks(rank).map(|reason| (Class::StuckLocal, reason));
    match (rank.state, rank.letter) {
        (State::Dead | State::Exited | State::Left, _) if all_gone => {
            told::of(&job.ranks, rank).map(|reason| (Class::StuckLocal, reason)).or(lacks)
        }
        (State::Dead | State::Exited | State::Left, _) => Some((Class::PeerDead, end(rank))),
        _ if rank.facts.dying => Some((Class::StuckLocal, Reason::Dying)),
        _ if halted.is_some() => halted.map(|reason| (Class::StuckLocal, reason)),
        _ if rank.facts.is_starved == Some(true) => Some((Class::StuckLocal, Reason::Starved)),
        (State::Running, Some('D')) => Some((Class::StuckLocal, Reason::Uninterruptible)),
        (State::Running | State::Stopped | State::Unknown, _) => lacks,
    }
}

/// What keeps all threads of a living process from running.
pub(super) fn halted(rank: &RankSnapshot) -> Option<Reason> {
    let is_frozen = rank.state == State::Running && rank.facts.threads.first().is_some_and(is_frozen);
    match rank.state {
        State::Stopped => Some(Reason::Stopped),
        _ => is_frozen.then_some(Reason::Frozen),
    }
}

/// What keeps a living process from going on, or from connecting to others.
pub(super) fn held(rank: &RankSnapshot) -> Option<Reason> {
    halted(rank).or_else(|| lacks(rank).filter(|_| !rank.is_gone()))
}

/// Whether this is a shortage, which matters only to those that wait for a connection.
pub(super) const fn is_lack(reason: Reason) -> bool {
    matches!(reason, Reason::NoDescriptors | Reason::NoMemory)
}

/// What a process lacks for connections.
pub(super) fn lacks(rank: &RankSnapshot) -> Option<Reason> {
    match rank.facts.lacks? {
        Lacks::Descriptors => Some(Reason::NoDescriptors),
        Lacks::Memory => Some(Reason::NoMemory),
        Lacks::Unknown => None,
    }
}

fn is_frozen(thread: &ThreadFacts) -> bool {
    let wchan = thread.wchan.as_str();
    FREEZERS.contains(&wchan) || thread.letter == Some('D') && FREEZABLE.contains(&wchan)
}

/// How a process ended.
pub(super) fn end(rank: &RankSnapshot) -> Reason {
    let facts = &rank.facts;
    match facts.end {
        End::Panicked => Reason::Panicked,
        End::Exited | End::Finished => Reason::Exited,
        End::Signalled => Reason::Signalled,
        End::Killed | End::Unknown if facts.oom_logged || facts.oom_kills > 0 => Reason::Oom,
        End::Killed | End::Unknown => Reason::Killed,
    }
}

/// Whose fault the end of a process is, and how sure that is.
pub(super) const fn side(reason: Reason) -> (Side, Confidence) {
    match reason {
        Reason::Exited | Reason::Panicked | Reason::Aborts => (Side::Application, Confidence::Certain),
        Reason::Signalled => (Side::Machine, Confidence::Certain),
        Reason::Oom => (Side::Machine, Confidence::Probable),
        Reason::Stopped
        | Reason::Frozen
        | Reason::Starved
        | Reason::Dying
        | Reason::NoDescriptors
        | Reason::NoMemory => (Side::Machine, Confidence::Certain),
        Reason::Inside => (Side::Library, Confidence::Possible),
        _ => (Side::Machine, Confidence::Possible),
    }
}

/// What happened to processes that are gone: `was killed, by which signal is not known`.
pub(super) fn ended(reason: Reason, count: usize) -> String {
    let was = if count == 1 { "was" } else { "were" };
    match reason {
        Reason::Killed => format!("{was} killed"),
        Reason::Oom => format!("{was} killed because memory ran out"),
        Reason::Signalled => format!("{was} ended by a signal"),
        Reason::Exited => "exited without leaving the communicator".into(),
        Reason::Panicked => "panicked".into(),
        Reason::Stopped => format!("{was} stopped"),
        Reason::Frozen => format!("{was} frozen"),
        Reason::Starved => format!("{was} not given the processor"),
        Reason::Dying => format!("{was} ending"),
        Reason::NoDescriptors => "had no file descriptor left for connections".into(),
        Reason::NoMemory => "had no kernel memory left for connections".into(),
        _ => "ended without leaving the communicator".into(),
    }
}

/// Whether the kernel's log tells of each of these deaths that memory ran out.
pub(super) fn is_logged(job: &Snapshot, culprits: &[Culprit]) -> bool {
    culprits.iter().all(|one| of(job, one.rank).is_some_and(|rank| rank.facts.oom_logged))
}

/// The process of a rank of the job.
pub(super) fn of(job: &Snapshot, rank: Rank) -> Option<&RankSnapshot> {
    job.ranks.iter().find(|one| one.rank == rank)
}

/// The process as the one to blame.
pub(super) fn culprit(rank: &RankSnapshot) -> Culprit {
    Culprit { rank: rank.rank, pid: rank.pid, host: rank.host.clone() }
}

/// Processes that are dead or stopped, or whose service thread does not run, and for which nobody
/// waits yet: a verdict each.
pub(super) fn idle(job: &Snapshot) -> Vec<Verdict> {
    job.ranks.iter().filter_map(|rank| of_dead(job, rank).or_else(|| of_idle(job, rank))).collect()
}

/// The communicator for which a process that died is missed by one that lives: others wait for it
/// in init, or the next call there fails.
fn missed<'a>(job: &Snapshot, rank: &'a RankSnapshot) -> Option<&'a CommSnapshot> {
    let ends = |row: &&CommSnapshot| match rank.state {
        State::Dead => true,
        // After init a program may well exit without finish().
        State::Exited => row.init.is_some(),
        _ => false,
    };
    let rows = rank.comms.iter().filter(|row| !row.ended).filter(ends).filter(|row| {
        let living = || job.ranks.iter().filter(|other| !other.is_gone()).flat_map(|other| &other.comms);
        let is_replaced = || living().any(|other| (other.id, other.rank) == (row.id, row.rank));
        living().any(|other| misses(row, other)) && !is_replaced()
    });
    rows.min_by_key(|row| row.init.is_none())
}

/// Whether a communicator of a living rank lacks a rank that died with that row.
fn misses(row: &CommSnapshot, other: &CommSnapshot) -> bool {
    let is_in = other.id == row.id && !other.ended && !other.has_failed();
    is_in && (row.init.is_none() || other.init.is_some())
}

/// Whether the death of a process is told as that of one that others wait for in this init.
pub(super) fn is_lost(job: &Snapshot, rank: &RankSnapshot, comm: CommId) -> bool {
    missed(job, rank).is_some_and(|row| row.id == comm && row.init.is_some())
}

/// A process that died, of which a living one is still in a communicator.
fn of_dead(job: &Snapshot, rank: &RankSnapshot) -> Option<Verdict> {
    let row = missed(job, rank)?;
    // Its last sign of life came up to a second before its end.
    let since_ns = job.to_real_ns.saturating_sub(rank.to_real_ns);
    let standing = if since_ns >= super::SETTLED_NS { Standing::Stalled } else { Standing::Suspect };
    let reason = end(rank);
    let (side, confidence) = side(reason);
    let (culprits, comm) = (vec![culprit(rank)], comm_name(&row.name, row.id));
    let living = job.ranks.iter().filter(|other| !other.is_gone());
    let victims: Vec<_> = living.filter(|it| it.comms.iter().any(|other| misses(row, other))).collect();
    let mut rows = victims.iter().flat_map(|it| &it.comms).filter(|other| misses(row, other));
    let what = match rows.any(|other| other.init.is_some()) {
        true => format!("; others wait for it in the init of {comm}"),
        false => format!(", and nobody waits for it yet; the next call of {comm} fails"),
    };
    Some(Verdict {
        class: Class::PeerDead,
        standing,
        reason,
        why: format!("{} {}{what}", super::named(&culprits), ended(reason, 1)),
        culprits,
        victims: victims.iter().map(|other| other.rank).collect(),
        comm: row.id,
        name: row.name.clone(),
        since_ns,
        side,
        confidence,
        evidence: evidence(rank),
        ..Verdict::default()
    })
}

/// If all processes of a job have ended, those that died in it: a verdict for each way to die.
///
/// Only where nothing else says what ended the job: a failure, or a wait. Who killed them may have
/// meant to.
pub(super) fn all_dead(job: &Snapshot) -> Vec<Verdict> {
    let mut groups = super::Groups::default();
    // A program may well exit without finish().
    let died = |rank: &&RankSnapshot| rank.state == State::Dead && end(rank) != Reason::Exited;
    let is_in = |row: &CommSnapshot| !row.ended;
    if !job.is_over() {
        return Vec::new();
    }
    for rank in job.ranks.iter().filter(died).filter(|rank| rank.comms.iter().any(is_in)) {
        groups.add((Class::PeerDead, end(rank)), culprit(rank));
    }
    let verdict = |((class, reason), culprits): (_, Vec<Culprit>)| {
        let (side, confidence) = side(reason);
        let ranks = culprits.iter().take(MAX_SEEN).filter_map(|one| of(job, one.rank));
        Verdict {
            class,
            standing: Standing::Stalled,
            reason,
            why: format!(
                "{} {}; {}",
                super::named(&culprits),
                ended(reason, culprits.len()),
                before_the_end(job)
            ),
            evidence: ranks.flat_map(evidence).collect(),
            culprits,
            side,
            confidence,
            ..Verdict::default()
        }
    };
    groups.0.into_iter().map(verdict).collect()
}

/// What the ranks of a job did whose processes have all ended, where nobody is to blame for it.
fn before_the_end(job: &Snapshot) -> String {
    let rows = job.ranks.iter().flat_map(|rank| &rank.comms).filter(|row| row.init.is_some() && !row.ended);
    let in_init = rows.map(in_init_ns).max().filter(|ns| *ns >= super::suspect_ns(0, u64::MAX));
    let Some(ns) = in_init else {
        return format!(
            "nobody{} had waited for long",
            if job.complete { "" } else { " of those that were read" }
        );
    };
    format!("they had been in init for {}", duration(ns))
}

fn of_idle(job: &Snapshot, rank: &RankSnapshot) -> Option<Verdict> {
    // Where all have ended, this is how long before the last sign of its other threads.
    let silent_ns = rank.heartbeat_ns;
    let is_told = rank.state == State::Running || rank.state == State::Dead && job.is_over();
    let reason = match halted(rank) {
        Some(reason) if silent_ns >= STOPPED_NS => reason,
        _ if is_told && silent_ns >= SILENT_NS => Reason::Silent,
        _ => return None,
    };
    let culprits = vec![culprit(rank)];
    let named = super::named(&culprits);
    let mut victims = Vec::new();
    let service = rank.facts.threads.iter().find(|thread| thread.name == SERVICE_THREAD);
    let (side, confidence, why) = match reason {
        Reason::Silent => {
            let is_frozen = service.is_some_and(is_frozen);
            let (side, sure) = if is_frozen {
                (Side::Machine, Confidence::Certain)
            } else {
                (Side::Library, Confidence::Possible)
            };
            let why = format!(
                "the service thread of {named} {} and has not run for {}: that process notices no death, \
                 accepts no connection and answers nobody",
                if is_frozen { "is frozen" } else { "does not go on" },
                duration(silent_ns)
            );
            (side, sure, why)
        }
        _ => {
            let waited = waited_for(job, rank).map(|(row, those)| {
                let op = format!("{} of {}", row.activity(), comm_name(&row.name, row.id));
                victims = those;
                let they = super::verb(victims.len(), "it", "they");
                format!("; {} waited for it in {op} until {they} failed or ended", ranks_text(&victims))
            });
            let what = waited.unwrap_or_else(|| ", and nobody waits for it yet".into());
            (Side::Machine, Confidence::Certain, format!("{named} is {reason}{what}"))
        }
    };
    Some(Verdict {
        class: Class::StuckLocal,
        standing: Standing::Suspect,
        reason,
        why,
        victims,
        culprits,
        since_ns: silent_ns,
        side,
        confidence,
        evidence: service.map(|thread| thread_line(rank.rank, thread)).into_iter().collect(),
        ..Verdict::default()
    })
}

/// The ranks that waited for a process until their operation failed or they ended, and the row of
/// the first of them. Those that wait still are told of where they wait.
fn waited_for<'a>(job: &'a Snapshot, rank: &RankSnapshot) -> Option<(&'a CommSnapshot, Vec<Rank>)> {
    let is_it = |row: &CommSnapshot, op: &OpSnapshot| {
        let own = rank.comms.iter().filter(|own| !own.ended && own.id == row.id);
        op.wait
            .as_ref()
            .is_some_and(|wait| wait.waits.is_for_rank() && own.map(|own| own.rank).any(|it| it == wait.peer))
    };
    let has_waited = |other: &RankSnapshot, row: &CommSnapshot| {
        let op = row.operation();
        let is_over = op.state == OpState::Failed || other.is_gone() && op.state == OpState::Running;
        is_over && is_it(row, op)
    };
    let rows = job.ranks.iter().flat_map(|other| other.comms.iter().map(move |row| (other, row)));
    let waited: Vec<_> = rows.filter(|(other, row)| has_waited(other, row)).collect();
    let (_, first) = waited.first()?;
    let those = waited.iter().filter(|(_, row)| row.id == first.id).map(|(other, _)| other.rank);
    Some((first, those.collect()))
}

/// What was seen of a process, a line each.
pub(super) fn evidence(rank: &RankSnapshot) -> Vec<String> {
    let (at, facts) = (rank.rank, &rank.facts);
    let mut lines = Vec::new();
    if let Some(letter) = rank.letter {
        lines.push(format!("rank {at}: state {letter} in /proc"));
    }
    match (facts.end, facts.signal) {
        (End::Unknown, _) => {}
        // It left after that.
        (End::Finished, _) if rank.has_failed() => {}
        (End::Killed, None) => lines.push(format!("rank {at}: killed, by which signal is not known")),
        (end, None) => lines.push(format!("rank {at}: {end}")),
        (end, Some(signal)) => lines.push(format!("rank {at}: {end}, signal {signal}")),
    }
    if facts.oom_logged {
        lines.push(format!("rank {at}: the kernel's log says that it was killed because memory ran out"));
    } else if facts.oom_kills > 0 {
        let (kills, group) = (facts.oom_kills, &facts.cgroup);
        lines.push(format!("rank {at}: memory ran out in its group {group}, {kills} killed"));
    }
    if let Some(lacks) = facts.lacks {
        let has = if rank.is_gone() { "had" } else { "has" };
        lines.push(format!("rank {at}: it {has} no {lacks} left for connections"));
    }
    if facts.is_starved == Some(true) {
        let (cpu, delay) = (facts.cpu_pct, facts.run_delay_pct);
        let throttled = facts.throttled;
        lines.push(format!(
            "rank {at}: ran for {cpu} % of the time and waited for a processor for {delay} %, quota used up {throttled} times"
        ));
    }
    lines.extend(facts.threads.first().map(|thread| thread_line(at, thread)));
    lines
}

fn thread_line(rank: Rank, thread: &ThreadFacts) -> String {
    let what = [&thread.syscall, &thread.wchan].map(String::as_str).join(" ");
    format!("rank {rank}: its thread {} is in {}", thread.name, what.trim())
}
