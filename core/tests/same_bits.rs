//! Results that were rounded: the same bits on all ranks, and in another run of the same calls.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says how many cases it ran"
)]

mod common;

use std::hash::{DefaultHasher, Hash, Hasher};

use ccl::config::Key;
use ccl::seed::Seed;
use ccl::{Communicator, Element, F8E4M3, F8E5M2, ReduceOp, Reduction, bf16, f16};

/// An element type whose sums are rounded.
trait Float: Element {
    fn of(value: f32) -> Self;
    fn bits(self) -> u64;
}
macro_rules! float {
    ($($t:ty: |$value:ident| $of:expr;)+) => {$(
        impl Float for $t {
            fn of($value: f32) -> Self { $of }
            fn bits(self) -> u64 { self.to_bits().into() }
        }
    )+};
}
float! {
    f32: |value| value;
    f64: |value| f64::from(value) / 3.0;
    f16: |value| Self::from_f32(value);
    bf16: |value| Self::from_f32(value);
    F8E4M3: |value| Self::from_f32(value);
    F8E5M2: |value| Self::from_f32(value);
}

/// One element, what is combined at once by all, and what is cut into many chunks.
const SIZES: [usize; 3] = [1, 97, 33_331];

/// The hash of the result of each all-reduce of rounded elements, with what it was.
fn results<T: Float>(comm: &Communicator, into: &mut Vec<(String, u64)>) {
    for count in SIZES {
        let mut draw = Seed(u64::from(comm.rank().0) << 32 | count as u64);
        let input: Vec<T> = (0..count).map(|_| T::of(1.5 * draw.signed_unit() as f32)).collect();
        let factor = Reduction::pre_mul_sum(T::of(1.0 + comm.rank().0 as f32 / 7.0));
        let plain = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg].map(Reduction::from);
        for (nth, how) in plain.into_iter().chain([factor]).enumerate() {
            let mut output = vec![T::of(0.0); count];
            comm.all_reduce(&input, &mut output, how).unwrap();
            let mut hash = DefaultHasher::new();
            output.iter().for_each(|element| element.bits().hash(&mut hash));
            into.push((format!("{} operator {nth} count {count}", T::DTYPE), hash.finish()));
        }
    }
}

fn all_results(transport: &str, algorithm: &str, nranks: u32) -> Vec<Vec<(String, u64)>> {
    let settings =
        common::settings(&[(Key::Transport, transport), (Key::Algorithm, algorithm), (Key::Observe, "0")]);
    common::with_ranks(nranks, &settings, |comm| {
        let mut all = Vec::new();
        results::<f32>(&comm, &mut all);
        results::<f64>(&comm, &mut all);
        results::<f16>(&comm, &mut all);
        results::<bf16>(&comm, &mut all);
        results::<F8E4M3>(&comm, &mut all);
        results::<F8E5M2>(&comm, &mut all);
        comm.finish().unwrap();
        all
    })
}

#[test]
fn rounded_results_are_the_same_on_all_ranks_and_in_another_run() {
    let mut cases = 0;
    for (transport, algorithm) in
        [("in-process", ""), ("in-process", "direct"), ("shm", ""), ("socket", ""), ("socket", "tree")]
    {
        for nranks in [2, 3, 7] {
            let [one, other] = [(); 2].map(|()| all_results(transport, algorithm, nranks));
            for (rank, own) in one.iter().enumerate() {
                assert_eq!(own, &one[0], "{transport} {algorithm} rank {rank} of {nranks}");
                cases += own.len();
            }
            assert_eq!(one, other, "{transport} {algorithm}, {nranks} ranks, another run");
        }
    }
    println!("cases: same-bits {cases}");
}
