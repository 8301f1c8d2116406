//! Exportable events: those that describe a rank's work, for all exporters.

use ccl::event::Event;
use ccl::recorder::Recorded;

/// The number of exportable events: if their owner is unknown, that many are lost.
pub(crate) fn count(events: &[Recorded]) -> u64 {
    let is_exportable = |recorded: &&Recorded| {
        matches!(
            recorded.event,
            Event::PhaseEnded { .. }
                | Event::OpCompleted { .. }
                | Event::OpFailed { .. }
                | Event::MessageSent { .. }
                | Event::MessageTaken { .. }
        )
    };
    events.iter().filter(is_exportable).count() as u64
}
