//! One rank of a job whose communicators are made from one another, shrunk, grown and revoked
//! (`ccl_tests::life`).
//!
//! Its only argument is the job. It reports what it does as lines of JSON ([`Line`]). It checks
//! what each all-reduce gives: every rank adds a bit of its own, so the sum says who took part.
//! `ccl-inspect run -n 8 -- life bench [TIMES]` measures instead how long it takes to make a
//! communicator.

mod bench;
mod courses;
mod tree;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use ccl::reactor::Service;
use ccl::{Communicator, ReduceOp, clock};
use ccl_tests::job::{Line, Possessions};
use ccl_tests::life::{Course, Life};
use rustix::process::{Signal, getpid, kill_process};

/// What a rank met that no course expects.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn say(line: &Line) {
    let text = serde_json::to_string(line).expect("a line is plain data");
    let mut out = std::io::stdout().lock();
    // If there is no reader, the test is over.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// An error that is not the library's.
fn wrong<T>(what: impl Into<String>) -> Outcome<T> {
    Err(what.into().into())
}

/// The ranks of the job that take part in an all-reduce over `comm`; this is `rank` of the job.
fn all_reduce(comm: &Communicator, rank: u32, count: usize) -> ccl::Result<Vec<u32>> {
    let factor = |at: usize| 1 + at as i64 % 5;
    let mut buffer: Vec<i64> = (0..count).map(|at| factor(at) << (8 * (rank % 4))).collect();
    // Eight bits for a rank: were one added twice, the sum would show it.
    let mut who = [0_i64; 4];
    who[rank as usize / 4] = 1 << (8 * (rank % 4));
    comm.all_reduce_in_place(&mut who, ReduceOp::Sum)?;
    comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
    let times = |other: u32| who[other as usize / 4] >> (8 * (other % 4)) & 0xff;
    let all: i64 = who.iter().sum();
    let is_right = (0..16).all(|other| times(other) <= 1);
    let is_right = is_right && buffer.iter().enumerate().all(|(at, sum)| *sum == factor(at) * all);
    // The data is the program's own, so this is a bug of ccl, and no course goes on.
    assert!(is_right, "comm {}: the sums are wrong: {who:x?}, {:x?}", comm.name(), buffer.first());
    Ok((0..16).filter(|other| times(*other) == 1).collect())
}

/// Reports an all-reduce over `comm`.
fn report(comm: &Communicator, rank: u32, count: usize) -> ccl::Result<Vec<u32>> {
    let ranks = all_reduce(comm, rank, count)?;
    say(&Line::Reduced { comm: comm.name().to_string(), ranks: ranks.clone() });
    Ok(ranks)
}

/// Reports the moment at which this rank does what the others must notice.
fn deviate() {
    say(&Line::Deviates { at_ns: clock::now().0 });
}

/// Kills this process.
fn die() {
    // No process survives this.
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Kills this process in a while, whatever it does then.
fn die_after(delay: Duration) {
    std::thread::spawn(move || {
        clock::sleep(delay);
        deviate();
        die();
    });
}

fn live(life: &Life, rank: u32) -> Outcome {
    if rank >= life.nranks {
        return courses::join(life, rank);
    }
    let world = Communicator::from_env()?;
    match &life.course {
        Course::Tree => tree::live(life, world),
        Course::Shrink { second, droppers } => {
            courses::shrink(life, world, *second, droppers.contains(&rank))
        }
        Course::Grow { teller, outlives } => courses::grow(life, world, *teller, *outlives),
        Course::Revoke { exclude, stay_ms } => courses::revoke(life, world, exclude, *stay_ms),
        Course::Split { dies, inside, colours } => courses::split(life, world, (*dies, *inside), *colours),
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let lived = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["bench"] => bench::bench(50),
        ["bench", times] => {
            times.parse().map_or_else(|error| wrong(format!("{times}: {error}")), bench::bench)
        }
        [job] => match serde_json::from_str::<Life>(job) {
            Ok(life) => one_of_a_job(&life),
            Err(error) => wrong(error.to_string()),
        },
        _ => wrong("usage: life JOB | life bench [TIMES]"),
    };
    match lived {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&Line::Note { text: error.to_string() });
            ExitCode::FAILURE
        }
    }
}

fn one_of_a_job(life: &Life) -> Outcome {
    // The service thread's descriptor belongs to the process and stays.
    let _ = Service::get();
    let before = Possessions::now();
    let rank = ccl::config::environment("RANK").and_then(|rank| rank.parse().ok()).unwrap_or(0);
    let lived = live(life, rank);
    say(&Line::Left { left_over: before.left_over() });
    lived
}
