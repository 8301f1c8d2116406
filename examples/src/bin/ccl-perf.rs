//! Measures collectives and checks their results, like nccl-tests:
//! `ccl-inspect run -n 4 -- ccl-perf all_reduce -b 8 -e 128M -f 2`, or without a launcher
//! `ccl-perf all_reduce -t 4`. Its parts are in `examples/src/perf`.

use std::process::ExitCode;

use ccl_examples::perf::{self, Usage, options::Options};
use clap::Parser;

/// The exit status for wrong options, as clap has it.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    ccl_exporters::init_from_env();
    match perf::run(&Options::parse()) {
        Ok(report) if report.wrong().unwrap_or(0) == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            ccl_examples::complain(error.as_ref());
            if error.is::<Usage>() { USAGE.into() } else { ExitCode::FAILURE }
        }
    }
}
