//! `ccl-inspect stack`: where the threads of a job's processes are, those of this kernel only.
//!
//! py-spy and gdb are asked where the user has them; else the kernel is. A debugger holds the
//! process for a moment, so a system call that it waits in may end with EINTR.

mod alike;
mod kernel;
mod safe;
mod tool;

use std::collections::BTreeMap;

use ccl::config::Settings;
use ccl::diagnose::{Given, Job, Numbers, merge};
use ccl::snapshot::{Missing, State};
use ccl::types::{JobId, Rank};
use serde::{Deserialize, Serialize};

use crate::choose::find;
use crate::discover::{self, Found};
use crate::target::Target;
use crate::{exit, process, words};
use tool::Tools;

/// The schema of [`Stacks`].
pub(crate) const SCHEMA: &str = "ccl.stack/1";
/// The most processes that are looked at together. A debugger needs a processor for seconds.
const AT_ONCE: usize = 4;

/// Show the stacks of a job's processes on this machine, those that are equal together
///
/// Asks py-spy (of Python programs) or gdb, if they are on the PATH, each process for 5 seconds at
/// most; else the kernel.
#[derive(clap::Args, Debug)]
pub(crate) struct Stack {
    /// A process, one rank of a process, or a job; not needed if there is only one job
    #[arg(value_name = "PID | PID:RANK | JOB")]
    target: Option<Target>,
    /// Show only the process of this rank of the job
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
    /// Print it as JSON, schema ccl.stack/1
    #[arg(long)]
    json: bool,
}

/// The stacks of a job's processes.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Stacks {
    /// The name of this schema.
    pub(crate) schema: String,
    /// The job.
    pub(crate) job: JobId,
    /// The stacks, those of the lowest ranks first.
    pub(crate) stacks: Vec<Alike>,
    /// The ranks whose stacks cannot be had here.
    pub(crate) missing: Vec<Elsewhere>,
}

/// A stack that several processes have.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Alike {
    /// The ranks of these processes in the job.
    pub(crate) ranks: Vec<Rank>,
    /// The processes, as seen from here.
    pub(crate) pids: Vec<u32>,
    /// Who was asked: `py-spy`, `gdb` or `kernel`.
    pub(crate) by: String,
    /// The stack of the first of them, line by line; addresses and thread numbers of the others
    /// differ.
    pub(crate) lines: Vec<String>,
    /// Why a better source was not used, and that a process is stopped, for those it concerns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

/// A rank whose stack cannot be had here.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Elsewhere {
    /// The rank in the job.
    pub(crate) rank: Rank,
    /// Its host; empty if unknown.
    pub(crate) host: String,
    /// Its pid in its own pid namespace; 0 if unknown.
    pub(crate) pid: u32,
    /// Why not.
    pub(crate) why: String,
    /// The command to type there; absent if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) command: String,
}

/// The stack of one process.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Seen {
    ranks: Vec<Rank>,
    pid: u32,
    by: &'static str,
    lines: Vec<String>,
    notes: Vec<String>,
}

impl Stack {
    /// Finds the job, looks at its processes, and prints their stacks.
    ///
    /// # Errors
    /// The exit status and why there is nothing to print.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let (mut findings, job) = find(&settings, self.target)?;
        let unreachable = discover::follow_peers(&mut findings, &job);
        let found: Vec<&Found> = findings.found.iter().filter(|one| one.is_of(&job)).collect();
        let given: Vec<Given> = found.iter().map(|one| one.given.clone()).collect();
        let is_meant = |rank: Rank| self.rank.is_none_or(|only| only == rank.0);

        let missing = merge(&given, &job, &unreachable).missing;
        let mut elsewhere: Vec<Elsewhere> =
            missing.into_iter().filter(|one| is_meant(one.rank)).map(not_here).collect();
        let mut here = Vec::new();
        for (one, ranks) in by_process(&job, &found) {
            let ranks: Vec<Rank> = ranks.into_iter().filter(|rank| is_meant(*rank)).collect();
            match (ranks.as_slice(), reachable(one)) {
                ([], _) => {}
                (_, Ok(pid)) => here.push((pid, ranks)),
                (_, Err((why, command))) => elsewhere.extend(ranks.into_iter().map(|rank| {
                    let (host, pid) = (one.given.process.host.clone(), one.given.process.pid);
                    Elsewhere { rank, host, pid, why: why.clone(), command: command.clone() }
                })),
            }
        }
        if let (Some(rank), true) = (self.rank, here.is_empty() && elsewhere.is_empty()) {
            return Err((exit::ERROR, format!("job {} has no rank {rank}", job.id)));
        }
        elsewhere.sort_by_key(|one| one.rank);
        let stacks = alike::merge(take(&here));
        let all = Stacks { schema: SCHEMA.into(), job: job.id, stacks, missing: elsewhere };
        let text = if self.json {
            serde_json::to_string(&all).map_err(|e| (exit::ERROR, format!("writing JSON: {e}")))? + "\n"
        } else {
            render(&all)
        };
        exit::say(&text)?;
        Ok(if all.missing.is_empty() { exit::OK } else { exit::INCOMPLETE })
    }
}

/// The processes of the job with their ranks, the lowest first.
fn by_process<'a>(job: &Job, found: &[&'a Found]) -> Vec<(&'a Found, Vec<Rank>)> {
    let numbers = Numbers::new(job, found.iter().map(|one| &one.given.process));
    let ranks = |one: &Found| {
        let process = &one.given.process;
        let mut ranks: Vec<Rank> = job.rows(process).map(|row| numbers.of_row(process, row)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    };
    let mut all: Vec<_> = found.iter().map(|one| (*one, ranks(one))).collect();
    all.sort_by(|(_, a), (_, b)| a.cmp(b));
    all
}

/// The pid of a process whose stack this user may have; else why not, and what to type instead.
fn reachable(one: &Found) -> Result<u32, (String, String)> {
    let refuse = |why: &str, command: String| Err((why.to_string(), command));
    let (process, me) = (&one.given.process, rustix::process::geteuid().as_raw());
    if !matches!(one.given.state(), State::Running | State::Stopped) {
        let letter = one.given.letter.map_or_else(String::new, |letter| format!(" (state {letter})"));
        return refuse(&format!("its process is {}{letter}", one.given.state()), String::new());
    }
    if one.process.is_none() && one.is_anothers() && me != 0 {
        return refuse(
            &format!(
                "its recorder is of {}: only that user and root can tell its process",
                words::user(one.owner)
            ),
            format!("sudo ccl-inspect stack {}", process.pid),
        );
    }
    let Some(pid) = one.process else {
        return refuse(
            "its process is not seen from here: it is of another pid namespace, or hidden",
            format!("ccl-inspect stack {}", process.pid),
        );
    };
    if process::stat(pid).is_none_or(|stat| process.start_ticks != 0 && stat.start != process.start_ticks) {
        return refuse("its process has just ended", String::new());
    }
    match process::owner(pid) {
        Some(user) if me != 0 && user != me => {
            refuse(&format!("it is of another user (uid {user})"), format!("sudo ccl-inspect stack {pid}"))
        }
        _ => Ok(pid),
    }
}

/// A rank that was not read at all: of another host, or with nothing here that tells of it.
fn not_here(missing: Missing) -> Elsewhere {
    let Missing { rank, host, pid, why } = missing;
    let command = if pid == 0 { String::new() } else { format!("ccl-inspect stack {pid}") };
    Elsewhere { rank, host, pid, why, command }
}

/// Takes the stacks of these processes.
fn take(here: &[(u32, Vec<Rank>)]) -> Vec<Seen> {
    let tools = Tools::of_path(&ccl::config::environment("PATH").unwrap_or_default());
    let at_once = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(AT_ONCE));
    let one = |(pid, ranks): &(u32, Vec<Rank>)| {
        let mut seen = tools.ask(*pid).unwrap_or_else(|notes| Seen {
            by: "kernel",
            lines: kernel::lines(*pid),
            notes,
            ..Seen::default()
        });
        (seen.pid, seen.ranks) = (*pid, ranks.clone());
        seen
    };
    let mut all = Vec::new();
    for some in here.chunks(at_once) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|this| scope.spawn(|| one(this))).collect();
            // A panic of one of them is ours, and leaves out its process.
            all.extend(threads.into_iter().filter_map(|thread| thread.join().ok()));
        });
    }
    all
}

fn render(all: &Stacks) -> String {
    let mut text = format!("job {}\n", all.job);
    for Alike { ranks, pids, by, lines, notes } in &all.stacks {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let processes = if pids.len() == 1 { "pid" } else { "pids" };
        text +=
            &format!("\n{}: {processes} {}, by {by}\n", ccl::diagnose::ranks_text(ranks), pids.join(", "));
        text.extend(lines.iter().map(|line| format!("  {line}\n")));
        text.extend(notes.iter().map(|note| format!("  note: {note}\n")));
    }
    // Those that differ only in rank and pid stand together.
    let mut missing: BTreeMap<(&str, &str), Vec<&Elsewhere>> = BTreeMap::new();
    for one in &all.missing {
        missing.entry((&one.host, &one.why)).or_default().push(one);
    }
    for ((host, why), those) in missing {
        let ranks: Vec<Rank> = those.iter().map(|one| one.rank).collect();
        let on = if host.is_empty() { String::new() } else { format!(" on {}", words::line(host)) };
        let ranks = ccl::diagnose::ranks_text(&ranks);
        text += &format!("\n{ranks}{on}: no stack: {}\n", words::line(why));
        let commands: std::collections::BTreeSet<&str> =
            those.iter().map(|one| one.command.as_str()).filter(|command| !command.is_empty()).collect();
        text.extend(commands.iter().map(|command| format!("  type there: {command}\n")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_without_a_stack_are_listed_with_reason_and_command() {
        let lost = |rank: u32, pid: u32, why: &str| {
            let (host, why) = ("far".to_string(), why.to_string());
            not_here(Missing { rank: Rank(rank), host, pid, why })
        };
        let stack = Alike {
            ranks: [0, 1, 2, 5].map(Rank).to_vec(),
            pids: vec![71, 72],
            by: "gdb".into(),
            lines: vec!["Thread 1".into(), "#0 a ()".into()],
            notes: vec!["n".into()],
        };
        let missing = vec![lost(3, 9, "not on this machine"), lost(4, 0, "nobody knows")];
        let all = Stacks { schema: SCHEMA.into(), job: JobId(7), stacks: vec![stack], missing };
        let expect = "job 0000000000000007\n\
                      \nranks 0-2,5: pids 71, 72, by gdb\n  Thread 1\n  #0 a ()\n  note: n\n\
                      \nrank 4 on far: no stack: nobody knows\n\
                      \nrank 3 on far: no stack: not on this machine\n  type there: ccl-inspect stack 9\n";
        assert_eq!(render(&all), expect);
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Stacks>(&json).unwrap(), all);
    }
}
