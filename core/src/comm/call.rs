//! A call as a value: which operation, with which memory of the caller's.
//!
//! The methods of a [`Communicator`](crate::Communicator) make one and carry it out at once. As
//! values, calls are put into a [`Group`](crate::Group), begun with a buffer that they own, or
//! prepared once and carried out again and again.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use crate::collective::{Blocks, CallTerms, OwnedTerms, Request, Sizes};
use crate::comm::Reduction;
use crate::comm::driver::Asked;
use crate::comm::state::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Element, Region, View, ViewMut, borrowed, view_of, view_of_mut};
use crate::types::{CollKind, Datatype, Rank, ReduceOp};

/// A call that is not made yet: a collective, a send or a receive.
///
/// The functions that make one take what the methods of these names of a
/// [`Communicator`](crate::Communicator) take, and lengths are checked when it is carried out. It
/// borrows buffers for `'a`, and counts of blocks for `'c`.
#[derive(Debug)]
#[must_use = "nothing is called yet"]
pub struct Collective<'a, 'c> {
    kind: CollKind,
    dtype: Datatype,
    op: ReduceOp,
    factor: Option<u64>,
    root: Rank,
    buffers: Buffers,
    counts: Option<&'c [usize]>,
    received: Option<&'c [usize]>,
    // The views borrow the caller's buffers.
    borrows: PhantomData<&'a mut ()>,
}

/// The memory of a call.
#[derive(Clone, Copy, Debug)]
enum Buffers {
    Two(View, ViewMut),
    /// One buffer, which is input and output.
    One(ViewMut),
}

impl<'a, 'c> Collective<'a, 'c> {
    fn new<T: Element>(kind: CollKind, buffers: Buffers) -> Self {
        Self {
            kind,
            dtype: T::DTYPE,
            op: ReduceOp::Sum,
            factor: None,
            root: Rank(0),
            buffers,
            counts: None,
            received: None,
            borrows: PhantomData,
        }
    }
    fn two<T: Element>(kind: CollKind, input: &'a [T], output: &'a mut [T]) -> Self {
        Self::new::<T>(kind, Buffers::Two(view_of(input), view_of_mut(output)))
    }
    fn one<T: Element>(kind: CollKind, buffer: &'a mut [T]) -> Self {
        Self::new::<T>(kind, Buffers::One(view_of_mut(buffer)))
    }
    fn by<T: Element>(self, op: impl Into<Reduction<T>>) -> Self {
        let op = op.into();
        Self { op: op.op(), factor: op.factor(), ..self }
    }
    const fn at(self, root: Rank) -> Self {
        Self { root, ..self }
    }
    const fn uneven(self, counts: &'c [usize]) -> Self {
        Self { counts: Some(counts), ..self }
    }

    /// See [`all_reduce`](crate::Communicator::all_reduce).
    pub fn all_reduce<T: Element>(input: &'a [T], output: &'a mut [T], op: impl Into<Reduction<T>>) -> Self {
        Self::two(CollKind::AllReduce, input, output).by(op)
    }
    /// See [`all_reduce_in_place`](crate::Communicator::all_reduce_in_place).
    pub fn all_reduce_in_place<T: Element>(buffer: &'a mut [T], op: impl Into<Reduction<T>>) -> Self {
        Self::one(CollKind::AllReduce, buffer).by(op)
    }
    /// See [`broadcast`](crate::Communicator::broadcast).
    pub fn broadcast<T: Element>(buffer: &'a mut [T], root: Rank) -> Self {
        Self::one(CollKind::Broadcast, buffer).at(root)
    }
    /// See [`reduce`](crate::Communicator::reduce).
    pub fn reduce<T: Element>(
        input: &'a [T],
        output: &'a mut [T],
        op: impl Into<Reduction<T>>,
        root: Rank,
    ) -> Self {
        Self::two(CollKind::Reduce, input, output).by(op).at(root)
    }
    /// See [`reduce_in_place`](crate::Communicator::reduce_in_place).
    pub fn reduce_in_place<T: Element>(buffer: &'a mut [T], op: impl Into<Reduction<T>>, root: Rank) -> Self {
        Self::one(CollKind::Reduce, buffer).by(op).at(root)
    }
    /// See [`barrier`](crate::Communicator::barrier).
    pub fn barrier() -> Self {
        Self::new::<u8>(CollKind::Barrier, Buffers::One(ViewMut::EMPTY))
    }
    /// See [`all_gather`](crate::Communicator::all_gather).
    pub fn all_gather<T: Element>(input: &'a [T], output: &'a mut [T]) -> Self {
        Self::two(CollKind::AllGather, input, output)
    }
    /// See [`all_gather_in_place`](crate::Communicator::all_gather_in_place).
    pub fn all_gather_in_place<T: Element>(buffer: &'a mut [T]) -> Self {
        Self::one(CollKind::AllGather, buffer)
    }
    /// See [`all_gather_uneven`](crate::Communicator::all_gather_uneven).
    pub fn all_gather_uneven<T: Element>(input: &'a [T], output: &'a mut [T], counts: &'c [usize]) -> Self {
        Self::two(CollKind::AllGather, input, output).uneven(counts)
    }
    /// See [`all_gather_uneven_in_place`](crate::Communicator::all_gather_uneven_in_place).
    pub fn all_gather_uneven_in_place<T: Element>(buffer: &'a mut [T], counts: &'c [usize]) -> Self {
        Self::one(CollKind::AllGather, buffer).uneven(counts)
    }
    /// See [`reduce_scatter`](crate::Communicator::reduce_scatter).
    pub fn reduce_scatter<T: Element>(
        input: &'a [T],
        output: &'a mut [T],
        op: impl Into<Reduction<T>>,
    ) -> Self {
        Self::two(CollKind::ReduceScatter, input, output).by(op)
    }
    /// See [`reduce_scatter_in_place`](crate::Communicator::reduce_scatter_in_place).
    pub fn reduce_scatter_in_place<T: Element>(buffer: &'a mut [T], op: impl Into<Reduction<T>>) -> Self {
        Self::one(CollKind::ReduceScatter, buffer).by(op)
    }
    /// See [`reduce_scatter_uneven`](crate::Communicator::reduce_scatter_uneven).
    pub fn reduce_scatter_uneven<T: Element>(
        input: &'a [T],
        output: &'a mut [T],
        counts: &'c [usize],
        op: impl Into<Reduction<T>>,
    ) -> Self {
        Self::two(CollKind::ReduceScatter, input, output).by(op).uneven(counts)
    }
    /// See [`reduce_scatter_uneven_in_place`](crate::Communicator::reduce_scatter_uneven_in_place).
    pub fn reduce_scatter_uneven_in_place<T: Element>(
        buffer: &'a mut [T],
        counts: &'c [usize],
        op: impl Into<Reduction<T>>,
    ) -> Self {
        Self::one(CollKind::ReduceScatter, buffer).by(op).uneven(counts)
    }
    /// See [`all_to_all`](crate::Communicator::all_to_all).
    pub fn all_to_all<T: Element>(input: &'a [T], output: &'a mut [T]) -> Self {
        Self::two(CollKind::AllToAll, input, output)
    }
    /// See [`all_to_all_in_place`](crate::Communicator::all_to_all_in_place).
    pub fn all_to_all_in_place<T: Element>(buffer: &'a mut [T]) -> Self {
        Self::one(CollKind::AllToAll, buffer)
    }
    /// See [`all_to_all_uneven`](crate::Communicator::all_to_all_uneven).
    pub fn all_to_all_uneven<T: Element>(
        input: &'a [T],
        sent: &'c [usize],
        output: &'a mut [T],
        received: &'c [usize],
    ) -> Self {
        Self { received: Some(received), ..Self::two(CollKind::AllToAll, input, output).uneven(sent) }
    }
    /// See [`all_to_all_uneven_in_place`](crate::Communicator::all_to_all_uneven_in_place).
    pub fn all_to_all_uneven_in_place<T: Element>(buffer: &'a mut [T], counts: &'c [usize]) -> Self {
        Self { received: Some(counts), ..Self::one(CollKind::AllToAll, buffer).uneven(counts) }
    }
    /// See [`gather`](crate::Communicator::gather).
    pub fn gather<T: Element>(input: &'a [T], output: &'a mut [T], root: Rank) -> Self {
        Self::two(CollKind::Gather, input, output).at(root)
    }
    /// See [`gather_in_place`](crate::Communicator::gather_in_place).
    pub fn gather_in_place<T: Element>(buffer: &'a mut [T], root: Rank) -> Self {
        Self::one(CollKind::Gather, buffer).at(root)
    }
    /// See [`scatter`](crate::Communicator::scatter).
    pub fn scatter<T: Element>(input: &'a [T], output: &'a mut [T], root: Rank) -> Self {
        Self::two(CollKind::Scatter, input, output).at(root)
    }
    /// See [`scatter_in_place`](crate::Communicator::scatter_in_place).
    pub fn scatter_in_place<T: Element>(buffer: &'a mut [T], root: Rank) -> Self {
        Self::one(CollKind::Scatter, buffer).at(root)
    }
    /// See [`send`](crate::Communicator::send).
    pub fn send<T: Element>(buffer: &'a [T], peer: Rank) -> Self {
        Self::new::<T>(CollKind::Send, Buffers::Two(view_of(buffer), ViewMut::EMPTY)).at(peer)
    }
    /// See [`recv`](crate::Communicator::recv).
    pub fn recv<T: Element>(buffer: &'a mut [T], peer: Rank) -> Self {
        Self::new::<T>(CollKind::Recv, Buffers::Two(View::EMPTY, view_of_mut(buffer))).at(peer)
    }

    /// What it says in addition to its request, if it says anything.
    pub(super) fn terms(&self) -> Option<CallTerms> {
        let Self { factor, .. } = *self;
        let (counts, received) = (self.counts.map(borrowed), self.received.map(borrowed));
        (factor.is_some() || counts.is_some()).then_some(CallTerms { factor, counts, received })
    }

    /// The call of this rank of a communicator, on its `terms`, which stay where they are until it
    /// has ended.
    ///
    /// # Errors
    /// `Usage` for lengths and counts that do not fit.
    pub(super) fn asked(&self, inner: &Inner, terms: Option<&CallTerms>) -> Result<Asked> {
        let request = self.request(inner);
        let refuse = |error: Error| error.in_comm(&inner.name, inner.rank).in_op(self.kind, 0);
        if let Some(terms) = terms {
            terms.check(&request, inner.nranks).map_err(refuse)?;
        }
        request.check(inner.nranks).map_err(refuse)?;
        self.equal_blocks(&request, inner).map_err(refuse)?;
        self.own_counts(inner).map_err(refuse)?;
        let sizes = match terms {
            Some(terms) => terms.sizes(&request, inner.nranks, inner.rank),
            None => request.sizes(inner.nranks, inner.rank),
        };
        let own = Blocks::of(&request, terms).at(inner.rank) as usize;
        let (input, output) = self.views(sizes, own, inner.rank).map_err(refuse)?;
        Ok(Asked { request, terms: terms.map(borrowed), input, output, planned: None })
    }

    fn request(&self, inner: &Inner) -> Request {
        let Self { kind, dtype, op, root, .. } = *self;
        let n = inner.nranks as usize;
        let elements = |bytes: usize| bytes / dtype.size();
        let is_root = inner.rank == root;
        let count = match (self.counts, self.buffers) {
            (Some(_), _) if kind == CollKind::AllToAll => 0,
            // `CallTerms::check` refuses a sum that is too large.
            (Some(counts), _) => counts.iter().fold(0, |all: usize, count| all.saturating_add(*count)),
            // Of a gather and a scatter only the buffer of the root has a block for each rank.
            (None, Buffers::One(buffer)) if kind.has_blocks() && (is_root || !kind.has_root()) => {
                elements(buffer.len()) / n
            }
            (None, Buffers::One(buffer)) => elements(buffer.len()),
            (None, Buffers::Two(input, output)) => match kind {
                CollKind::ReduceScatter | CollKind::Scatter | CollKind::Recv => elements(output.len()),
                CollKind::AllToAll => elements(input.len()) / n,
                _ => elements(input.len()),
            },
        };
        Request { kind, dtype, op, root, count: count as u64, uneven: self.counts.is_some() }
    }

    /// Refuses a buffer that has no equal blocks.
    fn equal_blocks(&self, request: &Request, inner: &Inner) -> Result<()> {
        let of = |what, len: usize| (what, len / self.dtype.size());
        let is_root = inner.rank == self.root || !self.kind.has_root();
        let (what, has) = match self.buffers {
            Buffers::One(buffer) if self.kind.has_blocks() && is_root => of("buffer", buffer.len()),
            Buffers::Two(input, _) if self.kind == CollKind::AllToAll => of("input", input.len()),
            Buffers::One(_) | Buffers::Two(..) => return Ok(()),
        };
        if request.uneven || has.is_multiple_of(inner.nranks as usize) {
            return Ok(());
        }
        let what = format!("{what} has {has} elements, which are no {} equal blocks", inner.nranks);
        let hint = match self.kind {
            CollKind::Gather | CollKind::Scatter => "pass a multiple of the number of ranks",
            _ => "pass a multiple of the number of ranks, or make the uneven call",
        };
        Err(Error::new(ErrorKind::Usage, what).hint(hint))
    }

    /// What a rank sends to itself, it receives.
    fn own_counts(&self, inner: &Inner) -> Result<()> {
        let (Some(sent), Some(received)) = (self.counts, self.received) else { return Ok(()) };
        let own = inner.rank.index();
        if sent[own] == received[own] {
            return Ok(());
        }
        let what =
            format!("{} elements are sent to this rank itself, and {} received", sent[own], received[own]);
        Err(Error::new(ErrorKind::Usage, what)
            .hint("make the counts that it sends to and receives from itself equal"))
    }

    /// What it reads and writes, which are so many bytes; in a buffer that has a block for each
    /// rank, that of this rank begins at `own`.
    fn views(&self, Sizes { input, output }: Sizes, own: usize, me: Rank) -> Result<(View, ViewMut)> {
        let equal = |what: &str, has: usize, needs: u64| {
            let size = self.dtype.size() as u64;
            if has as u64 == needs {
                return Ok(());
            }
            let (has, needs) = (has as u64 / size, needs / size);
            let what = format!("{what} has {has} elements where {needs} are needed");
            Err(Error::new(ErrorKind::Usage, what).hint("make the lengths fit"))
        };
        match self.buffers {
            Buffers::Two(from, to) => {
                // Only the root has both. What others pass beside is not touched.
                let is_other = self.kind.has_root() && me != self.root;
                let from = if is_other && input == 0 { View::EMPTY } else { from };
                let to = if is_other && output == 0 { ViewMut::EMPTY } else { to };
                equal("input", from.len(), input)?;
                equal("output", to.len(), output)?;
                Ok((from, to))
            }
            Buffers::One(all) => {
                equal("buffer", all.len(), input.max(output))?;
                let (reads, writes) = match input.cmp(&output) {
                    Ordering::Less => (own, 0),
                    Ordering::Equal => (0, 0),
                    Ordering::Greater => (0, own),
                };
                // A rank that only reads or only writes has the whole buffer for that.
                let from = if input == 0 { View::EMPTY } else { all.read().part(reads, input as usize) };
                let to = if output == 0 { ViewMut::EMPTY } else { all.part(writes, output as usize) };
                Ok((from, to))
            }
        }
    }

    /// The same, with copies of its counts.
    fn own_terms(&self) -> Option<OwnedTerms> {
        let counts = [self.counts, self.received];
        (self.factor.is_some() || self.counts.is_some()).then(|| OwnedTerms::new(self.factor, counts))
    }
}

/// A call whose one buffer its operation owns: what it reads and writes of that, as ranges of
/// bytes.
#[derive(Clone, Debug)]
pub(super) struct Owning {
    pub(super) request: Request,
    terms: Option<Arc<OwnedTerms>>,
    input: Range<usize>,
    output: Range<usize>,
}

impl Owning {
    /// What `make` makes of a buffer.
    ///
    /// # Errors
    /// `Usage` for lengths and counts that do not fit.
    pub(super) fn of<'c, T: Element>(
        inner: &Inner,
        region: &mut Region<T>,
        make: impl for<'b> FnOnce(&'b mut [T]) -> Collective<'b, 'c>,
    ) -> Result<Self> {
        let (base, all) = (region.as_ptr().addr(), size_of_val::<[T]>(region));
        let call = make(region);
        let terms = call.own_terms().map(Arc::new);
        let Asked { request, input, output, .. } =
            call.asked(inner, terms.as_deref().map(OwnedTerms::terms))?;
        let range = |at: *const u8, len: usize| {
            // What is empty may lie anywhere.
            let from = if len == 0 { Some(0) } else { at.addr().checked_sub(base) };
            let from = from.filter(|from| all.checked_sub(*from).is_some_and(|rest| len <= rest));
            from.map(|from| from..from + len).ok_or_else(|| {
                let error =
                    Error::new(ErrorKind::Usage, "the call is of another buffer than the one it is given");
                error
                    .hint("make it of what the closure gets")
                    .in_comm(&inner.name, inner.rank)
                    .in_op(request.kind, 0)
            })
        };
        let (input, output) = (range(input.as_ptr(), input.len())?, range(output.as_ptr(), output.len())?);
        Ok(Self { request, terms, input, output })
    }

    /// The call with this buffer. The caller keeps it and this value until the operation has ended.
    pub(super) fn asked(&self, all: ViewMut) -> Asked {
        let terms = self.terms.as_deref().map(|terms| borrowed(terms.terms()));
        // Devices read what is sent where it lies, if they can: they are lent the output.
        let is_send = self.request.kind == CollKind::Send;
        let (input, output) = (self.input.clone(), if is_send { &self.input } else { &self.output });
        let input = all.read().part(input.start, input.len());
        let output = all.part(output.start, output.len());
        Asked { request: self.request, terms, input, output, planned: None }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::comm::{Communicator, Config};
    use crate::config::{Key, Settings};

    #[test]
    fn a_communicator_has_checksums_if_the_setting_says_so() {
        for (value, expect) in [("0", false), ("1", true)] {
            let mut settings = Settings::default();
            for (key, value) in [(Key::Observe, "0"), (Key::Log, "NONE"), (Key::Checksum, value)] {
                settings.set(key, value).unwrap();
            }
            let (id, _root) = crate::bootstrap::root_task::create(&settings).unwrap();
            let config = Config { name: "test".into(), settings: Some(settings) };
            let comm = Communicator::init(&id, 0, 1, config).unwrap();
            assert_eq!(comm.inner.driver().unwrap().engine.has_checksums(), expect);
            // Devices are lent the whole of the data to send.
            let mut region = Region::from(vec![1_u8; 100]);
            let send = Owning::of(&comm.inner, &mut region, |all| Collective::send(&all[..60], Rank(0)));
            let asked = send.unwrap().asked(region.view_mut());
            assert_eq!((asked.input.len(), asked.output.len()), (60, 60));
            // A child has them, too.
            let child = comm.split(Some(0), 0, Config::default()).unwrap().unwrap();
            assert_eq!(child.inner.driver().unwrap().engine.has_checksums(), expect);
            child.finish().unwrap();
            comm.finish().unwrap();
        }
    }
}
