//! Information from the kernel about processes: pids across namespaces, the processors allowed,
//! limits; and forks for tests.

use rustix::io::Errno;

use crate::error::{Error, ErrorKind, OPEN_FILES, Result};

/// The number of processors that this process may use: its affinity mask and its control group's
/// quota, at least 1.
#[must_use]
pub fn allowed_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The pids of process `pid` (`None`: this process) in its own namespaces.
///
/// They go from the namespace of the /proc mounted here to the innermost one. `None` if there is no
/// such process or the kernel does not report them.
#[must_use]
pub fn namespace_pids(pid: Option<u32>) -> Option<Vec<u32>> {
    let who = pid.map_or_else(|| "self".to_string(), |pid| pid.to_string());
    parse_namespace_pids(&std::fs::read_to_string(format!("/proc/{who}/status")).ok()?)
}

fn parse_namespace_pids(status: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let pids: Option<Vec<u32>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    pids.filter(|pids| !pids.is_empty())
}

/// Time at which this process was started, in clock ticks since boot.
///
/// Together with the pid it is a unique name. `None` if the kernel does not report it.
pub(crate) fn start_ticks() -> Option<u64> {
    parse_start_ticks(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

fn parse_start_ticks(line: &str) -> Option<u64> {
    // The name is in parentheses and may hold any character, including parentheses.
    line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The state letter of the process of this pid in this pid namespace that was started then.
///
/// `None` if there is no such process.
pub(crate) fn letter(pid: u32, start_ticks: u64) -> Option<char> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let letter = line.get(line.rfind(')')? + 1..)?.trim_start().chars().next();
    letter.filter(|_| parse_start_ticks(&line) == Some(start_ticks))
}

/// The inode of the pid namespace of this process, and whether the /proc mounted here is of it.
///
/// `None` if the kernel does not report them.
pub(crate) fn pid_namespace() -> Option<(u64, bool)> {
    use std::os::unix::fs::MetadataExt;
    let is_own = namespace_pids(None)? == [std::process::id()];
    std::fs::metadata("/proc/self/ns/pid").ok().map(|about| (about.ino(), is_own))
}

/// Refuses a file of `bytes` bytes if this process may not create it.
///
/// The kernel would not return an error, but end the process (SIGXFSZ).
///
/// # Errors
/// `Unavailable`, with the limit.
pub fn check_file_size(bytes: u64) -> Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let Some(limit) = limit.filter(|limit| *limit < bytes) else { return Ok(()) };
    let what =
        format!("a file of {bytes} bytes is needed, and this process may make files of {limit} at most");
    Err(Error::new(ErrorKind::Unavailable, what)
        .hint("raise the limit where the ranks are started (ulimit -f unlimited, LimitFSIZE=)"))
}

/// The hint for a process, or its kernel, that has no memory left.
pub(crate) const NEEDS_MEMORY: &str =
    "give the host or the container more memory, or raise the limit on addresses (ulimit -v)";

/// Raises the limit of open files as far as allowed.
///
/// A root holds a connection to every rank, an inspector holds the recorders of a job.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || (limit.current.is_some() && limit.maximum.is_none()) {
        limit.current = limit.maximum;
        // Some sandboxes refuse it: then the previous limit holds.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Whether the error is a shortage of this process or its kernel, independent of the peer.
#[must_use]
pub fn is_own_limit(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}

/// The resource that is missing after such an error, and a hint.
#[must_use]
pub fn lacks(errno: Errno) -> (String, &'static str) {
    match errno {
        Errno::MFILE => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
            let limit = limit.map_or_else(String::new, |limit| format!(" (limit {limit})"));
            (format!("no file descriptor left{limit}"), OPEN_FILES)
        }
        Errno::NFILE => ("no file descriptor left in its whole system".into(), OPEN_FILES),
        _ => ("no memory left in its kernel".into(), NEEDS_MEMORY),
    }
}

/// Limits the files that this process may create to `bytes` bytes.
#[cfg(test)]
#[cfg(not(miri))]
pub(crate) fn limit_file_size(bytes: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), maximum: Some(bytes) }).unwrap();
}

/// Runs `work` in a forked child and returns its status; `None` if a signal ended it.
///
/// The child must not need locks that other threads may hold.
#[cfg(test)]
#[cfg(not(miri))]
pub(crate) fn in_fork(work: impl FnOnce() -> i32) -> Option<i32> {
    wait(fork(work))
}

/// Forks a child that runs `work` and exits with its status. Returns the child's pid.
#[cfg(test)]
#[cfg(not(miri))]
pub(crate) fn fork(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `work` and exits without returning into the test harness. It has one
    // thread. glibc keeps its allocator usable in it, and `work` takes no other lock.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork refused");
        if pid == 0 {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(101);
            libc::_exit(status);
        }
        pid
    }
}

/// Waits for a child and returns its status; `None` if a signal ended it.
#[cfg(test)]
#[cfg(not(miri))]
pub(crate) fn wait(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

/// Kills a child with SIGKILL, which it cannot block.
#[cfg(test)]
#[cfg(not(miri))]
pub(crate) fn kill(pid: i32) {
    // SAFETY: kill(2) takes no memory.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_pids_end_with_the_one_the_process_sees_itself() {
        assert_eq!(parse_namespace_pids("Name:\tx\nNSpid:\t4711\t12\t1\n"), Some(vec![4711, 12, 1]));
        assert_eq!(parse_namespace_pids("NSpid:\t\n"), None);
        assert_eq!(parse_namespace_pids("Name:\tx\n"), None);
        #[cfg(not(miri))]
        assert_eq!(namespace_pids(None).and_then(|pids| pids.last().copied()), Some(std::process::id()));
    }

    #[test]
    fn a_start_is_found_behind_any_name() {
        let line = "71 (a) R 1 (b) T 9 71 71 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1 1";
        assert_eq!(parse_start_ticks(line), Some(12345));
        assert_eq!(parse_start_ticks("71 (a"), None);
        #[cfg(not(miri))]
        assert!(start_ticks().is_some());
    }

    #[test]
    #[cfg(not(miri))]
    fn a_letter_is_that_of_the_process_that_was_started_then() {
        let (own, start) = (std::process::id(), start_ticks().unwrap());
        assert!(matches!(letter(own, start), Some('R' | 'S')));
        assert_eq!(letter(own, start + 1), None);
        assert_eq!(letter(u32::MAX, start), None);
    }

    #[test]
    fn at_least_one_processor_is_allowed() {
        assert!(allowed_cpus() >= 1);
    }
}
