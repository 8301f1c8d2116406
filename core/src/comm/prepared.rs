//! Calls that are prepared once and carried out again and again: their lengths are checked and
//! their plan is chosen once. Between two runs the buffer is the caller's.

use std::sync::{Arc, Weak};

use crate::comm::call::Owning;
use crate::comm::driver::Asked;
use crate::comm::state::Inner;
use crate::comm::{Collective, Communicator, Pending, pending};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Element, Region};
use crate::plan::Shape;
use crate::types::Rank;

/// A call and its buffer, to be carried out any number of times.
///
/// Each run is an ordinary call: the other ranks may make it in any other way. Dropping it between
/// two runs drops the buffer; a run that was started goes on without it.
#[derive(Debug)]
pub struct Prepared<T: Element> {
    inner: Weak<Inner>,
    /// Its communicator's name and rank.
    of: (String, Rank),
    call: Owning,
    planned: (Shape, u64),
    /// `None` while a run is under way, and after one has failed.
    region: Option<Region<T>>,
    under_way: Option<Pending<T>>,
}

impl Communicator {
    /// Prepares the call that `make` makes of a buffer, to be carried out again and again.
    ///
    /// ```no_run
    /// # fn main() -> ccl::Result<()> {
    /// # let comm = ccl::Communicator::from_env()?;
    /// use ccl::{Collective, ReduceOp};
    /// let zeros = vec![0.0_f32; 1000];
    /// let mut sum = comm.prepare(zeros, |all| {
    ///     Collective::all_reduce_in_place(all, ReduceOp::Sum)
    /// })?;
    /// for step in 0..100 {
    ///     sum.buffer().fill(step as f32);
    ///     sum.run()?;
    /// }
    /// # comm.finish()
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Usage` for what could not be carried out, and for a call of another buffer than the one
    /// that `make` is given.
    pub fn prepare<'c, T: Element>(
        &self,
        buffer: impl Into<Region<T>>,
        make: impl for<'b> FnOnce(&'b mut [T]) -> Collective<'b, 'c>,
    ) -> Result<Prepared<T>> {
        let mut region = buffer.into();
        let call = Owning::of(&self.inner, &mut region, make)?;
        let asked = call.asked(region.view_mut());
        self.inner.check(&asked)?;
        let planned = {
            let mut driver = self.inner.driver()?;
            self.inner.plan(&mut driver, &asked.request, asked.terms.as_deref())
        };
        let (inner, of) = (Arc::downgrade(&self.inner), (self.inner.name.clone(), self.inner.rank));
        Ok(Prepared { inner, of, call, planned, region: Some(region), under_way: None })
    }
}

impl<T: Element> Prepared<T> {
    /// The buffer.
    ///
    /// # Panics
    /// While a run is under way, and after one has failed: then its content is undefined.
    pub fn buffer(&mut self) -> &mut [T] {
        self.region.as_mut().expect("no run is under way, and none has failed")
    }

    /// Carries the call out, and returns when it has ended.
    ///
    /// # Errors
    /// The failure of the communicator; `Usage` while a run is under way, after one has failed, and
    /// once this rank has called [`finish()`](Communicator::finish).
    pub fn run(&mut self) -> Result<()> {
        let (inner, mut region) = self.ready()?;
        let ran = inner.call(&self.asked(&mut region));
        // A call that was refused has not used the buffer.
        let is_kept = ran.as_ref().err().is_none_or(|error| error.kind == ErrorKind::Usage);
        self.region = is_kept.then_some(region);
        ran
    }

    /// Begins a run, which goes on while the caller does other work.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn start(&mut self) -> Result<()> {
        let (inner, region) = self.ready()?;
        self.under_way = Some(pending::begin(&inner, &self.call, Some(self.planned), region)?);
        Ok(())
    }

    /// Whether the run that was started has ended, well or not; true if none was.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.under_way.as_ref().is_none_or(Pending::is_done)
    }

    /// Waits until the run that was started has ended; returns at once if none was.
    ///
    /// # Errors
    /// The failure of the communicator.
    pub fn wait(&mut self) -> Result<()> {
        if let Some(pending) = self.under_way.take() {
            self.region = Some(pending.wait()?);
        }
        Ok(())
    }

    /// Gives the buffer back, between two runs. `None`: a run is under way, or has failed; then the
    /// buffer is lost.
    #[must_use]
    pub fn into_buffer(self) -> Option<Region<T>> {
        self.region
    }

    fn ready(&mut self) -> Result<(Arc<Inner>, Region<T>)> {
        let unfit = |what: &str, hint: &str| Error::new(ErrorKind::Usage, what).hint(hint);
        let (name, rank) = &self.of;
        let here = |error: Error| error.in_comm(name, *rank).in_op(self.call.request.kind, 0);
        let ended = || here(unfit("the communicator of this call has ended", "prepare it on another one"));
        let inner = self.inner.upgrade().ok_or_else(ended)?;
        match self.region.take() {
            Some(region) => Ok((inner, region)),
            None if self.under_way.is_some() => {
                Err(here(unfit("a run of this call is under way", "wait() for it first")))
            }
            None => Err(here(unfit("a run of this call has failed", "prepare it anew"))),
        }
    }

    fn asked(&self, region: &mut Region<T>) -> Asked {
        Asked { planned: Some(self.planned), ..self.call.asked(region.view_mut()) }
    }
}
