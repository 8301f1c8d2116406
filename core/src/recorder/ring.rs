//! History: a ring buffer with one writer, which overwrites the oldest events and never waits.
//!
//! Its readers count exactly the events that they lost.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::codec;
use super::layout::{ring, slot};
use super::mapping::{Slots, Span};
use super::protocol::{slot_read, slot_write};
use super::state::Recorder;
use crate::clock::{self, Raw};
use crate::event::{Event, Subscriber};
use crate::sys;

/// Words after the sequence of a slot: raw time and event.
const STAMPED: usize = 1 + slot::EVENT_WORDS;

/// The writer of one ring buffer, one per driving thread or engine. It may move but is never
/// shared.
pub struct EventRing {
    slots: Slots,
    about: Span<{ ring::WORDS }>,
    level: Span<1>,
    next: u64,
    /// The recorder and the ring's number in it, to give it back; `None` for private memory.
    place: Option<(Arc<Recorder>, usize)>,
}

impl EventRing {
    pub(super) fn new(
        slots: Slots,
        about: Span<{ ring::WORDS }>,
        level: Span<1>,
        place: Option<(Arc<Recorder>, usize)>,
    ) -> Self {
        let next = about[ring::HEAD].load(Ordering::Relaxed);
        Self { slots, about, level, next, place }
    }

    /// Records an event that happened at `raw`, whatever the level.
    #[inline]
    pub fn record(&mut self, raw: Raw, event: &Event) {
        let slot = self.slots.of(self.next);
        let [a, b, c, d, e, f] = codec::encode(event);
        slot_write(&slot[slot::SEQ], &slot[slot::RAW..], self.next, &[raw.0, a, b, c, d, e, f]);
        self.next = self.next.wrapping_add(1);
        self.about[ring::HEAD].store(self.next, Ordering::Release);
        // The next slot was last touched one lap ago: prefetch it for the next event.
        sys::prefetch(self.slots.of(self.next));
    }

    /// Whether events of `level` are recorded at present.
    #[inline]
    #[must_use]
    pub fn wants(&self, level: u8) -> bool {
        u64::from(level) <= self.level[0].load(Ordering::Relaxed)
    }

    /// The number of events ever written to this ring.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.next
    }
}

impl Subscriber for EventRing {
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

impl fmt::Debug for EventRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventRing({} events)", self.next)
    }
}

impl Drop for EventRing {
    fn drop(&mut self) {
        if let Some((recorder, at)) = self.place.take() {
            recorder.ring_ended(at);
        }
    }
}

/// An event as it was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// Its number in its ring, from 0.
    pub number: u64,
    /// The raw time of the event.
    pub raw: Raw,
    /// The event.
    pub event: Event,
}

/// The result of one read of a ring.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reading {
    /// The events that were in the ring, oldest first.
    pub events: Vec<Recorded>,
    /// The number of requested events that were overwritten before they were read.
    pub lost: u64,
    /// The number of the next event to ask for.
    pub next: u64,
}

/// Reads the events from number `from` up to `head` of a ring that keeps the last `capacity`.
///
/// `head` was loaded before. `slot` gives the words of an event's slot, if they are available.
pub(super) fn read<'a>(
    capacity: u64,
    head: u64,
    from: u64,
    slot: impl Fn(u64) -> Option<&'a [AtomicU64]>,
) -> Reading {
    if capacity == 0 || head <= from {
        return Reading { next: from.max(head), ..Reading::default() };
    }
    let first = from.max(head.saturating_sub(capacity));
    let mut reading = Reading { events: Vec::new(), lost: first - from, next: head };
    for number in first..head {
        let stands = slot(number).and_then(|words| {
            slot_read::<_, STAMPED>(words.get(slot::SEQ)?, words.get(slot::RAW..slot::WORDS)?, number)
        });
        match stands {
            Some([raw, event @ ..]) => {
                reading.events.push(Recorded { number, raw: Raw(raw), event: codec::decode(&event) });
            }
            None => reading.lost += 1,
        }
    }
    reading
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::mapping::Memory;
    use crate::types::Rank;

    fn ring(slots: usize) -> (EventRing, Arc<Memory>) {
        let memory = Arc::new(Memory::heap(128 + slots * 64));
        let level = memory.span::<1>(64);
        level[0].store(1, Ordering::Relaxed);
        (EventRing::new(memory.slots(128, slots), memory.span(0), level, None), memory)
    }

    fn look(memory: &Memory, from: u64) -> Reading {
        let (words, head) = (memory.words(), memory.words()[ring::HEAD].load(Ordering::Acquire));
        let slots = &words[16..];
        let count = slots.len() / slot::WORDS;
        read(count as u64, head, from, |number| slots.chunks_exact(slot::WORDS).nth(number as usize % count))
    }

    fn lost(n: u32) -> Event {
        Event::PeerLost { peer: Rank(n) }
    }

    #[test]
    fn the_oldest_is_overwritten_and_every_loss_is_counted() {
        let (mut ring, memory) = ring(4);
        assert_eq!(look(&memory, 0), Reading::default());
        for n in 0..3 {
            ring.take(lost(n));
        }
        let reading = look(&memory, 0);
        assert_eq!((reading.lost, reading.next), (0, 3));
        assert_eq!(reading.events.iter().map(|e| e.event).collect::<Vec<_>>(), [lost(0), lost(1), lost(2)]);
        for n in 3..10 {
            ring.take(lost(n));
        }
        let reading = look(&memory, 3);
        assert_eq!((reading.lost, reading.next), (3, 10));
        assert_eq!(
            reading.events.iter().map(|e| (e.number, e.event)).collect::<Vec<_>>(),
            [(6, lost(6)), (7, lost(7)), (8, lost(8)), (9, lost(9))]
        );
        assert_eq!(look(&memory, 10), Reading { next: 10, ..Reading::default() });
        assert!(reading.events.windows(2).all(|w| w[0].raw <= w[1].raw));
    }

    #[test]
    fn the_level_is_changed_while_it_runs() {
        let (mut ring, memory) = ring(4);
        let (channel, peer) = (crate::ChannelId(0), Some(crate::Rank(1)));
        let reason = crate::types::WaitReason::Peer;
        let steps = Event::WaitEnded { channel, peer, reason, duration_ticks: 1 };
        ring.take(steps);
        assert_eq!(ring.written(), 0);
        memory.words()[8].store(2, Ordering::Relaxed);
        ring.take(steps);
        assert_eq!(ring.written(), 1);
        memory.words()[8].store(0, Ordering::Relaxed);
        ring.take(lost(0));
        assert_eq!(ring.written(), 1);
    }

    #[test]
    fn a_ring_is_read_while_it_is_written() {
        let (mut ring, memory) = ring(64);
        let events: u64 = if cfg!(miri) { 500 } else { 2_000_000 };
        let writer = std::thread::spawn(move || {
            for n in 0..events {
                // All fields hold the number: a mix of two events would show.
                ring.record(Raw(n), &Event::ClockAnchored { raw: n, mono_ns: n, real_ns: n });
            }
        });
        let (mut next, mut seen, mut missed) = (0, 0, 0);
        while next < events {
            let reading = look(&memory, next);
            for Recorded { number: n, raw, event } in &reading.events {
                assert_eq!(raw.0, *n);
                assert_eq!(*event, Event::ClockAnchored { raw: *n, mono_ns: *n, real_ns: *n });
            }
            (seen, missed, next) = (seen + reading.events.len() as u64, missed + reading.lost, reading.next);
            std::thread::yield_now();
        }
        writer.join().unwrap();
        assert_eq!(seen + missed, events);
        assert!(seen > 0);
    }
}
