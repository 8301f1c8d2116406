//! Shows which rank is stuck, on which rank, why and since when: inspects running, hung and dead
//! ccl jobs, and launches them.

mod ask;
mod check;
mod choose;
mod discover;
mod doctor;
mod dump;
mod exit;
mod explain;
mod export;
mod facts;
mod gather;
mod look;
mod members;
mod pages;
mod process;
mod ps;
mod run;
mod saved;
mod search;
mod stack;
mod stragglers;
mod subject;
mod table;
mod target;
mod top;
mod trace;
mod tui;
mod words;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// Inspects running, hung and dead ccl jobs, and launches them.
#[derive(Parser, Debug)]
#[command(name = "ccl-inspect", version, after_help = exit::HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    Attach(tui::Attach),
    Ps(ps::Ps),
    Snapshot(look::Snapshot),
    Stalls(check::Stalls),
    Check(check::Check),
    Stragglers(stragglers::Stragglers),
    Explain(explain::Explain),
    Top(top::Top),
    Dump(dump::Dump),
    Open(look::Open),
    Trace(trace::Trace),
    Export(export::Export),
    Stack(stack::Stack),
    Run(run::Run),
    Doctor(doctor::Doctor),
    Completions(pages::Completions),
    Man(pages::Man),
    #[command(hide = true)]
    Hold(run::helper::Hold),
    #[command(hide = true)]
    Enter(run::helper::Enter),
}

/// Through /proc processes are found, and files opened safely.
fn proc_is_there() -> Result<(), (u8, String)> {
    match std::path::Path::new("/proc/self/stat").exists() {
        true => Ok(()),
        false => {
            Err((exit::ERROR, "there is no /proc here, which this needs: mount -t proc proc /proc".into()))
        }
    }
}

fn main() -> ExitCode {
    let verb = Cli::parse().verb;
    let needs_proc = !matches!(verb, Verb::Doctor(_) | Verb::Completions(_) | Verb::Man(_));
    let ready = if needs_proc { proc_is_there() } else { Ok(()) };
    let outcome = ready.and_then(|()| run(verb));
    let status = outcome.unwrap_or_else(|(status, why)| {
        // If standard error is closed, nothing else can be done.
        let _ = writeln!(std::io::stderr(), "ccl-inspect: {}", exit::harmless(&why));
        status
    });
    ExitCode::from(status)
}

/// Carries out what was asked for.
///
/// # Errors
/// The exit status, and why.
fn run(verb: Verb) -> Result<u8, (u8, String)> {
    match verb {
        Verb::Attach(attach) => attach.run(),
        Verb::Ps(ps) => ps.run(),
        Verb::Snapshot(snapshot) => snapshot.run(),
        Verb::Stalls(stalls) => stalls.run(),
        Verb::Check(check) => check.run(),
        Verb::Stragglers(stragglers) => stragglers.run(),
        Verb::Explain(explain) => explain.run(),
        Verb::Top(top) => top.run(),
        Verb::Dump(dump) => dump.run(),
        Verb::Open(open) => open.run(),
        Verb::Trace(trace) => trace.run(),
        Verb::Export(export) => export.run(),
        Verb::Stack(stack) => stack.run(),
        Verb::Run(run) => run.run(),
        Verb::Doctor(doctor) => doctor.run(),
        Verb::Completions(completions) => completions.run(&Cli::command()),
        Verb::Man(man) => man.run(&Cli::command()),
        Verb::Hold(hold) => Ok(hold.run()),
        Verb::Enter(enter) => Ok(enter.run()),
    }
}
