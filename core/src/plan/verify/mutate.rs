//! Sets of programs with one thing wrong, for tests: a step dropped, doubled, or swapped with another of its program.

use super::Turn;
use crate::plan::Step;
use crate::types::Rank;

/// What was done to a set of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutation {
    Dropped(Turn),
    Doubled(Turn),
    Swapped(Turn, u32),
}

/// A reproducible sequence of numbers (splitmix64).
#[derive(Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub(crate) fn one_of<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }
}

/// Changes one step of one program, by the seed. At least one program must have a step.
pub(crate) fn mutate(programs: &mut [Vec<Vec<Step>>], seed: u64) -> Mutation {
    let mut numbers = Numbers(seed);
    loop {
        let rank = numbers.below(programs.len());
        let channel = numbers.below(programs[rank].len());
        let steps = &mut programs[rank][channel];
        if steps.is_empty() {
            continue;
        }
        let (at, other) = (numbers.below(steps.len()), numbers.below(steps.len()));
        let turn = Turn { rank: Rank(rank as u32), channel: channel as u16, step: at as u32 };
        return match numbers.below(3) {
            0 => {
                steps.remove(at);
                Mutation::Dropped(turn)
            }
            1 => {
                steps.insert(at, steps[at].clone());
                Mutation::Doubled(turn)
            }
            _ => {
                steps.swap(at, other);
                Mutation::Swapped(turn, other as u32)
            }
        };
    }
}
