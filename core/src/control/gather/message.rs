//! The messages of a gathering: lines of JSON between processes of one job, which all have the same
//! version.

use serde::{Deserialize, Serialize};

use super::super::wire::{is_plausible, to_line};
use super::answer::{GatheredRow, Lack};
use crate::types::Rank;

/// The longest line between processes. A stream with a longer one ends.
pub(super) const MAX_LINE: usize = 2 << 20;
/// The most hosts of a question that are not to be asked again.
pub(super) const MAX_WITHOUT: usize = 1 << 10;

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
    /// The process answers as many questions as it can already.
    Busy { wave: u64 },
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
            Self::Heard { .. } | Self::Seen { .. } | Self::Busy { .. } | Self::Done { .. } => true,
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
