//! Cells: the current state. The hot ones are plain stores to words of one cache line.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

use super::codec::outline_words;
use super::layout::{durations, histogram, link, op};
use super::mapping::Span;
use super::protocol::latch_write;
use super::queue_pairs::{QueuePair, QueuePairCell};
use super::state::Recorder;
use crate::clock::Raw;
use crate::collective::Descriptor;
use crate::sys::fds::Fd;
use crate::types::{ChannelId, Direction, Outline, Rank, SetupState, WaitReason};

/// The progress cell of one link. Its only writer is the driver of its engine, or before, who sets
/// the link up.
pub struct LinkCell {
    words: Span<{ link::WORDS }>,
    /// The recorder and the row in it, to give it back; `None` for private memory.
    place: Option<(Arc<Recorder>, usize)>,
    /// The rows of its sockets.
    sockets: Vec<usize>,
}

impl LinkCell {
    pub(super) fn new(words: Span<{ link::WORDS }>, place: Option<(Arc<Recorder>, usize)>) -> Self {
        Self { words, place, sockets: Vec::new() }
    }

    /// Makes the service thread sample the link's streams, in this order, until the cell is
    /// dropped.
    ///
    /// It does not keep them open.
    #[must_use]
    pub fn watching(mut self, streams: Vec<Weak<Fd>>) -> Self {
        if let Some((recorder, at)) = &self.place {
            self.sockets = recorder.watch(*at, streams, None);
        }
        self
    }

    /// The same for streams that are being connected to `remote`, in place of those watched so far.
    ///
    /// The kernel names no remote address before it has connected.
    pub fn watch_connecting(&mut self, streams: Vec<Weak<Fd>>, remote: SocketAddr) {
        if let Some((recorder, at)) = &self.place {
            recorder.watched_no_more(&self.sockets);
            self.sockets = recorder.watch(*at, streams, Some(remote));
        }
    }

    /// The row of a queue pair of the link, the `nth` from 0, until the returned cell is dropped.
    #[must_use]
    pub fn queue_pair(&self, nth: u8, pair: &QueuePair<'_>) -> QueuePairCell {
        match &self.place {
            Some((recorder, at)) => recorder.queue_pair(*at, nth, pair),
            None => QueuePairCell::unseen(),
        }
    }

    /// Stores the counters of the link: `posted >= moved >= done`.
    ///
    /// Readers load them in the opposite order, so that the inequality holds for them too.
    #[inline]
    pub fn set(&self, posted: u64, moved: u64, done: u64) {
        self.words[link::POSTED].store(posted, Ordering::Relaxed);
        self.words[link::MOVED].store(moved, Ordering::Release);
        self.words[link::DONE].store(done, Ordering::Release);
    }
    /// Stores the bytes moved in total.
    #[inline]
    pub fn bytes(&self, total: u64) {
        self.words[link::BYTES].store(total, Ordering::Relaxed);
    }
    /// Stores the sequence number of the operation that the link works for.
    #[inline]
    pub fn op(&self, seq: u64) {
        self.words[link::OP].store(seq, Ordering::Relaxed);
    }
    /// Records for which call the link is set up.
    pub fn set_up_for(&self, channel: ChannelId, seq: u64) {
        self.op(if channel == ChannelId::P2P { seq } else { 0 });
    }
    /// Records that the link waits for `peer` since `since`.
    ///
    /// Call it only once the wait has lasted longer than a message takes.
    pub fn waits(&self, reason: WaitReason, peer: Rank, since: Raw) {
        let waited = self.words[link::WAITED].load(Ordering::Relaxed);
        self.words[link::WAITED].store(waited.wrapping_add(1), Ordering::Relaxed);
        let waits = reason as u64 | u64::from(peer.0) << 32;
        store_wait(&self.words[link::WAITS], &self.words[link::SINCE], waits, since);
    }
    /// Records how far the set-up of the link is, until it waits or moves.
    pub fn sets_up(&self, state: SetupState) {
        let waits = self.words[link::WAITS].load(Ordering::Relaxed);
        let waits = waits & !0xff00 | (state as u64 + 1) << 8;
        self.words[link::WAITS].store(waits, Ordering::Release);
    }
    /// Records that the link no longer waits.
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

/// Stores the reason of a wait and its start.
///
/// While the second word has a value, the first is either that of the same wait or zero. So a
/// reader that finds the second the same before and after the first has a pair that belongs
/// together. No two waits of a cell begin at the same time.
fn store_wait(waits: &AtomicU64, since: &AtomicU64, what: u64, at: Raw) {
    waits.store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    since.store(at.0, Ordering::Relaxed);
    waits.store(what, Ordering::Release);
}

/// The reason of a wait and its start, as [`store_wait`] wrote them; `None` if nothing waits or the
/// wait changed during the read.
pub(super) fn wait_read(waits: &AtomicU64, since: &AtomicU64) -> Option<(u64, u64)> {
    let before = since.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    let what = waits.load(Ordering::Acquire);
    (what != 0 && since.load(Ordering::Relaxed) == before).then_some((what, before))
}

/// Who waits for an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Attention {
    /// Nobody: it was only begun, and may be waited for later.
    #[default]
    Nobody,
    /// A task that polled it; the task and its thread may do other work meanwhile.
    Task,
    /// A thread, in the call.
    Thread,
}

/// The wait of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpWait {
    /// The reason.
    pub reason: WaitReason,
    /// The channel.
    pub channel: ChannelId,
    /// The direction of the link that waits or is still missing.
    pub direction: Direction,
    /// The rank it is blocked on.
    pub peer: Rank,
    /// When the wait began.
    pub since: Raw,
    /// Who waits for the operation.
    pub attention: Attention,
}

/// Records the wait of the operation under way; `None` if it does not wait.
pub(super) fn op_waits(cell: &OpWords, wait: Option<OpWait>) {
    let Some(OpWait { reason, channel, direction, peer, since, attention }) = wait else {
        return cell[op::WAITS].store(0, Ordering::Release);
    };
    let attention = match attention {
        Attention::Nobody => op::UNATTENDED,
        Attention::Task => op::POLLED,
        Attention::Thread => 0,
    };
    let direction = direction as u64 | attention;
    let what = reason as u64 | direction << 8 | u64::from(channel.0) << 16 | u64::from(peer.0) << 32;
    store_wait(&cell[op::WAITS], &cell[op::WAITS_SINCE], what, since);
}

/// The words of one op cell.
pub(super) type OpWords = [AtomicU64];

/// Records the operation under way.
#[inline]
pub(super) fn op_fact(
    cell: &OpWords,
    descriptor: &Descriptor,
    outline: Option<Outline>,
    peer: Option<Rank>,
    since: Raw,
) {
    let [a, b, c, d] = descriptor.encode();
    let peer = peer.map_or(0, |rank| u64::from(rank.0) + 1);
    let [shape, topology] = outline_words(outline);
    let fact: [u64; op::FACT_WORDS] = [a, b, c, d, since.0, peer, shape, topology];
    latch_write(&cell[op::LATCH], &cell[op::FACT..], &fact);
}

/// Records that operation `number` failed. The first one stays: it is the one under way, which the
/// cell describes.
pub(super) fn op_failed(cell: &OpWords, number: u64, error: u8, at: Raw) {
    if cell[op::FAILED].load(Ordering::Relaxed) != 0 {
        return;
    }
    cell[op::FAILED_AT].store(at.0, Ordering::Relaxed);
    cell[op::ERROR].store(u64::from(error) + 1, Ordering::Relaxed);
    cell[op::FAILED].store(number.max(1), Ordering::Release);
}

/// Counts a duration. Each row has one writer.
#[inline]
pub(super) fn count(row: &[AtomicU64; durations::WORDS], bytes: u64, ns: u64) {
    let cell = &row[durations::CELLS + histogram::class(bytes) * histogram::CELL..][..histogram::CELL];
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
    fn a_reader_never_takes_the_begin_of_another_wait() {
        let memory = Arc::new(Memory::heap(op::WORDS * 8));
        let rounds = if cfg!(miri) { 300 } else { 20_000_000 };
        let written = Arc::clone(&memory);
        // The start time determines the peer; the same peers recur.
        let writer = std::thread::spawn(move || {
            for n in 1..=rounds {
                let (peer, since) = (Rank(n % 7 + 1), Raw(u64::from(n)));
                let (reason, channel, direction) = (WaitReason::Peer, ChannelId(3), Direction::Send);
                op_waits(
                    written.words(),
                    Some(OpWait { reason, channel, direction, peer, since, attention: Attention::Thread }),
                );
            }
            op_waits(written.words(), None);
        });
        let words = memory.words();
        while !writer.is_finished() {
            if let Some((what, since)) = wait_read(&words[op::WAITS], &words[op::WAITS_SINCE]) {
                assert_eq!(what >> 32, since % 7 + 1);
                assert_eq!((what as u8, (what >> 16) as u16), (WaitReason::Peer as u8, 3));
            }
        }
        writer.join().unwrap();
        assert_eq!(wait_read(&words[op::WAITS], &words[op::WAITS_SINCE]), None);
    }

    #[test]
    fn waiting_is_told_with_its_reason_peer_and_begin() {
        let memory = Arc::new(Memory::heap(64));
        let cell = LinkCell::new(memory.span(0), None);
        let word = |at: usize| memory.words()[at].load(Ordering::Relaxed);
        cell.waits(WaitReason::Credit, Rank(5), Raw(77));
        assert_eq!((word(link::WAITS), word(link::SINCE), word(link::WAITED)), (5 << 32 | 2, 77, 1));
        cell.sets_up(SetupState::Send);
        cell.sets_up(SetupState::Connecting);
        assert_eq!((word(link::WAITS), word(link::SINCE)), (5 << 32 | 6 << 8 | 2, 77));
        cell.moves();
        assert_eq!((word(link::WAITS), word(link::WAITED)), (0, 1));
        // The set-up of a link is told where no operation waits for it, too.
        cell.sets_up(SetupState::Accept);
        assert_eq!(word(link::WAITS), 3 << 8);
    }
}
