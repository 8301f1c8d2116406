//! Where a rank stands in a communicator: the questions that every view asks.

use super::{CommSnapshot, LinkSnapshot, OpSnapshot, OpState, Waits};
use crate::types::{CommId, Phase};

/// A communicator, for people: its name, or its id where it has none.
#[must_use]
pub fn comm_name(name: &str, id: CommId) -> String {
    if name.is_empty() { id.to_string() } else { name.to_string() }
}

impl CommSnapshot {
    /// The operation to show: the collective, or a send or receive where only that is under way or failed.
    #[must_use]
    pub fn operation(&self) -> &OpSnapshot {
        let pair =
            self.p2p.as_ref().filter(|p2p| self.op.state == OpState::Idle && p2p.state != OpState::Idle);
        pair.unwrap_or(&self.op)
    }

    /// Whether it waits in `finish()` for the others.
    #[must_use]
    pub fn finishes(&self) -> bool {
        self.phase.as_ref().is_some_and(|phase| phase.phase == Phase::Finish.name())
    }

    /// The link that has waited longest; `None`: none waits.
    #[must_use]
    pub fn longest_wait(&self) -> Option<&LinkSnapshot> {
        self.links.iter().filter(|link| link.is_waiting()).max_by_key(|link| link.since_ns)
    }
}

impl LinkSnapshot {
    /// Whether its driver waits.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        !matches!(self.waits, Waits::Nothing | Waits::Unknown)
    }
}
