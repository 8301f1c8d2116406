//! The driver's lock: who may take it, and whose wakers run when it is let go of.
//!
//! A forked child has copies of its parent's communicators. Another thread of the parent may have
//! held any of their locks, and the memory they drive is the parent's. So there is one way to the
//! driver, [`Inner::driver`], and it asks first.
//!
//! Wakers are the callers' code: they may call the communicator, block and panic. So they run when
//! the lock is free.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::comm::driver::{Driver, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::sys;

/// A driver behind its lock, and the process that may take it.
#[derive(Debug)]
pub(super) struct Exclusive {
    driver: Mutex<Driver>,
    generation: u32,
    /// A waker that panics is to be told of. Once.
    warns: AtomicBool,
}

impl Exclusive {
    /// Of this process. `warns`: whether people want to hear of wakers that panic.
    pub(super) fn new(driver: Driver, warns: bool) -> Self {
        let warns = AtomicBool::new(warns);
        Self { driver: Mutex::new(driver), generation: sys::generation(), warns }
    }
}

/// The driver, locked.
pub(super) struct Locked<'a> {
    inner: &'a Inner,
    /// `None` only while wakers run.
    guard: Option<MutexGuard<'a, Driver>>,
}

impl Inner {
    /// Whether this is a copy in a forked child: nothing of it may be locked, driven or given back.
    pub(super) fn is_stale(&self) -> bool {
        self.driver.generation != sys::generation()
    }

    /// Refuses a copy in a forked child.
    pub(super) fn own(&self) -> Result<()> {
        if self.is_stale() { Err(of_a_parent().in_comm(&self.name, self.rank)) } else { Ok(()) }
    }

    /// The driver, as soon as nobody else has it.
    pub(super) fn driver(&self) -> Result<Locked<'_>> {
        self.own()?;
        // A panic under the lock left consistent data: nothing is updated in two steps.
        let guard = self.driver.driver.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Locked { inner: self, guard: Some(guard) })
    }

    /// The driver, if nobody else has it.
    pub(super) fn free_driver(&self) -> Option<Locked<'_>> {
        self.own().ok()?;
        let guard = match self.driver.driver.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { inner: self, guard: Some(guard) })
    }
}

/// What a forked child is told that uses what its parent made.
pub(super) fn of_a_parent() -> Error {
    let what = "this process was forked from the one that made the communicator";
    let hint =
        "call from that process; start workers that use ccl with exec (Python: the start method \"spawn\")";
    Error::new(ErrorKind::Usage, what).hint(hint)
}

impl Locked<'_> {
    /// Something moved: the wait is over, and whoever waited for what has ended by that is told.
    #[inline]
    pub(super) fn moved(&mut self) {
        self.settle();
        self.wake();
        self.waiter.reset();
        self.still = None;
    }

    /// Runs the wakers of what has ended, if there are any, while the lock is free.
    #[inline]
    fn wake(&mut self) {
        if !self.woken.is_empty() {
            self.let_go();
            // A child that was forked in a waker must not come back here.
            let guard = self.inner.driver().ok().and_then(|mut locked| locked.guard.take());
            self.guard = guard;
        }
    }

    fn let_go(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        let woken = std::mem::take(&mut guard.woken);
        drop(guard);
        if self.inner.is_stale() {
            // Forked under the lock, by an observer: the wakers are the parent's to run.
            std::mem::forget(woken);
            return;
        }
        for waker in woken {
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                self.inner.tell_of_panic();
            }
        }
    }
}

impl Inner {
    /// Says once that a waker panicked.
    #[expect(clippy::print_stderr, reason = "where panics are said, too")]
    fn tell_of_panic(&self) {
        if self.driver.warns.swap(false, Ordering::Relaxed) {
            let Self { name, rank, .. } = self;
            eprintln!(
                "ccl: comm {name}: rank {rank}: the waker of a call panicked; the communicator goes on"
            );
        }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
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
