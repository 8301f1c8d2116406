//! The history: when collectives were called, for how long they waited, and when they ended; and
//! how long operations of each kind and size take.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::decode::Comms;
use super::layout::history::{
    CALLED, ENDED, OP, OPS, OPS_COUNT, SEQ, SO_FAR, WAITED_NS, WAITED_SO_FAR_NS, WORDS, place,
};
use super::layout::{RowState, Table, durations, histogram};
use super::mapping::Span;
use super::words::{TableRows, state, word};
use crate::clock::{Raw, Scale};
use crate::snapshot::bounds::{MAX_COMMS, MAX_DURATIONS};
use crate::snapshot::{KindTotals, PastOp};
use crate::types::CollKind;

/// The history of one communicator and rank, and its row; `None` for private memory.
pub(super) struct History {
    pub(super) words: Span<WORDS>,
    pub(super) row: Option<usize>,
}

impl History {
    /// Keeps an operation in place of an earlier one.
    #[inline]
    pub(super) fn keep(&self, seq: u64, (called, ended): (Raw, Raw), waited_ns: u64) {
        let at = place(seq);
        let so_far_ns = self.words[WAITED_SO_FAR_NS].load(Ordering::Relaxed).wrapping_add(waited_ns);
        self.words[WAITED_SO_FAR_NS].store(so_far_ns, Ordering::Relaxed);
        let words = (&self.words[OPS + at * OP..][..OP], &self.words[SO_FAR + at]);
        store(words, seq, (called, ended), (waited_ns, so_far_ns));
    }
}

/// The words of an operation, and that for how long all had waited by its end.
type Op<'a> = (&'a [AtomicU64], &'a AtomicU64);

/// Writes an operation in place of an earlier one.
#[inline]
fn store((words, so_far): Op<'_>, seq: u64, (called, ended): (Raw, Raw), (waited_ns, so_far_ns): (u64, u64)) {
    words[SEQ].store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    words[CALLED].store(called.0, Ordering::Relaxed);
    words[WAITED_NS].store(waited_ns, Ordering::Relaxed);
    words[ENDED].store(ended.0, Ordering::Relaxed);
    so_far.store(so_far_ns, Ordering::Relaxed);
    words[SEQ].store(seq, Ordering::Release);
}

/// The operation at place `at`; `None` if there is none, it is being written, or it cannot be.
fn past((words, so_far): (&[AtomicU64], Option<&AtomicU64>), at: usize, scale: &Scale) -> Option<PastOp> {
    let seq = word(words, SEQ);
    let waited_so_far_ns = so_far.map_or(0, |word| word.load(Ordering::Relaxed));
    let [called, waited_ns, ended] = [CALLED, WAITED_NS, ENDED].map(|at| word(words, at));
    fence(Ordering::Acquire);
    if seq == 0 || word(words, SEQ) != seq || place(seq) != at || called > ended {
        return None;
    }
    let [called_ns, ended_ns] = [called, ended].map(|raw| scale.mono(Raw(raw)).0);
    let waited_ns = waited_ns.min(ended_ns.saturating_sub(called_ns));
    Some(PastOp { seq, called_ns, waited_ns, ended_ns, waited_so_far_ns })
}

/// Adds the histories to the communicators, with times of CLOCK_MONOTONIC.
pub(super) fn histories(words: &[AtomicU64], scale: &Scale, comms: &mut Comms) {
    for row in TableRows::of(words, Table::History).iter().take(MAX_COMMS) {
        let what = word(row, 0);
        let Some(at) = owner(comms, what) else { continue };
        let ops = row.get(OPS..).unwrap_or_default().chunks_exact(OP).take(OPS_COUNT).enumerate();
        let read = |(at, words)| past((words, row.get(SO_FAR + at)), at, scale);
        let mut ops: Vec<PastOp> = ops.filter_map(read).collect();
        ops.sort_unstable_by_key(|op| op.seq);
        if let (Some((_, comm)), true) = (&mut comms[at], word(row, 0) == what) {
            comm.history.ops = ops;
        }
    }
    for row in TableRows::of(words, Table::Durations).iter().take(MAX_DURATIONS) {
        let what = word(row, durations::WHAT);
        let Some(at) = owner(comms, what) else { continue };
        let Some(kind) = CollKind::from_u8((what >> 8) as u8) else { continue };
        let cells = row.get(durations::CELLS..).unwrap_or_default().chunks_exact(histogram::CELL);
        let mut sums = KindTotals {
            kind: kind.to_string(),
            waited_ns: word(row, durations::WAITED_NS),
            outside_ns: word(row, durations::OUTSIDE_NS),
            ..KindTotals::default()
        };
        let Some((_, comm)) = &mut comms[at] else { continue };
        for (class, cell) in cells.take(histogram::CLASSES).enumerate() {
            for op in std::iter::once(&mut comm.op).chain(&mut comm.p2p) {
                if op.kind == sums.kind && histogram::class(op.bytes) == class {
                    (op.p50_ns, op.p99_ns) = (quantile_ns(cell, P50), quantile_ns(cell, P99));
                }
            }
            let counts = cell[histogram::BUCKETS..].iter().map(|count| count.load(Ordering::Relaxed));
            sums.operations = counts.fold(sums.operations, u64::saturating_add);
            sums.inside_ns = sums.inside_ns.saturating_add(word(cell, histogram::SUM_NS));
        }
        if sums.operations > 0 {
            comm.history.kinds.push(sums);
            comm.history.kinds.truncate(CollKind::ALL.len());
        }
    }
}

/// How many in a hundred operations are to take less, and how many operations there must be: of a
/// few, the longest is told from one that was delayed by chance only if there are a hundred.
type Quantile = (u64, u64);
const P50: Quantile = (50, 4);
const P99: Quantile = (99, 100);

/// The bound of the bucket below which so many operations of a cell took; 0 if it has too few.
fn quantile_ns(cell: &[AtomicU64], (percent, enough): Quantile) -> u64 {
    let counts = || cell[histogram::BUCKETS..].iter().map(|count| count.load(Ordering::Relaxed));
    let all = counts().fold(0, u64::saturating_add);
    let mut left = all - all / 100 * (100 - percent) - all % 100 * (100 - percent) / 100;
    let bucket = counts().position(|count| {
        left = left.saturating_sub(count);
        left == 0
    });
    // The last bucket has no upper bound.
    let bound_ns = |bucket| histogram::bound_ns(bucket).unwrap_or(u64::MAX);
    bucket.filter(|_| all >= enough).map_or(0, bound_ns)
}

/// The communicator's row to which a row belongs, if that still has the same communicator.
fn owner(comms: &Comms, what: u64) -> Option<usize> {
    let at = (what >> 16) as u16 as usize;
    let (generation, _) = comms.get(at)?.as_ref()?;
    (state(what) == Some(RowState::Live) && u64::from(*generation) == what >> 32).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Anchor, Ns};

    fn scale() -> Scale {
        Scale::between(Anchor::default(), Anchor::default(), 1.0)
    }

    fn words() -> [AtomicU64; OP + 1] {
        [const { AtomicU64::new(0) }; OP + 1]
    }

    /// Stores an operation; all had waited for twice as long by its end.
    fn put(words: &[AtomicU64], seq: u64, times: (Raw, Raw), waited_ns: u64) {
        store((&words[..OP], &words[OP]), seq, times, (waited_ns, waited_ns.wrapping_mul(2)));
    }

    fn read(words: &[AtomicU64], at: usize) -> Option<PastOp> {
        past((words, words.get(OP)), at, &scale())
    }

    #[test]
    fn what_a_row_cannot_hold_is_left_out() {
        let check = |(seq, called, waited, ended): (u64, u64, u64, u64), at: usize, expect: Option<u64>| {
            let words = words();
            put(&words, seq, (Raw(called), Raw(ended)), waited);
            let found = read(&words, at);
            assert_eq!(found.map(|op| op.waited_ns), expect, "{seq} {called} {waited} {ended}");
        };
        check((6, 100, 30, 200), place(6), Some(30));
        check((6, 100, 30, 200), place(7), None);
        check((0, 100, 30, 200), place(0), None);
        check((6, 200, 30, 100), place(6), None);
        check((6, 100, u64::MAX, 200), place(6), Some(100));
        check((u64::MAX, 0, u64::MAX, u64::MAX), place(u64::MAX), Some(0));
        // Half written: the writer stopped.
        let half = words();
        put(&half, 6, (Raw(100), Raw(200)), 30);
        half[SEQ].store(0, Ordering::Relaxed);
        assert_eq!(read(&half, place(6)), None);
        assert_eq!(read(&half[..2], place(6)), None);
    }

    fn check(quantile: Quantile, counts: &[(usize, u64)], expect: u64) {
        let cell = [const { AtomicU64::new(0) }; histogram::CELL];
        counts.iter().for_each(|(at, n)| cell[histogram::BUCKETS + at].store(*n, Ordering::Relaxed));
        assert_eq!(quantile_ns(&cell, quantile), expect, "{counts:?}");
    }

    #[test]
    fn the_time_that_half_keep_below_is_told_from_four_operations_on() {
        let check = |counts: &[(usize, u64)], expect| check(P50, counts, expect);
        let [second, minute] = [1_000_000_000, 60_000_000_000].map(histogram::bucket);
        check(&[(second, 3)], 0);
        check(&[(second, 4)], 1 << 30);
        check(&[(second, 3), (minute, 3)], 1 << 30);
        check(&[(second, 3), (minute, 4)], 1 << 36);
        check(&[(second, u64::MAX), (minute, u64::MAX)], 1 << 30);
    }

    #[test]
    fn the_time_that_99_of_100_keep_below_is_told_from_a_hundred_operations_on() {
        let check = |counts: &[(usize, u64)], expect| check(P99, counts, expect);
        let three_seconds = histogram::bucket(3_000_000_000);
        check(&[], 0);
        check(&[(three_seconds, 99)], 0);
        check(&[(three_seconds, 100)], 1 << 32);
        check(&[(2, 99), (three_seconds, 1)], 1 << 10);
        check(&[(2, 98), (three_seconds, 2)], 1 << 32);
        check(&[(histogram::BUCKETS_COUNT - 1, 100)], u64::MAX);
        check(&[(2, u64::MAX), (3, u64::MAX)], 1 << 10);
    }

    #[test]
    fn an_operation_is_read_whole_or_not_at_all() {
        let cell = std::sync::Arc::new(words());
        let written = std::sync::Arc::clone(&cell);
        let rounds: u64 = if cfg!(miri) { 300 } else { 5_000_000 };
        // Numbers that have the same place.
        let writer = std::thread::spawn(move || {
            for n in 1..=rounds {
                put(&*written, n * 8 - 7, (Raw(n), Raw(3 * n)), n);
            }
        });
        while !writer.is_finished() {
            if let Some(op) = read(&*cell, place(1)) {
                let n = op.called_ns;
                assert_eq!((op.seq, op.waited_ns, Ns(op.ended_ns)), (n * 8 - 7, n, Ns(3 * n)));
                assert_eq!(op.waited_so_far_ns, 2 * n);
            }
        }
        writer.join().unwrap();
        // At rest it is whole.
        assert_eq!(read(&*cell, place(1)).unwrap().seq, rounds * 8 - 7);
    }
}
