//! Ranks as threads of the test's process, around one unique id.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; a test may panic")]

use ccl::comm::{Communicator, Config};
use ccl::config::{Key, Settings};

/// Settings of a test: short deadlines, no recorder file unless asked for.
pub(crate) fn settings(pairs: &[(Key, &str)]) -> Settings {
    let mut settings = Settings::default();
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
    let (id, root) = ccl::bootstrap::root_task::create(settings).unwrap();
    let results = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..nranks)
            .map(|rank| {
                let (body, id) = (&body, &id);
                let config = Config { name: "test".into(), settings: Some(settings.clone()) };
                scope.spawn(move || body(Communicator::init(id, rank, nranks, config).unwrap()))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    drop(root);
    results
}
