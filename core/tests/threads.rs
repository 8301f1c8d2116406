//! One communicator called from several threads: each call is carried out as a whole, and none
//! delays another that could end.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use ccl::config::Key;
use ccl::types::CollKind;
use ccl::{Collective, Config, ErrorKind, Rank, ReduceOp, clock};

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
fn a_rank_sends_to_itself_in_a_group() {
    let settings = common::settings(&[(Key::Observe, "0")]);
    common::with_ranks(3, &settings, |comm| {
        let (me, n) = (comm.rank().0, comm.nranks());
        let sent: Vec<Vec<u32>> = (0..n).map(|to| vec![me * 10 + to; 100_000]).collect();
        let mut received = vec![vec![0; 100_000]; n as usize];
        let mut empty = [0_u8; 0];
        let mut group = comm.group();
        for (to, buffer) in (0..).map(Rank).zip(&sent) {
            group.send(buffer, to);
        }
        for (from, buffer) in (0..).map(Rank).zip(&mut received) {
            group.recv(buffer, from);
        }
        group.send::<u8>(&[], comm.rank()).recv(&mut empty, comm.rank());
        group.run().unwrap();
        for (from, received) in (0..).zip(&received) {
            assert!(received.iter().all(|it| *it == from * 10 + me), "from {from} to {me}");
        }
        // Refused before anything is sent.
        let refused = |group: ccl::Group<'_>, wanted: &str| {
            let error = group.run().unwrap_err();
            assert!(error.to_string().contains(wanted), "{error}");
        };
        let (one, mut two) = ([1_u8], [0_u8; 2]);
        let mut group = comm.group();
        group.send(&one, comm.rank());
        refused(group, "no receive for what this rank sends to itself");
        let mut group = comm.group();
        group.recv(&mut two, comm.rank());
        refused(group, "no send for what this rank receives from itself");
        let mut group = comm.group();
        group.send(&one, comm.rank()).recv(&mut two, comm.rank());
        refused(group, "this rank sends itself 1 U8 and receives 2 U8");
        assert!(comm.send(&one, comm.rank()).unwrap_err().hint.contains("group"));
        comm.finish().unwrap();
    });
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

#[test]
fn while_one_thread_waits_the_calls_of_another_end() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Timeout, "60")]);
        common::with_ranks(2, &settings, |comm| {
            let other = Rank(1 - comm.rank().0);
            let exchange = |n: i32| {
                let mut theirs = [-1; 100];
                if comm.rank() == Rank(0) {
                    comm.send(&[n; 100], other).unwrap();
                    comm.recv(&mut theirs, other).unwrap();
                } else {
                    comm.recv(&mut theirs, other).unwrap();
                    comm.send(&theirs, other).unwrap();
                }
                assert_eq!(theirs, [n; 100]);
            };
            if comm.rank() == Rank(0) {
                std::thread::scope(|scope| {
                    let waits = scope.spawn(|| comm.barrier().unwrap());
                    // Longer than it spins.
                    clock::sleep(Duration::from_millis(5));
                    (0..50).for_each(exchange);
                    let begun = comm.send_async(vec![7; COUNT], other).unwrap();
                    begun.wait().unwrap();
                    assert!(!waits.is_finished(), "the other rank has not called it");
                    comm.send(&[0], other).unwrap();
                });
            } else {
                (0..50).for_each(exchange);
                comm.recv(&mut vec![0; COUNT], other).unwrap();
                comm.recv(&mut [0], other).unwrap();
                comm.barrier().unwrap();
            }
            comm.finish().unwrap();
        });
    }
}

#[test]
fn a_call_that_nobody_joins_times_out_though_other_calls_move() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Timeout, "1")]);
        common::with_ranks(2, &settings, |comm| {
            let other = Rank(1 - comm.rank().0);
            let heartbeat = || {
                clock::sleep(Duration::from_millis(50));
                let mut group = comm.group();
                let (mine, mut theirs) = ([1], [0]);
                group.send(&mine, other).recv(&mut theirs, other);
                group.run()
            };
            let beat = || (0..1000).find_map(|_| heartbeat().err()).unwrap();
            if comm.rank() == Rank(0) {
                let began = clock::now();
                let waited = std::thread::scope(|scope| {
                    let barrier = scope.spawn(|| (comm.barrier().unwrap_err(), clock::now().since(began)));
                    assert_eq!(beat().kind, ErrorKind::Timeout);
                    barrier.join().unwrap()
                });
                let (error, took) = waited;
                assert_eq!((error.kind, error.at.peer), (ErrorKind::Timeout, Some(other)), "{error}");
                assert_eq!(error.at.op, Some((CollKind::Barrier, 1)));
                assert!(took >= Duration::from_secs(1), "{took:?}");
            } else {
                assert_eq!(beat().kind, ErrorKind::Timeout);
            }
        });
    }
}

#[test]
fn a_group_of_several_communicators_ends_while_another_thread_drives_one_of_them() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Timeout, "60")]);
        common::with_ranks(2, &settings, |comm| {
            let other = Rank(1 - comm.rank().0);
            let second = comm.split(Some(0), 0, Config::default()).unwrap().unwrap();
            let mut got = ([0; 50], [0; 60]);
            if comm.rank() == Rank(0) {
                std::thread::scope(|scope| {
                    scope.spawn(|| comm.barrier().unwrap());
                    clock::sleep(Duration::from_millis(5));
                    let mut group = comm.group();
                    group.recv(&mut got.0, other).add_on(&second, Collective::recv(&mut got.1, other));
                    group.run().unwrap();
                    comm.send(&[0], other).unwrap();
                });
                assert_eq!(got, ([1; 50], [2; 60]));
            } else {
                clock::sleep(Duration::from_millis(20));
                let mut group = comm.group();
                group.send(&[1; 50], other).add_on(&second, Collective::send(&[2; 60], other));
                group.run().unwrap();
                // Only after the group has ended there does this rank come to the barrier.
                comm.recv(&mut [0], other).unwrap();
                comm.barrier().unwrap();
            }
            second.finish().unwrap();
            comm.finish().unwrap();
        });
    }
}

#[test]
fn of_two_threads_that_wait_either_may_end_first() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Timeout, "60")]);
        common::with_ranks(3, &settings, |comm| {
            // In turn rank 1 or rank 2 sends only after the thread that waits for the other has
            // got its message and said so.
            for round in 0..40_u8 {
                let (first, second) = (Rank(u32::from(1 + round % 2)), Rank(u32::from(2 - round % 2)));
                if comm.rank() == Rank(0) {
                    let wait = |peer: Rank| {
                        let mut got = [0];
                        comm.recv(&mut got, peer).unwrap();
                        assert_eq!(got, [round]);
                        if peer == first {
                            comm.send(&[round], second).unwrap();
                        }
                    };
                    std::thread::scope(|scope| {
                        for peer in [1, 2] {
                            scope.spawn(move || wait(Rank(peer)));
                        }
                    });
                } else {
                    if comm.rank() == second {
                        comm.recv(&mut [0_u8], Rank(0)).unwrap();
                    }
                    comm.send(&[round], Rank(0)).unwrap();
                }
            }
            comm.finish().unwrap();
        });
    }
}
