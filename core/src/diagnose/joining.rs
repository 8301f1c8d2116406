//! The ranks that have not joined, in communicators whose init waits. Only the bootstrap root knows
//! which ranks checked in, and it reports to all that wait. A rank that was not read may run
//! anywhere: before the root has reported, nothing is said about it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::jobs::Job;
use super::merge::Given;
use crate::snapshot::{CommSnapshot, Failure, InitSnapshot, NotJoined, ProcessSnapshot, RankSnapshot, State};
use crate::types::{CommId, Phase, Rank};

/// How long ranks wait for the root's first report before it counts as silent: it reports every
/// second.
const SILENT_NS: u64 = 3_000_000_000;
/// Processes of one run may be made this long after one of them has ended: launchers start them one
/// after another, and clocks of two hosts differ.
const APART_NS: u64 = 5_000_000_000;

/// The readings without those of earlier runs that met at the same place, which a note counts.
pub(super) fn of_this_run<'a>(given: &'a [Given], job: &Job, notes: &mut Vec<String>) -> Cow<'a, [Given]> {
    let is_old: Vec<bool> = given.iter().map(|one| met_before(given, job, one)).collect();
    let count = is_old.iter().filter(|is_old| **is_old).count();
    // Where clocks were set back, each may seem to have ended before the other began.
    if count == 0 || count == given.len() {
        return given.into();
    }
    let ended = if count == 1 { "process that ended" } else { "processes that ended" };
    notes.push(format!("{count} {ended} in an earlier init at the same place: left out"));
    given.iter().zip(is_old).filter(|(_, is_old)| !is_old).map(|(one, _)| one.clone()).collect()
}

/// Whether a process ended in the init of an earlier run that met at the same place: its rank, or
/// another one of that run, was started again since, or all that live were made clearly later, or
/// if none does, all that lived at the same time as the newest one.
fn met_before(given: &[Given], job: &Job, one: &Given) -> bool {
    let ended = &one.process;
    if !one.state().is_gone() || !job.rows(ended).all(|row| row.init.is_some()) {
        return false;
    }
    let all = || given.iter().map(|one| &one.process).filter(|other| !std::ptr::eq(*other, ended));
    let later_ns = |other: &ProcessSnapshot| other.made_real_ns.saturating_sub(ended.to_real_ns);
    let has_its_rank = |other: &ProcessSnapshot| {
        job.rows(other).any(|row| job.rows(ended).any(|its| (its.id, its.rank) == (row.id, row.rank)))
    };
    let is_again = |other: &ProcessSnapshot| {
        other.boot_id == ended.boot_id && later_ns(other) > 0 && has_its_rank(other)
    };
    // Another rank of its run was started again: what ended before that is of the same run.
    let is_of_run = |old: &ProcessSnapshot, new: &ProcessSnapshot| {
        let shares =
            job.rows(new).any(|row| job.rows(old).any(|its| (its.id, its.rank) == (row.id, row.rank)));
        let is_later = old.boot_id == new.boot_id && new.made_real_ns > old.to_real_ns;
        shares && is_later && new.boot_id == ended.boot_id && new.made_real_ns > ended.to_real_ns
    };
    let ended_ones = || given.iter().filter(|one| one.state().is_gone()).map(|one| &one.process);
    let is_run_over = ended_ones().any(|old| all().any(|new| is_of_run(old, new)));
    let is_any_alive = all().any(|process| process.alive);
    let newest = all().map(|process| process.made_real_ns).max().unwrap_or(0);
    let is_last = |process: &&ProcessSnapshot| match is_any_alive {
        true => process.alive,
        false => process.to_real_ns >= newest,
    };
    let mut last = all().filter(is_last).peekable();
    all().any(is_again)
        || is_run_over
        || last.peek().is_some() && last.all(|other| later_ns(other) > APART_NS)
}

/// The communicators of these ranks whose init waits for ranks.
#[must_use]
pub fn joining(ranks: &[RankSnapshot]) -> Vec<NotJoined> {
    let mut comms: BTreeMap<CommId, Vec<(State, &CommSnapshot, &InitSnapshot)>> = BTreeMap::new();
    for rank in ranks {
        for comm in rank.comms.iter().filter(|comm| !comm.ended && checks_in(comm)) {
            if let Some(init) = &comm.init {
                comms.entry(comm.id).or_default().push((rank.state, comm, init));
            }
        }
    }
    let rows = |id: CommId| ranks.iter().flat_map(|rank| &rank.comms).filter(move |row| row.id == id);
    // A process that tries again has both rows.
    let tries_again = |old: &CommSnapshot| rows(old.id).any(|row| row.rank == old.rank && !row.ended);
    let failed = |id: CommId| rows(id).filter(|row| row.has_failed() && !tries_again(row));
    let is_lost_peer = |row: &CommSnapshot| row.failure.as_ref().is_some_and(|it| it.error == "Peer");
    // Who is killed last sees the others die, and records that: it is not what they waited for.
    let is_of_end = |id: CommId, died: usize| died > 1 && failed(id).all(is_lost_peer);
    let is_over = |id: CommId, died: usize| failed(id).next().is_some() && !is_of_end(id, died);
    comms.iter().filter_map(|(id, waiting)| of_comm(waiting, is_over(*id, waiting.len()))).collect()
}

/// Where all have ended, an init in which ranks were waited for failed by that: the failure
/// follows.
pub(super) fn ended(ranks: &[RankSnapshot], not_joined: &[NotJoined], failures: &mut [Failure]) {
    let waited = |one: &Failure| not_joined.iter().any(|waits| waits.comm == one.comm);
    let is_over = ranks.iter().all(RankSnapshot::is_gone);
    failures.iter_mut().filter(|one| is_over && waited(one)).for_each(|one| one.follows = Some(one.comm));
}

impl NotJoined {
    /// Why the ranks wait, if none of them has a report of the root.
    #[must_use]
    pub const fn unanswered(&self) -> &'static str {
        match self.nowhere {
            true => "rank 0 has not said where to meet",
            false => "the bootstrap root, which rank 0 opens, has not answered",
        }
    }

    /// Whether the communicator has all ranks of a job of which so many are known: its ranks are
    /// those of the job. Those of another that were not read cannot be told from others.
    #[must_use]
    pub const fn is_of(&self, known: usize) -> bool {
        self.nranks as usize >= known
    }
}

/// Whether it still looks for the root, or for its neighbour on the ring: after that all ranks have
/// joined.
pub(super) fn checks_in(comm: &CommSnapshot) -> bool {
    [Phase::Rendezvous, Phase::CheckIn, Phase::Ring].into_iter().any(|phase| is_in(comm, phase))
}

pub(super) fn is_in(comm: &CommSnapshot, phase: Phase) -> bool {
    comm.phase.as_ref().is_some_and(|now| now.phase == phase.name())
}

/// How long it has been in init.
pub(super) fn in_init_ns(comm: &CommSnapshot) -> u64 {
    comm.phases.iter().chain(&comm.phase).fold(0, |sum: u64, phase| sum.saturating_add(phase.duration_ns))
}

/// Whom the ranks of one communicator wait for. Where the init failed and `is_over`, who died in it
/// waits no more.
fn of_comm(waiting: &[(State, &CommSnapshot, &InitSnapshot)], is_over: bool) -> Option<NotJoined> {
    let (_, first, _) = waiting.first()?;
    // Ranks that are gone show an earlier state.
    let all_gone = waiting.iter().all(|(state, ..)| state.is_gone());
    if all_gone && is_over {
        return None;
    }
    let waiting: Vec<_> = waiting.iter().filter(|(state, ..)| all_gone || !state.is_gone()).collect();
    // The smallest count is the latest report.
    let told = waiting.iter().filter_map(|(_, _, init)| Some((init.absent?, &init.absent_runs)));
    let least = told.min_by_key(|(count, _)| *count);
    let since_ns = waiting.iter().map(|(_, comm, _)| in_init_ns(comm)).max()?;
    let nowhere = waiting.iter().all(|(_, comm, _)| is_in(comm, Phase::Rendezvous));
    let ranks: Vec<Rank> = match least {
        Some((0, _)) => return None,
        Some((_, runs)) => {
            runs.iter().flat_map(|(first, last)| first.0..last.0.saturating_add(1)).map(Rank).collect()
        }
        // Rank 0 opens the root. If it was read and waits there itself, it is about to report.
        None if since_ns < SILENT_NS
            || !nowhere && waiting.iter().any(|(_, comm, _)| comm.rank == Rank(0)) =>
        {
            return None;
        }
        None => vec![Rank(0)],
    };
    let by: BTreeSet<Rank> =
        waiting.iter().map(|(_, comm, _)| comm.rank).filter(|rank| !ranks.contains(rank)).collect();
    if by.is_empty() {
        return None;
    }
    Some(NotJoined {
        comm: first.id,
        name: first.name.clone(),
        nranks: first.nranks,
        count: least.map(|(count, _)| count),
        by: by.into_iter().collect(),
        ranks,
        nowhere,
        since_ns,
        gives_up_ns: waiting
            .iter()
            .map(|(_, _, init)| init.gives_up_ns)
            .min()
            .filter(|_| !all_gone)
            .unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{FailureSnapshot, PhaseSnapshot};

    const SECOND: u64 = 1_000_000_000;

    fn rank(at: u32, state: State, phase: Phase, absent: Option<(u32, &[(u32, u32)])>) -> RankSnapshot {
        let runs = absent.map_or(&[][..], |(_, runs)| runs);
        let init = InitSnapshot {
            gives_up_ns: u64::from(100 + at) * SECOND,
            absent: absent.map(|(count, _)| count),
            absent_runs: runs.iter().map(|(first, last)| (Rank(*first), Rank(*last))).collect(),
        };
        let phase = PhaseSnapshot { phase: phase.name().into(), duration_ns: 12 * SECOND };
        let comm = CommSnapshot {
            id: CommId(1),
            rank: Rank(at),
            nranks: 4,
            phase: Some(phase),
            init: Some(init),
            ..CommSnapshot::default()
        };
        RankSnapshot { rank: Rank(at), state, comms: vec![comm], ..RankSnapshot::default() }
    }

    /// The ranks that have not joined, their number, the ranks that wait, and for how many more
    /// seconds.
    type Expect = Option<(&'static [u32], Option<u32>, &'static [u32], u64)>;

    fn check(ranks: &[RankSnapshot], expect: Expect) {
        let found = joining(ranks);
        let of = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0).collect::<Vec<_>>();
        let found: Vec<_> = found
            .iter()
            .map(|one| (of(&one.ranks), one.count, of(&one.by), one.gives_up_ns / SECOND))
            .collect();
        let expect = expect.map(|(ranks, count, by, until)| (ranks.to_vec(), count, by.to_vec(), until));
        assert_eq!(found, expect.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_clock_that_was_set_back_leaves_nobody_out() {
        let given = |at: u32, made: u64, to: u64| {
            let comms = rank(at, State::Dead, Phase::CheckIn, None).comms;
            let (made_real_ns, to_real_ns) = (made * SECOND, to * SECOND);
            let process = ProcessSnapshot { comms, made_real_ns, to_real_ns, ..Default::default() };
            Given { process, source: crate::snapshot::Source::File, letter: None, ended: false }
        };
        let check = |all: &[Given], kept: usize| {
            let (job, mut notes) = (Job::from(all[0].process.comms[0].job), Vec::new());
            assert_eq!(of_this_run(all, &job, &mut notes).len(), kept, "{notes:?}");
            assert_eq!(notes.len(), usize::from(kept < all.len()));
        };
        check(&[given(0, 100, 20)], 1);
        check(&[given(0, 100, 20), given(1, 100, 20)], 2);
        // The second run began after the first one had ended, at once, and other ranks came to it.
        check(&[given(0, 100, 120), given(0, 200, 220), given(1, 200, 220)], 2);
        check(&[given(0, 100, 103), given(1, 100, 103), given(0, 104, 120), given(2, 104, 120)], 2);
        check(&[given(0, 100, 103), given(1, 100, 120), given(2, 100, 120)], 3);
    }

    #[test]
    fn whom_the_root_lacks_has_not_joined_and_nobody_else() {
        use Phase::{CheckIn, Exchange, Ring};
        use State::{Dead, Running};
        let lacks = Some((1, &[(3, 3)][..]));
        let waits = |at| rank(at, Running, CheckIn, lacks);
        let passed = rank(1, Running, Ring, lacks);
        check(&[waits(0), passed, waits(2)], Some((&[3], Some(1), &[0, 1, 2], 100)));
        // One rank was read before rank 2 checked in; one died.
        let early = rank(0, Running, CheckIn, Some((2, &[(2, 3)])));
        check(&[early, waits(1), rank(2, Dead, CheckIn, lacks)], Some((&[3], Some(1), &[0, 1], 100)));
        // Rank 3 runs, and does not reach the root.
        check(&[waits(0), rank(3, Running, CheckIn, None)], Some((&[3], Some(1), &[0], 100)));
        // All have joined, or no rank has a report yet.
        check(&[rank(0, Running, Exchange, lacks)], None);
        check(&[rank(0, Running, Ring, Some((0, &[])))], None);
        check(&[rank(0, Running, CheckIn, None)], None);
        // Rank 0 opens the root, and says where.
        check(&[rank(2, Running, CheckIn, None)], Some((&[0], None, &[2], 102)));
        let meets = |at| rank(at, Running, Phase::Rendezvous, None);
        check(&[meets(2)], Some((&[0], None, &[2], 102)));
        check(&[meets(0), meets(2)], Some((&[0], None, &[2], 100)));
        check(&[meets(0)], None);
        assert!(joining(&[meets(1), meets(2)])[0].nowhere);
        assert!(!joining(&[meets(1), rank(2, Running, CheckIn, None)])[0].nowhere);
        // The state when they died.
        check(&[rank(0, Dead, CheckIn, lacks)], Some((&[3], Some(1), &[0], 0)));
        // By that, the init failed on the others.
        let mut failed = waits(1);
        (failed.comms[0].failure, failed.comms[0].ended) = (Some(FailureSnapshot::default()), true);
        check(&[rank(0, Dead, CheckIn, lacks), failed.clone()], None);
        // The last one of those that were killed one by one.
        failed.comms[0].failure.as_mut().unwrap().error = "Peer".into();
        let killed = [rank(0, Dead, CheckIn, lacks), rank(2, Dead, CheckIn, lacks)];
        check(&[&killed[..1], &[failed.clone()]].concat(), None);
        check(&[&killed[..], &[failed.clone()]].concat(), Some((&[3], Some(1), &[0, 2], 0)));
        check(&[rank(0, Dead, CheckIn, lacks), failed, waits(2)], Some((&[3], Some(1), &[2], 102)));
    }
}
