//! `make bench`: what recording costs, and how all-reduce stands beside Open MPI's, in one interleaved run.
//!
//! Every figure comes from turns that all variants take one after another, so that what the machine does hits all of
//! them. A ratio is taken between neighbouring turns; printed are the median of the ratios and their quartiles. Absolute times
//! are shown for orientation only.
//!
//! A worker is one of two processes that call all-reduce back to back, in place, f32 sum; it is pinned to a processor of its own,
//! as Open MPI's launcher pins its ranks. The variants of recording are communicators of one pair of processes (`bench worker
//! BYTES MS TURNS VARIANT...`). A pair beside Open MPI (`bench beside BYTES MS FOLDER`) runs while Open MPI's is stopped, and the
//! reverse, by signals, many times: the host moves the processors of a virtual machine near and apart within a second,
//! which short messages feel more than anything that is measured here.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for people: it prints, and ends where it cannot go on"
)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccl::clock;
use ccl::comm::{Communicator, Config};
use ccl::config::{Key, Settings, environment};
use ccl::control::wire::Client;
use ccl::event::{Event, publish};
use ccl::recorder::{CommInfo, Recorder};
use ccl::types::{Algorithm, CollKind, CommId, Datatype, JobId, Rank, ReduceOp};
use rustix::process::{Pid, Signal, kill_process};
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
        ["worker", bytes, ms, turns, variants @ ..] => {
            let variants: Vec<usize> = variants.iter().map(|at| at.parse().unwrap()).collect();
            worker(bytes.parse().unwrap(), ms.parse().unwrap(), turns.parse().unwrap(), &variants);
        }
        ["beside", bytes, ms, folder] => {
            beside(bytes.parse().unwrap(), ms.parse().unwrap(), Path::new(folder));
        }
        ["watched"] => watched(100),
        ["watched", times] => watched(times.parse().expect("usage: bench watched [TIMES]")),
        [] => bench(7),
        [rounds] => bench(rounds.parse().expect("usage: bench [ROUNDS]")),
        _ => panic!("usage: bench [ROUNDS] | bench watched [TIMES]"),
    }
}

// ---- the worker ----

fn worker(bytes: usize, ms: f64, turns: usize, variants: &[usize]) {
    let rank = pinned();
    let mut data = vec![0f32; bytes / 4];
    let comms: Vec<Communicator> = variants.iter().map(|at| open(VARIANTS[*at].1)).collect();
    let times = calibrate(&comms[0], &mut data, ms);
    // The memory of each is touched for the first time.
    for comm in &comms {
        batch(comm, &mut data, times);
    }
    let mut timed: Vec<Timed> = variants.iter().map(|_| Timed::default()).collect();
    for turn in 0..turns * variants.len() {
        // Each follows each other as often.
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
fn beside(bytes: usize, ms: f64, folder: &Path) {
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

/// This process's rank, on a processor of its own.
fn pinned() -> usize {
    let rank: usize = environment("RANK").unwrap().parse().unwrap();
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(rank);
    // Where it may not pin, it runs unpinned, as Open MPI would.
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
    rank
}

fn open(settings: &[(Key, &str)]) -> Communicator {
    let mut all = Settings::of_process().unwrap();
    settings.iter().for_each(|(key, value)| all.set(*key, value).unwrap());
    Communicator::from_env_with(Config { settings: Some(all), ..Config::default() }).unwrap()
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
    values[(values.len() - 1) / 2]
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

fn worker_command(rank: u32, port: &str, words: &[String]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(words).env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port).env("CCL_DEBUG", "NONE");
    command.stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() });
    command
}

/// What each variant takes.
fn ours(bytes: usize, ms: f64, variants: &[usize]) -> Vec<Timed> {
    let port = free_port().to_string();
    let mut words = vec!["worker".to_string(), bytes.to_string(), ms.to_string(), TURNS.to_string()];
    words.extend(variants.iter().map(usize::to_string));
    let start = |rank| worker_command(rank, &port, &words).spawn().unwrap();
    let ranks: Vec<Child> = (0..RANKS).map(start).collect();
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "a worker failed");
    serde_json::from_slice(&outputs[0].stdout).unwrap()
}

/// Two processes that can be stopped and continued, and where their batches are written: a pipe would be full one day, and hold them up.
struct Pair {
    pids: Vec<Pid>,
    started: Vec<Child>,
    batches: PathBuf,
}

impl Pair {
    /// Starts them, waits until both are ready, and stops them.
    fn ready(commands: Vec<Command>, folder: &Path, name: &str) -> Self {
        let batches = folder.join(format!("{name}-batches"));
        let output = std::fs::File::create(&batches).unwrap();
        let start = |(at, mut command): (usize, Command)| {
            let out = if at == 0 { Stdio::from(output.try_clone().unwrap()) } else { Stdio::null() };
            command.stdout(out).spawn().expect("it runs: make bench installs what is missing")
        };
        let mut started: Vec<Child> = commands.into_iter().enumerate().map(start).collect();
        let pid = |rank| {
            let path = folder.join(format!("{name}-{rank}"));
            loop {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                if let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) {
                    return pid;
                }
                assert!(started[0].try_wait().unwrap().is_none(), "{name} ended before it was ready");
                clock::sleep(Duration::from_millis(1));
            }
        };
        let pids = (0..RANKS).map(pid).collect();
        let pair = Self { pids, started, batches };
        pair.signal(Signal::STOP);
        pair
    }

    fn signal(&self, signal: Signal) {
        self.pids.iter().for_each(|pid| kill_process(*pid, signal).unwrap());
    }

    /// Runs for a while, alone; from when to when.
    fn turn(&self, window: Duration) -> (u64, u64) {
        let began = clock::now().0;
        self.signal(Signal::CONT);
        clock::sleep(window);
        self.signal(Signal::STOP);
        (began, clock::now().0)
    }

    /// Ends it; when its batches ended, and what an operation of each took.
    fn end(mut self) -> Vec<(u64, f64)> {
        self.signal(Signal::KILL);
        self.started.iter_mut().for_each(|child| drop(child.wait()));
        let text = std::fs::read_to_string(&self.batches).unwrap();
        let batch = |line: &str| {
            let (at, us) = line.split_once(' ')?;
            Some((at.parse().ok()?, us.parse().ok()?))
        };
        text.lines().filter_map(batch).collect()
    }
}

/// The median of the batches that lie inside a turn, if there are any.
fn within(batches: &[(u64, f64)], (from, to): (u64, u64)) -> Option<f64> {
    let inside = batches.windows(2).filter(|two| two[0].0 >= from && two[1].0 <= to).map(|two| two[1].1);
    let inside: Vec<f64> = inside.collect();
    (!inside.is_empty()).then(|| median(inside))
}

/// Microseconds per operation of ours and of Open MPI, turn by turn.
fn beside_open_mpi(program: &Path, bytes: usize, ms: f64, turns: usize, window: Duration) -> Vec<(f64, f64)> {
    // In memory, and away from what other jobs leave.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut theirs = Command::new("mpirun.openmpi");
    theirs.args(["--allow-run-as-root", "-n", &RANKS.to_string()]).arg(program).stderr(Stdio::null());
    theirs.args([&bytes.to_string(), &ms.to_string(), &folder.path().display().to_string()]);
    let theirs = Pair::ready(vec![theirs], folder.path(), "theirs");
    let ours = ours_in(folder.path(), bytes, ms);
    let windows: Vec<_> = (0..turns).map(|_| (ours.turn(window), theirs.turn(window))).collect();
    let (ours, theirs) = (ours.end(), theirs.end());
    let both = |(a, b): &((u64, u64), (u64, u64))| Some((within(&ours, *a)?, within(&theirs, *b)?));
    windows.iter().filter_map(both).collect()
}

/// Two ranks of ours that call back to back, with their recorders in this folder, too.
fn ours_in(folder: &Path, bytes: usize, ms: f64) -> Pair {
    let port = free_port().to_string();
    let words = ["beside", &bytes.to_string(), &ms.to_string(), &folder.display().to_string()];
    let words = words.map(str::to_string);
    let command = |rank| {
        let mut command = worker_command(rank, &port, &words);
        command.env("CCL_RUNTIME_DIR", folder);
        command
    };
    Pair::ready((0..RANKS).map(command).collect(), folder, "ours")
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

/// Pairs of processes per round in which the variants of recording are compared: where the kernel puts a communicator's memory makes
/// two that are alike differ by a percent, so that one pair tells little, however long it runs.
const PAIRS: usize = 8;
/// Turns of each variant within one pair.
const TURNS: usize = 25;

fn bench(rounds: usize) {
    println!("{rounds} rounds of turns; figures are median [quartiles]\n");
    event_sites(rounds);
    let program = build_open_mpi();
    // Milliseconds of a batch; turns beside Open MPI per round, and milliseconds of each; whether variants are compared.
    for (bytes, ms, turns, window, compared) in [
        (8, 1.0, 30, 30, true),
        (64 << 10, 2.0, 15, 60, true),
        (1 << 20, 4.0, 10, 100, true),
        (128 << 20, 50.0, 2, 1500, false),
    ] {
        println!("all-reduce of {bytes} bytes, {RANKS} processes, shared memory");
        let mut variants: Vec<Timed> = VARIANTS.iter().map(|_| Timed::default()).collect();
        let mut beside = Vec::new();
        for _ in 0..rounds {
            beside.extend(beside_open_mpi(&program, bytes, ms, turns, Duration::from_millis(window)));
            for _ in 0..if compared { PAIRS } else { 0 } {
                for (all, timed) in variants.iter_mut().zip(ours(bytes, ms, &[0, 1, 2, 3])) {
                    all.events = timed.events;
                    all.us.extend(timed.us);
                }
            }
            print!(".");
            std::io::stdout().flush().unwrap();
        }
        println!();
        if compared {
            for (timed, (name, _)) in variants.iter().zip(VARIANTS) {
                println!("  {name:14} {} us, {:.2} events per operation", middle(&timed.us), timed.events);
            }
            what_recording_costs(bytes, &variants[LEVEL_1].us, &variants[0].us);
        }
        let (used, theirs): (Vec<f64>, Vec<f64>) = beside.iter().copied().unzip();
        println!("  beside Open MPI: level 1 {} us, Open MPI {} us", middle(&used), middle(&theirs));
        let ratios: Vec<f64> = beside.iter().map(|(ours, theirs)| ours / theirs).collect();
        let limit = if bytes == 8 { 2.0 } else { 1.0 };
        let holds = verdict(median(ratios.clone()) <= limit);
        println!(
            "  level 1 / Open MPI = {}, {} turns; to be at most {limit}: {holds}\n",
            middle(&ratios),
            ratios.len()
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

/// What it costs a job to be watched: so many times somebody attaches, subscribes at 10 Hz and leaves again, while ranks call
/// back to back. Turns with and without follow one another; medians, and means beside them, because the client has no processor of its own.
fn watched(times: usize) {
    const WINDOW: Duration = Duration::from_millis(250);
    const EVERY: Duration = Duration::from_millis(100);
    println!("attached and left {times} times, subscribed every {} ms", EVERY.as_millis());
    for (bytes, ms) in [(8, 1.0), (64 << 10, 2.0)] {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let pair = ours_in(folder.path(), bytes, ms);
        pair.signal(Signal::CONT);
        let runtime = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
        let inside =
            runtime.filter(|path| path.is_dir()).flat_map(|path| std::fs::read_dir(path).unwrap().flatten());
        let sockets: Vec<PathBuf> = inside
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|e| e == "sock"))
            .collect();
        assert_eq!(sockets.len(), RANKS as usize, "each rank has a control socket");
        let mut windows = [Vec::new(), Vec::new()];
        for _ in 0..times {
            let began = clock::now();
            clock::sleep(WINDOW);
            let between = clock::now();
            let mut watchers: Vec<_> = sockets
                .iter()
                .map(|path| {
                    Client::connect_within(path, Duration::from_secs(5)).unwrap().subscribe(EVERY).unwrap()
                })
                .collect();
            while clock::now().since(between) < WINDOW {
                for watcher in &mut watchers {
                    watcher.next(Duration::from_secs(5)).unwrap();
                }
            }
            drop(watchers);
            windows[0].push((began.0, between.0));
            windows[1].push((between.0, clock::now().0));
        }
        let batches = pair.end();
        let of = |windows: &[(u64, u64)]| -> Vec<f64> {
            let inside = |at: u64| windows.iter().any(|(from, to)| (*from..=*to).contains(&at));
            batches
                .windows(2)
                .filter(|two| inside(two[0].0) && inside(two[1].0))
                .map(|two| two[1].1)
                .collect()
        };
        let [alone, watched] = [of(&windows[0]), of(&windows[1])];
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        println!(
            "  {bytes} bytes: alone {} us (mean {:.3}), watched {} us (mean {:.3}); {} and {} batches",
            middle(&alone),
            mean(&alone),
            middle(&watched),
            mean(&watched),
            alone.len(),
            watched.len()
        );
        // The same windows, compared one by one, tell how far chance goes.
        let each: Vec<f64> = windows[0]
            .iter()
            .zip(&windows[1])
            .filter_map(|(a, b)| Some((within(&batches, *b)? - within(&batches, *a)?) * 1e3))
            .collect();
        println!(
            "  watching adds {:.1} ns to the median; window by window {} ns",
            (median(watched) - median(alone)) * 1e3,
            middle(&each)
        );
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
                    other: None,
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
