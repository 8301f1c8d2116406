//! `ccl-inspect ps`: every recorder that this user may read, of living and dead processes.

use std::path::Path;

use ccl::config::{Key, Settings};
use ccl::diagnose::{Given, Job, Numbers, comm_name, merge};
use ccl::snapshot::{CommSnapshot, Snapshot};
use ccl::types::Rank;

use crate::discover::{self, Findings, Found, door};
use crate::table::table;
use crate::{exit, words};

/// List the jobs of this machine: their processes, alive and dead, and their ranks
#[derive(clap::Args, Debug)]
pub(crate) struct Ps {
    /// Print one snapshot per job, without links, as a JSON array of ccl.snapshot/2
    #[arg(long, conflicts_with = "clean")]
    json: bool,
    /// Remove what dead processes left, evidence included; only in CCL_RUNTIME_DIR, if that is set
    #[arg(long)]
    clean: bool,
}

impl Ps {
    /// Prints the list.
    ///
    /// # Errors
    /// The exit status and why there is no list.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let mut findings = discover::everything(&settings);
        let text = match (self.clean, self.json) {
            (true, _) => clean(&findings, settings.given(Key::RuntimeDir)),
            (_, true) => {
                let json = serde_json::to_string(&snapshots(&mut findings));
                json.map_err(|e| (exit::ERROR, format!("writing JSON: {e}")))? + "\n"
            }
            _ => list(&findings),
        };
        exit::say(&text)?;
        Ok(exit::OK)
    }
}

/// Removes the files of dead processes.
fn clean(findings: &Findings, only: Option<&str>) -> String {
    let mut text = String::new();
    let is_meant = |folder: &Path| {
        findings.folders.iter().any(|listed| listed == folder)
            && only.is_none_or(|only| folder.starts_with(only))
    };
    let mut say = |file: &Path, done: ccl::Result<()>| {
        let done = done.map_or_else(|e| format!("kept: {e}"), |()| "removed".to_string());
        text += &format!("{}: {}\n", words::path(file), words::line(&done));
    };
    let dead = findings.found.iter().filter(|one| !one.given.process.alive);
    for one in dead.filter(|one| one.file.parent().is_some_and(is_meant)) {
        say(&one.file, door::remove(&one.file));
    }
    for folder in findings.folders.iter().filter(|folder| is_meant(folder)) {
        let is_its = |one: &&Found| one.owner.is_some_and(|owner| folder.ends_with(format!("ccl-{owner}")));
        let living: Vec<String> = findings.found.iter().filter(is_its).filter_map(stem_of_living).collect();
        let lives = |stem: &str| living.iter().any(|start| stem.starts_with(start));
        // The folder may have been removed meanwhile.
        for (file, done) in door::remove_states(folder, lives).into_iter().flatten() {
            say(&file, done);
        }
    }
    text
}

/// How the names of the files of a living process begin, its moment left out.
fn stem_of_living(one: &Found) -> Option<String> {
    let process = &one.given.process;
    process.alive.then(|| format!("{}-{}-", process.pid, process.pid_namespace))
}

/// The most unread ranks that are listed for all jobs together.
///
/// The number of ranks is a claim of a file, and a file may claim a thousand jobs.
const MAX_MISSING: usize = 1 << 16;

fn snapshots(findings: &mut Findings) -> Vec<Snapshot> {
    let mut room = MAX_MISSING;
    let jobs = findings.jobs();
    let of_job = |job: &Job| {
        let unreachable = discover::follow_peers(findings, job);
        let of_it = findings.found.iter().filter(|one| one.is_of(job));
        let given: Vec<Given> = of_it.map(|one| one.given.clone()).collect();
        let mut snapshot = merge(&given, job, &unreachable);
        let untold = snapshot.missing.len().saturating_sub(room);
        if untold > 0 {
            snapshot.missing.truncate(room);
            snapshot.missing.shrink_to_fit();
            snapshot.notes.push(format!("{untold} more ranks were not read"));
        }
        room -= snapshot.missing.len();
        snapshot.ranks.iter_mut().flat_map(|rank| &mut rank.comms).for_each(|comm| comm.links.clear());
        snapshot
    };
    jobs.iter().map(of_job).collect()
}

fn list(findings: &Findings) -> String {
    let jobs = findings.jobs();
    let numbers = |job| {
        let of_it = findings.found.iter().filter(|one| one.is_of(job));
        Numbers::new(job, of_it.map(|one| &one.given.process))
    };
    let jobs: Vec<(&Job, Numbers<'_>)> = jobs.iter().map(|job| (job, numbers(job))).collect();
    let mut rows: Vec<_> = findings.found.iter().flat_map(|one| rows(one, &jobs)).collect();
    rows.sort();
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    let columns =
        ["JOB", "RANK", "PID", "USER", "HOST", "STATE", "COMM", "COMM RANK", "OPERATION", "RECORDER"];
    let mut text = table(columns, &rows);
    for (file, why) in &findings.refused {
        text += &format!("{} cannot be read: {why}\n", words::path(file));
    }
    text
}

/// Where a recorder lies, according to the kernel and not to the file's own content.
fn place(one: &Found) -> String {
    let linked = Some(&one.file).filter(|file| file.starts_with("/proc")).map(std::fs::read_link);
    words::path(&linked.and_then(Result::ok).unwrap_or_else(|| one.file.clone()))
}

/// One row per rank and communicator, with its sort key; a process without ranks has one row too.
fn rows(one: &Found, jobs: &[(&Job, Numbers<'_>)]) -> Vec<(impl Ord + use<>, [String; 10])> {
    let process = &one.given.process;
    let host = if process.host_id.is_empty() {
        process.host.clone()
    } else {
        format!("{}/{}", process.host, process.host_id)
    };
    let row = |key, [job, rank, comm, of_comm, op]: [String; 5]| {
        let pid = one.process.unwrap_or(process.pid).to_string();
        let state = one.given.state().to_string();
        let user = one.owner.map_or_else(|| "-".into(), |owner| owner.to_string());
        ((!process.alive, key), [job, rank, pid, user, host.clone(), state, comm, of_comm, op, place(one)])
    };
    let of_comm = |(at, comm): (usize, &CommSnapshot)| {
        let name = comm_name(&comm.name, comm.id);
        let op = match comm.operation() {
            _ if comm.init.is_some() && comm.has_failed() => format!("{} failed", comm.activity()),
            op if op.kind.is_empty() || comm.phase.is_some() => comm.activity(),
            op => format!("{} {}", comm.activity(), op.state),
        };
        let known = jobs.iter().find(|(job, _)| one.is_of(job) && job.is_named(comm.job));
        let (job, rank) =
            known.map_or((comm.job, comm.world), |(job, numbers)| (job.id, numbers.of_row(process, comm)));
        let key = (job, rank, at);
        row(key, [job.to_string(), rank.to_string(), name, format!("{}/{}", comm.rank, comm.nranks), op])
    };
    // If the process has left all its communicators, the last ones show which job it belonged to.
    let has_left = process.comms.iter().all(|comm| comm.ended);
    let shown = process.comms.iter().enumerate().filter(|(_, comm)| has_left || !comm.ended);
    let mut rows: Vec<_> = shown.map(of_comm).collect();
    if rows.is_empty() {
        rows.push(row((process.job, Rank(0), 0), ["-"; 5].map(String::from)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::{PhaseSnapshot, ProcessSnapshot, Source};
    use ccl::types::{CommId, JobId, Phase};

    use super::*;

    #[test]
    fn a_process_that_has_left_is_still_a_rank_of_its_job() {
        let said = |ended: &[bool], alive: bool| {
            let comm = |(id, ended): (u64, &bool)| CommSnapshot {
                id: CommId(id),
                job: JobId(0x10b),
                rank: Rank(3),
                world: Rank(3),
                nranks: 4,
                ended: *ended,
                phase: ended.then(|| PhaseSnapshot { phase: Phase::CheckIn.name().into(), duration_ns: 1 }),
                ..CommSnapshot::default()
            };
            let comms = (1..).zip(ended).map(comm).collect();
            let process =
                ProcessSnapshot { pid: 71, alive, left: !alive, comms, ..ProcessSnapshot::default() };
            let one = Found::of_dump(
                Given { process, source: Source::File, letter: None, ended: false },
                None,
                "f".into(),
            );
            let rows = rows(&one, &[]).into_iter();
            let rows = rows.map(|(_, row)| [0, 1, 5, 7, 8].map(|at| row[at].clone()).join(" "));
            rows.collect::<Vec<_>>()
        };
        assert_eq!(said(&[true], false), ["000000000000010b 3 left 3/4 in init: CheckIn"]);
        assert_eq!(said(&[true, false], true), ["000000000000010b 3 running 3/4 -"]);
        assert_eq!(said(&[], true), ["- - running - -"]);
    }
}
