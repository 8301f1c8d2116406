//! Sends and receives under way. They have one queue per way, which is a peer and a direction. The
//! operations of a way run one after another, so only the first two are visited, however many are
//! queued behind them. While the messages of a send that has run are still on their way to the
//! peer, the next one runs: it does not wait for an acknowledgement.

use std::sync::Arc;

use crate::engine::op::{Begun, Op, Program, Ticket};
use crate::engine::queue::Queue;
use crate::plan::Topology;
use crate::proxy::{Claim, Pool};
use crate::recorder::Attention;
use crate::types::{CollKind, Direction, Rank};

/// The sends to one peer, or the receives from it.
#[derive(Debug)]
pub(super) struct Way {
    queue: Queue,
    /// The program of the operation that runs, and the claim of the way to a slot of the proxy.
    program: Program,
    claim: Claim,
    /// The first operation has run, and has ended once so many messages of its link have moved; the
    /// one behind it runs.
    ran: Option<u64>,
    /// The messages of all operations so far: the number of the next one's first.
    messages: u64,
}

/// What is under way on a way.
pub(super) struct UnderWay<'a> {
    /// The first operation, and the one behind it.
    pub(super) first: &'a Op,
    pub(super) next: Option<&'a Op>,
    /// The program of the first, or of the next if the first has run.
    pub(super) program: &'a mut Program,
    pub(super) claim: &'a mut Claim,
    /// The first has run while the next runs: it has ended once so many messages of its link have
    /// moved.
    pub(super) ran: Option<u64>,
}

/// All ways of one rank.
#[derive(Debug)]
pub(super) struct Pairs {
    /// Two per peer: its sends, then its receives. Empty until the first call.
    ways: Vec<Way>,
    /// The ways that have something under way, in the order in which they became busy.
    busy: Vec<u32>,
    pool: Arc<Pool>,
}

impl Pairs {
    pub(super) const fn new(pool: Arc<Pool>) -> Self {
        Self { ways: Vec::new(), busy: Vec::new(), pool }
    }

    /// Adds an operation to the queue of its way; returns the number of the way, and that of the
    /// operation's first message on its link.
    pub(super) fn push(&mut self, op: Op, begun: Option<Begun>, topology: &Topology) -> (u32, u64) {
        if self.ways.is_empty() {
            let way = || Way {
                queue: Queue::default(),
                program: Program::default(),
                claim: Claim::new(Arc::clone(&self.pool)),
                ran: None,
                messages: 0,
            };
            self.ways.resize_with(2 * topology.nranks() as usize, way);
        }
        let number = number(op.peer(), op.kind() == CollKind::Recv);
        let way = &mut self.ways[number as usize];
        if way.queue.is_empty() {
            way.program.begin(&op, topology, 0);
            self.busy.push(number);
        }
        let first = way.messages;
        way.messages += op.plan().len(topology, 0);
        way.queue.push(op.number(), || op, begun);
        (number, first)
    }

    /// How many ways have something under way.
    pub(super) const fn busy(&self) -> usize {
        self.busy.len()
    }

    /// What is under way on one of the busy ways.
    pub(super) fn first(&mut self, busy: usize) -> Option<UnderWay<'_>> {
        let Way { queue, program, claim, ran, .. } = &mut self.ways[self.busy[busy] as usize];
        Some(UnderWay { first: queue.first()?, next: queue.second(), program, claim, ran: *ran })
    }

    /// The first operation there has run, and has ended once so many messages of its link have
    /// moved: the one behind it begins.
    pub(super) fn run_ahead(&mut self, busy: usize, until: u64, topology: &Topology) {
        let way = &mut self.ways[self.busy[busy] as usize];
        way.ran = Some(until);
        way.queue.second().into_iter().for_each(|next| way.program.begin(next, topology, 0));
    }

    /// What is under way, and its claims to slots of the proxy.
    pub(super) fn claims(&self) -> impl Iterator<Item = (&Op, &Claim)> {
        let ways = self.busy.iter().map(|way| &self.ways[*way as usize]);
        ways.filter_map(|way| Some((way.queue.first()?, &way.claim)))
    }

    /// Does something with each claim of what is under way.
    pub(super) fn for_each_claim(&mut self, each: impl Fn(&mut Claim)) {
        self.busy.iter().for_each(|way| each(&mut self.ways[*way as usize].claim));
    }

    /// The programs of what is under way.
    pub(super) fn programs(&self) -> impl Iterator<Item = &Program> {
        self.busy.iter().map(|way| &self.ways[*way as usize].program)
    }

    /// The first operation there has ended: its ticket, if it has one. The next one begins, if it
    /// has not begun.
    pub(super) fn pop(&mut self, busy: usize, topology: &Topology) -> Option<Ticket> {
        let way = &mut self.ways[self.busy[busy] as usize];
        let ticket = way.queue.pop();
        let has_begun = way.ran.take().is_some();
        match way.queue.first() {
            // As if it began now: a chain of sends must not keep the slot.
            Some(_) if has_begun => way.claim.give_way(),
            Some(next) => {
                way.claim.end();
                way.program.begin(next, topology, 0);
            }
            None => {
                way.claim.end();
                self.busy.remove(busy);
            }
        }
        ticket
    }

    /// Whether that operation of a way has ended.
    pub(super) fn has_ended(&self, way: u32, number: u64) -> bool {
        self.ways[way as usize].queue.has_ended(number)
    }

    /// The operation under way to or from that peer.
    pub(super) fn first_of(&self, peer: Rank, direction: Direction) -> Option<&Op> {
        self.ways.get(number(peer, direction == Direction::Recv) as usize)?.queue.first()
    }

    /// Who waits for a send to that peer, or a receive from it.
    pub(super) fn attention(&self, peer: Rank, direction: Direction) -> Attention {
        let way = self.ways.get(number(peer, direction == Direction::Recv) as usize);
        way.map(|way| way.queue.attention()).unwrap_or_default()
    }

    /// Records that a thread waits for all of them.
    pub(super) fn attend(&self) {
        self.busy.iter().for_each(|way| self.ways[*way as usize].queue.attend());
    }

    /// The operation that was called first.
    pub(super) fn oldest(&self) -> Option<&Op> {
        let firsts = self.busy.iter().filter_map(|way| self.ways[*way as usize].queue.first());
        firsts.min_by_key(|op| op.number())
    }

    /// Takes out all operations, in the order of submission.
    pub(super) fn take_all(&mut self) -> Vec<Op> {
        let mut ops: Vec<Op> = Vec::new();
        for way in self.busy.drain(..) {
            ops.extend(self.ways[way as usize].queue.drain());
        }
        ops.sort_by_key(Op::number);
        ops
    }
}

/// The number of a way.
const fn number(peer: Rank, is_receive: bool) -> u32 {
    2 * peer.0 + is_receive as u32
}
