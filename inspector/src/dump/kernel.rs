//! What the kernel says of a machine and of a process at the moment of a dump.

use std::collections::BTreeMap;

use ccl::sys::cgroup;
use serde::{Deserialize, Serialize};

use super::secrets;
use crate::process;

/// The most threads of a process that are described.
const MAX_THREADS: usize = 4096;

/// A machine.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Machine {
    /// Its name.
    pub(super) host: String,
    /// Kernel and compiler.
    pub(super) kernel: String,
    /// Distinguishes one boot from another.
    pub(super) boot_id: String,
    /// Processors that the inspector might use.
    pub(super) cpus: usize,
    /// `/proc/meminfo`.
    pub(super) memory: String,
    /// Processes killed because memory ran out, since boot; absent if the kernel does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) oom_kill: Option<u64>,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Process {
    /// As seen from where the dump was made.
    pub(super) pid: u32,
    /// The version of its ccl.
    pub(super) library: String,
    /// Its settings that differ from the defaults, as it read them.
    pub(super) settings: String,
    /// Its environment variables that are settings; secrets are masked.
    pub(super) environment: BTreeMap<String, String>,
    /// `/proc/PID/limits`.
    pub(super) limits: String,
    /// The counters of the memory limit of its control group: `oom_kill` and others.
    pub(super) memory_events: BTreeMap<String, u64>,
    /// Its threads.
    pub(super) threads: Vec<Thread>,
}

/// A thread, in the kernel's own words.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Thread {
    /// Its id.
    pub(super) tid: u32,
    /// Its line in `stat`: name, state and times.
    pub(super) stat: String,
    /// The kernel function in which it sleeps; empty or `0` if it does not, or if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) wchan: String,
    /// Its stack in the kernel, which only root may read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) stack: String,
}

/// This machine.
pub(super) fn machine() -> Machine {
    let text = |path: &str| std::fs::read_to_string(path).map_or_else(|_| String::new(), |s| s.trim().into());
    let counted = cgroup::counts(&text("/proc/vmstat"));
    Machine {
        host: text("/proc/sys/kernel/hostname"),
        kernel: text("/proc/version"),
        boot_id: text("/proc/sys/kernel/random/boot_id"),
        cpus: ccl::sys::process::allowed_cpus(),
        memory: text("/proc/meminfo"),
        oom_kill: counted.into_iter().find(|(name, _)| name == "oom_kill").map(|(_, count)| count),
    }
}

/// A process of this machine; `refused` gets the items that could not be read, and why.
pub(super) fn process(pid: u32, refused: &mut Vec<(&'static str, String)>) -> Process {
    let mut refuse = |what: &'static str, error: std::io::Error| {
        let one = (what, error.to_string());
        if !refused.contains(&one) {
            refused.push(one);
        }
    };
    let threads = threads(pid, &mut refuse);
    // The variables lie in its memory, which a thread that sleeps uninterruptibly in the kernel may
    // keep locked.
    let environment =
        if threads.iter().any(|thread| process::parse(&thread.stat).is_some_and(|stat| stat.state == 'D')) {
            Err(std::io::Error::other("a thread is in state D, and reading might never end"))
        } else {
            std::fs::read(format!("/proc/{pid}/environ"))
        };
    let environment = environment
        .map_err(|e| refuse("the environment", e))
        .map_or_else(|()| Vec::new(), |bytes| secrets::settings(&bytes));
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))
        .map_err(|e| refuse("the resource limits", e))
        .unwrap_or_default();
    let events = cgroup::files(&pid.to_string(), "memory", cgroup::OOM_FILES);
    if events.is_empty() {
        refuse("the memory events of the control group", std::io::ErrorKind::NotFound.into());
    }
    let counted = events.first().map(|(_, text)| cgroup::counts(text)).unwrap_or_default();
    Process {
        pid,
        environment: environment.into_iter().collect(),
        limits,
        memory_events: counted.into_iter().collect(),
        threads,
        ..Process::default()
    }
}

fn threads(pid: u32, refuse: &mut impl FnMut(&'static str, std::io::Error)) -> Vec<Thread> {
    let tids = tids(pid).unwrap_or_else(|e| {
        refuse("the threads", e);
        Vec::new()
    });
    if tids.len() > MAX_THREADS {
        refuse(
            "the threads after the first 4096",
            std::io::Error::other(format!("there are {}", tids.len())),
        );
    }
    let mut threads = Vec::new();
    for tid in tids.into_iter().take(MAX_THREADS) {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}"));
        // A thread that ended meanwhile is left out.
        let Ok(stat) = read("stat") else { continue };
        let mut optional = |what: &'static str, name: &str| {
            read(name).map(|text| text.trim().to_string()).unwrap_or_else(|e| {
                refuse(what, e);
                String::new()
            })
        };
        let wchan = optional("where threads sleep in the kernel", "wchan");
        let stack = optional("the kernel stacks", "stack");
        threads.push(Thread { tid, stat: stat.trim().to_string(), wchan, stack });
    }
    threads
}

fn tids(pid: u32) -> std::io::Result<Vec<u32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    let mut tids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    Ok(tids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_this_process_are_told_of() {
        let machine = machine();
        assert!(machine.kernel.starts_with("Linux version ") && machine.cpus > 0 && !machine.host.is_empty());
        let own = std::process::id();
        let mut refused = Vec::new();
        let process = process(own, &mut refused);
        assert!(process.limits.contains("Max open files"), "{refused:?}");
        let main = process.threads.iter().find(|thread| thread.tid == own).unwrap();
        assert!(main.stat.starts_with(&format!("{own} (")), "{}", main.stat);
        assert!(process.environment.keys().all(|name| name.starts_with("CCL_") || name.starts_with("OTEL_")));
    }

    #[test]
    fn of_no_process_nothing_can_be_had() {
        let mut refused = Vec::new();
        assert_eq!(process(u32::MAX, &mut refused), Process { pid: u32::MAX, ..Process::default() });
        let what: Vec<_> = refused.iter().map(|(what, _)| *what).collect();
        assert!(what.contains(&"the environment") && what.contains(&"the threads"), "{what:?}");
    }
}
