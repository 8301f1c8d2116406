//! A stream of text lines between two processes, as the failure gossip uses it: reads and writes
//! whole lines without blocking.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::bootstrap::BootstrapRest;
use crate::bootstrap::fault::Fault;
use crate::reactor::Interest;

/// Byte that a process writes on its control connections before it closes them without having died.
pub(crate) const FAREWELL: u8 = b'.';
/// The longest line. A stream with a longer one ends.
pub(crate) const LINE_MAX: usize = (2 << 20) + 1024;

/// One connection, with the received bytes not yet parsed and the bytes still to send.
pub(crate) struct Line<F: AsFd> {
    stream: Option<F>,
    /// What comes before the first line: the rest of a bootstrap.
    rest: Option<BootstrapRest>,
    input: Vec<u8>,
    output: VecDeque<u8>,
}

/// How a stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The other side closed or reset it, or its kernel did, or something between the hosts: its
    /// process may have died, or the stream was given up, as by a kernel whose messages nobody
    /// acknowledges.
    Closed,
    /// The other host has not answered for long.
    Silent,
}

/// Something received on a line.
pub(crate) enum Heard<'a> {
    /// A line, with its end.
    Text(&'a [u8]),
    /// The process at the other end takes part. From now on the end of the stream may be that
    /// process's end, unless it said farewell.
    Greeting,
    /// The process at the other end closes the connection next. It has not died.
    Farewell,
    /// The rank at the other end has failed in the bootstrap that this rank has left.
    Failed(Fault),
}

impl<F: AsFd> std::fmt::Debug for Line<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line(open {}, {} bytes to send)", self.is_open(), self.output.len())
    }
}

impl<F: AsFd> Line<F> {
    pub(crate) fn new(stream: F) -> Self {
        let (input, output) = (Vec::new(), VecDeque::new());
        Self { stream: Some(stream), rest: None, input, output }
    }

    /// A stream that was a bootstrap's: its lines come after what that still has to say, on both
    /// sides.
    pub(crate) fn after(stream: F, rest: BootstrapRest, unsent: Vec<u8>) -> Self {
        Self { rest: Some(rest), output: VecDeque::from(unsent), ..Self::new(stream) }
    }

    /// A stream that was opened after the bootstrap: an empty line goes ahead.
    pub(crate) fn greeting(stream: F) -> Self {
        Self { output: VecDeque::from(*b"\n"), ..Self::new(stream) }
    }

    pub(crate) fn stream(&self) -> Option<&F> {
        self.stream.as_ref()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether the other side may still say something of its bootstrap.
    pub(crate) const fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// Whether all queued bytes were handed to the kernel.
    pub(crate) fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    pub(crate) fn interest(&self) -> Option<Interest> {
        let stream = self.stream.as_ref()?;
        Some(Interest { fd: stream.as_fd().as_raw_fd(), read: true, write: !self.output.is_empty() })
    }

    pub(crate) fn say(&mut self, text: &[u8]) {
        if self.stream.is_some() {
            self.output.extend(text);
        }
    }

    /// Reads all messages that have arrived. Returns how the stream has ended, if it just has.
    pub(crate) fn read(&mut self, mut hear: impl FnMut(Heard<'_>)) -> Option<End> {
        let mut buffer = [0; 4096];
        // Bytes received during the bootstrap are parsed before newly received ones.
        if !self.hear(&mut hear) {
            return self.end(End::Closed);
        }
        while let Some(stream) = &self.stream {
            match rustix::io::read(stream.as_fd(), &mut buffer) {
                Ok(n) if n > 0 => self.input.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => continue,
                Err(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                    return self.end(End::Silent);
                }
                Ok(_) | Err(_) => return self.end(End::Closed),
            }
            if !self.hear(&mut hear) {
                return self.end(End::Closed);
            }
            // The remaining bytes are the beginning of one line.
            if self.input.len() >= LINE_MAX {
                return self.end(End::Closed);
            }
        }
        None
    }

    /// Parses the complete lines received so far. Returns whether more may come.
    fn hear(&mut self, hear: &mut impl FnMut(Heard<'_>)) -> bool {
        if let Some(rest) = &mut self.rest {
            match rest.hear(&std::mem::take(&mut self.input)) {
                None => return true,
                Some(Err(fault)) => {
                    hear(Heard::Failed(fault));
                    return false;
                }
                Some(Ok(lines)) => (self.rest, self.input) = (None, lines),
            }
        }
        loop {
            if self.input.first() == Some(&FAREWELL) {
                self.input.remove(0);
                hear(Heard::Farewell);
                continue;
            }
            let Some(at) = self.input.iter().position(|&b| b == b'\n') else { return true };
            let line: Vec<u8> = self.input.drain(..=at).collect();
            hear(if line == b"\n" { Heard::Greeting } else { Heard::Text(&line) });
        }
    }

    fn end(&mut self, how: End) -> Option<End> {
        self.output.clear();
        self.stream.take().map(|_| how)
    }

    pub(crate) fn write(&mut self) {
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
