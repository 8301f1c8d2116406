//! The claims that an inspector may make of a job: each is true or false.

use std::fmt;

/// An operation, as counted by its communicator.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Call {
    /// `AllReduce`, `Send`, `finish` ...; empty for a collective whose kind is not named.
    pub kind: String,
    /// Its number in its queue: the queue of the collectives, or of a pair and direction.
    pub seq: u64,
    /// For a pair, the rank on the other side, if it is named.
    pub peer: Option<u32>,
}

impl Call {
    /// Reads `AllReduce #7`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, seq) = text.trim().split_once(" #")?;
        Some(Self { kind: kind.into(), seq: seq.parse().ok()?, peer: None })
    }

    /// Whether both may be the same.
    ///
    /// Not every text names the peer of a pair, or the kind of a collective.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        let of_pair = self.peer.is_none() || other.peer.is_none() || self.peer == other.peer;
        let is_open = |one: &Self, other: &Self| {
            one.kind.is_empty() && other.peer.is_none() && other.kind != "finish()"
        };
        let is_kind = self.kind == other.kind || is_open(self, other) || is_open(other, self);
        self.seq == other.seq && is_kind && of_pair
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ccl::diagnose::call_name(&self.kind, self.seq))
    }
}

/// The arguments of a call.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct How {
    /// Elements.
    pub count: u64,
    /// The element type.
    pub dtype: String,
    /// The reduction operator.
    pub op: String,
    /// The root.
    pub root: u32,
}

/// The state of an operation on its rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stand {
    /// It is under way.
    Running,
    /// It has ended successfully.
    Idle,
    /// It failed with this kind of error; the time since then is given.
    Failed(String),
    /// The same; the time that it had been under way is given.
    FailedAfter(String),
}

/// How a rank ended without leaving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Its process ended.
    Lost,
    /// It dropped the communicator.
    Dropped,
    /// The same, in a panic.
    Panicked,
}

/// One claim. Ranks are those of the job's only communicator; times are nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A verdict.
    Verdict {
        /// What is wrong.
        class: String,
        /// What the culprits did, if that is said.
        reason: Option<String>,
        /// Whether it is more than a suspicion.
        is_stalled: bool,
        /// The ranks to blame, if they are said.
        culprits: Option<Vec<u32>>,
    },
    /// No rank waits.
    NobodyWaits,
    /// Init is under way, and no rank is known to be missing.
    NobodyMissing,
    /// The others wait for these ranks, which have not called it.
    NotCalled {
        /// The ranks.
        ranks: Vec<u32>,
        /// The call.
        call: Call,
    },
    /// The others wait for these ranks, which are inside it.
    Inside {
        /// The ranks.
        ranks: Vec<u32>,
        /// The call.
        call: Call,
    },
    /// The others may wait for these ranks, which could not be read.
    MayBe {
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// These ranks wait in it, the first of them for this long.
    Wait {
        /// The ranks.
        ranks: Vec<u32>,
        /// The call.
        call: Call,
        /// Whether some may already wait in a later call, for the same ranks.
        or_later: bool,
        /// The time.
        for_ns: u64,
    },
    /// The operations that wait carry this tag.
    Tag {
        /// The ranks of the operations.
        ranks: Vec<u32>,
        /// The tag.
        tag: String,
    },
    /// One rank waits for another, on a link.
    WaitsFor {
        /// The rank that waits.
        rank: u32,
        /// The rank that it waits for.
        peer: u32,
        /// The time.
        for_ns: u64,
        /// The transport of the link.
        transport: String,
    },
    /// One rank waited for another until its call failed or its process ended.
    WaitedFor {
        /// The rank that waited.
        rank: u32,
        /// The rank that it waited for.
        peer: u32,
        /// The time.
        for_ns: u64,
    },
    /// Ranks wait in init for other ranks.
    NotJoined {
        /// The ranks that have not joined.
        ranks: Vec<u32>,
        /// The ranks that wait.
        by: Vec<u32>,
        /// The time.
        for_ns: u64,
        /// When init gives up.
        gives_up_ns: Option<u64>,
    },
    /// The bootstrap root has heard of this many ranks.
    Heard {
        /// The ranks that it has heard of.
        ranks: u32,
        /// All ranks.
        of: u32,
    },
    /// A rank ended without leaving.
    Ended {
        /// The rank.
        rank: u32,
        /// How it ended.
        end: End,
    },
    /// A rank called `finish()`.
    Finishes {
        /// The rank.
        rank: u32,
        /// The number of collectives before, if it is given.
        calls: Option<u64>,
    },
    /// At the time of a failure, these ranks had not called it.
    HadNotCalled {
        /// The ranks.
        ranks: Vec<u32>,
        /// The call.
        call: Call,
    },
    /// The process of a rank that left is alive.
    LivesOn {
        /// The rank.
        rank: u32,
    },
    /// A rank gave its last sign of life in the job at this time.
    LastSign {
        /// The rank.
        rank: u32,
        /// The time in seconds since 1970.
        seconds: u64,
    },
    /// A rank fell silent this long before all others.
    SilentFirst {
        /// The rank.
        rank: u32,
        /// The time before the next rank.
        before_ns: u64,
    },
    /// These ranks are to blame for a failure.
    Blamed {
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// An operation failed on these ranks.
    Failed {
        /// The ranks.
        ranks: Vec<u32>,
        /// The call; `None` if it failed between two operations.
        call: Option<Call>,
        /// The kind of error.
        error: String,
        /// The time since then, if it is given.
        ago_ns: Option<u64>,
        /// The time that it had been under way, if it is given.
        lasted_ns: Option<u64>,
    },
    /// These ranks made this call.
    Called {
        /// The ranks.
        ranks: Vec<u32>,
        /// The kind.
        kind: String,
        /// The sequence number, if it is given.
        seq: Option<u64>,
        /// The arguments, if they are given.
        how: Option<How>,
    },
    /// A rank is this process, in this state.
    Process {
        /// The rank.
        rank: u32,
        /// Its pid, if it is given.
        pid: Option<u32>,
        /// Its host, if it is given.
        host: Option<String>,
        /// Its state, if it is given.
        state: Option<String>,
    },
    /// The data of a rank has this source.
    From {
        /// The rank.
        rank: u32,
        /// `socket`, `mapping` or `file`.
        source: String,
    },
    /// The operation of a rank has had this state for this long.
    At {
        /// The rank.
        rank: u32,
        /// The call; `None` if it has called none.
        call: Option<Call>,
        /// The state.
        stand: Stand,
        /// The time.
        for_ns: u64,
        /// Its tag.
        tag: String,
    },
    /// A rank is in init.
    InInit {
        /// The rank.
        rank: u32,
    },
    /// The counters of a link.
    Counters {
        /// The rank.
        rank: u32,
        /// Posted, moved, done.
        counters: [u64; 3],
    },
    /// This rank was not read.
    NotRead {
        /// The rank.
        rank: u32,
        /// The reason.
        why: String,
    },
    /// This many of the ranks were read.
    Read {
        /// The ranks that were read.
        ranks: usize,
        /// All ranks.
        of: usize,
    },
    /// This process did not answer.
    NoAnswer {
        /// Its pid.
        pid: u32,
    },
}
