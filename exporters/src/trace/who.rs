//! The identity of the process that wrote a file. Parts of several hosts, containers and runs may
//! be in one folder: pids repeat there, and host names may too.

use ccl::clock;
use ccl::snapshot::ProcessSnapshot;
use serde::{Deserialize, Serialize};

/// A process, unique among all whose files may lie in one folder.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Who {
    /// Its host.
    pub(super) host: String,
    /// Its pid in its own pid namespace.
    pub(super) pid: u32,
    /// When its trace began or, if it is traced from outside, when it made its recorder:
    /// nanoseconds since 1970.
    pub(super) begun_ns: u64,
}

impl Who {
    /// This process, whose trace begins now.
    pub(super) fn of_this_process() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { host: host.trim().into(), pid: std::process::id(), begun_ns: clock::real_ns() }
    }

    /// Another process.
    pub(super) fn of(process: &ProcessSnapshot) -> Self {
        Self { host: process.host.clone(), pid: process.pid, begun_ns: process.made_real_ns }
    }

    /// The name of its file of this kind and number, from 0.
    pub(super) fn segment_name(&self, kind: &str, segment: u64) -> String {
        let first = self.file_name(kind);
        if segment == 0 { first } else { first.replace(".json", &format!(".{segment}.json")) }
    }

    /// The name of its first file of this kind.
    pub(super) fn file_name(&self, kind: &str) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let host: String = self.host.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        format!("{kind}-{host}-{}-{}.json", self.pid, self.begun_ns)
    }
}
