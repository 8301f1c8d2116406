//! Traces of jobs that hang: operations under way are in them, open-ended, with the rank they wait
//! for, whichever process writes them and however the ranks end.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ccl::clock;
use ccl_tests::job::PATIENCE;
use ccl_tests::perfetto;
use ccl_tests::programs::{launcher, program, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Three ranks; rank 0, the root, does not call the fifth broadcast.
struct Hang {
    runtime: tempfile::TempDir,
    /// The folder of their parts.
    parts: tempfile::TempDir,
    launcher: Child,
}

impl Hang {
    fn start() -> Self {
        let (runtime, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let launcher = launcher(runtime.path(), &["-n", "3", "--"])
            .arg(program("hang"))
            .args(["--victim", "0", "--at", "5", "--call", "broadcast"])
            .env("CCL_TRACE", parts.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let hang = Self { runtime, parts, launcher };
        let is_drawn = |path: &PathBuf| {
            let part = std::fs::read_to_string(path).unwrap_or_default();
            // An operation is written before its wait, which began later; shorter waits for the
            // rank have ended.
            let begins =
                |what: &str| part.lines().any(|line| line.contains(r#""ph":"B""#) && line.contains(what));
            begins("Broadcast #5") && begins("waits for rank 0")
        };
        let end = clock::now().after(PATIENCE);
        let waits = |files: &[PathBuf]| files.iter().filter(|path| is_drawn(path)).count();
        while hang.files().len() < 3 || waits(&hang.files()) < 2 {
            assert!(clock::now() < end, "two ranks do not wait for rank 0: {:?}", hang.files());
            clock::sleep(Duration::from_millis(20));
        }
        hang
    }

    /// The parts that the processes write.
    fn files(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.parts.path()).unwrap().flatten().map(|file| file.path());
        files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("ccl-")).collect()
    }

    /// The pids of the ranks: `ccl-HOST-PID-BEGUN.json`.
    fn pids(&self) -> Vec<i32> {
        let pid = |path: PathBuf| {
            path.file_stem().unwrap().to_string_lossy().rsplit('-').nth(1).unwrap().parse().unwrap()
        };
        self.files().into_iter().map(pid).collect()
    }

    fn inspect(&self, words: &[&str], to: &Path) -> Output {
        let mut command = Command::new(program("ccl-inspect"));
        command.args(["trace", "--json"]).args(words).arg("-o").arg(to);
        command.env("CCL_RUNTIME_DIR", self.runtime.path()).output().unwrap()
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// Checks that the trace shows both ranks inside the fifth call, without an end.
///
/// The call waits for rank 0.
fn check(output: &Output, status: i32, trace: &Path) -> Value {
    assert_eq!(output.status.code(), Some(status), "{}", text(output));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let operations = "select s.name as name, s.dur as dur, extract_arg(s.arg_set_id, 'args.waits_for[0]') as waits_for, \
         extract_arg(s.arg_set_id, 'args.tag') as tag, extract_arg(s.arg_set_id, 'args.root') as root, \
         extract_arg(s.arg_set_id, 'args.ranks') as ranks, extract_arg(s.arg_set_id, 'args.op') as op \
         from slice s where s.name = 'Broadcast #5'";
    let waits =
        "select distinct s.name as name from slice s where s.dur = -1 and s.name glob 'waits*' order by name";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let answer = perfetto::ask(folder, trace, &[operations, waits]);
    assert_eq!(answer.import_errors, serde_json::json!({}));
    let (operations, waits): (Vec<_>, Vec<_>) =
        answer.rows.iter().partition(|row| row["name"] == "Broadcast #5");
    for operation in &operations {
        assert_eq!((&operation["dur"], &operation["waits_for"]), (&(-1).into(), &0.into()), "{operation}");
        assert_eq!((&operation["tag"], &operation["root"]), (&"call 5".into(), &0.into()), "{operation}");
        assert_eq!((&operation["ranks"], &operation["op"]), (&3.into(), &Value::Null), "{operation}");
    }
    assert_eq!(operations.len(), 2, "{:?}", answer.rows);
    assert!(waits.iter().any(|wait| wait["name"] == "waits for rank 0"), "{waits:?}");
    assert_eq!(said["open"], 4, "{said}");
    said
}

#[test]
fn a_trace_from_outside_shows_what_began_before_it_and_whom_it_waits_for() {
    let hang = Hang::start();
    let trace = hang.runtime.path().join("t.json");
    let pid = hang.pids()[0].to_string();
    let output = hang.inspect(&[&pid, "--for", "1s"], &trace);
    let said = check(&output, 0, &trace);
    // An operation that began before the trace is one slice, however often it is read.
    assert_eq!((&said["slices"], &said["unfinished"]), (&0.into(), &0.into()), "{said}");
}

#[test]
fn a_trace_compressed_is_read_by_perfetto_as_it_is() {
    let hang = Hang::start();
    let trace = hang.runtime.path().join("t.json.gz");
    let pid = hang.pids()[0].to_string();
    let output = hang.inspect(&[&pid, "--for", "100ms"], &trace);
    check(&output, 0, &trace);
    assert_eq!(std::fs::read(&trace).unwrap()[..2], [0x1f, 0x8b]);
}

/// Waits until all threads of a process are stopped.
fn stopped(pid: Pid) {
    let end = clock::now().after(PATIENCE);
    let tasks = PathBuf::from(format!("/proc/{}/task", pid.as_raw_pid()));
    let runs = |task: PathBuf| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    while std::fs::read_dir(&tasks).unwrap().flatten().any(|task| runs(task.path())) {
        assert!(clock::now() < end, "{pid:?} does not stop");
        clock::sleep(Duration::from_millis(5));
    }
}

/// The ranks end by a signal, which gives them no time to write anything.
fn ends_by(signal: Signal) {
    let mut hang = Hang::start();
    // No rank must see another's death: they get the signal while all are stopped, and end when
    // they go on.
    let pids: Vec<Pid> = hang.pids().into_iter().map(|pid| Pid::from_raw(pid).unwrap()).collect();
    for pid in &pids {
        kill_process(*pid, Signal::STOP).unwrap();
    }
    pids.iter().for_each(|pid| stopped(*pid));
    for also in [signal, Signal::CONT] {
        // SIGKILL also ends stopped processes.
        pids.iter().for_each(|pid| _ = kill_process(*pid, also));
    }
    hang.launcher.wait().unwrap();
    let trace = hang.runtime.path().join("t.json");
    let folder = hang.parts.path().display().to_string();
    let output = hang.inspect(&["--folder", &folder], &trace);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    assert_eq!(said["unfinished"], 3, "{said}");
    check(&output, 13, &trace);
}

#[test]
fn what_was_under_way_when_a_terminal_interrupted_is_in_the_parts() {
    ends_by(Signal::INT);
}

#[test]
fn what_was_under_way_when_the_job_was_terminated_is_in_the_parts() {
    ends_by(Signal::TERM);
}

#[test]
fn what_was_under_way_when_the_job_was_killed_is_in_the_parts() {
    ends_by(Signal::KILL);
}
