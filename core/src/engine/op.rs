//! One operation under way: its plan, its buffers, and how far each of its programs has come.

use arrayvec::ArrayVec;

use crate::clock::Raw;
use crate::collective::{Descriptor, Request};
use crate::event::Event;
use crate::memory::{View, ViewMut};
use crate::plan::{Plan, Topology};
use crate::types::{Algorithm, CollKind, Rank};

/// The most programs of a plan: bounds `CCL_CHANNELS`.
pub(super) const MAX_PROGRAMS: usize = 16;

/// Names an operation of one engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OpId(pub(super) u64);

/// How far one program has come. Small: operations are moved about, and moving is most of what a short one costs.
#[derive(Debug)]
pub(super) struct Cursor {
    /// The step to run next.
    pub(super) index: u64,
    /// How many there are.
    pub(super) len: u64,
}

/// One operation: what to do, with which buffers.
#[derive(Debug)]
pub struct Op {
    id: OpId,
    request: Request,
    plan: Plan,
    descriptor: Descriptor,
    check: u64,
    pub(super) input: View,
    pub(super) output: ViewMut,
    pub(super) cursors: ArrayVec<Cursor, MAX_PROGRAMS>,
    began: Raw,
}

impl Op {
    /// An operation that reads `input` and writes `output`. The descriptor's `seq` is its number.
    #[must_use]
    pub fn new(request: Request, plan: Plan, descriptor: Descriptor, input: View, output: ViewMut) -> Self {
        let check = descriptor.hash();
        let cursors = ArrayVec::new();
        Self { id: OpId(0), request, plan, descriptor, check, input, output, cursors, began: Raw(0) }
    }

    pub(super) fn begin(&mut self, id: OpId, topology: &Topology, now: Raw) {
        self.id = id;
        self.began = now;
        for channel in 0..self.plan.channels() {
            let len = self.plan.len(topology, channel);
            self.cursors.push(Cursor { index: 0, len });
        }
    }

    pub(super) const fn id(&self) -> OpId {
        self.id
    }
    pub(super) const fn kind(&self) -> CollKind {
        self.request.kind
    }
    pub(super) const fn bytes(&self) -> u64 {
        self.request.bytes()
    }
    pub(super) const fn plan(&self) -> &Plan {
        &self.plan
    }
    pub(super) const fn check(&self) -> u64 {
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
    /// Whether all programs are at their end.
    pub(super) fn has_run(&self) -> bool {
        self.cursors.iter().all(|cursor| cursor.index == cursor.len)
    }
    /// The step each program stands at.
    pub(super) fn standing(&self) -> Vec<u64> {
        self.cursors.iter().map(|cursor| cursor.index).collect()
    }
    /// Whether two point-to-point operations use the same lane.
    pub(super) fn same_way(&self, other: &Self) -> bool {
        self.request.kind == other.request.kind && self.peer() == other.peer()
    }
    /// The other rank of a point-to-point operation.
    pub(super) const fn peer(&self) -> Rank {
        self.request.root
    }

    pub(super) fn completed(&self, now: Raw) -> Event {
        Event::OpCompleted {
            kind: self.request.kind,
            dtype: self.request.dtype,
            op: self.request.op,
            algorithm: self.algorithm(),
            seq: self.descriptor.seq,
            bytes: self.bytes(),
            duration_ticks: now.0.saturating_sub(self.began.0),
        }
    }
    pub(super) fn failed(&self, error: u8, peer: Option<Rank>) -> Event {
        Event::OpFailed { kind: self.request.kind, seq: self.descriptor.seq, error, peer }
    }
}
