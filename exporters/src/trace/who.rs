//! Which process a file of a folder is of. Parts of several hosts, containers and runs may come together: there, pids repeat, and so
//! may the names of hosts.

use ccl::clock;
use ccl::snapshot::ProcessSnapshot;
use serde::{Deserialize, Serialize};

/// One process, among all whose files may lie in one folder.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Who {
    /// Its host.
    pub(super) host: String,
    /// Its pid, as it sees itself.
    pub(super) pid: u32,
    /// When it began to be traced or, where it is traced from outside, made its recorder: nanoseconds since 1970.
    pub(super) begun_ns: u64,
}

impl Who {
    /// This process, which begins to be traced.
    pub(super) fn of_this_process() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { host: host.trim().into(), pid: std::process::id(), begun_ns: clock::real_ns() }
    }

    /// Another process.
    pub(super) fn of(process: &ProcessSnapshot) -> Self {
        Self { host: process.host.clone(), pid: process.pid, begun_ns: process.made_real_ns }
    }

    /// The name of its file of some kind.
    pub(super) fn file_name(&self, kind: &str) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let host: String = self.host.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        format!("{kind}-{host}-{}-{}.json", self.pid, self.begun_ns)
    }
}
