//! The recorder: a mapping that tells what is now and what was so far, to whoever may read it, also after death.
//!
//! ```text
//!   engine --CommRow, LinkCell--> cells (now)        \
//!          --EventRing----------> ring (so far)       >  one file per process  --Reader--> snapshot
//!   service -anchor-------------> header, clocks    /
//!           -sample_sockets-----> sockets of links /
//! ```
//!
//! State is a table and history is a ring: nothing rebuilds state from events, so a lost event never makes an
//! operation look stuck. Every word is an atomic at an offset that [`layout`] fixes. Writers never wait, allocate or
//! fail on the data path; what finds no place is recorded in private memory and counted. What correctness needs is elsewhere: with
//! `CCL_OBSERVE=0` the same stores go to private memory.
//!
//! **Alive** is the record lock on byte 0 of the file. The kernel frees it when the process dies, and also when the process
//! closes any descriptor of the file: so a process never opens its own recorder, it borrows it
//! ([`Reader::of_process`]).
//!
//! **Leaving**: the file is unlinked when the last owner of the recorder is gone, or the process exits, if no operation failed and none was under
//! way; otherwise it stays as evidence. A forked child has private zeros in its place and removes nothing.

mod cells;
mod codec;
mod follow;
pub mod layout;
mod mapping;
pub mod place;
mod protocol;
pub mod reader;

mod ring;
mod rows;
mod sight;
mod sockets;
pub mod taken;
mod whose;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub use cells::LinkCell;

pub use reader::Reader;
pub use ring::{EventRing, Reading, Recorded};
pub use taken::Taken;
pub use writer::{CommInfo, CommRow, Peer};

use crate::clock::{self, Anchor};
use crate::config::{Key, Settings};
use crate::error::Result;
use crate::sys;
use crate::sys::handlers::{self, Handler};
use crate::types::{CommId, JobId};
use layout::{Capacity, Home, Table, header};
use mapping::Memory;
use place::Place;
use rows::Rows;

/// The recorder of a process, or one of its own in private memory.
#[derive(Debug)]
pub struct Recorder {
    memory: Arc<Memory>,
    capacity: Capacity,
    rows: Mutex<Rows>,
    place: Option<Place>,
    notes: Vec<String>,
    left: AtomicBool,
    generation: u32,
    /// The level it was made with; the one in force may be a client's wish.
    made_level: u8,
}

/// Whoever is given each recorder of the process.
type Follower = Box<dyn Fn(Reader) + Send>;

/// What the process has.
struct OfProcess {
    /// The recorder in use. Weak: who uses it keeps it.
    recorder: Weak<Recorder>,
    followers: Vec<Follower>,
}

static OF_PROCESS: Mutex<OfProcess> = Mutex::new(OfProcess { recorder: Weak::new(), followers: Vec::new() });

/// Gives `follower` a reader of the recorder that this process has, and of each that it makes from now on, before anything is
/// recorded. So exporters see all of it; a recorder stays as long as a reader of it does ([`Reader::alone`]). What it runs
/// must end soon, and make and open no recorder. A forked child never has one.
pub fn follow(follower: impl Fn(Reader) + Send + 'static) {
    if sys::forked() {
        return;
    }
    let mut slot = of_process();
    if let Some(recorder) = slot.recorder.upgrade().filter(|r| !r.left.load(Ordering::Relaxed)) {
        follower(Reader::borrow(recorder));
    }
    slot.followers.push(Box::new(follower));
}

fn of_process() -> MutexGuard<'static, OfProcess> {
    OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// The recorder of this process: made at the first use and after the last user of an earlier one has left. Where no file can be made it is a
    /// memfd; with `CCL_OBSERVE=0`, or where even that is refused, private memory. [`Self::notes`] says so.
    ///
    /// # Errors
    /// `Unavailable` in a forked child.
    pub fn for_process(settings: &Settings) -> Result<Arc<Self>> {
        sys::not_forked()?;
        let mut slot = of_process();
        if let Some(recorder) = slot.recorder.upgrade().filter(|r| !r.left.load(Ordering::Relaxed)) {
            return Ok(recorder);
        }
        at_exit();
        let recorder = Arc::new(Self::make(settings, place::allocate));
        slot.recorder = Arc::downgrade(&recorder);
        for follower in &slot.followers {
            follower(recorder.reader());
        }
        Ok(recorder)
    }

    /// The recorder this process uses, if it uses one. A forked child uses none.
    #[must_use]
    pub fn of_process() -> Option<Arc<Self>> {
        sys::not_forked().ok()?;
        of_process().recorder.upgrade()
    }

    /// One in private memory, for simulations and tests. Untouched tables cost no memory.
    #[must_use]
    pub fn heap() -> Arc<Self> {
        Arc::new(Self::on_heap(&Settings::default(), Vec::new()))
    }

    fn make(settings: &Settings, allocate: place::Allocate) -> Self {
        if settings.number(Key::Observe) == 0 {
            return Self::on_heap(settings, Vec::new());
        }
        let mut notes = Vec::new();
        match place::create(settings, allocate, &mut notes) {
            Ok((place, capacity, memory)) => {
                Self::new(settings, Arc::new(memory), capacity, Some(place), notes)
            }
            Err(error) => {
                notes.push(format!("nothing is recorded where others can read it: {error}"));
                Self::on_heap(settings, notes)
            }
        }
    }

    fn on_heap(settings: &Settings, notes: Vec<String>) -> Self {
        let memory = Arc::new(Memory::heap(Capacity::FULL.total()));
        Self::new(settings, memory, Capacity::FULL, None, notes)
    }

    fn new(
        settings: &Settings,
        memory: Arc<Memory>,
        capacity: Capacity,
        place: Option<Place>,
        notes: Vec<String>,
    ) -> Self {
        let left = AtomicBool::new(false);
        let rows = Mutex::new(Rows::new(capacity));
        let (generation, made_level) = (sys::generation(), level_of(settings));
        let recorder = Self { memory, capacity, rows, place, notes, left, generation, made_level };
        recorder.write_header(settings);
        recorder
    }

    /// Where others find it; `None` for private memory.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.place.as_ref().map(Place::path)
    }
    /// The path beside the file with another extension, as for the control socket: `beside("sock")`. `None` where no folder could be used.
    #[must_use]
    pub fn beside(&self, extension: &str) -> Option<PathBuf> {
        self.place.as_ref()?.beside(extension)
    }
    /// What now and so far are, read from within.
    #[must_use]
    pub fn reader(self: &Arc<Self>) -> Reader {
        Reader::borrow(Arc::clone(self))
    }
    /// What should be said aloud once: places that were refused, a disk instead of memory, smaller rings.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
    /// Tells where the control socket listens; `None`: no more.
    pub fn set_control(&self, path: Option<&Path>) {
        let reference = path.map_or(0, |path| self.string(&path.to_string_lossy()));
        self.header(header::CONTROL).store(reference, Ordering::Release);
    }
    /// The level of what has no level of its own, and of communicators to come.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.header(header::LEVEL).load(Ordering::Relaxed) as u8
    }
    /// Changes the level of everything, or of one communicator; whether there is such a one.
    pub fn set_level(&self, comm: Option<CommId>, level: u8) -> bool {
        let words = self.memory.words();
        let first = self.capacity.offset(Table::Comms) / 8;
        let mut found = comm.is_none();
        for row in words[first..].chunks_exact(layout::comm::WORDS).take(self.capacity.comms) {
            let live = row[layout::comm::STATE].load(Ordering::Acquire) as u8 == layout::RowState::Live as u8;
            if live && comm.is_none_or(|id| row[layout::comm::ID].load(Ordering::Relaxed) == id.0) {
                row[layout::comm::LEVEL].store(u64::from(level), Ordering::Relaxed);
                found = true;
            }
        }
        if comm.is_none() {
            self.header(header::LEVEL).store(u64::from(level), Ordering::Relaxed);
        }
        found
    }

    /// Reads all clocks together and keeps the reading: once a second, by the service thread.
    pub fn anchor(&self) -> Anchor {
        let anchor = clock::anchor();
        if self.is_stale() {
            return anchor;
        }
        // The lock makes this the one writer of the latch.
        let _rows = self.lock();
        let fact: [u64; header::ANCHOR_WORDS] = [anchor.raw.0, anchor.mono.0, anchor.real_ns];
        let words = self.memory.words();
        protocol::latch_write(&words[header::ANCHOR_LATCH], &words[header::ANCHOR..], &fact);
        anchor
    }

    /// Whether it must stay as evidence: an operation failed or is under way.
    #[must_use]
    pub fn is_evidence(&self) -> bool {
        let under_way = |row: &[AtomicU64], cell: usize| {
            let word = |at: usize| row[cell + at].load(Ordering::Acquire);
            word(layout::op::COMPLETED) < word(layout::op::CALLED)
        };
        let first = self.capacity.offset(Table::Comms) / 8;
        let comms = self.memory.words()[first..].chunks_exact(layout::comm::WORDS);
        self.header(header::FAILED).load(Ordering::Acquire) != 0
            || comms
                .take(self.capacity.comms)
                .any(|row| under_way(row, layout::comm::COLL) || under_way(row, layout::comm::P2P))
    }

    /// Says that the process has left in good order, and unlinks the file unless it is evidence. The next
    /// [`Self::for_process`] makes a new one. Runs by itself when the last owner lets go and when the process exits.
    pub fn leave(&self) {
        if self.is_stale() || self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        self.header(header::LEFT).store(1, Ordering::Release);
        if let Some(place) = self.place.as_ref().filter(|_| !self.is_evidence()) {
            place.unlink();
        }
    }

    fn header(&self, at: usize) -> &AtomicU64 {
        &self.memory.words()[at]
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is a copy in a forked child, whose locks another thread of the parent may hold.
    fn is_stale(&self) -> bool {
        sys::generation() != self.generation
    }

    /// Names the process's first job, or names it anew where it was known as `before`.
    fn note_job(&self, before: JobId, job: JobId) {
        let named = self.header(header::JOB);
        let _ = named.compare_exchange(before.0, job.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn write_header(&self, settings: &Settings) {
        let put = |at: usize, value: u64| self.header(at).store(value, Ordering::Relaxed);
        let put_text = |at: usize, words: &[u64]| {
            for (n, word) in words.iter().enumerate() {
                put(at + n, *word);
            }
        };
        let first = clock::anchor();
        put(header::VERSION, u64::from(layout::VERSION) | u64::from(layout::READABLE_SINCE) << 32);
        put(header::BYTES, layout::HEADER_BYTES as u64);
        put(header::TOTAL, self.capacity.total() as u64);
        put(header::DIRECTORY, header::DIRECTORY_AT as u64 * 8);
        put(header::DIRECTORY_STRIDE, layout::ENTRY_WORDS as u64 * 8);
        put(header::DIRECTORY_COUNT, layout::TABLES.len() as u64);
        let who = place::identity();
        put(header::PID, u64::from(who.pid) | u64::from(who.outer_pid) << 32);
        put(header::PID_NAMESPACE, who.pid_namespace);
        put(header::UID, u64::from(who.uid));
        put(header::MADE_AT, first.real_ns);
        put(header::LIBRARY, place::library_version());
        put(header::NS_PER_TICK, (clock::scale().ns_per_tick() * 4_294_967_296.0) as u64);
        put(header::LEVEL, u64::from(self.made_level));
        put(header::HOME, self.place.as_ref().map_or(Home::Heap, Place::home) as u64);
        put_text(header::FIRST_ANCHOR, &[first.raw.0, first.mono.0, first.real_ns]);
        put_text(header::BOOT, &layout::encode_text::<{ header::TEXTS[0] }>(&who.boot_id));
        put_text(header::HOST, &layout::encode_text::<{ header::TEXTS[1] }>(&who.host));
        let host_id = settings.text(Key::HostId);
        put_text(header::HOST_ID, &layout::encode_text::<{ header::TEXTS[2] }>(host_id));
        for (n, table) in layout::TABLES.into_iter().enumerate() {
            let (count, stride) = self.capacity.rows(table);
            let entry = header::DIRECTORY_AT + n * layout::ENTRY_WORDS;
            let offset = self.capacity.offset(table);
            put_text(entry, &[table as u64, offset as u64, stride as u64, count as u64, 1]);
        }
        if let Some(path) = self.path() {
            put(header::PATH, self.string(&path.to_string_lossy()));
        }
        put(header::SETTINGS, self.string(&settings.changed()));
        self.write_ring_descriptors();
        self.anchor();
        self.header(header::MAGIC).store(layout::MAGIC, Ordering::Release);
    }
}

/// The level that settings ask for.
fn level_of(settings: &Settings) -> u8 {
    if settings.number(Key::Observe) == 1 { settings.number(Key::Level) as u8 } else { 0 }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The recorder of the process leaves when it exits. Where that cannot be installed, the file stays as evidence.
struct LeaveAtExit;

impl Handler for LeaveAtExit {
    fn run() {
        // Another thread may be making or dropping one right now: then it stays as evidence.
        let recorder = OF_PROCESS.try_lock().ok().and_then(|slot| slot.recorder.upgrade());
        if let Some(recorder) = recorder.filter(|recorder| !recorder.is_stale()) {
            recorder.leave();
            // Dropping it could unmap what other threads still write to.
            std::mem::forget(recorder);
        }
    }
}

fn at_exit() {
    static INSTALLED: std::sync::Once = std::sync::Once::new();
    INSTALLED.call_once(handlers::at_exit::<LeaveAtExit>);
}

#[cfg(test)]
mod tests;
