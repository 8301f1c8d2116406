//! One rank is late at every step. Only the caller knows which:
//! `ccl-inspect run -n 4 -- straggler --straggler 2:40`.
#![expect(clippy::print_stdout, reason = "a program that prints how long its calls took")]

use std::process::ExitCode;

use ccl::{Communicator, clock};
use ccl_examples::calls::{Call, call};
use ccl_examples::drawn::{self, Straggler};
use clap::Parser;

#[derive(Parser, Debug)]
struct Arguments {
    /// The rank that is late, and by how many milliseconds; else EXAMPLE_STRAGGLER.
    #[arg(long, value_name = "RANK:MS")]
    straggler: Option<Straggler>,
    /// The call to make.
    #[arg(long, value_enum, default_value = "all-reduce")]
    call: Call,
    /// The number of calls.
    #[arg(long, default_value_t = 100)]
    calls: u64,
    /// Elements per rank.
    #[arg(long, default_value_t = 4096)]
    count: usize,
    /// Milliseconds each rank works between two calls.
    #[arg(long, default_value_t = 10)]
    work_ms: u64,
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let straggler = drawn::straggler(arguments.straggler)?;
    let comm = Communicator::from_env()?;
    let mut inside_ns = 0;
    for at in 1..=arguments.calls {
        drawn::work(&comm, arguments.work_ms, straggler);
        comm.tag(&format!("call {at}"));
        let begin = clock::now();
        call(&comm, arguments.call, arguments.count, at)?;
        inside_ns += clock::now().since(begin).as_nanos() as u64;
    }
    let mean_us = inside_ns as f64 / 1e3 / arguments.calls.max(1) as f64;
    println!("rank {}: {} calls, {mean_us:.0} us inside each", comm.rank(), arguments.calls);
    Ok(comm.finish()?)
}

fn main() -> ExitCode {
    ccl_exporters::init_from_env();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ccl_examples::complain(error.as_ref());
            ExitCode::FAILURE
        }
    }
}
