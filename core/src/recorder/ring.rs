//! History: ring buffers, one per driving thread, each with one writer, which overwrites the oldest
//! events and never waits.
//!
//! A thread takes a ring at its first event and gives it back when it ends. Events of several
//! communicators share the ring of their thread, and those of one communicator may be in several
//! rings. Marks between the events say whose they are; [`tail`](super::tail) puts them together.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::codec::{self, Mark, Owner, Words};
use super::layout::{LINE, RowState, Table, header, ring, slot};
use super::mapping::Span;
use super::protocol::slot_write;
use super::slot_pool::RingSlot;
use super::state::{Recorder, end, next_generation};
use crate::clock::{self, Raw};
use crate::event::{Event, Subscriber};
use crate::sys;

/// After how many events a thread that found no ring looks for one again.
const AGAIN: u64 = 256;

/// Records the events of one communicator on one rank, or of the process.
///
/// They go into the ring of the thread that publishes them.
pub struct Events {
    recorder: Arc<Recorder>,
    /// `None`: the process.
    owner: Option<Owner>,
    level: Span<1>,
    recorded: u64,
    /// Unique in the process.
    key: u64,
}

thread_local! {
    /// The ring of this thread, in the recorder that it last recorded to.
    static RING: RefCell<Option<ThreadRing>> = const { RefCell::new(None) };
    /// Where the next event of this thread goes. It needs no destructor, so that its use needs no
    /// check of whether that has run.
    static CURSOR: Cursor = const { Cursor::none() };
}

impl Events {
    pub(super) fn new(recorder: Arc<Recorder>, owner: Option<Owner>, level: Span<1>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let key = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self { recorder, owner, level, recorded: 0, key }
    }

    /// Records an event that happened at `raw`, whatever the level.
    ///
    /// It is encoded where it is published: there its kind is known, and nothing is left of the
    /// choice among all kinds.
    #[inline(always)]
    pub fn record(&mut self, raw: Raw, event: &Event) {
        self.put(raw, codec::encode(event));
    }

    /// One copy for all places that publish, so that a call finds it in the processor's caches.
    #[inline(never)]
    fn put(&mut self, raw: Raw, event: Words) {
        self.recorded += 1;
        let is_put = CURSOR.with(|cursor| {
            let is_mine = cursor.key.get() == self.key && cursor.next.get() < cursor.mark_at.get();
            if is_mine {
                cursor.put(self.recorder.memory.words(), raw, event);
            }
            is_mine
        });
        if !is_put {
            self.put_first(raw, event);
        }
    }

    /// Records an event before which a mark may be due, or the first of this thread.
    #[cold]
    fn put_first(&self, raw: Raw, event: Words) {
        let is_put = RING.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            if !mine.as_ref().is_some_and(|ring| ring.is_of(&self.recorder)) {
                // First the old one is given back, which ends its cursor.
                *mine = None;
            }
            mine.get_or_insert_with(|| ThreadRing::open(&self.recorder, self.owner)).put(self, raw, event);
        });
        // The thread is ending and has given its ring back.
        if is_put.is_err() {
            self.recorder.overflow(Table::Rings);
        }
    }

    /// The number of events recorded through this handle.
    #[must_use]
    pub const fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Whether events of `level` are recorded at present.
    #[inline]
    #[must_use]
    pub fn wants(&self, level: u8) -> bool {
        u64::from(level) <= self.level[0].load(Ordering::Relaxed)
    }
}

impl Subscriber for Events {
    #[inline]
    fn is_on(&self) -> bool {
        self.wants(1)
    }
    #[inline(always)]
    fn take(&mut self, event: Event) {
        if self.wants(event.level()) {
            self.record(clock::raw(), &event);
        }
    }
    #[inline]
    fn stamp(&self, level: u8) -> Option<Raw> {
        self.wants(level).then(clock::raw)
    }
    #[inline(always)]
    fn take_at(&mut self, at: Raw, event: Event) {
        if self.wants(event.level()) {
            self.record(at, &event);
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({:?})", self.owner)
    }
}

/// Where the next event of a thread goes.
struct Cursor {
    /// That of the [`Events`] whose the last event was: the next one of theirs needs no mark before
    /// `mark_at`. 0: there is no ring.
    key: Cell<u64>,
    /// The number of the next event.
    next: Cell<u64>,
    /// The number from which a mark is due although the owner is the same: a reader of the last
    /// events finds a mark among them, however many were overwritten.
    mark_at: Cell<u64>,
    /// The first word of the ring's descriptor.
    about: Cell<usize>,
    /// The first word of its slots.
    first: Cell<usize>,
    /// The number of its slots, a power of two, less 1.
    mask: Cell<u64>,
}

impl Cursor {
    const fn none() -> Self {
        const fn zero() -> Cell<u64> {
            Cell::new(0)
        }
        let (about, first) = (Cell::new(0), Cell::new(0));
        Self { key: zero(), next: zero(), mark_at: zero(), about, first, mask: zero() }
    }

    /// Writes an event or a mark.
    #[inline]
    fn put(&self, words: &[AtomicU64], raw: Raw, [a, b, c, d, e, f]: Words) {
        let (mask, first, n) = (self.mask.get(), self.first.get(), self.next.get());
        let slot = |n: u64| &words[first + (n & mask) as usize * slot::WORDS..][..slot::WORDS];
        let mine = slot(n);
        slot_write(&mine[slot::SEQ], &mine[slot::RAW..], n, &[raw.0, a, b, c, d, e, f]);
        let next = n.wrapping_add(1);
        words[self.about.get() + ring::HEAD].store(next, Ordering::Release);
        self.next.set(next);
        // The next slot was last touched one lap ago: prefetch it for the next event.
        sys::prefetch(&slot(next)[0]);
    }
}

/// The ring that a thread writes.
struct ThreadRing {
    /// Weak: a thread that records nothing more must not keep a recorder.
    recorder: Weak<Recorder>,
    /// The ring's number; `None` if all rings were taken.
    at: Option<usize>,
    owner: Option<Owner>,
    /// The number of marks so far.
    marks: u64,
    /// Without a ring: the number of events so far.
    lost: u64,
}

impl ThreadRing {
    fn open(recorder: &Arc<Recorder>, owner: Option<Owner>) -> Self {
        let recorder_of = Arc::downgrade(recorder);
        let Some((at, owner, marks)) = recorder.take_ring(owner.is_none()) else {
            return Self { recorder: recorder_of, at: None, owner: None, marks: 0, lost: 0 };
        };
        let words = recorder.memory.words();
        let word = |table, word: usize| recorder.capacity.offset(table) / 8 + word;
        // The places are computed, not read from the file: the file's pages may be lost.
        let before: usize = recorder.capacity.rings().take(at).sum();
        let count = recorder.capacity.rings().nth(at).expect("a ring of the capacity");
        let about = word(Table::Rings, at * ring::WORDS);
        let generation = next_generation(&words[about + ring::STATE]);
        words[about + ring::THREAD].store(sys::thread(), Ordering::Relaxed);
        let live = RowState::Live as u64 | u64::from(generation) << 32;
        words[about + ring::STATE].store(live, Ordering::Release);
        let next = words[about + ring::HEAD].load(Ordering::Relaxed);
        CURSOR.with(|cursor| {
            cursor.next.set(next);
            cursor.mark_at.set(next);
            cursor.about.set(about);
            cursor.first.set(word(Table::Slots, before * slot::WORDS));
            cursor.mask.set(count as u64 - 1);
        });
        Self { recorder: recorder_of, at: Some(at), owner, marks, lost: 0 }
    }

    fn is_of(&self, recorder: &Arc<Recorder>) -> bool {
        std::ptr::eq(self.recorder.as_ptr(), Arc::as_ptr(recorder))
    }

    fn put(&mut self, events: &Events, raw: Raw, event: Words) {
        let Events { recorder, owner, key, .. } = events;
        if self.at.is_none() && !self.finds_place(recorder, *owner) {
            return recorder.overflow(Table::Rings);
        }
        let words = recorder.memory.words();
        CURSOR.with(|cursor| {
            if self.owner != *owner || cursor.next >= cursor.mark_at {
                let mark = Mark { owner: *owner, before: self.owner, number: self.marks };
                cursor.put(words, raw, mark.encode());
                self.marks += 1;
                self.owner = *owner;
                cursor.mark_at.set(cursor.next.get().saturating_add(cursor.mask.get().div_ceil(4)));
            }
            cursor.key.set(*key);
            cursor.put(words, raw, event);
        });
    }

    /// All rings were taken: tries again now and then.
    fn finds_place(&mut self, recorder: &Arc<Recorder>, owner: Option<Owner>) -> bool {
        self.lost += 1;
        if self.lost.is_multiple_of(AGAIN) {
            let lost = self.lost;
            *self = Self::open(recorder, owner);
            self.lost = lost;
        }
        self.at.is_some()
    }
}

impl Drop for ThreadRing {
    fn drop(&mut self) {
        let Some(at) = self.at else { return };
        CURSOR.with(|cursor| cursor.key.set(0));
        if let Some(recorder) = self.recorder.upgrade().filter(|recorder| !recorder.is_stale()) {
            let about: Span<{ ring::WORDS }> = recorder.span(Table::Rings, Some(at));
            end(&about[ring::STATE]);
            recorder.lock().rings[at] = RingSlot { is_taken: false, last: self.owner, marks: self.marks };
        }
    }
}

impl Recorder {
    /// Records the events of the process itself. Their level is the recorder's.
    #[must_use]
    pub fn events(self: &Arc<Self>) -> Events {
        Events::new(Arc::clone(self), None, self.memory.span(header::LEVEL * 8))
    }

    /// Takes the largest ring that is free, or the smallest; returns whose its last events are, and
    /// the number of its marks.
    pub(super) fn take_ring(&self, smallest: bool) -> Option<(usize, Option<Owner>, u64)> {
        self.take(|rows| {
            let mut rings = rows.rings.iter().map(|ring| !ring.is_taken);
            let at = if smallest { rings.rposition(|free| free) } else { rings.position(|free| free) }?;
            rows.rings[at].is_taken = true;
            Some((at, rows.rings[at].last, rows.rings[at].marks))
        })
    }

    pub(super) fn write_ring_descriptors(&self) {
        let mut first = 0;
        for (at, slots) in self.capacity.rings().enumerate() {
            let about: Span<{ ring::WORDS }> = self.span(Table::Rings, Some(at));
            about[ring::FIRST].store(first as u64, Ordering::Relaxed);
            about[ring::SLOTS].store(slots as u64, Ordering::Relaxed);
            first += slots;
        }
    }
}

const _: () = assert!(ring::WORDS == LINE && slot::WORDS == LINE);
