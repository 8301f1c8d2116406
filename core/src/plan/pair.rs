//! Send and receive: chunks over the pair's lane. A request of no bytes is one empty message.
//!
//! What a rank sends to itself, the send copies: its output is that of the receive, which has no
//! step.

use super::layout::Rounds;
use super::{Operand, Readers, Shape, Step};
use crate::collective::Request;
use crate::types::{CollKind, Rank};

/// The number of steps.
pub(super) fn len(request: &Request, shape: &Shape, me: Rank) -> u64 {
    if request.root == me && request.kind == CollKind::Recv { 0 } else { rounds(request, shape).count }
}

/// Step `index`.
pub(super) fn step(request: &Request, shape: &Shape, me: Rank, index: u64) -> Step {
    let round = rounds(request, shape).round(index);
    let (peer, len) = (request.root, round.len as u32);
    if peer == me {
        return Step::copy(len, Operand::Input { at: round.at }, &[Operand::Output { at: round.at }]);
    }
    if request.kind == CollKind::Send {
        let to = Operand::Send { to: Readers::One(peer), at: 0, total: len, last: true };
        Step::copy(len, Operand::Input { at: round.at }, &[to])
    } else {
        let from = Operand::Recv { from: peer, shared: false, at: 0, last: true };
        Step::copy(len, from, &[Operand::Output { at: round.at }])
    }
}

fn rounds(request: &Request, shape: &Shape) -> Rounds {
    Rounds::new(request.bytes(), 1, u64::from(shape.chunk))
}
