//! A job of many ranks on one machine, eight ranks a process and eight emulated hosts: an inspector
//! that knows nothing of it reads all of them, from whichever process. The long size has 512 ranks.
//! How long that takes is printed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and prints what it measured")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccl::clock;
use ccl::seed::Seed;
use ccl::snapshot::{Class, Snapshot};
use ccl_tests::job::until;
use ccl_tests::programs::{launcher, program};
use ccl_tests::size::is_long;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Ranks of a process.
const PER: u32 = 8;

/// The job; what is left of it ends with this value.
struct Crowd {
    folder: TempDir,
    launcher: Child,
}

impl Crowd {
    /// Starts it, and waits until all ranks have met.
    fn start(processes: u32) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut command = launcher(folder.path(), &["-n", &processes.to_string(), "--hosts", "8", "--"]);
        command.arg(program("crowd")).arg(folder.path()).arg(PER.to_string());
        command.env("CCL_DEBUG", "NONE").env("CCL_STALL_AFTER", "600").stdout(Stdio::piped());
        let mut launcher = command.spawn().unwrap();
        let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines().map_while(Result::ok);
        let crowd = Self { folder, launcher };
        assert!(lines.any(|line| line.ends_with("all are there")), "the job ended before all had met");
        crowd
    }

    /// A cold look at the job of a process, and how long it took.
    fn look(&self, pid: u32) -> (Snapshot, Duration) {
        let began = clock::now();
        let mut command = Command::new(program("ccl-inspect"));
        command.args(["snapshot", "--json", &pid.to_string()]).env("CCL_RUNTIME_DIR", self.folder.path());
        let output = command.output().unwrap();
        let took = clock::now().since(began);
        let seen = serde_json::from_slice(&output.stdout);
        (seen.unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr))), took)
    }

    /// Lets the last rank go on, waits for the end, and gives the files of recorders that are left.
    fn end(mut self) -> Vec<PathBuf> {
        std::fs::write(self.folder.path().join("go"), "").unwrap();
        let ended = until("the end of the job", || self.launcher.try_wait().unwrap());
        assert!(ended.success(), "{ended}");
        let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
        let folders = entries(self.folder.path()).map(|entry| entry.path());
        folders.flat_map(|folder| entries(&folder).map(|entry| entry.path()).collect::<Vec<_>>()).collect()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // It ends its ranks. One that has been waited for is not signalled.
        if matches!(self.launcher.try_wait(), Ok(None)) {
            let pid = Pid::from_raw(self.launcher.id().cast_signed()).unwrap();
            let _ = kill_process(pid, Signal::TERM);
            let _ = self.launcher.wait();
        }
    }
}

/// What is wrong with what was seen of a job whose last rank all others wait for.
fn wrong(seen: &Snapshot, nranks: u32) -> Vec<String> {
    let ranks: Vec<u32> = seen.ranks.iter().map(|rank| rank.rank.0).collect();
    let mut wrong = Vec::new();
    if !seen.complete || ranks != (0..nranks).collect::<Vec<_>>() {
        wrong.push(format!("read {} ranks, not {:?}", ranks.len(), seen.missing));
    }
    let [verdict] = seen.verdicts.as_slice() else {
        wrong.push(format!("{} verdicts: {:?}", seen.verdicts.len(), seen.verdicts));
        return wrong;
    };
    let culprits: Vec<u32> = verdict.culprits.iter().map(|one| one.rank.0).collect();
    let victims: Vec<u32> = verdict.victims.iter().map(|rank| rank.0).collect();
    let is_it = verdict.class == Class::NotJoined && culprits == [nranks - 1];
    if !is_it || victims != (0..nranks - 1).collect::<Vec<_>>() {
        wrong.push(format!("{} {culprits:?} {victims:?}", verdict.why));
    }
    // Not a note for each process.
    if seen.notes.iter().filter(|note| note.contains("found no place")).count() > 1 {
        wrong.push(format!("{:?}", seen.notes));
    }
    wrong
}

#[test]
fn an_inspector_sees_all_ranks_of_a_crowd_from_any_process() {
    let (processes, looks) = if is_long() { (64, 20) } else { (16, 5) };
    let nranks = processes * PER;
    let crowd = Crowd::start(processes);
    // A wait is told once it has lasted for a second.
    let first = until("the verdict", || {
        Some(crowd.look(crowd.launcher.id()).0).filter(|seen| !seen.verdicts.is_empty())
    });
    let mut problems = wrong(&first, nranks);
    let pid_of = |rank: u32| first.ranks.iter().find(|one| one.rank.0 == rank).unwrap().pid;
    let mut drawn = Seed(512).part(0);
    let pids =
        [0, nranks - 1].into_iter().chain(std::iter::repeat_with(|| drawn.below(u64::from(nranks)) as u32));
    let mut times_ms = Vec::new();
    for pid in pids.map(pid_of).take(looks) {
        let (seen, took) = crowd.look(pid);
        problems.extend(wrong(&seen, nranks).into_iter().map(|what| format!("from pid {pid}: {what}")));
        times_ms.push(took.as_millis());
    }
    let left = crowd.end();
    times_ms.sort_unstable();
    let (p50, p95) = (times_ms[(looks - 1) / 2], times_ms[(looks * 95).div_ceil(100) - 1]);
    println!("{nranks} ranks in {processes} processes: {looks} snapshots, p50 {p50} ms, p95 {p95} ms");
    println!("cases: snapshots of a crowd {looks}");
    assert!(problems.is_empty(), "{problems:#?}");
    assert_eq!(left, Vec::<PathBuf>::new());
}
