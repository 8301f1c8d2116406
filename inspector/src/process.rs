//! What /proc says of a process.

use std::os::unix::fs::MetadataExt;

/// One line of /proc/PID/stat, as far as anybody here reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    /// The state's letter: R running, S and D asleep, T and t stopped, Z and X dead.
    pub(crate) state: char,
    /// The parent.
    pub(crate) parent: u32,
    /// When it was started, in clock ticks since boot: with the pid, a name that is not used twice.
    pub(crate) start: u64,
}

/// The stat line of a process; `None` if there is none.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Every process this one can see.
pub(crate) fn all() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The user a process runs as.
pub(crate) fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|m| m.uid())
}

/// The user that a process runs as in every respect; `None` if it has the rights of several, or there is no such process.
pub(crate) fn user(pid: u32) -> Option<u32> {
    one_user(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn one_user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    // The real one, the effective, the saved, and the one for files.
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
    // The name stands in parentheses and may hold any character, parentheses too.
    let mut fields = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Stat { state, parent, start: fields.nth(17)?.parse().ok()? })
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
