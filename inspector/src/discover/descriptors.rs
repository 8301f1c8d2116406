//! Recorders found as open descriptors of processes.
//!
//! `/proc/PID/fd/N` reaches files of other mount namespaces, unlinked files, and memfds, which have
//! no path at all.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::process;

/// The most descriptors of a process that are inspected.
///
/// One is its own; an inspector holds those of a whole job.
const MOST: usize = 1 << 10;

/// A descriptor that may be a recorder's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    /// The process that holds it.
    pub(crate) pid: u32,
    /// The path to open.
    pub(crate) path: PathBuf,
    /// The kernel's name for it: a path in the process's own mount namespace, or a memfd's name.
    pub(crate) link: PathBuf,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
}

/// The candidates among the descriptors of a process.
///
/// # Errors
/// The system's, if they cannot be listed: the process belongs to another user or does not exist.
pub(crate) fn of(pid: u32) -> std::io::Result<Vec<Descriptor>> {
    let mut all = usize::MAX;
    of_first(pid, &mut all)
}

/// The same among the first `left` ones, which it counts down: they cost a system call each.
///
/// # Errors
/// As [`of`].
fn of_first(pid: u32, left: &mut usize) -> std::io::Result<Vec<Descriptor>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Some(less) = left.checked_sub(1) else { break };
        *left = less;
        // A descriptor that is closed during the search is ignored.
        let Ok(entry) = entry else { continue };
        let path = entry.path();
        let Ok(link) = std::fs::read_link(&path) else { continue };
        if !may_be_recorder(&link) {
            continue;
        }
        if let Ok(identity) = identity(&path) {
            found.push(Descriptor { pid, path, link, identity });
        }
        if found.len() == MOST {
            break;
        }
    }
    Ok(found)
}

/// How many descriptors of another user's processes are looked at.
const MOST_HELD: usize = 1 << 17;

/// Descriptors, by the device and inode of their files.
pub(crate) type Held = BTreeMap<(u64, u64), Vec<Descriptor>>;

/// The candidates among all descriptors of all processes of this user, by file.
pub(crate) fn held() -> Held {
    let uid = rustix::process::geteuid().as_raw();
    let own = std::process::id();
    let may_look = |pid: &u32| *pid != own && (uid == 0 || process::owner(*pid) == Some(uid));
    let mut held = Held::new();
    // How many of each user may still be looked at: processes can share a large table.
    let mut left: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for pid in process::all().into_iter().filter(may_look) {
        let user = process::user(pid);
        let most = if user == Some(uid) { usize::MAX } else { MOST_HELD };
        let left = left.entry(user).or_insert(most);
        // Processes that forbid it or ended meanwhile may still be found by their files.
        for descriptor in of_first(pid, left).unwrap_or_default() {
            held.entry(descriptor.identity).or_default().push(descriptor);
        }
    }
    held
}

/// Device and inode of a file.
///
/// # Errors
/// The system's.
pub(crate) fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|m| (m.dev(), m.ino()))
}

fn may_be_recorder(link: &Path) -> bool {
    let link = link.as_os_str().as_encoded_bytes();
    let name = link.strip_suffix(b" (deleted)").unwrap_or(link);
    name.ends_with(b".rec")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn files_unlinked_ones_and_memfds_are_found_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let kept = File::create(folder.path().join("1.rec")).unwrap();
        let unlinked = File::create(folder.path().join("2.rec")).unwrap();
        std::fs::remove_file(folder.path().join("2.rec")).unwrap();
        let other = File::create(folder.path().join("1.log")).unwrap();
        let memfd = rustix::fs::memfd_create("3.rec", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let found = of(std::process::id()).unwrap();
        let seen = |fd: i32| found.iter().any(|d| d.path.ends_with(fd.to_string()));
        assert!(seen(kept.as_raw_fd()) && seen(unlinked.as_raw_fd()) && seen(memfd.as_raw_fd()));
        assert!(!seen(other.as_raw_fd()));
        let named = identity(&folder.path().join("1.rec")).unwrap();
        assert_eq!(found.iter().filter(|d| d.identity == named).count(), 1);
    }

    #[test]
    fn no_more_are_looked_at_than_allowed() {
        let _one = rustix::fs::memfd_create("4.rec", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut left = 1;
        assert!(of_first(std::process::id(), &mut left).unwrap().is_empty());
        assert_eq!(left, 0);
    }

    #[test]
    fn no_process_is_an_error() {
        assert!(of(u32::MAX).is_err());
    }
}
