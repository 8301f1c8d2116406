//! The one-shot algorithm, for little data on one host: every rank publishes its data in one
//! message to all, then every rank reduces all messages.
//!
//! Every rank reduces in rank order, so that all get the same bits. There are two steps per
//! message, and usually one message: this is the path with the lowest latency. Every reader waits
//! for every writer, so it is a barrier too, and no output changes before all announcements were
//! compared.

use super::direct::ALL;
use super::{Action, Operand, Shape, Step, Topology};
use crate::collective::Request;
use crate::types::{CollKind, Rank};

/// The number of steps.
#[inline]
pub(super) fn len(request: &Request, shape: &Shape) -> u64 {
    let bytes = request.bytes();
    if bytes <= u64::from(shape.chunk) { 2 } else { 2 * bytes.div_ceil(u64::from(shape.chunk)) }
}

/// Step `index`: publishes the next chunk, or reduces it.
#[inline]
pub(super) fn make_step(
    topology: &Topology,
    request: &Request,
    shape: &Shape,
    me: Rank,
    index: u64,
    step: &mut Step,
) {
    let at = index / 2 * u64::from(shape.chunk);
    let len = (request.bytes() - at).min(u64::from(shape.chunk)) as u32;
    step.clear();
    if index.is_multiple_of(2) {
        step.len = len;
        step.sources.push(Operand::Input { at });
        step.destinations.push(Operand::Send { to: ALL, at: 0, total: len, last: true });
        return;
    }
    let barrier = request.kind == CollKind::Barrier;
    for rank in (0..topology.nranks()).map(Rank) {
        if rank != me {
            step.sources.push(Operand::Recv { from: rank, shared: true, at: 0, last: true });
        } else if !barrier {
            step.sources.push(Operand::Input { at });
        }
    }
    if !barrier {
        (step.len, step.action) = (len, Action::ReduceLast);
        step.destinations.push(Operand::Output { at });
    }
}
