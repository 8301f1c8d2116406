//! Descriptors that are closed in a forked child, and the doorbell.
//!
//! A child of `fork` (a data loader's worker) inherits every descriptor. If it kept them, a peer would see no end of file when
//! the parent dies. So each long-lived descriptor is wrapped in [`Fd`], which notes its number in a bitmap, and a
//! handler that the C library runs in each forked child closes all of them and counts the fork. An [`Fd`] copied into the child
//! knows from that count that its number is no longer its own, and leaves it alone.
//!
//! A program may have closed its standard input, output or error. What it, or this library, writes there
//! must not go into a peer's socket or a recorder: an [`Fd`] has a number above those three.
//!
//! Descriptors made on the way to an `Fd` are close-on-exec; a fork in that instant hands them on. `vfork` and
//! `posix_spawn` run no handlers: their children exec at once.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// The kernel's default bound on descriptor numbers (`fs.nr_open`). One above it would stay open in a child.
const MAX_FDS: usize = 1 << 20;
static OPEN: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between this process and the one that first made an [`Fd`]: 0 in that one. What was made at another
/// generation belongs to a parent and must not be used, nor its files removed.
#[must_use]
pub fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Whether this process was forked from one that used ccl.
#[must_use]
pub fn forked() -> bool {
    generation() != 0
}

/// Refuses to begin anything in a process that was forked from one that used ccl: it has none of
/// its threads, and the locks that they held stay locked.
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

/// Has forks counted from now on.
fn notice_forks() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // Without memory for the handler a child keeps descriptors open: death is then seen by the record lock only.
        #[cfg(not(miri))]
        // SAFETY: the handler is a static function that calls only what is allowed in a forked child.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
}

/// Runs in each forked child, where only async-signal-safe calls are allowed: loads, stores and close(2).
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
            // SAFETY: the number was open and owned by an `Fd` of the parent; its copy in this child sees
            // the new generation and never uses or closes it.
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
    /// Takes a descriptor in. One with the number of a standard stream gets another number, which
    /// closes the first: a record lock is taken after this.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        let fd = above_standard(fd);
        notice_forks();
        if let Some((word, bit)) = place(fd.as_raw_fd()) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self { fd: ManuallyDrop::new(fd), generation: generation() }
    }

    /// Whether this is a copy in a forked child: its number is closed, or something else.
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
        // Forgotten before it is closed: once closed, the number may be another thread's.
        if let Some((word, bit)) = place(self.fd.as_raw_fd()) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        // SAFETY: this is the only drop, and nobody uses the field afterwards.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

/// The same open file under a number that no standard stream has. Where no number is free, it stays
/// where it is: without it the program could not go on at all.
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

/// An eventfd that wakes whoever polls it.
#[derive(Debug)]
pub struct Doorbell(Fd);

impl Doorbell {
    /// A new doorbell, not rung.
    ///
    /// # Errors
    /// `System` if the kernel has no descriptor to give.
    pub fn new() -> Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(|fd| Self(Fd::new(fd)))
            .map_err(|e| Error::system("making an eventfd", e))
    }
    /// A peer's doorbell, as received from it. What it really is does not matter: it must only not block.
    ///
    /// # Errors
    /// `System` if it cannot be made non-blocking.
    pub fn received(fd: OwnedFd) -> Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)
            .map(|()| Self(Fd::new(fd)))
            .map_err(|e| Error::system("taking a peer's doorbell", e))
    }
    /// Wakes whoever polls.
    pub fn ring(&self) {
        if !self.0.is_stale() {
            // Refused only when the count would overflow: then it is rung already.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }
    }
    /// Stops ringing.
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
    // SAFETY: `Interest` demands that the task keeps it open during the poll; were it closed, poll(2) would answer
    // POLLNVAL, which is harmless.
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
            // Someone else's descriptor now has the number: the copy must neither close nor ring it.
            let reused = rustix::io::fcntl_dupfd_cloexec(&kept, number);
            let same = reused.as_ref().is_ok_and(|fd| fd.as_raw_fd() == number);
            bell.ring();
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
    fn a_doorbell_rings_until_it_is_cleared() {
        use rustix::event::{PollFd, PollFlags, poll};
        let bell = Doorbell::new().unwrap();
        let rung = || {
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&now)).unwrap() == 1
        };
        assert!(!rung());
        bell.ring();
        bell.ring();
        assert!(rung());
        bell.clear();
        assert!(!rung());
    }
}
