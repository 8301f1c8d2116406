//! The engine: one per rank of a communicator. It executes the steps of plans over links.
//!
//! `submit` takes an operation; `turn` does all that can be done without waiting and says what it found. Nothing here
//! waits, sleeps, reads a clock by itself or touches a descriptor: time is an argument, links bring the bytes. So the
//! same code runs under a blocked caller, a progress thread and the simulator.
//!
//! Collectives run one after another in the order of submission, their channels side by side. Sends and receives run
//! beside them, in order per peer and direction. An operation has ended when its programs have run and every byte it
//! sent is in peers' memory or in the kernel: then nothing of it needs this rank any more.
//!
//! A failure is final: the first one is kept, all operations under way end with it, and no more are taken.

mod lanes;
mod op;
mod pairs;
mod queue;
mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::clock::Raw;
use crate::collective::Descriptor;
use crate::error::ErrorKind;
use crate::event::{Event, Subscriber, publish, publish_at};
use crate::plan::{Readers, Topology};
use crate::recorder::CommRow;
use crate::transport::{LinkFault, RecvLink, SendLink};
use crate::types::{ChannelId, CollKind, Direction, Rank, TransportKind, TransportReason, WaitReason};

use lanes::Lanes;
use op::Program;
pub use op::{Op, OpId, Ticket};
use pairs::Pairs;
use queue::Queue;

/// What a turn found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing is under way.
    Idle,
    /// Something moved.
    Advanced,
    /// Everything under way waits; [`Engine::waits`] says for what.
    Blocked,
    /// The engine has failed; [`Engine::failure`] says why.
    Failed,
}

/// What one program waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The channel of the program.
    pub channel: ChannelId,
    /// Who is awaited.
    pub peer: Rank,
    /// Which way the link points that waits.
    pub direction: Direction,
    /// Whether it is a wide lane.
    pub wide: bool,
    /// What for.
    pub reason: WaitReason,
}

/// Why an engine stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What it is.
    pub cause: Cause,
    /// The operation it was found in.
    pub op: Option<(CollKind, u64)>,
    /// The rank on the other side.
    pub peer: Option<Rank>,
    /// The channel.
    pub channel: Option<ChannelId>,
}

/// What stopped an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A link carries no more.
    Link(LinkFault),
    /// A peer's message belongs to another operation than ours.
    Mismatch {
        /// The operation here.
        ours: Descriptor,
        /// The hash in the message.
        theirs: u64,
    },
    /// A rank has called `finish()` and not what this one has; the sentence that says both.
    Finished(String),
    /// Somebody else decided: abort, a deadline, news of a peer's death or mismatch.
    Told(crate::error::Error),
}

/// Executes the operations of one rank of one communicator.
#[derive(Debug)]
pub struct Engine<S: Subscriber> {
    me: Rank,
    topology: Arc<Topology>,
    lanes: Lanes,
    /// In the order of submission; the first is under way.
    collectives: Queue,
    /// Programs, one per channel: the first of them are those of the collective under way.
    programs: Vec<Program>,
    /// Whether the programs of the first collective were begun, and since when it is under way.
    begun: bool,
    since: Raw,
    pairs: Pairs,
    /// Whose operations have ended since they were last asked for.
    ended: Vec<Ticket>,
    waits: Vec<Wait>,
    /// The waits that stand in the cells, and since when.
    noted: Vec<Wait>,
    noted_at: Raw,
    failure: Option<Failure>,
    next_id: u64,
    row: CommRow,
    events: S,
}

impl<S: Subscriber> Engine<S> {
    /// An engine without links.
    #[must_use]
    pub fn new(me: Rank, topology: Arc<Topology>, row: CommRow, events: S) -> Self {
        let lanes = Lanes::new(topology.nranks(), topology.channels);
        Self {
            me,
            topology,
            lanes,
            collectives: Queue::default(),
            pairs: Pairs::new(),
            ended: Vec::new(),
            programs: Vec::new(),
            begun: false,
            since: Raw(0),
            waits: Vec::new(),
            noted: Vec::new(),
            noted_at: Raw(0),
            failure: None,
            next_id: 0,
            row,
            events,
        }
    }

    /// Gives the engine the writing end of a lane; `why` its carrier was chosen.
    pub fn add_sender(&mut self, channel: ChannelId, to: Readers, link: SendLink, why: TransportReason) {
        let (peer, chosen) = (peer_of(to), (link.transport(), why));
        let cell = self.row.link(channel, peer, Direction::Send, chosen).watching(link.sockets());
        self.lanes.add_sender(channel, to, link, cell);
        self.link_up(channel, peer, Direction::Send, chosen);
    }

    /// Gives the engine the reading end of a lane; `why` its carrier was chosen.
    pub fn add_receiver(
        &mut self,
        channel: ChannelId,
        from: Rank,
        wide: bool,
        link: RecvLink,
        why: TransportReason,
    ) {
        let chosen = (link.transport(), why);
        let cell = self.row.link(channel, Some(from), Direction::Recv, chosen).watching(link.sockets());
        self.lanes.add_receiver(channel, from, wide, link, cell);
        self.link_up(channel, Some(from), Direction::Recv, chosen);
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

    /// Whether this rank can already write that lane.
    #[must_use]
    pub fn has_sender(&self, channel: ChannelId, to: Readers) -> bool {
        self.lanes.sender(channel, to).is_some()
    }

    /// Takes an operation. Its links may still be missing: its steps then wait for them.
    ///
    /// # Errors
    /// The failure of the engine, if it has failed.
    pub fn submit(&mut self, op: Op, now: Raw) -> Result<OpId, Failure> {
        self.submit_owned(op, None, now)
    }

    /// Takes an operation of whose end [`ended`](Self::ended) is to tell, under that ticket.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_owned(&mut self, mut op: Op, ticket: Option<Ticket>, now: Raw) -> Result<OpId, Failure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.next_id += 1;
        let number = self.next_id;
        op.called(number, now);
        let descriptor = *op.descriptor();
        let algorithm = op.algorithm();
        publish_at(&mut self.events, now, || Event::OpPlanned {
            kind: op.kind(),
            seq: descriptor.seq,
            algorithm,
            bytes: op.bytes(),
        });
        let way = if op.kind().is_p2p() {
            self.row.p2p_called(op.descriptor(), op.peer(), now);
            Some(self.pairs.push(op, ticket, &self.topology))
        } else {
            self.row.called(&descriptor, now);
            if self.collectives.is_empty() {
                self.since = now;
            }
            self.collectives.push(op, ticket);
            None
        };
        Ok(OpId { number, way })
    }

    /// Whether that operation has ended well. One that has not may still be under way, or have failed with the engine.
    #[must_use]
    pub fn is_done(&self, id: OpId) -> bool {
        let OpId { number, way } = id;
        self.failure.is_none()
            && way.map_or_else(|| self.collectives.has_ended(number), |way| self.pairs.has_ended(way, number))
    }

    /// Whose operations have ended well since this was last asked, in that order.
    pub fn ended(&mut self) -> impl Iterator<Item = Ticket> {
        self.ended.drain(..)
    }

    /// Does all that can be done without waiting. `clock` is asked once per operation that ends. Who sleeps for what this turn
    /// stored is woken by [`ring`](Self::ring).
    #[inline]
    pub fn turn(&mut self, clock: &impl Fn() -> Raw) -> Progress {
        if self.failure.is_some() {
            return Progress::Failed;
        }
        if self.collectives.is_empty() && self.pairs.busy() == 0 {
            return Progress::Idle;
        }
        self.waits.clear();
        match self.try_turn(clock) {
            Ok(true) => {
                if !self.noted.is_empty() {
                    self.waits_end(clock());
                }
                Progress::Advanced
            }
            Ok(false) => Progress::Blocked,
            Err(failure) => {
                self.fail(failure, clock());
                Progress::Failed
            }
        }
    }

    /// Wakes peers that sleep for what was stored since the last time. To be called soon after turns: before waiting for
    /// longer than a message takes, and before control goes back to whoever called. Not after each turn: it costs a fence,
    /// which waits until peers' caches have let go of what was stored; by the end of an operation they have.
    #[inline]
    pub fn ring(&mut self) {
        self.lanes.ring();
    }

    fn try_turn(&mut self, clock: &impl Fn() -> Raw) -> Result<bool, Failure> {
        let mut advanced = self.lanes.pump().map_err(|(channel, peer, fault)| Failure {
            cause: Cause::Link(fault),
            op: self.under_way(),
            peer: Some(peer),
            channel: Some(channel),
        })?;
        let who = (self.me, &*self.topology);
        while let Some(op) = self.collectives.first() {
            let channels = usize::from(op.plan().channels());
            if !std::mem::replace(&mut self.begun, true) {
                self.programs.resize_with(channels.max(self.programs.len()), Program::default);
                for (number, program) in self.programs[..channels].iter_mut().enumerate() {
                    program.begin(op, &self.topology, number as u16);
                }
            }
            let programs = &mut self.programs[..channels];
            advanced |= step::run(op, programs, who, &mut self.lanes, &mut self.waits, &mut self.events)?;
            let has_run = programs.iter().all(Program::has_run);
            if !(has_run && self.lanes.is_flushed(op, &mut self.waits)) {
                break;
            }
            // Others first: the fence would wait for what is written down next.
            self.lanes.ring();
            let now = clock();
            self.row.completed(op.descriptor(), self.since, now);
            publish_at(&mut self.events, now, || op.completed(now));
            self.ended.extend(self.collectives.pop());
            self.begun = false;
            if let Some(next) = self.collectives.first() {
                self.since = now;
                self.row.started(next.descriptor(), now);
            }
            advanced = true;
        }
        let mut at = 0;
        while at < self.pairs.busy() {
            let before = self.pairs.busy();
            while let Some((op, program)) = self.pairs.first(at) {
                self.lanes.work_for(op);
                let programs = std::slice::from_mut(program);
                advanced |= step::run(op, programs, who, &mut self.lanes, &mut self.waits, &mut self.events)?;
                if !(program.has_run() && self.lanes.is_flushed(op, &mut self.waits)) {
                    break;
                }
                let now = clock();
                self.row.p2p_completed(op.descriptor(), op.began(), now);
                publish_at(&mut self.events, now, || op.completed(now));
                self.ended.extend(self.pairs.pop(at, &self.topology));
                advanced = true;
                if self.pairs.busy() < before {
                    break;
                }
            }
            // One that has nothing left makes place for the next.
            at += usize::from(self.pairs.busy() == before);
        }
        Ok(advanced)
    }

    /// What the programs under way wait for, as of the last turn.
    #[must_use]
    pub fn waits(&self) -> &[Wait] {
        &self.waits
    }

    /// Whether a turn will find that something moved since the last one: cheap enough to be asked again and again. It only looks
    /// for messages in memory; what else may have moved it takes a turn to see.
    #[inline]
    pub fn may_advance(&mut self) -> bool {
        self.lanes.may_advance(&self.waits)
    }

    /// Writes what is waited for into the cells. The driver calls this when it has spun long enough; the next turn that
    /// advances takes it back.
    pub fn note_waits(&mut self, now: Raw) {
        if self.noted.is_empty() {
            self.noted.clone_from(&self.waits);
            self.noted_at = now;
            for wait in &self.waits {
                self.lanes.note(wait, now);
                publish_at(&mut self.events, now, || Event::WaitBegan {
                    channel: wait.channel,
                    peer: wait.peer,
                    reason: wait.reason,
                });
            }
        }
    }

    /// Something moved: what waited is taken out of the cells.
    fn waits_end(&mut self, now: Raw) {
        self.lanes.moves();
        let duration_ticks = now.0.saturating_sub(self.noted_at.0);
        for wait in self.noted.drain(..) {
            publish_at(&mut self.events, now, || Event::WaitEnded { channel: wait.channel, duration_ticks });
        }
    }

    /// Ends everything under way with `failure`, the first of which is kept.
    pub fn fail(&mut self, failure: Failure, now: Raw) {
        if self.failure.is_some() {
            return;
        }
        let error = failure.kind() as u8;
        if self.collectives.is_empty() && self.pairs.busy() == 0 {
            self.row.broken();
        }
        for op in self.collectives.drain() {
            self.row.failed(op.descriptor(), error, now);
            publish_at(&mut self.events, now, || op.failed(error, failure.peer, now));
        }
        for op in self.pairs.take_all() {
            self.row.p2p_failed(op.descriptor(), error, now);
            publish_at(&mut self.events, now, || op.failed(error, failure.peer, now));
        }
        if let (Cause::Mismatch { .. } | Cause::Finished(_), Some(peer), Some((_, seq))) =
            (&failure.cause, failure.peer, failure.op)
        {
            publish(&mut self.events, || Event::MismatchFound { peer, seq });
        }
        if failure.kind() == ErrorKind::Aborted {
            publish(&mut self.events, || Event::Aborted);
        }
        self.failure = Some(failure);
    }

    /// The failure was a peer's end: known when it is decided whose.
    pub fn lost(&mut self, peer: Rank) {
        publish(&mut self.events, || Event::PeerLost { peer });
    }

    /// Why the engine stopped, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The operation under way, the oldest collective first.
    #[must_use]
    pub fn under_way(&self) -> Option<(CollKind, u64)> {
        self.collectives.first().or_else(|| self.pairs.oldest()).map(|op| (op.kind(), op.descriptor().seq))
    }

    /// What the collective under way was called as.
    #[must_use]
    pub fn collective(&self) -> Option<&Descriptor> {
        self.collectives.first().map(Op::descriptor)
    }

    /// Whether no message is half filled: so it is between operations.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lanes.is_clean()
    }

    /// The descriptors to sleep on until something can move.
    pub fn interests(&self, out: &mut Vec<crate::control::service::Interest>) {
        self.lanes.interests(out);
    }

    /// The recorder's row of this engine.
    #[must_use]
    pub fn row(&self) -> &CommRow {
        &self.row
    }

    /// The events taken so far, where the subscriber keeps them.
    #[must_use]
    pub fn events(&self) -> &S {
        &self.events
    }
}

impl Failure {
    /// What a caller can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match &self.cause {
            Cause::Link(LinkFault::Gone) => ErrorKind::Peer,
            Cause::Link(_) => ErrorKind::System,
            Cause::Mismatch { .. } | Cause::Finished(_) => ErrorKind::Mismatch,
            Cause::Told(error) => error.kind,
        }
    }
}

fn peer_of(to: Readers) -> Option<Rank> {
    match to {
        Readers::One(rank) => Some(rank),
        Readers::All => None,
    }
}
