//! The required result of a request, element by element, in symbols.

use std::fmt;

use super::{ELEMENTS_MOST, RANKS_MOST};
use crate::collective::Request;
use crate::plan::{Step, Topology};
use crate::types::{CollKind, Rank};

/// The symbol of an element: its index, and the ranks that have contributed to it, as bits.
///
/// Without ranks, the index states what is wrong with the element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    element: u64,
    ranks: u64,
}

impl Value {
    /// An element that no step has stored.
    pub const UNWRITTEN: Self = Self { element: 0, ranks: 0 };
    const MIXED: Self = Self { element: 1, ranks: 0 };
    const TWICE: Self = Self { element: 2, ranks: 0 };

    const fn of(element: u64, ranks: u64) -> Self {
        Self { element, ranks }
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
            Self { element: self.element, ranks: self.ranks | other.ranks }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNWRITTEN => f.write_str("unwritten"),
            Self::MIXED => f.write_str("a sum of different elements"),
            Self::TWICE => f.write_str("a sum with one rank's contribution twice"),
            Self { element, ranks } => {
                write!(f, "element {element} of ranks")?;
                (0..64).filter(|r| ranks >> r & 1 == 1).try_for_each(|r| write!(f, " {r}"))
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
        let sizes = self.request.sizes(self.topology.nranks(), rank);
        (sizes.input / self.size(), sizes.output / self.size())
    }

    /// The memory layout of a rank.
    pub(super) fn place(&self, rank: Rank, in_place: bool) -> Buffers {
        let (input, output) = self.sizes(rank);
        let block = u64::from(rank.0) * self.request.count;
        let (len, input, output) = match self.request.kind {
            _ if !in_place => (input + output, 0, input),
            CollKind::AllGather => (output, block, 0),
            CollKind::ReduceScatter => (input, 0, block),
            // A pair is two calls with one buffer each.
            CollKind::Send | CollKind::Recv => (input + output, 0, input),
            CollKind::AllReduce | CollKind::Broadcast | CollKind::Reduce | CollKind::Barrier => {
                (input.max(output), 0, 0)
            }
        };
        Buffers { len, input, output, scratch: len }
    }

    /// Elements of scratch memory that programs of one rank use.
    pub(super) fn scratch(&self, programs: &[Vec<Step>]) -> u64 {
        super::scratch(programs).div_ceil(self.size())
    }

    /// The symbol of element `at` of the input of a rank.
    pub(super) fn given(&self, rank: Rank, at: u64) -> Value {
        let block = if self.request.kind == CollKind::AllGather { self.request.count } else { 0 };
        Value::of(u64::from(rank.0) * block + at, 1 << rank.0)
    }

    /// The symbol that element `at` of the output of a rank must have in the end.
    pub(super) fn wanted(&self, rank: Rank, at: u64) -> Value {
        let count = self.request.count;
        match self.request.kind {
            CollKind::AllReduce | CollKind::Reduce | CollKind::Barrier => Value::of(at, self.everyone()),
            CollKind::ReduceScatter => Value::of(u64::from(rank.0) * count + at, self.everyone()),
            CollKind::AllGather => Value::of(at, 1 << (at / count)),
            CollKind::Broadcast => Value::of(at, 1 << self.request.root.0),
            CollKind::Send | CollKind::Recv => Value::of(at, 1 << self.sender.unwrap_or_default().0),
        }
    }

    /// The ranks that a rank must have heard of, directly or through others, at its end, as bits.
    pub(super) fn heard(&self, rank: Rank) -> u64 {
        let root = self.request.root;
        match self.request.kind {
            CollKind::Broadcast => 1 << root.0,
            CollKind::Reduce if rank != root => 0,
            CollKind::Send | CollKind::Recv if rank != root => 0,
            CollKind::Send | CollKind::Recv => 1 << self.sender.unwrap_or_default().0,
            CollKind::AllReduce
            | CollKind::AllGather
            | CollKind::ReduceScatter
            | CollKind::Reduce
            | CollKind::Barrier => self.everyone(),
        }
    }

    fn everyone(&self) -> u64 {
        u64::MAX >> (64 - self.topology.nranks())
    }
}
