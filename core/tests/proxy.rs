//! The proxy with too few slots: nothing dead-locks, every result is right, and who waits is seen.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says how many cases it ran"
)]

mod common;

use std::collections::VecDeque;
use std::panic::catch_unwind;
use std::sync::Arc;

use ccl::clock::Ns;
use ccl::comm::Config;
use ccl::config::{Key, environment};
use ccl::engine::{Mover, Processor};
use ccl::plan::{Topology, select};
use ccl::proxy::Pool;
use ccl::seed::Seed;
use ccl::simulate::{Cluster, Late, Outcome};
use ccl::types::Algorithm;
use ccl::{CollKind, Communicator, Datatype, Rank, ReduceOp, Request};

/// Runs of all communicators in which nothing ends, after which they are taken to be dead-locked:
/// each moves everything as far as it goes.
const MOST_ROUNDS: usize = 1_000;

/// The most sends from one rank to another.
const MOST_SENDS: usize = 4;

fn request(kind: CollKind, root: u32, count: u64) -> Request {
    Request { kind, dtype: Datatype::I64, op: ReduceOp::Sum, root: Rank(root), count, uneven: false }
}

fn bytes(values: impl Iterator<Item = i64>) -> Vec<u8> {
    values.flat_map(i64::to_le_bytes).collect()
}

fn values(bytes: &[u8]) -> Vec<i64> {
    bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The element `i` that a rank gives in the `nth` operation of a communicator.
fn given(comm: usize, rank: u32, nth: usize, i: u64) -> i64 {
    (comm as i64) << 40 | i64::from(rank) << 32 | (nth as i64) << 24 | i as i64
}

/// A call that a rank is to make.
struct Call {
    rank: u32,
    request: Request,
    input: Vec<u8>,
    /// What it is to give.
    wanted: Vec<i64>,
}

/// A simulated communicator, the calls that its ranks are still to make, in order, and what those
/// that were made are to give: the rank, the number of the call, and the values.
struct Comm<M: Mover> {
    cluster: Cluster<(), M>,
    topology: Topology,
    calls: Vec<VecDeque<Call>>,
    wanted: Vec<(Rank, usize, Vec<i64>)>,
    made: Vec<usize>,
}

impl<M: Mover> Comm<M> {
    /// Draws the calls: collectives, and between each two ranks sends in both directions, of which
    /// some have one message.
    fn draw(number: usize, topology: Topology, cluster: Cluster<(), M>, draw: &mut Seed) -> Self {
        let n = topology.nranks();
        let calls = (0..n).map(|_| VecDeque::new()).collect();
        let made = vec![0; n as usize];
        let mut comm = Self { cluster, topology, calls, wanted: Vec::new(), made };
        for nth in 0..1 + draw.below(3) as usize {
            let elements = 1 + draw.below(40_000);
            let request = request(CollKind::AllReduce, 0, elements);
            let sum = |i| (0..n).map(|rank| given(number, rank, nth, i)).sum();
            for rank in 0..n {
                let input = bytes((0..elements).map(|i| given(number, rank, nth, i)));
                comm.add(Call { rank, request, input, wanted: (0..elements).map(sum).collect() });
            }
        }
        for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))) {
            let sends = if from == to { 0 } else { 1 + draw.place(MOST_SENDS) };
            for nth in 0..sends {
                let most = draw.one_of(&[1_000, 60_000]);
                let elements = 1 + draw.below(most);
                let nth = to as usize * MOST_SENDS + nth;
                let data: Vec<i64> = (0..elements).map(|i| given(number, from, nth, i)).collect();
                let send = request(CollKind::Send, to, elements);
                let input = bytes(data.iter().copied());
                comm.add(Call { rank: from, request: send, input, wanted: Vec::new() });
                let receive = request(CollKind::Recv, from, elements);
                comm.add(Call { rank: to, request: receive, input: Vec::new(), wanted: data });
            }
        }
        comm
    }

    fn add(&mut self, call: Call) {
        self.calls[call.rank as usize].push_back(call);
    }

    /// Makes the next call of a rank drawn from those that have one left; false if none has.
    fn call(&mut self, draw: &mut Seed) -> bool {
        let ranks: Vec<usize> = (0..self.calls.len()).filter(|rank| !self.calls[*rank].is_empty()).collect();
        if ranks.is_empty() {
            return false;
        }
        let at = draw.one_of(&ranks);
        let Some(Call { rank, request, input, wanted }) = self.calls[at].pop_front() else { return false };
        let forced = (!request.kind.is_p2p()).then_some(Algorithm::Ring);
        let shape = select::select(&self.topology, Rank(rank), &request, forced);
        self.cluster.call(Rank(rank), request, shape, &input, false);
        if request.kind != CollKind::Send {
            self.wanted.push((Rank(rank), self.made[at], wanted));
        }
        self.made[at] += 1;
        true
    }

    fn run(&mut self) -> bool {
        match self.cluster.run() {
            Outcome::Finished => true,
            Outcome::Stuck(_) => false,
            Outcome::Failed(rank, failure) => panic!("rank {rank}: {failure:?}"),
        }
    }

    fn check(&self) {
        for (rank, nth, expect) in &self.wanted {
            assert!(&values(self.cluster.output(*rank, *nth)) == expect, "call {nth} of rank {rank}");
        }
        assert!(self.cluster.is_clean());
    }
}

/// Draws up to three communicators of the same processes, each of which has so many slots. Their
/// ranks make their calls in any order, and one or the other communicator runs meanwhile. In the
/// end all run in turn until everything has ended; returns the number of these rounds.
fn run_drawn<M: Mover>(seed: u64, slots: u32, mover: impl Fn(u64) -> M) -> usize {
    let mut draw = Seed(seed);
    let n = 2 + draw.below(4);
    let hosts: Vec<u64> = (0..n).collect();
    let pools: Vec<Arc<Pool>> = (0..n).map(|_| Pool::timed_by(slots, || Ns(0))).collect();
    let comm = |number: usize, draw: &mut Seed| {
        let topology = Topology::new(&hosts, 1 + draw.below(2) as u16);
        let part = seed << 4 | number as u64;
        let mover = |rank: Rank| mover(part << 8 | u64::from(rank.0));
        let cluster = Cluster::proxied(mover, topology.clone(), part, (0, 20_000), &pools);
        Comm::draw(number, topology, cluster, draw)
    };
    let count = 1 + draw.place(3);
    let mut comms: Vec<Comm<M>> = (0..count).map(|number| comm(number, &mut draw)).collect();
    while comms.iter().any(|comm| comm.calls.iter().any(|calls| !calls.is_empty())) {
        comms[draw.place(count)].call(&mut draw);
        if draw.below(3) == 0 {
            comms[draw.place(count)].run();
        }
    }
    let rounds = (1..=MOST_ROUNDS).find(|_| comms.iter_mut().fold(true, |all, comm| all & comm.run()));
    comms.iter().for_each(Comm::check);
    rounds.expect("nothing dead-locks")
}

#[test]
fn few_slots_dead_lock_nothing_in_simulated_communicators() {
    let seeds = if environment("TEST_SIZE").is_some_and(|size| size == "long") { 1_000 } else { 100 };
    let mut most = 0;
    for seed in 0..seeds {
        for slots in [1, 2] {
            // Bytes that are moved at once, and later.
            let run = catch_unwind(|| {
                let at_once = run_drawn(seed, slots, |_| Processor);
                at_once.max(run_drawn(seed, slots, Late::new))
            });
            most = run.unwrap_or_else(|_| panic!("seed {seed}, {slots} slots")).max(most);
        }
    }
    println!("cases: proxy-slots {}; at most {most} rounds", 4 * seeds);
}

/// All ranks are threads of this process, which has one slot: of any two operations one waits.
#[test]
fn one_slot_carries_all_communicators_of_a_process_over_sockets() {
    assert!(Pool::limit_process(1), "before the first communicator");
    let settings = common::settings(&[(Key::Transport, "socket")]);
    let results = common::with_ranks(4, &settings, |world| {
        let (rank, n) = (world.rank().0, world.nranks());
        let half = world
            .split(Some(rank % 2), 0, Config { name: "half".into(), settings: Some(settings.clone()) })
            .unwrap()
            .unwrap();
        for round in 0..3_u32 {
            let count = [5, 30_000, 300_000][round as usize];
            let all = world.all_reduce_async(vec![i64::from(rank + round); count], ReduceOp::Sum).unwrap();
            let part = half.all_reduce_async(vec![i64::from(rank); count], ReduceOp::Sum).unwrap();
            exchange(&world, rank, n, count);
            let sum = i64::from(n * (n - 1) / 2 + n * round);
            assert!(all.wait().unwrap().iter().all(|&value| value == sum), "round {round}");
            let others = i64::from(rank % 2 + rank % 2 + 2);
            assert!(part.wait().unwrap().iter().all(|&value| value == others), "round {round}");
        }
        world.barrier().unwrap();
        half.finish().unwrap();
        world.finish().unwrap();
        rank
    });
    assert_eq!(results, [0, 1, 2, 3]);
}

/// Sends to every other rank and receives from it, all side by side.
fn exchange(world: &Communicator, rank: u32, n: u32, count: usize) {
    let out = vec![i64::from(rank); count];
    let mut into: Vec<(u32, Vec<i64>)> =
        (0..n).filter(|peer| *peer != rank).map(|peer| (peer, vec![0; count])).collect();
    let mut group = world.group();
    for (peer, buffer) in &mut into {
        group.send(&out, Rank(*peer));
        group.recv(buffer, Rank(*peer));
    }
    group.run().unwrap();
    assert!(into.iter().all(|(peer, buffer)| buffer.iter().all(|value| *value == i64::from(*peer))));
}
