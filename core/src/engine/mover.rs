//! What moves and combines the bytes of steps. A step begins, and ends at once or later.
//!
//! The processor ends a step where it begins it. A device (a GPU's copy engine, say) ends it later:
//! the engine keeps the step's messages and slots meanwhile, and polls for the end. Each program
//! has one step under way; those of different programs may end in any order.

use std::fmt;

use crate::memory::{View, ViewMut};
use crate::plan::Action;
use crate::reduce::{self, Scaling, Store};
use crate::transport::LinkFault;
use crate::types::{Datatype, ReduceOp};

/// The work of one step. All sources and destinations are equally long, and not empty.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// What the sources become.
    pub action: Action,
    /// The type of the elements.
    pub dtype: Datatype,
    /// How they are reduced.
    pub op: ReduceOp,
    /// What is done to them beside.
    pub scaling: Scaling,
    /// In the order of reduction.
    pub sources: &'a [View],
    /// Where the result goes, and how.
    pub destinations: &'a [(ViewMut, Store)],
}

/// Names work that a mover has begun and not ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WorkId(pub u64);

/// Does the work of steps.
pub trait Mover: fmt::Debug {
    /// Begins work. `None`: it is done. Otherwise the memory stays valid, and nobody else touches
    /// it, until [`poll`](Self::poll) returns true or [`stop`](Self::stop) has returned.
    fn begin(&mut self, work: Work<'_>) -> Option<WorkId>;

    /// Whether work has ended since it was begun. After it was, its name means nothing.
    ///
    /// # Errors
    /// Why it cannot end.
    fn poll(&mut self, id: WorkId) -> Result<bool, LinkFault>;

    /// Ends all work, done or not: nothing touches its memory any more.
    fn stop(&mut self);
}

/// The processor that turns the engine.
#[derive(Clone, Copy, Default, Debug)]
pub struct Processor;

impl Mover for Processor {
    #[inline(always)]
    fn begin(&mut self, work: Work<'_>) -> Option<WorkId> {
        work.run();
        None
    }

    fn poll(&mut self, _: WorkId) -> Result<bool, LinkFault> {
        Ok(true)
    }

    fn stop(&mut self) {}
}

impl Work<'_> {
    /// Does it here and now.
    #[inline(always)]
    pub fn run(&self) {
        match self.action {
            Action::Copy if self.scaling.is_none() => {
                for (to, how) in self.destinations {
                    reduce::copy(*to, self.sources[0], *how);
                }
            }
            // A copy of what is scaled reduces one source.
            Action::Copy | Action::Reduce | Action::ReduceLast => {
                let Self { op, dtype, scaling, sources, destinations, .. } = *self;
                reduce::combine((op, scaling), dtype, sources, destinations);
            }
        }
    }
}
