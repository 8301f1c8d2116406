//! Reference results: kind x dtype x op x ranks x size x transport, in place and out of place, with
//! guard elements around every buffer and data that is a function of rank, index and iteration.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says how many cases it ran"
)]

mod common;

use std::fmt::Debug;

use ccl::comm::Communicator;
use ccl::config::{Key, environment};
use ccl::{Element, F8E4M3, F8E5M2, Rank, ReduceOp, bf16, f16};

/// An element whose reference results are exact: small integers.
trait Number: Element + PartialEq + Debug {
    /// As many different numbers are given. The sum of those of nine ranks is exact, or wraps: of
    /// 0 and 1, which ranks give in turn, it is at most 5.
    const GIVEN: u64;
    fn of(n: i64) -> Self;
}
macro_rules! number {
    ($given:literal, |$n:ident| $from:expr, $($t:ty),+) => {$(
        impl Number for $t {
            const GIVEN: u64 = $given;
            fn of($n: i64) -> Self { $from }
        }
    )+};
}
number!(17, |n| n as Self, f32, f64, i8, i32, i64, u8, u32, u64);
number!(17, |n| Self::from_f32(n as f32), f16, bf16);
number!(2, |n| Self::from_f32(n as f32), F8E4M3, F8E5M2);

/// Nothing, one, a prime, more than a slot of a pair lane (for 8-byte elements), and many more,
/// odd.
const SIZES: [usize; 5] = [0, 1, 97, 4_100, 33_331];
/// The long size has one more: 1 MiB of 8-byte elements.
const LONG: usize = 1 << 17;
/// Of some operations it has one that is this large: 16 MiB of 4-byte elements.
const LARGEST: usize = 4 << 20;

fn is_long() -> bool {
    environment("TEST_SIZE").is_some_and(|size| size == "long")
}

/// The element `index` that `rank` contributes in iteration `round`: 0 and more.
fn given<T: Number>(rank: u32, index: usize, round: u64) -> i64 {
    ((u64::from(rank) * 31 + index as u64 * 7 + round * 3) % T::GIVEN) as i64
}

/// The same, of a call that combines: 1 or 2 where it multiplies.
fn term<T: Number>(op: ReduceOp, rank: u32, index: usize, round: u64) -> i64 {
    let given = given::<T>(rank, index, round);
    if op == ReduceOp::Prod { 1 + given % 2 } else { given }
}

fn reduced<T: Number>(nranks: u32, index: usize, round: u64, op: ReduceOp) -> i64 {
    let all = (0..nranks).map(|rank| term::<T>(op, rank, index, round));
    match op {
        ReduceOp::Sum => all.sum(),
        ReduceOp::Prod => all.product(),
        ReduceOp::Min => all.min().unwrap(),
        ReduceOp::Max => all.max().unwrap(),
    }
}

/// A buffer with guard elements around it, which the calls must not touch. Its start is aligned to
/// the element only.
struct Guarded<T>(Vec<T>);

const GUARD: usize = 5;

impl<T: Number> Guarded<T> {
    fn new(len: usize, at: impl Fn(usize) -> i64) -> Self {
        let guard = || (0..GUARD).map(|n| T::of(100 + n as i64));
        Self(guard().chain((0..len).map(|n| T::of(at(n)))).chain(guard()).collect())
    }
    fn all(&mut self) -> &mut [T] {
        let len = self.0.len();
        &mut self.0[GUARD..len - GUARD]
    }
    fn check(&self, what: &str, at: impl Fn(usize) -> i64) {
        let len = self.0.len() - 2 * GUARD;
        for n in 0..GUARD {
            let guard = T::of(100 + n as i64);
            assert_eq!((self.0[n], self.0[GUARD + len + n]), (guard, guard), "guard {n} of {what}");
        }
        for n in 0..len {
            assert_eq!(self.0[GUARD + n], T::of(at(n)), "element {n} of {len} of {what}");
        }
    }
}

fn reductions<T: Number>(comm: &Communicator, count: usize, round: u64, cases: &mut u64) {
    let (me, n) = (comm.rank().0, comm.nranks());
    for &op in ReduceOp::ALL {
        let what = format!("{} {op} count {count} rank {me} of {n} round {round}", T::DTYPE);
        let mut input = Guarded::<T>::new(count, |i| term::<T>(op, me, i, round));
        let mut output = Guarded::<T>::new(count, |_| 99);
        comm.all_reduce(input.all(), output.all(), op).unwrap();
        output.check(&format!("all_reduce {what}"), |i| reduced::<T>(n, i, round, op));
        input.check(&format!("input of all_reduce {what}"), |i| term::<T>(op, me, i, round));
        comm.all_reduce_in_place(input.all(), op).unwrap();
        input.check(&format!("all_reduce_in_place {what}"), |i| reduced::<T>(n, i, round, op));

        let mut input = Guarded::<T>::new(count * n as usize, |i| term::<T>(op, me, i, round));
        let mut output = Guarded::<T>::new(count, |_| 99);
        let at = |i: usize| me as usize * count + i;
        comm.reduce_scatter(input.all(), output.all(), op).unwrap();
        output.check(&format!("reduce_scatter {what}"), |i| reduced::<T>(n, at(i), round, op));
        comm.reduce_scatter_in_place(input.all(), op).unwrap();
        input.check(&format!("reduce_scatter_in_place {what}"), |i| {
            let is_own = (at(0)..at(count)).contains(&i);
            if is_own { reduced::<T>(n, i, round, op) } else { term::<T>(op, me, i, round) }
        });

        let root = Rank((round % u64::from(n)) as u32);
        let is_root = comm.rank() == root;
        let mut input = Guarded::<T>::new(count, |i| term::<T>(op, me, i, round));
        let mut output = Guarded::<T>::new(count, |_| 99);
        comm.reduce(input.all(), output.all(), op, root).unwrap();
        output.check(&format!("reduce {what}"), |i| if is_root { reduced::<T>(n, i, round, op) } else { 99 });
        comm.reduce_in_place(input.all(), op, root).unwrap();
        input.check(&format!("reduce_in_place {what}"), |i| {
            if is_root { reduced::<T>(n, i, round, op) } else { term::<T>(op, me, i, round) }
        });
        *cases += 6;
    }
}

fn movements<T: Number>(comm: &Communicator, count: usize, round: u64, cases: &mut u64) {
    let (me, n) = (comm.rank().0, comm.nranks());
    let what = format!("{} count {count} rank {me} of {n} round {round}", T::DTYPE);
    let gathered = |i: usize| given::<T>((i / count.max(1)) as u32, i % count.max(1), round);
    let mut input = Guarded::<T>::new(count, |i| given::<T>(me, i, round));
    let mut output = Guarded::<T>::new(count * n as usize, |_| 99);
    comm.all_gather(input.all(), output.all()).unwrap();
    output.check(&format!("all_gather {what}"), gathered);
    let own = me as usize * count..(me as usize + 1) * count;
    let mut all = Guarded::<T>::new(count * n as usize, |i| if own.contains(&i) { gathered(i) } else { 98 });
    comm.all_gather_in_place(all.all()).unwrap();
    all.check(&format!("all_gather_in_place {what}"), gathered);

    for root in 0..n {
        let mut buffer = Guarded::<T>::new(count, |i| given::<T>(me, i, round));
        comm.broadcast(buffer.all(), Rank(root)).unwrap();
        buffer.check(&format!("broadcast from {root} {what}"), |i| given::<T>(root, i, round));
        *cases += 1;
    }
    comm.barrier().unwrap();

    // Each rank sends to the next and receives from the previous: a group, or long messages would
    // deadlock.
    if n > 1 {
        let (next, previous) = (Rank((me + 1) % n), Rank((me + n - 1) % n));
        let mut sent = Guarded::<T>::new(count, |i| given::<T>(me, i, round));
        let mut received = Guarded::<T>::new(count, |_| 97);
        let mut group = comm.group();
        group.send(sent.all(), next).recv(received.all(), previous);
        group.run().unwrap();
        received.check(&format!("send and receive {what}"), |i| given::<T>(previous.0, i, round));
        *cases += 1;
    }
    *cases += 3;
}

fn all<T: Number>(comm: &Communicator, cases: &mut u64) {
    let long = is_long().then_some(LONG);
    sizes::<T>(comm, SIZES.into_iter().chain(long), cases);
}

fn sizes<T: Number>(comm: &Communicator, sizes: impl Iterator<Item = usize>, cases: &mut u64) {
    for (round, count) in sizes.enumerate() {
        reductions::<T>(comm, count, round as u64, cases);
        movements::<T>(comm, count, round as u64, cases);
    }
}

/// The types that differ from others in how they are combined only: fewer sizes are enough, unless
/// the test is long.
fn others(comm: &Communicator, cases: &mut u64) {
    fn one<T: Number>(comm: &Communicator, cases: &mut u64) {
        if is_long() {
            return all::<T>(comm, cases);
        }
        sizes::<T>(comm, [97, 4_100].into_iter(), cases);
    }
    one::<i8>(comm, cases);
    one::<u32>(comm, cases);
    one::<u64>(comm, cases);
    one::<f16>(comm, cases);
    one::<bf16>(comm, cases);
    one::<F8E4M3>(comm, cases);
    one::<F8E5M2>(comm, cases);
}

/// An all-reduce, a broadcast, and a send and a receive, as long as buffers get here.
fn largest(comm: &Communicator) {
    let (me, n) = (comm.rank().0, comm.nranks());
    let mut input = Guarded::<f32>::new(LARGEST, |i| given::<f32>(me, i, 1));
    comm.all_reduce_in_place(input.all(), ReduceOp::Sum).unwrap();
    input.check("the largest all_reduce", |i| reduced::<f32>(n, i, 1, ReduceOp::Sum));
    let mut buffer = Guarded::<i32>::new(LARGEST, |i| given::<i32>(me, i, 2));
    comm.broadcast(buffer.all(), Rank(1)).unwrap();
    buffer.check("the largest broadcast", |i| given::<i32>(1, i, 2));
    let (next, previous) = (Rank((me + 1) % n), Rank((me + n - 1) % n));
    let mut sent = Guarded::<f32>::new(LARGEST, |i| given::<f32>(me, i, 3));
    let mut received = Guarded::<f32>::new(LARGEST, |_| 97);
    let mut group = comm.group();
    group.send(sent.all(), next).recv(received.all(), previous);
    group.run().unwrap();
    received.check("the largest send and receive", |i| given::<f32>(previous.0, i, 3));
}

fn check(transport: &str, algorithm: &str, ranks: impl IntoIterator<Item = u32>) {
    let mut cases = 0;
    for n in ranks {
        let settings = common::settings(&[
            (Key::Transport, transport),
            (Key::Algorithm, algorithm),
            (Key::Observe, "0"),
        ]);
        let counted = common::with_ranks(n, &settings, |comm| {
            let mut cases = 0;
            all::<f32>(&comm, &mut cases);
            all::<f64>(&comm, &mut cases);
            all::<i32>(&comm, &mut cases);
            all::<i64>(&comm, &mut cases);
            all::<u8>(&comm, &mut cases);
            others(&comm, &mut cases);
            if is_long() && n > 1 {
                largest(&comm);
                cases += 3;
            }
            comm.finish().unwrap();
            cases
        });
        cases += counted.iter().sum::<u64>();
    }
    println!("cases: reference-{transport} {cases}");
}

#[test]
fn direct_between_ranks_of_one_process() {
    check("in-process", "", 1..=9);
}

#[test]
fn ring_over_pointers() {
    check("in-process", "ring", [2, 3, 5, 8]);
}

#[test]
fn direct_over_shared_memory() {
    check("shm", "", [2, 3, 7]);
}

#[test]
fn ring_over_shared_memory() {
    check("shm", "ring", [2, 5]);
}

#[test]
fn ring_over_queue_pairs() {
    let settings = common::settings(&[(Key::Transport, "verbs")]);
    if !ccl::transport::ib::port::scan(&settings)
        .unwrap()
        .is_ok_and(|ports| ports.iter().any(|port| port.unused.is_empty()))
    {
        return println!("skipped: ring_over_queue_pairs: needs a device for queue pairs");
    }
    check("verbs", "", 2..=5);
}

#[test]
fn ring_over_sockets() {
    check("socket", "", 2..=9);
}
