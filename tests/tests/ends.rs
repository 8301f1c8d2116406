//! What the inspector says of a process beside its recorder's tables: how it ended, whether memory
//! ran out, whether it is kept from processors, and where its threads are.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use ccl::clock;
use ccl::snapshot::{End, RankSnapshot, Snapshot, State};
use ccl_tests::cgroup::Cgroup;
use ccl_tests::job::{PATIENCE, until};
use ccl_tests::processes::inspect;
use ccl_tests::programs::{launcher, program, text};
use rustix::process::{Pid, Signal, kill_process};

/// A running job, ended with the test.
struct Launched(Child);

impl Launched {
    /// The launcher, which stands for its job: other tests run jobs beside this one.
    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        let _ = self.0.wait();
    }
}

fn folder() -> tempfile::TempDir {
    // In memory, so that the recorders lie in it and in no folder that other jobs share.
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// `ending HOW` as so many ranks, or what a shell makes of it.
fn start(runtime: &Path, ranks: &str, words: &[&str]) -> Launched {
    let mut command = launcher(runtime, &["-n", ranks, "--grace", "0.2", "--"]);
    Launched(command.args(words).spawn().unwrap())
}

/// Looks at the job until it is as it should be.
fn seen(words: &[&str], runtime: &Path, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let end = clock::now().after(PATIENCE);
    loop {
        match inspect(words, runtime) {
            Ok(snapshot) if is_so(&snapshot) => return snapshot,
            other => assert!(clock::now() < end, "{other:#?}"),
        }
        clock::sleep(Duration::from_millis(50));
    }
}

fn rank(snapshot: &Snapshot, number: u32) -> &RankSnapshot {
    snapshot.ranks.iter().find(|rank| rank.rank.0 == number).unwrap()
}

/// The end of rank 0, as its file says after the job.
fn end_of(how: &str, variables: &[(&str, &str)]) -> (State, End, Option<u8>) {
    let runtime = folder();
    let ending = program("ending");
    let mut command = launcher(runtime.path(), &["-n", "2", "--grace", "0.2", "--"]);
    let script = format!("{}{} {how}", if how.contains(';') { "" } else { "exec " }, ending.display());
    let output = command.args(["sh", "-c", &script]).envs(variables.iter().copied()).output().unwrap();
    let files = runtime.path().join(format!("ccl-{}", rustix::process::geteuid().as_raw()));
    let opened = inspect(&["open", "--json", &files.to_string_lossy()], runtime.path());
    let opened = opened.unwrap_or_else(|why| panic!("{how}: {why}\n{}", text(&output)));
    let RankSnapshot { state, facts, .. } = rank(&opened, 0);
    (*state, facts.end, facts.signal)
}

#[test]
fn each_end_is_told_by_its_own_word() {
    let exporter = [("OTEL_TRACES_EXPORTER", "otlp"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")];
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let cases: &[(&str, Variables<'_>, End, Option<u8>)] = &[
        ("exit", &[], End::Exited, None),
        ("return", &[], End::Exited, None),
        ("drop", &[], End::Exited, None),
        ("panic", &[], End::Panicked, None),
        ("panic-elsewhere", &[], End::Panicked, None),
        ("survive", &[], End::Killed, Some(9)),
        ("kill", &[], End::Killed, Some(9)),
        // No handler of ours is there, so only the launcher knows.
        ("term", &[], End::Killed, Some(15)),
        // Nor does the launcher, whose child a shell is.
        ("kill; exit 1", &[], End::Killed, None),
        ("term", &exporter, End::Signalled, Some(15)),
    ];
    let mut wrong = Vec::new();
    for (how, variables, end, signal) in cases {
        let (state, said, by) = end_of(how, variables);
        if (said, by) != (*end, *signal) || matches!(state, State::Running | State::Stopped) {
            wrong.push(format!("{how} {variables:?}: {state} {said} {by:?}"));
        }
    }
    println!("cases: ends {}", cases.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_kill_for_want_of_memory_is_counted_and_logged() {
    let test = "a_kill_for_want_of_memory_is_counted_and_logged";
    let Some(group) = Cgroup::for_test("memory", test) else { return };
    group.set("memory.limit_in_bytes", "100663296");
    let runtime = folder();
    let ending = program("ending");
    let script = format!(
        "[ $RANK = 0 ] && echo $$ >{}/cgroup.procs; exec {} memory",
        group.path().display(),
        ending.display()
    );
    let _job = start(runtime.path(), "2", &["sh", "-c", &script]);
    let files = runtime.path().join(format!("ccl-{}", rustix::process::geteuid().as_raw()));
    let words = ["open", "--json", &files.to_string_lossy()];
    let is_dead =
        |snapshot: &Snapshot| snapshot.ranks.iter().any(|rank| rank.rank.0 == 0 && rank.state == State::Dead);
    let opened = seen(&words, runtime.path(), is_dead);
    let facts = &rank(&opened, 0).facts;
    assert_eq!((facts.end, facts.oom_kills), (End::Killed, 1), "{facts:?}");
    assert_eq!(Path::new(&facts.cgroup), group.path());
    // The log may be closed to this user, and has only pids of the first namespace.
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap();
    if std::fs::File::open("/dev/kmsg").is_ok() && space == Path::new("pid:[4026531836]") {
        assert!(facts.oom_logged, "{facts:?}");
    }
    // The other rank's group has no part in it.
    assert_eq!(rank(&opened, 1).facts.oom_kills, 0);
}

#[test]
fn a_rank_whose_quota_is_used_up_is_starved_and_one_that_waits_is_not() {
    let test = "a_rank_whose_quota_is_used_up_is_starved_and_one_that_waits_is_not";
    let Some(group) = Cgroup::for_test("cpu", test) else { return };
    group.set("cpu.cfs_period_us", "100000");
    group.set("cpu.cfs_quota_us", "5000");
    let runtime = folder();
    let ending = program("ending").to_string_lossy().into_owned();
    let said = runtime.path().join("said");
    let mut command = launcher(runtime.path(), &["-n", "2", "--grace", "0.2", "--", &ending, "starve"]);
    command.arg(group.path()).stderr(std::fs::File::create(&said).unwrap());
    let job = Launched(command.spawn().unwrap());
    let is_measured = |snapshot: &Snapshot| {
        snapshot.ranks.len() == 2 && snapshot.ranks.iter().all(|rank| rank.facts.is_starved.is_some())
    };
    let snapshot = seen(&["snapshot", "--json", &job.pid()], runtime.path(), is_measured);
    let [busy, waits] = [0, 1].map(|number| &rank(&snapshot, number).facts);
    assert_eq!(busy.is_starved, Some(true), "{busy:?}");
    assert!(busy.throttled > 0 && busy.cpu_pct < 50, "{busy:?}");
    assert!(waits.throttled == 0 && waits.cpu_pct < 50, "{waits:?}");
    let main = |facts: &ccl::snapshot::ProcessFacts| {
        facts.threads.iter().find(|thread| thread.name == "ending").unwrap().clone()
    };
    assert_eq!(main(busy).syscall, "running", "{busy:?}");
    assert_eq!((main(waits).syscall.as_str(), main(waits).letter), ("futex", Some('S')), "{waits:?}");
    assert_eq!([busy.dying, waits.dying], [false; 2]);

    // The watchdog of the rank that waits says the same.
    let told = until("what the watchdog tells", || {
        let said = std::fs::read_to_string(&said).unwrap();
        said.lines().find(|line| line.contains("STALLED")).map(String::from)
    });
    let pid = rank(&snapshot, 0).pid;
    let start = format!("STALLED STUCK_LOCAL (machine, certain): rank 0 (pid {pid} on ");
    assert!(told.contains(&start) && told.contains(" is not given the processor; rank 1 waits"), "{told}");

    // A dump keeps what it saw.
    let dump = runtime.path().join("d.tar.zst");
    let made = Command::new(program("ccl-inspect"))
        .args(["dump", &job.pid(), "-o"])
        .arg(&dump)
        .env("CCL_RUNTIME_DIR", runtime.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made));
    let opened = inspect(&["open", "--json", &dump.to_string_lossy()], runtime.path()).unwrap();
    let busy = &rank(&opened, 0).facts;
    assert!(busy.is_starved == Some(true) && !busy.threads.is_empty(), "{busy:?}");
}

/// What `stack` prints, as JSON.
fn stacks(command: &mut Command) -> serde_json::Value {
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output)))
}

/// The ranks of the stacks, and of what is missing.
fn ranks(all: &serde_json::Value) -> [Vec<u64>; 2] {
    let stacks = all["stacks"].as_array().unwrap().iter();
    let mut have: Vec<u64> =
        stacks.flat_map(|one| one["ranks"].as_array().unwrap()).map(|rank| rank.as_u64().unwrap()).collect();
    have.sort_unstable();
    let missing = all["missing"].as_array().unwrap().iter().map(|one| one["rank"].as_u64().unwrap());
    [have, missing.collect()]
}

#[test]
fn stacks_of_the_ranks_here_are_shown_and_the_others_are_listed() {
    let runtime = folder();
    let ending = program("ending").to_string_lossy().into_owned();
    // The last rank has no recorder: it might as well be anywhere.
    let script = format!("[ $RANK = 3 ] && export CCL_OBSERVE=0; exec {ending} sleep");
    let job = start(runtime.path(), "4", &["sh", "-c", &script]);
    let waits = |snapshot: &Snapshot| {
        let waits = snapshot.ranks.iter().filter(|rank| rank.comms.iter().any(|comm| comm.op.wait.is_some()));
        // Until the init of rank 0 has ended, it may show another id of the job.
        let is_up = |rank: &RankSnapshot| rank.comms.iter().any(|comm| comm.op.completed > 0);
        snapshot.ranks.len() == 3 && snapshot.ranks.iter().all(is_up) && waits.count() == 2
    };
    let snapshot = seen(&["snapshot", "--json", &job.pid()], runtime.path(), waits);
    let asks = |words: &[&str]| {
        let mut command = Command::new(program("ccl-inspect"));
        command.args(["stack", &job.pid()]).args(words).env("CCL_RUNTIME_DIR", runtime.path());
        command
    };

    // Without a debugger the kernel is asked.
    let by_kernel = stacks(asks(&["--json"]).env("PATH", "/nowhere"));
    assert_eq!(ranks(&by_kernel), [vec![0, 1, 2], vec![3]], "{by_kernel:#}");
    for one in by_kernel["stacks"].as_array().unwrap() {
        assert_eq!(one["by"], "kernel");
        let lines: Vec<&str> = one["lines"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
        let sleeps = one["ranks"][0] == 0;
        let expect = if sleeps { "\"ending\" S clock_nanosleep" } else { "\"ending\" S futex" };
        assert!(lines.iter().any(|line| line.starts_with(expect)), "{lines:?}");
    }
    let lost = &by_kernel["missing"][0];
    assert!(lost["why"].as_str().unwrap().contains("no recorder"), "{lost}");
    assert_eq!(lost["command"], format!("ccl-inspect stack {}", lost["pid"]));

    // With one, its stacks name functions; the processes run on.
    let with_tools = stacks(&mut asks(&["--json", "--rank", "0"]));
    assert_eq!(ranks(&with_tools), [vec![0], vec![]], "{with_tools:#}");
    if with_tools["stacks"][0]["by"] == "gdb" {
        assert!(with_tools.to_string().contains("sleep_for_ever"), "{with_tools:#}");
    }
    let after = inspect(&["snapshot", "--json", &job.pid()], runtime.path()).unwrap();
    assert!(after.ranks.iter().all(|rank| rank.state == State::Running), "{after:?}");
    assert_eq!(rank(&after, 0).pid, rank(&snapshot, 0).pid);

    let none = asks(&["--rank", "9"]).output().unwrap();
    assert_eq!(none.status.code(), Some(1), "{}", text(&none));

    // In another pid namespace the processes are not seen, and it says so.
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let probe = Command::new("unshare").args(["--mount", "--pid", "--fork", "--kill-child", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!(
            "skipped: stacks_of_the_ranks_here_are_shown_and_the_others_are_listed: needs root's mount namespaces"
        );
        return;
    }
    inside.arg(program("ccl-inspect")).args(["stack", "--json", &snapshot.job.to_string()]);
    let unseen = stacks(inside.env("CCL_RUNTIME_DIR", runtime.path()));
    assert_eq!(ranks(&unseen), [vec![], vec![0, 1, 2, 3]], "{unseen:#}");
    let why = unseen["missing"][0]["why"].as_str().unwrap();
    assert!(why.contains("another pid namespace"), "{why}");
}
