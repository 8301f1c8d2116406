//! What all ranks of a communicator agreed on when it was made: who shares a host, and how each
//! channel connects the ranks.

use serde::{Deserialize, Serialize};

use crate::types::Rank;

/// Names a group: ranks of one host, which reach each other through memory. A rank's shared lane is
/// read by the other members of its group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct GroupId(pub u16);

/// How one channel connects the ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Graph {
    /// The ranks in ring order: those of one group lie together. A permutation of `0..nranks`.
    pub ring: Vec<Rank>,
    /// The place of each rank in `ring`.
    pub place: Vec<u32>,
}

/// The groups of a communicator and the graph of each channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// The group of each rank.
    group: Vec<GroupId>,
    /// The members of each group, in order.
    members: Vec<Vec<Rank>>,
    /// One graph per channel; at least one.
    graphs: Vec<Graph>,
}

impl Topology {
    /// A topology whose rings go through the hosts in order of their first rank.
    /// `hosts[r]` is the host of rank r, as any number.
    #[must_use]
    pub fn new(hosts: &[u64], channels: u16) -> Self {
        let mut known: Vec<u64> = Vec::new();
        let mut members: Vec<Vec<Rank>> = Vec::new();
        let mut group = Vec::with_capacity(hosts.len());
        for (rank, host) in (0..).map(Rank).zip(hosts) {
            let at = known.iter().position(|one| one == host).unwrap_or_else(|| {
                known.push(*host);
                members.push(Vec::new());
                known.len() - 1
            });
            members[at].push(rank);
            group.push(GroupId(at as u16));
        }
        let graph = Graph::new(members.iter().flatten().copied().collect());
        Self { group, members, graphs: vec![graph; usize::from(channels.max(1))] }
    }
    /// The number of ranks.
    #[must_use]
    pub const fn nranks(&self) -> u32 {
        self.group.len() as u32
    }
    /// Channels of a ring.
    #[must_use]
    pub const fn channels(&self) -> u16 {
        self.graphs.len() as u16
    }
    /// Whether all ranks reach each other through memory: whether there is one group only.
    #[must_use]
    pub const fn one_host(&self) -> bool {
        self.members.len() < 2
    }
    /// The graph of a channel.
    ///
    /// # Panics
    /// If there is no such channel.
    #[inline]
    #[must_use]
    pub fn graph(&self, channel: u16) -> &Graph {
        &self.graphs[usize::from(channel)]
    }
    /// The number of groups.
    #[must_use]
    pub const fn groups(&self) -> u16 {
        self.members.len() as u16
    }
    /// The group of a rank.
    #[must_use]
    pub fn group(&self, rank: Rank) -> GroupId {
        self.group[rank.index()]
    }
    /// The members of a group, in order.
    #[must_use]
    pub fn members(&self, group: GroupId) -> &[Rank] {
        &self.members[usize::from(group.0)]
    }
    /// The first rank of each group, in the order of groups.
    pub fn leaders(&self) -> impl Iterator<Item = Rank> {
        self.members.iter().filter_map(|members| members.first().copied())
    }

    /// The hash of all of it.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let groups = self.group.iter().flat_map(|group| group.0.to_le_bytes());
        let rings = self.graphs.iter().flat_map(|graph| &graph.ring);
        let bytes: Vec<u8> = groups.chain(rings.flat_map(|rank| rank.0.to_le_bytes())).collect();
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

impl Graph {
    /// The graph of this ring.
    fn new(ring: Vec<Rank>) -> Self {
        let mut place = vec![0; ring.len()];
        for (at, rank) in (0..).zip(&ring) {
            place[rank.index()] = at;
        }
        Self { ring, place }
    }
    /// The rank `ahead` places after `rank` in the ring (0: itself).
    #[inline]
    #[must_use]
    pub fn after(&self, rank: Rank, ahead: u32) -> Rank {
        let n = self.ring.len() as u32;
        self.ring[((self.place[rank.index()] + ahead) % n) as usize]
    }
    /// The rank before `rank` in the ring.
    #[inline]
    #[must_use]
    pub fn before(&self, rank: Rank) -> Rank {
        self.after(rank, self.ring.len() as u32 - 1)
    }
    /// The parent of `rank` in the binary tree over the places of the ring; `None` for the first.
    #[must_use]
    pub fn parent(&self, rank: Rank) -> Option<Rank> {
        let place = self.place[rank.index()];
        (place > 0).then(|| self.ring[((place - 1) / 2) as usize])
    }
    /// The children of `rank` in that tree: two at most.
    pub fn children(&self, rank: Rank) -> impl Iterator<Item = Rank> + use<'_> {
        let first = 2 * self.place[rank.index()] as usize + 1;
        self.ring.iter().skip(first).take(2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_keep_hosts_together_and_groups_are_the_hosts() {
        let topology = Topology::new(&[7, 3, 7, 3, 5], 0);
        let graph = topology.graph(0);
        assert_eq!(graph.ring, [0, 2, 1, 3, 4].map(Rank));
        assert_eq!(graph.place, [0, 2, 1, 3, 4]);
        assert!(!topology.one_host() && Topology::new(&[4, 4], 1).one_host());
        assert_eq!((topology.nranks(), topology.channels(), topology.groups()), (5, 1, 3));
        assert_eq!((graph.after(Rank(0), 1), graph.after(Rank(4), 1)), (Rank(2), Rank(0)));
        assert_eq!((graph.before(Rank(0)), graph.before(Rank(1))), (Rank(4), Rank(2)));
        assert_eq!(
            (topology.group(Rank(3)), topology.members(GroupId(1))),
            (GroupId(1), &[Rank(1), Rank(3)][..])
        );
        assert_eq!(topology.leaders().collect::<Vec<_>>(), [0, 1, 4].map(Rank));
    }

    #[test]
    fn each_rank_but_the_first_is_a_child_of_its_parent() {
        for n in 1..=65 {
            let topology = Topology::new(&vec![1; n], 1);
            let graph = topology.graph(0);
            let mut children = 0;
            for rank in (0..n as u32).map(Rank) {
                children += graph.children(rank).count();
                let parent = graph.parent(rank);
                assert_eq!(parent.is_none(), rank == Rank(0));
                assert!(parent.is_none_or(|parent| graph.children(parent).any(|child| child == rank)));
            }
            assert_eq!(children, n - 1);
        }
    }
}
