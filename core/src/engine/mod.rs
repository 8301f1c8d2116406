//! The engine of one rank of a communicator. It executes the steps of plans over links.
//!
//! `submit` takes an operation. `turn` does everything that can be done without waiting and returns
//! what it found. The engine never waits, sleeps, reads a clock or touches a descriptor itself:
//! time is an argument, and links carry the bytes. So the same code runs under a blocked caller, a
//! progress thread and the simulator.
//!
//! Collectives run one after another in the order of submission, their channels in parallel. Sends
//! and receives run beside them, in order per peer and direction. An operation has ended when its
//! programs have run and every byte that it sent is in peers' memory or in the kernel. After that
//! it needs nothing more from this rank.
//!
//! A failure is final: the engine keeps the first, ends all operations with it, and takes no more.
//!
//! | module | what it holds |
//! |---|---|
//! | `op` | one operation: its plan, its buffers, the progress of its programs |
//! | `queue` | operations that run one after another |
//! | `pairs` | sends and receives under way: a queue per peer and direction |
//! | `step` | running the programs of one operation until each waits or has ended |
//! | `mover` | what moves and combines the bytes of a step |
//! | `checksum` | checksums of messages |
//! | `lanes` | the links of the rank by channel and peer, each with its cell |
//! | `failure` | why an engine stopped |
//! | `slots` | the slots of the proxy that the operations under way hold or wait for |
//! | `waits` | what programs wait for, and its record in the cells |

mod checksum;
mod failure;
mod lanes;
mod mover;
mod op;
mod pairs;
mod queue;
mod slots;
mod step;
#[cfg(test)]
mod tests;
mod waits;

use std::sync::Arc;

use crate::clock::Raw;
use crate::collective::Descriptor;
use crate::event::{Event, Subscriber, publish, publish_at, tags};
use crate::memory::{Slot, ViewMut};
use crate::plan::{Lane, LaneId, Readers, Topology};
use crate::proxy::{Claim, Pool};
use crate::recorder::{Attention, CommRow, LinkCell, Times};
use crate::transport::{Change, RecvLink, SendLink};
use crate::types::{ChannelId, CollKind, Direction, Rank, TransportKind, TransportReason};

pub use failure::{Cause, Failure};
use lanes::Lanes;
pub use mover::{Mover, Processor, Work, WorkId};
use op::Program;
pub use op::{Begun, Op, OpId, Ticket, WaitedFor};
use pairs::{Pairs, UnderWay};
use queue::Queue;
use slots::pump;
use step::Context;
pub use waits::Wait;
use waits::Waited;

/// The result of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing is under way.
    Idle,
    /// A step ran or bytes moved.
    Advanced,
    /// Everything under way waits; [`Engine::waits`] lists the waits.
    Blocked,
    /// The engine has failed; [`Engine::failure`] gives the failure.
    Failed,
}

/// Executes the operations of one rank of one communicator. A mover does the work of the steps.
#[derive(Debug)]
pub struct Engine<S: Subscriber, M: Mover = Processor> {
    me: Rank,
    topology: Arc<Topology>,
    topology_hash: u64,
    lanes: Lanes,
    /// In the order of submission; the first is under way.
    collectives: Queue,
    /// The claim of the collective under way to a slot of the proxy.
    claim: Claim,
    /// One program per channel; the first ones are those of the collective under way.
    programs: Vec<Program>,
    /// Scratch memory of the collective under way: as much as any so far needed.
    scratch: Slot,
    /// Whether the programs of the first collective were begun, and since when it is under way.
    begun: bool,
    since: Raw,
    pairs: Pairs,
    /// Tickets of operations that have ended since the last call of `ended`.
    ended: Vec<Ticket>,
    /// What programs wait for as of the last turn, and of the one before.
    waits: Vec<Wait>,
    waits_before: Vec<Wait>,
    /// The waits recorded in the cells, each with the time when it began, oldest first.
    noted: Vec<(Wait, Raw)>,
    /// For how long the collective under way, and the pairs have waited.
    waited: [Waited; 2],
    /// Who waits, as recorded: for collectives, and for pairs.
    attended: [Option<Attention>; 2],
    /// Since when somebody waits for what nobody waited for at first.
    attended_since: [Raw; 2],
    failure: Option<Failure>,
    has_failed: bool,
    next_id: u64,
    row: CommRow,
    events: S,
    mover: M,
}

impl<S: Subscriber> Engine<S> {
    /// An engine without links, whose steps the processor runs, and whose network steps move with
    /// slots of `pool`.
    #[must_use]
    pub fn new(me: Rank, topology: Arc<Topology>, pool: Arc<Pool>, row: CommRow, events: S) -> Self {
        Self::moved_by((Processor, pool), me, topology, row, events)
    }
}

impl<S: Subscriber, M: Mover> Engine<S, M> {
    /// The same, with its mover.
    #[must_use]
    pub fn moved_by(
        (mover, pool): (M, Arc<Pool>),
        me: Rank,
        topology: Arc<Topology>,
        row: CommRow,
        events: S,
    ) -> Self {
        let lanes = Lanes::new(topology.nranks(), topology.channels());
        Self {
            me,
            topology_hash: topology.hash(),
            topology,
            lanes,
            collectives: Queue::default(),
            claim: Claim::new(Arc::clone(&pool)),
            pairs: Pairs::new(pool),
            ended: Vec::new(),
            programs: Vec::new(),
            scratch: Slot::new(0),
            begun: false,
            since: Raw(0),
            waits: Vec::new(),
            waits_before: Vec::new(),
            noted: Vec::new(),
            waited: [Waited::default(); 2],
            attended: [None; 2],
            attended_since: [Raw(0); 2],
            failure: None,
            has_failed: false,
            next_id: 0,
            row,
            events,
            mover,
        }
    }

    /// Messages carry checksums from now on: those of all ranks must.
    pub const fn use_checksums(&mut self) {
        self.lanes.has_checksums = true;
    }

    /// Whether they do.
    #[must_use]
    pub const fn has_checksums(&self) -> bool {
        self.lanes.has_checksums
    }

    /// The cell of a link of this lane, for one that is not up yet: see
    /// [`attach_sender`](Self::attach_sender).
    #[must_use]
    pub fn link_cell(
        &self,
        id: LaneId,
        direction: Direction,
        chosen: (TransportKind, TransportReason),
    ) -> LinkCell {
        self.row.link(id.channel, peer_of(id.readers), direction, chosen)
    }

    /// Gives the engine the writing end of a lane; `why` its carrier was chosen.
    pub fn add_sender(&mut self, id: LaneId, link: SendLink, why: TransportReason) {
        let cell = self.link_cell(id, Direction::Send, (link.transport(), why)).watching(link.sockets());
        self.attach_sender(id, link, cell, why);
    }

    /// As [`add_sender`](Self::add_sender), for a link that had its cell while it was connected.
    pub fn attach_sender(&mut self, id: LaneId, mut link: SendLink, cell: LinkCell, why: TransportReason) {
        let (channel, peer, chosen) = (id.channel, peer_of(id.readers), (link.transport(), why));
        link.watched(&cell);
        let changes = link.changes();
        self.lanes.add_sender(channel, id.readers, link, cell);
        self.link_up(channel, peer, Direction::Send, chosen);
        self.queue_pairs_changed(changes.into_iter().map(|change| (channel, peer, Direction::Send, change)));
    }

    /// The cell of a link on which this rank reads.
    #[must_use]
    pub fn read_cell(&self, lane: Lane, chosen: (TransportKind, TransportReason)) -> LinkCell {
        match lane.id.readers {
            Readers::One(_) => self.row.link(lane.id.channel, Some(lane.from), Direction::Recv, chosen),
            Readers::Group(_) => self.row.shared_reader(lane.id.channel, lane.from, chosen),
        }
    }

    /// Adds the receiving end of a lane; `why` its transport was chosen.
    pub fn add_receiver(&mut self, lane: Lane, link: RecvLink, why: TransportReason) {
        let cell = self.read_cell(lane, (link.transport(), why)).watching(link.sockets());
        self.attach_receiver(lane, link, cell, why);
    }

    /// As [`add_receiver`](Self::add_receiver), for a link that had its cell while it was set up.
    pub fn attach_receiver(&mut self, lane: Lane, mut link: RecvLink, cell: LinkCell, why: TransportReason) {
        let Lane { from, id: LaneId { channel, readers } } = lane;
        let shared = matches!(readers, Readers::Group(_));
        let chosen = (link.transport(), why);
        link.watched(&cell);
        let changes = link.changes();
        self.lanes.add_receiver(channel, from, shared, link, cell);
        let (peer, direction) = (Some(from), Direction::Recv);
        self.link_up(channel, peer, direction, chosen);
        self.queue_pairs_changed(changes.into_iter().map(|change| (channel, peer, direction, change)));
    }

    fn link_up(
        &mut self,
        channel: ChannelId,
        peer: Option<Rank>,
        direction: Direction,
        (transport, why): (TransportKind, TransportReason),
    ) {
        let why = Some(why);
        publish(&mut self.events, || Event::LinkUp { channel, peer, direction, transport, why });
    }

    /// Publishes what has become of queue pairs. A link that has any has one peer.
    fn queue_pairs_changed(&mut self, changes: impl Iterator<Item = lanes::Changed>) {
        for (channel, peer, direction, change) in changes {
            let peer = peer.unwrap_or(self.me);
            publish(&mut self.events, || match change {
                Change::State { number, state } => {
                    Event::QueuePairChanged { channel, peer, direction, number, state }
                }
                Change::Failed { number, status, vendor } => {
                    Event::WorkFailed { channel, peer, direction, number, status, vendor }
                }
            });
        }
    }

    /// Whether this rank can already send on that lane.
    #[must_use]
    pub fn has_sender(&self, id: LaneId) -> bool {
        self.lanes.sender(id.channel, id.readers).is_some()
    }

    /// Whether this rank can already receive on that lane.
    #[must_use]
    pub fn has_receiver(&self, Lane { from, id }: Lane) -> bool {
        self.lanes.receiver(id.channel, from, matches!(id.readers, Readers::Group(_))).is_some()
    }

    /// Takes the operation of this kind that `make` makes. If its links are still missing, its
    /// steps wait for them. [`ended`](Self::ended) reports its end by the ticket in `begun`.
    ///
    /// A collective is made where it stays: most of the cost of a short one would be to move it.
    ///
    /// # Errors
    /// The failure of the engine, if it has failed.
    #[inline(always)]
    pub fn submit(
        &mut self,
        kind: CollKind,
        make: impl FnOnce() -> Op,
        begun: Option<Begun>,
        now: Raw,
    ) -> Result<OpId, Failure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.next_id += 1;
        let number = self.next_id;
        if kind.is_p2p() {
            let way = self.submit_p2p(number, make(), begun, now);
            return Ok(OpId { number, way: Some(way) });
        }
        if self.collectives.is_empty() {
            self.since = now;
        }
        let op = self.collectives.push(number, make, begun);
        op.called(number, now);
        let outline = op.outline(self.topology_hash);
        op.planned(&mut self.events, outline);
        self.row.called(op.descriptor(), outline, now);
        Ok(OpId { number, way: None })
    }

    /// Takes a send or a receive; returns the number of its way.
    fn submit_p2p(&mut self, number: u64, mut op: Op, begun: Option<Begun>, now: Raw) -> u32 {
        op.called(number, now);
        let outline = op.outline(self.topology_hash);
        op.planned(&mut self.events, outline);
        self.row.p2p_called(op.descriptor(), outline, op.peer(), now);
        let (direction, peer) = (op.direction(), op.peer());
        let lendable = begun.as_ref().and_then(|begun| begun.lendable.clone());
        let lent = lendable.map(|memory| (memory, op.messages(&self.topology)));
        let (way, first) = self.pairs.push(op, begun, &self.topology);
        if let Some((memory, (bytes, size))) = lent {
            self.lanes.lend((direction, peer), first, (bytes, size), &memory);
        }
        if !self.noted.is_empty() {
            // The cell tells of the call that waits, not of this one.
            self.note_ops();
        }
        way
    }

    /// Whether that operation has ended well. If not, it is under way or has failed.
    #[must_use]
    pub fn is_done(&self, id: OpId) -> bool {
        let OpId { number, way } = id;
        self.failure.is_none()
            && way.map_or_else(|| self.collectives.has_ended(number), |way| self.pairs.has_ended(way, number))
    }

    /// The tickets of operations that have ended well since the last call, in that order.
    pub fn ended(&mut self) -> impl Iterator<Item = Ticket> {
        self.ended.drain(..)
    }

    /// Does everything that can be done without waiting. `clock` is read once per operation that
    /// ends, and once if something moved while waits are noted. [`notify`](Self::notify) wakes
    /// peers that sleep for what this turn stored. After a failure, the caller must call
    /// [`fail`](Self::fail).
    #[inline]
    pub fn turn(&mut self, clock: &impl Fn() -> Raw) -> Progress {
        if self.failure.is_some() {
            return Progress::Failed;
        }
        if self.collectives.is_empty() && self.pairs.busy() == 0 {
            return Progress::Idle;
        }
        std::mem::swap(&mut self.waits, &mut self.waits_before);
        self.waits.clear();
        match self.try_turn(clock) {
            Ok(true) => {
                if !self.noted.is_empty() {
                    self.end_waits(clock());
                }
                Progress::Advanced
            }
            Ok(false) => Progress::Blocked,
            Err(failure) => {
                self.stop(failure);
                Progress::Failed
            }
        }
    }

    /// Wakes peers that sleep for data stored since the last call. Call it soon after turns: before
    /// a wait that is longer than a message takes, and before control returns to the caller. Do not
    /// call it after each turn: it costs a fence, which waits until peers' caches have released the
    /// stored lines. By the end of an operation they have.
    #[inline]
    pub fn notify(&mut self) {
        self.lanes.notify();
    }

    fn try_turn(&mut self, clock: &impl Fn() -> Raw) -> Result<bool, Failure> {
        let mut advanced = self.turn_collectives(clock)?;
        advanced |= self.turn_pairs(clock)?;
        self.keep_waits();
        Ok(advanced)
    }

    /// Moves the collective under way, and those behind it as far as it ends.
    #[inline]
    fn turn_collectives(&mut self, clock: &impl Fn() -> Raw) -> Result<bool, Failure> {
        let mut advanced = false;
        while let Some(op) = self.collectives.first() {
            let channels = usize::from(op.plan().channels());
            if !std::mem::replace(&mut self.begun, true) {
                let scratch = op.plan().scratch(&self.topology) as usize;
                if self.scratch.bytes().len() < scratch {
                    self.scratch = Slot::new(scratch);
                }
                self.programs.resize_with(channels.max(self.programs.len()), Program::default);
                for (number, program) in self.programs[..channels].iter_mut().enumerate() {
                    program.begin(op, &self.topology, number as u16);
                }
            }
            let programs = &mut self.programs[..channels];
            let scratch = self.scratch.view_mut(self.scratch.bytes().len());
            let context = Context { me: self.me, topology: &self.topology, scratch };
            let mut moved = pump(op, &mut self.claim, &mut self.lanes, &mut self.events)?;
            moved |= step::run(
                op,
                programs,
                context,
                &mut self.lanes,
                &mut self.waits,
                (&mut self.mover, &mut self.claim, &mut self.events),
            )?;
            advanced |= moved;
            let has_run = programs.iter().all(Program::has_run);
            if !(has_run && self.lanes.is_flushed(op, None, &self.claim, &mut self.waits)) {
                if !moved {
                    self.claim.give_way();
                }
                break;
            }
            self.claim.end();
            // Notify peers first: the fence would also wait for the stores that follow.
            self.lanes.notify();
            let now = clock();
            let (called, began) = (op.began(), self.since);
            let times = Times { called, began, waited_ticks: self.waited[0].take(now), ended: now };
            self.row.completed(&op.counted(), times);
            op.publish_completed(&mut self.events, now);
            self.ended.extend(self.collectives.pop());
            self.begun = false;
            if let Some(next) = self.collectives.first() {
                self.since = now;
                self.row.started(next.descriptor(), next.outline(self.topology_hash), now);
            }
            advanced = true;
        }
        Ok(advanced)
    }

    /// Moves the first send or receive of each way, and those behind it as far as it ends, or its
    /// messages are only still on their way.
    #[inline]
    fn turn_pairs(&mut self, clock: &impl Fn() -> Raw) -> Result<bool, Failure> {
        let context = Context { me: self.me, topology: &self.topology, scratch: ViewMut::EMPTY };
        let mut advanced = false;
        let mut at = 0;
        while at < self.pairs.busy() {
            let before = self.pairs.busy();
            while let Some(UnderWay { first, next, program, claim, ran }) = self.pairs.first(at) {
                self.lanes.work_for(first);
                let mut moved = pump(first, claim, &mut self.lanes, &mut self.events)?;
                let running = if ran.is_some() { next } else { Some(first) };
                let waits = self.waits.len();
                if let Some(op) = running {
                    moved |= step::run(
                        op,
                        std::slice::from_mut(program),
                        context,
                        &mut self.lanes,
                        &mut self.waits,
                        (&mut self.mover, claim, &mut self.events),
                    )?;
                }
                advanced |= moved;
                if ran.is_some() {
                    // A link has one wait, that of the first operation. The next one's is found
                    // again once that has ended.
                    self.waits.truncate(waits);
                }
                let has_run = ran.is_some() || program.has_run();
                if has_run
                    && ran.is_none()
                    && next.is_some()
                    && let Some(until) = self.lanes.until(first)
                {
                    self.pairs.run_ahead(at, until, &self.topology);
                    continue;
                }
                if !(has_run && self.lanes.is_flushed(first, ran, claim, &mut self.waits)) {
                    if !moved {
                        claim.give_way();
                    }
                    break;
                }
                let now = clock();
                let waited_ticks = self.waited[1].take(now);
                let times = Times { waited_ticks, ..Times::between(first.began(), now) };
                self.row.p2p_completed(first.descriptor(), times);
                first.publish_completed(&mut self.events, now);
                self.ended.extend(self.pairs.pop(at, &self.topology));
                advanced = true;
                if self.pairs.busy() < before {
                    break;
                }
            }
            // A way that has nothing left is removed, and the next one takes its place.
            at += usize::from(self.pairs.busy() == before);
        }
        Ok(advanced)
    }

    /// What does the work of steps.
    #[must_use]
    pub const fn mover(&self) -> &M {
        &self.mover
    }

    /// Whether the work of a step is under way: a turn may find that it has ended.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        let pairs = self.pairs.programs();
        self.programs.iter().chain(pairs).any(|program| program.work.is_some())
    }

    /// What the programs under way wait for, as of the last turn.
    #[must_use]
    pub fn waits(&self) -> &[Wait] {
        &self.waits
    }

    /// Whether a turn will find that something has moved since the last one. It is cheap enough for
    /// a loop. It only looks for messages in memory; other movements are found only by a turn.
    #[inline]
    pub fn may_advance(&mut self) -> bool {
        self.lanes.may_advance(&self.waits)
    }

    /// Records the program position that the user gave.
    pub(crate) fn tag(&mut self, text: &str) {
        self.row.tag(text);
        // One timestamp for all pieces, so that the next call has the whole tag.
        let Some(now) = self.events.stamp(1) else { return };
        for (piece, len, text) in tags::pieces(text) {
            publish_at(&mut self.events, now, || Event::Tagged { piece, len, text });
        }
    }

    /// The operation under way: the first collective, else the oldest send or receive.
    #[must_use]
    pub fn under_way(&self) -> Option<(CollKind, u64)> {
        self.collectives.first().or_else(|| self.pairs.oldest()).map(|op| (op.kind(), op.descriptor().seq))
    }

    /// The operation under way that uses the lane to `peer` on this channel.
    #[must_use]
    pub fn op_to(&self, channel: ChannelId, peer: Rank) -> Option<(CollKind, u64)> {
        let op = match channel {
            ChannelId::P2P => self.pairs.first_of(peer, Direction::Send),
            _ => self.collectives.first(),
        };
        op.map(|op| (op.kind(), op.descriptor().seq))
    }

    /// What the collective under way was called as.
    #[must_use]
    pub fn collective(&self) -> Option<&Descriptor> {
        self.collectives.first().map(Op::descriptor)
    }

    /// Whether no message is half filled, so that the engine is between operations.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lanes.is_clean()
    }

    /// The recorder's row of this engine.
    #[must_use]
    pub fn row(&self) -> &CommRow {
        &self.row
    }

    /// The subscriber to which events are published.
    #[must_use]
    pub fn events(&self) -> &S {
        &self.events
    }
}

fn peer_of(to: Readers) -> Option<Rank> {
    match to {
        Readers::One(rank) => Some(rank),
        Readers::Group(_) => None,
    }
}
