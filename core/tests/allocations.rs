//! Calls allocate nothing once their links are up, even while a client subscribes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccl::config::Key;
use ccl::control::wire::Client;
use ccl::{Rank, ReduceOp};

const CALLS: usize = 300;
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn calls_allocate_nothing_while_somebody_subscribes() {
    // Over sockets a sleep allocates the list of its descriptors; nothing else does.
    for transport in ["", "shm"] {
        let settings = common::settings(&[(Key::Transport, transport)]);
        common::with_ranks(2, &settings, |comm| {
            let (mut short, mut long) = ([1.0f32; 2], vec![1.0f32; 20_000]);
            let mut calls = |times: usize| {
                for _ in 0..times {
                    comm.all_reduce_in_place(&mut short, ReduceOp::Sum).unwrap();
                    comm.all_reduce_in_place(&mut long, ReduceOp::Min).unwrap();
                    comm.barrier().unwrap();
                }
            };
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                if comm.rank() == Rank(0) {
                    let socket = comm.recorder_path().unwrap().with_extension("sock");
                    let stop = &stop;
                    scope.spawn(move || {
                        let client = Client::connect_within(&socket, PATIENCE).unwrap();
                        let mut watcher = client.subscribe(Duration::from_millis(50)).unwrap();
                        while !stop.load(Ordering::Relaxed) {
                            watcher.next(PATIENCE).unwrap();
                        }
                    });
                }
                calls(CALLS);
                // Measures this thread alone.
                let allocated = allocation_counter::measure(|| calls(CALLS));
                stop.store(true, Ordering::Relaxed);
                assert_eq!(allocated.count_total, 0, "transport {transport:?}: {allocated:?}");
            });
            comm.finish().unwrap();
        });
    }
}
