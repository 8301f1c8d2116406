//! Chooses the job that a user means.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use ccl::clock;
use ccl::config::Settings;
use ccl::diagnose::{Given, call_name, duration, jobs};
use ccl::snapshot::{CommSnapshot, OpState};
use ccl::types::JobId;

use crate::discover::{self, Findings, Found};
use crate::target::Target;
use crate::{exit, process, words};

/// How long a job may take from its launch until its first rank has a recorder.
const STARTS_WITHIN: Duration = Duration::from_secs(2);
/// The time between two looks for that recorder.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Everything on this kernel, and the job in it that `target` means.
///
/// A job that has only just been started is waited for.
///
/// # Errors
/// As [`choose`].
pub(crate) fn find(settings: &Settings, target: Option<Target>) -> Result<(Findings, JobId), (u8, String)> {
    let deadline = clock::now().after(STARTS_WITHIN);
    loop {
        let findings = discover::everything(settings);
        let chosen = choose(&findings, target);
        if !may_start(&findings, target, &chosen) || clock::now() >= deadline {
            return chosen.map(|job| (findings, job));
        }
        clock::sleep(LOOK_EVERY);
    }
}

/// Whether the job that is meant may appear in a moment.
fn may_start(findings: &Findings, target: Option<Target>, chosen: &Result<JobId, (u8, String)>) -> bool {
    match (chosen, target) {
        (Err((exit::ERROR, _)), None) => true,
        // With no target, any launch whose ranks have no recorder yet is waited for, but only while
        // no process with a recorder lives: if two command lines are pasted together and the first
        // starts a job, recorders that earlier jobs left are not meant.
        (_, None) => {
            let lives = findings.found.iter().any(|one| one.given.process.alive);
            !lives && launchers().any(|pid| job_of_descendants(findings, pid).is_none())
        }
        (Err((exit::ERROR, _)), Some(Target::Process(pid) | Target::RankOf(pid, _))) => {
            process::owner(pid) == Some(rustix::process::geteuid().as_raw())
        }
        _ => false,
    }
}

/// The processes of this user that launch a job.
fn launchers() -> impl Iterator<Item = u32> {
    let uid = rustix::process::geteuid().as_raw();
    let launches = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.next().is_some_and(|program| program.ends_with(b"ccl-inspect")) && words.next() == Some(b"run")
    };
    process::all().into_iter().filter(move |pid| process::owner(*pid) == Some(uid)).filter(launches)
}

/// The job of the processes that descend from `ancestor`.
pub(crate) fn job_of_descendants(findings: &Findings, ancestor: u32) -> Option<JobId> {
    let descends = |one: &&Found| {
        let mut pid = one.process;
        // A chain of parents is short; a loop could only come from a race in the kernel.
        for _ in 0..64 {
            match pid {
                Some(found) if found == ancestor => return true,
                Some(found) => {
                    pid = process::stat(found).map(|stat| stat.parent).filter(|parent| *parent > 1)
                }
                None => return false,
            }
        }
        false
    };
    let given: Vec<Given> = findings.found.iter().filter(descends).map(|one| one.given.clone()).collect();
    jobs(&given).first().copied()
}

/// The job that `target` means; without a target, the only job, or the only one alive.
///
/// # Errors
/// The exit status, and why no job or no single job is meant.
pub(crate) fn choose(findings: &Findings, target: Option<Target>) -> Result<JobId, (u8, String)> {
    let Some(target) = target else { return the_only_one(findings) };
    let of_rows = |is_meant: &dyn Fn(&CommSnapshot) -> bool, process: &Found| {
        let rows = process.given.process.comms.iter().filter(|row| is_meant(row));
        // A communicator that has ended is not meant if another one has not.
        let (ended, lives): (Vec<_>, Vec<_>) = rows.partition(|row| row.ended);
        let jobs: BTreeSet<JobId> =
            if lives.is_empty() { &ended } else { &lives }.iter().map(|row| row.job).collect();
        jobs.into_iter().collect()
    };
    let (jobs, process): (Vec<JobId>, _) = match target {
        Target::Job(job) => {
            (findings.found.iter().any(|one| one.is_of(job)).then_some(job).into_iter().collect(), None)
        }
        Target::Process(pid) => match one_of(findings, pid) {
            Some(process) => (of_rows(&|_| true, process), Some(process)),
            // A launcher is not a rank; the job that it launched is meant.
            None => (job_of_descendants(findings, pid).into_iter().collect(), None),
        },
        Target::RankOf(pid, rank) => {
            let process = one_of(findings, pid);
            (process.map(|one| of_rows(&|row| row.world == rank, one)).unwrap_or_default(), process)
        }
    };
    let why = || match target {
        Target::Process(pid) => of_process(pid),
        Target::RankOf(pid, _) if process.is_none() => of_process(pid),
        Target::RankOf(..) | Target::Job(_) => format!("nothing is known of {target}"),
    };
    match (jobs.as_slice(), process) {
        ([], _) => Err((exit::ERROR, nothing(findings, &why()))),
        ([_, _, ..], Some(process)) => Err((exit::USAGE, several(target, process, &jobs))),
        ([job, ..], _) => Ok(*job),
    }
}

/// The message for a process that is in several jobs: the jobs, and what the process does in each.
fn several(target: Target, process: &Found, jobs: &[JobId]) -> String {
    let mut text = format!("{target} is in several jobs; say which one is meant:");
    for job in jobs {
        let rows = process.given.process.comms.iter().filter(|row| row.job == *job);
        let row = |row: &CommSnapshot| {
            let op = row.operation();
            let call = || format!("{} of {}", call_name(&op.kind, op.seq), row.name);
            let does = match op.state {
                _ if op.kind.is_empty() => format!("has called nothing of {}", row.name),
                OpState::Running => format!("has been in {} for {}", call(), duration(op.age_ns)),
                OpState::Failed => format!("{} failed", call()),
                OpState::Idle | OpState::Unknown => format!("called {} last", call()),
            };
            format!("rank {} {does}", row.world)
        };
        let rows: Vec<_> = rows.map(row).collect();
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {job}  {}", words::line(&rows.join("; ")));
    }
    text
}

/// What can be said of a process without a recorder.
fn of_process(pid: u32) -> String {
    let own = rustix::process::geteuid().as_raw();
    match process::owner(pid) {
        None => format!("there is no process {pid}, and none has left a recorder under this number"),
        Some(user) if user != own && own != 0 => {
            format!("process {pid} is of another user (uid {user}): only that user and root can look at it")
        }
        Some(_) => format!(
            "process {pid} lives and has no recorder: it has made no communicator yet, or was started with CCL_OBSERVE=0"
        ),
    }
}

/// The recorder of process `pid`.
///
/// If several have this pid: the one whose process has it now, else one that is alive, else the
/// newest. The others were left by earlier processes.
fn one_of(findings: &Findings, pid: u32) -> Option<&Found> {
    let mut those = findings.found.iter().filter(|one| one.is_process(pid)).collect::<Vec<_>>();
    those.sort_by_key(|one| {
        let process = &one.given.process;
        (one.process.is_some(), process.alive, process.made_real_ns)
    });
    those.pop()
}

fn the_only_one(findings: &Findings) -> Result<JobId, (u8, String)> {
    // Per job: the number of processes, the number alive, and the time of the last sign of life.
    let mut processes: BTreeMap<JobId, (usize, usize, u64)> = BTreeMap::new();
    for one in &findings.found {
        for job in ccl::diagnose::jobs(std::slice::from_ref(&one.given)) {
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
    use ccl::snapshot::{ProcessSnapshot, Source};
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
        let given = Given { process, source: Source::Mapping, letter: None, ended: false };
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
        check(all(), Some("1"), Err(exit::USAGE));
        check(all(), Some("1:0"), Ok(7));
        let mut once = found(3, true, &[(7, 0), (8, 3)]);
        once.given.process.comms[0].ended = true;
        check(vec![once.clone()], Some("3"), Ok(8));
        check(vec![once], Some("3:0"), Ok(7));
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
