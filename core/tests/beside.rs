//! Calls that go on beside others: those of several communicators in one group, and those of every
//! kind while another thread waits.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use ccl::config::Key;
use ccl::{Collective, Communicator, Config, Pending, Rank, ReduceOp, clock};

/// Elements of many messages: more than a link holds.
const COUNT: usize = 1 << 20;

/// Calls of every kind with what they own: begun in `begin`, and waited for.
fn every_async(comm: &Communicator) {
    let (me, n) = (comm.rank().0 as i32, comm.nranks() as usize);
    let sum: i32 = (0..n as i32).sum();
    let taken = |pending: Pending<i32>| pending.wait().unwrap().into_vec();
    let of_ranks =
        |own: i32| -> Vec<i32> { (0..n as i32).flat_map(|r| [if r == me { own } else { -1 }; 3]).collect() };
    let next = Rank((me as u32 + 1) % n as u32);
    let previous = Rank((me as u32 + n as u32 - 1) % n as u32);
    let reduced = comm.all_reduce_async(vec![me; 3], ReduceOp::Sum).unwrap();
    let gathered = comm.all_gather_async(of_ranks(me)).unwrap();
    let scattered = comm.reduce_scatter_async(vec![me; 3 * n], ReduceOp::Sum).unwrap();
    let cast = comm.broadcast_async(vec![me; 3], Rank(1)).unwrap();
    let rooted = comm.reduce_async(vec![me; 3], ReduceOp::Max, Rank(0)).unwrap();
    let barrier = comm.barrier_async().unwrap();
    let (sent, heard) =
        (comm.send_async(vec![me; 3], next).unwrap(), comm.recv_async(vec![-1; 3], previous).unwrap());
    assert_eq!(taken(reduced), [sum; 3]);
    assert_eq!(taken(gathered), (0..n as i32).flat_map(|r| [r; 3]).collect::<Vec<_>>());
    let scattered = taken(scattered);
    assert_eq!(scattered[3 * me as usize..][..3], [sum; 3]);
    assert!(scattered.iter().filter(|one| **one == me).count() >= 3 * (n - 1), "{scattered:?}");
    assert_eq!(taken(cast), [1; 3]);
    assert_eq!(taken(rooted), if me == 0 { [n as i32 - 1; 3] } else { [me; 3] });
    assert!(barrier.wait().unwrap().into_vec().is_empty());
    assert_eq!((taken(sent), taken(heard)), (vec![me; 3], vec![previous.0 as i32; 3]));
    let odd = comm.all_gather_async(vec![0_i32; n + 1]).unwrap_err().to_string();
    assert!(odd.contains("elements"), "{odd}");
}

/// Blocking calls of every kind.
fn every_call(comm: &Communicator) {
    let (me, n) = (comm.rank().0 as i32, comm.nranks() as usize);
    let sum: i32 = (0..n as i32).sum();
    let (mut all, mut one) = (vec![-1; n], [me; 1]);
    comm.all_gather(&[me], &mut all).unwrap();
    assert_eq!(all, (0..n as i32).collect::<Vec<_>>());
    comm.all_reduce_in_place(&mut one, ReduceOp::Sum).unwrap();
    assert_eq!(one, [sum]);
    comm.reduce_scatter(&vec![me; n], &mut one, ReduceOp::Sum).unwrap();
    assert_eq!(one, [sum]);
    comm.broadcast(&mut one, Rank(0)).unwrap();
    comm.reduce_in_place(&mut one, ReduceOp::Min, Rank(1)).unwrap();
    comm.barrier().unwrap();
    if me == 0 {
        comm.send(&[7], Rank(1)).unwrap();
    } else if me == 1 {
        comm.recv(&mut one, Rank(0)).unwrap();
        assert_eq!(one, [7]);
    }
}

#[test]
fn a_group_over_several_communicators_deadlocks_in_no_order() {
    for transport in ["", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport)]);
        common::with_ranks(2, &settings, |first| {
            let second = first.split(Some(0), 0, Config::default()).unwrap().unwrap();
            let (me, other) = (first.rank().0 as i32, Rank(1 - first.rank().0));
            let (mine, mut a, mut b) = (vec![me; COUNT], vec![-1; COUNT], vec![-1; COUNT]);
            let mut group = first.group();
            // Each sends first where the other does not receive yet.
            if me == 0 {
                group.send(&mine, other).add_on(&second, Collective::recv(&mut a, other));
                group.add_on(&second, Collective::send(&mine, other)).recv(&mut b, other);
            } else {
                group.add_on(&second, Collective::send(&mine, other)).recv(&mut a, other);
                group.send(&mine, other).add_on(&second, Collective::recv(&mut b, other));
            }
            group.run().unwrap();
            let expect = other.0 as i32;
            assert!(a.iter().chain(&b).all(|one| *one == expect), "{transport}");
            second.finish().unwrap();
            first.finish().unwrap();
        });
    }
}

#[test]
fn a_communicator_that_fails_does_not_keep_the_rest_of_a_group() {
    common::with_ranks(2, &common::settings(&[]), |first| {
        let second = first.split(Some(0), 0, Config::default()).unwrap().unwrap();
        let (me, other) = (first.rank().0 as i32, Rank(1 - first.rank().0));
        let (mine, mut a, mut b) = (vec![me; COUNT], vec![-1; COUNT], vec![-1; COUNT]);
        if me == 1 {
            second.abort("the test asks for it");
        }
        let mut group = first.group();
        group.send(&mine, other).add_on(&second, Collective::recv(&mut a, other)).recv(&mut b, other);
        let error = group.run().unwrap_err().to_string();
        assert!(error.contains("the test asks for it"), "{error}");
        assert!(b.iter().all(|one| *one == other.0 as i32));
        first.finish().unwrap();
    });
}

#[test]
fn calls_of_every_kind_go_on_beside_a_thread_that_waits() {
    for transport in ["", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Timeout, "60")]);
        common::with_ranks(3, &settings, |world| {
            let others: Vec<Communicator> =
                (0..2).map(|_| world.split(Some(0), 0, Config::default()).unwrap().unwrap()).collect();
            std::thread::scope(|scope| {
                // Rank 2 comes last: the others wait meanwhile.
                let waits = (world.rank() != Rank(2)).then(|| scope.spawn(|| world.barrier().unwrap()));
                clock::sleep(std::time::Duration::from_millis(5));
                for other in &others {
                    every_call(other);
                    every_async(other);
                }
                let mut word = [0];
                match world.rank() {
                    Rank(0) => world.send(&[5], Rank(1)).unwrap(),
                    Rank(1) => world.recv(&mut word, Rank(0)).unwrap(),
                    _ => {}
                }
                if let Some(waits) = waits {
                    assert!(!waits.is_finished(), "rank 2 has not called it: {word:?}");
                    others[0].barrier().unwrap();
                } else {
                    others[0].barrier().unwrap();
                    world.barrier().unwrap();
                }
            });
            others.into_iter().for_each(|other| other.finish().unwrap());
            world.finish().unwrap();
        });
    }
}
