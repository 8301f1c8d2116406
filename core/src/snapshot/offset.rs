//! How far clocks are apart.

use serde::{Deserialize, Serialize};

/// How far the clock of a process is from the one that it is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockOffset {
    /// Its monotonic clock minus the other.
    pub offset_ns: i64,
    /// The most by which that may be wrong.
    pub error_ns: u64,
}

impl ClockOffset {
    /// The offset of a clock that showed `at` between `asked` and `answered` on this one.
    pub(crate) fn between(asked_ns: u64, at_ns: u64, answered_ns: u64) -> Self {
        let trip = answered_ns.saturating_sub(asked_ns);
        let middle = i128::from(asked_ns) + i128::from(trip / 2);
        Self { offset_ns: clamped(i128::from(at_ns) - middle), error_ns: trip.div_ceil(2) }
    }

    /// The offset over two edges; `drift_ns` is what clocks may have moved since it was measured.
    pub(crate) fn over(self, edge: Self, drift_ns: u64) -> Self {
        let offset_ns = clamped(i128::from(self.offset_ns) + i128::from(edge.offset_ns));
        let error_ns = self.error_ns.saturating_add(edge.error_ns).saturating_add(drift_ns);
        Self { offset_ns, error_ns }
    }
}

fn clamped(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}
