//! Sleeping and waking: a word in a rank's memory synchronizes a sleeping driver with the thread
//! that wakes it.
//!
//! ```text
//!   sleeper                            waker
//!   word = ON_WORD | ON_SOCKETS        store what the sleeper waits for
//!   fence(SeqCst)                      fence(SeqCst)
//!   look again for what it waits for   if word != AWAKE: word = AWAKE, wake it in the way given
//!   sleep while word != AWAKE
//! ```
//!
//! The two fences guarantee that at least one side sees the other's store: either the sleeper finds
//! what it waits for, or the waker finds the sleeper. In the usual case the driver is awake, and a
//! waker pays for a fence and for a load of a cache line that is not being written.

use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(not(loom))]
use std::sync::atomic::fence;

/// The driver is awake. This is the value of zeroed memory.
pub(crate) const AWAKE: u32 = 0;
/// The driver sleeps on the word itself (a futex).
pub(crate) const ON_WORD: u32 = 1;
/// The driver sleeps on descriptors, and its doorbell is one of them.
pub(crate) const ON_SOCKETS: u32 = 2;

/// The word, as the protocol needs it: a real atomic, or one of a model.
pub(crate) trait Word {
    fn load(&self) -> u32;
    fn store(&self, value: u32);
    fn swap(&self, value: u32) -> u32;
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }
    fn store(&self, value: u32) {
        self.store(value, Ordering::Relaxed);
    }
    fn swap(&self, value: u32) -> u32 {
        self.swap(value, Ordering::Relaxed)
    }
}

/// The sleeper's half: sleeps unless `recheck` finds what is waited for. Returns whether it slept.
pub(crate) fn sleep_unless<W: Word>(
    word: &W,
    how: u32,
    recheck: &mut dyn FnMut() -> bool,
    sleep: impl FnOnce(&W),
) -> bool {
    word.store(how);
    fence(Ordering::SeqCst);
    let sleeps = !recheck();
    if sleeps {
        sleep(word);
    }
    word.store(AWAKE);
    sleeps
}

/// The waker's half, after its store: returns how the sleeper must be woken. A caller that gets a
/// value other than `AWAKE` must wake it.
#[inline]
pub(crate) fn look<W: Word>(word: &W) -> u32 {
    fence(Ordering::SeqCst);
    if word.load() == AWAKE { AWAKE } else { word.swap(AWAKE) }
}

#[cfg(test)]
#[cfg(loom)]
mod model {
    use super::*;
    use loom::sync::{Condvar, Mutex, atomic::AtomicU64};

    impl Word for loom::sync::atomic::AtomicU32 {
        fn load(&self) -> u32 {
            self.load(Ordering::Relaxed)
        }
        fn store(&self, value: u32) {
            self.store(value, Ordering::Relaxed);
        }
        fn swap(&self, value: u32) -> u32 {
            self.swap(value, Ordering::Relaxed)
        }
    }

    /// One rank: its word, the message it waits for, and the kernel's part of a futex (or of an
    /// eventfd, for `ON_SOCKETS`).
    #[derive(Default)]
    struct Rank {
        word: loom::sync::atomic::AtomicU32,
        message: AtomicU64,
        kernel: Mutex<bool>,
        bed: Condvar,
    }

    impl Rank {
        fn wait_for(&self, message: u64, how: u32) {
            let there = || self.message.load(Ordering::Acquire) == message;
            while !there() {
                sleep_unless(&self.word, how, &mut || there(), |word| {
                    let mut notified = self.kernel.lock().unwrap();
                    // The kernel compares the word under its own lock. An eventfd stays readable
                    // until it is cleared.
                    while if how == ON_WORD { Word::load(word) == ON_WORD } else { !*notified } {
                        notified = self.bed.wait(notified).unwrap();
                    }
                    *notified = false;
                });
            }
        }
        fn send(&self, message: u64) {
            self.message.store(message, Ordering::Release);
            if look(&self.word) != AWAKE {
                *self.kernel.lock().unwrap() = true;
                self.bed.notify_one();
            }
        }
    }

    /// Checks all schedules. A lost wake-up is a deadlock, which loom reports, because sleeps in
    /// the model have no time limit.
    fn check(how: u32) {
        loom::model(move || {
            let rank = loom::sync::Arc::new(Rank::default());
            let waker = loom::sync::Arc::clone(&rank);
            let thread = loom::thread::spawn(move || waker.send(1));
            rank.wait_for(1, how);
            thread.join().unwrap();
        });
    }

    #[test]
    fn loom_a_wake_up_of_a_sleeper_on_its_word_is_never_lost() {
        check(ON_WORD);
    }

    #[test]
    fn loom_a_wake_up_of_a_sleeper_on_sockets_is_never_lost() {
        check(ON_SOCKETS);
    }

    #[test]
    fn loom_two_wakers_and_one_sleeper() {
        // Three threads have too many schedules: this checks up to three preemptions.
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let rank = loom::sync::Arc::new(Rank::default());
            let waker = loom::sync::Arc::clone(&rank);
            // Another thread wakes it without a message, as the service thread may.
            let other = loom::sync::Arc::clone(&rank);
            let first = loom::thread::spawn(move || waker.send(1));
            let second = loom::thread::spawn(move || {
                if look(&other.word) != AWAKE {
                    *other.kernel.lock().unwrap() = true;
                    other.bed.notify_one();
                }
            });
            rank.wait_for(1, ON_WORD);
            first.join().unwrap();
            second.join().unwrap();
        });
    }
}
