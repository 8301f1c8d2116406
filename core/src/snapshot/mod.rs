//! A snapshot: one reading of one recorder ([`ProcessSnapshot`]), or of a whole job ([`Snapshot`]).
//!
//! Snapshots are plain data. The wire protocol and the views know nothing else.
//!
//! The JSON of [`Snapshot`] is a public contract, schema `ccl.snapshot/2`: fields are added, never
//! changed. A reader ignores fields it does not know; a word it does not know becomes `unknown`.
//! 64-bit ids and hashes are hex strings. Times named `*_ns` are durations that had passed when the
//! snapshot was taken (`to`): `since_ns` 5,000,000,000 is five seconds ago.

mod blocked;
pub(crate) mod bounds;
mod failure;
mod history;
mod offset;
mod process;
mod socket;
pub(crate) mod update;
mod verbs;
mod verdict;
mod words;

use serde::{Deserialize, Serialize};

use crate::types::{ChannelId, CommId, JobId, Rank};

pub use blocked::{Behind, BlockedOn, Culprit, WaitingLink};
pub use bounds::MAX_THREADS;
pub use failure::{Called, Failure, FailureSnapshot, InitSnapshot, NotJoined};
pub use history::{History, KindTotals, PastOp};
pub use offset::ClockOffset;
pub use process::{End, Lacks, MemoryCount, ProcessFacts, ProcessLoad, StallTold, ThreadFacts};
pub use socket::{SocketSnapshot, TcpState};
pub use update::Update;
pub use verbs::{
    PortEvent, PortLayer, PortSnapshot, PortStanding, QueuePairSnapshot, QueuePairState, SetUp, WorkFailure,
};
pub use verdict::{Class, Confidence, Next, Reason, Side, Standing, Verdict};
pub use words::{Direction, OpState, Source, State, Transport, Waits, Why};

/// The schema of [`Snapshot`].
pub const SCHEMA: &str = "ccl.snapshot/2";
/// The schema of [`ProcessSnapshot`].
pub const PROCESS_SCHEMA: &str = "ccl.process/1";

/// A job: the ranks that were read, the ranks that were not, and the ranks that block others.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: String,
    /// The public job id.
    pub job: JobId,
    /// Whether all ranks are in `ranks`.
    pub complete: bool,
    /// The ranks that are not, and why.
    pub missing: Vec<Missing>,
    /// The ranks, in order.
    pub ranks: Vec<RankSnapshot>,
    /// The ranks that block others: the ends of the wait-for chains, the longest wait first. Empty
    /// if no rank waits. It includes the short waits of every healthy job, which
    /// [`said`](Self::said) leaves out.
    pub blocked_on: Vec<BlockedOn>,
    /// The failures, the earliest first; those that follow from others last. They are considered
    /// before waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Communicators whose init waits for ranks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_joined: Vec<NotJoined>,
    /// What is wrong with the job, whose fault it is and what to do next; the first is told first.
    /// Empty if nothing is wrong, or has been for long enough.
    pub verdicts: Vec<Verdict>,
    /// When the first recorder was read, in nanoseconds since 1970.
    pub from_real_ns: u64,
    /// When the last recorder was read.
    pub to_real_ns: u64,
    /// Further remarks.
    pub notes: Vec<String>,
}

/// A rank that could not be read.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Missing {
    /// The rank in the job: that in its largest communicator, if all its processes are in that.
    pub rank: Rank,
    /// Its host; empty if unknown.
    pub host: String,
    /// Its pid in its own pid namespace; 0 if unknown.
    pub pid: u32,
    /// Why it could not be read.
    pub why: String,
}

/// One rank of a job.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSnapshot {
    /// The rank in the job: that in its largest communicator, if all its processes are in that.
    pub rank: Rank,
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// Its host.
    pub host: String,
    /// The state of its process.
    pub state: State,
    /// How it was read.
    pub source: Source,
    /// Its communicators.
    pub comms: Vec<CommSnapshot>,
    /// The pid in the namespace of the /proc it sees; 0 if unknown.
    pub outer_pid: u32,
    /// `CCL_HOSTID`; empty if not set.
    pub host_id: String,
    /// The state letter in /proc, if it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letter: Option<char>,
    /// The path of its recorder.
    pub recorder: String,
    /// The number of its process's operations that failed.
    pub failed: u64,
    /// How long ago its service thread gave a sign of life.
    pub heartbeat_ns: u64,
    /// Rows of its process that found no space in the recorder, so are not shown.
    pub overflow: u64,
    /// The number of communicators of its process that have no row in the recorder, so are not in
    /// `comms`: the rank may wait in one of them. Absent if there is none.
    #[serde(skip_serializing_if = "is_zero")]
    pub comms_without_row: u64,
    /// What its process does, and how it ended. Absent if nothing is known.
    #[serde(skip_serializing_if = "is_zero")]
    pub facts: ProcessFacts,
    /// The ports that queue pairs of its process may be on; absent if it has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortSnapshot>,
    /// Boot id of its kernel: ranks with the same one have the same CLOCK_MONOTONIC.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// The time from which the ages count, on its CLOCK_MONOTONIC; 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub to_mono_ns: u64,
    /// Of a rank that was gathered from another kernel, whose times are told on the clock of the
    /// process that was asked: how wrong they may be. Absent if nothing was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// The time from which the ages count, in nanoseconds since 1970: now, or a dead process's last
    /// sign of life. If all processes ended together, within a moment and without a failure, the
    /// ages count from the last of their signs.
    pub to_real_ns: u64,
}

/// One communicator on one rank.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CommSnapshot {
    /// The communicator's id, equal on all ranks.
    pub id: CommId,
    /// The name shown to users.
    pub name: String,
    /// This rank in the communicator.
    pub rank: Rank,
    /// The number of its ranks.
    pub nranks: u32,
    /// The collective under way, or else the last one.
    pub op: OpSnapshot,
    /// Its links.
    pub links: Vec<LinkSnapshot>,
    /// The public job id.
    pub job: JobId,
    /// This rank's number in the job; in the reading of one process, in the root communicator: the
    /// one that init made, of which this one is or descends.
    pub world: Rank,
    /// Whether this rank has left it.
    pub ended: bool,
    /// The level of detail.
    pub level: u8,
    /// The send or receive called last; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p2p: Option<OpSnapshot>,
    /// The phases of init that ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseSnapshot>,
    /// The phase under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PhaseSnapshot>,
    /// The state of init, while init lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<InitSnapshot>,
    /// The failure that ended it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureSnapshot>,
    /// How long ago its driver gave a sign of life; absent if it never did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driven_ns: Option<u64>,
    /// Whether it was read twice with equal results.
    pub consistent: bool,
    /// Its members and where they can be read; absent in the snapshot of a job. If several ranks of
    /// a process are in it, they stand at the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerSnapshot>,
    /// The group of each rank, in the order of ranks: ranks of one group reach each other through
    /// memory. Absent if not recorded, and on all ranks of a process or job but the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<u16>,
    /// The times of some of its operations, and sums of all. Absent if nothing was kept, and in
    /// updates to subscribers.
    #[serde(skip_serializing_if = "History::is_empty")]
    pub history: History,
    /// The row of the recorder that it was read from, and the row's generation. It stays the same
    /// when init changes communicator and job. Only for readers of the recorder itself, so not in
    /// the JSON.
    #[serde(skip)]
    pub row: Option<(u32, u32)>,
}

/// An operation on one rank.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct OpSnapshot {
    /// `AllReduce`, `split()`, ...; empty if there was none.
    pub kind: String,
    /// The number of the call.
    pub seq: u64,
    /// The state of the operation.
    pub state: OpState,
    /// Running: the time since it began. Idle and failed: the time since it ended.
    pub age_ns: u64,
    /// The user's note on where the program is.
    pub tag: String,
    /// Sequence number last called; for send and receive, the number of calls.
    pub called: u64,
    /// Sequence number last started.
    pub started: u64,
    /// Sequence number last completed; for send and receive, the number completed.
    pub completed: u64,
    /// The element type.
    pub dtype: String,
    /// How elements are combined.
    pub op: String,
    /// The root; for a send or receive, the sender.
    pub root: Rank,
    /// The number of elements; of all blocks together if they differ, 0 of such an all-to-all.
    pub count: u64,
    /// The number of bytes of these.
    pub bytes: u64,
    /// Whether the blocks of the ranks differ; absent if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub uneven: bool,
    /// Hash of the plan's parameters, in hex.
    pub plan: String,
    /// How it is shared out: `Ring`, `Direct`, ...; absent if not recorded, as the next three.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub algorithm: String,
    /// The number of its channels.
    #[serde(skip_serializing_if = "is_zero")]
    pub channels: u16,
    /// The most bytes of a message.
    #[serde(skip_serializing_if = "is_zero")]
    pub chunk_bytes: u32,
    /// Hash of the topology, in hex: which ranks share a host, and the graph of each channel.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topology: String,
    /// The rank on the other side of a send or receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<Rank>,
    /// The kind of error that it failed with.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// How long a failed operation had been under way.
    #[serde(skip_serializing_if = "is_zero")]
    pub lasted_ns: u64,
    /// Below this, 99 of 100 operations of its kind and size class took on this rank; absent before
    /// the hundredth of them has completed.
    #[serde(skip_serializing_if = "is_zero")]
    pub p99_ns: u64,
    /// The same of half of them; absent before the fourth of them has completed.
    #[serde(skip_serializing_if = "is_zero")]
    pub p50_ns: u64,
    /// Its wait, with or without a link; absent if it does not wait. Of several waits the longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<OpWait>,
    /// Running: the raw time since when, comparable with the times of events. Only for readers of
    /// the recorder itself, so not in the JSON.
    #[serde(skip)]
    pub since_raw: Option<u64>,
}

/// The wait of an operation.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct OpWait {
    /// The reason of the wait.
    pub waits: Waits,
    /// The rank it is blocked on.
    pub peer: Rank,
    /// The channel; 65535 is the channel of send and receive.
    pub channel: ChannelId,
    /// The direction of the link that waits or is still missing.
    pub direction: Direction,
    /// How long it has waited.
    pub since_ns: u64,
    /// Whether nobody waits for it: it was begun, and its caller may do other work; of several
    /// sends and receives, all were. Absent if a thread or a task waits.
    #[serde(skip_serializing_if = "is_false")]
    pub unattended: bool,
    /// Whether only a task waits for it, which polled it: the task and its thread may do other work
    /// meanwhile. Absent if a thread waits.
    #[serde(skip_serializing_if = "is_false")]
    pub polled: bool,
}

const fn is_false(it: &bool) -> bool {
    !*it
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// A link on one rank.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSnapshot {
    /// The rank on the other side; null for all of them.
    pub peer: Option<Rank>,
    /// The channel; 65535 is the channel of send and receive.
    pub channel: ChannelId,
    /// The direction of the link.
    pub direction: Direction,
    /// Whether its lane has several readers: the shared lane of its writer. Absent if not; of
    /// readers also if not recorded.
    #[serde(skip_serializing_if = "is_false")]
    pub shared: bool,
    /// The transport of its bytes.
    pub transport: Transport,
    /// The reason for this transport.
    pub why: Why,
    /// The number of messages it has moved: the next one is due.
    pub step: u64,
    /// Messages published, or slots offered.
    pub posted: u64,
    /// Messages handed over, or arrived.
    pub moved: u64,
    /// Messages taken by the peer, or freed.
    pub done: u64,
    /// The reason of its wait.
    pub waits: Waits,
    /// How long it has waited; if its operation has failed, how long it had waited by then.
    pub since_ns: u64,
    /// The rank it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Rank>,
    /// The send or receive it last worked for; 0 for collectives.
    pub op: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// The number of waits that lasted longer than a message takes.
    pub waited: u64,
    /// Its TCP streams; absent if it has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<SocketSnapshot>,
    /// How far its set-up is, of a link over queue pairs. That of a reader is shown from the first
    /// call on that may need the link. A link that has rows of queue pairs is connected, unless its
    /// communicator has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_up: Option<SetUp>,
    /// Its queue pairs; absent if it has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queue_pairs: Vec<QueuePairSnapshot>,
}

/// A phase of init.
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
    /// Its number in the root communicator: the one that init made, of which this one is or
    /// descends.
    pub world: Rank,
    /// Its host.
    pub host: String,
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// The path of its recorder.
    pub recorder: String,
    /// The path of its control socket.
    pub control: String,
}

/// One reading of one recorder.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessSnapshot {
    /// [`PROCESS_SCHEMA`].
    pub schema: String,
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// Its pid in the namespace of the /proc it sees; 0 if unknown.
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
    /// When it was started, in clock ticks since boot; 0 if unknown.
    pub start_ticks: u64,
    /// The job of its first communicator.
    pub job: JobId,
    /// Hash of the launcher's name for the job that it was started in; zero if there is none.
    pub launch: JobId,
    /// The number that the launcher gave it, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_rank: Option<Rank>,
    /// Version of its ccl.
    pub library: String,
    /// The path of its recorder in its own mount namespace.
    pub path: String,
    /// The path of its control socket; empty if it has none.
    pub control: String,
    /// Its settings that differ from the defaults.
    pub settings: String,
    /// Whether its alive lock is held.
    pub alive: bool,
    /// Whether it left in good order.
    pub left: bool,
    /// The number of operations that failed.
    pub failed: u64,
    /// When its recorder was made, in nanoseconds since 1970.
    pub made_real_ns: u64,
    /// When reading began, in nanoseconds since 1970.
    pub from_real_ns: u64,
    /// The time from which the ages count: the end of reading, or a dead process's last sign of
    /// life.
    pub to_real_ns: u64,
    /// When reading began, in nanoseconds of CLOCK_MONOTONIC: a step of the wall clock changes no
    /// age. 0 if unknown.
    pub from_mono_ns: u64,
    /// The time from which the ages count, on that clock.
    pub to_mono_ns: u64,
    /// Of a process that was gathered from another kernel, whose times are told on the clock of the
    /// process that was asked: how wrong they may be. Absent if nothing was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// How long ago its service thread gave a sign of life.
    pub heartbeat_ns: u64,
    /// Its communicators.
    pub comms: Vec<CommSnapshot>,
    /// Its rings.
    pub rings: Vec<RingSnapshot>,
    /// The ports that its queue pairs may be on; absent if it has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortSnapshot>,
    /// Rows that found no space, by table.
    pub overflow: Vec<Overflow>,
    /// The number of communicators in use that have no row, so are not in `comms`. Absent if there
    /// is none.
    #[serde(skip_serializing_if = "is_zero")]
    pub comms_without_row: u64,
    /// Whether the file is shorter than its header says.
    pub truncated: bool,
    /// How it ended, and what is known of its process beside its recorder. Absent if nothing is.
    #[serde(skip_serializing_if = "is_zero")]
    pub facts: ProcessFacts,
    /// What its memory group had counted when the recorder was made. Only for readers of the
    /// recorder itself, so not in the JSON.
    #[serde(skip)]
    pub memory: Option<MemoryCount>,
}

impl ProcessSnapshot {
    /// The name that its peers know its host by.
    #[must_use]
    pub fn host_name(&self) -> &str {
        if self.host_id.is_empty() { &self.host } else { &self.host_id }
    }
}

/// One ring of events.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RingSnapshot {
    /// In older recordings, the communicator whose engine writes it; else zero.
    pub comm: CommId,
    /// The rank in that communicator.
    pub rank: Rank,
    /// The kernel's number of the thread that writes it, or did so last; 0 in older recordings.
    pub thread: u64,
    /// Events written, with the marks that say whose they are.
    pub written: u64,
    /// The number of them that were overwritten.
    pub overwritten: u64,
}

/// Rows of a table that found no space.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Overflow {
    /// The table.
    pub table: String,
    /// The number of rows; for `Rings`, of events of threads that found none.
    pub rows: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The schema as it was published. It may gain fields; it must not lose or change any.
    const PUBLISHED: &str = r#"{"schema":"ccl.snapshot/2","job":"000000000000010b","complete":true,
        "missing":[{"rank":5,"host":"b","why":"gone"}],
        "ranks":[{"rank":0,"pid":71,"host":"a","state":"stopped","source":"mapping",
          "comms":[{"id":"00000000000000c0","name":"dp","rank":0,"nranks":4,
            "op":{"kind":"AllReduce","seq":7,"state":"running","age_ns":1,"tag":"step 12"},
            "links":[{"peer":3,"channel":0,"direction":"recv","transport":"shm","step":2,"posted":4,"moved":2,"done":2,
              "waits":"peer","since_ns":1}]}]}],
        "blocked_on":[{"comm":"00000000000000c0","op":"AllReduce","seq":7,"missing":[3],"inside":[],"by":[0,1,2],"since_ns":1}]}"#;

    /// Whether `large` has everything that `small` has.
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
            r#"{"schema":"ccl.snapshot/2","later":[1],"ranks":[{"rank":0,"state":"hibernating","new":{}}]}"#;
        let job: Snapshot = serde_json::from_str(text).unwrap();
        assert_eq!((job.ranks[0].state, job.complete), (State::Unknown, false));
    }
}
