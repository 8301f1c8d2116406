//! Who is stuck, on whom, why, since when: looks into running, hung and dead ccl jobs, and launches them.

mod exit;
mod process;
mod run;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

/// Looks into running, hung and dead ccl jobs, and launches them.
#[derive(Parser, Debug)]
#[command(name = "ccl-inspect", version, after_help = exit::HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    Run(run::Run),
    #[command(hide = true)]
    Hold(run::helper::Hold),
    #[command(hide = true)]
    Enter(run::helper::Enter),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().verb {
        Verb::Run(run) => run.run(),
        Verb::Hold(hold) => Ok(hold.run()),
        Verb::Enter(enter) => Ok(enter.run()),
    };
    let status = outcome.unwrap_or_else(|(status, why)| {
        // Nothing else can be done where standard error is gone.
        let _ = writeln!(std::io::stderr(), "ccl-inspect: {why}");
        status
    });
    ExitCode::from(status)
}
