//! The calls that own their buffers until they end.
//!
//! Each has one buffer, which is input and output. All begin without waiting for peers; the first
//! call that needs a connection to another host has it made while it is under way.

use crate::collective::{OwnTerms, Request};
use crate::comm::{Communicator, Pending, Reduction, pending, request};
use crate::error::Result;
use crate::memory::{Element, Region, View, ViewMut};
use crate::types::{CollKind, Rank, ReduceOp};

impl Communicator {
    /// Begins an all-reduce: the buffer becomes the reduction of all ranks' buffers.
    ///
    /// # Errors
    /// The failure of the communicator.
    pub fn all_reduce_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let op = op.into();
        let request = request::<T>(CollKind::AllReduce, op.op(), Rank(0), buffer.len());
        pending::begin(&self.inner, (request, factor(op)), buffer, whole)
    }

    /// Begins an all-gather. The buffer has one block per rank, in rank order; that of this rank is
    /// its input.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if the buffer has no equal blocks.
    pub fn all_gather_async<T: Element>(&self, buffer: impl Into<Region<T>>) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = self.in_blocks::<T>(CollKind::AllGather, ReduceOp::Sum, Rank(0), buffer.len())?;
        let own = self.own_block::<T>(&request);
        pending::begin(&self.inner, (request, None), buffer, |all| (own(all).read(), all))
    }

    /// Like [`all_gather_async`](Self::all_gather_async), of blocks that have these counts.
    ///
    /// # Errors
    /// As [`all_gather_uneven`](Self::all_gather_uneven).
    pub fn all_gather_uneven_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        counts: &[usize],
    ) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let (request, _) = self.uneven::<T>(CollKind::AllGather, ReduceOp::Sum, counts, None)?;
        self.inner.equal("buffer", buffer.len(), request.count as usize, &request)?;
        let terms = Some(OwnTerms::new(None, [counts, &[]]));
        let views = |all| (self.own_of::<T>(all, counts).read(), all);
        pending::begin(&self.inner, (request, terms), buffer, views)
    }

    /// Begins a reduce-scatter. The buffer has one block per rank, in rank order; that of this rank
    /// becomes the reduction of all ranks' blocks in its place. The others are left as they were.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if the buffer has no equal blocks.
    pub fn reduce_scatter_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let op = op.into();
        let request = self.in_blocks::<T>(CollKind::ReduceScatter, op.op(), Rank(0), buffer.len())?;
        let own = self.own_block::<T>(&request);
        pending::begin(&self.inner, (request, factor(op)), buffer, |all| (all.read(), own(all)))
    }

    /// Like [`reduce_scatter_async`](Self::reduce_scatter_async), with blocks that have these counts.
    ///
    /// # Errors
    /// As [`reduce_scatter_uneven`](Self::reduce_scatter_uneven).
    pub fn reduce_scatter_uneven_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        counts: &[usize],
        op: impl Into<Reduction<T>>,
    ) -> Result<Pending<T>> {
        let (buffer, op) = (buffer.into(), op.into());
        let (request, _) = self.uneven::<T>(CollKind::ReduceScatter, op.op(), counts, op.factor())?;
        self.inner.equal("buffer", buffer.len(), request.count as usize, &request)?;
        let terms = Some(OwnTerms::new(op.factor(), [counts, &[]]));
        let views = |all: ViewMut| (all.read(), self.own_of::<T>(all, counts));
        pending::begin(&self.inner, (request, terms), buffer, views)
    }

    /// Begins an all-to-all. The buffer has a block for each rank; in its place comes the block that
    /// this rank has for this one.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if the buffer has no equal blocks.
    pub fn all_to_all_async<T: Element>(&self, buffer: impl Into<Region<T>>) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = self.in_blocks::<T>(CollKind::AllToAll, ReduceOp::Sum, Rank(0), buffer.len())?;
        pending::begin(&self.inner, (request, None), buffer, whole)
    }

    /// Like [`all_to_all_async`](Self::all_to_all_async), with blocks that have these counts: as many
    /// elements as are sent to a rank are received from it.
    ///
    /// # Errors
    /// As [`all_to_all_uneven`](Self::all_to_all_uneven).
    pub fn all_to_all_uneven_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        counts: &[usize],
    ) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let (request, terms) = self.exchange::<T>(counts, counts)?;
        let needs = terms.sizes(&request, self.nranks(), self.rank()).input as usize / T::DTYPE.size();
        self.inner.equal("buffer", buffer.len(), needs, &request)?;
        let terms = Some(OwnTerms::new(None, [counts, counts]));
        pending::begin(&self.inner, (request, terms), buffer, whole)
    }

    /// Begins a gather. The buffer of `root` has a block for each rank, of which its own is the input;
    /// that of another rank is its input, and left as it was.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if `root` is not a rank, or its buffer has no equal
    /// blocks.
    pub fn gather_async<T: Element>(&self, buffer: impl Into<Region<T>>, root: Rank) -> Result<Pending<T>> {
        let buffer = buffer.into();
        if self.rank() != root {
            let request = request::<T>(CollKind::Gather, ReduceOp::Sum, root, buffer.len());
            return pending::begin(&self.inner, (request, None), buffer, |all| (all.read(), ViewMut::EMPTY));
        }
        let request = self.in_blocks::<T>(CollKind::Gather, ReduceOp::Sum, root, buffer.len())?;
        let own = self.own_block::<T>(&request);
        pending::begin(&self.inner, (request, None), buffer, |all| (own(all).read(), all))
    }

    /// Begins a scatter. The buffer of `root` has a block for each rank, and is left as it was; that
    /// of another rank becomes its block.
    ///
    /// # Errors
    /// As [`gather_async`](Self::gather_async).
    pub fn scatter_async<T: Element>(&self, buffer: impl Into<Region<T>>, root: Rank) -> Result<Pending<T>> {
        let buffer = buffer.into();
        if self.rank() != root {
            let request = request::<T>(CollKind::Scatter, ReduceOp::Sum, root, buffer.len());
            return pending::begin(&self.inner, (request, None), buffer, |all| (View::EMPTY, all));
        }
        let request = self.in_blocks::<T>(CollKind::Scatter, ReduceOp::Sum, root, buffer.len())?;
        let own = self.own_block::<T>(&request);
        pending::begin(&self.inner, (request, None), buffer, |all| (all.read(), own(all)))
    }

    /// Begins a broadcast: the buffer becomes that of `root`.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if `root` is not a rank.
    pub fn broadcast_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        root: Rank,
    ) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = request::<T>(CollKind::Broadcast, ReduceOp::Sum, root, buffer.len());
        pending::begin(&self.inner, (request, None), buffer, whole)
    }

    /// Begins a reduce: the buffer of `root` becomes the reduction of all ranks' buffers. The
    /// others are left as they were.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if `root` is not a rank.
    pub fn reduce_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        op: impl Into<Reduction<T>>,
        root: Rank,
    ) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let op = op.into();
        let request = request::<T>(CollKind::Reduce, op.op(), root, buffer.len());
        let is_root = self.rank() == root;
        let views = |all: ViewMut| (all.read(), if is_root { all } else { ViewMut::EMPTY });
        pending::begin(&self.inner, (request, factor(op)), buffer, views)
    }

    /// Begins a barrier: it ends when every rank has called it. The buffer that it gives is empty.
    ///
    /// # Errors
    /// The failure of the communicator.
    pub fn barrier_async(&self) -> Result<Pending<u8>> {
        let views = |_: ViewMut| (View::EMPTY, ViewMut::EMPTY);
        pending::begin(&self.inner, (Request::barrier(), None), Region::from(Vec::new()), views)
    }

    /// Begins to send a buffer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_async<T: Element>(&self, buffer: impl Into<Region<T>>, peer: Rank) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = request::<T>(CollKind::Send, ReduceOp::Sum, peer, buffer.len());
        pending::begin(&self.inner, (request, None), buffer, whole)
    }

    /// Begins to receive into a buffer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn recv_async<T: Element>(&self, buffer: impl Into<Region<T>>, peer: Rank) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = request::<T>(CollKind::Recv, ReduceOp::Sum, peer, buffer.len());
        pending::begin(&self.inner, (request, None), buffer, whole)
    }

    /// This rank's block of a buffer that has an equal one for each rank.
    fn own_block<T: Element>(&self, request: &Request) -> impl Fn(ViewMut) -> ViewMut + use<T> {
        let bytes = request.count as usize * T::DTYPE.size();
        let at = self.rank().index() * bytes;
        move |all| all.part(at, bytes)
    }
}

/// The terms of a call that combines elements so.
fn factor<T: Element>(op: Reduction<T>) -> Option<OwnTerms> {
    op.factor().map(|factor| OwnTerms::new(Some(factor), [&[], &[]]))
}

/// A buffer that is input and output.
const fn whole(all: ViewMut) -> (View, ViewMut) {
    (all.read(), all)
}
