//! Lanes as data: which lanes a request uses, and their capacities.
//!
//! Engine, links, simulator and inspector use this module. No other code knows which algorithm uses
//! which lanes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{GroupId, Readers, Shape, Topology, tree};
use crate::collective::Request;
use crate::types::{Algorithm, ChannelId, CollKind, Rank};

/// Slots of a shared lane.
///
/// The pipelined direct plan gets stuck with fewer than 4 (a test of `verify` finds the number).
/// The others let ranks run ahead of each other.
pub const SHARED_SLOTS: u32 = 8;
/// Bytes of a slot of a shared lane.
pub const SHARED_SLOT_BYTES: u32 = 256 << 10;
/// Slots of a pair lane.
///
/// In the ring a rank sends one message fewer than this before it receives any, and gets stuck with
/// fewer slots.
pub const PAIR_SLOTS: u32 = 4;
/// Bytes of a slot of a pair lane in shared memory, and the longest message of a collective on one.
pub const PAIR_SLOT_BYTES: u32 = 32 << 10;
/// Bytes of a slot of a pair lane between hosts, which sends and receives fill: there the kernel or
/// a device carries one part of a message while it has the next, and each message costs them more.
pub const WIRE_SLOT_BYTES: u32 = 64 << 10;

/// The longest message between hosts on this channel.
#[must_use]
pub const fn longest(channel: ChannelId) -> u32 {
    if channel.0 == ChannelId::P2P.0 { WIRE_SLOT_BYTES } else { PAIR_SLOT_BYTES }
}

/// A lane of a given writer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct LaneId {
    /// Its channel; a shared lane exists on channel 0 only.
    pub channel: ChannelId,
    /// Its readers.
    pub readers: Readers,
}

/// The properties of a lane that both ends agree on when it is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneTerms {
    /// The number of messages it holds; a power of two.
    pub slots: u32,
    /// The most bytes of a message.
    pub slot_bytes: u32,
}

/// A lane, with its writer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lane {
    /// Its writer.
    pub from: Rank,
    /// Which of the writer's lanes it is.
    pub id: LaneId,
}

/// The lanes that requests of one form use. Two requests with equal sets use the same lanes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LaneSet {
    /// On every channel from each rank to the next one in the ring.
    Ring,
    /// From each rank to the other members of its group.
    Shared,
    /// On the first channel from each rank to its parent, from each leader to the leaders below it
    /// and to its group.
    Tree,
    /// On the first channel from each rank to each other.
    All,
    /// On the first channel from each rank to this one.
    To(Rank),
    /// On the first channel from this rank to each other.
    From(Rank),
    /// From one rank to another.
    Pair {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
    },
}

impl LaneId {
    /// Its terms in shared memory. They depend only on its readers, so both ends compute the same.
    #[must_use]
    pub const fn terms(self) -> LaneTerms {
        match self.readers {
            Readers::Group(_) => LaneTerms { slots: SHARED_SLOTS, slot_bytes: SHARED_SLOT_BYTES },
            Readers::One(_) => LaneTerms { slots: PAIR_SLOTS, slot_bytes: PAIR_SLOT_BYTES },
        }
    }

    /// The shared lane of a member of this group.
    #[must_use]
    pub const fn shared(group: GroupId) -> Self {
        Self { channel: ChannelId(0), readers: Readers::Group(group) }
    }

    /// The lane to one rank.
    #[must_use]
    pub const fn pair(channel: ChannelId, to: Rank) -> Self {
        Self { channel, readers: Readers::One(to) }
    }
}

impl Lane {
    /// Whether the given rank of the communicator reads it.
    #[must_use]
    pub fn is_read_by(&self, topology: &Topology, rank: Rank) -> bool {
        match self.id.readers {
            Readers::One(to) => to == rank,
            Readers::Group(group) => self.from != rank && topology.group(rank) == group,
        }
    }

    /// Its only reader; `None`: the other members of a group read it.
    #[must_use]
    pub const fn reader(&self) -> Option<Rank> {
        match self.id.readers {
            Readers::One(to) => Some(to),
            Readers::Group(_) => None,
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, id: LaneId { channel, readers } } = self;
        match readers {
            Readers::One(to) => write!(f, "lane {from}->{to} of channel {channel}"),
            Readers::Group(group) => write!(f, "lane {from}->group {} of channel {channel}", group.0),
        }
    }
}

impl LaneSet {
    /// The lanes that `me` uses for a request of this shape.
    #[inline]
    #[must_use]
    pub const fn of(request: &Request, shape: &Shape, me: Rank) -> Self {
        match shape.algorithm {
            Algorithm::Ring => Self::Ring,
            Algorithm::Direct | Algorithm::OneShot => Self::Shared,
            Algorithm::Tree => Self::Tree,
            Algorithm::Pairwise => match request.kind {
                CollKind::Gather => Self::To(request.root),
                CollKind::Scatter => Self::From(request.root),
                _ => Self::All,
            },
            Algorithm::Pair => match request.kind {
                CollKind::Send => Self::Pair { from: me, to: request.root },
                _ => Self::Pair { from: request.root, to: me },
            },
        }
    }

    /// The lanes that a rank writes.
    #[must_use]
    pub fn written_by(self, topology: &Topology, rank: Rank) -> Vec<Lane> {
        if topology.nranks() < 2 {
            return Vec::new();
        }
        let ring = |channel: u16| LaneId::pair(ChannelId(channel), topology.graph(channel).after(rank, 1));
        let first = |to| LaneId::pair(ChannelId(0), to);
        let others = || (0..topology.nranks()).map(Rank).filter(|other| *other != rank);
        let group = topology.group(rank);
        let has_group = topology.members(group).len() > 1;
        let ids: Vec<LaneId> = match self {
            Self::Ring => (0..topology.channels()).map(ring).collect(),
            Self::Shared => has_group.then(|| LaneId::shared(group)).into_iter().collect(),
            Self::Tree => tree::written_by(topology, rank),
            Self::All => others().map(first).collect(),
            Self::To(root) => (rank != root).then(|| first(root)).into_iter().collect(),
            Self::From(root) => others().filter(|_| rank == root).map(first).collect(),
            Self::Pair { from, to } => {
                (from == rank && to != rank).then(|| LaneId::pair(ChannelId::P2P, to)).into_iter().collect()
            }
        };
        ids.into_iter().map(|id| Lane { from: rank, id }).collect()
    }

    /// The lanes that a rank reads.
    #[must_use]
    pub fn read_by(self, topology: &Topology, rank: Rank) -> Vec<Lane> {
        let mut writers = match self {
            Self::Ring => (0..topology.channels()).map(|c| topology.graph(c).before(rank)).collect(),
            Self::Shared => topology.members(topology.group(rank)).to_vec(),
            Self::Tree => tree::writers_to(topology, rank),
            Self::All | Self::To(_) => (0..topology.nranks()).map(Rank).collect(),
            Self::From(from) | Self::Pair { from, .. } => vec![from],
        };
        writers.sort_unstable();
        writers.dedup();
        let all = writers.into_iter().flat_map(|from| self.written_by(topology, from));
        all.filter(|lane| lane.is_read_by(topology, rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Operand, Plan, select};
    use crate::types::{Datatype, ReduceOp};

    /// Every lane that a step of a rank uses is in the rank's lane set.
    #[test]
    fn the_steps_of_a_plan_use_its_lanes_and_no_others() {
        let mut cases = 0_u64;
        for n in [2_u32, 3, 5, 8] {
            for (hosts, forced) in [
                (vec![0; n as usize], None),
                ((0..u64::from(n)).collect(), None),
                (vec![0; n as usize], Some(Algorithm::Ring)),
                (vec![0; n as usize], Some(Algorithm::Tree)),
                ((0..u64::from(n)).map(|rank| rank % 3).collect(), Some(Algorithm::Tree)),
            ] {
                let topology = Topology::new(&hosts, 2);
                for kind in CollKind::ALL.iter().copied() {
                    for count in [1_u64, 1 << 12, 1 << 18] {
                        let pair = |me: u32| if me == 0 { CollKind::Send } else { CollKind::Recv };
                        for me in 0..if kind.is_p2p() { 2 } else { n } {
                            let kind = if kind.is_p2p() { pair(me) } else { kind };
                            let root = if kind.is_p2p() { Rank(1 - me) } else { Rank(n - 1) };
                            let count = if kind == CollKind::Barrier { 0 } else { count };
                            let request = Request {
                                kind,
                                dtype: Datatype::F32,
                                op: ReduceOp::Sum,
                                root,
                                count,
                                uneven: false,
                            };
                            check(&topology, &request, forced, Rank(me));
                            cases += 1;
                        }
                    }
                }
            }
        }
        println!("cases: lanes {cases}");
    }

    fn check(topology: &Topology, request: &Request, forced: Option<Algorithm>, me: Rank) {
        let shape = select::select(topology, me, request, forced);
        let set = LaneSet::of(request, &shape, me);
        let written: Vec<Lane> = set.written_by(topology, me);
        let read = set.read_by(topology, me);
        assert!(read.iter().all(|lane| lane.is_read_by(topology, me) && lane.from != me));
        let plan = Plan::Generated { request: *request, shape, me, terms: None };
        for program in 0..shape.channels {
            let channel = if request.kind.is_p2p() { ChannelId::P2P } else { ChannelId(program) };
            for index in 0..plan.len(topology, program).min(200) {
                let step = plan.step(topology, program, index);
                for operand in step.sources.iter().chain(&step.destinations) {
                    let (from, readers) = match *operand {
                        Operand::Send { to, .. } => (me, to),
                        Operand::Recv { from, shared: true, .. } => {
                            (from, Readers::Group(topology.group(from)))
                        }
                        Operand::Recv { from, shared: false, .. } => (from, Readers::One(me)),
                        Operand::Input { .. } | Operand::Output { .. } | Operand::Scratch { .. } => continue,
                    };
                    let lane = Lane { from, id: LaneId { channel, readers } };
                    let all = if from == me { &written } else { &read };
                    assert!(all.contains(&lane), "{request:?} {shape:?} {me}: {lane:?} of {all:?}");
                }
            }
        }
    }
}
