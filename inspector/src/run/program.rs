//! Finds the program that `run` is to start: as a path, on the PATH, or beside `ccl-inspect`.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The file to execute for `name`; `None` if there is none.
pub(super) fn find(name: &OsStr, path: &str, beside: Option<&Path>) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        // For a file named by its path, executing it gives the more precise error.
        return Some(PathBuf::from(name));
    }
    let folders = std::env::split_paths(path).chain(beside.map(Path::to_path_buf));
    folders
        .filter(|folder| !folder.as_os_str().is_empty())
        .map(|folder| folder.join(name))
        .find(|p| executable(p))
}

/// Whether this file can be executed.
pub(super) fn executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_comes_first_then_the_folder_of_the_launcher() {
        let root = tempfile::tempdir().unwrap();
        let file = |folder: &str, name: &str, mode: u32| {
            let folder = root.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), "").unwrap();
            std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
            folder.join(name)
        };
        let on_path = file("bin", "both", 0o755);
        let beside = root.path().join("beside");
        file("beside", "both", 0o755);
        let only_beside = file("beside", "train", 0o755);
        file("bin", "train", 0o644);
        let path = format!(":{}", root.path().join("bin").display());
        let find = |name: &str| find(OsStr::new(name), &path, Some(&beside));
        assert_eq!(find("both"), Some(on_path));
        assert_eq!(find("train"), Some(only_beside), "a file that cannot be executed is passed over");
        assert_eq!(find("absent"), None);
        assert_eq!(find("./absent"), Some(PathBuf::from("./absent")));
    }
}
