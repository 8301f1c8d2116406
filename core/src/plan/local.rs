//! A communicator of one rank: the input is copied to the output, and no messages are sent.

use super::{Operand, Step};
use crate::collective::{Blocks, CallTerms, Request};
use crate::types::Rank;

/// The most bytes of one copy: fits the length field of a step, in whole elements.
const MOST: u64 = 1 << 30;

/// The number of steps; 0 if there is nothing to copy.
pub(super) fn len(call: (&Request, Option<&CallTerms>)) -> u64 {
    bytes(call).div_ceil(MOST)
}

/// Step `index`.
pub(super) fn step(call: (&Request, Option<&CallTerms>), index: u64) -> Step {
    let at = index * MOST;
    let len = (bytes(call) - at).min(MOST) as u32;
    Step::copy(len, Operand::Input { at }, &[Operand::Output { at }])
}

fn bytes((request, terms): (&Request, Option<&CallTerms>)) -> u64 {
    Blocks::of(request, terms).len(Rank(0))
}
