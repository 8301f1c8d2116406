//! Finding the recorders of a process, and identifying a recorder by its file and its writer.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use super::layout::header;
use super::reader::{From, Reader, header_of};
use super::words::{MAX_BYTES, halves, word};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::process::namespace_pids;

impl Reader {
    /// The recorders of a process, found among its open files.
    ///
    /// It needs no path, but the rights of the process's user or root.
    ///
    /// # Errors
    /// `System` if the process is gone or may not be inspected; `Unavailable` if it has no
    /// recorder.
    pub fn of_pid(pid: u32) -> Result<Vec<Self>> {
        if pid == std::process::id() {
            return Self::of_process().map(|own| vec![own]).ok_or_else(|| without_recorder(pid));
        }
        let folder = format!("/proc/{pid}/fd");
        let entries =
            std::fs::read_dir(&folder).map_err(|e| Error::system(format!("reading {folder}"), e))?;
        let is_recorder = |path: &PathBuf| {
            std::fs::read_link(path).is_ok_and(|to| {
                let to = to.to_string_lossy();
                to.strip_suffix(" (deleted)").unwrap_or(&to).ends_with(".rec")
            })
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_recorder);
        let opened = paths.filter_map(|path| Self::open(path).ok());
        // The process may be reading another's recorder, as inspectors do.
        let readers: Vec<Self> = opened.filter(|reader| reader.is_of(pid)).collect();
        if readers.is_empty() { Err(without_recorder(pid)) } else { Ok(readers) }
    }

    /// Device and inode of the file that it reads; `None` if it does not read a file.
    #[must_use]
    pub fn identity(&self) -> Option<(u64, u64)> {
        let From::File(file, _) = &self.from else { return None };
        file.metadata().ok().map(|about| (about.dev(), about.ino()))
    }

    /// The number of bytes of the file that are read at most.
    #[must_use]
    pub fn size(&self) -> u64 {
        match &self.from {
            From::File(file, _) => file.metadata().map_or(0, |about| about.len().min(MAX_BYTES)),
            From::Own(_) | From::Capture(..) => 0,
        }
    }

    /// The process that wrote it: its pid, pid namespace, and when it made the recorder.
    ///
    /// The time is in nanoseconds since 1970. Reading it costs one page.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it is no longer a recorder.
    pub fn writer(&self) -> Result<(u32, u64, u64)> {
        let writer = |words: &[AtomicU64]| {
            let at = |n: usize| word(words, n);
            (halves(at(header::PID)).0, at(header::PID_NAMESPACE), at(header::MADE_AT))
        };
        match &self.from {
            From::File(file, path) => Ok(writer(&header_of(file, path)?)),
            From::Own(_) | From::Capture(..) => self.with(writer),
        }
    }

    /// Whether it was written by the process that is `pid` here, which may have another pid in its
    /// own namespace.
    fn is_of(&self, pid: u32) -> bool {
        let inner = namespace_pids(Some(pid)).and_then(|pids| pids.last().copied());
        let space = std::fs::metadata(format!("/proc/{pid}/ns/pid")).map(|about| about.ino()).ok();
        let (written_by, written_in, _) = self.writer().unwrap_or_default();
        inner == Some(written_by) && space.is_none_or(|space| space == written_in)
    }
}

fn without_recorder(pid: u32) -> Error {
    Error::new(ErrorKind::Unavailable, format!("process {pid} has no recorder open"))
        .hint("it does not use ccl, runs with CCL_OBSERVE=0, or has no communicator now")
}
