//! Plans of calls whose blocks differ.

use super::goal::Goal;
use super::tests::steps_of;
use super::*;
use crate::collective::OwnedTerms;
use crate::memory::borrowed;
use crate::plan::Plan;
use crate::plan::select::select;
use crate::seed::Seed;
use crate::types::{Algorithm, CollKind, Datatype, ReduceOp};

/// Verifies the plans of all ranks for these counts: rows of what each rank sends, or one row.
fn must_pass(
    topology: &Topology,
    kind: CollKind,
    counts: &[Vec<usize>],
    (forced, chunk): (Algorithm, Option<u32>),
) {
    let n = topology.nranks();
    let terms: Vec<OwnedTerms> = (0..n as usize)
        .map(|rank| match counts {
            [all] => OwnedTerms::new(None, [Some(all), None]),
            rows => {
                let received: Vec<usize> = rows.iter().map(|row| row[rank]).collect();
                OwnedTerms::new(None, [Some(&rows[rank]), Some(&received)])
            }
        })
        .collect();
    let is_known = counts.len() == 1;
    let count = if is_known { counts[0].iter().sum::<usize>() as u64 } else { 0 };
    let (dtype, op, root) = (Datatype::F32, ReduceOp::Sum, Rank(0));
    let request = Request { kind, dtype, op, root, count, uneven: true };
    let shapes: Vec<_> = (0..n)
        .map(|me| {
            let sizing = terms[me as usize].sizing(&request);
            let shape = select(topology, Rank(me), &sizing, Some(forced));
            crate::plan::Shape { chunk: chunk.unwrap_or(shape.chunk), ..shape }
        })
        .collect();
    assert!(shapes.iter().all(|shape| *shape == shapes[0]), "ranks decide differently");
    let programs: Vec<_> = (0..n)
        .map(|me| {
            let terms = Some(borrowed(terms[me as usize].terms()));
            steps_of(&Plan::Generated { request, shape: shapes[0], me: Rank(me), terms }, topology)
        })
        .collect();
    let goal = Goal { topology, request: &request, sender: None, counts };
    if let Err(rejection) = check(&goal, &programs, Slots::default()) {
        panic!("{kind} {counts:?} {:?} on {topology:?}: {rejection}", shapes[0]);
    }
}

#[test]
fn uneven_plans_are_right() {
    let mut cases = 0;
    for seed in 0..if cfg!(miri) { 3 } else { 3_000 } {
        let mut numbers = Seed(seed);
        let n = 1 + numbers.place(9);
        let hosts = [vec![1; n], (0..n as u64).collect(), (0..n as u64).map(|rank| rank % 3).collect()];
        let topology = Topology::new(&numbers.one_of(&hosts), 2);
        let mut count = || numbers.one_of(&[0, 0, 1, 5, 17, 40, 200]);
        let mut row = || (0..n).map(|_| count()).collect::<Vec<usize>>();
        let kinds = [CollKind::AllGather, CollKind::ReduceScatter, CollKind::AllToAll];
        let kind = kinds[seed as usize % 3];
        let counts = match kind {
            CollKind::AllToAll => (0..n).map(|_| row()).collect(),
            _ => vec![row()],
        };
        let forced = numbers.one_of(&[Algorithm::Ring, Algorithm::Direct]);
        let chunk = numbers.one_of(&[None, Some(64), Some(128)]);
        if n > 1 || kind != CollKind::AllToAll {
            must_pass(&topology, kind, &counts, (forced, chunk));
            cases += 1;
        }
    }
    println!("cases: uneven-plans {cases}");
}

#[test]
fn blocks_that_differ_a_lot_are_right_at_real_sizes() {
    for n in [2, 3, 8] {
        for hosts in [vec![1; n], (0..n as u64).collect()] {
            let topology = Topology::new(&hosts, 2);
            let counts: Vec<usize> = (0..n).map(|rank| if rank == 1 { 100_003 } else { rank }).collect();
            for kind in [CollKind::AllGather, CollKind::ReduceScatter] {
                must_pass(&topology, kind, std::slice::from_ref(&counts), (Algorithm::Direct, None));
            }
            let rows: Vec<Vec<usize>> =
                (0..n).map(|from| if from == 0 { counts.clone() } else { vec![from; n] }).collect();
            must_pass(&topology, CollKind::AllToAll, &rows, (Algorithm::Ring, None));
        }
    }
}
