//! What a call says in addition to its request: the factor of a pre-multiplied sum, and the counts
//! of blocks that differ.

use super::{Request, Sizes};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Borrowed, borrowed};
use crate::types::{CollKind, Rank};

/// What a call says in addition to its request. The caller lends it to the operation, like its
/// buffers.
#[derive(Clone, Copy, Default, Debug)]
pub struct CallTerms {
    /// This rank's factor of a pre-multiplied sum; [`Element`](crate::Element) says in which bits.
    pub factor: Option<u64>,
    /// Of an uneven call, the elements of each rank's block: of an all-to-all, of those that this
    /// rank sends.
    pub counts: Option<Borrowed<[usize]>>,
    /// Of an uneven all-to-all, the elements of the blocks that this rank receives.
    pub received: Option<Borrowed<[usize]>>,
}

/// CallTerms whose counts an operation owns. They stay where they are until it has ended.
#[derive(Debug)]
pub struct OwnedTerms {
    terms: CallTerms,
    // What `terms` points to. Moving a vector does not move its elements.
    _counts: [Option<Vec<usize>>; 2],
}

impl OwnedTerms {
    /// A factor, and the counts of blocks, if there are any: those that are sent, and those that
    /// are received.
    #[must_use]
    pub fn new(factor: Option<u64>, counts: [Option<&[usize]>; 2]) -> Self {
        let counts = counts.map(|counts| counts.map(<[usize]>::to_vec));
        let lend = |counts: &Option<Vec<usize>>| counts.as_ref().map(|counts| borrowed(&counts[..]));
        let terms = CallTerms { factor, counts: lend(&counts[0]), received: lend(&counts[1]) };
        Self { terms, _counts: counts }
    }

    /// The terms. What they borrow lives as long as this value.
    pub(crate) const fn terms(&self) -> &CallTerms {
        &self.terms
    }

    /// See [`CallTerms::sizing`].
    #[must_use]
    pub fn sizing(&self, request: &Request) -> Request {
        self.terms.sizing(request)
    }

    /// See [`CallTerms::sizes`].
    #[must_use]
    pub fn sizes(&self, request: &Request, nranks: u32, me: Rank) -> Sizes {
        self.terms.sizes(request, nranks, me)
    }
}

/// The blocks that a buffer consists of: one per rank, in rank order.
#[derive(Clone, Copy, Debug)]
pub enum Blocks<'a> {
    /// All have so many bytes.
    Equal(u64),
    /// So many elements of so many bytes each.
    Uneven(&'a [usize], u64),
}

impl Blocks<'_> {
    /// The bytes of a rank's block.
    #[inline]
    #[must_use]
    pub fn len(self, rank: Rank) -> u64 {
        match self {
            Self::Equal(bytes) => bytes,
            Self::Uneven(counts, size) => counts.get(rank.index()).map_or(0, |count| *count as u64 * size),
        }
    }

    /// Where a rank's block begins.
    #[inline]
    #[must_use]
    pub fn at(self, rank: Rank) -> u64 {
        match self {
            Self::Equal(bytes) => bytes * u64::from(rank.0),
            Self::Uneven(counts, size) => {
                counts.iter().take(rank.index()).map(|count| *count as u64).sum::<u64>() * size
            }
        }
    }

    /// The bytes of the longest block.
    #[inline]
    #[must_use]
    pub fn most(self) -> u64 {
        match self {
            Self::Equal(bytes) => bytes,
            Self::Uneven(counts, size) => counts.iter().max().map_or(0, |count| *count as u64) * size,
        }
    }

    /// The bytes of the blocks of so many ranks.
    #[must_use]
    pub fn all(self, nranks: u32) -> u64 {
        self.at(Rank(nranks))
    }
}

impl<'a> Blocks<'a> {
    /// The blocks of a call with a block per rank; of an all-to-all, those that this rank sends.
    #[inline]
    #[must_use]
    pub fn of(request: &Request, terms: Option<&'a CallTerms>) -> Self {
        Self::new(request, terms.and_then(|terms| terms.counts.as_ref()))
    }

    /// The blocks of an all-to-all that this rank receives.
    #[inline]
    #[must_use]
    pub fn received(request: &Request, terms: Option<&'a CallTerms>) -> Self {
        Self::new(request, terms.and_then(|terms| terms.received.as_ref()))
    }

    fn new(request: &Request, counts: Option<&'a Borrowed<[usize]>>) -> Self {
        match counts.filter(|_| request.uneven) {
            Some(counts) => Self::Uneven(counts, request.dtype.size() as u64),
            None => Self::Equal(request.bytes()),
        }
    }
}

impl CallTerms {
    /// The bytes that `me`, one of `nranks`, reads and writes.
    #[must_use]
    pub fn sizes(&self, request: &Request, nranks: u32, me: Rank) -> Sizes {
        if !request.uneven {
            return request.sizes(nranks, me);
        }
        let sent = Blocks::of(request, Some(self));
        let (own, all) = (sent.len(me), sent.all(nranks));
        match request.kind {
            CollKind::AllGather => Sizes { input: own, output: all },
            CollKind::ReduceScatter => Sizes { input: all, output: own },
            _ => Sizes { input: all, output: Blocks::received(request, Some(self)).all(nranks) },
        }
    }

    /// The request that decides how a call is shared out: of an uneven one that of equal blocks, as
    /// long as the longest. Of an all-to-all, whose ranks do not know each other's counts, it has
    /// none.
    #[must_use]
    pub fn sizing(&self, request: &Request) -> Request {
        let count = match (request.uneven, request.kind) {
            (false, _) => request.count,
            (true, CollKind::AllToAll) => 0,
            (true, _) => Blocks::of(request, Some(self)).most() / request.dtype.size() as u64,
        };
        Request { count, ..*request }
    }

    /// The hash of what must be equal on all ranks.
    #[must_use]
    pub fn hash(&self, request: &Request) -> u64 {
        let Some(counts) = self.counts.filter(|_| request.kind != CollKind::AllToAll) else { return 0 };
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        counts.iter().for_each(|count| hash.update(&(*count as u64).to_le_bytes()));
        hash.digest()
    }

    /// Refuses counts that no plan could execute.
    ///
    /// # Errors
    /// `Usage` unless there is one count per rank, and all bytes together fit 63 bits.
    pub fn check(&self, request: &Request, nranks: u32) -> Result<()> {
        let of_pairs = self.received.is_some();
        let named = [(&self.counts, if of_pairs { "sent " } else { "" }), (&self.received, "received ")];
        for (counts, which) in named.into_iter().filter_map(|(counts, which)| Some((counts.as_ref()?, which)))
        {
            if counts.len() != nranks as usize {
                let what = format!("{} {which}counts for {nranks} ranks", counts.len());
                return Err(Error::new(ErrorKind::Usage, what).hint("pass one count per rank"));
            }
            let all = counts.iter().try_fold(0_u64, |all, count| all.checked_add(*count as u64));
            let bytes = all.and_then(|all| all.checked_mul(request.dtype.size() as u64));
            if bytes.is_none_or(|bytes| bytes > i64::MAX as u64) {
                return Err(Error::new(ErrorKind::Usage, "the counts together are too many elements")
                    .hint("make several calls of fewer elements"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_one_after_another() {
        let counts = [3, 0, 5];
        let terms = CallTerms { counts: Some(borrowed(&counts[..])), ..CallTerms::default() };
        let request = Request { kind: CollKind::AllGather, uneven: true, count: 8, ..Request::barrier() };
        let blocks = Blocks::of(&request, Some(&terms));
        assert_eq!([0, 1, 2, 3].map(|rank| blocks.at(Rank(rank))), [0, 3, 3, 8]);
        assert_eq!([0, 1, 2].map(|rank| blocks.len(Rank(rank))), [3, 0, 5]);
        assert_eq!((blocks.most(), blocks.all(3)), (5, 8));
        assert_eq!(terms.sizes(&request, 3, Rank(1)), Sizes { input: 0, output: 8 });
        assert_eq!(terms.sizing(&request).count, 5);
        let scatter = Request { kind: CollKind::ReduceScatter, ..request };
        assert_eq!(terms.sizes(&scatter, 3, Rank(2)), Sizes { input: 8, output: 5 });
        assert!(terms.check(&request, 3).is_ok());
        assert!(terms.check(&request, 2).is_err());
        let most = [usize::MAX, 1, 1];
        assert!(CallTerms { counts: Some(borrowed(&most[..])), ..terms }.check(&request, 3).is_err());
    }

    #[test]
    fn only_what_all_ranks_say_alike_is_hashed() {
        let (one, other) = ([3, 4], [4, 3]);
        let terms = |counts: &[usize]| CallTerms { counts: Some(borrowed(counts)), ..CallTerms::default() };
        let request = Request { kind: CollKind::AllGather, uneven: true, count: 7, ..Request::barrier() };
        assert_ne!(terms(&one).hash(&request), terms(&other).hash(&request));
        let all_to_all = Request { kind: CollKind::AllToAll, count: 0, ..request };
        assert_eq!(terms(&one).hash(&all_to_all), terms(&other).hash(&all_to_all));
    }
}
