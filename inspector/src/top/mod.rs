//! `ccl-inspect top`: one line per rank and tick, until the job ends.

mod lines;
mod tick;

use std::time::Duration;

use ccl::clock;
use ccl::config::Settings;
use ccl::diagnose::{Counted, Given, merge};
use ccl::recorder::Reader;
use ccl::snapshot::Snapshot;

use crate::choose::{find, no_comm};
use crate::discover::{self, Found};
use crate::facts::{self, Begun};
use crate::members::JobMembers;
use crate::target::Target;
use crate::words;
use crate::{exit, look};
use tick::Tick;

/// The column headings are repeated after this many ticks.
const HEAD_EVERY: u64 = 20;

/// Print one line per rank at every tick: where it stands, its rate, and which rank it waits for
///
/// For logs and terminals without escape codes. Ends with the job.
#[derive(clap::Args, Debug)]
pub(crate) struct Top {
    /// A process, one rank of a process, or a job; not needed if there is only one job
    #[arg(value_name = "PID | PID:RANK | JOB")]
    target: Option<Target>,
    /// Time between two ticks, as 1s, 500ms or 2m
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = every)]
    every: Duration,
    /// Show only the communicators of this name or id, and those that they wait for
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// End after this many ticks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one JSON object per tick, schema ccl.top/2
    #[arg(long)]
    json: bool,
}

/// The shortest time between two ticks: reading costs time, too.
const SHORTEST: Duration = Duration::from_millis(10);

fn every(text: &str) -> Result<Duration, String> {
    words::time(text).and_then(|time| if time < SHORTEST { Err("at least 10ms".into()) } else { Ok(time) })
}

impl Top {
    /// Prints ticks until the job has ended.
    ///
    /// # Errors
    /// The exit status and why there is nothing to print.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let mut watch = Watch::begin(self.target)?;
        let mut before: Option<(Counted, clock::Ns)> = None;
        let mut last: Option<Snapshot> = None;
        let mut ticks = 0;
        loop {
            let mut job = watch.look();
            if last.is_none() && job.wants_second_reading(watch.stall_ns()) {
                last = Some(job);
                clock::sleep(ccl::diagnose::BETWEEN);
                job = watch.look();
            }
            if watch.watched.is_empty() {
                return Err((exit::ERROR, format!("job {} ended just now", watch.members.job().id)));
            }
            if let Some(name) = &self.comm {
                job.narrow(name).map_err(|names| no_comm(name, &names))?;
            }
            job.judge(last.as_ref(), watch.stall_ns());
            let (counted, now) = (Counted::of(&job), clock::now());
            let since = before.as_ref().map(|(counted, then)| (counted, now.since(*then)));
            let status = exit::status(&job);
            let tick = Tick::new(&job, &counted, since);
            let text = if self.json {
                serde_json::to_string(&tick).map_err(|e| (exit::ERROR, format!("writing JSON: {e}")))? + "\n"
            } else {
                let head = if ticks % HEAD_EVERY == 0 { lines::HEAD } else { "" };
                head.to_string() + &lines::lines(&tick, &job)
            };
            if !exit::say_more(&text)? {
                return Ok(exit::OK);
            }
            ticks += 1;
            if watch.has_ended() || self.count == Some(ticks) {
                return Ok(status);
            }
            before = Some((counted, now));
            last = Some(job);
            clock::sleep(self.every);
        }
    }
}

/// The open recorders of a job.
struct Watch {
    settings: Settings,
    members: JobMembers,
    watched: Vec<(Found, Reader)>,
    /// What /proc said of their processes at the last look, if something waited.
    begun: Option<Begun>,
    /// Whether all ranks had been found at the last look.
    complete: bool,
}

impl Watch {
    fn begin(target: Option<Target>) -> Result<Self, (u8, String)> {
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let (_, job) = find(&settings, target)?;
        Ok(Self { settings, members: JobMembers::of(job), watched: Vec::new(), begun: None, complete: false })
    }

    /// Reads all of them.
    fn look(&mut self) -> Snapshot {
        if !self.complete {
            self.watched.extend(self.members.newcomers(discover::everything(&self.settings)));
        }
        self.watched.iter_mut().for_each(|(found, reader)| found.reread(reader));
        if let Some(before) = self.begun.take() {
            before.tell(&mut self.watched.iter_mut().map(|(found, _)| found).collect::<Vec<_>>());
        }
        let given: Vec<Given> = self.watched.iter().map(|(found, _)| found.given.clone()).collect();
        let job = merge(&given, self.members.job(), self.members.unreachable());
        self.complete = job.complete;
        // Two readings say what a process does; only what waits for long needs that.
        if job.wants_second_reading(self.stall_ns()) {
            self.begun = Some(facts::begin(self.watched.iter().map(|(found, _)| found)));
        }
        job
    }

    fn stall_ns(&self) -> u64 {
        look::stall_ns_of(&self.settings, self.watched.iter().map(|(found, _)| found))
    }

    /// Whether all of its processes are dead.
    fn has_ended(&self) -> bool {
        self.watched.iter().all(|(found, _)| !found.given.process.alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_not_too_short() {
        assert_eq!(every("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(every("9ms"), Err("at least 10ms".into()));
        assert!(every("soon").is_err());
    }
}
