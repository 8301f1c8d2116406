//! What the watchdog writes for people: a line on standard error, and the state of the job in a
//! file beside the recorder.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::diagnose::{duration, render_next, render_verdict};
use crate::snapshot::{Snapshot, Verdict};
use crate::sys::process::check_file_size;

/// The most bytes of the file: it lies in memory, as the recorder does.
const MAX_BYTES: usize = 16 << 20;

/// Saves the job; the line that says what is wrong with it and where it is saved.
pub(super) fn stall(job: &Snapshot, path: Option<PathBuf>) -> Option<String> {
    let saved = path.ok_or_else(|| "there is no folder for it".to_string()).and_then(|path| {
        save(&path, job)?;
        Ok(path)
    });
    job.verdicts.first().map(|verdict| line(verdict, saved.as_deref()))
}

/// A line, and how many messages before it could not be written.
pub(super) fn with_lost(line: String, lost: u64) -> String {
    match lost {
        0 => line,
        1 => format!("{line}; 1 earlier message of the watchdog was not written"),
        _ => format!("{line}; {lost} earlier messages of the watchdog were not written"),
    }
}

fn line(verdict: &Verdict, saved: Result<&Path, &String>) -> String {
    // The same for each culprit.
    let what = verdict.next.first().map(|next| &next.what);
    let steps = verdict.next.iter().take_while(|next| Some(&next.what) == what).map(render_next);
    let steps: Vec<String> = steps.collect();
    let next = (!steps.is_empty()).then(|| format!("; next: {}", steps.join("; ")));
    let saved = match saved {
        Ok(path) => format!("the job's state is in {0}: ccl-inspect open {0}", path.display()),
        Err(why) => format!("the job's state was not saved: {why}"),
    };
    format!("{}{}; {saved}", render_verdict(verdict), next.unwrap_or_default())
}

/// The line that says that what was told before is over, and how long it lasted if that is known.
pub(super) fn recovered(what: &str, lasted: Option<Duration>) -> String {
    let lasted = lasted.map(|lasted| u64::try_from(lasted.as_nanos()).unwrap_or(u64::MAX));
    let after = lasted.map_or_else(String::new, |ns| format!(" after {}", duration(ns)));
    format!("RECOVERED{after}: this is over: {what}")
}

/// Replaces the file as a whole, so that nobody reads half of it.
fn save(path: &Path, job: &Snapshot) -> Result<(), String> {
    let mut job = job.clone();
    // It is most of a job's state, and the recorders keep it.
    let comms = job.ranks.iter_mut().flat_map(|rank| &mut rank.comms);
    comms.for_each(|comm| comm.history = crate::snapshot::History::default());
    let bytes = serde_json::to_vec(&job).map_err(|e| e.to_string())?;
    if bytes.len() > MAX_BYTES {
        return Err(format!("it takes more than {} MiB", MAX_BYTES >> 20));
    }
    check_file_size(bytes.len() as u64).map_err(|e| e.to_string())?;
    let new = path.with_extension("new");
    let refused = |e: std::io::Error| format!("writing {}: {e}", new.display());
    let _ = std::fs::remove_file(&new);
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let written = file.and_then(|mut file| file.write_all(&bytes)).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&new);
        refused(e)
    })
}
