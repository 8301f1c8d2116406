//! The production engine and plans on simulated ranks: results, golden event scripts, faults by
//! seed, and size.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says how many cases it ran"
)]

mod golden;

use ccl::engine::{Cause, Mover};
use ccl::event::{Digest, Script, Subscriber};
use ccl::plan::{Topology, select};
use ccl::seed::Seed;
use ccl::simulate::{Cluster, LaneFault, Late, Outcome};
use ccl::transport::LinkFault;
use ccl::transport::faulty::Fault;
use ccl::types::Algorithm;
use ccl::{ChannelId, CollKind, Datatype, Rank, ReduceOp, Request};

fn request(kind: CollKind, root: u32, count: u64) -> Request {
    Request { kind, dtype: Datatype::I64, op: ReduceOp::Sum, root: Rank(root), count, uneven: false }
}

/// One host for all, or one each.
fn topology(n: u32, one_host: bool, channels: u16) -> Topology {
    let hosts: Vec<u64> = (0..u64::from(n)).map(|rank| if one_host { 0 } else { rank }).collect();
    Topology::new(&hosts, channels)
}

fn bytes(values: impl Iterator<Item = i64>) -> Vec<u8> {
    values.flat_map(i64::to_le_bytes).collect()
}

fn values(bytes: &[u8]) -> Vec<i64> {
    bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
}

fn all_reduce_on<S: Subscriber + Default>(
    topology: Topology,
    count: u64,
    forced: Option<Algorithm>,
    seed: u64,
    faults: &[LaneFault],
) -> (Cluster<S>, Outcome) {
    let request = request(CollKind::AllReduce, 0, count);
    let n = topology.nranks();
    let shape = select::select(&topology, Rank(0), &request, forced);
    let mut cluster = Cluster::new(topology, seed, (500, 40_000), faults);
    for rank in 0..n {
        let input = bytes((0..count as i64).map(|i| i * 3 + i64::from(rank)));
        cluster.call(Rank(rank), request, shape, &input, false);
    }
    let outcome = cluster.run();
    (cluster, outcome)
}

fn check_sum<S: Subscriber + Default, M: Mover>(cluster: &Cluster<S, M>, n: u32, count: u64) {
    let ranks = i64::from(n * (n - 1) / 2);
    let expect: Vec<i64> = (0..count as i64).map(|i| i * 3 * i64::from(n) + ranks).collect();
    for rank in 0..n {
        assert_eq!(values(cluster.output(Rank(rank), 0)), expect, "rank {rank} of {n}");
    }
}

fn digest(cluster: &Cluster<Digest>, n: u32) -> u64 {
    (0..n).fold(0, |hash: u64, rank| hash.rotate_left(7) ^ cluster.engine(Rank(rank)).events().value())
}

#[test]
fn a_ring_of_a_thousand_ranks_and_its_replay() {
    let run = |seed| {
        let (cluster, outcome) =
            all_reduce_on::<Digest>(topology(1_000, false, 1), 2_000, Some(Algorithm::Ring), seed, &[]);
        assert_eq!(outcome, Outcome::Finished);
        check_sum(&cluster, 1_000, 2_000);
        digest(&cluster, 1_000)
    };
    let (first, again) = (run(1), run(1));
    println!("ring, 1,000 ranks: event scripts hash to {first:016x}, replayed {again:016x}");
    assert_eq!(first, again);
}

#[test]
fn direct_on_64_ranks_and_its_replay() {
    let run = |seed| {
        let (cluster, outcome) =
            all_reduce_on::<Digest>(topology(64, true, 1), 40_000, Some(Algorithm::Direct), seed, &[]);
        assert_eq!(outcome, Outcome::Finished);
        check_sum(&cluster, 64, 40_000);
        digest(&cluster, 64)
    };
    let (first, again) = (run(2), run(2));
    println!("direct, 64 ranks: event scripts hash to {first:016x}, replayed {again:016x}");
    assert_eq!(first, again);
}

#[test]
fn results_do_not_depend_on_the_schedule() {
    for seed in 0..60 {
        let n = 2 + (seed % 8) as u32;
        for (one_host, forced) in
            [(true, None), (true, Some(Algorithm::Ring)), (false, None), (true, Some(Algorithm::Direct))]
        {
            let (cluster, outcome) = all_reduce_on::<()>(topology(n, one_host, 2), 513, forced, seed, &[]);
            assert_eq!(outcome, Outcome::Finished);
            check_sum(&cluster, n, 513);
        }
    }
}

#[test]
fn a_tree_does_not_depend_on_the_schedule() {
    for seed in 0..1_000 {
        let (n, nhosts) = (1 + seed * 7 % 64, 1 + seed % 5);
        let hosts: Vec<u64> = (0..n).map(|rank| rank % nhosts).collect();
        // Of few ranks several chunks, which overlap.
        let count = if n < 9 { 20_000 } else { 300 };
        let topology = Topology::new(&hosts, 2);
        let (cluster, outcome) = all_reduce_on::<()>(topology, count, Some(Algorithm::Tree), seed, &[]);
        assert_eq!(outcome, Outcome::Finished, "{n} ranks on {nhosts} hosts");
        check_sum(&cluster, n as u32, count);
        assert!(cluster.is_clean());
    }
    println!("cases: tree-schedules 1000");
}

/// The work of steps ends some polls after it began, in any order.
#[test]
fn steps_that_end_late_and_out_of_order_give_the_same_results() {
    let mut overtaken = 0;
    for seed in 0..300 {
        let n = 2 + (seed % 8) as u32;
        for (one_host, forced) in [
            (true, None),
            (true, Some(Algorithm::Direct)),
            (false, Some(Algorithm::Ring)),
            (true, Some(Algorithm::Tree)),
        ] {
            let request = request(CollKind::AllReduce, 0, 20_000);
            let topology = topology(n, one_host, 3);
            let shape = select::select(&topology, Rank(0), &request, forced);
            let late = |rank: Rank| Late::new(seed << 8 | u64::from(rank.0));
            let mut cluster = Cluster::<(), Late>::moved_by(late, topology, seed, (500, 40_000), &[]);
            for rank in 0..n {
                let input = bytes((0..20_000).map(|i| i * 3 + i64::from(rank)));
                cluster.call(Rank(rank), request, shape, &input, false);
            }
            assert_eq!(cluster.run(), Outcome::Finished, "{n} ranks, {forced:?}");
            check_sum(&cluster, n, 20_000);
            overtaken += (0..n).map(|rank| cluster.engine(Rank(rank)).mover().overtaken).sum::<u64>();
        }
    }
    println!("cases: late-steps 1200");
    assert!(overtaken > 100, "{overtaken} steps ended before others that began earlier");
}

#[test]
fn who_is_waited_for_is_said_anew_as_messages_come() {
    let topology = topology(4, true, 1);
    let request = request(CollKind::AllReduce, 0, 4);
    let shape = select::select(&topology, Rank(0), &request, None);
    let mut cluster = Cluster::<()>::new(topology, 5, (0, 0), &[]);
    let mut waits_of = |caller: u32| {
        cluster.call(Rank(caller), request, shape, &bytes(0..4), false);
        assert!(matches!(cluster.run(), Outcome::Stuck(_)));
        let seen = cluster.snapshot().unwrap();
        let comm = &seen.ranks[3].comms[0];
        let links = comm.links.iter().filter(|link| link.is_waiting());
        let links: Vec<u32> = links.map(|link| link.waits_for.unwrap().0).collect();
        (comm.op.wait.as_ref().unwrap().peer.0, links)
    };
    // Rank 3 calls first, then the ranks it waits for, one after another.
    let seen: Vec<_> = [3, 0, 1].map(&mut waits_of).into();
    assert_eq!(seen, [(0, vec![0]), (1, vec![1]), (2, vec![2])]);
}

/// Draws a fault on a lane of the ring and checks its consequence.
#[test]
fn a_thousand_seeds_of_delays_cuts_and_closes() {
    let (mut finished, mut stuck, mut failed) = (0, 0, 0);
    for seed in 0..1_000 {
        let mut draw = Seed(seed);
        let n = 2 + draw.below(15) as u32;
        let from = Rank(draw.below(u64::from(n)) as u32);
        let to = Rank((from.0 + 1) % n);
        let at = 1 + draw.below(u64::from(2 * (n - 1)));
        let fault = match draw.below(4) {
            0 => Fault::Hold { at, looks: 1 + draw.below(50) as u32 },
            1 => Fault::Cut { at },
            2 => Fault::Close { at },
            _ => Fault::Corrupt { at },
        };
        let lane = LaneFault { channel: ChannelId(0), from, to, fault };
        let (cluster, outcome) =
            all_reduce_on::<Digest>(topology(n, false, 1), 640, Some(Algorithm::Ring), seed, &[lane]);
        let (again, replayed) =
            all_reduce_on::<Digest>(topology(n, false, 1), 640, Some(Algorithm::Ring), seed, &[lane]);
        assert_eq!((&outcome, digest(&cluster, n)), (&replayed, digest(&again, n)), "seed {seed} replays");
        match (fault, &outcome) {
            (Fault::Hold { .. }, Outcome::Finished) => {
                check_sum(&cluster, n, 640);
                finished += 1;
            }
            // A rank waits for the writer of the cut lane, and every rank still inside waits for
            // another.
            (Fault::Cut { .. }, Outcome::Stuck(waits)) => {
                let blocked_on = waits.iter().any(|(rank, waits)| {
                    (*rank == to && waits.iter().any(|w| w.peer == from))
                        || (*rank == from && waits.iter().any(|w| w.peer == to))
                });
                assert!(blocked_on, "seed {seed}: {from} to {to} cut, but {waits:?}");
                stuck += 1;
            }
            (Fault::Close { .. }, Outcome::Failed(rank, failure)) => {
                assert!(*rank == from || *rank == to, "seed {seed}");
                assert_eq!(failure.cause, Cause::Link(LinkFault::Gone));
                assert_eq!(failure.op, Some((CollKind::AllReduce, 1)));
                failed += 1;
            }
            (Fault::Corrupt { .. }, Outcome::Failed(rank, failure)) => {
                assert_eq!((*rank, failure.peer), (to, Some(from)), "seed {seed}");
                assert!(matches!(failure.cause, Cause::Mismatch { .. }));
                failed += 1;
            }
            other => panic!("seed {seed}, {n} ranks, {from} to {to}: {other:?}"),
        }
    }
    println!("1,000 seeds: {finished} finished, {stuck} stuck, {failed} failed, each as drawn");
}

#[test]
fn pairs_keep_their_order_per_peer_and_direction_and_none_waits_for_another_way() {
    for seed in 0..50 {
        let mut cluster = Cluster::<()>::new(topology(3, false, 1), seed, (0, 5_000), &[]);
        let call = |cluster: &mut Cluster<()>, rank, kind, peer, count: u64, first: i64| {
            let request = request(kind, peer, count);
            let shape = select::select(&topology(3, false, 1), Rank(rank), &request, None);
            let input = if kind == CollKind::Send { first..first + count as i64 } else { 0..0 };
            cluster.call(Rank(rank), request, shape, &bytes(input), false);
        };
        // Rank 0 sends to 1 three times, the second time much, and to 2 a message that has not been
        // received when all of that is done.
        let counts = [3, 50_000, 1];
        call(&mut cluster, 0, CollKind::Send, 2, 40_000, 500);
        for (nth, count) in (1..).zip(counts) {
            call(&mut cluster, 0, CollKind::Send, 1, count, nth * 1_000_000);
            call(&mut cluster, 1, CollKind::Recv, 0, count, 0);
        }
        call(&mut cluster, 1, CollKind::Send, 0, 2, 7);
        call(&mut cluster, 0, CollKind::Recv, 1, 2, 0);
        assert!(matches!(cluster.run(), Outcome::Stuck(_)));
        for (nth, count) in (1..).zip(counts) {
            let got = values(cluster.output(Rank(1), nth as usize - 1));
            assert!(
                got.into_iter().eq((0..count as i64).map(|i| nth * 1_000_000 + i)),
                "seed {seed}, message {nth}"
            );
        }
        assert_eq!(values(cluster.output(Rank(0), 4)), [7, 8]);
        call(&mut cluster, 2, CollKind::Recv, 0, 40_000, 0);
        assert_eq!(cluster.run(), Outcome::Finished);
        assert!(cluster.is_clean());
    }
}

#[test]
fn a_call_that_differs_is_found_before_any_output_changes() {
    for (one_host, forced) in [(true, None), (true, Some(Algorithm::Direct)), (false, None)] {
        let topology = topology(4, one_host, 1);
        let mut cluster = Cluster::<Script>::new(topology.clone(), 9, (10, 5_000), &[]);
        for rank in (0..4).map(Rank) {
            // Rank 2 reduces with another operation.
            let op = if rank.0 == 2 { ReduceOp::Max } else { ReduceOp::Sum };
            let request = Request { op, ..request(CollKind::AllReduce, 0, 100) };
            let shape = select::select(&topology, rank, &request, forced);
            cluster.call(rank, request, shape, &bytes(0..100), false);
        }
        let Outcome::Failed(rank, failure) = cluster.run() else { panic!("a mismatch went through") };
        assert!(matches!(failure.cause, Cause::Mismatch { .. }), "{failure:?}");
        assert!(rank == Rank(2) || failure.peer == Some(Rank(2)), "{rank}: {failure:?}");
        for rank in (0..4).map(Rank) {
            assert!(cluster.output(rank, 0).iter().all(|&b| b == 0), "rank {rank} wrote");
        }
    }
}

/// The events of one small operation per algorithm, as text files in the repository.
#[test]
fn golden_event_scripts() {
    for (name, n, one_host, count, forced, kind) in [
        ("ring_all_reduce", 3, false, 5, Some(Algorithm::Ring), CollKind::AllReduce),
        ("one_shot_all_reduce", 3, true, 5, None, CollKind::AllReduce),
        ("direct_all_reduce", 2, true, 4_096, Some(Algorithm::Direct), CollKind::AllReduce),
        ("ring_broadcast", 3, false, 5, Some(Algorithm::Ring), CollKind::Broadcast),
        ("ring_barrier", 3, false, 0, Some(Algorithm::Ring), CollKind::Barrier),
    ] {
        let topology = topology(n, one_host, 1);
        let request = request(kind, 0, count);
        let shape = select::select(&topology, Rank(0), &request, forced);
        // No delay: the events come in the order of the plan.
        let mut cluster = Cluster::<Script>::new(topology, 3, (0, 0), &[]);
        for rank in (0..n).map(Rank) {
            let has_input = request.sizes(n, rank).input > 0;
            let input = if has_input { bytes(0..count as i64) } else { Vec::new() };
            cluster.call(rank, request, shape, &input, false);
        }
        assert_eq!(cluster.run(), Outcome::Finished);
        golden::golden_of(name, &cluster, n);
    }
    let topology = topology(2, false, 1);
    let mut cluster = Cluster::<Script>::new(topology.clone(), 3, (0, 0), &[]);
    for (rank, kind, input) in [(0, CollKind::Send, bytes(0..5)), (1, CollKind::Recv, Vec::new())] {
        let request = request(kind, 1 - rank, 5);
        let shape = select::select(&topology, Rank(rank), &request, None);
        cluster.call(Rank(rank), request, shape, &input, false);
    }
    assert_eq!(cluster.run(), Outcome::Finished);
    golden::golden_of("send_and_receive", &cluster, 2);
}
