//! Whether a dead process was killed because memory ran out: the counter of its control group, and
//! the kernel's log.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use ccl::clock;
use ccl::snapshot::ProcessSnapshot;
use ccl::sys::cgroup::kills_since;
use ccl::sys::load::read;

use super::texts;
use crate::process::started_ns;

/// The kernel's number of the first pid namespace, whose pids its log has.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// The most bytes of a record of the log.
const RECORD: usize = 8 << 10;
/// The most records that are read: more than the largest usual log has.
const MOST_RECORDS: usize = 1 << 17;
/// How long the log is read at most.
const READS_FOR: Duration = Duration::from_millis(500);

/// The kills that a process's control group has counted since its recorder was made: read now,
/// since the kill of the process itself comes after its last sample.
///
/// The path is what the recorder says, so it counts only where the group is the same as then.
pub(super) fn kills(process: &ProcessSnapshot) -> u64 {
    let sampled = process.facts.oom_kills;
    let Some(count) = process.memory else { return sampled };
    kills_since(Path::new(&process.facts.cgroup), count.inode, count.first).max(sampled)
}

/// The processes that the kernel's log says were killed because memory ran out.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// By pid, when: in nanoseconds since boot.
    killed: BTreeMap<u32, u64>,
}

impl Log {
    /// Reads the log of this kernel, so far as this user may.
    pub(super) fn of_kernel() -> Self {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = std::fs::File::options().read(true).custom_flags(flags).open("/dev/kmsg");
        let Ok(mut file) = opened else { return Self::default() };
        // The log's clock does not count the time in which the machine slept.
        let up_ns = read("/proc/uptime").and_then(|text| uptime_ns(&text)).unwrap_or(0);
        let slept_ns = up_ns.saturating_sub(clock::now().0);
        let (mut killed, mut record) = (BTreeMap::new(), [0; RECORD]);
        let end = clock::now().after(READS_FOR);
        for _ in 0..MOST_RECORDS {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(len) => {
                    let found = texts::killed(&String::from_utf8_lossy(&record[..len]));
                    killed.extend(found.map(|(pid, at_us)| (pid, at_us.saturating_mul(1000) + slept_ns)));
                }
                // Records were overwritten before they were read.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
            if clock::now() >= end {
                break;
            }
        }
        Self { killed }
    }

    /// Whether it has the death of this process.
    ///
    /// An older process may have had the same pid. Of a process of another pid namespace the log's
    /// pid is not known.
    pub(super) fn has(&self, process: &ProcessSnapshot) -> bool {
        let started_ns = started_ns(process.start_ticks);
        process.pid_namespace == FIRST_PID_NAMESPACE
            && process.start_ticks != 0
            && self.killed.get(&process.pid).is_some_and(|at_ns| *at_ns >= started_ns)
    }
}

/// The time since boot, by /proc/uptime.
fn uptime_ns(text: &str) -> Option<u64> {
    let seconds: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
    Some((seconds * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::{MemoryCount, ProcessFacts};
    use ccl::sys::cgroup::MemoryGroup;

    use super::*;

    #[test]
    fn the_log_names_a_process_by_pid_and_time() {
        let log = Log { killed: [(71, 5_000_000_000)].into() };
        let check = |pid: u32, pid_namespace: u64, start_ticks: u64, expect: bool| {
            let process = ProcessSnapshot { pid, pid_namespace, start_ticks, ..ProcessSnapshot::default() };
            assert_eq!(log.has(&process), expect, "{pid} {pid_namespace} {start_ticks}");
        };
        check(71, FIRST_PID_NAMESPACE, 400, true);
        // A later process with the same pid.
        check(71, FIRST_PID_NAMESPACE, 600, false);
        check(72, FIRST_PID_NAMESPACE, 400, false);
        check(71, 7, 400, false);
        check(71, FIRST_PID_NAMESPACE, 0, false);
    }

    #[test]
    fn a_group_is_read_again_only_if_it_is_the_same() {
        let check = |cgroup: &str, memory: Option<MemoryCount>, expect: u64| {
            let facts = ProcessFacts { cgroup: cgroup.into(), oom_kills: 2, ..ProcessFacts::default() };
            let process = ProcessSnapshot { facts, memory, ..ProcessSnapshot::default() };
            assert_eq!(kills(&process), expect, "{cgroup}");
        };
        check("", None, 2);
        check("/etc", Some(MemoryCount { inode: 1, first: 0 }), 2);
        let Some(own) = MemoryGroup::own() else { return };
        let folder = own.folder.to_string_lossy();
        let now = own.oom_kills().unwrap();
        check(&folder, Some(MemoryCount { inode: own.inode, first: 0 }), now.max(2));
        check(&folder, Some(MemoryCount { inode: own.inode + 1, first: 0 }), 2);
    }

    #[test]
    fn the_time_since_boot_is_read() {
        assert_eq!(uptime_ns("12.50 3.00\n"), Some(12_500_000_000));
        assert_eq!(uptime_ns(""), None);
    }
}
