//! Little data on one host: everyone publishes all it has in a message to all, then everyone reduces everything.
//!
//! In rank order, so that all ranks get the same bits. Two steps per message, and as a rule there is one message: this is the
//! path of the shortest latency. Every reader waits for every writer, so that it is a barrier too, and no output changes
//! before all announcements were compared.

use super::{Operand, Readers, Shape, Step, Topology};
use crate::collective::Request;
use crate::types::{CollKind, Rank};

/// The number of steps.
#[inline]
pub(super) fn len(request: &Request, shape: &Shape) -> u64 {
    let bytes = request.bytes();
    if bytes <= u64::from(shape.chunk) { 2 } else { 2 * bytes.div_ceil(u64::from(shape.chunk)) }
}

/// Step `index`: publishing the next chunk, or reducing it.
#[inline]
pub(super) fn step(topology: &Topology, request: &Request, shape: &Shape, me: Rank, index: u64) -> Step {
    let at = index / 2 * u64::from(shape.chunk);
    let len = (request.bytes() - at).min(u64::from(shape.chunk)) as u32;
    if index % 2 == 0 {
        let to = Operand::Send { to: Readers::All, at: 0, total: len, last: true };
        return Step::copy(len, Operand::Input { at }, &[to]);
    }
    let ranks = (0..topology.nranks()).map(Rank);
    let theirs = |from| Operand::Recv { from, wide: true, at: 0, last: true };
    if request.kind == CollKind::Barrier {
        return Step::pass(ranks.filter(|&r| r != me).map(theirs));
    }
    let sources = ranks.map(|r| if r == me { Operand::Input { at } } else { theirs(r) });
    Step::reduce(len, sources, &[Operand::Output { at }])
}
