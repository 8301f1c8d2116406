//! One rank does not make a call. Only the caller knows which rank and which call: `ccl-inspect run
//! -n 4 -- hang --victim 2 --at 5 --call broadcast --how sleep --seconds 600`.
#![expect(clippy::print_stdout, reason = "a program that prints what its victim does")]

use std::process::ExitCode;
use std::time::Duration;

use ccl::{Communicator, clock};
use ccl_examples::calls::{Call, call};
use clap::{Parser, ValueEnum};

#[derive(Parser, Debug)]
struct Arguments {
    /// The rank that does not make the call; none if there is no such rank.
    #[arg(long, default_value_t = u32::MAX, hide_default_value = true)]
    victim: u32,
    /// The number of the call it does not make, from 1.
    #[arg(long, default_value_t = 1)]
    at: u64,
    /// What the victim does instead.
    #[arg(long, value_enum, default_value = "sleep")]
    how: How,
    /// How long it sleeps before it makes the call after all, in seconds.
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// The call to make.
    #[arg(long, value_enum, default_value = "all-reduce")]
    call: Call,
    /// The number of calls; 0: until it is ended from outside.
    #[arg(long, default_value_t = 10)]
    calls: u64,
    /// Elements per rank.
    #[arg(long, default_value_t = 4096)]
    count: usize,
    /// Milliseconds each rank works between two calls.
    #[arg(long, default_value_t = 0)]
    work_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum How {
    /// It sleeps outside ccl.
    Sleep,
    /// It exits at once, with status 0.
    Exit,
    /// It calls a barrier where the others call something else.
    Mismatch,
}

fn run(arguments: &Arguments) -> ccl::Result<()> {
    let comm = Communicator::from_env()?;
    let me = comm.rank();
    println!("rank {me} is process {}", std::process::id());
    let mut at = 0;
    while arguments.calls == 0 || at < arguments.calls {
        at += 1;
        if arguments.work_ms > 0 {
            clock::sleep(Duration::from_millis(arguments.work_ms));
        }
        comm.tag(&format!("call {at}"));
        if me.0 == arguments.victim && at == arguments.at {
            println!("rank {me} does not come to call {at}: {:?}", arguments.how);
            match arguments.how {
                How::Sleep => clock::sleep(Duration::from_secs(arguments.seconds)),
                How::Exit => std::process::exit(0),
                How::Mismatch => comm.barrier()?,
            }
        }
        call(&comm, arguments.call, arguments.count, at)?;
    }
    println!("rank {me}: {at} calls");
    comm.finish()
}

fn main() -> ExitCode {
    ccl_exporters::init_from_env();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ccl_examples::complain(&error);
            ExitCode::FAILURE
        }
    }
}
