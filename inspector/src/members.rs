//! The members of a job: each process once, as they appear, while the job gets its name and makes
//! more communicators.

use std::collections::{BTreeMap, BTreeSet};

use ccl::diagnose::{Job, Unreachable, runs_text};
use ccl::recorder::reader::Reader;
use ccl::snapshot::ProcessSnapshot;
use ccl::types::{Phase, Rank};

use crate::discover::{self, Findings, Found};
use crate::words;

/// The most processes of another user that are met.
///
/// A recorder may name further processes each time it is read.
const MOST_OF_ANOTHER: usize = 1 << 9;

/// The processes of a job that were met so far.
#[derive(Debug)]
pub(crate) struct JobMembers {
    job: Job,
    met: BTreeSet<(u32, u64, u64)>,
    /// The number of processes of each user.
    of_user: BTreeMap<Option<u32>, usize>,
    /// The processes that were met, as their peers name them: host and pid.
    named: BTreeSet<(String, u32)>,
    /// The ranks of the largest communicator that were met, and the number of its ranks.
    ranks: BTreeSet<Rank>,
    nranks: u32,
    /// Whether the root has answered: from then on the job keeps its name.
    has_name: bool,
    unreachable: Vec<Unreachable>,
}

impl JobMembers {
    /// No process was met yet.
    pub(crate) fn of(job: impl Into<Job>) -> Self {
        Self {
            job: job.into(),
            met: BTreeSet::new(),
            of_user: BTreeMap::new(),
            named: BTreeSet::new(),
            ranks: BTreeSet::new(),
            nranks: 0,
            has_name: false,
            unreachable: Vec::new(),
        }
    }

    /// The job, as it is known now.
    ///
    /// It has its name as soon as the root has answered; until then each rank shows one of its own
    /// making.
    pub(crate) const fn job(&self) -> &Job {
        &self.job
    }

    /// The processes of the job among the findings that were not met before.
    ///
    /// Their recorders stay open, so that they can be read after they were unlinked.
    pub(crate) fn newcomers(&mut self, mut findings: Findings) -> Vec<(Found, Reader)> {
        self.learn(&findings);
        self.unreachable = discover::follow_peers(&mut findings, &self.job);
        let mut new = Vec::new();
        for found in findings.found.into_iter().filter(|one| one.is_of(&self.job)) {
            let ProcessSnapshot { pid, host, .. } = &found.given.process;
            let (who, name) = (found.who(), (host.clone(), *pid));
            for comm in self.job.rows(&found.given.process) {
                if comm.job == self.job.id {
                    self.ranks.insert(comm.world);
                    self.nranks = self.nranks.max(comm.nranks);
                }
                let check_in = Phase::CheckIn.to_string();
                self.has_name |= comm.phases.iter().any(|phase| phase.phase == check_in);
            }
            if self.met.contains(&who) {
                continue;
            }
            let of_user = self.of_user.entry(found.owner).or_default();
            if found.is_anothers() && *of_user == MOST_OF_ANOTHER {
                continue;
            }
            match found.open() {
                Ok(reader) => {
                    *of_user += 1;
                    self.met.insert(who);
                    self.named.insert(name);
                    new.push((found, reader));
                }
                // It may have ended since it was found.
                Err(why) => {
                    let (host, pid) = name;
                    let (recorder, why) = (words::path(&found.file), words::line(&why.to_string()));
                    self.unreachable.push(Unreachable { host, pid, recorder, why });
                }
            }
        }
        // A process that ended in good order has left no file, but it was read before.
        let named = &self.named;
        self.unreachable.retain(|lost| !named.contains(&(lost.host.clone(), lost.pid)));
        new
    }

    /// Learns by which ids the job is known now.
    fn learn(&mut self, findings: &Findings) {
        let met = |job: &Job| {
            let of_it = findings.found.iter().filter(|one| one.is_of(job));
            of_it.filter(|one| self.met.contains(&one.who())).count()
        };
        let is_it = |job: &Job| met(job) > 0 || job.ids.iter().any(|id| self.job.is_named(*id));
        let jobs = findings
            .jobs()
            .into_iter()
            .filter(|job| self.job.owner.is_none_or(|_| job.owner == self.job.owner));
        let Some(mut job) = jobs.filter(is_it).max_by_key(met) else { return };
        // What has ended since is known under the ids that it had. An id that was only shown until
        // the root answered names nothing any more.
        if job.is_named(self.job.id) {
            job.ids.extend(&self.job.ids);
        }
        if job.id != self.job.id {
            self.nranks = 0;
            self.ranks.clear();
        }
        self.job = job;
    }

    /// The processes of the job that others name and that cannot be read, each with the reason.
    pub(crate) fn unreachable(&self) -> &[Unreachable] {
        &self.unreachable
    }

    /// Whether another look could find more: ranks that were not met, or the name of the job.
    pub(crate) fn is_open(&self) -> bool {
        !self.has_name || !self.missing().is_empty()
    }

    /// The members of the job that were not met, a sentence each.
    pub(crate) fn missing(&self) -> Vec<String> {
        let lost = self.unreachable.iter();
        let mut missing: Vec<String> =
            lost.map(|one| words::line(&format!("pid {} on {}: {}", one.pid, one.host, one.why))).collect();
        let absent = absent(&self.ranks, self.nranks);
        if missing.is_empty() && !absent.is_empty() {
            missing.push(format!("{}: not found on this machine", runs_text(&absent)));
        }
        missing
    }
}

/// The ranks up to `nranks` that are not among `met`, as runs (first and last).
///
/// `nranks` is a claim of a file, so a large number must not cost anything.
fn absent(met: &BTreeSet<Rank>, nranks: u32) -> Vec<(u32, u32)> {
    let mut next = 0;
    let mut runs = Vec::new();
    for end in met.iter().map(|rank| rank.0.min(nranks)).chain([nranks]) {
        if next < end {
            runs.push((next, end - 1));
        }
        next = end.saturating_add(1);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_were_not_met_cost_no_more_than_those_that_were() {
        let check = |met: &[u32], nranks: u32, expect: &[(u32, u32)]| {
            let met = met.iter().copied().map(Rank).collect();
            assert_eq!(absent(&met, nranks), expect, "{met:?} of {nranks}");
        };
        check(&[], 0, &[]);
        check(&[0, 1, 2], 3, &[]);
        check(&[1, 5], 8, &[(0, 0), (2, 4), (6, 7)]);
        check(&[0, 7, 9], 4, &[(1, 3)]);
        check(&[0], u32::MAX, &[(1, u32::MAX - 1)]);
        check(&[u32::MAX], u32::MAX, &[(0, u32::MAX - 1)]);
    }
}
