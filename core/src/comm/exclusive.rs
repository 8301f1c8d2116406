//! The driver's lock: which process may take it, and the wakers that run when it is released.
//!
//! A forked child has copies of its parent's communicators. Another thread of the parent may have
//! held any of their locks, and the memory they drive is the parent's. So the driver is locked only
//! with the proof, [`Own`], that this is no copy.
//!
//! Wakers are the callers' code: they may call the communicator, block and panic. So they run while
//! the lock is free.
//!
//! Of several threads that wait in calls of one communicator, one drives, for all. It lets go of
//! the lock whenever another thread wants it, to submit a call, say; the others sleep until their
//! calls have ended, or until it leaves and one of them drives.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::clock;
use crate::comm::parking;
use crate::comm::state::{Driver, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::notice;
use crate::sys;

/// The driver, locked.
pub(super) struct Locked<'a> {
    inner: &'a Inner,
    /// `None` only while wakers run, and while another thread is let in.
    guard: Option<MutexGuard<'a, Driver>>,
    /// Whether this thread drives.
    drives: bool,
}

/// Proof that a communicator is not a copy in a forked child.
pub(super) struct Own(());

/// How long the driving thread keeps out of the lock for a thread that wants it and is not
/// scheduled.
const LET_IN: Duration = Duration::from_millis(1);

impl Inner {
    /// Whether this is a copy in a forked child: none of it may be locked, driven or given back.
    pub(super) fn is_stale(&self) -> bool {
        self.driver.generation != sys::generation()
    }

    /// Refuses a copy in a forked child.
    pub(super) fn own(&self) -> Result<Own> {
        if self.is_stale() { Err(of_a_parent().in_comm(&self.name, self.rank)) } else { Ok(Own(())) }
    }

    /// Locks the driver, once no other thread holds it.
    pub(super) fn driver(&self) -> Result<Locked<'_>> {
        Ok(self.locked(self.own()?))
    }

    /// The same for a caller that has asked before: a result in between costs a call as much as a
    /// short step does.
    #[inline]
    pub(super) fn locked(&self, _: Own) -> Locked<'_> {
        let guard = match self.driver.driver.try_lock() {
            Ok(guard) => guard,
            // A panic under the lock left consistent data: nothing is updated in two steps.
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => self.asked_for(),
        };
        Locked { inner: self, guard: Some(guard), drives: false }
    }

    /// Locks the driver, if no other thread holds it.
    pub(super) fn free_driver(&self) -> Option<Locked<'_>> {
        self.own().ok()?;
        let guard = match self.driver.driver.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { inner: self, guard: Some(guard), drives: false })
    }

    /// Whether another thread holds the driver, or this is a copy in a forked child.
    pub(super) fn is_held(&self) -> bool {
        self.is_stale() || matches!(self.driver.driver.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Locks the driver, which another thread holds: asks that thread to let go.
    #[cold]
    fn asked_for(&self) -> MutexGuard<'_, Driver> {
        self.driver.wanted.fetch_add(1, Ordering::SeqCst);
        // It may sleep.
        (self.shared.wake)();
        let guard = self.driver.driver.lock().unwrap_or_else(PoisonError::into_inner);
        self.driver.wanted.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// Whether another thread wants the driver.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.driver.wanted.load(Ordering::Relaxed) > 0
    }
}

/// The error of a forked child that uses a communicator of its parent.
pub(super) fn of_a_parent() -> Error {
    let what = "this process was forked from the one that made the communicator";
    let hint =
        "call from that process; start workers that use ccl with exec (Python: the start method \"spawn\")";
    Error::new(ErrorKind::Usage, what).hint(hint)
}

impl Locked<'_> {
    /// Something moved: the wait is over, and the waiters of operations that ended are notified.
    #[inline]
    pub(super) fn moved(&mut self) {
        self.settle();
        self.tell();
        self.wake();
        self.waiter.reset();
        self.still = None;
    }

    /// Whether this thread drives, from now on if none did; false if another one does.
    #[inline]
    pub(super) fn drives(&mut self) -> bool {
        self.drives = self.drives || !std::mem::replace(&mut self.is_driven, true);
        self.drives
    }

    /// This thread drives no more: another one may.
    #[inline]
    pub(super) fn leave(&mut self) {
        if std::mem::take(&mut self.drives) {
            self.is_driven = false;
            self.tell();
        }
    }

    /// Wakes the threads that wait for another one's driving. They want the lock, to look.
    #[inline]
    pub(super) fn tell(&mut self) {
        let waiters = std::mem::take(&mut self.waiters);
        if waiters > 0 {
            self.told += 1;
            self.inner.driver.wanted.fetch_add(waiters, Ordering::SeqCst);
            self.inner.driver.changed.notify_all();
        }
    }

    /// Sleeps until calls have ended, or until nobody drives. The thread that drives meanwhile
    /// tells the progress thread when it leaves.
    #[cold]
    pub(super) fn await_another(&mut self) {
        let told = self.told;
        self.waiters += 1;
        while self.told == told {
            let Some(guard) = self.guard.take() else { return };
            let guard = self.inner.driver.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
            self.guard = Some(guard);
        }
        self.inner.driver.wanted.fetch_sub(1, Ordering::SeqCst);
    }

    /// Lets the threads in that want the lock, and takes it again.
    #[cold]
    pub(super) fn let_in(&mut self) {
        if !self.woken.is_empty() {
            // A waker may call, and drive.
            self.leave();
        }
        self.let_go();
        let end = clock::now().after(LET_IN);
        // The lock is not fair: this thread would take it again before one that sleeps for it runs.
        // A yield lets that one run, also where it has no other processor.
        while self.inner.is_wanted() && clock::now() < end {
            std::thread::yield_now();
        }
        self.guard = self.inner.driver().ok().and_then(|mut locked| locked.guard.take());
    }

    /// Runs the wakers of operations that have ended, if any, while the lock is free.
    #[inline]
    fn wake(&mut self) {
        if !self.woken.is_empty() {
            // A waker may call, and drive.
            self.leave();
            self.let_go();
            // A child that was forked in a waker must not continue here.
            let guard = self.inner.driver().ok().and_then(|mut locked| locked.guard.take());
            self.guard = guard;
        }
    }

    fn let_go(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        let woken = std::mem::take(&mut guard.woken);
        let is_stale = self.inner.is_stale();
        if !is_stale {
            // Nobody may turn it for long: this thread may leave, or run a waker that blocks. Who
            // goes on turns again before it sleeps.
            guard.engine.rest();
        }
        let leaves_work = !guard.owned.is_empty();
        drop(guard);
        if is_stale {
            // Forked under the lock, by an observer: the wakers belong to the parent.
            std::mem::forget(woken);
            return;
        }
        if leaves_work {
            parking::tell();
        }
        for waker in woken {
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                self.inner.tell_of_panic();
            }
        }
    }
}

impl Inner {
    /// Warns once that a waker panicked.
    fn tell_of_panic(&self) {
        if self.driver.warns.swap(false, Ordering::Relaxed) {
            let Self { name, rank, .. } = self;
            notice::print(&format!(
                "comm {name}: rank {rank}: the waker of a call panicked; the communicator goes on"
            ));
        }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // A panic may unwind the thread that drives.
        if self.drives && self.guard.is_some() {
            self.leave();
        }
        self.let_go();
    }
}

impl Deref for Locked<'_> {
    type Target = Driver;
    #[inline]
    fn deref(&self) -> &Driver {
        self.guard.as_ref().expect("a child that was forked in a waker does not go on in its parent's call")
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Driver {
        self.guard.as_mut().expect("a child that was forked in a waker does not go on in its parent's call")
    }
}
