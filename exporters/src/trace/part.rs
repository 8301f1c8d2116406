//! The part of one process: what its recorder tells, written to a file while it runs.
//!
//! A part is a trace by itself, in the array form of the format, whose end may be missing: so it is readable whenever its writer
//! is killed. Its times are CLOCK_MONOTONIC of its process in microseconds; its first line says what is needed to bring several
//! parts to one clock: see [`merge`](super::merge).

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccl::clock::{Anchor, Scale};
use ccl::error::{Error, Result};
use ccl::recorder::Reader;
use ccl::recorder::reader::Cursor;
use ccl::snapshot::{Direction, ProcessSnapshot};
use ccl::types::JobId;
use serde::{Deserialize, Serialize};

use super::tracks::Tracks;
use super::who::Who;
use crate::told;

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
    /// CLOCK_REALTIME less CLOCK_MONOTONIC.
    pub(super) real_less_mono_ns: i64,
    /// Messages its ranks had taken when the part began, by job.
    pub(super) taken: BTreeMap<JobId, u64>,
}

impl Header {
    /// Whether it begins a part that can be read here.
    pub(super) fn is_known(&self) -> bool {
        self.schema == SCHEMA
    }
}

/// The last line of a part that ended well.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Footer {
    /// Events that were overwritten before they were read, by job.
    pub(super) lost: BTreeMap<JobId, u64>,
    /// The same, where nothing tells whose they were: they may have been any job's.
    pub(super) lost_of_unknown: u64,
    /// Messages its ranks had taken when it ended, by job.
    pub(super) taken: BTreeMap<JobId, u64>,
}

/// The names of the first and of the last line.
pub(super) const HEADER: &str = "ccl_trace";
pub(super) const FOOTER: &str = "ccl_trace_end";
/// The schema of a part.
pub(super) const SCHEMA: &str = "ccl.trace/1";

/// Writes the part of one process.
#[derive(Debug)]
pub struct Part {
    reader: Reader,
    cursor: Cursor,
    tracks: Tracks,
    file: File,
    path: PathBuf,
    anchors: VecDeque<Anchor>,
    sampled_ns: u64,
    /// By job; `None`: nobody knows whose.
    lost: BTreeMap<Option<JobId>, u64>,
}

impl Part {
    /// Begins the part of another process, which `reader` reads, in a folder: with what is recorded from now on.
    ///
    /// # Errors
    /// `System` if the file cannot be written, or there is one already, or the recorder cannot be read.
    pub fn attached(reader: Reader, folder: &Path) -> Result<Self> {
        let mut cursor = Cursor::default();
        let before = reader.events(&mut cursor)?;
        let process = reader.snapshot()?;
        let mut part = Self::create(reader, folder, Who::of(&process), cursor, taken(&process))?;
        for owner in before.iter().filter_map(|ring| ring.owner) {
            part.tracks.learn(&process, owner);
        }
        Ok(part)
    }

    /// Begins the part of this process: with the oldest events its recorder holds.
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
        let path = folder.join(who.file_name("ccl"));
        let refused = |e| Error::system(format!("writing {}", path.display()), e);
        let file = File::create_new(&path).map_err(refused)?;
        let (_, anchor) = reader.clock()?;
        let header = Header {
            schema: SCHEMA.into(),
            who,
            boot_id: reader.snapshot()?.boot_id,
            real_less_mono_ns: anchor.real_ns as i64 - anchor.mono.0 as i64,
            taken,
        };
        let mut part = Self {
            reader,
            cursor,
            tracks: Tracks::default(),
            file,
            path: path.clone(),
            anchors: VecDeque::new(),
            sampled_ns: 0,
            lost: BTreeMap::new(),
        };
        part.file.write_all(format!("[\n{}", meta(HEADER, &header)).as_bytes()).map_err(refused)?;
        Ok(part)
    }

    /// Whether the process lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.reader.alive()
    }

    /// Writes what is new; how many events that were.
    ///
    /// # Errors
    /// `System` if the file cannot be written or the recorder cannot be read any more.
    pub fn drain(&mut self) -> Result<usize> {
        let (scale, anchor) = self.reader.clock()?;
        let scale = self.follow(anchor, scale);
        let rings = self.reader.events(&mut self.cursor)?;
        let mut count = 0;
        // One reading for all whose owners are new; it is no older than the events.
        let mut process = None;
        for ring in rings {
            let (events, overwritten) = (&ring.reading.events, ring.reading.lost);
            if let Some(owner) = ring.owner.filter(|owner| self.tracks.job_of(*owner).is_none()) {
                if process.is_none() {
                    process = Some(self.reader.snapshot()?);
                }
                process.iter().for_each(|process| self.tracks.learn(process, owner));
            }
            let job = ring.owner.and_then(|owner| self.tracks.job_of(owner));
            let unplaced = match (ring.owner, job) {
                (Some(owner), Some(_)) => {
                    events.iter().for_each(|event| self.tracks.take(owner, event, &scale));
                    0
                }
                // Nothing tells any more whose they are. What the service thread records is nobody's.
                _ => told::count(events),
            };
            // A file may say anything of itself, here and below.
            let lost = overwritten.saturating_add(unplaced);
            count += events.len();
            if lost > 0 {
                let sum = self.lost.entry(job).or_default();
                *sum = sum.saturating_add(lost);
            }
        }
        let now = ccl::clock::anchor();
        let is_due = now.mono.0.saturating_sub(self.sampled_ns) >= COUNTERS.as_nanos() as u64;
        if is_due && self.tracks.knows_any() {
            self.sampled_ns = now.mono.0;
            self.tracks.counters(&self.reader.snapshot()?, scale.mono(now.raw).0 as i64);
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
        // Whole lines in one go: a reader of a file whose writer was killed finds at most its end missing.
        self.put(&text)
    }

    fn put(&mut self, text: &str) -> Result<()> {
        self.file
            .write_all(text.as_bytes())
            .map_err(|e| Error::system(format!("writing {}", self.path.display()), e))
    }

    /// Writes what is left and ends the file.
    ///
    /// # Errors
    /// As [`drain`](Self::drain).
    pub fn finish(mut self) -> Result<()> {
        let drained = self.drain();
        let taken = self.reader.snapshot().map(|process| taken(&process)).unwrap_or_default();
        let lost_of_unknown = self.lost.remove(&None).unwrap_or_default();
        let lost = self.lost.iter().filter_map(|(job, lost)| Some(((*job)?, *lost))).collect();
        let footer = Footer { lost, lost_of_unknown, taken };
        self.put(&format!(",\n{}\n]\n", meta(FOOTER, &footer)))?;
        drained.map(drop)
    }
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

/// How long to sleep between two drains: less than a ring takes to come around, more where little happens.
#[derive(Clone, Copy, Debug)]
pub struct Pace(Duration);

impl Default for Pace {
    fn default() -> Self {
        Self(Duration::from_millis(2))
    }
}

impl Pace {
    /// The time to sleep after a drain that found so many events.
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
