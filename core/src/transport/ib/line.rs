//! The connection over which a lane was set up. It carries nothing more; its end says that the
//! other process has ended or left, which queue pairs do not notice while nothing is under way.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::reactor::Interest;
use crate::sys::fds::Fd;

/// It is looked at once in so many looks at a lane that does not move.
const LOOKS: u32 = 64;

#[derive(Debug)]
pub(super) struct Line {
    stream: Arc<Fd>,
    looks: u32,
    ended: bool,
}

impl Line {
    pub(super) const fn new(stream: Arc<Fd>) -> Self {
        Self { stream, looks: 0, ended: false }
    }

    /// The lane moves.
    pub(super) const fn moves(&mut self) {
        self.looks = 0;
    }

    /// Whether the other side has closed it, as of the last look.
    pub(super) fn has_ended(&mut self) -> bool {
        self.looks += 1;
        if !self.ended && self.looks.is_multiple_of(LOOKS) {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let read = rustix::net::recv(&self.stream, &mut [0u8; 1][..], flags);
            // Nothing is ever sent: what comes is as good as an end.
            self.ended = !matches!(read, Err(Errno::AGAIN | Errno::INTR));
        }
        self.ended
    }

    /// What shows its end.
    pub(super) fn interest(&self) -> Option<Interest> {
        (!self.ended).then(|| Interest { fd: self.stream.as_raw_fd(), read: true, write: false })
    }
}
