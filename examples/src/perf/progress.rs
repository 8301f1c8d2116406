//! One line on standard error that says which row is being measured, if that is a terminal.

use std::io::{IsTerminal, Write, stderr};

/// The line.
#[derive(Debug)]
pub(super) struct Progress {
    shows: bool,
    done: usize,
    all: usize,
}

impl Progress {
    /// Of `all` rows, if it `shows` anything.
    pub(super) fn new(shows: bool, all: usize) -> Self {
        Self { shows: shows && stderr().is_terminal(), done: 0, all }
    }

    /// Another row begins.
    pub(super) fn begin(&mut self, what: &str) {
        self.done += 1;
        self.write(&format!("\r\x1b[K{}/{} {what}", self.done, self.all));
    }

    /// Clears the line, for others that write to the terminal.
    pub(super) fn clear(&self) {
        self.write("\r\x1b[K");
    }

    fn write(&self, text: &str) {
        if self.shows {
            // Without standard error there is nobody to tell.
            let _ = stderr().write_all(text.as_bytes());
        }
    }
}
