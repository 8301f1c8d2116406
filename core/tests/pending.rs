//! Calls that own their buffers: waited for, awaited, dropped, leaked, aborted, whose peer died,
//! several at once; over shared memory and sockets.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ccl::comm::{Communicator, Config};
use ccl::config::{Key, environment};
use ccl::diagnose::{Given, merge};
use ccl::recorder::Reader;
use ccl::snapshot::Source;
use ccl::{ErrorKind, Rank, ReduceOp, Reduction, clock};

/// More elements than a link or the kernel holds.
const LARGE: usize = 4 << 20;

/// Runs `body` on two ranks over each transport.
fn each<R: Send>(timeout: &str, body: impl Fn(&Communicator) -> R + Send + Sync) -> Vec<R> {
    let mut all = Vec::new();
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Timeout, timeout)]);
        all.extend(common::with_ranks(2, &settings, |comm| {
            let result = body(&comm);
            // The error that ended it was already checked.
            let _ = comm.finish();
            result
        }));
    }
    all
}

/// The smallest executor: one future, one thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn other(comm: &Communicator) -> Rank {
    Rank(1 - comm.rank().0)
}

#[test]
fn what_is_waited_for_or_awaited_comes_back_with_its_result() {
    each("20", |comm| {
        let me = comm.rank().0 as i64;
        let sum = comm.all_reduce_async(vec![me + 1; 1000], ReduceOp::Sum).unwrap().wait().unwrap();
        assert_eq!(sum.into_vec(), vec![3; 1000]);
        let sum = block_on(comm.all_reduce_async(vec![me + 2; LARGE], ReduceOp::Sum).unwrap()).unwrap();
        assert!(sum.iter().all(|n| *n == 5));
        let told = block_on(comm.broadcast_async(vec![me; 10], Rank(1)).unwrap()).unwrap();
        assert_eq!(told.into_vec(), vec![1; 10]);
    });
}

#[test]
fn calls_with_blocks_and_factors_own_what_they_read() {
    each("20", |comm| {
        let (me, own) = (comm.rank().index(), u64::from(comm.rank().0));
        // All are begun before any is waited for: each keeps its own counts and factor.
        let to_all = comm.all_to_all_async(vec![own; 6]).unwrap();
        let uneven = comm.all_to_all_uneven_async(vec![own; 5], &[2 + me, 3 - me]).unwrap();
        let gathered = comm.all_gather_uneven_async(vec![own; 7], &[3, 4]).unwrap();
        let blocks = vec![10.0_f32; 7];
        let scattered = comm.reduce_scatter_uneven_async(blocks, &[3, 4], ReduceOp::Avg).unwrap();
        let scaled = comm.all_reduce_async(vec![2_i64; 9], Reduction::pre_mul_sum(me as i64 + 1)).unwrap();
        let root = Rank(1);
        let to_root = comm.gather_async(vec![own; 3 * (me + 1)], root).unwrap();
        let from_root = comm.scatter_async(vec![own; 3 * (me + 1)], root).unwrap();
        assert_eq!(to_all.wait().unwrap().into_vec(), [0, 0, 0, 1, 1, 1]);
        let uneven = uneven.wait().unwrap().into_vec();
        assert_eq!(uneven, if me == 0 { [0, 0, 1, 1, 1] } else { [0, 0, 0, 1, 1] });
        assert_eq!(gathered.wait().unwrap().into_vec(), [0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(scattered.wait().unwrap().into_vec(), [10.0; 7]);
        assert_eq!(scaled.wait().unwrap().into_vec(), [6; 9]);
        let to_root = to_root.wait().unwrap().into_vec();
        assert_eq!(to_root, if me == 1 { vec![0, 0, 0, 1, 1, 1] } else { vec![0; 3] });
        assert_eq!(from_root.wait().unwrap().into_vec(), vec![1; 3 * (me + 1)]);
        let error = comm.all_to_all_async(vec![0_u8; 3]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        let error = comm.all_gather_uneven_async(vec![0_u8; 3], &[1, 1, 1]).unwrap_err();
        assert!(error.to_string().contains("3 counts for 2 ranks"), "{error}");
    });
}

#[test]
fn several_are_under_way_at_once_and_end_in_any_order() {
    each("20", |comm| {
        let me = comm.rank().0 as i32;
        let received = comm.recv_async(vec![0_i32; LARGE], other(comm)).unwrap();
        let sums: Vec<_> =
            (0..20).map(|n| comm.all_reduce_async(vec![me + n; 500], ReduceOp::Sum).unwrap()).collect();
        let sent = comm.send_async(vec![me; LARGE], other(comm)).unwrap();
        // A blocking call beside them.
        comm.barrier().unwrap();
        assert!(sums.iter().all(ccl::comm::Pending::is_done), "collectives end in order");
        for (n, sum) in (0..20).zip(sums).rev() {
            assert_eq!(sum.wait().unwrap().into_vec(), vec![1 + 2 * n; 500]);
        }
        assert!(block_on(received).unwrap().iter().all(|n| *n == 1 - me));
        assert!(sent.wait().unwrap().iter().all(|n| *n == me));
    });
}

/// A rank that begins a receive and goes on computing is not blocked, and is not shown as blocked;
/// a rank that waits for it is.
#[test]
fn who_has_begun_a_call_waits_once_it_waits_for_it() {
    const LONG: Duration = Duration::from_millis(300);
    let blocked_on = |comm: &Communicator| {
        let process = Reader::of_process().unwrap().snapshot().unwrap();
        let given = Given { process, source: Source::Mapping, letter: None, ended: false };
        let seen = merge(&[given], &comm.job().into(), &[]);
        seen.said().map(|one| (one.op.clone(), one.by.clone(), one.missing.clone())).collect::<Vec<_>>()
    };
    let recv = [("Recv".to_string(), vec![Rank(0)], vec![Rank(1)])];
    each("20", |comm| {
        if comm.rank() == Rank(0) {
            let posted = comm.recv_async(vec![0_u8; 8], Rank(1)).unwrap();
            comm.barrier().unwrap();
            clock::sleep(LONG);
            assert_eq!(blocked_on(comm), []);
            assert_eq!(posted.wait().unwrap().into_vec(), [7; 8]);
        } else {
            comm.barrier().unwrap();
            clock::sleep(LONG);
            let until = clock::now().after(Duration::from_secs(10));
            while blocked_on(comm) != recv && clock::now() < until {
                clock::sleep(Duration::from_millis(10));
            }
            assert_eq!(blocked_on(comm), recv);
            comm.send(&[7_u8; 8], Rank(0)).unwrap();
        }
    });
}

#[test]
fn what_is_dropped_or_leaked_runs_on() {
    each("20", |comm| {
        drop(comm.send_async(vec![7_u8; LARGE], other(comm)).unwrap());
        std::mem::forget(comm.all_reduce_async(vec![1.0_f64; LARGE], ReduceOp::Max).unwrap());
        let mut theirs = vec![0_u8; LARGE];
        comm.recv(&mut theirs, other(comm)).unwrap();
        assert!(theirs.iter().all(|n| *n == 7));
        comm.barrier().unwrap();
    });
}

#[test]
fn an_abort_ends_what_is_pending_on_all_ranks() {
    let both = std::sync::Barrier::new(2);
    let kinds = each("20", |comm| {
        let pending = comm.recv_async(vec![0_u8; 10], other(comm)).unwrap();
        both.wait();
        if comm.rank() == Rank(1) {
            comm.abort("told to");
        }
        let blocked_on = block_on(pending).unwrap_err();
        let refused = comm.all_reduce_async(vec![0_u8; 10], ReduceOp::Sum).unwrap_err();
        (blocked_on.kind, refused.kind)
    });
    assert_eq!(kinds, [(ErrorKind::Aborted, ErrorKind::Aborted); 4]);
}

#[test]
fn what_moves_slowly_is_not_late() {
    each("2", |comm| {
        let pending: Vec<_> = (0..6)
            .map(|_| {
                if comm.rank() == Rank(1) {
                    clock::sleep(Duration::from_millis(500));
                }
                comm.all_reduce_async(vec![1; 10], ReduceOp::Sum).unwrap()
            })
            .collect();
        // On rank 0 all were called at once: the last is older than the deadline when its turn
        // comes.
        for one in pending {
            block_on(one).unwrap();
        }
    });
}

#[test]
fn what_does_not_move_is_late_though_nobody_waits() {
    let kinds = each("1", |comm| {
        comm.barrier().unwrap();
        // A rank that calls after the other one has failed gets the error at once.
        let pending = comm.recv_async(vec![0_u8; 10], other(comm));
        pending.and_then(block_on).unwrap_err().kind
    });
    assert_eq!(kinds, [ErrorKind::Timeout; 4]);
}

/// The other rank of `a_death_ends_what_is_pending`: a separate process, which is killed. Without
/// its variables it does nothing.
#[test]
fn a_peer_that_dies() {
    let (Some(id), Some(transport)) = (environment("PENDING_ID"), environment("PENDING_TRANSPORT")) else {
        return;
    };
    let id = ccl::bootstrap::id::UniqueId::from_hex(&id).unwrap();
    let settings = common::settings(&[(Key::Transport, &transport)]);
    let config = Config { name: "test".into(), settings: Some(settings) };
    let comm = Communicator::init(&id, 1, 2, config).unwrap();
    comm.barrier().unwrap();
    loop {
        clock::sleep(Duration::from_secs(3600));
    }
}

#[test]
fn a_death_ends_what_is_pending() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Timeout, "60")]);
        let (id, root) = ccl::bootstrap::root_task::create(&settings).unwrap();
        let mut peer = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_peer_that_dies"])
            .env("PENDING_ID", id.to_hex())
            .env("PENDING_TRANSPORT", transport)
            .env(common::RUNTIME, common::runtime())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let config = Config { name: "test".into(), settings: Some(settings) };
        let comm = Communicator::init(&id, 0, 2, config).unwrap();
        comm.barrier().unwrap();
        let received = comm.recv_async(vec![0_u8; 10], Rank(1)).unwrap();
        let sum = comm.all_reduce_async(vec![0_u8; 10], ReduceOp::Sum).unwrap();
        peer.kill().unwrap();
        peer.wait().unwrap();
        for error in [block_on(received).unwrap_err(), sum.wait().unwrap_err()] {
            assert_eq!(error.kind, ErrorKind::Peer, "{error}");
            assert!(error.to_string().contains("rank 1"), "{error}");
        }
        drop((comm, root));
    }
}

/// The process of the test below. Without its variable it does nothing.
#[test]
fn who_keeps_what_it_began() {
    if environment("PENDING_KEPT").is_none() {
        return;
    }
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport)]);
        let kept = common::with_ranks(2, &settings, |comm| {
            let kept = comm.all_reduce_async(vec![1_i32; 10], ReduceOp::Sum).unwrap();
            comm.finish().unwrap();
            kept
        });
        // Resources that are not freed in the call itself are freed by threads that end by
        // themselves.
        let deadline = clock::now().after(Duration::from_secs(20));
        while !what_is_there().is_empty() {
            assert!(clock::now() < deadline, "{transport}: {:?}", what_is_there());
            clock::sleep(Duration::from_millis(5));
        }
        for one in kept {
            assert!(one.is_done());
            assert_eq!(one.wait().unwrap().into_vec(), [2; 10]);
        }
    }
}

/// The library's resources in this process: files, threads, memory, sockets.
fn what_is_there() -> Vec<String> {
    let list = |path: &std::path::Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let files = list(common::runtime()).flat_map(|folder| list(&folder.path()).collect::<Vec<_>>());
    let files = files.map(|file| file.path().display().to_string());
    let threads = list("/proc/self/task".as_ref()).map(|task| task.path().join("comm"));
    let threads = threads.filter_map(|comm| std::fs::read_to_string(comm).ok());
    let open = list("/proc/self/fd".as_ref()).filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let open = open.map(|link| link.display().to_string());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let maps = maps.lines().filter(|line| line.contains("memfd:ccl")).map(String::from);
    files
        .chain(threads.filter(|name| name.starts_with("ccl-")))
        .chain(open.filter(|name| name.contains("socket:") || name.contains("memfd:")))
        .chain(maps)
        .collect()
}

#[test]
fn what_is_kept_after_finish_keeps_nothing_of_the_communicator() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let process = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "who_keeps_what_it_began"])
        .env("PENDING_KEPT", "1")
        .env(common::RUNTIME, folder.path())
        .output()
        .unwrap();
    assert!(process.status.success(), "{}", String::from_utf8_lossy(&process.stdout));
}
