//! One operation under way: its plan, its buffers, and the progress of each of its programs.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::clock::Raw;
use crate::collective::{Blocks, CallTerms, Descriptor, Request};
use crate::engine::mover::WorkId;
use crate::event::{Event, Subscriber, publish_at};
use crate::memory::{Lendable, View, ViewMut};
use crate::plan::{Plan, Readers, Step, Topology};
use crate::recorder::Attention;
use crate::reduce::Scaling;
use crate::types::{Algorithm, CollKind, Direction, Outline, Rank, ReduceOp};

/// Identifies an operation of one engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpId {
    /// The number of the operation, in the order of submission.
    pub(super) number: u64,
    /// Which queue it is in; `None` for the queue of the collectives.
    pub(super) way: Option<u32>,
}

/// Identifies the driver's record of an operation until the engine reports its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(NonZeroU32);

impl Ticket {
    /// The ticket of a place in the driver's records.
    ///
    /// # Panics
    /// With 2^32 places, which do not fit into memory.
    #[must_use]
    pub fn new(index: usize) -> Self {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("fewer than 2^32 calls under way"))
    }
    /// The place in the driver's records.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Who waits for an operation that was begun: shared by its caller's handle and the engine.
#[derive(Clone, Default, Debug)]
pub struct WaitedFor(Arc<AtomicU8>);

impl WaitedFor {
    /// Who does, from now on.
    pub fn set(&self, who: Attention) {
        self.0.store(who as u8, Ordering::Relaxed);
    }
    /// A task does, unless somebody does already.
    pub fn poll(&self) {
        let [nobody, task] = [Attention::Nobody as u8, Attention::Task as u8];
        let _ = self.0.compare_exchange(nobody, task, Ordering::Relaxed, Ordering::Relaxed);
    }
    fn get(&self) -> Attention {
        match self.0.load(Ordering::Relaxed) {
            0 => Attention::Nobody,
            1 => Attention::Task,
            _ => Attention::Thread,
        }
    }
}

/// An operation that was begun and may not be waited for yet.
#[derive(Clone, Debug)]
pub struct Begun {
    /// By which its end is reported.
    pub ticket: Ticket,
    /// Who waits for it.
    pub attended: WaitedFor,
    /// Its buffer, if links may lend it to devices.
    pub(crate) lendable: Option<Arc<Lendable>>,
}

impl Begun {
    pub(super) fn attention(&self) -> Attention {
        self.attended.get()
    }
    /// Records that a thread waits for it.
    pub(super) fn attend(&self) {
        self.attended.set(Attention::Thread);
    }
}

/// The progress of one program. It is kept apart from its operation and reused for the next one:
/// moving such values is most of the cost of a short operation.
#[derive(Default, Debug)]
pub(super) struct Program {
    /// The step to run next.
    pub(super) index: u64,
    /// The number of steps.
    pub(super) len: u64,
    /// That step once `is_made`: it is made where it stays, and once although it waits.
    pub(super) step: Step,
    pub(super) is_made: bool,
    /// The work of that step, if it has begun and not ended.
    pub(super) work: Option<WorkId>,
}

impl Program {
    /// Begins program `channel` of an operation.
    pub(super) fn begin(&mut self, op: &Op, topology: &Topology, channel: u16) {
        // Field by field: a whole program is several cache lines.
        (self.index, self.len) = (0, op.plan.len(topology, channel));
        (self.is_made, self.work) = (false, None);
    }
    pub(super) const fn has_run(&self) -> bool {
        self.index == self.len
    }
}

/// One operation: its plan and its buffers. It fits two cache lines, as it is moved a few times.
#[derive(Debug)]
pub struct Op {
    number: u64,
    /// Its request tells which side of a pair it is.
    plan: Plan,
    descriptor: Descriptor,
    check: u64,
    pub(super) input: View,
    pub(super) output: ViewMut,
    began: Raw,
}

const _: () = assert!(size_of::<Op>() <= 128);

impl Op {
    /// An operation that reads `input` and writes `output`, described as
    /// [`Numbering`](crate::collective::Numbering) does.
    #[inline(always)]
    #[must_use]
    pub fn new(plan: Plan, (descriptor, check): (Descriptor, u64), input: View, output: ViewMut) -> Self {
        Self { number: 0, plan, descriptor, check, input, output, began: Raw(0) }
    }

    pub(super) const fn called(&mut self, number: u64, now: Raw) {
        self.number = number;
        self.began = now;
    }

    /// Tells that it was called, and how it is carried out.
    #[inline(always)]
    pub(super) fn planned(&self, events: &mut impl Subscriber, outline: Option<Outline>) {
        publish_at(events, self.began, || Event::OpPlanned {
            kind: self.kind(),
            seq: self.descriptor.seq,
            algorithm: self.algorithm(),
            bytes: self.bytes(),
            outline,
        });
    }

    /// Its number in the order of submission.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }
    /// When it was called.
    pub(super) const fn began(&self) -> Raw {
        self.began
    }
    pub(super) fn kind(&self) -> CollKind {
        self.plan.request().kind
    }
    /// The bytes of its `count` elements; where blocks differ, of a mean block.
    pub(super) fn bytes(&self) -> u64 {
        let blocks = Blocks::of(self.plan.request(), self.plan.terms());
        match blocks {
            Blocks::Equal(bytes) => bytes,
            Blocks::Uneven(counts, _) => blocks.all(counts.len() as u32) / counts.len().max(1) as u64,
        }
    }
    pub(super) const fn plan(&self) -> &Plan {
        &self.plan
    }
    /// Its descriptor with the elements of a mean block, which histograms are of.
    #[inline]
    pub(super) fn counted(&self) -> Descriptor {
        if !self.descriptor.uneven {
            return self.descriptor;
        }
        let count = self.bytes() / self.descriptor.dtype.size() as u64;
        Descriptor { count, ..self.descriptor }
    }
    /// What the messages to one rank carry.
    #[inline(always)]
    pub(super) fn check_to(&self, to: Readers) -> u64 {
        match to {
            Readers::One(to) if self.is_paired() => self.paired(Blocks::of, to),
            _ => self.check,
        }
    }
    /// What the messages of one rank must carry.
    #[inline(always)]
    pub(super) fn check_from(&self, from: Rank) -> u64 {
        if self.is_paired() { self.paired(Blocks::received, from) } else { self.check }
    }
    /// Whether each pair of ranks compares its own count.
    #[inline(always)]
    fn is_paired(&self) -> bool {
        self.descriptor.uneven && self.descriptor.kind == CollKind::AllToAll
    }
    #[cold]
    fn paired<'a>(&'a self, of: fn(&Request, Option<&'a CallTerms>) -> Blocks<'a>, peer: Rank) -> u64 {
        let (request, terms) = (self.plan.request(), self.plan.terms());
        Descriptor::paired(self.check, of(request, terms).len(peer) / request.dtype.size() as u64)
    }
    /// How this rank's call and that of a rank whose message carries another check differ, where
    /// that tells it: in the count of their pair.
    pub(super) fn differs(&self, me: Rank, from: Rank, came: u64) -> Option<String> {
        let size = self.descriptor.dtype.size() as u64;
        let ours = Blocks::received(self.plan.request(), self.plan.terms()).len(from) / size;
        let theirs = Descriptor::unpaired(self.check, came).filter(|_| self.is_paired())?;
        let Descriptor { kind, dtype, seq, .. } = self.descriptor;
        Some(format!(
            "rank {from} called {kind} #{seq} (count {theirs}, {dtype}) to rank {me}; rank {me} called {kind} #{seq} \
             (count {ours}, {dtype}) from rank {from}; rank {from} / rank {me} differ in count {theirs} / {ours}"
        ))
    }
    /// What is done to elements beside combining them.
    #[inline(always)]
    pub(super) fn scaling(&self, nranks: u32) -> Scaling {
        let Descriptor { op, dtype, .. } = self.descriptor;
        match op {
            ReduceOp::Avg | ReduceOp::PreMulSum => {
                Scaling::of(op, dtype, self.plan.terms().and_then(|terms| terms.factor), nranks)
            }
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Min | ReduceOp::Max => Scaling::NONE,
        }
    }
    /// The fields that must be equal on all ranks.
    pub(super) const fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }
    /// How it is shared out on a topology of this hash; `None` of programs that were given.
    #[inline]
    pub(super) const fn outline(&self, topology: u64) -> Option<Outline> {
        match &self.plan {
            Plan::Generated { shape, .. } => Some(Outline { shape: *shape, topology }),
            Plan::Given(_) => None,
        }
    }
    pub(super) const fn algorithm(&self) -> Algorithm {
        match &self.plan {
            Plan::Generated { shape, .. } => shape.algorithm,
            Plan::Given(_) => Algorithm::Ring,
        }
    }
    /// The direction of a pair.
    pub(super) fn direction(&self) -> Direction {
        if self.kind() == CollKind::Recv { Direction::Recv } else { Direction::Send }
    }
    /// The bytes of a pair, and how many of them each message has, but for the last.
    pub(super) fn messages(&self, topology: &Topology) -> (ViewMut, usize) {
        (self.output, self.plan.step(topology, 0, 0).len as usize)
    }
    /// The other rank of a pair.
    pub(super) fn peer(&self) -> Rank {
        self.plan.request().root
    }

    pub(super) fn publish_completed<S: Subscriber>(&self, events: &mut S, now: Raw) {
        publish_at(events, now, || Event::OpCompleted {
            kind: self.kind(),
            dtype: self.descriptor.dtype,
            op: self.descriptor.op,
            algorithm: self.algorithm(),
            seq: self.descriptor.seq,
            bytes: self.bytes(),
            duration_ticks: now.0.saturating_sub(self.began.0),
            other: self.other(),
        });
    }
    pub(super) fn publish_failed<S: Subscriber>(
        &self,
        events: &mut S,
        (error, peer): (u8, Option<Rank>),
        now: Raw,
    ) {
        publish_at(events, now, || Event::OpFailed {
            kind: self.kind(),
            seq: self.descriptor.seq,
            error,
            peer,
            bytes: self.bytes(),
            duration_ticks: now.0.saturating_sub(self.began.0),
            other: self.other(),
        });
    }
    /// The other rank of a pair; the root of an operation that has one.
    fn other(&self) -> Option<Rank> {
        (self.kind().is_p2p() || self.kind().has_root()).then_some(self.peer())
    }
}
