//! What the process of a rank shows of itself, whatever its communicators show.

use crate::diagnose::silent_first;
use crate::snapshot::{
    Class, Confidence, Culprit, RankSnapshot, Reason, Side, Snapshot, Standing, State, Verdict,
};
use crate::types::Rank;

/// How long a service thread must be silent before a stopped process that nobody waits for is said.
const SILENT_NS: u64 = 1_000_000_000;

/// What is wrong with a process itself; `None` if nothing is.
///
/// Where all are gone, as in files, death does not distinguish them. One that fell silent clearly
/// before the others, and whose end nobody noticed, was stopped.
pub(super) fn condition(job: &Snapshot, rank: &RankSnapshot) -> Option<(Class, Reason)> {
    let all_gone = job.ranks.iter().all(RankSnapshot::is_gone);
    match (rank.state, rank.letter) {
        (State::Dead | State::Exited | State::Left, _) if all_gone => {
            let is_silent = silent_first(&job.ranks).is_some_and(|(at, _)| job.ranks[at].rank == rank.rank);
            is_silent.then_some((Class::StuckLocal, Reason::Stopped))
        }
        (State::Dead | State::Exited | State::Left, _) => Some((Class::PeerDead, end(rank))),
        (State::Stopped, _) => Some((Class::StuckLocal, Reason::Stopped)),
        (State::Running, Some('D')) => Some((Class::StuckLocal, Reason::Uninterruptible)),
        (State::Running | State::Unknown, _) => None,
    }
}

/// How a process ended.
pub(super) fn end(_rank: &RankSnapshot) -> Reason {
    Reason::Killed
}

/// Whose fault the end of a process is, and how sure that is.
pub(super) const fn side(reason: Reason) -> (Side, Confidence) {
    match reason {
        Reason::Exited | Reason::Panicked | Reason::Aborts => (Side::Application, Confidence::Certain),
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
        Reason::Killed => format!("{was} killed, by which signal is not known"),
        Reason::Oom => format!("{was} killed for want of memory"),
        Reason::Exited => "exited without leaving the communicator".into(),
        Reason::Panicked => "panicked".into(),
        Reason::Stopped => format!("{was} stopped"),
        Reason::Starved => format!("{was} not given the processor"),
        Reason::Dying => format!("{was} ending"),
        _ => "ended without leaving the communicator".into(),
    }
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
    let mut lines = Vec::new();
    if let Some(letter) = rank.letter {
        lines.push(format!("rank {}: state {letter} in /proc", rank.rank));
    }
    lines
}
