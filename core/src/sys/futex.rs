//! Sleeping on a word that other processes may map.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex;

/// Sleeps while `word` holds `value`, at most `limit`. Returns for any reason: the caller looks again.
pub fn wait(word: &AtomicU32, value: u32, limit: Duration) {
    let limit = futex::Timespec {
        tv_sec: limit.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // Interrupted, timed out, changed before the sleep: all of them mean the same to a caller that looks again.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&limit));
}

/// Wakes one sleeper of `word`.
pub fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}
