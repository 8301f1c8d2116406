//! From the events of one rank of a communicator to its operations, each with its messages: what
//! traces and spans are made of. Pure.
//!
//! A message says which operation it is of. In recordings before layout 6 it does not, but
//! collectives run one after another, and so do the pairs of the same two ranks and direction.

use std::collections::{BTreeMap, VecDeque};

use super::Event;
use super::tags::Tags;
use crate::clock::Raw;
use crate::types::{Algorithm, ChannelId, CollKind, Datatype, Direction, Rank, ReduceOp};

/// The most messages that are kept for the end of their operation. A ring has fewer events, so
/// those of one operation all fit unless it outlives many readings.
pub const MOST_KEPT: usize = 1 << 14;
/// The most calls that are kept until they end, more than an engine takes at a time.
const MOST_CALLS: usize = 1 << 14;

/// One end of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageEnd {
    /// The channel of its lane.
    pub channel: ChannelId,
    /// Whether it was sent or taken.
    pub direction: Direction,
    /// The rank at the other end; `None` for all others.
    pub peer: Option<Rank>,
    /// Whether its lane is read by all others of its group.
    pub shared: bool,
    /// The sequence number of its operation; 0: not recorded.
    pub seq: u64,
    /// Its number on its lane.
    pub number: u64,
    /// Its length.
    pub bytes: u32,
    /// When it was sent or taken.
    pub at: Raw,
}

/// An operation that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its kind.
    pub kind: CollKind,
    /// Its number.
    pub seq: u64,
    /// The root, or the peer of a send or receive, if it was recorded.
    pub other: Option<Rank>,
    /// Its size.
    pub bytes: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// When it was called.
    pub called: Raw,
    /// When it began: not before the collective before it had ended.
    pub began: Raw,
    /// When it ended.
    pub ended: Raw,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It completed.
    Completed {
        /// The element type.
        dtype: Datatype,
        /// How elements were combined.
        op: ReduceOp,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// It failed.
    Failed {
        /// The number of its `ErrorKind`.
        error: u8,
        /// The rank that is to blame, if that is known.
        blamed: Option<Rank>,
    },
}

impl Operation {
    /// How long it took since it was called, in ticks.
    #[must_use]
    pub const fn ticks(&self) -> u64 {
        self.ended.0.saturating_sub(self.called.0)
    }

    fn has(&self, message: &MessageEnd) -> bool {
        let is_of_kind = match self.kind {
            CollKind::Send => is_pair(message, Direction::Send, self.other),
            CollKind::Recv => is_pair(message, Direction::Recv, self.other),
            CollKind::AllReduce
            | CollKind::AllGather
            | CollKind::ReduceScatter
            | CollKind::Broadcast
            | CollKind::Reduce
            | CollKind::Barrier
            | CollKind::AllToAll
            | CollKind::Gather
            | CollKind::Scatter => message.channel != ChannelId::P2P,
        };
        is_of_kind && (message.seq == 0 || message.seq == self.seq)
    }
}

fn is_pair(message: &MessageEnd, direction: Direction, other: Option<Rank>) -> bool {
    message.channel == ChannelId::P2P && message.direction == direction && message.peer == other
}

/// What an event adds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A message, as soon as it is known.
    Message {
        /// The message.
        message: MessageEnd,
        /// The number of its operation, if that is known.
        seq: Option<u64>,
        /// When its operation began, if that is known.
        since: Option<Raw>,
        /// Whether it is kept for the end of its operation.
        is_kept: bool,
    },
    /// An operation that ended, and its messages, each with its beginning: the message before it
    /// on its channel, or the call.
    Ended(Operation, Vec<(MessageEnd, Raw)>),
    /// Anything else.
    Other,
}

/// The operations of one rank of a communicator so far.
#[derive(Default, Debug)]
pub struct Assembly {
    /// Collectives that were called and have not ended: number and time.
    called: VecDeque<(u64, Raw)>,
    /// The last collective that ended, and when the last one did that was under way since.
    ended: (u64, Raw),
    /// The last send or receive that ended, by its kind and the other rank.
    pairs_ended: BTreeMap<(CollKind, Option<Rank>), u64>,
    /// Messages whose operation has not ended.
    kept: Vec<MessageEnd>,
    tags: Tags,
}

impl Assembly {
    /// Takes the next event of the rank, which happened at `at`.
    pub fn take(&mut self, at: Raw, event: &Event) -> Item {
        self.tags.take(at, event);
        match *event {
            Event::OpPlanned { kind, seq, .. } if !kind.is_p2p() => {
                if self.called.len() == MOST_CALLS {
                    self.called.pop_front();
                }
                self.called.push_back((seq, at));
            }
            Event::OpCompleted { kind, dtype, op, algorithm, seq, bytes, duration_ticks, other } => {
                let outcome = Outcome::Completed { dtype, op, algorithm };
                return self.end((kind, seq, other), bytes, outcome, (at, duration_ticks));
            }
            Event::OpFailed { kind, seq, error, peer, bytes, duration_ticks, other } => {
                let outcome = Outcome::Failed { error, blamed: peer };
                return self.end((kind, seq, other), bytes, outcome, (at, duration_ticks));
            }
            Event::MessageSent { channel, peer, seq, step, bytes } => {
                let (direction, shared) = (Direction::Send, peer.is_none());
                return self.message(MessageEnd {
                    channel,
                    direction,
                    peer,
                    shared,
                    seq,
                    number: step,
                    bytes,
                    at,
                });
            }
            Event::MessageTaken { channel, peer, shared, seq, step, bytes } => {
                let (direction, peer) = (Direction::Recv, Some(peer));
                return self.message(MessageEnd {
                    channel,
                    direction,
                    peer,
                    shared,
                    seq,
                    number: step,
                    bytes,
                    at,
                });
            }
            Event::OpPlanned { .. }
            | Event::PhaseEnded { .. }
            | Event::LinkUp { .. }
            | Event::ProxyStepEntered { .. }
            | Event::WaitBegan { .. }
            | Event::WaitEnded { .. }
            | Event::PeerLost { .. }
            | Event::MismatchFound { .. }
            | Event::StallFound { .. }
            | Event::StallEnded { .. }
            | Event::QueuePairChanged { .. }
            | Event::WorkFailed { .. }
            | Event::PortChanged { .. }
            | Event::Aborted
            | Event::ClockAnchored { .. }
            | Event::Tagged { .. }
            | Event::Unknown { .. } => {}
        }
        Item::Other
    }

    /// Events between the last one and the next are lost: what was under way may have ended, and
    /// the tag may be another. Returns the number of messages that are no longer kept.
    pub fn lost(&mut self) -> u64 {
        self.tags.lost();
        self.called.clear();
        let lost = self.kept.len() as u64;
        self.kept.clear();
        lost
    }

    /// The tag was this one some time before `at`, if no event says otherwise.
    pub fn tagged(&mut self, at: Raw, tag: &str) {
        self.tags.stood(at, tag);
    }

    /// The tag of an operation that was called at that time, if it is known.
    #[must_use]
    pub fn tag(&self, called: Raw) -> Option<&str> {
        self.tags.of(called)
    }

    /// When the last collective ended; 0 if none has.
    #[must_use]
    pub const fn last_end(&self) -> Raw {
        self.ended.1
    }

    /// Whether an operation is known to have ended.
    #[must_use]
    pub fn has_ended(&self, kind: CollKind, other: Option<Rank>, seq: u64) -> bool {
        let pair = || self.pairs_ended.get(&(kind, other)).copied();
        let last = if kind.is_p2p() { pair() } else { Some(self.ended.0) };
        last.is_some_and(|last| seq <= last)
    }

    fn message(&mut self, message: MessageEnd) -> Item {
        // Pairs run beside the collective under way, and calls from before the recording are
        // unknown.
        let called = self.called.front().filter(|_| message.channel != ChannelId::P2P).copied();
        let since = called.map_or(Raw(0), |(_, at)| at).max(self.ended.1);
        let since = (message.channel != ChannelId::P2P && since != Raw(0)).then_some(since);
        let seq = if message.seq > 0 { Some(message.seq) } else { called.map(|(seq, _)| seq) };
        let is_kept = self.kept.len() < MOST_KEPT;
        self.kept.extend(is_kept.then_some(message));
        Item::Message { message, seq, since, is_kept }
    }

    fn end(
        &mut self,
        (kind, seq, other): (CollKind, u64, Option<Rank>),
        bytes: u64,
        outcome: Outcome,
        (ended, ticks): (Raw, u64),
    ) -> Item {
        let called = Raw(ended.0.saturating_sub(ticks));
        let began = if kind.is_p2p() { called } else { called.max(self.ended.1) };
        if kind.is_p2p() {
            let last = self.pairs_ended.entry((kind, other)).or_default();
            *last = seq.max(*last);
        } else {
            self.called.retain(|(called, _)| *called > seq);
            self.ended = (seq.max(self.ended.0), ended);
        }
        let operation = Operation { kind, seq, other, bytes, outcome, called, began, ended };
        let mut before: BTreeMap<ChannelId, Raw> = BTreeMap::new();
        let mut messages = Vec::new();
        self.kept.retain(|message| {
            let is_its = operation.has(message);
            if is_its {
                let since = before.insert(message.channel, message.at).unwrap_or(called);
                messages.push((*message, since.min(message.at)));
            }
            !is_its
        });
        Item::Ended(operation, messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: ChannelId = ChannelId(0);

    fn planned(seq: u64) -> Event {
        let (kind, algorithm) = (CollKind::AllReduce, Algorithm::Ring);
        Event::OpPlanned { kind, seq, algorithm, bytes: 8, outline: None }
    }

    fn completed(kind: CollKind, seq: u64, other: Option<Rank>, duration_ticks: u64) -> Event {
        let (dtype, op, algorithm) = (Datatype::U8, ReduceOp::Sum, Algorithm::Ring);
        Event::OpCompleted { kind, dtype, op, algorithm, seq, bytes: 8, duration_ticks, other }
    }

    fn sent(channel: ChannelId, peer: u32, seq: u64, step: u64) -> Event {
        Event::MessageSent { channel, peer: Some(Rank(peer)), seq, step, bytes: 8 }
    }

    fn taken(channel: ChannelId, peer: u32, seq: u64, step: u64) -> Event {
        Event::MessageTaken { channel, peer: Rank(peer), shared: false, seq, step, bytes: 8 }
    }

    /// The number and beginning of the operation of each message, as it comes.
    fn streamed(assembly: &mut Assembly, script: &[(u64, Event)]) -> Vec<(Option<u64>, Option<u64>)> {
        let item = |(at, event): &(u64, Event)| match assembly.take(Raw(*at), event) {
            Item::Message { seq, since, .. } => Some((seq, since.map(|since| since.0))),
            Item::Ended(..) | Item::Other => None,
        };
        script.iter().filter_map(item).collect()
    }

    /// The beginning and end of each message of the operation that ends with this event.
    fn ended(assembly: &mut Assembly, at: u64, event: &Event) -> Vec<(u64, u64)> {
        match assembly.take(Raw(at), event) {
            Item::Ended(_, messages) => messages.iter().map(|(one, since)| (since.0, one.at.0)).collect(),
            item => panic!("{item:?}"),
        }
    }

    #[test]
    fn a_message_says_its_operation_before_that_ends() {
        let mut assembly = Assembly::default();
        let script = [(10, planned(1)), (20, sent(DATA, 1, 1, 1)), (25, sent(ChannelId::P2P, 1, 7, 1))];
        assert_eq!(streamed(&mut assembly, &script), [(Some(1), Some(10)), (Some(7), None)]);
        assert_eq!(ended(&mut assembly, 40, &completed(CollKind::AllReduce, 1, None, 30)), [(10, 20)]);
        // The next one was called while the first was under way, and began when that ended.
        let script = [(41, sent(DATA, 1, 2, 2)), (42, sent(DATA, 1, 2, 3))];
        assert_eq!(streamed(&mut assembly, &script), [(Some(2), Some(40)); 2]);
        match assembly.take(Raw(60), &completed(CollKind::AllReduce, 2, None, 30)) {
            Item::Ended(Operation { called: Raw(30), began: Raw(40), ended: Raw(60), .. }, messages) => {
                assert_eq!(messages.iter().map(|(_, since)| since.0).collect::<Vec<_>>(), [30, 41]);
            }
            item => panic!("{item:?}"),
        }
        assert_eq!(assembly.last_end(), Raw(60));
        assert!(
            assembly.has_ended(CollKind::Barrier, None, 2) && !assembly.has_ended(CollKind::Barrier, None, 3)
        );
    }

    #[test]
    fn messages_of_an_older_recording_are_of_the_next_operation_that_fits() {
        let mut assembly = Assembly::default();
        let script = [
            (10, planned(1)),
            (20, sent(DATA, 1, 0, 1)),
            (21, sent(ChannelId::P2P, 1, 0, 1)),
            (22, taken(ChannelId::P2P, 1, 0, 1)),
            (23, sent(ChannelId::P2P, 2, 0, 1)),
        ];
        let of_none = (None, None);
        assert_eq!(streamed(&mut assembly, &script), [(Some(1), Some(10)), of_none, of_none, of_none]);
        let other = Some(Rank(1));
        assert_eq!(ended(&mut assembly, 30, &completed(CollKind::Recv, 4, other, 12)), [(18, 22)]);
        assert_eq!(ended(&mut assembly, 31, &completed(CollKind::Send, 9, other, 12)), [(19, 21)]);
        assert_eq!(ended(&mut assembly, 32, &completed(CollKind::AllReduce, 1, None, 22)), [(10, 20)]);
        assert_eq!(ended(&mut assembly, 33, &completed(CollKind::Send, 2, Some(Rank(2)), 12)), [(21, 23)]);
        assert!(
            assembly.has_ended(CollKind::Send, other, 9) && !assembly.has_ended(CollKind::Recv, other, 9)
        );
    }

    #[test]
    fn a_loss_forgets_what_was_under_way() {
        let mut assembly = Assembly::default();
        assembly.tagged(Raw(5), "step 1");
        let script = [(10, planned(1)), (20, sent(DATA, 1, 1, 1)), (21, sent(DATA, 1, 1, 2))];
        streamed(&mut assembly, &script);
        assert_eq!(assembly.tag(Raw(10)), Some("step 1"));
        assert_eq!((assembly.lost(), assembly.lost()), (2, 0));
        assert_eq!(assembly.tag(Raw(30)), None);
        assert_eq!(streamed(&mut assembly, &[(30, sent(DATA, 1, 0, 3))]), [(None, None)]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut assembly = Assembly::default();
        let mut refused = 0;
        for number in 0..MOST_KEPT as u64 + 3 {
            assembly.take(Raw(number), &planned(number));
            let item = assembly.take(Raw(number), &sent(DATA, 1, 1, number));
            refused += u32::from(matches!(item, Item::Message { is_kept: false, .. }));
        }
        assert_eq!((refused, assembly.kept.len(), assembly.called.len()), (3, MOST_KEPT, MOST_CALLS));
    }
}
