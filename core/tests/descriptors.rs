//! Descriptors: a rank that has none left for a connection reports it, and the library never gets
//! the number of a standard stream that the program has closed.
//!
//! A peer is this test binary again, started for one test that does nothing otherwise.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use ccl::bootstrap::id::UniqueId;
use ccl::bootstrap::root_task;
use ccl::comm::{Communicator, Config};
use ccl::config::{Key, environment};
use ccl::{ErrorKind, Rank, ReduceOp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Rank 1 prints this once it has no descriptor left: a rank that connects earlier would be
/// accepted.
const NONE_LEFT: &str = "all descriptors are taken";

/// Settings of both ranks: sockets, a short deadline, warnings.
fn config() -> Config {
    let settings = [(Key::Transport, "socket"), (Key::Timeout, "2"), (Key::Log, "WARN")];
    Config { name: "test".into(), settings: Some(common::settings(&settings)) }
}

/// This test binary again, for one test that gets `id` and its task.
fn again(test: &str, id: &UniqueId, work: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command.envs([("DESCRIPTORS_ID", &*id.to_hex()), ("DESCRIPTORS_WORK", work)]);
    command.env(common::RUNTIME, common::runtime());
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn read_until(output: &mut impl BufRead, text: &str) {
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "it ended before it printed {text:?}");
    }
}

/// Rank 1 of the test below: it uses up its descriptors and calls. Without its variables it does
/// nothing.
#[test]
fn a_rank_without_descriptors() {
    let (Some(id), Some(work)) = (environment("DESCRIPTORS_ID"), environment("DESCRIPTORS_WORK")) else {
        return;
    };
    let nranks = if work == "third" { 3 } else { 2 };
    let comm = Communicator::init(&UniqueId::from_hex(&id).unwrap(), 1, nranks, config()).unwrap();
    comm.barrier().unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| null.try_clone().ok()).collect();
    println!("{NONE_LEFT}");
    let called = match &*work {
        "accept" => comm.recv(&mut [0_u8; 8], Rank(0)),
        "connect" => comm.send(&[0_u8; 8], Rank(0)),
        _ => comm.send(&[0_u8; 8], Rank(2)),
    };
    println!("the error: {}", called.unwrap_err());
    drop(taken);
}

#[test]
fn a_rank_that_cannot_connect_for_want_of_descriptors_says_so() {
    for work in ["accept", "connect"] {
        let (id, root) = root_task::create(&config().settings.unwrap()).unwrap();
        let mut command = again("a_rank_without_descriptors", &id, work);
        let mut peer = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let comm = Communicator::init(&id, 0, 2, config()).unwrap();
        comm.barrier().unwrap();
        let mut printed = BufReader::new(peer.stdout.take().unwrap());
        read_until(&mut printed, NONE_LEFT);
        let error = if work == "accept" {
            comm.send(&[0_u8; 8], Rank(1)).unwrap_err()
        } else {
            comm.recv(&mut [0_u8; 8], Rank(1)).unwrap_err()
        };
        assert!(matches!(error.kind, ErrorKind::Timeout | ErrorKind::Peer), "{error:?}");
        let mut said = said(&peer.wait_with_output().unwrap());
        printed.read_to_string(&mut said).unwrap();
        let (error, notice): (Vec<_>, Vec<_>) =
            said.lines().filter(|line| line.contains("ulimit -n")).partition(|l| l.contains("the error: "));
        for lines in [error, notice] {
            let is_named = lines.iter().any(|l| l.contains("rank 1 has no file descriptor left (limit 64)"));
            assert!(is_named, "{work}: {said}");
        }
        drop((comm, root));
    }
}

/// Rank 1 lacks descriptors to connect to rank 2. Ranks 0 and 2 wait for rank 1.
#[test]
fn the_rank_that_lacks_descriptors_is_named_and_not_the_one_that_it_cannot_connect_to() {
    let (id, root) = root_task::create(&config().settings.unwrap()).unwrap();
    let mut command = again("a_rank_without_descriptors", &id, "third");
    let mut peer = command.stdout(Stdio::piped()).spawn().unwrap();
    let id = &id;
    let ready = &std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        let other = |rank| {
            move || {
                let comm = Communicator::init(id, rank, 3, config()).unwrap();
                comm.barrier().unwrap();
                ready.wait();
                let error = comm.recv(&mut [0_u8; 8], Rank(1)).unwrap_err();
                assert_eq!((error.kind, error.at.peer), (ErrorKind::Timeout, Some(Rank(1))), "{error}");
            }
        };
        let ranks = [0, 2].map(|rank| scope.spawn(other(rank)));
        let mut printed = BufReader::new(peer.stdout.take().unwrap());
        // The others go on, and fail, if it has ended.
        let read =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read_until(&mut printed, NONE_LEFT)));
        ready.wait();
        read.unwrap();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        printed.read_to_string(&mut String::new()).unwrap();
    });
    peer.wait().unwrap();
    drop(root);
}

/// The rank of the test below: it uses up its descriptors while it looks for the root. Without its
/// variable it does nothing.
#[test]
fn a_rank_without_descriptors_in_init() {
    let Some(id) = environment("DESCRIPTORS_ID") else { return };
    let settings = [(Key::InitTimeout, "2"), (Key::Log, "WARN")];
    let config = Config { name: "test".into(), settings: Some(common::settings(&settings)) };
    let joining = Communicator::init_async(&UniqueId::from_hex(&id).unwrap(), 1, 2, config).unwrap();
    while joining.phase() != Some(ccl::types::Phase::CheckIn) {
        std::thread::yield_now();
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut taken = Vec::new();
    // A try that ends gives its descriptor back.
    while !joining.is_done() {
        taken.extend(std::iter::from_fn(|| null.try_clone().ok()));
    }
    let error = joining.wait().unwrap_err();
    drop(taken);
    println!("the error: {:?}: {error}", error.kind);
}

#[test]
fn a_rank_that_cannot_join_for_want_of_descriptors_says_so() {
    // Nobody listens there any more.
    let (id, root) = root_task::create(&config().settings.unwrap()).unwrap();
    drop(root);
    let mut command = again("a_rank_without_descriptors_in_init", &id, "join");
    let said = said(&command.output().unwrap());
    let lacks = "rank 1 has no file descriptor left (limit 64)";
    assert!(said.contains(&format!("the error: System: comm test: rank 1: {lacks}")), "{said}");
    let warned = format!("bootstrap: {lacks}; the limit");
    assert!(said.lines().any(|line| line.contains("ulimit -n") && line.contains(&warned)), "{said}");
}

/// Rank 1 of the test below: it closes its standard streams and joins. Without its variables it
/// does nothing.
#[test]
fn a_rank_without_standard_streams() {
    let (Some(id), Some(transport)) = (environment("DESCRIPTORS_ID"), environment("DESCRIPTORS_WORK")) else {
        return;
    };
    for standard in 0..3 {
        // SAFETY: nothing else uses these descriptors: the harness's output there is not read.
        unsafe { libc::close(standard) };
    }
    let settings = Some(common::settings(&[(Key::Transport, &transport)]));
    let config = Config { name: "test".into(), settings };
    let comm = Communicator::init(&UniqueId::from_hex(&id).unwrap(), 1, 2, config).unwrap();
    comm.all_reduce(&[1], &mut [0], ReduceOp::Sum).unwrap();
    comm.send(&[1], Rank(0)).unwrap();
    let open = (0..3).filter_map(|standard| std::fs::read_link(format!("/proc/self/fd/{standard}")).ok());
    let open = format!("{:?}", open.collect::<Vec<_>>());
    let open = format!("{open:200.200}");
    comm.send(open.as_bytes(), Rank(0)).unwrap();
    comm.finish().unwrap();
}

#[test]
fn the_numbers_of_closed_standard_streams_are_left_alone() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport)]);
        let (id, root) = root_task::create(&settings).unwrap();
        let mut peer = again("a_rank_without_standard_streams", &id, transport).spawn().unwrap();
        let config = Config { name: "test".into(), settings: Some(settings) };
        let comm = Communicator::init(&id, 0, 2, config).unwrap();
        comm.all_reduce(&[1], &mut [0], ReduceOp::Sum).unwrap();
        comm.recv(&mut [0], Rank(1)).unwrap();
        let mut open = [0_u8; 200];
        comm.recv(&mut open, Rank(1)).unwrap();
        assert_eq!(String::from_utf8_lossy(&open).trim(), "[]", "{transport}");
        comm.finish().unwrap();
        assert!(peer.wait().unwrap().success());
        drop(root);
    }
}
