//! A rank whose clock may be that of another host: calls all-reduce in steps, each in its own span.
//! Run it with `ccl-inspect run`.
//!
//! `traced [--subscriber WHICH] STEPS MILLISECONDS [OFFSET_NS PPB]...`: the number of steps and the
//! time between them; then for each rank how far its clock is ahead and how much too fast it runs.
//! WHICH: the program has a subscriber of its own, which has ccl's `layer`, also under a filter
//! (`filtered`), or is `plain`.

#![allow(clippy::unwrap_used, reason = "a program of the tests ends where it cannot go on")]

use std::time::Duration;

use ccl::{Communicator, ReduceOp, clock, config};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let own = (words.first().is_some_and(|word| word == "--subscriber"))
        .then(|| words.drain(..2).next_back().expect("which subscriber"));
    let numbers: Vec<i64> = words.iter().map(|word| word.parse().unwrap()).collect();
    let [steps, apart, skews @ ..] = numbers.as_slice() else {
        panic!("usage: traced STEPS MILLISECONDS ...")
    };
    let rank: usize = config::environment("RANK").unwrap().parse().unwrap();
    if let Some([offset, ppb]) = skews.as_chunks().0.get(rank) {
        clock::skew(*offset, *ppb);
    }
    match own.as_deref() {
        None => {}
        Some("layer") => tracing_subscriber::registry().with(ccl_exporters::trace::layer()).init(),
        Some("filtered") => {
            let filter = tracing_subscriber::EnvFilter::new("warn");
            tracing_subscriber::registry().with(filter).with(ccl_exporters::trace::layer()).init();
        }
        Some("plain") => tracing_subscriber::registry().init(),
        Some(other) => panic!("no subscriber is called {other}"),
    }
    ccl_exporters::init_from_env();
    let comm = Communicator::from_env().unwrap();
    for step in 0..*steps {
        let _span = tracing::info_span!("step", number = step).entered();
        comm.tag(&format!("step {step}"));
        let mut data = vec![1.0f32; if step % 2 == 0 { 2 } else { 5_000 }];
        comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        clock::sleep(Duration::from_millis(*apart as u64));
    }
    comm.finish().unwrap();
}
