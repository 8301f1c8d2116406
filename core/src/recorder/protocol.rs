//! The latch and the slot: how facts of several words are written while others read them.
//!
//! Both have one writer, which never waits.
//!
//! A **latch** is a counter and two copies. The writer fills the copy that the counter does not
//! point to, then advances the counter. A writer that stops half-way or dies has spoilt only the
//! copy that is not read.
//!
//! A **slot** of a ring holds one copy, and its sequence is odd while it is being written. A ring
//! may lose old events, so one copy is enough.
//!
//! ```text
//!   writer of either                          reader of either
//!     announce (latch: counter of the           load counter or sequence   (acquire)
//!       last write; slot: odd sequence)         load the words
//!     fence(release)                            fence(acquire)
//!     store the words                           load it again: equal, or discard the words
//!     store counter or even sequence (release)
//! ```
//!
//! If a reader saw a word of a later write, the fences order the announcement of that write before
//! the reader's second load, which then differs.

use std::sync::atomic::Ordering;

/// An atomic word: of std, or of loom where the protocol is model-checked.
pub(crate) trait Word {
    /// Loads it.
    fn get(&self, order: Ordering) -> u64;
    /// Stores to it.
    fn put(&self, value: u64, order: Ordering);
    /// A fence between such accesses.
    fn fence(order: Ordering);
}

impl Word for std::sync::atomic::AtomicU64 {
    #[inline]
    fn get(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    #[inline]
    fn put(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    #[inline]
    fn fence(order: Ordering) {
        std::sync::atomic::fence(order);
    }
}

/// How often a reader retries before it gives up: the writer would have to write during each of
/// these reads.
const TRIES: usize = 64;

/// Writes a fact of `N` words: `copies` is the first copy, then the second.
#[inline]
pub(crate) fn latch_write<W: Word, const N: usize>(latch: &W, copies: &[W], fact: &[u64; N]) {
    let count = latch.get(Ordering::Relaxed);
    let copy = &copies[if count & 1 == 0 { N } else { 0 }..][..N];
    W::fence(Ordering::Release);
    for (word, value) in copy.iter().zip(fact) {
        word.put(*value, Ordering::Relaxed);
    }
    latch.put(count.wrapping_add(1), Ordering::Release);
}

/// Reads the last complete fact, zeros if there was none.
///
/// `None` if the writer interfered with every try.
pub(crate) fn latch_read<W: Word, const N: usize>(latch: &W, copies: &[W]) -> Option<[u64; N]> {
    (0..TRIES).find_map(|_| latch_try(latch, copies))
}

fn latch_try<W: Word, const N: usize>(latch: &W, copies: &[W]) -> Option<[u64; N]> {
    let count = latch.get(Ordering::Acquire);
    let copy = &copies[if count & 1 == 0 { 0 } else { N }..][..N];
    let fact = std::array::from_fn(|at| copy[at].get(Ordering::Relaxed));
    W::fence(Ordering::Acquire);
    (latch.get(Ordering::Relaxed) == count).then_some(fact)
}

/// Writes event `n` into its slot: first the sequence, then `N` words.
#[inline]
pub(crate) fn slot_write<W: Word, const N: usize>(seq: &W, words: &[W], n: u64, event: &[u64; N]) {
    seq.put(n.wrapping_mul(2).wrapping_add(1), Ordering::Relaxed);
    W::fence(Ordering::Release);
    for (word, value) in words[..N].iter().zip(event) {
        word.put(*value, Ordering::Relaxed);
    }
    seq.put(n.wrapping_mul(2).wrapping_add(2), Ordering::Release);
}

/// Reads event `n` from its slot; `None` if the slot holds another event or is being overwritten.
#[inline]
pub(crate) fn slot_read<W: Word, const N: usize>(seq: &W, words: &[W], n: u64) -> Option<[u64; N]> {
    let stands = n.wrapping_mul(2).wrapping_add(2);
    if seq.get(Ordering::Acquire) != stands {
        return None;
    }
    let event = std::array::from_fn(|at| words[at].get(Ordering::Relaxed));
    W::fence(Ordering::Acquire);
    (seq.get(Ordering::Relaxed) == stands).then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn words<const N: usize>() -> [AtomicU64; N] {
        [const { AtomicU64::new(0) }; N]
    }

    #[test]
    fn a_latch_shows_the_last_whole_fact_wherever_its_writer_stops() {
        let (latch, copies) = (AtomicU64::new(0), words::<4>());
        assert_eq!(latch_read(&latch, &copies), Some([0, 0]));
        for n in 1..10 {
            latch_write(&latch, &copies, &[n, 2 * n]);
            assert_eq!(latch_read(&latch, &copies), Some([n, 2 * n]));
            // The next write stops after its first word: that word lies in the other copy.
            let next = if latch.load(Ordering::Relaxed) & 1 == 0 { 2 } else { 0 };
            copies[next].store(77, Ordering::Relaxed);
            assert_eq!(latch_read(&latch, &copies), Some([n, 2 * n]));
        }
    }

    #[test]
    fn a_slot_shows_only_the_event_asked_for() {
        let (seq, slot) = (AtomicU64::new(0), words::<2>());
        assert_eq!(slot_read::<_, 2>(&seq, &slot, 0), None);
        slot_write(&seq, &slot, 0, &[1, 2]);
        assert_eq!(slot_read(&seq, &slot, 0), Some([1, 2]));
        slot_write(&seq, &slot, 8, &[3, 4]);
        assert_eq!(slot_read::<_, 2>(&seq, &slot, 0), None);
        assert_eq!(slot_read(&seq, &slot, 8), Some([3, 4]));
        // The writer stopped inside the slot: odd.
        seq.store(33, Ordering::Relaxed);
        assert_eq!(slot_read::<_, 2>(&seq, &slot, 8), None);
        assert_eq!(slot_read::<_, 2>(&seq, &slot, 16), None);
    }
}

#[cfg(all(test, loom))]
mod explored {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    impl Word for AtomicU64 {
        fn get(&self, order: Ordering) -> u64 {
            self.load(order)
        }
        fn put(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }
        fn fence(order: Ordering) {
            loom::sync::atomic::fence(order);
        }
    }

    fn words<const N: usize>() -> Arc<[AtomicU64; N]> {
        Arc::new(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[test]
    fn loom_no_reader_of_a_latch_sees_halves_of_two_facts() {
        loom::model(|| {
            let words = words::<5>();
            let writer = {
                let words = Arc::clone(&words);
                loom::thread::spawn(move || {
                    for n in 1..=3 {
                        latch_write(&words[0], &words[1..], &[n, n]);
                    }
                })
            };
            // One try: with all 64 loom would not finish.
            if let Some([a, b]) = latch_try(&words[0], &words[1..]) {
                assert_eq!(a, b);
            }
            writer.join().unwrap();
            assert_eq!(latch_read(&words[0], &words[1..]), Some([3, 3]));
        });
    }

    #[test]
    fn loom_no_reader_of_a_slot_sees_halves_of_two_events() {
        loom::model(|| {
            let words = words::<3>();
            let writer = {
                let words = Arc::clone(&words);
                // A ring of one slot: events 0, 1, 2 overwrite each other.
                loom::thread::spawn(move || {
                    for n in 0..3 {
                        slot_write(&words[0], &words[1..], n, &[n + 1, n + 1]);
                    }
                })
            };
            for n in 0..2 {
                if let Some(event) = slot_read(&words[0], &words[1..], n) {
                    assert_eq!(event, [n + 1, n + 1]);
                }
            }
            writer.join().unwrap();
            assert_eq!(slot_read(&words[0], &words[1..], 2), Some([3, 3]));
        });
    }
}
