//! Signals that ask this process to end, and the work that is done before it ends. A signal handler
//! may do very little, so ours only passes the signal on to a thread, through a pipe.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::error::{Error, Result};

/// The signals that launchers, terminals and users send to end a process.
const ENDING: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The pipe to which the handler writes the number of a signal; -1 before there is a pipe.
static PIPE: AtomicI32 = AtomicI32::new(-1);
/// The process that owns the pipe. A forked child has a copy of the pipe, but does not own it.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Runs `work` on its own thread when a signal, whose number it is given, asks this process to end.
///
/// After `work`, the signal ends the process as it would have without the handler. This holds for
/// SIGTERM, SIGINT and SIGHUP, except for those that the program already handles or ignores. If the
/// program installs a handler for one of them later, only that handler counts, even if it calls
/// ours. To be called once.
///
/// # Errors
/// `System`: the pipe or the thread could not be created.
pub fn before_the_end(work: fn(u8)) -> Result<()> {
    let (reads, writes) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|e| Error::system("a pipe for signals", e))?;
    let thread = std::thread::Builder::new().name("ccl-signals".into());
    thread.spawn(move || wait(&reads, work)).map_err(|e| Error::system("starting ccl-signals", e))?;
    // SAFETY: getpid takes no arguments and cannot fail.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    PIPE.store(writes.as_raw_fd(), Ordering::Release);
    // The pipe stays open for good, because a handler may be about to write to it.
    std::mem::forget(writes);
    for signal in ENDING {
        // SAFETY: the structs are plain integers, for which zero is a valid value. The handler is a
        // function that lives as long as the process.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
                && action.sa_sigaction == libc::SIG_DFL
            {
                action.sa_sigaction = asked as *const () as usize;
                // Interrupted system calls restart, as they did before there was a handler.
                action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    }
    Ok(())
}

/// Waits for a signal, does the work, and then ends this process by that signal.
fn wait(reads: &OwnedFd, work: fn(u8)) {
    let mut signal = [0];
    loop {
        match rustix::io::read(reads, &mut signal) {
            Ok(1) => break,
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
    work(signal[0]);
    end_by(signal[0].into());
}

/// Ends this process by a signal, as if the signal had no handler.
fn end_by(signal: libc::c_int) {
    // SAFETY: as in `before_the_end`. A process may send any signal to itself.
    unsafe {
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const default, std::ptr::null_mut());
        libc::kill(libc::getpid(), signal);
    }
}

/// The signal handler. It uses only atomics and system calls.
extern "C" fn asked(signal: libc::c_int) {
    // SAFETY: as in `before_the_end`. The handler restores errno for the code that it interrupted.
    unsafe {
        let errno = *libc::__errno_location();
        let mut now: libc::sigaction = std::mem::zeroed();
        // Another handler that was installed later may have called this one. That handler decides
        // what happens to the process.
        let is_ours = libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0
            && now.sa_sigaction == asked as *const () as usize;
        if !is_ours {
        } else if libc::getpid() != OWNER.load(Ordering::Relaxed) {
            // This is a forked child. Its copy of the pipe belongs to the parent, and no thread of
            // the child reads it.
            end_by(signal);
        } else {
            let number = signal as u8;
            libc::write(PIPE.load(Ordering::Acquire), (&raw const number).cast(), 1);
        }
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;
    use crate::sys::process::{fork, in_fork};

    fn leave(_: u8) {
        // SAFETY: it ends a forked child. The exit status shows that this function ran.
        unsafe { libc::_exit(50) }
    }

    fn note(_: u8) {}

    fn send(signal: libc::c_int) {
        // SAFETY: a process may send any signal to itself.
        unsafe { libc::kill(libc::getpid(), signal) };
        clock::sleep(Duration::from_secs(20));
    }

    extern "C" fn program(_: libc::c_int) {
        // SAFETY: it ends a forked child.
        unsafe { libc::_exit(60) }
    }

    fn handle(signal: libc::c_int, handler: usize) {
        // SAFETY: a struct of integers, and a handler of the type that is used without flags.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }

    #[test]
    fn the_work_is_done_and_then_the_signal_ends_the_process() {
        for signal in ENDING {
            // The process that started the tests may ignore the signal, as nohup does.
            let done = in_fork(|| {
                handle(signal, libc::SIG_DFL);
                before_the_end(leave).unwrap();
                send(signal);
                1
            });
            assert_eq!(done, Some(50), "signal {signal}");
            let ended = in_fork(|| {
                handle(signal, libc::SIG_DFL);
                before_the_end(note).unwrap();
                send(signal);
                1
            });
            assert_eq!(ended, None, "signal {signal}");
        }
    }

    #[test]
    fn what_a_program_handles_itself_before_or_after_is_its_own() {
        let before = in_fork(|| {
            handle(libc::SIGTERM, program as *const () as usize);
            before_the_end(leave).unwrap();
            send(libc::SIGTERM);
            1
        });
        let after = in_fork(|| {
            before_the_end(leave).unwrap();
            handle(libc::SIGTERM, program as *const () as usize);
            send(libc::SIGTERM);
            1
        });
        let ignored = in_fork(|| {
            handle(libc::SIGTERM, libc::SIG_IGN);
            before_the_end(leave).unwrap();
            // SAFETY: a process may send any signal to itself.
            unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
            2
        });
        assert_eq!([before, after, ignored], [Some(60), Some(60), Some(2)]);
    }

    #[test]
    fn a_handler_that_calls_the_one_before_it_decides_alone() {
        extern "C" fn chains(signal: libc::c_int) {
            asked(signal);
        }
        let lived = in_fork(|| {
            before_the_end(leave).unwrap();
            handle(libc::SIGTERM, chains as *const () as usize);
            // SAFETY: a process may send any signal to itself.
            unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
            clock::sleep(Duration::from_millis(200));
            3
        });
        assert_eq!(lived, Some(3));
    }

    #[test]
    fn a_forked_child_ends_alone_and_at_once() {
        let parent = in_fork(|| {
            before_the_end(leave).unwrap();
            let child = crate::sys::process::wait(fork(|| {
                send(libc::SIGTERM);
                1
            }));
            clock::sleep(Duration::from_millis(100));
            if child.is_none() { 4 } else { 5 }
        });
        assert_eq!(parent, Some(4));
    }
}
