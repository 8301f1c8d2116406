//! Events: facts in the past tense, each published once, where the state changes.
//!
//! [`Event`] is a plain `Copy` enum without strings. The level decides which events are kept: 0
//! none, 1 one event per operation and all rare ones (bootstrap, connections, errors), 2 every
//! step. Level 3 keeps nothing more yet. `publish` is generic over a
//! [`Subscriber`] with a constant `WANTS`, so that publishing to `()` compiles to nothing. The
//! product publishes to the recorder, tests to a [`Script`].

pub mod assembly;
pub mod tags;

use crate::clock::Raw;
use crate::snapshot::{Class, QueuePairState, Reason, Standing};
use crate::types::{
    Algorithm, ChannelId, CollKind, Datatype, Direction, Outline, Phase, ProxyState, Rank, ReduceOp,
    TransportKind, TransportReason, WaitReason,
};

/// The name of a device, padded with zeros, and cut if it is longer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct DeviceName(pub [u8; 32]);

impl DeviceName {
    /// The name, as far as it has room.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut kept = [0; 32];
        let len = name.len().min(kept.len());
        kept[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self(kept)
    }
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        f.pad(&crate::text::harmless(&String::from_utf8_lossy(&self.0[..len]), self.0.len()))
    }
}

/// A fact. It contains no time, except where a duration is the fact: the subscriber adds the time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A phase of init ended.
    PhaseEnded {
        /// The phase.
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
        /// Its direction.
        direction: Direction,
        /// Its transport.
        transport: TransportKind,
        /// Why this transport was chosen; `None` if the writing version did not record it.
        why: Option<TransportReason>,
    },
    /// An operation was handed to the engine and planned.
    OpPlanned {
        /// The operation.
        kind: CollKind,
        /// Its sequence number.
        seq: u64,
        /// Its algorithm.
        algorithm: Algorithm,
        /// Bytes of the request; where blocks differ, of a mean block.
        bytes: u64,
        /// All that its plan is made from; `None` in recordings of layouts before 6.
        outline: Option<Outline>,
    },
    /// An operation completed on this rank. At level 1 this is its only event.
    OpCompleted {
        /// The operation.
        kind: CollKind,
        /// The element type.
        dtype: Datatype,
        /// How elements were combined.
        op: ReduceOp,
        /// Its algorithm.
        algorithm: Algorithm,
        /// Its sequence number.
        seq: u64,
        /// Bytes of the request; where blocks differ, of a mean block.
        bytes: u64,
        /// The time from the call to this event, in ticks of the raw counter.
        duration_ticks: u64,
        /// The rank on the other side of a send or receive; the root, where there is one.
        other: Option<Rank>,
    },
    /// An operation failed on this rank.
    OpFailed {
        /// The operation.
        kind: CollKind,
        /// Its sequence number.
        seq: u64,
        /// The class of the error (the number of `ErrorKind`).
        error: u8,
        /// The rank to blame, if there is one.
        peer: Option<Rank>,
        /// Bytes of the request; where blocks differ, of a mean block.
        bytes: u64,
        /// The time from the call to this event, in ticks of the raw counter.
        duration_ticks: u64,
        /// The rank on the other side of a send or receive; the root, where there is one.
        other: Option<Rank>,
    },
    /// A message was published on a lane.
    MessageSent {
        /// The lane's channel.
        channel: ChannelId,
        /// The receiving rank; `None`: all.
        peer: Option<Rank>,
        /// The sequence number of its operation; 0 in recordings of layouts before 6.
        seq: u64,
        /// The number of the message on this lane, from 1.
        step: u64,
        /// The size of the message in bytes.
        bytes: u32,
    },
    /// A message was read and freed.
    MessageTaken {
        /// The lane's channel.
        channel: ChannelId,
        /// The sending rank.
        peer: Rank,
        /// Whether it is the sender's shared lane, which all ranks read.
        shared: bool,
        /// The sequence number of its operation; 0 in recordings of layouts before 6.
        seq: u64,
        /// The number of the message on this lane, from 1.
        step: u64,
        /// The size of the message in bytes.
        bytes: u32,
    },
    /// A network step entered a state. Only links that are pumped have network steps.
    ProxyStepEntered {
        /// The link's channel.
        channel: ChannelId,
        /// The rank on the other side.
        peer: Rank,
        /// The link's direction.
        direction: Direction,
        /// The sequence number of the operation for which the link works. A message may arrive
        /// before its own operation uses the link; where its step is done, it is that operation.
        seq: u64,
        /// The number of its message on the link, from 1.
        step: u64,
        /// The state.
        state: ProxyState,
    },
    /// A driver has begun to wait for longer than a message takes.
    WaitBegan {
        /// The channel whose program waits.
        channel: ChannelId,
        /// The rank that it is blocked on.
        peer: Rank,
        /// The reason.
        reason: WaitReason,
    },
    /// That wait ended.
    WaitEnded {
        /// The channel whose program waited.
        channel: ChannelId,
        /// The rank that it was blocked on; `None` in recordings of layouts before 4.
        peer: Option<Rank>,
        /// The reason; `Nothing` in recordings of layouts before 4.
        reason: WaitReason,
        /// How long it lasted, in ticks of the raw counter.
        duration_ticks: u64,
    },
    /// A peer was found dead or gone.
    PeerLost {
        /// The peer.
        peer: Rank,
    },
    /// A rank made a different call.
    MismatchFound {
        /// The rank whose message showed it.
        peer: Rank,
        /// This rank's sequence number.
        seq: u64,
    },
    /// The watchdog of this process found a stall, or heard of one.
    StallFound {
        /// Whether it is a fault or may be one.
        standing: Standing,
        /// What is wrong.
        class: Class,
        /// What the culprit did, or what happened to it.
        reason: Reason,
        /// The first rank of the job to blame, if there is one.
        culprit: Option<Rank>,
        /// How long it had lasted, in nanoseconds.
        since_ns: u64,
    },
    /// That stall is over.
    StallEnded {
        /// How long ago it was found, in nanoseconds.
        duration_ns: u64,
    },
    /// A queue pair of a link has another state, or its link came up.
    QueuePairChanged {
        /// The link's channel.
        channel: ChannelId,
        /// The rank on the other side.
        peer: Rank,
        /// The link's direction.
        direction: Direction,
        /// The number that the device gave the queue pair.
        number: u32,
        /// Its state.
        state: QueuePairState,
    },
    /// A work request of a queue pair failed: the first one of its link.
    WorkFailed {
        /// The link's channel.
        channel: ChannelId,
        /// The rank on the other side.
        peer: Rank,
        /// The link's direction.
        direction: Direction,
        /// The number that the device gave the queue pair.
        number: u32,
        /// The status: `enum ibv_wc_status` of verbs.h.
        status: u32,
        /// The device's own code.
        vendor: u32,
    },
    /// A device reported something of a port without being asked.
    PortChanged {
        /// The number of the port; 0: the whole device.
        port: u8,
        /// What it reported: `enum ibv_event_type` of verbs.h.
        code: u32,
        /// The name of the device, padded with zeros, and cut if it is longer.
        device: DeviceName,
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
    /// The user gave the program's position: later calls have this tag. [`tags`] joins the pieces.
    Tagged {
        /// The number of the piece, from 0.
        piece: u8,
        /// The size of the whole text in bytes.
        len: u8,
        /// The piece, padded with zeros.
        text: [u8; tags::PIECE],
    },
    /// An event of a newer version: only its code is kept.
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
            | Self::StallFound { .. }
            | Self::StallEnded { .. }
            | Self::QueuePairChanged { .. }
            | Self::WorkFailed { .. }
            | Self::PortChanged { .. }
            | Self::Aborted
            | Self::ClockAnchored { .. }
            | Self::Tagged { .. }
            | Self::Unknown { .. } => 1,
            Self::OpPlanned { .. }
            | Self::MessageSent { .. }
            | Self::MessageTaken { .. }
            | Self::ProxyStepEntered { .. }
            | Self::WaitBegan { .. }
            | Self::WaitEnded { .. } => Self::STEPS,
        }
    }
}

/// A receiver of events.
pub trait Subscriber {
    /// Whether it wants any events; if not, publishing compiles to nothing.
    const WANTS: bool = true;
    /// Whether it keeps any events at present. It is asked before an event is made: an event site
    /// costs one load and one branch while no events are kept.
    #[inline]
    fn is_on(&self) -> bool {
        true
    }
    /// Takes an event that happens now.
    fn take(&mut self, event: Event);
    /// The time now, if events of `level` are currently kept. It is for an event that is published
    /// after the fact but must not seem later than its consequences on other ranks.
    #[inline]
    fn stamp(&self, level: u8) -> Option<Raw> {
        let _ = level;
        Some(Raw(0))
    }
    /// Takes an event that happened at `at`. Reading the clock costs more than keeping an event.
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

/// The events of one rank in order, for tests to compare.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Script(pub Vec<Event>);

impl Subscriber for Script {
    fn take(&mut self, event: Event) {
        self.0.push(event);
    }
}

/// The hash of all events of one rank in order, for long replays to compare.
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

/// Publishes one event that happened at a known time. `make` runs only if events are kept.
#[inline(always)]
pub fn publish_at<S: Subscriber>(to: &mut S, at: Raw, make: impl FnOnce() -> Event) {
    if S::WANTS && to.is_on() {
        to.take_at(at, make());
    }
}

/// Publishes one event that happens now. `make` runs only if events are kept.
#[inline(always)]
pub fn publish<S: Subscriber>(to: &mut S, make: impl FnOnce() -> Event) {
    if S::WANTS && to.is_on() {
        to.take(make());
    }
}
