//! The required result of a request, element by element, in symbols.

use std::fmt;

use super::{ELEMENTS_MOST, RANKS_MOST};
use crate::collective::Request;
use crate::plan::{Step, Topology};
use crate::types::{CollKind, Rank};

/// The symbol of an element: its index, the ranks that have contributed to it, as bits, and whether
/// a step has said that these are all.
///
/// Without ranks, the index states what is wrong with the element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    element: u64,
    ranks: u64,
    is_last: bool,
}

impl Value {
    /// An element that no step has stored.
    pub const UNWRITTEN: Self = Self::of(0, 0);
    const MIXED: Self = Self::of(1, 0);
    const TWICE: Self = Self::of(2, 0);
    const AFTER: Self = Self::of(3, 0);
    const EARLY: Self = Self::of(4, 0);

    const fn of(element: u64, ranks: u64) -> Self {
        Self { element, ranks, is_last: false }
    }

    /// The symbol of a sum that its step says to be the last: `all` ranks must have contributed.
    pub(super) const fn last(self, all: u64) -> Self {
        if self.ranks == 0 {
            self
        } else if self.is_last {
            Self::AFTER
        } else if self.ranks == all {
            Self { is_last: true, ..self }
        } else {
            Self::EARLY
        }
    }

    /// The reduction of two symbols.
    pub(super) const fn plus(self, other: Self) -> Self {
        if self.ranks == 0 {
            self
        } else if other.ranks == 0 {
            other
        } else if self.element != other.element {
            Self::MIXED
        } else if self.ranks & other.ranks != 0 {
            Self::TWICE
        } else {
            Self::of(self.element, self.ranks | other.ranks)
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNWRITTEN => f.write_str("unwritten"),
            Self::MIXED => f.write_str("a sum of different elements"),
            Self::TWICE => f.write_str("a sum with one rank's contribution twice"),
            Self::AFTER => f.write_str("a last sum that is reduced again"),
            Self::EARLY => f.write_str("a last sum that lacks contributions"),
            Self { element, ranks, is_last } => {
                write!(f, "element {element} of ranks")?;
                (0..64).filter(|r| ranks >> r & 1 == 1).try_for_each(|r| write!(f, " {r}"))?;
                f.write_str(if is_last { ", the last sum" } else { "" })
            }
        }
    }
}

/// The call of all ranks that the programs must carry out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal<'a> {
    pub(super) topology: &'a Topology,
    /// The request. For send and receive it is the request of the sender.
    pub(super) request: &'a Request,
    /// The sender of a send and receive, else `None`. The root of the request is the receiver.
    pub(super) sender: Option<Rank>,
    /// The counts of an uneven request: of an all-to-all those that each rank sends, else of all
    /// blocks, once.
    pub(super) counts: &'a [Vec<usize>],
}

/// A rank's memory, in elements: where its input, its output and, behind both, its scratch memory
/// begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    /// Elements of input and output.
    pub(super) len: u64,
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) scratch: u64,
}

impl Goal<'_> {
    /// Checks that programs of this form can be verified for this request. The error is the reason.
    pub(super) fn suits(&self, programs: &[Vec<Vec<Step>>]) -> Result<(), String> {
        let n = self.topology.nranks();
        if self.request.kind.is_p2p() != self.sender.is_some() {
            return Err(format!("{} is not a collective", self.request.kind));
        }
        self.request.check(n).map_err(|e| e.what)?;
        if n > RANKS_MOST {
            return Err(format!("{n} ranks are more than can be verified, {RANKS_MOST}"));
        }
        if programs.len() != n as usize {
            return Err(format!("programs of {} ranks, not of {n}", programs.len()));
        }
        if programs.iter().any(|p| p.len() != programs[0].len()) {
            return Err("the ranks have different numbers of channels".to_owned());
        }
        if programs.iter().flatten().any(|p| p.len() > u32::MAX as usize) || programs[0].len() > 1024 {
            return Err("the programs are too long to be verified".to_owned());
        }
        let memory =
            |r: Rank| u128::from(self.place(r, false).len) + u128::from(self.scratch(&programs[r.index()]));
        let elements: u128 = (0..n).map(Rank).map(memory).sum();
        if elements > u128::from(ELEMENTS_MOST) {
            return Err(format!("{elements} elements are more than can be verified, {ELEMENTS_MOST}"));
        }
        Ok(())
    }

    /// The size of an element, in bytes.
    pub(super) const fn size(&self) -> u64 {
        self.request.dtype.size() as u64
    }

    /// The numbers of elements of the input and of the output of a rank.
    pub(super) fn sizes(&self, rank: Rank) -> (u64, u64) {
        if let Some(sender) = self.sender {
            let if_it_is = |r: Rank| if r == rank { self.request.count } else { 0 };
            return (if_it_is(sender), if_it_is(self.request.root));
        }
        let n = self.topology.nranks();
        match self.request.kind {
            _ if !self.request.uneven => {
                let sizes = self.request.sizes(n, rank);
                (sizes.input / self.size(), sizes.output / self.size())
            }
            CollKind::AllGather => (self.block(rank, rank), self.before(Rank(n), rank)),
            CollKind::ReduceScatter => (self.before(Rank(n), rank), self.block(rank, rank)),
            _ => (self.before(Rank(n), rank), self.received_before(Rank(n), rank)),
        }
    }

    /// The elements of the block of a rank; of an all-to-all, of what `from` sends it.
    fn block(&self, rank: Rank, from: Rank) -> u64 {
        match self.counts {
            [] => self.request.count,
            [all] => all[rank.index()] as u64,
            rows => rows[from.index()][rank.index()] as u64,
        }
    }

    /// The elements of the blocks before a rank's; of an all-to-all, of those that `from` sends.
    fn before(&self, rank: Rank, from: Rank) -> u64 {
        (0..rank.0).map(|before| self.block(Rank(before), from)).sum()
    }

    /// The elements of the blocks of the ranks before one that `to` gets in an all-to-all.
    fn received_before(&self, rank: Rank, to: Rank) -> u64 {
        (0..rank.0).map(|from| self.block(to, Rank(from))).sum()
    }

    /// Whether every two ranks send each other as much: only then blocks fit in place.
    fn is_symmetric(&self) -> bool {
        let ranks = || (0..self.topology.nranks()).map(Rank);
        ranks().all(|a| ranks().all(|b| self.block(a, b) == self.block(b, a)))
    }

    /// The memory layout of a rank.
    pub(super) fn place(&self, rank: Rank, in_place: bool) -> Buffers {
        let (input, output) = self.sizes(rank);
        let block = self.before(rank, rank);
        let at_root = if rank == self.request.root { block } else { 0 };
        let (len, input, output) = match self.request.kind {
            _ if !in_place => (input + output, 0, input),
            CollKind::AllGather => (output, block, 0),
            CollKind::ReduceScatter => (input, 0, block),
            CollKind::Gather => (input.max(output), at_root, 0),
            CollKind::Scatter => (input.max(output), 0, at_root),
            CollKind::AllToAll if self.request.uneven && !self.is_symmetric() => (input + output, 0, input),
            // A pair is two calls with one buffer each.
            CollKind::Send | CollKind::Recv => (input + output, 0, input),
            CollKind::AllReduce
            | CollKind::Broadcast
            | CollKind::Reduce
            | CollKind::Barrier
            | CollKind::AllToAll => (input.max(output), 0, 0),
        };
        Buffers { len, input, output, scratch: len }
    }

    /// Elements of scratch memory that programs of one rank use.
    pub(super) fn scratch(&self, programs: &[Vec<Step>]) -> u64 {
        super::scratch(programs).div_ceil(self.size())
    }

    /// The symbol of element `at` of the input of a rank.
    pub(super) fn given(&self, rank: Rank, at: u64) -> Value {
        let is_part = matches!(self.request.kind, CollKind::AllGather | CollKind::Gather);
        let before = if is_part { self.before(rank, rank) } else { 0 };
        Value::of(before + at, 1 << rank.0)
    }

    /// The symbol that element `at` of the output of a rank must have in the end.
    pub(super) fn wanted(&self, rank: Rank, at: u64) -> Value {
        let all = self.everyone();
        let reduced = |at| {
            let sum = Value::of(at, all);
            if self.topology.nranks() > 1 { sum.last(all) } else { sum }
        };
        match self.request.kind {
            CollKind::AllReduce | CollKind::Reduce | CollKind::Barrier => reduced(at),
            CollKind::ReduceScatter => reduced(self.before(rank, rank) + at),
            CollKind::AllGather | CollKind::Gather => {
                let (from, _) = self.owner(at, |owner| self.block(owner, owner));
                Value::of(at, 1 << from.0)
            }
            CollKind::AllToAll => {
                let (from, at) = self.owner(at, |from| self.block(rank, from));
                Value::of(self.before(rank, from) + at, 1 << from.0)
            }
            CollKind::Scatter => Value::of(self.before(rank, rank) + at, 1 << self.request.root.0),
            CollKind::Broadcast => Value::of(at, 1 << self.request.root.0),
            CollKind::Send | CollKind::Recv => Value::of(at, 1 << self.sender.unwrap_or_default().0),
        }
    }

    /// Whose block an element is in, and where there, if the blocks have these lengths.
    fn owner(&self, mut at: u64, len: impl Fn(Rank) -> u64) -> (Rank, u64) {
        for rank in (0..self.topology.nranks()).map(Rank) {
            let len = len(rank);
            if at < len {
                return (rank, at);
            }
            at -= len;
        }
        unreachable!("an element behind all blocks")
    }

    /// The ranks that a rank must have heard of, directly or through others, at its end, as bits.
    pub(super) fn heard(&self, rank: Rank) -> u64 {
        let root = self.request.root;
        match self.request.kind {
            CollKind::Broadcast | CollKind::Scatter => 1 << root.0,
            CollKind::Reduce | CollKind::Gather if rank != root => 0,
            CollKind::Send | CollKind::Recv if rank != root => 0,
            CollKind::Send | CollKind::Recv => 1 << self.sender.unwrap_or_default().0,
            CollKind::AllReduce
            | CollKind::AllGather
            | CollKind::ReduceScatter
            | CollKind::Reduce
            | CollKind::AllToAll
            | CollKind::Gather
            | CollKind::Barrier => self.everyone(),
        }
    }

    /// All ranks, as bits.
    pub(super) fn everyone(&self) -> u64 {
        u64::MAX >> (64 - self.topology.nranks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_the_last_once_and_of_all_ranks() {
        let (all, some) = (Value::of(7, 0b111), Value::of(7, 0b101));
        assert_eq!(all.last(0b111), Value { is_last: true, ..all });
        assert_eq!(some.last(0b111), Value::EARLY);
        assert_eq!(all.last(0b111).last(0b111), Value::AFTER);
    }
}
