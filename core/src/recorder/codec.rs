//! Events as six words and back: `code | four bytes | channel`, then the wide fields.
//!
//! A ring also holds marks, which say whose the events after and before them are
//! ([`Owner`]).
//!
//! Code numbers and field positions are part of the layout and never change their meaning. An
//! unknown code or an unknown enum value decodes to [`Event::Unknown`].

use super::layout::slot::EVENT_WORDS;
use crate::event::{DeviceName, Event, tags};
use crate::snapshot::{Class, QueuePairState, Reason, Standing};
use crate::types::{
    Algorithm, ChannelId, CollKind, CommId, Datatype, Direction, Outline, Phase, ProxyState, Rank, ReduceOp,
    Shape, TransportKind, TransportReason, WaitReason,
};

pub(super) type Words = [u64; EVENT_WORDS];

/// The communicator and rank that events are of.
pub type Owner = (CommId, Rank);

const PHASE_ENDED: u16 = 1;
const LINK_UP: u16 = 2;
const OP_PLANNED: u16 = 4;
const OP_COMPLETED: u16 = 5;
const OP_FAILED: u16 = 6;
const MESSAGE_SENT: u16 = 7;
const MESSAGE_TAKEN: u16 = 8;
const WAIT_BEGAN: u16 = 9;
const WAIT_ENDED: u16 = 10;
const PEER_LOST: u16 = 11;
const MISMATCH_FOUND: u16 = 12;
const ABORTED: u16 = 13;
const CLOCK_ANCHORED: u16 = 14;
const TAGGED: u16 = 15;
const OWNER: u16 = 16;
const STALL_FOUND: u16 = 17;
const STALL_ENDED: u16 = 18;
const PROXY_STEP_ENTERED: u16 = 19;
const QUEUE_PAIR_CHANGED: u16 = 20;
const WORK_FAILED: u16 = 21;
const PORT_CHANGED: u16 = 22;

#[inline]
fn first(code: u16, bytes: [u8; 4], channel: ChannelId) -> u64 {
    u64::from(code) | u64::from(u32::from_le_bytes(bytes)) << 16 | u64::from(channel.0) << 48
}

#[inline]
fn some_rank(peer: Option<Rank>) -> u64 {
    peer.map_or(0, |rank| 1 << 32 | u64::from(rank.0))
}

/// An outline as two words: algorithm plus 1 | channels << 16 | chunk << 32, and the hash of the
/// topology. Both are 0 if there is none.
#[inline]
pub(super) fn outline_words(outline: Option<Outline>) -> [u64; 2] {
    let Some(Outline { shape: Shape { algorithm, channels, chunk }, topology }) = outline else {
        return [0, 0];
    };
    [(algorithm as u64 + 1) | u64::from(channels) << 16 | u64::from(chunk) << 32, topology]
}

/// What [`outline_words`] encoded; `None` of anything else.
pub(super) fn outline_of([shape, topology]: [u64; 2]) -> Option<Outline> {
    let algorithm = Algorithm::from_u8((shape as u8).checked_sub(1)?)?;
    let shape = Shape { algorithm, channels: (shape >> 16) as u16, chunk: (shape >> 32) as u32 };
    Some(Outline { shape, topology })
}

/// A mark between the events of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    /// Whose the events after it are; `None`: of the process.
    pub(super) owner: Option<Owner>,
    /// Whose the events before it are.
    pub(super) before: Option<Owner>,
    /// The number of marks before it.
    pub(super) number: u64,
}

impl Mark {
    pub(super) fn encode(self) -> Words {
        let bytes = [u8::from(self.owner.is_some()), u8::from(self.before.is_some()), 0, 0];
        let of = |owner: Option<Owner>| owner.map_or([0; 2], |(comm, rank)| [comm.0, u64::from(rank.0)]);
        let ([comm, rank], [old_comm, old_rank]) = (of(self.owner), of(self.before));
        [first(OWNER, bytes, ChannelId(0)), comm, rank, old_comm, old_rank, self.number]
    }

    /// The mark of these words; `None` if they are an event.
    pub(super) fn decode(words: &Words) -> Option<Self> {
        let [head, comm, rank, old_comm, old_rank, number] = *words;
        let bytes = ((head >> 16) as u32).to_le_bytes();
        let of = |is: u8, comm, rank: u64| (is != 0).then_some((CommId(comm), Rank(rank as u32)));
        let (owner, before) = (of(bytes[0], comm, rank), of(bytes[1], old_comm, old_rank));
        (head as u16 == OWNER).then_some(Self { owner, before, number })
    }
}

/// Encodes an event.
#[inline(always)]
#[must_use]
pub(super) fn encode(event: &Event) -> Words {
    let none = ChannelId(0);
    match *event {
        Event::PhaseEnded { phase, duration_ns } => {
            [first(PHASE_ENDED, [phase as u8, 0, 0, 0], none), duration_ns, 0, 0, 0, 0]
        }
        Event::LinkUp { channel, peer, direction, transport, why } => {
            let bytes = [direction as u8, transport as u8, why.map_or(0, |why| why as u8), 0];
            [first(LINK_UP, bytes, channel), some_rank(peer), 0, 0, 0, 0]
        }
        Event::OpPlanned { kind, seq, algorithm, bytes, outline } => {
            let [shape, topology] = outline_words(outline);
            [first(OP_PLANNED, [kind as u8, algorithm as u8, 0, 0], none), seq, bytes, shape, topology, 0]
        }
        Event::OpCompleted { kind, dtype, op, algorithm, seq, bytes, duration_ticks, other } => {
            let fields = [kind as u8, dtype as u8, op as u8, algorithm as u8];
            [first(OP_COMPLETED, fields, none), seq, bytes, duration_ticks, some_rank(other), 0]
        }
        Event::OpFailed { kind, seq, error, peer, bytes, duration_ticks, other } => {
            let first = first(OP_FAILED, [kind as u8, error, 0, 0], none);
            [first, seq, some_rank(peer), bytes, duration_ticks, some_rank(other)]
        }
        Event::MessageSent { channel, peer, seq, step, bytes } => {
            [first(MESSAGE_SENT, [0; 4], channel), some_rank(peer), step, u64::from(bytes), seq, 0]
        }
        Event::MessageTaken { channel, peer, shared, seq, step, bytes } => {
            let fields = [u8::from(shared), 0, 0, 0];
            [first(MESSAGE_TAKEN, fields, channel), u64::from(peer.0), step, u64::from(bytes), seq, 0]
        }
        Event::ProxyStepEntered { channel, peer, direction, seq, step, state } => {
            let first = first(PROXY_STEP_ENTERED, [direction as u8, state as u8, 0, 0], channel);
            [first, u64::from(peer.0), step, seq, 0, 0]
        }
        Event::WaitBegan { channel, peer, reason } => {
            [first(WAIT_BEGAN, [reason as u8, 0, 0, 0], channel), u64::from(peer.0), 0, 0, 0, 0]
        }
        Event::WaitEnded { channel, peer, reason, duration_ticks } => {
            let first = first(WAIT_ENDED, [reason as u8, 0, 0, 0], channel);
            [first, duration_ticks, some_rank(peer), 0, 0, 0]
        }
        Event::PeerLost { peer } => [first(PEER_LOST, [0; 4], none), u64::from(peer.0), 0, 0, 0, 0],
        Event::MismatchFound { peer, seq } => {
            [first(MISMATCH_FOUND, [0; 4], none), u64::from(peer.0), seq, 0, 0, 0]
        }
        Event::StallFound { standing, class, reason, culprit, since_ns } => {
            let fields = [standing.number(), class.number(), reason.number(), 0];
            [first(STALL_FOUND, fields, none), some_rank(culprit), since_ns, 0, 0, 0]
        }
        Event::StallEnded { duration_ns } => [first(STALL_ENDED, [0; 4], none), duration_ns, 0, 0, 0, 0],
        Event::QueuePairChanged { channel, peer, direction, number, state } => {
            let first = first(QUEUE_PAIR_CHANGED, [direction as u8, state.number(), 0, 0], channel);
            [first, u64::from(peer.0), u64::from(number), 0, 0, 0]
        }
        Event::WorkFailed { channel, peer, direction, number, status, vendor } => {
            let first = first(WORK_FAILED, [direction as u8, 0, 0, 0], channel);
            let why = u64::from(status) | u64::from(vendor) << 32;
            [first, u64::from(peer.0), u64::from(number), why, 0, 0]
        }
        Event::PortChanged { port, code, device: DeviceName(device) } => {
            let word = |at: usize| u64::from_le_bytes(device.as_chunks().0[at]);
            let first = first(PORT_CHANGED, [port, 0, 0, 0], none);
            [first, u64::from(code), word(0), word(1), word(2), word(3)]
        }
        Event::Aborted => [first(ABORTED, [0; 4], none), 0, 0, 0, 0, 0],
        Event::ClockAnchored { raw, mono_ns, real_ns } => {
            [first(CLOCK_ANCHORED, [0; 4], none), raw, mono_ns, real_ns, 0, 0]
        }
        Event::Tagged { piece, len, text } => {
            let word = |at: usize| u64::from_le_bytes(text.as_chunks().0[at]);
            [first(TAGGED, [piece, len, 0, 0], none), word(0), word(1), word(2), word(3), word(4)]
        }
        Event::Unknown { code } => [first(code, [0; 4], none), 0, 0, 0, 0, 0],
    }
}

/// Decodes six words, whatever they hold.
#[must_use]
pub(super) fn decode(words: &Words) -> Event {
    known(words).unwrap_or(Event::Unknown { code: words[0] as u16 })
}

fn known(words: &Words) -> Option<Event> {
    let [head, a, b, c, d, e] = *words;
    let bytes = ((head >> 16) as u32).to_le_bytes();
    let channel = ChannelId((head >> 48) as u16);
    let rank = |word: u64| Rank(word as u32);
    let peer = |word: u64| (word >> 32 != 0).then(|| rank(word));
    Some(match head as u16 {
        PHASE_ENDED => Event::PhaseEnded { phase: Phase::from_u8(bytes[0])?, duration_ns: a },
        LINK_UP => Event::LinkUp {
            channel,
            peer: peer(a),
            direction: Direction::from_u8(bytes[0])?,
            transport: TransportKind::from_u8(bytes[1])?,
            why: match bytes[2] {
                0 => None,
                n => Some(TransportReason::from_u8(n)?),
            },
        },
        OP_PLANNED => Event::OpPlanned {
            kind: CollKind::from_u8(bytes[0])?,
            seq: a,
            algorithm: Algorithm::from_u8(bytes[1])?,
            bytes: b,
            outline: outline_of([c, d]),
        },
        OP_COMPLETED => Event::OpCompleted {
            kind: CollKind::from_u8(bytes[0])?,
            dtype: Datatype::from_u8(bytes[1])?,
            op: ReduceOp::from_u8(bytes[2])?,
            algorithm: Algorithm::from_u8(bytes[3])?,
            seq: a,
            bytes: b,
            duration_ticks: c,
            other: peer(d),
        },
        OP_FAILED => Event::OpFailed {
            kind: CollKind::from_u8(bytes[0])?,
            seq: a,
            error: bytes[1],
            peer: peer(b),
            bytes: c,
            duration_ticks: d,
            other: peer(e),
        },
        MESSAGE_SENT => Event::MessageSent { channel, peer: peer(a), seq: d, step: b, bytes: c as u32 },
        MESSAGE_TAKEN => Event::MessageTaken {
            channel,
            peer: rank(a),
            shared: bytes[0] != 0,
            seq: d,
            step: b,
            bytes: c as u32,
        },
        PROXY_STEP_ENTERED => Event::ProxyStepEntered {
            channel,
            peer: rank(a),
            direction: Direction::from_u8(bytes[0])?,
            seq: c,
            step: b,
            state: ProxyState::from_u8(bytes[1])?,
        },
        WAIT_BEGAN => Event::WaitBegan { channel, peer: rank(a), reason: WaitReason::from_u8(bytes[0])? },
        WAIT_ENDED => Event::WaitEnded {
            channel,
            peer: peer(b),
            reason: WaitReason::from_u8(bytes[0])?,
            duration_ticks: a,
        },
        PEER_LOST => Event::PeerLost { peer: rank(a) },
        MISMATCH_FOUND => Event::MismatchFound { peer: rank(a), seq: b },
        STALL_FOUND => Event::StallFound {
            standing: Standing::numbered(bytes[0]),
            class: Class::numbered(bytes[1]),
            reason: Reason::numbered(bytes[2]),
            culprit: peer(a),
            since_ns: b,
        },
        STALL_ENDED => Event::StallEnded { duration_ns: a },
        QUEUE_PAIR_CHANGED => Event::QueuePairChanged {
            channel,
            peer: rank(a),
            direction: Direction::from_u8(bytes[0])?,
            number: b as u32,
            state: QueuePairState::numbered(bytes[1]),
        },
        WORK_FAILED => Event::WorkFailed {
            channel,
            peer: rank(a),
            direction: Direction::from_u8(bytes[0])?,
            number: b as u32,
            status: c as u32,
            vendor: (c >> 32) as u32,
        },
        PORT_CHANGED => {
            let mut device = DeviceName::default();
            for (to, word) in device.0.as_chunks_mut().0.iter_mut().zip([b, c, d, e]) {
                *to = word.to_le_bytes();
            }
            Event::PortChanged { port: bytes[0], code: a as u32, device }
        }
        ABORTED => Event::Aborted,
        CLOCK_ANCHORED => Event::ClockAnchored { raw: a, mono_ns: b, real_ns: c },
        TAGGED => {
            let mut text = [0; tags::PIECE];
            for (to, word) in text.as_chunks_mut().0.iter_mut().zip([a, b, c, d, e]) {
                *to = word.to_le_bytes();
            }
            Event::Tagged { piece: bytes[0], len: bytes[1], text }
        }
        _ => return None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
        proptest::sample::select(all)
    }

    fn outline() -> impl Strategy<Value = Outline> {
        let shape = (one_of(Algorithm::ALL), any::<u16>(), any::<u32>())
            .prop_map(|(algorithm, channels, chunk)| Shape { algorithm, channels, chunk });
        (shape, any::<u64>()).prop_map(|(shape, topology)| Outline { shape, topology })
    }

    /// Any event of any variant.
    pub(crate) fn any_event() -> impl Strategy<Value = Event> {
        let wide = || any::<u64>();
        let peer = || proptest::option::of(any::<u32>().prop_map(Rank));
        let rank = || any::<u32>().prop_map(Rank);
        let channel = || any::<u16>().prop_map(ChannelId);
        prop_oneof![
            (one_of(Phase::ALL), wide())
                .prop_map(|(phase, duration_ns)| Event::PhaseEnded { phase, duration_ns }),
            (
                channel(),
                peer(),
                one_of(Direction::ALL),
                one_of(TransportKind::ALL),
                proptest::option::of(one_of(TransportReason::ALL))
            )
                .prop_map(|(channel, peer, direction, transport, why)| Event::LinkUp {
                    channel,
                    peer,
                    direction,
                    transport,
                    why
                }),
            (one_of(CollKind::ALL), wide(), one_of(Algorithm::ALL), wide(), proptest::option::of(outline()))
                .prop_map(|(kind, seq, algorithm, bytes, outline)| Event::OpPlanned {
                    kind,
                    seq,
                    algorithm,
                    bytes,
                    outline
                }),
            (
                one_of(CollKind::ALL),
                one_of(Datatype::ALL),
                one_of(ReduceOp::ALL),
                one_of(Algorithm::ALL),
                wide(),
                wide(),
                wide(),
                peer()
            )
                .prop_map(|(kind, dtype, op, algorithm, seq, bytes, duration_ticks, other)| {
                    Event::OpCompleted { kind, dtype, op, algorithm, seq, bytes, duration_ticks, other }
                }),
            (one_of(CollKind::ALL), wide(), any::<u8>(), peer(), wide(), wide(), peer()).prop_map(
                |(kind, seq, error, peer, bytes, duration_ticks, other)| Event::OpFailed {
                    kind,
                    seq,
                    error,
                    peer,
                    bytes,
                    duration_ticks,
                    other
                }
            ),
            (channel(), peer(), wide(), wide(), any::<u32>()).prop_map(
                |(channel, peer, seq, step, bytes)| Event::MessageSent { channel, peer, seq, step, bytes }
            ),
            (channel(), rank(), any::<bool>(), wide(), wide(), any::<u32>()).prop_map(
                |(channel, peer, shared, seq, step, bytes)| Event::MessageTaken {
                    channel,
                    peer,
                    shared,
                    seq,
                    step,
                    bytes
                }
            ),
            (channel(), rank(), one_of(Direction::ALL), wide(), wide(), one_of(ProxyState::ALL)).prop_map(
                |(channel, peer, direction, seq, step, state)| Event::ProxyStepEntered {
                    channel,
                    peer,
                    direction,
                    seq,
                    step,
                    state
                }
            ),
            (channel(), rank(), one_of(WaitReason::ALL))
                .prop_map(|(channel, peer, reason)| Event::WaitBegan { channel, peer, reason }),
            (channel(), peer(), one_of(WaitReason::ALL), wide()).prop_map(
                |(channel, peer, reason, duration_ticks)| Event::WaitEnded {
                    channel,
                    peer,
                    reason,
                    duration_ticks
                }
            ),
            rank().prop_map(|peer| Event::PeerLost { peer }),
            (rank(), wide()).prop_map(|(peer, seq)| Event::MismatchFound { peer, seq }),
            (one_of(Standing::ALL), one_of(Class::ALL), one_of(Reason::ALL), peer(), wide()).prop_map(
                |(standing, class, reason, culprit, since_ns)| Event::StallFound {
                    standing,
                    class,
                    reason,
                    culprit,
                    since_ns
                }
            ),
            wide().prop_map(|duration_ns| Event::StallEnded { duration_ns }),
            (channel(), rank(), one_of(Direction::ALL), any::<u32>(), one_of(QueuePairState::ALL)).prop_map(
                |(channel, peer, direction, number, state)| Event::QueuePairChanged {
                    channel,
                    peer,
                    direction,
                    number,
                    state
                }
            ),
            (channel(), rank(), one_of(Direction::ALL), any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
                |(channel, peer, direction, number, status, vendor)| Event::WorkFailed {
                    channel,
                    peer,
                    direction,
                    number,
                    status,
                    vendor
                }
            ),
            (any::<u8>(), any::<u32>(), any::<[u8; 32]>()).prop_map(|(port, code, device)| {
                Event::PortChanged { port, code, device: DeviceName(device) }
            }),
            Just(Event::Aborted),
            (wide(), wide(), wide()).prop_map(|(raw, mono_ns, real_ns)| Event::ClockAnchored {
                raw,
                mono_ns,
                real_ns
            }),
            (any::<u8>(), any::<u8>(), any::<[u64; 5]>()).prop_map(|(piece, len, words)| {
                let text = words.map(u64::to_le_bytes).concat();
                Event::Tagged { piece, len, text: text.try_into().expect("five words") }
            }),
            (100..u16::MAX).prop_map(|code| Event::Unknown { code }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
        #[test]
        #[cfg_attr(miri, ignore = "slow")]
        fn every_event_survives_its_words(event in any_event()) {
            prop_assert_eq!(decode(&encode(&event)), event);
        }
        #[test]
        #[cfg_attr(miri, ignore = "slow")]
        fn any_words_are_some_event(words: Words) {
            let event = decode(&words);
            if event != (Event::Unknown { code: words[0] as u16 }) {
                prop_assert_eq!(decode(&encode(&event)), event);
            }
        }
    }

    #[test]
    fn codes_and_places_are_the_published_ones() {
        let completed = Event::OpCompleted {
            kind: CollKind::Reduce,
            dtype: Datatype::F64,
            op: ReduceOp::Max,
            algorithm: Algorithm::Pair,
            seq: 7,
            bytes: 8,
            duration_ticks: 9,
            other: Some(Rank(2)),
        };
        assert_eq!(encode(&completed), [0x0302_0104_0005, 7, 8, 9, 1 << 32 | 2, 0]);
        let sent =
            Event::MessageSent { channel: ChannelId::P2P, peer: Some(Rank(3)), seq: 9, step: 4, bytes: 5 };
        assert_eq!(encode(&sent), [0xffff_0000_0000_0007, 1 << 32 | 3, 4, 5, 9, 0]);
        let up = |why| Event::LinkUp {
            channel: ChannelId(1),
            peer: None,
            direction: Direction::Recv,
            transport: TransportKind::Socket,
            why,
        };
        assert_eq!(encode(&up(Some(TransportReason::OtherHost))), [0x0001_0003_0201_0002, 0, 0, 0, 0, 0]);
        // As layout 2 wrote it.
        assert_eq!(decode(&[0x0001_0000_0201_0002, 0, 0, 0, 0, 0]), up(None));
        let stall = Event::StallFound {
            standing: Standing::Stalled,
            class: Class::NotJoined,
            reason: Reason::UserCode,
            culprit: Some(Rank(3)),
            since_ns: 8,
        };
        assert_eq!(encode(&stall), [0x0014_0602_0011, 1 << 32 | 3, 8, 0, 0, 0]);
        let step = Event::ProxyStepEntered {
            channel: ChannelId(2),
            peer: Rank(3),
            direction: Direction::Recv,
            seq: 9,
            step: 4,
            state: ProxyState::RecvGPUWait,
        };
        assert_eq!(encode(&step), [0x0002_0000_0501_0013, 3, 4, 9, 0, 0]);
        let changed = Event::QueuePairChanged {
            channel: ChannelId(2),
            peer: Rank(3),
            direction: Direction::Recv,
            number: 17,
            state: QueuePairState::Error,
        };
        assert_eq!(encode(&changed), [0x0002_0000_0701_0014, 3, 17, 0, 0, 0]);
        let failed = Event::WorkFailed {
            channel: ChannelId(2),
            peer: Rank(3),
            direction: Direction::Send,
            number: 17,
            status: 12,
            vendor: 0x81,
        };
        assert_eq!(encode(&failed), [0x0002_0000_0000_0015, 3, 17, 0x81_0000_000c, 0, 0]);
        let port = Event::PortChanged { port: 1, code: 10, device: DeviceName::of("rxe0") };
        assert_eq!(encode(&port), [0x0001_0016, 10, u64::from_le_bytes(*b"rxe0\0\0\0\0"), 0, 0, 0]);
        assert_eq!(DeviceName::of("rxe0").to_string(), "rxe0");
        let mark = Mark { owner: Some((CommId(9), Rank(2))), before: None, number: 4 };
        assert_eq!(mark.encode(), [0x0001_0010, 9, 2, 0, 0, 4]);
        assert_eq!((Mark::decode(&mark.encode()), Mark::decode(&encode(&sent))), (Some(mark), None));
        // An event kind that a later version added.
        assert_eq!(decode(&[0x00ff_0004, 1, 2, 3, 4, 5]), Event::Unknown { code: OP_PLANNED });
        assert_eq!(decode(&[0; 6]), Event::Unknown { code: 0 });
    }
}
