//! Processes that find each other. A peer is this very test binary, run again with [`peer_process`] as its only test.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::*;
use crate::bootstrap::auth::Key;
use crate::clock::{self, Ns};
use crate::config::environment;
use crate::error::{Error, ErrorKind};
use crate::transport::shm::connect::{Listener, LocalPeer, PeerMemory, Terms};
use crate::types::{ChannelId, JobId, TransportKind};

const JOB: &str = "CCL_TEST_JOB";
const RANK: &str = "CCL_TEST_RANK";
const KEY: &str = "CCL_TEST_KEY";
const FOLDER: &str = "CCL_TEST_FOLDER";

fn soon() -> Ns {
    clock::now().after(Duration::from_secs(20))
}

fn terms(job: JobId, rank: u32, key: u8) -> Terms {
    let memory = RankMemory::shared(id(rank), Layout::new(3, 1).unwrap(), true).unwrap();
    Terms { job, key: Key([key; 32]), memory }
}

fn lanes(own: &Arc<RankMemory>, peer: &PeerMemory) -> (Sender, Receiver) {
    let to = Sender::pair(own, ChannelId(0), &peer.memory);
    let from = Receiver::pair(own, ChannelId(0), &peer.memory);
    assert_eq!((to.transport(), from.transport()), (TransportKind::Shm, TransportKind::Shm));
    (to, from)
}

fn take(from: &mut Receiver) -> (u64, Vec<u8>) {
    let deadline = soon();
    loop {
        if let Some(taken) = try_take(from) {
            return taken;
        }
        assert!(clock::now() < deadline, "no message");
        std::thread::yield_now();
    }
}

/// Not a test of its own: what a peer process does. Says "@ path" once it listens, then echoes a message of rank 0 and waits
/// for its input to end.
#[test]
fn peer_process() {
    let Some(rank) = environment(RANK) else { return };
    let job = JobId(environment(JOB).unwrap().parse().unwrap());
    let terms = terms(job, rank.parse().unwrap(), environment(KEY).unwrap().parse().unwrap());
    let listener =
        Listener::open(terms.clone(), Some(Path::new(&environment(FOLDER).unwrap()).join("door.link")))
            .unwrap();
    println!("\n@ {}", listener.path().unwrap().display());
    let brief = clock::now().after(Duration::from_secs(2));
    let deadline = if terms.key == Key([1; 32]) { soon() } else { brief };
    let met = listener.connect(&[LocalPeer { rank: Rank(0), path: None }], deadline, &mut || Ok(()));
    drop(listener);
    match met.map(|mut met| met.remove(0)) {
        Err(e) => println!("\n@ failed: {e}"),
        Ok(peer) => {
            let (mut to, mut from) = lanes(&terms.memory, &peer);
            let (n, bytes) = take(&mut from);
            assert!(try_send(&mut to, n + 1, bytes.len()));
            // The lock of a killed rank must fall, and its connection end, though a worker it forked lives on for a second.
            let worker = crate::sys::process::fork(|| {
                clock::sleep(Duration::from_secs(1));
                0
            });
            println!("\n@ echoed");
            while std::io::stdin().read_line(&mut String::new()).unwrap() > 0 {}
            assert_eq!(crate::sys::process::wait(worker), Some(0));
        }
    }
}

/// `program` in a network namespace of its own; in a user namespace too, so that anybody may who may at all.
fn in_namespace(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command.arg("-rn").arg("--").arg(program);
    command
}

struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(job: JobId, rank: u32, key: u8, folder: &Path, namespace: bool) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = if namespace { in_namespace(&program) } else { Command::new(&program) };
        command.args(["--exact", "transport::shm::tests::connect::peer_process", "--nocapture"]);
        command.env(JOB, job.0.to_string()).env(RANK, rank.to_string()).env(KEY, key.to_string());
        command.env(FOLDER, folder);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }
    /// What it says next.
    fn says(&mut self) -> String {
        for line in (&mut self.output).lines() {
            if let Some(said) = line.unwrap().strip_prefix("@ ") {
                return said.to_string();
            }
        }
        panic!("a peer process ended early: {:?}", self.child.wait());
    }
    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn meet(job: JobId, folder: &Path, namespace: bool, end: fn(Peer, &PeerMemory)) {
    let mut other = Peer::start(job, 2, 1, folder, namespace);
    let path = other.says();
    let terms = terms(job, 0, 1);
    let listener = Listener::open(terms.clone(), None).unwrap();
    assert_eq!(listener.path(), None);
    let peers = [LocalPeer { rank: Rank(2), path: Some(path.into()) }];
    let met = listener.connect(&peers, soon(), &mut || Ok(())).unwrap().remove(0);
    drop(listener);
    let (mut to, mut from) = lanes(&terms.memory, &met);
    assert!(try_send(&mut to, 7, 1000));
    assert_eq!(take(&mut from), (8, bytes_of(8, 1000)));
    assert_eq!(other.says(), "echoed");
    assert!(!met.is_dead());
    end(other, &met);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "a socket file was left behind");
}

/// Both witnesses tell of its death, one after the other as the kernel closes what it had; each is enough.
fn dead_soon(peer: &PeerMemory) {
    let begin = clock::now();
    while !(peer.memory.is_dead() && crate::sys::unix::at_end(&peer.control)) {
        assert!(clock::now().since(begin) < Duration::from_millis(900), "its death is not seen");
        clock::sleep(Duration::from_millis(1));
    }
    assert!(peer.is_dead());
}

#[test]
fn two_processes_meet_and_one_leaves() {
    let folder = tempfile::tempdir().unwrap();
    meet(JobId(0xc1), folder.path(), false, |other, peer| {
        other.end();
        assert!(peer.is_dead());
    });
}

#[test]
fn a_killed_process_is_dead_although_its_worker_lives() {
    let folder = tempfile::tempdir().unwrap();
    meet(JobId(0xc2), folder.path(), false, |mut other, peer| {
        other.child.kill().unwrap();
        dead_soon(peer);
    });
}

#[test]
fn processes_of_two_network_namespaces_meet_through_the_folder() {
    if !in_namespace("true").status().is_ok_and(|status| status.success()) {
        return println!(
            "skipped: processes_of_two_network_namespaces_meet_through_the_folder: needs network namespaces"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    meet(JobId(0xc3), folder.path(), true, |other, _| other.end());
}

#[test]
fn whoever_does_not_know_the_secret_gets_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let job = JobId(0xc4);
    let mut other = Peer::start(job, 2, 99, folder.path(), false);
    let path = other.says();
    let listener = Listener::open(terms(job, 0, 1), None).unwrap();
    let peers = [LocalPeer { rank: Rank(2), path: Some(path.into()) }];
    let error = listener.connect(&peers, soon(), &mut || Ok(())).unwrap_err().to_string();
    assert!(error.contains("peer rank 2") && error.contains("secret"), "{error}");
    let said = other.says();
    assert!(said.contains("peer rank 0") && said.contains("turned away"), "{said}");
    other.end();
}

#[test]
fn strangers_and_absent_peers_cost_a_deadline_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let job = JobId(0xc5);
    let listener = Listener::open(terms(job, 1, 1), Some(folder.path().join("door.link"))).unwrap();
    let path = listener.path().unwrap().to_path_buf();
    let mut strangers: Vec<_> =
        (0..3).map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap()).collect();
    strangers[0].write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    strangers[1].write_all(&[0; 500]).unwrap();
    // A peer that died: its file is there, nobody listens.
    let stale = folder.path().join("stale.link");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let begin = clock::now();
    let error = |rank, path: Option<&Path>, still: &mut dyn FnMut() -> crate::Result<()>| {
        let peer = LocalPeer { rank: Rank(rank), path: path.map(PathBuf::from) };
        let deadline = clock::now().after(Duration::from_millis(300));
        listener.connect(&[peer], deadline, still).unwrap_err().to_string()
    };
    let dead = error(2, Some(&stale), &mut || Ok(()));
    assert!(dead.contains("peer rank 2: no way to its memory"), "{dead}");
    let late = error(0, None, &mut || Ok(()));
    assert!(late.contains("peer rank 0") && late.contains("in time"), "{late}");
    let told = error(0, None, &mut || Err(Error::new(ErrorKind::Peer, "rank 0 is gone")));
    assert!(told.contains("rank 0 is gone"), "{told}");
    assert!(clock::now().since(begin) < Duration::from_secs(3));
    drop(listener);
    assert!(!path.exists() && !stale.exists());
}
