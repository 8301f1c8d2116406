//! Who calls what, and with how much: the blocks of the ranks, which may differ.

use ccl::{Rank, ReduceOp, Reduction};

use super::datum::Datum;
use super::inputs::multiplier;

/// Whether a call has one buffer for input and output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// It has two.
    OutOfPlace,
    /// It has one.
    InPlace,
}

/// How long the blocks of a call are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// All have `count` elements.
    Even,
    /// Each rank has a block of its own length.
    ByRank,
    /// Each pair of ranks has; in place it is the same in both directions.
    ByPair,
}

/// Lengths of consecutive blocks, one for each rank.
#[derive(Clone, Debug)]
pub struct BlockList {
    counts: Vec<usize>,
    /// Where each begins, and where the last one ends.
    starts: Vec<usize>,
}

/// A rank that makes a call.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The calling rank.
    pub rank: u32,
    /// The number of ranks.
    pub nranks: u32,
    /// The root, where there is one.
    pub root: u32,
    /// How elements are combined, where they are.
    pub op: ReduceOp,
    /// The blocks that it has for the ranks.
    pub sent: BlockList,
    /// The blocks that it gets from them.
    pub received: BlockList,
    /// Where in the input of each rank its own block begins.
    pub offered: Vec<usize>,
}

impl Sharing {
    /// The elements that one rank has for another one, if the mean is `count`.
    fn elements(self, placement: Placement, nranks: u32, [from, to]: [u32; 2], count: usize) -> usize {
        // Each row and each column of the matrix of pairs has each length once.
        let pair = match placement {
            Placement::OutOfPlace => to + nranks - from + 1,
            Placement::InPlace => from + to + 1,
        };
        match self {
            Self::Even => count,
            Self::ByRank => uneven(nranks, to, count),
            Self::ByPair => uneven(nranks, pair % nranks, count),
        }
    }
}

/// The elements of one of `nranks` uneven blocks, whose mean is `count`. From the last one on, one
/// has less and the next one has as many more: the first two have none and twice as many.
fn uneven(nranks: u32, block: u32, count: usize) -> usize {
    let from_last = nranks - 1 - block;
    if block == 0 && from_last.is_multiple_of(2) {
        return count;
    }
    let difference = count / [1, 3, 2][from_last as usize / 2 % 3];
    if from_last.is_multiple_of(2) { count - difference } else { count + difference }
}

impl BlockList {
    fn new(counts: Vec<usize>) -> Self {
        let mut starts = vec![0];
        starts.extend(counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        }));
        Self { counts, starts }
    }

    /// The elements of each block.
    #[must_use]
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// The elements of all blocks.
    #[must_use]
    pub fn all(&self) -> usize {
        self.starts[self.counts.len()]
    }

    /// Where the block of a rank begins.
    #[must_use]
    pub fn start(&self, rank: u32) -> usize {
        self.starts[rank as usize]
    }

    /// The rank whose block has the element at `index`, and which one of that block it is.
    #[must_use]
    pub fn find(&self, index: usize) -> (u32, usize) {
        // Empty blocks begin where the one behind them does.
        let block = self.starts.partition_point(|start| *start <= index) - 1;
        (block as u32, index - self.starts[block])
    }
}

impl Caller {
    /// A rank whose blocks have `count` elements, or as many in the mean; the root is rank 0, and
    /// the operator the sum.
    #[must_use]
    pub fn new(sharing: Sharing, placement: Placement, rank: u32, nranks: u32, count: usize) -> Self {
        let elements = |from, to| sharing.elements(placement, nranks, [from, to], count);
        let sent = BlockList::new((0..nranks).map(|other| elements(rank, other)).collect());
        let (received, offered) = match sharing {
            Sharing::Even | Sharing::ByRank => (sent.clone(), vec![sent.start(rank); nranks as usize]),
            Sharing::ByPair => (
                BlockList::new((0..nranks).map(|other| elements(other, rank)).collect()),
                (0..nranks).map(|other| (0..rank).map(|before| elements(other, before)).sum()).collect(),
            ),
        };
        Self { rank, nranks, root: 0, op: ReduceOp::Sum, sent, received, offered }
    }

    /// The root.
    #[must_use]
    pub const fn root(&self) -> Rank {
        Rank(self.root)
    }

    /// Whether it is the root.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.rank == self.root
    }

    /// The rank behind it, in a ring.
    #[must_use]
    pub const fn next(&self) -> Rank {
        Rank((self.rank + 1) % self.nranks)
    }

    /// The rank before it, in a ring.
    #[must_use]
    pub const fn previous(&self) -> Rank {
        Rank((self.rank + self.nranks - 1) % self.nranks)
    }

    /// How elements of this type are combined.
    #[must_use]
    pub fn reduction<T: Datum>(&self) -> Reduction<T> {
        match self.op {
            ReduceOp::PreMulSum => Reduction::pre_mul_sum(T::whole(multiplier(self.rank))),
            op => op.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACEMENTS: [Placement; 2] = [Placement::OutOfPlace, Placement::InPlace];

    #[test]
    fn uneven_blocks_have_the_mean_and_differ() {
        let blocks = |nranks, count| (0..nranks).map(|at| uneven(nranks, at, count)).collect::<Vec<_>>();
        assert_eq!(blocks(1, 6), [6]);
        assert_eq!(blocks(2, 6), [12, 0]);
        assert_eq!(blocks(5, 6), [6, 8, 4, 12, 0]);
        for nranks in 1..20 {
            for count in [0, 1, 2, 7, 100] {
                assert_eq!(blocks(nranks, count).iter().sum::<usize>(), nranks as usize * count);
            }
        }
    }

    #[test]
    fn what_one_rank_sends_another_one_receives() {
        for nranks in 1..10 {
            for placement in PLACEMENTS {
                let callers: Vec<Caller> = (0..nranks)
                    .map(|rank| Caller::new(Sharing::ByPair, placement, rank, nranks, 6))
                    .collect();
                for (me, caller) in callers.iter().enumerate() {
                    assert_eq!(
                        (caller.sent.all(), caller.received.all()),
                        (6 * callers.len(), 6 * callers.len())
                    );
                    for (other, peer) in callers.iter().enumerate() {
                        assert_eq!(caller.received.counts()[other], peer.sent.counts()[me]);
                        assert_eq!(caller.offered[other], peer.sent.start(me as u32));
                    }
                    let is_symmetric = caller.sent.counts() == caller.received.counts();
                    assert!(is_symmetric || placement == Placement::OutOfPlace);
                }
            }
        }
        let asymmetric = Caller::new(Sharing::ByPair, Placement::OutOfPlace, 0, 3, 6);
        assert_eq!(
            (asymmetric.sent.counts(), asymmetric.received.counts()),
            (&[12, 0, 6][..], &[12, 6, 0][..])
        );
    }

    #[test]
    fn elements_are_found_in_their_block() {
        let blocks = BlockList::new(vec![2, 0, 3, 0]);
        let found: Vec<_> = (0..blocks.all()).map(|index| blocks.find(index)).collect();
        assert_eq!(found, [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]);
    }
}
