//! The collectives, as a table: what each reads and writes, what its result is, and the calls.
//!
//! Another one is another entry.

use ccl::{CollKind, Communicator, Element, Pending, Rank, ReduceOp, Region, Result};

/// Who calls what, and with how much.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The calling rank.
    pub rank: u32,
    /// The number of ranks.
    pub nranks: u32,
    /// The root, where there is one.
    pub root: u32,
    /// How elements are combined, where they are.
    pub op: ReduceOp,
    /// Elements of one block.
    pub count: usize,
}

/// How long a buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// One block.
    One,
    /// One block for each rank. In one buffer with a single block, that is the rank's own of these.
    Each,
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

/// A call with an input and an output.
pub type OutOfPlace<T> = fn(&Communicator, &[T], &mut [T], &Caller) -> Result<()>;
/// A call with one buffer for both.
pub type InPlace<T> = fn(&Communicator, &mut [T], &Caller) -> Result<()>;
/// Begins a call with two buffers that it owns.
pub type BeginOutOfPlace<T> = fn(&Communicator, [Region<T>; 2], &Caller) -> Result<[Pending<T>; 2]>;
/// Begins a call with one buffer that it owns.
pub type BeginInPlace<T> = fn(&Communicator, Region<T>, &Caller) -> Result<Pending<T>>;

/// One entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct Collective<T: Element> {
    /// Its name in nccl-tests, in words.
    pub name: &'static str,
    /// What its bandwidth and its columns follow from.
    pub kind: CollKind,
    /// The fewest ranks that it works with.
    pub least_ranks: u32,
    /// How long its input is.
    pub input: Extent,
    /// How long its output is.
    pub output: Extent,
    /// Where an element of a rank's output comes from.
    pub origin: fn(&Caller, usize) -> Origin,
    /// Its calls; `None` where ccl has none.
    pub out_of_place: Option<OutOfPlace<T>>,
    /// As above.
    pub in_place: Option<InPlace<T>>,
    /// As above.
    pub begin_out_of_place: Option<BeginOutOfPlace<T>>,
    /// As above.
    pub begin_in_place: Option<BeginInPlace<T>>,
}

impl Extent {
    /// The number of elements.
    #[must_use]
    pub const fn elements(self, caller: &Caller) -> usize {
        match self {
            Self::One => caller.count,
            Self::Each => caller.count * caller.nranks as usize,
        }
    }
}

impl Caller {
    const fn root(&self) -> Rank {
        Rank(self.root)
    }
    const fn next(&self) -> Rank {
        Rank((self.rank + 1) % self.nranks)
    }
    const fn previous(&self) -> Rank {
        Rank((self.rank + self.nranks - 1) % self.nranks)
    }
    /// What only the root gets.
    const fn at_root(&self, origin: Origin) -> Origin {
        if self.rank == self.root { origin } else { Origin::Kept }
    }
}

/// The names of all.
pub fn names() -> impl Iterator<Item = &'static str> {
    table::<u8>().into_iter().map(|collective| collective.name)
}

/// All, for elements of one type.
#[must_use]
pub fn table<T: Element>() -> [Collective<T>; 6] {
    [
        Collective {
            name: "all_reduce",
            kind: CollKind::AllReduce,
            least_ranks: 1,
            input: Extent::One,
            output: Extent::One,
            origin: |_, index| Origin::Reduced(index),
            out_of_place: Some(|comm, input, output, at| comm.all_reduce(input, output, at.op)),
            in_place: Some(|comm, buffer, at| comm.all_reduce_in_place(buffer, at.op)),
            begin_out_of_place: None,
            begin_in_place: Some(|comm, buffer, at| comm.all_reduce_async(buffer, at.op)),
        },
        Collective {
            name: "all_gather",
            kind: CollKind::AllGather,
            least_ranks: 1,
            input: Extent::One,
            output: Extent::Each,
            origin: |at, index| Origin::Copied((index / at.count) as u32, index % at.count),
            out_of_place: Some(|comm, input, output, _| comm.all_gather(input, output)),
            in_place: Some(|comm, buffer, _| comm.all_gather_in_place(buffer)),
            begin_out_of_place: None,
            begin_in_place: Some(|comm, buffer, _| comm.all_gather_async(buffer)),
        },
        Collective {
            name: "reduce_scatter",
            kind: CollKind::ReduceScatter,
            least_ranks: 1,
            input: Extent::Each,
            output: Extent::One,
            origin: |at, index| Origin::Reduced(at.rank as usize * at.count + index),
            out_of_place: Some(|comm, input, output, at| comm.reduce_scatter(input, output, at.op)),
            in_place: Some(|comm, buffer, at| comm.reduce_scatter_in_place(buffer, at.op)),
            begin_out_of_place: None,
            begin_in_place: Some(|comm, buffer, at| comm.reduce_scatter_async(buffer, at.op)),
        },
        Collective {
            name: "broadcast",
            kind: CollKind::Broadcast,
            least_ranks: 1,
            input: Extent::One,
            output: Extent::One,
            origin: |at, index| Origin::Copied(at.root, index),
            out_of_place: None,
            in_place: Some(|comm, buffer, at| comm.broadcast(buffer, at.root())),
            begin_out_of_place: None,
            begin_in_place: Some(|comm, buffer, at| comm.broadcast_async(buffer, at.root())),
        },
        Collective {
            name: "reduce",
            kind: CollKind::Reduce,
            least_ranks: 1,
            input: Extent::One,
            output: Extent::One,
            origin: |at, index| at.at_root(Origin::Reduced(index)),
            out_of_place: Some(|comm, input, output, at| comm.reduce(input, output, at.op, at.root())),
            in_place: Some(|comm, buffer, at| comm.reduce_in_place(buffer, at.op, at.root())),
            begin_out_of_place: None,
            begin_in_place: Some(|comm, buffer, at| comm.reduce_async(buffer, at.op, at.root())),
        },
        Collective {
            name: "send_recv",
            kind: CollKind::Send,
            least_ranks: 2,
            input: Extent::One,
            output: Extent::One,
            origin: |at, index| Origin::Copied(at.previous().0, index),
            out_of_place: Some(|comm, input, output, at| {
                let mut group = comm.group();
                group.send(input, at.next()).recv(output, at.previous());
                group.run()
            }),
            in_place: None,
            begin_out_of_place: Some(|comm, [input, output], at| {
                Ok([comm.send_async(input, at.next())?, comm.recv_async(output, at.previous())?])
            }),
            begin_in_place: None,
        },
    ]
}
