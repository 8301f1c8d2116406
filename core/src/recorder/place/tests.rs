//! The places of recorder files: chosen, refused, full, pruned.

#![cfg(not(miri))]

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::config::Settings;

fn settings(folder: &Path) -> Settings {
    let mut settings = Settings::default();
    settings.set(Key::RuntimeDir, folder.to_str().unwrap()).unwrap();
    settings
}

fn full(fd: BorrowedFd<'_>, home: Home, bytes: u64) -> io::Result<()> {
    match home {
        Home::File => Err(Errno::NOSPC.into()),
        _ => allocate(fd, home, bytes),
    }
}

fn nearly_full(fd: BorrowedFd<'_>, home: Home, bytes: u64) -> io::Result<()> {
    if bytes > Capacity::LADDER[1].total() as u64 {
        Err(Errno::NOSPC.into())
    } else {
        allocate(fd, home, bytes)
    }
}

fn own() -> String {
    format!("ccl-{}", rustix::process::geteuid().as_raw())
}

#[test]
fn a_file_is_ours_alone_allocated_and_named_after_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut notes = Vec::new();
    let (place, capacity, memory) = create(&settings(folder.path()), allocate, &mut notes).unwrap();
    assert_eq!((capacity, place.home()), (Capacity::FULL, Home::File));
    assert_eq!(memory.words().len() * 8, capacity.total());
    let about = std::fs::metadata(place.path()).unwrap();
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    assert_eq!(about.len(), capacity.total() as u64);
    assert!(std::os::unix::fs::MetadataExt::blocks(&about) * 512 >= about.len(), "sparse");
    let above = place.path().parent().unwrap();
    assert_eq!(std::fs::metadata(above).unwrap().permissions().mode() & 0o777, 0o700);
    let name = place.path().file_name().unwrap().to_str().unwrap();
    let start = format!("{}-{}-", std::process::id(), pid_namespace());
    assert!(name.starts_with(&start) && name.ends_with(".rec"), "{name}");
    assert_eq!(place.beside("sock").unwrap(), place.path().with_extension("sock"));
    assert_eq!(files(above), [place.path()]);
    place.unlink();
    assert_eq!(files(above), [""; 0].map(PathBuf::from));
}

#[test]
fn a_full_file_system_means_smaller_rings_and_then_a_memfd() {
    let folder = tempfile::tempdir().unwrap();
    let mut notes = Vec::new();
    let (place, capacity, memory) = create(&settings(folder.path()), nearly_full, &mut notes).unwrap();
    assert_eq!((capacity, place.home()), (Capacity::LADDER[1], Home::File));
    assert_eq!(memory.words().len() * 8, capacity.total());
    let said = notes.last().unwrap();
    assert!(said.contains("KiB") && said.contains("No space left on device"), "{said}");
    assert_eq!(files(&folder.path().join(own())).len(), 1);

    let (place, capacity, _memory) = create(&settings(folder.path()), full, &mut notes).unwrap();
    assert_eq!((capacity, place.home()), (Capacity::FULL, Home::Memfd));
    assert!(place.path().starts_with(format!("/proc/{}/fd", std::process::id())), "{:?}", place.path());
    assert!(place.beside("sock").is_some());
    // Nothing is left of the failed attempts.
    assert_eq!(files(&folder.path().join(own())).len(), 1);
    let full: Allocate = |_, _, _| Err(Errno::NOSPC.into());
    assert_eq!(create(&settings(folder.path()), full, &mut notes).unwrap_err().kind, ErrorKind::System);
}

/// Whether `choose` takes the first of two folders in one file system, and its notes.
fn chosen(prepare: impl FnOnce(&Path)) -> (bool, Vec<String>) {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    prepare(first.path());
    let candidates = [&first, &second].map(|folder| Candidate { parent: folder.path().into(), given: true });
    let mut notes = Vec::new();
    let taken = choose(&candidates, &mut notes).unwrap();
    notes.retain(|note| !note.contains("on a disk"));
    (taken.path.starts_with(first.path()), notes)
}

/// Checks that if the first folder is as `prepare` leaves it, the next is taken, with one note.
fn check_refused(prepare: &dyn Fn(&Path), expect: &str) {
    let (first, notes) = chosen(prepare);
    assert!(!first && notes.len() == 1 && notes[0].contains(expect), "{notes:?}, wanted {expect}");
}

#[test]
fn a_squatted_folder_is_refused_and_the_next_place_taken() {
    let check = check_refused;
    assert_eq!(chosen(|_| ()), (true, vec![]));
    check(
        &|parent| {
            std::fs::create_dir(parent.join(own())).unwrap();
            std::fs::set_permissions(parent.join(own()), PermissionsExt::from_mode(0o770)).unwrap();
        },
        "its mode is not 0700",
    );
    check(
        &|parent| {
            std::fs::create_dir(parent.join("elsewhere")).unwrap();
            symlink(parent.join("elsewhere"), parent.join(own())).unwrap();
        },
        "it is a link or a file",
    );
    check(&|parent| std::fs::write(parent.join(own()), "").unwrap(), "it is a link or a file");
    check(&|parent| std::fs::remove_dir(parent).unwrap(), "cannot be used");
    let mode = |mode| {
        move |parent: &Path| std::fs::set_permissions(parent, PermissionsExt::from_mode(mode)).unwrap()
    };
    check(&mode(0o777), "can be written by all users, who can put another folder in its place");
    assert_eq!(chosen(mode(0o1777)), (true, vec![]));
    assert_eq!(chosen(mode(0o775)), (true, vec![]));
}

#[test]
fn a_folder_of_somebody_else_is_refused_and_the_next_place_taken() {
    if !rustix::process::geteuid().is_root() {
        return println!(
            "skipped: a_folder_of_somebody_else_is_refused_and_the_next_place_taken: needs root, to give it away"
        );
    }
    check_refused(
        &|parent| {
            std::fs::create_dir(parent.join(own())).unwrap();
            std::fs::set_permissions(parent.join(own()), PermissionsExt::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(parent.join(own()), Some(12345), None).unwrap();
        },
        "it belongs to somebody else",
    );
    let given_away = |parent: &Path| std::os::unix::fs::chown(parent, Some(12345), None).unwrap();
    check_refused(&given_away, "belongs to user 12345, who can put another folder in its place");
}

#[test]
fn memory_is_preferred_and_a_disk_is_said() {
    let disk = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return println!("skipped: memory_is_preferred_and_a_disk_is_said: needs /dev/shm");
    };
    let usual = |folder: &tempfile::TempDir| Candidate { parent: folder.path().into(), given: false };
    let mut notes = Vec::new();
    let taken = choose(&[usual(&disk), usual(&memory)], &mut notes).unwrap();
    assert!(taken.memory && taken.path.starts_with(memory.path()) && notes.is_empty(), "{notes:?}");
    let taken = choose(&[usual(&disk)], &mut notes).unwrap();
    assert!(!taken.memory && notes[0].contains("is on a disk"), "{notes:?}");
    assert!(choose(&[], &mut notes).is_none());
}

#[test]
fn the_oldest_dead_files_are_pruned_with_their_sockets_and_the_living_stay() {
    let folder = tempfile::tempdir().unwrap();
    let file = |n: u64, bytes: u64| {
        let path = folder.path().join(format!("{n}-1-1.rec"));
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(n)).unwrap();
        for extension in BESIDE {
            std::fs::write(path.with_extension(extension), "").unwrap();
        }
        path
    };
    let all = || -> Vec<String> {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let left = || all().into_iter().filter(|name| !name.contains(".stall.")).collect::<Vec<_>>();
    for n in 1..=5 {
        file(n, 100);
    }
    // Another process holds number 6; number 7 belongs to this process.
    let held = file(6, 100);
    file(7, 100);
    let (to_parent, from_child) = rustix::pipe::pipe().unwrap();
    let child = crate::sys::process::fork(|| {
        let file = std::fs::File::options().write(true).open(&held).unwrap();
        shared::lock_alive(&file).unwrap();
        rustix::io::write(&from_child, b"x").unwrap();
        clock::sleep(std::time::Duration::from_secs(60));
        drop(file);
        0
    });
    rustix::io::read(&to_parent, &mut [0; 1]).unwrap();
    assert_eq!(prune_to(folder.path(), Some("7-1-9"), 3, 1000), 2);
    let living = ["6-1-1.rec", "6-1-1.sock", "7-1-1.rec", "7-1-1.sock"];
    assert_eq!(left(), [&["3-1-1.rec", "4-1-1.rec", "5-1-1.rec"][..], &living].concat());
    let stalls = |n: u64| all().iter().filter(|name| name.starts_with(&format!("{n}-1-1.stall."))).count();
    assert_eq!((1..=7).map(stalls).collect::<Vec<_>>(), [0, 0, 2, 2, 2, 2, 2]);
    assert_eq!(prune_to(folder.path(), Some("7-1-9"), 3, 250), 1);
    assert_eq!(left(), [&["4-1-1.rec", "5-1-1.rec"][..], &living].concat());
    crate::sys::process::kill(child);
    assert_eq!(crate::sys::process::wait(child), None);
    assert_eq!(prune(folder.path(), Some("7-1-9")), 0);
    assert_eq!(left().len(), 5);
    // A recorder of this process that has ended is a dead one.
    super::left().push(folder.path().join("7-1-1.rec"));
    assert_eq!(prune_to(folder.path(), Some("7-1-9"), 1, 1000), 3);
    assert_eq!(left(), ["7-1-1.rec"]);
}

#[test]
fn the_newest_states_of_stalled_jobs_stay_and_those_beside_recorders() {
    let folder = tempfile::tempdir().unwrap();
    // Number 2 was not written to its end.
    let path = |n: usize| folder.path().join(format!("{n}-1-1.{}", BESIDE[1 + usize::from(n == 2)]));
    for n in 0..KEEP_STALLS + 3 {
        std::fs::write(path(n), "").unwrap();
        let file = std::fs::File::open(path(n)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(n as u64))
            .unwrap();
    }
    std::fs::write(path(0).with_file_name("0-1-1.rec"), "").unwrap();
    prune_stalls(folder.path());
    let left: Vec<usize> = (0..KEEP_STALLS + 3).filter(|n| path(*n).exists()).collect();
    let kept: Vec<usize> = std::iter::once(0).chain(3..KEEP_STALLS + 3).collect();
    assert_eq!(left, kept);
}
