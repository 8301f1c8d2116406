//! A rank of the comparisons: calls all-reduce back to back, in place, f32 sum, on its own
//! processor.

use std::path::Path;
use std::process::{Command, Stdio};

use ccl::clock;
use ccl::comm::{Communicator, Config};
use ccl::config::{Key, Settings, environment};
use ccl::types::{Rank, ReduceOp};

use crate::{LEVEL_1, RANKS, Timed, VARIANTS};

pub(crate) fn worker(bytes: usize, ms: f64, turns: usize, variants: &[usize]) {
    let rank = pinned();
    let mut data = vec![0f32; bytes / 4];
    let comms: Vec<Communicator> = variants.iter().map(|at| open(VARIANTS[*at].1)).collect();
    let times = calibrate(&comms[0], &mut data, ms);
    // These calls touch the memory of each for the first time.
    for comm in &comms {
        batch(comm, &mut data, times);
    }
    let mut timed: Vec<Timed> = variants.iter().map(|_| Timed::default()).collect();
    for turn in 0..turns * variants.len() {
        // Each variant follows each other variant equally often.
        let at = (turn + turn / variants.len()) % variants.len();
        let before = comms[at].events_recorded();
        timed[at].us.push(batch(&comms[at], &mut data, times) / times as f64 * 1e6);
        timed[at].events = (comms[at].events_recorded() - before) as f64 / (times as f64 + 2.0);
    }
    comms.into_iter().for_each(|comm| comm.finish().unwrap());
    if rank == 0 {
        println!("{}", serde_json::to_string(&timed).unwrap());
    }
}

/// Runs batches until it is killed.
pub(crate) fn beside(bytes: usize, ms: f64, folder: &Path) {
    let rank = pinned();
    let comm = open(VARIANTS[LEVEL_1].1);
    let mut data = vec![0f32; bytes / 4];
    let times = calibrate(&comm, &mut data, ms);
    std::fs::write(folder.join(format!("ours-{rank}")), std::process::id().to_string()).unwrap();
    loop {
        let us = batch(&comm, &mut data, times) / times as f64 * 1e6;
        if rank == 0 {
            println!("{} {us:.4}", clock::now().0);
        }
    }
}

/// This process's rank; pins the process to its own processor.
pub(crate) fn pinned() -> usize {
    let rank: usize = environment("RANK").unwrap().parse().unwrap();
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(rank);
    // If it may not pin, it runs unpinned, as Open MPI would.
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
    rank
}

pub(crate) fn open(settings: &[(Key, &str)]) -> Communicator {
    let mut all = Settings::of_process().unwrap();
    settings.iter().for_each(|(key, value)| all.set(*key, value).unwrap());
    Communicator::from_env_with(Config { settings: Some(all), ..Config::default() }).unwrap()
}

/// Seconds that this many calls take on the slower rank.
fn batch(comm: &Communicator, data: &mut [f32], times: u64) -> f64 {
    comm.barrier().unwrap();
    let began = clock::now();
    for _ in 0..times {
        comm.all_reduce_in_place(data, ReduceOp::Sum).unwrap();
    }
    let mut took = [clock::now().since(began).as_secs_f64()];
    comm.all_reduce_in_place(&mut took, ReduceOp::Max).unwrap();
    took[0]
}

/// The number of calls that take this many milliseconds; the same on both ranks.
fn calibrate(comm: &Communicator, data: &mut [f32], ms: f64) -> u64 {
    let mut times = 1;
    while batch(comm, data, times) < ms / 4e3 {
        times *= 2;
    }
    let mut times = [(ms / 1e3 / (batch(comm, data, times) / times as f64)).max(1.0) as i64];
    comm.broadcast(&mut times, Rank(0)).unwrap();
    times[0] as u64
}

pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) fn worker_command(program: &Path, rank: u32, port: &str, words: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(words).env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port).env("CCL_DEBUG", "NONE");
    command.stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() });
    command
}
