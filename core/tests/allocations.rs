//! Calls allocate nothing once their links are up, even while a client subscribes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccl::config::Key;
use ccl::control::wire::Client;
use ccl::{Communicator, Rank, ReduceOp};

const CALLS: usize = 300;
const PATIENCE: Duration = Duration::from_secs(30);

/// What a rank of two exchanges by blocks, most of which differ in length.
struct Blocks {
    rooted: [Vec<f32>; 2],
    sent: [usize; 2],
    received: [usize; 2],
    input: Vec<f32>,
    output: Vec<f32>,
}

impl Blocks {
    fn of(comm: &Communicator) -> Self {
        let is_first = comm.rank() == Rank(0);
        let (sent, received) = if is_first { ([1, 2], [1, 0]) } else { ([0, 1], [2, 1]) };
        let data = |len| vec![1.0; len];
        let rooted = if is_first { [4, 2] } else { [2, 4] }.map(data);
        Self { rooted, sent, received, input: data(sent.iter().sum()), output: data(received.iter().sum()) }
    }

    fn exchange(&mut self, comm: &Communicator) {
        const COUNTS: [usize; 2] = [2, 5];
        let mut all = [1.0; 7];
        comm.all_gather_uneven_in_place(&mut all, &COUNTS).unwrap();
        comm.reduce_scatter_uneven_in_place(&mut all, &COUNTS, ReduceOp::Avg).unwrap();
        comm.all_to_all_uneven(&self.input, &self.sent, &mut self.output, &self.received).unwrap();
        for (root, buffer) in (0..).map(Rank).zip(&mut self.rooted) {
            comm.gather_in_place(buffer, root).unwrap();
            comm.scatter_in_place(buffer, root).unwrap();
        }
    }
}

#[test]
fn calls_allocate_nothing_while_somebody_subscribes() {
    // Over sockets a sleep allocates the list of its descriptors; nothing else does.
    for transport in ["", "shm"] {
        let settings = common::settings(&[(Key::Transport, transport)]);
        common::with_ranks(2, &settings, |comm| {
            let (mut short, mut long) = ([1.0f32; 2], vec![1.0f32; 20_000]);
            let mut blocks = Blocks::of(&comm);
            let mut calls = |times: usize| {
                for _ in 0..times {
                    comm.all_reduce_in_place(&mut short, ReduceOp::Sum).unwrap();
                    comm.all_reduce_in_place(&mut long, ReduceOp::Min).unwrap();
                    comm.barrier().unwrap();
                    blocks.exchange(&comm);
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
