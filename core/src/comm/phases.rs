//! The phases of init: logged as they begin and end, shown in the recorder's row, and recorded as
//! events once all are known. A phase has the same times in all three.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use crate::clock::{self, Ns, Raw};
use crate::config::Settings;
use crate::diagnose;
use crate::event::{Event, publish_at};
use crate::notice::{self, Level};
use crate::observer::{self, Call, Observed};
use crate::recorder::{CommRow, Events};
use crate::types::Phase;

/// What the joining thread shows, and whether it is to give up.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The phase under way, plus 1; 0: none.
    phase: AtomicU8,
    cancelled: AtomicBool,
}

impl Watch {
    pub(super) fn begins(&self, phase: Phase) {
        self.phase.store(phase as u8 + 1, Ordering::Relaxed);
    }
    pub(super) fn phase(&self) -> Option<Phase> {
        let phase = self.phase.load(Ordering::Relaxed);
        Phase::ALL.iter().copied().find(|one| *one as u8 + 1 == phase)
    }
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// The progress of init. If it is dropped early, the phase under way ends with it.
#[derive(Default, Debug)]
pub(super) struct Phases {
    under_way: Option<UnderWay>,
    /// The phases that ended and are not in the ring yet.
    ended: Vec<Ended>,
    /// The duration of each phase.
    took: Vec<(Phase, Duration)>,
    /// Whether each phase is logged as it begins and ends.
    is_told: bool,
    /// Who polls the state of an init that does not block.
    watch: Option<Arc<Watch>>,
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
    /// No phases yet; with `CCL_DEBUG=TRACE` each is logged.
    pub(super) fn of(settings: &Settings) -> Self {
        Self { is_told: notice::wanted(settings, Level::Trace), ..Self::default() }
    }

    /// Likewise, polled through `watch`.
    pub(super) fn watched(settings: &Settings, watch: Option<Arc<Watch>>) -> Self {
        Self { watch, ..Self::of(settings) }
    }

    pub(super) fn watch(&self) -> Option<Arc<Watch>> {
        self.watch.clone()
    }

    /// The total of the ended phases, and each duration: `12.4 ms (CheckIn 11.2 ms, Ring 1.2 ms)`.
    pub(super) fn took(&self) -> String {
        let text = |duration: Duration| diagnose::duration(duration.as_nanos() as u64);
        let each = self.took.iter().map(|(phase, took)| format!("{phase} {}", text(*took)));
        let all = self.took.iter().map(|(_, took)| *took).sum();
        format!("{} ({})", text(all), each.collect::<Vec<_>>().join(", "))
    }

    /// Ends the phase under way and begins the next.
    pub(super) fn begin(&mut self, phase: Phase, row: &CommRow) {
        self.end(row);
        // The first reading of a process takes longer than all others: it must not add to the
        // difference between what an observer sees and what is recorded.
        let _ = clock::now();
        let observed = observer::begin(|| Call::Phase(phase));
        let (at, began) = (clock::raw(), clock::now());
        if let Some(watch) = &self.watch {
            watch.begins(phase);
        }
        row.phase_began(phase, at);
        if self.is_told {
            notice::print(&format!("process {}: {phase} begins", std::process::id()));
        }
        self.under_way = Some(UnderWay { phase, began, observed });
    }

    /// Ends the phase under way, if there is one.
    pub(super) fn end(&mut self, row: &CommRow) {
        let Some(UnderWay { phase, began, observed }) = self.under_way.take() else { return };
        drop(observed);
        let (at, duration) = (clock::raw(), clock::now().since(began));
        self.took.push((phase, duration));
        row.phase(phase, Ns(duration.as_nanos() as u64));
        self.ended.push(Ended { phase, at, duration });
    }

    /// Records the ended phases in the ring.
    pub(super) fn publish(&mut self, events: &mut Events) {
        for Ended { phase, at, duration } in self.ended.drain(..) {
            publish_at(events, at, || Event::PhaseEnded { phase, duration_ns: duration.as_nanos() as u64 });
        }
    }
}
