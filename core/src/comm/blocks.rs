//! The calls whose buffers have a block for each rank.
//!
//! Blocks lie one after another, in rank order. The uneven calls are told how many elements each
//! has: an all-gather and a reduce-scatter the counts of all ranks, which all ranks give alike; an
//! all-to-all what this rank sends to each rank and gets from each.

use crate::collective::{Request, Terms};
use crate::comm::driver::Asked;
use crate::comm::{Communicator, Reduction, request};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Element, View, ViewMut, borrowed, view_of, view_of_mut};
use crate::types::{CollKind, Rank, ReduceOp};

impl Communicator {
    /// Every rank's `output` becomes all ranks' `input`, in rank order.
    ///
    /// `output` is `nranks` times as long as `input`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let request = plain::<T>(CollKind::AllGather, Rank(0), input.len());
        self.spread("output", output.len(), &request)?;
        self.inner.call(Asked::new(request, view_of(input), view_of_mut(output)))
    }

    /// Like [`all_gather`](Self::all_gather), with this rank's input in its block of `buffer`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if `buffer` has no equal blocks.
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let request = self.in_blocks::<T>(CollKind::AllGather, ReduceOp::Sum, Rank(0), buffer.len())?;
        let (all, own) = self.blocks(buffer, request.count as usize);
        self.inner.call(Asked::new(request, own.read(), all))
    }

    /// Like [`all_gather`](Self::all_gather), of inputs of different lengths: `counts` has the
    /// elements of each rank's.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Mismatch` also if the ranks give different counts.
    pub fn all_gather_uneven<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<()> {
        let (request, terms) = self.uneven::<T>(CollKind::AllGather, ReduceOp::Sum, counts, None)?;
        self.inner.equal("input", input.len(), counts[self.rank().index()], &request)?;
        self.inner.equal("output", output.len(), total(counts), &request)?;
        self.inner.call(Asked::new(request, view_of(input), view_of_mut(output)).on(&terms))
    }

    /// Like [`all_gather_uneven`](Self::all_gather_uneven), with this rank's input in its block of
    /// `buffer`.
    ///
    /// # Errors
    /// As `all_gather_uneven`.
    pub fn all_gather_uneven_in_place<T: Element>(&self, buffer: &mut [T], counts: &[usize]) -> Result<()> {
        let (request, terms) = self.uneven::<T>(CollKind::AllGather, ReduceOp::Sum, counts, None)?;
        self.inner.equal("buffer", buffer.len(), total(counts), &request)?;
        let all = view_of_mut(buffer);
        let own = self.own_of::<T>(all, counts);
        self.inner.call(Asked::new(request, own.read(), all).on(&terms))
    }

    /// Rank r's `output` becomes block r of the reduction of all ranks' `input`.
    ///
    /// `input` is `nranks` times as long as `output`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        let op = op.into();
        let request = request::<T>(CollKind::ReduceScatter, op.op(), Rank(0), output.len());
        self.spread("input", input.len(), &request)?;
        self.combine(request, op, (view_of(input), view_of_mut(output)))
    }

    /// Like [`reduce_scatter`](Self::reduce_scatter), with the result in this rank's block of
    /// `buffer`.
    ///
    /// The other blocks are left as they were.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if `buffer` has no equal blocks.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        let op = op.into();
        let request = self.in_blocks::<T>(CollKind::ReduceScatter, op.op(), Rank(0), buffer.len())?;
        let (all, own) = self.blocks(buffer, request.count as usize);
        self.combine(request, op, (all.read(), own))
    }

    /// Like [`reduce_scatter`](Self::reduce_scatter), with outputs of different lengths: `counts`
    /// has the elements of each rank's.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Mismatch` also if the ranks give different counts.
    pub fn reduce_scatter_uneven<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        let op = op.into();
        let (request, terms) = self.uneven::<T>(CollKind::ReduceScatter, op.op(), counts, op.factor())?;
        self.inner.equal("input", input.len(), total(counts), &request)?;
        self.inner.equal("output", output.len(), counts[self.rank().index()], &request)?;
        self.inner.call(Asked::new(request, view_of(input), view_of_mut(output)).on(&terms))
    }

    /// Like [`reduce_scatter_uneven`](Self::reduce_scatter_uneven), with the result in this rank's
    /// block of `buffer`.
    ///
    /// The other blocks are left as they were.
    ///
    /// # Errors
    /// As `reduce_scatter_uneven`.
    pub fn reduce_scatter_uneven_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        counts: &[usize],
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        let op = op.into();
        let (request, terms) = self.uneven::<T>(CollKind::ReduceScatter, op.op(), counts, op.factor())?;
        self.inner.equal("buffer", buffer.len(), total(counts), &request)?;
        let all = view_of_mut(buffer);
        let own = self.own_of::<T>(all, counts);
        self.inner.call(Asked::new(request, all.read(), own).on(&terms))
    }

    /// Block r of every rank's `output` becomes the block that rank r's `input` has for it.
    ///
    /// Both have a block for each rank, and are equally long.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if there are no equal blocks.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let request = self.in_blocks::<T>(CollKind::AllToAll, ReduceOp::Sum, Rank(0), input.len())?;
        self.inner.equal("output", output.len(), input.len(), &request)?;
        self.inner.call(Asked::new(request, view_of(input), view_of_mut(output)))
    }

    /// Like [`all_to_all`](Self::all_to_all): what rank r sends takes the place of what was sent to
    /// it.
    ///
    /// # Errors
    /// As `all_to_all`.
    pub fn all_to_all_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let request = self.in_blocks::<T>(CollKind::AllToAll, ReduceOp::Sum, Rank(0), buffer.len())?;
        let view = view_of_mut(buffer);
        self.inner.call(Asked::new(request, view.read(), view))
    }

    /// Like [`all_to_all`](Self::all_to_all), with blocks of different lengths: `sent` has the
    /// elements for each rank, `received` those from each.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Mismatch` also if a rank sends another number of
    /// elements than this one expects from it.
    pub fn all_to_all_uneven<T: Element>(
        &self,
        (input, sent): (&[T], &[usize]),
        (output, received): (&mut [T], &[usize]),
    ) -> Result<()> {
        let (request, terms) = self.exchange::<T>(sent, received)?;
        self.inner.equal("input", input.len(), total(sent), &request)?;
        self.inner.equal("output", output.len(), total(received), &request)?;
        self.inner.call(Asked::new(request, view_of(input), view_of_mut(output)).on(&terms))
    }

    /// Like [`all_to_all_in_place`](Self::all_to_all_in_place), with blocks of different lengths:
    /// `counts` has the elements that are sent to each rank, and as many are received from it.
    ///
    /// # Errors
    /// As [`all_to_all_uneven`](Self::all_to_all_uneven).
    pub fn all_to_all_uneven_in_place<T: Element>(&self, buffer: &mut [T], counts: &[usize]) -> Result<()> {
        let (request, terms) = self.exchange::<T>(counts, counts)?;
        self.inner.equal("buffer", buffer.len(), total(counts), &request)?;
        let view = view_of_mut(buffer);
        self.inner.call(Asked::new(request, view.read(), view).on(&terms))
    }

    /// `root`'s `output` becomes all ranks' `input`, in rank order.
    ///
    /// There it is `nranks` times as long as `input`. That of the other ranks is not touched and may
    /// be empty.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if `root` is not a rank.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        let request = plain::<T>(CollKind::Gather, root, input.len());
        if self.rank() != root {
            return self.inner.call(Asked::new(request, view_of(input), ViewMut::EMPTY));
        }
        self.spread("output", output.len(), &request)?;
        self.inner.call(Asked::new(request, view_of(input), view_of_mut(output)))
    }

    /// Like [`gather`](Self::gather): at `root`, `buffer` has a block for each rank, and in its own
    /// the input; at the other ranks it is the input, and left as it was.
    ///
    /// # Errors
    /// As `gather`; `Usage` if the buffer of `root` has no equal blocks.
    pub fn gather_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        if self.rank() != root {
            return self.gather(buffer, &mut [], root);
        }
        let request = self.in_blocks::<T>(CollKind::Gather, ReduceOp::Sum, root, buffer.len())?;
        let (all, own) = self.blocks(buffer, request.count as usize);
        self.inner.call(Asked::new(request, own.read(), all))
    }

    /// Rank r's `output` becomes block r of the `input` of `root`.
    ///
    /// There it is `nranks` times as long as `output`. That of the other ranks is not read and may
    /// be empty.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if `root` is not a rank.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        let request = plain::<T>(CollKind::Scatter, root, output.len());
        if self.rank() != root {
            return self.inner.call(Asked::new(request, View::EMPTY, view_of_mut(output)));
        }
        self.spread("input", input.len(), &request)?;
        self.inner.call(Asked::new(request, view_of(input), view_of_mut(output)))
    }

    /// Like [`scatter`](Self::scatter): at `root`, `buffer` has a block for each rank, and is left as
    /// it was; at the other ranks it becomes their block.
    ///
    /// # Errors
    /// As `scatter`; `Usage` if the buffer of `root` has no equal blocks.
    pub fn scatter_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        if self.rank() != root {
            return self.scatter(&[], buffer, root);
        }
        let request = self.in_blocks::<T>(CollKind::Scatter, ReduceOp::Sum, root, buffer.len())?;
        let (all, own) = self.blocks(buffer, request.count as usize);
        self.inner.call(Asked::new(request, all.read(), own))
    }

    /// A request whose one buffer of `len` elements has an equal block for each rank.
    pub(super) fn in_blocks<T: Element>(
        &self,
        kind: CollKind,
        op: ReduceOp,
        root: Rank,
        len: usize,
    ) -> Result<Request> {
        let block = len / self.nranks() as usize;
        let request = request::<T>(kind, op, root, block);
        self.spread("buffer", len, &request)?;
        Ok(request)
    }

    /// Refuses a buffer that has not a block for each rank.
    fn spread(&self, what: &str, has: usize, request: &Request) -> Result<()> {
        let needs = (request.count as usize).saturating_mul(self.nranks() as usize);
        self.inner.equal(what, has, needs, request)
    }

    /// A request whose blocks have these counts, which all ranks give alike.
    pub(super) fn uneven<T: Element>(
        &self,
        kind: CollKind,
        op: ReduceOp,
        counts: &[usize],
        factor: Option<u64>,
    ) -> Result<(Request, Terms)> {
        let request = Request { uneven: true, ..request::<T>(kind, op, Rank(0), total(counts)) };
        let terms = Terms { factor, counts: Some(borrowed(counts)), received: None };
        terms.check(&request, self.nranks()).map_err(|error| self.inner.refused(&request, error))?;
        Ok((request, terms))
    }

    /// An all-to-all of this rank's own counts.
    pub(super) fn exchange<T: Element>(
        &self,
        sent: &[usize],
        received: &[usize],
    ) -> Result<(Request, Terms)> {
        let request = Request { uneven: true, ..plain::<T>(CollKind::AllToAll, Rank(0), 0) };
        let terms = Terms { factor: None, counts: Some(borrowed(sent)), received: Some(borrowed(received)) };
        terms.check(&request, self.nranks()).map_err(|error| self.inner.refused(&request, error))?;
        let own = self.rank().index();
        if sent[own] != received[own] {
            let what = format!(
                "{} elements are sent to this rank itself, and {} received",
                sent[own], received[own]
            );
            let error = Error::new(ErrorKind::Usage, what).hint("make both counts of the own rank alike");
            return Err(self.inner.refused(&request, error));
        }
        Ok((request, terms))
    }

    /// The blocks of an in-place buffer: the whole, and this rank's own block.
    fn blocks<T: Element>(&self, buffer: &mut [T], block: usize) -> (ViewMut, ViewMut) {
        let bytes = block * T::DTYPE.size();
        let all = view_of_mut(buffer);
        (all, all.part(self.rank().index() * bytes, bytes))
    }

    /// This rank's block of a buffer whose blocks have these counts.
    pub(super) fn own_of<T: Element>(&self, all: ViewMut, counts: &[usize]) -> ViewMut {
        let (me, size) = (self.rank().index(), T::DTYPE.size());
        all.part(total(&counts[..me]) * size, counts[me] * size)
    }
}

/// A request that combines nothing.
const fn plain<T: Element>(kind: CollKind, root: Rank, count: usize) -> Request {
    request::<T>(kind, ReduceOp::Sum, root, count)
}

/// The elements of all blocks. What is too large is refused by [`Terms::check`].
fn total(counts: &[usize]) -> usize {
    counts.iter().fold(0, |all, count| all.saturating_add(*count))
}
