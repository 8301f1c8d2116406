//! Where the progress thread sleeps while other threads hold all drivers.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The longest sleep: then the thread looks whether it is still needed.
const LONGEST: Duration = Duration::from_secs(1);

struct Parking {
    is_parked: AtomicBool,
    /// Whether a driver was let go of since the thread went to sleep.
    is_told: Mutex<bool>,
    told: Condvar,
}

static PARKING: Parking =
    Parking { is_parked: AtomicBool::new(false), is_told: Mutex::new(false), told: Condvar::new() };

/// Sleeps, if `all_are_held`, until a driver is let go of.
pub(super) fn park(all_are_held: impl FnOnce() -> bool) {
    let Parking { is_parked, is_told, told } = &PARKING;
    *is_told.lock().unwrap_or_else(PoisonError::into_inner) = false;
    is_parked.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if all_are_held() {
        let guard = is_told.lock().unwrap_or_else(PoisonError::into_inner);
        let slept = told.wait_timeout_while(guard, LONGEST, |is_told| !*is_told);
        drop(slept.unwrap_or_else(PoisonError::into_inner));
    }
    is_parked.store(false, Ordering::Relaxed);
}

/// A driver was unlocked. If that leaves work there for which nobody waits, the progress thread
/// turns it now.
#[inline]
pub(super) fn let_go(leaves_work: bool) {
    if leaves_work {
        // Either this finds the thread parked, or the thread finds the driver unlocked.
        fence(Ordering::SeqCst);
    }
    if PARKING.is_parked.load(Ordering::Relaxed) {
        wake();
    }
}

#[cold]
fn wake() {
    let Parking { is_told, told, .. } = &PARKING;
    *is_told.lock().unwrap_or_else(PoisonError::into_inner) = true;
    told.notify_one();
}
