//! Finding the recorders of a process, and identifying a recorder by its file and its writer.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use rustix::fs::OFlags;

use super::layout::{Ending, header};
use super::reader::{From, Reader, header_of};
use super::words::{MAX_BYTES, halves, word};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::process::namespace_pids;
use crate::sys::shared::{self, Owner};

impl Reader {
    /// The recorders of a process, found among its open files; for tests, which have its pid.
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

/// Writes down in the recorder of a dead child which signal ended it, unless the child said how it
/// ended; gives whether it was written. For launchers, who alone are told.
///
/// # Errors
/// `System` if the file cannot be opened or written, `Usage` if it is no recorder.
pub fn note_signal(path: &Path, pid: u32, signal: u8) -> Result<bool> {
    let failed = |e| Error::system(format!("opening {}", path.display()), e);
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).write(true).custom_flags(flags).open(path).map_err(failed)?;
    let words = header_of(&file, path)?;
    let at = |n: usize| word(&words, n);
    let is_it = halves(at(header::PID)).0 == pid && at(header::VERSION) as u32 >= 9;
    let is_silent = at(header::END) == 0 && at(header::LEFT) == 0 && shared::owner(&file)? == Owner::None;
    if is_it && is_silent {
        let word = Ending::Killed as u64 | u64::from(signal) << 32;
        file.write_all_at(&word.to_le_bytes(), header::END as u64 * 8).map_err(failed)?;
    }
    Ok(is_it && is_silent)
}

fn without_recorder(pid: u32) -> Error {
    Error::new(ErrorKind::Unavailable, format!("process {pid} has no recorder open"))
        .hint("it does not use ccl, runs with CCL_OBSERVE=0, or has no communicator now")
}
