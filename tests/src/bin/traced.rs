//! A rank whose clock may be another host's: calls all-reduce in steps, each in a span of its own. Run it by `ccl-inspect run`.
//!
//! `traced STEPS MILLISECONDS [OFFSET_NS PPB]...`: so many steps, so far apart; then for each rank how far its clock is ahead and
//! how much too fast it runs.

#![allow(clippy::unwrap_used, reason = "a program of the tests ends where it cannot go on")]

use std::time::Duration;

use ccl::{Communicator, ReduceOp, clock, config};

fn main() {
    let numbers: Vec<i64> = std::env::args().skip(1).map(|word| word.parse().unwrap()).collect();
    let [steps, apart, skews @ ..] = numbers.as_slice() else {
        panic!("usage: traced STEPS MILLISECONDS ...")
    };
    let rank: usize = config::environment("RANK").unwrap().parse().unwrap();
    if let Some([offset, ppb]) = skews.as_chunks().0.get(rank) {
        clock::skew(*offset, *ppb);
    }
    ccl_exporters::init_from_env();
    let comm = Communicator::from_env().unwrap();
    for step in 0..*steps {
        let _span = tracing::info_span!("step", number = step).entered();
        let mut data = vec![1.0f32; if step % 2 == 0 { 2 } else { 5_000 }];
        comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        clock::sleep(Duration::from_millis(*apart as u64));
    }
    comm.finish().unwrap();
}
