//! From events to facts, one rank of one communicator at a time. Pure: what was read goes in, what happened comes out.

use std::collections::BTreeMap;
use std::sync::Arc;

use ccl::clock::{Anchor, Raw, Scale};
use ccl::event::Event;
use ccl::recorder::Recorded;
use ccl::types::{ChannelId, CollKind, Direction, Phase, Rank};

use super::fact::{Fact, Message, Operation, Owner, What};
use super::ids::About;

/// Messages that wait for the end of their operation. A ring has at most as many events, so one operation's all fit unless it outlives
/// many looks; what is beyond counts as lost.
const MOST_WAITING: usize = 1 << 14;

/// How raw times become nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) scale: Scale,
    pub(super) anchor: Anchor,
}

impl Time {
    fn real_ns(&self, raw: Raw) -> u64 {
        self.anchor.real_ns_at(self.scale.mono(raw))
    }
}

/// What is known of one rank so far.
#[derive(Debug)]
pub(super) struct Story {
    owner: Arc<Owner>,
    /// Messages, and when: to which operation they belong shows when it ends.
    waiting: Vec<(Message, Raw)>,
    /// When the first phase of the making began.
    making: Option<u64>,
}

impl Story {
    pub(super) fn of(owner: Arc<Owner>) -> Self {
        Self { owner, waiting: Vec::new(), making: None }
    }

    /// Events are missing before the next one: whose the waiting messages are will never show. Returns how many these are.
    pub(super) fn gap(&mut self) -> u64 {
        let lost = self.waiting.len() as u64;
        self.waiting.clear();
        lost
    }

    /// Takes the next event; facts go to `out`. Returns how many events there was no room for.
    pub(super) fn next(&mut self, recorded: &Recorded, time: &Time, out: &mut Vec<Fact>) -> u64 {
        let at = recorded.raw;
        match recorded.event {
            Event::PhaseEnded { phase, duration_ns } => self.phase(phase, duration_ns, time.real_ns(at), out),
            Event::OpCompleted { kind, dtype, op, algorithm, seq, bytes, duration_ticks, other } => {
                let about = self.about(kind, seq, other);
                let how = Some((dtype, op, algorithm));
                let operation = Operation { about, kind, bytes, how, failed: None };
                self.ended(operation, at, duration_ticks, time, out);
            }
            Event::OpFailed { kind, seq, error, peer, bytes, duration_ticks, other } => {
                let about = self.about(kind, seq, other);
                let operation = Operation { about, kind, bytes, how: None, failed: Some((error, peer)) };
                self.ended(operation, at, duration_ticks, time, out);
            }
            Event::MessageSent { channel, peer, step, bytes } => {
                let direction = Direction::Send;
                let message = Message { channel, direction, peer, wide: peer.is_none(), number: step, bytes };
                return self.message(message, at);
            }
            Event::MessageTaken { channel, peer, wide, step, bytes } => {
                let direction = Direction::Recv;
                let message = Message { channel, direction, peer: Some(peer), wide, number: step, bytes };
                return self.message(message, at);
            }
            // Told by the spans of their operations, or nothing that takes time.
            Event::LinkUp { .. }
            | Event::OpPlanned { .. }
            | Event::WaitBegan { .. }
            | Event::WaitEnded { .. }
            | Event::PeerLost { .. }
            | Event::MismatchFound { .. }
            | Event::Aborted
            | Event::ClockAnchored { .. }
            | Event::Unknown { .. } => {}
        }
        0
    }

    fn about(&self, kind: CollKind, seq: u64, other: Option<Rank>) -> About {
        let me = self.owner.rank;
        match (kind, other) {
            (CollKind::Send, other) => About::Pair(me, other.unwrap_or(me), seq),
            (CollKind::Recv, other) => About::Pair(other.unwrap_or(me), me, seq),
            (
                CollKind::AllReduce
                | CollKind::AllGather
                | CollKind::ReduceScatter
                | CollKind::Broadcast
                | CollKind::Reduce
                | CollKind::Barrier,
                _,
            ) => About::Collective(seq),
        }
    }

    fn fact(&self, what: What, from_ns: u64, to_ns: u64) -> Fact {
        Fact { owner: Arc::clone(&self.owner), what, from_ns, to_ns }
    }

    fn phase(&mut self, phase: Phase, duration_ns: u64, to: u64, out: &mut Vec<Fact>) {
        let from = to.saturating_sub(duration_ns);
        out.push(self.fact(What::Phase(phase), from, to));
        let began = self.making.map_or(from, |began| began.min(from));
        self.making = Some(began);
        // The last one.
        if phase == Phase::Barrier {
            out.push(self.fact(What::MakingPart, began, to));
            if self.owner.rank == Rank(0) {
                out.push(self.fact(What::Making, began, to));
            }
        }
    }

    fn message(&mut self, message: Message, at: Raw) -> u64 {
        let fits = self.waiting.len() < MOST_WAITING;
        if fits {
            self.waiting.push((message, at));
        }
        u64::from(!fits)
    }

    fn ended(&mut self, operation: Operation, at: Raw, ticks: u64, time: &Time, out: &mut Vec<Fact>) {
        let to = time.real_ns(at);
        let from = to.saturating_sub(time.scale.ns(ticks));
        self.messages_of(&operation, from, time, out);
        out.push(self.fact(What::Part(operation), from, to));
        if self.owner.rank == Rank(0) && matches!(operation.about, About::Collective(_)) {
            out.push(self.fact(What::Operation(operation), from, to));
        }
    }

    /// The messages of an operation that ended: collectives run one after another, and pairs of the same two ranks and
    /// direction do. A message took from the one before it on its channel, or from the beginning, to its own moment.
    fn messages_of(&mut self, operation: &Operation, from: u64, time: &Time, out: &mut Vec<Fact>) {
        let me = self.owner.rank;
        let is_of = |message: &Message| match operation.about {
            About::Pair(writer, reader, _) => {
                let sends = writer == me;
                message.channel == ChannelId::P2P
                    && (message.direction == Direction::Send) == sends
                    && message.peer == Some(if sends { reader } else { writer })
            }
            About::Making | About::Collective(_) => message.channel != ChannelId::P2P,
        };
        let mut before: BTreeMap<ChannelId, u64> = BTreeMap::new();
        let waiting = std::mem::take(&mut self.waiting);
        for (message, at) in waiting {
            if is_of(&message) {
                let to = time.real_ns(at);
                let began = before.insert(message.channel, to).unwrap_or(from).min(to);
                out.push(self.fact(What::Message { about: operation.about, message }, began, to));
            } else {
                self.waiting.push((message, at));
            }
        }
    }
}

#[cfg(test)]
mod tests;
