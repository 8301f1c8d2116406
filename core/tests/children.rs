//! Communicators made from another one.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use ccl::config::Key;
use ccl::diagnose::{Given, merge, render_answer};
use ccl::recorder::Reader;
use ccl::snapshot::Source;
use ccl::{Communicator, Config, ErrorKind, Rank, ReduceOp};

fn named(name: &str) -> Config {
    Config { name: name.into(), settings: None }
}

/// The sum over all ranks of the world rank of each.
fn sum(comm: &Communicator, mine: u32) -> i32 {
    let mut buffer = [mine as i32; 9];
    comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    assert!(buffer.iter().all(|one| *one == buffer[0]));
    buffer[0]
}

#[test]
fn ranks_of_one_colour_get_a_communicator_ordered_by_key() {
    for transport in ["", "shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport)]);
        let made = common::with_ranks(5, &settings, |comm| {
            let me = comm.rank().0;
            // Ranks 0, 2 and 4, in reverse; ranks 1 and 3 in order.
            let (colour, key) = (me % 2, if me % 2 == 0 { -(me as i32) } else { 0 });
            let child = comm.split(Some(colour), key, Config::default()).unwrap().unwrap();
            let said = (child.rank(), child.nranks(), child.name().to_string(), sum(&child, me));
            assert_eq!((child.job(), sum(&comm, me)), (comm.job(), 10));
            let id = child.id();
            child.finish().unwrap();
            comm.finish().unwrap();
            (said, id)
        });
        let expect = |rank, nranks, name: &str, sum| (Rank(rank), nranks, name.to_string(), sum);
        let (even, odd) = ("test/0.0", "test/0.1");
        let wanted = [
            expect(2, 3, even, 6),
            expect(0, 2, odd, 4),
            expect(1, 3, even, 6),
            expect(1, 2, odd, 4),
            expect(0, 3, even, 6),
        ];
        assert_eq!(made.iter().map(|(said, _)| said.clone()).collect::<Vec<_>>(), wanted, "{transport}");
        assert!(made[0].1 == made[2].1 && made[1].1 == made[3].1 && made[0].1 != made[1].1);
    }
}

#[test]
fn a_rank_without_a_colour_gets_none_and_children_outlive_their_parent() {
    common::with_ranks(3, &common::settings(&[]), |comm| {
        let me = comm.rank().0;
        let child = comm.split((me != 1).then_some(7), 0, named("pair")).unwrap();
        assert_eq!(child.is_some(), me != 1);
        comm.finish().unwrap();
        if let Some(child) = child {
            let grandchild = child.split(Some(me), 0, Config::default()).unwrap().unwrap();
            assert_eq!((sum(&child, me), sum(&grandchild, me)), (2, me as i32));
            assert_eq!(grandchild.name(), format!("pair/0.{me}"));
            child.finish().unwrap();
            grandchild.finish().unwrap();
        }
    });
}

#[test]
fn the_ranks_that_are_left_go_on_without_one_that_is_gone() {
    for transport in ["", "shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport)]);
        common::with_ranks(5, &settings, |comm| {
            let me = comm.rank().0;
            if me == 2 {
                // Its others get an error in the middle of a call.
                return drop(comm);
            }
            let mut buffer = [1; 1000];
            while comm.all_reduce_in_place(&mut buffer, ReduceOp::Max).is_ok() {}
            let left = comm.shrink(&[], Config::default()).unwrap();
            assert_eq!((left.nranks(), left.rank().0), (4, if me < 2 { me } else { me - 1 }));
            assert_eq!((left.name(), sum(&left, me)), ("test/left.0", 8), "{transport}");
            left.finish().unwrap();
        });
    }
}

#[test]
fn a_communicator_that_goes_on_is_shrunk_and_one_is_revoked() {
    common::with_ranks(4, &common::settings(&[]), |comm| {
        let me = comm.rank().0;
        if me != 3 {
            let left = comm.shrink(&[Rank(3)], named("three")).unwrap();
            assert_eq!((left.name(), sum(&left, me)), ("three", 3));
            if me == 1 {
                left.revoke("a rank is slow");
            }
            let error = left.barrier().unwrap_err().to_string();
            assert!(error.contains("rank 1 revoked it: a rank is slow"), "{error}");
            let again = left.shrink(&[Rank(1)], Config::default());
            match me {
                1 => assert!(again.unwrap_err().to_string().contains("cannot leave")),
                _ => {
                    let again = again.unwrap();
                    assert_eq!((again.nranks(), sum(&again, me)), (2, 2));
                    again.finish().unwrap();
                }
            }
        }
        assert_eq!(sum(&comm, me), 6);
        comm.finish().unwrap();
    });
}

#[test]
fn what_a_rank_calls_instead_of_making_a_child_is_a_mismatch() {
    let ways = ["split", "invite"];
    for way in ways {
        common::with_ranks(3, &common::settings(&[]), |comm| {
            let error = match (comm.rank().0, way) {
                // As many elements, and a number that no length may be.
                (1, "split") => comm.all_gather(&[1_i64 << 40; 4], &mut [0; 12]).unwrap_err(),
                (1, _) => comm.all_gather(&[1_i64 << 40], &mut [0; 3]).unwrap_err(),
                (_, "split") => comm.split(Some(0), 0, Config::default()).unwrap_err(),
                _ => comm.invite().unwrap_err(),
            };
            assert_eq!(error.kind, ErrorKind::Mismatch, "{error}");
            let kinds = [format!("{way}() / AllGather"), format!("AllGather / {way}()")];
            assert!(kinds.iter().any(|kinds| error.what.contains(kinds)), "{error}");
        });
    }
}

#[test]
fn a_split_that_a_rank_never_calls_ends_at_the_deadline_and_names_it() {
    let settings = common::settings(&[(Key::Timeout, "1")]);
    let ended = std::sync::Barrier::new(3);
    common::with_ranks(3, &settings, |comm| {
        comm.barrier().unwrap();
        if comm.rank().0 == 1 {
            ended.wait();
            assert_eq!(comm.split(Some(0), 0, Config::default()).unwrap_err().kind, ErrorKind::Timeout);
            return;
        }
        let result = comm.split(Some(0), 0, Config::default());
        ended.wait();
        let error = result.unwrap_err();
        assert_eq!((error.kind, error.at.peer), (ErrorKind::Timeout, Some(Rank(1))), "{error}");
    });
}

#[test]
fn ranks_that_shrink_at_different_times_meet_and_those_that_disagree_say_so() {
    let settings = common::settings(&[(Key::Timeout, "1")]);
    common::with_ranks(3, &settings, |comm| {
        let me = comm.rank().0;
        if me == 1 {
            // The others wait for this one, which is seen, and then give that attempt up.
            ccl::clock::sleep(std::time::Duration::from_millis(700));
            let process = Reader::of_process().unwrap().snapshot().unwrap();
            let given = Given { process, source: Source::Mapping, letter: None, ended: false };
            let seen = render_answer(&merge(&[given], &comm.job().into(), &[]));
            assert!(
                seen.contains("NOT JOINED rank 1 ")
                    && seen.contains("it has not called shrink(), where ranks 0,2 wait"),
                "{seen}"
            );
            ccl::clock::sleep(std::time::Duration::from_millis(800));
        } else {
            let error = comm.shrink(&[], Config::default()).unwrap_err();
            assert!(error.what.contains("rank 1 did not call shrink()"), "{error}");
        }
        let left = comm.shrink(&[], Config::default()).unwrap();
        assert_eq!((left.name(), sum(&left, me)), ("test/left.1", 3));
        left.finish().unwrap();
        comm.finish().unwrap();
    });
    common::with_ranks(4, &common::settings(&[(Key::Timeout, "60")]), |comm| {
        let me = comm.rank().0;
        let began = ccl::clock::now();
        let without: &[Rank] = if me == 1 { &[Rank(0), Rank(2)] } else { &[Rank(0)] };
        if me != 0 {
            let error = comm.shrink(without, Config::default()).unwrap_err();
            let lists = if me == 1 { "rank 0, not ranks 0,2" } else { "ranks 0,2, not rank 0" };
            let said = error.what.contains("leaves other ranks out than") && error.what.ends_with(lists);
            assert!(said, "{error}");
        }
        assert!(ccl::clock::now().since(began).as_secs() < 30);
        comm.barrier().unwrap();
        comm.finish().unwrap();
    });
}

#[test]
fn threads_that_shrink_one_communicator_get_one_each() {
    common::with_ranks(3, &common::settings(&[]), |comm| {
        let shrink = || {
            let left = comm.shrink(&[], Config::default()).unwrap();
            let sum = sum(&left, comm.rank().0);
            let name = left.name().to_string();
            left.finish().unwrap();
            (name, sum)
        };
        let mut made = std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(shrink));
            threads.map(|thread| thread.join().unwrap())
        });
        made.sort();
        assert_eq!(made, [("test/left.0".into(), 3), ("test/left.1".into(), 3)]);
        comm.finish().unwrap();
    });
}

#[test]
fn ranks_with_other_settings_make_no_child_and_the_parent_goes_on() {
    common::with_ranks(3, &common::settings(&[]), |comm| {
        let me = comm.rank().0;
        let config = || {
            let settings = (me == 1).then(|| common::settings(&[(Key::Channels, "3")]));
            Config { name: "part".into(), settings }
        };
        for kind in ["split", "shrink"] {
            let error = match kind {
                "split" => comm.split(Some(0), 0, config()).unwrap_err(),
                _ => comm.shrink(&[], config()).unwrap_err(),
            };
            assert_eq!(error.kind, ErrorKind::Mismatch, "{kind}: {error}");
            assert!(
                error.what.contains("CCL_CHANNELS") && error.what.contains("rank 1 has"),
                "{kind}: {error}"
            );
            assert_eq!(sum(&comm, me), 3);
        }
        comm.finish().unwrap();
    });
}

#[test]
fn new_ranks_join_those_of_a_communicator() {
    let settings = common::settings(&[]);
    let (give, take) = std::sync::mpsc::channel::<String>();
    let take = std::sync::Mutex::new(take);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let id = ccl::UniqueId::from_hex(&take.lock().unwrap().recv().unwrap()).unwrap();
            let join = |rank| {
                let config = Config { name: "new".into(), settings: Some(settings.clone()) };
                let comm = Communicator::init(&id, rank, 5, config).unwrap();
                assert_eq!(sum(&comm, rank), 10);
                comm.finish().unwrap();
            };
            std::thread::scope(|scope| {
                let join = &join;
                let ranks = [3, 4].map(|rank| scope.spawn(move || join(rank)));
                ranks.into_iter().for_each(|rank| rank.join().unwrap());
            });
        });
        common::with_ranks(3, &settings, |comm| {
            let me = comm.rank().0;
            let invitation = comm.invite().unwrap();
            if me == 1 {
                give.send(invitation.id().to_hex()).unwrap();
            }
            let grown = comm.grow(&invitation, 2, Config::default()).unwrap();
            assert_eq!((grown.rank().0, grown.nranks(), sum(&grown, me)), (me, 5, 10));
            assert_eq!(sum(&comm, me), 3);
            grown.finish().unwrap();
            comm.finish().unwrap();
        });
    });
}

#[test]
fn an_init_that_does_not_block_is_polled_and_given_up() {
    let settings = common::settings(&[(Key::InitTimeout, "10")]);
    let config = || Config { name: "polled".into(), settings: Some(settings.clone()) };
    let (id, root) = ccl::create_id(&settings).unwrap();
    let first = Communicator::init_async(&id, 0, 2, config()).unwrap();
    ccl::clock::sleep(std::time::Duration::from_millis(50));
    assert!(!first.is_done() && first.phase().is_some(), "{first:?}");
    // All ranks in one thread, which no blocking call could do.
    let second = Communicator::init_async(&id, 1, 2, config()).unwrap();
    let (first, second) = (first.wait().unwrap(), second.wait().unwrap());
    let begun = second.all_reduce_async(vec![2; 9], ReduceOp::Sum).unwrap();
    let mut buffer = [1; 9];
    first.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    assert_eq!((buffer, begun.wait().unwrap().to_vec()), ([3; 9], vec![3; 9]));
    std::thread::scope(|scope| {
        scope.spawn(|| first.finish().unwrap());
        second.finish().unwrap();
    });
    drop(root);

    for wait_ms in [0, 1, 200] {
        let (id, root) = ccl::create_id(&settings).unwrap();
        let left = Communicator::init_async(&id, 0, 2, config()).unwrap();
        ccl::clock::sleep(std::time::Duration::from_millis(wait_ms));
        drop(left);
        let began = ccl::clock::now();
        let error = Communicator::init(&id, 1, 2, config()).unwrap_err();
        assert!(ccl::clock::now().since(began).as_secs() < 5, "{wait_ms}: {error}");
        drop(root);
    }
}
