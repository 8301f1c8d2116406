//! The progress thread: it turns what nobody waits for, and sleeps while callers turn all there is.
//! Alone in its program, as all communicators of a process share the thread.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use ccl::config::Key;
use ccl::{Rank, clock};

/// How often the progress thread was switched to.
fn switches() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    let progress = tasks.filter(|task| read(&task.join("comm")).trim() == "ccl-progress");
    let count = |task: std::path::PathBuf| -> u64 {
        let status = read(&task.join("status"));
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum()
    };
    progress.map(count).sum()
}

#[test]
fn the_progress_thread_sleeps_while_a_caller_turns_what_was_begun_and_goes_on_when_it_leaves() {
    let settings = common::settings(&[(Key::Transport, "shm"), (Key::Timeout, "60")]);
    common::with_ranks(2, &settings, |comm| {
        if comm.rank() == Rank(0) {
            let begun = comm.recv_async(vec![0_u8; 8], Rank(1)).unwrap();
            comm.barrier().unwrap();
            // A thread that is not told sleeps for twice as long.
            let end = clock::now().after(Duration::from_secs(5));
            while !begun.is_done() {
                assert!(clock::now() < end, "nobody turns it");
                clock::sleep(Duration::from_millis(1));
            }
            assert_eq!(begun.wait().unwrap().into_vec(), [7; 8]);
        } else {
            // The other rank may be slow to call; a thread that dozes would never be found at rest.
            let rests = (0..50).any(|_| {
                let before = switches();
                clock::sleep(Duration::from_millis(100));
                before > 0 && switches().abs_diff(before) < 5
            });
            assert!(rests, "the progress thread does not rest");
            comm.barrier().unwrap();
            clock::sleep(Duration::from_millis(50));
            comm.send(&[7_u8; 8], Rank(0)).unwrap();
        }
        comm.finish().unwrap();
    });
}
