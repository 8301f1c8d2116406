//! Failures that a job has recovered from: the processes that live have given the communicator
//! back, or only keep it, and go on in another one. They are remarks; what holds up nobody is no
//! verdict.

use std::collections::BTreeSet;

use crate::diagnose::failed::operations;
use crate::diagnose::standing::INIT;
use crate::diagnose::{comm_name, duration, ranks_text};
use crate::snapshot::{CommSnapshot, Failure, RankSnapshot, State};
use crate::types::{CommId, Rank};

/// Who calls something this long after a failure goes on; sooner, it may be on its way out.
const AFTER_NS: u64 = 1_000_000_000;

/// Takes out the failures that a job has recovered from; returns a remark on each.
///
/// The cause of a failure that stands is kept with that failure.
pub(in crate::diagnose) fn take(ranks: &[RankSnapshot], failures: &mut Vec<Failure>) -> Vec<String> {
    let standing = failures.iter().map(|one| one.comm).filter(|comm| !is_replaced(ranks, *comm));
    let mut kept: BTreeSet<CommId> = standing.collect();
    loop {
        let followed = failures.iter().filter(|one| kept.contains(&one.comm)).filter_map(|one| one.follows);
        let causes: Vec<CommId> = followed.filter(|cause| !kept.contains(cause)).collect();
        if causes.is_empty() {
            break;
        }
        kept.extend(causes);
    }
    failures.extract_if(.., |one| !kept.contains(&one.comm)).map(|one| remark(&one)).collect()
}

/// Whether all processes that may live have given the communicator back, or have called something
/// in another one since it failed, and one of those that were in it goes on in another. While that
/// one is in init, it is not there yet. Who could not make it had nothing to give back: there one
/// that has called something since is enough. Where all have ended, all that saw the failure must
/// have called something since, and have been killed.
fn is_replaced(ranks: &[RankSnapshot], comm: CommId) -> bool {
    let was_in = |rank: &&RankSnapshot| !rank.is_gone() && rank.comms.iter().any(|row| row.id == comm);
    let is_sound = |row: &&CommSnapshot| !row.ended && !row.has_failed() && row.init.is_none();
    let goes_on = |rank: &RankSnapshot| {
        matches!(rank.state, State::Running | State::Stopped) && rank.comms.iter().any(|row| is_sound(&row))
    };
    let has_called = |rank: &RankSnapshot, ago_ns: u64, after_ns: u64| {
        let mut ops = rank.comms.iter().filter(is_sound).flat_map(operations);
        ops.any(|op| !op.kind.is_empty() && op.age_ns.saturating_add(after_ns) <= ago_ns)
    };
    let is_past = |rank: &RankSnapshot| {
        let mut rows = rank.comms.iter().filter(|row| row.id == comm);
        rows.all(|row| {
            row.ended
                || row.failure.as_ref().is_some_and(|failure| has_called(rank, failure.age_ns, AFTER_NS))
        })
    };
    let those = || ranks.iter().filter(was_in);
    let rows = ranks.iter().flat_map(|rank| rank.comms.iter().map(move |row| (rank, row)));
    let in_init = rows.filter(|(_, row)| row.id == comm && row.init.is_some());
    let mut given_up = in_init.filter_map(|(rank, row)| Some((rank, row.failure.as_ref()?))).peekable();
    if given_up.peek().is_some() {
        return given_up.any(|(rank, failure)| has_called(rank, failure.age_ns, 0));
    }
    if ranks.iter().all(RankSnapshot::is_gone) {
        // Those that it failed on called something in another one, and were killed later: one that
        // exits may do so because of the failure.
        let saw_it = |row: &&CommSnapshot| row.id == comm && row.has_failed();
        let failed = || ranks.iter().filter(|rank| rank.comms.iter().any(|row| saw_it(&row)));
        let went_on = |rank: &RankSnapshot| {
            let ago = |row: &CommSnapshot| row.failure.as_ref().map(|failure| failure.age_ns);
            rank.comms
                .iter()
                .filter(saw_it)
                .all(|row| ago(row).is_some_and(|ago_ns| has_called(rank, ago_ns, AFTER_NS)))
        };
        return failed().next().is_some() && failed().all(|rank| rank.state == State::Dead && went_on(rank));
    }
    those().all(is_past) && those().any(goes_on)
}

/// `world failed (Peer, by rank 3); the ranks that were left went on in other communicators`.
fn remark(failure: &Failure) -> String {
    let name = comm_name(&failure.name, failure.comm);
    if failure.op == INIT {
        let who = match failure.missing.as_slice() {
            [] => failure.error.clone(),
            some => format!("{} of it never came", ranks_text(some)),
        };
        let ago = duration(failure.since_ns);
        return format!(
            "the init of {name} failed {ago} ago ({who}); its ranks went on in other communicators"
        );
    }
    let culprits: Vec<Rank> = failure.culprits.iter().map(|one| one.rank).collect();
    let by = match culprits.as_slice() {
        [] => String::new(),
        some => format!(", by {}", ranks_text(some)),
    };
    format!("{name} failed ({}{by}); the ranks that were left went on in other communicators", failure.error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::failed::failed;
    use crate::snapshot::{FailureSnapshot, InitSnapshot};

    /// Ranks 0 to 3, of which 3 died in the first communicator; the others have given it back, and
    /// have made the second one.
    fn job() -> Vec<RankSnapshot> {
        let row = |id, at| CommSnapshot { id: CommId(id), rank: Rank(at), ..CommSnapshot::default() };
        let failure =
            || FailureSnapshot { error: "Peer".into(), blamed: Some(Rank(3)), ..FailureSnapshot::default() };
        let left = |at| CommSnapshot { ended: true, failure: Some(failure()), ..row(1, at) };
        let rank = |at, state, comms| RankSnapshot { rank: Rank(at), state, comms, ..Default::default() };
        let lives = |at| rank(at, State::Running, vec![left(at), row(2, at)]);
        (0..3).map(lives).chain([rank(3, State::Dead, vec![row(1, 3)])]).collect()
    }

    /// The communicators whose failures are told after this change of the job.
    fn check(change: &dyn Fn(&mut [RankSnapshot]), told: &[u64]) {
        let mut ranks = job();
        change(&mut ranks);
        let mut failures = failed(&ranks);
        let before = failures.len();
        let remarks = take(&ranks, &mut failures);
        assert_eq!(failures.iter().map(|one| one.comm.0).collect::<Vec<_>>(), told, "{failures:?}");
        assert_eq!(remarks.len(), before - told.len(), "{remarks:?}");
    }

    #[test]
    fn a_failure_is_told_until_those_that_live_have_another_communicator_in_its_place() {
        check(&|_| {}, &[]);
        check(&|ranks| ranks[1].comms[0].ended = false, &[1]);
        // Rank 1 keeps it, and called the other one 7 s after the failure, or half a second.
        for (ago_ns, told) in [(2_000_000_000, &[][..]), (8_500_000_000, &[1])] {
            let keeps = |ranks: &mut [RankSnapshot]| {
                let [kept, other] = &mut ranks[1].comms[..] else { unreachable!() };
                kept.ended = false;
                kept.failure.as_mut().unwrap().age_ns = 9_000_000_000;
                (other.op.kind, other.op.age_ns) = ("AllReduce".into(), ago_ns);
            };
            check(&keeps, told);
        }
        check(&|ranks| ranks.iter_mut().for_each(|rank| rank.comms.truncate(1)), &[1]);
        let of_second = |change: fn(&mut CommSnapshot)| {
            move |ranks: &mut [RankSnapshot]| ranks[..3].iter_mut().for_each(|one| change(&mut one.comms[1]))
        };
        check(&of_second(|row| row.ended = true), &[1]);
        check(&of_second(|row| row.init = Some(InitSnapshot::default())), &[1]);
        // All are dead, and had called something in the other one.
        let called = |ranks: &mut [RankSnapshot]| {
            for rank in ranks {
                rank.state = State::Dead;
                if let [kept, other] = &mut rank.comms[..] {
                    kept.ended = false;
                    kept.failure.as_mut().unwrap().age_ns = 9_000_000_000;
                    (other.op.kind, other.op.age_ns) = ("AllReduce".into(), 2_000_000_000);
                }
            }
        };
        check(&called, &[]);
        check(&|ranks| ranks.iter_mut().for_each(|rank| rank.state = State::Dead), &[1]);
        check(&|ranks| ranks.iter_mut().for_each(|rank| rank.state = State::Unknown), &[1]);
    }

    #[test]
    fn who_calls_something_after_an_init_that_failed_goes_on() {
        let in_init = |ago_ns: u64| {
            move |ranks: &mut [RankSnapshot]| {
                ranks.iter_mut().for_each(|rank| rank.comms[0].init = Some(InitSnapshot::default()));
                for rank in &mut ranks[..3] {
                    rank.comms[0].failure.as_mut().unwrap().age_ns = 9_000_000_000;
                    (rank.comms[1].op.kind, rank.comms[1].op.age_ns) = ("AllReduce".into(), ago_ns);
                }
            }
        };
        check(&in_init(2_000_000_000), &[]);
        check(&in_init(20_000_000_000), &[1]);
    }

    #[test]
    fn what_caused_a_failure_that_stands_is_told_with_it() {
        let fails = |ranks: &mut [RankSnapshot], comm: u64| {
            // The dead one was missed in the first.
            (ranks[3].comms[0].op.kind, ranks[3].comms[0].op.age_ns) = ("Barrier".into(), 9);
            let failure = ranks[0].comms[0].failure.clone();
            let id = CommId(comm);
            let row = |rank: &RankSnapshot| CommSnapshot { id, rank: rank.rank, ..CommSnapshot::default() };
            for rank in ranks {
                let failure = failure.clone().filter(|_| rank.state == State::Running);
                rank.comms.push(CommSnapshot { failure, ..row(rank) });
            }
        };
        check(&|ranks| fails(ranks, 5), &[1, 5]);
    }
}
