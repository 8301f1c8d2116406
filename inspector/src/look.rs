//! `ccl-inspect snapshot` and `ccl-inspect open`: one job, now or after its end.

use std::path::PathBuf;

use ccl::config::Settings;
use ccl::diagnose::{Given, Job, Unreachable, merge, render_text};
use ccl::snapshot::{History, Snapshot as JobSnapshot};

use crate::choose::{choose, find, no_comm};
use crate::discover::{self, Findings};
use crate::target::Target;
use crate::{attach, dump, exit};

/// Show which ranks block others in a job, which ranks wait for them, and where each rank stands
#[derive(clap::Args, Debug)]
pub(crate) struct Snapshot {
    /// A process, one rank of a process, or a job; not needed if there is only one job
    #[arg(value_name = "PID | PID:RANK | JOB")]
    target: Option<Target>,
    /// Show only the communicators of this name or id, and those that they wait for
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// Print it as JSON, schema ccl.snapshot/2
    #[arg(long)]
    json: bool,
}

/// Show the same from recorder files, as dead processes leave them, or from a dump
#[derive(clap::Args, Debug)]
pub(crate) struct Open {
    /// A recorder file, a folder of them, or a dump
    path: PathBuf,
    /// The job, if there are several
    #[arg(long, value_name = "JOB")]
    job: Option<Target>,
    /// Show only the communicators of this name or id, and those that they wait for
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// Print it as JSON, schema ccl.snapshot/2
    #[arg(long)]
    json: bool,
}

impl Snapshot {
    /// Finds the job, asks its processes, and prints the snapshot.
    ///
    /// # Errors
    /// The exit status and why there is nothing to print.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let (mut findings, job) = find(&settings, self.target)?;
        let unreachable = discover::follow_peers(&mut findings, &job);
        let notes = attach::ask_all(findings.found.iter_mut().filter(|one| one.is_of(&job)));
        let shown = Shown { comm: self.comm.as_deref(), json: self.json, settings: &settings };
        print(findings, &job, &unreachable, notes, &shown)
    }
}

impl Open {
    /// Reads the files and prints the snapshot.
    ///
    /// # Errors
    /// The exit status and why there is nothing to print.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let shown = Shown { comm: self.comm.as_deref(), json: self.json, settings: &settings };
        if dump::is_bundle(&self.path) {
            let dump = dump::open(&self.path).map_err(|why| (exit::ERROR, why))?;
            let job = choose(&dump.findings, self.job.or(Some(Target::Job(dump.job))))?;
            return print(dump.findings, &job, &dump.unreachable, dump.notes, &shown);
        }
        let findings = discover::at(&self.path).map_err(|why| (exit::ERROR, why))?;
        let job = choose(&findings, self.job)?;
        let why = format!("only {} was opened, and it is not there", self.path.display());
        let unreachable = discover::only_these(&findings, &job, &why);
        print(findings, &job, &unreachable, Vec::new(), &shown)
    }
}

/// How a job is shown.
struct Shown<'a> {
    comm: Option<&'a str>,
    json: bool,
    settings: &'a Settings,
}

fn print(
    findings: Findings,
    job: &Job,
    unreachable: &[Unreachable],
    notes: Vec<String>,
    shown: &Shown<'_>,
) -> Result<u8, (u8, String)> {
    let aside = findings
        .aside
        .into_iter()
        .filter(|(ids, _)| ids.iter().any(|id| job.is_named(*id)))
        .map(|(_, note)| note);
    let notes: Vec<String> = notes.into_iter().chain(aside).collect();
    let found: Vec<_> = findings.found.into_iter().filter(|one| one.is_of(job)).collect();
    let beyond: Vec<_> = found.iter().filter_map(attach::beyond_its_state).collect();
    let given: Vec<Given> = found.into_iter().map(|one| one.given).collect();
    let mut snapshot = merge(&given, job, unreachable);
    snapshot.notes.extend(notes);
    snapshot.notes.extend(beyond);
    if let Some(name) = shown.comm {
        snapshot.narrow(name).map_err(|names| no_comm(name, &names))?;
    }
    // They are most of a job's JSON; `stragglers` and `explain` tell what is in them.
    snapshot
        .ranks
        .iter_mut()
        .flat_map(|rank| &mut rank.comms)
        .for_each(|comm| comm.history = History::default());
    let text = if shown.json { to_json(&snapshot)? } else { render_text(&snapshot) };
    exit::say(&text)?;
    Ok(exit::status(&snapshot, shown.settings))
}

/// A snapshot as one line of JSON.
///
/// # Errors
/// The exit status and why it cannot be written.
fn to_json(snapshot: &JobSnapshot) -> Result<String, (u8, String)> {
    let json = serde_json::to_string(snapshot).map_err(|e| (exit::ERROR, format!("writing JSON: {e}")))?;
    Ok(json + "\n")
}
