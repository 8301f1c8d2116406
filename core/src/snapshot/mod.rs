//! A snapshot: one reading of one recorder ([`ProcessSnapshot`]), and of a whole job ([`Snapshot`]). Plain data, the only thing
//! that the wire and the views know.
//!
//! The JSON of [`Snapshot`] is a public promise, schema `ccl.snapshot/1`: fields are added, never changed. Whoever reads it
//! ignores fields it does not know; a word it does not know becomes `unknown`. 64-bit ids and hashes travel as hex strings. Times named `*_ns` are
//! durations that had passed when the snapshot was taken (`to`): `since_ns` 5,000,000,000 is five seconds ago.

pub(crate) mod bounds;
mod merge;
mod socket;
mod standing;
mod text;
mod update;
mod words;

use serde::{Deserialize, Serialize};

use crate::types::{ChannelId, CommId, JobId, Rank};

pub use merge::{Given, Unreachable, jobs, merge};
pub use socket::{SocketSnapshot, TcpState};
pub use standing::comm_name;
pub use text::{duration, ranks_text, render_answer, render_text, runs_text};
pub use update::Update;
pub use words::{Direction, OpState, Source, State, Transport, Waits, Why};

/// The schema of [`Snapshot`].
pub const SCHEMA: &str = "ccl.snapshot/1";
/// The schema of [`ProcessSnapshot`].
pub const PROCESS_SCHEMA: &str = "ccl.process/1";

/// A job: what could be read of its ranks, what could not, and who is awaited.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: String,
    /// The public job id.
    pub job: JobId,
    /// Whether all ranks are in `ranks`.
    pub complete: bool,
    /// Those that are not, and why.
    pub missing: Vec<Missing>,
    /// The ranks, in order.
    pub ranks: Vec<RankSnapshot>,
    /// Who is awaited: the ends of the wait-for chains, the longest wait first. Empty: nobody waits.
    pub awaited: Vec<Awaited>,
    /// When the first recorder was read, in nanoseconds since 1970.
    pub from_real_ns: u64,
    /// When the last one was.
    pub to_real_ns: u64,
    /// What else should be said.
    pub notes: Vec<String>,
}

/// A rank that could not be read.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Missing {
    /// The rank, in the communicator that the job began with.
    pub rank: Rank,
    /// Its host; empty if unknown.
    pub host: String,
    /// Its pid, as it sees it; 0 if unknown.
    pub pid: u32,
    /// Why.
    pub why: String,
}

/// One rank of a job.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSnapshot {
    /// The rank, in the communicator that the job began with.
    pub rank: Rank,
    /// Its pid, as it sees it.
    pub pid: u32,
    /// Its host.
    pub host: String,
    /// How its process is.
    pub state: State,
    /// Where this comes from.
    pub source: Source,
    /// Its communicators.
    pub comms: Vec<CommSnapshot>,
    /// The pid in the namespace of the /proc it sees; 0 if unknown.
    pub outer_pid: u32,
    /// `CCL_HOSTID`; empty if not set.
    pub host_id: String,
    /// The state letter of /proc, if it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letter: Option<char>,
    /// The path of its recorder.
    pub recorder: String,
    /// Operations of its process that failed.
    pub failed: u64,
    /// How long ago its service thread gave a sign of life.
    pub heartbeat_ns: u64,
    /// Rows of its process that found no place in the recorder, so are not shown.
    pub overflow: u64,
    /// The moment the ages count from, in nanoseconds since 1970: now; of a dead process its last sign of life.
    pub to_real_ns: u64,
}

/// One communicator on one rank.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CommSnapshot {
    /// Equal on all ranks.
    pub id: CommId,
    /// For people.
    pub name: String,
    /// This rank in it.
    pub rank: Rank,
    /// How many ranks it has.
    pub nranks: u32,
    /// The collective under way, or else the last one.
    pub op: OpSnapshot,
    /// Its links.
    pub links: Vec<LinkSnapshot>,
    /// The public job id.
    pub job: JobId,
    /// This rank in the communicator that the job began with.
    pub world: Rank,
    /// Whether this rank has left it.
    pub ended: bool,
    /// The level of detail.
    pub level: u8,
    /// The send or receive called last; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p2p: Option<OpSnapshot>,
    /// The phases of making it that ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseSnapshot>,
    /// The phase under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PhaseSnapshot>,
    /// How long ago its driver gave a sign of life; absent if it never did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driven_ns: Option<u64>,
    /// Whether it was read twice and found equal.
    pub consistent: bool,
    /// Its members and where they can be read; absent in the snapshot of a job.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerSnapshot>,
}

/// An operation on one rank.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct OpSnapshot {
    /// `AllReduce`, ...; empty if there was none.
    pub kind: String,
    /// Which call it is.
    pub seq: u64,
    /// Where it stands.
    pub state: OpState,
    /// Running: how long since it began. Idle and failed: how long since it ended.
    pub age_ns: u64,
    /// The user's word on where the program is.
    pub tag: String,
    /// Sequence number last called; of send and receive, how many were.
    pub called: u64,
    /// Sequence number last started.
    pub started: u64,
    /// Sequence number last completed; of send and receive, how many were.
    pub completed: u64,
    /// The element type.
    pub dtype: String,
    /// How elements are combined.
    pub op: String,
    /// The root; the sender of a pair.
    pub root: Rank,
    /// Elements.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// Hash of what the plan was made from, in hex.
    pub plan: String,
    /// The rank on the other side of a send or receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<Rank>,
    /// Why it failed, as a kind of error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// A link on one rank.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSnapshot {
    /// The rank on the other side; null: all of them.
    pub peer: Option<Rank>,
    /// The channel; 65535 is that of send and receive.
    pub channel: ChannelId,
    /// Which way it points.
    pub direction: Direction,
    /// What carries its bytes.
    pub transport: Transport,
    /// Why that was chosen.
    pub why: Why,
    /// Messages it has moved: it stands before the next one.
    pub step: u64,
    /// Messages published, or slots offered.
    pub posted: u64,
    /// Messages handed over, or arrived.
    pub moved: u64,
    /// Messages taken by the peer, or freed.
    pub done: u64,
    /// What it waits for.
    pub waits: Waits,
    /// How long already.
    pub since_ns: u64,
    /// The rank it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Rank>,
    /// The operation it last worked for.
    pub op: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// How often it waited longer than it spins.
    pub waited: u64,
    /// Its TCP streams; absent where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<SocketSnapshot>,
}

/// A phase of making a communicator.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseSnapshot {
    /// Its name.
    pub phase: String,
    /// How long it took, or has taken so far.
    pub duration_ns: u64,
}

/// A member of a communicator.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerSnapshot {
    /// Its rank.
    pub rank: Rank,
    /// Its rank in the communicator that the job began with.
    pub world: Rank,
    /// Its host.
    pub host: String,
    /// Its pid, as it sees it.
    pub pid: u32,
    /// The path of its recorder.
    pub recorder: String,
    /// The path of its control socket.
    pub control: String,
}

/// Who is awaited: the end of a chain of waiting ranks. All ranks are those of `comm`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Awaited {
    /// The communicator.
    pub comm: CommId,
    /// The operation that the waiting ranks are inside of.
    pub op: String,
    /// Which call of it.
    pub seq: u64,
    /// Those who have not called it.
    pub missing: Vec<Rank>,
    /// Those inside it who hold the others up: stopped, dead, or not waiting while others wait for them.
    pub inside: Vec<Rank>,
    /// Those who wait.
    pub by: Vec<Rank>,
    /// How long the first of them has.
    pub since_ns: u64,
    /// Those who could not be read, so may be awaited too.
    pub unseen: Vec<Rank>,
    /// The communicator's name.
    pub name: String,
    /// The user's word on where the program is, of one who waits.
    pub tag: String,
    /// The link that has waited longest, best one on the awaited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<WaitingLink>,
    /// Operations of other communicators, or other operations of this one, that wait behind it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<Behind>,
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
    /// Which way the link points.
    pub direction: Direction,
    /// What carries its bytes.
    pub transport: Transport,
    /// Messages moved: it waits for the next.
    pub step: u64,
    /// What for.
    pub waits: Waits,
    /// How long already.
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
    /// Which call of it.
    pub seq: u64,
    /// The ranks inside it.
    pub by: Vec<Rank>,
    /// The ranks it waits for, who wait elsewhere.
    pub through: Vec<Rank>,
}

/// One recorder, read once.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessSnapshot {
    /// [`PROCESS_SCHEMA`].
    pub schema: String,
    /// The process in its own pid namespace.
    pub pid: u32,
    /// And in that of the /proc it sees; 0 if unknown.
    pub outer_pid: u32,
    /// Inode of its pid namespace.
    pub pid_namespace: u64,
    /// Its user.
    pub uid: u32,
    /// Its host.
    pub host: String,
    /// `CCL_HOSTID`; empty if not set.
    pub host_id: String,
    /// Boot id of its kernel.
    pub boot_id: String,
    /// The job it began with.
    pub job: JobId,
    /// Version of its ccl.
    pub library: String,
    /// The path of its recorder, as it sees it.
    pub path: String,
    /// The path of its control socket; empty if it has none.
    pub control: String,
    /// Its settings that differ from the defaults.
    pub settings: String,
    /// Whether its alive lock is held.
    pub alive: bool,
    /// Whether it left in good order.
    pub left: bool,
    /// Operations that failed.
    pub failed: u64,
    /// When its recorder was made, in nanoseconds since 1970.
    pub made_real_ns: u64,
    /// When reading began.
    pub from_real_ns: u64,
    /// The moment the ages count from: when reading ended; of a dead process its last sign of life.
    pub to_real_ns: u64,
    /// How long ago its service thread gave a sign of life.
    pub heartbeat_ns: u64,
    /// Its communicators.
    pub comms: Vec<CommSnapshot>,
    /// Its rings.
    pub rings: Vec<RingSnapshot>,
    /// Rows that found no place, by table.
    pub overflow: Vec<Overflow>,
    /// Whether the file is shorter than it says.
    pub truncated: bool,
}

/// One ring.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RingSnapshot {
    /// The communicator whose engine writes it; zero: the service thread.
    pub comm: CommId,
    /// The rank in it.
    pub rank: Rank,
    /// Events written.
    pub written: u64,
    /// Of these, how many were overwritten.
    pub overwritten: u64,
}

/// Rows of a table that found no place.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Overflow {
    /// The table.
    pub table: String,
    /// How many.
    pub rows: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The schema as it was published. It may gain fields, and lose or change none.
    const PUBLISHED: &str = r#"{"schema":"ccl.snapshot/1","job":"000000000000010b","complete":true,
        "missing":[{"rank":5,"host":"b","why":"gone"}],
        "ranks":[{"rank":0,"pid":71,"host":"a","state":"stopped","source":"mapping",
          "comms":[{"id":"00000000000000c0","name":"dp","rank":0,"nranks":4,
            "op":{"kind":"AllReduce","seq":7,"state":"running","age_ns":1,"tag":"step 12"},
            "links":[{"peer":3,"channel":0,"direction":"recv","transport":"shm","step":2,"posted":4,"moved":2,"done":2,
              "waits":"peer","since_ns":1}]}]}],
        "awaited":[{"comm":"00000000000000c0","op":"AllReduce","seq":7,"missing":[3],"inside":[],"by":[0,1,2],"since_ns":1}]}"#;

    /// Whether all that `small` has stands in `large`.
    fn contains(large: &serde_json::Value, small: &serde_json::Value) -> bool {
        use serde_json::Value;
        match (large, small) {
            (Value::Object(large), Value::Object(small)) => {
                small.iter().all(|(key, value)| large.get(key).is_some_and(|there| contains(there, value)))
            }
            (Value::Array(large), Value::Array(small)) => {
                large.len() == small.len() && large.iter().zip(small).all(|(a, b)| contains(a, b))
            }
            (a, b) => a == b,
        }
    }

    #[test]
    fn the_json_is_the_published_one_and_more() {
        let published: serde_json::Value = serde_json::from_str(PUBLISHED).unwrap();
        let job: Snapshot = serde_json::from_str(PUBLISHED).unwrap();
        assert_eq!(job.ranks[0].comms[0].links[0].waits, Waits::Peer);
        let written = serde_json::to_value(&job).unwrap();
        assert!(contains(&written, &published), "{written:#}");
        assert_eq!(serde_json::from_value::<Snapshot>(written).unwrap(), job);
    }

    #[test]
    fn later_versions_are_read_as_far_as_they_are_known() {
        let text =
            r#"{"schema":"ccl.snapshot/1","later":[1],"ranks":[{"rank":0,"state":"hibernating","new":{}}]}"#;
        let job: Snapshot = serde_json::from_str(text).unwrap();
        assert_eq!((job.ranks[0].state, job.complete), (State::Unknown, false));
    }
}
