//! A carrier for tests, like a network card: what is published is a transfer that completes later,
//! and not in the order in which it began. Readers still get messages in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::{Slot, ViewMut};
use crate::plan::{PAIR_SLOT_BYTES, PAIR_SLOTS};
use crate::seed::Seed;
use crate::transport::{LinkFault, Message};
use crate::types::{Rank, TransportKind};

/// A message, by its number.
type Numbered = (u64, u64, Vec<u8>);

/// What both ends of a lane share.
#[derive(Debug)]
struct Card {
    numbers: Seed,
    /// Transfers that have begun and not completed.
    under_way: Vec<Numbered>,
    /// Completed transfers that the reader has not freed: check and bytes by number.
    arrived: BTreeMap<u64, (u64, Vec<u8>)>,
    /// All transfers up to this number have completed.
    moved: u64,
    /// Messages freed.
    done: u64,
    closed: bool,
    /// How often a transfer completed before one that began earlier.
    overtaken: u64,
}

/// The writing end.
#[derive(Debug)]
pub struct Sender {
    card: Arc<Mutex<Card>>,
    slot: Slot,
    reserved: usize,
    posted: u64,
    reader: Rank,
}

/// The reading end.
#[derive(Debug)]
pub struct Receiver {
    card: Arc<Mutex<Card>>,
    slot: Slot,
    moved: u64,
    done: u64,
}

fn lock(card: &Mutex<Card>) -> MutexGuard<'_, Card> {
    card.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lane to `reader`, whose transfers complete as the seed draws.
pub(super) fn lane(seed: u64, reader: Rank) -> (Sender, Receiver) {
    let card = Card {
        numbers: Seed(seed),
        under_way: Vec::new(),
        arrived: BTreeMap::new(),
        moved: 0,
        done: 0,
        closed: false,
        overtaken: 0,
    };
    let card = Arc::new(Mutex::new(card));
    let slot = || Slot::new(PAIR_SLOT_BYTES as usize);
    let receiver = Receiver { card: Arc::clone(&card), slot: slot(), moved: 0, done: 0 };
    (Sender { card, slot: slot(), reserved: 0, posted: 0, reader }, receiver)
}

impl Card {
    /// Completes one transfer, or none.
    fn complete(&mut self) -> bool {
        let at = self.numbers.place(self.under_way.len() + 1);
        if at == self.under_way.len() {
            return false;
        }
        self.overtaken += u64::from(at > 0);
        let (number, check, data) = self.under_way.remove(at);
        self.arrived.insert(number, (check, data));
        while self.arrived.contains_key(&(self.moved + 1)) {
            self.moved += 1;
        }
        true
    }
}

impl Sender {
    pub(crate) fn reserve(&mut self, total: u32) -> Result<Option<ViewMut>, LinkFault> {
        let card = lock(&self.card);
        if card.closed {
            return Err(LinkFault::Gone);
        }
        if self.posted - card.done >= u64::from(PAIR_SLOTS) {
            return Ok(None);
        }
        self.reserved = total as usize;
        Ok(Some(self.slot.view_mut(self.reserved)))
    }
    pub(crate) fn publish(&mut self, check: u64) {
        self.posted += 1;
        let data = self.slot.bytes()[..self.reserved].to_vec();
        lock(&self.card).under_way.push((self.posted, check, data));
    }
    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        Ok(lock(&self.card).complete())
    }
    pub(crate) const fn posted(&self) -> u64 {
        self.posted
    }
    pub(crate) fn moved(&self) -> u64 {
        lock(&self.card).moved
    }
    pub(crate) fn done(&self) -> u64 {
        lock(&self.card).done
    }
    pub(crate) const fn slowest(&self) -> Rank {
        self.reader
    }
    pub(crate) const fn transport(&self) -> TransportKind {
        TransportKind::Sim
    }
}

impl Receiver {
    pub(crate) fn peek(&mut self) -> Result<Option<Message>, LinkFault> {
        let card = lock(&self.card);
        let next = self.done + 1;
        match card.arrived.get(&next) {
            Some((check, data)) if card.moved >= next => {
                self.slot.bytes_mut()[..data.len()].copy_from_slice(data);
                self.moved = next;
                Ok(Some(Message { check: *check, data: self.slot.view(data.len()) }))
            }
            None if card.closed && card.under_way.is_empty() => Err(LinkFault::Gone),
            Some(_) | None => Ok(None),
        }
    }
    pub(crate) fn release(&mut self) {
        self.done += 1;
        let mut card = lock(&self.card);
        card.done = self.done;
        card.arrived.remove(&self.done);
    }
    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        Ok(lock(&self.card).complete())
    }
    pub(crate) fn posted(&self) -> u64 {
        self.done + u64::from(PAIR_SLOTS)
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
}

impl Drop for Sender {
    fn drop(&mut self) {
        lock(&self.card).closed = true;
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        lock(&self.card).closed = true;
    }
}

#[test]
fn transfers_overtake_each_other_and_messages_do_not() {
    let (mut sender, mut receiver) = lane(7, Rank(1));
    let (mut sent, mut taken) = (0, 0);
    while taken < 1_000 {
        if sender.reserve(8).unwrap().is_some() {
            sent += 1;
            sender.publish(sent);
        }
        sender.pump().unwrap();
        if let Some(message) = receiver.peek().unwrap() {
            taken += 1;
            assert_eq!(message.check, taken);
            receiver.release();
        }
    }
    let overtaken = lock(&sender.card).overtaken;
    assert!(overtaken > 100, "{overtaken}");
}
