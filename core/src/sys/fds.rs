//! Descriptors that are closed in a forked child, and the doorbell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use crate::error::{Error, Result};

/// An eventfd that wakes whoever polls it.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new doorbell, not rung.
    ///
    /// # Errors
    /// `System` if the kernel has no descriptor to give.
    pub fn new() -> Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(|e| Error::system("making an eventfd", e))
    }
    /// Wakes whoever polls.
    pub fn ring(&self) {
        // Refused only when the count would overflow: then it is rung already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
    /// Stops ringing.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that its owner keeps open while it is polled.
pub(crate) fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: `Interest` demands that the task keeps it open during the poll; were it closed, poll(2) would answer
    // POLLNVAL, which is harmless.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
