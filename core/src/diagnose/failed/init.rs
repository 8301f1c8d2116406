//! Inits that failed: who never came, and what made them fail.

use super::Members;
use crate::diagnose::joining::{checks_in, is_in};
use crate::snapshot::{CommSnapshot, FailureSnapshot, InitSnapshot, State};
use crate::types::{Phase, Rank};

/// What was known of the init of those that failed in it.
pub(super) fn of<'a>(failed: &[&'a CommSnapshot]) -> impl Iterator<Item = &'a InitSnapshot> {
    failed.iter().filter_map(|comm| comm.init.as_ref())
}

/// The ranks that had not come to an init that failed: by the last report of the bootstrap root, or
/// whom those blame that did not learn where to meet. Once all have come, the root does not report.
pub(super) fn never_came(failed: &[&CommSnapshot], cause: Option<&FailureSnapshot>) -> Vec<Rank> {
    let failed_itself = |rank: &Rank| failed.iter().any(|comm| comm.rank == *rank);
    if failed.iter().all(|comm| is_in(comm, Phase::Rendezvous)) {
        return cause
            .and_then(|cause| cause.blamed)
            .filter(|rank| !failed_itself(rank))
            .into_iter()
            .collect();
    }
    let waits: Vec<_> = failed.iter().copied().filter(|comm| is_in(comm, Phase::CheckIn)).collect();
    let told = of(&waits).filter(|init| init.absent.is_some()).min_by_key(|init| init.absent);
    let runs = told.into_iter().flat_map(|init| &init.absent_runs);
    let ranks = runs.flat_map(|(first, last)| first.0..last.0.saturating_add(1)).map(Rank);
    ranks.filter(|rank| !failed_itself(rank)).collect()
}

/// The failure of one rank that made the init fail on the others, as it recorded that itself: of a
/// rank that its own machine kept from the init, or else of the rank that they blame.
pub(super) fn own_cause(
    members: &Members<'_>,
    failed: &[&CommSnapshot],
    cause: Option<&FailureSnapshot>,
) -> Option<FailureSnapshot> {
    let of_blamed = |cause: &FailureSnapshot| {
        let own = members.get(&cause.blamed?)?.1.failure.as_ref()?;
        Some(FailureSnapshot { blamed: cause.blamed, ..own.clone() }).filter(|_| own.blamed.is_none())
    };
    own_lack(failed).or_else(|| of_blamed(cause?))
}

/// The failure of a rank that its own machine kept from an init. The init of the other ranks timed
/// out because of it.
fn own_lack(failed: &[&CommSnapshot]) -> Option<FailureSnapshot> {
    let is_own = |failure: &FailureSnapshot| {
        matches!(failure.error.as_str(), "System" | "Unavailable") && failure.blamed.is_none()
    };
    let of = |row: &&CommSnapshot| Some((row.rank, row.failure.as_ref().filter(|it| is_own(it))?.clone()));
    let others_wait = |row: &&CommSnapshot| row.failure.as_ref().is_some_and(|it| it.error == "Timeout");
    let (rank, failure) =
        failed.iter().find_map(of).filter(|_| failed.len() == 1 || failed.iter().any(others_wait))?;
    Some(FailureSnapshot { blamed: Some(rank), ..failure })
}

/// The ranks that are stopped in an init that timed out on others.
pub(super) fn stopped(members: &Members<'_>) -> Vec<Rank> {
    let stopped = members.iter().filter(|(_, (state, comm))| {
        *state == State::Stopped && !comm.ended && comm.init.is_some() && checks_in(comm)
    });
    stopped.map(|(rank, _)| *rank).collect()
}
