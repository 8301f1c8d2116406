//! Runs the programs of one operation, step by step, until each program waits or has ended.

use arrayvec::ArrayVec;

use crate::engine::checksum;
use crate::engine::lanes::{In, Lanes};
use crate::engine::mover::{Mover, Work, WorkId};
use crate::engine::op::{Op, Program};
use crate::engine::{Cause, Failure, Wait};
use crate::event::{Event, Subscriber, publish, publish_at};
use crate::memory::{View, ViewMut};
use crate::plan::{Action, MAX_DESTINATIONS, MAX_SOURCES, Operand, Readers, Step, Topology};
use crate::proxy::Claim;
use crate::reduce::{Scaling, Store};
use crate::transport::{LinkFault, Message};
use crate::types::{Algorithm, ChannelId, Direction, Rank, WaitReason};

/// Where steps run: the rank, its topology, and the scratch memory of the operation.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) me: Rank,
    pub(super) topology: &'a Topology,
    pub(super) scratch: ViewMut,
}

/// Runs what can be run of an operation's programs; whether any step was.
#[inline]
pub(super) fn run<S: Subscriber, M: Mover>(
    op: &Op,
    programs: &mut [Program],
    context: Context<'_>,
    lanes: &mut Lanes,
    waits: &mut Vec<Wait>,
    (mover, claim, events): (&mut M, &mut Claim, &mut S),
) -> Result<bool, Failure> {
    let mut advanced = false;
    let is_pair = op.algorithm() == Algorithm::Pair;
    for (number, program) in programs.iter_mut().enumerate() {
        let channel = if is_pair { ChannelId::P2P } else { ChannelId(number as u16) };
        while !program.has_run() {
            if !program.is_made {
                op.plan().make_step(context.topology, number as u16, program.index, &mut program.step);
                program.is_made = true;
            }
            let step = &program.step;
            let result = match program.work {
                None => run_step(step, op, context, (channel, program.index), lanes, (mover, claim, events)),
                // Its end sends and frees messages.
                Some(_) if claim.is_begun() && !claim.hold() => {
                    Err(wait_for_slot(op.number(), program.index, channel, context.me))
                }
                Some(id) => match mover.poll(id) {
                    Ok(true) => {
                        finish_later(step, op, channel, lanes, events);
                        Ok(None)
                    }
                    Ok(false) => break,
                    Err(fault) => Err(Stop::Fail(Cause::Link(fault), context.me)),
                },
            };
            match result {
                Ok(None) => {
                    (program.is_made, program.work) = (false, None);
                    program.index += 1;
                    advanced = true;
                }
                Ok(work) => {
                    program.work = work;
                    advanced = true;
                    break;
                }
                Err(Stop::Wait(wait)) => {
                    waits.push(wait);
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

/// The wait of a step whose work may have ended, but that has no slot to send and free messages.
const fn wait_for_slot(op: u64, step: u64, channel: ChannelId, me: Rank) -> Stop {
    let (direction, reason) = (Direction::Send, WaitReason::Proxy);
    Stop::Wait(Wait { op, step, channel, peer: me, direction, shared: false, reason })
}

#[inline]
fn run_step<S: Subscriber, M: Mover>(
    step: &Step,
    op: &Op,
    context: Context<'_>,
    (channel, index): (ChannelId, u64),
    lanes: &mut Lanes,
    (mover, claim, events): (&mut M, &mut Claim, &mut S),
) -> Result<Option<WorkId>, Stop> {
    let len = step.len as usize;
    let mut sources: ArrayVec<View, MAX_SOURCES> = ArrayVec::new();
    for operand in &step.sources {
        sources.push(source(
            *operand,
            len,
            (op, context),
            (channel, index),
            lanes,
            (&mut *claim, &mut *events),
        )?);
    }
    let mut destinations: ArrayVec<(ViewMut, Store), MAX_DESTINATIONS> = ArrayVec::new();
    for operand in &step.destinations {
        let network = (&mut *claim, &mut *events);
        destinations.push(destination(*operand, len, (op, context), (channel, index), lanes, network)?);
    }
    // From here on only its mover can stop the step.
    let descriptor = op.descriptor();
    let scaling = op.scaling(context.topology.nranks());
    let scaling = if scaling.is_none() { scaling } else { scaled(scaling, step) };
    let work = Work {
        action: step.action,
        dtype: descriptor.dtype,
        op: descriptor.op,
        scaling,
        sources: &sources,
        destinations: &destinations,
    };
    if len > 0
        && !destinations.is_empty()
        && let Some(id) = mover.begin(work)
    {
        return Ok(Some(id));
    }
    finish(step, op, channel, lanes, events);
    Ok(None)
}

/// What a step of an average or a pre-multiplied sum does to elements beside combining them.
fn scaled(scaling: Scaling, step: &Step) -> Scaling {
    let is_input = |source: &Operand| matches!(source, Operand::Input { .. });
    let inputs = step.sources.iter().enumerate().map(|(nth, source)| u8::from(is_input(source)) << nth).sum();
    scaling.of_step(inputs, step.action == Action::ReduceLast)
}

/// As [`finish`], of a step whose work took its time: its call is not worth inlining.
#[cold]
fn finish_later<S: Subscriber>(step: &Step, op: &Op, channel: ChannelId, lanes: &mut Lanes, events: &mut S) {
    finish(step, op, channel, lanes, events);
}

/// Frees and publishes the messages of a step whose work is done.
#[inline(always)]
fn finish<S: Subscriber>(step: &Step, op: &Op, channel: ChannelId, lanes: &mut Lanes, events: &mut S) {
    let seq = op.descriptor().seq;
    let mut lanes_needs_notify = false;
    for operand in &step.sources {
        if let Operand::Recv { from, shared, last: true, .. } = *operand
            && let Some(index) = lanes.receiver(channel, from, shared)
        {
            let lane = lanes.input(index);
            match &mut lane.sub {
                None => lane.link.release(),
                Some(sub) => sub.release(&mut lane.link, events),
            }
            lanes_needs_notify = true;
            lane.bytes += u64::from(lane.head);
            lane.store();
            let (step, bytes) = (lane.link.done(), lane.head);
            publish(events, || Event::MessageTaken { channel, peer: from, shared, seq, step, bytes });
        }
    }
    for operand in &step.destinations {
        if let Operand::Send { to, last: true, total, .. } = *operand
            && let Some(index) = lanes.sender(channel, to)
        {
            let has_checksums = lanes.has_checksums;
            let lane = lanes.out(index);
            let filled = lane.filling.take();
            let check = match filled.filter(|_| has_checksums) {
                Some(message) => checksum::with_checksum(op.check_to(to), message.read()),
                None => op.check_to(to),
            };
            // Read before a peer can receive the message, because this rank may be delayed between
            // publishing the message and publishing the event.
            let at = if S::WANTS { events.stamp(Event::STEPS) } else { None };
            match &mut lane.sub {
                None => lane.link.publish(check),
                Some(sub) => sub.publish(&mut lane.link, check, events),
            }
            lanes_needs_notify = true;
            lane.bytes += u64::from(total);
            lane.store();
            let step = lane.link.posted();
            let peer = super::peer_of(to);
            if let Some(at) = at {
                publish_at(events, at, || Event::MessageSent { channel, peer, seq, step, bytes: total });
            }
        }
    }
    lanes.needs_notify |= lanes_needs_notify;
}

/// The check of the oldest message of a lane, whose bytes are compared once.
#[cold]
fn compared(lane: &mut In, message: &Message, due: u64) -> Result<u64, LinkFault> {
    let number = lane.link.done() + 1;
    if lane.compared.1 != number {
        lane.compared = (checksum::without_checksum(message.check, message.data, due)?, number);
    }
    Ok(lane.compared.0)
}

/// Why a message that carries another check ends the operation.
#[cold]
fn differs(op: &Op, me: Rank, from: Rank, theirs: u64) -> Cause {
    let ours = *op.descriptor();
    op.differs(me, from, theirs).map_or(Cause::Mismatch { ours, theirs }, Cause::Differs)
}

#[inline(always)]
fn source<S: Subscriber>(
    operand: Operand,
    len: usize,
    (op, context): (&Op, Context<'_>),
    (channel, step): (ChannelId, u64),
    lanes: &mut Lanes,
    (claim, events): (&mut Claim, &mut S),
) -> Result<View, Stop> {
    match operand {
        Operand::Input { at } => Ok(op.input.part(at as usize, len)),
        Operand::Output { at } => Ok(op.output.read().part(at as usize, len)),
        Operand::Scratch { at } => Ok(context.scratch.read().part(at as usize, len)),
        Operand::Recv { from, shared, at, last } => {
            let (number, peer, direction) = (op.number(), from, Direction::Recv);
            let wait =
                |reason| Stop::Wait(Wait { op: number, step, channel, peer, direction, shared, reason });
            let Some(index) = lanes.receiver(channel, from, shared) else {
                return Err(wait(WaitReason::Connect));
            };
            let has_checksums = lanes.has_checksums;
            let lane = lanes.input(index);
            let peeked = match &mut lane.sub {
                None => lane.link.peek(),
                Some(_) if !claim.hold() => return Err(wait(WaitReason::Proxy)),
                Some(sub) => {
                    sub.serve(op.number(), op.descriptor().seq, lane.link.done());
                    sub.peek(&mut lane.link, events)
                }
            };
            let message = match peeked {
                Ok(Some(message)) => message,
                Ok(None) => return Err(wait(WaitReason::Peer)),
                Err(fault) => return Err(Stop::Fail(Cause::Link(fault), from)),
            };
            let due = op.check_from(from);
            let check = match has_checksums {
                true => {
                    compared(lane, &message, due).map_err(|fault| Stop::Fail(Cause::Link(fault), from))?
                }
                false => message.check,
            };
            if check != due {
                return Err(Stop::Fail(differs(op, context.me, from, check), from));
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

#[inline(always)]
fn destination<S: Subscriber>(
    operand: Operand,
    len: usize,
    (op, context): (&Op, Context<'_>),
    (channel, step): (ChannelId, u64),
    lanes: &mut Lanes,
    (claim, events): (&mut Claim, &mut S),
) -> Result<(ViewMut, Store), Stop> {
    match operand {
        Operand::Output { at } => Ok((op.output.part(at as usize, len), Store::Plain)),
        Operand::Scratch { at } => Ok((context.scratch.part(at as usize, len), Store::Plain)),
        Operand::Send { to, at, total, .. } => {
            let shared = matches!(to, Readers::Group(_));
            let peer = super::peer_of(to).unwrap_or(context.me);
            let (number, direction) = (op.number(), Direction::Send);
            let wait = |peer, reason| {
                Stop::Wait(Wait { op: number, step, channel, peer, direction, shared, reason })
            };
            let Some(index) = lanes.sender(channel, to) else { return Err(wait(peer, WaitReason::Connect)) };
            let lane = lanes.out(index);
            if lane.sub.is_some() && !claim.hold() {
                return Err(wait(lane.link.slowest(), WaitReason::Proxy));
            }
            if lane.filling.is_none() {
                let reserved = match &mut lane.sub {
                    None => lane.link.reserve(total),
                    Some(sub) => {
                        sub.serve(op.number(), op.descriptor().seq, lane.link.posted());
                        sub.reserve(&mut lane.link, total, events)
                    }
                };
                match reserved {
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
