//! Blindly drawn runs at their long size: `truth [FIRST SEED] [SEEDS]`; a round has twenty.
//!
//! `truth healthy [FIRST SEED] [SEEDS]`: only healthy jobs, 25 snapshots each, every second one
//! beside a busy process. Prints what was drawn, what was reported, and each false statement.
//! `truth SEED 1` replays one.
#![expect(clippy::print_stdout, reason = "a program that prints what it finds")]

use std::process::ExitCode;

use ccl_tests::hosts::Hosts;
use ccl_tests::truth::{Draw, carry_out_all};

/// Three rounds.
const SEEDS: u64 = 60;
/// Jobs that give two hundred snapshots of each kind.
///
/// Each is inspected this often, and four times more while it does not answer.
const HEALTHY: (u64, usize) = (8, 21);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let is_healthy = arguments.next_if(|word| word == "healthy").is_some();
    let mut number = |default| arguments.next().map_or(Some(default), |word| word.parse().ok());
    let (Some(first), Some(seeds)) = (number(0), number(if is_healthy { HEALTHY.0 } else { SEEDS })) else {
        println!("usage: truth [healthy] [FIRST SEED] [SEEDS]");
        return ExitCode::from(2);
    };
    let hosts = Hosts::new();
    let draw = |seed| match is_healthy {
        true => Draw::healthy(seed, HEALTHY.1, hosts.is_some()),
        false => Draw::new(seed, hosts.is_some()),
    };
    let draws: Vec<Draw> = (first..first + seeds).map(draw).collect();
    let (text, wrong) = carry_out_all(&draws, hosts.as_ref());
    wrong.iter().for_each(|what| println!("WRONG {what}\n"));
    println!("{text}");
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
