//! The process's single observer: it is notified of every call and phase on the thread where it
//! happens, once at the beginning and once at the end, however the call ends.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::ThreadId;

use ccl::comm::{Communicator, Config};
use ccl::config::Key;
use ccl::observer::{Call, CallObserver, set_observer};
use ccl::types::{CollKind, Phase};
use ccl::{ErrorKind, Rank, ReduceOp};

use common::{settings, with_ranks};

/// What every thread began (true) and ended, in order.
type Told = Arc<Mutex<Vec<(ThreadId, bool, Call)>>>;

struct Notes(Told);

impl CallObserver for Notes {
    fn begin(&self, call: &Call) {
        self.0.lock().unwrap().push((std::thread::current().id(), true, *call));
    }
    fn end(&self, call: &Call) {
        self.0.lock().unwrap().push((std::thread::current().id(), false, *call));
    }
}

/// The calls that this thread began since the last time; each has ended, the last begun first.
fn mine(told: &Told) -> Vec<Call> {
    let me = std::thread::current().id();
    let (mut open, mut begun) = (Vec::new(), Vec::new());
    let mut all = told.lock().unwrap();
    for (_, begins, call) in all.extract_if(.., |(thread, ..)| *thread == me) {
        if begins {
            open.push(call);
            begun.push(call);
        } else {
            assert_eq!(open.pop(), Some(call));
        }
    }
    assert_eq!(open, []);
    begun
}

/// Kind, sequence number, bytes and root or peer.
fn operations(calls: &[Call]) -> Vec<(CollKind, u64, u64, u32)> {
    let operation = |call: &Call| match call {
        Call::Operation { request, seq, .. } => (request.kind, *seq, request.bytes(), request.root.0),
        Call::Phase(phase) => panic!("{phase}"),
    };
    calls.iter().map(operation).collect()
}

const JOINING: [Phase; 3] = [Phase::CheckIn, Phase::Ring, Phase::Exchange];
const MEETING: [Phase; 2] = [Phase::Connect, Phase::Barrier];

fn phases(calls: &[Call]) -> Vec<Phase> {
    let phase = |call: &Call| match call {
        Call::Phase(phase) => *phase,
        Call::Operation { .. } => panic!("{call:?}"),
    };
    calls.iter().map(phase).collect()
}

/// Every way for a call to begin and end. One test, because the observer belongs to the process.
#[test]
fn what_begins_ends_on_its_thread() {
    let told = Told::default();
    set_observer(Box::new(Notes(Arc::clone(&told)))).unwrap();
    let again = set_observer(Box::new(Notes(Told::default()))).unwrap_err();
    assert_eq!(again.kind, ErrorKind::Usage);

    let observed = settings(&[(Key::Observe, "0")]);
    with_ranks(2, &observed, |comm| {
        assert_eq!(phases(&mine(&told)), [&JOINING[..], &MEETING].concat());
        calls_that_end_well(&comm, &told);
        calls_that_do_not(comm, &told);
    });

    // A single rank joins no other; with `from_env` it looks for others first.
    let config = Config { name: "alone".into(), settings: Some(observed.clone()) };
    let alone = Communicator::from_env_with(config).unwrap();
    assert_eq!(phases(&mine(&told)), [&[Phase::Rendezvous][..], &MEETING].concat());
    a_call_beside_a_waker_that_panics(&alone, &told);

    // An init that fails ends in its phase.
    let (id, _root) = ccl::bootstrap::root_task::create(&observed).unwrap();
    let hasty = settings(&[(Key::Observe, "0"), (Key::InitTimeout, "0.2")]);
    let config = Config { name: "hasty".into(), settings: Some(hasty) };
    assert_eq!(Communicator::init(&id, 1, 2, config).unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(phases(&mine(&told)), [Phase::CheckIn]);
    assert!(told.lock().unwrap().is_empty(), "nothing on a thread that did not call: {told:?}");
}

fn calls_that_end_well(comm: &Communicator, told: &Told) {
    let (me, peer) = (comm.rank(), Rank(1 - comm.rank().0));
    let mut sum = [1_i64; 4];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
    comm.broadcast(&mut sum, Rank(1)).unwrap();
    let seen = mine(told);
    assert_eq!(operations(&seen), [(CollKind::AllReduce, 1, 32, 0), (CollKind::Broadcast, 2, 32, 1)]);
    let of_comm = |call: &Call| matches!(call, Call::Operation { comm: id, rank, .. } if *id == comm.id() && *rank == me);
    assert!(seen.iter().all(of_comm), "{seen:?}");

    let (mine_to_send, mut theirs) = ([me.0; 2].map(u64::from).map(|n| n as i64), [0_i64; 2]);
    let mut group = comm.group();
    group.send(&mine_to_send, peer).recv(&mut theirs, peer);
    group.run().unwrap();
    let pair = [(CollKind::Send, 1, 16, peer.0), (CollKind::Recv, 1, 16, peer.0)];
    assert_eq!(operations(&mine(told)), pair);

    // The observer only sees how the call begins; waiting for it is not a call.
    let pending = comm.all_reduce_async(vec![1_i64; 8], ReduceOp::Max).unwrap();
    assert_eq!(operations(&mine(told)), [(CollKind::AllReduce, 3, 64, 0)]);
    pending.wait().unwrap();
    assert_eq!(mine(told), []);
}

fn calls_that_do_not(comm: Communicator, told: &Told) {
    // Refused before they are counted.
    comm.all_reduce(&[0_i64; 2], &mut [0; 3], ReduceOp::Sum).unwrap_err();
    comm.broadcast(&mut [0_i64; 2], Rank(2)).unwrap_err();
    comm.send(&[0_i64; 2], comm.rank()).unwrap_err();
    assert_eq!(mine(told), []);

    if comm.rank().0 == 0 {
        comm.barrier().unwrap();
        drop(comm);
        assert_eq!(operations(&mine(told)), [(CollKind::Barrier, 4, 0, 0)]);
        return;
    }
    comm.barrier().unwrap();
    // The other rank has left: a single call fails, a group fails, and calls fail once the
    // communicator has ended.
    comm.barrier().unwrap_err();
    // The progress thread may have found the end before the second call.
    let seen = operations(&mine(told));
    let both = [(CollKind::Barrier, 4, 0, 0), (CollKind::Barrier, 5, 0, 0)];
    assert!(seen == both || seen == both[..1], "{seen:?}");
    comm.barrier().unwrap_err();
    assert_eq!(mine(told), []);
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the test");
    }
}

/// A waker that another call may run, because that call drives the operation that the waker waits
/// for: its panic ends neither.
fn a_call_beside_a_waker_that_panics(comm: &Communicator, told: &Told) {
    let mut pending = pin!(comm.all_reduce_async(vec![1.0_f32; 1 << 16], ReduceOp::Sum).unwrap());
    let waker = Waker::from(Arc::new(Panics));
    let _ = pending.as_mut().poll(&mut Context::from_waker(&waker));
    comm.barrier().unwrap();
    let kinds: Vec<_> = operations(&mine(told)).into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, [CollKind::AllReduce, CollKind::Barrier]);
}
