//! Ranks that block others, as a snapshot describes them.

use serde::{Deserialize, Serialize};

use super::words::{Direction, Transport, Waits};
use crate::types::{ChannelId, CommId, Rank};

/// Ranks that block others: the end of a chain of waiting ranks. All ranks are those of `comm`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockedOn {
    /// The communicator.
    pub comm: CommId,
    /// The operation that the waiting ranks are inside of.
    pub op: String,
    /// The number of the call.
    pub seq: u64,
    /// The ranks that have not called it.
    pub missing: Vec<Rank>,
    /// The ranks inside it that block the others: stopped, dead, or not waiting while others wait
    /// for them.
    pub inside: Vec<Rank>,
    /// The processes of the ranks in `missing` and `inside`, as far as they were read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub culprits: Vec<Culprit>,
    /// The ranks that wait.
    pub by: Vec<Rank>,
    /// How long the first of them has waited.
    pub since_ns: u64,
    /// The longest `p99_ns` of their operations; absent if none has one.
    #[serde(skip_serializing_if = "super::is_zero")]
    pub p99_ns: u64,
    /// The ranks that could not be read, so the others may be blocked on them too.
    pub unseen: Vec<Rank>,
    /// The communicator's name.
    pub name: String,
    /// The user's note on where the program is, of a rank that waits.
    pub tag: String,
    /// The link that has waited longest, preferably one that waits for a rank named above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<WaitingLink>,
    /// If the waits form a cycle: the operations in which the rank named above waits itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits_in: Vec<Behind>,
    /// Operations of other communicators, or other operations of this one, that wait behind it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<Behind>,
}

/// A process that is to blame, or that others wait for.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Culprit {
    /// Its rank in the job.
    pub rank: Rank,
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// Its host.
    pub host: String,
}

/// A link that waits.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitingLink {
    /// The rank that waits.
    pub rank: Rank,
    /// The rank it waits for.
    pub peer: Rank,
    /// The channel.
    pub channel: ChannelId,
    /// The direction of the link.
    pub direction: Direction,
    /// The transport of its bytes.
    pub transport: Transport,
    /// Messages moved: it waits for the next.
    pub step: u64,
    /// The reason of the wait.
    pub waits: Waits,
    /// How long it has waited.
    pub since_ns: u64,
}

/// An operation whose missing ranks wait elsewhere.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Behind {
    /// The communicator.
    pub comm: CommId,
    /// Its name.
    pub name: String,
    /// The operation.
    pub op: String,
    /// The number of the call.
    pub seq: u64,
    /// The ranks inside it.
    pub by: Vec<Rank>,
    /// The ranks on which it is blocked, which wait elsewhere.
    pub through: Vec<Rank>,
}
