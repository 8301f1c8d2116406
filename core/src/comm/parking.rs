//! Where the progress thread sleeps while other threads hold all drivers. It is the protocol of a
//! rank that sleeps (`transport/shm/sleep`), with a word of the process.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::sys::futex;
use crate::transport::shm::sleep::{AWAKE, ON_WORD, look, sleep_unless};

/// The longest sleep: then the thread looks whether it is still needed.
const LONGEST: Duration = Duration::from_secs(10);

static SLEEPS: AtomicU32 = AtomicU32::new(AWAKE);

/// Sleeps, if `all_are_held`, until it is told of a driver that is free; whether it slept.
pub(super) fn park(all_are_held: impl Fn() -> bool) -> bool {
    sleep_unless(&SLEEPS, ON_WORD, &mut || !all_are_held(), |word| futex::wait(word, ON_WORD, LONGEST))
}

/// Wakes the progress thread, if it sleeps. Call it after a driver with work left was unlocked, and
/// after the list of communicators has changed.
#[inline]
pub(super) fn tell() {
    if look(&SLEEPS) != AWAKE {
        futex::wake_one(&SLEEPS);
    }
}
