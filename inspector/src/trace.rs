//! `ccl-inspect trace`: what a job does for a while, as one Chrome trace of all its ranks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ccl::clock;
use ccl::config::Settings;
use ccl::control::wire::Client;
use ccl::recorder::reader::Reader;
use ccl_exporters::trace::{Merged, Pace, Part, merge};

use crate::attach;
use crate::choose::choose;
use crate::discover::{self, Found};
use crate::exit;
use crate::target::Target;
use crate::words;

/// Trace all ranks of a job for a while, for Perfetto or chrome://tracing
#[derive(clap::Args, Debug)]
pub(crate) struct Trace {
    /// A process, one rank of a process, or a job; not needed where there is one job
    #[arg(value_name = "PID | PID:RANK | JOB", conflicts_with = "folder")]
    target: Option<Target>,
    /// How long, as in 2s or 500ms; ends earlier where the job does
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
        let (merged, notes) = match &self.folder {
            Some(folder) => (merged(folder, &self.output)?, Vec::new()),
            None => self.record()?,
        };
        let text = if self.json {
            to_json(&merged, &self.output, &notes)
        } else {
            said(&merged, &self.output, &notes)
        };
        exit::say(&text)?;
        Ok(if notes.is_empty() { exit::OK } else { exit::INCOMPLETE })
    }

    fn record(&self) -> Result<(Merged, Vec<String>), (u8, String)> {
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let mut findings = discover::everything(&settings);
        let job = choose(&findings, self.target)?;
        let unreachable = discover::follow_peers(&mut findings, job);
        let mut notes: Vec<String> = unreachable
            .iter()
            .map(|one| format!("pid {} on {} is not traced: {}", one.pid, one.host, one.why))
            .collect();
        let folder = Parts::beside(&self.output)?;
        let mut parts = Vec::new();
        // Held: the level is theirs only as long as they live.
        let mut leases = Vec::new();
        for one in findings.found.iter().filter(|one| one.is_of(job)) {
            match lease(one) {
                Ok(client) => leases.push(client),
                Err(why) => notes.push(why),
            }
            let part = Reader::open(&one.file).and_then(|reader| Part::create(reader, &folder.0, true));
            parts.push(part.map_err(|e| (exit::ERROR, e.to_string()))?);
        }
        notes.extend(follow(&mut parts, clock::now().after(self.time)));
        for part in parts {
            part.finish().map_err(|e| (exit::ERROR, e.to_string()))?;
        }
        drop(leases);
        Ok((merged(&folder.0, &self.output)?, notes))
    }
}

/// Raises the level of a process to that of steps, for as long as what this returns lives.
fn lease(one: &Found) -> Result<Client, String> {
    let process = &one.given.process;
    let connected = attach::connect(one).and_then(|mut client| client.level(None, 2).map(|_| client));
    connected.map_err(|e| format!("pid {} on {} is traced without its steps: {e}", process.pid, process.host))
}

/// Writes all parts until the time is over or no process is left; why a part ended early.
fn follow(parts: &mut [Part], until: clock::Ns) -> Vec<String> {
    let mut notes = Vec::new();
    let mut pace = Pace::default();
    let mut ended = vec![false; parts.len()];
    while clock::now() < until && ended.contains(&false) {
        let mut most = 0;
        for (part, ended) in parts.iter_mut().zip(&mut ended).filter(|(_, ended)| !**ended) {
            match part.drain() {
                Ok(count) => most = most.max(count),
                Err(e) => notes.push(e.to_string()),
            }
            *ended = !part.is_alive() || !notes.is_empty();
        }
        clock::sleep(pace.after(most).min(until.since(clock::now())));
    }
    notes
}

/// The folder of the parts, beside the trace; gone with its owner. Should this program be killed, it stays, and each part is readable.
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
}

impl Drop for Parts {
    fn drop(&mut self) {
        // What stays behind is harmless and has a name that says what it is.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn merged(folder: &Path, output: &Path) -> Result<Merged, (u8, String)> {
    merge(folder, output).map_err(|e| (exit::ERROR, e.to_string()))
}

fn said(merged: &Merged, output: &Path, notes: &[String]) -> String {
    let Merged { parts, slices, arrows, only_sent, only_taken, taken, lost, .. } = merged;
    let error = merged.error_ns.map_or_else(
        || "not known: for some rank no message tells".into(),
        |ns| format!("{}.{:03} us", ns / 1000, ns % 1000),
    );
    let mut text = format!(
        "{}: {parts} processes, {slices} slices, {arrows} arrows\n\
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
