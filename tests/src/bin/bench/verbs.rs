//! `bench verbs`: lanes over queue pairs beside perftest's programs, for the virtual machine of
//! `scripts/verbs-vm`, which has two devices and two network namespaces:
//!
//! ```text
//! scripts/verbs-vm -t 900 -- target/release/bench verbs 10
//! ```
//!
//! *Bandwidth*: rank 0 sends messages of 64 KiB from regions, as many at a time as `ib_write_bw`
//! has on their way; *latency*: half of a round trip of 8 bytes, beside `ib_send_lat -e`, whose
//! ends sleep. The pairs are interleaved. On an emulated processor times say what the scheduler
//! does; only ratios are compared.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccl::clock;
use ccl::comm::Communicator;
use ccl::memory::Region;
use ccl::types::Rank;

use crate::statistics::{Class, middle, verdict};
use crate::worker::open;

/// Bytes of a message.
const MESSAGE: usize = 64 << 10;
/// How many are on their way.
const DEPTH: usize = 4;
/// How many are sent in a window.
const MESSAGES: usize = 1000;
/// Round trips of a window.
const TRIPS: usize = 1000;

pub(crate) fn verbs(program: &Path, pairs: usize) {
    let (mut bandwidth, mut latency) = (Class::default(), Class::default());
    let (mut slow, mut late) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        let (ours, theirs) = (ours(program, "stream"), perftest("ib_write_bw", &BANDWIDTH));
        println!("  64 KiB, {DEPTH} on their way: ccl {ours:8.2} MB/s, ib_write_bw {theirs:8.2} MB/s");
        slow.push(ours / theirs);
        let (ours, theirs) = (self::ours(program, "trips"), perftest("ib_send_lat", &LATENCY));
        println!("  8 bytes: ccl {ours:8.2} us, ib_send_lat -e {theirs:8.2} us");
        late.push(ours / theirs);
    }
    println!("bandwidth, ccl / ib_write_bw: {} {}", middle(&slow), bandwidth.add(slow.clone()));
    println!("  at least 0.85: {}", verdict(bandwidth.mean() >= 0.85));
    println!("latency, ccl / ib_send_lat -e: {} {}", middle(&late), latency.add(late.clone()));
    let holds = verdict(latency.upper_bound() <= 2.0);
    println!("  upper 95 % bound {:.3}, to be at most 2: {holds}", latency.upper_bound());
}

const BANDWIDTH: [&str; 7] = ["-s", "65536", "-t", "4", "-n", "1000", "-F"];
const LATENCY: [&str; 6] = ["-e", "-s", "8", "-n", "1000", "-F"];

/// What rank 0 of two processes on the two emulated hosts measures.
fn ours(program: &Path, what: &str) -> f64 {
    let rank = |rank: usize| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ["h0", "h1"][rank]]).arg(program).args(["rank", what]);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("CCL_DEBUG", "NONE");
        command.env("CCL_COMM_ID", "10.88.0.1:7788").env("CCL_HOSTID", ["h0", "h1"][rank]);
        command.env("CCL_IB_HCA", ["=rxe0", "=rxe1"][rank]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<Child> = (0..2).map(rank).collect();
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "a rank failed");
    String::from_utf8_lossy(&outputs[0].stdout).trim().parse().unwrap()
}

/// A rank of it.
pub(crate) fn rank(what: &str) {
    let comm = open(&[]);
    let measured = match what {
        "stream" => stream(&comm),
        _ => trips(&comm),
    };
    if comm.rank() == Rank(0) {
        println!("{measured}");
    }
    comm.finish().unwrap();
}

/// Megabytes a second that arrive.
fn stream(comm: &Communicator) -> f64 {
    let mut free: VecDeque<Region<u8>> = (0..DEPTH).map(|_| Region::zeroed(MESSAGE).unwrap()).collect();
    let mut under_way = VecDeque::new();
    let mut began = clock::now();
    let peer = Rank(1 - comm.rank().0);
    for message in 0..MESSAGES + 20 {
        if message == 20 {
            // What came before has set the lane up.
            comm.barrier().unwrap();
            began = clock::now();
        }
        let region = free.pop_front().unwrap_or_else(|| {
            let oldest: ccl::Pending<u8> = under_way.pop_front().unwrap();
            oldest.wait().unwrap()
        });
        let begun =
            if peer == Rank(1) { comm.send_async(region, peer) } else { comm.recv_async(region, peer) };
        under_way.push_back(begun.unwrap());
    }
    under_way.into_iter().for_each(|last| drop(last.wait().unwrap()));
    comm.barrier().unwrap();
    (MESSAGES * MESSAGE) as f64 / clock::now().since(began).as_secs_f64() / 1e6
}

/// Microseconds of half a round trip.
fn trips(comm: &Communicator) -> f64 {
    let mut word = [0i64];
    let mut began = clock::now();
    for trip in 0..TRIPS + 20 {
        if trip == 20 {
            began = clock::now();
        }
        if comm.rank() == Rank(0) {
            comm.send(&word, Rank(1)).unwrap();
            comm.recv(&mut word, Rank(1)).unwrap();
        } else {
            comm.recv(&mut word, Rank(0)).unwrap();
            comm.send(&word, Rank(0)).unwrap();
        }
    }
    clock::now().since(began).as_secs_f64() * 1e6 / TRIPS as f64 / 2.0
}

/// What one of perftest's programs measures: its average.
fn perftest(program: &str, with: &[&str]) -> f64 {
    let run = |device: &str, server: Option<&str>| {
        let mut command = Command::new(program);
        command.args(with).args(["-d", device, "-x", "1"]).args(server);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let server = run("rxe1", None);
    clock::sleep(Duration::from_millis(700));
    let client = run("rxe0", Some("127.0.0.1"));
    let outputs = [server, client].map(|child| child.wait_with_output().unwrap());
    let text = String::from_utf8_lossy(&outputs[1].stdout).into_owned();
    average(program, &text).unwrap_or_else(|| panic!("{program} says: {text}"))
}

/// The average in perftest's table, in the column of that name; its megabytes are binary.
fn average(program: &str, text: &str) -> Option<f64> {
    let row = text.lines().rev().find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()))?;
    let columns: Vec<f64> = row.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match program {
        "ib_write_bw" => columns.get(3).map(|mega| mega * 1.048_576),
        _ => columns.get(5).copied(),
    }
}
