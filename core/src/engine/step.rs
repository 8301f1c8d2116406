//! Running the programs of one operation: step after step, until each waits or is at its end.

use arrayvec::ArrayVec;

use crate::engine::lanes::Lanes;
use crate::engine::op::{Op, Program};
use crate::engine::{Cause, Failure, Wait};
use crate::event::{Event, Subscriber, publish};
use crate::memory::{View, ViewMut};
use crate::plan::{Action, MAX_DESTINATIONS, MAX_SOURCES, Operand, Readers, Step, Topology};
use crate::reduce::{self, Store};
use crate::transport::LinkFault;
use crate::types::{Algorithm, ChannelId, Direction, Rank, WaitReason};

/// Runs what can be run of an operation's programs; whether any step was.
#[inline]
pub(super) fn run<S: Subscriber>(
    op: &Op,
    programs: &mut [Program],
    (me, topology): (Rank, &Topology),
    lanes: &mut Lanes,
    waits: &mut Vec<Wait>,
    events: &mut S,
) -> Result<bool, Failure> {
    let mut advanced = false;
    let is_pair = op.algorithm() == Algorithm::Pair;
    for (number, program) in programs.iter_mut().enumerate() {
        let channel = if is_pair { ChannelId::P2P } else { ChannelId(number as u16) };
        while !program.has_run() {
            // Only a step that has to wait is stored.
            let made;
            let (step, is_new) = match &program.waiting {
                Some(step) => (step, false),
                None => {
                    made = op.plan().step(topology, number as u16, program.index);
                    (&made, true)
                }
            };
            match run_step(step, op, me, channel, lanes, events) {
                Ok(()) => {
                    program.waiting = None;
                    program.index += 1;
                    advanced = true;
                }
                Err(Stop::Wait(wait)) => {
                    waits.push(wait);
                    if is_new {
                        program.waiting = Some(step.clone());
                    }
                    break;
                }
                Err(Stop::Fail(cause, peer)) => {
                    let op = Some((op.kind(), op.descriptor().seq));
                    return Err(Failure { cause, op, peer: Some(peer), channel: Some(channel) });
                }
            }
        }
    }
    Ok(advanced)
}

enum Stop {
    Wait(Wait),
    Fail(Cause, Rank),
}

#[inline]
fn run_step<S: Subscriber>(
    step: &Step,
    op: &Op,
    me: Rank,
    channel: ChannelId,
    lanes: &mut Lanes,
    events: &mut S,
) -> Result<(), Stop> {
    let len = step.len as usize;
    let mut sources: ArrayVec<View, MAX_SOURCES> = ArrayVec::new();
    for operand in &step.sources {
        sources.push(source(*operand, len, op, channel, lanes)?);
    }
    let mut destinations: ArrayVec<(ViewMut, Store), MAX_DESTINATIONS> = ArrayVec::new();
    for operand in &step.destinations {
        destinations.push(destination(*operand, len, op, me, channel, lanes)?);
    }
    // From here on nothing can stop the step.
    match step.action {
        Action::Reduce if len > 0 => {
            let descriptor = op.descriptor();
            reduce::combine(descriptor.op, descriptor.dtype, &sources, &destinations);
        }
        Action::Copy if len > 0 => {
            for (to, how) in &destinations {
                reduce::copy(*to, sources[0], *how);
            }
        }
        Action::Reduce | Action::Copy => {}
    }
    let mut lanes_unrung = false;
    for operand in &step.sources {
        if let Operand::Recv { from, wide, last: true, .. } = *operand
            && let Some(index) = lanes.receiver(channel, from, wide)
        {
            let lane = lanes.input(index);
            lane.link.release();
            lanes_unrung = true;
            lane.bytes += u64::from(lane.head);
            lane.store();
            let (step, bytes) = (lane.link.done(), lane.head);
            publish(events, || Event::MessageTaken { channel, peer: from, wide, step, bytes });
        }
    }
    for operand in &step.destinations {
        if let Operand::Send { to, last: true, total, .. } = *operand
            && let Some(index) = lanes.sender(channel, to)
        {
            let lane = lanes.out(index);
            lane.filling = None;
            lane.link.publish(op.check());
            lanes_unrung = true;
            lane.bytes += u64::from(total);
            lane.store();
            let step = lane.link.posted();
            let peer = super::peer_of(to);
            publish(events, || Event::MessageSent { channel, peer, step, bytes: total });
        }
    }
    lanes.unrung |= lanes_unrung;
    Ok(())
}

#[inline]
fn source(
    operand: Operand,
    len: usize,
    op: &Op,
    channel: ChannelId,
    lanes: &mut Lanes,
) -> Result<View, Stop> {
    match operand {
        Operand::Input { at } => Ok(op.input.part(at as usize, len)),
        Operand::Output { at } => Ok(op.output.read().part(at as usize, len)),
        Operand::Recv { from, wide, at, last } => {
            let wait =
                |reason| Stop::Wait(Wait { channel, peer: from, direction: Direction::Recv, wide, reason });
            let Some(index) = lanes.receiver(channel, from, wide) else {
                return Err(wait(WaitReason::Connect));
            };
            let lane = lanes.input(index);
            let message = match lane.link.peek() {
                Ok(Some(message)) => message,
                Ok(None) => return Err(wait(WaitReason::Peer)),
                Err(fault) => return Err(Stop::Fail(Cause::Link(fault), from)),
            };
            if message.check != op.check() {
                let cause = Cause::Mismatch { ours: *op.descriptor(), theirs: message.check };
                return Err(Stop::Fail(cause, from));
            }
            let at = at as usize;
            if message.data.len() < at + len {
                let what = format!("a message of {} bytes where {} were due", message.data.len(), at + len);
                return Err(Stop::Fail(Cause::Link(LinkFault::Corrupt(what)), from));
            }
            if last {
                lane.head = message.data.len() as u32;
            }
            Ok(message.data.part(at, len))
        }
        Operand::Send { .. } => unreachable!("a message being filled is no source: plans are verified"),
    }
}

#[inline]
fn destination(
    operand: Operand,
    len: usize,
    op: &Op,
    me: Rank,
    channel: ChannelId,
    lanes: &mut Lanes,
) -> Result<(ViewMut, Store), Stop> {
    match operand {
        Operand::Output { at } => Ok((op.output.part(at as usize, len), Store::Plain)),
        Operand::Send { to, at, total, .. } => {
            let wide = to == Readers::All;
            let peer = super::peer_of(to).unwrap_or(me);
            let wait =
                |peer, reason| Stop::Wait(Wait { channel, peer, direction: Direction::Send, wide, reason });
            let Some(index) = lanes.sender(channel, to) else { return Err(wait(peer, WaitReason::Connect)) };
            let lane = lanes.out(index);
            if lane.filling.is_none() {
                match lane.link.reserve(total) {
                    Ok(Some(slot)) => lane.filling = Some(slot),
                    Ok(None) => {
                        let in_kernel = lane.link.moved() < lane.link.posted();
                        let reason = if in_kernel { WaitReason::Kernel } else { WaitReason::Credit };
                        return Err(wait(lane.link.slowest(), reason));
                    }
                    Err(fault) => return Err(Stop::Fail(Cause::Link(fault), lane.link.slowest())),
                }
            }
            let slot = lane.filling.unwrap_or(ViewMut::EMPTY);
            assert_eq!(slot.len(), total as usize, "fills of one message agree on its length");
            Ok((slot.part(at as usize, len), Store::Streaming))
        }
        Operand::Input { .. } | Operand::Recv { .. } => {
            unreachable!("inputs and messages are no destinations: plans are verified")
        }
    }
}
