//! What the kernel counts of a process: the processor time of its threads, how long they waited for
//! a processor, and how often the quotas of its control groups were used up.
//!
//! A process chooses its own name, so any text may be odd.

use std::io::Read;

use super::cgroup::{self, counts};

/// The most bytes that are read of a file of /proc about a thread; each has a line or two.
const MAX_FILE: u64 = 16 << 10;
/// The most threads that are added up.
const MOST_THREADS: usize = 4096;
/// The flag of /proc/PID/stat that says that a thread is exiting.
const PF_EXITING: u64 = 0x4;

/// The counters of a process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Load {
    /// Whether all of its threads are exiting.
    pub is_dying: bool,
    /// The processor time of its threads.
    pub cpu_ns: u64,
    /// How long its threads have waited for a processor.
    pub run_delay_ns: u64,
    /// How often the quotas of its control group, and of those around it, were used up.
    pub throttled: u64,
}

/// The stat line of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadStat {
    /// Its name.
    pub name: String,
    /// Its state.
    pub letter: char,
    /// Whether it is exiting.
    pub is_exiting: bool,
    /// The processor time that it has used, in clock ticks.
    ticks: u64,
}

impl ThreadStat {
    /// The processor time that it has used.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        self.ticks.saturating_mul(1_000_000_000 / ticks_per_second)
    }
}

impl Load {
    /// Reads a process; `None` if there is none. Each of its threads is shown to `show`, with its
    /// id, in order.
    pub fn of(pid: u32, mut show: impl FnMut(u32, ThreadStat)) -> Option<Self> {
        let mut load = Self { is_dying: true, ..Self::default() };
        let mut is_there = false;
        for tid in tids(pid)? {
            let read = |name: &str| read(&format!("/proc/{pid}/task/{tid}/{name}"));
            // A thread that ended meanwhile is left out.
            let Some(stat) = read("stat").and_then(|line| stat(&line)) else { continue };
            is_there = true;
            load.is_dying &= stat.is_exiting;
            load.cpu_ns = load.cpu_ns.saturating_add(stat.cpu_ns());
            let delay = read("schedstat").and_then(|text| run_delay_ns(&text)).unwrap_or(0);
            load.run_delay_ns = load.run_delay_ns.saturating_add(delay);
            show(tid, stat);
        }
        let quotas = cgroup::files(&pid.to_string(), "cpu", ["cpu.stat"; 2]);
        load.throttled = quotas.iter().map(|(_, text)| throttled(text)).fold(0, u64::saturating_add);
        is_there.then_some(load)
    }
}

/// The threads of a process, in order; `None` if there is no such process.
fn tids(pid: u32) -> Option<Vec<u32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let tids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut tids: Vec<u32> = tids.take(MOST_THREADS).collect();
    tids.sort_unstable();
    Some(tids)
}

/// The function of the kernel in which a thread sleeps; empty if it does not, or if not known.
#[must_use]
pub fn wchan(pid: u32, tid: u32) -> String {
    sleeps_in(&read(&format!("/proc/{pid}/task/{tid}/wchan")).unwrap_or_default()).to_string()
}

/// The name in a wchan file. Some kernels write 0 for a thread that runs.
fn sleeps_in(text: &str) -> &str {
    let name = text.trim();
    if name == "0" { "" } else { name }
}

/// A file of /proc, as text; `None` if it may not be read.
#[must_use]
pub fn read(path: &str) -> Option<String> {
    // Most take a hundred bytes: with room they are read at once.
    let mut bytes = Vec::with_capacity(4 << 10);
    std::fs::File::open(path).ok()?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A line of /proc/PID/task/TID/stat.
fn stat(line: &str) -> Option<ThreadStat> {
    // The name stands in parentheses and may hold any character, including parentheses.
    let (opens, closes) = (line.find('(')?, line.rfind(')')?);
    let name = line.get(opens + 1..closes)?.to_string();
    let fields: Vec<&str> = line.get(closes + 1..)?.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let letter = fields.first()?.chars().next().filter(char::is_ascii_alphabetic)?;
    Some(ThreadStat {
        name,
        letter,
        is_exiting: number(6)? & PF_EXITING != 0 || matches!(letter, 'Z' | 'X' | 'x'),
        ticks: number(11)?.saturating_add(number(12)?),
    })
}

/// How long a thread has waited for a processor, in nanoseconds: the second number of its
/// schedstat.
fn run_delay_ns(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// How often the quota of a control group was used up, by its cpu.stat.
fn throttled(text: &str) -> u64 {
    counts(text).into_iter().find(|(name, _)| name == "nr_throttled").map_or(0, |(_, count)| count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_behind_any_name() {
        let line = |name: &str, state: &str, flags: u64| {
            format!("71 ({name}) {state} 9 71 71 0 -1 {flags} 1 0 0 0 30 12 0 0 20 0 1 0 12345 1 1 1")
        };
        let check = |text: &str, expect: Option<(&str, char, bool, u64)>| {
            let expect = expect.map(|(name, letter, is_exiting, ticks)| ThreadStat {
                name: name.into(),
                letter,
                is_exiting,
                ticks,
            });
            assert_eq!(stat(text), expect, "{text}");
        };
        check(&line("a", "S", 0x40_0040), Some(("a", 'S', false, 42)));
        check(&line("a) R 1 (b", "T", 0), Some(("a) R 1 (b", 'T', false, 42)));
        check(&line("a", "R", 0x40_0044), Some(("a", 'R', true, 42)));
        check(&line("a", "Z", 0), Some(("a", 'Z', true, 42)));
        check(&line("a", "", 0), None);
        check("71 (a", None);
        check(")(", None);
        check("", None);
    }

    #[test]
    fn a_thread_sleeps_somewhere_or_nowhere() {
        let check = |text: &str, expect: &str| assert_eq!(sleeps_in(text), expect, "{text}");
        check("futex_do_wait\n", "futex_do_wait");
        check("0", "");
        check("0\n", "");
        check("", "");
    }

    #[test]
    fn other_texts_are_read_as_far_as_they_go() {
        assert_eq!(run_delay_ns("8314087 120 1\n"), Some(120));
        assert_eq!(run_delay_ns("8314087"), None);
        assert_eq!(throttled("nr_periods 10\nnr_throttled 7\nthrottled_time 123\n"), 7);
        assert_eq!(throttled("usage_usec 5\nnr_throttled 8\nthrottled_usec 4\n"), 8);
        assert_eq!(throttled(""), 0);
    }

    #[test]
    #[cfg(not(miri))]
    fn a_process_that_has_exited_and_is_not_waited_for_is_dying() {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let mut letters = Vec::new();
        let load = Load::of(child.id(), |_, stat| letters.push(stat.letter)).unwrap();
        assert!(load.is_dying && letters == ['Z'], "{load:?} {letters:?}");
        child.wait().unwrap();
        assert_eq!(Load::of(child.id(), |_, _| ()), None);
    }

    #[test]
    #[cfg(not(miri))]
    fn this_process_is_seen_to_run() {
        let own = std::process::id();
        let mut tids = Vec::new();
        let load = Load::of(own, |tid, _| tids.push(tid)).unwrap();
        assert!(!load.is_dying && tids.contains(&own), "{load:?} {tids:?}");
        assert_eq!(Load::of(u32::MAX, |_, _| ()), None);
        assert_eq!(wchan(own, u32::MAX), "");
    }
}
