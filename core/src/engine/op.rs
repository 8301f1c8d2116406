//! One operation under way: its plan, its buffers, and how far each of its programs has come.

use std::num::NonZeroU32;

use crate::clock::Raw;
use crate::collective::{Descriptor, Request};
use crate::event::Event;
use crate::memory::{View, ViewMut};
use crate::plan::{Plan, Step, Topology};
use crate::types::{Algorithm, CollKind, Rank};

/// Names an operation of one engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpId {
    /// In the order of submission.
    pub(super) number: u64,
    /// Which queue it is in; `None`: that of the collectives.
    pub(super) way: Option<u32>,
}

/// Names what the driver keeps of an operation, until the engine tells that it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(NonZeroU32);

impl Ticket {
    /// The ticket of a place. Panics where there are 2^32 of them, which fit no memory.
    #[must_use]
    pub fn new(index: usize) -> Self {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("fewer than 2^32 calls under way"))
    }
    /// The place.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// How far one program has come. Kept apart from its operation and used again for the next: moving such things about is most
/// of what a short operation costs.
#[derive(Default, Debug)]
pub(super) struct Program {
    /// The step to run next.
    pub(super) index: u64,
    /// How many there are.
    pub(super) len: u64,
    /// The step it waits in, so that waiting does not generate it again and again.
    pub(super) waiting: Option<Step>,
}

impl Program {
    /// Begins program `channel` of an operation.
    pub(super) fn begin(&mut self, op: &Op, topology: &Topology, channel: u16) {
        (self.index, self.len, self.waiting) = (0, op.plan.len(topology, channel), None);
    }
    pub(super) const fn has_run(&self) -> bool {
        self.index == self.len
    }
}

/// One operation: what to do, with which buffers. Two cache lines: it is moved a few times.
#[derive(Debug)]
pub struct Op {
    number: u64,
    /// What was called: of a pair, which side.
    kind: CollKind,
    /// The other rank of a pair.
    peer: Rank,
    plan: Plan,
    descriptor: Descriptor,
    check: u64,
    pub(super) input: View,
    pub(super) output: ViewMut,
    began: Raw,
}

const _: () = assert!(size_of::<Op>() <= 128);

impl Op {
    /// An operation that reads `input` and writes `output`. The descriptor's `seq` is its number.
    #[must_use]
    pub fn new(request: Request, plan: Plan, descriptor: Descriptor, input: View, output: ViewMut) -> Self {
        let check = descriptor.hash();
        let Request { kind, root: peer, .. } = request;
        Self { number: 0, kind, peer, plan, descriptor, check, input, output, began: Raw(0) }
    }

    pub(super) const fn called(&mut self, number: u64, now: Raw) {
        self.number = number;
        self.began = now;
    }

    /// Its place in the order of submission.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }
    /// When it was called.
    pub(super) const fn began(&self) -> Raw {
        self.began
    }
    pub(super) const fn kind(&self) -> CollKind {
        self.kind
    }
    pub(super) const fn bytes(&self) -> u64 {
        self.descriptor.bytes()
    }
    pub(super) const fn plan(&self) -> &Plan {
        &self.plan
    }
    /// The hash of what was called, as all its messages carry it.
    pub(crate) const fn check(&self) -> u64 {
        self.check
    }
    /// What must be equal on all ranks.
    pub(super) const fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }
    pub(super) const fn algorithm(&self) -> Algorithm {
        match &self.plan {
            Plan::Generated { shape, .. } => shape.algorithm,
            Plan::Given(_) => Algorithm::Ring,
        }
    }
    /// The other rank of a pair.
    pub(super) const fn peer(&self) -> Rank {
        self.peer
    }

    pub(super) fn completed(&self, now: Raw) -> Event {
        Event::OpCompleted {
            kind: self.kind,
            dtype: self.descriptor.dtype,
            op: self.descriptor.op,
            algorithm: self.algorithm(),
            seq: self.descriptor.seq,
            bytes: self.bytes(),
            duration_ticks: now.0.saturating_sub(self.began.0),
            other: self.other(),
        }
    }
    pub(super) fn failed(&self, error: u8, peer: Option<Rank>, now: Raw) -> Event {
        Event::OpFailed {
            kind: self.kind,
            seq: self.descriptor.seq,
            error,
            peer,
            bytes: self.bytes(),
            duration_ticks: now.0.saturating_sub(self.began.0),
            other: self.other(),
        }
    }
    /// The other rank, where it is a pair.
    fn other(&self) -> Option<Rank> {
        self.kind.is_p2p().then_some(self.peer)
    }
}
