//! What many communicators of one process cost. Started once for each rank; rank 0 prints.
//!
//! `many WAY COUNT CYCLES`: makes COUNT communicators of all ranks, uses each once, and then makes
//! and finishes one CYCLES times. WAY is `split` or `ids`: each from a unique id of its own. Every
//! rank prints what it holds at each point, as JSON.
//!
//! `many time COUNT 0`: how long a communicator of all ranks takes to make, by split and from an
//! id.
//!
//! `many churn COUNT SEED`: makes COUNT communicators and finishes them, in an order that is drawn.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a tool of the tests may panic, and prints")]

use std::collections::BTreeMap;
use std::time::Duration;

use ccl::clock;
use ccl::seed::Seed;
use ccl::{Communicator, Config, Rank, ReduceOp, Settings, UniqueId, create_id};

/// What a process holds.
fn holds() -> serde_json::Value {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default().display().to_string();
        *kinds.entry(target.split([':', '[']).next().unwrap_or_default().to_string()).or_default() += 1;
    }
    let count = |path: &str| std::fs::read_dir(path).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let smaps = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let part = |name: &str| -> u64 {
        let kib = smaps.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        kib.split_whitespace().next().unwrap().parse().unwrap()
    };
    // Without the program's file: how much of it is this process's depends on who else runs it.
    let pss = part("Pss_Anon:") + part("Pss_Shmem:");
    let sockets = kinds.get("socket").copied().unwrap_or_default();
    serde_json::json!({
        // Reading the folder takes one itself.
        "fds": count("/proc/self/fd") - 1, "sockets": sockets, "threads": count("/proc/self/task"),
        "maps": maps, "pss_kib": pss,
    })
}

fn use_once(comm: &Communicator) {
    let mut buffer = [1_i32; 256];
    comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    assert!(buffer.iter().all(|sum| *sum == comm.nranks() as i32));
}

/// A communicator of all ranks from an id that rank 0 makes.
fn from_id(world: &Communicator) -> Communicator {
    let (mut bytes, mut kept) = ([0_u8; 128], None);
    if world.rank() == Rank(0) {
        let (id, root) = create_id(&Settings::of_process().unwrap()).unwrap();
        bytes = id.to_bytes();
        kept = Some(root);
    }
    world.broadcast(&mut bytes, Rank(0)).unwrap();
    let id = UniqueId::from_bytes(&bytes).unwrap();
    let made = Communicator::init(&id, world.rank().0, world.nranks(), Config::default()).unwrap();
    drop(kept);
    made
}

/// Makes `count` communicators of drawn ranks in drawn ways, and finishes them; at most 8 live.
fn churn(world: &Communicator, count: usize, seed: u64) {
    let mut random = Seed(seed);
    let (mut live, mut made) = (Vec::new(), 0);
    while made < count || !live.is_empty() {
        let makes = made < count && (live.is_empty() || live.len() < 8 && random.below(2) == 0);
        if makes {
            let (colours, is_split) = (1 + random.below(3) as u32, random.below(4) > 0);
            let colour = Some(world.rank().0 % colours);
            let split = || world.split(colour, 0, Config::default()).unwrap().unwrap();
            live.push(if is_split { split() } else { from_id(world) });
            made += 1;
        } else {
            let at = random.below(live.len() as u64) as usize;
            use_once(&live[at]);
            live.swap_remove(at).finish().unwrap();
        }
    }
}

/// Prints the median time of each way to make a communicator, in microseconds, and the ratio.
fn time(world: &Communicator, count: usize) {
    let split = || world.split(Some(0), 0, Config::default()).unwrap().unwrap();
    let median = |make: &dyn Fn() -> Communicator| {
        let mut took: Vec<u128> = (0..count)
            .map(|_| {
                world.barrier().unwrap();
                let began = ccl::clock::now();
                let comm = make();
                let took = ccl::clock::now().since(began).as_micros();
                comm.finish().unwrap();
                took
            })
            .collect();
        took.sort_unstable();
        took[count / 2]
    };
    let (split, fresh) = (median(&split), median(&|| from_id(world)));
    if world.rank() == Rank(0) {
        println!("split {split} us, from an id {fresh} us, ratio {:.1}", fresh as f64 / split as f64);
    }
}

fn main() {
    let [way, count, cycles] = std::env::args().skip(1).collect::<Vec<_>>().try_into().unwrap();
    let (count, cycles): (usize, usize) = (count.parse().unwrap(), cycles.parse().unwrap());
    let world = Communicator::from_env().unwrap();
    let me = world.rank().0;
    if way == "churn" {
        churn(&world, count, cycles as u64);
        return world.finish().unwrap();
    }
    if way == "time" {
        time(&world, count);
        return world.finish().unwrap();
    }
    let make = || match way.as_str() {
        "ids" => from_id(&world),
        _ => world.split(Some(0), 0, Config::default()).unwrap().unwrap(),
    };
    let mut warm: Option<serde_json::Value> = None;
    let mut say = |what: &str| {
        // All ranks look while none does anything else.
        world.barrier().unwrap();
        let mut held = holds();
        // The streams of a bootstrap are closed a moment after init, once the neighbours are there:
        // at first, what is left after a while counts.
        let is_due = |held: &serde_json::Value| warm.as_ref().is_none_or(|fds| held["fds"] != *fds);
        let limit = if warm.is_none() { Duration::from_millis(500) } else { Duration::from_secs(5) };
        let end = clock::now().after(limit);
        while is_due(&held) && clock::now() < end {
            clock::sleep(Duration::from_millis(10));
            held = holds();
        }
        warm.get_or_insert_with(|| held["fds"].clone());
        println!("{}", serde_json::json!({ "rank": me, "at": what, "holds": held }));
        world.barrier().unwrap();
    };
    let cycle = || {
        let comm = make();
        use_once(&comm);
        comm.finish().unwrap();
    };
    (0..3).for_each(|_| cycle());
    say("warm");
    let comms: Vec<Communicator> = (0..count).map(|_| make()).collect();
    say("made");
    comms.iter().for_each(use_once);
    say("used");
    let events = world.events_recorded();
    comms.into_iter().for_each(|comm| comm.finish().unwrap());
    say("finished");
    for n in 1..=cycles {
        cycle();
        if n == 10 {
            say("cycle 10");
        }
    }
    say("the last cycle");
    println!("{}", serde_json::json!({ "rank": me, "events": events }));
    world.finish().unwrap();
}
