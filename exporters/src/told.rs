//! Which events tell of a rank's work, for all who make something of them.

use ccl::event::Event;
use ccl::recorder::Recorded;

/// How many of these do: where nobody knows whose they are, that many are lost.
pub(crate) fn count(events: &[Recorded]) -> u64 {
    let is_told = |recorded: &&Recorded| {
        matches!(
            recorded.event,
            Event::PhaseEnded { .. }
                | Event::OpCompleted { .. }
                | Event::OpFailed { .. }
                | Event::MessageSent { .. }
                | Event::MessageTaken { .. }
        )
    };
    events.iter().filter(is_told).count() as u64
}
