//! A mover for tests: work ends later than it began, and not in the order in which it began.

use arrayvec::ArrayVec;

use crate::engine::{Mover, Work, WorkId};
use crate::memory::{View, ViewMut};
use crate::plan::{MAX_DESTINATIONS, MAX_SOURCES};
use crate::reduce::Store;
use crate::seed::Seed;
use crate::transport::LinkFault;

/// The most polls that work takes.
const POLLS: usize = 6;

/// Work that has begun.
#[derive(Debug)]
struct Begun {
    id: WorkId,
    /// Polls until it is done.
    polls: usize,
    work: Work<'static>,
    sources: ArrayVec<View, MAX_SOURCES>,
    destinations: ArrayVec<(ViewMut, Store), MAX_DESTINATIONS>,
}

/// Moves the bytes of a step when its end is found, after a number of polls that a seed draws.
#[derive(Debug)]
pub struct Late {
    numbers: Seed,
    next: u64,
    under_way: Vec<Begun>,
    /// How often work ended before other work that began earlier.
    pub overtaken: u64,
}

impl Late {
    /// Draws from this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { numbers: Seed(seed), next: 0, under_way: Vec::new(), overtaken: 0 }
    }
}

impl Mover for Late {
    fn begin(&mut self, work: Work<'_>) -> Option<WorkId> {
        // Some work ends at once, as a device's may.
        let polls = self.numbers.place(POLLS);
        if polls == 0 {
            work.run();
            return None;
        }
        self.next += 1;
        let id = WorkId(self.next);
        self.under_way.push(Begun {
            id,
            polls,
            sources: work.sources.iter().copied().collect(),
            destinations: work.destinations.iter().copied().collect(),
            work: Work { sources: &[], destinations: &[], ..work },
        });
        Some(id)
    }

    fn poll(&mut self, id: WorkId) -> Result<bool, LinkFault> {
        let at = self.under_way.iter().position(|begun| begun.id == id).expect("work that has begun");
        let begun = &mut self.under_way[at];
        begun.polls -= 1;
        if begun.polls > 0 {
            return Ok(false);
        }
        let Begun { work, sources, destinations, .. } = self.under_way.remove(at);
        Work { sources: &sources, destinations: &destinations, ..work }.run();
        self.overtaken += u64::from(at > 0);
        Ok(true)
    }

    fn stop(&mut self) {
        self.under_way.clear();
    }
}
