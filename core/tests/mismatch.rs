//! Ranks that make different calls on lanes that never meet: among nine ranks of a host a reduction
//! to a root uses the ring, and everything else uses shared lanes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use ccl::comm::Communicator;
use ccl::config::Key;
use ccl::{ErrorKind, Rank, ReduceOp, Result};

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
