//! Which program may be started: one of the caller's own PATH, and for root one that nobody else
//! can replace.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The file of this name on `path`; `None` if there is none that may be started.
///
/// Folders that are not absolute are passed over: the folder in which a user stands may be
/// another user's.
pub(super) fn find(name: &str, path: &str, is_root: bool) -> Option<PathBuf> {
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    let files = folders.filter_map(|folder| std::fs::canonicalize(folder.join(name)).ok());
    files.filter(|file| is_executable(file)).find(|file| !is_root || is_roots(file))
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// Whether only root can change a file, and every folder that leads to it.
fn is_roots(file: &Path) -> bool {
    file.ancestors().all(|part| {
        let sticky = |about: &std::fs::Metadata| about.is_dir() && about.mode() & 0o1000 != 0;
        std::fs::metadata(part)
            .is_ok_and(|about| about.uid() == 0 && (about.mode() & 0o022 == 0 || sticky(&about)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_starts_nothing_that_another_user_can_replace() {
        let place = tempfile::tempdir().unwrap();
        let [safe, open] = ["safe", "open"].map(|name| place.path().join(name));
        for folder in [&safe, &open] {
            std::fs::create_dir(folder).unwrap();
            let file = folder.join("tool");
            std::fs::write(&file, "").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::set_permissions(&safe, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        let path = |folders: &[&Path]| std::env::join_paths(folders).unwrap().into_string().unwrap();
        let name = |found: Option<PathBuf>| found.map(|file| file.parent().unwrap().to_path_buf());
        let both = path(&[&open, &safe]);
        let real = |folder: &Path| Some(folder.canonicalize().unwrap());
        assert_eq!(name(find("tool", &both, false)), real(&open));
        let is_root = rustix::process::geteuid().is_root();
        let roots = name(find("tool", &both, true));
        assert_eq!(roots, if is_root { real(&safe) } else { None });
        assert_eq!(find("tool", &path(&[Path::new("."), Path::new("")]), false), None);
        assert_eq!(find("absent", &both, false), None);
    }
}
