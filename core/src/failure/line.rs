//! One gossip stream of a communicator: reads and writes whole messages, one JSON text per line.
//!
//! JSON lines are rare, and they are readable when a job is debugged with a packet capture.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::failure::gossip::{GossipMessage, MESSAGE_MAX};
use crate::reactor::Interest;

/// Byte that a process writes on its control connections before it closes them without having died.
pub(super) const FAREWELL: u8 = b'.';

/// One connection, with the received bytes not yet parsed and the bytes still to send.
pub(super) struct Line<F: AsFd> {
    stream: Option<F>,
    input: Vec<u8>,
    output: VecDeque<u8>,
}

/// Something received on a line.
pub(super) enum Heard {
    GossipMessage(GossipMessage),
    /// The process at the other end closes the connection next. It has not died.
    Farewell,
}

/// Encodes a message as it is sent on a line.
///
/// `None` if it is longer than the receiver accepts. The creating code bounds the content.
pub(super) fn written(message: &GossipMessage) -> Option<Vec<u8>> {
    let mut text = serde_json::to_vec(message).ok()?;
    text.push(b'\n');
    debug_assert!(text.len() <= MESSAGE_MAX, "{} bytes", text.len());
    (text.len() <= MESSAGE_MAX).then_some(text)
}

impl<F: AsFd> Line<F> {
    /// `early`: the bytes that were received on the stream before.
    pub(super) fn new(stream: F, early: Vec<u8>) -> Self {
        Self { stream: Some(stream), input: early, output: VecDeque::new() }
    }

    pub(super) fn stream(&self) -> Option<&F> {
        self.stream.as_ref()
    }

    pub(super) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether all queued bytes were handed to the kernel.
    pub(super) fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    pub(super) fn interest(&self) -> Option<Interest> {
        let stream = self.stream.as_ref()?;
        Some(Interest { fd: stream.as_fd().as_raw_fd(), read: true, write: !self.output.is_empty() })
    }

    pub(super) fn say(&mut self, text: &[u8]) {
        if self.stream.is_some() {
            self.output.extend(text);
        }
    }

    /// Reads all messages that have arrived. Returns whether the stream has just ended.
    pub(super) fn read(&mut self, mut hear: impl FnMut(Heard)) -> bool {
        let mut buffer = [0; 4096];
        // Bytes received during the bootstrap are parsed before newly received ones.
        self.hear(&mut hear);
        while let Some(stream) = &self.stream {
            match rustix::io::read(stream.as_fd(), &mut buffer) {
                Ok(n) if n > 0 => self.input.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN) => return false,
                Err(Errno::INTR) => continue,
                Ok(_) | Err(_) => return self.end(),
            }
            self.hear(&mut hear);
            // The remaining bytes are the beginning of one message.
            if self.input.len() >= MESSAGE_MAX {
                return self.end();
            }
        }
        false
    }

    /// Parses the complete lines received so far.
    fn hear(&mut self, hear: &mut impl FnMut(Heard)) {
        loop {
            if self.input.first() == Some(&FAREWELL) {
                self.input.remove(0);
                hear(Heard::Farewell);
                continue;
            }
            let Some(at) = self.input.iter().position(|&b| b == b'\n') else { return };
            let line: Vec<u8> = self.input.drain(..=at).collect();
            // The stream is authenticated. A line that does not parse comes from a newer version
            // and is skipped.
            if let Ok(message) = serde_json::from_slice(&line) {
                hear(Heard::GossipMessage(message));
            }
        }
    }

    fn end(&mut self) -> bool {
        self.output.clear();
        self.stream.take().is_some()
    }

    pub(super) fn write(&mut self) {
        while let (Some(stream), false) = (&self.stream, self.output.is_empty()) {
            match send(stream.as_fd(), self.output.as_slices().0, SendFlags::NOSIGNAL) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // The read path detects and reports the end of the stream.
                Err(_) => self.output.clear(),
            }
        }
    }
}
