//! Following events: reads those of all rings that were written since the last call, and puts the
//! events of each communicator together.
//!
//! A client that follows events asks often, so only the header, the descriptors and the new slots
//! of a file are read, in that order.
//!
//! **Order.** One thread after another may drive a communicator, so its events may lie in several
//! rings. Within a ring they are in order; across rings their times order them, since a driver
//! hands over under a lock. What a reading returns is complete: if it has an event, it also has
//! each one that happened before. To that end the heads of the rings are read twice. An event that
//! the first reading counts is taken, and one that only the second counts is taken if it is no
//! later than one of the former: all that happened before it was written before the second reading.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;

use super::codec::{self, Mark, Owner};
use super::layout::{Table, header, ring, slot};
use super::protocol::slot_read;
use super::words::{MAX_BYTES, TableSpan, state, word};
use crate::clock::Raw;
use crate::event::Event;
use crate::snapshot::bounds::MAX_RINGS;
use crate::types::{CommId, Rank};

/// Words after the sequence of a slot: raw time and event.
const STAMPED: usize = 1 + slot::EVENT_WORDS;
/// The most owners that are remembered of a ring: those that may lack events that were lost.
const MAX_OWNERS: usize = 256;

/// An event as it was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// The raw time of the event.
    pub raw: Raw,
    /// The event.
    pub event: Event,
}

/// The new events of one owner.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reading {
    /// The communicator and rank; `None` for the process itself, and for events whose owner is
    /// unknown.
    pub owner: Option<Owner>,
    /// The events, in the order in which they happened.
    pub events: Vec<Recorded>,
    /// The number of events that were overwritten before they were read, or, without an owner, of
    /// events of threads that found no ring.
    ///
    /// Where several owners share a ring, they are counted for the owner of the last of them.
    pub lost: u64,
    /// Whether events of this owner may be among lost ones: before `events`, or between them where
    /// a ring is corrupt.
    pub is_torn: bool,
}

/// The position of a reader of events in each ring.
#[derive(Clone, Default, Debug)]
pub struct Cursor {
    rings: BTreeMap<usize, Position>,
    /// The events of threads that found no ring, so far.
    without_ring: u64,
}

#[derive(Clone, Default, Debug)]
struct Position {
    next: u64,
    /// Whose the last event was; `None`: unknown.
    owner: Option<Option<Owner>>,
    /// The number of marks so far.
    marks: u64,
    /// All owners so far.
    seen: BTreeSet<Owner>,
}

impl Position {
    fn saw(&mut self, owner: Option<Owner>) {
        if self.seen.len() < MAX_OWNERS {
            self.seen.extend(owner);
        }
    }
}

/// Some words of a mapping.
pub(super) enum Piece<'a> {
    /// A part of the mapping itself.
    Mapped(&'a [AtomicU64]),
    /// Words read from the file.
    Copied(Vec<AtomicU64>),
}

impl std::ops::Deref for Piece<'_> {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        match self {
            Self::Mapped(words) => words,
            Self::Copied(words) => words,
        }
    }
}

/// The new events of all rings, by owner.
///
/// `words` begin with the header. `piece` fetches a number of words from a word of the mapping on,
/// or fewer if the mapping ends before.
pub(super) fn events<'a>(
    words: &[AtomicU64],
    cursor: &mut Cursor,
    piece: impl Fn(usize, usize) -> Option<Piece<'a>>,
) -> Vec<Reading> {
    let mut readings = of_rings(words, cursor, piece);
    let without_ring = word(words, header::overflow(Table::Rings));
    let lost = without_ring.saturating_sub(cursor.without_ring);
    cursor.without_ring = without_ring;
    if lost > 0 {
        readings.push(Reading { lost, ..Reading::default() });
    }
    readings
}

fn of_rings<'a>(
    words: &[AtomicU64],
    cursor: &mut Cursor,
    piece: impl Fn(usize, usize) -> Option<Piece<'a>>,
) -> Vec<Reading> {
    let (Some(rings), Some(slots)) = (TableSpan::of(words, Table::Rings), TableSpan::of(words, Table::Slots))
    else {
        return Vec::new();
    };
    let descriptors = || rings.stride.checked_mul(rings.count).and_then(|count| piece(rings.first, count));
    let heads = |rows: &Piece<'_>| -> Vec<u64> {
        rows.chunks_exact(rings.stride).map(|row| word(row, ring::HEAD)).collect()
    };
    let Some(first) = descriptors().filter(|_| slots.stride >= slot::WORDS).map(|rows| heads(&rows)) else {
        return Vec::new();
    };
    let position = |at: usize| cursor.rings.get(&at).map_or(0, |position| position.next);
    if first.iter().enumerate().all(|(at, head)| *head <= position(at)) {
        return Vec::new();
    }
    let Some(rows) = descriptors() else { return Vec::new() };
    // Rings share no slot: together they yield at most what fits into a file, even if several claim
    // the same slots.
    let mut left = slots.count.min(MAX_BYTES as usize / 8 / slots.stride);
    let mut drains: Vec<(usize, Drain)> = Vec::new();
    for (at, row) in rows.chunks_exact(rings.stride).enumerate().take(MAX_RINGS) {
        let Some(ring) = RingSpan::of(row, slots).filter(|ring| ring.count <= left) else { continue };
        left -= ring.count;
        if ring.head > position(at) {
            let counted = first.get(at).copied().unwrap_or_default();
            drains.push((at, Drain::read(&ring, slots, (position(at), counted), &piece)));
        }
    }
    let latest = drains.iter().filter_map(|(_, drain)| drain.latest).max();
    let mut by_owner = ByOwner::default();
    for (at, mut drain) in drains {
        drain.cut(latest);
        by_owner.add(drain, cursor.rings.entry(at).or_default());
    }
    by_owner.readings()
}

/// A ring as its descriptor says.
struct RingSpan {
    first: usize,
    count: usize,
    head: u64,
    /// Before layout 7: the owner of the events from `start` on.
    fixed: Option<(u64, Owner)>,
}

impl RingSpan {
    fn of(row: &[AtomicU64], slots: TableSpan) -> Option<Self> {
        state(word(row, ring::STATE))?;
        // The head is read before the slots: each event that it counts is in its slot or is
        // overwritten.
        let head = word(row, ring::HEAD);
        let size = |n: usize| usize::try_from(word(row, n)).ok().filter(|n| *n <= slots.count);
        let comm = CommId(word(row, ring::COMM));
        let owner = (comm, Rank(word(row, ring::RANK) as u32));
        let fixed = (comm != CommId(0)).then(|| (word(row, ring::START).min(head), owner));
        Some(Self { first: size(ring::FIRST)?, count: size(ring::SLOTS)?, head, fixed })
    }
}

/// What a slot holds: a mark or an event.
enum Item {
    Mark(Mark),
    Event(Recorded),
}

/// The new slots of one ring, before they are sorted by owner.
struct Drain {
    /// The number of each slot, and what it holds; `None` if it was overwritten.
    items: Vec<(u64, Raw, Option<Item>)>,
    /// Events before the first of these that were overwritten.
    lost: u64,
    /// What the first reading of the head counted.
    counted: u64,
    /// The latest time among these.
    latest: Option<Raw>,
    fixed: Option<(u64, Owner)>,
    next: u64,
}

impl Drain {
    /// Reads the slots from number `from` on, as far as the ring still has them. The first reading
    /// of the head counted `counted`.
    fn read<'a>(
        ring: &RingSpan,
        slots: TableSpan,
        (from, counted): (u64, u64),
        piece: impl Fn(usize, usize) -> Option<Piece<'a>>,
    ) -> Self {
        let (count, until) = (ring.count as u64, ring.head);
        let first = from.max(until.saturating_sub(count));
        let wanted = (until - first) as usize;
        // From the oldest event to the end of the ring, and from the ring's beginning.
        let begin = if count == 0 { 0 } else { (first % count) as usize };
        let before_end = wanted.min(ring.count - begin);
        let fetch = |slot: usize, of: usize| {
            let at = slots.first.checked_add((ring.first + slot).checked_mul(slots.stride)?)?;
            piece(at, of * slots.stride)
        };
        let parts = [fetch(begin, before_end), fetch(0, wanted - before_end)];
        let slot = |at: usize| {
            let (part, at) = if at < before_end { (&parts[0], at) } else { (&parts[1], at - before_end) };
            part.as_ref()?.get(at * slots.stride..)?.get(..slots.stride)
        };
        let mut drain = Self {
            items: Vec::new(),
            lost: first - from,
            counted,
            latest: None,
            fixed: ring.fixed,
            next: until,
        };
        // An event may carry an earlier time than the one before it; it is sorted behind that one.
        let mut latest = Raw(0);
        for (at, number) in (0..wanted).zip(first..) {
            let words = slot(at).and_then(|words| {
                slot_read::<_, STAMPED>(words.get(slot::SEQ)?, words.get(slot::RAW..slot::WORDS)?, number)
            });
            let item = words.map(|[raw, event @ ..]| {
                latest = latest.max(Raw(raw));
                match Mark::decode(&event) {
                    Some(mark) => Item::Mark(mark),
                    None => Item::Event(Recorded { raw: Raw(raw), event: codec::decode(&event) }),
                }
            });
            if item.is_some() && number < counted {
                drain.latest = Some(latest);
            }
            drain.items.push((number, latest, item));
        }
        drain
    }

    /// Leaves for the next reading what is later than `latest` and not counted by the first reading
    /// of the head.
    fn cut(&mut self, latest: Option<Raw>) {
        let is_early = |(number, at, _): &(u64, Raw, Option<Item>)| {
            *number < self.counted || latest.is_some_and(|latest| *at <= latest)
        };
        if let Some(end) = self.items.iter().position(|item| !is_early(item)) {
            self.next = self.items[end].0;
            self.items.truncate(end);
        }
    }
}

/// The new events by owner.
#[derive(Default)]
struct ByOwner {
    /// With the time by which they are sorted.
    events: BTreeMap<Option<Owner>, Vec<(Raw, Recorded)>>,
    lost: BTreeMap<Option<Owner>, u64>,
    torn: BTreeSet<Option<Owner>>,
}

impl ByOwner {
    fn add(&mut self, drain: Drain, position: &mut Position) {
        let mut lost = drain.lost;
        let mut is_torn = lost > 0;
        let mut owner = if is_torn { None } else { position.owner };
        // Events whose owner the next mark says.
        let mut early: Vec<(Raw, Recorded)> = Vec::new();
        for (number, at, item) in drain.items {
            if let Some((start, fixed)) = drain.fixed {
                owner = Some((number >= start).then_some(fixed));
            }
            match item {
                None => {
                    (lost, is_torn, owner) = (lost + 1, true, None);
                }
                Some(Item::Mark(mark)) => {
                    position.saw(mark.before);
                    self.events.entry(mark.before).or_default().append(&mut early);
                    owner = Some(mark.owner);
                    // Lost marks are no lost events.
                    let marks = mark.number.saturating_sub(position.marks);
                    position.marks = mark.number.wrapping_add(1);
                    self.lose(mark.before, std::mem::take(&mut lost).saturating_sub(marks));
                }
                Some(Item::Event(event)) => match owner {
                    Some(owner) => self.events.entry(owner).or_default().push((at, event)),
                    None => early.push((at, event)),
                },
            }
            position.saw(owner.flatten());
        }
        // A ring without marks is that of the service thread of an older recording.
        if !early.is_empty() {
            self.events.entry(None).or_default().append(&mut early);
        }
        self.lose(drain.fixed.map(|(_, owner)| owner), lost);
        if is_torn {
            self.torn.extend(position.seen.iter().copied().map(Some));
        }
        position.next = drain.next;
        position.owner = owner;
    }

    fn lose(&mut self, owner: Option<Owner>, count: u64) {
        if count > 0 {
            let lost = self.lost.entry(owner).or_default();
            *lost = lost.saturating_add(count);
            self.torn.insert(owner);
        }
    }

    fn readings(mut self) -> Vec<Reading> {
        for owner in &self.torn {
            self.events.entry(*owner).or_default();
        }
        let reading = |(owner, mut events): (Option<Owner>, Vec<(Raw, Recorded)>)| {
            // Stable: each ring's events keep their order.
            events.sort_by_key(|(at, _)| *at);
            Reading {
                owner,
                events: events.into_iter().map(|(_, event)| event).collect(),
                lost: self.lost.get(&owner).copied().unwrap_or_default(),
                is_torn: self.torn.contains(&owner),
            }
        };
        self.events.into_iter().map(reading).filter(|one| one.is_torn || !one.events.is_empty()).collect()
    }
}
