//! The memory in which messages lie: registered in large pieces, once per device, and lent to lanes
//! in blocks.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Result;
use crate::sys::shared::Mapping;
use crate::sys::verbs::{Domain, Region};

/// The bytes before a message's.
pub(super) const HEADER: usize = 64;
/// Eight of 32 KiB are 5 us of 400 Gbit/s. More would soon use up the memory that may be locked by
/// default, and the entries of a completion queue.
pub(super) const SLOTS: usize = 8;
/// An entry of the queue in which a reader tells its writer where the next message goes. A block
/// begins with that queue; the slots follow.
pub(super) const CLEAR: usize = 64;
/// The blocks of a piece, which is one megabyte, or two where messages have 64 KiB.
pub(crate) const BLOCKS: u32 = 4;

/// The offset of a slot in a block whose messages have `room` bytes at most. Slot [`SLOTS`] would
/// begin at the end of the slots.
pub(super) const fn slot_at(slot: usize, room: usize) -> usize {
    SLOTS * CLEAR + slot * (HEADER + room)
}

/// The bytes of such a block.
pub(crate) const fn block_bytes(room: usize) -> usize {
    slot_at(SLOTS, room).next_multiple_of(4096)
}

/// A piece of memory, and its registrations.
#[derive(Debug)]
struct Chunk {
    /// The bytes of a block.
    block: usize,
    memory: Arc<Mapping>,
    /// A bit for each block that is lent.
    lent: AtomicU32,
    /// One for each device that uses it.
    regions: Mutex<Vec<Weak<Region>>>,
}

/// The pieces of this process.
static CHUNKS: Mutex<Vec<Weak<Chunk>>> = Mutex::new(Vec::new());

/// The memory of one end of a lane.
#[derive(Debug)]
pub(super) struct Block {
    chunk: Arc<Chunk>,
    index: u32,
}

impl Block {
    /// Takes a free block for messages of so many bytes at most.
    ///
    /// # Errors
    /// `System` if there is no memory left.
    pub(super) fn take(room: usize) -> Result<Self> {
        let block = block_bytes(room);
        let mut chunks = CHUNKS.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.retain(|chunk| chunk.strong_count() > 0);
        for chunk in chunks.iter().filter_map(Weak::upgrade).filter(|chunk| chunk.block == block) {
            if let Some(index) = chunk.take() {
                return Ok(Self { chunk, index });
            }
        }
        let memory = Arc::new(Mapping::private(block * BLOCKS as usize)?);
        let chunk = Arc::new(Chunk { block, memory, lent: AtomicU32::new(1), regions: Mutex::default() });
        chunks.push(Arc::downgrade(&chunk));
        Ok(Self { chunk, index: 0 })
    }

    /// Its memory as a device may use it.
    ///
    /// # Errors
    /// The kernel refuses to register it.
    pub(super) fn region(&self, domain: &Arc<Domain>, relaxed: bool) -> io::Result<Arc<Region>> {
        let mut regions = self.chunk.regions.lock().unwrap_or_else(PoisonError::into_inner);
        regions.retain(|region| region.strong_count() > 0);
        let mut known = regions.iter().filter_map(Weak::upgrade);
        if let Some(region) = known.find(|region| Arc::ptr_eq(region.domain(), domain)) {
            return Ok(region);
        }
        let region = Region::register(domain, &self.chunk.memory, relaxed)?;
        regions.push(Arc::downgrade(&region));
        Ok(region)
    }

    /// Where it begins in its region.
    pub(super) fn at(&self) -> usize {
        self.index as usize * self.chunk.block
    }

    pub(super) fn memory(&self) -> &Mapping {
        &self.chunk.memory
    }

    /// The address of a byte of it, as peers name it.
    pub(super) fn address(&self, at: usize) -> u64 {
        assert!(at < self.chunk.block, "byte {at} of a block of {}", self.chunk.block);
        self.memory().base().as_ptr() as u64 + (self.at() + at) as u64
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.chunk.lent.fetch_and(!(1 << self.index), Ordering::Release);
    }
}

impl Chunk {
    fn take(&self) -> Option<u32> {
        let free = |lent: u32| {
            let index = lent.trailing_ones();
            (index < BLOCKS).then(|| lent | 1 << index)
        };
        let before = self.lent.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).ok()?;
        Some(before.trailing_ones())
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_and_are_lent_again() {
        // Of both sizes, in turn.
        let room = |at: u32| if at.is_multiple_of(2) { 32 << 10 } else { 64 << 10 };
        let blocks: Vec<_> = (0..BLOCKS * 4).map(|at| Block::take(room(at)).unwrap()).collect();
        let mut places: Vec<_> =
            (0..).zip(&blocks).map(|(at, block)| (block.address(0), block_bytes(room(at)) as u64)).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[1].0 - two[0].0 >= two[0].1), "{places:x?}");
        let first = blocks[0].address(0);
        drop(blocks);
        // All pieces have gone with their blocks, or some are lent to another test.
        let again = Block::take(room(0)).unwrap();
        assert!(again.address(0).is_multiple_of(4096) && first.is_multiple_of(4096));
    }
}
