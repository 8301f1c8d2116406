//! Looks at one job, now or after its end; `ccl-inspect snapshot` and `ccl-inspect open` show what
//! was seen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccl::clock;
use ccl::config::{Key, Settings, Source};
use ccl::diagnose::{BETWEEN, Given, Job, Unreachable, merge, render_active, render_text};
use ccl::snapshot::{History, Snapshot as JobSnapshot};

use crate::choose::{choose, find, no_comm};
use crate::discover::{self, Findings, Found};
use crate::gather::{self, Told};
use crate::target::Target;
use crate::{ask, dump, exit, facts, saved};

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
    /// Show what the proxy moves over the network: the operations under way, and their links
    #[arg(long, conflicts_with = "json")]
    proxy: bool,
    /// Ask no process for what other hosts know: ranks that cannot be read here are missing
    #[arg(long)]
    no_gather: bool,
}

/// Show the same from recorder files, as dead processes leave them, or from a dump
#[derive(clap::Args, Debug)]
pub(crate) struct Open {
    /// A recorder file, a folder of them, a dump, or the state that a watchdog saved
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
    /// Show what the proxy moved over the network: the operations under way, and their links
    #[arg(long, conflicts_with = "json")]
    proxy: bool,
}

impl Snapshot {
    /// Finds the job, asks its processes, and prints the snapshot.
    ///
    /// # Errors
    /// The exit status and why there is nothing to print.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        print(now(self.target, self.comm.as_deref(), !self.no_gather)?.job, self.json, self.proxy)
    }
}

impl Open {
    /// Reads the files and prints the snapshot.
    ///
    /// # Errors
    /// The exit status and why there is nothing to print.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        print(then(&self.path, self.job, self.comm.as_deref())?.job, self.json, self.proxy)
    }
}

/// What was seen of a job.
#[derive(Debug)]
pub(crate) struct Looked {
    /// The job, with its verdicts and with what its recorders kept of past operations.
    pub(crate) job: JobSnapshot,
    /// The processes of this kernel, of the files or of the dump.
    pub(crate) found: Vec<Found>,
}

impl Looked {
    /// A job, with the recorders that are of it.
    fn of(merged: JobSnapshot, findings: Findings, job: &Job) -> Self {
        let found = findings.found.into_iter().filter(|one| one.is_of(job)).collect();
        Self { job: merged, found }
    }
}

/// The job that `target` means, as it is now.
///
/// Where something waits it is read twice: only what both readings show is a verdict. Other hosts
/// are asked for what cannot be read here, if `gathers`.
///
/// # Errors
/// The exit status and why there is nothing to show.
pub(crate) fn now(target: Option<Target>, comm: Option<&str>, gathers: bool) -> Result<Looked, (u8, String)> {
    let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
    let (mut findings, mut job) = find(&settings, target)?;
    let lost = discover::follow_peers(&mut findings, &job);
    let begun = facts::begin(findings.found.iter().filter(|one| one.is_of(&job)));
    let mut reading = Reading::take(&mut findings, &mut job, lost.clone(), gathers);
    let first = reading.merged(&findings, &job);
    let stall_ns = stall_ns_of(&settings, findings.found.iter().filter(|one| one.is_of(&job)));
    let before = first.wants_second_reading(stall_ns).then_some(first);
    if before.is_some() {
        clock::sleep(BETWEEN);
        findings.found.iter_mut().for_each(Found::read_again);
        let again = gathers && !reading.gathered.is_empty();
        let (gathered, unreachable) = (std::mem::take(&mut reading.gathered), reading.unreachable);
        reading = Reading::take(&mut findings, &mut job, lost, again);
        if !again {
            (reading.gathered, reading.unreachable) = (gathered, unreachable);
        }
    }
    begun.tell(&mut findings.found.iter_mut().filter(|one| one.is_of(&job)).collect::<Vec<_>>());
    let merged = reading.merged(&findings, &job);
    judged(Looked::of(merged, findings, &job), before.as_ref(), comm, stall_ns)
}

/// What was read of a job beside the recorders of this kernel.
struct Reading {
    gathered: Vec<Given>,
    unreachable: Vec<Unreachable>,
    notes: Vec<String>,
}

impl Reading {
    /// Asks other hosts, if `gathers`, and then the processes of this one.
    ///
    /// What takes longest comes first: the readings of this host are not to grow old meanwhile.
    fn take(findings: &mut Findings, job: &mut Job, mut lost: Vec<Unreachable>, gathers: bool) -> Self {
        let told = match gathers {
            true => Told::by_others(findings, job, &mut lost),
            false => Told::default(),
        };
        let mut notes = ask::ask_all(findings.found.iter_mut().filter(|one| one.is_of(job)));
        notes.extend(told.notes);
        Self { gathered: told.given, unreachable: lost, notes }
    }

    /// The job as these readings show it.
    fn merged(&self, findings: &Findings, job: &Job) -> JobSnapshot {
        merged(findings, job, (&self.gathered, &self.unreachable), self.notes.clone())
    }
}

/// The job that files or a dump tell of.
///
/// # Errors
/// The exit status and why there is nothing to show.
pub(crate) fn then(path: &Path, job: Option<Target>, comm: Option<&str>) -> Result<Looked, (u8, String)> {
    let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
    // It was judged when it was saved.
    if let Some(mut job) = saved::open(path).map_err(|why| (exit::ERROR, why))? {
        if let Some(name) = comm {
            job.narrow(name).map_err(|names| no_comm(name, &names))?;
        }
        return Ok(Looked { job, found: Vec::new() });
    }
    let looked = if dump::is_bundle(path) {
        let dump = dump::open(path).map_err(|why| (exit::ERROR, why))?;
        let mut job = choose(&dump.findings, job.or(Some(Target::Job(dump.job))))?;
        gather::widen(&mut job, &dump.findings, &dump.gathered);
        let merged = merged(&dump.findings, &job, (&dump.gathered, &dump.unreachable), dump.notes);
        Looked::of(merged, dump.findings, &job)
    } else {
        let mut findings = discover::at(path).map_err(|why| (exit::ERROR, why))?;
        let job = choose(&findings, job)?;
        facts::gather(&mut findings.found.iter_mut().filter(|one| one.is_of(&job)).collect::<Vec<_>>());
        let why = format!("only {} was opened, and it is not there", path.display());
        let unreachable = discover::only_these(&findings, &job, &why);
        let merged = merged(&findings, &job, (&[], &unreachable), Vec::new());
        Looked::of(merged, findings, &job)
    };
    // Files do not change: a second reading would show the same.
    let again = looked.job.clone();
    let stall_ns = stall_ns_of(&settings, looked.found.iter());
    let mut looked = judged(looked, Some(&again), comm, stall_ns)?;
    // Of several jobs there, a path does not say which one is meant.
    if job.is_none() {
        address(&mut looked.job, path);
    }
    Ok(looked)
}

/// Makes the next commands name what was opened: by its id the job is not found elsewhere.
fn address(job: &mut JobSnapshot, path: &Path) {
    // A relative path might be taken for a pid or an option.
    let path = if path.is_relative() { Path::new(".").join(path) } else { path.to_path_buf() };
    let (id, path) = (job.job.to_string(), crate::words::path(&path));
    // As a shell takes it.
    let is_plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+,:".contains(&byte));
    let path = if is_plain { path } else { format!("'{}'", path.replace('\'', "'\\''")) };
    for verdict in &mut job.verdicts {
        // Others take a job that can be found.
        let opens = ["explain", "stragglers", "stalls", "check"].map(|verb| format!("ccl-inspect {verb} "));
        let is_known = |command: &str| {
            !command.starts_with("ccl-inspect ") || opens.iter().any(|verb| command.starts_with(verb))
        };
        verdict.next.retain(|step| is_known(&step.command));
        for step in verdict.next.iter_mut().filter(|step| step.command.starts_with("ccl-inspect ")) {
            step.command = step.command.replace(&id, &path);
        }
    }
}

/// What the readings show, and what must be said of them.
fn merged(
    findings: &Findings,
    job: &Job,
    (gathered, unreachable): (&[Given], &[Unreachable]),
    notes: Vec<String>,
) -> JobSnapshot {
    let found = || findings.found.iter().filter(|one| one.is_of(job));
    let given: Vec<Given> = found().map(|one| &one.given).chain(gathered).cloned().collect();
    let mut snapshot = merge(&given, job, unreachable);
    snapshot.notes.extend(notes);
    let owner = found().find(|one| one.is_anothers()).and_then(|one| one.owner);
    snapshot.notes.extend(owner.map(|owner| format!("this job is of user {owner}")));
    snapshot.notes.extend(of_others(findings, job));
    snapshot.notes.extend(found().filter_map(ask::beyond_its_state));
    snapshot
}

/// That recorders of other users name the job too: any user can write any id.
fn of_others(findings: &Findings, job: &Job) -> impl Iterator<Item = String> {
    let mut others: BTreeMap<Option<u32>, u32> = BTreeMap::new();
    for one in findings.found.iter().filter(|one| !one.is_of(job) && job.includes(&one.given.process)) {
        *others.entry(one.owner).or_default() += 1;
    }
    others.into_iter().map(|(owner, count)| {
        let (recorders, name) = if count == 1 { ("recorder", "names") } else { ("recorders", "name") };
        let owner = crate::words::user(owner);
        format!("{count} {recorders} of {owner} {name} this job too: left out")
    })
}

fn judged(
    mut looked: Looked,
    before: Option<&JobSnapshot>,
    comm: Option<&str>,
    stall_ns: u64,
) -> Result<Looked, (u8, String)> {
    if let Some(name) = comm {
        looked.job.narrow(name).map_err(|names| no_comm(name, &names))?;
    }
    looked.job.judge(before, stall_ns);
    Ok(looked)
}

/// `CCL_STALL_AFTER` as the job has it, unless this process was given another one: the job tells
/// stalls by its own.
pub(crate) fn stall_ns_of<'a>(settings: &Settings, mut found: impl Iterator<Item = &'a Found>) -> u64 {
    let own_ns = settings.duration(Key::StallAfter).as_nanos() as u64;
    if settings.source(Key::StallAfter) != Source::Default {
        return own_ns;
    }
    let of_one = |one: &Found| {
        let mut words = one.given.process.settings.split(' ');
        let seconds = words.find_map(|word| word.strip_prefix("CCL_STALL_AFTER="))?;
        let seconds = seconds.parse::<f64>().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    };
    found.find_map(of_one).map_or(own_ns, |after| after.as_nanos() as u64)
}

fn print(mut job: JobSnapshot, json: bool, proxy: bool) -> Result<u8, (u8, String)> {
    // They are most of a job's JSON; `stragglers` and `explain` tell what is in them.
    let comms = job.ranks.iter_mut().flat_map(|rank| &mut rank.comms);
    comms.for_each(|comm| comm.history = History::default());
    exit::say(&match (json, proxy) {
        (true, _) => to_json(&job)?,
        (false, true) => render_active(&job),
        (false, false) => render_text(&job),
    })?;
    Ok(exit::status(&job))
}

/// A value as one line of JSON.
///
/// # Errors
/// The exit status and why it cannot be written.
pub(crate) fn to_json(value: &impl serde::Serialize) -> Result<String, (u8, String)> {
    let json = serde_json::to_string(value).map_err(|e| (exit::ERROR, format!("writing JSON: {e}")))?;
    Ok(json + "\n")
}
