//! Problems as a snapshot describes them: failed operations and communicators, ranks that never
//! joined.

use serde::{Deserialize, Serialize};

use super::Culprit;
use crate::types::{CommId, Rank};

/// The failure that ended a communicator on one rank.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct FailureSnapshot {
    /// The kind of error: `Mismatch`, `Peer`, `Timeout`, `Aborted`, ...
    pub error: String,
    /// The rank of the communicator to blame, if all its ranks agree on one: it died or aborted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blamed: Option<Rank>,
    /// The message that all ranks fail with; empty if there was no space to record it.
    pub text: String,
    /// How long ago it failed.
    pub age_ns: u64,
}

/// The init of a communicator on one rank, while it lasts.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct InitSnapshot {
    /// How long until it gives up.
    pub gives_up_ns: u64,
    /// The number of ranks that had not checked in, by the root's last report; absent before the
    /// first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<u32>,
    /// The lowest of them, as ranges: first and last.
    pub absent_runs: Vec<(Rank, Rank)>,
}

/// A communicator whose operations failed, or which failed between two operations.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// The communicator. All ranks below are its ranks.
    pub comm: CommId,
    /// Its name.
    pub name: String,
    /// The kind of error: `Mismatch`, `Peer`, `Timeout`, `Aborted`, ...
    pub error: String,
    /// The earliest operation that failed; empty if the communicator failed between two operations.
    pub op: String,
    /// The number of the call.
    pub seq: u64,
    /// The ranks on which the operation failed, or the communicator if it failed on none.
    pub ranks: Vec<Rank>,
    /// The ranks to blame: they died, aborted, called something else than most, or had not called
    /// what timed out. Empty if it does not follow from the snapshots.
    pub blamed: Vec<Rank>,
    /// The processes of the ranks to blame, as far as they were read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub culprits: Vec<Culprit>,
    /// The ranks that had not called the operation by then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Rank>,
    /// For a mismatch: the calls under that number and their ranks, as far as they were read; the
    /// largest group first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Called>,
    /// The communicator whose failure led to this one: the process to blame failed there before. Or
    /// the one of the first wait, if ranks had waited for long, and failed only as all processes
    /// were ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follows: Option<CommId>,
    /// The message that all ranks fail with; empty if it was not recorded.
    pub text: String,
    /// How long ago the first of them failed.
    pub since_ns: u64,
    /// How long the operation had been under way when it failed; 0 if no rank failed inside it.
    pub lasted_ns: u64,
}

/// A call that some ranks made.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Called {
    /// The ranks that made it.
    pub ranks: Vec<Rank>,
    /// The call: `AllReduce of 100 F32, Sum`.
    pub call: String,
}

/// A communicator whose init waits for ranks.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct NotJoined {
    /// The communicator. All ranks below are its ranks.
    pub comm: CommId,
    /// Its name.
    pub name: String,
    /// The number of ranks that it will have.
    pub nranks: u32,
    /// The number of ranks that have not checked in, by the bootstrap root's report; absent if the
    /// root, which rank 0 opens, has not answered any rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// These ranks, as far as they are known; without a report of the root, rank 0.
    pub ranks: Vec<Rank>,
    /// The ranks that wait in init.
    pub by: Vec<Rank>,
    /// How long the first of them has waited.
    pub since_ns: u64,
    /// How long until the first of them gives up; 0 if they are gone.
    pub gives_up_ns: u64,
    /// Whether none of them knows yet where to meet: rank 0 says that, in a file or through the
    /// launcher's store.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nowhere: bool,
}
