//! Descriptors that are closed in a forked child, and the doorbell.
//!
//! A child of `fork` (a data loader's worker) inherits every descriptor. If it kept them, a peer
//! would see no end of file when the parent dies. So each long-lived descriptor is wrapped in
//! [`Fd`], which records its number in a bitmap. A handler that the C library runs in each forked
//! child closes all of them and counts the fork. A copy of an [`Fd`] in the child sees from that
//! count that its number is no longer its own, and does not use it.
//!
//! A program may have closed its standard input, output or error. Text that it, or this library,
//! writes there must not go into a peer's socket or a recorder: an [`Fd`] has a number above those
//! three.
//!
//! Descriptors that are not yet wrapped in an `Fd` are close-on-exec; a child forked in that
//! instant keeps them. `vfork` and `posix_spawn` run no handlers: their children exec at once.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// The kernel's default limit on descriptor numbers (`fs.nr_open`).
///
/// A descriptor above it would stay open in a child.
const MAX_FDS: usize = 1 << 20;
static OPEN: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The number of forks since the process that first created an [`Fd`]; 0 in that process.
///
/// Objects created at another generation belong to a parent. They must not be used, and their files
/// must not be removed.
#[must_use]
pub fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Whether this process was forked from one that used ccl.
#[must_use]
pub fn forked() -> bool {
    generation() != 0
}

/// Refuses to start work in a process that was forked from one that used ccl.
///
/// Such a process has none of the parent's threads, and the locks that they held stay locked.
///
/// # Errors
/// `Unavailable` in such a process.
pub fn not_forked() -> Result<()> {
    notice_forks();
    if !forked() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        "this process was forked from one that uses ccl, and has none of its threads",
    )
    .hint("start workers that use ccl with exec (Python: the start method \"spawn\")"))
}

/// Installs the handler that counts forks, once.
fn notice_forks() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // If there is no memory for the handler, a child keeps descriptors open, and the death of
        // the parent shows only in the record lock.
        #[cfg(not(miri))]
        // SAFETY: the handler is static and calls only what is allowed in a forked child.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
}

/// Runs in each forked child, where only async-signal-safe calls are allowed: here loads, stores
/// and close(2).
#[cfg(not(miri))]
extern "C" fn in_child() {
    FORKS.store(FORKS.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    for (at, word) in OPEN.iter().enumerate() {
        if word.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = (at * 64) as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            // SAFETY: the number was open and owned by an `Fd` of the parent. The copy in this
            // child sees the new generation and never uses or closes it.
            unsafe { libc::close(fd) };
        }
    }
}

/// An open descriptor that a forked child closes.
#[derive(Debug)]
pub struct Fd {
    fd: ManuallyDrop<OwnedFd>,
    generation: u32,
}

impl Fd {
    /// Wraps a descriptor.
    ///
    /// A descriptor with the number of a standard stream gets another number, and the first is
    /// closed. Therefore a record lock must be taken after this.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        let fd = above_standard(fd);
        notice_forks();
        if let Some((word, bit)) = place(fd.as_raw_fd()) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self { fd: ManuallyDrop::new(fd), generation: generation() }
    }

    /// Whether this is a copy in a forked child: its number is closed, or belongs to another file.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.generation != generation()
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd)
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.is_stale() {
            return;
        }
        // The bit is cleared before closing: once closed, the number may belong to another thread.
        if let Some((word, bit)) = place(self.fd.as_raw_fd()) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        // SAFETY: this is the only drop, and the field is not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

/// The number of a descriptor that another library opened and closes, and that a forked child
/// closes.
#[derive(Debug)]
pub struct Lent(RawFd);

impl Lent {
    /// A forked child closes this descriptor from now on.
    #[must_use]
    pub fn new(fd: RawFd) -> Self {
        notice_forks();
        if let Some((word, bit)) = place(fd) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self(fd)
    }

    /// The library is about to close it. In a forked child, where this number may belong to
    /// another file, it must not be called.
    pub fn end(&mut self) {
        if let Some((word, bit)) = place(self.0) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// The same open file under a number above those of the standard streams.
///
/// If no number is free, the descriptor keeps its number: otherwise the program could not continue
/// at all.
fn above_standard(fd: OwnedFd) -> OwnedFd {
    const FIRST: RawFd = libc::STDERR_FILENO + 1;
    if fd.as_raw_fd() >= FIRST {
        return fd;
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, FIRST).unwrap_or(fd)
}

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OPEN.get(fd / 64)?, 1 << (fd % 64)))
}

/// An eventfd that wakes the thread that polls it.
#[derive(Debug)]
pub struct Doorbell(Fd);

impl Doorbell {
    /// A new doorbell, not notified.
    ///
    /// # Errors
    /// `System` if the kernel has no descriptor left.
    pub fn new() -> Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(|fd| Self(Fd::new(fd)))
            .map_err(|e| Error::system("making an eventfd", e))
    }
    /// Wraps a peer's doorbell that was received from it.
    ///
    /// Its real type does not matter: it only must not block.
    ///
    /// # Errors
    /// `System` if it cannot be made non-blocking.
    pub fn received(fd: OwnedFd) -> Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)
            .map(|()| Self(Fd::new(fd)))
            .map_err(|e| Error::system("taking a peer's doorbell", e))
    }
    /// Wakes the thread that polls it.
    pub fn notify(&self) {
        if !self.0.is_stale() {
            // The kernel refuses only if the count would overflow: then it is readable already.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }
    }
    /// Resets the doorbell to not notified.
    pub fn clear(&self) {
        if !self.0.is_stale() {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that its owner keeps open while it is polled.
pub(crate) fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: `Interest` requires the task to keep it open during the poll. If it were closed,
    // poll(2) would return POLLNVAL, which is harmless.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_closes_our_descriptors_and_knows_that_it_is_one() {
        let bell = Doorbell::new().unwrap();
        let number = bell.as_fd().as_raw_fd();
        let kept = std::fs::File::open("/dev/null").unwrap();
        let status = crate::sys::process::in_fork(|| {
            let closed = rustix::fs::fstat(borrow(number)).is_err();
            // An unrelated descriptor now has the number: the copy must not close or notify it.
            let reused = rustix::io::fcntl_dupfd_cloexec(&kept, number);
            let same = reused.as_ref().is_ok_and(|fd| fd.as_raw_fd() == number);
            bell.notify();
            drop(bell);
            let good = forked()
                && closed
                && same
                && rustix::fs::fstat(borrow(number)).is_ok()
                && rustix::fs::fstat(&kept).is_ok();
            i32::from(!good)
        });
        assert_eq!(status, Some(0));
        assert!(!forked());
    }

    #[test]
    fn a_doorbell_is_readable_until_it_is_cleared() {
        use rustix::event::{PollFd, PollFlags, poll};
        let bell = Doorbell::new().unwrap();
        let is_readable = || {
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&now)).unwrap() == 1
        };
        assert!(!is_readable());
        bell.notify();
        bell.notify();
        assert!(is_readable());
        bell.clear();
        assert!(!is_readable());
    }
}
