//! `ccl-inspect trace`: records all ranks of a job for a while, as one Chrome trace.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccl::clock;
use ccl::config::Settings;
use ccl::diagnose::runs_text;
use ccl::error::{Error, ErrorKind};
use ccl::recorder::reader::Reader;
use ccl::types::JobId;
use ccl_exporters::trace::{Merged, Pace, Part, Profiles, check_profile_name, merge, merge_profiled};
use serde::Serialize;

use crate::choose::find;
use crate::exit;
use crate::run::Signals;
use crate::search::Search;
use crate::target::Target;
use crate::words;

/// The schema of [`Traced`]: a public promise, fields are added and never changed.
const SCHEMA: &str = "ccl.traced/1";
/// The level at which messages and waits are recorded.
const STEPS: u8 = 2;

/// Trace all ranks of a job for a while, for Perfetto or chrome://tracing
#[derive(clap::Args, Debug)]
pub(crate) struct Trace {
    /// A process, one rank of a process, or a job; not needed if there is only one job
    #[arg(value_name = "PID | PID:RANK | JOB")]
    target: Option<Target>,
    /// How long, as in 2s or 500ms; ends earlier if the job ends, or at Ctrl-C
    #[arg(long = "for", value_name = "TIME", default_value = "2s", value_parser = words::time)]
    time: Duration,
    /// Where to write the trace; compressed if the name ends in .gz
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// Merge instead the files that the processes of a job wrote themselves, with CCL_TRACE=FOLDER
    #[arg(long, value_name = "FOLDER", conflicts_with = "time")]
    folder: Option<PathBuf>,
    /// Write the classic profile of the proxy too, one file a rank: of net.json, net-0.json ...
    #[arg(long, value_name = "FILE")]
    proxy_profile: Option<PathBuf>,
    /// Print a report on the trace as JSON, schema ccl.traced/1
    #[arg(long)]
    json: bool,
}

impl Trace {
    /// Records, merges, and prints the result.
    ///
    /// # Errors
    /// The exit status and why there is no trace.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        if let Some(profile) = &self.proxy_profile {
            check_profile_name(&self.output, profile).map_err(|e| (exit::USAGE, e.to_string()))?;
        }
        let (merged, profiles, mut notes) = match &self.folder {
            Some(folder) => {
                let (merged, profiles) = self.merged(folder, self.job()?)?;
                let absent = (!merged.missing.is_empty()).then(|| {
                    let ranks = runs_text(&merged.missing);
                    format!("{ranks}: no part of it in {}", folder.display())
                });
                (merged, profiles, absent.into_iter().collect())
            }
            None => self.record()?,
        };
        notes.extend_from_slice(&merged.notes);
        // The trace is complete whatever the profile lacks.
        let status = status(&merged, &notes);
        notes.extend(self.proxy_profile.as_ref().and_then(|asked| lacking(&profiles, asked)));
        notes.iter_mut().for_each(|note| *note = words::line(note));
        exit::say(&if self.json {
            let traced = Traced::of(&merged, &self.output, &profiles, &notes);
            serde_json::to_string(&traced).map_err(|e| (exit::ERROR, format!("writing JSON: {e}")))? + "\n"
        } else {
            said(&merged, &self.output, &profiles, &notes)
        })?;
        Ok(status)
    }

    /// The job whose parts are meant, if one is named.
    fn job(&self) -> Result<Option<JobId>, (u8, String)> {
        match self.target {
            None => Ok(None),
            Some(Target::Job(job)) => Ok(Some(job)),
            Some(_) => Err((exit::USAGE, "of the parts in a folder, a job is named by its 16 digits".into())),
        }
    }

    /// Merges a folder of parts, and writes the profiles that are asked for.
    fn merged(&self, folder: &Path, job: Option<JobId>) -> Result<(Merged, Profiles), (u8, String)> {
        let refused = |e: Error| match e.kind {
            ErrorKind::Usage => (exit::USAGE, e.to_string()),
            _ => (exit::ERROR, e.to_string()),
        };
        match &self.proxy_profile {
            Some(profile) => merge_profiled(folder, &self.output, job, profile),
            None => merge(folder, &self.output, job).map(|merged| (merged, Profiles::default())),
        }
        .map_err(refused)
    }

    fn record(&self) -> Result<(Merged, Profiles, Vec<String>), (u8, String)> {
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let asked = asked_to_end().map_err(|e| (exit::ERROR, format!("listening for signals: {e}")))?;
        let (findings, job) = find(&settings, self.target)?;
        let mut search = Search::of(job, settings, Some(STEPS));
        let mut recording = Recording { folder: Parts::beside(&self.output)?, ..Recording::default() };
        for (_, reader) in search.meet(findings) {
            recording.add(reader);
        }
        let until = clock::now().after(self.time);
        let search = recording.follow(search, || asked.load(Ordering::Relaxed) || clock::now() >= until);
        let Recording { folder, mut notes, .. } = recording;
        notes.extend(search.missing().into_iter().map(|who| format!("not traced: {who}")));
        notes.extend(search.refused());
        match self.merged(&folder.0, Some(search.job().id)) {
            Ok((merged, profiles)) => Ok((merged, profiles, notes)),
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

/// What the profile of the proxy does not have.
fn lacking(profiles: &Profiles, asked: &Path) -> Option<String> {
    let what = match profiles.left_out {
        // Over the network nothing went, or what did had begun before the trace.
        _ if profiles.files.is_empty() => {
            "no profile is written: the trace has no step of the network".into()
        }
        0 => return None,
        left_out => format!("{left_out} later steps are left out"),
    };
    Some(format!("{}: {what}", asked.display()))
}

/// The exit status of a trace: lost events take precedence over a missing rank or end.
fn status(merged: &Merged, notes: &[String]) -> u8 {
    match () {
        () if merged.lost > 0 => exit::LOSSES,
        () if !notes.is_empty() || merged.unfinished > 0 || !merged.missing.is_empty() => exit::INCOMPLETE,
        () => exit::OK,
    }
}

/// Whether a signal has asked for the end. A second signal ends this program at once.
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

/// The parts that are being written. An error in one part is noted and ends that part only.
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

    /// Writes all parts until `is_over` says so or no process is left, then ends them.
    fn follow(&mut self, search: Search, is_over: impl Fn() -> bool) -> Search {
        let mut search = search.beside();
        let mut pace = Pace::default();
        while !search.is_over() {
            search.newcomers().into_iter().for_each(|(_, reader)| self.add(reader));
            let most = self.drain();
            if is_over() || self.parts.is_empty() {
                search.stop();
            }
            clock::sleep(pace.after(most));
        }
        let (search, last) = search.end();
        last.into_iter().for_each(|(_, reader)| self.add(reader));
        for part in std::mem::take(&mut self.parts) {
            self.end(part);
        }
        search
    }

    /// Writes the new events; gives the number of events of the busiest part.
    fn drain(&mut self) -> usize {
        let mut most = 0;
        for mut part in std::mem::take(&mut self.parts) {
            // Asked before the read, so that everything recorded until the end is written.
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

/// The folder of the parts, beside the trace; removed when this value is dropped.
///
/// If this program is killed, the folder stays, and each part in it is readable.
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

    /// Leaves the folder in place.
    fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // A folder that stays behind is harmless, and its name says what it is. A kept folder has
        // no path here any more.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn said(merged: &Merged, output: &Path, profiles: &Profiles, notes: &[String]) -> String {
    let Merged { parts, unfinished, slices, arrows, only_sent, only_taken, taken, lost, .. } = merged;
    let error = merged.error_ns.map_or_else(
        || "not known: for some rank no message tells".into(),
        |ns| format!("{}.{:03} us", ns / 1000, ns % 1000),
    );
    // The counters of a part without its end are not known.
    let counted = match parts.saturating_sub(*unfinished) {
        _ if *unfinished == 0 => taken.to_string(),
        0 => "not known".into(),
        ended => format!("{taken} of {ended} that told their end"),
    };
    let mut text = format!(
        "{}: {parts} processes ({unfinished} without their end), {slices} slices, {arrows} arrows\n\
         clock error between ranks: {error}; the worst arrow runs backwards by {} ns\n\
         messages counted by the ranks: {counted}; seen on one side only: {only_sent} sent, {only_taken} taken; events lost: {lost}\n\
         open it in https://ui.perfetto.dev\n",
        output.display(),
        merged.backwards_ns,
    );
    if merged.open > 0 {
        text.push_str(&format!("under way at the end: {} slices, which are open-ended\n", merged.open));
    }
    if merged.dropped > 0 {
        let what = "of the lost ones were dropped where files had grown to CCL_TRACE_MAX_MB";
        text.push_str(&format!("{} {what}\n", merged.dropped));
    }
    if let [first, others @ ..] = &profiles.files[..] {
        let last = others.last().map_or_else(String::new, |last| format!(" ... {}", last.display()));
        let steps = profiles.steps;
        text.push_str(&format!("profile of the proxy, {steps} steps: {}{last}\n", first.display()));
    }
    for note in notes {
        text.push_str(note);
        text.push('\n');
    }
    text
}

/// The result of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Traced<'a> {
    /// [`SCHEMA`].
    schema: &'static str,
    /// The file of the trace.
    output: String,
    /// Processes that have a part.
    processes: usize,
    /// Processes whose end is missing: they were killed, or still run.
    unfinished: usize,
    /// Slices that have ended.
    slices: u64,
    /// Slices under way at the end, which are open-ended.
    open: u64,
    /// Arrows: messages seen by both ranks.
    arrows: u64,
    /// Messages whose send was recorded and whose receipt was not.
    only_sent: u64,
    /// Messages whose receipt was recorded and whose send was not.
    only_taken: u64,
    /// Messages that the ranks with a reported end counted as received; null if there are none.
    taken: Option<u64>,
    /// Events that are not in the trace: overwritten before they were read, or dropped.
    lost: u64,
    /// Of these, events that were dropped because files had grown to CCL_TRACE_MAX_MB.
    dropped: u64,
    /// Ranks of the job that have no part, as runs: first and last.
    missing: &'a [(u32, u32)],
    /// The largest error between the times of two ranks; null if it is not known.
    error_ns: Option<u64>,
    /// The largest time by which an arrow runs backwards.
    backwards_ns: u64,
    /// The files of the proxy's classic profile that were written, by rank.
    profiles: Vec<String>,
    /// Further notes.
    notes: &'a [String],
}

impl<'a> Traced<'a> {
    fn of(merged: &'a Merged, output: &Path, profiles: &Profiles, notes: &'a [String]) -> Self {
        Self {
            schema: SCHEMA,
            output: output.display().to_string(),
            processes: merged.parts,
            unfinished: merged.unfinished,
            slices: merged.slices,
            open: merged.open,
            arrows: merged.arrows,
            only_sent: merged.only_sent,
            only_taken: merged.only_taken,
            taken: (merged.parts > merged.unfinished).then_some(merged.taken),
            lost: merged.lost,
            dropped: merged.dropped,
            missing: &merged.missing,
            error_ns: merged.error_ns,
            backwards_ns: merged.backwards_ns,
            profiles: profiles.files.iter().map(|file| file.display().to_string()).collect(),
            notes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_counted_to_its_end_is_not_known() {
        let check = |unfinished, expect: &str| {
            let merged = Merged { parts: 3, unfinished, arrows: 84, taken: 50, ..Merged::default() };
            let text = said(&merged, Path::new("t.json"), &Profiles::default(), &[]);
            assert!(text.contains(&format!("counted by the ranks: {expect}; ")), "{text}");
        };
        check(0, "50");
        check(1, "50 of 2 that told their end");
        check(3, "not known");
    }

    #[test]
    fn the_files_of_the_profile_are_named_and_what_it_lacks_is_noted() {
        let check = |ranks: &[u32], left_out, expect: Option<&str>, note: Option<&str>| {
            let files: Vec<PathBuf> = ranks.iter().map(|rank| format!("net-{rank}.json").into()).collect();
            let profiles = Profiles { files, steps: 9, left_out };
            let text = said(&Merged::default(), Path::new("t.json"), &profiles, &[]);
            assert_eq!(text.lines().find(|line| line.starts_with("profile")), expect, "{text}");
            assert_eq!(lacking(&profiles, Path::new("net.json")).as_deref(), note);
            let traced = Traced::of(&Merged::default(), Path::new("t.json"), &profiles, &[]).profiles;
            assert_eq!(traced.len(), ranks.len());
        };
        let nothing = "net.json: no profile is written: the trace has no step of the network";
        check(&[], 0, None, Some(nothing));
        check(&[2], 0, Some("profile of the proxy, 9 steps: net-2.json"), None);
        let late = "net.json: 3 later steps are left out";
        let all = "profile of the proxy, 9 steps: net-0.json ... net-3.json";
        check(&[0, 1, 3], 3, Some(all), Some(late));
    }

    #[test]
    fn the_status_tells_losses_before_what_is_incomplete() {
        let check = |merged: Merged, notes: &[&str], expect| {
            let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
            assert_eq!(status(&merged, &notes), expect, "{merged:?} {notes:?}");
        };
        let whole = Merged { parts: 2, ..Merged::default() };
        check(whole.clone(), &[], exit::OK);
        check(Merged { unfinished: 1, ..whole.clone() }, &[], exit::INCOMPLETE);
        check(Merged { missing: vec![(1, 1)], ..whole.clone() }, &[], exit::INCOMPLETE);
        check(whole.clone(), &["not traced: rank 1"], exit::INCOMPLETE);
        check(Merged { lost: 1, ..whole.clone() }, &[], exit::LOSSES);
        check(Merged { lost: 1, unfinished: 1, ..whole }, &["not traced: rank 1"], exit::LOSSES);
    }
}
