//! Groups as values, and calls that are prepared once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use ccl::config::Key;
use ccl::recorder::reader::Reader;
use ccl::{Collective, Communicator, Config, ErrorKind, Rank, ReduceOp, Reduction};

/// Calls of every kind, in one group on the even ranks and one by one on the odd ones.
#[test]
fn a_rank_that_groups_its_collectives_meets_one_that_does_not() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Observe, "0")]);
        common::with_ranks(4, &settings, |comm| {
            let (me, n) = (comm.rank().0, comm.nranks() as usize);
            let one = [me];
            let counts = [1, 0, 2, 1];
            let own = vec![me; counts[me as usize]];
            let (mut sum, mut scaled, mut all, mut swapped) = ([0; 1], [1; 1], vec![9; n], vec![me; n]);
            let (mut uneven, mut cast, mut gathered) = (vec![9; 4], [me; 2], vec![9; n]);
            let calls = vec![
                Collective::all_reduce(&one, &mut sum, ReduceOp::Sum),
                Collective::all_reduce_in_place(&mut scaled, Reduction::pre_mul_sum(me)),
                Collective::all_gather(&one, &mut all),
                Collective::all_to_all_in_place(&mut swapped),
                Collective::barrier(),
                Collective::all_gather_uneven(&own, &mut uneven, &counts),
                Collective::broadcast(&mut cast, Rank(2)),
                Collective::gather(&one, &mut gathered, Rank(1)),
            ];
            if me % 2 == 0 {
                let (mut group, mut inner) = (comm.group(), comm.group());
                for (nth, call) in calls.into_iter().enumerate() {
                    // The last ones come with a group that is appended.
                    if nth < 5 {
                        group.add(call)
                    } else {
                        inner.add(call)
                    };
                }
                group.append(inner);
                group.run().unwrap();
            } else {
                calls.into_iter().for_each(|call| comm.run(call).unwrap());
            }
            assert_eq!((sum, scaled), ([6], [6]));
            assert_eq!((&all[..], &swapped[..]), (&[0, 1, 2, 3][..], &[0, 1, 2, 3][..]));
            assert_eq!((&uneven[..], cast), (&[0, 2, 2, 3][..], [2, 2]));
            assert_eq!(gathered, if me == 1 { [0, 1, 2, 3] } else { [9; 4] });
            comm.finish().unwrap();
        });
    }
}

#[test]
fn collectives_of_several_communicators_move_together_in_any_order() {
    let settings = common::settings(&[(Key::Observe, "0")]);
    common::with_ranks(2, &settings, |first| {
        let second = first.split(Some(0), 0, Config::default()).unwrap().unwrap();
        let me = i64::from(first.rank().0);
        // More than the lanes hold: one after the other, the ranks would wait for each other.
        let (mut a, mut b) = (vec![me; 1 << 20], vec![me + 10; 1 << 20]);
        let mut group = first.group();
        let (of_first, of_second) = (
            Collective::all_reduce_in_place(&mut a, ReduceOp::Sum),
            Collective::all_reduce_in_place(&mut b, ReduceOp::Max),
        );
        if me == 0 {
            group.add(of_first).add_on(&second, of_second);
            group.run().unwrap();
        } else {
            group.add_on(&second, of_second).add(of_first);
            let mut turns = 0_u64;
            group.run_while(|| turns += 1).unwrap();
            assert!(turns > 0);
        }
        assert!(a.iter().all(|it| *it == 1) && b.iter().all(|it| *it == 11));
        second.finish().unwrap();
        first.finish().unwrap();
    });
}

#[test]
fn what_cannot_be_carried_out_is_refused_before_the_group_begins() {
    let settings = common::settings(&[(Key::Observe, "0")]);
    common::with_ranks(2, &settings, |comm| {
        let (mut sum, mut short) = ([1_i32; 3], [0_i32; 3]);
        let mut group = comm.group();
        group.add(Collective::all_reduce_in_place(&mut sum, ReduceOp::Sum));
        group.add(Collective::all_to_all_in_place(&mut short));
        let error = group.run().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(error.to_string().contains("buffer has 3 elements, which are no 2 equal blocks"), "{error}");
        // Nothing of it was called.
        assert_eq!(sum, [1; 3]);
        comm.barrier().unwrap();
        comm.group().run().unwrap();
        comm.finish().unwrap();
    });
}

#[test]
fn a_prepared_call_runs_again_and_again_beside_ordinary_ones() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Observe, "0")]);
        common::with_ranks(3, &settings, |comm| {
            let me = comm.rank().0 as f32;
            let counts = [1, 2, 3];
            let mut sum = comm
                .prepare(vec![0.0; 5_000], |all| Collective::all_reduce_in_place(all, ReduceOp::Avg))
                .unwrap();
            let mut blocks = comm
                .prepare(vec![0.0; 6], |all| Collective::all_gather_uneven_in_place(all, &counts))
                .unwrap();
            for step in 0..20 {
                let of = |rank: f32| rank + step as f32;
                if comm.rank().0 == 0 {
                    // Rank 0 makes the same calls anew each time.
                    let mut all = vec![of(me); 5_000];
                    comm.all_reduce_in_place(&mut all, ReduceOp::Avg).unwrap();
                    assert!(all.iter().all(|it| *it == of(1.0)));
                    let mut all = vec![of(me); 6];
                    comm.all_gather_uneven_in_place(&mut all, &counts).unwrap();
                    assert_eq!(all, [of(0.0), of(1.0), of(1.0), of(2.0), of(2.0), of(2.0)]);
                    continue;
                }
                sum.buffer().fill(of(me));
                blocks.buffer().fill(of(me));
                if step % 2 == 0 {
                    sum.run().unwrap();
                    blocks.run().unwrap();
                } else {
                    sum.start().unwrap();
                    blocks.start().unwrap();
                    let error = sum.run().unwrap_err();
                    assert!(error.to_string().contains("a run of this call is under way"), "{error}");
                    blocks.wait().unwrap();
                    sum.wait().unwrap();
                }
                assert!(sum.is_done() && sum.buffer().iter().all(|it| *it == of(1.0)));
                assert_eq!(blocks.buffer(), [of(0.0), of(1.0), of(1.0), of(2.0), of(2.0), of(2.0)]);
            }
            let buffer = sum.into_buffer().unwrap();
            assert_eq!(buffer.len(), 5_000);
            comm.finish().unwrap();
            let error = blocks.run().unwrap_err();
            assert!(error.to_string().contains("the communicator of this call has ended"), "{error}");
        });
    }
}

#[test]
fn a_prepared_send_and_receive_run_again_and_again() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Observe, "0")]);
        common::with_ranks(2, &settings, |comm| {
            let peer = Rank(1 - comm.rank().0);
            let zeros = || vec![0_u32; 50_000];
            let mut out = comm.prepare(zeros(), |all| Collective::send(all, peer)).unwrap();
            let mut back = comm.prepare(zeros(), |all| Collective::recv(all, peer)).unwrap();
            for round in 0..20 {
                out.buffer().fill(round + comm.rank().0);
                out.start().unwrap();
                back.run().unwrap();
                out.wait().unwrap();
                assert!(back.buffer().iter().all(|it| *it == round + peer.0));
            }
            comm.finish().unwrap();
        });
    }
}

/// A prepared call outlives the borrow of its communicator: another thread may run it while
/// `finish()` waits for the other ranks, which know all calls of this one already.
#[test]
fn a_prepared_call_is_refused_once_its_rank_has_called_finish() {
    let refused = std::sync::Barrier::new(2);
    let name = "finishes while a prepared call is run";
    common::with_ranks(2, &common::settings(&[]), |comm| {
        let comm = comm.split(Some(0), 0, Config { name: name.into(), settings: None }).unwrap().unwrap();
        if comm.rank().0 == 1 {
            refused.wait();
            return comm.finish().unwrap();
        }
        let mut call = comm.prepare(vec![1_u8; 8], |all| Collective::send(all, Rank(1))).unwrap();
        std::thread::scope(|scope| {
            let finishes = scope.spawn(move || comm.finish());
            let is_it = |row: &ccl::snapshot::CommSnapshot| row.name.contains(name) && row.finishes();
            while !Reader::of_process().unwrap().snapshot().unwrap().comms.iter().any(is_it) {
                ccl::clock::sleep(std::time::Duration::from_millis(5));
            }
            let results = [call.run(), call.start()].map(Result::unwrap_err);
            refused.wait();
            for error in results {
                assert_eq!(error.kind, ErrorKind::Usage, "{error}");
                assert!(error.to_string().contains("has called finish()"), "{error}");
            }
            finishes.join().unwrap().unwrap();
        });
    });
}

#[test]
fn a_group_beside_other_work_ends_at_the_deadline() {
    let settings = common::settings(&[(Key::Observe, "0"), (Key::Timeout, "1")]);
    let ended = std::sync::Barrier::new(2);
    common::with_ranks(2, &settings, |comm| {
        comm.barrier().unwrap();
        if comm.rank().0 == 1 {
            ended.wait();
            return;
        }
        let (mut all, mut turns) = ([1], 0_u64);
        let mut group = comm.group();
        group.add(Collective::all_reduce_in_place(&mut all, ReduceOp::Sum));
        let result = group.run_while(|| turns += 1);
        ended.wait();
        let error = result.unwrap_err();
        assert_eq!((error.kind, error.at.peer), (ErrorKind::Timeout, Some(Rank(1))), "{error}");
        assert!(turns > 0);
    });
}

#[test]
fn a_prepared_call_that_fails_keeps_no_buffer_and_says_so() {
    let settings = common::settings(&[(Key::Observe, "0"), (Key::Timeout, "20")]);
    common::with_ranks(2, &settings, |comm| {
        let odd = comm.prepare(vec![0_u8; 3], |all| Collective::all_to_all_in_place(all)).unwrap_err();
        assert_eq!(odd.kind, ErrorKind::Usage);
        let other: &'static mut [u8] = vec![0; 4].leak();
        let odd = comm.prepare(vec![0_u8; 4], |_| Collective::send(&*other, Rank(0))).unwrap_err();
        assert!(odd.to_string().contains("of another buffer"), "{odd}");
        let mut call: ccl::Prepared<u8> =
            comm.prepare(vec![1; 4], |all| Collective::all_to_all_in_place(all)).unwrap();
        call.run().unwrap();
        comm.barrier().unwrap();
        let fails = |comm: &Communicator, call: &mut ccl::Prepared<u8>| match comm.rank().0 {
            0 => {
                comm.abort("told to");
                call.run()
            }
            _ => call.start().and_then(|()| call.wait()),
        };
        let error = fails(&comm, &mut call).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Aborted, "{error}");
        let error = call.run().unwrap_err();
        assert!(error.to_string().contains("a run of this call has failed"), "{error}");
    });
}

/// One communicator of a group fails: its calls end with an error that names who is missing, and
/// the calls of the other one are carried out.
#[test]
fn a_group_ends_at_the_deadline_of_one_and_carries_out_the_other() {
    let settings = common::settings(&[(Key::Observe, "0"), (Key::Timeout, "1")]);
    common::with_ranks(2, &settings, |first| {
        let second = first.split(Some(0), 0, Config::default()).unwrap().unwrap();
        let (mut a, mut b) = (vec![1_i32; 100_000], vec![1_i32; 100_000]);
        if first.rank().0 == 0 {
            let began = ccl::clock::now();
            let mut group = first.group();
            group.add_on(&second, Collective::all_to_all_in_place(&mut b));
            group.add(Collective::all_reduce_in_place(&mut a, ReduceOp::Sum));
            let error = group.run().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
            assert!(error.to_string().contains("AllToAll #") && error.at.peer == Some(Rank(1)), "{error}");
            assert!(ccl::clock::now().since(began).as_secs() < 5);
        } else {
            first.all_reduce_in_place(&mut a, ReduceOp::Sum).unwrap();
            // It hears of the failure at its next call.
            ccl::clock::sleep(std::time::Duration::from_secs(2));
            let error = second.barrier().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
        }
        assert!(a.iter().all(|it| *it == 2));
        first.finish().unwrap();
    });
}

/// What may go to other threads, and what may be shared between them.
#[test]
fn what_threads_may_share_is_proven() {
    fn sends<T: Send>() {}
    fn shares<T: Send + Sync>() {}
    shares::<Communicator>();
    shares::<Config>();
    shares::<ccl::Error>();
    shares::<ccl::UniqueId>();
    shares::<ccl::Region<f32>>();
    shares::<Reduction<f32>>();
    sends::<Collective<'_, '_>>();
    sends::<ccl::Group<'_>>();
    sends::<ccl::Pending<f32>>();
    sends::<ccl::Prepared<f32>>();
    sends::<ccl::Joining>();
    sends::<ccl::Invitation>();
}
