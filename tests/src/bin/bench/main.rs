//! `make bench`: the cost of recording, and all-reduce compared with Open MPI's, in one interleaved
//! run.
//!
//! Every figure comes from turns that all variants take one after another, so that other activity
//! on the machine affects all of them. A ratio is taken between neighbouring turns; printed are the
//! median of the ratios and their quartiles. Absolute times are shown for orientation only.
//!
//! A worker is one of two processes that call all-reduce back to back, in place, f32 sum; it is
//! pinned to its own processor, as Open MPI's launcher pins its ranks. The variants of recording
//! are communicators of one pair of processes (`bench worker BYTES MS TURNS VARIANT...`). A pair to
//! compare with Open MPI (`bench beside BYTES MS FOLDER`) runs while Open MPI's is stopped, and the
//! reverse, by signals, many times: the host moves the processors of a virtual machine near and
//! apart within a second, which affects short messages more than anything that is measured here.
//!
//! Beside other processes (`bench strangers PAIRS SECONDS`) and against another build's program
//! (`bench against PROGRAM PAIRS SECONDS`), means over windows are compared instead. Queue pairs
//! are compared with perftest's in a virtual machine (`bench verbs PAIRS`).

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
use ccl::config::Key;
use ccl::event::{Event, publish};
use ccl::recorder::{CommInfo, Recorder};
use ccl::types::{Algorithm, CollKind, CommId, Datatype, JobId, Rank, ReduceOp};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

mod against;
mod statistics;
mod strangers;
mod verbs;
mod watched;
mod windows;
mod worker;

use statistics::{median, middle, spread, verdict};
use watched::watched;
use worker::{beside, free_port, worker, worker_command};

const USAGE: &str = "usage: bench [ROUNDS] | bench watched [TIMES] | bench strangers PAIRS SECONDS | bench against PROGRAM PAIRS SECONDS | bench verbs PAIRS";

const RANKS: u32 = 2;

/// The compared variants: a name, and the settings that make it.
const VARIANTS: [(&str, &[(Key, &str)]); 4] = [
    ("CCL_OBSERVE=0", &[(Key::Observe, "0")]),
    ("level 0", &[(Key::Level, "0")]),
    ("level 1", &[(Key::Level, "1")]),
    ("level 2", &[(Key::Level, "2")]),
];
/// The variant in normal use.
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
        ["window", bytes, seconds] => windows::rank(bytes.parse().unwrap(), seconds.parse().unwrap()),
        ["stranger"] => strangers::spin(),
        ["watched"] => watched(100),
        ["watched", times] => watched(times.parse().expect(USAGE)),
        ["strangers", pairs, seconds] => {
            let (pairs, seconds) = (pairs.parse().expect(USAGE), seconds.parse().expect(USAGE));
            strangers::strangers(&build_open_mpi(), pairs, seconds);
        }
        ["against", other, pairs, seconds] => {
            let (pairs, seconds) = (pairs.parse().expect(USAGE), seconds.parse().expect(USAGE));
            against::against(Path::new(other), pairs, seconds);
        }
        ["verbs", pairs] => verbs::verbs(&std::env::current_exe().unwrap(), pairs.parse().expect(USAGE)),
        ["rank", what] => verbs::rank(what),
        [] => bench(7),
        [rounds] => bench(rounds.parse().expect(USAGE)),
        _ => panic!("{USAGE}"),
    }
}

/// The times of each variant, by this or another build's program.
///
/// There are `turns` batches of `ms` milliseconds each.
fn ours_of(program: &Path, (bytes, ms, turns): (usize, f64, usize), variants: &[usize]) -> Vec<Timed> {
    let port = free_port().to_string();
    let mut words = vec!["worker".to_string(), bytes.to_string(), ms.to_string(), turns.to_string()];
    words.extend(variants.iter().map(usize::to_string));
    let start = |rank| worker_command(program, rank, &port, &words).spawn().unwrap();
    let ranks: Vec<Child> = (0..RANKS).map(start).collect();
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "a worker failed");
    serde_json::from_slice(&outputs[0].stdout).unwrap()
}

/// Two processes that can be stopped and continued, and the file of their batches.
///
/// A file, because a pipe would fill up and block them.
struct Pair {
    pids: Vec<Pid>,
    started: Vec<Child>,
    batches: PathBuf,
}

impl Pair {
    /// Starts both, waits until they are ready, and stops them.
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

    /// Runs them for a while; gives the begin and the end.
    fn turn(&self, window: Duration) -> (u64, u64) {
        let began = clock::now().0;
        self.signal(Signal::CONT);
        clock::sleep(window);
        self.signal(Signal::STOP);
        (began, clock::now().0)
    }

    /// Ends them; gives the end of each batch, and the time of an operation in it.
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

/// Microseconds per operation of ccl and of Open MPI, turn by turn.
fn beside_open_mpi(program: &Path, bytes: usize, ms: f64, turns: usize, window: Duration) -> Vec<(f64, f64)> {
    // In memory, in a folder that no other job uses.
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

/// Two ranks of ccl that call back to back, with their recorders in this folder, too.
fn ours_in(folder: &Path, bytes: usize, ms: f64) -> Pair {
    let port = free_port().to_string();
    let words = ["beside", &bytes.to_string(), &ms.to_string(), &folder.display().to_string()];
    let words = words.map(str::to_string);
    let command = |rank| {
        let mut command = worker_command(&std::env::current_exe().unwrap(), rank, &port, &words);
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

/// Pairs of processes per round in which the variants of recording are compared.
///
/// The place of a communicator's memory makes two equal ones differ by a percent, so that one pair
/// shows little, however long it runs.
const PAIRS: usize = 8;
/// Turns of each variant within one pair.
const TURNS: usize = 25;
/// How often an event site is measured per round: it takes less than a tenth of a second, and what
/// else runs on the machine disturbs it.
const SITE_ROUNDS: usize = 10;
/// Seconds of a window beside other processes; `bench strangers` uses longer ones.
const STRANGERS_SECONDS: f64 = 2.0;

fn bench(rounds: usize) {
    println!("{rounds} rounds of turns; figures are median [quartiles]\n");
    let stamp = event_sites(SITE_ROUNDS * rounds);
    let (this, program) = (std::env::current_exe().unwrap(), build_open_mpi());
    // Milliseconds of a batch; turns of the Open MPI comparison per round, and milliseconds of
    // each; whether variants are compared.
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
                for (all, timed) in variants.iter_mut().zip(ours_of(&this, (bytes, ms, TURNS), &[0, 1, 2, 3]))
                {
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
            what_recording_costs(bytes, stamp, &variants[LEVEL_1].us, &variants[0].us);
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
    strangers::strangers(&program, rounds, STRANGERS_SECONDS);
}

/// Compares level 1 with no recording, turn by turn; `stamp` is what a read of the time-stamp
/// counter takes, in nanoseconds.
///
/// The budget of a short operation is 35 ns where a read takes 10 ns: on a processor that is
/// slower, or shared, both take longer.
fn what_recording_costs(bytes: usize, stamp: f64, level_1: &[f64], nothing: &[f64]) {
    let more: Vec<f64> = level_1.iter().zip(nothing).map(|(one, none)| (one - none) * 1e3).collect();
    let ratios: Vec<f64> = level_1.iter().zip(nothing).map(|(one, none)| one / none).collect();
    if bytes < 64 << 10 {
        let reads: Vec<f64> = more.iter().map(|more| more / stamp).collect();
        let holds = verdict(median(reads.clone()) <= 3.5);
        println!("  level 1 costs {} ns more than CCL_OBSERVE=0", middle(&more));
        println!("    = {} reads of the time-stamp counter; budget 3.5: {holds}", middle(&reads));
    } else {
        let holds = verdict(median(ratios.clone()) <= 1.005);
        println!("  level 1 / CCL_OBSERVE=0 = {}; budget 1.005: {holds}", middle(&ratios));
    }
}

/// Nanoseconds per event site: switched off, and recorded with a time stamp read for it alone.
/// Returns what a read of the time-stamp counter takes.
fn event_sites(rounds: usize) -> f64 {
    const TIMES: u64 = 4_000_000;
    let recorder = Recorder::heap();
    let info =
        CommInfo { id: CommId(1), job: JobId(1), name: "bench", rank: Rank(0), nranks: 1, world: Rank(0) };
    let row = recorder.comm(info);
    let mut ring = row.events();
    // The time of the same loop without the site is subtracted.
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
    // What a recorded event is measured by: its own time stamp is one such read.
    let stamp = || {
        loops(&mut |times| {
            for _ in 0..times {
                std::hint::black_box(clock::raw());
            }
        })
    };
    let (mut off, mut on, mut stamps, mut reads) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        off.push(time(0));
        on.push(time(1));
        stamps.push(stamp());
        reads.push(on[on.len() - 1] / stamps[stamps.len() - 1]);
    }
    println!(
        "an event site, gated off {} ns; budget 1 ns: {}",
        spread(&off),
        verdict(median(off.clone()) <= 1.0)
    );
    println!(
        "an event, recorded       {} ns = {} reads of the time-stamp counter; budget 2: {}\n",
        spread(&on),
        spread(&reads),
        verdict(median(reads.clone()) <= 2.0)
    );
    median(stamps)
}
