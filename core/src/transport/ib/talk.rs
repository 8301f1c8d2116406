//! The messages of a lane's set-up, over a connection that does not block.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::setup::LONGEST;
use crate::bootstrap::frame::Frames;
use crate::reactor::Interest;
use crate::sys::fds::Fd;
use crate::sys::is_transient;
use crate::transport::socket::Stream;

/// What was heard of the other side.
#[derive(Debug)]
pub(super) enum Heard {
    /// Nothing yet.
    Nothing,
    /// A message: its kind and its body.
    Message(u8, Vec<u8>),
    /// It has closed the connection, or the connection broke.
    End(String),
    /// What it sent is no message.
    Nonsense(&'static str),
}

/// One side of the conversation.
#[derive(Debug)]
pub(super) struct Talk {
    stream: Stream,
    /// What is still to be sent.
    unsent: Vec<u8>,
    frames: Frames,
}

impl Talk {
    pub(super) const fn new(stream: Arc<Fd>) -> Self {
        Self { stream: Stream(stream), unsent: Vec::new(), frames: Frames::new(LONGEST) }
    }

    /// Sends a message, as soon as there is room.
    pub(super) fn say(&mut self, message: Vec<u8>) {
        self.unsent.extend(message);
        // An error shows in what is heard next.
        let _ = self.flush();
    }

    /// Sends what there is room for; whether all was sent.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(e) if is_transient(&e) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// The next message of the other side.
    pub(super) fn hear(&mut self) -> Heard {
        let mut bytes = [0; 1024];
        loop {
            match self.frames.next() {
                Ok(Some((kind, body))) => return Heard::Message(kind, body),
                Ok(None) => {}
                Err(what) => return Heard::Nonsense(what),
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Heard::End("the connection was closed".into()),
                Ok(count) => self.frames.extend(&bytes[..count]),
                Err(e) if is_transient(&e) => return Heard::Nothing,
                Err(e) => return Heard::End(e.to_string()),
            }
        }
    }

    pub(super) fn interest(&self) -> Interest {
        Interest { fd: self.stream.0.as_raw_fd(), read: true, write: !self.unsent.is_empty() }
    }

    /// The connection, once all was said.
    pub(super) fn into_stream(self) -> Arc<Fd> {
        self.stream.0
    }
}
