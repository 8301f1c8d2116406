//! A job gets its name when its root has answered. An inspector that started before that sees the
//! whole job afterwards, and later also the ranks that it could not reach at first.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccl::clock;
use ccl_tests::otlp::{Received, Receiver};
use ccl_tests::programs::{program, text};
use ccl_tests::rotel::free_port;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything that is waited for may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// One of two ranks that call without end; killed when dropped.
struct Rank(Child);

impl Rank {
    fn start(rank: &str, port: u16, runtime: &Path) -> Self {
        let mut command = Command::new(program("hang"));
        command.args(["--calls", "0", "--work-ms", "20"]);
        Self::spawn(command, rank, port, runtime)
    }

    fn spawn(mut command: Command, rank: &str, port: u16, runtime: &Path) -> Self {
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("CCL_INIT_TIMEOUT", "60")]);
        command.env("CCL_COMM_ID", format!("127.0.0.1:{port}")).env("CCL_RUNTIME_DIR", runtime);
        Self(command.stdout(Stdio::null()).spawn().expect("the program starts"))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn inspector(words: &[&str], runtime: &Path) -> Command {
    let mut command = Command::new(program("ccl-inspect"));
    command.args(words).env("CCL_RUNTIME_DIR", runtime).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = clock::now().after(DEADLINE);
    while !is_so() {
        assert!(clock::now() < end, "{what}");
        clock::sleep(Duration::from_millis(10));
    }
}

/// A rank that waits for the root, and can be inspected.
fn first(port: u16, runtime: &Path) -> (Rank, String) {
    let rank = Rank::start("1", port, runtime);
    let pid = rank.0.id().to_string();
    until("the first rank is not found", || {
        inspector(&["snapshot", &pid], runtime).output().expect("it runs").status.code() != Some(1)
    });
    (rank, pid)
}

#[test]
fn top_shows_all_ranks_once_the_job_has_its_name() {
    let (runtime, port) = (tempfile::tempdir().expect("a folder of temporary files"), free_port());
    let (_rank, pid) = first(port, runtime.path());
    let mut top =
        inspector(&["top", &pid, "--every", "50ms", "--json"], runtime.path()).spawn().expect("it runs");
    let lines = BufReader::new(top.stdout.take().expect("it is piped")).lines();
    let mut ticks =
        lines.map(|line| serde_json::from_str::<Value>(&line.expect("it says on")).expect("JSON"));
    assert_eq!(ticks.next().expect("a tick")["ranks"].as_array().map(Vec::len), Some(1));
    let _other = Rank::start("0", port, runtime.path());
    let is_whole = |tick: &Value| {
        let moves = |rank: &Value| rank["ops_per_s"].as_f64() > Some(0.0);
        tick["ranks"].as_array().is_some_and(|ranks| ranks.len() == 2 && ranks.iter().all(moves))
    };
    let end = clock::now().after(DEADLINE);
    assert!(ticks.take_while(|_| clock::now() < end).any(|tick| is_whole(&tick)));
    let _ = top.kill();
    let _ = top.wait();
}

/// Whether a span of that rank and name has arrived.
fn has(received: &Received, rank: &str, name: &str) -> bool {
    received.spans.values().any(|span| span.resource["ccl.rank"] == rank && span.name.starts_with(name))
}

/// Waits until a process holds this many recorders open.
fn reads(process: &Child, count: usize) {
    let descriptors = format!("/proc/{}/fd", process.id());
    until("the recorders are not opened", || {
        let open = std::fs::read_dir(&descriptors).into_iter().flatten().flatten();
        let is_recorder = |path: &PathBuf| path.extension().is_some_and(|is| is == "rec");
        let paths = open.filter_map(|one| std::fs::read_link(one.path()).ok());
        paths.filter(is_recorder).collect::<BTreeSet<_>>().len() == count
    });
}

fn signal(process: &Child, signal: Signal) {
    let pid = Pid::from_raw(process.id() as i32).expect("a process");
    kill_process(pid, signal).expect("it lives");
}

#[test]
fn an_export_has_the_spans_of_all_ranks_and_of_messages_where_that_is_asked_for() {
    let (runtime, port) = (tempfile::tempdir().expect("a folder of temporary files"), free_port());
    let (_rank, pid) = first(port, runtime.path());
    let receiver = Receiver::start();
    let url = receiver.url();
    let words = ["export", &pid, "--otlp", &url, "--level", "2"];
    let exporting = inspector(&words, runtime.path()).spawn().expect("it runs");
    reads(&exporting, 1);
    let _other = Rank::start("0", port, runtime.path());
    receiver.until("spans of both ranks, and of messages", |received| {
        ["0", "1"].iter().all(|rank| has(received, rank, "send message") && has(received, rank, "AllReduce"))
    });
    signal(&exporting, Signal::INT);
    let output = exporting.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_rank_that_could_not_answer_at_first_gets_the_level_when_it_can() {
    let (runtime, port) = (tempfile::tempdir().expect("a folder of temporary files"), free_port());
    let (rank, pid) = first(port, runtime.path());
    let _other = Rank::start("0", port, runtime.path());
    until("the two do not call", || {
        let said = inspector(&["snapshot", &pid, "--json"], runtime.path()).output().expect("it runs").stdout;
        let said: Value = serde_json::from_slice(&said).unwrap_or_default();
        let calls = |rank: &Value| rank["comms"][0]["op"]["completed"].as_u64() >= Some(3);
        said["ranks"].as_array().is_some_and(|ranks| ranks.len() == 2 && ranks.iter().all(calls))
    });
    signal(&rank.0, Signal::STOP);
    let receiver = Receiver::start();
    let url = receiver.url();
    let exporting = inspector(&["export", &pid, "--otlp", &url, "--level", "2"], runtime.path())
        .spawn()
        .expect("it runs");
    reads(&exporting, 2);
    // The other rank waits, and its earlier spans are exported.
    receiver.until("spans of before", |received| has(received, "0", "AllReduce"));
    signal(&rank.0, Signal::CONT);
    receiver.until("messages of the one that was stopped", |received| has(received, "1", "send message"));
    signal(&exporting, Signal::INT);
    let output = exporting.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_rank_whose_init_took_long_is_one_process_of_one_job_in_the_trace() {
    let (runtime, port) = (tempfile::tempdir().expect("a folder of temporary files"), free_port());
    let parts = tempfile::tempdir().expect("a folder of temporary files");
    let start = |rank: &str| {
        let mut command = Command::new(program("hello"));
        command.env("CCL_TRACE", parts.path());
        Rank::spawn(command, rank, port, runtime.path())
    };
    let mut first = start("1");
    until("the first rank's init is not drawn", || {
        let files = std::fs::read_dir(parts.path()).expect("a folder").flatten();
        files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).any(|part| {
            part.lines().any(|line| line.contains(r#""ph":"B""#) && line.contains(r#""name":"CheckIn""#))
        })
    });
    let mut other = start("0");
    for rank in [&mut first, &mut other] {
        assert!(rank.0.wait().expect("it ends").success());
    }
    let trace = parts.path().join("merged.trace");
    let words = ["trace", "--json", "--folder", &parts.path().display().to_string()];
    let output = inspector(&words, runtime.path()).arg("-o").arg(&trace).output().expect("it runs");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    assert_eq!((&said["processes"], &said["unfinished"], &said["open"]), (&2.into(), &0.into(), &0.into()));
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).expect("a file")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let ranks: Vec<_> = events.iter().filter(|event| event["name"] == "process_name").collect();
    assert_eq!(ranks.len(), 2, "{ranks:?}");
}
