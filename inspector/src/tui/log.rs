//! The log: events of the ranks, and their output if they were launched here. Bounded in bytes.

use std::collections::VecDeque;

use serde::Serialize;

use crate::words;

/// The most bytes of text kept.
const BYTES_MAX: usize = 4 << 20;
/// The most lines.
const LINES_MAX: usize = 5_000;

/// The source of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Origin {
    /// A rank's recorder.
    Event,
    /// A rank's standard output, or its launcher.
    Output,
    /// A rank's standard error, or its launcher.
    Error,
}

impl Origin {
    /// The word shown to users.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Output => "out",
            Self::Error => "err",
        }
    }
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Entry {
    /// Its number, from 0; never used twice.
    pub(crate) number: u64,
    /// When, in nanoseconds since 1970.
    pub(crate) real_ns: u64,
    /// The rank of the job, if one is known.
    pub(crate) rank: Option<u32>,
    /// The source.
    pub(crate) origin: Origin,
    /// The communicator's name; empty if there is none.
    pub(crate) comm: String,
    /// The text.
    pub(crate) text: String,
}

/// The lines, oldest first.
#[derive(Clone, Default, Debug)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    bytes: usize,
    written: u64,
}

impl Log {
    /// Inserts a line in order of time.
    ///
    /// Events are read some time after they happened, output at once.
    pub(crate) fn push(&mut self, entry: Entry) {
        let (comm, text) = (words::line(&entry.comm), words::line(&entry.text));
        self.bytes += text.len();
        let later = self.entries.iter().rev().take_while(|other| other.real_ns > entry.real_ns).count();
        let at = self.entries.len() - later;
        self.entries.insert(at, Entry { number: self.written, comm, text, ..entry });
        self.written += 1;
        while self.bytes > BYTES_MAX || self.entries.len() > LINES_MAX {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.text.len();
        }
    }

    /// Adds labelled lines as a launcher writes them: `[rank] text`.
    pub(crate) fn push_output(&mut self, lines: &[u8], origin: Origin, real_ns: u64) {
        for line in String::from_utf8_lossy(lines).lines() {
            let labelled = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
            let labelled = labelled.and_then(|(rank, text)| Some((rank.trim().parse().ok()?, text)));
            let (rank, text) = labelled.map_or((None, line), |(rank, text)| (Some(rank), text));
            let (comm, text) = (String::new(), text.to_string());
            self.push(Entry { number: 0, real_ns, rank, origin, comm, text });
        }
    }

    /// The lines that are kept.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The number of lines that were dropped.
    pub(crate) fn lost(&self) -> u64 {
        self.written - self.entries.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_ranks() {
        let mut log = Log::default();
        log.push_output(b"[ 3] a ] b\nccl-inspect: rank 3\n[x] c\n", Origin::Output, 7);
        let said: Vec<_> = log.entries().map(|entry| (entry.rank, entry.text.as_str())).collect();
        assert_eq!(said, [(Some(3), "a ] b"), (None, "ccl-inspect: rank 3"), (None, "[x] c")]);
    }

    #[test]
    fn lines_stand_in_the_order_of_their_times() {
        let mut log = Log::default();
        for (text, real_ns) in [("out", 632), ("event", 604), ("last", 640), ("at once", 632), ("old", 3)] {
            log.push_output(text.as_bytes(), Origin::Output, real_ns);
        }
        let said: Vec<_> = log.entries().map(|entry| entry.text.as_str()).collect();
        assert_eq!(said, ["old", "event", "out", "at once", "last"]);
    }

    #[test]
    fn a_line_of_output_stays_one_and_steers_no_terminal() {
        let mut log = Log::default();
        log.push_output("[0] a\u{1b}[2J\u{202e}b\rc\n".as_bytes(), Origin::Output, 7);
        let said: Vec<_> = log.entries().map(|entry| entry.text.as_str()).collect();
        assert_eq!(said, ["a\\u{1b}[2J\\u{202e}b\\rc"]);
    }

    #[test]
    fn the_oldest_go_and_are_counted() {
        let mut log = Log::default();
        let line = vec![b'x'; 1 << 10];
        for _ in 0..BYTES_MAX / (1 << 10) + 2 {
            log.push_output(&line, Origin::Output, 0);
        }
        assert_eq!((log.entries().count(), log.lost()), (BYTES_MAX / (1 << 10), 2));
        assert_eq!(log.entries().next().map(|entry| entry.number), Some(2));
        for _ in 0..LINES_MAX {
            log.push_output(b"x", Origin::Output, 0);
        }
        assert_eq!(log.entries().count(), LINES_MAX);
    }
}
