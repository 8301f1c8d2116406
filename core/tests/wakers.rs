//! Wakers are the callers' code: they may panic, and they may call the communicator.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ccl::comm::{Communicator, Pending};
use ccl::config::{Key, environment};
use ccl::{Rank, ReduceOp};

/// The most time for an expected event on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A waker that reports that it ran, then does something.
struct Then(Mutex<Sender<()>>, Box<dyn Fn() + Send + Sync>);

impl Wake for Then {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
        (self.1)();
    }
}

/// Polls the call once with a waker that reports on `says` and then does `then`; the call has not
/// ended yet.
fn wake_by(pending: &mut Pending<i32>, says: &Sender<()>, then: impl Fn() + Send + Sync + 'static) {
    let waker = Waker::from(Arc::new(Then(Mutex::new(says.clone()), Box::new(then))));
    let polled = Pin::new(pending).poll(&mut Context::from_waker(&waker));
    assert!(matches!(polled, Poll::Pending), "{polled:?}");
}

fn receive(comm: &Communicator) -> Pending<i32> {
    comm.recv_async(vec![0], Rank(1)).unwrap()
}

/// Rank 0 runs `body` with a call under way that ends when `body` asks for it; both ranks go on
/// afterwards.
fn while_one_is_under_way(log: &str, body: impl Fn(&Arc<Communicator>, &dyn Fn()) + Send + Sync) {
    for transport in ["shm", "socket"] {
        let settings =
            common::settings(&[(Key::Transport, transport), (Key::Timeout, "60"), (Key::Log, log)]);
        let (go, may_go) = channel();
        let (go, may_go) = (Mutex::new(go), Mutex::new(may_go));
        common::with_ranks(2, &settings, |comm| {
            let comm = Arc::new(comm);
            comm.barrier().unwrap();
            if comm.rank() == Rank(0) {
                body(&comm, &|| go.lock().unwrap().send(()).unwrap());
                // Ends the loop of the other rank.
                comm.send(&[0], Rank(1)).unwrap();
            } else {
                let stop = comm.recv_async(vec![1], Rank(0)).unwrap();
                while !stop.is_done() {
                    if may_go.lock().unwrap().recv_timeout(Duration::from_millis(1)).is_ok() {
                        comm.send(&[7], Rank(0)).unwrap();
                    }
                }
            }
            let sum = comm.all_reduce_async(vec![1], ReduceOp::Sum).unwrap().wait().unwrap();
            assert_eq!(sum.into_vec(), [2]);
            Arc::into_inner(comm).unwrap().finish().unwrap();
        });
    }
}

#[test]
fn calls_go_on_after_a_waker_that_panicked() {
    while_one_is_under_way("NONE", |comm, send| {
        let (says, said) = channel();
        // No caller waits: only the progress thread drives, also the second time.
        for round in 0..3 {
            let mut pending = receive(comm);
            wake_by(&mut pending, &says, move || {
                assert_eq!(round, 2, "the waker of this test panics");
            });
            send();
            said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("nobody drives call {round}"));
            assert_eq!(pending.wait().unwrap().into_vec(), [7]);
        }
        // And a waker that a caller of the communicator runs.
        let mut pending = receive(comm);
        wake_by(&mut pending, &says, || panic!("the waker of this test panics"));
        let second = receive(comm);
        send();
        send();
        assert_eq!(second.wait().unwrap().into_vec(), [7]);
        said.recv_timeout(PATIENCE).unwrap();
        assert_eq!(pending.wait().unwrap().into_vec(), [7]);
    });
}

#[test]
fn a_waker_may_call_the_communicator() {
    while_one_is_under_way("NONE", |comm, send| {
        let (says, said) = channel();
        let (called, has_called) = channel();
        // Driven by the progress thread, then by a caller that waits for another call.
        for waits in [false, true] {
            let mut pending = receive(comm);
            let (weak, called) = (Arc::downgrade(comm), Mutex::new(called.clone()));
            wake_by(&mut pending, &says, move || {
                if let Some(comm) = weak.upgrade() {
                    comm.tag("from a waker");
                    let _ = comm.events_recorded();
                    drop(comm.recv_async(vec![0], Rank(1)).unwrap());
                    drop(comm);
                    called.lock().unwrap().send(()).unwrap();
                }
            });
            let second = waits.then(|| receive(comm));
            send();
            send();
            if let Some(second) = second {
                assert_eq!(second.wait().unwrap().into_vec(), [7]);
                send();
            }
            said.recv_timeout(PATIENCE).unwrap();
            has_called.recv_timeout(PATIENCE).expect("the waker does not come back from its call");
            assert_eq!(pending.wait().unwrap().into_vec(), [7]);
        }
    });
}

/// The test below runs this in a separate process, and reads its standard error. Without its
/// variable it does nothing.
#[test]
fn wakers_that_panic() {
    if environment("WAKERS_THAT_PANIC").is_none() {
        return;
    }
    while_one_is_under_way("WARN", |comm, send| {
        let (says, said) = channel();
        for _ in 0..3 {
            let mut pending = receive(comm);
            wake_by(&mut pending, &says, || panic!("the waker of this test panics"));
            send();
            said.recv_timeout(PATIENCE).unwrap();
            pending.wait().unwrap();
        }
    });
}

#[test]
fn that_wakers_panic_is_said_once_a_communicator() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "wakers_that_panic", "--nocapture"])
        .env("WAKERS_THAT_PANIC", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines =
        said.lines().filter(|line| line.starts_with("ccl: comm test: rank 0: the waker of a call panicked"));
    assert_eq!(lines.count(), 2, "two communicators, one after the other: {said}");
}
