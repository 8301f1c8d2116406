//! From events to facts, for one rank of one communicator. Pure: recorded events go in, facts come
//! out.

use std::collections::BTreeMap;
use std::sync::Arc;

use ccl::clock::{Anchor, Raw, Scale};
use ccl::event::Event;
use ccl::event::tags::Tags;
use ccl::recorder::Recorded;
use ccl::types::{ChannelId, CollKind, Direction, Phase, Rank};

use super::fact::{Fact, MessageFact, Operation, Owner, What};
use super::ids::About;

/// The most messages that wait for the end of their operation. A ring has fewer events, so the
/// messages of one operation all fit unless it outlives many looks; further messages count as lost.
const MOST_WAITING: usize = 1 << 14;

/// The conversion of raw times to nanoseconds since 1970.
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

/// The state of one rank so far.
#[derive(Debug)]
pub(super) struct SpanBuilder {
    owner: Arc<Owner>,
    /// Messages with their times: only the end of an operation shows which messages belong to it.
    waiting: Vec<(MessageFact, Raw)>,
    /// When the first phase of init began.
    init_from: Option<u64>,
    /// The user's tags by time, and the last one used: most operations share one text.
    tags: Tags,
    tag: Option<Arc<str>>,
}

impl SpanBuilder {
    pub(super) fn of(owner: Arc<Owner>) -> Self {
        Self { owner, waiting: Vec::new(), init_from: None, tags: Tags::default(), tag: None }
    }

    /// Handles missing events before the next one: the operations of the waiting messages are lost.
    /// Returns the number of these messages.
    pub(super) fn gap(&mut self) -> u64 {
        let lost = self.waiting.len() as u64;
        self.waiting.clear();
        // One of the missing events may have been another tag.
        self.tags.lost();
        lost
    }

    /// Takes the next event; facts go to `out`. Returns the number of events that there was no
    /// space for.
    pub(super) fn next(&mut self, recorded: &Recorded, time: &Time, out: &mut Vec<Fact>) -> u64 {
        let at = recorded.raw;
        self.tags.take(at, &recorded.event);
        match recorded.event {
            Event::PhaseEnded { phase, duration_ns } => self.phase(phase, duration_ns, time.real_ns(at), out),
            Event::OpCompleted { kind, dtype, op, algorithm, seq, bytes, duration_ticks, other } => {
                let about = self.about(kind, seq, other);
                let (how, root) = (Some((dtype, op, algorithm)), other.filter(|_| kind.has_root()));
                let operation = Operation { about, kind, bytes, root, how, failed: None };
                self.ended(operation, at, duration_ticks, time, out);
            }
            Event::OpFailed { kind, seq, error, peer, bytes, duration_ticks, other } => {
                let about = self.about(kind, seq, other);
                let (failed, root) = (Some((error, peer)), other.filter(|_| kind.has_root()));
                let operation = Operation { about, kind, bytes, root, how: None, failed };
                self.ended(operation, at, duration_ticks, time, out);
            }
            Event::MessageSent { channel, peer, seq, step, bytes } => {
                let direction = Direction::Send;
                let message = MessageFact {
                    channel,
                    direction,
                    peer,
                    shared: peer.is_none(),
                    seq,
                    number: step,
                    bytes,
                };
                return self.message(message, at);
            }
            Event::MessageTaken { channel, peer, shared, seq, step, bytes } => {
                let direction = Direction::Recv;
                let message =
                    MessageFact { channel, direction, peer: Some(peer), shared, seq, number: step, bytes };
                return self.message(message, at);
            }
            // Covered by the spans of their operations, or without a duration.
            Event::LinkUp { .. }
            | Event::OpPlanned { .. }
            | Event::WaitBegan { .. }
            | Event::WaitEnded { .. }
            | Event::PeerLost { .. }
            | Event::MismatchFound { .. }
            | Event::Aborted
            | Event::ClockAnchored { .. }
            | Event::Tagged { .. }
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
        Fact { owner: Arc::clone(&self.owner), what, from_ns, to_ns, tag: None }
    }

    fn phase(&mut self, phase: Phase, duration_ns: u64, to: u64, out: &mut Vec<Fact>) {
        let from = to.saturating_sub(duration_ns);
        out.push(self.fact(What::Phase(phase), from, to));
        let began = self.init_from.map_or(from, |began| began.min(from));
        self.init_from = Some(began);
        // The last phase.
        if phase == Phase::Barrier {
            out.push(self.fact(What::Init, began, to));
        }
    }

    fn message(&mut self, message: MessageFact, at: Raw) -> u64 {
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
        let tag = self.tag(Raw(at.0.saturating_sub(ticks)));
        out.push(Fact { tag, ..self.fact(What::Operation(operation), from, to) });
    }

    /// The tag of an operation that was called at that time.
    fn tag(&mut self, called: Raw) -> Option<Arc<str>> {
        let tag = self.tags.of(called)?;
        if self.tag.as_deref() != Some(tag) {
            self.tag = Some(tag.into());
        }
        self.tag.clone()
    }

    /// Emits the messages of an operation that ended. A message says which operation it is of; in
    /// older recordings it does not, but collectives run one after another, and so do the pairs of
    /// the same two ranks and direction. A message lasts from the message before it on
    /// its channel, or from the beginning of the operation, to its own time.
    fn messages_of(&mut self, operation: &Operation, from: u64, time: &Time, out: &mut Vec<Fact>) {
        let me = self.owner.rank;
        let is_of = |message: &MessageFact| match operation.about {
            About::Pair(writer, reader, _) => {
                let sends = writer == me;
                message.channel == ChannelId::P2P
                    && (message.direction == Direction::Send) == sends
                    && message.peer == Some(if sends { reader } else { writer })
            }
            About::Init | About::Collective(_) => message.channel != ChannelId::P2P,
        };
        let mut before: BTreeMap<ChannelId, u64> = BTreeMap::new();
        let waiting = std::mem::take(&mut self.waiting);
        for (message, at) in waiting {
            let is_its = message.seq == 0 || message.seq == operation.about.seq();
            if is_its && is_of(&message) {
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
