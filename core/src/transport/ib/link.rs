//! The two ends of a lane over queue pairs.
//!
//! ```text
//!   a header, little-endian: magic u64 | number u64 | check u64 | len u32 | 36 zeros
//!   a message: a header, unless its check is that of the message before or of the next call like
//!       that one; `len` bytes
//!   its immediate number: the low 20 bits of its number | whether it has a header << 20 |
//!       whether its bytes came apart from the number << 21, from the header << 22 |
//!       whether its check is that of the next call << 23 |
//!       the count of its parts << 24
//!   a clear entry: the number of the message that may come | where its bytes go u64 |
//!       a key per queue pair
//! ```
//!
//! *Writer.* Message m lies in slot `m % SLOTS` of the writer's block and is written into a slot of
//! the reader's, header and bytes at once. A small message is one work request, on queue pair `m %
//! n`. A larger one is split evenly over all queue pairs, so each device carries its share. The
//! last work request of each part carries the immediate number, which completes a receive of the
//! reader. Where packets may overtake each other (adaptive routing), a large part is a plain write
//! followed by an empty one with the number: only a completed write is followed. Every message has
//! a header there. Elsewhere a full slot without one is a whole number of packets.
//!
//! *Callers' memory.* Messages need no slot where they lie in a region: the writer's device reads
//! them there, and the clear entry names the reader's region for them. The header goes to the slot
//! all the same.
//!
//! *Reader.* A message is complete once all its parts have arrived. When it is freed, the reader
//! owes the writer a *clear* entry in the writer's block: message m + SLOTS may come, and where to.
//! Four neighbouring entries are one write, on the first queue pair; fewer are written only if no
//! message has come for a while, sooner if the writer is short of slots. The write also
//! completes a receive of the writer, so that a writer that sleeps is woken. `moved` of a writer
//! counts messages that the reader's device has acknowledged.
//!
//! Neither side needs the other process to run for bytes to move: devices retransmit, acknowledge
//! and store by themselves.

#[cfg(test)]
mod failing;
mod lent;
mod receiver;

pub(super) use lent::Lent;
pub use receiver::Receiver;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;

use super::hca::{End, Pair, Seat, Work};
use super::line::Line;
use super::seen::Seen;
use super::staging::{Block, CLEAR, HEADER, SLOTS, slot_at};
use crate::collective::Descriptor;
use crate::memory::{Lendable, ViewMut};
use crate::reactor::Interest;
use crate::sys::verbs::{Depth, Piece, Region, Write, words};
use crate::transport::{Change, LinkFault};
use crate::types::{Rank, TransportKind};

const MAGIC: u64 = u64::from_le_bytes(*b"ccl.ibm1");
/// The most queue pairs of a lane: an entry has a key for each.
pub(crate) const MAX_PAIRS: usize = 8;
/// Messages longer than this are split over the queue pairs.
const SPLIT_ABOVE: usize = 4096;
/// Parts of a message begin at multiples of this.
const GRAIN: usize = 64;

/// The check of the next call like that of this check.
pub(super) const fn next(check: u64) -> u64 {
    check.wrapping_add(Descriptor::STEP)
}

/// A header's bit in the immediate number; below are bits of the message's number.
const HAS_HEADER: u32 = 1 << 20;
const NUMBER: u32 = HAS_HEADER - 1;
const IS_APART: u32 = 1 << 21;
const HEADER_APART: u32 = 1 << 22;
const IS_NEXT: u32 = 1 << 23;
/// The receives that each end keeps posted on each queue pair: as many messages, or clear entries,
/// as can be on their way, twice.
pub(super) const RECEIVES: u32 = 2 * SLOTS as u32;
/// The work of one queue pair: a part takes three work requests at most, and a reader has this many
/// notices on their way, at most.
const SENDS: u32 = 3 * SLOTS as u32;
pub(super) const DEPTH: Depth = Depth { sends: SENDS, receives: RECEIVES };

/// One queue pair of a lane, connected.
#[derive(Debug)]
pub(super) struct Strand {
    pub(super) pair: Pair,
    pub(super) seat: Seat,
    /// Where it is, for messages: both ends.
    pub(super) ends: String,
    /// The key of the other side's block on its device.
    pub(super) key: u32,
    /// The key of this side's block on this device.
    pub(super) own_key: u32,
    pub(super) seen: Seen,
}

/// What both ends of a lane have.
#[derive(Debug)]
pub(super) struct Half {
    /// Dropped first: from then on no device touches the block.
    pub(super) strands: Vec<Strand>,
    pub(super) end: Arc<End>,
    pub(super) block: Block,
    /// Where the other side's block begins there.
    pub(super) there: u64,
    /// The bytes of the longest message.
    pub(super) room: usize,
    pub(super) peer: Rank,
    /// Above how many bytes a part is written apart from its number.
    pub(super) adaptive_above: Option<usize>,
    /// Whether devices may write a message's bytes in any order.
    pub(super) relaxed: bool,
    /// Whether callers' memory may be registered.
    pub(super) lends: bool,
    /// The messages that need no slot on this side.
    pub(super) lent: Lent,
    /// What the engine has not been told of the queue pairs.
    pub(super) changes: Vec<Change>,
}

impl Half {
    /// Takes what has completed, on all devices of the lane. False if more may have completed.
    fn poll(&mut self) -> Result<bool, LinkFault> {
        let mut polled: Option<&str> = None;
        let mut is_all = true;
        for strand in &self.strands {
            // Queue pairs of one device follow each other, and share its queue.
            let name = strand.seat.hca().name();
            if polled != Some(name) {
                polled = Some(name);
                is_all &= strand.seat.poll().map_err(LinkFault::System)?;
            }
        }
        self.tell_completed();
        Ok(is_all)
    }

    /// The fault that a failed work request is.
    fn failed(&mut self) -> Option<LinkFault> {
        let failed = *self.end.failed()?;
        self.tell_failed(&failed);
        let completion = failed.completion;
        let number = completion.queue_pair;
        let strand = self.strands.iter().find(|strand| strand.pair.qp.number() == number);
        let (ends, state) = strand.map_or(("an unknown queue pair", ""), |strand| {
            (strand.ends.as_str(), strand.pair.qp.state().name())
        });
        let what = match failed.work {
            Work::Part(_) => "a write",
            Work::Clear => "a clear notice",
            Work::Arrival | Work::Cleared => "a receive",
        };
        let (name, cause) = (words::status_name(completion.status), words::cause(completion.status));
        Some(LinkFault::System(format!(
            "{what} ended with {name} ({}, vendor {:#x}) on {ends}, now {state}: {cause}",
            completion.status, completion.vendor
        )))
    }

    /// What shows that the lane can go on. Arms the queues of its devices.
    fn fds(&self) -> impl Iterator<Item = Interest> + '_ {
        let mut armed: Option<&str> = None;
        self.strands.iter().filter_map(move |strand| {
            let hca = strand.seat.hca();
            if armed == Some(hca.name()) {
                return None;
            }
            armed = Some(hca.name());
            hca.arm();
            Some(Interest { fd: hca.fd(), read: true, write: false })
        })
    }

    /// Keeps a receive posted on a queue pair.
    fn receive(&self, strand: usize, work: Work) -> Result<(), LinkFault> {
        let Strand { pair, seat, ends, .. } = &self.strands[strand];
        let posted = pair.qp.receive(seat.id(work));
        posted.map_err(|e| LinkFault::System(format!("a receive cannot be posted on {ends}: {e}")))
    }

    /// Lends memory to all devices of the lane. Where one does not take it, slots serve.
    fn lend(&mut self, first: u64, bytes: (ViewMut, usize), memory: &Arc<Lendable>) {
        let mut domains = self.strands.iter().map(|strand| strand.seat.hca().domain());
        if self.lends && domains.all(|domain| memory.register(domain, self.relaxed).is_ok()) {
            self.lent.add(first, bytes, Arc::clone(memory));
        }
    }

    fn post(&self, strand: usize, work: Work, writes: &mut [Write<'_>]) -> Result<(), LinkFault> {
        let Strand { pair, seat, ends, seen, .. } = &self.strands[strand];
        writes.iter_mut().for_each(|write| write.id = seat.id(work));
        let posted = pair.qp.write(writes);
        if posted.is_ok() {
            writes.iter().filter(|write| write.signaled).for_each(|write| seen.posted(write.bytes()));
        }
        posted.map_err(|e| LinkFault::System(format!("a write cannot be posted on {ends}: {e}")))
    }

    /// Where a slot begins in the block.
    pub(super) const fn slot(&self, slot: usize) -> usize {
        slot_at(slot, self.room)
    }

    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        self.block.memory().u64_at(self.block.at() + at)
    }
}

/// The writing end of a lane.
#[derive(Debug)]
pub struct Sender {
    pub(super) half: Half,
    line: Line,
    reserved: Option<u32>,
    /// The parts of the message in each slot.
    parts: [u32; SLOTS],
    posted: u64,
    moved: u64,
    /// The check of the last message.
    check: Option<u64>,
    /// Clear entries for which receives were posted anew.
    listened: u64,
    fault: Option<LinkFault>,
}

impl Sender {
    /// `half` has [`RECEIVES`] receives posted on its first queue pair.
    pub(super) const fn new(half: Half, line: Line) -> Self {
        Self {
            half,
            line,
            reserved: None,
            parts: [0; SLOTS],
            posted: 0,
            moved: 0,
            check: None,
            listened: 0,
            fault: None,
        }
    }

    pub(crate) fn reserve(&mut self, total: u32) -> Result<Option<ViewMut>, LinkFault> {
        assert!(total as usize <= self.half.room, "a message of {total} bytes");
        if self.is_full() {
            self.pump()?;
        } else if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.is_full() {
            return Ok(None);
        }
        self.reserved = Some(total);
        if let Some((bytes, _)) = self.lent(total as usize) {
            return Ok(Some(bytes));
        }
        let at = self.half.block.at() + self.half.slot(self.slot()) + HEADER;
        let base = self.half.block.memory().base().as_ptr();
        // SAFETY: the slot lies in the block, which `self` keeps. Its last message was
        // acknowledged, so no device reads it, and nothing here touches it before `publish`.
        Ok(Some(unsafe { ViewMut::new(base.add(at), total as usize) }))
    }

    pub(crate) fn publish(&mut self, check: u64) {
        let len = self.reserved.take().expect("published what was reserved");
        let before = self.check.replace(check);
        let is_next = before.map(next) == Some(check);
        let is_known = is_next || before == Some(check);
        let has_header = !is_known || self.half.adaptive_above.is_some();
        if has_header {
            let at = self.half.slot(self.slot());
            let header = [MAGIC, self.posted, check, u64::from(len), 0, 0, 0, 0];
            for (index, word) in header.into_iter().enumerate() {
                self.half.word(at + index * 8).store(word.to_le(), Ordering::Relaxed);
            }
        }
        if self.fault.is_none() {
            // A fault is reported by the next call that can report it.
            let said = if has_header {
                HAS_HEADER
            } else if is_next {
                IS_NEXT
            } else {
                0
            };
            self.fault = self.write(said, len as usize).err();
        }
        self.posted += 1;
        self.half.credits(self.room());
    }

    /// The messages from this one on lie in these bytes.
    pub(crate) fn lend(&mut self, first: u64, bytes: (ViewMut, usize), memory: &Arc<Lendable>) {
        self.half.lend(first, bytes, memory);
    }

    /// Where the next message lies, if that is no slot.
    fn lent(&self, len: usize) -> Option<(ViewMut, &Arc<Lendable>)> {
        let place = self.half.lent.of(self.posted).filter(|place| place.size == len)?;
        Some((place.bytes.part(0, len), place.memory))
    }

    /// Writes the next message to the reader: `len` bytes, and the header before them if this is
    /// said of its check.
    fn write(&mut self, said: u32, len: usize) -> Result<(), LinkFault> {
        let (slot, half, has_header) = (self.slot(), &self.half, said == HAS_HEADER);
        let entry = slot * CLEAR;
        let clear = half.word(entry).load(Ordering::Relaxed);
        if clear != self.posted {
            let what = format!("the entry that clears message {} is of message {clear}", self.posted);
            return Err(LinkFault::Corrupt(what));
        }
        let lent = self.lent(len);
        let own_at = half.block.at() + half.slot(slot);
        let to = half.word(entry + 8).load(Ordering::Relaxed);
        let header_to = half.there.wrapping_add(half.slot(slot) as u64);
        let is_together = has_header && to == header_to.wrapping_add(HEADER as u64);
        let before = if is_together { HEADER } else { 0 };
        let (from, to) = (own_at + HEADER - before, to.wrapping_sub(before as u64));
        // The bytes in the slot are followed by those that lie elsewhere.
        let (here, len) = (if lent.is_some() { before } else { before + len }, before + len);
        let count = if len <= SPLIT_ABOVE { 1 } else { half.strands.len() };
        let mut number = self.posted as u32 & NUMBER | said | (count as u32) << 24;
        number |= if has_header && !is_together { HEADER_APART } else { 0 };
        number |= if half.adaptive_above.is_some() { IS_APART } else { 0 };
        let share = len.div_ceil(count).next_multiple_of(GRAIN);
        for part in 0..count {
            let at = if count == 1 { self.posted as usize % half.strands.len() } else { part };
            let strand = &half.strands[at];
            let (begin, end) = ((part * share).min(len), ((part + 1) * share).min(len));
            let key = half.word(entry + 16 + at / 2 * 8).load(Ordering::Relaxed) >> (at % 2 * 32);
            let post = |region: Option<(&Region, usize)>| {
                let lent = region.map(|(region, at)| {
                    let (begin, end) = (begin.max(here) - here, end.max(here) - here);
                    (region, Piece { at: at + begin, len: end - begin })
                });
                let own = Piece { at: from + begin.min(here), len: end.min(here) - begin.min(here) };
                let (to, immediate) = (to.wrapping_add(begin as u64), Some(number));
                let last = Write { id: 0, own, lent, to, key: key as u32, immediate, signaled: true };
                let mut writes: ArrayVec<Write<'_>, 3> = ArrayVec::new();
                if has_header && !is_together && part == 0 {
                    // What follows on its queue pair completes after it.
                    let own = Piece { at: own_at, len: HEADER };
                    let (to, key) = (header_to, strand.key);
                    writes.push(Write { own, lent: None, to, key, immediate: None, signaled: false, ..last });
                }
                if half.adaptive_above.is_some_and(|above| end - begin > above) {
                    writes.push(Write { immediate: None, signaled: false, ..last });
                    writes.push(Write { own: Piece::default(), lent: None, ..last });
                } else {
                    writes.push(last);
                }
                half.post(at, Work::Part(slot), &mut writes)
            };
            let Some((bytes, memory)) = lent else {
                post(None)?;
                continue;
            };
            let posted = memory.with(strand.seat.hca().domain(), |region| {
                post(Some((region, bytes.as_ptr() as usize - region.base().as_ptr() as usize)))
            });
            posted.unwrap_or_else(|| Err(LinkFault::System("the region of a message is gone".into())))?;
        }
        self.parts[slot] = count as u32;
        Ok(())
    }

    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let looked = self.look();
        if let Err(fault) = &looked {
            self.fault = Some(fault.clone());
        }
        looked
    }

    fn look(&mut self) -> Result<bool, LinkFault> {
        // What completed before the reader left comes before that.
        let has_ended = self.line.has_ended();
        let is_all = self.half.poll()?;
        let before = (self.moved, self.done());
        while self.moved < self.posted {
            let slot = self.moved as usize % SLOTS;
            if self.half.end.parts[slot].load(Ordering::Acquire) < self.parts[slot] {
                break;
            }
            self.half.end.parts[slot].store(0, Ordering::Relaxed);
            self.moved += 1;
        }
        self.half.lent.ended(self.moved);
        let cleared = self.half.end.cleared.load(Ordering::Acquire);
        if cleared > self.posted {
            let what = format!("message {cleared} was cleared, and {} were sent", self.posted);
            return Err(LinkFault::Corrupt(what));
        }
        // A notice clears one message or a few: that it was heard is counted, too.
        let heard = self.half.end.notices.load(Ordering::Acquire);
        while self.listened < heard {
            self.half.receive(0, Work::Cleared)?;
            self.listened += 1;
        }
        let any = (self.moved, self.done()) != before;
        if let Some(fault) = self.half.failed() {
            return Err(fault);
        }
        if any {
            // Another thread may have noted what was counted here after it was told.
            self.half.tell_completed();
            self.half.credits(self.room());
            self.line.moves();
        } else if has_ended && is_all {
            return Err(LinkFault::Gone);
        }
        Ok(any)
    }

    pub(crate) const fn posted(&self) -> u64 {
        self.posted
    }
    pub(crate) const fn moved(&self) -> u64 {
        self.moved
    }
    /// Messages that the reader has freed, as far as this side has heard and they are acknowledged.
    pub(crate) fn done(&self) -> u64 {
        self.half.end.cleared.load(Ordering::Acquire).min(self.moved)
    }
    pub(crate) const fn slowest(&self) -> Rank {
        self.half.peer
    }
    #[expect(clippy::unused_self, reason = "the seam asks the link")]
    pub(crate) const fn transport(&self) -> TransportKind {
        TransportKind::Verbs
    }
    pub(crate) fn fds(&self) -> impl Iterator<Item = Interest> + '_ {
        self.half.fds().chain(self.line.interest())
    }

    const fn slot(&self) -> usize {
        self.posted as usize % SLOTS
    }
    /// Whether the next slot is in use, here or at the reader.
    fn is_full(&self) -> bool {
        self.room() == 0
    }
    /// The number of slots that are free.
    pub(super) fn room(&self) -> u64 {
        (self.done() + SLOTS as u64).saturating_sub(self.posted)
    }
}
