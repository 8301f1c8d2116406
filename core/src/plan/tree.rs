//! Any topology, all-reduce: sums go up a binary tree over all ranks, the result comes down.
//!
//! The tree is that of the first channel's graph. A rank reduces its input with what its children
//! sent, in scratch memory as long as a child is missing, and sends the sum to its parent. What the
//! first rank has is the result. It goes down a second binary tree, over the first ranks of the
//! groups (*leaders*), and inside each group through the leader's shared lane.
//!
//! ```text
//!   up     leaf     input -> parent
//!          inner    input, child 1 -> scratch; scratch, child 2 -> parent
//!          root     the same; the sum stays in scratch
//!   down   root     scratch -> output, group, leaders below
//!          leader   leader above -> output, group, leaders below
//!          others   leader -> output
//! ```
//!
//! One rank computes each element, so all ranks get the same bits. The sums of a chunk go up before
//! the result of the chunk before it comes down, so both directions are under way; the two chunks
//! use two halves of the scratch memory. No output changes before the result is known, which
//! contains every rank's contribution.

use arrayvec::ArrayVec;

use super::layout::{Rounds, piece};
use super::{LaneId, MAX_DESTINATIONS, Operand, Readers, Shape, Step, Topology};
use crate::collective::Request;
use crate::types::{ChannelId, Rank};

/// Children of a rank, and leaders below a leader.
const FAN: usize = 2;
/// The channel whose graph the tree is of.
const CHANNEL: u16 = 0;

/// The number of steps.
pub(super) fn len(topology: &Topology, request: &Request, shape: &Shape, me: Rank) -> u64 {
    Tree::new(topology, request, shape, me).len()
}

/// Step `index`.
pub(super) fn step(topology: &Topology, request: &Request, shape: &Shape, me: Rank, index: u64) -> Step {
    Tree::new(topology, request, shape, me).step(index)
}

/// Bytes of scratch memory that the steps of a rank use.
pub(super) fn scratch(topology: &Topology, shape: &Shape, me: Rank) -> u64 {
    let is_leaf = topology.graph(CHANNEL).children(me).next().is_none();
    if is_leaf { 0 } else { 2 * u64::from(shape.chunk) }
}

/// Who is above and below a rank, in both trees.
struct Neighbours {
    parent: Option<Rank>,
    children: ArrayVec<Rank, FAN>,
    /// The leader of this rank's group.
    leader: Rank,
    /// Whether the group has other members.
    has_group: bool,
    /// Of a leader: the leader above, and those below.
    above: Option<Rank>,
    below: ArrayVec<Rank, FAN>,
}

impl Neighbours {
    fn of(topology: &Topology, me: Rank) -> Self {
        let graph = topology.graph(CHANNEL);
        let group = topology.group(me);
        let members = topology.members(group);
        let leader = members[0];
        let at = usize::from(group.0);
        let of_group = |at: usize| topology.leaders().nth(at);
        let is_leader = leader == me;
        Self {
            parent: graph.parent(me),
            children: graph.children(me).collect(),
            leader,
            has_group: members.len() > 1,
            above: if is_leader && at > 0 { of_group((at - 1) / FAN) } else { None },
            below: (1..=FAN).filter(|_| is_leader).filter_map(|nth| of_group(FAN * at + nth)).collect(),
        }
    }
}

/// The lanes that a rank writes.
pub(super) fn written_by(topology: &Topology, me: Rank) -> Vec<LaneId> {
    let Neighbours { parent, leader, has_group, below, .. } = Neighbours::of(topology, me);
    let pairs = parent.into_iter().chain(below).map(|to| LaneId::pair(ChannelId(CHANNEL), to));
    pairs.chain((leader == me && has_group).then(|| LaneId::shared(topology.group(me)))).collect()
}

/// The ranks whose lanes a rank reads.
pub(super) fn writers_to(topology: &Topology, me: Rank) -> Vec<Rank> {
    let Neighbours { children, leader, above, .. } = Neighbours::of(topology, me);
    children.into_iter().chain(above).chain((leader != me).then_some(leader)).collect()
}

/// All that the steps of one rank are made from.
struct Tree {
    around: Neighbours,
    /// Readers of this rank's shared lane.
    group: Readers,
    rounds: Rounds,
    /// Bytes of half the scratch memory.
    half: u64,
}

impl Tree {
    fn new(topology: &Topology, request: &Request, shape: &Shape, me: Rank) -> Self {
        let most = piece(shape.chunk, 1, request.dtype);
        Self {
            around: Neighbours::of(topology, me),
            group: Readers::Group(topology.group(me)),
            rounds: Rounds::new(request.bytes(), 1, most),
            half: u64::from(shape.chunk),
        }
    }

    /// Steps up of one chunk.
    fn ups(&self) -> u64 {
        self.around.children.len().max(1) as u64
    }

    fn len(&self) -> u64 {
        self.rounds.count * (self.ups() + 1)
    }

    /// The order of steps: up 0; up 1, down 0; up 2, down 1; ...; down of the last chunk.
    fn step(&self, index: u64) -> Step {
        let (ups, last) = (self.ups(), self.rounds.count - 1);
        if index < ups {
            return self.up(0, index);
        }
        let (round, at) = ((index - ups) / (ups + 1), (index - ups) % (ups + 1));
        if round < last && at < ups {
            return self.up(round + 1, at);
        }
        self.down(round)
    }

    /// Where the sum of a chunk lies.
    const fn scratch(&self, index: u64) -> Operand {
        Operand::Scratch { at: index % 2 * self.half }
    }

    fn up(&self, index: u64, at: u64) -> Step {
        let Neighbours { parent, children, .. } = &self.around;
        let round = self.rounds.round(index);
        let len = round.len as u32;
        let input = Operand::Input { at: round.at };
        let scratch = self.scratch(index);
        let is_last = at + 1 == self.ups();
        let to = match parent {
            Some(parent) if is_last => send(Readers::One(*parent), len),
            _ => scratch,
        };
        let Some(child) = children.get(at as usize) else { return Step::copy(len, input, &[to]) };
        let child = Operand::Recv { from: *child, shared: false, at: 0, last: true };
        let so_far = if at == 0 { input } else { scratch };
        if is_last && parent.is_none() {
            return Step::reduce_last(len, [so_far, child], &[to]);
        }
        Step::reduce(len, [so_far, child], &[to])
    }

    fn down(&self, index: u64) -> Step {
        let round = self.rounds.round(index);
        let Neighbours { parent, leader, has_group, above, below, .. } = &self.around;
        let len = round.len as u32;
        let from = match (parent, above) {
            (None, _) => self.scratch(index),
            (Some(_), Some(above)) => Operand::Recv { from: *above, shared: false, at: 0, last: true },
            (Some(_), None) => Operand::Recv { from: *leader, shared: true, at: 0, last: true },
        };
        let is_leader = parent.is_none() || above.is_some();
        let group = (is_leader && *has_group).then(|| send(self.group, len));
        let below = below.iter().map(|to| send(Readers::One(*to), len));
        let to: ArrayVec<Operand, MAX_DESTINATIONS> =
            std::iter::once(Operand::Output { at: round.at }).chain(group).chain(below).collect();
        Step::copy(len, from, &to)
    }
}

const fn send(to: Readers, total: u32) -> Operand {
    Operand::Send { to, at: 0, total, last: true }
}
