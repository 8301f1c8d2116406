//! Many ranks in one process: the production engine and plans over simulated links.
//!
//! A [`Cluster`] holds one engine per rank and one [`Net`]. It runs a rank only when something
//! changed for it, draws the order of ranks from the seed, and jumps in time when nothing can move.
//! The same seed gives the same run, event by event.

mod late;
mod processes;
#[cfg(test)]
mod tests;

pub use late::Late;
pub use processes::Processes;

use std::sync::Arc;

use crate::clock::Raw;
use crate::collective::{Blocks, Numbering, OwnedTerms, Request};
use crate::diagnose;
use crate::diagnose::Given;
use crate::engine::{Engine, Failure, Mover, Op, Processor, Progress, Wait};
use crate::event::Subscriber;
use crate::memory::{Slot, View, ViewMut, borrowed};
use crate::plan::{Lane, LaneId, LaneSet, LaneTerms, Plan, Shape, Topology, longest};
use crate::proxy::Pool;
use crate::recorder::reader::Reader;
use crate::recorder::{CommInfo, CommRow, Recorder};
use crate::seed::Seed;
use crate::snapshot::{ProcessSnapshot, Snapshot, Source};
use crate::transport::faulty::{self, Fault};
use crate::transport::sim::{Net, Receiver, Sender};
use crate::transport::{RecvLink, SendLink};
use crate::types::{ChannelId, CollKind, CommId, JobId, Rank, TransportReason};

/// The transport reason that all links report here.
const WHY: TransportReason = TransportReason::Simulated;

/// The looks of ranks that are short of slots, one after another, in which nothing moves: more
/// than a rank has operations under way.
const MOST_LOOKS: usize = 100;

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Every operation ended successfully.
    Finished,
    /// Nothing can move any more. Lists the waits of each rank.
    Stuck(Vec<(Rank, Vec<Wait>)>),
    /// The first rank that failed, and its failure.
    Failed(Rank, Failure),
}

/// A fault on one lane of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneFault {
    /// The lane's channel.
    pub channel: ChannelId,
    /// Its writer.
    pub from: Rank,
    /// The reader that the fault affects.
    pub to: Rank,
    /// The fault.
    pub fault: Fault,
}

/// Buffers of one operation of one rank. They live as long as the cluster.
#[derive(Debug)]
struct Buffers {
    input: Slot,
    /// The output; in place, the one buffer for both.
    output: Slot,
}

/// Simulated ranks and the network between them.
#[derive(Debug)]
pub struct Cluster<S: Subscriber, M: Mover = Processor> {
    topology: Arc<Topology>,
    net: Net,
    engines: Vec<Engine<S, M>>,
    buffers: Vec<Vec<Buffers>>,
    /// What calls said beside their requests: operations read it until they have ended.
    terms: Vec<Arc<OwnedTerms>>,
    numbers: Vec<Numbering>,
    faults: Vec<LaneFault>,
    draw: Seed,
    recorders: Vec<Arc<Recorder>>,
    /// Turns since one moved something, while slots of the proxy are short.
    idle_looks: usize,
}

/// What the ranks of a cluster are made of, besides their topology.
struct Parts<'a> {
    /// Where the ranks record, and whose recorders these are.
    rows: Vec<CommRow>,
    recorders: Vec<Arc<Recorder>>,
    /// The slots of each rank's process.
    pools: Vec<Arc<Pool>>,
    net: Net,
    /// From which orders are drawn.
    seed: u64,
    faults: &'a [LaneFault],
}

impl<M: Mover> Cluster<(), M> {
    /// Creates the ranks of a topology whose messages the proxy moves, each with a mover, and with
    /// slots of the pool of its process: several communicators may share these.
    #[must_use]
    pub fn proxied(
        mover: impl Fn(Rank) -> M,
        topology: Topology,
        seed: u64,
        delay_ns: (u64, u64),
        pools: &[Arc<Pool>],
    ) -> Self {
        let recorder = Recorder::heap();
        let parts = Parts {
            rows: rows(&recorder, topology.nranks(), seed),
            recorders: vec![recorder],
            pools: pools.to_vec(),
            net: Net::new(seed, delay_ns).pumped(),
            seed,
            faults: &[],
        };
        Self::of_parts(mover, topology, parts)
    }
}

impl<S: Subscriber + Default> Cluster<S> {
    /// Creates the ranks of `topology`. Messages take `delay_ns`, drawn from `seed`.
    #[must_use]
    pub fn new(topology: Topology, seed: u64, delay_ns: (u64, u64), faults: &[LaneFault]) -> Self {
        Self::moved_by(|_| Processor, topology, seed, delay_ns, faults)
    }
}

impl<S: Subscriber + Default, M: Mover> Cluster<S, M> {
    /// The same, with a mover for each rank.
    #[must_use]
    pub fn moved_by(
        mover: impl Fn(Rank) -> M,
        topology: Topology,
        seed: u64,
        delay_ns: (u64, u64),
        faults: &[LaneFault],
    ) -> Self {
        let recorder = Recorder::heap();
        let rows = rows(&recorder, topology.nranks(), seed);
        Self::recorded(mover, rows, vec![recorder], topology, seed, delay_ns, faults)
    }

    /// The same, with the rows in which the ranks record, and whose they are.
    fn recorded(
        mover: impl Fn(Rank) -> M,
        rows: Vec<CommRow>,
        recorders: Vec<Arc<Recorder>>,
        topology: Topology,
        seed: u64,
        delay_ns: (u64, u64),
        faults: &[LaneFault],
    ) -> Self {
        let pools = rows.iter().map(|_| Pool::new(1)).collect();
        let net = Net::new(seed, delay_ns);
        Self::of_parts(mover, topology, Parts { rows, recorders, pools, net, seed, faults })
    }

    fn of_parts(mover: impl Fn(Rank) -> M, topology: Topology, parts: Parts<'_>) -> Self {
        let topology = Arc::new(topology);
        let n = topology.nranks();
        let Parts { rows, recorders, pools, net, seed, faults } = parts;
        let engine = |(rank, (row, pool))| {
            Engine::moved_by((mover(rank), pool), rank, Arc::clone(&topology), row, S::default())
        };
        let engines: Vec<_> = (0..).map(Rank).zip(rows.into_iter().zip(pools)).map(engine).collect();
        let mut cluster = Self {
            net,
            engines,
            buffers: (0..n).map(|_| Vec::new()).collect(),
            terms: Vec::new(),
            numbers: vec![Numbering::default(); n as usize],
            faults: faults.to_vec(),
            draw: Seed(seed).part(u64::MAX),
            topology,
            recorders,
            idle_looks: 0,
        };
        cluster.connect();
        cluster
    }

    fn connect(&mut self) {
        let topology = Arc::clone(&self.topology);
        for from in (0..topology.nranks()).map(Rank) {
            let ring = LaneSet::Ring.written_by(&topology, from);
            let shared = LaneSet::Shared.written_by(&topology, from);
            ring.into_iter().chain(shared).for_each(|lane| self.connect_lane(lane));
        }
    }

    fn connect_lane(&mut self, lane: Lane) {
        let Lane { from, id } = lane;
        if self.engines[from.index()].has_sender(id) {
            return;
        }
        let readers =
            (0..self.topology.nranks()).map(Rank).filter(|rank| lane.is_read_by(&self.topology, *rank));
        let readers: Vec<Rank> = readers.collect();
        let LaneTerms { slots, slot_bytes } = id.terms();
        // The ranks may be on different hosts.
        let slot_bytes = if lane.reader().is_some() { longest(id.channel) } else { slot_bytes };
        let (sender, receivers) = self.net.lane(id.channel.0, from, &readers, slots, slot_bytes);
        let link = match lane.reader() {
            Some(to) => self.sending(id.channel, from, to, sender),
            None => SendLink::Sim(sender),
        };
        self.engines[from.index()].add_sender(id, link, WHY);
        for (to, receiver) in readers.into_iter().zip(receivers) {
            let link = self.receiving(id.channel, from, to, receiver);
            self.engines[to.index()].add_receiver(lane, link, WHY);
        }
    }

    fn fault(&self, channel: ChannelId, from: Rank, to: Rank) -> Option<Fault> {
        let is_here = |f: &&LaneFault| (f.channel, f.from, f.to) == (channel, from, to);
        self.faults.iter().find(is_here).map(|f| f.fault)
    }

    fn sending(&self, channel: ChannelId, from: Rank, to: Rank, sender: Sender) -> SendLink {
        // A closed link is closed on both sides, and a flipped bit is what was sent. Every other
        // fault shows at the reader only.
        match self.fault(channel, from, to) {
            Some(fault @ (Fault::Close { .. } | Fault::Flip { .. })) => {
                SendLink::Faulty(Box::new(faulty::Sender::new(SendLink::Sim(sender), fault)))
            }
            Some(_) | None => SendLink::Sim(sender),
        }
    }

    fn receiving(&self, channel: ChannelId, from: Rank, to: Rank, receiver: Receiver) -> RecvLink {
        let link = RecvLink::Sim(receiver);
        match self.fault(channel, from, to) {
            Some(fault) => RecvLink::Faulty(Box::new(faulty::Receiver::new(link, fault))),
            None => link,
        }
    }

    /// Messages of all ranks carry checksums from now on.
    pub fn use_checksums(&mut self) {
        self.engines.iter_mut().for_each(Engine::use_checksums);
    }

    /// Makes `rank` call `request` with `input`, by a plan of `shape`, in place if `in_place`.
    pub fn call(&mut self, rank: Rank, request: Request, shape: Shape, input: &[u8], in_place: bool) {
        self.call_on_terms((rank, request), shape, OwnedTerms::new(None, [None, None]), input, in_place);
    }

    /// As [`call`](Self::call), on terms of its own.
    pub fn call_on_terms(
        &mut self,
        (rank, request): (Rank, Request),
        shape: Shape,
        terms: OwnedTerms,
        input: &[u8],
        in_place: bool,
    ) {
        for lane in LaneSet::of(&request, &shape, rank).written_by(&self.topology, rank) {
            self.connect_lane(lane);
        }
        let terms = Arc::new(terms);
        self.terms.push(Arc::clone(&terms));
        let hash = shape.hash(&self.topology) ^ terms.terms().hash(&request);
        let plan = Plan::Generated { request, shape, me: rank, terms: Some(borrowed(terms.terms())) };
        self.call_plan(rank, request, plan, hash, input, in_place);
    }

    /// Makes `rank` call `request` with `input`, by `plan`, whose inputs hash to `hash`.
    pub fn call_plan(
        &mut self,
        rank: Rank,
        request: Request,
        plan: Plan,
        hash: u64,
        input: &[u8],
        in_place: bool,
    ) {
        let terms = plan.terms().copied().unwrap_or_default();
        let sizes = terms.sizes(&request, self.topology.nranks(), rank);
        assert_eq!(input.len() as u64, sizes.input, "input of {request:?} at rank {rank}");
        let whole = if in_place { sizes.input.max(sizes.output) } else { sizes.output };
        let mut buffers = Buffers { input: Slot::new(input.len()), output: Slot::new(whole as usize) };
        let (from, to) = if in_place {
            buffers.views_in_place(Blocks::of(&request, Some(&terms)), request, rank, input)
        } else {
            buffers.input.bytes_mut().copy_from_slice(input);
            (buffers.input.view(input.len()), buffers.output.view_mut(sizes.output as usize))
        };
        if request.kind.is_p2p() {
            let is_send = request.kind == CollKind::Send;
            let (from, to) = if is_send { (rank, request.root) } else { (request.root, rank) };
            self.connect_lane(Lane { from, id: LaneId::pair(ChannelId::P2P, to) });
        }
        let descriptor = self.numbers[rank.index()].describe(rank, &request, hash);
        let make = || Op::new(plan, descriptor, from, to);
        self.buffers[rank.index()].push(buffers);
        // An engine that has failed accepts no more operations: `run` reports its failure.
        let _ = self.engines[rank.index()].submit(request.kind, make, None, Raw(self.net.now().0));
        self.net.make_ready(rank);
    }

    /// Runs until all operations have ended or nothing can move.
    pub fn run(&mut self) -> Outcome {
        self.idle_looks = 0;
        self.look_for_slots();
        loop {
            while let Some(rank) = self.net.draw_ready(&mut self.draw) {
                let engine = &mut self.engines[rank.index()];
                let net = &self.net;
                let clock = || Raw(net.now().0);
                while engine.turn(&clock) == Progress::Advanced {
                    self.idle_looks = 0;
                }
                if let Some(failure) = engine.failure().cloned() {
                    engine.fail(failure.clone(), clock());
                    return Outcome::Failed(rank, failure);
                }
            }
            // A link that holds a message back for a number of looks changes when it is looked at.
            // Look again as long as such links exist.
            if self.net.advance() {
                self.idle_looks = 0;
                self.look_for_slots();
                continue;
            }
            if self.look_for_slots() || self.look_again() {
                continue;
            }
            let stuck: Vec<(Rank, Vec<Wait>)> = self
                .engines
                .iter()
                .enumerate()
                .filter(|(at, _)| !self.is_done(Rank(*at as u32)))
                .map(|(at, engine)| (Rank(at as u32), engine.waits().to_vec()))
                .collect();
            return if stuck.is_empty() { Outcome::Finished } else { Outcome::Stuck(stuck) };
        }
    }

    /// Makes ranks ready whose steps are at work, or looks for what links hold back; whether
    /// anything may move. A step at work may need a slot that another communicator has.
    fn look_again(&mut self) -> bool {
        let moving = (0..).map(Rank).zip(&self.engines).filter(|(_, engine)| engine.is_moving());
        let moving: Vec<Rank> = moving.map(|(rank, _)| rank).collect();
        moving.iter().for_each(|rank| self.net.make_ready(*rank));
        !moving.is_empty() && self.idle_looks <= MOST_LOOKS || self.look_for_held()
    }

    /// Makes the ranks ready that look again because slots are short, as their drivers do; false
    /// once they have looked so often that each operation has had a slot and none has moved.
    fn look_for_slots(&mut self) -> bool {
        let short = (0..).map(Rank).zip(&self.engines).filter(|(_, engine)| engine.is_short_of_slots());
        let short: Vec<Rank> = short.map(|(rank, _)| rank).collect();
        short.iter().for_each(|rank| self.net.make_ready(*rank));
        self.idle_looks += 1;
        !short.is_empty() && self.idle_looks <= MOST_LOOKS
    }

    fn look_for_held(&mut self) -> bool {
        let has_hold = self.faults.iter().any(|f| matches!(f.fault, Fault::Hold { .. }));
        has_hold && {
            let net = &self.net;
            let clock = || Raw(net.now().0);
            let looks = self.faults.iter().map(|f| match f.fault {
                Fault::Hold { looks, .. } => looks,
                Fault::Cut { .. } | Fault::Close { .. } | Fault::Corrupt { .. } | Fault::Flip { .. } => 0,
            });
            let most = looks.max().unwrap_or(0);
            let engines = &mut self.engines;
            (0..=most).any(|_| {
                engines
                    .iter_mut()
                    .fold(false, |any, engine| any | (engine.turn(&clock) == Progress::Advanced))
            })
        }
    }

    /// Ends what a rank has under way, for what was decided elsewhere.
    pub fn fail(&mut self, rank: Rank, failure: Failure) {
        let now = Raw(self.net.now().0);
        self.engines[rank.index()].fail(failure, now);
    }

    /// The output of the `nth` call of `rank`, from 0.
    #[must_use]
    pub fn output(&self, rank: Rank, nth: usize) -> &[u8] {
        self.buffers[rank.index()][nth].output.bytes()
    }

    /// The engine of a rank.
    #[must_use]
    pub fn engine(&self, rank: Rank) -> &Engine<S, M> {
        &self.engines[rank.index()]
    }

    /// Whether nothing is left over: no message is unread, and none is partly filled.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.net.unread() == 0 && self.engines.iter().all(Engine::is_clean)
    }

    /// Whether all operations that `rank` called have ended.
    #[must_use]
    pub fn is_done(&self, rank: Rank) -> bool {
        let engine = &self.engines[rank.index()];
        engine.failure().is_none() && engine.under_way().is_none()
    }

    /// The state in the cells of all ranks, after each has noted what it waits for.
    ///
    /// The recorder's clock is the real one, so ages mean nothing.
    ///
    /// # Errors
    /// As [`Reader::snapshot`].
    pub fn snapshot(&mut self) -> crate::Result<Snapshot> {
        self.note_waits();
        snapshot_of(&self.recorders)
    }

    fn note_waits(&mut self) {
        let now = Raw(self.net.now().0);
        self.engines.iter_mut().for_each(|engine| engine.note_waits(now));
    }

    /// The virtual time, in nanoseconds since the start.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.net.now().0
    }
}

/// A row for each of so many ranks, in one recorder.
fn rows(recorder: &Arc<Recorder>, nranks: u32, seed: u64) -> Vec<CommRow> {
    let row = |rank| {
        let (id, job) = (CommId(seed), JobId(seed));
        recorder.comm(CommInfo { id, job, name: "sim", rank, nranks, world: rank })
    };
    (0..nranks).map(Rank).map(row).collect()
}

/// What the cells of these recorders say, each of which is a process.
fn snapshot_of(recorders: &[Arc<Recorder>]) -> crate::Result<Snapshot> {
    let mut given = Vec::new();
    for (pid, recorder) in (1..).zip(recorders) {
        // All are in this process: numbers tell them apart, as a launcher gives them.
        let process = ProcessSnapshot {
            pid,
            path: String::new(),
            launch_rank: Some(Rank(pid - 1)),
            ..Reader::borrow(Arc::clone(recorder)).snapshot()?
        };
        given.push(Given { process, source: Source::Mapping, letter: None, ended: false });
    }
    let jobs = diagnose::jobs(given.iter().map(|one| &one.process));
    Ok(diagnose::merge(&given, &jobs.into_iter().next().unwrap_or_default(), &[]))
}

impl Buffers {
    /// One buffer for input and output, laid out as callers of in-place operations do (the
    /// convention of `nccl.h`).
    fn views_in_place(
        &mut self,
        blocks: Blocks<'_>,
        request: Request,
        me: Rank,
        input: &[u8],
    ) -> (View, ViewMut) {
        let whole = self.output.bytes().len();
        let (own, block) = (blocks.at(me) as usize, blocks.len(me) as usize);
        let is_root = request.root == me;
        let has_own_input = match request.kind {
            CollKind::AllGather => true,
            CollKind::Gather => is_root,
            _ => false,
        };
        let at = if has_own_input { own } else { 0 };
        self.output.bytes_mut()[at..at + input.len()].copy_from_slice(input);
        let all = self.output.view_mut(whole);
        match request.kind {
            _ if has_own_input => (all.read().part(own, block), all),
            CollKind::ReduceScatter => (all.read(), all.part(own, block)),
            CollKind::Scatter if is_root => (all.read(), all.part(own, block)),
            _ => (all.read().part(0, input.len()), all),
        }
    }
}
