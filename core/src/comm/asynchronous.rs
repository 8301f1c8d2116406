//! The calls that own their buffers until they end.
//!
//! Each has one buffer, which is input and output. All begin without waiting for peers; the first
//! call that needs a connection to another host has it made while it is under way.

use crate::collective::Request;
use crate::comm::{Communicator, Pending, pending, request};
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
        op: ReduceOp,
    ) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = request::<T>(CollKind::AllReduce, op, Rank(0), buffer.len());
        pending::begin(&self.inner, request, buffer, whole)
    }

    /// Begins an all-gather. The buffer has one block per rank, in rank order; that of this rank is
    /// its input.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if the buffer has no equal blocks.
    pub fn all_gather_async<T: Element>(&self, buffer: impl Into<Region<T>>) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = self.of_blocks::<T>(CollKind::AllGather, ReduceOp::Sum, &buffer)?;
        let own = self.own_block::<T>(&request);
        pending::begin(&self.inner, request, buffer, |all| (own(all).read(), all))
    }

    /// Begins a reduce-scatter. The buffer has one block per rank, in rank order; that of this rank
    /// becomes the reduction of all ranks' blocks in its place. The others are left as they were.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if the buffer has no equal blocks.
    pub fn reduce_scatter_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        op: ReduceOp,
    ) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = self.of_blocks::<T>(CollKind::ReduceScatter, op, &buffer)?;
        let own = self.own_block::<T>(&request);
        pending::begin(&self.inner, request, buffer, |all| (all.read(), own(all)))
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
        pending::begin(&self.inner, request, buffer, whole)
    }

    /// Begins a reduce: the buffer of `root` becomes the reduction of all ranks' buffers. The
    /// others are left as they were.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if `root` is not a rank.
    pub fn reduce_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = request::<T>(CollKind::Reduce, op, root, buffer.len());
        let is_root = self.rank() == root;
        let views = |all: ViewMut| (all.read(), if is_root { all } else { ViewMut::EMPTY });
        pending::begin(&self.inner, request, buffer, views)
    }

    /// Begins a barrier: it ends when every rank has called it. The buffer that it gives is empty.
    ///
    /// # Errors
    /// The failure of the communicator.
    pub fn barrier_async(&self) -> Result<Pending<u8>> {
        let views = |_: ViewMut| (View::EMPTY, ViewMut::EMPTY);
        pending::begin(&self.inner, Request::barrier(), Region::from(Vec::new()), views)
    }

    /// Begins to send a buffer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_async<T: Element>(&self, buffer: impl Into<Region<T>>, peer: Rank) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = request::<T>(CollKind::Send, ReduceOp::Sum, peer, buffer.len());
        pending::begin(&self.inner, request, buffer, whole)
    }

    /// Begins to receive into a buffer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn recv_async<T: Element>(&self, buffer: impl Into<Region<T>>, peer: Rank) -> Result<Pending<T>> {
        let buffer = buffer.into();
        let request = request::<T>(CollKind::Recv, ReduceOp::Sum, peer, buffer.len());
        pending::begin(&self.inner, request, buffer, whole)
    }

    /// A request whose buffer has an equal block for each rank.
    fn of_blocks<T: Element>(&self, kind: CollKind, op: ReduceOp, buffer: &Region<T>) -> Result<Request> {
        let block = buffer.len() / self.nranks() as usize;
        let request = request::<T>(kind, op, Rank(0), block);
        self.inner.equal("buffer", buffer.len(), block * self.nranks() as usize, &request)?;
        Ok(request)
    }

    /// This rank's block of such a buffer.
    fn own_block<T: Element>(&self, request: &Request) -> impl Fn(ViewMut) -> ViewMut + use<T> {
        let bytes = request.count as usize * T::DTYPE.size();
        let at = self.rank().index() * bytes;
        move |all| all.part(at, bytes)
    }
}

/// A buffer that is input and output.
const fn whole(all: ViewMut) -> (View, ViewMut) {
    (all.read(), all)
}
