//! Many calls at once: the cost of one does not grow with the number of others under way.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ccl::comm::Communicator;
use ccl::config::Key;
use ccl::{Rank, ReduceOp};

const FEW: usize = 500;
const MANY: usize = 8 * FEW;
/// Eight times as many calls cost eight times as much; sixty-four times as much if each looks at
/// all others.
const GROWTH: f64 = 24.0;
/// A shorter time is not significant.
const LEAST: Duration = Duration::from_millis(2);

/// Processor time of this process.
fn spent() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The ratio of the processor time of `MANY` calls to that of `FEW`.
fn growth(call: impl Fn(&Communicator, usize) + Send + Sync) -> f64 {
    // One test at a time: the time is measured for the process.
    static ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let settings = common::settings(&[(Key::Transport, "shm"), (Key::Timeout, "120")]);
    let grown = common::with_ranks(2, &settings, |comm| {
        let time = |count| {
            comm.barrier().unwrap();
            let before = spent();
            call(&comm, count);
            comm.barrier().unwrap();
            spent().saturating_sub(before)
        };
        // Memory is allocated the first time. Other load on the machine makes it longer, never
        // shorter.
        time(FEW);
        let few = (0..5).map(|_| time(FEW)).min().unwrap_or_default().max(LEAST);
        let many = (0..2).map(|_| time(MANY)).min().unwrap_or_default();
        eprintln!("{FEW} calls: {few:?}, {MANY}: {many:?}");
        comm.finish().unwrap();
        many.as_secs_f64() / few.as_secs_f64()
    });
    grown[0]
}

#[test]
fn sends_and_receives_of_a_group_do_not_look_at_each_other() {
    let grown = growth(|comm, count| {
        let other = Rank(1 - comm.rank().0);
        let (mine, mut theirs) = ([1_u8; 8], vec![[0_u8; 8]; count]);
        let mut group = comm.group();
        for place in &mut theirs {
            group.send(&mine, other).recv(place, other);
        }
        group.run().unwrap();
        assert!(theirs.iter().all(|place| *place == mine));
    });
    assert!(grown < GROWTH, "{grown}");
}

#[test]
fn calls_that_own_their_buffers_do_not_look_at_each_other() {
    let grown = growth(|comm, count| {
        let begin = |_| comm.all_reduce_async(vec![1_i64], ReduceOp::Sum).unwrap();
        let pending: Vec<_> = (0..count).map(begin).collect();
        for one in pending {
            assert_eq!(one.wait().unwrap().into_vec(), [2]);
        }
    });
    assert!(grown < GROWTH, "{grown}");
}
