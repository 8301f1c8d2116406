//! Windows: the mean time of an operation over many seconds, in processes of their own.
//!
//! Beside other processes a median is misleading: a rank runs for slices of milliseconds, and is
//! descheduled for as long, so that the worst way to wait can have the best median. The number of
//! operations in a window decides.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use ccl::clock::{self, Ns};
use ccl::comm::Communicator;
use ccl::types::ReduceOp;
use serde::{Deserialize, Serialize};

use crate::statistics::median;
use crate::worker::{free_port, open, pinned, worker_command};
use crate::{LEVEL_1, RANKS, VARIANTS};

/// The result of one window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Window {
    pub(crate) operations: u64,
    /// Seconds of all operations together.
    pub(crate) seconds: f64,
    /// Microseconds of single operations.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Window {
    /// Microseconds of an operation, on the mean.
    pub(crate) fn mean(&self) -> f64 {
        self.seconds * 1e6 / self.operations as f64
    }

    /// As text: the mean of all windows, the medians of their quantiles, the longest operation.
    pub(crate) fn describe(windows: &[Self]) -> String {
        let of = |value: fn(&Self) -> f64| windows.iter().map(value).collect::<Vec<f64>>();
        let mean = windows.iter().map(|window| window.seconds).sum::<f64>() * 1e6
            / windows.iter().map(|window| window.operations).sum::<u64>() as f64;
        let (p50, p99) = (median(of(|window| window.p50)), median(of(|window| window.p99)));
        let max = of(|window| window.max).into_iter().fold(0.0, f64::max);
        format!("mean {mean:10.2} us, p50 {p50:9.2}, p99 {p99:9.2}, max {max:9.1}")
    }
}

/// Counts of durations by their length: 16 steps for each doubling.
struct Durations {
    counts: Vec<u64>,
    max: u64,
}

impl Durations {
    fn add(&mut self, ns: u64) {
        let at = if ns < 16 { ns } else { 16 * u64::from(ns.ilog2() - 3) + (ns >> (ns.ilog2() - 4)) - 16 };
        self.counts[at as usize] += 1;
        self.max = self.max.max(ns);
    }
    /// The duration in microseconds that this share of all does not exceed.
    fn quantile(&self, share: f64) -> f64 {
        let wanted = (self.counts.iter().sum::<u64>() as f64 * share).ceil() as u64;
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        let at = at.unwrap_or_default() as u64;
        let ns = if at < 16 { at } else { (16 + at % 16) << (at / 16 - 1) };
        ns as f64 / 1e3
    }
}

/// Operations between two looks at the clock of the window; the same number for ccl and Open MPI.
pub(crate) fn stride(bytes: usize) -> u64 {
    ((4 << 20) / (bytes as u64 + 4096)).clamp(1, 1000)
}

/// A rank of a window: calls back to back until rank 0 finds that the time is over.
pub(crate) fn rank(bytes: usize, seconds: f64) {
    let rank = pinned();
    let comm = open(VARIANTS[LEVEL_1].1);
    let mut data = vec![0f32; bytes / 4];
    let call = |comm: &Communicator, data: &mut [f32]| comm.all_reduce_in_place(data, ReduceOp::Sum).unwrap();
    // These calls touch the memory for the first time.
    (0..2).for_each(|_| call(&comm, &mut data));
    let mut durations = Durations { counts: vec![0; 16 * 64], max: 0 };
    comm.barrier().unwrap();
    let began = clock::now();
    let since = |before: Ns| clock::now().since(before);
    let mut operations = 0;
    loop {
        for _ in 0..stride(bytes) {
            let before = clock::now();
            call(&comm, &mut data);
            durations.add(since(before).as_nanos() as u64);
        }
        operations += stride(bytes);
        let mut over = [f32::from(rank == 0 && since(began).as_secs_f64() >= seconds)];
        comm.all_reduce_in_place(&mut over, ReduceOp::Max).unwrap();
        if over[0] > 0.0 {
            break;
        }
    }
    let seconds = since(began).as_secs_f64();
    comm.finish().unwrap();
    if rank == 0 {
        let (p50, p99) = (durations.quantile(0.5), durations.quantile(0.99));
        let window = Window { operations, seconds, p50, p99, max: durations.max as f64 / 1e3 };
        println!("{}", serde_json::to_string(&window).unwrap());
    }
}

/// A window of ccl, in fresh processes.
pub(crate) fn ours(bytes: usize, seconds: f64) -> Window {
    let program = std::env::current_exe().unwrap();
    let port = free_port().to_string();
    let words = ["window", &bytes.to_string(), &seconds.to_string()].map(str::to_string);
    let start = |rank| worker_command(&program, rank, &port, &words).spawn().unwrap();
    let ranks: Vec<Child> = (0..RANKS).map(start).collect();
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "a rank failed");
    serde_json::from_slice(&outputs[0].stdout).unwrap()
}
/// A window of Open MPI, in fresh processes.
pub(crate) fn theirs(program: &Path, bytes: usize, seconds: f64) -> Window {
    let mut command = Command::new("mpirun.openmpi");
    command.args(["--allow-run-as-root", "-n", &RANKS.to_string()]).arg(program).stderr(Stdio::null());
    command.args(["window", &bytes.to_string(), &seconds.to_string(), &stride(bytes).to_string()]);
    let output = command.output().expect("mpirun.openmpi runs: make bench installs it");
    assert!(output.status.success(), "Open MPI's ranks failed");
    serde_json::from_slice(&output.stdout).unwrap()
}
