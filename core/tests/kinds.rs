//! Every kind of collective on simulated ranks, with equal and with uneven blocks: results by seed,
//! faults, counts that do not fit, and golden event scripts.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says how many cases it ran"
)]

mod cases;
mod golden;

use cases::{Case, KINDS, run};
use ccl::collective::OwnedTerms;
use ccl::engine::Cause;
use ccl::event::{Digest, Event, Script};
use ccl::plan::{LaneSet, Topology, select};
use ccl::seed::Seed;
use ccl::simulate::{Cluster, LaneFault, Outcome};
use ccl::transport::LinkFault;
use ccl::transport::faulty::Fault;
use ccl::types::Algorithm;
use ccl::{CollKind, Datatype, Rank, ReduceOp, Request};

impl Case {
    fn drawn(draw: &mut Seed, kind: CollKind) -> Self {
        let n = 2 + draw.place(8);
        let hosts = [vec![1; n], (0..n as u64).collect(), (0..n as u64).map(|rank| rank % 3).collect()];
        let topology = Topology::new(&draw.one_of(&hosts), 2);
        let forced =
            draw.one_of(&[None, Some(Algorithm::Ring), Some(Algorithm::Direct), Some(Algorithm::Tree)]);
        let can_differ = matches!(kind, CollKind::AllGather | CollKind::ReduceScatter | CollKind::AllToAll);
        let uneven = can_differ && draw.place(2) == 0;
        let most = draw.one_of(&[1_usize, 40, 6_000]);
        let rows = if kind == CollKind::AllToAll { n } else { 1 };
        let mut row = || (0..n).map(|_| draw.place(most + 1)).collect::<Vec<usize>>();
        let counts: Vec<Vec<usize>> = if uneven { (0..rows).map(|_| row()).collect() } else { Vec::new() };
        let count = match (kind, uneven) {
            (CollKind::Barrier, _) => 0,
            (CollKind::AllToAll, true) => 0,
            (_, true) => counts[0].iter().sum(),
            _ => draw.place(most + 1),
        };
        let root = if kind.has_root() { Rank(draw.place(n) as u32) } else { Rank(0) };
        let (dtype, op, count) = (Datatype::I64, ReduceOp::Sum, count as u64);
        Self { topology, forced, request: Request { kind, dtype, op, root, count, uneven }, counts }
    }
}

fn digest(cluster: &Cluster<Digest>, n: u32) -> u64 {
    (0..n).fold(0, |hash: u64, rank| hash.rotate_left(7) ^ cluster.engine(Rank(rank)).events().value())
}

#[test]
fn every_kind_gives_its_result_whatever_the_schedule() {
    for seed in 0..1_000 {
        let case = Case::drawn(&mut Seed(seed), KINDS[seed as usize % KINDS.len()]);
        let (cluster, outcome) = run::<()>(&case, seed, &[], seed.is_multiple_of(2));
        assert_eq!(outcome, Outcome::Finished, "{case:?}");
        case.check(&cluster);
    }
    println!("cases: kinds 1000");
}

/// Draws a fault on a lane that the call uses. It ends in the right result, or names the fault; the
/// seed replays.
#[test]
fn a_thousand_seeds_of_faults_over_every_kind() {
    let (mut ended, mut flipped) = ([0_u32; 3], 0);
    for seed in 0.. {
        if ended.iter().sum::<u32>() == 1_000 {
            break;
        }
        let mut draw = Seed(seed ^ 0xfa17);
        let kind = draw.one_of(&KINDS);
        let case = Case::drawn(&mut draw, kind);
        let (n, from) = (case.topology.nranks(), Rank(draw.place(case.topology.nranks() as usize) as u32));
        let set = LaneSet::of(&case.request, &case.shape(from), from);
        let lanes = set.written_by(&case.topology, from);
        let Some((lane, to)) = lanes.iter().find_map(|lane| Some((lane, lane.reader()?))) else { continue };
        let at = 1 + draw.below(3);
        let fault = match draw.below(5) {
            0 => Fault::Hold { at, looks: 1 + draw.below(50) as u32 },
            1 => Fault::Cut { at },
            2 => Fault::Close { at },
            3 => Fault::Flip { at },
            _ => Fault::Corrupt { at },
        };
        let channel = lane.id.channel;
        let lane = LaneFault { channel, from, to, fault };
        // A flipped bit is noticed by a checksum only.
        let sums = seed.is_multiple_of(2) || matches!(fault, Fault::Flip { .. });
        let (cluster, outcome) = run::<Digest>(&case, seed, &[lane], sums);
        let (again, replayed) = run::<Digest>(&case, seed, &[lane], sums);
        assert_eq!((&outcome, digest(&cluster, n)), (&replayed, digest(&again, n)), "seed {seed} replays");
        match (fault, &outcome) {
            // It may be on a message that the call does not have.
            (_, Outcome::Finished) => {
                case.check(&cluster);
                ended[0] += 1;
            }
            (Fault::Cut { .. }, Outcome::Stuck(waits)) => {
                let is_its = waits.iter().any(|(rank, waits)| {
                    let on = |peer| waits.iter().any(|wait| wait.peer == peer && wait.channel == channel);
                    *rank == to && on(from) || *rank == from && on(to)
                });
                assert!(is_its, "seed {seed}: {from} to {to} is cut, but {waits:?}");
                ended[1] += 1;
            }
            (Fault::Close { .. }, Outcome::Failed(rank, failure)) => {
                assert!([from, to].contains(rank), "seed {seed}: {rank} {failure:?}");
                assert_eq!(failure.cause, Cause::Link(LinkFault::Gone));
                ended[2] += 1;
            }
            (Fault::Flip { .. }, Outcome::Failed(rank, failure)) => {
                assert_eq!((*rank, failure.peer), (to, Some(from)), "seed {seed}");
                let is_changed = matches!(failure.cause, Cause::Link(LinkFault::Changed(_)));
                assert!(is_changed, "seed {seed}: {failure:?}");
                flipped += 1;
                ended[2] += 1;
            }
            (Fault::Corrupt { .. }, Outcome::Failed(rank, failure)) => {
                assert_eq!((*rank, failure.peer), (to, Some(from)), "seed {seed}");
                let is_mismatch = matches!(failure.cause, Cause::Mismatch { .. } | Cause::Differs(_));
                assert!(is_mismatch, "seed {seed}: {failure:?}");
                ended[2] += 1;
            }
            other => panic!("seed {seed}: {from} to {to} of {case:?}: {other:?}"),
        }
    }
    let [finished, stuck, failed] = ended;
    println!(
        "cases: kinds-with-faults {} ({finished} finished, {stuck} stuck, {failed} failed, {flipped} of them flipped)",
        finished + stuck + failed
    );
    assert!(finished > 100 && stuck > 50 && failed > 50 && flipped > 20);
}

#[test]
fn a_pair_whose_counts_differ_is_told_before_any_output_changes() {
    for n in [2_u32, 3, 9] {
        let topology = Topology::new(&vec![1; n as usize], 1);
        let (kind, dtype, op, root) = (CollKind::AllToAll, Datatype::F32, ReduceOp::Sum, Rank(0));
        let request = Request { kind, dtype, op, root, count: 0, uneven: true };
        let mut cluster = Cluster::<Script>::new(topology.clone(), 9, (10, 5_000), &[]);
        for me in (0..n).map(Rank) {
            // Rank 1 expects 5 elements of rank 0 instead of 3.
            let sent = vec![3; n as usize];
            let mut received = sent.clone();
            received[0] += if me.0 == 1 { 2 } else { 0 };
            let shape = select::select(&topology, me, &request, None);
            let input: Vec<u8> = vec![1; 12 * n as usize];
            cluster.call_on_terms(
                (me, request),
                shape,
                OwnedTerms::new(None, [Some(&sent), Some(&received)]),
                &input,
                false,
            );
        }
        let Outcome::Failed(rank, failure) = cluster.run() else { panic!("a mismatch went through") };
        assert_eq!((rank, failure.peer), (Rank(1), Some(Rank(0))));
        let wanted = "rank 0 called AllToAll #1 (count 3, F32) to rank 1; rank 1 called AllToAll #1 \
            (count 5, F32) from rank 0; rank 0 / rank 1 differ in count 3 / 5";
        assert_eq!(failure.cause, Cause::Differs(wanted.into()));
        let found = Event::MismatchFound { peer: Rank(0), seq: 1 };
        assert!(cluster.engine(Rank(1)).events().0.contains(&found));
        assert!(cluster.output(Rank(1), 0).iter().all(|byte| *byte == 0));
    }
}

/// Calls with equal and uneven blocks, and with other counts, do not pass for each other.
#[test]
fn blocks_that_ranks_share_out_differently_do_not_match() {
    for kind in [CollKind::AllGather, CollKind::ReduceScatter, CollKind::AllToAll] {
        for its_own in 0..2 {
            let topology = Topology::new(&[1, 1, 1], 1);
            let (dtype, op, root) = (Datatype::F32, ReduceOp::Sum, Rank(0));
            let total = if kind == CollKind::AllToAll { 0 } else { 9 };
            let request = Request { kind, dtype, op, root, count: total, uneven: true };
            let mut cluster = Cluster::<()>::new(topology.clone(), 4, (10, 5_000), &[]);
            for me in (0..3).map(Rank) {
                let differs = me.0 == 2;
                let counts: [usize; 3] = if differs && its_own == 0 { [4, 3, 2] } else { [3, 3, 3] };
                let (request, terms) = if differs && its_own == 1 {
                    (Request { count: 3, uneven: false, ..request }, OwnedTerms::new(None, [None, None]))
                } else {
                    let received = (kind == CollKind::AllToAll).then_some(&counts[..]);
                    (request, OwnedTerms::new(None, [Some(&counts), received]))
                };
                let sizing = terms.sizing(&request);
                let shape = select::select(&topology, me, &sizing, None);
                let bytes = terms.sizes(&request, 3, me).input as usize;
                cluster.call_on_terms((me, request), shape, terms, &vec![7; bytes], false);
            }
            let Outcome::Failed(_, failure) = cluster.run() else { panic!("{kind} {its_own} went through") };
            assert!(matches!(failure.cause, Cause::Mismatch { .. } | Cause::Differs(_)), "{failure:?}");
        }
    }
}

/// The events of one small operation of each kind, as text files in the repository.
#[test]
fn golden_event_scripts() {
    for (name, hosts, kind, count, forced) in [
        ("ring_all_gather", [1, 2, 3], CollKind::AllGather, 5, None),
        ("direct_all_gather", [1, 1, 1], CollKind::AllGather, 5, None),
        ("ring_reduce_scatter", [1, 2, 3], CollKind::ReduceScatter, 5, None),
        ("direct_reduce_scatter", [1, 1, 1], CollKind::ReduceScatter, 5, None),
        ("ring_reduce", [1, 2, 3], CollKind::Reduce, 5, None),
        ("direct_broadcast", [1, 1, 1], CollKind::Broadcast, 5, None),
        ("tree_all_reduce", [1, 1, 2], CollKind::AllReduce, 5, Some(Algorithm::Tree)),
        ("all_to_all", [1, 1, 2], CollKind::AllToAll, 5, None),
        ("gather", [1, 1, 2], CollKind::Gather, 5, None),
        ("scatter", [1, 1, 2], CollKind::Scatter, 5, None),
    ] {
        let root = Rank(if kind.has_root() { 1 } else { 0 });
        let (dtype, op) = (Datatype::I64, ReduceOp::Sum);
        let request = Request { kind, dtype, op, root, count, uneven: false };
        golden(name, &Case { topology: Topology::new(&hosts, 1), forced, request, counts: Vec::new() });
    }
    for (name, kind, count, counts) in [
        ("uneven_all_gather", CollKind::AllGather, 6, vec![vec![5, 0, 1]]),
        ("uneven_reduce_scatter", CollKind::ReduceScatter, 6, vec![vec![5, 0, 1]]),
        ("uneven_all_to_all", CollKind::AllToAll, 0, vec![vec![1, 0, 5], vec![2, 0, 0], vec![0, 3, 1]]),
    ] {
        let (dtype, op, root) = (Datatype::I64, ReduceOp::Sum, Rank(0));
        let request = Request { kind, dtype, op, root, count, uneven: true };
        golden(name, &Case { topology: Topology::new(&[1, 1, 2], 1), forced: None, request, counts });
    }
}

fn golden(name: &str, case: &Case) {
    let n = case.topology.nranks();
    // No delay: the events come in the order of the plan.
    let mut cluster = Cluster::<Script>::new(case.topology.clone(), 3, (0, 0), &[]);
    (0..n).map(Rank).for_each(|rank| case.call(&mut cluster, rank));
    assert_eq!(cluster.run(), Outcome::Finished);
    golden::golden_of(name, &cluster, n);
}
