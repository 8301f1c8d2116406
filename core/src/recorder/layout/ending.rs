//! The word about the end of the process.

/// How a process ended: the low half of [`header::END`](super::header::END).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Ending {
    /// Nothing was said: the process lives, or it was killed.
    Nothing = 0,
    /// It left every communicator by `finish()`.
    Finished = 1,
    /// It exited with a communicator in use, or gave one up without `finish()`.
    Exited = 2,
    /// A thread of it panicked. The upper half counts the seconds since; a process that lives on
    /// takes it back.
    Panicked = 3,
    /// A signal that the process has a handler of ours for ended it.
    Signalled = 4,
    /// It said nothing, and its launcher saw which signal ended it.
    Killed = 5,
}
