//! Simulated links: all ranks in one process, virtual time, and every delay drawn from a seed.
//!
//! Each message arrives at each reader after its own delay, drawn per lane, and never before the
//! previous message of the lane. Time stands still while anything can move. When nothing can move,
//! it jumps to the next arrival. So thousands of ranks run in a second, and a seed replays a run
//! exactly. A writer sees freed slots at once. Where the proxy moves them, a message has moved for
//! its writer once it has arrived, as over a queue pair.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::Ns;
use crate::memory::{Slot, ViewMut};
use crate::seed::Seed;
use crate::transport::{LinkFault, Message};
use crate::types::{Rank, TransportKind};

#[derive(Debug)]
struct Time {
    now: Ns,
    arrivals: BinaryHeap<Reverse<(Ns, Rank)>>,
    /// Ranks for which something changed, and whose engines must run.
    ready: BTreeSet<Rank>,
    /// Messages that are published but not freed yet, counted once per reader.
    unread: u64,
}

/// A network of simulated lanes with one virtual clock.
#[derive(Clone, Debug)]
pub struct Net {
    time: Arc<Mutex<Time>>,
    seed: Seed,
    delay_ns: (u64, u64),
    is_pumped: bool,
}

#[derive(Debug)]
struct Flying {
    check: u64,
    data: Arc<[u8]>,
    /// The arrival time at each reader.
    at: Vec<Ns>,
}

#[derive(Debug)]
struct Lane {
    flying: VecDeque<Flying>,
    /// The number of the message at the front of `flying`.
    first: u64,
    posted: u64,
    done: Vec<u64>,
    closed: bool,
}

/// The writing end.
#[derive(Debug)]
pub struct Sender {
    net: Net,
    lane: Arc<Mutex<Lane>>,
    writer: Rank,
    readers: Vec<Rank>,
    seed: Seed,
    slots: u64,
    slot: Slot,
    reserved: Option<u32>,
    /// The messages that the proxy has moved.
    moved: u64,
}

/// The reading end.
#[derive(Debug)]
pub struct Receiver {
    net: Net,
    lane: Arc<Mutex<Lane>>,
    writer: Rank,
    reader: usize,
    slots: u64,
    slot: Slot,
    peeked: Option<(u64, usize)>,
    moved: u64,
    done: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each lane is consistent between two statements, so a panic of another simulated rank leaves
    // no broken state here.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Net {
    /// A network whose messages take between `delay_ns.0` and `delay_ns.1`, drawn from `seed`.
    #[must_use]
    pub fn new(seed: u64, delay_ns: (u64, u64)) -> Self {
        let time = Time { now: Ns(0), arrivals: BinaryHeap::new(), ready: BTreeSet::new(), unread: 0 };
        Self { time: Arc::new(Mutex::new(time)), seed: Seed(seed), delay_ns, is_pumped: false }
    }

    /// The same network, whose lanes must be pumped: the proxy moves them.
    #[must_use]
    pub const fn pumped(mut self) -> Self {
        self.is_pumped = true;
        self
    }

    /// A lane from `from` to `readers`.
    #[must_use]
    pub fn lane(
        &self,
        channel: u16,
        from: Rank,
        readers: &[Rank],
        slots: u32,
        slot_bytes: u32,
    ) -> (Sender, Vec<Receiver>) {
        let done = vec![0; readers.len()];
        let lane = Lane { flying: VecDeque::new(), first: 1, posted: 0, done, closed: false };
        let lane = Arc::new(Mutex::new(lane));
        let first = readers.first().map_or(0, |r| u64::from(r.0));
        let name =
            u64::from(channel) << 48 | u64::from(from.0) << 24 | first << 1 | u64::from(readers.len() > 1);
        let sender = Sender {
            net: self.clone(),
            lane: Arc::clone(&lane),
            writer: from,
            readers: readers.to_vec(),
            seed: self.seed.part(name),
            slots: u64::from(slots),
            slot: Slot::new(slot_bytes as usize),
            reserved: None,
            moved: 0,
        };
        let receivers = (0..readers.len()).map(|reader| Receiver {
            net: self.clone(),
            lane: Arc::clone(&lane),
            writer: from,
            reader,
            slots: u64::from(slots),
            slot: Slot::new(slot_bytes as usize),
            peeked: None,
            moved: 0,
            done: 0,
        });
        (sender, receivers.collect())
    }

    /// The current virtual time.
    #[must_use]
    pub fn now(&self) -> Ns {
        lock(&self.time).now
    }

    /// Lets time pass until then, if that is later.
    pub fn wait_until(&self, then: Ns) {
        let mut time = lock(&self.time);
        time.now = time.now.max(then);
    }

    /// Jumps to the next arrival and makes its readers ready. Returns `false` if no message is on
    /// its way: then every rank that waits will wait for ever.
    pub fn advance(&self) -> bool {
        let mut time = lock(&self.time);
        let Some(Reverse((at, _))) = time.arrivals.peek().copied() else { return false };
        time.now = time.now.max(at);
        while let Some(Reverse((due, rank))) = time.arrivals.peek().copied() {
            if due > time.now {
                break;
            }
            time.arrivals.pop();
            time.ready.insert(rank);
        }
        true
    }

    /// Removes and returns one of the ranks for which something changed, drawn from `seed`.
    pub fn draw_ready(&self, seed: &mut Seed) -> Option<Rank> {
        let mut time = lock(&self.time);
        let nth = seed.below(time.ready.len() as u64) as usize;
        let rank = time.ready.iter().nth(nth).copied()?;
        time.ready.remove(&rank);
        Some(rank)
    }

    /// Messages that were published but not freed by all their readers, counted once per reader.
    #[must_use]
    pub fn unread(&self) -> u64 {
        lock(&self.time).unread
    }

    /// Marks a rank as ready, for instance because its application made a call.
    pub fn make_ready(&self, rank: Rank) {
        lock(&self.time).ready.insert(rank);
    }
}

impl Sender {
    pub(crate) fn reserve(&mut self, total: u32) -> Result<Option<ViewMut>, LinkFault> {
        let lane = lock(&self.lane);
        if lane.closed {
            return Err(LinkFault::Gone);
        }
        let done = lane.done.iter().copied().min().unwrap_or(lane.posted);
        if lane.posted - done >= self.slots {
            return Ok(None);
        }
        self.reserved = Some(total);
        Ok(Some(self.slot.view_mut(total as usize)))
    }

    pub(crate) fn publish(&mut self, check: u64) {
        let total = self.reserved.take().unwrap_or(0);
        let data: Arc<[u8]> = self.slot.bytes()[..total as usize].into();
        let now = self.net.now();
        let (low, high) = self.net.delay_ns;
        let mut lane = lock(&self.lane);
        let mut at = Vec::with_capacity(self.readers.len());
        for reader in 0..self.readers.len() {
            let drawn = Ns(now.0 + low + self.seed.below(high - low + 1));
            let ahead = lane.flying.back().map_or(Ns(0), |message| message.at[reader]);
            at.push(drawn.max(ahead));
        }
        let mut time = lock(&self.net.time);
        time.arrivals.extend(at.iter().copied().zip(self.readers.iter().copied()).map(Reverse));
        if self.net.is_pumped {
            time.arrivals.extend(at.iter().max().map(|last| Reverse((*last, self.writer))));
        }
        time.unread += at.len() as u64;
        drop(time);
        lane.posted += 1;
        lane.flying.push_back(Flying { check, data, at });
    }

    /// Finds what has arrived everywhere; whether that is more than before.
    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        let now = self.net.now();
        let lane = lock(&self.lane);
        // Messages that all readers have freed are removed from `flying`; they have arrived.
        let has_arrived = |message: &&Flying| message.at.iter().all(|at| *at <= now);
        let moved = lane.first - 1 + lane.flying.iter().take_while(has_arrived).count() as u64;
        Ok(std::mem::replace(&mut self.moved, moved) < moved)
    }
    pub(crate) fn posted(&self) -> u64 {
        lock(&self.lane).posted
    }
    pub(crate) fn moved(&self) -> u64 {
        if self.net.is_pumped { self.moved } else { self.posted() }
    }
    pub(crate) fn done(&self) -> u64 {
        let lane = lock(&self.lane);
        lane.done.iter().copied().min().unwrap_or(lane.posted)
    }
    pub(crate) fn slowest(&self) -> Rank {
        let lane = lock(&self.lane);
        let least = lane.done.iter().enumerate().min_by_key(|(_, done)| **done);
        least.map_or(Rank(0), |(reader, _)| self.readers[reader])
    }
    pub(crate) const fn transport(&self) -> TransportKind {
        TransportKind::Sim
    }
    pub(crate) const fn is_pumped(&self) -> bool {
        self.net.is_pumped
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        lock(&self.lane).closed = true;
    }
}

impl Receiver {
    pub(crate) fn peek(&mut self) -> Result<Option<Message>, LinkFault> {
        if let Some((check, len)) = self.peeked {
            return Ok(Some(Message { check, data: self.slot.view(len) }));
        }
        let now = self.net.now();
        let lane = lock(&self.lane);
        let index = (self.done + 1 - lane.first) as usize;
        match lane.flying.get(index) {
            Some(message) if message.at[self.reader] <= now => {
                let len = message.data.len();
                self.slot.bytes_mut()[..len].copy_from_slice(&message.data);
                self.peeked = Some((message.check, len));
                self.moved = self.done + 1;
                Ok(Some(Message { check: message.check, data: self.slot.view(len) }))
            }
            // Messages sent before the end still arrive; after them the link is gone.
            None if lane.closed => Err(LinkFault::Gone),
            Some(_) | None => Ok(None),
        }
    }

    pub(crate) fn release(&mut self) {
        self.peeked = None;
        self.done += 1;
        let mut time = lock(&self.net.time);
        time.ready.insert(self.writer);
        time.unread -= 1;
        drop(time);
        let mut lane = lock(&self.lane);
        lane.done[self.reader] = self.done;
        let least = lane.done.iter().copied().min().unwrap_or(0);
        while lane.first <= least {
            lane.flying.pop_front();
            lane.first += 1;
        }
    }

    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        Ok(false)
    }
    pub(crate) const fn posted(&self) -> u64 {
        self.done + self.slots
    }
    pub(crate) const fn moved(&self) -> u64 {
        self.moved
    }
    pub(crate) const fn done(&self) -> u64 {
        self.done
    }
    pub(crate) const fn transport(&self) -> TransportKind {
        TransportKind::Sim
    }
    pub(crate) const fn is_pumped(&self) -> bool {
        self.net.is_pumped
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        lock(&self.lane).closed = true;
    }
}
