//! Where a rank stands in the tree of a communicator's hosts. Pure rank arithmetic.

use std::collections::BTreeMap;

use crate::types::Rank;

/// The most hosts below one host.
pub(super) const ARITY: usize = 8;

/// The hosts of a communicator, as one rank sees them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostTree {
    /// The ranks of each host, ascending; the hosts in the order of their lowest ranks.
    hosts: Vec<Vec<Rank>>,
    own: usize,
    rank: Rank,
}

impl HostTree {
    /// The tree as `rank` sees it. `hosts` has the host of each rank. `None` if there is one host
    /// only: nothing is to be gathered.
    pub(crate) fn new(hosts: &[u64], rank: Rank) -> Option<Self> {
        let mut order: BTreeMap<u64, usize> = BTreeMap::new();
        let mut ranks: Vec<Vec<Rank>> = Vec::new();
        for (at, host) in (0_u32..).zip(hosts) {
            let known = *order.entry(*host).or_insert(ranks.len());
            if known == ranks.len() {
                ranks.push(Vec::new());
            }
            ranks[known].push(Rank(at));
        }
        let own = ranks.iter().position(|those| those.contains(&rank))?;
        (ranks.len() > 1).then_some(Self { hosts: ranks, own, rank })
    }

    /// The lowest rank of each host.
    pub(crate) fn leaders(&self) -> Vec<Rank> {
        self.hosts.iter().map(|ranks| ranks[0]).collect()
    }

    /// Whether this rank is the lowest of its host.
    pub(super) fn is_leader(&self) -> bool {
        self.hosts[self.own][0] == self.rank
    }

    /// The leader to which this rank keeps a connection.
    pub(super) fn parent(&self) -> Option<Rank> {
        let parent = parent(self.own).filter(|_| self.is_leader())?;
        Some(self.hosts[parent][0])
    }

    /// The host of this rank.
    pub(super) const fn own(&self) -> usize {
        self.own
    }

    /// The ranks of a host; none if there is no such host.
    pub(super) fn ranks(&self, host: usize) -> &[Rank] {
        self.hosts.get(host).map_or(&[], Vec::as_slice)
    }

    /// The host of a rank.
    pub(super) fn host_of(&self, rank: Rank) -> Option<usize> {
        self.hosts.iter().position(|ranks| ranks.binary_search(&rank).is_ok())
    }

    /// The hosts that are neighbours of `host` in the tree: the one above it, and those below.
    pub(super) fn neighbours(&self, host: usize) -> Vec<usize> {
        let below = host * ARITY + 1..host * ARITY + 1 + ARITY;
        parent(host).into_iter().chain(below.filter(|below| *below < self.hosts.len())).collect()
    }
}

fn parent(host: usize) -> Option<usize> {
    Some(host.checked_sub(1)? / ARITY)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn leaders_are_the_lowest_ranks_and_one_host_has_no_tree() {
        let check = |hosts: &[u64], rank: u32, expect: Option<(&[u32], bool, Option<u32>)>| {
            let tree = HostTree::new(hosts, Rank(rank));
            let found = tree.as_ref().map(|tree| {
                let leaders: Vec<u32> = tree.leaders().iter().map(|rank| rank.0).collect();
                (leaders, tree.is_leader(), tree.parent().map(|rank| rank.0))
            });
            let expect = expect.map(|(leaders, is_leader, parent)| (leaders.to_vec(), is_leader, parent));
            assert_eq!(found, expect, "{hosts:?} {rank}");
        };
        check(&[7, 7, 7], 1, None);
        check(&[], 0, None);
        check(&[7, 7], 2, None);
        check(&[7, 7, 9, 9], 0, Some((&[0, 2], true, None)));
        check(&[7, 7, 9, 9], 1, Some((&[0, 2], false, None)));
        check(&[7, 7, 9, 9], 2, Some((&[0, 2], true, Some(0))));
        check(&[7, 9, 7, 9], 3, Some((&[0, 1], false, None)));
        // The tenth host is below the second.
        check(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 9, Some((&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], true, Some(1))));
    }

    #[test]
    fn a_leader_has_nine_neighbours_at_most_and_the_tree_reaches_all() {
        for count in 2..200_usize {
            let hosts: Vec<u64> = (0..count as u64).collect();
            let tree = HostTree::new(&hosts, Rank(0)).unwrap();
            let (mut reached, mut next) = (BTreeSet::from([0]), vec![0]);
            while let Some(host) = next.pop() {
                let neighbours = tree.neighbours(host);
                assert!(neighbours.len() <= ARITY + 1);
                for other in neighbours {
                    assert!(tree.neighbours(other).contains(&host), "both see the edge");
                    if reached.insert(other) {
                        next.push(other);
                    }
                }
            }
            assert_eq!(reached.len(), count);
        }
    }
}
