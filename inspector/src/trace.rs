//! `ccl-inspect trace`: what a job does for a while, as one Chrome trace of all its ranks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccl::clock;
use ccl::config::Settings;
use ccl::error::ErrorKind;
use ccl::recorder::reader::Reader;
use ccl::types::JobId;
use ccl_exporters::trace::{Merged, Pace, Part, merge};

use crate::choose::choose;
use crate::discover;
use crate::exit;
use crate::run::Signals;
use crate::search::Search;
use crate::target::Target;
use crate::words;

/// The level at which messages and waits are recorded.
const STEPS: u8 = 2;

/// Trace all ranks of a job for a while, for Perfetto or chrome://tracing
#[derive(clap::Args, Debug)]
pub(crate) struct Trace {
    /// A process, one rank of a process, or a job; not needed where there is one job. Of a folder, a job
    #[arg(value_name = "PID | PID:RANK | JOB")]
    target: Option<Target>,
    /// How long, as in 2s or 500ms; ends earlier where the job does, or at Ctrl-C
    #[arg(long = "for", value_name = "TIME", default_value = "2s", value_parser = words::time)]
    time: Duration,
    /// Where to write the trace
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// Merge what the processes of a job wrote themselves, with CCL_TRACE=FOLDER, instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "time")]
    folder: Option<PathBuf>,
    /// Print what was traced as JSON
    #[arg(long)]
    json: bool,
}

impl Trace {
    /// Records, merges, and says what came of it.
    ///
    /// # Errors
    /// The exit status and why there is no trace.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let (merged, mut notes) = match &self.folder {
            Some(folder) => (merged(folder, &self.output, self.job()?)?, Vec::new()),
            None => self.record()?,
        };
        notes.extend_from_slice(&merged.notes);
        notes.iter_mut().for_each(|note| *note = words::line(note));
        exit::say(&if self.json {
            to_json(&merged, &self.output, &notes)
        } else {
            said(&merged, &self.output, &notes)
        })?;
        Ok(match () {
            () if merged.lost > 0 => exit::LOSSES,
            () if !notes.is_empty() => exit::INCOMPLETE,
            () => exit::OK,
        })
    }

    /// The job whose parts are meant, if one is named.
    fn job(&self) -> Result<Option<JobId>, (u8, String)> {
        match self.target {
            None => Ok(None),
            Some(Target::Job(job)) => Ok(Some(job)),
            Some(_) => Err((exit::USAGE, "of the parts in a folder, a job is named by its 16 digits".into())),
        }
    }

    fn record(&self) -> Result<(Merged, Vec<String>), (u8, String)> {
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let asked = asked_to_end().map_err(|e| (exit::ERROR, format!("listening for signals: {e}")))?;
        let findings = discover::everything(&settings);
        let job = choose(&findings, self.target)?;
        let mut search = Search::of(job, settings, Some(STEPS));
        let mut recording = Recording { folder: Parts::beside(&self.output)?, ..Recording::default() };
        for (_, reader, _) in search.meet(findings) {
            recording.add(reader);
        }
        let until = clock::now().after(self.time);
        let search = recording.follow(search, || asked.load(Ordering::Relaxed) || clock::now() >= until);
        let Recording { folder, mut notes, .. } = recording;
        notes.extend(search.missing().into_iter().map(|who| format!("not traced: {who}")));
        notes.extend(search.refused());
        match merged(&folder.0, &self.output, Some(search.job())) {
            Ok(merged) => Ok((merged, notes)),
            Err((status, why)) => {
                let kept =
                    (!folder.is_empty()).then(|| format!("the parts stay in {}", folder.keep().display()));
                let told = [vec![why], notes, kept.into_iter().collect()].concat();
                let told: Vec<String> = told.iter().map(|one| words::line(one)).collect();
                Err((status, told.join("\n")))
            }
        }
    }
}

/// Whether a signal has asked for the end. The second one ends this program at once.
fn asked_to_end() -> std::io::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::new()?
    };
    let asked = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&asked);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(signals.next());
        tell.store(true, Ordering::Relaxed);
        let second = runtime.block_on(signals.next());
        std::process::exit(128 + second.as_raw());
    })?;
    Ok(asked)
}

/// The parts that are being written. What goes wrong with one is noted and ends that one only.
#[derive(Default, Debug)]
struct Recording {
    folder: Parts,
    parts: Vec<Part>,
    notes: Vec<String>,
}

impl Recording {
    fn add(&mut self, reader: Reader) {
        let name = reader.path().unwrap_or_else(|| Path::new("")).display().to_string();
        match Part::attached(reader, &self.folder.0) {
            Ok(part) => self.parts.push(part),
            Err(why) => self.notes.push(format!("{name} is not traced: {why}")),
        }
    }

    /// Writes all parts until it `is_over` or no process is left, and ends them.
    fn follow(&mut self, search: Search, is_over: impl Fn() -> bool) -> Search {
        let mut search = search.beside();
        let mut pace = Pace::default();
        while !search.is_over() {
            search.newcomers().into_iter().for_each(|(_, reader, _)| self.add(reader));
            let most = self.drain();
            if is_over() || self.parts.is_empty() {
                search.stop();
            }
            clock::sleep(pace.after(most));
        }
        let (search, last) = search.end();
        last.into_iter().for_each(|(_, reader, _)| self.add(reader));
        for part in std::mem::take(&mut self.parts) {
            self.end(part);
        }
        search
    }

    /// Writes what is new; how many events the busiest part had.
    fn drain(&mut self) -> usize {
        let mut most = 0;
        for mut part in std::mem::take(&mut self.parts) {
            // Asked before: what was recorded until its end is written.
            let lives = part.is_alive();
            match part.drain() {
                Ok(count) if lives => {
                    most = most.max(count);
                    self.parts.push(part);
                }
                Ok(_) => self.end(part),
                Err(why) => self.notes.push(format!("not traced to the end: {why}")),
            }
        }
        most
    }

    fn end(&mut self, part: Part) {
        if let Err(why) = part.finish() {
            self.notes.push(format!("not traced to the end: {why}"));
        }
    }
}

/// The folder of the parts, beside the trace; gone with its owner. Should this program be killed, it stays, and each part is readable.
#[derive(Default, Debug)]
struct Parts(PathBuf);

impl Parts {
    fn beside(output: &Path) -> Result<Self, (u8, String)> {
        let mut name = output.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".parts-{}", std::process::id()));
        let folder = output.with_file_name(name);
        std::fs::create_dir(&folder)
            .map_err(|e| (exit::ERROR, format!("making {}: {e}", folder.display())))?;
        Ok(Self(folder))
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).is_ok_and(|mut entries| entries.next().is_none())
    }

    /// Leaves it where it is.
    fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // What stays behind is harmless and has a name that says what it is; one that is kept has no path here any more.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn merged(folder: &Path, output: &Path, job: Option<JobId>) -> Result<Merged, (u8, String)> {
    merge(folder, output, job).map_err(|e| match e.kind {
        ErrorKind::Usage => (exit::USAGE, e.to_string()),
        _ => (exit::ERROR, e.to_string()),
    })
}

fn said(merged: &Merged, output: &Path, notes: &[String]) -> String {
    let Merged { parts, unfinished, slices, arrows, only_sent, only_taken, taken, lost, .. } = merged;
    let error = merged.error_ns.map_or_else(
        || "not known: for some rank no message tells".into(),
        |ns| format!("{}.{:03} us", ns / 1000, ns % 1000),
    );
    let mut text = format!(
        "{}: {parts} processes ({unfinished} without their end), {slices} slices, {arrows} arrows\n\
         clock error between ranks: {error}; the worst arrow runs backwards by {} ns\n\
         messages counted by the ranks: {taken}; seen on one side only: {only_sent} sent, {only_taken} taken; events lost: {lost}\n\
         open it in https://ui.perfetto.dev\n",
        output.display(),
        merged.backwards_ns,
    );
    for note in notes {
        text.push_str(note);
        text.push('\n');
    }
    text
}

fn to_json(merged: &Merged, output: &Path, notes: &[String]) -> String {
    let json = serde_json::json!({
        "schema": "ccl.traced/1",
        "output": output.display().to_string(),
        "processes": merged.parts,
        "unfinished": merged.unfinished,
        "slices": merged.slices,
        "arrows": merged.arrows,
        "only_sent": merged.only_sent,
        "only_taken": merged.only_taken,
        "taken": merged.taken,
        "lost": merged.lost,
        "error_ns": merged.error_ns,
        "backwards_ns": merged.backwards_ns,
        "notes": notes,
    });
    format!("{json}\n")
}
