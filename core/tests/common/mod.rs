//! Ranks as threads of the test's process, around one unique id.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; a test may panic")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ccl::comm::{Communicator, Config};
use ccl::config::{Key, Settings, environment};
use ccl::sys::handlers::{self, Handler};

/// The variable with the runtime folder of the test that starts this process.
pub(crate) const RUNTIME: &str = "TEST_RUNTIME_DIR";

/// The folder of this process's recorders, outside the user's folders: recorders of failed
/// communicators stay. It is removed when the process exits, unless it belongs to the process that
/// started this one.
pub(crate) fn runtime() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    struct Remove;
    impl Handler for Remove {
        fn run() {
            if let Some(folder) = FOLDER.get() {
                // A folder of temporary files that stays is not a reason to fail.
                let _ = std::fs::remove_dir_all(folder);
            }
        }
    }
    FOLDER.get_or_init(|| {
        if let Some(given) = environment(RUNTIME) {
            return given.into();
        }
        handlers::at_exit::<Remove>();
        // A folder with this name is noticed if it stays.
        let mut named = tempfile::Builder::new();
        named.prefix("ccl-test-");
        named.tempdir_in("/dev/shm").or_else(|_| named.tempdir()).unwrap().keep()
    })
}

/// Settings of a test: short deadlines, a separate runtime folder.
pub(crate) fn settings(pairs: &[(Key, &str)]) -> Settings {
    let mut settings = Settings::default();
    settings.set(Key::RuntimeDir, runtime().to_str().unwrap()).unwrap();
    settings.set(Key::InitTimeout, "20").unwrap();
    settings.set(Key::Timeout, "20").unwrap();
    settings.set(Key::Log, "NONE").unwrap();
    for (key, value) in pairs {
        settings.set(*key, value).unwrap();
    }
    settings
}

/// Runs `body` on `nranks` ranks and returns what each returned, in rank order.
pub(crate) fn with_ranks<R: Send>(
    nranks: u32,
    settings: &Settings,
    body: impl Fn(Communicator) -> R + Send + Sync,
) -> Vec<R> {
    with_ranks_of(nranks, |_| settings, body)
}

/// Likewise, with separate settings for each rank.
pub(crate) fn with_ranks_of<'a, R: Send>(
    nranks: u32,
    settings: impl Fn(u32) -> &'a Settings,
    body: impl Fn(Communicator) -> R + Send + Sync,
) -> Vec<R> {
    let (id, root) = ccl::bootstrap::root_task::create(settings(0)).unwrap();
    let results = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..nranks)
            .map(|rank| {
                let (body, id) = (&body, &id);
                let config = Config { name: "test".into(), settings: Some(settings(rank).clone()) };
                scope.spawn(move || body(Communicator::init(id, rank, nranks, config).unwrap()))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    drop(root);
    results
}
