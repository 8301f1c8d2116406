//! Jobs that were ended while ranks waited: what `kill -9` of all processes leaves, one by one.
//! Those that are ended last see the first ones die, and record that. It was not what they waited
//! for.
//!
//! The clocks of two kernels differ, so each process is compared with the last sign on its own.

use std::collections::{BTreeMap, BTreeSet};

use super::standing::{CLEARLY_NS, suspect_ns};
use crate::diagnose::blocked::blocked_on;
use crate::diagnose::verdict::told;
use crate::snapshot::{BlockedOn, CommSnapshot, Failure, OpSnapshot, OpState, RankSnapshot, State};
use crate::types::{CommId, Rank};

/// Waits that were of concern had another cause than the end of the processes.
const fn is_long(since_ns: u64, p99_ns: u64) -> bool {
    since_ns >= suspect_ns(p99_ns, u64::MAX)
}

/// Whom the ranks of one job waited for before their processes were ended, if all of them were,
/// those of each host together, and each failure is a death seen in that last moment by a rank that
/// had waited for long.
///
/// If some ranks left after the failure, the death ended the job. It may also have done so if
/// nothing is known of the process that died first. Then the wait is told only if it was for
/// another process.
pub(super) fn waited(ranks: &[RankSnapshot], failures: &[Failure]) -> Option<Vec<BlockedOn>> {
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    for rank in ranks {
        let end = ends.entry(kernel(rank)).or_default();
        *end = rank.to_real_ns.max(*end);
    }
    let moment = |rank: &RankSnapshot| ends[kernel(rank)].saturating_sub(CLEARLY_NS);
    let first = failures.first()?;
    let is_of_end = |one: &Failure| {
        let dead: Vec<&RankSnapshot> = processes(ranks, one.comm, &one.blamed).collect();
        // A link that failed is nobody's death.
        one.error == "Peer"
            && !one.blamed.is_empty()
            && is_long(one.lasted_ns, 0)
            // Nothing is known of a process whose file is lost, and who was stopped gave no sign.
            && dead.iter().all(|rank| rank.to_real_ns >= moment(rank) || told::of(ranks, rank).is_some())
    };
    let is_together = ranks.iter().all(|rank| rank.is_gone() && rank.to_real_ns > 0);
    if !is_together || !failures.iter().filter(|one| one.follows.is_none()).all(is_of_end) {
        return None;
    }
    let before: Vec<RankSnapshot> =
        ranks.iter().map(|rank| before(rank, moment(rank))).collect::<Option<_>>()?;
    let waits = blocked_on(&before);
    let one = waits.first().filter(|one| is_long(one.since_ns, one.p99_ns))?;
    let held: Vec<_> = one.missing.iter().chain(&one.inside).copied().collect();
    let pids = |comm: CommId, those: &[Rank]| {
        processes(ranks, comm, those).map(|rank| rank.pid).collect::<BTreeSet<_>>()
    };
    let (held, blamed) = (pids(one.comm, &held), pids(first.comm, &first.blamed));
    let is_dead = || !blamed.is_empty() && ranks.iter().all(|rank| rank.state == State::Dead);
    // Where all wait for each other, a message was on its way or lost.
    (is_dead() || !held.is_empty() && held.is_disjoint(&blamed)).then_some(waits)
}

/// The kernel whose clock a process has.
pub(super) fn kernel(rank: &RankSnapshot) -> &str {
    if rank.boot_id.is_empty() { &rank.host } else { &rank.boot_id }
}

/// The processes of these ranks of a communicator.
fn processes<'a>(
    ranks: &'a [RankSnapshot],
    comm: CommId,
    those: &'a [Rank],
) -> impl Iterator<Item = &'a RankSnapshot> {
    let is_one = move |row: &CommSnapshot| row.id == comm && those.contains(&row.rank);
    ranks.iter().filter(move |rank| rank.comms.iter().any(is_one))
}

/// A rank before what failed since that moment had failed; `None` if something failed before.
fn before(rank: &RankSnapshot, moment: u64) -> Option<RankSnapshot> {
    let is_since = |age_ns: u64| rank.to_real_ns.saturating_sub(age_ns) >= moment;
    let mut rank = RankSnapshot { state: State::Dead, ..rank.clone() };
    for comm in &mut rank.comms {
        let failure = comm.failure.take();
        comm.ended &= failure.is_none();
        let runs = |op: &mut OpSnapshot| {
            let failed_ns = op.age_ns;
            op.state = OpState::Running;
            op.age_ns = failed_ns.saturating_add(op.lasted_ns);
            failed_ns
        };
        let operations = std::iter::once(&mut comm.op).chain(&mut comm.p2p);
        let failed = operations.filter(|op| op.state == OpState::Failed).map(runs);
        let ages: Vec<u64> = failed.chain(failure.map(|failure| failure.age_ns)).collect();
        if !ages.into_iter().all(is_since) {
            return None;
        }
    }
    Some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{
        Class, Culprit, FailureSnapshot, OpWait, Reason, StallTold, Standing, Verdict, Waits,
    };

    const SECOND: u64 = 1_000_000_000;

    /// A rank of a communicator of two: idle before call 5, or failed in it
    /// after it had waited for a rank.
    fn row(id: u64, rank: u32, waited: Option<(u32, u64)>) -> CommSnapshot {
        let mut op = OpSnapshot { kind: "Barrier".into(), seq: 4, called: 4, ..OpSnapshot::default() };
        (op.completed, op.age_ns, op.state) = (4, 9 * SECOND, OpState::Idle);
        let mut comm = CommSnapshot { id: CommId(id), rank: Rank(rank), nranks: 2, op, ..Default::default() };
        if let Some((peer, lasted_ns)) = waited {
            let wait =
                OpWait { waits: Waits::Peer, peer: Rank(peer), since_ns: lasted_ns, ..OpWait::default() };
            let op = &mut comm.op;
            (op.seq, op.called, op.state, op.error) = (5, 5, OpState::Failed, "Peer".into());
            (op.age_ns, op.lasted_ns, op.wait) = (1_000, lasted_ns, Some(wait));
            let (error, blamed, text) = ("Peer".into(), Some(Rank(peer)), "it ended".into());
            comm.failure = Some(FailureSnapshot { error, blamed, text, age_ns: 1_000 });
        }
        comm
    }

    /// Processes 0 to 2: 1 waits for 0, which is absent, and 2 for 1.
    fn job(waited_ns: u64) -> Vec<RankSnapshot> {
        let mut first = row(1, 1, Some((0, waited_ns)));
        (first.failure, first.op.state, first.op.error) = (None, OpState::Running, String::new());
        let comms =
            [vec![row(1, 0, None)], vec![first, row(2, 0, None)], vec![row(2, 1, Some((0, waited_ns)))]];
        let rank = |(at, comms): (u32, Vec<CommSnapshot>)| RankSnapshot {
            rank: Rank(at),
            pid: 70 + at,
            state: State::Dead,
            comms,
            to_real_ns: 100 * SECOND - u64::from(at),
            ..RankSnapshot::default()
        };
        (0..).zip(comms).map(rank).collect()
    }

    fn held(ranks: &[RankSnapshot]) -> Option<(u64, Vec<u32>)> {
        waited_for(ranks, &[Rank(0)])
    }

    fn waited_for(ranks: &[RankSnapshot], blamed: &[Rank]) -> Option<(u64, Vec<u32>)> {
        let failures = crate::diagnose::failed::failed(ranks);
        assert_eq!((failures.len(), failures[0].blamed.as_slice()), (1, blamed), "{failures:?}");
        let waits = waited(ranks, &failures)?;
        Some((waits[0].comm.0, waits[0].missing.iter().map(|rank| rank.0).collect()))
    }

    #[test]
    fn who_died_in_the_same_kill_is_not_the_one_that_was_waited_for() {
        let held_by_first = Some((1, vec![0]));
        assert_eq!(held(&job(2 * SECOND)), held_by_first);
        // Some ranks left: they failed by the death, but had waited for another.
        let mut left = job(2 * SECOND);
        left[2].state = State::Exited;
        assert_eq!(held(&left), held_by_first);
        // The file of the one that died first is lost, and the one that was waited for is there.
        let mut lost = job(2 * SECOND);
        lost.remove(2);
        let mut last = row(1, 1, Some((0, 2 * SECOND)));
        last.failure = Some(FailureSnapshot { blamed: Some(Rank(2)), ..last.failure.unwrap() });
        lost[1].comms = vec![last];
        assert_eq!(waited_for(&lost, &[Rank(2)]), held_by_first);
        // On two hosts, whose clocks differ.
        let mut apart = job(2 * SECOND);
        apart[0].host = "b".into();
        apart[0].to_real_ns -= 7 * SECOND;
        assert_eq!(held(&apart), held_by_first);
    }

    #[test]
    fn a_death_that_ended_the_job_is_told_as_one() {
        assert_eq!(held(&job(SECOND / 2)), None, "nobody had waited for long");
        let check = |change: &dyn Fn(&mut Vec<RankSnapshot>), what: &str| {
            let mut ranks = job(2 * SECOND);
            change(&mut ranks);
            assert_eq!(held(&ranks), None, "{what}");
        };
        check(&|ranks| ranks[0].state = State::Running, "one lives");
        check(&|ranks| ranks[1].to_real_ns -= 3 * SECOND, "it was silent before");
        check(&|ranks| ranks[0].to_real_ns += 3 * SECOND, "they ended one after another");
        // It was stopped, as a watchdog told, and died with the others.
        let process = |at| Culprit { rank: Rank(at), ..Culprit::default() };
        let mut stopped = job(2 * SECOND);
        stopped[1].to_real_ns -= 5 * SECOND;
        assert_eq!(held(&stopped), None);
        stopped[2].facts.stall = Some(StallTold {
            standing: Standing::Stalled,
            class: Class::StuckLocal,
            reason: Reason::Stopped,
            key: Verdict { culprits: vec![process(1)], ..Verdict::default() }.key(),
            ..StallTold::default()
        });
        assert_eq!(held(&stopped), Some((1, vec![0])));
        // The rank that was waited for died, and the others left.
        let mut alone = job(2 * SECOND);
        alone.truncate(2);
        alone[1].comms = vec![row(1, 1, Some((0, 2 * SECOND)))];
        assert_eq!(held(&alone), Some((1, vec![0])));
        alone[1].state = State::Exited;
        assert_eq!(held(&alone), None);
        // Its file is lost.
        alone[1].state = State::Dead;
        alone.remove(0);
        assert_eq!(held(&alone), None);
    }

    #[test]
    fn a_wait_that_is_usual_was_not_what_ended_the_job() {
        let usual = |p99_ns| {
            let mut ranks = job(2 * SECOND);
            ranks.iter_mut().flat_map(|rank| &mut rank.comms).for_each(|comm| comm.op.p99_ns = p99_ns);
            held(&ranks)
        };
        assert!(usual(SECOND / 8).is_some());
        assert_eq!(usual(SECOND), None);
    }

    #[test]
    fn a_link_that_failed_is_no_death_of_the_end() {
        let mut ranks = job(2 * SECOND);
        ranks.truncate(2);
        let mut last = row(1, 1, Some((0, 2 * SECOND)));
        last.failure = Some(FailureSnapshot { blamed: None, ..last.failure.unwrap() });
        ranks[1].comms = vec![last];
        assert_eq!(waited_for(&ranks, &[]), None);
    }
}
