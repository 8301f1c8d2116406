//! Splits, and splits of the parts.

use ccl::{Communicator, Config, Rank};
use ccl_tests::life::Life;
use ccl_tests::life::tree::{LEVELS, given, part, splits, turn};

use super::{Outcome, all_reduce, report, wrong};

/// A communicator with the ranks of the job that it must have, in their order.
struct Node {
    comm: Communicator,
    members: Vec<u32>,
}

impl Node {
    fn check(&self, life: &Life, rank: u32, ranks: &[u32]) -> Outcome {
        let mut members = self.members.clone();
        members.sort_unstable();
        let place = self.members.iter().position(|member| *member == rank).unwrap_or(usize::MAX);
        let (at, nranks) = (self.comm.rank(), self.comm.nranks());
        if ranks == members && (at.index(), nranks as usize) == (place, members.len()) {
            return Ok(());
        }
        let (name, expect, seed) = (self.comm.name(), &self.members, life.seed);
        wrong(format!("seed {seed}: {name}: {at} of {nranks}, ranks {ranks:?}, expected are {expect:?}"))
    }
}

pub(super) fn live(life: &Life, world: Communicator) -> Outcome {
    let Rank(rank) = world.rank();
    let mut all = Vec::new();
    let members = (0..life.nranks).collect();
    grow(life, rank, Node { comm: world, members }, LEVELS, &mut all)?;
    // A communicator is used until all its ranks finish it, whatever became of its parent.
    all.sort_by_key(|node: &Node| turn(life.seed, node.comm.name()));
    for node in all {
        node.check(life, rank, &all_reduce(&node.comm, rank, 10)?)?;
        node.comm.finish()?;
    }
    Ok(())
}

/// Splits a communicator and its parts; all are added to `all`.
fn grow(life: &Life, rank: u32, node: Node, levels: u32, all: &mut Vec<Node>) -> Outcome {
    node.check(life, rank, &report(&node.comm, rank, life.count)?)?;
    let name = node.comm.name().to_string();
    for nth in 0..if levels > 0 { splits(life.seed, &name) } else { 0 } {
        let (colour, key) = given(life.seed, (&name, nth), rank);
        let made = node.comm.split(colour, key, Config::default())?;
        match (colour, made) {
            (None, None) => {}
            (Some(colour), Some(comm)) if comm.name() == format!("{name}/{nth}.{colour}") => {
                let members = part(life.seed, (&name, nth), &node.members, colour);
                grow(life, rank, Node { comm, members }, levels - 1, all)?;
            }
            (colour, made) => return wrong(format!("{name}: rank {rank} of {colour:?} got {made:?}")),
        }
        // The parent goes on while its parts live.
        node.check(life, rank, &all_reduce(&node.comm, rank, life.count)?)?;
    }
    all.push(node);
    Ok(())
}
