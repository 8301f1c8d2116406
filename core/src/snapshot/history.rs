//! The history of a communicator on one rank: times of some of its operations, and sums of all.

use serde::{Deserialize, Serialize};

/// What was, as plain data.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// Collectives, by their sequence numbers: the latest ones and ever fewer of the earlier ones,
    /// on all ranks the same.
    pub ops: Vec<PastOp>,
    /// Sums over all operations by kind.
    pub kinds: Vec<KindTotals>,
}

/// A collective that has ended. Its times are those of CLOCK_MONOTONIC of its process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct PastOp {
    /// The number of the call.
    pub seq: u64,
    /// When it was called.
    pub called_ns: u64,
    /// For how long it waited for other ranks; waits below a microsecond are left out.
    pub waited_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// For how long all collectives up to this one waited for other ranks; absent if they did not,
    /// and in recorders before layout 14.
    #[serde(skip_serializing_if = "super::is_zero")]
    pub waited_so_far_ns: u64,
}

/// The sums over all operations of one kind that have ended.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct KindTotals {
    /// `AllReduce`, ...
    pub kind: String,
    /// The number of operations.
    pub operations: u64,
    /// How long they were under way.
    pub inside_ns: u64,
    /// For how long of that they waited for other ranks.
    pub waited_ns: u64,
    /// The time from the end of the operation before to the call.
    pub outside_ns: u64,
}

impl History {
    /// Whether nothing was kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.kinds.is_empty()
    }
}
