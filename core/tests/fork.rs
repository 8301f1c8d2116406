//! A forked child has copies of its parent's handles. Every use of them fails at once with a clear
//! error or does nothing, and the parent's job goes on; over shared memory and sockets.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ccl::bootstrap::root_task;
use ccl::comm::{Communicator, Config, Pending};
use ccl::config::{Key, Settings, environment};
use ccl::{Error, ErrorKind, Rank, ReduceOp, clock};

/// The most seconds that a child may take for work that must end at once; then it is killed.
const LIMIT: u32 = 20;
const CALLS: usize = 50;

/// One test at a time: a process has one recorder, in the folder of the test that made it.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The copies of handles that a child has.
struct Copies {
    comm: Communicator,
    pending: Pending<i64>,
    settings: Settings,
}

/// The work of a child; true if it went as it should.
type Deed = fn(Copies) -> bool;

const DEEDS: &[(&str, Deed)] = &[
    ("call", |child| is_refused(child.comm.barrier())),
    ("call an empty group", |child| is_refused(child.comm.group().run())),
    ("call a group", |child| {
        let mut group = child.comm.group();
        group.send(&[1], Rank(1));
        is_refused(group.run())
    }),
    ("begin a call", |child| is_refused(child.comm.all_reduce_async(vec![1], ReduceOp::Sum).map(drop))),
    ("wait", |child| is_refused(child.pending.wait().map(drop))),
    ("ask and await", |mut child| {
        let mut context = Context::from_waker(Waker::noop());
        let polled = Pin::new(&mut child.pending).poll(&mut context);
        let Poll::Ready(end) = polled else { return false };
        child.pending.is_done() && is_refused(end.map(drop))
    }),
    ("drop the call", |child| {
        drop(child.pending);
        true
    }),
    ("drop the communicator", |child| {
        drop(child.comm);
        true
    }),
    ("drop both", |child| {
        drop((child.comm, child.pending));
        true
    }),
    ("abort", |child| {
        child.comm.abort("a child says so");
        true
    }),
    ("tag", |child| {
        child.comm.tag("the child's");
        true
    }),
    ("look", |child| {
        let _ = (child.comm.events_recorded(), child.comm.recorder_path(), format!("{:?}", child.comm));
        true
    }),
    ("finish", |child| is_refused(child.comm.finish())),
    ("make a root", |child| has_kind(root_task::create(&child.settings).map(drop), ErrorKind::Unavailable)),
    ("read the recorder", |_| ccl::recorder::Recorder::of_process().is_none()),
    ("look for descriptors", |_| descriptors().is_empty()),
    // SAFETY: it ends this child.
    ("exit", |_| unsafe { libc::exit(0) }),
];

fn has_kind(result: ccl::Result<()>, kind: ErrorKind) -> bool {
    result
        .is_err_and(|error| error.kind == kind && error.to_string().contains("forked") && has_advice(&error))
}

fn has_advice(error: &Error) -> bool {
    error.hint.contains("spawn")
}

fn is_refused(result: ccl::Result<()>) -> bool {
    has_kind(result, ErrorKind::Usage)
}

/// The descriptors of this process that only ccl opens in these tests.
fn descriptors() -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = open.filter_map(|one| Some((one.file_name(), std::fs::read_link(one.path()).ok()?)));
    let names =
        names.filter(|(number, _)| number.to_str().is_some_and(|n| n.parse::<u32>().is_ok_and(|n| n > 2)));
    let names = names.map(|(_, link)| link.display().to_string());
    let ours = ["socket:", "/memfd:", "anon_inode:[eventfd]", ".rec"];
    names.filter(|name| ours.iter().any(|part| name.contains(part))).collect()
}

/// Forks a child that does `work` and exits with its status; it is killed when that takes too long.
fn fork(work: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child runs `work` and exits without returning into the test; its allocator works,
    // and `work` takes no lock that another thread could hold, which is what is tested.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork refused");
        if pid == 0 {
            libc::alarm(LIMIT);
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            libc::_exit(i32::from(!good.unwrap_or(false)));
        }
        pid
    }
}

/// The exit status of a child; `None` if a signal ended it.
fn status(pid: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

/// Rank 0 forks children while one or two of its calls are under way; then its job goes on.
/// `in_a_call`: a thread is inside a call, with all its locks, during the fork.
fn children_do_all(transport: &str, in_a_call: bool) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let settings = [(Key::Transport, transport), (Key::Timeout, "60"), (Key::RuntimeDir, folder)];
    let settings = common::settings(&settings);
    let forked = Barrier::new(2);
    common::with_ranks(2, &settings, |comm| {
        let other = Rank(1 - comm.rank().0);
        comm.barrier().unwrap();
        comm.all_reduce(&[1], &mut [0], ReduceOp::Sum).unwrap();
        if comm.rank() == Rank(1) {
            forked.wait();
            comm.send(&[7_i64], other).unwrap();
            comm.barrier().unwrap();
        } else {
            let pending = comm.recv_async(vec![0_i64; 1], other).unwrap();
            let children = std::thread::scope(|scope| {
                if in_a_call {
                    scope.spawn(|| comm.barrier().unwrap());
                    // Until it has called, which is recorded at once.
                    while ccl::recorder::Recorder::of_process().is_none_or(|recorder| !recorder.is_evidence())
                    {
                    }
                    clock::sleep(Duration::from_millis(50));
                }
                let children: Vec<_> = DEEDS
                    .iter()
                    .map(|(name, deed)| {
                        (
                            name,
                            fork(|| {
                                // SAFETY: copies in the child of values that the parent keeps, and
                                // to which the child never returns.
                                let copies = unsafe {
                                    Copies {
                                        comm: std::ptr::read(&raw const comm),
                                        pending: std::ptr::read(&raw const pending),
                                        settings: settings.clone(),
                                    }
                                };
                                deed(copies)
                            }),
                        )
                    })
                    .collect();
                if !in_a_call {
                    // Time for the children to do harm.
                    clock::sleep(Duration::from_millis(100));
                }
                forked.wait();
                children
            });
            let received = pending.wait().unwrap();
            assert_eq!(received.into_vec(), [7]);
            if !in_a_call {
                comm.barrier().unwrap();
            }
            let ends = children.iter().map(|(name, pid)| (**name, status(*pid)));
            let bad: Vec<_> = ends.filter(|(_, status)| *status != Some(0)).collect();
            assert!(bad.is_empty(), "{transport}, a thread in a call: {in_a_call}: {bad:?}");
            let recorder = comm.recorder_path().unwrap();
            assert!(recorder.exists() && recorder.with_extension("sock").exists(), "a child removed a file");
        }
        for n in 0..CALLS as i64 {
            let sum = comm.all_reduce_async(vec![n], ReduceOp::Sum).unwrap().wait().unwrap();
            assert_eq!(sum.into_vec(), [2 * n]);
        }
        comm.finish().unwrap();
    });
}

#[test]
fn children_of_a_process_with_a_call_under_way_leave_its_job_alone() {
    let _alone = alone();
    ["shm", "socket"].iter().for_each(|transport| children_do_all(transport, false));
}

#[test]
fn children_of_a_process_with_a_thread_in_a_call_do_not_hang() {
    let _alone = alone();
    ["shm", "socket"].iter().for_each(|transport| children_do_all(transport, true));
}

/// The other rank of the test below: it forks a child that lives on, reports it, and waits to be
/// killed. Without its variables it does nothing.
#[test]
fn a_peer_that_dies_and_leaves_a_child() {
    let (Some(id), Some(transport)) = (environment("FORK_ID"), environment("FORK_TRANSPORT")) else {
        return;
    };
    let id = ccl::bootstrap::id::UniqueId::from_hex(&id).unwrap();
    let settings = common::settings(&[(Key::Transport, &*transport)]);
    let config = Config { name: "test".into(), settings: Some(settings) };
    let comm = Communicator::init(&id, 1, 2, config).unwrap();
    comm.barrier().unwrap();
    comm.recv(&mut [0_u8], Rank(0)).unwrap();
    comm.send(&[0_u8], Rank(0)).unwrap();
    let child = fork(|| {
        clock::sleep(Duration::from_secs(3600));
        true
    });
    comm.send(&[child], Rank(0)).unwrap();
    loop {
        clock::sleep(Duration::from_secs(3600));
    }
}

#[test]
fn a_killed_rank_is_dead_although_its_child_lives() {
    let _alone = alone();
    for transport in ["shm", "socket"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let settings = [(Key::Transport, transport), (Key::Timeout, "60"), (Key::RuntimeDir, folder)];
        let settings = common::settings(&settings);
        let (id, root) = root_task::create(&settings).unwrap();
        let mut peer = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_peer_that_dies_and_leaves_a_child"])
            .envs([("FORK_ID", &*id.to_hex()), ("FORK_TRANSPORT", transport), (common::RUNTIME, folder)])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let config = Config { name: "test".into(), settings: Some(settings) };
        let comm = Communicator::init(&id, 0, 2, config).unwrap();
        comm.barrier().unwrap();
        comm.send(&[0_u8], Rank(1)).unwrap();
        comm.recv(&mut [0_u8], Rank(1)).unwrap();
        let mut child = [0];
        comm.recv(&mut child, Rank(1)).unwrap();
        peer.kill().unwrap();
        peer.wait().unwrap();
        let error = comm.barrier().unwrap_err();
        // SAFETY: kill(2) takes no memory; the alarm ends the child otherwise.
        assert_eq!(unsafe { libc::kill(child[0], libc::SIGKILL) }, 0, "the child has ended before");
        assert_eq!(error.kind, ErrorKind::Peer, "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        drop((comm, root));
    }
}
