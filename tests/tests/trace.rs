//! Traces of real jobs: every message taken has one arrow from where it was sent, on one clock, and Perfetto's own trace
//! processor reads them without an error.

use std::path::{Path, PathBuf};
use std::process::Command;

use ccl_tests::perfetto;
use ccl_tests::programs::{launcher, program, text};
use serde_json::Value;

/// What `ccl-inspect trace` says of a folder of parts, and the trace it wrote.
fn merged(folder: &Path) -> (Value, PathBuf) {
    let trace = folder.join("merged.trace");
    let output = Command::new(program("ccl-inspect"))
        .args(["trace", "--json", "--folder"])
        .arg(folder)
        .arg("-o")
        .arg(&trace)
        .output()
        .expect("ccl-inspect starts");
    assert!(output.status.success(), "{}", text(&output));
    (serde_json::from_slice(&output.stdout).expect("it prints JSON"), trace)
}

/// Runs ranks that write their parts to `folder`.
fn run(folder: &Path, launch: &[&str], words: &[&str]) -> String {
    let runtime = tempfile::tempdir().expect("a folder of temporary files");
    let output = launcher(runtime.path(), launch)
        .arg("--")
        .args(words)
        .env("CCL_TRACE", folder)
        .output()
        .expect("ccl-inspect starts");
    text(&output)
}

fn perfetto(trace: &Path, queries: &[&str]) -> perfetto::Answer {
    perfetto::ask(Path::new(env!("CARGO_TARGET_TMPDIR")), trace, queries)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn every_message_taken_on_two_hosts_has_one_arrow_and_perfetto_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let said = run(
        folder.path(),
        &["-n", "4", "--hosts", "2"],
        &[&program("train_digits").display().to_string(), "--epochs", "1"],
    );
    let (merged, trace) = merged(folder.path());
    assert_eq!((number(&merged["processes"]), number(&merged["unfinished"])), (4, 0), "{merged} {said}");
    // Cells and events are counted apart; what was overwritten is lost to either side of an arrow.
    let (arrows, taken, lost) =
        (number(&merged["arrows"]), number(&merged["taken"]), number(&merged["lost"]));
    assert!(arrows > 1_000 && arrows <= taken && taken <= arrows + lost, "{merged}");
    let error = number(&merged["error_ns"]);
    assert!(number(&merged["backwards_ns"]) <= error && error < 1_000_000, "{merged}");
    let answer = perfetto(
        &trace,
        &[
            "select count(*) as n from slice where dur > 0",
            "select count(*) as n from flow",
            "select count(*) as n from process where name glob 'rank ? (host *, pid *)'",
            "select count(*) as n from slice where name = 'Exchange'",
            "select count(distinct t.name) as n from thread t join thread_track using (utid) where t.name glob '*channel*'",
            "select count(*) > 0 as n from counter",
        ],
    );
    assert_eq!(answer.import_errors, serde_json::json!({}));
    let counts: Vec<u64> = answer.rows.iter().map(|row| number(&row["n"])).collect();
    assert_eq!(counts[..4], [number(&merged["slices"]), arrows, 4, 4], "{merged} {said}");
    assert!(counts[4] >= 2 && counts[5] == 1, "{counts:?}");
}

#[test]
fn skewed_clocks_become_one_and_spans_of_the_program_lie_among_the_operations() {
    let folder = tempfile::tempdir().unwrap();
    let steps = "150";
    let skews = ["0", "0", "5000000", "50000", "-5000000", "-50000", "10000000", "50000"];
    let program = program("traced").display().to_string();
    let words: Vec<&str> = [&program, steps, "4"].into_iter().chain(skews).collect();
    let said = run(folder.path(), &["-n", "4"], &words);
    let (merged, trace) = merged(folder.path());
    let error = number(&merged["error_ns"]);
    // Milliseconds of skew are found to less than one; what is left is what the messages took.
    assert!(number(&merged["backwards_ns"]) <= error && error < 1_000_000, "{merged} {said}");
    assert_eq!(number(&merged["arrows"]) + number(&merged["lost"]), number(&merged["taken"]), "{merged}");
    // Each operation lies in the step that called it, on the same clock; the program's spans do not drift with the skewed clock.
    let error = error + 600 * 4_000_000 * 50 / 1_000_000;
    let inside = format!(
        "select count(distinct op.id) as n from slice op join thread_track ot on op.track_id = ot.id join thread o using (utid) \
         join slice step join thread_track st on step.track_id = st.id join thread s on st.utid = s.utid \
         where op.name glob 'AllReduce*' and step.name = 'step' and o.upid = s.upid \
         and op.ts >= step.ts - {error} and op.ts + op.dur <= step.ts + step.dur + {error}"
    );
    let answer = perfetto(&trace, &["select count(*) as n from slice where name = 'step'", &inside]);
    assert_eq!(answer.import_errors, serde_json::json!({}));
    assert_eq!(answer.rows.iter().map(|row| number(&row["n"])).collect::<Vec<_>>(), [600, 600], "{said}");
}

#[test]
fn the_shortest_program_leaves_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let said = run(folder.path(), &["-n", "1"], &[&program("hello").display().to_string()]);
    let (merged, _) = merged(folder.path());
    assert_eq!((number(&merged["processes"]), number(&merged["unfinished"])), (1, 0), "{merged} {said}");
    assert!(number(&merged["slices"]) >= 1, "{merged}");
}

#[test]
fn a_process_killed_in_the_middle_leaves_a_readable_part() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tempfile::tempdir().unwrap();
    let mut ranks = launcher(runtime.path(), &["-n", "2"])
        .arg("--")
        .arg(program("traced"))
        .args(["1000000", "0"])
        .env("CCL_TRACE", folder.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // One of the two, as soon as it has written for a while.
    let part = loop {
        assert!(ranks.try_wait().unwrap().is_none(), "the ranks ended");
        let files = std::fs::read_dir(folder.path()).unwrap().flatten();
        let mut parts = files.filter(|file| file.file_name().to_string_lossy().starts_with("ccl-"));
        match parts.find(|part| part.metadata().is_ok_and(|about| about.len() > 100_000)) {
            Some(part) => break part.path(),
            None => ccl::clock::sleep(std::time::Duration::from_millis(5)),
        }
    };
    let pid = part.file_stem().unwrap().to_string_lossy().rsplit('-').next().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert!(!ranks.wait().unwrap().success());
    let answer = perfetto(&part, &["select count(*) as n from slice"]);
    assert_eq!(answer.import_errors, serde_json::json!({}));
    assert!(number(&answer.rows[0]["n"]) > 100);
    let (merged, _) = merged(folder.path());
    assert_eq!(number(&merged["processes"]), 2, "{merged}");
    assert!(number(&merged["unfinished"]) >= 1, "{merged}");
}
