//! `top`, `dump` and `open` on a real job, and the verbs that need no job. The ranks of the job are
//! this test program, started by `ccl-inspect run`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ccl::config::environment;
use ccl::snapshot::{BlockedOn, Snapshot, Source, State};
use ccl::types::Rank;
use ccl::{Communicator, ReduceOp, clock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SECRET: &str = "correct-horse-battery-staple";

/// The program of a rank, which `Job::start` starts from this test program.
///
/// Files that appear in a folder make it hang, go on and end.
#[test]
fn a_rank() {
    if environment("CCL_TEST_ROLE").as_deref() != Some("rank") {
        return;
    }
    let signs = PathBuf::from(environment("SIGNS").unwrap());
    let told = |what: &str| signs.join(what).exists();
    let comm = Communicator::from_env().unwrap();
    for call in 1.. {
        comm.tag(&format!("call {call}"));
        while comm.rank() == Rank(2) && told("hang") && !told("end") {
            clock::sleep(Duration::from_millis(2));
        }
        // Rank 0 ends the loop for all ranks in the same call.
        let mine = [f32::from(u8::from(comm.rank() == Rank(0) && told("end"))); 1000];
        let mut sum = [0.0; 1000];
        comm.all_reduce(&mine, &mut sum, ReduceOp::Sum).unwrap();
        if call == 1 {
            println!("@ {} {}", comm.rank(), std::process::id());
        }
        if sum[0] > 0.0 {
            break;
        }
        clock::sleep(Duration::from_millis(1));
    }
    comm.finish().unwrap();
}

/// Three ranks, ended when dropped.
struct Job {
    launcher: Child,
    folder: tempfile::TempDir,
    pids: BTreeMap<u32, u32>,
}

impl Job {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut command = inspector(&["run", "-n", "3", "--grace", "1", "--"]);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "a_rank", "--nocapture"]);
        command.envs([("CCL_TEST_ROLE", "rank"), ("CCL_JOB_SECRET", SECRET)]);
        command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("authorization={SECRET}"));
        command.env("OTEL_SERVICE_NAME", "trainer").env("SOMETHING_ELSE", SECRET);
        command.envs(environment.iter().copied());
        command.env("SIGNS", folder.path()).env("CCL_RUNTIME_DIR", folder.path());
        let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut pids = BTreeMap::new();
        while pids.len() < 3 {
            let line = lines.next().unwrap();
            let Some((_, said)) = line.split_once("@ ") else { continue };
            let (rank, pid) = said.split_once(' ').unwrap();
            pids.insert(rank.parse().unwrap(), pid.parse().unwrap());
        }
        // Reads the rest, so that the ranks are not held up by a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { launcher, folder, pids }
    }

    fn tell(&self, what: &str) {
        std::fs::write(self.folder.path().join(what), "").unwrap();
    }

    fn signal(&self, rank: u32, signal: Signal) {
        kill_process(Pid::from_raw(self.pids[&rank].cast_signed()).unwrap(), signal).unwrap();
    }

    fn any(&self) -> String {
        self.pids[&0].to_string()
    }

    /// Waits for a snapshot for which `is_so` holds.
    fn wait_until(&self, what: &str, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
        for _ in 0..2000 {
            let output = inspect(&["snapshot", &self.any(), "--json"]);
            let seen: Snapshot = serde_json::from_slice(&output.stdout).unwrap();
            if is_so(&seen) {
                return seen;
            }
            clock::sleep(Duration::from_millis(5));
        }
        panic!("{what} did not come to be");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The launcher ends its ranks, except those that are stopped.
        for rank in self.pids.keys() {
            let pid = Pid::from_raw(self.pids[rank].cast_signed()).unwrap();
            let _ = kill_process(pid, Signal::CONT);
        }
        let _ = kill_process(Pid::from_child(&self.launcher), Signal::TERM);
        let _ = self.launcher.wait();
    }
}

fn inspector(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl-inspect"));
    command.args(arguments);
    command
}

fn inspect(arguments: &[&str]) -> Output {
    inspector(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The part of the verdict that does not change while a job hangs.
fn culprits(blocked_on: &[BlockedOn]) -> Vec<BlockedOn> {
    let lasting = |one: &BlockedOn| BlockedOn { since_ns: 0, link: None, ..one.clone() };
    blocked_on.iter().map(lasting).collect()
}

fn states(snapshot: &Snapshot) -> Vec<State> {
    snapshot.ranks.iter().map(|rank| rank.state).collect()
}

fn blocks_others(tick: &Value, rank: u64) -> bool {
    tick["blocked_on"].as_array().unwrap().iter().any(|one| one["missing"] == serde_json::json!([rank]))
}

#[test]
fn what_others_call_themselves_steers_no_terminal() {
    let job = Job::start_with(&[("CCL_HOSTID", "a\u{1b}[31mb\rc")]);
    for arguments in [vec!["ps"], vec!["snapshot", &job.any()], vec!["top", &job.any(), "--count", "1"]] {
        let said =
            text(&inspector(&arguments).env("CCL_RUNTIME_DIR", job.folder.path()).output().unwrap().stdout);
        assert!(said.contains("AllReduce"), "{arguments:?}: {said}");
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{arguments:?}: {said:?}");
    }
    // An error repeats the arguments or the words of another program.
    let output = inspect(&["open", "/nowhere/\u{1b}[2J"]);
    assert!(!text(&output.stderr).contains('\u{1b}'), "{output:?}");
}

#[test]
fn how_the_screen_looks_is_asked_for_with_a_screen() {
    for look in [["--palette", "mono"].as_slice(), &["--no-mouse"]] {
        let output = inspect(&[["run", "-n", "1"].as_slice(), look, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(2), "{look:?}");
        assert!(text(&output.stderr).contains("--inspect"), "{output:?}");
    }
}

#[test]
fn top_tells_what_moves_and_who_is_awaited_and_ends_with_the_job() {
    let mut job = Job::start();
    let mut top = inspector(&["top", &job.any(), "--every", "20ms", "--json"]);
    let mut top = top.stdout(Stdio::piped()).spawn().unwrap();
    let mut ticks = BufReader::new(top.stdout.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let first = ticks.next().unwrap();
    assert_eq!((first["schema"].as_str(), first["complete"].as_bool()), (Some("ccl.top/2"), Some(true)));
    assert_eq!(first["ranks"][2]["pid"], job.pids[&2]);
    assert!(first["ranks"][0]["ops_per_s"].is_null(), "{first}");
    let moves = |tick: &Value| {
        let mut ranks = tick["ranks"].as_array().unwrap().iter();
        ranks.all(|rank| rank["ops_per_s"].as_f64() > Some(0.0) && rank["bytes_per_s"].as_f64() > Some(0.0))
    };
    assert!(ticks.by_ref().take(500).any(|tick| moves(&tick)));

    job.tell("hang");
    let stands = |tick: &Value| blocks_others(tick, 2) && tick["ranks"][0]["ops_per_s"] == 0.0;
    let hung = ticks.by_ref().take(500).find(stands).unwrap();
    assert_eq!(hung["ranks"][0]["op"]["kind"], "AllReduce");
    assert_eq!(hung["ranks"][0]["waits"]["why"], "peer", "{hung}");
    assert!(hung["ranks"][2]["waits"].is_null(), "{hung}");
    job.signal(1, Signal::STOP);
    assert!(ticks.by_ref().take(500).any(|tick| tick["ranks"][1]["state"] == "stopped"));
    let said = text(&inspect(&["top", &job.any(), "--every", "20ms", "--count", "2"]).stdout);
    // On a busy machine a rank may well have been late before.
    let is_slow = |line: &&str| line.contains(" SUSPECT SLOW") || line.contains("  next: ");
    let lines: Vec<_> = said.lines().filter(|line| !is_slow(line)).collect();
    assert_eq!(lines.len(), 1 + 2 * 4, "{said}");
    assert!(lines[0].starts_with("RANK STATE ") && lines[1].contains(" BLOCKED ON rank"), "{said}");
    assert!(lines[3].starts_with("   1 STOPPED ") && lines[2].contains("AllReduce #"), "{said}");
    assert!(lines.iter().all(|line| line.contains("BLOCKED ON") || line.chars().count() <= 80), "{said}");
    assert!(!said.contains('\u{1b}'), "{said}");
    job.signal(1, Signal::CONT);

    job.tell("end");
    let last = ticks.last().unwrap();
    let mut ranks = last["ranks"].as_array().unwrap().iter();
    // One that has left may still be on its way out.
    assert!(ranks.all(|rank| rank["state"] == "exited" || rank["state"] == "left"), "{last}");
    assert_eq!(top.wait().unwrap().code(), Some(0));
    assert!(job.launcher.wait().unwrap().success());
}

/// The files of a bundle, unpacked as by any other program.
fn unpacked(bundle: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(bundle).unwrap();
    let mut archive = tar::Archive::new(decoder);
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        files.insert(entry.path().unwrap().to_str().unwrap().to_string(), bytes);
    }
    files
}

#[test]
fn a_dump_names_the_culprit_where_nothing_else_is_left_and_holds_no_secret() {
    let job = Job::start();
    job.tell("hang");
    job.wait_until("the hang", |seen| seen.blocked_on.iter().any(|one| one.by == [Rank(0), Rank(1)]));
    job.signal(2, Signal::STOP);
    // Shorter waits are not reported.
    let is_said = |seen: &Snapshot| seen.said().next().is_some();
    let live = job.wait_until("the stop", |seen| states(seen)[2] == State::Stopped && is_said(seen));
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("b.tar.zst");
    let path = file.to_str().unwrap();
    let output = inspect(&["dump", &job.any(), "-o", path, "--json"]);
    assert_eq!((text(&output.stderr).as_str(), output.status.code()), ("", Some(0)));
    let manifest: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&manifest["schema"], &manifest["job"]), (&"ccl.dump/1".into(), &live.job.to_string().into()));
    assert_eq!(manifest["recorders"].as_array().unwrap().len(), 3);
    drop(job);

    let output = inspect(&["open", path, "--json"]);
    assert_eq!((text(&output.stderr).as_str(), output.status.code()), ("", Some(0)));
    let seen: Snapshot = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(culprits(&seen.blocked_on), culprits(&live.blocked_on));
    assert_eq!(seen.blocked_on[0].missing, [Rank(2)]);
    assert_eq!(states(&seen), [State::Running, State::Running, State::Stopped]);
    assert!(seen.complete && seen.ranks.iter().all(|rank| rank.source == Source::File));
    let said = text(&inspect(&["open", path]).stdout);
    assert!(
        said.starts_with("BLOCKED ON rank 2 (pid ") && said.contains(", stopped), which has not called"),
        "{said}"
    );
    assert!(said.contains("note: this was so on "), "{said}");

    let bundle = std::fs::read(&file).unwrap();
    let files = unpacked(&bundle);
    let then: Snapshot = serde_json::from_slice(&files["snapshot.json"]).unwrap();
    assert_eq!(then.blocked_on, seen.blocked_on, "the very same, ages too");
    for (name, bytes) in &files {
        let text = String::from_utf8_lossy(bytes);
        assert!(!text.contains(SECRET) && !text.contains("SOMETHING_ELSE"), "{name}");
    }
    let process: Value = serde_json::from_slice(&files["processes/0.json"]).unwrap();
    let environment = &process["environment"];
    assert_eq!(environment["CCL_JOB_SECRET"], "...");
    assert_eq!(environment["OTEL_EXPORTER_OTLP_HEADERS"], "...");
    assert_eq!(environment["OTEL_SERVICE_NAME"], "trainer");
    assert!(process["limits"].as_str().unwrap().contains("Max open files"));
    let threads = process["threads"].as_array().unwrap();
    assert!(threads.iter().any(|one| one["stat"].as_str().unwrap().contains("(ccl-service)")), "{threads:?}");
    assert_eq!(process["library"], env!("CARGO_PKG_VERSION"));

    // Only the owner may read it, and it is not overwritten.
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    for cut in [bundle.len() / 2, 5] {
        std::fs::write(&file, &bundle[..cut]).unwrap();
        let output = inspect(&["open", path]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("b.tar.zst is no dump of ccl-inspect: "), "{output:?}");
    }
}

#[test]
fn a_dump_is_of_a_job_and_overwrites_nothing() {
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("b.tar.zst");
    let path = file.to_str().unwrap();
    let refused = |arguments: &[&str], status: i32, says: &str| {
        let output = inspect(arguments);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(text(&output.stderr).contains(says), "{output:?}");
    };
    refused(&["dump", "00000000000000fd", "-o", path], 1, "nothing is known of job 00000000000000fd");
    refused(&["top", "00000000000000fd"], 1, "nothing is known of job 00000000000000fd");
    refused(&["dump", "00000000000000fd"], 2, "--output <FILE>");
    assert!(!file.exists());
    let job = Job::start();
    std::fs::write(&file, "mine").unwrap();
    refused(&["dump", &job.any(), "-o", path], 1, "is there already: remove it, or give another name");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

/// The verbs that `--help` lists.
fn verbs() -> Vec<String> {
    let help = text(&inspect(&["--help"]).stdout);
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    listed.filter_map(|line| line.split_whitespace().next()).map(str::to_string).collect()
}

#[test]
fn completions_and_pages_know_every_verb() {
    let verbs = verbs();
    for verb in ["ps", "snapshot", "top", "dump", "open", "stack", "run", "doctor", "completions", "man"] {
        assert!(verbs.iter().any(|one| one == verb), "{verb} in {verbs:?}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&inspect(&["completions", shell]).stdout);
        assert!(verbs.iter().all(|verb| script.contains(verb)), "{shell}");
        assert!(script.contains("every") && !script.contains("in-user-of"), "{shell}");
    }
    assert_eq!(inspect(&["completions", "csh"]).status.code(), Some(2));
    let page = text(&inspect(&["man"]).stdout);
    assert!(page.contains(".TH ccl-inspect 1"), "{page}");
    for verb in verbs.iter().filter(|verb| *verb != "help") {
        assert!(page.contains(&format!("ccl\\-inspect\\-{verb}(1)")), "{verb} in {page}");
        let output = inspect(&["man", verb]);
        let page = text(&output.stdout);
        assert!(output.status.success() && page.contains(&format!(".TH ccl-inspect-{verb} 1")), "{page}");
    }
    assert_eq!(inspect(&["man", "hold"]).status.code(), Some(2));
}

/// The completions that a shell offers for the last of these words.
fn offered(words: &[&str]) -> Vec<String> {
    let script = text(&inspect(&["completions", "bash"]).stdout);
    let last = words.len() - 1;
    // As bash itself calls it: the program, the word, and the one before it.
    let call = "COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                $(complete -p ccl-inspect | sed 's/.* -F \\([^ ]*\\).*/\\1/') \"$1\" \"${!#}\" \"${@:$#-1:1}\"; \
                printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["--norc", "-c", &format!("{script}\n{call}"), "bash"])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?} {last}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_string).collect()
}

#[test]
fn a_shell_completes_verbs_and_the_options_of_each() {
    let verbs = offered(&["ccl-inspect", ""]);
    assert!(verbs.iter().any(|verb| verb == "snapshot"), "{verbs:?}");
    for (verb, option) in [
        ("attach", "--no-mouse"),
        ("ps", "--clean"),
        ("snapshot", "--json"),
        ("top", "--every"),
        ("run", "--label-width"),
        ("doctor", "--hosts"),
    ] {
        let options = offered(&["ccl-inspect", verb, "--"]);
        assert!(options.iter().any(|one| one == option), "{verb}: {options:?}");
    }
    assert_eq!(offered(&["ccl-inspect", "snapshot", "--js"]), ["--json"]);
}

#[test]
fn the_doctor_says_each_check_and_what_is_bad() {
    let names = [
        "settings",
        "descriptors",
        "locked memory",
        "runtime folder",
        "shared memory",
        "ports",
        "network",
        "namespaces",
        "attach",
        "kernel",
        "processes",
        "memory",
        "processors",
        "clock",
        "versions",
        "stale recorders",
        "rdma devices",
    ];
    let runtime = tempfile::tempdir().unwrap();
    let doctor = |more: &[&str]| {
        let mut command = inspector(&[&["doctor", "-n", "2"], more].concat());
        command.env("CCL_RUNTIME_DIR", runtime.path()).output().unwrap()
    };
    let output = doctor(&["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["schema"].as_str(), report["ranks"].as_u64()), (Some("ccl.doctor/1"), Some(2)));
    let checks = report["checks"].as_array().unwrap();
    let mut found: Vec<_> = checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    // Of these there are as many as ports.
    found.retain(|name| !["rdma port", "self-test"].contains(name));
    assert_eq!(found, names);
    let ports = report["rdma"]["ports"].as_array().unwrap();
    assert_eq!(checks.iter().filter(|check| check["name"] == "rdma port").count(), ports.len(), "{report}");
    let is_bad = checks.iter().any(|check| check["verdict"] == "bad");
    assert_eq!((report["verdict"] == "bad", output.status.code()), (is_bad, Some(i32::from(is_bad))));
    assert!(checks.iter().all(|check| (check["verdict"] == "ok") == check["change"].is_null()), "{report}");
    let said = text(&doctor(&[]).stdout);
    assert!(names.iter().all(|name| said.lines().any(|line| line[6..].starts_with(name))), "{said}");

    // With few descriptors and an invalid setting the verdict is bad, and names a command to type.
    let few = format!("ulimit -n 40; exec {} doctor -n 64", env!("CARGO_BIN_EXE_ccl-inspect"));
    let mut command = Command::new("sh");
    command.args(["-c", &few]).env("CCL_LEVEL", "9").env("CCL_RUNTIME_DIR", runtime.path());
    let output = command.output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line = |begin: &str| said.lines().find(|line| line.starts_with(begin)).is_some();
    assert!(line("BAD   descriptors ") && line("BAD   settings  ") && said.contains("change: "), "{said}");
    assert!(said.contains("CCL_LEVEL=9 is not valid; it takes a number from 0 to 3"), "{said}");
}
