//! What was gathered: rows, what is missing, and how far clocks are apart.

use serde::{Deserialize, Serialize};

use super::super::wire::is_plausible;
use crate::snapshot::ProcessSnapshot;
use crate::text::harmless;
use crate::types::{CommId, Rank};

/// The most ranks of a statement on what is missing.
const MAX_LACKING: usize = 1 << 16;
/// The most bytes of a reason.
const MAX_WHY: usize = 1 << 10;

/// How far the clock of a row is from that of the process that was asked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockOffset {
    /// The row's monotonic clock minus the asked process's.
    pub offset_ns: i64,
    /// The most by which that may be wrong.
    pub error_ns: u64,
}

impl ClockOffset {
    /// The offset of a clock that showed `at` between `asked` and `answered` on this one.
    pub(super) fn between(asked_ns: u64, at_ns: u64, answered_ns: u64) -> Self {
        let trip = answered_ns.saturating_sub(asked_ns);
        let middle = i128::from(asked_ns) + i128::from(trip / 2);
        Self { offset_ns: clamped(i128::from(at_ns) - middle), error_ns: trip.div_ceil(2) }
    }

    /// The offset over two edges; `drift_ns` is what clocks may have moved since it was measured.
    pub(super) fn over(self, edge: Self, drift_ns: u64) -> Self {
        let offset_ns = clamped(i128::from(self.offset_ns) + i128::from(edge.offset_ns));
        let error_ns = self.error_ns.saturating_add(edge.error_ns).saturating_add(drift_ns);
        Self { offset_ns, error_ns }
    }
}

fn clamped(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

/// A process as a process of its host has read it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct GatheredRow {
    /// The reading.
    pub process: ProcessSnapshot,
    /// The state letter in the /proc of its host, if it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letter: Option<char>,
    /// Whether /proc shows there that it has ended.
    pub ended: bool,
    /// Its clock; absent if it has the kernel of the process that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockOffset>,
}

/// Ranks of which nothing was gathered, and why.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Lack {
    /// The communicator whose ranks they are.
    pub comm: CommId,
    /// The ranks.
    pub ranks: Vec<Rank>,
    /// The reason.
    pub why: String,
}

/// A part of an answer.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Gathered {
    /// The processes that were read.
    pub rows: Vec<GatheredRow>,
    /// What is missing.
    pub lacks: Vec<Lack>,
    /// Whether more parts follow.
    pub more: bool,
}

impl GatheredRow {
    /// The row of a line of JSON, which may hold anything; `None` if no recorder could hold it.
    #[must_use]
    pub fn of_line(line: &[u8]) -> Option<Self> {
        let row = is_plausible(line).then(|| serde_json::from_slice::<Self>(line).ok())?;
        row.and_then(|mut row| row.is_believed().then_some(row))
    }

    /// Whether a recorder could hold it; makes its texts harmless.
    pub(crate) fn is_believed(&mut self) -> bool {
        self.letter = self.letter.filter(char::is_ascii_alphabetic);
        self.process.is_believed()
    }
}

impl Lack {
    /// Whether it is small enough; makes its text harmless.
    pub(crate) fn is_believed(&mut self) -> bool {
        self.why = harmless(&self.why, MAX_WHY).into_owned();
        self.ranks.len() <= MAX_LACKING
    }
}
