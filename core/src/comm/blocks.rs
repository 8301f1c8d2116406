//! The calls whose buffers have a block for each rank.
//!
//! Blocks lie one after another, in rank order. The uneven calls are told how many elements each
//! has: an all-gather and a reduce-scatter the counts of all ranks, which all ranks give alike; an
//! all-to-all what this rank sends to each rank and gets from each. A block of rank r has
//! `counts[r]` elements, and the buffer with all blocks their sum. What does not fit is refused as
//! `Usage`: a length, another number of counts than ranks, and in an all-to-all another count of
//! what a rank sends to itself than of what it receives.

use crate::comm::{Collective, Communicator, Reduction};
use crate::error::Result;
use crate::memory::Element;
use crate::types::Rank;

impl Communicator {
    /// Every rank's `output` becomes all ranks' `input`, in rank order.
    ///
    /// `output` is `nranks` times as long as `input`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.run(Collective::all_gather(input, output))
    }

    /// Like [`all_gather`](Self::all_gather), with this rank's input in its block of `buffer`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if `buffer` has no equal blocks.
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        self.run(Collective::all_gather_in_place(buffer))
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
        self.run(Collective::all_gather_uneven(input, output, counts))
    }

    /// Like [`all_gather_uneven`](Self::all_gather_uneven), with this rank's input in its block of
    /// `buffer`.
    ///
    /// # Errors
    /// As `all_gather_uneven`.
    pub fn all_gather_uneven_in_place<T: Element>(&self, buffer: &mut [T], counts: &[usize]) -> Result<()> {
        self.run(Collective::all_gather_uneven_in_place(buffer, counts))
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
        self.run(Collective::reduce_scatter(input, output, op))
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
        self.run(Collective::reduce_scatter_in_place(buffer, op))
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
        self.run(Collective::reduce_scatter_uneven(input, output, counts, op))
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
        self.run(Collective::reduce_scatter_uneven_in_place(buffer, counts, op))
    }

    /// Block r of every rank's `output` becomes the block that rank r's `input` has for it.
    ///
    /// Both have a block for each rank, and are equally long.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if there are no equal blocks.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.run(Collective::all_to_all(input, output))
    }

    /// Like [`all_to_all`](Self::all_to_all): the block for rank r is replaced by the one that rank
    /// r has for this rank.
    ///
    /// # Errors
    /// As `all_to_all`.
    pub fn all_to_all_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        self.run(Collective::all_to_all_in_place(buffer))
    }

    /// Like [`all_to_all`](Self::all_to_all), with blocks of different lengths: `sent` has the
    /// elements for each rank, `received` those from each.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Mismatch` also if a rank sends another number of
    /// elements than this one expects from it.
    pub fn all_to_all_uneven<T: Element>(
        &self,
        input: &[T],
        sent: &[usize],
        output: &mut [T],
        received: &[usize],
    ) -> Result<()> {
        self.run(Collective::all_to_all_uneven(input, sent, output, received))
    }

    /// Like [`all_to_all_in_place`](Self::all_to_all_in_place), with blocks of different lengths:
    /// `counts` has the elements that are sent to each rank, and as many are received from it.
    ///
    /// # Errors
    /// As [`all_to_all_uneven`](Self::all_to_all_uneven).
    pub fn all_to_all_uneven_in_place<T: Element>(&self, buffer: &mut [T], counts: &[usize]) -> Result<()> {
        self.run(Collective::all_to_all_uneven_in_place(buffer, counts))
    }

    /// `root`'s `output` becomes all ranks' `input`, in rank order.
    ///
    /// At `root`, `output` is `nranks` times as long as `input`; at the other ranks it is not
    /// touched and may be empty. The other ranks hear from no rank: that they named another root,
    /// or called something else, is found at a later call, at `finish()` at the latest.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if `root` is not a rank.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        self.run(Collective::gather(input, output, root))
    }

    /// Like [`gather`](Self::gather): at `root`, `buffer` has a block for each rank, and in its own
    /// the input; at the other ranks it is the input, and left as it was.
    ///
    /// # Errors
    /// As `gather`; `Usage` if the buffer of `root` has no equal blocks.
    pub fn gather_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        self.run(Collective::gather_in_place(buffer, root))
    }

    /// Rank r's `output` becomes block r of the `input` of `root`.
    ///
    /// At `root`, `input` is `nranks` times as long as `output`; at the other ranks it is not read
    /// and may be empty. The root hears from no rank: that others named another root, or called
    /// something else, is found at a later call, at `finish()` at the latest.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if `root` is not a rank.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        self.run(Collective::scatter(input, output, root))
    }

    /// Like [`scatter`](Self::scatter): at `root`, `buffer` has a block for each rank, and is left
    /// as it was; at the other ranks it becomes their block.
    ///
    /// # Errors
    /// As `scatter`; `Usage` if the buffer of `root` has no equal blocks.
    pub fn scatter_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        self.run(Collective::scatter_in_place(buffer, root))
    }
}
