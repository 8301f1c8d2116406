//! `make bench`: what recording costs, and how all-reduce stands beside Open MPI's, in one interleaved run.
//!
//! Every figure comes from rounds in which all variants run one after another, so that what the machine does hits all of
//! them. A ratio is taken within a round; printed are the median of the rounds' ratios and their range. Absolute times are
//! shown for orientation only.
//!
//! A worker (`bench worker BYTES MS BATCHES`) is one of two processes that call all-reduce back to back, in place, f32 sum;
//! it is pinned to a processor of its own, as Open MPI's launcher pins its ranks.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for people: it prints, and ends where it cannot go on"
)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ccl::clock;
use ccl::comm::Communicator;
use ccl::config::environment;
use ccl::event::{Event, publish};
use ccl::recorder::{CommInfo, Recorder};
use ccl::types::{Algorithm, CollKind, CommId, Datatype, JobId, Rank, ReduceOp};
use serde::{Deserialize, Serialize};

const RANKS: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Timed {
    /// Microseconds per operation, one per batch; a batch's time is the slowest rank's.
    us: Vec<f64>,
    /// Events per operation, read back from the ring.
    #[serde(default)]
    events: f64,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["worker", bytes, ms, batches] => {
            worker(bytes.parse().unwrap(), ms.parse().unwrap(), batches.parse().unwrap());
        }
        [] => bench(7),
        [rounds] => bench(rounds.parse().expect("usage: bench [ROUNDS]")),
        _ => panic!("usage: bench [ROUNDS]"),
    }
}

// ---- the worker ----

fn worker(bytes: usize, ms: f64, batches: usize) {
    let rank: usize = environment("RANK").unwrap().parse().unwrap();
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(rank);
    // Where it may not pin, it runs unpinned, as Open MPI would.
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
    let comm = Communicator::from_env().unwrap();
    let mut data = vec![0f32; bytes / 4];
    let mut batch = |times: u64| {
        comm.barrier().unwrap();
        let began = clock::now();
        for _ in 0..times {
            comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        }
        let mut took = [clock::now().since(began).as_secs_f64()];
        comm.all_reduce_in_place(&mut took, ReduceOp::Max).unwrap();
        took[0]
    };
    let mut times = 1;
    while batch(times) < ms / 4e3 {
        times *= 2;
    }
    let mut times = [(ms / 1e3 / (batch(times) / times as f64)).max(1.0) as i64];
    comm.broadcast(&mut times, Rank(0)).unwrap();
    let before = comm.events_recorded();
    let us: Vec<f64> = (0..batches).map(|_| batch(times[0] as u64) / times[0] as f64 * 1e6).collect();
    let events = (comm.events_recorded() - before) as f64 / (batches as f64 * (times[0] as f64 + 2.0));
    if rank == 0 {
        println!("{}", serde_json::to_string(&Timed { us, events }).unwrap());
    }
    comm.finish().unwrap();
}

// ---- the driver ----

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// `median [least .. most]`
fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{:8.3} [{least:.3} .. {most:.3}]", median(values.to_vec()))
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn ours(bytes: usize, ms: f64, environment: &[(&str, &str)]) -> Timed {
    let port = free_port().to_string();
    let ranks: Vec<_> = (0..RANKS)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["worker", &bytes.to_string(), &ms.to_string(), "5"]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port).env("CCL_DEBUG", "NONE");
            command.envs(environment.iter().copied());
            command.stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() }).spawn().unwrap()
        })
        .collect();
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "a worker failed");
    serde_json::from_slice(&outputs[0].stdout).unwrap()
}

fn open_mpi(program: &Path, bytes: usize, ms: f64) -> Timed {
    let output = Command::new("mpirun.openmpi")
        .args(["--allow-run-as-root", "-n", &RANKS.to_string()])
        .arg(program)
        .args([&bytes.to_string(), &ms.to_string(), "5"])
        .stderr(Stdio::inherit())
        .output()
        .expect("mpirun.openmpi runs: make bench installs it");
    assert!(output.status.success(), "Open MPI failed");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn build_open_mpi() -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/openmpi.c");
    let program = std::env::current_exe().unwrap().with_file_name("bench-openmpi");
    let built = Command::new("mpicc.openmpi").args(["-O2", "-o"]).arg(&program).arg(source).status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "mpicc.openmpi builds {source}: make bench installs it"
    );
    program
}

fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "BROKEN" }
}

fn bench(rounds: usize) {
    println!("{rounds} rounds, interleaved; figures are median [least .. most] over the rounds\n");
    event_sites(rounds);
    let program = build_open_mpi();
    let variants: [(&str, &[(&str, &str)]); 4] = [
        ("CCL_OBSERVE=0", &[("CCL_OBSERVE", "0")]),
        ("level 0", &[("CCL_LEVEL", "0")]),
        ("level 1", &[("CCL_LEVEL", "1")]),
        ("level 2", &[("CCL_LEVEL", "2")]),
    ];
    for (bytes, ms, observed) in
        [(8, 60.0, true), (64 << 10, 60.0, true), (1 << 20, 100.0, true), (128 << 20, 400.0, false)]
    {
        println!("all-reduce of {bytes} bytes, {RANKS} processes, shared memory");
        let variants = if observed { &variants[..] } else { &variants[2..3] };
        let mut took = vec![Vec::new(); variants.len() + 1];
        let mut events = vec![0.0; variants.len()];
        for round in 0..rounds {
            for turn in 0..=variants.len() {
                let at = (turn + round) % (variants.len() + 1);
                let timed = match variants.get(at) {
                    Some((_, environment)) => ours(bytes, ms, environment),
                    None => open_mpi(&program, bytes, ms),
                };
                if at < events.len() {
                    events[at] = timed.events;
                }
                took[at].push(median(timed.us));
                print!(".");
                std::io::stdout().flush().unwrap();
            }
        }
        println!();
        let base = took[0].clone();
        for (at, (name, _)) in variants.iter().enumerate() {
            println!("  {name:14} {} us, {:.2} events per operation", spread(&took[at]), events[at]);
        }
        println!("  {:14} {} us", "Open MPI", spread(&took[variants.len()]));
        if observed {
            let extra: Vec<f64> = took[2].iter().zip(&base).map(|(one, none)| (one - none) * 1e3).collect();
            let part: Vec<f64> = took[2].iter().zip(&base).map(|(one, none)| one / none).collect();
            let (more, ratio) = (median(extra.clone()), median(part.clone()));
            if bytes < 64 << 10 {
                println!(
                    "  level 1 costs {more:.1} ns more than CCL_OBSERVE=0; budget 35 ns: {}",
                    verdict(more <= 35.0)
                );
            } else {
                println!(
                    "  level 1 / CCL_OBSERVE=0 = {}; budget 1.005: {}",
                    spread(&part),
                    verdict(ratio <= 1.005)
                );
            }
        }
        let ours = if observed { &took[2] } else { &took[0] };
        let beside: Vec<f64> = ours.iter().zip(&took[variants.len()]).map(|(a, b)| a / b).collect();
        let limit = if bytes == 8 { 2.0 } else { 1.0 };
        println!(
            "  level 1 / Open MPI = {}; to be at most {limit}: {}\n",
            spread(&beside),
            verdict(median(beside.clone()) <= limit)
        );
    }
}

/// Nanoseconds per event site: gated off, and recorded with its time stamp.
fn event_sites(rounds: usize) {
    const TIMES: u64 = 4_000_000;
    let recorder = Recorder::heap();
    let info =
        CommInfo { id: CommId(1), job: JobId(1), name: "bench", rank: Rank(0), nranks: 1, world: Rank(0) };
    let row = recorder.comm(info);
    let mut ring = row.ring();
    let mut time = |level: u8| {
        row.set_level(level);
        let began = clock::now();
        for seq in 0..TIMES {
            publish(&mut ring, || Event::OpCompleted {
                kind: CollKind::AllReduce,
                dtype: Datatype::F32,
                op: ReduceOp::Sum,
                algorithm: Algorithm::Direct,
                seq: std::hint::black_box(seq),
                bytes: 8,
                duration_ticks: seq,
            });
        }
        clock::now().since(began).as_nanos() as f64 / TIMES as f64
    };
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        off.push(time(0));
        on.push(time(1));
    }
    println!(
        "an event site, gated off {} ns; budget 1 ns: {}",
        spread(&off),
        verdict(median(off.clone()) <= 1.0)
    );
    println!(
        "an event, recorded       {} ns; budget 15 ns: {}\n",
        spread(&on),
        verdict(median(on.clone()) <= 15.0)
    );
}
