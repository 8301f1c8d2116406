//! `ccl-inspect export`: what a job records, as OpenTelemetry spans, without a line in its program.

use std::path::PathBuf;
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::config::Settings;
use ccl::control::wire::Client;
use ccl_exporters::otel::{Endpoint, Exporter, Source};
use tokio::time::MissedTickBehavior;

use crate::choose::choose;
use crate::roll::Roll;
use crate::run::Signals;
use crate::target::Target;
use crate::words;
use crate::{attach, discover, exit};

/// How often the recorders are read. A file is copied to be read; the largest ring holds 4,096 operations.
const LOOK: Duration = Duration::from_millis(40);
/// How often members of the job are looked for that are not read yet.
const SEARCH: Duration = Duration::from_secs(1);
/// The longest the end waits for a collector that is slow.
const FAREWELL: Duration = Duration::from_secs(3);

/// Send what a job records as OpenTelemetry spans, until it ends
///
/// Begins with what its recorders still hold. At the end it prints what became of the spans, and how many events were overwritten
/// before they were read.
#[derive(clap::Args, Debug)]
pub(crate) struct Export {
    /// A process, one rank of a process, or a job; not needed where there is one job
    #[arg(value_name = "PID | PID:RANK | JOB")]
    target: Option<Target>,
    /// The collector, as http://host:4318
    #[arg(long, value_name = "URL", value_parser = Endpoint::at)]
    otlp: Endpoint,
    /// Raise the level of the job's processes for as long as this runs: 2 makes a span of every message
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(1..=2))]
    level: Option<u8>,
    /// Stop after so long, as 10s, 500ms or 2m; else when the job ends, or at Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = words::time)]
    time: Option<Duration>,
}

/// The recorders of a job that are read.
#[derive(Debug)]
struct Job {
    settings: Settings,
    sources: Vec<Source>,
    roll: Roll,
    /// The level asked for, and what keeps it: it is theirs only as long as these live.
    level: Option<u8>,
    leases: Vec<Client>,
    /// Why some of them could not be read to the end.
    troubles: Vec<String>,
}

impl Export {
    /// Exports; prints the account.
    ///
    /// # Errors
    /// The exit status and why nothing could be exported.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let findings = discover::everything(&settings);
        let id = choose(&findings, self.target)?;
        let mut job = Job {
            settings,
            roll: Roll::of(id),
            sources: Vec::new(),
            level: self.level,
            leases: Vec::new(),
            troubles: Vec::new(),
        };
        job.search(findings);
        let exporter = Exporter::start(&self.otlp).map_err(|why| (exit::ERROR, why))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| (exit::ERROR, format!("starting: {e}")))?;
        let end = self.time.map(|time| clock::now().after(time));
        runtime.block_on(job.export(&exporter, end)).map_err(|e| (exit::ERROR, e.to_string()))?;
        // Once more: what was recorded since.
        job.look(&exporter);
        let counts = exporter.finish(clock::now().after(FAREWELL));
        let before: u64 = job.sources.iter().map(Source::overwritten).sum();
        let mut text = format!("{counts}\n");
        if before > 0 {
            text += &format!("{before} events had been overwritten before the export began\n");
        }
        let missing = job.roll.missing();
        missing.iter().for_each(|who| text += &format!("not exported: {who}\n"));
        job.troubles.iter().for_each(|trouble| text += &format!("{trouble}\n"));
        exit::say(&text)?;
        Ok(match () {
            () if !counts.is_complete() => exit::LOSSES,
            () if !(missing.is_empty() && job.troubles.is_empty()) => exit::INCOMPLETE,
            () => exit::OK,
        })
    }
}

impl Job {
    /// Reads until the job or the time ends, or somebody interrupts.
    async fn export(&mut self, exporter: &Exporter, end: Option<Ns>) -> std::io::Result<()> {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut signals = Signals::new()?;
        let mut search = clock::now().after(SEARCH);
        loop {
            tokio::select! {
                _ = signals.next() => return Ok(()),
                _ = ticks.tick() => {}
            }
            // Asked before the look: what was recorded until then is read.
            let lives = self.sources.iter().any(Source::is_alive);
            self.look(exporter);
            let now = clock::now();
            if !lives || end.is_some_and(|end| now >= end) {
                return Ok(());
            }
            if now >= search {
                self.search(discover::everything(&self.settings));
                search = clock::now().after(SEARCH);
            }
        }
    }

    fn look(&mut self, exporter: &Exporter) {
        let (troubles, job) = (&mut self.troubles, self.roll.job());
        // One that cannot be read any more is given up: its file was cut, or is another one now.
        self.sources.retain_mut(|source| match source.look(exporter, Some(job)) {
            Ok(()) => true,
            Err(why) => {
                troubles.push(format!("not exported to the end: {why}"));
                false
            }
        });
    }

    /// Adds the members of the job that are not read yet.
    fn search(&mut self, findings: discover::Findings) {
        for (found, reader) in self.roll.newcomers(findings) {
            let program = found.process.map(|pid| PathBuf::from(format!("/proc/{pid}/exe")));
            let program = program.and_then(|link| std::fs::read_link(link).ok());
            let name = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
            self.sources.push(Source::attached(reader, &name.to_string_lossy()));
            match self.level.map(|level| attach::lease(&found, level)) {
                Some(Ok(client)) => self.leases.push(client),
                Some(Err(why)) => self.troubles.push(format!("exported at its own level: {why}")),
                None => {}
            }
        }
    }
}
