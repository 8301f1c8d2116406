//! Whose recorder it is: found by its process, and known by what it is and by who wrote it.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use super::layout::header;
use super::reader::{From, MAX_BYTES, Reader, halves, header_of, word};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::process::namespace_pids;

impl Reader {
    /// The recorders of a process, found among its open files: needs no path, and its own user or root.
    ///
    /// # Errors
    /// `System` if the process is gone or not ours to look into; `Unavailable` if it has none.
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
        // It may be reading somebody else's, as inspectors do.
        let readers: Vec<Self> = opened.filter(|reader| reader.is_of(pid)).collect();
        if readers.is_empty() { Err(without_recorder(pid)) } else { Ok(readers) }
    }

    /// Device and inode of the file that it reads; `None` if it reads none.
    #[must_use]
    pub fn identity(&self) -> Option<(u64, u64)> {
        let From::File(file, _) = &self.from else { return None };
        file.metadata().ok().map(|about| (about.dev(), about.ino()))
    }

    /// How many bytes of the file are read at most.
    #[must_use]
    pub fn size(&self) -> u64 {
        match &self.from {
            From::File(file, _) => file.metadata().map_or(0, |about| about.len().min(MAX_BYTES)),
            From::Own(_) | From::Taken(..) => 0,
        }
    }

    /// The process that wrote it, by its pid, the namespace of that, and when it made the recorder (nanoseconds since 1970). Costs a page.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it has become no recorder.
    pub fn writer(&self) -> Result<(u32, u64, u64)> {
        let writer = |words: &[AtomicU64]| {
            let at = |n: usize| word(words, n);
            (halves(at(header::PID)).0, at(header::PID_NAMESPACE), at(header::MADE_AT))
        };
        match &self.from {
            From::File(file, path) => Ok(writer(&header_of(file, path)?)),
            From::Own(_) | From::Taken(..) => self.with(writer),
        }
    }

    /// Whether it was written by the process that is `pid` here, and calls itself otherwise in a namespace of its own.
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
