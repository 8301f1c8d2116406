//! Memory that processes share: sealed memfds, mappings, and the record lock that shows whether an
//! owner lives.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, ErrorKind, Result};

/// An empty memfd that can grow but not shrink: readers that have mapped a part of it that exists
/// never get a SIGBUS.
///
/// # Errors
/// `System` if the kernel refuses.
pub fn growing_memfd(name: &str) -> Result<OwnedFd> {
    let refuse = |e: Errno| Error::system("making a memfd", e);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags).map_err(refuse)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::SEAL).map_err(refuse)?;
    Ok(fd)
}

/// Makes it `len` bytes long. What is added is zero, and costs memory once it is written.
///
/// # Errors
/// `Unavailable` if this process may not have such a file, `System` if the kernel refuses.
pub fn grow(fd: impl AsFd, len: u64) -> Result<()> {
    super::process::check_file_size(len)?;
    rustix::fs::ftruncate(fd, len).map_err(|e| Error::system(format!("growing a memfd to {len} bytes"), e))
}

/// Gives the memory of a part of a memfd back to the kernel; it reads as zero from then on.
pub fn give_back(fd: impl AsFd, at: u64, len: u64) {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // A kernel that refuses keeps the memory until the file is closed.
    let _ = rustix::fs::fallocate(fd, how, at, len);
}

/// Refuses a descriptor unless it is a memfd that cannot shrink and has `len` bytes.
///
/// Mapping any other descriptor could end in SIGBUS.
///
/// # Errors
/// `Usage`, with the reason.
pub fn check_sealed(fd: impl AsFd, len: u64) -> Result<()> {
    let refuse =
        |what: String| Err(Error::new(ErrorKind::Usage, format!("a peer's memory is refused: {what}")));
    match rustix::fs::fcntl_get_seals(&fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
        Ok(seals) => return refuse(format!("its length is not sealed ({seals:?})")),
        Err(e) => return refuse(format!("it is no memfd ({e})")),
    }
    match rustix::fs::fstat(&fd) {
        Ok(stat) if stat.st_size as u64 >= len => Ok(()),
        Ok(stat) => refuse(format!("it has {} bytes, not {len}", stat.st_size)),
        Err(e) => refuse(e.to_string()),
    }
}

/// Whether a mapping may be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// A range of memory that other processes may read and write at any time.
///
/// It is a mapping of a part of a file, or fresh zero bytes of this process. It is accessed only
/// through atomics and raw pointers, and unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range of the process, usable from any thread. `Mapping` itself
// gives access only to its addresses and to atomics in it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file.
    ///
    /// # Errors
    /// `System` if the kernel refuses, as it does for zero bytes.
    pub fn new(fd: impl AsFd, len: usize, access: Access) -> Result<Self> {
        Self::part(fd, 0, len, access)
    }

    /// Maps `len` bytes of a file from byte `at`, which is a multiple of the page size.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn part(fd: impl AsFd, at: u64, len: usize, access: Access) -> Result<Self> {
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel chooses a free range, so no memory in use is replaced.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, at) };
        Self::mapped(base, len)
    }

    /// Makes the kernel create all pages now, so that the first store to a page does not wait.
    ///
    /// If the kernel refuses, the first store to each page waits.
    pub fn populate(&self) {
        // SAFETY: this advice on a range of our own changes no byte of it.
        let _ = unsafe {
            rustix::mm::madvise(self.base.as_ptr().cast(), self.len, rustix::mm::Advice::LinuxPopulateWrite)
        };
    }

    /// Fresh zero bytes of this process, page-aligned. They cost memory once they are written.
    ///
    /// # Errors
    /// `System` if there is no address space or memory left.
    #[cfg(not(miri))]
    pub fn private(len: usize) -> Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free range, so no memory in use is replaced.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE) };
        Self::mapped(base, len)
    }

    /// The same from the allocator, for miri, which cannot map memory.
    #[cfg(miri)]
    pub fn private(len: usize) -> Result<Self> {
        let layout = std::alloc::Layout::from_size_align(len, 4096).map_err(std::io::Error::other);
        let layout = layout.map_err(|e| Error::system("allocating", e))?;
        // SAFETY: callers never ask for zero bytes.
        Self::mapped(Ok(unsafe { std::alloc::alloc_zeroed(layout) }.cast()), len)
    }

    fn mapped(base: rustix::io::Result<*mut std::ffi::c_void>, len: usize) -> Result<Self> {
        let base = base.and_then(|base| NonNull::new(base.cast()).ok_or(Errno::NOMEM));
        base.map(|base| Self { base, len }).map_err(|e| Error::system(format!("mapping {len} bytes"), e))
    }

    /// The first byte; page-aligned.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }
    /// The number of bytes; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }
    /// The word at byte `at`. Panics if that is not inside or not aligned.
    #[inline]
    #[must_use]
    pub fn u64_at(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at <= self.len - 8, "no word at {at} of {} bytes", self.len);
        // SAFETY: inside the range and aligned, by the assertion and the page-aligned base. It
        // lives as long as `self`, and all processes access it atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }
    /// The half word at byte `at`. Panics if that is not inside or not aligned.
    #[inline]
    #[must_use]
    pub fn u32_at(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at <= self.len - 4, "no word at {at} of {} bytes", self.len);
        // SAFETY: as in `u64_at`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `mapped` received exactly this range, and code that uses addresses in it keeps
        // the `Mapping` alive.
        #[cfg(not(miri))]
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        // SAFETY: under miri `private` allocated it with this layout.
        #[cfg(miri)]
        unsafe {
            std::alloc::dealloc(
                self.base.as_ptr(),
                std::alloc::Layout::from_size_align_unchecked(self.len, 4096),
            );
        }
    }
}

/// The holder of the record lock on byte 0 of a file, as seen from this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// No other process: the owner is dead or has closed the file. Also returned for a lock of this
    /// process itself.
    None,
    /// A process. Its pid is unknown if the lock was taken in a pid namespace that is not visible
    /// from this one.
    Alive(Option<u32>),
}

/// Takes the record lock on byte 0.
///
/// The kernel frees it when this process dies, even if a forked child lives on, and when this
/// process closes ANY descriptor of the file. So the process must have only this descriptor, and
/// must never open or receive the file again.
///
/// # Errors
/// `System` if another process holds the lock or the file system has no locks.
pub fn lock_alive(fd: impl AsFd) -> Result<()> {
    let mut lock = whole_lock(libc::F_WRLCK);
    record_lock(fd.as_fd(), libc::F_SETLK, &mut lock).map_err(|e| Error::system("taking the alive lock", e))
}

/// Queries the record lock on byte 0.
///
/// # Errors
/// `System` if the lock cannot be queried.
pub fn owner(fd: impl AsFd) -> Result<Owner> {
    let mut lock = whole_lock(libc::F_WRLCK);
    record_lock(fd.as_fd(), libc::F_GETLK, &mut lock)
        .map_err(|e| Error::system("reading the alive lock", e))?;
    if lock.l_type == libc::F_UNLCK as libc::c_short {
        return Ok(Owner::None);
    }
    Ok(Owner::Alive(u32::try_from(lock.l_pid).ok().filter(|&pid| pid > 0)))
}

fn whole_lock(kind: libc::c_int) -> libc::flock {
    // SAFETY: `flock` is a plain struct of integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_len = 1;
    lock
}

fn record_lock(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> std::io::Result<()> {
    // SAFETY: the descriptor is open and `lock` is a valid struct, which F_GETLK overwrites.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::sys::process;

    fn memfd(len: u64) -> OwnedFd {
        let fd = growing_memfd("ccl-test").unwrap();
        grow(&fd, len).unwrap();
        fd
    }

    #[test]
    fn a_memfd_grows_and_never_shrinks_and_others_are_refused() {
        let fd = memfd(8192);
        check_sealed(&fd, 8192).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err());
        assert!(check_sealed(&fd, 16384).unwrap_err().to_string().contains("8192 bytes, not 16384"));
        grow(&fd, 16384).unwrap();
        check_sealed(&fd, 16384).unwrap();
        let open = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 8192).unwrap();
        assert!(check_sealed(&open, 8192).unwrap_err().to_string().contains("not sealed"));
        let file = tempfile::tempfile().unwrap();
        assert!(check_sealed(&file, 0).is_err());
        assert!(
            check_sealed(std::fs::File::open("/dev/null").unwrap(), 0)
                .unwrap_err()
                .to_string()
                .contains("no memfd")
        );
    }

    #[test]
    fn a_limit_on_file_sizes_is_an_error_and_not_the_end_of_the_process() {
        let status = process::in_fork(|| {
            process::limit_file_size(8191);
            let fd = growing_memfd("ccl-test").unwrap();
            let error = grow(&fd, 8192).unwrap_err();
            let is_said = error.to_string().contains("8191") && error.hint.contains("ulimit -f");
            i32::from(!is_said || grow(&fd, 4096).is_err())
        });
        assert_eq!(status, Some(0));
    }

    #[test]
    fn a_part_that_is_given_back_reads_as_zero() {
        let fd = memfd(3 * 4096);
        let (all, last) = (
            Mapping::new(&fd, 3 * 4096, Access::ReadWrite).unwrap(),
            Mapping::part(&fd, 8192, 4096, Access::ReadWrite).unwrap(),
        );
        for at in [0, 4096, 8192] {
            all.u64_at(at).store(7, std::sync::atomic::Ordering::Relaxed);
        }
        let load = |mapping: &Mapping, at| mapping.u64_at(at).load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(load(&last, 0), 7);
        give_back(&fd, 8192, 4096);
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks * 512, 8192);
        assert_eq!((load(&all, 4096), load(&all, 8192), load(&last, 0)), (7, 0, 0));
    }

    #[test]
    fn a_mapping_is_shared() {
        let fd = memfd(4096);
        let (a, b) = (
            Mapping::new(&fd, 4096, Access::ReadWrite).unwrap(),
            Mapping::new(&fd, 4096, Access::Read).unwrap(),
        );
        a.u64_at(104).store(7 << 32, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(b.u32_at(108).load(std::sync::atomic::Ordering::Relaxed), 7);
        assert!(Mapping::new(&fd, 0, Access::Read).is_err());
    }

    /// The rules of record locks that the rest relies on.
    #[test]
    fn the_alive_lock_shows_through_a_peers_descriptor_and_falls_with_any_descriptor_of_the_owner() {
        let fd = memfd(4096);
        let (to_child, from_parent) = rustix::pipe::pipe().unwrap();
        let (to_parent, from_child) = rustix::pipe::pipe().unwrap();
        let say = |fd: &OwnedFd| rustix::io::write(fd, b"x").unwrap();
        let hear = |fd: &OwnedFd| rustix::io::read(fd, &mut [0; 1]).unwrap();
        let pid = process::fork(|| {
            lock_alive(&fd).unwrap();
            say(&from_child);
            hear(&to_child);
            // A second descriptor of the same file is opened and closed: the lock is gone, though
            // `fd` is still open.
            drop(std::fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap());
            say(&from_child);
            hear(&to_child);
            lock_alive(&fd).unwrap();
            // A duplicate that is closed only when its process dies does no harm.
            let _grandchild = process::fork(|| hear(&to_child) as i32);
            say(&from_child);
            hear(&to_child);
            0
        });
        hear(&to_parent);
        assert_eq!(owner(&fd).unwrap(), Owner::Alive(Some(pid as u32)));
        assert!(lock_alive(&fd).is_err());
        say(&from_parent);
        hear(&to_parent);
        assert_eq!(owner(&fd).unwrap(), Owner::None);
        say(&from_parent);
        hear(&to_parent);
        assert_eq!(owner(&fd).unwrap(), Owner::Alive(Some(pid as u32)));
        // Killed while its forked child, which inherited the descriptor, lives on.
        process::kill(pid);
        assert_eq!(process::wait(pid), None);
        assert_eq!(owner(&fd).unwrap(), Owner::None);
        say(&from_parent);
    }
}
