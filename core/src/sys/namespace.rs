//! Leaving the current namespaces. Joining other namespaces is safe and in `rustix`; leaving is
//! wrapped here.

use rustix::thread::UnshareFlags;

use crate::error::{Error, Result};

/// Moves the calling thread into a new network namespace, with a loopback interface that is down.
///
/// # Errors
/// `System` if the kernel or a policy forbids it.
pub fn leave_network() -> Result<()> {
    leave(UnshareFlags::NEWNET, "making a network namespace")
}

/// Moves the calling thread into a new user namespace, where it has all rights, and a network
/// namespace that belongs to it.
///
/// No uid is mapped yet. The process must have only one thread.
///
/// # Errors
/// `System` if the kernel or a policy forbids it.
pub fn leave_user_and_network() -> Result<()> {
    leave(UnshareFlags::NEWUSER | UnshareFlags::NEWNET, "making a user and a network namespace")
}

fn leave(flags: UnshareFlags, what: &str) -> Result<()> {
    // SAFETY: the only danger of unshare(2) is CLONE_FILES, which splits the descriptor table. It
    // is never among `flags`.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|e| Error::system(what, e))
}
