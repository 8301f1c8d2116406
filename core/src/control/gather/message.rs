//! What travels when state is gathered: lines of JSON between processes of one job, whose version
//! is the same; and the answer to the inspector that asked.

use serde::{Deserialize, Serialize};

use super::super::wire::{is_plausible, to_line};
use crate::snapshot::ProcessSnapshot;
use crate::text::harmless;
use crate::types::{CommId, Rank};

/// The longest line between processes. A stream with a longer one ends.
pub(super) const MAX_LINE: usize = 2 << 20;
/// The most hosts of a question that are not to be asked again.
pub(super) const MAX_WITHOUT: usize = 1 << 10;
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

/// A message between two processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WaveMessage {
    /// A question.
    Ask {
        wave: u64,
        /// The sender's clock.
        sent_ns: u64,
        /// How long the sender waits for the end of the answer.
        left_ms: u64,
        /// The leaders of hosts of this edge's communicator that did not answer the sender.
        without: Vec<Rank>,
    },
    /// The question arrived when this clock showed `at_ns`, and is being answered. Repeated while
    /// that lasts.
    Heard { wave: u64, asked_ns: u64, at_ns: u64 },
    /// The question had arrived before by another way, where it is being answered.
    Seen { wave: u64 },
    /// A part of the answer.
    Row { wave: u64, row: Box<GatheredRow> },
    /// A part of the answer.
    Lack { wave: u64, lack: Lack },
    /// The answer is complete.
    Done { wave: u64 },
}

impl WaveMessage {
    /// Whether its sizes are those of a message of ours; makes its texts harmless.
    fn is_believed(&mut self) -> bool {
        match self {
            Self::Ask { without, .. } => without.len() <= MAX_WITHOUT,
            Self::Row { row, .. } => row.is_believed(),
            Self::Lack { lack, .. } => lack.is_believed(),
            Self::Heard { .. } | Self::Seen { .. } | Self::Done { .. } => true,
        }
    }

    /// The message as a line; `None` if it is longer than a receiver accepts.
    pub(super) fn encoded(&self) -> Option<Vec<u8>> {
        Some(to_line(self)).filter(|line| line.len() <= MAX_LINE)
    }

    /// The message of a line, which may hold anything; `None` if it is none of ours.
    pub(super) fn decoded(line: &[u8]) -> Option<Self> {
        Self::parsed(line).and_then(|mut message| message.is_believed().then_some(message))
    }

    /// The message before its sizes are checked.
    pub(super) fn parsed(line: &[u8]) -> Option<Self> {
        (line.len() <= MAX_LINE && is_plausible(line)).then(|| serde_json::from_slice(line).ok())?
    }
}
