//! The events: facts in the past tense, published once, where the state changes.
//!
//! One plain `Copy` enum without strings. Levels gate what is kept: 0 nothing, 1 one event per operation and everything rare
//! (bootstrap, connections, errors), 2 every step; 3 is for network work requests, of which there are none yet. `publish` is generic over a [`Subscriber`] whose
//! wants are a constant, so that `()` compiles to nothing; the product publishes to the recorder, tests to a [`Script`].

use crate::clock::Raw;
use crate::types::{
    Algorithm, ChannelId, CollKind, Datatype, Direction, Phase, Rank, ReduceOp, TransportKind,
    TransportReason, WaitReason,
};

/// A fact. Times are not in here: whoever keeps an event stamps it, except where a duration is the fact.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A phase of making the communicator ended.
    PhaseEnded {
        /// Which phase.
        phase: Phase,
        /// How long it took, in nanoseconds.
        duration_ns: u64,
    },
    /// A link came up.
    LinkUp {
        /// Its channel.
        channel: ChannelId,
        /// The rank on the other side; `None`: all.
        peer: Option<Rank>,
        /// Which way it points.
        direction: Direction,
        /// What carries its bytes.
        transport: TransportKind,
        /// Why; `None`: written by a version that did not record it.
        why: Option<TransportReason>,
    },
    /// An operation was handed to the engine and planned.
    OpPlanned {
        /// What was asked for.
        kind: CollKind,
        /// Its sequence number.
        seq: u64,
        /// How it is shared out.
        algorithm: Algorithm,
        /// Bytes of the request.
        bytes: u64,
    },
    /// An operation completed on this rank. At level 1 this is its only event.
    OpCompleted {
        /// What was asked for.
        kind: CollKind,
        /// The element type.
        dtype: Datatype,
        /// How elements were combined.
        op: ReduceOp,
        /// How it was shared out.
        algorithm: Algorithm,
        /// Its sequence number.
        seq: u64,
        /// Bytes of the request.
        bytes: u64,
        /// From the call to here, in ticks of the raw counter.
        duration_ticks: u64,
        /// The rank on the other side of a send or receive.
        other: Option<Rank>,
    },
    /// An operation failed on this rank.
    OpFailed {
        /// What was asked for.
        kind: CollKind,
        /// Its sequence number.
        seq: u64,
        /// Why, as a class of error (the number of `ErrorKind`).
        error: u8,
        /// The rank that is to blame, if one is.
        peer: Option<Rank>,
        /// Bytes of the request.
        bytes: u64,
        /// From the call to here, in ticks of the raw counter.
        duration_ticks: u64,
        /// The rank on the other side of a send or receive.
        other: Option<Rank>,
    },
    /// A message was published on a lane.
    MessageSent {
        /// The lane's channel.
        channel: ChannelId,
        /// Its reader; `None`: all.
        peer: Option<Rank>,
        /// The number of the message on this lane, from 1.
        step: u64,
        /// Its bytes.
        bytes: u32,
    },
    /// A message was read and freed.
    MessageTaken {
        /// The lane's channel.
        channel: ChannelId,
        /// Its writer.
        peer: Rank,
        /// Whether it is the writer's wide lane, which all read.
        wide: bool,
        /// The number of the message on this lane, from 1.
        step: u64,
        /// Its bytes.
        bytes: u32,
    },
    /// A driver began to wait longer than it spins.
    WaitBegan {
        /// The channel whose program waits.
        channel: ChannelId,
        /// Who is waited for.
        peer: Rank,
        /// What for.
        reason: WaitReason,
    },
    /// That wait ended.
    WaitEnded {
        /// The channel whose program waited.
        channel: ChannelId,
        /// How long, in ticks of the raw counter.
        duration_ticks: u64,
    },
    /// A peer was found dead or gone.
    PeerLost {
        /// The peer.
        peer: Rank,
    },
    /// A rank called something else.
    MismatchFound {
        /// The rank whose message showed it.
        peer: Rank,
        /// The sequence number here.
        seq: u64,
    },
    /// The communicator was aborted on this rank.
    Aborted,
    /// The clocks were read together: raw counter, CLOCK_MONOTONIC, CLOCK_REALTIME.
    ClockAnchored {
        /// Ticks of the raw counter.
        raw: u64,
        /// CLOCK_MONOTONIC in nanoseconds.
        mono_ns: u64,
        /// CLOCK_REALTIME in nanoseconds since 1970.
        real_ns: u64,
    },
    /// Written by a version that knows more: kept as its code.
    Unknown {
        /// The code.
        code: u16,
    },
}

impl Event {
    /// The level from which every step is kept.
    pub const STEPS: u8 = 2;

    /// The lowest level at which this event is kept.
    #[must_use]
    pub const fn level(&self) -> u8 {
        match self {
            Self::PhaseEnded { .. }
            | Self::LinkUp { .. }
            | Self::OpCompleted { .. }
            | Self::OpFailed { .. }
            | Self::PeerLost { .. }
            | Self::MismatchFound { .. }
            | Self::Aborted
            | Self::ClockAnchored { .. }
            | Self::Unknown { .. } => 1,
            Self::OpPlanned { .. }
            | Self::MessageSent { .. }
            | Self::MessageTaken { .. }
            | Self::WaitBegan { .. }
            | Self::WaitEnded { .. } => Self::STEPS,
        }
    }
}

/// Whoever wants events.
pub trait Subscriber {
    /// Whether it wants any: if not, publishing compiles to nothing.
    const WANTS: bool = true;
    /// Takes one that happens now.
    fn take(&mut self, event: Event);
    /// The time, if it keeps events of `level` at this moment: for what is told after it was done, and must not seem later than
    /// what followed from it elsewhere.
    #[inline]
    fn stamp(&self, level: u8) -> Option<Raw> {
        let _ = level;
        Some(Raw(0))
    }
    /// Takes one that happened at `at`: reading the clock costs more than keeping an event.
    #[inline]
    fn take_at(&mut self, at: Raw, event: Event) {
        let _ = at;
        self.take(event);
    }
}

impl Subscriber for () {
    const WANTS: bool = false;
    fn take(&mut self, _: Event) {}
}

/// The events of one rank in order: what tests compare.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Script(pub Vec<Event>);

impl Subscriber for Script {
    fn take(&mut self, event: Event) {
        self.0.push(event);
    }
}

/// The hash of all events of one rank in order: what long replays compare.
#[derive(Clone, Default)]
pub struct Digest(xxhash_rust::xxh3::Xxh3);

impl Digest {
    /// The hash so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.digest()
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest({:016x})", self.value())
    }
}

impl Subscriber for Digest {
    fn take(&mut self, event: Event) {
        std::hash::Hash::hash(&event, &mut self.0);
    }
}

/// Publishes one event that happened at a moment that is known. `make` runs only if somebody wants it.
#[inline]
pub fn publish_at<S: Subscriber>(to: &mut S, at: Raw, make: impl FnOnce() -> Event) {
    if S::WANTS {
        to.take_at(at, make());
    }
}

/// Publishes one event that happens now. `make` runs only if somebody wants it.
#[inline]
pub fn publish<S: Subscriber>(to: &mut S, make: impl FnOnce() -> Event) {
    if S::WANTS {
        to.take(make());
    }
}
