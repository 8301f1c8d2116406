//! The launcher with real programs: its output, how a job ends, and that nothing is left of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ccl::clock;
use ccl::config::environment;
use rustix::process::{Pid, Signal, kill_process};

fn launcher(options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl-inspect"));
    command.arg("run").args(options).args(["--", "sh", "-c", script]);
    command
}

fn run(options: &[&str], script: &str) -> Output {
    launcher(options, script).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn sorted_lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = text(bytes).lines().map(str::to_string).collect();
    lines.sort();
    lines
}

/// Processes whose command line holds `mark`.
fn alive(mark: &str) -> Vec<String> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().into_string().ok());
    let own = std::process::id().to_string();
    pids.filter(|pid| pid.parse::<u32>().is_ok() && *pid != own)
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
        })
        .collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within 10 s: {what}");
}

/// A command line that no other process has.
fn mark(test: &str) -> String {
    format!("ccl-test-{test}-{}", std::process::id())
}

#[test]
fn ranks_get_torchruns_environment_and_lines_get_labels() {
    let script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE; echo $MASTER_ADDR+$CCL_HOSTID >&2; \
                  printf '%s %s' $TORCHELASTIC_USE_AGENT_STORE $TORCHELASTIC_RESTART_COUNT";
    let output = run(&["-n", "2"], script);
    assert!(output.status.success());
    let expect = ["[0] 0 of 2, 0 of 2", "[0] False 0", "[1] 1 of 2, 1 of 2", "[1] False 0"];
    assert_eq!(sorted_lines(&output.stdout), expect);
    assert_eq!(sorted_lines(&output.stderr), ["[0] 127.0.0.1+", "[1] 127.0.0.1+"]);
}

#[test]
fn each_run_has_its_secret_and_ranks_share_it_and_the_users_own_is_kept() {
    let secrets = |user: Option<&str>| {
        let mut command = launcher(&["-n", "3", "--label-width", "0"], "echo $CCL_JOB_SECRET $MASTER_PORT");
        command.envs(user.map(|secret| ("CCL_JOB_SECRET", secret)));
        let output = command.output().unwrap();
        let mut said: Vec<_> =
            text(&output.stdout).lines().map(|l| l.split_once("] ").unwrap().1.to_string()).collect();
        said.dedup();
        assert_eq!(said.len(), 1, "ranks of one job agree");
        said.remove(0)
    };
    let (first, second) = (secrets(None), secrets(None));
    assert_ne!(first, second);
    assert_eq!(first.split(' ').next().unwrap().len(), 64);
    assert!(secrets(Some("mine")).starts_with("mine "));
}

#[test]
fn lines_of_many_ranks_are_never_torn() {
    let script = "i=0; while [ $i -lt 300 ]; do printf \"a$RANK\"; printf \"b$RANK\\n\"; i=$((i+1)); done; printf last";
    let output = run(&["-n", "12", "--label-width", "3"], script);
    let mut expect = Vec::new();
    for rank in 0..12 {
        expect.extend(std::iter::repeat_n(format!("[{rank:>3}] a{rank}b{rank}"), 300));
        expect.push(format!("[{rank:>3}] last"));
    }
    expect.sort();
    assert_eq!(sorted_lines(&output.stdout), expect);
}

#[test]
fn a_failing_rank_ends_the_others_and_the_worst_status_is_returned() {
    let mark = mark("fails");
    let script = format!("[ $RANK = 1 ] && exit 7; sleep 600; : {mark}");
    let output = run(&["-n", "3"], &script);
    assert_eq!(output.status.code(), Some(7));
    let said = text(&output.stderr);
    assert!(
        said.contains("rank 1 (pid ") && said.contains("exited with status 7; ending the 2 that"),
        "{said}"
    );
    assert_eq!(alive(&mark), Vec::<String>::new());

    let output = run(&["-n", "3"], "[ $RANK = 1 ] && kill -9 $$; sleep 600");
    assert_eq!(output.status.code(), Some(128 + 9));
    let output = run(&["-n", "3"], "trap '' TERM; sleep 0.3; exit $((RANK + 3))");
    assert_eq!(output.status.code(), Some(5));
}

/// Ranks fail together; one ends while another still writes why it failed.
#[test]
fn who_fails_a_moment_later_is_not_interrupted_while_it_says_why() {
    let output =
        run(&["-n", "2"], "[ $RANK = 1 ] && exit 3; printf 'Error: '; sleep 0.05; echo timeout; exit 4");
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stdout).contains("[0] Error: timeout"), "{}", text(&output.stdout));
}

#[test]
fn the_others_go_on_if_they_shall_and_the_status_stays_the_worst() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script = format!(
        "if [ $RANK = 1 ]; then kill -9 $$; fi; while [ ! -e {} ]; do sleep 0.01; done; echo went on; exit $RANK",
        go.display()
    );
    let mut command = launcher(&["-n", "3", "--keep-going"], &script);
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut errors = std::io::BufReader::new(running.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut errors, &mut said).unwrap();
    assert!(
        said.contains("rank 1 (pid ") && said.ends_with("was ended by signal 9; 2 still run\n"),
        "{said}"
    );
    std::fs::write(&go, "").unwrap();
    let output = running.wait_with_output().unwrap();
    assert_eq!(sorted_lines(&output.stdout), ["[0] went on", "[2] went on"]);
    assert_eq!(output.status.code(), Some(137));
}

#[test]
fn who_ignores_the_request_to_end_is_killed_after_the_grace_period() {
    let mark = mark("ignores");
    let began = clock::now();
    let script = format!(
        "[ $RANK = 0 ] && {{ sleep 0.3; exit 3; }}; trap '' TERM; while :; do sleep 1; done; : {mark}"
    );
    let output = run(&["-n", "2", "--grace", "0.5"], &script);
    assert_eq!(output.status.code(), Some(3));
    let took = Duration::from_nanos(clock::now().0 - began.0);
    assert!(took >= Duration::from_millis(800) && took < Duration::from_secs(30), "{took:?}");
    assert_eq!(alive(&mark), Vec::<String>::new());
}

#[test]
fn what_a_rank_leaves_running_is_ended_even_in_a_session_of_its_own() {
    let mark = mark("orphan");
    let script =
        format!("setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done; : {mark}' & sleep 0.3; echo done");
    let output = run(&["-n", "2", "--grace", "0.3"], &script);
    assert!(output.status.success());
    assert_eq!(sorted_lines(&output.stdout), ["[0] done", "[1] done"]);
    assert_eq!(alive(&mark), Vec::<String>::new());
}

fn start(options: &[&str], script: &str) -> (Child, Pid) {
    let child = launcher(options, script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&child);
    (child, pid)
}

#[test]
fn an_interrupt_reaches_the_ranks_and_nothing_is_left() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mark = mark("interrupt");
        let (child, pid) = start(&["-n", "3"], &format!("while :; do sleep 0.1; done; : {mark}"));
        wait_until("the ranks run", || alive(&mark).len() == 4);
        kill_process(pid, signal).unwrap();
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(status));
        assert_eq!(alive(&mark), Vec::<String>::new());
    }
}

#[test]
fn ranks_hear_the_interrupt_and_may_end_as_they_like() {
    let (child, pid) =
        start(&["-n", "2"], "trap 'echo saved; exit 0' INT; echo up; while :; do sleep 0.1; done");
    let mut child = child;
    let mut seen = [0; 16];
    child.stdout.as_mut().unwrap().read_exact(&mut seen[..14]).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(sorted_lines(&output.stdout), ["[0] saved", "[1] saved"]);
    assert_eq!(output.status.code(), Some(130), "an interrupted job is no success");
}

#[test]
fn ranks_die_with_a_killed_launcher() {
    let mark = mark("killed");
    let (mut child, pid) =
        start(&["-n", "3", "--hosts", "2"], &format!("while :; do sleep 0.1; done; : {mark}"));
    wait_until("the ranks run", || alive(&mark).len() == 4);
    kill_process(pid, Signal::KILL).unwrap();
    child.wait().unwrap();
    wait_until("the ranks are gone", || alive(&mark).is_empty());
}

#[test]
fn a_reader_that_goes_away_ends_the_job() {
    let mark = mark("reader");
    let (mut child, _) = start(&["-n", "2"], &format!("while echo x; do :; done; sleep 600; : {mark}"));
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));
    assert_eq!(alive(&mark), Vec::<String>::new());
}

#[test]
fn output_that_cannot_be_written_ends_the_job_and_says_why() {
    let mark = mark("full");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for script in [format!("echo x; sleep 600; : {mark}"), format!("echo x; : {mark}")] {
        let full = full.try_clone().unwrap();
        let child = launcher(&["-n", "2"], &script).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains("writing the output of the ranks: No space left on device"), "{said}");
        assert_eq!(alive(&mark), Vec::<String>::new());
    }
}

#[test]
fn what_cannot_be_meant_is_a_usage_error() {
    for (options, program, says) in [
        (&["-n", "2"][..], "ccl-no-such-program", "no program ccl-no-such-program"),
        (&["-n", "2", "--hosts", "3"], "true", "3 hosts cannot share 2 ranks"),
        (&["-n", "0"], "true", "invalid value '0'"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ccl-inspect"));
        let output = command.arg("run").args(options).arg(program).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
    let output =
        Command::new(env!("CARGO_BIN_EXE_ccl-inspect")).args(["run", "-n", "1", "/etc/passwd"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(
        text(&output.stderr).contains("[0] ccl-inspect: running /etc/passwd: "),
        "{}",
        text(&output.stderr)
    );
}

/// The rank program of the next test, which the launcher starts from this test program.
#[test]
fn rank_of_two_hosts() {
    if environment("CCL_TEST_ROLE").as_deref() != Some("two-hosts") {
        return;
    }
    let (rank, host) = (environment("RANK").unwrap(), environment("CCL_HOSTID").unwrap());
    let address = (environment("MASTER_ADDR").unwrap(), environment("MASTER_PORT").unwrap().parse().unwrap());
    let mut said = String::new();
    if rank == "0" {
        let listener = TcpListener::bind(&address).unwrap();
        for _ in 0..3 {
            listener.accept().unwrap().0.read_to_string(&mut said).unwrap();
        }
    } else {
        let mut stream = None;
        wait_until("rank 0 listens", || {
            stream = TcpStream::connect(&address).ok();
            stream.is_some()
        });
        stream.unwrap().write_all(format!("<{rank}@{host}>").as_bytes()).unwrap();
    }
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap();
    println!("rank {rank} {host} {} heard {said}", namespace.display());
}

fn network() -> String {
    let say = |arguments: &[&str]| text(&Command::new("ip").args(arguments).output().unwrap().stdout);
    say(&["netns", "list"]) + &say(&["-brief", "link"]) + &say(&["-brief", "address"])
}

#[test]
fn emulated_hosts_reach_each_other_and_leave_nothing() {
    let before = network();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl-inspect"));
    command.args(["run", "-n", "4", "--hosts", "2", "--"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "rank_of_two_hosts", "--nocapture"]).env("CCL_TEST_ROLE", "two-hosts");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{} {}", text(&output.stdout), text(&output.stderr));
    let lines = sorted_lines(&output.stdout);
    let of = |rank: u32| lines.iter().find(|line| line.contains(&format!("rank {rank} host"))).unwrap();
    for (rank, host) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        assert!(of(rank).contains(&format!("rank {rank} host{host} net:[")), "{lines:?}");
    }
    for stranger in ["<1@host0>", "<2@host1>", "<3@host1>"] {
        assert!(of(0).contains(stranger), "{lines:?}");
    }
    let namespace = |rank| of(rank).split(' ').find(|word| word.starts_with("net:")).unwrap();
    assert_eq!(namespace(0), namespace(1));
    assert_eq!(namespace(2), namespace(3));
    let shared = text(&output.stderr).contains("network namespaces cannot be used here");
    assert_eq!(namespace(0) == namespace(2), shared, "hosts are apart, unless it was said that they are not");
    assert_eq!(network(), before);
}

/// The output of ranks on two emulated hosts, if the launcher is started behind these words.
fn hosts_behind(words: &[&str]) -> (Vec<String>, String) {
    // In a folder where any user may execute it.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let launcher = folder.path().join("ccl-inspect");
    std::fs::copy(env!("CARGO_BIN_EXE_ccl-inspect"), &launcher).unwrap();
    let script = "echo $CCL_HOSTID $MASTER_ADDR $CCL_SOCKET_IFNAME $(id -u) $(readlink /proc/self/ns/net)";
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .arg(launcher)
        .args(["run", "-n", "2", "--hosts", "2", "--", "sh", "-c", script]);
    let output = command.current_dir("/").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (sorted_lines(&output.stdout), text(&output.stderr))
}

#[test]
fn hosts_are_emulated_for_users_without_privileges() {
    // A user without privileges stays the same user.
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let (user, behind) = match rustix::process::geteuid() {
        uid if uid.is_root() => (65534, &nobody[..]),
        uid => (uid.as_raw(), &["env"][..]),
    };
    let (lines, said) = hosts_behind(behind);
    if said.contains("network namespaces cannot be used here") {
        return println!(
            "skipped: hosts_are_emulated_for_users_without_privileges: needs network namespaces: {}",
            said.replace('\n', "; ")
        );
    }
    assert!(lines[0].starts_with(&format!("[0] host0 10.231.0.2 {user} net:[")), "{lines:?}");
    assert!(lines[1].starts_with(&format!("[1] host1 10.231.0.2 {user} net:[")), "{lines:?}");
    assert_ne!(lines[0].split(' ').next_back(), lines[1].split(' ').next_back());
}

#[test]
fn where_namespaces_are_forbidden_hosts_share_the_loopback_and_that_is_said() {
    let unshare = ["unshare", "-Ur"];
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").output().unwrap().status.success() {
        return println!(
            "skipped: where_namespaces_are_forbidden_hosts_share_the_loopback_and_that_is_said: needs user namespaces"
        );
    }
    let forbid = "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$@\"";
    let (lines, said) = hosts_behind(&[&unshare[..], &["sh", "-c", forbid, "sh"]].concat());
    assert!(lines[0].starts_with("[0] host0 127.0.0.1 lo "), "{lines:?}");
    assert!(lines[1].starts_with("[1] host1 127.0.0.1 lo "), "{lines:?}");
    assert_eq!(lines[0].split(' ').next_back(), lines[1].split(' ').next_back());
    assert!(said.contains("the 2 hosts share the loopback interface, told apart by CCL_HOSTID"), "{said}");
}
