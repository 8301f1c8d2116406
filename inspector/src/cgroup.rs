//! The control groups of a process: limits and counters, for cgroup versions 1 and 2.

use std::path::{Path, PathBuf};

/// Where the kernel shows control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// The readable files of a process's control group and of each group around it, innermost first.
///
/// `names` are the file's names in version 2 and version 1.
pub(crate) fn files(pid: &str, controller: &str, names: [&str; 2]) -> Vec<(PathBuf, String)> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let read = |path: PathBuf| std::fs::read_to_string(&path).ok().map(|text| (path, text));
    candidates(&groups, controller, names).into_iter().filter_map(read).collect()
}

/// The least number in these files, with its file; `None` if no file sets a limit.
pub(crate) fn least(files: &[(PathBuf, String)]) -> Option<(u64, &Path)> {
    let numbers = files.iter().filter_map(|(path, text)| Some((text.trim().parse().ok()?, path.as_path())));
    // Where there is no limit, version 1 writes the largest number of pages.
    numbers.filter(|(number, _)| *number < 1 << 62).min_by_key(|(number, _)| *number)
}

/// The numbers of a file of `name number` lines.
pub(crate) fn counts(text: &str) -> Vec<(String, u64)> {
    let pair = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_string(), number.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
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
