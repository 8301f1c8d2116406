//! The runtime folders, `ccl-UID` in one of a few places, and the files of recorders in them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ccl::config::{Key, Settings};

/// The places where a runtime folder may lie, in the order in which ccl tries them.
pub(crate) fn places(settings: &Settings) -> Vec<PathBuf> {
    let users = std::fs::read_dir("/run/user").into_iter().flatten().flatten().map(|entry| entry.path());
    let fixed = ["/run", "/dev/shm", "/tmp"].map(PathBuf::from);
    settings.given(Key::RuntimeDir).map(PathBuf::from).into_iter().chain(users).chain(fixed).collect()
}

/// The runtime folders in `places` that belong to `uid`, or to any user if `uid` is root.
pub(crate) fn folders(places: &[PathBuf], uid: u32) -> Vec<PathBuf> {
    let mut folders: Vec<_> = places
        .iter()
        .filter_map(|place| std::fs::read_dir(place).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .filter(|path| {
            owner_by_name(path).is_some_and(|owner| (uid == 0 || uid == owner) && is_folder_of(path, owner))
        })
        .collect();
    folders.sort();
    folders.dedup();
    folders
}

fn owner_by_name(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix("ccl-")?.parse().ok()
}

/// Refused are links and folders that carry the name of another user: either may be a trap.
fn is_folder_of(path: &Path, owner: u32) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == owner && m.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn own_folders_are_found_and_traps_are_not() {
        let root = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let place = |name: &str, mode: u32| {
            let folder = root.path().join(name).join(format!("ccl-{uid}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
            folder
        };
        let good = place("good", 0o700);
        place("open", 0o777);
        std::fs::create_dir(root.path().join("linked")).unwrap();
        symlink(&good, root.path().join("linked").join(format!("ccl-{uid}"))).unwrap();
        std::fs::create_dir(root.path().join("good/ccl-x")).unwrap();
        let places: Vec<_> =
            ["good", "open", "linked", "absent"].iter().map(|name| root.path().join(name)).collect();
        assert_eq!(folders(&places, uid), std::slice::from_ref(&good));
        assert_eq!(folders(&places, uid + 1), Vec::<PathBuf>::new());
    }

    #[test]
    fn the_places_begin_with_the_configured_one() {
        let mut settings = Settings::default();
        assert!(!places(&settings).contains(&PathBuf::from("/configured")));
        settings.set(Key::RuntimeDir, "/configured").unwrap();
        let places = places(&settings);
        assert_eq!(places[0], PathBuf::from("/configured"));
        assert_eq!(places[places.len() - 3..], ["/run", "/dev/shm", "/tmp"].map(PathBuf::from));
    }
}
