//! Leaving the namespaces one was born in. Joining others is safe and in `rustix`; leaving is wrapped here.

use rustix::thread::UnshareFlags;

use crate::error::{Error, Result};

/// Moves the calling thread into a new network namespace, which holds a loopback interface that is down.
///
/// # Errors
/// `System` if the kernel or a policy forbids it.
pub fn leave_network() -> Result<()> {
    leave(UnshareFlags::NEWNET, "making a network namespace")
}

/// Moves the calling thread into a new user namespace, where it may do everything, and a network namespace that belongs
/// to it. No uid is mapped yet. The process must have one thread only.
///
/// # Errors
/// `System` if the kernel or a policy forbids it.
pub fn leave_user_and_network() -> Result<()> {
    leave(UnshareFlags::NEWUSER | UnshareFlags::NEWNET, "making a user and a network namespace")
}

fn leave(flags: UnshareFlags, what: &str) -> Result<()> {
    // SAFETY: the one danger of unshare(2) is CLONE_FILES, which splits the table of descriptors; it is never among `flags`.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|e| Error::system(what, e))
}
