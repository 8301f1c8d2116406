//! Handlers that run when this process forks or exits. Libc never removes a handler, so each must
//! be installed only once.

/// A function without arguments that is called from C and must not unwind.
pub trait Handler {
    /// Runs the handler.
    fn run();
}

extern "C" fn call<H: Handler>() {
    H::run();
}

/// Installs `H` to run in every child that this process forks from now on.
///
/// It may only access atomics and make system calls: locks held by other threads stay locked there
/// forever. If there is no memory for it, libc does not install it.
pub fn in_forked_children<H: Handler>() {
    #[cfg(not(miri))]
    // SAFETY: `call` is a function that lives as long as the process.
    unsafe {
        libc::pthread_atfork(None, None, Some(call::<H>));
    }
}

/// Installs `H` to run when the process exits by itself; the exit waits for it.
///
/// The handler installed last runs first. The thread-local variables of the exiting thread are gone
/// by then. If there is no memory for it, libc does not install it.
pub fn at_exit<H: Handler>() {
    // SAFETY: `call` is a function that lives as long as the process.
    unsafe {
        libc::atexit(call::<H>);
    }
}
