//! Links through memory: the slots of a lane, and how the writer and its readers hand them over.
//!
//! A slot has a *header line* of 64 bytes, and data for messages that do not fit into it:
//!
//! ```text
//!   0 seq u64 | 8 check u64 | 16 len u32 | 20 unused u32 | 24 up to 40 bytes of a short message
//! ```
//!
//! `seq` is the number of the message. The writer stores it last, with release, so a reader that
//! loads it with acquire sees the rest. Message m lies in slot `(m - 1) % slots`. A reader that
//! waits for m finds m there, or m - slots (0 at first) while m has not arrived; any other number
//! is a fault. For a short message only one line moves from core to core. The message is assembled
//! in private staging memory, because a line that a reader polls would travel to it at each store.
//!
//! A reader frees messages by storing their count in its own ack line. The writer reads that line
//! only when it has no more slots that it knows to be free.
//!
//! The addresses in a link point into mappings whose `Arc` the link holds. A slot's bytes belong to
//! the writer until it stores `seq`, and then to the readers until all have acknowledged.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::memory::RankMemory;
use super::sleep::AWAKE;
use crate::memory::{View, ViewMut};
use crate::plan::{GroupId, LaneId};
use crate::transport::{LinkFault, Message};
use crate::types::{ChannelId, Rank, TransportKind};

/// The shared lane of a rank: its place does not depend on the group that reads it.
const SHARED: LaneId = LaneId::shared(GroupId(0));

/// The longest message that travels inside its header line.
pub const INLINE_BYTES: usize = 40;
const WORDS: usize = INLINE_BYTES / 8;

/// A header line as it lies in memory. One rank writes all of it; its peers only read it.
#[repr(C, align(64))]
struct Header {
    seq: AtomicU64,
    check: AtomicU64,
    len: AtomicU32,
    unused: AtomicU32,
    inline: [AtomicU64; WORDS],
}
const _: () = assert!(size_of::<Header>() == 64);

/// The slots of a lane, as addresses in its writer's memory.
#[derive(Debug)]
struct Slots {
    headers: *const Header,
    data: *mut u8,
    mask: u64,
    bytes: u32,
    /// Keeps the addresses valid.
    memory: Arc<RankMemory>,
}

impl Slots {
    fn of(memory: &Arc<RankMemory>, lane: LaneId) -> Self {
        let at = memory.layout().lane(lane);
        assert!(at.terms.slots.is_power_of_two());
        let base = memory.base().as_ptr();
        // SAFETY: a layout puts the lane inside the mapping, which is `Layout::size` bytes long.
        let (headers, data) = unsafe { (base.add(at.headers).cast(), base.add(at.data)) };
        Self {
            headers,
            data,
            mask: u64::from(at.terms.slots - 1),
            bytes: at.terms.slot_bytes,
            memory: Arc::clone(memory),
        }
    }
    const fn count(&self) -> u64 {
        self.mask + 1
    }
    /// The header of the message that follows `before` other messages.
    #[inline]
    fn header(&self, before: u64) -> &Header {
        // SAFETY: the masked index is below the number of slots. Headers are 64 bytes, 64-aligned,
        // and consist of atomics only.
        unsafe { &*self.headers.add((before & self.mask) as usize) }
    }
    /// The data of the message that follows `before` other messages.
    #[inline]
    fn data(&self, before: u64) -> *mut u8 {
        // SAFETY: the masked index is below the number of slots, each of `bytes` bytes.
        unsafe { self.data.add((before & self.mask) as usize * self.bytes as usize) }
    }
}

/// A reader as the writer sees it.
#[derive(Debug)]
struct Reader {
    /// The reader's ack word of the lane, and the word that says whether the reader sleeps. Both
    /// lie in the reader's memory.
    ack: *const AtomicU64,
    sleeping: *const AtomicU32,
    /// The reader's count of freed messages at the last look.
    done: u64,
    memory: Arc<RankMemory>,
}

/// The writing end.
#[derive(Debug)]
pub struct Sender {
    slots: Slots,
    posted: u64,
    /// Messages known to be freed by all readers.
    done: u64,
    /// Bytes of the reserved message.
    reserved: Option<u32>,
    /// Whether a message was published since the readers were last woken.
    needs_notify: bool,
    staging: Box<UnsafeCell<[u64; WORDS]>>,
    readers: Vec<Reader>,
    slowest: Rank,
    fault: Option<LinkFault>,
    transport: TransportKind,
}

// SAFETY: any thread may use the addresses, as they point into mappings that the link holds. An
// engine's lock lets only one thread at a time use a link.
unsafe impl Send for Sender {}

impl Sender {
    /// The writing end of the pair lane from the rank of `own` to the rank of `to`. A lane has only
    /// one writing end at a time.
    #[must_use]
    pub fn pair(own: &Arc<RankMemory>, channel: ChannelId, to: &Arc<RankMemory>) -> Self {
        Self::of(own, LaneId::pair(channel, to.identity().rank), std::slice::from_ref(to))
    }
    /// The writing end of the shared lane of the rank of `own`. Panics without peers.
    #[must_use]
    pub fn shared(own: &Arc<RankMemory>, peers: &[Arc<RankMemory>]) -> Self {
        Self::of(own, SHARED, peers)
    }

    fn of(own: &Arc<RankMemory>, lane: LaneId, peers: &[Arc<RankMemory>]) -> Self {
        let from = own.identity().rank;
        let readers: Vec<_> = peers
            .iter()
            .map(|peer| Reader {
                ack: ack_of(peer, from, lane),
                sleeping: std::ptr::from_ref(peer.sleeping()),
                done: 0,
                memory: Arc::clone(peer),
            })
            .collect();
        let transport = readers.iter().map(|r| r.memory.transport()).max().expect("a lane has a reader");
        let slowest = readers[0].memory.identity().rank;
        Self {
            slots: Slots::of(own, lane),
            posted: 0,
            done: 0,
            reserved: None,
            needs_notify: false,
            staging: Box::new(UnsafeCell::new([0; WORDS])),
            readers,
            slowest,
            fault: None,
            transport,
        }
    }

    #[inline]
    pub(crate) fn reserve(&mut self, total: u32) -> Result<Option<ViewMut>, LinkFault> {
        assert!(total <= self.slots.bytes, "a message of {total} bytes in slots of {}", self.slots.bytes);
        if self.posted - self.done >= self.slots.count() || self.fault.is_some() {
            self.look()?;
            if self.posted - self.done >= self.slots.count() {
                return Ok(None);
            }
        }
        debug_assert!(self.reserved.is_none_or(|t| t == total), "a message changed its length");
        self.reserved = Some(total);
        let at = if total as usize <= INLINE_BYTES {
            self.staging.get().cast()
        } else {
            self.slots.data(self.posted)
        };
        // SAFETY: the staging memory is ours, boxed, and 40 bytes long. A slot is `bytes` long, and
        // all readers have freed its last message, so no reader touches it until `publish`.
        Ok(Some(unsafe { ViewMut::new(at, total as usize) }))
    }

    #[inline]
    pub(crate) fn publish(&mut self, check: u64) {
        let total = self.reserved.take().expect("a message is reserved before it is published");
        let header = self.slots.header(self.posted);
        if total as usize <= INLINE_BYTES {
            // SAFETY: the views that `reserve` returned are no longer used once it is published.
            let staged = unsafe { &*self.staging.get() };
            for (word, staged) in header.inline.iter().zip(staged).take((total as usize).div_ceil(8)) {
                word.store(*staged, Ordering::Relaxed);
            }
        } else {
            streamed_stores_done();
        }
        self.posted += 1;
        header.check.store(check, Ordering::Relaxed);
        header.len.store(total, Ordering::Relaxed);
        header.seq.store(self.posted, Ordering::Release);
        self.needs_notify = true;
    }

    /// Wakes readers that sleep, if anything was published since the last call. The caller has
    /// issued a `fence(SeqCst)` after the last `publish`. One fence serves all links that moved
    /// since then, and by then most of the stores have already left the core.
    #[inline]
    pub(crate) fn notify(&mut self) {
        if !std::mem::take(&mut self.needs_notify) {
            return;
        }
        for reader in &self.readers {
            // SAFETY: the word lies in the reader's mapping, which the `Arc` next to it holds.
            if unsafe { &*reader.sleeping }.load(Ordering::Relaxed) != AWAKE {
                reader.memory.wake_if_asleep();
            }
        }
    }

    /// Reads how many messages the readers have freed.
    #[cold]
    fn look(&mut self) -> Result<(), LinkFault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let mut least = u64::MAX;
        for reader in &mut self.readers {
            // SAFETY: the word lies in the reader's mapping, which the `Arc` next to it holds.
            let ack = unsafe { &*reader.ack }.load(Ordering::Acquire);
            if ack < reader.done || ack > self.posted {
                let rank = reader.memory.identity().rank;
                let fault = LinkFault::Corrupt(format!(
                    "rank {rank} acknowledged {ack} messages after {}, of {}",
                    reader.done, self.posted
                ));
                self.fault = Some(fault.clone());
                return Err(fault);
            }
            reader.done = ack;
            if ack < least {
                (least, self.slowest) = (ack, reader.memory.identity().rank);
            }
        }
        self.done = least;
        Ok(())
    }

    #[inline]
    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        self.fault.clone().map_or(Ok(false), Err)
    }
    pub(crate) const fn posted(&self) -> u64 {
        self.posted
    }
    pub(crate) const fn moved(&self) -> u64 {
        self.posted
    }
    pub(crate) const fn done(&self) -> u64 {
        self.done
    }
    pub(crate) const fn slowest(&self) -> Rank {
        self.slowest
    }
    pub(crate) const fn transport(&self) -> TransportKind {
        self.transport
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Receiver {
    slots: Slots,
    done: u64,
    /// Messages seen whole: `done`, or one more once the next message was peeked.
    moved: u64,
    head: Message,
    ack: *const AtomicU64,
    /// Whether a message was released since the writer was last woken.
    needs_notify: bool,
    /// The word that says whether the writer sleeps.
    sleeping: *const AtomicU32,
    fault: Option<LinkFault>,
    /// Holds the memory in which the ack lies.
    _own: Arc<RankMemory>,
}

// SAFETY: as for `Sender`.
unsafe impl Send for Receiver {}

impl Receiver {
    /// The reading end of the pair lane from the rank of `from` to the rank of `own`. Each reader
    /// has only one reading end.
    #[must_use]
    pub fn pair(own: &Arc<RankMemory>, channel: ChannelId, from: &Arc<RankMemory>) -> Self {
        Self::of(own, LaneId::pair(channel, own.identity().rank), from)
    }
    /// The reading end of the shared lane of the rank of `from`.
    #[must_use]
    pub fn shared(own: &Arc<RankMemory>, from: &Arc<RankMemory>) -> Self {
        Self::of(own, SHARED, from)
    }

    fn of(own: &Arc<RankMemory>, lane: LaneId, from: &Arc<RankMemory>) -> Self {
        Self {
            slots: Slots::of(from, lane),
            done: 0,
            moved: 0,
            head: Message { check: 0, data: View::EMPTY },
            ack: ack_of(own, from.identity().rank, lane),
            needs_notify: false,
            sleeping: std::ptr::from_ref(from.sleeping()),
            fault: None,
            _own: Arc::clone(own),
        }
    }

    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<Message>, LinkFault> {
        if self.moved > self.done {
            return Ok(Some(self.head));
        }
        let header = self.slots.header(self.done);
        let seq = header.seq.load(Ordering::Acquire);
        if seq != self.done + 1 || self.fault.is_some() {
            return self.absent(seq);
        }
        // The length is read only once: the caller gets the value that is checked here, even if the
        // writer changes the header now.
        let len = header.len.load(Ordering::Relaxed);
        let at = if len as usize <= INLINE_BYTES {
            std::ptr::from_ref(&header.inline).cast()
        } else {
            self.slots.data(self.done).cast_const()
        };
        if len > self.slots.bytes {
            return self.broken(format!("{len} bytes in a slot of {}", self.slots.bytes));
        }
        // SAFETY: the `len` bytes lie inside the header or the slot, in a mapping that this link
        // holds. The writer does not touch them until `release`. A peer that breaks this rule can
        // change the bytes, as it could before it sent them.
        let data = unsafe { View::new(at, len as usize) };
        self.head = Message { check: header.check.load(Ordering::Relaxed), data };
        self.moved += 1;
        Ok(Some(self.head))
    }

    /// The expected message is not in its slot: either the slot still holds the previous message,
    /// or the writer broke the protocol.
    fn absent(&mut self, seq: u64) -> Result<Option<Message>, LinkFault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if seq == (self.done + 1).saturating_sub(self.slots.count()) {
            return Ok(None);
        }
        self.broken(format!("message {seq} where {} was expected", self.done + 1))
    }

    #[cold]
    fn broken(&mut self, what: String) -> Result<Option<Message>, LinkFault> {
        let fault = LinkFault::Corrupt(what);
        self.fault = Some(fault.clone());
        Err(fault)
    }

    #[inline]
    pub(crate) fn release(&mut self) {
        assert!(self.moved > self.done, "a message is peeked before it is released");
        self.done = self.moved;
        // SAFETY: the word lies in our own mapping, which `_own` holds. The release order keeps our
        // loads of the message before this store.
        unsafe { &*self.ack }.store(self.done, Ordering::Release);
        self.needs_notify = true;
    }

    /// Wakes a writer that sleeps, if anything was released since the last call. As with
    /// [`Sender::notify`], the caller has issued the fence.
    #[inline]
    pub(crate) fn notify(&mut self) {
        if !std::mem::take(&mut self.needs_notify) {
            return;
        }
        // SAFETY: the word lies in the writer's mapping, which `slots` holds.
        if unsafe { &*self.sleeping }.load(Ordering::Relaxed) != AWAKE {
            self.slots.memory.wake_if_asleep();
        }
    }

    #[inline]
    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        self.fault.clone().map_or(Ok(false), Err)
    }
    pub(crate) const fn posted(&self) -> u64 {
        self.done + self.slots.count()
    }
    pub(crate) const fn moved(&self) -> u64 {
        self.moved
    }
    pub(crate) const fn done(&self) -> u64 {
        self.done
    }
    pub(crate) fn transport(&self) -> TransportKind {
        self.slots.memory.transport()
    }
}

fn ack_of(reader: &Arc<RankMemory>, from: Rank, lane: LaneId) -> *const AtomicU64 {
    let at = reader.layout().ack(from, lane);
    // SAFETY: a layout puts acks inside the mapping, 64-aligned.
    unsafe { reader.base().as_ptr().add(at).cast_const().cast() }
}

/// Orders streaming stores into a slot before the stores that follow. A release store does not
/// order streaming stores.
#[inline]
fn streamed_stores_done() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has SFENCE.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// For tests: fills a reserved slot.
#[cfg(test)]
pub(in crate::transport) fn store(slot: ViewMut, bytes: &[u8]) {
    assert_eq!(slot.len(), bytes.len());
    // SAFETY: the caller reserved the slot, of this length, and has not published it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), slot.as_ptr(), bytes.len()) };
}

/// For tests: the bytes of a peeked message.
#[cfg(test)]
pub(in crate::transport) fn load(message: &Message) -> Vec<u8> {
    // SAFETY: the caller peeked the message and has not released it.
    unsafe { std::slice::from_raw_parts(message.data.as_ptr(), message.data.len()) }.to_vec()
}
