//! The part of one process: what its recorder tells, written to a file while it runs.
//!
//! A part is a trace by itself, in the array form of the format, whose end may be missing: so it is readable whenever its writer
//! is killed. Its times are CLOCK_MONOTONIC of its process in microseconds; its first line says what is needed to bring several
//! parts to one clock: see [`merge`](super::merge).

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccl::clock::{Anchor, Scale};
use ccl::error::{Error, Result};
use ccl::recorder::Reader;
use ccl::recorder::reader::Cursor;
use ccl::snapshot::{Direction, ProcessSnapshot};
use serde::{Deserialize, Serialize};

use super::tracks::Tracks;

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
    pub(super) pid: u32,
    /// Its host.
    pub(super) host: String,
    /// Boot id of its kernel.
    pub(super) boot_id: String,
    /// CLOCK_REALTIME less CLOCK_MONOTONIC.
    pub(super) real_less_mono_ns: i64,
    /// Messages its ranks had taken when the part began.
    pub(super) taken: u64,
}

impl Header {
    /// Whether it begins a part that can be read here.
    pub(super) fn is_known(&self) -> bool {
        self.schema == SCHEMA
    }
}

/// The last line of a part that ended well.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Footer {
    /// Events that were overwritten before they were read.
    pub(super) lost: u64,
    /// Messages its ranks had taken when it ended.
    pub(super) taken: u64,
}

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
    lost: u64,
}

/// The name of the part of a process.
fn file_name(process: &ProcessSnapshot) -> String {
    let host = if process.host_id.is_empty() { &process.host } else { &process.host_id };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let host: String = host.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    format!("ccl-{host}-{}.json", process.pid)
}

impl Part {
    /// Begins the part of the process that `reader` reads, in a folder. With `from_now` it begins with what is recorded from now on,
    /// else with the oldest events the recorder holds.
    ///
    /// # Errors
    /// `System` if the file cannot be written or the recorder cannot be read.
    pub fn create(reader: Reader, folder: &Path, from_now: bool) -> Result<Self> {
        let mut cursor = Cursor::default();
        if from_now {
            reader.events(&mut cursor)?;
        }
        let process = reader.snapshot()?;
        let path = folder.join(file_name(&process));
        let refused = |e| Error::system(format!("writing {}", path.display()), e);
        let file = File::create(&path).map_err(refused)?;
        let (_, anchor) = reader.clock()?;
        let mut tracks = Tracks::default();
        tracks.learn(&process);
        let header = Header {
            schema: SCHEMA.into(),
            pid: process.pid,
            host: process.host.clone(),
            boot_id: process.boot_id.clone(),
            real_less_mono_ns: anchor.real_ns as i64 - anchor.mono.0 as i64,
            taken: if from_now { taken(&process) } else { 0 },
        };
        let mut part = Self {
            reader,
            cursor,
            tracks,
            file,
            path: path.clone(),
            anchors: VecDeque::new(),
            sampled_ns: 0,
            lost: 0,
        };
        part.file.write_all(format!("[\n{}", meta("ccl_trace", &header)).as_bytes()).map_err(refused)?;
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
        for ring in rings {
            self.lost += ring.reading.lost;
            let Some(owner) = ring.owner else { continue };
            if !self.tracks.knows(owner) {
                self.tracks.learn(&self.reader.snapshot()?);
            }
            count += ring.reading.events.len();
            for event in &ring.reading.events {
                self.tracks.take(owner, event, &scale);
            }
        }
        let now = ccl::clock::anchor();
        if now.mono.0.saturating_sub(self.sampled_ns) >= COUNTERS.as_nanos() as u64 {
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
        let footer = Footer { lost: self.lost, taken };
        self.put(&format!(",\n{}\n]\n", meta("ccl_trace_end", &footer)))?;
        drained.map(drop)
    }
}

/// The messages that the ranks of a process have taken.
fn taken(process: &ProcessSnapshot) -> u64 {
    let links = process.comms.iter().flat_map(|comm| &comm.links);
    links.filter(|link| link.direction == Direction::Recv).map(|link| link.done).sum()
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
