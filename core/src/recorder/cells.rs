//! Cells: where things stand now. The hot ones are plain stores to words of one cache line.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::Recorder;
use super::layout::{histogram, link, op};
use super::mapping::Span;
use super::protocol::latch_write;
use crate::clock::Raw;
use crate::collective::Descriptor;
use crate::sys::fds::Fd;
use crate::types::{CollKind, Rank, WaitReason};

/// The progress cell of one link. One writer: the driver of its engine.
pub struct LinkCell {
    words: Span<{ link::WORDS }>,
    /// The recorder and the row in it, to give it back; `None`: private memory.
    place: Option<(Arc<Recorder>, usize)>,
    /// The rows of its sockets.
    sockets: Vec<usize>,
}

impl LinkCell {
    pub(super) fn new(words: Span<{ link::WORDS }>, place: Option<(Arc<Recorder>, usize)>) -> Self {
        Self { words, place, sockets: Vec::new() }
    }

    /// Has the service thread ask the kernel about the link's streams, in their order, until the cell is dropped. It does not keep them
    /// open.
    #[must_use]
    pub fn watching(mut self, streams: Vec<Weak<Fd>>) -> Self {
        if let Some((recorder, at)) = &self.place {
            self.sockets = recorder.watch(*at, streams);
        }
        self
    }

    /// Copies the counters of the link: `posted >= moved >= done`. Readers load them in the other order, so that the
    /// inequality holds for them too.
    #[inline]
    pub fn set(&self, posted: u64, moved: u64, done: u64) {
        self.words[link::POSTED].store(posted, Ordering::Relaxed);
        self.words[link::MOVED].store(moved, Ordering::Release);
        self.words[link::DONE].store(done, Ordering::Release);
    }
    /// Bytes moved in all.
    #[inline]
    pub fn bytes(&self, total: u64) {
        self.words[link::BYTES].store(total, Ordering::Relaxed);
    }
    /// The operation it works for.
    #[inline]
    pub fn op(&self, seq: u64) {
        self.words[link::OP].store(seq, Ordering::Relaxed);
    }
    /// It waits for `peer`, since `since`. To be called when the spin budget is spent, not before.
    pub fn waits(&self, reason: WaitReason, peer: Rank, since: Raw) {
        let waited = self.words[link::WAITED].load(Ordering::Relaxed);
        self.words[link::WAITED].store(waited.wrapping_add(1), Ordering::Relaxed);
        self.words[link::SINCE].store(since.0, Ordering::Relaxed);
        let waits = reason as u64 | u64::from(peer.0) << 32;
        self.words[link::WAITS].store(waits, Ordering::Release);
    }
    /// It waits no more.
    #[inline]
    pub fn moves(&self) {
        self.words[link::WAITS].store(WaitReason::Nothing as u64, Ordering::Release);
    }
}

impl fmt::Debug for LinkCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |at: usize| self.words[at].load(Ordering::Relaxed);
        write!(f, "LinkCell({} >= {} >= {})", word(link::POSTED), word(link::MOVED), word(link::DONE))
    }
}

impl Drop for LinkCell {
    fn drop(&mut self) {
        if let Some((recorder, at)) = self.place.take() {
            recorder.watched_no_more(&self.sockets);
            recorder.link_ended(at);
        }
    }
}

/// The words of one op cell.
pub(super) type OpWords = [AtomicU64];

/// Notes the operation under way.
#[inline]
pub(super) fn op_fact(cell: &OpWords, descriptor: &Descriptor, peer: Option<Rank>, since: Raw) {
    let [a, b, c, d] = descriptor.encode();
    let peer = peer.map_or(0, |rank| u64::from(rank.0) + 1);
    let fact: [u64; op::FACT_WORDS] = [a, b, c, d, since.0, peer, 0, 0];
    latch_write(&cell[op::LATCH], &cell[op::FACT..], &fact);
}

/// Notes that operation `number` failed.
pub(super) fn op_failed(cell: &OpWords, number: u64, error: u8, at: Raw) {
    cell[op::FAILED_AT].store(at.0, Ordering::Relaxed);
    cell[op::ERROR].store(u64::from(error) + 1, Ordering::Relaxed);
    cell[op::FAILED].store(number.max(1), Ordering::Release);
}

/// Counts a duration. One writer per block.
#[inline]
pub(super) fn count(block: &[AtomicU64; histogram::WORDS], kind: CollKind, bytes: u64, ns: u64) {
    let cell =
        (kind as usize % histogram::KINDS * histogram::CLASSES + histogram::class(bytes)) * histogram::CELL;
    let cell = &block[cell..cell + histogram::CELL];
    let add = |at: usize, more: u64| {
        let word = &cell[at];
        word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    };
    add(histogram::SUM_NS, ns);
    add(histogram::SUM_BYTES, bytes);
    add(histogram::BUCKETS + histogram::bucket(ns), 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::mapping::Memory;

    #[test]
    fn a_reader_never_sees_a_counter_ahead_of_its_predecessor() {
        let memory = Arc::new(Memory::heap(64));
        let cell = LinkCell::new(memory.span(0), None);
        let rounds = if cfg!(miri) { 300 } else { 1_000_000 };
        let writer = std::thread::spawn(move || {
            for n in 0..rounds {
                cell.set(n + 4, n + 2, n);
                cell.op(n);
                cell.bytes(3 * (n + 1));
            }
        });
        let words = memory.words();
        loop {
            let done = words[link::DONE].load(Ordering::Acquire);
            let moved = words[link::MOVED].load(Ordering::Acquire);
            let posted = words[link::POSTED].load(Ordering::Acquire);
            assert!(posted >= moved && moved >= done, "{posted} {moved} {done}");
            if done == rounds - 1 {
                break;
            }
        }
        writer.join().unwrap();
        assert_eq!(words[link::BYTES].load(Ordering::Relaxed), 3 * rounds);
    }

    #[test]
    fn waiting_is_told_with_its_reason_peer_and_begin() {
        let memory = Arc::new(Memory::heap(64));
        let cell = LinkCell::new(memory.span(0), None);
        let word = |at: usize| memory.words()[at].load(Ordering::Relaxed);
        cell.waits(WaitReason::Credit, Rank(5), Raw(77));
        assert_eq!((word(link::WAITS), word(link::SINCE), word(link::WAITED)), (5 << 32 | 2, 77, 1));
        cell.moves();
        assert_eq!((word(link::WAITS), word(link::WAITED)), (0, 1));
    }
}
