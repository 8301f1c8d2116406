//! What the watchdog writes for people: a line on standard error, and the state of the job in a
//! file beside the recorder.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::Settings;
use crate::diagnose::{duration, render_next, render_verdict};
use crate::notice;
use crate::snapshot::{Snapshot, Verdict};

/// The most bytes of the file: it lies in memory, as the recorder does.
const MAX_BYTES: usize = 16 << 20;

/// Saves the job, then says what is wrong with it and where it is saved.
pub(super) fn stall(settings: &Settings, job: &Snapshot, path: Option<PathBuf>) {
    let saved = path.ok_or_else(|| "there is no folder for it".to_string()).and_then(|path| {
        save(&path, job)?;
        Ok(path)
    });
    if let Some(verdict) = job.verdicts.first() {
        notice::warn(settings, &line(verdict, saved.as_deref()));
    }
}

fn line(verdict: &Verdict, saved: Result<&Path, &String>) -> String {
    let next = verdict.next.first().map(|next| format!("; next: {}", render_next(next)));
    let saved = match saved {
        Ok(path) => format!("the job's state is in {0}: ccl-inspect open {0}", path.display()),
        Err(why) => format!("the job's state was not saved: {why}"),
    };
    format!("{}{}; {saved}", render_verdict(verdict), next.unwrap_or_default())
}

/// Says that what was told before is over.
pub(super) fn recovered(settings: &Settings, what: &str, lasted: Duration) {
    let lasted = duration(u64::try_from(lasted.as_nanos()).unwrap_or(u64::MAX));
    notice::warn(settings, &format!("RECOVERED after {lasted}: this is over: {what}"));
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
