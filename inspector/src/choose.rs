//! Which job is meant.

use std::collections::BTreeMap;
use std::fmt::Write;

use ccl::types::JobId;

use crate::discover::{Findings, Found};
use crate::target::Target;
use crate::{exit, words};

/// The job that `target` means; without one, the only job there is, or the only one alive.
///
/// # Errors
/// The exit status and why no job, or no single one, is meant.
pub(crate) fn choose(findings: &Findings, target: Option<Target>) -> Result<JobId, (u8, String)> {
    let Some(target) = target else { return the_only_one(findings) };
    let jobs: Vec<JobId> = match target {
        Target::Job(job) => {
            findings.found.iter().any(|one| one.is_of(job)).then_some(job).into_iter().collect()
        }
        Target::Process(pid) => {
            let process = one_of(findings, pid);
            let mut jobs =
                process.map(|one| ccl::snapshot::jobs(std::slice::from_ref(&one.given))).unwrap_or_default();
            // It may hold ranks of several jobs; it began with one.
            jobs.sort_by_key(|job| process.is_none_or(|one| one.given.process.job != *job));
            jobs
        }
        Target::RankOf(pid, rank) => {
            let comms = one_of(findings, pid).into_iter().flat_map(|one| &one.given.process.comms);
            comms.filter(|comm| comm.world == rank).map(|comm| comm.job).take(1).collect()
        }
    };
    jobs.first()
        .copied()
        .ok_or_else(|| (exit::ERROR, nothing(findings, &format!("nothing is known of {target}"))))
}

/// Of several with this pid, that of the process which has it, else one that lives; the others are
/// what earlier processes left.
fn one_of(findings: &Findings, pid: u32) -> Option<&Found> {
    let mut those = findings.found.iter().filter(|one| one.is_process(pid)).collect::<Vec<_>>();
    those.sort_by_key(|one| {
        let process = &one.given.process;
        (one.process.is_some(), process.alive, process.made_real_ns)
    });
    those.pop()
}

fn the_only_one(findings: &Findings) -> Result<JobId, (u8, String)> {
    // How many processes, how many of them alive, and when the last one gave a sign of life.
    let mut processes: BTreeMap<JobId, (usize, usize, u64)> = BTreeMap::new();
    for one in &findings.found {
        for job in ccl::snapshot::jobs(std::slice::from_ref(&one.given)) {
            let (all, alive, last) = processes.entry(job).or_default();
            *all += 1;
            *alive += usize::from(one.given.process.alive);
            *last = one.given.process.to_real_ns.max(*last);
        }
    }
    let any_lives = processes.values().any(|(_, alive, _)| *alive > 0);
    processes.retain(|_, (_, alive, _)| *alive > 0 || !any_lives);
    let mut jobs = processes.keys();
    match (jobs.next(), jobs.next()) {
        (None, _) => Err((exit::ERROR, nothing(findings, "there is no job"))),
        (Some(job), None) => Ok(*job),
        (Some(_), Some(_)) => {
            let mut text = "there are several jobs; say which one is meant:".to_string();
            let mut processes: Vec<_> = processes.into_iter().collect();
            processes.sort_by_key(|(_, (.., last))| std::cmp::Reverse(*last));
            for (job, (all, alive, last)) in processes {
                let seconds = ccl::clock::real_ns().saturating_sub(last) / 1_000_000_000;
                // Writing to a string does not fail.
                let _ = write!(
                    text,
                    "\n  {job}  processes: {all}, alive: {alive}, last sign of life: {seconds} s ago"
                );
            }
            Err((exit::USAGE, text))
        }
    }
}

fn nothing(findings: &Findings, what: &str) -> String {
    let folders: Vec<_> = findings.folders.iter().map(|folder| words::path(folder)).collect();
    let folders = if folders.is_empty() { "no runtime folder".to_string() } else { folders.join(" ") };
    let mut text = format!("{what} (searched: the descriptors of living processes; {folders})");
    for (file, why) in &findings.refused {
        let _ = write!(text, "\n  {}: {why}", words::path(file));
    }
    text
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::{CommSnapshot, Given, ProcessSnapshot, Source};
    use ccl::types::Rank;

    use super::*;

    fn found(pid: u32, alive: bool, ranks: &[(u64, u32)]) -> Found {
        let comms = ranks.iter().map(|(job, rank)| CommSnapshot {
            job: JobId(*job),
            world: Rank(*rank),
            ..CommSnapshot::default()
        });
        let process = ProcessSnapshot {
            pid,
            alive,
            job: JobId(ranks.first().map_or(0, |(job, _)| *job)),
            comms: comms.collect(),
            ..ProcessSnapshot::default()
        };
        let given = Given { process, source: Source::Mapping, letter: None };
        Found::of_dump(given, alive.then_some(pid), "f".into())
    }

    fn check(found: Vec<Found>, target: Option<&str>, expect: Result<u64, u8>) {
        let findings = Findings { found, ..Findings::default() };
        let chosen = choose(&findings, target.map(|text| text.parse().unwrap()));
        assert_eq!(
            chosen.as_ref().map(|job| job.0).map_err(|(status, _)| *status),
            expect,
            "{target:?} {chosen:?}"
        );
    }

    #[test]
    fn without_a_target_the_only_living_job_is_meant() {
        check(vec![], None, Err(exit::ERROR));
        check(vec![found(1, true, &[(7, 0)]), found(2, true, &[(7, 1)])], None, Ok(7));
        check(vec![found(1, true, &[(7, 0)]), found(2, false, &[(8, 0)])], None, Ok(7));
        check(vec![found(1, false, &[(7, 0)])], None, Ok(7));
        check(vec![found(1, true, &[(7, 0)]), found(2, true, &[(8, 0)])], None, Err(exit::USAGE));
    }

    #[test]
    fn a_target_names_its_job() {
        let all =
            || vec![found(1, false, &[(6, 0)]), found(1, true, &[(7, 0), (8, 3)]), found(2, true, &[(9, 0)])];
        check(all(), Some("1"), Ok(7));
        let mut renamed = found(5, true, &[(7, 0)]);
        renamed.given.process.job = JobId(99);
        check(vec![renamed], Some("5"), Ok(7));
        check(all(), Some("1:3"), Ok(8));
        check(all(), Some("1:4"), Err(exit::ERROR));
        check(all(), Some("3"), Err(exit::ERROR));
        check(all(), Some("0000000000000009"), Ok(9));
        check(all(), Some("000000000000000a"), Err(exit::ERROR));
    }
}
