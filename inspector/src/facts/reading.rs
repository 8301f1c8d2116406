//! One reading of what a process does, and what two of them say.

use std::io::Read;

use ccl::clock::{self, Ns};
use ccl::snapshot::{MAX_THREADS, ProcessFacts, ThreadFacts};
use ccl::sys::cgroup;

use super::texts;

/// The most bytes that are read of a file of /proc about a thread; each has a line or two.
const MAX_FILE: u64 = 16 << 10;
/// The most threads that are added up.
const MOST_THREADS: usize = 4096;

/// What the kernel says of a process at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Reading {
    /// When.
    pub(super) at: Ns,
    /// Its first threads.
    pub(super) threads: Vec<ThreadFacts>,
    /// Whether all of its threads are exiting.
    pub(super) dying: bool,
    /// The processor time of its threads, in clock ticks.
    pub(super) ticks: u64,
    /// How long its threads have waited for a processor.
    pub(super) run_delay_ns: u64,
    /// How often the quotas of its control group, and of those around it, were used up.
    pub(super) throttled: u64,
}

impl Reading {
    /// Reads a process; `None` if there is none.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let mut reading = Self { at: clock::now(), dying: true, ..Self::default() };
        for (at, tid) in tids(pid)?.into_iter().enumerate() {
            let read = |name: &str| read(&format!("/proc/{pid}/task/{tid}/{name}"));
            // A thread that ended meanwhile is left out.
            let Some(stat) = read("stat").and_then(|line| texts::stat(&line)) else { continue };
            reading.dying &= stat.is_exiting;
            reading.ticks = reading.ticks.saturating_add(stat.ticks);
            let delay = read("schedstat").and_then(|text| texts::run_delay_ns(&text)).unwrap_or(0);
            reading.run_delay_ns = reading.run_delay_ns.saturating_add(delay);
            if at < MAX_THREADS {
                reading.threads.push(ThreadFacts {
                    tid,
                    name: stat.name,
                    letter: Some(stat.letter),
                    wchan: read("wchan").map(|text| texts::wchan(&text)).unwrap_or_default(),
                    syscall: read("syscall").map(|text| texts::syscall(&text)).unwrap_or_default(),
                    cpu_ms: stat.ticks.saturating_mul(1000) / ticks_per_second(),
                });
            }
        }
        let quotas = cgroup::files(&pid.to_string(), "cpu", ["cpu.stat"; 2]);
        reading.throttled =
            quotas.iter().map(|(_, text)| texts::throttled(text)).fold(0, u64::saturating_add);
        (!reading.threads.is_empty()).then_some(reading)
    }

    /// Adds what it says to the facts; with an earlier reading, also what happened meanwhile.
    pub(super) fn tell(self, before: Option<&Self>, facts: &mut ProcessFacts) {
        if let Some(before) = before {
            let passed_ns = self.at.since(before.at).as_nanos() as u64;
            let cpu_ns =
                self.ticks.saturating_sub(before.ticks).saturating_mul(1_000_000_000 / ticks_per_second());
            let delay_ns = self.run_delay_ns.saturating_sub(before.run_delay_ns);
            facts.throttled = self.throttled.saturating_sub(before.throttled);
            facts.run_delay_pct = percent(delay_ns, passed_ns);
            facts.cpu_pct = percent(cpu_ns, passed_ns);
            facts.is_starved = Some(facts.throttled > 0 || delay_ns > passed_ns / 2);
        }
        facts.dying = self.dying;
        facts.threads = self.threads;
    }
}

fn percent(part: u64, whole: u64) -> u8 {
    u8::try_from(part.saturating_mul(100) / whole.max(1)).unwrap_or(u8::MAX)
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// The threads of a process, in order; `None` if there is no such process.
pub(crate) fn tids(pid: u32) -> Option<Vec<u32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let tids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut tids: Vec<u32> = tids.take(MOST_THREADS).collect();
    tids.sort_unstable();
    Some(tids)
}

/// A file of /proc, as text; `None` if it may not be read.
pub(crate) fn read(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_starved_by_its_quota_or_by_others() {
        let ms = 1_000_000;
        let check = |throttled: u64, delay_ms: u64, ticks: u64, expect: (bool, u64, u8, u8)| {
            let before = Reading { at: Ns(5), ticks: 7, run_delay_ns: 9, throttled: 3, ..Reading::default() };
            let after = Reading {
                at: Ns(5 + 250 * ms),
                ticks: 7 + ticks,
                run_delay_ns: 9 + delay_ms * ms,
                throttled: 3 + throttled,
                ..Reading::default()
            };
            let mut facts = ProcessFacts::default();
            after.tell(Some(&before), &mut facts);
            let said = (facts.is_starved.unwrap(), facts.throttled, facts.run_delay_pct, facts.cpu_pct);
            assert_eq!(said, expect, "{throttled} {delay_ms} {ticks}");
        };
        check(0, 0, 0, (false, 0, 0, 0));
        check(0, 125, 25, (false, 0, 50, 100));
        check(0, 126, 12, (true, 0, 50, 48));
        check(1, 0, 5, (true, 1, 0, 20));
        // Four threads on one processor, and on four.
        check(0, 1000, 100, (true, 0, 255, 255));
    }

    #[test]
    fn one_reading_measures_nothing_and_clocks_may_go_back() {
        let mut facts = ProcessFacts::default();
        let reading = Reading { at: Ns(9), throttled: 1, run_delay_ns: 5, ..Reading::default() };
        reading.clone().tell(None, &mut facts);
        assert_eq!((facts.is_starved, facts.throttled), (None, 0));
        // A thread that ended took its counters with it.
        Reading { at: Ns(9), ..Reading::default() }.tell(Some(&reading), &mut facts);
        assert_eq!((facts.is_starved, facts.throttled, facts.run_delay_pct), (Some(false), 0, 0));
    }

    #[test]
    fn a_process_that_has_exited_and_is_not_waited_for_is_dying() {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let reading = Reading::of(child.id()).unwrap();
        assert!(reading.dying && reading.threads[0].letter == Some('Z'), "{reading:?}");
        child.wait().unwrap();
        assert_eq!(Reading::of(child.id()), None);
    }

    #[test]
    fn this_process_is_seen_to_run() {
        let own = std::process::id();
        let reading = Reading::of(own).unwrap();
        assert!(!reading.dying && reading.threads.iter().any(|thread| thread.tid == own));
        assert!(reading.threads.iter().all(|thread| thread.letter.is_some() && !thread.name.is_empty()));
        assert_eq!(Reading::of(u32::MAX), None);
    }
}
