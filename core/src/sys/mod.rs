//! Raw system interfaces, each wrapped once. A missing feature is reported as a value and is never
//! a crash.

mod alone;
pub mod cgroup;
pub mod cpus;
pub mod faults;
pub mod fds;
pub mod futex;
pub mod handlers;
pub mod load;
pub mod namespace;
pub mod process;
pub mod reference;
pub mod shared;
pub mod shortage;
pub mod signals;
pub mod tcp;
pub mod unix;
pub mod verbs;

pub use alone::alone;
pub use fds::{forked, generation, not_forked};

/// Whether something waits to be read, or a connection to be accepted.
pub(crate) fn is_readable(socket: &impl std::os::fd::AsFd) -> bool {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut asked = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut asked, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Whether a call on a socket that does not block is to be made again later.
pub(crate) fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
}

/// The raw counter of the processor: x86-64's time-stamp counter, AArch64's virtual counter.
///
/// `None` on other processors, and under miri, which has no counter.
#[inline]
#[must_use]
pub fn counter() -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has RDTSC.
    unsafe {
        Some(core::arch::x86_64::_rdtsc())
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let ticks: u64;
        // SAFETY: CNTVCT_EL0 is readable from user space on Linux; the read has no side effects.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        Some(ticks)
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        None
    }
}

/// The kernel's number of this thread, in its own pid namespace.
#[must_use]
pub fn thread() -> u64 {
    u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
}

/// Requests the cache line at `place` before it is needed.
///
/// It is a hint: any address is allowed, and nothing is read or changed.
#[inline]
pub fn prefetch<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has PREFETCHT0, which has no effect visible to a program.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}
