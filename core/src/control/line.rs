//! One stream that carries news: whole messages in and out, one JSON text a line.
//!
//! JSON lines are rare, and readable when a job is debugged with a packet capture.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::control::news::{MESSAGE_MAX, Message};
use crate::control::service::Interest;

/// What a process writes on its control connections before it closes them: leaving is not dying.
pub(super) const FAREWELL: u8 = b'.';

/// One connection, with what has come on it and what waits to go.
pub(super) struct Line<F: AsFd> {
    stream: Option<F>,
    input: Vec<u8>,
    output: VecDeque<u8>,
}

/// What a line brings.
pub(super) enum Heard {
    Message(Message),
    /// Whoever is at the other end closes it next, and has not died.
    Farewell,
}

/// A message as it goes over a line; `None` for one that is longer than the other side takes: what
/// messages hold is bounded where it is made.
pub(super) fn written(message: &Message) -> Option<Vec<u8>> {
    let mut text = serde_json::to_vec(message).ok()?;
    text.push(b'\n');
    debug_assert!(text.len() <= MESSAGE_MAX, "{} bytes", text.len());
    (text.len() <= MESSAGE_MAX).then_some(text)
}

impl<F: AsFd> Line<F> {
    /// `early`: what has come on it before.
    pub(super) fn new(stream: F, early: Vec<u8>) -> Self {
        Self { stream: Some(stream), input: early, output: VecDeque::new() }
    }

    pub(super) fn stream(&self) -> Option<&F> {
        self.stream.as_ref()
    }

    pub(super) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether all that was said is with the kernel.
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

    /// Takes what is there; whether the stream has just ended.
    pub(super) fn read(&mut self, mut hear: impl FnMut(Heard)) -> bool {
        let mut buffer = [0; 4096];
        // What came with the end of the bootstrap is heard before what comes now.
        self.hear(&mut hear);
        while let Some(stream) = &self.stream {
            match rustix::io::read(stream.as_fd(), &mut buffer) {
                Ok(n) if n > 0 => self.input.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN) => return false,
                Err(Errno::INTR) => continue,
                Ok(_) | Err(_) => return self.end(),
            }
            self.hear(&mut hear);
            // The rest is the beginning of one message.
            if self.input.len() >= MESSAGE_MAX {
                return self.end();
            }
        }
        false
    }

    /// Takes the lines that are there.
    fn hear(&mut self, hear: &mut impl FnMut(Heard)) {
        loop {
            if self.input.first() == Some(&FAREWELL) {
                self.input.remove(0);
                hear(Heard::Farewell);
                continue;
            }
            let Some(at) = self.input.iter().position(|&b| b == b'\n') else { return };
            let line: Vec<u8> = self.input.drain(..=at).collect();
            // The stream is authenticated: what does not parse is from a newer version, and not for
            // us.
            if let Ok(message) = serde_json::from_slice(&line) {
                hear(Heard::Message(message));
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
                // Its end is seen, and told, where it is read.
                Err(_) => self.output.clear(),
            }
        }
    }
}
