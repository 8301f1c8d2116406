//! Tests with several processes that connect to each other. A peer is this test binary itself, run
//! again with [`peer_process`] as its only test.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::*;
use crate::bootstrap::auth::Key;
use crate::clock::{self, Ns};
use crate::config::environment;
use crate::error::{Error, ErrorKind};
use crate::transport::shm::arena::Arena;
use crate::transport::shm::connect::{Listener, LocalPeer, Reached, Terms, draw_name};
use crate::transport::shm::peer::PeerProcess;
use crate::types::{ChannelId, JobId, TransportKind};

const JOB: &str = "CCL_TEST_JOB";
const RANK: &str = "CCL_TEST_RANK";
const KEY: &str = "CCL_TEST_KEY";
const FOLDER: &str = "CCL_TEST_FOLDER";

fn soon() -> Ns {
    clock::now().after(Duration::from_secs(20))
}

fn terms(job: JobId, rank: u32, key: u8) -> Terms {
    let arena = Arena::new().unwrap();
    Terms { job, key: Key([key; 32]), identity: id(rank), process: u64::from(rank), arena }
}

/// The lanes to and from a rank of another process. The memory of both is the first of its process.
fn lanes(terms: &Terms, rank: u32, peer: &Arc<PeerProcess>) -> (Sender, Receiver) {
    let layout = Layout::new(3, 1).unwrap();
    let own = RankMemory::shared(terms.identity, layout, &terms.arena).unwrap();
    let deadline = soon();
    let other = loop {
        match RankMemory::of_peer(id(rank), layout, peer, 0) {
            Ok(other) => break other,
            // It takes its memory only now.
            Err(e) => assert!(clock::now() < deadline, "{e}"),
        }
    };
    let to = Sender::pair(&own, ChannelId(0), &other);
    let from = Receiver::pair(&own, ChannelId(0), &other);
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

/// A folder that only this user can enter.
fn private_folder() -> tempfile::TempDir {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    tempfile::Builder::new().permissions(mode).tempdir().unwrap()
}

fn open(terms: &Terms, path: Option<PathBuf>) -> Listener {
    Listener::open(terms.clone(), path, draw_name().unwrap()).unwrap()
}

/// The reason why rank `rank` cannot be reached over `path` and `name`.
fn refusal(listener: &Listener, rank: u32, path: Option<&Path>, name: Option<&str>) -> String {
    let peer = LocalPeer { rank: Rank(rank), path: path.map(PathBuf::from), name: name.map(String::from) };
    match listener.reach(&peer, soon(), &mut || Ok(())).unwrap() {
        Reached::Unreachable(why) => why,
        Reached::Met(met) => panic!("{met:?}"),
    }
}

/// Not a test of its own, but the program of a peer process. It prints "@ path" once it listens,
/// echoes a message of rank 0, and then waits for its input to end.
#[test]
fn peer_process() {
    let Some(rank) = environment(RANK) else { return };
    let job = JobId(environment(JOB).unwrap().parse().unwrap());
    let terms = terms(job, rank.parse().unwrap(), environment(KEY).unwrap().parse().unwrap());
    let listener = open(&terms, Some(Path::new(&environment(FOLDER).unwrap()).join("door.link")));
    println!("\n@ {}", listener.path().unwrap().display());
    let brief = clock::now().after(Duration::from_secs(2));
    let deadline = if terms.key == Key([1; 32]) { soon() } else { brief };
    let met = listener.wait_for(Rank(0), deadline, &mut || Ok(()));
    drop(listener);
    match met {
        Err(e) => println!("\n@ failed: {e}"),
        Ok(peer) => {
            let (mut to, mut from) = lanes(&terms, 0, &peer);
            let (n, bytes) = take(&mut from);
            assert!(try_send(&mut to, n + 1, bytes.len()));
            // If the rank is killed, its lock must become free and its connection must end,
            // although a worker that it forked lives on for a second.
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

/// Runs `program` in its own network namespace. It also gets its own user namespace, so that the
/// test needs no more privileges than necessary.
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
    /// The next line that the peer prints after "@ ".
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

fn meet(job: JobId, folder: &Path, namespace: bool, end: fn(Peer, &PeerProcess)) {
    let mut other = Peer::start(job, 2, 1, folder, namespace);
    let path = other.says();
    let terms = terms(job, 0, 1);
    let listener = open(&terms, None);
    assert_eq!(listener.path(), None);
    let peer = LocalPeer { rank: Rank(2), path: Some(path.into()), name: None };
    let Reached::Met(met) = listener.reach(&peer, soon(), &mut || Ok(())).unwrap() else {
        panic!("not met");
    };
    drop(listener);
    let (mut to, mut from) = lanes(&terms, 2, &met);
    assert!(try_send(&mut to, 7, 1000));
    assert_eq!(take(&mut from), (8, bytes_of(8, 1000)));
    assert_eq!(other.says(), "echoed");
    met.serve(true, |_| ());
    assert!(!met.is_dead());
    end(other, &met);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "a socket file was left behind");
}

/// Waits until both the alive lock and the connection show the death. The kernel releases the two
/// one after the other; each alone is enough.
fn dead_soon(peer: &PeerProcess) {
    let begin = clock::now();
    while !(peer.is_unlocked() && peer.is_at_end()) {
        assert!(clock::now().since(begin) < Duration::from_millis(900), "its death is not seen");
        clock::sleep(Duration::from_millis(1));
    }
    peer.serve(true, |_| ());
    assert!(peer.is_dead());
}

#[test]
fn two_processes_meet_and_one_leaves() {
    let folder = private_folder();
    meet(JobId(0xc1), folder.path(), false, |other, peer| {
        other.end();
        peer.serve(true, |_| ());
        assert!(peer.is_dead());
    });
}

#[test]
fn a_killed_process_is_dead_although_its_worker_lives() {
    let folder = private_folder();
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
    let folder = private_folder();
    meet(JobId(0xc3), folder.path(), true, |other, _| other.end());
}

#[test]
fn whoever_does_not_know_the_secret_gets_no_memory() {
    let folder = private_folder();
    let job = JobId(0xc4);
    let mut other = Peer::start(job, 2, 99, folder.path(), false);
    let path = other.says();
    let listener = open(&terms(job, 0, 1), None);
    let why = refusal(&listener, 2, Some(Path::new(&path)), None);
    assert!(why.contains("rank 2") && why.contains("secret"), "{why}");
    let said = other.says();
    assert!(said.contains("peer rank 0") && said.contains("turned away"), "{said}");
    other.end();
}

#[test]
fn strangers_and_absent_peers_cost_a_deadline_and_leave_nothing() {
    let folder = private_folder();
    let job = JobId(0xc5);
    let listener = open(&terms(job, 1, 1), Some(folder.path().join("door.link")));
    let path = listener.path().unwrap().to_path_buf();
    let mut strangers: Vec<_> =
        (0..3).map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap()).collect();
    strangers[0].write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    strangers[1].write_all(&[0; 500]).unwrap();
    // A peer that died: its file exists, but no process listens.
    let stale = folder.path().join("stale.link");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let begin = clock::now();
    let dead = refusal(&listener, 2, Some(&stale), None);
    assert!(dead.contains("refused"), "{dead}");
    let wait = |still: &mut dyn FnMut() -> crate::Result<()>| {
        let deadline = clock::now().after(Duration::from_millis(300));
        listener.wait_for(Rank(0), deadline, still).unwrap_err().to_string()
    };
    let late = wait(&mut || Ok(()));
    assert!(late.contains("peer rank 0") && late.contains("in time"), "{late}");
    let told = wait(&mut || Err(Error::new(ErrorKind::Peer, "rank 0 is gone")));
    assert!(told.contains("rank 0 is gone"), "{told}");
    assert!(clock::now().since(begin) < Duration::from_secs(3));
    drop(listener);
    assert!(!path.exists());
}

/// A hostile peer announces the names at which it listens. Each named file must stay, and must not
/// be connected to.
#[test]
fn what_a_peer_names_is_never_removed_and_only_a_ranks_socket_is_connected_to() {
    let folder = private_folder();
    let listener = open(&terms(JobId(0xc6), 0, 1), None);
    let file = folder.path().join("precious.link");
    std::fs::write(&file, "precious").unwrap();
    let socket = folder.path().join("other.sock");
    let other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let link = folder.path().join("pointing.link");
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    let dead = folder.path().join("dead.link");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let public = folder.path().join("public");
    std::fs::create_dir(&public).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&public, mode).unwrap();
    let planted = public.join("planted.link");
    let plant = std::os::unix::net::UnixListener::bind(&planted).unwrap();
    for (path, why) in [
        (&file, "this is no socket"),
        (&socket, "this is no socket of a rank"),
        (&link, "this is no socket"),
        (&dead, "refused"),
        (&planted, "its folder is not of this user alone"),
        (&folder.path().join("absent.link"), "No such file"),
    ] {
        let said = refusal(&listener, 2, Some(path), None);
        assert!(said.contains(why) && said.contains(&path.display().to_string()), "{said}");
        assert!(!why.contains("socket") || path.symlink_metadata().is_ok(), "{} is gone", path.display());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    assert!(dead.symlink_metadata().is_ok() && link.symlink_metadata().is_ok());
    for quiet in [&other, &plant] {
        quiet.set_nonblocking(true).unwrap();
        assert_eq!(quiet.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
    let said = refusal(&listener, 2, None, Some("/tmp/.X11-unix/X0"));
    assert!(said.contains("no name of a rank"), "{said}");
    assert_eq!(refusal(&listener, 2, None, None), "it listens nowhere");
}

/// A process that holds a name with a full queue delays a rank for a moment only, not for the time
/// limit of init.
#[test]
fn a_full_queue_is_waited_for_a_moment_only() {
    let (own, squatted) = (draw_name().unwrap(), draw_name().unwrap());
    assert_ne!(own, squatted);
    let listener = Listener::open(terms(JobId(0xc7), 0, 1), None, own).unwrap();
    let _squatter = crate::sys::unix::listen(crate::sys::unix::Name::Abstract(&squatted)).unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = crate::sys::unix::connect(crate::sys::unix::Name::Abstract(&squatted)) {
        queue.push(stream);
    }
    let begin = clock::now();
    let mut asked = 0;
    let peer = LocalPeer { rank: Rank(2), path: None, name: Some(squatted) };
    let reached = listener.reach(&peer, soon(), &mut || {
        asked += 1;
        Ok(())
    });
    let Reached::Unreachable(why) = reached.unwrap() else { panic!("met") };
    assert!(why.contains("its queue stays full"), "{why}");
    assert!(clock::now().since(begin) < Duration::from_secs(10) && asked > 10, "{asked}");
}
