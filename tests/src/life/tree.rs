//! A tree of splits. Colours, keys and the order of the ends are functions of the seed, a
//! communicator's name and a rank of the job: every rank knows what all ranks of a communicator
//! give, and so which parts there must be.

use ccl::seed::Seed;

/// The levels below the first communicator.
pub const LEVELS: u32 = 3;

fn drawn(seed: u64, name: &str) -> Seed {
    let sum = name.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    Seed(sum).part(0)
}

/// How often a communicator is split.
#[must_use]
pub fn splits(seed: u64, comm: &str) -> u32 {
    1 + u32::from(drawn(seed, comm).below(3) == 0)
}

/// What a rank gives in the `nth` split of a communicator: its colour and its key.
#[must_use]
pub fn given(seed: u64, (comm, nth): (&str, u32), rank: u32) -> (Option<u32>, i32) {
    let mut drawn = drawn(seed, comm).part(1 + u64::from(nth)).part(u64::from(rank));
    let colour = (drawn.below(6) > 0).then(|| drawn.below(3) as u32);
    (colour, drawn.below(7) as i32 - 3)
}

/// The ranks of the part with this colour, in their order. `members` are those of the communicator.
#[must_use]
pub fn part(seed: u64, (comm, nth): (&str, u32), members: &[u32], colour: u32) -> Vec<u32> {
    let mut part: Vec<(i32, usize)> = Vec::new();
    for (at, rank) in members.iter().enumerate() {
        let (its, key) = given(seed, (comm, nth), *rank);
        if its == Some(colour) {
            part.push((key, at));
        }
    }
    part.sort_unstable();
    part.into_iter().map(|(_, at)| members[at]).collect()
}

/// Communicators are finished in the order of these numbers, which is the same on all ranks. A
/// parent may come before its children.
#[must_use]
pub fn turn(seed: u64, comm: &str) -> u64 {
    drawn(seed, comm).part(u64::MAX).bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_with_a_colour_is_in_the_part_of_that_colour() {
        let members = [4, 0, 7, 2, 1];
        for seed in 0..100 {
            let of = |colour| part(seed, ("a", 0), &members, colour);
            let parts = [of(0), of(1), of(2)];
            for rank in members {
                let colour = given(seed, ("a", 0), rank).0;
                let is_in = |at: usize| parts[at].contains(&rank);
                assert!((0..3).all(|at| is_in(at) == (colour == Some(at as u32))));
            }
        }
    }
}
