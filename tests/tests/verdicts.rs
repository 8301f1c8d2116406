//! The verdict on a job that failed, or that waits for a rank which never joined: from the
//! processes, their mappings and the files they leave; and the exit status that goes with it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use ccl::snapshot::{Snapshot, State};
use ccl::types::Rank;
use ccl_tests::job::until;
use ccl_tests::programs::{program, text};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use rustix::process::{Pid, Signal, kill_process};

/// Ranks with a file as their rendezvous; killed when dropped.
struct Ranks {
    folder: tempfile::TempDir,
    all: Vec<Child>,
}

impl Ranks {
    /// Starts the first ranks of a job of `nranks`, each with its steps.
    fn start(nranks: u32, steps: &[&str]) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let start = |(rank, steps): (u32, &&str)| {
            let mut command = Command::new(program("steps"));
            command.arg(steps).env("RANK", rank.to_string()).env("WORLD_SIZE", nranks.to_string());
            command.env("CCL_RENDEZVOUS_FILE", folder.path().join("id")).env("CCL_TIMEOUT", "60");
            command.env("CCL_RUNTIME_DIR", folder.path()).env("CCL_DEBUG", "NONE");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let all = (0..).zip(steps).map(start).collect();
        Self { folder, all }
    }

    fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.all[rank]), signal).unwrap();
    }

    fn kill(&mut self, rank: usize) {
        self.all[rank].kill().unwrap();
        self.all[rank].wait().unwrap();
    }

    fn ended(&mut self) {
        for rank in &mut self.all {
            rank.wait().unwrap();
        }
    }

    fn inspect(&self, arguments: &[&str], stall_s: &str) -> Output {
        let mut command = Command::new(program("ccl-inspect"));
        command.args(arguments).env("CCL_RUNTIME_DIR", self.folder.path()).env("CCL_STALL_AFTER", stall_s);
        command.output().unwrap()
    }

    /// A snapshot of the living processes, and the exit status.
    fn seen(&self, from: usize, stall_s: &str) -> Option<(Snapshot, Option<i32>)> {
        let pid = self.all[from].id().to_string();
        let output = self.inspect(&["snapshot", &pid, "--json"], stall_s);
        Some((serde_json::from_slice(&output.stdout).ok()?, output.status.code()))
    }

    /// The content of the files as data and as text, and the exit status.
    fn left(&self, stall_s: &str) -> (Snapshot, String, Option<i32>) {
        let folder: &Path = self.folder.path();
        let path = folder.to_str().unwrap();
        let output = self.inspect(&["open", path, "--json"], stall_s);
        let said = text(&self.inspect(&["open", path], stall_s));
        (serde_json::from_slice(&output.stdout).unwrap(), said, output.status.code())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.all {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

fn ranks(ranks: &[u32]) -> Vec<Rank> {
    ranks.iter().copied().map(Rank).collect()
}

#[test]
fn a_rank_that_never_joined_is_named_by_the_living_their_mappings_and_their_files() {
    let mut job = Ranks::start(4, &["finish"; 3]);
    let is_whole = |seen: &Snapshot| seen.not_joined.first().is_some_and(|one| one.count == Some(1));
    let wait = || until("the root's word", || job.seen(1, "30").filter(|(seen, _)| is_whole(seen)));
    let check = |(seen, status): (Snapshot, Option<i32>)| {
        let one = &seen.not_joined[0];
        assert_eq!((&one.ranks, &one.by, one.nranks), (&ranks(&[3]), &ranks(&[0, 1, 2]), 4));
        assert!((1..120_000_000_000).contains(&one.gives_up_ns), "{one:?}");
        let [missing] = seen.missing.as_slice() else { panic!("{:?}", seen.missing) };
        assert_eq!((missing.rank, missing.pid), (Rank(3), 0));
        assert!(missing.why.starts_with("it has not joined: "), "{}", missing.why);
        assert_eq!(status, Some(13));
    };
    check(wait());
    // The root's process, and the processes that it informs, cannot be asked.
    for rank in 0..3 {
        job.signal(rank, Signal::STOP);
    }
    check(wait());
    assert_eq!(job.seen(1, "0.001").unwrap().1, Some(10), "it has waited for longer than that");
    (0..3).for_each(|rank| job.kill(rank));
    let (seen, said, status) = job.left("30");
    assert_eq!(
        (&seen.not_joined[0].ranks, seen.not_joined[0].gives_up_ns, status),
        (&ranks(&[3]), 0, Some(13))
    );
    assert!(said.contains("\nNOT JOINED rank 3 of world: ranks 0-2 waited for it in init for "), "{said}");
    assert!(said.contains("had heard of 3 of 4 ranks\n") && !said.contains("gives up"), "{said}");
}

#[test]
fn a_rank_that_cannot_reach_rank_0_says_that_the_root_does_not_answer() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = Command::new(program("steps"));
    command.arg("finish").envs([("RANK", "1"), ("WORLD_SIZE", "2"), ("CCL_DEBUG", "NONE")]);
    // No process listens there, and no other process gets that port while this one holds it.
    let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&held, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let nobody = SocketAddrV4::try_from(getsockname(&held).unwrap()).unwrap();
    command.env("CCL_COMM_ID", nobody.to_string()).env("CCL_RUNTIME_DIR", folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut job = Ranks { folder, all: vec![command.spawn().unwrap()] };
    let pid = job.all[0].id().to_string();
    let is_said = |seen: &Snapshot| !seen.not_joined.is_empty();
    let wait =
        || until("that the root does not answer", || job.seen(0, "30").filter(|(seen, _)| is_said(seen)));
    let check = |(seen, status): (Snapshot, Option<i32>), is_over: bool| {
        let one = &seen.not_joined[0];
        // It is not known whether rank 0 has joined.
        assert_eq!((one.count, &one.ranks, &one.by, one.nranks), (None, &ranks(&[0]), &ranks(&[1]), 2));
        assert_eq!(one.gives_up_ns == 0, is_over, "{one:?}");
        let [missing] = seen.missing.as_slice() else { panic!("{:?}", seen.missing) };
        let why = "the bootstrap root, which it opens, has not answered anybody";
        assert!(missing.rank == Rank(0) && missing.why.starts_with(why), "{missing:?}");
        assert_eq!((seen.blocked_on.len(), status), (0, Some(13)), "{seen:?}");
    };
    check(wait(), false);
    let said = text(&job.inspect(&["snapshot", &pid], "30"));
    let answer = "NOT JOINED world: the bootstrap root, which rank 0 opens, has not answered; rank 1 waits for it in init for ";
    assert!(said.contains(answer) && said.contains("; init gives up in "), "{said}");
    assert!(
        said.contains("\nnot read: rank 0: the bootstrap root, which it opens, has not answered anybody"),
        "{said}"
    );
    // It cannot be asked.
    job.signal(0, Signal::STOP);
    check(wait(), false);
    job.signal(0, Signal::CONT);
    // What a dead process leaves reaches to its last clock anchor, about a second before its end,
    // and a root counts as silent after three.
    let long = |seen: &Snapshot| seen.not_joined.first().is_some_and(|one| one.since_ns > 5_000_000_000);
    until("that it has waited for long", || job.seen(0, "30").filter(|(seen, _)| long(seen)));
    job.kill(0);
    let (seen, said, status) = job.left("30");
    check((seen, status), true);
    assert!(said.contains("rank 1 waited for it in init for ") && !said.contains("gives up"), "{said}");
}

#[test]
fn after_a_mismatch_the_files_name_who_called_something_else_and_nobody_waits() {
    let same = "all_reduce 1000; all_reduce 10; finish";
    // A rank that learns of the mismatch before it calls has no failed operation: all others call
    // first.
    let mut job = Ranks::start(4, &[same, same, "all_reduce 1000; sleep 300; barrier; finish", same]);
    job.ended();
    let (seen, said, status) = job.left("30");
    let [one] = seen.failures.as_slice() else { panic!("{:?}", seen.failures) };
    assert_eq!((one.error.as_str(), one.op.as_str(), one.seq), ("Mismatch", "AllReduce", 2), "{one:?}");
    assert_eq!((&one.blamed, &one.ranks), (&ranks(&[2]), &ranks(&[0, 1, 2, 3])), "{one:?}");
    let calls: Vec<_> = one.calls.iter().map(|called| (called.call.as_str(), called.ranks.len())).collect();
    assert_eq!(calls, [("AllReduce of 10 F32, Sum", 3), ("Barrier", 1)]);
    assert_eq!((seen.blocked_on.len(), status), (0, Some(11)));
    assert!(said.starts_with("STALLED MISMATCH (application, certain): rank 2 (pid "), "{said}");
    assert!(said.contains("\nFAILED AllReduce #2 of world (Mismatch), by rank 2 (pid "), "{said}");
    assert!(said.contains("failed, then exited") && !said.contains("BLOCKED ON"), "{said}");
}

#[test]
fn after_a_death_the_one_who_died_is_to_blame_and_not_who_waited() {
    let waits = "all_reduce 1000; all_reduce 10; finish";
    let mut job = Ranks::start(3, &[waits, "all_reduce 1000; sleep 600000; finish", waits]);
    until("a wait", || {
        let (seen, _) = job.seen(0, "30")?;
        seen.said().next().is_some().then_some(())
    });
    job.kill(1);
    job.ended();
    let (seen, said, status) = job.left("30");
    let [one] = seen.failures.as_slice() else { panic!("{:?}", seen.failures) };
    assert_eq!(
        (one.error.as_str(), &one.blamed, &one.ranks),
        ("Peer", &ranks(&[1]), &ranks(&[0, 2])),
        "{one:?}"
    );
    assert!(one.lasted_ns >= ccl::diagnose::SAID_NS, "{one:?}");
    let states: Vec<_> = seen.ranks.iter().map(|rank| rank.state).collect();
    assert_eq!(states, [State::Exited, State::Dead, State::Exited]);
    assert_eq!((seen.blocked_on.len(), status), (0, Some(10)));
    assert!(said.starts_with("STALLED PEER_DEAD (machine, "), "{said}");
    assert!(said.contains("\nFAILED AllReduce #2 of world (Peer), by rank 1 (pid "), "{said}");
    assert!(said.contains("no rank that was read lives: the last sign of life is of rank "), "{said}");
    // For dead ranks the output gives how long the call took, not how long ago it failed.
    let failed = said.lines().filter(|line| line.contains("failed: Peer"));
    assert_eq!(failed.filter(|line| line.contains(" after ")).count(), 2, "{said}");
    // Read again, it is unchanged: no age grows.
    assert_eq!(job.left("30").1, said);
}

#[test]
fn a_process_that_gave_its_communicator_back_has_left_and_exits_when_it_ends() {
    let waits = "all_reduce 1000; all_reduce 10; finish";
    let mut job = Ranks::start(2, &["all_reduce 1000; drop; sleep 600000", waits]);
    job.all[1].wait().unwrap();
    let (seen, said) = until("both to have left", || {
        let seen = job.left("30");
        let states: Vec<_> = seen.0.ranks.iter().map(|rank| rank.state).collect();
        (states == [State::Left, State::Exited]).then_some((seen.0, seen.1))
    });
    let pid = job.all[0].id();
    assert!(seen.ranks[0].letter.is_some() && seen.ranks[1].letter.is_none(), "{:?}", seen.ranks);
    assert!(said.contains("all ranks that were read have left or ended: the last sign of life"), "{said}");
    assert!(said.contains("  failed, then left  ") && said.contains("  failed, then exited  "), "{said}");
    let inspect = |verb: &[&str]| text(&job.inspect(verb, "30"));
    let listed = inspect(&["ps"]);
    let row = |pid: u32| listed.lines().find(|line| line.contains(&format!(" {pid} "))).unwrap_or_default();
    assert!(row(pid).contains(" left ") && row(job.all[1].id()).contains(" exited "), "{listed}");
    let seen = inspect(&["snapshot", &pid.to_string()]);
    assert!(seen.contains("  failed, then left  "), "{seen}");
    job.kill(0);
    let (seen, said, _) = job.left("30");
    assert_eq!(seen.ranks[0].state, State::Exited, "{said}");
    assert!(said.contains("no rank that was read lives: "), "{said}");
}
