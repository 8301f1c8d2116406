//! One communicator called from several threads: call after call, each from beginning to end.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use ccl::config::Key;
use ccl::{Rank, ReduceOp};

const THREADS: i32 = 4;
const CALLS: usize = 25;
/// Elements of several messages, and more than a link holds.
const COUNT: usize = 300_000;

#[test]
fn calls_of_several_threads_run_one_after_another() {
    for transport in ["", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport)]);
        common::with_ranks(2, &settings, |comm| {
            if comm.rank() == Rank(0) {
                std::thread::scope(|scope| {
                    for thread in 0..THREADS {
                        let comm = &comm;
                        scope.spawn(move || {
                            (0..CALLS).for_each(|_| comm.send(&vec![thread; COUNT], Rank(1)).unwrap());
                        });
                    }
                });
            } else {
                let mut calls = vec![0; THREADS as usize];
                let mut buffer = vec![-1; COUNT];
                for _ in 0..calls.len() * CALLS {
                    comm.recv(&mut buffer, Rank(0)).unwrap();
                    assert!(buffer.iter().all(|n| *n == buffer[0]), "two calls are mixed");
                    calls[buffer[0] as usize] += 1;
                }
                assert_eq!(calls, [CALLS; THREADS as usize]);
            }
            comm.finish().unwrap();
        });
    }
}

#[test]
fn what_must_progress_together_goes_into_a_group() {
    common::with_ranks(2, &common::settings(&[]), |comm| {
        let other = Rank(1 - comm.rank().0);
        let (mine, mut theirs) = (vec![comm.rank().0 as i32; COUNT], vec![-1; COUNT]);
        // Neither rank would finish if its send had to wait for the other's end.
        let mut group = comm.group();
        group.send(&mine, other).recv(&mut theirs, other);
        group.run().unwrap();
        assert!(theirs.iter().all(|n| *n == other.0 as i32));
        comm.all_reduce_in_place(&mut theirs, ReduceOp::Sum).unwrap();
        comm.finish().unwrap();
    });
}
