//! The files of a folder of parts and their lines. They are written by others and not trusted.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use ccl::error::{Error, ErrorKind, Result};
use ccl::sys::reference::Reference;
use serde_json::Value;

use super::merge::NO_PART;
use super::part::refused;

/// The id of an arrow.
pub(super) fn name_of(event: &Value) -> u64 {
    event["id"].as_str().and_then(|id| u64::from_str_radix(id, 16).ok()).unwrap_or_default()
}

/// Microseconds of a trace, in nanoseconds. A double is exact to the nanosecond for a hundred days
/// of uptime.
pub(super) fn nanos(micros: &Value) -> i64 {
    believed((micros.as_f64().unwrap_or(0.0) * 1000.0).round() as i64)
}

/// A time from a file, limited to about thirty years, so that a few of them can be added.
pub(super) fn believed(ns: i64) -> i64 {
    ns.clamp(-MOST_NS, MOST_NS)
}

const MOST_NS: i64 = 1 << 60;

pub(super) fn is_named(path: &Path, prefix: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
}

/// The name of a trace while it is written.
pub(super) fn unfinished(to: &Path) -> PathBuf {
    to.with_extension("unfinished")
}

/// Whether a trace of this name is compressed.
pub(super) fn is_zipped(to: &Path) -> bool {
    to.extension().is_some_and(|extension| extension == "gz")
}

/// The folder in which a file lies, or would.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Whether two names are of one folder, which exists.
pub(super) fn is_same_folder(one: &Path, other: &Path) -> bool {
    one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// Refuses an output that would be taken for a part in the folder the next time.
pub(super) fn refuse_the_name_of_a_part(folder: &Path, to: &Path) -> Result<()> {
    if is_same_folder(folder_of(to), folder) && is_file_name(to) {
        let what = format!("{} is the name of a part in the folder of the parts", to.display());
        return Err(Error::new(ErrorKind::Usage, what).hint("call the trace otherwise, or put it elsewhere"));
    }
    Ok(())
}

/// Whether a file has the name of a part, ours or the application's.
fn is_file_name(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "json") && (is_named(path, "ccl-") || is_named(path, "app-"))
}

/// The part files of a folder, ours and the application's, in order.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| refused(folder, "reading", e).hint(NO_PART))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> = paths.filter(|path| is_file_name(path)).collect();
    files.sort();
    Ok(files)
}

/// The longest line of a part that is read; our lines have less than a thousandth of it.
const MAX_LINE: u64 = 1 << 20;

/// Passes on the events of a part, one a line. A truncated line is left out: the last line of a
/// killed process may end anywhere, even within a character.
pub(super) fn read(path: &Path, mut each: impl FnMut(Value)) -> Result<()> {
    // A folder of parts is written by others: no link, FIFO or device in it is opened, and the
    // length of a line is limited.
    let part = Reference::to_itself(path).and_then(|part| part.open());
    let mut file = BufReader::new(part.map_err(|e| refused(path, "reading", e))?);
    let mut line = Vec::new();
    let mut more = |line: &mut Vec<u8>| {
        let read = (&mut file).take(MAX_LINE).read_until(b'\n', line);
        read.map_err(|e| refused(path, "reading", e))
    };
    while more(&mut line)? > 0 {
        let text = line.trim_ascii();
        if let Ok(event @ Value::Object(_)) = serde_json::from_slice(text.strip_suffix(b",").unwrap_or(text))
        {
            each(event);
        }
        line.clear();
    }
    Ok(())
}
