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
use ccl::{Element, F8E4M3, F8E5M2, Rank, ReduceOp, Reduction, Region, bf16, f16};

/// An element whose reference results are exact: small integers.
trait Number: Element + PartialEq + Debug {
    /// As many different numbers are given. The sum of those of nine ranks is exact, or wraps: of
    /// 0 and 1, which ranks give in turn, it is at most 5.
    const GIVEN: u64;
    /// Whether averages of any number of ranks are known exactly, else only those of a power of
    /// two.
    const AVERAGES: bool = true;
    fn of(n: i64) -> Self;
    /// This sum, divided by a number of ranks.
    fn average(sum: i64, ranks: u32) -> Self;
}
macro_rules! number {
    ($given:literal, $averages:literal, |$n:ident| $from:expr, |$sum:ident, $ranks:ident| $average:expr, $($t:ty),+) => {$(
        impl Number for $t {
            const GIVEN: u64 = $given;
            const AVERAGES: bool = $averages;
            fn of($n: i64) -> Self { $from }
            fn average($sum: i64, $ranks: u32) -> Self { $average }
        }
    )+};
}
number!(17, true, |n| n as Self, |sum, n| sum as Self / n as Self, f32, f64, i8, i32, i64, u8, u32, u64);
number!(17, true, |n| Self::from_f32(n as f32), |sum, n| Self::from_f32(sum as f32 / n as f32), bf16);
number!(17, false, |n| Self::from_f32(n as f32), |sum, n| Self::from_f32(sum as f32 / n as f32), f16);
number!(
    2,
    false,
    |n| Self::from_f32(n as f32),
    |sum, n| Self::from_f32(sum as f32 / n as f32),
    F8E4M3,
    F8E5M2
);

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

/// The factor of a rank, of a pre-multiplied sum.
const fn factor(rank: u32) -> i64 {
    1 + rank as i64 % 2
}

/// How a rank passes an operator.
fn reduction<T: Number>(op: ReduceOp, rank: u32) -> Reduction<T> {
    if op == ReduceOp::PreMulSum { Reduction::pre_mul_sum(T::of(factor(rank))) } else { op.into() }
}

/// The operators whose results are known exactly.
fn operators<T: Number>(nranks: u32) -> impl Iterator<Item = ReduceOp> {
    let is_exact = T::AVERAGES || nranks.is_power_of_two();
    ReduceOp::ALL.iter().copied().filter(move |op| is_exact || *op != ReduceOp::Avg)
}

fn reduced<T: Number>(nranks: u32, index: usize, round: u64, op: ReduceOp) -> T {
    let all = (0..nranks).map(|rank| term::<T>(op, rank, index, round));
    T::of(match op {
        ReduceOp::Sum => all.sum(),
        ReduceOp::Prod => all.product(),
        ReduceOp::Min => all.min().unwrap(),
        ReduceOp::Max => all.max().unwrap(),
        ReduceOp::PreMulSum => (0..).zip(all).map(|(rank, term)| factor(rank) * term).sum(),
        ReduceOp::Avg => return T::average(all.sum(), nranks),
    })
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
        self.is(what, |index| T::of(at(index)));
    }
    fn is(&self, what: &str, at: impl Fn(usize) -> T) {
        let len = self.0.len() - 2 * GUARD;
        for n in 0..GUARD {
            let guard = T::of(100 + n as i64);
            assert_eq!((self.0[n], self.0[GUARD + len + n]), (guard, guard), "guard {n} of {what}");
        }
        for n in 0..len {
            assert_eq!(self.0[GUARD + n], at(n), "element {n} of {len} of {what}");
        }
    }
}

fn reductions<T: Number>(comm: &Communicator, count: usize, round: u64, cases: &mut u64) {
    let (me, n) = (comm.rank().0, comm.nranks());
    for op in operators::<T>(n) {
        let how = reduction::<T>(op, me);
        let what = format!("{} {op} count {count} rank {me} of {n} round {round}", T::DTYPE);
        let mut input = Guarded::<T>::new(count, |i| term::<T>(op, me, i, round));
        let mut output = Guarded::<T>::new(count, |_| 99);
        comm.all_reduce(input.all(), output.all(), how).unwrap();
        output.is(&format!("all_reduce {what}"), |i| reduced::<T>(n, i, round, op));
        input.check(&format!("input of all_reduce {what}"), |i| term::<T>(op, me, i, round));
        comm.all_reduce_in_place(input.all(), how).unwrap();
        input.is(&format!("all_reduce_in_place {what}"), |i| reduced::<T>(n, i, round, op));

        let mut input = Guarded::<T>::new(count * n as usize, |i| term::<T>(op, me, i, round));
        let mut output = Guarded::<T>::new(count, |_| 99);
        let at = |i: usize| me as usize * count + i;
        comm.reduce_scatter(input.all(), output.all(), how).unwrap();
        output.is(&format!("reduce_scatter {what}"), |i| reduced::<T>(n, at(i), round, op));
        comm.reduce_scatter_in_place(input.all(), how).unwrap();
        let in_own = |own: std::ops::Range<usize>, i: usize| {
            if own.contains(&i) { reduced::<T>(n, i, round, op) } else { T::of(term::<T>(op, me, i, round)) }
        };
        input.is(&format!("reduce_scatter_in_place {what}"), |i| in_own(at(0)..at(count), i));

        let counts = uneven(n, count, round);
        let (from, total) = (counts[..me as usize].iter().sum::<usize>(), counts.iter().sum());
        let own = counts[me as usize];
        let mut input = Guarded::<T>::new(total, |i| term::<T>(op, me, i, round));
        let mut output = Guarded::<T>::new(own, |_| 99);
        comm.reduce_scatter_uneven(input.all(), output.all(), &counts, how).unwrap();
        output.is(&format!("reduce_scatter_uneven {what}"), |i| reduced::<T>(n, from + i, round, op));
        comm.reduce_scatter_uneven_in_place(input.all(), &counts, how).unwrap();
        input.is(&format!("reduce_scatter_uneven_in_place {what}"), |i| in_own(from..from + own, i));

        let root = Rank((round % u64::from(n)) as u32);
        let is_root = comm.rank() == root;
        let mut input = Guarded::<T>::new(count, |i| term::<T>(op, me, i, round));
        let mut output = Guarded::<T>::new(count, |_| 99);
        comm.reduce(input.all(), output.all(), how, root).unwrap();
        let or = |other, i| if is_root { reduced::<T>(n, i, round, op) } else { T::of(other) };
        output.is(&format!("reduce {what}"), |i| or(99, i));
        comm.reduce_in_place(input.all(), how, root).unwrap();
        input.is(&format!("reduce_in_place {what}"), |i| or(term::<T>(op, me, i, round), i));
        *cases += 8;
    }
}

/// Counts of blocks that differ, around `count`: one is 0, and one the double.
fn uneven(nranks: u32, count: usize, round: u64) -> Vec<usize> {
    let n = nranks as usize;
    let zero = round as usize % n;
    let count = |rank: usize| match (rank + n - zero) % n {
        0 => 0,
        1 => 2 * count,
        ahead => count / ahead + ahead,
    };
    (0..n).map(count).collect()
}

/// The elements that one rank sends another in an uneven all-to-all.
fn pair_count(from: u32, to: u32, count: usize, round: u64) -> usize {
    match (u64::from(from) * 5 + u64::from(to) * 3 + round) % 4 {
        0 => 0,
        1 => count,
        2 => 2 * count + 1,
        _ => count / 3,
    }
}

/// The calls with a block for each rank that combine nothing.
fn exchanges<T: Number>(comm: &Communicator, count: usize, round: u64, cases: &mut u64) {
    let (me, n) = (comm.rank().0, comm.nranks());
    let what = format!("{} count {count} rank {me} of {n} round {round}", T::DTYPE);
    let (me_at, ranks) = (me as usize, n as usize);
    // What `from` gives as its element `at`.
    let given = |from: usize, at: usize| given::<T>(from as u32, at, round);

    let counts = uneven(n, count, round);
    let starts: Vec<usize> = (0..=ranks).map(|rank| counts[..rank].iter().sum()).collect();
    let gathered = |i: usize| {
        let from = (0..ranks).rfind(|rank| starts[*rank] <= i && counts[*rank] > 0).unwrap();
        given(from, i - starts[from])
    };
    let mut input = Guarded::<T>::new(counts[me_at], |i| given(me_at, i));
    let mut output = Guarded::<T>::new(starts[ranks], |_| 99);
    comm.all_gather_uneven(input.all(), output.all(), &counts).unwrap();
    output.check(&format!("all_gather_uneven {what}"), gathered);
    let own = starts[me_at]..starts[me_at + 1];
    let mut all = Guarded::<T>::new(starts[ranks], |i| if own.contains(&i) { gathered(i) } else { 98 });
    comm.all_gather_uneven_in_place(all.all(), &counts).unwrap();
    all.check(&format!("all_gather_uneven_in_place {what}"), gathered);

    let block = count.max(1);
    let mut input = Guarded::<T>::new(count * ranks, |i| given(me_at, i));
    let mut output = Guarded::<T>::new(count * ranks, |_| 99);
    let exchanged = |i: usize| given(i / block, me_at * count + i % block);
    comm.all_to_all(input.all(), output.all()).unwrap();
    output.check(&format!("all_to_all {what}"), exchanged);
    comm.all_to_all_in_place(input.all()).unwrap();
    input.check(&format!("all_to_all_in_place {what}"), exchanged);

    let sent: Vec<usize> = (0..n).map(|to| pair_count(me, to, count, round)).collect();
    let received: Vec<usize> = (0..n).map(|from| pair_count(from, me, count, round)).collect();
    let mut input = Guarded::<T>::new(sent.iter().sum(), |i| given(me_at, i));
    let mut output = Guarded::<T>::new(received.iter().sum(), |_| 99);
    comm.all_to_all_uneven(input.all(), &sent, output.all(), &received).unwrap();
    let wanted: Vec<i64> = (0..n)
        .flat_map(|from| {
            let before: usize = (0..me).map(|to| pair_count(from, to, count, round)).sum();
            (0..pair_count(from, me, count, round)).map(move |i| given(from as usize, before + i))
        })
        .collect();
    output.check(&format!("all_to_all_uneven {what}"), |i| wanted[i]);
    // In place, two ranks exchange as much.
    let counts: Vec<usize> = (0..n).map(|to| pair_count(me.min(to), me.max(to), count, round)).collect();
    let mut buffer = Guarded::<T>::new(counts.iter().sum(), |i| given(me_at, i));
    comm.all_to_all_uneven_in_place(buffer.all(), &counts).unwrap();
    let wanted: Vec<i64> = (0..n)
        .flat_map(|from| {
            let pair = move |to: u32| pair_count(from.min(to), from.max(to), count, round);
            let before: usize = (0..me).map(pair).sum();
            (0..pair(me)).map(move |i| given(from as usize, before + i))
        })
        .collect();
    buffer.check(&format!("all_to_all_uneven_in_place {what}"), |i| wanted[i]);
    *cases += 6;
    for root in 0..n {
        rooted::<T>(comm, (count, root), round, cases);
    }
}

fn rooted<T: Number>(comm: &Communicator, (count, root): (usize, u32), round: u64, cases: &mut u64) {
    let (me, n) = (comm.rank().0, comm.nranks() as usize);
    let what = format!("root {root} {} count {count} rank {me} of {n} round {round}", T::DTYPE);
    let (block, is_root) = (count.max(1), me == root);
    let given = |from: usize, at: usize| given::<T>(from as u32, at, round);
    let gathered = |i: usize| given(i / block, i % block);
    let whole = if is_root { count * n } else { 0 };
    let mut input = Guarded::<T>::new(count, |i| given(me as usize, i));
    let mut output = Guarded::<T>::new(whole, |_| 99);
    comm.gather(input.all(), output.all(), Rank(root)).unwrap();
    output.check(&format!("gather {what}"), gathered);
    let own = me as usize * count..(me as usize + 1) * count;
    let mut all = Guarded::<T>::new(if is_root { whole } else { count }, |i| match is_root {
        true if own.contains(&i) => gathered(i),
        true => 98,
        false => given(me as usize, i),
    });
    comm.gather_in_place(all.all(), Rank(root)).unwrap();
    all.check(
        &format!("gather_in_place {what}"),
        |i| {
            if is_root { gathered(i) } else { given(me as usize, i) }
        },
    );

    let mut input = Guarded::<T>::new(whole, |i| given(root as usize, i));
    let mut output = Guarded::<T>::new(count, |_| 99);
    comm.scatter(input.all(), output.all(), Rank(root)).unwrap();
    let scattered = |i: usize| given(root as usize, me as usize * count + i);
    output.check(&format!("scatter {what}"), scattered);
    let mut all = Guarded::<T>::new(if is_root { whole } else { count }, |i| {
        if is_root { given(root as usize, i) } else { 98 }
    });
    comm.scatter_in_place(all.all(), Rank(root)).unwrap();
    all.check(&format!("scatter_in_place {what}"), |i| {
        if is_root { given(root as usize, i) } else { scattered(i) }
    });
    *cases += 4;
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
        exchanges::<T>(comm, count, round as u64, cases);
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

/// Two ranks send each other what lies in regions, both at once: queue pairs lend those to their
/// devices. So do all pairs of ranks beside them; of an odd number one would have no peer.
fn swaps(comm: &Communicator, cases: &mut u64) {
    if !comm.nranks().is_multiple_of(2) {
        return;
    }
    let (me, peer) = (comm.rank().0, comm.rank().0 ^ 1);
    // The first time the link may not be up yet, which copies.
    for round in 0..2 {
        let region = |at: fn(u32, usize, u64) -> i64| {
            Region::new((0..1_000_000).map(|i| i32::of(at(me, i, round))).collect::<Vec<_>>())
        };
        let sent = comm.send_async(region(given::<i32>), Rank(peer)).unwrap();
        let received = comm.recv_async(region(|_, _, _| 96), Rank(peer)).unwrap().wait().unwrap();
        let sent = sent.wait().unwrap();
        for (rank, region) in [(me, &sent), (peer, &received)] {
            let wrong = (0..).zip(&region[..]).find(|(i, it)| **it != i32::of(given::<i32>(rank, *i, round)));
            assert_eq!(wrong, None, "rank {me}, what rank {rank} has sent in round {round}");
        }
        *cases += 1;
    }
}

/// An all-reduce, a broadcast, and a send and a receive, as long as buffers get here.
fn largest(comm: &Communicator) {
    let (me, n) = (comm.rank().0, comm.nranks());
    let mut input = Guarded::<f32>::new(LARGEST, |i| given::<f32>(me, i, 1));
    comm.all_reduce_in_place(input.all(), ReduceOp::Sum).unwrap();
    input.is("the largest all_reduce", |i| reduced::<f32>(n, i, 1, ReduceOp::Sum));
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
            swaps(&comm, &mut cases);
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
fn checksums_change_no_result() {
    for (transport, algorithm) in [("in-process", ""), ("shm", "ring"), ("socket", "")] {
        let settings = common::settings(&[
            (Key::Transport, transport),
            (Key::Algorithm, algorithm),
            (Key::Observe, "0"),
            (Key::Checksum, "1"),
        ]);
        let counted = common::with_ranks(3, &settings, |comm| {
            let mut cases = 0;
            sizes::<f32>(&comm, SIZES.into_iter(), &mut cases);
            sizes::<u8>(&comm, SIZES.into_iter(), &mut cases);
            comm.finish().unwrap();
            cases
        });
        println!("cases: checksums-{transport} {}", counted.iter().sum::<u64>());
    }
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
