//! Reading a recorder: one's own by borrowing it, another's by copying its file.
//!
//! A file is hostile until checked: it may be truncated, shrink while it is read, come from another version, or lie. So it is
//! copied with read(2), which cannot end in SIGBUS as a mapping can, and every offset, count and word in it is checked or clamped where it
//! is used. Of a live file the copy is made in ascending order, and what is told of a communicator is `consistent` if two copies tell the same.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Recorder;
use super::follow::{Piece, events};
use super::layout::{self, RowState, Table, comm, header, histogram, ring};
use super::protocol::latch_read;
use super::sight::{self, Clock};
use super::taken::Taken;
use crate::clock::{self, Anchor, Ns, Raw, Scale};
use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::bounds::{MAX_COMMS, MAX_RINGS};
use crate::snapshot::{Overflow, PROCESS_SCHEMA, ProcessSnapshot, RingSnapshot};
use crate::sys::reference::{Kind, Reference};
use crate::sys::shared::{self, Owner};
use crate::text::harmless;
use crate::types::{CollKind, CommId, JobId, Rank};

/// The most bytes of a file that are read: many times what a recorder has.
pub(super) const MAX_BYTES: u64 = 16 << 20;

pub use super::follow::{Cursor, RingReading};

/// A recorder, open for reading.
#[derive(Debug)]
pub struct Reader {
    pub(super) from: From,
}

#[derive(Debug)]
pub(super) enum From {
    /// Within the process: its file must not be opened, or the alive lock would be dropped.
    Own(Arc<Recorder>),
    File(File, PathBuf),
    Taken(Box<Taken>, PathBuf),
}

/// The durations of one kind of operation of one size class on one communicator and rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// The communicator.
    pub comm: CommId,
    /// Its name.
    pub name: String,
    /// The rank in it.
    pub rank: Rank,
    /// The kind of operation.
    pub kind: CollKind,
    /// The most bytes of its size class; `None` for the last.
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

    /// Takes the recorder of this process for itself if nobody else uses it any more: what can be read then is all there will be, and
    /// the recorder leaves when the reader is dropped.
    ///
    /// # Errors
    /// The reader as it was, if somebody uses the recorder, or it is another process's.
    pub fn alone(self) -> std::result::Result<Self, Self> {
        match self.from {
            From::Own(recorder) => match Arc::try_unwrap(recorder) {
                Ok(recorder) => Ok(Self::borrow(Arc::new(recorder))),
                Err(recorder) => Err(Self::borrow(recorder)),
            },
            from @ (From::File(..) | From::Taken(..)) => Err(Self { from }),
        }
    }

    /// Opens a recorder by its path, also one of the form `/proc/PID/fd/N`, which reaches other mount namespaces, memfds and
    /// unlinked files. Its own file a process borrows.
    ///
    /// # Errors
    /// `System` if it cannot be read; `Usage` if it is no recorder, or one that only a later version can read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let reference = Reference::to(path).map_err(|e| refused(path, e))?;
        Self::through(&reference, path)
    }

    /// Opens a recorder that was looked at, with the rights of its owner; `path` stands for it in what is said. Its own file a
    /// process borrows.
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
        // What is no recorder costs a page, however large it is.
        header_of(&file, path)?;
        Ok(Self { from: From::File(file, path.to_path_buf()) })
    }

    /// The path it was opened by; its own recorder's file.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.from {
            From::Own(recorder) => recorder.path(),
            From::File(_, path) | From::Taken(_, path) => Some(path),
        }
    }

    /// Whether the process lives: it holds the lock on byte 0. Who holds it does not matter: seen from another pid namespace the
    /// lock has no pid.
    #[must_use]
    pub fn alive(&self) -> bool {
        match &self.from {
            From::Own(_) => true,
            From::File(file, _) => shared::owner(file).is_ok_and(|owner| owner != Owner::None),
            From::Taken(taken, _) => taken.alive,
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it has become no recorder.
    pub fn snapshot(&self) -> Result<ProcessSnapshot> {
        let mut process = self.as_written()?;
        // No table is read further than is believed; what it says is for people.
        let _ = process.is_believed();
        Ok(process)
    }

    fn as_written(&self) -> Result<ProcessSnapshot> {
        let alive = self.alive();
        let from_real_ns = clock::real_ns();
        match &self.from {
            From::Own(recorder) => {
                let words = recorder.memory.words();
                Ok(snapshot(words, words, alive, from_real_ns, None))
            }
            From::File(_, path) => {
                let first = self.copy()?;
                check(&first, path)?;
                // A dead file does not change any more.
                let second = if alive { Some(self.copy()?) } else { None };
                let second = second.as_ref().filter(|second| check(second, path).is_ok());
                let mut snapshot = snapshot(&first, second.unwrap_or(&first), alive, from_real_ns, None);
                // The path may be gone or of another mount namespace; the one it was opened by is good here.
                if !path.starts_with("/proc") || snapshot.path.is_empty() {
                    snapshot.path = path.to_string_lossy().into_owned();
                }
                Ok(snapshot)
            }
            // Of the living there is one copy, which proves nothing of itself.
            From::Taken(taken, path) => {
                let words = taken.words();
                check(&words, path)?;
                let first = if alive { &[] } else { words.as_slice() };
                Ok(snapshot(first, &words, alive, taken.from_real_ns, Some(taken.at)))
            }
        }
    }

    /// Reads the events that were written since the last look with this cursor.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it has become no recorder.
    pub fn events(&self, cursor: &mut Cursor) -> Result<Vec<RingReading>> {
        if let From::File(file, path) = &self.from {
            // Whoever follows the events asks often, and wants the new ones only.
            let piece = |at: usize, count: usize| read_words(file, at, count).ok().map(Piece::Copied);
            return Ok(events(&header_of(file, path)?, cursor, piece));
        }
        self.with(|words| {
            events(words, cursor, |at, count| words.get(at..at.checked_add(count)?).map(Piece::Mapped))
        })
    }

    /// Reads the histograms that count something.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it has become no recorder.
    pub fn histograms(&self) -> Result<Vec<Histogram>> {
        self.with(histograms)
    }

    /// How its raw times become CLOCK_MONOTONIC, and that CLOCK_REALTIME.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `Usage` if it has become no recorder.
    pub fn clock(&self) -> Result<(Scale, Anchor)> {
        let clock = |words: &[AtomicU64]| (clock_of(words), last_anchor(words));
        match &self.from {
            From::File(file, path) => Ok(clock(&header_of(file, path)?)),
            From::Own(_) | From::Taken(..) => self.with(clock),
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
            From::Taken(taken, _) => Ok(read(&taken.words())),
        }
    }

    /// The words of the file, as many as there are.
    fn copy(&self) -> Result<Vec<AtomicU64>> {
        self.bytes().map(|bytes| words(&bytes))
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

/// The words of a file from word `at`: as many of `count` as there are.
fn read_words(file: &File, at: usize, count: usize) -> std::io::Result<Vec<AtomicU64>> {
    let from = (at as u64).checked_mul(8).ok_or(std::io::ErrorKind::InvalidInput)?;
    read_bytes(file, from, count.min(MAX_BYTES as usize / 8) * 8).map(|bytes| words(&bytes))
}

/// The bytes of a file from byte `from`: as many of `count` as there are.
fn read_bytes(file: &File, from: u64, count: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    let mut have = 0;
    while have < bytes.len() {
        match file.read_at(&mut bytes[have..], from + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(have);
    Ok(bytes)
}

/// The words of these bytes, as many as are whole.
pub(super) fn words(bytes: &[u8]) -> Vec<AtomicU64> {
    let words = bytes.chunks_exact(8);
    words.map(|word| AtomicU64::new(u64::from_le_bytes(word.try_into().expect("8 bytes")))).collect()
}

impl Recorder {
    /// Whether that is the device and inode of this recorder's file.
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

/// A word of a row; zero where an older writer's row ends before it.
pub(super) fn word(row: &[AtomicU64], at: usize) -> u64 {
    row.get(at).map_or(0, |word| word.load(Ordering::Acquire))
}

/// The lower and the upper half.
pub(super) const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// The fact behind a latch; `None` if the row ends before it or the writer was too fast.
pub(super) fn fact<const N: usize>(row: &[AtomicU64], latch: usize, copies: usize) -> Option<[u64; N]> {
    latch_read(row.get(latch)?, row.get(copies..copies + 2 * N)?)
}

/// The words of a text.
pub(super) fn text(row: &[AtomicU64], at: usize, words: usize) -> String {
    let words: Vec<u64> = (at..at + words).map(|at| word(row, at)).collect();
    layout::decode_text(&words)
}

/// Where the directory says that a table lies, in words.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) count: usize,
}

impl Place {
    pub(super) fn of(words: &[AtomicU64], table: Table) -> Option<Self> {
        let size = |at: usize| usize::try_from(word(words, at)).ok();
        let first = size(header::DIRECTORY)? / 8;
        let stride = (size(header::DIRECTORY_STRIDE)? / 8).max(1);
        // A directory of more entries than this is none.
        let count = size(header::DIRECTORY_COUNT)?.min(1024);
        let entries = words.get(first..)?.chunks(stride).take(count);
        let entry = entries.into_iter().find(|entry| word(entry, 0) == table as u64)?;
        let field = |at: usize| usize::try_from(word(entry, at)).ok().filter(|n| *n <= MAX_BYTES as usize);
        let (offset, stride, count) = (field(1)?, field(2)? / 8, field(3)?);
        (stride > 0).then_some(Self { first: offset / 8, stride, count })
    }
}

/// One table of a mapping, as far as it is there.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    words: &'a [AtomicU64],
    /// Words per row.
    stride: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn of(words: &'a [AtomicU64], table: Table) -> Self {
        Self::find(words, table).unwrap_or(Self { words: &[], stride: 1 })
    }

    fn find(words: &'a [AtomicU64], table: Table) -> Option<Self> {
        let Place { first, stride, count } = Place::of(words, table)?;
        let there = words.get(first..)?;
        let len = stride.checked_mul(count)?.min(there.len());
        Some(Self { words: &there[..len], stride })
    }

    pub(super) fn iter(self) -> impl Iterator<Item = &'a [AtomicU64]> {
        self.words.chunks_exact(self.stride)
    }
    pub(super) fn row(self, at: usize) -> Option<&'a [AtomicU64]> {
        let first = at.checked_mul(self.stride)?;
        self.words.get(first..first.checked_add(self.stride)?)
    }
}

/// The longest string that is read: longer than any path or settings line.
const MAX_STRING: usize = 64 << 10;

/// The string of a reference; empty if there is none, or it leads out of the table.
pub(super) fn string(words: &[AtomicU64], reference: u64) -> String {
    let (at, len) = halves(reference);
    let (at, len) = (at as usize, len as usize);
    let strings = Rows::of(words, Table::Strings).words;
    let is_there = |there: &&[AtomicU64]| (1..=MAX_STRING).contains(&len) && len <= there.len() * 8;
    let Some(there) = strings.get(at / 8..).filter(is_there) else {
        return String::new();
    };
    let bytes: Vec<u8> =
        there[..len.div_ceil(8)].iter().flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes[..len]).into_owned()
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

/// What two copies tell; of the mapping itself, what two readings of it do. `then` is when they were made, if not now.
fn snapshot(
    first: &[AtomicU64],
    words: &[AtomicU64],
    alive: bool,
    from_real_ns: u64,
    then: Option<Anchor>,
) -> ProcessSnapshot {
    let at = |n: usize| word(words, n);
    let anchor = last_anchor(words);
    let clock = if alive {
        // Counter and clock are those of the writer: it holds a lock of the same kernel.
        let now = then.unwrap_or_else(clock::anchor);
        Clock { scale: Scale::between(first_anchor(words), now, measured(words)), now: now.mono }
    } else {
        // Of the dead: its last sign of life, whenever it is read.
        let scale = clock_of(words);
        Clock { scale, now: sight::last_sign(words, scale).max(anchor.mono) }
    };
    let mut comms = sight::comms(words, &clock);
    let before = sight::comms(first, &clock);
    for comm in comms.iter_mut().flatten() {
        let is_same = before.iter().flatten().any(|before| before == comm);
        comm.1.consistent = is_same;
    }
    // A sample stands for itself: one taken meanwhile makes nothing else of what was read.
    sight::sockets(words, &clock, &mut comms);
    let (pid, outer_pid) = halves(at(header::PID));
    let library = at(header::LIBRARY);
    ProcessSnapshot {
        schema: PROCESS_SCHEMA.into(),
        pid,
        outer_pid,
        pid_namespace: at(header::PID_NAMESPACE),
        uid: at(header::UID) as u32,
        host: text(words, header::HOST, header::TEXTS[1]),
        host_id: text(words, header::HOST_ID, header::TEXTS[2]),
        boot_id: text(words, header::BOOT, header::TEXTS[0]),
        job: JobId(at(header::JOB)),
        library: format!("{}.{}.{}", library >> 32, library >> 16 & 0xffff, library & 0xffff),
        path: string(words, at(header::PATH)),
        control: string(words, at(header::CONTROL)),
        settings: string(words, at(header::SETTINGS)),
        alive,
        left: at(header::LEFT) != 0,
        failed: at(header::FAILED),
        made_real_ns: at(header::MADE_AT),
        from_real_ns,
        to_real_ns: match (alive, then) {
            (true, None) => clock::real_ns(),
            (true, Some(then)) => then.real_ns,
            (false, _) => clock.real_ns(anchor),
        },
        heartbeat_ns: clock.age_ns(anchor.raw.0),
        comms: comms.into_iter().flatten().map(|(_, comm)| comm).collect(),
        rings: rings(words),
        overflow: overflow(words),
        truncated: at(header::TOTAL) > words.len() as u64 * 8,
    }
}

fn overflow(words: &[AtomicU64]) -> Vec<Overflow> {
    let rows = |table: Table| word(words, header::OVERFLOW + table as usize);
    let counted = layout::TABLES.into_iter().filter(|table| rows(*table) > 0);
    counted.map(|table| Overflow { table: format!("{table:?}"), rows: rows(table) }).collect()
}

fn rings(words: &[AtomicU64]) -> Vec<RingSnapshot> {
    let rows = Rows::of(words, Table::Rings).iter().take(MAX_RINGS);
    let used = rows.filter(|row| state(word(row, ring::STATE)).is_some());
    used.map(|row| {
        let written = word(row, ring::HEAD);
        RingSnapshot {
            comm: CommId(word(row, ring::COMM)),
            rank: Rank(word(row, ring::RANK) as u32),
            written,
            overwritten: written.saturating_sub(word(row, ring::SLOTS)),
        }
    })
    .collect()
}

/// The state in the low byte of a row's first word; `None` if it is free or unknown.
pub(super) fn state(word: u64) -> Option<RowState> {
    match word as u8 {
        n if n == RowState::Live as u8 => Some(RowState::Live),
        n if n == RowState::Ended as u8 => Some(RowState::Ended),
        _ => None,
    }
}

fn histograms(words: &[AtomicU64]) -> Vec<Histogram> {
    let blocks = Rows::of(words, Table::Histograms);
    let mut found = Vec::new();
    for row in Rows::of(words, Table::Comms).iter().take(MAX_COMMS) {
        let block = usize::try_from(word(row, comm::HISTOGRAM)).ok().and_then(|n| n.checked_sub(1));
        let (Some(_), Some(block)) = (state(word(row, comm::STATE)), block.and_then(|at| blocks.row(at)))
        else {
            continue;
        };
        for (at, cell) in
            block.chunks_exact(histogram::CELL).take(histogram::KINDS * histogram::CLASSES).enumerate()
        {
            let count = |bucket: usize| word(cell, histogram::BUCKETS + bucket);
            let buckets: Vec<_> =
                (0..histogram::BUCKETS_COUNT).map(|b| (histogram::bound_ns(b), count(b))).collect();
            let kind = CollKind::from_u8((at / histogram::CLASSES) as u8);
            let (Some(kind), true) = (kind, buckets.iter().any(|(_, n)| *n > 0)) else { continue };
            found.push(Histogram {
                comm: CommId(word(row, comm::ID)),
                name: harmless(&text(row, comm::NAME, comm::NAME_WORDS), MAX_STRING).into_owned(),
                rank: Rank(word(row, comm::RANK) as u32),
                kind,
                class_bytes: histogram::class_bytes(at % histogram::CLASSES),
                sum_ns: word(cell, histogram::SUM_NS),
                sum_bytes: word(cell, histogram::SUM_BYTES),
                buckets,
            });
        }
    }
    found
}
