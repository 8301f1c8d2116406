//! What runs when this process forks or exits. Libc keeps its lists for good, so whoever installs a handler does it once.

/// Something to run without arguments, from where nothing may unwind.
pub trait Handler {
    /// Runs it.
    fn run();
}

extern "C" fn call<H: Handler>() {
    H::run();
}

/// Has `H` run in every child that this process forks from now on. It may only touch atomics and call the kernel: other
/// threads' locks are held for ever there. Without memory for it libc does not install it.
pub fn in_forked_children<H: Handler>() {
    #[cfg(not(miri))]
    // SAFETY: `call` is a function that lives as long as the process.
    unsafe {
        libc::pthread_atfork(None, None, Some(call::<H>));
    }
}

/// Has `H` run when the process exits by itself, which waits for it; the last one installed runs first. Of the exiting thread's
/// own variables nothing is left by then. Without memory for it libc does not install it.
pub fn at_exit<H: Handler>() {
    // SAFETY: `call` is a function that lives as long as the process.
    unsafe {
        libc::atexit(call::<H>);
    }
}
