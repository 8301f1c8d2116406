//! Sends and receives that progress together, so that no order of calls on the ranks can deadlock.

use crate::collective::Request;
use crate::comm::state::Inner;
use crate::error::Result;
use crate::memory::{Element, View, ViewMut, view_of, view_of_mut};
use crate::types::{CollKind, Rank, ReduceOp};

/// Collects sends and receives; [`run`](Self::run) carries all of them out side by side.
///
/// If the group is dropped without `run`, none is carried out.
#[derive(Debug)]
pub struct Group<'a> {
    inner: &'a Inner,
    calls: Vec<(Request, View, ViewMut)>,
    // The views borrow the callers' buffers until `run` has returned.
    buffers: std::marker::PhantomData<&'a mut ()>,
}

impl<'a> Group<'a> {
    pub(crate) const fn new(inner: &'a Inner) -> Self {
        Self { inner, calls: Vec::new(), buffers: std::marker::PhantomData }
    }

    /// Adds a send.
    pub fn send<T: Element>(&mut self, buffer: &'a [T], peer: Rank) -> &mut Self {
        let request = request::<T>(CollKind::Send, peer, buffer.len());
        self.calls.push((request, view_of(buffer), ViewMut::EMPTY));
        self
    }

    /// Adds a receive.
    pub fn recv<T: Element>(&mut self, buffer: &'a mut [T], peer: Rank) -> &mut Self {
        let request = request::<T>(CollKind::Recv, peer, buffer.len());
        self.calls.push((request, View::EMPTY, view_of_mut(buffer)));
        self
    }

    /// Carries out all sends and receives; returns when all have ended.
    ///
    /// # Errors
    /// As [`Communicator::send`](crate::comm::Communicator::send).
    pub fn run(self) -> Result<()> {
        self.inner.call_all(&self.calls)
    }
}

const fn request<T: Element>(kind: CollKind, peer: Rank, len: usize) -> Request {
    Request { kind, dtype: T::DTYPE, op: ReduceOp::Sum, root: peer, count: len as u64 }
}
