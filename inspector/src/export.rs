//! `ccl-inspect export`: what a job records, as OpenTelemetry spans, without a change to its
//! program.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::config::Settings;
use ccl_exporters::otel::{Account, Endpoint, Exporter, Source};
use tokio::time::MissedTickBehavior;

use crate::choose::find;
use crate::exit;
use crate::run::Signals;
use crate::search::{Met, Search};
use crate::target::Target;
use crate::words;

/// How often the recorders are read.
///
/// A file is copied to be read; the largest ring holds 4,096 operations.
const LOOK: Duration = Duration::from_millis(40);
/// The longest time that the end waits for a slow collector.
const FAREWELL: Duration = Duration::from_secs(3);

/// Send what a job records as OpenTelemetry spans, until it ends
///
/// OpenTelemetry's own variables set how spans are collected and sent; --otlp sets the address.
/// Begins with the events that the recorders still hold. At the end it prints what became of the
/// spans, and how many events were overwritten before they were read.
#[derive(clap::Args, Debug)]
pub(crate) struct Export {
    /// A process, one rank of a process, or a job; not needed if there is only one job
    #[arg(value_name = "PID | PID:RANK | JOB")]
    target: Option<Target>,
    /// The collector, as http://host:4318
    #[arg(long, value_name = "URL", value_parser = Endpoint::at)]
    otlp: Endpoint,
    /// Raise the level of the job's processes while this runs: 2 makes a span of every message
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(1..=2))]
    level: Option<u8>,
    /// Stop after this time, as 10s, 500ms or 2m; else when the job ends, or at Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = words::time)]
    time: Option<Duration>,
}

/// The recorders of a job that are read.
#[derive(Debug)]
struct Job {
    sources: Vec<Source>,
    /// Why some of them could not be read to the end.
    troubles: Vec<String>,
}

impl Export {
    /// Exports the spans and prints the account.
    ///
    /// # Errors
    /// The exit status and why nothing could be exported.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let (findings, id) = find(&settings, self.target)?;
        let mut search = Search::of(id, settings, self.level);
        let mut job = Job { sources: Vec::new(), troubles: Vec::new() };
        search.meet(findings).into_iter().for_each(|one| job.add(one));
        let exporter = Exporter::start(&self.otlp).map_err(|why| (exit::ERROR, why))?;
        for note in exporter.notes() {
            // If standard error is closed, there is no reader for the note.
            let _ = writeln!(std::io::stderr(), "ccl-inspect: {}", exit::harmless(note));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| (exit::ERROR, format!("starting: {e}")))?;
        let end = self.time.map(|time| clock::now().after(time));
        let search = runtime.block_on(job.export(search, &exporter, end));
        let search = search.map_err(|e| (exit::ERROR, e.to_string()))?;
        // Reads once more what was recorded since the last look.
        job.look(&exporter);
        let Account { counts, failure } = exporter.finish(clock::now().after(FAREWELL));
        let before: u64 = job.sources.iter().map(Source::overwritten).sum();
        let mut text = format!("{counts}\n");
        failure.iter().for_each(|why| text += &format!("not delivered: {}\n", words::line(why)));
        if before > 0 {
            text += &format!("{before} events had been overwritten before the export began\n");
        }
        job.troubles.extend(search.refused());
        let missing = search.missing();
        missing.iter().for_each(|who| text += &format!("not exported: {who}\n"));
        job.troubles.iter().for_each(|trouble| text += &format!("{}\n", words::line(trouble)));
        exit::say(&text)?;
        Ok(match () {
            () if !counts.is_complete() => exit::LOSSES,
            () if !(missing.is_empty() && job.troubles.is_empty()) => exit::INCOMPLETE,
            () => exit::OK,
        })
    }
}

impl Job {
    /// Reads until the job ends, the time is over, or a signal arrives.
    async fn export(
        &mut self,
        search: Search,
        exporter: &Exporter,
        end: Option<Ns>,
    ) -> std::io::Result<Search> {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut signals = Signals::new()?;
        let mut search = search.beside();
        while !search.is_over() {
            tokio::select! {
                _ = signals.next() => search.stop(),
                _ = ticks.tick() => {}
            }
            search.newcomers().into_iter().for_each(|one| self.add(one));
            // Asked before the look, so that everything recorded until then is read.
            let lives = self.sources.iter().any(Source::is_alive);
            self.look(exporter);
            if !lives || end.is_some_and(|end| clock::now() >= end) {
                search.stop();
            }
        }
        let (search, last) = search.end();
        last.into_iter().for_each(|one| self.add(one));
        Ok(search)
    }

    fn look(&mut self, exporter: &Exporter) {
        let troubles = &mut self.troubles;
        // A recorder that cannot be read any more is given up: its file was cut or replaced.
        self.sources.retain_mut(|source| match source.look(exporter) {
            Ok(()) => true,
            Err(why) => {
                troubles.push(format!("not exported to the end: {why}"));
                false
            }
        });
    }

    fn add(&mut self, (found, reader): Met) {
        let program = found.process.map(|pid| PathBuf::from(format!("/proc/{pid}/exe")));
        let program = program.and_then(|link| std::fs::read_link(link).ok());
        let name = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
        self.sources.push(Source::attached(reader, &name.to_string_lossy()));
    }
}
