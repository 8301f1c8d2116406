//! The table of what is measured: what each entry reads and writes, what its result is, and its
//! calls.
//!
//! Another one is another entry.

use ccl::{CollKind, Collective};

use super::caller::{BlockList, Caller, Sharing};
use super::datum::Datum;

/// How long a buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// The rank's own block.
    One,
    /// One block for each rank. In one buffer with a single block, that is the rank's own of these.
    Each,
    /// The same at the root; nothing elsewhere.
    AtRoot,
}

/// Where an element of a result comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It is the reduction of all ranks' inputs at this index.
    Reduced(usize),
    /// It is the input of a rank at an index.
    Copied(u32, usize),
    /// It is what it was before.
    Kept,
}

/// One call, or two that end only together.
pub type Calls<'a, 'c> = [Option<Collective<'a, 'c>>; 2];
/// Makes the calls with an input and an output.
pub type TwoBuffers<T> = for<'a, 'c> fn(&'c Caller, &'a [T], &'a mut [T]) -> Calls<'a, 'c>;
/// Makes the call with one buffer for both.
pub type OneBuffer<T> = for<'a, 'c> fn(&'c Caller, &'a mut [T]) -> Collective<'a, 'c>;

/// One entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct Entry<T: Datum> {
    /// Its name in nccl-tests, in words.
    pub name: &'static str,
    /// What its bandwidth and its columns follow from.
    pub kind: CollKind,
    /// How long its blocks are.
    pub sharing: Sharing,
    /// How long its input is.
    pub input: Extent,
    /// How long its output is.
    pub output: Extent,
    /// Where an element of a rank's output comes from.
    pub origin: fn(&Caller, usize) -> Origin,
    /// Its calls; `None` where ccl has none.
    pub two: Option<TwoBuffers<T>>,
    /// As above.
    pub one: Option<OneBuffer<T>>,
}

impl Extent {
    /// The number of elements, of these blocks.
    #[must_use]
    pub fn elements(self, caller: &Caller, blocks: &BlockList) -> usize {
        match self {
            Self::One => blocks.counts()[caller.rank as usize],
            Self::AtRoot if !caller.is_root() => 0,
            Self::Each | Self::AtRoot => blocks.all(),
        }
    }
}

/// A block of each rank's input, one behind the other.
fn gathered(caller: &Caller, index: usize) -> Origin {
    let (rank, index) = caller.received.find(index);
    Origin::Copied(rank, index)
}

/// Of each rank's input the block for this rank.
fn exchanged(caller: &Caller, index: usize) -> Origin {
    let (rank, index) = caller.received.find(index);
    Origin::Copied(rank, caller.offered[rank as usize] + index)
}

/// The rank's block of the reduction.
fn reduced_block(caller: &Caller, index: usize) -> Origin {
    Origin::Reduced(caller.sent.start(caller.rank) + index)
}

const fn one<'a, 'c>(call: Collective<'a, 'c>) -> Calls<'a, 'c> {
    [Some(call), None]
}

/// The names of all.
pub fn names() -> impl Iterator<Item = &'static str> {
    table::<u8>().into_iter().map(|entry| entry.name)
}

/// All, for elements of one type.
#[must_use]
pub fn table<T: Datum>() -> Vec<Entry<T>> {
    [&even()[..], &rooted(), &pairwise(), &uneven()].concat()
}

fn even<T: Datum>() -> [Entry<T>; 3] {
    [
        Entry {
            name: "all_reduce",
            kind: CollKind::AllReduce,
            sharing: Sharing::Even,
            input: Extent::One,
            output: Extent::One,
            origin: |_, index| Origin::Reduced(index),
            two: Some(|at, input, output| one(Collective::all_reduce(input, output, at.reduction::<T>()))),
            one: Some(|at, buffer| Collective::all_reduce_in_place(buffer, at.reduction::<T>())),
        },
        Entry {
            name: "all_gather",
            kind: CollKind::AllGather,
            sharing: Sharing::Even,
            input: Extent::One,
            output: Extent::Each,
            origin: gathered,
            two: Some(|_, input, output| one(Collective::all_gather(input, output))),
            one: Some(|_, buffer| Collective::all_gather_in_place(buffer)),
        },
        Entry {
            name: "reduce_scatter",
            kind: CollKind::ReduceScatter,
            sharing: Sharing::Even,
            input: Extent::Each,
            output: Extent::One,
            origin: reduced_block,
            two: Some(|at, input, output| {
                one(Collective::reduce_scatter(input, output, at.reduction::<T>()))
            }),
            one: Some(|at, buffer| Collective::reduce_scatter_in_place(buffer, at.reduction::<T>())),
        },
    ]
}

fn rooted<T: Datum>() -> [Entry<T>; 4] {
    [
        Entry {
            name: "broadcast",
            kind: CollKind::Broadcast,
            sharing: Sharing::Even,
            input: Extent::One,
            output: Extent::One,
            origin: |at, index| Origin::Copied(at.root, index),
            two: None,
            one: Some(|at, buffer| Collective::broadcast(buffer, at.root())),
        },
        Entry {
            name: "reduce",
            kind: CollKind::Reduce,
            sharing: Sharing::Even,
            input: Extent::One,
            output: Extent::One,
            origin: |at, index| if at.is_root() { Origin::Reduced(index) } else { Origin::Kept },
            two: Some(|at, input, output| {
                one(Collective::reduce(input, output, at.reduction::<T>(), at.root()))
            }),
            one: Some(|at, buffer| Collective::reduce_in_place(buffer, at.reduction::<T>(), at.root())),
        },
        Entry {
            name: "gather",
            kind: CollKind::Gather,
            sharing: Sharing::Even,
            input: Extent::One,
            output: Extent::AtRoot,
            origin: gathered,
            two: Some(|at, input, output| one(Collective::gather(input, output, at.root()))),
            one: Some(|at, buffer| Collective::gather_in_place(buffer, at.root())),
        },
        Entry {
            name: "scatter",
            kind: CollKind::Scatter,
            sharing: Sharing::Even,
            input: Extent::AtRoot,
            output: Extent::One,
            origin: |at, index| Origin::Copied(at.root, at.sent.start(at.rank) + index),
            two: Some(|at, input, output| one(Collective::scatter(input, output, at.root()))),
            one: Some(|at, buffer| Collective::scatter_in_place(buffer, at.root())),
        },
    ]
}

fn pairwise<T: Datum>() -> [Entry<T>; 2] {
    [
        Entry {
            name: "send_recv",
            kind: CollKind::Send,
            sharing: Sharing::Even,
            input: Extent::One,
            output: Extent::One,
            origin: |at, index| Origin::Copied(at.previous().0, index),
            two: Some(|at, input, output| {
                [Collective::send(input, at.next()), Collective::recv(output, at.previous())].map(Some)
            }),
            one: None,
        },
        Entry {
            name: "alltoall",
            kind: CollKind::AllToAll,
            sharing: Sharing::Even,
            input: Extent::Each,
            output: Extent::Each,
            origin: exchanged,
            two: Some(|_, input, output| one(Collective::all_to_all(input, output))),
            one: Some(|_, buffer| Collective::all_to_all_in_place(buffer)),
        },
    ]
}

fn uneven<T: Datum>() -> [Entry<T>; 3] {
    [
        Entry {
            name: "all_gatherv",
            kind: CollKind::AllGather,
            sharing: Sharing::ByRank,
            input: Extent::One,
            output: Extent::Each,
            origin: gathered,
            two: Some(|at, input, output| {
                one(Collective::all_gather_uneven(input, output, at.received.counts()))
            }),
            one: Some(|at, buffer| Collective::all_gather_uneven_in_place(buffer, at.received.counts())),
        },
        Entry {
            name: "reduce_scatterv",
            kind: CollKind::ReduceScatter,
            sharing: Sharing::ByRank,
            input: Extent::Each,
            output: Extent::One,
            origin: reduced_block,
            two: Some(|at, input, output| {
                one(Collective::reduce_scatter_uneven(input, output, at.sent.counts(), at.reduction::<T>()))
            }),
            one: Some(|at, buffer| {
                Collective::reduce_scatter_uneven_in_place(buffer, at.sent.counts(), at.reduction::<T>())
            }),
        },
        Entry {
            name: "alltoallv",
            kind: CollKind::AllToAll,
            sharing: Sharing::ByPair,
            input: Extent::Each,
            output: Extent::Each,
            origin: exchanged,
            two: Some(|at, input, output| {
                let (sent, received) = (at.sent.counts(), at.received.counts());
                one(Collective::all_to_all_uneven(input, sent, output, received))
            }),
            one: Some(|at, buffer| Collective::all_to_all_uneven_in_place(buffer, at.sent.counts())),
        },
    ]
}
