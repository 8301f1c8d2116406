//! What keeps ranks from `shrink()`: calls of other communicators.

use std::fmt::Write as _;

use super::{plural, ranks_text};
use crate::diagnose::{call_name, comm_name};
use crate::snapshot::{NotJoined, Snapshot};
use crate::types::Rank;

/// The calls in which ranks wait for some that wait in the `shrink()` that makes `one`: they come
/// to it when these calls end, and so never, unless the communicator is revoked.
pub(super) fn not_coming(out: &mut String, job: &Snapshot, one: &NotJoined) {
    let there = job.job_ranks(one.comm, &one.by);
    for wait in &job.blocked_on {
        let culprits = wait.culprits.iter().map(|culprit| culprit.rank);
        let held: Vec<Rank> = culprits.filter(|rank| there.contains(rank)).collect();
        if held.is_empty() {
            continue;
        }
        let waits = if held.len() == 1 { "waits" } else { "wait" };
        let _ = writeln!(
            out,
            "  {} in {} of {} for {}, which {waits} in shrink(): revoke a communicator before its ranks shrink another",
            plural(&job.job_ranks(wait.comm, &wait.by), "waits", "wait"),
            call_name(&wait.op, wait.seq),
            comm_name(&wait.name, wait.comm),
            ranks_text(&held),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{BlockedOn, CommSnapshot, Culprit, RankSnapshot, State};
    use crate::types::CommId;

    #[test]
    fn a_rank_that_waits_elsewhere_for_one_in_shrink_is_told_with_that_call() {
        let row = |id, rank| CommSnapshot { id: CommId(id), rank: Rank(rank), ..CommSnapshot::default() };
        let rank = |at, comms| RankSnapshot {
            rank: Rank(at),
            state: State::Running,
            comms,
            ..RankSnapshot::default()
        };
        // Ranks 0 and 3 make the third communicator, in which 3 is the last; 1 waits for 3 in the
        // second.
        let ranks = vec![
            rank(0, vec![row(1, 0), row(3, 0)]),
            rank(1, vec![row(2, 0)]),
            rank(3, vec![row(2, 1), row(3, 2)]),
        ];
        let wait = BlockedOn {
            comm: CommId(2),
            name: "data".into(),
            op: "AllReduce".into(),
            seq: 5,
            missing: vec![Rank(1)],
            by: vec![Rank(0)],
            culprits: vec![Culprit { rank: Rank(3), ..Culprit::default() }],
            ..BlockedOn::default()
        };
        let one = NotJoined { comm: CommId(3), by: vec![Rank(0), Rank(2)], ..NotJoined::default() };
        let mut job = Snapshot { ranks, blocked_on: vec![wait], ..Snapshot::default() };
        let said = |job: &Snapshot| {
            let mut out = String::new();
            not_coming(&mut out, job, &one);
            out
        };
        assert_eq!(
            said(&job),
            "  rank 1 waits in AllReduce #5 of data for rank 3, which waits in shrink(): revoke a communicator before its ranks shrink \
             another\n"
        );
        // It waits for another rank.
        job.blocked_on[0].culprits[0].rank = Rank(2);
        assert_eq!(said(&job), "");
    }
}
