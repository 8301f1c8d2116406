//! Reading a recorder: the process's own by borrowing it, another process's by copying its file.
//!
//! A file is hostile until checked: it may be truncated, shrink while it is read, come from another
//! version, or hold wrong values. So it is copied with read(2), which cannot raise SIGBUS as a
//! mapping can, and every offset, count and word in it is checked or clamped where it is used. A
//! live file is copied in ascending order, and what describes communicators and their links twice;
//! a communicator is `consistent` if both copies agree on it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::capture::Capture;
use super::decode::{self, Clock};
use super::ending;
use super::history;
use super::layout::{self, Table, comm, durations, header, histogram, ring};
use super::pairs_read;
use super::ports;
use super::state::Recorder;
use super::tail::{Piece, events};
use super::watch;
use super::words::{
    MAX_BYTES, MAX_STRING, TableRows, TableSpan, fact, halves, state, string, text, word, words,
};
use crate::clock::{self, Anchor, Ns, Raw, Scale};
use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::bounds::{MAX_COMMS, MAX_DURATIONS, MAX_RINGS};
use crate::snapshot::{
    CommSnapshot, MemoryCount, Overflow, PROCESS_SCHEMA, ProcessFacts, ProcessSnapshot, RingSnapshot,
};
use crate::sys::reference::{Kind, Reference};
use crate::sys::shared::{self, Owner};
use crate::text::harmless;
use crate::types::{CollKind, CommId, JobId, Rank};

pub use super::tail::{Cursor, Reading};

/// A recorder, open for reading.
#[derive(Debug)]
pub struct Reader {
    pub(super) from: From,
}

#[derive(Debug)]
pub(super) enum From {
    /// A recorder of this process. Its file must not be opened, or the alive lock would be dropped.
    Own(Arc<Recorder>),
    File(File, PathBuf),
    Capture(Box<Capture>, PathBuf),
}

/// The durations of one kind of operation and one size class on one communicator and rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// The communicator.
    pub comm: CommId,
    /// The communicator's name.
    pub name: String,
    /// The rank in the communicator.
    pub rank: Rank,
    /// The kind of operation.
    pub kind: CollKind,
    /// The largest size of the class in bytes; `None` for the last class.
    pub class_bytes: Option<u64>,
    /// The sum of all durations.
    pub sum_ns: u64,
    /// The sum of all bytes.
    pub sum_bytes: u64,
    /// Upper bound (exclusive, in nanoseconds; `None` for the last) and count of each bucket.
    pub buckets: Vec<(Option<u64>, u64)>,
}

impl Reader {
    /// The recorder of this process; `None` if it has none.
    #[must_use]
    pub fn of_process() -> Option<Self> {
        Recorder::of_process().map(Self::borrow)
    }

    pub(crate) const fn borrow(recorder: Arc<Recorder>) -> Self {
        Self { from: From::Own(recorder) }
    }

    /// Takes the recorder for this reader alone, if nothing else uses it any more.
    ///
    /// Then its content no longer changes, and the recorder leaves when the reader is dropped.
    ///
    /// # Errors
    /// The reader as it was, if the recorder is still in use or belongs to another process.
    pub fn alone(self) -> std::result::Result<Self, Self> {
        match self.from {
            From::Own(recorder) => match Arc::try_unwrap(recorder) {
                Ok(recorder) => Ok(Self::borrow(Arc::new(recorder))),
                Err(recorder) => Err(Self::borrow(recorder)),
            },
            from @ (From::File(..) | From::Capture(..)) => Err(Self { from }),
        }
    }

    /// Opens a recorder by its path.
    ///
    /// The path may have the form `/proc/PID/fd/N`, which reaches other mount namespaces, memfds
    /// and unlinked files. The process's own file is borrowed.
    ///
    /// # Errors
    /// `System` if it cannot be read; `Usage` if it is not a recorder, or one that only a later
    /// version can read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let reference = Reference::to(path).map_err(|e| refused(path, e))?;
        Self::through(&reference, path)
    }

    /// Opens a recorder that was looked at before, with the rights of its owner.
    ///
    /// `path` names it in messages. The process's own file is borrowed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn through(reference: &Reference, path: &Path) -> Result<Self> {
        if let Some(own) = Recorder::of_process().filter(|own| own.is_in(reference.identity())) {
            return Ok(Self::borrow(own));
        }
        if reference.kind() != Kind::File {
            return Err(no_recorder(path, "it is no file"));
        }
        let file = reference.open().map_err(|e| refused(path, e))?;
        // Only the header is read first: a file that is not a recorder costs one page, however
        // large it is.
        header_of(&file, path)?;
        Ok(Self { from: From::File(file, path.to_path_buf()) })
    }

    /// The path it was opened by, or the file of the process's own recorder.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.from {
            From::Own(recorder) => recorder.path(),
            From::File(_, path) | From::Capture(_, path) => Some(path),
        }
    }

    /// Whether the process lives: a process holds the lock on byte 0.
    ///
    /// The holder's pid does not matter: seen from another pid namespace the lock has no pid.
    #[must_use]
    pub fn alive(&self) -> bool {
        match &self.from {
            From::Own(_) => true,
            From::File(file, _) => shared::owner(file).is_ok_and(|owner| owner != Owner::None),
            From::Capture(capture, _) => capture.alive,
        }
    }

    /// Reads the state of the process.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it is no longer a recorder.
    pub fn snapshot(&self) -> Result<ProcessSnapshot> {
        let mut process = self.as_written()?;
        // Tables are only read within the checked bounds; the result here is for the user.
        let _ = process.is_believed();
        Ok(process)
    }

    fn as_written(&self) -> Result<ProcessSnapshot> {
        let alive = self.alive();
        let from = (clock::real_ns(), clock::now());
        match &self.from {
            From::Own(recorder) => {
                let words = recorder.memory.words();
                Ok(snapshot(words, words, alive, from, None))
            }
            From::File(file, path) => {
                // The file of a dead process no longer changes.
                let first = if alive { read_compared(file, path)? } else { self.copy()? };
                check(&first, path)?;
                let second = if alive { Some(self.copy()?) } else { None };
                let second = second.as_ref().filter(|second| check(second, path).is_ok());
                let mut snapshot = snapshot(&first, second.unwrap_or(&first), alive, from, None);
                // The recorded path may be gone or of another mount namespace; the path it was
                // opened by works here.
                if !path.starts_with("/proc") || snapshot.path.is_empty() {
                    snapshot.path = path.to_string_lossy().into_owned();
                }
                Ok(snapshot)
            }
            // Of a live process there is only one copy, which does not prove that it is consistent.
            From::Capture(capture, path) => {
                let words = capture.words();
                check(&words, path)?;
                let first = if alive { &[] } else { words.as_slice() };
                // The capture has the start of copying on one clock only: it is as long before the
                // end on the other.
                let took = Duration::from_nanos(capture.at.real_ns.saturating_sub(capture.from_real_ns));
                let from = Ns(capture.at.mono.0.saturating_sub(took.as_nanos() as u64));
                Ok(snapshot(first, &words, alive, (capture.from_real_ns, from), Some(capture.at)))
            }
        }
    }

    /// Reads the events written since the last call with this cursor.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it is no longer a recorder.
    pub fn events(&self, cursor: &mut Cursor) -> Result<Vec<Reading>> {
        if let From::File(file, path) = &self.from {
            // A client that follows events asks often, and wants only the new ones.
            let piece = |at: usize, count: usize| read_words(file, at, count).ok().map(Piece::Copied);
            return Ok(events(&header_of(file, path)?, cursor, piece));
        }
        self.with(|words| {
            events(words, cursor, |at, count| words.get(at..at.checked_add(count)?).map(Piece::Mapped))
        })
    }

    /// The job of the process's first communicator; zero while it has none.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it is no longer a recorder.
    pub fn job(&self) -> Result<JobId> {
        let job = |words: &[AtomicU64]| JobId(word(words, header::JOB));
        match &self.from {
            From::File(file, path) => Ok(job(&header_of(file, path)?)),
            From::Own(_) | From::Capture(..) => self.with(job),
        }
    }

    /// Reads the histograms that are not empty.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it is no longer a recorder.
    pub fn histograms(&self) -> Result<Vec<Histogram>> {
        self.with(histograms)
    }

    /// The scale from raw times to CLOCK_MONOTONIC, and the anchor from there to CLOCK_REALTIME.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it is no longer a recorder.
    pub fn clock(&self) -> Result<(Scale, Anchor)> {
        let clock = |words: &[AtomicU64]| (clock_of(words), last_anchor(words));
        match &self.from {
            From::File(file, path) => Ok(clock(&header_of(file, path)?)),
            From::Own(_) | From::Capture(..) => self.with(clock),
        }
    }

    pub(super) fn with<T>(&self, read: impl FnOnce(&[AtomicU64]) -> T) -> Result<T> {
        match &self.from {
            From::Own(recorder) => Ok(read(recorder.memory.words())),
            From::File(_, path) => {
                let copy = self.copy()?;
                check(&copy, path)?;
                Ok(read(&copy))
            }
            From::Capture(capture, _) => Ok(read(&capture.words())),
        }
    }

    /// The words of the file, as many as it has.
    fn copy(&self) -> Result<Vec<AtomicU64>> {
        let From::File(file, path) = &self.from else { return Ok(Vec::new()) };
        read_words(file, 0, usize::MAX).map_err(|e| Error::system(format!("reading {}", path.display()), e))
    }

    /// The bytes of the file.
    pub(super) fn bytes(&self) -> Result<Vec<u8>> {
        let From::File(file, path) = &self.from else { return Ok(Vec::new()) };
        let refuse = |e| Error::system(format!("reading {}", path.display()), e);
        let len = file.metadata().map_err(refuse)?.len().min(MAX_BYTES);
        read_bytes(file, 0, len as usize).map_err(refuse)
    }
}

/// The words of a file's header, checked.
pub(super) fn header_of(file: &File, path: &Path) -> Result<Vec<AtomicU64>> {
    let header = read_words(file, 0, layout::HEADER_BYTES / 8)
        .map_err(|e| Error::system(format!("reading {}", path.display()), e))?;
    check(&header, path).map(|()| header)
}

/// The first words of a file, up to the end of what [`decode::comms`] reads.
fn read_compared(file: &File, path: &Path) -> Result<Vec<AtomicU64>> {
    let header = header_of(file, path)?;
    let tables = [Table::Comms, Table::LinkIds, Table::Links, Table::Strings];
    let spans = tables.into_iter().filter_map(|table| TableSpan::of(&header, table));
    let end = spans.map(|span| span.count.saturating_mul(span.stride).saturating_add(span.first)).max();
    read_words(file, 0, end.unwrap_or(0).max(header.len()))
        .map_err(|e| Error::system(format!("reading {}", path.display()), e))
}

/// The words of a file from word `at`: up to `count`, fewer if the file ends before.
fn read_words(file: &File, at: usize, count: usize) -> std::io::Result<Vec<AtomicU64>> {
    /// Small pieces: memory that is used again is in the processor's cache.
    const PIECE: usize = 64 << 10;
    let from = (at as u64).checked_mul(8).ok_or(std::io::ErrorKind::InvalidInput)?;
    let there = usize::try_from(file.metadata()?.len().saturating_sub(from)).unwrap_or(usize::MAX) / 8;
    let count = count.min(MAX_BYTES as usize / 8).min(there);
    let mut copied = Vec::with_capacity(count);
    let mut piece = vec![0; PIECE.min(count * 8)];
    while copied.len() < count {
        let wanted = ((count - copied.len()) * 8).min(PIECE);
        let have = read_at(file, from.saturating_add(copied.len() as u64 * 8), &mut piece[..wanted])?;
        copied.extend(words(&piece[..have]));
        if have < wanted {
            break;
        }
    }
    Ok(copied)
}

/// The bytes of a file from byte `from`: up to `count`, fewer if the file ends before.
fn read_bytes(file: &File, from: u64, count: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    let have = read_at(file, from, &mut bytes)?;
    bytes.truncate(have);
    Ok(bytes)
}

/// Fills `bytes` from byte `from` of a file; gives how many there were.
fn read_at(file: &File, from: u64, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut have = 0;
    while have < bytes.len() {
        match file.read_at(&mut bytes[have..], from + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

impl Reader {
    /// Copies the recorder.
    ///
    /// # Errors
    /// `System` if the file cannot be read.
    pub fn capture(&self) -> Result<Capture> {
        let (alive, from_real_ns) = (self.alive(), clock::real_ns());
        let bytes = match &self.from {
            From::Capture(capture, _) => return Ok((**capture).clone()),
            From::File(..) => self.bytes()?,
            From::Own(recorder) => {
                let words = recorder.memory.words().iter();
                words.flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect()
            }
        };
        Ok(Capture { bytes, alive, from_real_ns, at: clock::anchor() })
    }

    /// Reads a copy as if now were the moment at which it was made; `name` stands for it in errors.
    ///
    /// # Errors
    /// `Usage` if it is no recorder, or one that only a later version can read.
    pub fn of_capture(capture: Capture, name: impl Into<PathBuf>) -> Result<Self> {
        let reader = Self { from: From::Capture(Box::new(capture), name.into()) };
        let From::Capture(capture, name) = &reader.from else { return Ok(reader) };
        check(&capture.words(), name)?;
        Ok(reader)
    }
}

impl Recorder {
    /// Whether `identity` is the device and inode of this recorder's file.
    fn is_in(&self, identity: (u64, u64)) -> bool {
        self.place.as_ref().and_then(|place| place.inode()) == Some(identity)
    }
}

fn refused(path: &Path, error: std::io::Error) -> Error {
    Error::system(format!("opening {}", path.display()), error)
}

fn no_recorder(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("{} is no recorder: {why}", path.display()))
}

pub(super) fn check(words: &[AtomicU64], path: &Path) -> Result<()> {
    if words.len() < header::DIRECTORY_AT {
        return Err(no_recorder(path, &format!("it has {} bytes", words.len() * 8)));
    }
    if word(words, header::MAGIC) != layout::MAGIC {
        return Err(no_recorder(path, "it does not begin as one"));
    }
    let (written, needs) = halves(word(words, header::VERSION));
    if needs > layout::VERSION {
        let what =
            format!("{} has layout {written}, this is a reader of {}", path.display(), layout::VERSION);
        return Err(Error::new(ErrorKind::Usage, what).hint("read it with the version that wrote it"));
    }
    Ok(())
}

fn anchor(raw: u64, mono: u64, real_ns: u64) -> Anchor {
    Anchor { raw: Raw(raw), mono: Ns(mono), real_ns }
}

fn last_anchor(words: &[AtomicU64]) -> Anchor {
    let [raw, mono, real] =
        fact::<{ header::ANCHOR_WORDS }>(words, header::ANCHOR_LATCH, header::ANCHOR).unwrap_or_default();
    anchor(raw, mono, real)
}

fn first_anchor(words: &[AtomicU64]) -> Anchor {
    let at = |n: usize| word(words, header::FIRST_ANCHOR + n);
    anchor(at(0), at(1), at(2))
}

/// Nanoseconds per tick as the writer measured them.
fn measured(words: &[AtomicU64]) -> f64 {
    word(words, header::NS_PER_TICK) as f64 / 4_294_967_296.0
}

fn clock_of(words: &[AtomicU64]) -> Scale {
    Scale::between(first_anchor(words), last_anchor(words), measured(words))
}

/// The least time between two anchors of a process that give the scale of its clock.
const APART_NS: u64 = 500_000_000;

/// The scale of the process's own anchors: in tests its clock is not the reader's.
///
/// For a process that is too young for that it is the scale of the reading.
fn own_scale(words: &[AtomicU64], clock: &Clock) -> Scale {
    let (first, last) = (first_anchor(words), last_anchor(words));
    if last.mono.0.saturating_sub(first.mono.0) < APART_NS { clock.scale } else { clock_of(words) }
}

/// Decodes a snapshot from two copies, or from two readings of the mapping itself.
///
/// `then` is when the copies were made, if not now.
fn snapshot(
    first: &[AtomicU64],
    words: &[AtomicU64],
    alive: bool,
    (from_real_ns, from): (u64, Ns),
    then: Option<Anchor>,
) -> ProcessSnapshot {
    let at = |n: usize| word(words, n);
    let anchor = last_anchor(words);
    let (clock, to_real_ns) = if alive {
        // The counter and the clock are the writer's too: it holds a lock of the same kernel.
        let now = then.unwrap_or_else(clock::anchor);
        let scale = Scale::between(first_anchor(words), now, measured(words));
        (Clock { scale, now: now.mono }, now.real_ns)
    } else {
        // The ages of a dead process count from its last sign of life, whenever it is read.
        let scale = clock_of(words);
        let clock = Clock { scale, now: decode::last_sign(words, scale).max(anchor.mono) };
        (clock, clock.real_ns(anchor))
    };
    let (pid, outer_pid) = halves(at(header::PID));
    let library = at(header::LIBRARY);
    let (facts, memory) = facts(words, alive, &clock);
    ProcessSnapshot {
        schema: PROCESS_SCHEMA.into(),
        pid,
        outer_pid,
        pid_namespace: at(header::PID_NAMESPACE),
        uid: at(header::UID) as u32,
        host: text(words, header::HOST, header::TEXTS[1]),
        host_id: text(words, header::HOST_ID, header::TEXTS[2]),
        boot_id: text(words, header::BOOT, header::TEXTS[0]),
        start_ticks: at(header::STARTED),
        job: JobId(at(header::JOB)),
        launch: JobId(at(header::LAUNCH)),
        launch_rank: (at(header::LAUNCH_RANK) as u32).checked_sub(1).map(Rank),
        library: format!("{}.{}.{}", library >> 32, library >> 16 & 0xffff, library & 0xffff),
        path: string(words, at(header::PATH)),
        control: string(words, at(header::CONTROL)),
        settings: string(words, at(header::SETTINGS)),
        alive,
        left: at(header::LEFT) != 0,
        failed: at(header::FAILED),
        made_real_ns: at(header::MADE_AT),
        from_real_ns,
        // Not the time of decoding: the ages would count from an earlier moment than it says.
        to_real_ns,
        from_mono_ns: from.0,
        to_mono_ns: clock.now.0,
        clock_error_ns: None,
        heartbeat_ns: clock.age_ns(anchor.raw.0),
        comms: comms(first, words, &clock),
        ports: ports::ports(words, &clock),
        rings: rings(words),
        overflow: overflow(words),
        comms_without_row: at(header::WITHOUT_ROW),
        facts,
        memory,
        truncated: at(header::TOTAL) > words.len() as u64 * 8,
    }
}

/// The communicators, with all that is kept of them.
fn comms(first: &[AtomicU64], words: &[AtomicU64], clock: &Clock) -> Vec<CommSnapshot> {
    let mut comms = decode::comms(words, clock);
    let before = decode::comms(first, clock);
    for comm in comms.iter_mut().flatten() {
        let is_same = before.iter().flatten().any(|before| before == comm);
        comm.1.consistent = is_same;
    }
    // Socket samples are decoded apart: a new sample between two copies makes nothing else
    // inconsistent. So are queue pairs, and members, whose rows are written once.
    decode::sockets(words, clock, &mut comms);
    pairs_read::queue_pairs(words, clock, &mut comms);
    decode::peers(words, &mut comms);
    history::histories(words, &own_scale(words, clock), &mut comms);
    comms.into_iter().flatten().map(|(_, comm)| comm).collect()
}

/// What the process says of itself.
fn facts(words: &[AtomicU64], alive: bool, clock: &Clock) -> (ProcessFacts, Option<MemoryCount>) {
    let (facts, memory) = ending::facts(words, alive);
    (ProcessFacts { stall: watch::told(words, clock), ..facts }, memory)
}

fn overflow(words: &[AtomicU64]) -> Vec<Overflow> {
    let rows = |table: Table| word(words, header::overflow(table));
    let counted = layout::TABLES.into_iter().filter(|table| rows(*table) > 0);
    counted.map(|table| Overflow { table: format!("{table:?}"), rows: rows(table) }).collect()
}

fn rings(words: &[AtomicU64]) -> Vec<RingSnapshot> {
    let rows = TableRows::of(words, Table::Rings).iter().take(MAX_RINGS);
    let used = rows.filter(|row| state(word(row, ring::STATE)).is_some());
    used.map(|row| {
        let written = word(row, ring::HEAD);
        RingSnapshot {
            comm: CommId(word(row, ring::COMM)),
            rank: Rank(word(row, ring::RANK) as u32),
            thread: word(row, ring::THREAD),
            written,
            overwritten: written.saturating_sub(word(row, ring::SLOTS)),
        }
    })
    .collect()
}

fn histograms(words: &[AtomicU64]) -> Vec<Histogram> {
    let rows = TableRows::of(words, Table::Comms);
    let mut found = older_histograms(words);
    for row in TableRows::of(words, Table::Durations).iter().take(MAX_DURATIONS) {
        let what = word(row, durations::WHAT);
        let comm = rows.row((what >> 16) as u16 as usize).filter(|comm| {
            let stands = word(comm, comm::STATE);
            state(stands).is_some() && stands >> 32 == what >> 32
        });
        let (Some(_), Some(comm), Some(kind)) = (state(what), comm, CollKind::from_u8((what >> 8) as u8))
        else {
            continue;
        };
        let cells = row.get(durations::CELLS..).unwrap_or_default().chunks_exact(histogram::CELL);
        let cells = cells.take(histogram::CLASSES).enumerate();
        found.extend(cells.filter_map(|(class, cell)| histogram(comm, kind, class, cell)));
    }
    found
}

/// Those of a recorder before layout 7: a block per communicator.
fn older_histograms(words: &[AtomicU64]) -> Vec<Histogram> {
    let blocks = TableRows::of(words, Table::Histograms);
    let mut found = Vec::new();
    for comm in TableRows::of(words, Table::Comms).iter().take(MAX_COMMS) {
        let block = usize::try_from(word(comm, comm::HISTOGRAM)).ok().and_then(|n| n.checked_sub(1));
        let block = block.and_then(|at| blocks.row(at)).filter(|_| state(word(comm, comm::STATE)).is_some());
        let cells = block.unwrap_or_default().chunks_exact(histogram::CELL);
        for (at, cell) in cells.take(histogram::KINDS * histogram::CLASSES).enumerate() {
            let kind = CollKind::from_u8((at / histogram::CLASSES) as u8);
            found.extend(kind.and_then(|kind| histogram(comm, kind, at % histogram::CLASSES, cell)));
        }
    }
    found
}

/// A histogram that is not empty, of the communicator of this row.
fn histogram(comm: &[AtomicU64], kind: CollKind, class: usize, cell: &[AtomicU64]) -> Option<Histogram> {
    let bucket = |at: usize| (histogram::bound_ns(at), word(cell, histogram::BUCKETS + at));
    let buckets: Vec<_> = (0..histogram::BUCKETS_COUNT).map(bucket).collect();
    buckets.iter().any(|(_, n)| *n > 0).then(|| Histogram {
        comm: CommId(word(comm, comm::ID)),
        name: harmless(&text(comm, comm::NAME, comm::NAME_WORDS), MAX_STRING).into_owned(),
        rank: Rank(word(comm, comm::RANK) as u32),
        kind,
        class_bytes: histogram::class_bytes(class),
        sum_ns: word(cell, histogram::SUM_NS),
        sum_bytes: word(cell, histogram::SUM_BYTES),
        buckets,
    })
}
