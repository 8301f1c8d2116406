//! Ranks that make different calls on lanes that never meet: among nine ranks of a host a reduction
//! to a root uses the ring, and everything else uses shared lanes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use ccl::comm::Communicator;
use ccl::config::Key;
use ccl::{ErrorKind, Rank, ReduceOp, Reduction, Result};

const RANKS: u32 = 9;

fn reduce(comm: &Communicator, root: u32) -> Result<()> {
    comm.reduce_in_place(&mut [1.0_f32; 5], ReduceOp::Sum, Rank(root))
}

/// The victim makes one call and all others another, then all call a barrier until one fails.
fn check(victim: u32, its: fn(&Communicator) -> Result<()>, others: fn(&Communicator) -> Result<()>) {
    // So long that a test that waits for it has failed.
    let settings = common::settings(&[(Key::Timeout, "60"), (Key::Observe, "0")]);
    let errors = common::with_ranks(RANKS, &settings, |comm| {
        comm.barrier().unwrap();
        let first = if comm.rank().0 == victim { its(&comm) } else { others(&comm) };
        first.and_then(|()| comm.barrier()).and_then(|()| comm.barrier()).unwrap_err()
    });
    for (rank, error) in errors.iter().enumerate() {
        assert_eq!(error.kind, ErrorKind::Mismatch, "victim {victim}: rank {rank}: {error}");
        let text = error.to_string();
        assert!(text.contains(&format!("rank {victim} called ")) && text.contains(" / "), "{text}");
    }
}

#[test]
fn a_barrier_among_reductions_is_found_whoever_calls_it() {
    for victim in [0, 1, 4, 8] {
        check(victim, Communicator::barrier, |comm| reduce(comm, 0));
    }
}

#[test]
fn a_reduction_among_others_is_found_although_they_run_ahead() {
    for victim in [0, 1, 4] {
        check(victim, |comm| reduce(comm, 0), Communicator::barrier);
        // No rank is blocked on the victim here: the others are one call further when they wait.
        check(victim, |comm| reduce(comm, 0), |comm| comm.broadcast(&mut [0_u8; 3], Rank(8)));
    }
}

/// All ranks have the same true error.
fn check_text(
    its: impl Fn(&Communicator) -> Result<()> + Send + Sync,
    others: impl Fn(&Communicator) -> Result<()> + Send + Sync,
    wanted: &[&str],
) {
    for transport in ["shm", "socket"] {
        let settings =
            common::settings(&[(Key::Timeout, "60"), (Key::Observe, "0"), (Key::Transport, transport)]);
        let began = ccl::clock::now();
        let errors = common::with_ranks(4, &settings, |comm| {
            let first = if comm.rank().0 == 2 { its(&comm) } else { others(&comm) };
            first.and_then(|()| comm.barrier()).unwrap_err()
        });
        let took = ccl::clock::now().since(began);
        assert!(errors.iter().all(|error| error.what == errors[0].what), "{errors:?}");
        for error in &errors {
            assert_eq!(error.kind, ErrorKind::Mismatch, "{error}");
            assert!(wanted.iter().all(|wanted| error.what.contains(wanted)), "{error}");
            assert!(
                error.at.peer.is_none_or(|peer| error.what.contains(&format!("rank {peer} "))),
                "{error}"
            );
        }
        // It takes no time limit; connecting is a part of it.
        assert!(took.as_secs() < 30, "{took:?}");
    }
}

/// Others than the root of a scatter wait for nobody else, and what the root sends waits in the
/// kernel: all run ahead until that is full.
#[test]
fn a_call_that_differs_is_told_although_the_others_are_far_ahead() {
    const ROOT: Rank = Rank(2);
    // The first waits for a rank that sends it nothing, the other one for the root.
    for odd in [Rank(1), Rank(3)] {
        let settings = [(Key::Timeout, "60"), (Key::Observe, "0"), (Key::Transport, "socket")];
        let errors = common::with_ranks(4, &common::settings(&settings), |comm| {
            let (all, mut own) = ([1_u8; 4 * 64], [0_u8; 64]);
            let input = if comm.rank() == ROOT { &all[..] } else { &[] };
            for call in 1.. {
                let done = match call {
                    5 if comm.rank() == odd => comm.all_reduce_in_place(&mut own, ReduceOp::Sum),
                    _ => comm.scatter(input, &mut own, ROOT),
                };
                if let Err(error) = done {
                    return error;
                }
            }
            unreachable!("there are always more calls")
        });
        for error in &errors {
            assert_eq!((error.kind, &error.what), (ErrorKind::Mismatch, &errors[0].what), "{error}");
            let says = |what: &str| error.what.contains(what);
            assert!(says(&format!("rank {odd} called AllReduce #5")) && says("called Scatter #5"), "{error}");
            assert!(error.at.peer.is_none_or(|peer| says(&format!("rank {peer} "))), "{error}");
        }
    }
}

#[test]
fn counts_of_blocks_that_differ_are_told_by_all_ranks() {
    let gather = |counts: [usize; 4]| {
        move |comm: &Communicator| {
            let own = counts[comm.rank().index()];
            comm.all_gather_uneven(&vec![1_u8; own], &mut [0; 10], &counts)
        }
    };
    let wanted = ["rank 2 called AllGather #1 (count 10, U8, uneven ", "differ in counts of ranks "];
    check_text(gather([1, 2, 4, 3]), gather([1, 2, 3, 4]), &wanted);
    let scatter = |counts: [usize; 4]| {
        move |comm: &Communicator| {
            let mut own = vec![0_f32; counts[comm.rank().index()]];
            comm.reduce_scatter_uneven(&[1.0; 10], &mut own, &counts, ReduceOp::Sum)
        }
    };
    let wanted = ["rank 2 called ReduceScatter #1 (count 10, F32, Sum, uneven ", "counts of ranks "];
    check_text(scatter([1, 2, 4, 3]), scatter([1, 2, 3, 4]), &wanted);
    // Equal blocks by another call.
    let equal = |comm: &Communicator| comm.all_gather(&[1_u8; 3], &mut [0; 12]);
    let wanted = ["rank 2 called AllGather #1 (count 3, U8)", "blocks "];
    check_text(equal, |comm| comm.all_gather_uneven(&[1_u8; 3], &mut [0; 12], &[3; 4]), &wanted);
}

#[test]
fn the_count_of_one_pair_is_told_by_all_ranks() {
    let exchange = |sent: [usize; 4]| {
        move |comm: &Communicator| {
            let all: usize = sent.iter().sum();
            comm.all_to_all_uneven(&vec![1.0_f32; all], &sent, &mut [0.0_f32; 12], &[3; 4])
        }
    };
    let wanted = "rank 2 called AllToAll #1 (count 7, F32) to rank 1; rank 1 called AllToAll #1 (count 3, F32) \
        from rank 2; rank 2 / rank 1 differ in count 7 / 3";
    check_text(exchange([3, 7, 3, 3]), exchange([3; 4]), &[wanted]);
}

#[test]
fn types_of_factors_and_operators_that_differ_are_told_by_all_ranks() {
    let (one, other) = (Reduction::pre_mul_sum(2.0_f32), Reduction::pre_mul_sum(2_i32));
    let wanted = ["rank 2 called AllReduce #1 (count 2, I32, PreMulSum)", "differ in dtype "];
    check_text(
        move |comm| comm.all_reduce_in_place(&mut [1, 2], other),
        move |comm| comm.all_reduce_in_place(&mut [1.0, 2.0], one),
        &wanted,
    );
    let wanted = ["rank 2 called AllReduce #1 (count 2, F32, Avg)", "differ in op "];
    check_text(
        |comm| comm.all_reduce_in_place(&mut [1.0_f32, 2.0], ReduceOp::Avg),
        move |comm| comm.all_reduce_in_place(&mut [1.0, 2.0], one),
        &wanted,
    );
    // A factor belongs to its rank.
    let settings = common::settings(&[(Key::Observe, "0")]);
    common::with_ranks(3, &settings, |comm| {
        let mut all = [1_i64];
        comm.all_reduce_in_place(&mut all, Reduction::pre_mul_sum(10_i64.pow(comm.rank().0))).unwrap();
        assert_eq!(all, [111]);
        let error = comm.all_reduce_in_place(&mut all, ReduceOp::PreMulSum).unwrap_err();
        assert!(error.kind == ErrorKind::Usage && error.hint.contains("pre_mul_sum(factor)"), "{error}");
        comm.finish().unwrap();
    });
}
