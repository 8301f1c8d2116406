//! What an init that failed leaves, and for how long. It is the only test in its process, which has
//! one recorder at a time.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccl::bootstrap::root_task::create_near;
use ccl::config::{Key, Settings};
use ccl::error::ErrorKind;
use ccl::{Communicator, Config};

#[test]
fn an_init_that_failed_can_be_read_until_the_process_tries_again() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut settings = Settings::default();
    let place = folder.path().display().to_string();
    for (key, value) in [(Key::Log, "NONE"), (Key::InitTimeout, "1"), (Key::RuntimeDir, &*place)] {
        settings.set(key, value).unwrap();
    }
    let files = || {
        let folders = std::fs::read_dir(folder.path()).unwrap().map(|one| one.unwrap().path());
        let files = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "rec"));
        files
    };
    let join = |nranks: u32| {
        let (id, _root) = create_near("127.0.0.1".parse().ok(), &settings).unwrap();
        let config = Config { name: "test".into(), settings: Some(settings.clone()) };
        Communicator::init(&id, 0, nranks, config)
    };
    assert_eq!(join(2).unwrap_err().kind, ErrorKind::Timeout);
    let first = files();
    assert_eq!(first.len(), 1);
    assert_eq!(join(2).unwrap_err().kind, ErrorKind::Timeout);
    let second = files();
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
    let made = join(1).unwrap();
    assert!(files().len() == 1 && files() != second, "{:?}", files());
    // One that fails beside it is of no interest either, once another has succeeded.
    assert_eq!(join(2).unwrap_err().kind, ErrorKind::Timeout);
    let another = join(1).unwrap();
    for comm in [made, another] {
        comm.finish().unwrap();
    }
    assert_eq!(files(), Vec::<std::path::PathBuf>::new());
}
