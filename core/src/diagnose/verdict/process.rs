//! What the process of a rank shows of itself, whatever its communicators show.

use crate::snapshot::{
    Class, Confidence, Culprit, End, RankSnapshot, Reason, Side, Snapshot, Standing, State, Verdict,
};
use crate::types::Rank;

/// How long a service thread must be silent before a stopped process that nobody waits for is said.
const SILENT_NS: u64 = 1_000_000_000;

/// What is wrong with a process itself; `None` if nothing is.
///
/// Where all are gone, as in files, death does not distinguish them.
pub(super) fn condition(job: &Snapshot, rank: &RankSnapshot) -> Option<(Class, Reason)> {
    let all_gone = job.ranks.iter().all(RankSnapshot::is_gone);
    match (rank.state, rank.letter) {
        (State::Dead | State::Exited | State::Left, _) if all_gone => None,
        (State::Dead | State::Exited | State::Left, _) => Some((Class::PeerDead, end(rank))),
        _ if rank.facts.dying => Some((Class::StuckLocal, Reason::Dying)),
        (State::Stopped, _) => Some((Class::StuckLocal, Reason::Stopped)),
        _ if rank.facts.is_starved == Some(true) => Some((Class::StuckLocal, Reason::Starved)),
        (State::Running, Some('D')) => Some((Class::StuckLocal, Reason::Uninterruptible)),
        (State::Running | State::Unknown, _) => None,
    }
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
        Reason::Stopped | Reason::Starved | Reason::Dying => (Side::Machine, Confidence::Certain),
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
        Reason::Starved => format!("{was} not given the processor"),
        Reason::Dying => format!("{was} ending"),
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

/// Stopped processes for which nobody waits yet, a verdict each.
pub(super) fn idle(job: &Snapshot) -> Vec<Verdict> {
    let is_stopped = |rank: &&RankSnapshot| rank.state == State::Stopped && rank.heartbeat_ns >= SILENT_NS;
    let verdict = |rank: &RankSnapshot| {
        let culprits = vec![culprit(rank)];
        Verdict {
            class: Class::StuckLocal,
            standing: Standing::Suspect,
            reason: Reason::Stopped,
            why: format!("{} is stopped, and nobody waits for it yet", super::named(&culprits)),
            culprits,
            since_ns: rank.heartbeat_ns,
            side: Side::Machine,
            confidence: Confidence::Certain,
            ..Verdict::default()
        }
    };
    job.ranks.iter().filter(is_stopped).map(verdict).collect()
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
    if facts.is_starved == Some(true) {
        let (cpu, delay) = (facts.cpu_pct, facts.run_delay_pct);
        let throttled = facts.throttled;
        lines.push(format!(
            "rank {at}: ran for {cpu} % of the time and waited for a processor for {delay} %, quota used up {throttled} times"
        ));
    }
    if let Some(thread) = facts.threads.first() {
        let what = [&thread.syscall, &thread.wchan].map(String::as_str).join(" ");
        lines.push(format!("rank {at}: its first thread is in {}", what.trim()));
    }
    lines
}
