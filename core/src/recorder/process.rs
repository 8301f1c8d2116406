//! The recorder of the process: made at first use, given to those who follow it, left when the
//! process exits.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::ending;
use super::layout::{self, Capacity, Home, header};
use super::mapping::Memory;
use super::place::{self, Place};
use super::reader::Reader;
use super::slot_pool::SlotPools;
use super::state::{Recorder, level_of};
use crate::clock;
use crate::config::{Key, Settings};
use crate::error::Result;
use crate::sys;
use crate::sys::handlers::{self, Handler};
use crate::types::Rank;

/// Whoever is given each recorder of the process.
type Follower = Box<dyn Fn(Reader) + Send>;

/// What the process has.
struct OfProcess {
    /// The recorder in use. Weak: who uses it keeps it.
    recorder: Weak<Recorder>,
    followers: Vec<Follower>,
}

static OF_PROCESS: Mutex<OfProcess> = Mutex::new(OfProcess { recorder: Weak::new(), followers: Vec::new() });

/// Gives `follower` a reader of the recorder that this process has, and of each that it makes from
/// now on, before anything is recorded. So exporters see all of it; a recorder stays as long as a
/// reader of it does ([`Reader::alone`]). What it runs must end soon, and make and open no
/// recorder. A forked child never has one.
pub fn tail(follower: impl Fn(Reader) + Send + 'static) {
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
    /// The recorder of this process: made at the first use and after the last user of an earlier
    /// one has left. Where no file can be made it is a memfd; with `CCL_OBSERVE=0`, or where even
    /// that is refused, private memory. [`Self::notes`] says so.
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
        place::forget_failed_inits();
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

    /// The same where no other thread is about to make or drop one; it waits for none, so it may be
    /// asked for in a panic.
    pub(super) fn of_process_now() -> Option<Arc<Self>> {
        sys::not_forked().ok()?;
        OF_PROCESS.try_lock().ok()?.recorder.upgrade()
    }

    /// One in private memory, for simulations and tests. Untouched tables cost no memory.
    #[must_use]
    pub fn heap() -> Arc<Self> {
        Arc::new(Self::on_heap(&Settings::default(), Vec::new()))
    }

    pub(super) fn make(settings: &Settings, allocate: place::Allocate) -> Self {
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
        let [left, gave_up, has_failed_init] = [false; 3].map(AtomicBool::new);
        let rows = Mutex::new(SlotPools::new(capacity));
        let (generation, made_level) = (sys::generation(), level_of(settings));
        let recorder = Self {
            memory,
            capacity,
            rows,
            place,
            notes,
            left,
            gave_up,
            has_failed_init,
            generation,
            made_level,
        };
        recorder.write_header(settings);
        recorder
    }

    /// What now and so far are, read from within.
    #[must_use]
    pub fn reader(self: &Arc<Self>) -> Reader {
        Reader::borrow(Arc::clone(self))
    }
    /// Tells where the control socket listens; `None`: no more.
    pub fn set_control(&self, path: Option<&Path>) {
        let reference = path.map_or(0, |path| self.string(&path.to_string_lossy()));
        self.header(header::CONTROL).store(reference, Ordering::Release);
    }

    /// Tells the launcher's name for the job, as a hash, and its number of this process.
    pub fn set_launch(&self, launch: u64, rank: Option<Rank>) {
        self.header(header::LAUNCH).store(launch, Ordering::Relaxed);
        let rank = rank.map_or(0, |rank| u64::from(rank.0) + 1);
        self.header(header::LAUNCH_RANK).store(rank, Ordering::Relaxed);
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
        put(header::STARTED, who.started);
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

/// The recorder of the process leaves when it exits. Where that cannot be installed, the file stays
/// as evidence.
struct LeaveAtExit;

impl Handler for LeaveAtExit {
    fn run() {
        // Another thread may be making or dropping one right now: then it stays as evidence.
        let recorder = OF_PROCESS.try_lock().ok().and_then(|slot| slot.recorder.upgrade());
        if let Some(recorder) = recorder.filter(|recorder| !recorder.is_stale()) {
            recorder.say_exit();
            // A process that exits with a communicator in use has not left the job: others may wait
            // for it, and its file tells where it was.
            if !recorder.is_in_a_job() {
                recorder.leave();
            }
            // Dropping it could unmap what other threads still write to.
            std::mem::forget(recorder);
        }
    }
}

fn at_exit() {
    static INSTALLED: std::sync::Once = std::sync::Once::new();
    INSTALLED.call_once(|| {
        handlers::at_exit::<LeaveAtExit>();
        ending::say_panics();
    });
}
