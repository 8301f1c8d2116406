//! Ranks that are ended by their launcher: their last spans arrive, or are counted.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Duration;

use ccl::clock;
use ccl::event::Event;
use ccl::recorder::Reader;
use ccl::recorder::reader::Cursor;
use ccl_tests::job::PATIENCE;
use ccl_tests::otlp::{Receiver, Span};
use ccl_tests::programs::{launcher, program};
use ccl_tests::rotel;
use rustix::process::{Pid, Signal, kill_process};

use super::RANKS;

/// Calls that all ranks complete; then one rank sleeps.
const CALLS: usize = 20;

/// Sends `signal` to the launcher of eight ranks that hang after their last call.
///
/// The launcher ends the ranks, which have sent nothing yet. Gives their standard error.
fn end(url: &str, signal: Signal) -> String {
    let folder = tempfile::tempdir().expect("a folder of temporary files");
    let at = (CALLS + 1).to_string();
    let mut child = launcher(folder.path(), &["-n", "8", "--grace", "30", "--"])
        .arg(program("hang"))
        .args(["--victim", "3", "--at", &at, "--calls", "0"])
        .envs([("OTEL_EXPORTER_OTLP_ENDPOINT", url), ("OTEL_BSP_SCHEDULE_DELAY", "3600000")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ccl-inspect starts");
    // Kept open: a launcher whose output has no reader ends its ranks.
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let pids = pids(&mut output);
    let until = clock::now().after(PATIENCE);
    while pids.iter().any(|pid| completed(*pid) < CALLS) {
        assert!(clock::now() < until, "they have not completed {CALLS} calls");
        clock::sleep(Duration::from_millis(10));
    }
    // Each rank reads its recorder every ten milliseconds; nothing waits for that here.
    kill_process(Pid::from_child(&child), signal).expect("it runs");
    let mut said = String::new();
    let stderr = child.stderr.as_mut().expect("a pipe");
    stderr.read_to_string(&mut said).expect("it is text");
    drop(output);
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(128 + signal.as_raw()), "{said}");
    said
}

/// The pids that the ranks print; the rest of their output is small and fits into the pipe.
fn pids(output: &mut impl BufRead) -> Vec<u32> {
    let pid = |line: String| line.split_once("is process ")?.1.trim().parse().ok();
    output.lines().map_while(Result::ok).filter_map(pid).take(RANKS).collect()
}

/// The number of collectives that a process has completed.
fn completed(pid: u32) -> usize {
    let readers = Reader::of_pid(pid).unwrap_or_default();
    let events = readers.iter().filter_map(|reader| reader.events(&mut Cursor::default()).ok()).flatten();
    let kept = events.flat_map(|ring| ring.events);
    kept.filter(|kept| matches!(kept.event, Event::OpCompleted { .. })).count()
}

#[test]
fn ranks_that_their_launcher_ends_deliver_their_last_spans() {
    for signal in [Signal::TERM, Signal::INT] {
        let receiver = Receiver::start();
        let said = end(&receiver.url(), signal);
        let received = receiver.received();
        assert!(received.problems.is_empty(), "{:?}", received.problems);
        // The call under way may have failed, if a rank ended before another was asked to.
        let completed = |span: &&Span| span.name == "AllReduce" && !span.failed;
        let parts: BTreeSet<_> = received
            .spans
            .values()
            .filter(completed)
            .map(|s| (s.get("ccl.rank"), s.get("ccl.seq")))
            .collect();
        assert_eq!(parts.len(), RANKS * CALLS, "{parts:?}: {said}");
        let phases = received.spans.values().filter(|span| span.name.starts_with("init"));
        assert_eq!(phases.count(), RANKS * 7, "{said}");
        assert!(!said.contains("OpenTelemetry"), "{said}");
        println!("{signal:?}: {} spans of ranks that were ended", received.spans.len());
    }
}

#[test]
fn ranks_that_are_ended_count_what_nobody_takes() {
    let url = format!("http://127.0.0.1:{}", rotel::free_port());
    let said = end(&url, Signal::TERM);
    // Init and its six phases, and the calls; the one under way may have failed, if a rank ended
    // before another was asked to.
    let accounts = [7 + CALLS, 7 + CALLS + 1].map(|made| {
        let account = format!("{made} spans made, 0 delivered, {made} dropped, 0 unknown; 0 events lost");
        said.matches(&format!("{account}; not delivered: {url}")).count()
    });
    assert_eq!(accounts.iter().sum::<usize>(), RANKS, "{said}");
    println!("cases: otel_ended {RANKS}");
}
