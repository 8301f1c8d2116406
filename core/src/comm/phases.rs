//! The phases of making a communicator: told inline as they begin and end, shown in the recorder's row, kept in its ring as soon as it
//! has one. Each has the same times everywhere.

use std::time::Duration;

use crate::clock::{self, Ns, Raw};
use crate::event::{Event, publish_at};
use crate::observer::{self, Call, Observed};
use crate::recorder::{CommRow, EventRing};
use crate::types::Phase;

/// How far the making has come. Dropped before its end, the phase under way ends with it.
#[derive(Default, Debug)]
pub(super) struct Phases {
    under_way: Option<UnderWay>,
    /// Those that ended and are not in the ring yet.
    ended: Vec<Ended>,
}

#[derive(Debug)]
struct UnderWay {
    phase: Phase,
    began: Ns,
    observed: Observed,
}

#[derive(Debug)]
struct Ended {
    phase: Phase,
    at: Raw,
    duration: Duration,
}

impl Phases {
    /// The next one begins; the one before it has ended. Where there is no row yet, [`show`](Self::show) makes up for it.
    pub(super) fn begin(&mut self, phase: Phase, row: Option<&CommRow>) {
        self.end(row);
        // The first reading of a process takes longer than all others: it is not to stand between what an observer sees and what is recorded.
        let _ = clock::now();
        let observed = observer::begin(|| Call::Phase(phase));
        let (at, began) = (clock::raw(), clock::now());
        if let Some(row) = row {
            row.phase_began(phase, at);
        }
        self.under_way = Some(UnderWay { phase, began, observed });
    }

    /// The one under way, if one is, has ended.
    pub(super) fn end(&mut self, row: Option<&CommRow>) {
        let Some(UnderWay { phase, began, observed }) = self.under_way.take() else { return };
        drop(observed);
        let (at, duration) = (clock::raw(), clock::now().since(began));
        let ended = Ended { phase, at, duration };
        if let Some(row) = row {
            ended.show(row);
        }
        self.ended.push(ended);
    }

    /// Shows those that ended in a row that was made after them.
    pub(super) fn show(&self, row: &CommRow) {
        for ended in &self.ended {
            ended.show(row);
        }
    }

    /// Keeps those that ended.
    pub(super) fn publish(&mut self, events: &mut EventRing) {
        for Ended { phase, at, duration } in self.ended.drain(..) {
            publish_at(events, at, || Event::PhaseEnded { phase, duration_ns: duration.as_nanos() as u64 });
        }
    }
}

impl Ended {
    fn show(&self, row: &CommRow) {
        row.phase(self.phase, Ns(self.duration.as_nanos() as u64));
    }
}
