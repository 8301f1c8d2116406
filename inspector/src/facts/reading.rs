//! One reading of what a process does, and what two of them say.

use ccl::clock;
use ccl::snapshot::{MAX_THREADS, ProcessFacts, ProcessLoad, ThreadFacts};
use ccl::sys::load::{Load, read, wchan};

use super::texts;
use crate::process::started_ns;

/// What the kernel says of a process at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Reading {
    /// Its counters.
    load: ProcessLoad,
    /// Its first threads.
    pub(super) threads: Vec<ThreadFacts>,
    /// Whether all of its threads are exiting.
    dying: bool,
}

impl Reading {
    /// Reads a process; `None` if there is none.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let (at, mut threads) = (clock::now(), Vec::new());
        let load = Load::of(pid, |tid, stat| {
            if threads.len() < MAX_THREADS {
                let read = |name: &str| read(&format!("/proc/{pid}/task/{tid}/{name}"));
                threads.push(ThreadFacts {
                    tid,
                    letter: Some(stat.letter),
                    wchan: wchan(pid, tid),
                    syscall: read("syscall").map(|text| texts::syscall(&text)).unwrap_or_default(),
                    cpu_ms: stat.cpu_ns() / 1_000_000,
                    name: stat.name,
                });
            }
        })?;
        Some(Self { load: ProcessLoad::at(at, &load), threads, dying: load.is_dying })
    }

    /// Adds what it says to the facts; with an earlier reading what happened meanwhile, else what
    /// happened since its start, if that is known.
    pub(super) fn tell(self, before: Option<&Self>, start_ticks: u64, facts: &mut ProcessFacts) {
        match before {
            Some(before) => facts.measure(&before.load, &self.load),
            None if start_ticks > 0 => {
                facts.average(self.load.at_ns.saturating_sub(started_ns(start_ticks)), &self.load);
            }
            None => {}
        }
        facts.dying = self.dying;
        facts.threads = self.threads;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_to_run() {
        let own = std::process::id();
        let reading = Reading::of(own).unwrap();
        assert!(!reading.dying && reading.threads.iter().any(|thread| thread.tid == own));
        assert!(reading.threads.iter().all(|thread| thread.letter.is_some() && !thread.name.is_empty()));
        assert_eq!(Reading::of(u32::MAX), None);
    }
}
