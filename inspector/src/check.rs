//! `ccl-inspect check` and `ccl-inspect stalls`: the verdicts on a job, for scripts and for people.

use std::fmt::Write as _;

use ccl::diagnose::{render_gone, render_verdicts};
use ccl::snapshot::{Class, Snapshot, Standing, Verdict};
use ccl::types::JobId;
use serde::Serialize;

use crate::{exit, look, subject, words};

/// The schema of [`Told`].
const SCHEMA: &str = "ccl.verdicts/1";

/// Check a job: the exit status tells whether something is wrong with it
#[derive(clap::Args, Debug)]
pub(crate) struct Check {
    #[command(flatten)]
    of: Of,
    /// What counts as wrong, separated by commas; nothing else changes the exit status
    #[arg(long, value_name = "WHAT", value_delimiter = ',', default_value = "stall,mismatch,slow")]
    fail_on: Vec<Wrong>,
}

/// Show only what is wrong in a job: who is stuck, on whom, why, since when, and what to do next
#[derive(clap::Args, Debug)]
pub(crate) struct Stalls {
    #[command(flatten)]
    of: Of,
}

/// The job to look at.
#[derive(clap::Args, Debug)]
struct Of {
    /// A process, one rank of a process, a job, or files or a dump of one; not needed if there is
    /// only one job
    #[arg(value_name = "PID | PID:RANK | JOB | PATH")]
    target: Option<subject::Subject>,
    /// Show only the communicators of this name or id, and those that they wait for
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// Ask no process for what other hosts know: ranks that cannot be read here are missing
    #[arg(long)]
    no_gather: bool,
    /// Print it as JSON, schema ccl.verdicts/1
    #[arg(long)]
    json: bool,
}

/// What may be wrong with a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Wrong {
    /// A verdict says STALLED, also one that says MISMATCH: then the exit status is 11
    Stall,
    /// Ranks called different things, whether the verdict says STALLED or SUSPECT
    Mismatch,
    /// A rank or link holds up the others again and again
    Slow,
    /// Events were lost, or rows of a recorder
    Drop,
}

impl Check {
    /// Prints the verdicts that count.
    ///
    /// # Errors
    /// The exit status and why there is nothing to print.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let job = self.of.look()?;
        self.of.print(&job)?;
        Ok(status(&job, &self.fail_on))
    }
}

impl Stalls {
    /// Prints all verdicts.
    ///
    /// # Errors
    /// The exit status and why there is nothing to print.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let job = self.of.look()?;
        self.of.print(&job)?;
        Ok(exit::status(&job))
    }
}

impl Of {
    fn look(&self) -> Result<Snapshot, (u8, String)> {
        let looked = subject::look(self.target.as_ref(), self.comm.as_deref(), !self.no_gather)?;
        Ok(looked.job)
    }

    fn print(&self, job: &Snapshot) -> Result<(), (u8, String)> {
        exit::say(&if self.json { look::to_json(&Told::of(job))? } else { text(job) })
    }
}

/// The verdicts on a job.
#[derive(Serialize)]
struct Told<'a> {
    /// [`SCHEMA`].
    schema: &'static str,
    /// The public job id.
    job: JobId,
    /// Whether all ranks were read.
    complete: bool,
    /// When the last recorder was read, in nanoseconds since 1970.
    to_real_ns: u64,
    /// The verdicts, as in `ccl.snapshot/2`; empty if nothing is wrong.
    verdicts: &'a [Verdict],
}

impl<'a> Told<'a> {
    fn of(job: &'a Snapshot) -> Self {
        let Snapshot { complete, to_real_ns, verdicts, .. } = job;
        Self { schema: SCHEMA, job: job.job, complete: *complete, to_real_ns: *to_real_ns, verdicts }
    }
}

fn text(job: &Snapshot) -> String {
    let mut out = render_verdicts(job);
    let who = if job.complete { "all ranks" } else { "the ranks that were read" };
    if job.verdicts.is_empty() {
        let _ = writeln!(out, "HEALTHY: nothing is wrong with {who} of job {}", job.job);
    }
    if job.is_over() {
        out += &render_gone(job);
    }
    if !job.complete {
        let (read, known) = (job.ranks.len(), job.ranks.len() + job.missing.len());
        let _ = writeln!(out, "incomplete: {read} of {known} ranks were read");
    }
    for note in &job.notes {
        let _ = writeln!(out, "note: {}", words::line(note));
    }
    out
}

/// The exit status if only this counts as wrong.
fn status(job: &Snapshot, fail_on: &[Wrong]) -> u8 {
    let counts = |wrong| fail_on.contains(&wrong);
    let is_counted = |verdict: &&Verdict| {
        // A job that is slow goes on, however long that has lasted.
        let stands = verdict.standing == Standing::Stalled && verdict.class != Class::Slow;
        counts(Wrong::Stall) && stands
            || counts(Wrong::Mismatch) && verdict.class == Class::Mismatch
            || counts(Wrong::Slow) && verdict.class == Class::Slow
    };
    let mut counted = job.verdicts.iter().filter(is_counted).map(|verdict| verdict.class).peekable();
    let is_wrong = counted.peek().is_some();
    let drops = || job.ranks.iter().any(|rank| rank.overflow > 0 || rank.comms_without_row > 0);
    match () {
        // It says most, whatever it was counted for.
        () if counted.any(|class| class == Class::Mismatch) => exit::MISMATCH,
        () if is_wrong => exit::STALL,
        () if counts(Wrong::Drop) && drops() => exit::LOSSES,
        () if !job.complete => exit::INCOMPLETE,
        () => exit::OK,
    }
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::RankSnapshot;

    use super::*;

    #[test]
    fn only_what_is_asked_for_counts() {
        use Wrong::{Drop, Mismatch, Slow, Stall};
        let check_one = |class: Option<Class>, standing, fail_on: &[Wrong], expect| {
            let verdict = |class| Verdict { class, standing, ..Verdict::default() };
            let ranks = vec![RankSnapshot { overflow: 1, ..RankSnapshot::default() }];
            let verdicts = class.map(verdict).into_iter().collect();
            let job = Snapshot { complete: true, ranks, verdicts, ..Snapshot::default() };
            assert_eq!(status(&job, fail_on), expect, "{class:?} {standing:?} {fail_on:?}");
        };
        let check = |class, fail_on: &[Wrong], expect| check_one(class, Standing::Stalled, fail_on, expect);
        let suspect = |class, fail_on: &[Wrong], expect| check_one(class, Standing::Suspect, fail_on, expect);
        check(Some(Class::PeerDead), &[Stall], exit::STALL);
        check(Some(Class::PeerDead), &[Mismatch, Slow], exit::OK);
        check(Some(Class::Mismatch), &[Stall, Mismatch], exit::MISMATCH);
        check(Some(Class::Mismatch), &[Stall], exit::MISMATCH);
        check(Some(Class::Mismatch), &[Mismatch], exit::MISMATCH);
        check(Some(Class::Mismatch), &[Slow], exit::OK);
        suspect(Some(Class::Mismatch), &[Stall], exit::OK);
        suspect(Some(Class::Mismatch), &[Mismatch], exit::MISMATCH);
        suspect(Some(Class::PeerDead), &[Stall, Mismatch, Slow], exit::OK);
        check(Some(Class::Slow), &[Stall, Mismatch], exit::OK);
        check(Some(Class::Slow), &[Slow], exit::STALL);
        check(None, &[Stall, Mismatch, Slow], exit::OK);
        check(None, &[Drop], exit::LOSSES);
    }
}
