//! Inspecting jobs: processes that only write recorders stand in for ranks, so that every state can
//! be produced on purpose.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use ccl::clock;
use ccl::collective::Descriptor;
use ccl::config::{Settings, environment};
use ccl::control::server::Server;
use ccl::recorder::{CommInfo, Peer, Recorder, Times};
use ccl::snapshot::{Snapshot, Source, State};
use ccl::types::{
    ChannelId, CollKind, CommId, Datatype, Direction, JobId, Rank, ReduceOp, TransportKind, TransportReason,
    WaitReason,
};
use rustix::process::{Pid, Signal, kill_process};

/// The program of a stand-in process, which `Job::start` starts from this test program.
#[test]
fn stand_in() {
    if environment("CCL_TEST_ROLE").as_deref() != Some("stand-in") {
        return;
    }
    let number = |name: &str| environment(name).unwrap().parse::<u32>().unwrap();
    let (me, nranks, late) = (Rank(number("RANK")), number("WORLD_SIZE"), Rank(number("LATE")));
    let settings = Settings::of_process().unwrap();
    let recorder = Recorder::for_process(&settings).unwrap();
    let job = JobId(u64::from_str_radix(&environment("JOB").unwrap(), 16).unwrap());
    // A control socket that answers, one that is stuck, or none.
    let control = environment("CONTROL").unwrap();
    let server = (control == "answers").then(|| Server::beside(&recorder, &settings).unwrap());
    let stuck = (control == "stuck").then(|| UnixListener::bind(recorder.beside("sock").unwrap()).unwrap());
    if stuck.is_some() {
        recorder.set_control(recorder.beside("sock").as_deref());
    }
    let row = recorder.comm(CommInfo { id: CommId(5), job, name: "dp", rank: me, nranks, world: me });
    println!("@ {}", recorder.path().unwrap().display());
    let mut input = std::io::stdin().lock().lines().map(Result::unwrap);
    let paths: Vec<String> = input.by_ref().take(nranks as usize).collect();
    let peer = |(rank, path)| Peer {
        rank: Rank(rank),
        world: Rank(rank),
        host: "here",
        pid: 1000 + rank,
        recorder: path,
        control: "",
    };
    row.peers(&(0..).zip(paths.iter().map(String::as_str)).map(peer).collect::<Vec<_>>());
    let descriptor = |seq| Descriptor {
        kind: CollKind::AllReduce,
        dtype: Datatype::F32,
        op: ReduceOp::Sum,
        root: Rank(0),
        count: 100,
        seq,
        plan: 0,
        uneven: false,
    };
    row.called(&descriptor(6), None, clock::raw());
    row.completed(&descriptor(6), Times::between(clock::raw(), clock::raw()));
    row.tag("step 7");
    let previous = Rank((me.0 + nranks - 1) % nranks);
    let link = row.link(
        ChannelId(0),
        Some(previous),
        Direction::Recv,
        (TransportKind::Shm, TransportReason::SameHost),
    );
    if me != late {
        row.called(&descriptor(7), None, clock::raw());
        link.set(2, 1, 1);
        link.op(7);
        link.waits(WaitReason::Peer, previous, clock::raw());
    }
    println!("@ ready");
    let told = input.next();
    if told.as_deref() == Some("exec") {
        panic!("{}", Command::new("sleep").arg("600").exec());
    }
    let told_to_end = told.is_some();
    drop((server, stuck));
    if told_to_end {
        // It ends in good order, so no operation may be under way.
        row.completed(&descriptor(7), Times::between(clock::raw(), clock::raw()));
    }
}

/// Stand-ins, killed when dropped.
struct Job {
    id: JobId,
    folder: tempfile::TempDir,
    ranks: Vec<Child>,
    paths: Vec<String>,
}

fn say(child: &mut Child, line: &str) {
    writeln!(child.stdin.as_mut().unwrap(), "{line}").unwrap();
}

fn hear(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> String {
    lines.find_map(|line| line.unwrap().split_once("@ ").map(|(_, said)| said.to_string())).unwrap()
}

impl Job {
    /// Starts ranks, each behind the words of `wrap`.
    ///
    /// Rank `late` has not called the operation that the others are in.
    fn start(id: u64, nranks: u32, late: u32, wrap: &[&str]) -> Self {
        Self::start_with(id, nranks, late, wrap, "absent")
    }

    fn start_with(id: u64, nranks: u32, late: u32, wrap: &[&str], control: &str) -> Self {
        // On tmpfs, as recorders should be.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let program = std::env::current_exe().unwrap();
        let start = |rank: u32| {
            let words = wrap.iter().map(PathBuf::from).chain([program.clone()]).collect::<Vec<_>>();
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).args(["--exact", "stand_in", "--nocapture"]);
            command.envs([("CCL_TEST_ROLE", "stand-in"), ("JOB", &format!("{id:x}"))]);
            command.env("CCL_RUNTIME_DIR", folder.path()).env("RANK", rank.to_string());
            command.env("WORLD_SIZE", nranks.to_string()).env("LATE", late.to_string());
            command.env("CONTROL", control);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
        };
        let mut ranks: Vec<Child> = (0..nranks).map(start).collect();
        let mut outputs: Vec<_> =
            ranks.iter_mut().map(|rank| BufReader::new(rank.stdout.take().unwrap()).lines()).collect();
        let paths: Vec<String> = outputs.iter_mut().map(hear).collect();
        for (rank, mut output) in ranks.iter_mut().zip(outputs) {
            paths.iter().for_each(|path| say(rank, path));
            assert_eq!(hear(&mut output), "ready");
            // Reads the rest, so that the process is not held up by a full pipe.
            std::thread::spawn(move || output.for_each(drop));
        }
        Self { id: JobId(id), folder, ranks, paths }
    }

    fn pid(&self, rank: usize) -> u32 {
        self.ranks[rank].id()
    }

    fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.ranks[rank]), signal).unwrap();
    }

    fn kill(&mut self, rank: usize) {
        self.ranks[rank].kill().unwrap();
        self.ranks[rank].wait().unwrap();
    }

    fn files(&self) -> PathBuf {
        self.folder.path().join(format!("ccl-{}", rustix::process::geteuid().as_raw()))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

fn inspect(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ccl-inspect")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A snapshot as JSON, and the exit status.
fn snapshot(arguments: &[&str]) -> (Snapshot, Option<i32>) {
    let output = inspect(&[arguments, &["--json"]].concat());
    assert_eq!(text(&output.stderr), "");
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code())
}

fn ranks(ranks: &[u32]) -> Vec<Rank> {
    ranks.iter().copied().map(Rank).collect()
}

fn states(snapshot: &Snapshot) -> Vec<State> {
    snapshot.ranks.iter().map(|rank| rank.state).collect()
}

#[test]
fn from_any_rank_the_late_one_is_named() {
    let job = Job::start(0x51, 3, 2, &[]);
    // A wait that is younger than one look takes is not reported.
    clock::sleep(std::time::Duration::from_nanos(ccl::diagnose::SAID_NS));
    for rank in 0..3 {
        let pid = job.pid(rank).to_string();
        for target in [pid.clone(), format!("{pid}:{rank}"), job.id.to_string()] {
            let (seen, status) = snapshot(&["snapshot", &target]);
            assert_eq!((seen.job, seen.complete, status), (job.id, true, Some(0)));
            assert_eq!(states(&seen), [State::Running; 3]);
            assert!(seen.ranks.iter().all(|rank| rank.source == Source::Mapping));
            assert_eq!(seen.ranks.iter().map(|r| r.pid).collect::<Vec<_>>(), [0, 1, 2].map(|n| job.pid(n)));
            let [blocked_on] = seen.blocked_on.as_slice() else { panic!("{:?}", seen.blocked_on) };
            assert_eq!((&blocked_on.missing, &blocked_on.inside), (&ranks(&[2]), &vec![]));
            assert_eq!((blocked_on.op.as_str(), blocked_on.seq), ("AllReduce", 7));
        }
    }
    let output = inspect(&["snapshot", &job.id.to_string()]);
    let said = text(&output.stdout);
    assert!(
        said.contains("BLOCKED ON rank 2 (pid ") && said.contains("has not called AllReduce #7 of dp"),
        "{said}"
    );
}

#[test]
fn processes_are_asked_and_whose_control_thread_is_stuck_is_read() {
    let job = Job::start_with(0x57, 2, 1, &[], "answers");
    job.signal(1, Signal::STOP);
    let (seen, status) = snapshot(&["snapshot", &job.pid(0).to_string()]);
    assert_eq!((seen.complete, status), (true, Some(0)));
    assert_eq!(seen.ranks[0].source, Source::Socket, "{:?}", seen.notes);
    assert_eq!((seen.ranks[1].source, seen.ranks[1].state), (Source::Mapping, State::Stopped));
    assert_eq!(seen.blocked_on[0].missing, ranks(&[1]));
    job.signal(1, Signal::CONT);

    let job = Job::start_with(0x58, 2, 1, &[], "stuck");
    let (seen, _) = snapshot(&["snapshot", &job.pid(0).to_string()]);
    assert!(seen.ranks.iter().all(|rank| rank.source == Source::Mapping));
    assert_eq!(seen.blocked_on[0].missing, ranks(&[1]));
    for rank in 0..2 {
        let note = format!("pid {} on ", job.pid(rank));
        let said = |line: &String| line.starts_with(&note) && line.ends_with("did not answer within 250 ms");
        assert!(seen.notes.iter().any(said), "{:?}", seen.notes);
    }
}

#[test]
fn a_stopped_rank_is_named_and_unlinked_files_are_found() {
    let job = Job::start(0x52, 3, 9, &[]);
    job.signal(1, Signal::STOP);
    std::fs::remove_dir_all(job.files()).unwrap();
    let (seen, status) = snapshot(&["snapshot", &job.pid(0).to_string()]);
    assert_eq!(status, Some(0));
    assert_eq!(states(&seen), [State::Running, State::Stopped, State::Running]);
    assert_eq!(seen.blocked_on[0].inside, ranks(&[1]), "{:?}", seen.blocked_on);
    job.signal(1, Signal::CONT);
}

#[test]
fn the_dead_tell_by_their_files() {
    let mut job = Job::start(0x53, 3, 2, &[]);
    job.signal(0, Signal::STOP);
    job.kill(1);
    let (seen, _) = snapshot(&["snapshot", &job.pid(2).to_string()]);
    assert_eq!(states(&seen), [State::Stopped, State::Dead, State::Running]);
    job.kill(0);
    job.kill(2);
    for folder in [job.files(), job.folder.path().to_path_buf()] {
        let (seen, status) = snapshot(&["open", folder.to_str().unwrap()]);
        assert_eq!((seen.complete, status), (true, Some(10)));
        assert_eq!(states(&seen), [State::Dead; 3]);
        assert!(seen.ranks.iter().all(|rank| rank.source == Source::File));
        assert_eq!(seen.blocked_on[0].missing, ranks(&[2]), "{:?}", seen.blocked_on);
    }
    // A dead pid also names a job, as long as its file lies in the searched folder.
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl-inspect"));
    command.args(["snapshot", &job.pid(0).to_string(), "--json"]).env("CCL_RUNTIME_DIR", job.folder.path());
    let seen: Snapshot = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(states(&seen), [State::Dead; 3]);
    // No process is left to be asked for more detail, so none is reported to have refused it.
    let to = job.folder.path().join("trace.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl-inspect"));
    command.args(["trace", &job.id.to_string(), "--for", "100ms", "-o"]).arg(&to);
    let output = command.env("CCL_RUNTIME_DIR", job.folder.path()).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(to.exists() && !said.contains("goes on at its own level"), "{said}");

    let (seen, status) = snapshot(&["open", &job.paths[0]]);
    assert_eq!((seen.complete, status), (false, Some(10)));
    assert_eq!(seen.missing.iter().map(|m| m.rank).collect::<Vec<_>>(), ranks(&[1, 2]));
    let why = format!("only {} was opened, and it is not there", job.paths[0]);
    assert!(seen.missing.iter().all(|missing| missing.why == why), "{:?}", seen.missing);
    let output = inspect(&["open", &job.paths[0]]);
    assert!(text(&output.stdout).contains(&format!("not read: rank 1 (pid 1001 on here): {why}")));
}

#[test]
fn a_copy_of_a_living_jobs_files_is_told_from_files_of_the_dead() {
    let mut job = Job::start(0x5a, 3, 2, &[]);
    job.kill(1);
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(job.files()).unwrap().flatten().filter(|file| file.path().is_file()) {
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().to_str().unwrap();
    let (seen, _) = snapshot(&["open", path]);
    assert_eq!(states(&seen), [State::Unknown, State::Dead, State::Unknown]);
    assert_eq!(seen.blocked_on[0].missing, ranks(&[2]), "{:?}", seen.blocked_on);
    let notes = seen.notes.iter().filter(|note| note.contains(" is a copy, as of ")).count();
    assert_eq!((notes, seen.notes.len()), (2, 2), "{:?}", seen.notes);
    let said = text(&inspect(&["open", path]).stdout);
    assert!(!said.contains("no rank that was read lives") && !said.contains("no rank any more"), "{said}");
    // They have ended: the copies are all that is left.
    job.kill(0);
    job.kill(2);
    assert_eq!(states(&snapshot(&["open", path]).0), [State::Dead; 3]);
}

#[test]
fn a_process_that_runs_another_program_now_is_dead_as_a_rank_and_lives() {
    let mut job = Job::start(0x59, 2, 9, &[]);
    say(&mut job.ranks[1], "exec");
    let runs = || std::fs::read_link(format!("/proc/{}/exe", job.pid(1))).unwrap();
    while runs().file_name().is_none_or(|name| name != "sleep") {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let (seen, _) = snapshot(&["snapshot", &job.pid(0).to_string()]);
    assert_eq!(states(&seen), [State::Running, State::Dead]);
    let note = format!("pid {} on {} lives and is no rank any more: it runs", job.pid(1), seen.ranks[1].host);
    assert!(
        seen.notes.iter().any(|said| said.starts_with(&note) && said.contains("sleep")),
        "{:?}",
        seen.notes
    );
}

#[test]
fn who_cannot_be_read_is_listed_with_the_reason() {
    let mut job = Job::start(0x54, 3, 9, &[]);
    say(&mut job.ranks[1], "end");
    assert!(job.ranks[1].wait().unwrap().success());
    assert!(!Path::new(&job.paths[1]).exists(), "who leaves in good order leaves nothing");
    job.kill(2);
    std::fs::write(&job.paths[2], "garbage").unwrap();
    let (seen, status) = snapshot(&["snapshot", &job.pid(0).to_string()]);
    assert_eq!((seen.complete, status), (false, Some(13)));
    let why: Vec<_> = seen.missing.iter().map(|missing| (missing.rank.0, missing.why.as_str())).collect();
    assert_eq!(why[0].0, 1);
    assert!(
        why[0].1.contains("is not on this machine: it ran on another one, ended in good order, or"),
        "{why:?}"
    );
    assert_eq!(why[1].0, 2);
    assert!(why[1].1.contains(&job.paths[2]), "{why:?}");
}

#[test]
fn ranks_in_namespaces_of_their_own_are_seen() {
    let wrap = ["unshare", "--mount", "--pid", "--fork", "--kill-child"];
    if !Command::new(wrap[0])
        .args(&wrap[1..])
        .arg("true")
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
    {
        return println!("skipped: ranks_in_namespaces_of_their_own_are_seen: needs root's mount namespaces");
    }
    // Each process mounts a folder of its own over the runtime folder that is known outside.
    let hide = "mount -t tmpfs none \"$CCL_RUNTIME_DIR\" && exec \"$@\"";
    let job = Job::start(0x55, 2, 1, &[&wrap[..], &["sh", "-c", hide, "sh"]].concat());
    assert_eq!(std::fs::read_dir(job.folder.path()).unwrap().count(), 0, "outside there is nothing to see");
    let inner = |rank: usize| {
        let unshare = job.pid(rank);
        let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap();
        children.trim().parse::<u32>().unwrap()
    };
    let child = inner(0);
    kill_process(Pid::from_raw(child.cast_signed()).unwrap(), Signal::STOP).unwrap();
    for target in [child.to_string(), inner(1).to_string(), job.id.to_string()] {
        let (seen, status) = snapshot(&["snapshot", &target]);
        assert_eq!((seen.job, status), (job.id, Some(0)));
        assert_eq!(
            seen.ranks.iter().map(|rank| rank.pid).collect::<Vec<_>>(),
            [1, 1],
            "as they see themselves"
        );
        assert_eq!(states(&seen), [State::Stopped, State::Running]);
        let here = format!("rank 1: pid 1 on {} is process {} here", seen.ranks[1].host, inner(1));
        assert!(seen.notes.iter().any(|note| note.starts_with(&here)), "{:?}", seen.notes);
    }
    kill_process(Pid::from_raw(child.cast_signed()).unwrap(), Signal::CONT).unwrap();
}

#[test]
fn a_list_shows_jobs_alive_and_dead_and_cleans_up() {
    let mut job = Job::start(0x56, 2, 1, &[]);
    job.kill(1);
    let list = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ccl-inspect"));
        let output =
            command.arg("ps").args(options).env("CCL_RUNTIME_DIR", job.folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        text(&output.stdout)
    };
    let said = list(&[]);
    let line = |rank: u32| said.lines().find(|l| l.starts_with(&format!("{}  {rank} ", job.id))).unwrap();
    assert!(line(1).contains("  1/2  "), "{said}");
    assert!(
        said.starts_with("JOB ") && line(0).contains(" running ") && line(1).contains(" dead "),
        "{said}"
    );
    assert!(
        line(0).contains(&format!(" {} ", job.pid(0))) && line(0).contains("AllReduce #7 running"),
        "{said}"
    );
    let jobs: Vec<Snapshot> = serde_json::from_str(&list(&["--json"])).unwrap();
    let mine = jobs.iter().find(|one| one.job == job.id).unwrap();
    assert_eq!(states(mine), [State::Running, State::Dead]);
    // What watchdogs wrote: beside a dead recorder, beside none, and of a process that lives.
    let [living, dead] = [0, 1].map(|rank| PathBuf::from(&job.paths[rank]));
    let orphan = dead.with_file_name("1-1-1.stall.new");
    let states = |of: &Path| ["stall.json", "stall.new"].map(|extension| of.with_extension(extension));
    for file in states(&living).iter().chain(&states(&dead)).chain([&orphan]) {
        std::fs::write(file, "").unwrap();
    }
    assert_eq!(list(&["--clean"]), format!("{}: removed\n{}: removed\n", dead.display(), orphan.display()));
    let left = |of: &Path| states(of).iter().filter(|file| file.exists()).count();
    assert!(living.exists() && !dead.exists() && !orphan.exists());
    assert_eq!((left(&living), left(&dead)), (2, 0));
}

#[test]
fn what_is_not_there_is_said() {
    let check = |arguments: &[&str], status: i32, says: &str| {
        let output = inspect(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    };
    check(
        &["snapshot", "what"],
        2,
        "it is neither a pid, nor pid:rank, nor the 16 hexadecimal digits of a job",
    );
    check(&["snapshot", "00000000000000fe"], 1, "nothing is known of job 00000000000000fe");
    check(&["open", "/no/such/file"], 1, "/no/such/file: No such file or directory");
    check(&["open", "/etc/passwd"], 1, "/etc/passwd: ");
    check(&["open", "/etc"], 1, "there is no job");
}
