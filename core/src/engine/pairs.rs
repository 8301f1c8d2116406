//! Sends and receives under way: one queue per way, which is a peer and a direction. Those of a way
//! run one after another, so that only the first of each is looked at, however many wait behind it.

use crate::engine::op::{Op, Program, Ticket};
use crate::engine::queue::Queue;
use crate::plan::Topology;
use crate::types::CollKind;

/// What goes to one peer, or comes from it.
#[derive(Default, Debug)]
pub(super) struct Way {
    queue: Queue,
    /// That of the first.
    program: Program,
}

/// All ways of one rank.
#[derive(Debug)]
pub(super) struct Pairs {
    /// By peer, the sends of each before its receives; empty until the first is called.
    ways: Vec<Way>,
    /// Those with something under way, in the order in which that began.
    busy: Vec<u32>,
}

impl Pairs {
    pub(super) const fn new() -> Self {
        Self { ways: Vec::new(), busy: Vec::new() }
    }

    /// Puts an operation behind those of its way; the number of the way.
    pub(super) fn push(&mut self, op: Op, ticket: Option<Ticket>, topology: &Topology) -> u32 {
        if self.ways.is_empty() {
            self.ways.resize_with(2 * topology.nranks() as usize, Way::default);
        }
        let number = 2 * op.peer().0 + u32::from(op.kind() == CollKind::Recv);
        let way = &mut self.ways[number as usize];
        if way.queue.is_empty() {
            way.program.begin(&op, topology, 0);
            self.busy.push(number);
        }
        way.queue.push(op, ticket);
        number
    }

    /// How many ways have something under way.
    pub(super) const fn busy(&self) -> usize {
        self.busy.len()
    }

    /// What is under way on one of those.
    pub(super) fn first(&mut self, busy: usize) -> Option<(&Op, &mut Program)> {
        let way = &mut self.ways[self.busy[busy] as usize];
        Some((way.queue.first()?, &mut way.program))
    }

    /// What is under way there has ended, and the next one begins: the ticket, if it has one.
    pub(super) fn pop(&mut self, busy: usize, topology: &Topology) -> Option<Ticket> {
        let way = &mut self.ways[self.busy[busy] as usize];
        let ticket = way.queue.pop();
        match way.queue.first() {
            Some(next) => way.program.begin(next, topology, 0),
            None => drop(self.busy.remove(busy)),
        }
        ticket
    }

    /// Whether that operation of a way has ended.
    pub(super) fn has_ended(&self, way: u32, number: u64) -> bool {
        self.ways[way as usize].queue.has_ended(number)
    }

    /// The one that was called first.
    pub(super) fn oldest(&self) -> Option<&Op> {
        let firsts = self.busy.iter().filter_map(|way| self.ways[*way as usize].queue.first());
        firsts.min_by_key(|op| op.number())
    }

    /// Takes all out, in the order of submission.
    pub(super) fn take_all(&mut self) -> Vec<Op> {
        let mut ops: Vec<Op> = Vec::new();
        for way in self.busy.drain(..) {
            ops.extend(self.ways[way as usize].queue.drain());
        }
        ops.sort_by_key(Op::number);
        ops
    }
}
