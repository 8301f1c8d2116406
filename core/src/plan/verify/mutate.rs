//! Sets of programs with one mistake, for tests: a step is dropped, doubled, or swapped with
//! another step of its program.

use super::Turn;
use crate::plan::Step;
use crate::seed::Seed;
use crate::types::Rank;

/// The change that was made to a set of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutation {
    Dropped(Turn),
    Doubled(Turn),
    Swapped(Turn, u32),
}

/// Changes one step of one program, as drawn from the seed. At least one program must have a step.
pub(crate) fn mutate(programs: &mut [Vec<Vec<Step>>], seed: u64) -> Mutation {
    let mut numbers = Seed(seed);
    loop {
        let rank = numbers.place(programs.len());
        let channel = numbers.place(programs[rank].len());
        let steps = &mut programs[rank][channel];
        if steps.is_empty() {
            continue;
        }
        let (at, other) = (numbers.place(steps.len()), numbers.place(steps.len()));
        let turn = Turn { rank: Rank(rank as u32), channel: channel as u16, step: at as u32 };
        return match numbers.place(3) {
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
