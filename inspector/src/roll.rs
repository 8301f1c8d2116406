//! Who belongs to a job: its processes as they come, each once, also when the job gets its name while it is looked at.

use std::collections::{BTreeMap, BTreeSet};

use ccl::recorder::reader::Reader;
use ccl::snapshot::{ProcessSnapshot, Unreachable, runs_text};
use ccl::types::{JobId, Phase, Rank};

use crate::discover::{self, Findings, Found};
use crate::words;

/// The most processes of another user that are met: a recorder may tell of another one each time it is read.
const MOST_OF_ANOTHER: usize = 1 << 9;

/// The processes of a job that were met so far.
#[derive(Debug)]
pub(crate) struct Roll {
    job: JobId,
    met: BTreeSet<(u32, u64, u64)>,
    /// How many of each user.
    of_user: BTreeMap<Option<u32>, usize>,
    /// Those that were met, as others name them: host and pid.
    named: BTreeSet<(String, u32)>,
    /// The ranks that were met, and how many there are.
    ranks: BTreeSet<Rank>,
    nranks: u32,
    /// Whether the root has spoken: from then on the job keeps its name.
    has_name: bool,
    unreachable: Vec<Unreachable>,
}

impl Roll {
    /// Nobody was met yet.
    pub(crate) const fn of(job: JobId) -> Self {
        Self {
            job,
            met: BTreeSet::new(),
            of_user: BTreeMap::new(),
            named: BTreeSet::new(),
            ranks: BTreeSet::new(),
            nranks: 0,
            has_name: false,
            unreachable: Vec::new(),
        }
    }

    /// The job, by its present name: it has one once the root has spoken; until then each rank shows one of its own making.
    pub(crate) const fn job(&self) -> JobId {
        self.job
    }

    /// The processes of the job among what was found that were not met before. Their recorders stay open: so they can be read after
    /// they were unlinked.
    pub(crate) fn newcomers(&mut self, mut findings: Findings) -> Vec<(Found, Reader)> {
        let mut met = findings.found.iter().filter(|one| self.met.contains(&one.who()));
        if let Some(job) = met.find_map(|one| one.renamed(self.job)) {
            (self.job, self.nranks) = (job, 0);
            self.ranks.clear();
        }
        self.unreachable = discover::follow_peers(&mut findings, self.job);
        let mut new = Vec::new();
        for found in findings.found.into_iter().filter(|one| one.is_of(self.job)) {
            let ProcessSnapshot { pid, host, comms, .. } = &found.given.process;
            let (who, name) = (found.who(), (host.clone(), *pid));
            for comm in comms.iter().filter(|comm| comm.job == self.job) {
                self.ranks.insert(comm.world);
                self.nranks = self.nranks.max(comm.nranks);
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
        // Who ended in good order has left no file, but was read.
        let named = &self.named;
        self.unreachable.retain(|lost| !named.contains(&(lost.host.clone(), lost.pid)));
        new
    }

    /// The processes of the job that others name and that cannot be read, each with the reason.
    pub(crate) fn unreachable(&self) -> &[Unreachable] {
        &self.unreachable
    }

    /// Whether another look could tell more: of ranks that were not met, or the name of the job.
    pub(crate) fn is_open(&self) -> bool {
        !self.has_name || !self.missing().is_empty()
    }

    /// Who of the job was not met, a sentence each.
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

/// The ranks up to `nranks` that are not among `met`, as runs, first and last: how many there are said to be is a file's word, and must
/// cost nothing.
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
