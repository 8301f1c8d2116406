//! A bar on standard error that says which row is being measured, if that is a terminal.

use std::io::{IsTerminal, Write, stderr};

/// The bar.
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
        self.write(&format!("\r\x1b[K{}", line(self.done, self.all, what)));
        self.done += 1;
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

/// The bar when `done` of `all` rows have ended and the next one, `what`, has begun.
fn line(done: usize, all: usize, what: &str) -> String {
    const CELLS: usize = 20;
    let full = CELLS * done.min(all) / all.max(1);
    format!("[{}{}] {}/{all} {what}", "#".repeat(full), ".".repeat(CELLS - full), done + 1)
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_bar_is_as_full_as_rows_have_ended() {
        assert_eq!(line(0, 4, "all_reduce"), "[....................] 1/4 all_reduce");
        assert_eq!(line(3, 4, "barrier"), "[###############.....] 4/4 barrier");
    }
}
