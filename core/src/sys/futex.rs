//! Sleeping on a word that other processes may map too.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex;

/// Sleeps while `word` holds `value`, at most `limit`.
///
/// It may return for any reason: the caller must check the word again.
pub fn wait(word: &AtomicU32, value: u32, limit: Duration) {
    let limit = futex::Timespec {
        tv_sec: limit.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // An interruption, a timeout and a change before the sleep all mean the same, because the
    // caller checks again.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&limit));
}

/// Wakes one thread that sleeps on `word`.
pub fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}
