//! What a first-time user meets: pasted lines, misspelled names, a rank that was started wrongly.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ccl::clock;
use ccl::snapshot::{Class, Snapshot, Verdict};
use ccl::types::Rank;
use ccl_tests::other_user::OtherUser;
use ccl_tests::programs::{launcher, program, text};
use ccl_tests::rotel::free_port;
use rustix::process::{Pid, Signal, kill_process};

/// How long anything that is waited for may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a folder on tmpfs")
}

/// Runs two ranks of `hello` under the launcher; gives their output.
fn hello(settings: &[(&str, &str)]) -> String {
    let runtime = folder();
    let hello = program("hello").display().to_string();
    let mut command = launcher(runtime.path(), &["-n", "2", "--", &hello]);
    let output = command.envs(settings.iter().copied()).output().expect("the launcher starts");
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

/// `hello` as one of `of` ranks.
fn rank(rank: u32, of: u32, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program("hello"));
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", of.to_string());
    command.envs(settings.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn inspect(runtime: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("ccl-inspect"));
    command.args(arguments).env("CCL_RUNTIME_DIR", runtime).stdin(Stdio::null());
    command.output().expect("ccl-inspect starts")
}

/// A process that is ended when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // It may be ending at this moment.
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

#[test]
fn a_name_that_is_nearly_a_setting_is_said_once() {
    let said = hello(&[("CCL_ALGOO", "ring"), ("NCCL_ALGO", "NVLS"), ("CCL_LOG_LEVEL", "info")]);
    let times = |words: &str| said.matches(words).count();
    assert_eq!(times("CCL_ALGOO is no setting: CCL_ALGO is probably meant"), 1, "{said}");
    assert_eq!(times("NCCL_ALGO=NVLS is not honoured: CCL_ALGO takes one of: ring direct"), 1, "{said}");
    assert_eq!(times("CCL_LOG_LEVEL"), 0, "{said}");

    let runtime = folder();
    let mut doctor = Command::new(program("ccl-inspect"));
    doctor.args(["doctor", "-n", "2"]).env("CCL_RUNTIME_DIR", runtime.path()).env("CCL_ALGOO", "ring");
    let said = text(&doctor.output().expect("ccl-inspect starts"));
    let line = said.lines().find(|line| line.contains("settings")).unwrap_or_default();
    assert!(line.starts_with("WARN") && line.contains("CCL_ALGO is probably meant"), "{said}");
}

#[test]
fn who_wants_to_know_more_is_told_more() {
    let least = hello(&[("CCL_DEBUG", "VERSION")]);
    assert!(!least.contains("ccl: "), "{least}");
    let info = hello(&[("CCL_DEBUG", "INFO")]);
    for rank in ["0", "1"] {
        assert!(info.contains(&format!("ccl: rank {rank} of 2 of world: process ")), "{info}");
    }
    for words in [", made in ", "CheckIn ", "reaches rank 1 by Shm (SameHost)", "algorithm: the fastest"] {
        assert!(info.contains(words), "{words}: {info}");
    }
    assert!(!info.contains(" calls AllReduce") && !info.contains("begins"), "{info}");
    let trace = hello(&[("CCL_DEBUG", "TRACE"), ("CCL_ALGO", "ring")]);
    for words in ["Connect begins", "calls AllReduce #1 of 1000 F32 (Sum), 4000 bytes, by Ring", "(CCL_ALGO)"]
    {
        assert!(trace.contains(words), "{words}: {trace}");
    }
}

#[test]
fn who_is_not_observed_sends_nobody_to_look() {
    let said = hello(&[("CCL_OBSERVE", "0")]);
    assert!(said.contains("nobody can look at it (CCL_OBSERVE=0)"), "{said}");
    assert!(!said.contains("look with"), "{said}");
}

#[test]
fn where_nobody_reads_standard_error_a_job_goes_on() {
    let runtime = folder();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut hello = rank(0, 1, &[("CCL_DEBUG", "TRACE")]);
    let output = hello.env("CCL_RUNTIME_DIR", runtime.path()).stderr(writer).output().expect("hello starts");
    assert!(output.status.success(), "{:?}: {}", output.status, text(&output));
}

#[test]
fn ranks_of_differing_numbers_of_ranks_fail_at_once_on_both_sides() {
    let runtime = folder();
    let port = free_port().to_string();
    let runtime = runtime.path().display().to_string();
    let settings = [
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &*port),
        ("CCL_INIT_TIMEOUT", "600"),
        ("CCL_RUNTIME_DIR", &*runtime),
    ];
    let began = clock::now();
    let ranks = [rank(0, 3, &settings).spawn(), rank(1, 2, &settings).spawn()];
    let ranks = ranks.map(|rank| rank.expect("hello starts").wait_with_output().expect("it ends"));
    assert!(clock::now().since(began) < DEADLINE, "rank 0 waited for who cannot come");
    for said in ranks.iter().map(text) {
        assert!(said.contains("rank 1 (from 127.0.0.1:"), "{said}");
        assert!(said.contains("says the job has 2 ranks, the root knows of 3"), "{said}");
    }
}

#[test]
fn where_secrets_differ_rank_0_does_not_say_that_a_rank_has_not_started() {
    let runtime = folder();
    let port = free_port().to_string();
    let runtime = runtime.path().display().to_string();
    let settings = [
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &*port),
        ("CCL_INIT_TIMEOUT", "5"),
        ("CCL_RUNTIME_DIR", &*runtime),
    ];
    let secret = |rank: u32| format!("{rank}").repeat(40);
    let start = |number| {
        let mut command = rank(number, 2, &settings);
        command.env("CCL_JOB_SECRET", secret(number)).spawn().expect("hello starts")
    };
    let ranks = [0, 1].map(start).map(|rank| rank.wait_with_output().expect("it ends"));
    let said = text(&ranks[0]);
    let error = said.lines().find(|line| line.starts_with("Error:")).unwrap_or_default();
    assert!(error.ends_with("see that CCL_JOB_SECRET is equal on all ranks, or unset on all"), "{said}");
}

#[test]
fn who_comes_to_a_file_after_rank_0_has_given_up_is_told_that_this_may_be_so() {
    let runtime = folder();
    let file = runtime.path().join("meet").display().to_string();
    let folder = runtime.path().display().to_string();
    let settings =
        [("CCL_RENDEZVOUS_FILE", &*file), ("CCL_INIT_TIMEOUT", "3"), ("CCL_RUNTIME_DIR", &*folder)];
    let first = rank(0, 2, &settings).output().expect("hello starts");
    assert!(text(&first).contains("waiting for rank 1"), "{}", text(&first));
    let files = runtime.path().join(format!("ccl-{}", rustix::process::geteuid().as_raw()));
    let after = text(&inspect(runtime.path(), &["open", &files.display().to_string()]));
    let said = "NOT_JOINED (application, certain): rank 1 has not come to init() of world, which timed out";
    assert!(after.contains(said), "{after}");
    let late = text(&rank(1, 2, &settings).output().expect("hello starts"));
    assert!(late.contains("rank 0 has not started, or has given up already and taken its id away"), "{late}");
}

#[test]
fn who_waits_for_the_file_of_rank_0_is_seen_and_says_so() {
    let runtime = folder();
    let file = runtime.path().join("meet").display().to_string();
    let folder = runtime.path().display().to_string();
    let settings = [("CCL_RENDEZVOUS_FILE", &*file), ("CCL_RUNTIME_DIR", &*folder)];
    let start =
        |number| Ended(rank(number, 3, &settings).stderr(Stdio::null()).spawn().expect("hello starts"));
    let mut ranks = [1, 2].map(start);
    let pid = ranks[0].0.id().to_string();
    let until = |is: &dyn Fn(&Snapshot) -> bool| {
        let end = clock::now().after(DEADLINE);
        loop {
            let output = inspect(runtime.path(), &["snapshot", &pid, "--json"]);
            let job: Result<Snapshot, _> = serde_json::from_slice(&output.stdout);
            if job.as_ref().is_ok_and(is) {
                break;
            }
            assert!(clock::now() < end, "{job:#?}");
            clock::sleep(Duration::from_millis(100));
        }
    };
    until(&|job| {
        let waits = job.not_joined.first().is_some_and(|one| one.ranks == [Rank(0)] && one.by.len() == 2);
        waits && job.verdicts.first().is_some_and(|one| one.class == Class::NotJoined)
    });
    let rows = text(&inspect(runtime.path(), &["ps"]));
    assert_eq!(rows.matches("in init: Rendezvous").count(), 2, "{rows}");
    // One of them is killed there.
    ranks[1].0.kill().expect("it lives");
    let killed = ranks[1].0.id();
    until(&|job| {
        let is_it = |one: &Verdict| one.class == Class::PeerDead && one.culprits[0].pid == killed;
        job.verdicts.first().is_some_and(is_it)
    });
}

#[test]
fn two_lines_that_were_pasted_together_do_not_race() {
    let runtime = folder();
    let hang = program("hang").display().to_string();
    for by_pid in [true, false, true, false] {
        // Ranks that start slowly.
        let late = ["sh", "-c", "sleep 0.3; exec \"$0\" \"$@\"", &hang, "--victim", "2", "--at", "5"];
        let mut command = launcher(runtime.path(), &[&["-n", "4", "--"], &late[..]].concat());
        let job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the launcher starts");
        let job = Ended(job);
        // The pid that a shell shows is the launcher's.
        let launcher = job.0.id().to_string();
        let target = if by_pid { vec![launcher.as_str()] } else { vec![] };
        let output = inspect(runtime.path(), &[&["snapshot"], &target[..]].concat());
        let said = text(&output);
        // Jobs of other tests may run beside it: then the output asks which one is meant.
        let others = target.is_empty() && said.contains("there are several jobs");
        assert!(
            others || matches!(output.status.code(), Some(0 | 10 | 13)),
            "{target:?} {:?}: {said}",
            output.status
        );
        assert!(!said.contains("another pid namespace"), "{said}");
        drop(job);
        // Leftovers of this job must not be taken for the next one.
        let _ = inspect(runtime.path(), &["ps"]);
    }
}

#[test]
fn of_a_process_without_a_recorder_the_truth_is_said() {
    let runtime = folder();
    let sleeper = Ended(Command::new("sleep").arg("600").spawn().expect("sleep starts"));
    let said = text(&inspect(runtime.path(), &["snapshot", &sleeper.0.id().to_string()]));
    assert!(said.contains("lives and has no recorder"), "{said}");
    let said = text(&inspect(runtime.path(), &["snapshot", "4194304"]));
    assert!(said.contains("there is no process 4194304"), "{said}");

    let Some(other) = OtherUser::for_test("of_a_process_without_a_recorder_the_truth_is_said") else {
        return;
    };
    let mut command = other.command("ccl-inspect");
    let output = command.args(["snapshot", &sleeper.0.id().to_string()]).output().expect("it runs");
    let said = text(&output);
    assert!(said.contains("is of another user (uid 0): only that user and root can look at it"), "{said}");
}

#[test]
fn a_program_in_this_folder_is_named_as_it_must_be_said() {
    let runtime = folder();
    let here = runtime.path().join("train-me");
    std::fs::copy(program("hello"), &here).expect("a copy");
    let mut command = launcher(runtime.path(), &["-n", "1", "--", "train-me"]);
    let output = command.current_dir(runtime.path()).output().expect("the launcher starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("to run the one in this folder, say ./train-me"), "{}", text(&output));
}

/// All processes that were given this variable.
fn given(variable: &str) -> Vec<Pid> {
    let has =
        |environment: Vec<u8>| environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes());
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let there = processes.filter(|one| std::fs::read(one.path().join("environ")).is_ok_and(has));
    let pids = there.filter_map(|one| one.file_name().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw).collect()
}

/// The processes that were given this variable, ended when dropped.
///
/// So nothing remains if a test fails.
struct Left(String);

impl Drop for Left {
    fn drop(&mut self) {
        given(&self.0).into_iter().for_each(|pid| _ = kill_process(pid, Signal::KILL));
    }
}

#[test]
fn the_demo_takes_its_ranks_with_it_however_it_ends() {
    let demo = Command::new(program("demo")).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut demo = Ended(demo.expect("the demo starts"));
    let room = Path::new("/dev/shm").join(format!("ccl-demo-{}", demo.0.id()));
    let variable = format!("CCL_RUNTIME_DIR={}", room.display());
    let there = || given(&variable);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = clock::now().after(DEADLINE);
        while !is_so() {
            assert!(clock::now() < end, "{what}");
            clock::sleep(Duration::from_millis(20));
        }
    };
    // A process that is stopped before it becomes a rank's program is not yet bound to its parent.
    let is_named = |pid: &Pid, names: &[&str]| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid()));
        name.is_ok_and(|name| names.contains(&name.trim_end()))
    };
    let is_rank = |pid: &Pid| is_named(pid, &["train_digits"]);
    until("the ranks do not start", &|| there().iter().filter(|pid| is_rank(pid)).count() == 4);
    let _left = Left(variable.clone());
    // Stopped, so that they cannot end by themselves, for example because of a closed pipe. The
    // holder of a host's network is not stopped: it ends when its standard input closes, which it
    // could not notice.
    let ends_by_itself = |pid: &Pid| is_named(pid, &["train_digits", "ccl-inspect"]);
    there().iter().filter(|pid| ends_by_itself(pid)).for_each(|pid| _ = kill_process(*pid, Signal::STOP));
    kill_process(Pid::from_child(&demo.0), Signal::KILL).expect("it runs");
    let _ = demo.0.wait();
    until("ranks of the demo live on", &|| there().is_empty());
    let _ = std::fs::remove_dir_all(room);
}
