//! What /proc says of a process.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use ccl::snapshot::ProcessSnapshot;

/// The fields of /proc/PID/stat that this program uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    /// The state's letter: R running, S and D asleep, T and t stopped, Z and X dead.
    pub(crate) state: char,
    /// The parent.
    pub(crate) parent: u32,
    /// The time of its start, in clock ticks since boot; unique together with the pid.
    pub(crate) start: u64,
}

/// The stat line of a process; `None` if there is none.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The fate of the process that wrote a recorder, according to /proc.
///
/// Read for a process that has given its recorder back. That a process of another user or namespace
/// is not visible proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It exists, under this pid and in this state.
    Lives(u32, char),
    /// It has ended.
    Ended,
    /// It cannot be seen from here.
    Unknown,
}

impl Fate {
    /// The state's letter, if it was seen, and whether the process has ended.
    pub(crate) const fn told(self) -> (Option<char>, bool) {
        match self {
            Self::Lives(_, letter) => (Some(letter), false),
            Self::Ended => (None, true),
            Self::Unknown => (None, false),
        }
    }
}

/// What has become of the process that wrote this recorder.
pub(crate) fn fate(process: &ProcessSnapshot) -> Fate {
    let me = rustix::process::geteuid().as_raw();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let is_here = !process.boot_id.is_empty() && process.boot_id == boot.trim();
    // Processes of other users may be hidden. Only if /proc belongs to this pid namespace do its
    // pids mean the same as the pid in the recorder.
    let may_see = me == 0 || process.uid == me;
    let own = std::process::id();
    let is_ours = ccl::sys::process::namespace_pids(None).is_some_and(|pids| pids == [own])
        && pid_namespace(own) == Some(process.pid_namespace);
    if !is_here || !may_see {
        return Fate::Unknown;
    }
    let is_it = |pid: u32, found: &Stat| {
        found.start == process.start_ticks && (is_ours || pid_namespace(pid) == Some(process.pid_namespace))
    };
    let pid = if is_ours { process.pid } else { process.outer_pid };
    match stat(pid) {
        Some(found) if process.start_ticks != 0 && is_it(pid, &found) => Fate::Lives(pid, found.state),
        // An older recorder has no start time, so it is unknown whether the process that has this
        // pid now is the one that wrote it.
        Some(_) if process.start_ticks == 0 => Fate::Unknown,
        _ if is_ours => Fate::Ended,
        _ => Fate::Unknown,
    }
}

/// The program that a process runs; `None` if it is about to end or may not be inspected.
pub(crate) fn program(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Every process that this one can see.
pub(crate) fn all() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The user a process runs as.
pub(crate) fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|m| m.uid())
}

/// The user that a process runs as in every respect.
///
/// `None` if the process has the rights of several users, or if there is no such process.
pub(crate) fn user(pid: u32) -> Option<u32> {
    one_user(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// The group that a process runs as, in the same way.
pub(crate) fn group(pid: u32) -> Option<u32> {
    one_of(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "Gid:")
}

fn one_user(status: &str) -> Option<u32> {
    one_of(status, "Uid:")
}

fn one_of(status: &str, field: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    // The real, effective, saved and file system ids.
    let mut users = line.split_whitespace().map(|word| word.parse::<u32>().ok());
    let real = users.next()??;
    users.all(|one| one == Some(real)).then_some(real)
}

/// The inode of the pid namespace a process lives in.
pub(crate) fn pid_namespace(pid: u32) -> Option<u64> {
    std::fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|m| m.ino())
}

/// A stat line, of a process or a thread.
pub(crate) fn parse(line: &str) -> Option<Stat> {
    // The name stands in parentheses and may hold any character, including parentheses.
    let mut fields = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Stat { state, parent, start: fields.nth(17)?.parse().ok()? })
}

/// When a process started, since boot, of its start in clock ticks.
pub(crate) fn started_ns(start_ticks: u64) -> u64 {
    let second = rustix::param::clock_ticks_per_second().max(1);
    start_ticks.saturating_mul(1_000_000_000 / second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let line = "71 (a) R 1 (b) T 9 71 71 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1 1";
        assert_eq!(parse(line), Some(Stat { state: 'T', parent: 9, start: 12345 }));
        assert_eq!(parse("71 (a"), None);
    }

    #[test]
    fn who_has_the_rights_of_two_users_is_neither() {
        assert_eq!(one_user("Name:\tx\nUid:\t7\t7\t7\t7\n"), Some(7));
        for mixed in ["Uid:\t7\t0\t0\t0", "Uid:\t0\t0\t7\t0", "Uid:\t7\t7\t7\t0", "Uid:\t", "Name:\tx"] {
            assert_eq!(one_user(mixed), None, "{mixed:?}");
        }
        assert_eq!(user(std::process::id()), Some(rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn this_process_runs_and_is_listed() {
        let own = std::process::id();
        assert!(matches!(stat(own).unwrap().state, 'R' | 'S'));
        assert!(all().contains(&own));
        assert_eq!(stat(u32::MAX), None);
    }
}
