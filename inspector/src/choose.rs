//! Chooses the job that a user means.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use ccl::clock;
use ccl::config::Settings;
use ccl::diagnose::Job;
use ccl::types::JobId;

use crate::discover::{self, Findings, Found};
use crate::target::Target;
use crate::{exit, process, words};

/// How long a job may take from its launch until its first rank has a recorder.
const STARTS_WITHIN: Duration = Duration::from_secs(2);
/// The most jobs of several that are listed.
const MAX_LISTED: usize = 32;
/// The time between two looks for that recorder.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Everything on this kernel, and the job in it that `target` means.
///
/// A job that has only just been started is waited for.
///
/// # Errors
/// As [`choose`].
pub(crate) fn find(settings: &Settings, target: Option<Target>) -> Result<(Findings, Job), (u8, String)> {
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
fn may_start(findings: &Findings, target: Option<Target>, chosen: &Result<Job, (u8, String)>) -> bool {
    match (chosen, target) {
        (Err((exit::ERROR, _)), None) => true,
        // With no target, any launch whose ranks have no recorder yet is waited for, but only while
        // no process with a recorder lives: if two command lines are pasted together and the first
        // starts a job, recorders that earlier jobs left are not meant.
        (_, None) => {
            let lives = findings.found.iter().any(|one| one.given.process.alive && !one.is_anothers());
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
pub(crate) fn job_of_descendants(findings: &Findings, ancestor: u32) -> Option<Job> {
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
    let found: Vec<&Found> = findings.found.iter().filter(descends).collect();
    findings
        .jobs()
        .into_iter()
        .max_by_key(|job| found.iter().filter(|one| one.is_of(job)).count())
        .filter(|job| found.iter().any(|one| one.is_of(job)))
}

/// The job that `target` means; without a target, the only job, or the only one alive.
///
/// # Errors
/// The exit status, and why no job or no single job is meant.
pub(crate) fn choose(findings: &Findings, target: Option<Target>) -> Result<Job, (u8, String)> {
    let Some(target) = target else { return the_only_one(findings) };
    // After a failed grow() an ended row names another job: the rows that have not ended decide.
    let of = |one: &Found| {
        let is_in = |job: &Job| one.is_of(job) && job.rows(&one.given.process).any(|row| !row.ended);
        let jobs = || findings.jobs().into_iter();
        jobs().find(is_in).or_else(|| jobs().find(|job| one.is_of(job)))
    };
    let unknown = || Err((exit::ERROR, nothing(findings, &format!("nothing is known of {target}"))));
    match target {
        Target::Job(id) => job_named(findings, id)?.map_or_else(unknown, Ok),
        Target::Process(pid) => {
            // A launcher is not a rank; the job that it launched is meant.
            let found = one_of(findings, pid)?;
            let holds = found.filter(|one| one.process.is_some()).and_then(of);
            let launched = || job_of_descendants(findings, pid).or_else(|| found.and_then(of));
            holds.or_else(launched).ok_or_else(|| (exit::ERROR, nothing(findings, &of_process(pid))))
        }
        Target::RankOf(pid, rank) => match one_of(findings, pid)? {
            None => Err((exit::ERROR, nothing(findings, &of_process(pid)))),
            Some(one) if one.given.process.comms.iter().any(|row| row.world == rank) => {
                of(one).map_or_else(unknown, Ok)
            }
            Some(_) => unknown(),
        },
    }
}

/// What can be said of a process without a recorder.
fn of_process(pid: u32) -> String {
    let own = rustix::process::geteuid().as_raw();
    match process::owner(pid) {
        None => format!("there is no process {pid}, and none has left a recorder under this number"),
        Some(user) if user != own && own != 0 => {
            format!("process {pid} is of another user (uid {user}): only that user and root can look at it")
        }
        Some(_) if process::stat(pid).is_some_and(|stat| matches!(stat.state, 'Z' | 'X')) => {
            format!(
                "process {pid} has ended and left no recorder; its parent has not asked for its exit status"
            )
        }
        Some(_) => format!(
            "process {pid} lives and has no recorder: it has made no communicator yet, or was started with CCL_OBSERVE=0"
        ),
    }
}

/// The recorder of process `pid`.
///
/// If several have this pid: the one whose process has it now, else one of the user who asks, else
/// one that is alive, else the newest. The others were left by earlier processes. Of a process that
/// lives, no other user than its own can tell.
///
/// # Errors
/// Recorders of several other users have it: any user can write any pid.
fn one_of(findings: &Findings, pid: u32) -> Result<Option<&Found>, (u8, String)> {
    let user = process::owner(pid);
    let may_be =
        |one: &&Found| one.process.is_some() || user.is_none() || !one.is_anothers() || one.owner == user;
    let mut those: Vec<_> = findings.found.iter().filter(|one| one.is_process(pid)).filter(may_be).collect();
    let standing = |one: &Found| (one.process.is_some(), !one.is_anothers());
    let best = those.iter().map(|one| standing(one)).max();
    those.retain(|one| Some(standing(one)) == best);
    if those.iter().any(|one| one.owner != those[0].owner) {
        return Err(of_several(&format!("are of process {pid}"), "", those.into_iter()));
    }
    those.sort_by_key(|one| (one.given.process.alive, one.given.process.made_real_ns));
    Ok(those.pop())
}

/// The job of this name: that of the user who asks, if there is one.
///
/// # Errors
/// It is the name of jobs of several other users.
fn job_named(findings: &Findings, id: JobId) -> Result<Option<Job>, (u8, String)> {
    let mut those: Vec<Job> = findings.jobs().into_iter().filter(|job| job.is_named(id)).collect();
    let own = Some(rustix::process::geteuid().as_raw());
    if let Some(at) = those.iter().position(|job| job.owner == own) {
        return Ok(Some(those.swap_remove(at)));
    }
    if those.len() > 1 {
        let found = findings.found.iter().filter(|one| those.iter().any(|job| one.is_of(job)));
        return Err(of_several(&format!("name job {id}"), &format!(" --job {id}"), found));
    }
    Ok(those.pop())
}

/// That recorders of several users say the same, and how to ask for those of one user.
fn of_several<'a>(what: &str, which: &str, found: impl Iterator<Item = &'a Found>) -> (u8, String) {
    let mut text = format!("recorders of several users {what}; say which ones are meant:");
    let mut users = BTreeSet::new();
    for one in found.filter(|one| users.insert(one.owner)) {
        let user = words::user(one.owner);
        let folder = words::path(one.file.parent().unwrap_or(&one.file));
        // Writing to a string does not fail.
        let _ = match one.process {
            Some(pid) => write!(text, "\n  {user}: process {pid} lives; give its pid"),
            None => write!(text, "\n  {user}: ccl-inspect open {folder}{which}"),
        };
    }
    (exit::USAGE, text)
}

/// That a job has no communicator of this name or id, but of these.
pub(crate) fn no_comm(name: &str, names: &[String]) -> (u8, String) {
    (exit::USAGE, format!("the job has no communicator {name}, but: {}", words::line(&names.join(", "))))
}

fn the_only_one(findings: &Findings) -> Result<Job, (u8, String)> {
    let mut jobs: Vec<Candidate<'_>> =
        findings.jobs().into_iter().map(|job| Candidate::new(findings, job)).collect();
    let [any_lives, own_lives] =
        [false, true].map(|own| jobs.iter().any(|one| one.alive > 0 && (one.is_own() || !own)));
    let last_of_own = jobs.iter().filter(|one| one.is_own()).map(|one| one.last_real_ns).max();
    let all = jobs.len();
    // Another user's living job does not take the place of the last one of the user who asks.
    let is_last_own = |one: &Candidate<'_>| one.is_own() && Some(one.last_real_ns) == last_of_own;
    jobs.retain(|one| one.alive > 0 || !any_lives || !own_lives && is_last_own(one));
    let ended = all - jobs.len();
    if jobs.len() < 2 {
        return jobs
            .pop()
            .map(|one| one.job)
            .ok_or_else(|| (exit::ERROR, nothing(findings, "there is no job")));
    }
    let mut text = "there are several jobs; say which one is meant, by its id or a pid:".to_string();
    jobs.sort_by_key(|one| (!one.is_own(), std::cmp::Reverse(one.last_real_ns)));
    for one in jobs.iter().take(MAX_LISTED) {
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {one}");
    }
    if jobs.len() > MAX_LISTED {
        let _ = write!(text, "\n  and {} more", jobs.len() - MAX_LISTED);
    }
    if ended > 0 {
        let _ = write!(text, "\n  and {ended} whose processes have all ended");
    }
    Err((exit::USAGE, text + "\nccl-inspect ps lists all"))
}

/// A job that may be meant.
struct Candidate<'a> {
    job: Job,
    processes: usize,
    alive: usize,
    /// The time of the last sign of life.
    last_real_ns: u64,
    /// The process of the lowest rank.
    first: Option<&'a Found>,
}

impl<'a> Candidate<'a> {
    /// Whether it is of the user who asks.
    fn is_own(&self) -> bool {
        self.first.is_some_and(|one| !one.is_anothers())
    }

    fn new(findings: &'a Findings, job: Job) -> Self {
        let of_it = || findings.found.iter().filter(|one| one.is_of(&job));
        // A recorder may tell of any time.
        let now = clock::real_ns();
        let lowest = |one: &&Found| job.rows(&one.given.process).map(|row| row.world).min();
        Self {
            processes: of_it().count(),
            alive: of_it().filter(|one| one.given.process.alive).count(),
            last_real_ns: of_it().map(|one| one.given.process.to_real_ns.min(now)).max().unwrap_or(0),
            first: of_it().min_by_key(lowest),
            job,
        }
    }
}

impl std::fmt::Display for Candidate<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = clock::real_ns().saturating_sub(self.last_real_ns) / 1_000_000_000;
        let Self { job, processes, alive, .. } = self;
        write!(f, "{}  processes: {processes}, alive: {alive}, last sign of life: {seconds} s ago", job.id)?;
        let Some(one) = self.first else { return Ok(()) };
        let process = &one.given.process;
        write!(f, "; pid {}", one.process.unwrap_or(process.pid))?;
        if let Some(program) = one.process.and_then(process::program) {
            write!(f, " runs {}", words::line(&program.file_name().unwrap_or_default().to_string_lossy()))?;
        }
        match one.owner {
            Some(owner) if one.is_anothers() => write!(f, " as user {owner}")?,
            _ => {}
        }
        job.rows(process).last().map_or(Ok(()), |row| write!(f, ", {}", words::line(&row.activity())))
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
    use ccl::diagnose::Given;
    use ccl::snapshot::{CommSnapshot, ProcessSnapshot, Source};
    use ccl::types::{CommId, JobId, Rank};

    use super::*;

    fn found(pid: u32, alive: bool, ranks: &[(u64, u32)]) -> Found {
        let comms = ranks.iter().map(|(job, rank)| CommSnapshot {
            id: CommId(*job),
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
            chosen.as_ref().map(|job| job.id.0).map_err(|(status, _)| *status),
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
    fn a_job_has_the_recorders_of_one_user() {
        // The second user's processes name the first one's job, and are more.
        let all = [(1, 7), (2, 8), (3, 8), (4, 8)].map(|(pid, owner)| {
            let mut one = found(pid, true, &[(5, pid)]);
            one.owner = Some(owner);
            one
        });
        let findings = Findings { found: all.into(), ..Findings::default() };
        let pids = |target: &str| {
            let job = choose(&findings, Some(target.parse().unwrap())).unwrap();
            let of_it = findings.found.iter().filter(|one| one.is_of(&job));
            of_it.map(|one| one.given.process.pid).collect::<Vec<_>>()
        };
        assert_eq!((pids("1"), pids("3")), (vec![1], vec![2, 3, 4]));
    }

    #[test]
    fn no_user_is_believed_more_than_another_but_the_one_who_asks() {
        let own = rustix::process::geteuid().as_raw();
        let of = |owner: u32, pid: u32, is_held: bool| {
            let mut one = found(pid, is_held, &[(5, owner % 7)]);
            one.owner = Some(owner);
            one
        };
        let check = |found: &[Found], target: &str, expect: Result<u32, &str>| {
            let findings = Findings { found: found.to_vec(), ..Findings::default() };
            let chosen = choose(&findings, Some(target.parse().unwrap()));
            match (chosen, expect) {
                (Ok(job), Ok(owner)) => assert_eq!(job.owner, Some(owner)),
                (Err((exit::USAGE, why)), Err(text)) => assert!(why.contains(text), "{why}"),
                (chosen, expect) => panic!("{target}: {chosen:?} is not {expect:?}"),
            }
        };
        let (a, b) = (own + 1, own + 2);
        let id = "0000000000000005";
        // However many there are of another user, alive or not; and whoever comes first.
        check(&[of(a, 1, true), of(a, 2, true), of(own, 3, false)], id, Ok(own));
        check(&[of(a, 1, true), of(b, 3, false)], id, Err("process 1 lives; give its pid"));
        check(&[of(a, 1, false), of(a, 2, false)], id, Ok(a));
        // A pid: of who has it, of the user who asks, or of nobody. No process has this one.
        let (pid, none) = ("4194400", 4_194_400);
        check(&[of(a, none, true), of(own, none, false)], pid, Ok(a));
        check(&[of(a, none, false), of(own, none, false)], pid, Ok(own));
        check(&[of(a, none, false), of(b, none, false)], pid, Err("are of process 4194400"));
        check(&[of(a, none, false), of(b, 2, false)], pid, Ok(a));
        // A process that lives and is of another user than the one who wrote of it.
        let lives = std::process::id();
        let findings = Findings { found: vec![of(a, lives, false)], ..Findings::default() };
        let said = choose(&findings, Some(lives.to_string().parse().unwrap())).unwrap_err();
        assert!(said.1.contains("lives and has no recorder"), "{}", said.1);
    }

    #[test]
    fn a_living_job_of_another_user_does_not_hide_the_last_one_of_the_user_who_asks() {
        let own = rustix::process::geteuid().as_raw();
        let of = |owner: u32, pid: u32, is_held: bool, job: u64| {
            let mut one = found(pid, is_held, &[(job, 0)]);
            (one.owner, one.given.process.to_real_ns) = (Some(owner), u64::from(pid));
            one
        };
        check(vec![of(own + 1, 1, true, 5)], None, Ok(5));
        check(vec![of(own + 1, 1, true, 5), of(own, 2, false, 5)], None, Err(exit::USAGE));
        check(
            vec![of(own + 1, 1, true, 5), of(own, 2, true, 6), of(own, 3, false, 7)],
            None,
            Err(exit::USAGE),
        );
        check(vec![of(own, 2, true, 6), of(own, 3, false, 7)], None, Ok(6));
        check(vec![of(own + 1, 3, false, 7), of(own, 2, true, 6)], None, Ok(6));
    }

    #[test]
    fn a_target_names_its_job() {
        // Its communicators connect what has several ids.
        let all =
            || vec![found(1, false, &[(6, 0)]), found(1, true, &[(7, 0), (8, 3)]), found(2, true, &[(9, 0)])];
        check(all(), Some("1"), Ok(7));
        check(all(), Some("1:0"), Ok(7));
        check(all(), Some("1:3"), Ok(7));
        check(all(), Some("0000000000000008"), Ok(7));
        // What it has left connects nothing.
        let mut once = found(3, true, &[(7, 0), (8, 3)]);
        once.given.process.comms[0].ended = true;
        check(vec![once], Some("3"), Ok(8));
        // It left one, and those of that one are a job of their own.
        let mut grew = found(4, true, &[(10, 0), (11, 0)]);
        grew.given.process.comms[1].ended = true;
        let all_of_it = || vec![found(6, true, &[(11, 1)]), found(7, true, &[(11, 2)]), grew.clone()];
        check(all_of_it(), Some("4"), Ok(10));
        let mut renamed = found(5, true, &[(7, 0)]);
        renamed.given.process.job = JobId(99);
        check(vec![renamed], Some("5"), Ok(7));
        check(all(), Some("1:4"), Err(exit::ERROR));
        check(all(), Some("3"), Err(exit::ERROR));
        check(all(), Some("0000000000000009"), Ok(9));
        check(all(), Some("000000000000000a"), Err(exit::ERROR));
    }
}
