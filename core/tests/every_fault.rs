//! Faults of every link at every message of every kind, on simulated ranks: the call ends in the
//! right result, in an error that names both ends of the link, or stands, and then its waits name
//! them. And golden event scripts of each failure.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says how many cases it ran"
)]

mod cases;
mod golden;

use cases::{Case, KINDS, run};
use ccl::engine::{Cause, Failure};
use ccl::event::{Digest, Script};
use ccl::plan::Topology;
use ccl::simulate::{Cluster, LaneFault, Outcome};
use ccl::transport::LinkFault;
use ccl::transport::faulty::Fault;
use ccl::types::Algorithm;
use ccl::{ChannelId, CollKind, Datatype, Rank, ReduceOp, Request};

/// Of three ranks, a call of some messages per lane.
fn calls() -> Vec<Case> {
    let mut all = Vec::new();
    for kind in KINDS {
        for hosts in [[1, 1, 1], [1, 2, 3]] {
            let count = if kind == CollKind::Barrier { 0 } else { 9_000 };
            let root = Rank(if kind.has_root() { 1 } else { 0 });
            let (dtype, op) = (Datatype::I64, ReduceOp::Sum);
            let request = Request { kind, dtype, op, root, count, uneven: false };
            let topology = Topology::new(&hosts, 1);
            all.push(Case { topology: topology.clone(), forced: None, request, counts: Vec::new() });
            if kind == CollKind::AllReduce {
                let forced = Some(Algorithm::Tree);
                all.push(Case { topology: topology.clone(), forced, request, counts: Vec::new() });
            }
            let counts = match kind {
                CollKind::AllGather | CollKind::ReduceScatter => vec![vec![9_000, 0, 5_000]],
                CollKind::AllToAll => vec![vec![1, 9_000, 0], vec![5_000, 2, 1], vec![0, 0, 3]],
                _ => continue,
            };
            let count = if kind == CollKind::AllToAll { 0 } else { 14_000 };
            let request = Request { count, uneven: true, ..request };
            all.push(Case { topology, forced: None, request, counts });
        }
    }
    all
}

#[test]
fn every_fault_at_every_message_of_every_kind_is_harmless_or_named() {
    let mut ended = [0_u32; 3];
    for (nth, case) in calls().iter().enumerate() {
        let ways = (0..3).flat_map(|from| (0..3).map(move |to| (Rank(from), Rank(to))));
        for (from, to) in ways.filter(|(from, to)| from != to) {
            for at in 1..=8 {
                for fault in [
                    Fault::Hold { at, looks: 40 },
                    Fault::Cut { at },
                    Fault::Close { at },
                    Fault::Corrupt { at },
                    Fault::Flip { at },
                ] {
                    let lane = LaneFault { channel: ChannelId(0), from, to, fault };
                    let seed = nth as u64 * 1_000 + at;
                    let (cluster, outcome) = run::<Digest>(case, seed, &[lane], true);
                    let what = format!("{fault:?} from {from} to {to} of {case:?}");
                    let is_at = |rank: &Rank| [from, to].contains(rank);
                    match (fault, &outcome) {
                        (_, Outcome::Finished) => {
                            case.check(&cluster);
                            ended[0] += 1;
                        }
                        (Fault::Cut { .. }, Outcome::Stuck(waits)) => {
                            let names = waits.iter().any(|(rank, waits)| {
                                let other = if *rank == from { to } else { from };
                                is_at(rank) && waits.iter().any(|wait| wait.peer == other)
                            });
                            assert!(names, "{what}: {waits:?}");
                            ended[1] += 1;
                        }
                        (
                            Fault::Close { .. } | Fault::Corrupt { .. } | Fault::Flip { .. },
                            Outcome::Failed(rank, failure),
                        ) => {
                            let is_its = match &failure.cause {
                                Cause::Link(LinkFault::Gone) => matches!(fault, Fault::Close { .. }),
                                Cause::Link(LinkFault::Changed(_)) => matches!(fault, Fault::Flip { .. }),
                                Cause::Mismatch { .. } | Cause::Differs(_) => {
                                    matches!(fault, Fault::Corrupt { .. })
                                }
                                Cause::Link(_) | Cause::External(_) => false,
                            };
                            let peers = failure.peer.is_some_and(|peer| is_at(&peer) && peer != *rank);
                            assert!(is_its && is_at(rank) && peers, "{what}: {rank} {failure:?}");
                            ended[2] += 1;
                        }
                        other => panic!("{what}: {other:?}"),
                    }
                }
            }
        }
    }
    let [finished, stuck, failed] = ended;
    println!(
        "cases: every-fault {} ({finished} finished, {stuck} stuck, {failed} failed)",
        ended.iter().sum::<u32>()
    );
    assert!(stuck > 200 && failed > 500);
}

/// The events of each way to fail, as text files in the repository.
#[test]
fn golden_event_scripts_of_failures() {
    let (dtype, op, root) = (Datatype::I64, ReduceOp::Sum, Rank(0));
    let request = Request { kind: CollKind::AllReduce, dtype, op, root, count: 5, uneven: false };
    let topology = Topology::new(&[1, 2], 1);
    let case = Case { topology, forced: None, request, counts: Vec::new() };
    let fails = |name: &str, fault, wanted: fn(&Cause) -> bool| {
        let lane = LaneFault { channel: ChannelId(0), from: Rank(0), to: Rank(1), fault };
        let mut cluster = Cluster::<Script>::new(case.topology.clone(), 3, (0, 0), &[lane]);
        cluster.use_checksums();
        [Rank(0), Rank(1)].into_iter().for_each(|rank| case.call(&mut cluster, rank));
        let Outcome::Failed(_, failure) = cluster.run() else { panic!("{name} went through") };
        assert!(wanted(&failure.cause), "{name}: {failure:?}");
        golden::golden_of(name, &cluster, 2);
    };
    fails("failed_gone", Fault::Close { at: 2 }, |cause| *cause == Cause::Link(LinkFault::Gone));
    fails("failed_mismatch", Fault::Corrupt { at: 2 }, |cause| matches!(cause, Cause::Mismatch { .. }));
    fails("failed_changed", Fault::Flip { at: 2 }, |cause| {
        matches!(cause, Cause::Link(LinkFault::Changed(_)))
    });
    // Decided elsewhere: an abort, a deadline, a death; and what no simulated link does.
    let decided = |kind| Cause::External(ccl::Error::new(kind, "as the test says"));
    let says = "as the test says".to_string();
    for (name, cause) in [
        ("failed_aborted", decided(ccl::ErrorKind::Aborted)),
        ("failed_timeout", decided(ccl::ErrorKind::Timeout)),
        ("failed_peer", decided(ccl::ErrorKind::Peer)),
        ("failed_corrupt", Cause::Link(LinkFault::Corrupt(says.clone()))),
        ("failed_system", Cause::Link(LinkFault::System(says.clone()))),
        ("failed_differs", Cause::Differs(says)),
    ] {
        let mut cluster = Cluster::<Script>::new(case.topology.clone(), 3, (0, 0), &[]);
        case.call(&mut cluster, Rank(0));
        assert!(matches!(cluster.run(), Outcome::Stuck(_)));
        cluster.fail(Rank(0), Failure { cause, op: None, peer: Some(Rank(1)), channel: None });
        golden::golden_of(name, &cluster, 2);
    }
}
