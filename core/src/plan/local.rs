//! A communicator of one rank: the output is the input, and nobody need be told.

use super::{Operand, Step};
use crate::collective::Request;
use crate::types::CollKind;

/// The most bytes of one copy: what fits the length of a step, in whole elements.
const MOST: u64 = 1 << 30;

/// The number of steps; none where there is nothing to copy.
pub(super) fn len(request: &Request) -> u64 {
    if request.kind == CollKind::Barrier { 0 } else { request.bytes().div_ceil(MOST) }
}

/// Step `index`.
pub(super) fn step(request: &Request, index: u64) -> Step {
    let at = index * MOST;
    let len = (request.bytes() - at).min(MOST) as u32;
    Step::copy(len, Operand::Input { at }, &[Operand::Output { at }])
}
