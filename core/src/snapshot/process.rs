//! What a process does, and how it ended: what it said itself, and what the kernel says of it.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::verdict::{Class, Reason, Standing};
use super::words::words;
use crate::clock::Ns;
use crate::sys::load::Load;
use crate::types::{BlameHash, Rank};

words! {
    /// How a process ended.
    End {
        /// It left every communicator by `finish()`.
        Finished = "finished",
        /// It exited with a communicator in use, or gave one up without `finish()`.
        Exited = "exited",
        /// It panicked.
        Panicked = "panicked",
        /// A signal ended it, as its own handler said.
        Signalled = "signalled",
        /// It is dead and said nothing: it was killed, or left by `_exit`.
        Killed = "killed",
    }
}

// Its numbers are stored in recorders: a new word goes to the end.
words! {
    /// What a process lacks for the connections of its ranks.
    Lacks {
        /// It may open no more files, or nobody on its machine may.
        Descriptors = "file descriptors",
        /// Its kernel has no memory for it.
        Memory = "kernel memory",
    }
}

impl From<Errno> for Lacks {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::MFILE | Errno::NFILE => Self::Descriptors,
            _ => Self::Memory,
        }
    }
}

/// What is known of a process beside its recorder's tables.
///
/// What lives is described as of the reading; its shares are those of the time between two readings
/// of the kernel, a quarter of a second apart.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessFacts {
    /// How it ended; `unknown` while it lives, and of recorders before layout 9.
    pub end: End,
    /// The signal that ended it: as its own handler said, or, if it was killed, as its launcher
    /// (`ccl-inspect run`) saw. Absent if not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// The folder of its memory control group; empty if none counts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// The processes of that group that the kernel has killed because memory ran out, since the
    /// recorder was made.
    pub oom_kills: u64,
    /// Whether the kernel's log says that it killed this process because memory ran out.
    pub oom_logged: bool,
    /// The stall that its watchdog told or heard of last, as long as it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<StallTold>,
    /// What it lacks, so that its ranks cannot connect to others; sampled once a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<Lacks>,
    /// Whether its end is in progress: all its threads are exiting, or it is a zombie.
    pub dying: bool,
    /// Whether it was kept from processors: its quota was used up, or its threads waited for a
    /// processor for more than half of the time. Absent if it was not measured twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_starved: Option<bool>,
    /// How often its control group's quota of processor time was used up meanwhile.
    pub throttled: u64,
    /// How long its threads, taken together, waited for a processor, in percent of the time, or of
    /// its whole life if it was not measured twice; 255 at most.
    pub run_delay_pct: u8,
    /// How long its threads ran, in percent of the time; 255 at most.
    pub cpu_pct: u8,
    /// What its kernel had counted, if the process was read by one of its host that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<ProcessLoad>,
    /// Its threads: the first 64 where an inspector read it; the first one and the service thread
    /// where a process of its host did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadFacts>,
}

/// What the kernel had counted of a process at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessLoad {
    /// The moment, on the monotonic clock of its host.
    pub at_ns: u64,
    /// The processor time of its threads.
    pub cpu_ns: u64,
    /// How long its threads have waited for a processor.
    pub run_delay_ns: u64,
    /// How often the quotas of its control group, and of those around it, were used up.
    pub throttled: u64,
}

impl ProcessLoad {
    /// What was counted at this moment.
    #[must_use]
    pub const fn at(now: Ns, load: &Load) -> Self {
        let Load { cpu_ns, run_delay_ns, throttled, .. } = *load;
        Self { at_ns: now.0, cpu_ns, run_delay_ns, throttled }
    }
}

/// A stall that a watchdog told.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct StallTold {
    /// Whether it is a fault or may be one.
    pub standing: Standing,
    /// What is wrong.
    pub class: Class,
    /// What the culprits did, or what happened to them.
    pub reason: Reason,
    /// The rank of the job whose process told it; absent if not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<Rank>,
    /// Whether this process told it.
    pub is_own: bool,
    /// How long ago it was told or heard.
    pub ago_ns: u64,
    /// A hash of who is to blame.
    pub key: BlameHash,
    /// What is wrong, in one sentence.
    pub text: String,
}

/// A thread, as the kernel describes it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadFacts {
    /// Its id, as seen by the inspector.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Its state: R running, S and D asleep, T and t stopped, Z and X dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letter: Option<char>,
    /// The kernel function in which it sleeps; empty if it does not, or if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub wchan: String,
    /// The system call in which it is blocked: a name, or a number; `none` if it is blocked outside
    /// of a call, as in a page fault; `running` if it is not blocked, so it has a processor or is
    /// ready for one; empty if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub syscall: String,
    /// The processor time that it has used, in milliseconds.
    pub cpu_ms: u64,
}

/// What the memory group of a process had counted when its recorder was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryCount {
    /// The inode of the group's folder.
    pub inode: u64,
    /// The kills for want of memory.
    pub first: u64,
}

impl ProcessFacts {
    /// The facts to show of a process: one that lives on has not ended, whatever it said.
    #[must_use]
    pub fn shown(&self, lives: bool) -> Self {
        match lives && !self.dying {
            true => Self { end: End::Unknown, signal: None, ..self.clone() },
            false => self.clone(),
        }
    }

    /// Says what was counted once, of a process that has lived for so long.
    pub fn average(&mut self, life_ns: u64, load: &ProcessLoad) {
        self.run_delay_pct = percent(load.run_delay_ns, life_ns.max(1));
    }

    /// Says what happened between two moments; nothing if they are the same.
    pub fn measure(&mut self, before: &ProcessLoad, now: &ProcessLoad) {
        let passed_ns = now.at_ns.saturating_sub(before.at_ns);
        if passed_ns == 0 {
            return;
        }
        let percent = |part: u64| percent(part, passed_ns);
        // A thread that ended took its counters with it.
        let delay_ns = now.run_delay_ns.saturating_sub(before.run_delay_ns);
        self.throttled = now.throttled.saturating_sub(before.throttled);
        self.run_delay_pct = percent(delay_ns);
        let cpu_ns = now.cpu_ns.saturating_sub(before.cpu_ns);
        self.cpu_pct = percent(cpu_ns);
        // Of many threads, some always wait for a processor.
        let is_crowded_out = delay_ns > passed_ns / 2 && delay_ns > cpu_ns;
        self.is_starved = Some(self.throttled > 0 || is_crowded_out);
    }
}

fn percent(part: u64, of: u64) -> u8 {
    u8::try_from(part.saturating_mul(100) / of).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_lives_on_has_not_ended() {
        let check = |lives: bool, dying: bool, expect: (End, Option<u8>)| {
            let facts = ProcessFacts { end: End::Killed, signal: Some(9), dying, ..ProcessFacts::default() };
            let shown = facts.shown(lives);
            assert_eq!((shown.end, shown.signal), expect, "{lives} {dying}");
        };
        check(true, false, (End::Unknown, None));
        check(true, true, (End::Killed, Some(9)));
        check(false, false, (End::Killed, Some(9)));
    }

    #[test]
    fn a_process_is_starved_by_its_quota_or_by_others() {
        let ms = 1_000_000;
        let check = |throttled: u64, delay_ms: u64, cpu_ms: u64, expect: (bool, u64, u8, u8)| {
            let before = ProcessLoad { at_ns: 5, cpu_ns: 7, run_delay_ns: 9, throttled: 3 };
            let now = ProcessLoad {
                at_ns: 5 + 250 * ms,
                cpu_ns: 7 + cpu_ms * ms,
                run_delay_ns: 9 + delay_ms * ms,
                throttled: 3 + throttled,
            };
            let mut facts = ProcessFacts::default();
            facts.measure(&before, &now);
            let said = (facts.is_starved.unwrap(), facts.throttled, facts.run_delay_pct, facts.cpu_pct);
            assert_eq!(said, expect, "{throttled} {delay_ms} {cpu_ms}");
        };
        check(0, 0, 0, (false, 0, 0, 0));
        check(0, 125, 250, (false, 0, 50, 100));
        check(0, 126, 120, (true, 0, 50, 48));
        check(1, 0, 50, (true, 1, 0, 20));
        // Four threads on one processor, and on four.
        check(0, 750, 250, (true, 0, 255, 100));
        check(0, 1000, 1000, (false, 0, 255, 255));
    }

    #[test]
    fn one_moment_measures_nothing_and_counters_may_go_back() {
        let mut facts = ProcessFacts::default();
        let before = ProcessLoad { at_ns: 9, cpu_ns: 5, run_delay_ns: 5, throttled: 1 };
        facts.measure(&before, &before);
        assert_eq!(facts, ProcessFacts::default());
        facts.measure(&before, &ProcessLoad { at_ns: 10, ..ProcessLoad::default() });
        assert_eq!((facts.is_starved, facts.throttled, facts.run_delay_pct), (Some(false), 0, 0));
    }

    #[test]
    fn words_of_later_versions_are_unknown_and_nothing_is_absent() {
        let facts: ProcessFacts = serde_json::from_str(r#"{"end":"evaporated","new":1}"#).unwrap();
        assert_eq!(facts, ProcessFacts::default());
        let killed = ProcessFacts { end: End::Killed, signal: Some(9), ..ProcessFacts::default() };
        let json = serde_json::to_string(&killed).unwrap();
        assert!(json.contains(r#""end":"killed","signal":9,"oom_kills":0"#), "{json}");
        assert_eq!(serde_json::from_str::<ProcessFacts>(&json).unwrap(), killed);
    }
}
