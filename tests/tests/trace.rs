//! Traces of real jobs: every received message has one arrow from where it was sent, on one clock,
//! and Perfetto's own trace processor reads them without an error.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use ccl_tests::job::PATIENCE;
use ccl_tests::perfetto;
use ccl_tests::programs::{launcher, program, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Merges a folder of parts with `ccl-inspect trace`; gives its report, and the trace it wrote.
fn merged(folder: &Path) -> (Value, PathBuf) {
    merged_of(folder, &[])
}

/// The same for one of several jobs.
fn merged_of(folder: &Path, job: &[&str]) -> (Value, PathBuf) {
    let trace = folder.join("merged.trace");
    let output = merge(folder, job, &trace);
    let merged: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    assert_eq!(output.status.code(), Some(status(&merged)), "{}", text(&output));
    (merged, trace)
}

fn merge(folder: &Path, job: &[&str], trace: &Path) -> Output {
    let mut command = Command::new(program("ccl-inspect"));
    command.args(["trace", "--json"]).args(job).arg("--folder").arg(folder).arg("-o").arg(trace);
    command.output().expect("ccl-inspect starts")
}

/// The exit status that must go with the report on a trace.
fn status(merged: &Value) -> i32 {
    match () {
        () if number(&merged["lost"]) > 0 => 12,
        () if merged["notes"] != serde_json::json!([]) || number(&merged["unfinished"]) > 0 => 13,
        () => 0,
    }
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
    // Cells and events are counted separately; an overwritten event is lost for one side of an
    // arrow.
    let (arrows, taken, lost) =
        (number(&merged["arrows"]), number(&merged["taken"]), number(&merged["lost"]));
    assert!(arrows > 1_000 && arrows <= taken && taken <= arrows + lost, "{merged}");
    assert!(number(&merged["backwards_ns"]) <= number(&merged["error_ns"]), "{merged}");
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
fn the_profile_of_the_proxy_loads_in_perfetto_and_its_times_are_those_of_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let words = [&program("train_digits").display().to_string(), "--epochs", "1"];
    let said = run(folder.path(), &["-n", "4", "--hosts", "2"], &words);
    let trace = folder.path().join("merged.trace");
    let mut command = Command::new(program("ccl-inspect"));
    command.args(["trace", "--json", "--folder"]).arg(folder.path()).arg("-o").arg(&trace);
    let output = command.arg("--proxy-profile").arg(folder.path().join("net.json")).output().unwrap();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    let profiles = report["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 4, "each rank has a neighbour on the other host: {report} {said}");
    for (rank, profile) in profiles.iter().enumerate() {
        let profile = Path::new(profile.as_str().unwrap());
        assert!(profile.ends_with(format!("net-{rank}.json")), "{report}");
        let states = "select ts, name from slice where name glob '*Wait' order by ts, name";
        let steps = "select count(*) as n from slice where name glob 'Send-*' or name glob 'Recv-*'";
        let mut theirs = perfetto(profile, &[states, steps]);
        assert_eq!(theirs.import_errors, serde_json::json!({}), "rank {rank}");
        let steps = number(&theirs.rows.pop().unwrap()["n"]);
        assert!(steps > 100 && theirs.rows.len() as u64 > steps, "rank {rank}: {steps} steps");
        let of_trace = format!(
            "select s.ts, case s.name when 'SendPeerWait' then 'BufferWait' when 'SendGPUWait' then 'GPUWait' \
             when 'RecvGPUWait' then 'GPUWait' else s.name end as name \
             from slice s join thread_track t on s.track_id = t.id join thread using (utid) join process p using (upid) \
             where s.category = 'ccl.proxy' and s.name != 'Done' and p.name glob 'rank {rank} *' order by 1, 2"
        );
        assert_eq!(theirs.rows, perfetto(&trace, &[&of_trace]).rows, "rank {rank}");
    }
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
    // The error of the clocks depends on how long messages took. The promise is that it holds.
    assert!(number(&merged["backwards_ns"]) <= error, "{merged} {said}");
    assert_eq!(number(&merged["arrows"]) + number(&merged["lost"]), number(&merged["taken"]), "{merged}");
    // Each operation lies in the step that called it, on the same clock; the program's spans do not
    // drift with the skewed clock.
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
fn a_program_with_a_subscriber_of_its_own_has_its_spans_in_the_trace_or_is_told_how() {
    for (which, expect) in [("layer", 20), ("filtered", 0), ("plain", 0)] {
        let folder = tempfile::tempdir().unwrap();
        let traced = program("traced").display().to_string();
        let said = run(folder.path(), &["-n", "2"], &[&traced, "--subscriber", which, "10", "0"]);
        let (merged, trace) = merged(folder.path());
        assert_eq!((number(&merged["processes"]), number(&merged["unfinished"])), (2, 0), "{merged} {said}");
        let answer = perfetto(
            &trace,
            &[
                "select count(*) as n from slice where name = 'step' and dur > 0",
                "select count(*) as n from slice where name glob 'AllReduce *' and extract_arg(arg_set_id, 'args.op') = 'Sum' \
                 and extract_arg(arg_set_id, 'args.ranks') = 2 and extract_arg(arg_set_id, 'args.busbw_GBps') > 0 \
                 and 'AllReduce #' || (substr(extract_arg(arg_set_id, 'args.tag'), 6) + 1) = name",
            ],
        );
        assert_eq!(answer.import_errors, serde_json::json!({}));
        let counts: Vec<u64> = answer.rows.iter().map(|row| number(&row["n"])).collect();
        assert_eq!(counts, [expect, 20], "{which}: {said}");
        let hints = said.matches("add the layer to it").count();
        assert_eq!(hints, if which == "plain" { 2 } else { 0 }, "once per process: {said}");
        let filtered = said.matches("lets nothing beyond warn through").count();
        assert_eq!(filtered, if which == "filtered" { 2 } else { 0 }, "{said}");
        let apps = std::fs::read_dir(folder.path()).unwrap().flatten();
        let apps = apps.filter(|file| file.file_name().to_string_lossy().starts_with("app-")).count();
        assert_eq!(apps, if which == "plain" { 0 } else { 2 });
    }
}

#[test]
fn a_loss_is_said_whatever_subscriber_the_program_has() {
    let runtime = tempfile::tempdir().unwrap();
    let file = runtime.path().join("no-folder");
    std::fs::write(&file, "").unwrap();
    let traced = program("traced").display().to_string();
    for own in [&[][..], &["--subscriber", "layer"], &["--subscriber", "plain"]] {
        let said = |name: &str, value: &str| {
            let mut command = launcher(runtime.path(), &["-n", "2"]);
            command.arg("--").arg(&traced).args(own).args(["10", "0"]).env(name, value);
            text(&command.output().expect("ccl-inspect starts"))
        };
        let trace = said("CCL_TRACE", file.to_str().unwrap());
        assert_eq!(trace.matches("no trace is written").count(), 2, "{own:?}: {trace}");
        let spans = said("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
        assert_eq!(spans.matches("dropped").count(), 2, "{own:?}: {spans}");
    }
}

#[test]
fn a_rank_without_a_part_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &["-n", "3"], &[&program("hello").display().to_string()]);
    let parts = std::fs::read_dir(folder.path()).unwrap().flatten().map(|file| file.path());
    let rank_1 =
        |path: &PathBuf| std::fs::read_to_string(path).is_ok_and(|part| part.contains("\"rank\":1,"));
    let of_rank_1: Vec<PathBuf> = parts.filter(rank_1).collect();
    assert_eq!(of_rank_1.len(), 1);
    std::fs::remove_file(&of_rank_1[0]).unwrap();
    let (merged, _) = merged(folder.path());
    assert_eq!(merged["missing"], serde_json::json!([[1, 1]]), "{merged}");
    assert!(merged["notes"][0].as_str().unwrap().starts_with("rank 1: no part of it in "), "{merged}");
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
fn two_runs_into_one_folder_are_two_jobs() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in ["1", "2"] {
        run(folder.path(), &["-n", ranks], &[&program("hello").display().to_string()]);
    }
    let trace = folder.path().join("merged.trace");
    let refused = merge(folder.path(), &[], &trace);
    let said = text(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("parts of several jobs") && !trace.exists(), "{said}");
    let jobs = said.lines().filter_map(|line| line.trim().split_once("  processes: "));
    let jobs: Vec<(&str, u64)> = jobs.map(|(job, count)| (job, count.parse().unwrap())).collect();
    let mut counts: Vec<u64> = jobs.iter().map(|(_, count)| *count).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2], "{said}");
    for (job, count) in jobs {
        let (merged, _) = merged_of(folder.path(), &[job]);
        assert_eq!((number(&merged["processes"]), number(&merged["unfinished"])), (count, 0), "{merged}");
    }
    assert_eq!(merge(folder.path(), &["1"], &trace).status.code(), Some(2), "a pid is no job");
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
    // ccl-HOST-PID-BEGUN.json
    let pid = part.file_stem().unwrap().to_string_lossy().rsplit('-').nth(1).unwrap().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert!(!ranks.wait().unwrap().success());
    let answer = perfetto(&part, &["select count(*) as n from slice"]);
    assert_eq!(answer.import_errors, serde_json::json!({}));
    assert!(number(&answer.rows[0]["n"]) > 100);
    let (merged, _) = merged(folder.path());
    assert_eq!(number(&merged["processes"]), 2, "{merged}");
    assert!(number(&merged["unfinished"]) >= 1, "{merged}");
}

/// A program makes few spans, and is killed or hangs: all but the most recent ones are in its file.
#[test]
fn few_spans_are_written_while_their_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tempfile::tempdir().unwrap();
    let mut ranks = launcher(runtime.path(), &["-n", "1"])
        .arg("--")
        .arg(program("traced"))
        .args(["1000000", "200"])
        .env("CCL_TRACE", folder.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let has_spans = || {
        let files = std::fs::read_dir(folder.path()).unwrap().flatten();
        let mut apps = files.filter(|file| file.file_name().to_string_lossy().starts_with("app-"));
        apps.any(|file| std::fs::read_to_string(file.path()).unwrap().contains("\"step\""))
    };
    // A full buffer of spans would take a minute.
    let until = ccl::clock::now().after(std::time::Duration::from_secs(20));
    while !has_spans() && ccl::clock::now() < until {
        assert!(ranks.try_wait().unwrap().is_none(), "the rank ended");
        ccl::clock::sleep(std::time::Duration::from_millis(20));
    }
    let had_spans = has_spans();
    // The rank dies with its launcher.
    ranks.kill().unwrap();
    ranks.wait().unwrap();
    assert!(had_spans);
}

/// Ranks that call without end, started one by one; killed when dropped.
struct Ranks {
    runtime: tempfile::TempDir,
    port: String,
    started: Vec<Child>,
}

impl Ranks {
    fn new() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = port.expect("a free port").port().to_string();
        Self { runtime: tempfile::tempdir().unwrap(), port, started: Vec::new() }
    }

    /// Starts one rank of two; gives its pid.
    fn start(&mut self, rank: u32) -> u32 {
        let child = Command::new(program("traced"))
            .args(["1000000", "1"])
            .env("CCL_RUNTIME_DIR", self.runtime.path())
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", "2".into()), ("LOCAL_RANK", rank.to_string())])
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &self.port)])
            // To a reader, jobs without a secret are one job until their roots have named them.
            .env("CCL_JOB_SECRET", format!("secret of {}", self.port))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.started.push(child);
        self.started.last().unwrap().id()
    }

    /// Starts `ccl-inspect trace PID`, which goes on until it is asked to end.
    fn trace(&self, pid: u32, output: &Path) -> Child {
        let mut command = Command::new(program("ccl-inspect"));
        command.args(["trace", &pid.to_string(), "--for", "1h", "--json", "-o"]).arg(output);
        command.env("CCL_RUNTIME_DIR", self.runtime.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.started {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a trace of a process that was just started, as soon as its recorder exists.
fn tracing_of(ranks: &Ranks, pid: u32, output: &Path) -> Child {
    let end = ccl::clock::now().after(PATIENCE);
    let is_known = || {
        let mut command = Command::new(program("ccl-inspect"));
        command.args(["snapshot", &pid.to_string()]).env("CCL_RUNTIME_DIR", ranks.runtime.path());
        command.output().is_ok_and(|output| output.status.code() != Some(1))
    };
    while !is_known() {
        assert!(ccl::clock::now() < end, "no recorder of process {pid}");
    }
    ranks.trace(pid, output)
}

/// Waits until `is_so` holds for the texts of the parts that a running trace has written.
fn parts_until(output: &Path, tracing: &mut Child, what: &str, is_so: impl Fn(&[String]) -> bool) {
    let name = format!("{}.parts-{}", output.file_name().unwrap().to_string_lossy(), tracing.id());
    let folder = output.with_file_name(name);
    let end = ccl::clock::now().after(PATIENCE);
    while ccl::clock::now() < end {
        assert!(tracing.try_wait().unwrap().is_none(), "the trace has ended before {what}");
        let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let texts: Vec<_> =
            files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default()).collect();
        if is_so(&texts) {
            return;
        }
        ccl::clock::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{what} did not come to be");
}

/// The report of a trace that is asked to end by this signal.
fn ended_by(tracing: Child, signal: Signal) -> Value {
    kill_process(Pid::from_child(&tracing), signal).unwrap();
    let output = tracing.wait_with_output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    assert_eq!(output.status.code(), Some(status(&said)), "{}", text(&output));
    said
}

#[test]
fn a_rank_that_comes_later_is_traced_and_an_interrupt_ends_with_a_trace() {
    let mut ranks = Ranks::new();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace.json");
    let waiting = ranks.start(1);
    let mut tracing = tracing_of(&ranks, waiting, &output);
    parts_until(&output, &mut tracing, "the part of the first", |parts| parts.len() == 1);
    ranks.start(0);
    let takes = |part: &String| part.contains("\"ph\":\"f\"");
    parts_until(&output, &mut tracing, "messages on both", |parts| {
        parts.iter().filter(|part| takes(part)).count() == 2
    });
    let said = ended_by(tracing, Signal::INT);
    assert_eq!((number(&said["processes"]), number(&said["unfinished"])), (2, 0), "{said}");
    assert!(number(&said["arrows"]) > 0 && said["notes"] == serde_json::json!([]), "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the trace is left");
}

#[test]
fn one_bad_recorder_costs_no_other_rank_its_part() {
    let mut ranks = Ranks::new();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace.json");
    let bad = [ranks.start(0), ranks.start(1)][1];
    let mut tracing = tracing_of(&ranks, bad, &output);
    parts_until(&output, &mut tracing, "messages on both", |parts| {
        parts.iter().filter(|part| part.contains("\"ph\":\"f\"")).count() == 2
    });
    let descriptors = std::fs::read_dir(format!("/proc/{bad}/fd")).unwrap().flatten();
    let mut files = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let recorder = files.find(|file| file.extension().is_some_and(|e| e == "rec")).unwrap();
    std::fs::File::options().write(true).open(recorder).unwrap().set_len(0).unwrap();
    // The job goes on without it. When that process is killed, and the other one dies because of
    // that, the trace ends.
    kill_process(Pid::from_raw(bad as i32).unwrap(), Signal::KILL).unwrap();
    let output = tracing.wait_with_output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    assert_eq!(output.status.code(), Some(status(&said)), "{}", text(&output));
    assert_eq!((number(&said["processes"]), number(&said["unfinished"])), (2, 1), "{said}");
    assert!(number(&said["arrows"]) > 0, "{said}");
    assert!(said["notes"][0].as_str().unwrap().starts_with("not traced to the end: "), "{said}");
}

#[test]
fn one_bad_part_costs_no_other_and_a_missing_rank_is_said() {
    let mut ranks = Ranks::new();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace.json");
    let waiting = ranks.start(1);
    let mut tracing = tracing_of(&ranks, waiting, &output);
    parts_until(&output, &mut tracing, "its part", |parts| parts.len() == 1);
    // A part that cannot be read.
    let name = format!("trace.json.parts-{}", tracing.id());
    std::fs::create_dir(folder.path().join(name).join("ccl-bad.json")).unwrap();
    let said = ended_by(tracing, Signal::TERM);
    assert_eq!(number(&said["processes"]), 1, "{said}");
    let notes: Vec<_> = said["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect();
    assert!(notes.iter().any(|note| note.contains("not traced: rank 0")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("ccl-bad.json")), "{notes:?}");
    assert!(output.is_file());
}
