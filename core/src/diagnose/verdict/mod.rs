//! Verdicts: from what failed, who has not joined and who blocks others to what is wrong, whose
//! fault it is and what to do next.
//!
//! A failure is a verdict at once. A wait is judged once it has lasted for a second: suspect at
//! first, stalled as soon as a later reading shows the same wait. Where the culprit is only late,
//! or nobody is known to be at fault, it is suspect once it has lasted for much longer than such
//! operations take, and stalled after `CCL_STALL_AFTER`: a checkpoint on one rank is no fault. Dead
//! processes are read once, as nothing changes there any more.
//!
//! Each culprit is judged by what its own process shows first: it has ended, it is stopped, it
//! starves. Only where nothing is wrong with the process itself, the waits decide: it waits for
//! those who wait for it, it has not called, or the link between them does not answer.

mod circle;
mod failed;
mod joining;
mod link;
mod next;
mod passed;
mod process;
mod sentence;
mod slow;
pub(super) mod told;
mod waiting;

use std::collections::BTreeMap;

use super::suspect_ns;
use crate::snapshot::{Class, Confidence, Culprit, RankSnapshot, Reason, Snapshot, Standing, Verdict};
use crate::types::{BlameHash, CommId, Rank};

/// From when on a dead process that nobody has noticed, or one that cannot go on in an init, is a
/// stall: sooner, the job may be ending, or others may just have come.
const SETTLED_NS: u64 = 3_000_000_000;

/// What is wrong with a job, the first to be told first.
///
/// `before` is an earlier reading of the same job, if it was read twice; `stall_ns` is
/// `CCL_STALL_AFTER`.
#[must_use]
pub fn verdicts(job: &Snapshot, before: Option<&Snapshot>, stall_ns: u64) -> Vec<Verdict> {
    let mut found = failed::verdicts(job);
    let has_failed = !found.is_empty();
    found.extend(joining::verdicts(job, stall_ns));
    found.extend(waiting::verdicts(job, before, stall_ns));
    // A stopped process is said once, with those that wait for it.
    let known: Vec<Culprit> = found.iter().flat_map(|verdict| verdict.culprits.clone()).collect();
    // What the end of all processes did to operations says nothing of what was slow before.
    if !has_failed || job.is_over() {
        let judged: Vec<CommId> = found.iter().map(|verdict| verdict.comm).collect();
        found.extend(link::slow(job, &judged));
        found.extend(slow::verdicts(job));
    }
    found.extend(process::idle(job).into_iter().filter(|one| !known.contains(&one.culprits[0])));
    if found.is_empty() {
        found = process::all_dead(job);
    }
    for verdict in &mut found {
        if verdict.reason == Reason::Oom && process::is_logged(job, &verdict.culprits) {
            verdict.confidence = Confidence::Certain;
        }
        verdict.next = next::steps(job, verdict);
    }
    // A stopped process that nobody waits for does not hold the job up.
    let is_idle = |one: &Verdict| one.class == Class::StuckLocal && one.victims.is_empty();
    found.sort_by_key(|one| (std::cmp::Reverse(one.standing == Standing::Stalled), is_idle(one), one.class));
    found
}

impl Verdict {
    /// A hash of those who are to blame.
    pub(crate) fn key(&self) -> BlameHash {
        key_of(self.culprits.iter().map(|one| one.rank))
    }
}

/// A hash of these ranks of a job.
fn key_of(ranks: impl IntoIterator<Item = Rank>) -> BlameHash {
    let who: Vec<u8> = ranks.into_iter().flat_map(|rank| rank.0.to_le_bytes()).collect();
    BlameHash(xxhash_rust::xxh3::xxh3_64(&who))
}

impl Snapshot {
    /// Judges the job anew: see [`verdicts`].
    pub fn judge(&mut self, before: Option<&Self>, stall_ns: u64) {
        if let Some(before) = before {
            self.measure(before);
        }
        self.verdicts = verdicts(self, before, stall_ns);
    }

    /// Says of processes whose counters two readings have what happened between these.
    fn measure(&mut self, before: &Self) {
        let known = before.ranks.iter().filter_map(|one| Some((one.process(), one.facts.load?)));
        let known: BTreeMap<_, _> = known.collect();
        for rank in self.ranks.iter_mut().filter(|rank| rank.facts.is_starved.is_none()) {
            if let (Some(before), Some(now)) = (known.get(&rank.process()), rank.facts.load) {
                rank.facts.measure(before, &now);
            }
        }
    }

    /// Names the culprits of each verdict as `ranks` do, and its commands anew.
    ///
    /// For a job from a file, which may name any process and hold any command.
    pub fn renew_steps(&mut self) {
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let ranks: BTreeMap<Rank, &RankSnapshot> = self.ranks.iter().map(|one| (one.rank, one)).collect();
        for verdict in &mut verdicts {
            for culprit in &mut verdict.culprits {
                if let Some(rank) = ranks.get(&culprit.rank) {
                    *culprit = process::culprit(rank);
                }
            }
            verdict.next = next::steps(self, verdict);
        }
        self.verdicts = verdicts;
    }

    /// Whether ranks called different operations.
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.class == Class::Mismatch)
    }

    /// Whether a verdict stands that is more than a suspicion.
    #[must_use]
    pub fn has_stalled(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.standing == Standing::Stalled)
    }

    /// Whether a second reading could tell more: a wait is long enough to be judged.
    #[must_use]
    pub fn wants_second_reading(&self, stall_ns: u64) -> bool {
        !self.is_over() && self.blocked_on.iter().any(|one| one.since_ns >= suspect_ns(0, stall_ns))
    }
}

impl RankSnapshot {
    /// Its process among those of the job.
    fn process(&self) -> (String, u32, String) {
        (self.host.clone(), self.pid, self.recorder.clone())
    }
}

/// Culprits by what is wrong with each: one verdict for each group.
#[derive(Default)]
struct Groups(BTreeMap<(Class, Reason), Vec<Culprit>>);

impl Groups {
    fn add(&mut self, what: (Class, Reason), culprit: Culprit) {
        self.0.entry(what).or_default().push(culprit);
    }
}

/// `rank 3 (pid 71 on a)`, or `ranks 0-2`.
fn named(culprits: &[Culprit]) -> String {
    match culprits {
        [one] if one.pid != 0 => format!("rank {} (pid {} on {})", one.rank, one.pid, one.host),
        all => super::ranks_text(&all.iter().map(|one| one.rank).collect::<Vec<Rank>>()),
    }
}

/// The verb that fits the number of culprits.
const fn verb<'a>(count: usize, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

#[cfg(test)]
mod tests;
