//! A call of one rank panics: the others are notified, although the rank lives on.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ccl::config::Key;
use ccl::observer::{Call, CallObserver, set_observer};
use ccl::types::CollKind;
use ccl::{ErrorKind, Rank, ReduceOp, clock};

/// Panics as rank 1 begins its all-reduce or its reduction to a root.
struct Panics;

impl CallObserver for Panics {
    fn begin(&self, call: &Call) {
        let kinds = [CollKind::AllReduce, CollKind::Reduce];
        let is_it = |call: &Call| matches!(call, Call::Operation { rank: Rank(1), request, .. } if kinds.contains(&request.kind));
        assert!(!is_it(call), "an observer of the test");
    }
    fn end(&self, _: &Call) {}
}

#[test]
fn a_call_that_panicked_is_told_to_those_who_wait_for_it() {
    // Another test may have set it.
    let _ = set_observer(Box::new(Panics));
    let settings = common::settings(&[(Key::Timeout, "60")]);
    let said = common::with_ranks(3, &settings, |comm| {
        comm.barrier().unwrap();
        let call = || comm.all_reduce_in_place(&mut [1_f32; 4], ReduceOp::Sum);
        let began = clock::now();
        let result = catch_unwind(AssertUnwindSafe(call));
        let took = clock::now().since(began);
        if comm.rank() == Rank(1) {
            assert!(result.is_err());
            // It does not leave meanwhile.
            clock::sleep(Duration::from_secs(3));
            return None;
        }
        assert!(took < Duration::from_secs(2), "{took:?}");
        Some(result.unwrap().unwrap_err())
    });
    for error in said.iter().flatten() {
        assert_eq!((error.kind, error.what.as_str()), (ErrorKind::Aborted, "a call of rank 1 panicked"));
    }
}

#[test]
fn a_call_that_panicked_as_it_began_is_told_to_those_who_wait_for_it() {
    // Another test may have set it.
    let _ = set_observer(Box::new(Panics));
    common::with_ranks(2, &common::settings(&[(Key::Timeout, "60")]), |comm| {
        comm.barrier().unwrap();
        let begins = || {
            comm.begin(vec![1_f32; 4], |all| ccl::Collective::reduce_in_place(all, ReduceOp::Sum, Rank(0)))
        };
        let began = catch_unwind(AssertUnwindSafe(begins));
        if comm.rank() == Rank(1) {
            assert!(began.is_err());
            assert_eq!(comm.barrier().unwrap_err().kind, ErrorKind::Aborted);
            return clock::sleep(Duration::from_secs(1));
        }
        let error = began.unwrap().and_then(|call| call.wait()).unwrap_err();
        assert_eq!((error.kind, error.what.as_str()), (ErrorKind::Aborted, "a call of rank 1 panicked"));
    });
}

/// The work beside a group panics: the buffers are the caller's again, and the others are told.
#[test]
fn work_beside_a_group_that_panics_is_told_to_those_who_wait_for_it() {
    let settings = common::settings(&[(Key::Timeout, "60")]);
    common::with_ranks(2, &settings, |comm| {
        comm.barrier().unwrap();
        let mut all = vec![comm.rank().0; 1 << 20];
        if comm.rank() == Rank(0) {
            let error = comm.broadcast(&mut all, Rank(1)).unwrap_err();
            assert_eq!((error.kind, error.what.as_str()), (ErrorKind::Aborted, "a call of rank 1 panicked"));
            return;
        }
        let mut group = comm.group();
        group.add(ccl::Collective::broadcast(&mut all, Rank(1)));
        let panics = || group.run_while(|| panic!("work of the test"));
        catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        all.fill(7);
        assert_eq!(comm.barrier().unwrap_err().kind, ErrorKind::Aborted);
        // It does not leave before the others have heard.
        clock::sleep(Duration::from_secs(1));
    });
}

/// A call that a destructor makes while a panic unwinds the thread is a call like others.
#[test]
fn a_call_during_a_panic_of_the_program_ends_nothing() {
    struct Leaves<'a>(&'a ccl::Communicator);
    impl Drop for Leaves<'_> {
        fn drop(&mut self) {
            self.0.barrier().unwrap();
        }
    }
    common::with_ranks(2, &common::settings(&[(Key::Timeout, "60")]), |comm| {
        let panics = || {
            let _leaves = Leaves(&comm);
            panic!("a panic of the test");
        };
        catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        let mut group = comm.group();
        let mut all = [2 - comm.rank().0];
        group.add(ccl::Collective::broadcast(&mut all, Rank(0)));
        group.run().unwrap();
        assert_eq!(all, [2]);
        comm.finish().unwrap();
    });
}
