//! History: ring buffers, one per driving thread, each with one writer, which overwrites the oldest
//! events and never waits.
//!
//! A thread takes a ring at its first event and gives it back when it ends. Events of several
//! communicators share the ring of their thread, and those of one communicator may be in several
//! rings. Marks between the events say whose they are; [`tail`](super::tail) puts them together.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::Ordering;
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
}

thread_local! {
    /// The ring of this thread, in the recorder that it last recorded to.
    static RING: RefCell<Option<ThreadRing>> = const { RefCell::new(None) };
}

impl Events {
    pub(super) const fn new(recorder: Arc<Recorder>, owner: Option<Owner>, level: Span<1>) -> Self {
        Self { recorder, owner, level, recorded: 0 }
    }

    /// Records an event that happened at `raw`, whatever the level.
    #[inline]
    pub fn record(&mut self, raw: Raw, event: &Event) {
        self.recorded += 1;
        let is_put = RING.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            match &mut *mine {
                Some(ring) if ring.is_of(&self.recorder) => ring,
                other => other.insert(ThreadRing::open(&self.recorder, self.owner)),
            }
            .record(&self.recorder, self.owner, raw, event);
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
    #[inline]
    fn take(&mut self, event: Event) {
        if self.wants(event.level()) {
            self.record(clock::raw(), &event);
        }
    }
    #[inline]
    fn stamp(&self, level: u8) -> Option<Raw> {
        self.wants(level).then(clock::raw)
    }
    #[inline]
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

/// The ring that a thread writes.
struct ThreadRing {
    /// Weak: a thread that records nothing more must not keep a recorder.
    recorder: Weak<Recorder>,
    /// The ring's number and where its words lie; `None` if all rings were taken.
    place: Option<Location>,
    /// The number of the next event; without a ring, of events so far.
    next: u64,
    /// The number from which a mark is due although the owner is the same: a reader of the last
    /// events finds a mark among them, however many were overwritten.
    mark_at: u64,
    owner: Option<Owner>,
    /// The number of marks so far.
    marks: u64,
}

/// Where a ring lies in the words of its recorder.
struct Location {
    at: usize,
    /// The first word of its descriptor.
    about: usize,
    /// The first word of its slots.
    first: usize,
    /// The number of its slots, a power of two, less 1.
    mask: u64,
}

impl ThreadRing {
    fn open(recorder: &Arc<Recorder>, owner: Option<Owner>) -> Self {
        let taken = recorder.take_ring(owner.is_none());
        let words = recorder.memory.words();
        let place = taken.map(|(at, _, _)| {
            let word = |table, word: usize| recorder.capacity.offset(table) / 8 + word;
            // The places are computed, not read from the file: the file's pages may be lost.
            let before: usize = recorder.capacity.rings().take(at).sum();
            let count = recorder.capacity.rings().nth(at).expect("a ring of the capacity");
            let first = word(Table::Slots, before * slot::WORDS);
            Location { at, about: word(Table::Rings, at * ring::WORDS), first, mask: count as u64 - 1 }
        });
        let next = place.as_ref().map_or(0, |place| {
            let put = |at: usize, value: u64| words[place.about + at].store(value, Ordering::Relaxed);
            let generation = next_generation(&words[place.about + ring::STATE]);
            put(ring::THREAD, sys::thread());
            let live = RowState::Live as u64 | u64::from(generation) << 32;
            words[place.about + ring::STATE].store(live, Ordering::Release);
            words[place.about + ring::HEAD].load(Ordering::Relaxed)
        });
        let (_, owner, marks) = taken.unwrap_or_default();
        Self { recorder: Arc::downgrade(recorder), place, next, mark_at: next, owner, marks }
    }

    #[inline]
    fn is_of(&self, recorder: &Arc<Recorder>) -> bool {
        std::ptr::eq(self.recorder.as_ptr(), Arc::as_ptr(recorder))
    }

    #[inline]
    fn record(&mut self, recorder: &Arc<Recorder>, owner: Option<Owner>, raw: Raw, event: &Event) {
        let Some(Location { about, first, mask, .. }) = self.place else {
            return self.record_without(recorder, owner, raw, event);
        };
        let words = recorder.memory.words();
        let slot = |n: u64| &words[first + (n & mask) as usize * slot::WORDS..][..slot::WORDS];
        let put = |n: u64, [a, b, c, d, e, f]: Words| {
            let slot = slot(n);
            slot_write(&slot[slot::SEQ], &slot[slot::RAW..], n, &[raw.0, a, b, c, d, e, f]);
            words[about + ring::HEAD].store(n.wrapping_add(1), Ordering::Release);
        };
        if self.owner != owner || self.next >= self.mark_at {
            put(self.next, Mark { owner, before: self.owner, number: self.marks }.encode());
            self.next = self.next.wrapping_add(1);
            self.marks += 1;
            self.owner = owner;
            self.mark_at = self.next.saturating_add(mask.div_ceil(4));
        }
        put(self.next, codec::encode(event));
        self.next = self.next.wrapping_add(1);
        // The next slot was last touched one lap ago: prefetch it for the next event.
        sys::prefetch(&slot(self.next)[0]);
    }

    /// All rings were taken: counts the event, or tries again now and then.
    #[cold]
    fn record_without(&mut self, recorder: &Arc<Recorder>, owner: Option<Owner>, raw: Raw, event: &Event) {
        self.next += 1;
        if self.next.is_multiple_of(AGAIN) {
            let other = Self::open(recorder, owner);
            if other.place.is_some() {
                *self = other;
                return self.record(recorder, owner, raw, event);
            }
        }
        recorder.overflow(Table::Rings);
    }
}

impl Drop for ThreadRing {
    fn drop(&mut self) {
        if let Some((recorder, place)) = self.recorder.upgrade().zip(self.place.take())
            && !recorder.is_stale()
        {
            end(&recorder.memory.words()[place.about + ring::STATE]);
            let given_back = RingSlot { is_taken: false, last: self.owner, marks: self.marks };
            recorder.lock().rings[place.at] = given_back;
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
