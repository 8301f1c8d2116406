//! After a bootstrap, successful or not, no socket and no thread is left. It is the only test in
//! its process, so that it can count.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says how many cases it ran"
)]

use std::time::Duration;

use ccl::bootstrap::driver::Bootstrap;
use ccl::bootstrap::root_task::create_near;
use ccl::clock;
use ccl::config::{Key, Settings};
use ccl::types::Rank;

fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fd.ok()?.path().read_link().ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

fn service_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    tasks.filter(|name| name.trim() == "ccl-service").count()
}

#[test]
fn no_socket_and_no_thread_is_left() {
    let mut settings = Settings::default();
    settings.set(Key::Log, "NONE").unwrap();
    let before = sockets();
    for (round, present) in [&[0, 1, 2][..], &[0, 2], &[0, 1, 2]].into_iter().enumerate() {
        let (id, root) = create_near("127.0.0.1".parse().ok(), &settings).unwrap();
        std::thread::scope(|scope| {
            for rank in present {
                let (id, settings) = (&id, &settings);
                scope.spawn(move || {
                    let deadline =
                        clock::now().after(Duration::from_millis(if round == 1 { 400 } else { 10_000 }));
                    let Ok(mut bootstrap) = Bootstrap::join(id, Rank(*rank), 3, b"", settings, deadline)
                    else {
                        // A rank is missing in round 1, and one may leave before all have joined in
                        // round 2.
                        return assert!(round > 0);
                    };
                    // Fails if the rank that leaves in round 2 was faster.
                    let _ = bootstrap.send(Rank((rank + 1) % 3), 1, b"x");
                    match round {
                        // One rank leaves in the middle.
                        2 if *rank == 1 => drop(bootstrap),
                        2 => drop(bootstrap.barrier().unwrap_err()),
                        _ => drop(bootstrap.into_ring().unwrap()),
                    }
                });
            }
        });
        drop(root);
        // The service thread ends shortly after its last task.
        let until = clock::now().after(Duration::from_secs(2));
        while service_threads() > 0 && clock::now() < until {
            clock::sleep(Duration::from_millis(5));
        }
        assert_eq!((sockets(), service_threads()), (before, 0), "round {round}");
    }
}
