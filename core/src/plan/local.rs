//! A communicator of one rank: the input is copied to the output, and no messages are sent.

use super::{Operand, Step};
use crate::collective::Request;
use crate::types::CollKind;

/// The most bytes of one copy: fits the length field of a step, in whole elements.
const MOST: u64 = 1 << 30;

/// The number of steps; 0 if there is nothing to copy.
pub(super) fn len(request: &Request) -> u64 {
    if request.kind == CollKind::Barrier { 0 } else { request.bytes().div_ceil(MOST) }
}

/// Step `index`.
pub(super) fn step(request: &Request, index: u64) -> Step {
    let at = index * MOST;
    let len = (request.bytes() - at).min(MOST) as u32;
    Step::copy(len, Operand::Input { at }, &[Operand::Output { at }])
}
