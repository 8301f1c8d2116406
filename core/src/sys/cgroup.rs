//! The control groups of a process: limits and counters, for cgroup versions 1 and 2.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Where the kernel shows control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// The files that count kills for want of memory, in version 2 and version 1.
pub const OOM_FILES: [&str; 2] = ["memory.events", "memory.oom_control"];

/// The readable files of a process's control group and of each group around it, innermost first.
///
/// `names` are the file's names in version 2 and version 1.
#[must_use]
pub fn files(pid: &str, controller: &str, names: [&str; 2]) -> Vec<(PathBuf, String)> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let read = |path: PathBuf| bounded(&path).ok().map(|text| (path, text));
    candidates(&groups, controller, names).into_iter().filter_map(read).collect()
}

/// The least number in these files, with its file; `None` if no file sets a limit.
#[must_use]
pub fn least(files: &[(PathBuf, String)]) -> Option<(u64, &Path)> {
    let numbers = files.iter().filter_map(|(path, text)| Some((text.trim().parse().ok()?, path.as_path())));
    // Where there is no limit, version 1 writes the largest number of pages.
    numbers.filter(|(number, _)| *number < 1 << 62).min_by_key(|(number, _)| *number)
}

/// The numbers of a file of `name number` lines.
#[must_use]
pub fn counts(text: &str) -> Vec<(String, u64)> {
    let pair = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_string(), number.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// The memory group of a process: where its counters lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryGroup {
    /// The folder of the group, as mounted here.
    pub folder: PathBuf,
    /// The inode of that folder, which no other group has.
    pub inode: u64,
}

impl MemoryGroup {
    /// The group of this process; `None` if no group is mounted here that counts.
    #[must_use]
    pub fn own() -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let files = candidates(&groups, "memory", OOM_FILES);
        let at = |file: PathBuf| Self::at(file.parent()?).filter(|group| group.oom_kills().is_some());
        files.into_iter().find_map(at)
    }

    /// The group at this folder, which may be any text: only groups below the usual mount count.
    #[must_use]
    pub fn at(folder: &Path) -> Option<Self> {
        let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        let is_below = folder.starts_with(ROOT) && folder.components().all(is_plain);
        let about = if is_below { std::fs::symlink_metadata(folder).ok()? } else { return None };
        about.is_dir().then(|| Self { folder: folder.to_path_buf(), inode: about.ino() })
    }

    /// The processes of this group that the kernel has killed because memory ran out; `None` if it
    /// does not count them, or no longer.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        OOM_FILES.iter().find_map(|name| {
            let text = bounded(&self.folder.join(name)).ok()?;
            counts(&text).into_iter().find(|(name, _)| name == "oom_kill").map(|(_, count)| count)
        })
    }
}

/// The processes that the kernel has killed because memory ran out in the group at `folder` since
/// it had counted `first`; 0 if another group is there now.
#[must_use]
pub fn kills_since(folder: &Path, inode: u64, first: u64) -> u64 {
    let group = MemoryGroup::at(folder).filter(|group| group.inode == inode);
    group.and_then(|group| group.oom_kills()).unwrap_or(0).saturating_sub(first)
}

/// The most bytes that are read of a file of counters.
const MAX_FILE: u64 = 64 << 10;

/// The text of a file of the kernel, so much of it as any such file has.
fn bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(text)
}

fn candidates(groups: &str, controller: &str, [v2, v1]: [&str; 2]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, name) = match controllers {
            "" => (PathBuf::from(ROOT), v2),
            some if some.split(',').any(|one| one == controller) => (Path::new(ROOT).join(some), v1),
            _ => continue,
        };
        // If the group itself is not mounted here, as in some containers, its files are at the
        // root.
        let path = path.trim_start_matches('/');
        let within = Path::new(path).ancestors().filter(|group| !group.starts_with(".."));
        found.extend(within.map(|group| root.join(group).join(name)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_looked_for_from_the_inside_out() {
        let check = |groups: &str, expect: &[&str]| {
            let found = candidates(groups, "memory", ["memory.max", "memory.limit_in_bytes"]);
            assert_eq!(found, expect.iter().map(PathBuf::from).collect::<Vec<_>>());
        };
        check(
            "0::/a/b\n",
            &["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"],
        );
        check(
            "4:memory:/a\n3:cpu,cpuacct:/b\n",
            &["/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"],
        );
        check("0::/../outside\n", &["/sys/fs/cgroup/memory.max"]);
        check("garbage", &[]);
    }

    #[test]
    fn only_a_group_below_the_mount_is_one() {
        for path in ["", "/", "/proc/1", "sys/fs/cgroup", "/sys/fs/cgroup/../../etc", "/sys/fs/cgroupx"] {
            assert_eq!(MemoryGroup::at(Path::new(path)), None, "{path}");
        }
        if let Some(own) = MemoryGroup::own() {
            assert_eq!(MemoryGroup::at(&own.folder), Some(own));
        }
    }

    #[test]
    fn the_least_limit_binds_and_no_limit_is_none() {
        let file = |name: &str, text: &str| (PathBuf::from(name), text.to_string());
        let files =
            [file("a", "max\n"), file("b", "500\n"), file("c", "9223372036854771712\n"), file("d", "700")];
        assert_eq!(least(&files), Some((500, Path::new("b"))));
        assert_eq!(least(&files[..1]), None);
        let counted = counts("oom 1\noom_kill 3\nx\n");
        assert_eq!(counted, [("oom".to_string(), 1), ("oom_kill".to_string(), 3)]);
    }
}
