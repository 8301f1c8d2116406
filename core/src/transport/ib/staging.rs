//! The memory in which messages lie: registered in large pieces, once per device, and lent to lanes
//! in blocks.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Result;
use crate::plan::WIRE_SLOT_BYTES;
use crate::sys::shared::Mapping;
use crate::sys::verbs::{Domain, Region};

/// The bytes before a message's.
pub(super) const HEADER: usize = 64;
/// A quarter of a megabyte is 5 us of 400 Gbit/s. More would soon use up the memory that may be
/// locked by default, and the entries of a completion queue.
pub(super) const SLOTS: usize = 8;
/// The distance of two slots.
pub(super) const STRIDE: usize = HEADER + WIRE_SLOT_BYTES as usize;
/// An entry of the queue in which a reader tells its writer where the next message goes.
pub(super) const CLEAR: usize = 64;
/// Where that queue begins in a block.
pub(super) const CLEARS: usize = SLOTS * STRIDE;
/// The bytes of a block: the slots, then the entries.
const BLOCK: usize = (CLEARS + SLOTS * CLEAR).next_multiple_of(4096);
/// The blocks of a piece, which is about two megabytes.
const BLOCKS: u32 = 4;

/// A piece of memory, and its registrations.
#[derive(Debug)]
struct Chunk {
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
    /// Takes a free block.
    ///
    /// # Errors
    /// `System` if there is no memory left.
    pub(super) fn take() -> Result<Self> {
        let mut chunks = CHUNKS.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.retain(|chunk| chunk.strong_count() > 0);
        for chunk in chunks.iter().filter_map(Weak::upgrade) {
            if let Some(index) = chunk.take() {
                return Ok(Self { chunk, index });
            }
        }
        let memory = Arc::new(Mapping::private(BLOCK * BLOCKS as usize)?);
        let chunk = Arc::new(Chunk { memory, lent: AtomicU32::new(1), regions: Mutex::default() });
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
    pub(super) const fn at(&self) -> usize {
        self.index as usize * BLOCK
    }

    pub(super) fn memory(&self) -> &Mapping {
        &self.chunk.memory
    }

    /// The address of a byte of it, as peers name it.
    pub(super) fn address(&self, at: usize) -> u64 {
        assert!(at < BLOCK, "byte {at} of a block of {BLOCK}");
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
        let blocks: Vec<_> = (0..BLOCKS * 2).map(|_| Block::take().unwrap()).collect();
        let mut places: Vec<u64> = blocks.iter().map(|block| block.address(0)).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[1] - two[0] >= BLOCK as u64), "{places:x?}");
        let first = blocks[0].address(0);
        drop(blocks);
        // All pieces have gone with their blocks, or some are lent to another test.
        let again = Block::take().unwrap();
        assert!(again.address(0).is_multiple_of(4096) && first.is_multiple_of(4096));
    }
}
