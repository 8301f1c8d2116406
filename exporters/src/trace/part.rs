//! The part of one process: the content of its recorder, written to a file while it runs.
//!
//! A part is a trace by itself, in the array form of the format, whose end may be missing: so it is
//! readable whenever its writer is killed. Its times are CLOCK_MONOTONIC of its process in
//! microseconds. Its first line has what is needed to bring several parts to one clock: see
//! [`merge`](super::merge). A part that has reached its size limit continues in another file, and
//! the newest two files are kept.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccl::clock::{Anchor, Scale};
use ccl::config::{Key, Settings};
use ccl::error::{Error, Result};
use ccl::recorder::Reader;
use ccl::recorder::reader::{Cursor, Reading};
use ccl::snapshot::{Direction, ProcessSnapshot};
use ccl::types::{JobId, Rank};
use serde::{Deserialize, Serialize};

use super::standing::Now;
use super::tracks::Tracks;
use super::who::Who;
use crate::exportable;

/// Anchors are a second apart; the slope of the last few follows a clock that is being adjusted.
const ANCHORS: usize = 4;
/// How often counters are sampled.
const COUNTERS: Duration = Duration::from_millis(100);

/// The first line of a part.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    /// `ccl.trace/1`.
    pub(super) schema: String,
    /// The process.
    #[serde(flatten)]
    pub(super) who: Who,
    /// Boot id of its kernel.
    pub(super) boot_id: String,
    /// Hash of the launcher's name for its job; zero if there is none.
    pub(super) launch: JobId,
    /// The launcher's number of the process, if it has one.
    pub(super) launch_rank: Option<Rank>,
    /// CLOCK_REALTIME less CLOCK_MONOTONIC.
    pub(super) real_less_mono_ns: i64,
    /// Messages that its ranks had taken when the part began, by job.
    pub(super) taken: BTreeMap<JobId, u64>,
    /// The number of the file in the part, from 0; there are two files once the part has reached
    /// its size limit.
    pub(super) segment: u64,
    /// Events that were dropped with the files before these two, by job.
    pub(super) dropped: BTreeMap<JobId, u64>,
}

impl Header {
    /// Whether it begins a part that this version can read.
    pub(super) fn is_known(&self) -> bool {
        self.schema == SCHEMA
    }
}

/// The last line of a part that ended normally.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Footer {
    /// Events that were overwritten before they were read, by job.
    pub(super) lost: BTreeMap<JobId, u64>,
    /// The same, for events of an unknown owner: they may belong to any job.
    pub(super) lost_of_unknown: u64,
    /// Messages that its ranks had taken when it ended, by job.
    pub(super) taken: BTreeMap<JobId, u64>,
}

/// The names of the first and of the last line.
pub(super) const HEADER: &str = "ccl_trace";
pub(super) const FOOTER: &str = "ccl_trace_end";
/// The kind of its files, the first word of their names.
const KIND: &str = "ccl";
/// The schema of a part.
pub(super) const SCHEMA: &str = "ccl.trace/1";

/// Writes the part of one process.
#[derive(Debug)]
pub struct Part {
    reader: Reader,
    cursor: Cursor,
    tracks: Tracks,
    header: Header,
    file: File,
    folder: PathBuf,
    path: PathBuf,
    /// The most bytes of its two files together, and the bytes of the present one.
    bound: u64,
    bytes: u64,
    /// Events in the present file, by job.
    written: BTreeMap<JobId, u64>,
    /// The file before, with the events in it.
    older: Option<(PathBuf, BTreeMap<JobId, u64>)>,
    anchors: VecDeque<Anchor>,
    sampled_ns: u64,
    /// Lost events by job; `None` for those of an unknown job.
    lost: BTreeMap<Option<JobId>, u64>,
}

impl Part {
    /// Begins the part of another process, which `reader` reads, with what is recorded from now on.
    ///
    /// # Errors
    /// `System` if the file cannot be written or already exists, or the recorder cannot be read.
    pub fn attached(reader: Reader, folder: &Path) -> Result<Self> {
        let mut cursor = Cursor::default();
        let before = reader.events(&mut cursor)?;
        let process = reader.snapshot()?;
        let read = ccl::clock::raw();
        let mut part = Self::create(reader, folder, Who::of(&process), cursor, taken(&process))?;
        for reading in &before {
            let Some(owner) = reading.owner else { continue };
            part.tracks.learn(&process, owner);
            reading.events.iter().for_each(|event| part.tracks.remember(owner, event));
        }
        part.tracks.tagged(&process, read);
        Ok(part)
    }

    /// Begins the part of this process, with the oldest events that its recorder holds.
    pub(super) fn own(reader: Reader, folder: &Path, who: Who) -> Result<Self> {
        Self::create(reader, folder, who, Cursor::default(), BTreeMap::new())
    }

    fn create(
        reader: Reader,
        folder: &Path,
        who: Who,
        cursor: Cursor,
        taken: BTreeMap<JobId, u64>,
    ) -> Result<Self> {
        let path = folder.join(who.segment_name(KIND, 0));
        // An invalid setting is reported by the communicator, which refuses it.
        let bound =
            Settings::of_process().unwrap_or_default().number(Key::TraceMaxMb).saturating_mul(1 << 20);
        let refused = |e| Error::system(format!("writing {}", path.display()), e);
        let file = File::create_new(&path).map_err(refused)?;
        let (_, anchor) = reader.clock()?;
        let process = reader.snapshot()?;
        let header = Header {
            schema: SCHEMA.into(),
            who,
            boot_id: process.boot_id,
            launch: process.launch,
            launch_rank: process.launch_rank,
            real_less_mono_ns: anchor.real_ns as i64 - anchor.mono.0 as i64,
            taken,
            ..Header::default()
        };
        let mut part = Self {
            reader,
            cursor,
            tracks: Tracks::default(),
            header,
            file,
            folder: folder.to_path_buf(),
            path: path.clone(),
            bound,
            bytes: 0,
            written: BTreeMap::new(),
            older: None,
            anchors: VecDeque::new(),
            sampled_ns: 0,
            lost: BTreeMap::new(),
        };
        part.put(&format!("[\n{}", meta(HEADER, &part.header)))?;
        Ok(part)
    }

    /// Whether the process lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.reader.alive()
    }

    /// Writes the new events; returns their number.
    ///
    /// # Errors
    /// `System` if the file cannot be written or the recorder can no longer be read.
    pub fn drain(&mut self) -> Result<usize> {
        let (scale, anchor) = self.reader.clock()?;
        let scale = self.follow(anchor, scale);
        let readings = self.reader.events(&mut self.cursor)?;
        let mut count = 0;
        // One reading for all new owners; it is no older than the events.
        let mut process = None;
        for Reading { owner, events, lost: overwritten, is_torn } in readings {
            if let Some(owner) = owner.filter(|owner| self.tracks.job_of(*owner).is_none()) {
                if process.is_none() {
                    process = Some(self.reader.snapshot()?);
                }
                process.iter().for_each(|process| self.tracks.learn(process, owner));
            }
            let job = owner.and_then(|owner| self.tracks.job_of(owner));
            let unplaced = match (owner, job) {
                (Some(owner), Some(_)) => {
                    if is_torn {
                        let until = events.first().map_or(anchor.raw, |event| event.raw);
                        self.tracks.lost(owner, scale.mono(until).0 as i64);
                    }
                    events.iter().for_each(|event| self.tracks.take(owner, event, &scale));
                    if let Some(job) = job {
                        *self.written.entry(job).or_default() += events.len() as u64;
                    }
                    0
                }
                // The owner of these events is unknown, or it is the process.
                _ => exportable::count(&events),
            };
            // The values come from a file and are not trusted, here and below.
            let lost = overwritten.saturating_add(unplaced);
            count += events.len();
            if lost > 0 {
                let sum = self.lost.entry(job).or_default();
                *sum = sum.saturating_add(lost);
            }
        }
        let now = ccl::clock::anchor();
        let is_due = now.mono.0.saturating_sub(self.sampled_ns) >= COUNTERS.as_nanos() as u64;
        if is_due {
            self.sampled_ns = now.mono.0;
            let process = self.reader.snapshot()?;
            let mono_ns = moment(&process, &scale);
            self.tracks.stand(&process, Now { mono_ns, scale: &scale, is_end: false });
            self.tracks.counters(&process, mono_ns);
        }
        self.write()?;
        Ok(count)
    }

    /// The line through the last few anchors.
    fn follow(&mut self, anchor: Anchor, of_all: Scale) -> Scale {
        if self.anchors.back().is_none_or(|last| last.raw < anchor.raw) {
            self.anchors.push_back(anchor);
            if self.anchors.len() > ANCHORS {
                self.anchors.pop_front();
            }
        }
        let first = self.anchors.front().copied().unwrap_or(anchor);
        if self.anchors.len() < ANCHORS {
            return of_all;
        }
        Scale::between(first, anchor, of_all.ns_per_tick())
    }

    fn write(&mut self) -> Result<()> {
        let mut text = String::new();
        for line in self.tracks.take_lines() {
            text.push_str(",\n");
            text.push_str(&line);
        }
        // Whole lines in one write: if the writer is killed, at most the end of the file is
        // missing.
        self.put(&text)?;
        if self.bytes > self.bound / 2 { self.go_on() } else { Ok(()) }
    }

    /// Continues in another file, and drops the file before the present one. Each of the two files
    /// may have half of the allowed size, so at least the newer half is always kept.
    fn go_on(&mut self) -> Result<()> {
        self.put("\n]\n")?;
        let written = std::mem::take(&mut self.written);
        if let Some((path, events)) = self.older.replace((self.path.clone(), written)) {
            std::fs::remove_file(&path).map_err(|e| refused(&path, "dropping", e))?;
            for (job, events) in events {
                let dropped = self.header.dropped.entry(job).or_default();
                *dropped = dropped.saturating_add(events);
            }
        }
        self.header.segment += 1;
        self.path = self.folder.join(self.header.who.segment_name(KIND, self.header.segment));
        self.file = File::create_new(&self.path).map_err(|e| refused(&self.path, "writing", e))?;
        self.bytes = 0;
        let mut text = format!("[\n{}", meta(HEADER, &self.header));
        for line in self.tracks.lines.again() {
            text.push_str(",\n");
            text.push_str(line);
        }
        self.put(&text)
    }

    fn put(&mut self, text: &str) -> Result<()> {
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        self.file
            .write_all(text.as_bytes())
            .map_err(|e| Error::system(format!("writing {}", self.path.display()), e))
    }

    /// Writes the rest and ends the file.
    ///
    /// # Errors
    /// As [`drain`](Self::drain).
    pub fn finish(mut self) -> Result<()> {
        // The operations under way now, unless the events show that they have ended since.
        let last = self.reader.snapshot();
        let drained = self.drain();
        if let (Ok(process), Ok((scale, anchor))) = (last, self.reader.clock()) {
            let scale = self.follow(anchor, scale);
            let now = Now { mono_ns: moment(&process, &scale), scale: &scale, is_end: true };
            self.tracks.stand(&process, now);
            self.write()?;
        }
        let taken = self.reader.snapshot().map(|process| taken(&process)).unwrap_or_default();
        let lost_of_unknown = self.lost.remove(&None).unwrap_or_default();
        let lost = self.lost.iter().filter_map(|(job, lost)| Some(((*job)?, *lost))).collect();
        let footer = Footer { lost, lost_of_unknown, taken };
        self.put(&format!(",\n{}\n]\n", meta(FOOTER, &footer)))?;
        drained.map(drop)
    }
}

/// The time from which the ages of a snapshot count, by the clock of its process.
fn moment(process: &ProcessSnapshot, scale: &Scale) -> i64 {
    if !process.alive {
        return process.to_mono_ns as i64;
    }
    // The process may have another clock: the time passed since is the same on both.
    let now = ccl::clock::anchor();
    (scale.mono(now.raw).0 as i64).saturating_sub(now.mono.0.saturating_sub(process.to_mono_ns) as i64)
}

/// The messages that the ranks of a process have taken, by job.
fn taken(process: &ProcessSnapshot) -> BTreeMap<JobId, u64> {
    let mut taken: BTreeMap<JobId, u64> = BTreeMap::new();
    for comm in &process.comms {
        let sum = taken.entry(comm.job).or_default();
        for link in comm.links.iter().filter(|link| link.direction == Direction::Recv) {
            *sum = sum.saturating_add(link.done);
        }
    }
    taken
}

fn meta(name: &str, args: &impl Serialize) -> String {
    let args = serde_json::to_string(args).unwrap_or_else(|_| "{}".into());
    format!(r#"{{"ph":"M","pid":0,"tid":0,"name":"{name}","args":{args}}}"#)
}

/// The time to sleep between two drains: less than a ring takes to wrap around, and longer if
/// little happens.
#[derive(Clone, Copy, Debug)]
pub struct Pace(Duration);

impl Default for Pace {
    fn default() -> Self {
        Self(Duration::from_millis(2))
    }
}

impl Pace {
    /// The time to sleep after a drain that found this many events.
    #[must_use]
    pub fn after(&mut self, events: usize) -> Duration {
        let next = match events {
            1024.. => Duration::ZERO,
            256.. => self.0 / 2,
            ..64 => self.0 * 2,
            _ => self.0,
        };
        self.0 = next.clamp(Duration::from_micros(200), Duration::from_millis(20));
        if events >= 1024 { Duration::ZERO } else { self.0 }
    }
}

/// The error of reading or writing a file, with its name.
pub(super) fn refused(path: &Path, doing: &str, e: io::Error) -> Error {
    Error::system(format!("{doing} {}", path.display()), e)
}

#[cfg(test)]
mod tests;
