//! The calls that own their buffers until they end.
//!
//! Each has one buffer, which is input and output. All begin without waiting for peers; the first
//! call that needs a connection to another host has it made while it is under way.

use crate::comm::call::Owning;
use crate::comm::{Collective, Communicator, Pending, Reduction, pending};
use crate::error::Result;
use crate::memory::{Element, Region};
use crate::types::Rank;

impl Communicator {
    /// Begins the call that `make` makes of a buffer, which it owns until it has ended.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` for what could not be carried out, and for a call
    /// of another buffer than the one that `make` is given.
    pub fn begin<'c, T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        make: impl for<'b> FnOnce(&'b mut [T]) -> Collective<'b, 'c>,
    ) -> Result<Pending<T>> {
        let mut region = buffer.into();
        let call = Owning::of(&self.inner, &mut region, make)?;
        pending::begin(&self.inner, &call, None, region)
    }

    /// Begins an all-reduce: the buffer becomes the reduction of all ranks' buffers.
    ///
    /// # Errors
    /// The failure of the communicator.
    pub fn all_reduce_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Pending<T>> {
        self.begin(buffer, |all| Collective::all_reduce_in_place(all, op))
    }

    /// Begins an all-gather. The buffer has one block per rank, in rank order; that of this rank is
    /// its input.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if the buffer has no equal blocks.
    pub fn all_gather_async<T: Element>(&self, buffer: impl Into<Region<T>>) -> Result<Pending<T>> {
        self.begin(buffer, |all| Collective::all_gather_in_place(all))
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
        self.begin(buffer, |all| Collective::all_gather_uneven_in_place(all, counts))
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
        self.begin(buffer, |all| Collective::reduce_scatter_in_place(all, op))
    }

    /// Like [`reduce_scatter_async`](Self::reduce_scatter_async), with blocks that have these
    /// counts.
    ///
    /// # Errors
    /// As [`reduce_scatter_uneven`](Self::reduce_scatter_uneven).
    pub fn reduce_scatter_uneven_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        counts: &[usize],
        op: impl Into<Reduction<T>>,
    ) -> Result<Pending<T>> {
        self.begin(buffer, |all| Collective::reduce_scatter_uneven_in_place(all, counts, op))
    }

    /// Begins an all-to-all. The buffer has a block for each rank: that for rank r is replaced by
    /// the one that rank r has for this rank.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if the buffer has no equal blocks.
    pub fn all_to_all_async<T: Element>(&self, buffer: impl Into<Region<T>>) -> Result<Pending<T>> {
        self.begin(buffer, |all| Collective::all_to_all_in_place(all))
    }

    /// Like [`all_to_all_async`](Self::all_to_all_async), with blocks that have these counts: as
    /// many elements as are sent to a rank are received from it.
    ///
    /// # Errors
    /// As [`all_to_all_uneven`](Self::all_to_all_uneven).
    pub fn all_to_all_uneven_async<T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        counts: &[usize],
    ) -> Result<Pending<T>> {
        self.begin(buffer, |all| Collective::all_to_all_uneven_in_place(all, counts))
    }

    /// Begins a gather. The buffer of `root` has a block for each rank, of which its own is the
    /// input; that of another rank is its input, and left as it was.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` if `root` is not a rank, or its buffer has no equal
    /// blocks.
    pub fn gather_async<T: Element>(&self, buffer: impl Into<Region<T>>, root: Rank) -> Result<Pending<T>> {
        self.begin(buffer, |all| Collective::gather_in_place(all, root))
    }

    /// Begins a scatter. The buffer of `root` has a block for each rank, and is left as it was;
    /// that of another rank becomes its block.
    ///
    /// # Errors
    /// As [`gather_async`](Self::gather_async).
    pub fn scatter_async<T: Element>(&self, buffer: impl Into<Region<T>>, root: Rank) -> Result<Pending<T>> {
        self.begin(buffer, |all| Collective::scatter_in_place(all, root))
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
        self.begin(buffer, |all| Collective::broadcast(all, root))
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
        self.begin(buffer, |all| Collective::reduce_in_place(all, op, root))
    }

    /// Begins a barrier: it ends when every rank has called it. The buffer that it gives is empty.
    ///
    /// # Errors
    /// The failure of the communicator.
    pub fn barrier_async(&self) -> Result<Pending<u8>> {
        self.begin(Region::from(Vec::new()), |_| Collective::barrier())
    }

    /// Begins to send a buffer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_async<T: Element>(&self, buffer: impl Into<Region<T>>, peer: Rank) -> Result<Pending<T>> {
        self.begin(buffer, |all| Collective::send(all, peer))
    }

    /// Begins to receive into a buffer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn recv_async<T: Element>(&self, buffer: impl Into<Region<T>>, peer: Rank) -> Result<Pending<T>> {
        self.begin(buffer, |all| Collective::recv(all, peer))
    }
}
