//! The ranks' output: whole lines, each behind its rank's label.
//!
//! One thread per stream writes. If the reader stops reading, it holds up the ranks, as a pipe
//! does, but the launcher still handles signals.

use std::io::Write;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, watch};

/// A longer line is broken, so that a rank that never ends its line costs bounded memory.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Cuts a stream of bytes into labelled lines.
#[derive(Debug)]
pub(super) struct Lines {
    label: Vec<u8>,
    partial: Vec<u8>,
}

impl Lines {
    /// A stream whose lines are labelled `[rank] `, the rank padded to `width`.
    pub(super) fn new(rank: u32, width: usize) -> Self {
        Self { label: format!("[{rank:>width$}] ").into_bytes(), partial: Vec::new() }
    }

    /// Takes bytes that were read; gives the lines that are now complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4 + self.label.len());
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() >= LINE_BYTES_MAX {
                out.append(&mut self.finish());
            }
        }
        out
    }

    /// The rest when the stream ends: a last line without a line end gets one.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        if self.partial.is_empty() {
            return Vec::new();
        }
        let mut out = self.label.clone();
        out.append(&mut self.partial);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
        out
    }
}

/// Where labelled lines go: standard output or standard error, behind a thread.
#[derive(Clone, Debug)]
pub(super) struct Sink(mpsc::Sender<Vec<u8>>);

/// Why nothing more can be written to an output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Closed {
    /// It has no reader any more, who may have seen enough.
    NoReader,
    /// It failed.
    Failed(String),
}

/// The writing side of a [`Sink`].
#[derive(Debug)]
pub(super) struct Writer {
    thread: std::thread::JoinHandle<()>,
    /// Why nothing more can be written, once that is so.
    pub(super) closed: watch::Receiver<Option<Closed>>,
}

/// A sink, and the thread that writes its lines to `to`.
pub(super) fn sink(mut to: impl Write + Send + 'static) -> (Sink, Writer) {
    let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(256);
    let (tell_closed, closed) = watch::channel(None);
    let thread = std::thread::spawn(move || {
        while let Some(lines) = receiver.blocking_recv() {
            // After a failure the rest is taken and dropped, so that no rank is held up while it is
            // ended.
            let is_open = tell_closed.borrow().is_none();
            if is_open && let Err(e) = to.write_all(&lines).and_then(|()| to.flush()) {
                let is_pipe = e.kind() == std::io::ErrorKind::BrokenPipe;
                tell_closed.send_replace(Some(if is_pipe {
                    Closed::NoReader
                } else {
                    Closed::Failed(e.to_string())
                }));
            }
        }
    });
    (Sink(sender), Writer { thread, closed })
}

impl Sink {
    /// Sends whole lines to the thread.
    pub(super) async fn write(&self, lines: Vec<u8>) {
        // The thread receives until the last sink is dropped.
        let _ = self.0.send(lines).await;
    }

    /// Writes one line of the launcher's own.
    pub(super) async fn say(&self, line: &str) {
        self.write(format!("ccl-inspect: {line}\n").into_bytes()).await;
    }

    /// Copies a rank's stream to its end.
    pub(super) async fn copy(self, mut from: impl AsyncRead + Unpin, mut lines: Lines) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
            let whole = lines.push(&buffer[..bytes]);
            if !whole.is_empty() {
                self.write(whole).await;
            }
        }
        let rest = lines.finish();
        if !rest.is_empty() {
            self.write(rest).await;
        }
    }
}

impl Writer {
    /// Waits until everything is written. All sinks must have been dropped.
    pub(super) fn finish(self) {
        // A panic of that thread was already reported.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&str], expect: &str) {
        let mut lines = Lines::new(3, 2);
        let mut out: Vec<u8> = pieces.iter().flat_map(|piece| lines.push(piece.as_bytes())).collect();
        out.extend(lines.finish());
        assert_eq!(String::from_utf8(out).unwrap(), expect);
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        check(&[], "");
        check(&["a\nb\n"], "[ 3] a\n[ 3] b\n");
        check(&["a", "", "b\n", "\n", "c"], "[ 3] ab\n[ 3] \n[ 3] c\n");
        check(&["a\r", "b\n"], "[ 3] a\rb\n");
    }

    #[test]
    fn a_line_without_end_is_broken_at_the_limit() {
        let mut lines = Lines::new(0, 1);
        assert!(lines.push(&vec![b'x'; LINE_BYTES_MAX - 1]).is_empty());
        let broken = lines.push(b"xy");
        assert_eq!((broken.len(), broken.last()), (4 + LINE_BYTES_MAX + 2, Some(&b'\n')));
        assert!(lines.finish().is_empty());
    }
}
