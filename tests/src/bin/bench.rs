//! `make bench`: what recording costs, and how all-reduce stands beside Open MPI's, in one interleaved run.
//!
//! Every figure comes from rounds in which all variants run one after another, so that what the machine does hits all of
//! them. A ratio is taken within a round; printed are the median of the rounds' ratios and their range. Absolute times are
//! shown for orientation only.
//!
//! A worker (`bench worker BYTES MS BATCHES ROUNDS VARIANT...`) is one of two processes that call all-reduce back to back, in
//! place, f32 sum; it is pinned to a processor of its own, as Open MPI's launcher pins its ranks. Beside Open MPI stand
//! batches of one communicator, as theirs are. The variants of recording take turns within one pair of processes, many
//! times, each on a communicator of its own: between two pairs the machine differs by more than what is measured.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for people: it prints, and ends where it cannot go on"
)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ccl::clock;
use ccl::comm::{Communicator, Config};
use ccl::config::{Key, Settings, environment};
use ccl::event::{Event, publish};
use ccl::recorder::{CommInfo, Recorder};
use ccl::types::{Algorithm, CollKind, CommId, Datatype, JobId, Rank, ReduceOp};
use serde::{Deserialize, Serialize};

const RANKS: u32 = 2;

/// What is compared: a name, and the settings that make it.
const VARIANTS: [(&str, &[(Key, &str)]); 4] = [
    ("CCL_OBSERVE=0", &[(Key::Observe, "0")]),
    ("level 0", &[(Key::Level, "0")]),
    ("level 1", &[(Key::Level, "1")]),
    ("level 2", &[(Key::Level, "2")]),
];
/// The one that is used.
const LEVEL_1: usize = 2;

#[derive(Default, Serialize, Deserialize)]
struct Timed {
    /// Microseconds per operation, one per batch.
    us: Vec<f64>,
    /// Events per operation, read back from the ring.
    #[serde(default)]
    events: f64,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["worker", bytes, ms, batches, rounds, variants @ ..] => {
            let variants: Vec<usize> = variants.iter().map(|at| at.parse().unwrap()).collect();
            let course = Course { batches: batches.parse().unwrap(), rounds: rounds.parse().unwrap() };
            worker(bytes.parse().unwrap(), ms.parse().unwrap(), course, &variants);
        }
        [] => bench(7),
        [rounds] => bench(rounds.parse().expect("usage: bench [ROUNDS]")),
        _ => panic!("usage: bench [ROUNDS]"),
    }
}

// ---- the worker ----

/// How much a worker does.
#[derive(Clone, Copy)]
struct Course {
    /// Batches per communicator.
    batches: usize,
    /// Communicators per variant.
    rounds: usize,
}

fn worker(bytes: usize, ms: f64, course: Course, variants: &[usize]) {
    let rank: usize = environment("RANK").unwrap().parse().unwrap();
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(rank);
    // Where it may not pin, it runs unpinned, as Open MPI would.
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
    let mut data = vec![0f32; bytes / 4];
    let mut timed: Vec<Timed> = variants.iter().map(|_| Timed::default()).collect();
    let mut times = None;
    for round in 0..course.rounds {
        for turn in 0..variants.len() {
            let at = (turn + round) % variants.len();
            let mut settings = Settings::of_process().unwrap();
            for (key, value) in VARIANTS[variants[at]].1 {
                settings.set(*key, value).unwrap();
            }
            let config = Config { settings: Some(settings), ..Config::default() };
            let comm = Communicator::from_env_with(config).unwrap();
            let times = *times.get_or_insert_with(|| calibrate(&comm, &mut data, ms));
            // The memory of this communicator is touched for the first time.
            batch(&comm, &mut data, times.max(8));
            let before = comm.events_recorded();
            let us = |_| batch(&comm, &mut data, times) / times as f64 * 1e6;
            timed[at].us.extend((0..course.batches).map(us));
            let calls = course.batches as f64 * (times as f64 + 2.0);
            timed[at].events = (comm.events_recorded() - before) as f64 / calls;
            comm.finish().unwrap();
        }
    }
    if rank == 0 {
        println!("{}", serde_json::to_string(&timed).unwrap());
    }
}

/// Seconds that many calls take the slower rank.
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

/// How many calls take that many milliseconds; the same on both ranks.
fn calibrate(comm: &Communicator, data: &mut [f32], ms: f64) -> u64 {
    let mut times = 1;
    while batch(comm, data, times) < ms / 4e3 {
        times *= 2;
    }
    let mut times = [(ms / 1e3 / (batch(comm, data, times) / times as f64)).max(1.0) as i64];
    comm.broadcast(&mut times, Rank(0)).unwrap();
    times[0] as u64
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

/// `median [first quartile .. last]`: of differences far smaller than what single rounds are off.
fn middle(values: &[f64]) -> String {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = |part: usize| values[(values.len() - 1) * part / 4];
    format!("{:8.3} [quartiles {:.3} .. {:.3}]", at(2), at(1), at(3))
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn ours(bytes: usize, ms: f64, course: Course, variants: &[usize]) -> Vec<Timed> {
    let port = free_port().to_string();
    let ranks: Vec<_> = (0..RANKS)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["worker", &bytes.to_string(), &ms.to_string()]);
            command.args([course.batches, course.rounds].iter().chain(variants).map(usize::to_string));
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port).env("CCL_DEBUG", "NONE");
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

/// Batches beside Open MPI.
const BATCHES: usize = 5;
/// Turns that the variants of recording take within one pair of processes.
const TURNS: usize = 40;

fn bench(rounds: usize) {
    println!("{rounds} rounds, interleaved; figures are median [least .. most] over the rounds\n");
    event_sites(rounds);
    let program = build_open_mpi();
    // Milliseconds of a batch beside Open MPI, and of a turn of a variant; 0: not compared. The host moves the processors
    // of a virtual machine near and apart, which short messages feel most: of these there are more, shorter rounds.
    for (bytes, rounds, ms, turn_ms) in [
        (8, 3 * rounds, 10.0, 3.0),
        (64 << 10, rounds, 60.0, 5.0),
        (1 << 20, rounds, 100.0, 10.0),
        (128 << 20, rounds, 400.0, 0.0),
    ] {
        println!("all-reduce of {bytes} bytes, {RANKS} processes, shared memory");
        let mut variants: Vec<Timed> = VARIANTS.iter().map(|_| Timed::default()).collect();
        let (mut used, mut beside) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let open_mpi = || median(open_mpi(&program, bytes, ms).us);
            // Whoever runs second finds the machine as the first has left it: they take turns.
            let first = (round % 2 == 1).then(open_mpi);
            let course = Course { batches: BATCHES, rounds: 1 };
            used.push(median(ours(bytes, ms, course, &[LEVEL_1]).remove(0).us));
            beside.push(first.unwrap_or_else(open_mpi));
            if turn_ms > 0.0 {
                let course = Course { batches: 1, rounds: TURNS };
                for (all, timed) in variants.iter_mut().zip(ours(bytes, turn_ms, course, &[0, 1, 2, 3])) {
                    all.events = timed.events;
                    all.us.extend(timed.us);
                }
            }
            print!(".");
            std::io::stdout().flush().unwrap();
        }
        println!();
        if turn_ms > 0.0 {
            for (timed, (name, _)) in variants.iter().zip(VARIANTS) {
                println!("  {name:14} {} us, {:.2} events per operation", middle(&timed.us), timed.events);
            }
            what_recording_costs(bytes, &variants[LEVEL_1].us, &variants[0].us);
        }
        println!("  beside Open MPI: level 1 {} us, Open MPI {} us", spread(&used), spread(&beside));
        let ratios: Vec<f64> = used.iter().zip(&beside).map(|(a, b)| a / b).collect();
        let limit = if bytes == 8 { 2.0 } else { 1.0 };
        println!(
            "  level 1 / Open MPI = {}; to be at most {limit}: {}\n",
            spread(&ratios),
            verdict(median(ratios.clone()) <= limit)
        );
    }
}

/// Compares level 1 with nothing, turn by turn.
fn what_recording_costs(bytes: usize, level_1: &[f64], nothing: &[f64]) {
    let more: Vec<f64> = level_1.iter().zip(nothing).map(|(one, none)| (one - none) * 1e3).collect();
    let ratios: Vec<f64> = level_1.iter().zip(nothing).map(|(one, none)| one / none).collect();
    if bytes < 64 << 10 {
        let holds = verdict(median(more.clone()) <= 35.0);
        println!("  level 1 costs {} ns more than CCL_OBSERVE=0; budget 35 ns: {holds}", middle(&more));
    } else {
        let holds = verdict(median(ratios.clone()) <= 1.005);
        println!("  level 1 / CCL_OBSERVE=0 = {}; budget 1.005: {holds}", middle(&ratios));
    }
}

/// Nanoseconds per event site: gated off, and recorded with its time stamp read for it alone.
fn event_sites(rounds: usize) {
    const TIMES: u64 = 4_000_000;
    let recorder = Recorder::heap();
    let info =
        CommInfo { id: CommId(1), job: JobId(1), name: "bench", rank: Rank(0), nranks: 1, world: Rank(0) };
    let row = recorder.comm(info);
    let mut ring = row.ring();
    // The same loop without the site is taken off.
    let loops = |site: &mut dyn FnMut(u64)| {
        let began = clock::now();
        site(TIMES);
        clock::now().since(began).as_nanos() as f64 / TIMES as f64
    };
    let mut time = |level: u8| {
        row.set_level(level);
        let with = loops(&mut |times| {
            for seq in 0..times {
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
        });
        let without = loops(&mut |times| {
            for seq in 0..times {
                std::hint::black_box(seq);
            }
        });
        with - without
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
