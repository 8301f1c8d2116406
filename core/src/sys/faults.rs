//! Faults of file mappings: SIGBUS, which the kernel sends to a process that accesses a page that
//! its file no longer has.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// A type that knows mappings of which a page may be lost.
///
/// It is called in a signal handler that may interrupt any code: it may only access atomics and
/// make system calls.
pub trait Mender {
    /// Maps other memory in place of the page of `bytes` bytes that begins at `page`, if the page
    /// is in one of its mappings. Returns whether it did; then the access is tried again.
    fn mend(page: usize, bytes: usize) -> bool;
}

/// The handler that was installed before: a function (or `SIG_DFL` or `SIG_IGN`), and the flags
/// that state how to call it.
static BEFORE: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static FLAGS: AtomicI32 = AtomicI32::new(0);
/// Whether the previous handler was for one signal only, and that signal was delivered.
static SPENT: AtomicBool = AtomicBool::new(false);

/// The size of a page, in bytes.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// Installs `M` to mend faults of this process from now on.
///
/// Faults that it does not mend go to the previous handler, with the same arguments, or end the
/// process as they would have done. To be called once. If the kernel refuses, faults end the
/// process.
pub fn mend_faults<M: Mender>() {
    if cfg!(miri) {
        return;
    }
    // SAFETY: both structs are plain integers, for which zero is a value. The handler is a function
    // that lives as long as the process, of the type that SA_SIGINFO requires. All that it needs of
    // the previous handler is stored before it is installed.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) != 0 {
            return;
        }
        BEFORE.store(before.sa_sigaction, Ordering::Relaxed);
        FLAGS.store(before.sa_flags, Ordering::Relaxed);
        PAGE.store(libc::sysconf(libc::_SC_PAGESIZE).max(4096) as usize, Ordering::Relaxed);
        let mut ours = before;
        ours.sa_sigaction = on_fault::<M> as *const () as usize;
        // On the thread's alternate stack if it has one, which the previous handler may need. The
        // handler must stay installed after the first signal.
        ours.sa_flags = (before.sa_flags | libc::SA_SIGINFO | libc::SA_ONSTACK) & !libc::SA_RESETHAND;
        libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut());
    }
}

extern "C" fn on_fault<M: Mender>(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid `siginfo_t` to handlers with SA_SIGINFO. For a fault it
    // contains an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A signal sent by a process (a code of at most 0) has no address.
    let is_fault = code > 0;
    let bytes = PAGE.load(Ordering::Relaxed);
    if is_fault && M::mend(address & !(bytes - 1), bytes) {
        return;
    }
    let flags = FLAGS.load(Ordering::Relaxed);
    let mut before = BEFORE.load(Ordering::Relaxed);
    if flags & libc::SA_RESETHAND != 0 && SPENT.swap(true, Ordering::Relaxed) {
        before = libc::SIG_DFL;
    }
    // A fault cannot be ignored: the kernel ends the process.
    if before == libc::SIG_DFL || (before == libc::SIG_IGN && is_fault) {
        // SAFETY: as in `mend_faults`. A fault happens again when this returns. A signal sent by a
        // process is sent again, and is pending until then.
        unsafe {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const default, std::ptr::null_mut());
            if !is_fault {
                libc::raise(signal);
            }
        }
    } else if before == libc::SIG_IGN {
    } else if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: a handler installed with SA_SIGINFO is a function of this type, and it gets the
        // arguments that the kernel passed to this one.
        unsafe {
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(before);
            handler(signal, info, context);
        }
    } else {
        // SAFETY: a handler installed without SA_SIGINFO is a function of this type.
        unsafe {
            let handler: extern "C" fn(libc::c_int) = std::mem::transmute(before);
            handler(signal);
        }
    }
}

/// Writes a text to standard error, from code that may only make system calls.
pub fn say(text: &'static str) {
    // SAFETY: if standard error is closed, the kernel refuses the write.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    let _ = rustix::io::write(stderr, text.as_bytes());
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::sys::process::in_fork;
    use crate::sys::shared::{Access, Mapping};

    struct Nobody;
    impl Mender for Nobody {
        fn mend(_: usize, _: usize) -> bool {
            false
        }
    }

    fn set(handler: usize, flags: libc::c_int) {
        // SAFETY: a struct of integers. The handlers of these tests are functions of the type that
        // the flags state.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler, flags);
            assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
        }
    }

    /// Accesses a page that its file does not have.
    fn touch() -> i32 {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mapping = Mapping::new(&file, 4096, Access::ReadWrite).unwrap();
        file.set_len(0).unwrap();
        mapping.u64_at(8).store(1, Ordering::Relaxed);
        7
    }

    extern "C" fn plain(signal: libc::c_int) {
        // SAFETY: it ends a forked child.
        unsafe { libc::_exit(if signal == libc::SIGBUS { 40 } else { 1 }) }
    }
    extern "C" fn informed(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: it ends a forked child. `info` was passed by the kernel.
        unsafe { libc::_exit(if (*info).si_code > 0 && !context.is_null() { 41 } else { 42 }) }
    }

    extern "C" fn returns(_: libc::c_int) {}

    #[test]
    fn a_handler_that_was_for_one_signal_gets_one() {
        fn twice() -> i32 {
            for _ in 0..2 {
                // SAFETY: raise(3) takes no memory.
                unsafe { libc::raise(libc::SIGBUS) };
            }
            7
        }
        let ends = |flags: libc::c_int| {
            in_fork(|| {
                set(returns as *const () as usize, flags);
                mend_faults::<Nobody>();
                twice()
            })
        };
        assert_eq!(ends(0), Some(7));
        assert_eq!(ends(libc::SA_RESETHAND), None);
    }

    #[test]
    fn foreign_faults_reach_the_handler_that_was_there_or_end_the_process() {
        let (plain, informed) = (plain as *const () as usize, informed as *const () as usize);
        let ends = |handler: usize, flags: libc::c_int, fault: fn() -> i32| {
            in_fork(|| {
                set(handler, flags);
                mend_faults::<Nobody>();
                fault()
            })
        };
        assert_eq!(ends(plain, 0, touch), Some(40));
        assert_eq!(ends(informed, libc::SA_SIGINFO, touch), Some(41));
        assert_eq!(ends(libc::SIG_DFL, 0, touch), None);
        assert_eq!(ends(libc::SIG_IGN, 0, touch), None);
        // Sent by a process, without an address.
        fn sent() -> i32 {
            // SAFETY: raise(3) takes no memory.
            unsafe { libc::raise(libc::SIGBUS) };
            7
        }
        assert_eq!(ends(informed, libc::SA_SIGINFO, sent), Some(42));
        assert_eq!(ends(libc::SIG_DFL, 0, sent), None);
        assert_eq!(ends(libc::SIG_IGN, 0, sent), Some(7));
    }
}
