//! The reading end of a lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{HAS_HEADER, HEADER_APART, Half, IS_APART, IS_NEXT, MAGIC, MAX_PAIRS, NUMBER, SENDS, next};
use crate::memory::{Lendable, View, ViewMut};
use crate::reactor::Interest;
use crate::sys::verbs::{Piece, Region, Write};
use crate::transport::ib::hca::Work;
use crate::transport::ib::line::Line;
use crate::transport::ib::staging::{CLEAR, HEADER, SLOTS};
use crate::transport::{LinkFault, Message};
use crate::types::TransportKind;

/// The clear entries that one write carries, as a rule.
const TOGETHER: usize = 4;
/// After so many looks without a message fewer are written, if the writer has a slot left at most.
const PATIENCE: u32 = 32;
/// After so many looks they are written in any case.
const LONG: u32 = 1 << 20;

/// The reading end of a lane.
#[derive(Debug)]
pub struct Receiver {
    pub(in crate::transport::ib) half: Half,
    line: Line,
    /// Check and length of the oldest message, once it is whole, and the number of its parts.
    pub(super) ready: Option<(u64, usize, u32)>,
    /// The check of the message before.
    check: Option<u64>,
    moved: u64,
    pub(super) done: u64,
    /// Clear entries written, and in how many writes.
    cleared: u64,
    notices: u64,
    /// Of each slot, the memory to which the writer was told to write the bytes instead.
    told: [Option<ViewMut>; SLOTS],
    /// Looks in a row at which no message had come.
    idle: AtomicU32,
    pub(super) fault: Option<LinkFault>,
}

impl Receiver {
    /// `half` has [`RECEIVES`](super::RECEIVES) receives posted on each queue pair, and the writer
    /// knows the first clear entries.
    pub(in crate::transport::ib) const fn new(half: Half, line: Line) -> Self {
        Self {
            half,
            line,
            ready: None,
            check: None,
            moved: 0,
            done: 0,
            cleared: 0,
            notices: 0,
            told: [None; SLOTS],
            idle: AtomicU32::new(0),
            fault: None,
        }
    }

    /// The oldest complete message. All complete messages come before a fault that follows them.
    pub(crate) fn peek(&mut self) -> Result<Option<Message>, LinkFault> {
        if self.ready.is_none() {
            self.pump()?;
        }
        let Some((check, len, _)) = self.ready else { return Ok(None) };
        if let Some(bytes) = self.told[self.done as usize % SLOTS] {
            return Ok(Some(Message { check, data: bytes.read().part(0, len) }));
        }
        let at = self.half.block.at() + self.half.slot(self.done as usize % SLOTS) + HEADER;
        let base = self.half.block.memory().base().as_ptr();
        // SAFETY: the slot lies in the block, which `self` keeps, and `len` was checked. The writer
        // sends nothing to this slot until it is cleared, which happens after `release`; one that
        // does all the same changes bytes, which views allow.
        Ok(Some(Message { check, data: unsafe { View::new(base.add(at), len) } }))
    }

    pub(crate) fn release(&mut self) {
        let (_, _, parts) = self.ready.take().expect("released what was peeked");
        let slot = self.done as usize % SLOTS;
        let arrived = self.half.end.parts[slot].swap(0, Ordering::Relaxed);
        self.half.end.bytes[slot].store(0, Ordering::Relaxed);
        if self.fault.is_none() {
            let number = self.done;
            self.fault = match arrived == parts {
                true => self.free(parts as usize).err(),
                // Its bytes may have been written over while they were read.
                false => Some(LinkFault::Corrupt(format!(
                    "{arrived} parts arrived for message {number}, which has {parts}"
                ))),
            };
        }
        self.done += 1;
        self.half.lent.ended(self.done);
        if self.fault.is_none() {
            self.fault = self.clear().err();
        }
        self.half.credits(self.owed());
    }

    /// The messages from this one on are wanted in these bytes.
    pub(crate) fn lend(&mut self, first: u64, bytes: (ViewMut, usize), memory: &Arc<Lendable>) {
        self.half.lend(first, bytes, memory);
    }

    /// Posts the receives anew that the parts of the oldest message have used.
    fn free(&mut self, parts: usize) -> Result<(), LinkFault> {
        if parts == 1 {
            return self.half.receive(self.done as usize % self.half.strands.len(), Work::Arrival);
        }
        (0..parts).try_for_each(|strand| self.half.receive(strand, Work::Arrival))
    }

    /// Tells the writer which slots are free, a few at a time, as far as the queue has room.
    pub(super) fn clear(&mut self) -> Result<(), LinkFault> {
        while self.cleared < self.done {
            let owed = (self.done - self.cleared) as usize;
            let slot = self.cleared as usize % SLOTS;
            let wanted = TOGETHER - slot % TOGETHER;
            let count = owed.min(wanted);
            let patience = if self.is_short() { PATIENCE } else { LONG };
            let is_early = count < wanted && *self.idle.get_mut() < patience;
            let on_their_way = self.notices - self.half.end.notices.load(Ordering::Acquire);
            if is_early || on_their_way >= u64::from(SENDS) {
                return Ok(());
            }
            for at in slot..slot + count {
                self.put_entry(at, self.cleared + (at - slot) as u64 + SLOTS as u64);
            }
            (self.cleared, self.notices) = (self.cleared + count as u64, self.notices + 1);
            let half = &self.half;
            let entry = slot * CLEAR;
            let own = Piece { at: half.block.at() + entry, len: count * CLEAR };
            let (to, key) = (half.there.wrapping_add(entry as u64), half.strands[0].key);
            let immediate = Some(self.cleared as u32);
            let write = Write { id: 0, own, lent: None, to, key, immediate, signaled: true };
            half.post(0, Work::Clear, &mut [write])?;
        }
        Ok(())
    }

    /// The entry of a slot: this message may come, and where its bytes go.
    fn put_entry(&mut self, slot: usize, number: u64) {
        let half = &self.half;
        let (mut keys, mut to) = ([0; MAX_PAIRS], half.block.address(half.slot(slot) + HEADER));
        keys.iter_mut().zip(&half.strands).for_each(|(key, strand)| *key = strand.own_key);
        let lent = half.lent.of(number).and_then(|place| {
            let mut theirs = [0; MAX_PAIRS];
            for (key, strand) in theirs.iter_mut().zip(&half.strands) {
                *key = place.memory.with(strand.seat.hca().domain(), Region::remote_key)?;
            }
            Some((place.bytes, theirs))
        });
        if let Some((bytes, theirs)) = lent {
            (to, keys) = (bytes.as_ptr() as u64, theirs);
        }
        let entry = slot * CLEAR;
        half.word(entry).store(number, Ordering::Relaxed);
        half.word(entry + 8).store(to, Ordering::Relaxed);
        for (two, keys) in keys.chunks(2).enumerate() {
            let both = u64::from(keys[0]) | u64::from(keys[1]) << 32;
            half.word(entry + 16 + two * 8).store(both, Ordering::Relaxed);
        }
        self.told[slot] = lent.map(|(bytes, _)| bytes);
    }

    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        if let Some(fault) = &self.fault {
            // What has arrived whole comes before it.
            return if self.ready.is_some() { Ok(false) } else { Err(fault.clone()) };
        }
        let looked = self.look();
        if let Err(fault) = &looked {
            self.fault = Some(fault.clone());
        }
        looked
    }

    fn look(&mut self) -> Result<bool, LinkFault> {
        let has_ended = self.line.has_ended();
        let is_all = self.half.poll()?;
        let mut any = false;
        while self.moved < self.done + SLOTS as u64 && self.whole(self.moved)?.is_some() {
            self.moved += 1;
            any = true;
        }
        if self.ready.is_none() && self.moved > self.done {
            self.ready = Some(self.header()?);
        }
        if any {
            self.line.moves();
            *self.idle.get_mut() = 0;
        } else {
            let idle = self.idle.get_mut();
            *idle = idle.saturating_add(1);
            if self.owed() > 0 {
                self.clear()?;
                self.half.credits(self.owed());
            }
        }
        if self.ready.is_none() {
            if let Some(fault) = self.half.failed() {
                return Err(fault);
            }
            if has_ended && is_all {
                return Err(LinkFault::Gone);
            }
        }
        Ok(any)
    }

    /// The number of parts of a message that may be on its way, once all have arrived.
    fn whole(&self, number: u64) -> Result<Option<u32>, LinkFault> {
        let slot = number as usize % SLOTS;
        let arrived = self.half.end.parts[slot].load(Ordering::Acquire);
        if arrived == 0 {
            return Ok(None);
        }
        let immediate = self.half.end.immediate[slot].load(Ordering::Relaxed);
        let (low, parts) = (immediate & NUMBER, immediate >> 24);
        if low != number as u32 & NUMBER {
            return Err(LinkFault::Corrupt(format!("message {low} arrived where {number} is due")));
        }
        if parts == 0 || parts as usize > self.half.strands.len() || arrived > parts {
            return Err(LinkFault::Corrupt(format!(
                "{arrived} of {parts} parts of message {number} arrived"
            )));
        }
        Ok((arrived == parts).then_some(parts))
    }

    /// Check, length and number of parts of the oldest message, which has arrived.
    fn header(&mut self) -> Result<(u64, usize, u32), LinkFault> {
        let (number, slot) = (self.done, self.done as usize % SLOTS);
        // It was whole, perhaps a while ago: more may have come since, which must not.
        let Some(parts) = self.whole(number)? else {
            return Err(LinkFault::Corrupt(format!("message {number} was whole, and is no more")));
        };
        let arrived = self.half.end.bytes[slot].load(Ordering::Relaxed) as usize;
        let immediate = self.half.end.immediate[slot].load(Ordering::Relaxed);
        let has_header = immediate & HAS_HEADER != 0;
        let bare = self.check.filter(|_| !has_header && arrived <= self.half.room);
        if let Some(before) = bare {
            let check = if immediate & IS_NEXT == 0 { before } else { next(before) };
            self.check = Some(check);
            return Ok((check, arrived, parts));
        }
        let word = |index: usize| {
            u64::from_le(self.half.word(self.half.slot(slot) + index * 8).load(Ordering::Relaxed))
        };
        let (magic, its, check, len) = (word(0), word(1), word(2), word(3));
        // The bytes of a write that brought no number are not counted.
        let is_counted = immediate & IS_APART == 0;
        let before = if immediate & HEADER_APART == 0 { HEADER as u64 } else { 0 };
        let what = if !has_header {
            format!("message {number} has {arrived} bytes and no header")
        } else if magic != MAGIC {
            format!("a header begins with {magic:#018x}")
        } else if its != number {
            format!("message {its} stands where {number} is due")
        } else if len > self.half.room as u64 {
            format!("message {number} claims {len:#x} bytes of at most {:#x}", self.half.room)
        } else if (4..8).any(|index| word(index) != 0) {
            format!("message {number} has reserved bytes set")
        } else if is_counted && arrived as u64 != before + len {
            format!("{arrived} bytes of message {number} arrived, which claims {len}")
        } else {
            self.check = Some(check);
            return Ok((check, len as usize, parts));
        };
        Err(LinkFault::Corrupt(what))
    }

    pub(crate) const fn posted(&self) -> u64 {
        self.done + SLOTS as u64
    }
    pub(crate) const fn moved(&self) -> u64 {
        self.moved
    }
    pub(crate) const fn done(&self) -> u64 {
        self.done
    }
    #[expect(clippy::unused_self, reason = "the seam asks the link")]
    pub(crate) const fn transport(&self) -> TransportKind {
        TransportKind::Verbs
    }
    pub(crate) fn fds(&self) -> impl Iterator<Item = Interest> + '_ {
        // The rank may be about to sleep: what the writer may need is due.
        if self.is_short() {
            self.idle.fetch_max(PATIENCE, Ordering::Relaxed);
        }
        self.half.fds().chain(self.line.interest())
    }
    /// Whether the writer may have one slot left at most.
    const fn is_short(&self) -> bool {
        self.moved - self.cleared >= SLOTS as u64 - 1
    }
    /// The messages of whose slots the writer has not been told that they are free.
    pub(in crate::transport::ib) const fn owed(&self) -> u64 {
        self.done - self.cleared
    }
}
