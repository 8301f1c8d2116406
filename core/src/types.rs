//! The basic types of the crate: identifiers and closed sets, with what follows from their values
//! alone: names, sizes, the ids of communicators.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A rank of one communicator, `0..nranks`.
    Rank(u32)
}
impl Rank {
    /// The rank as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The name of the thread of a process that answers inspectors, hears of deaths and accepts
/// connections.
pub const SERVICE_THREAD: &str = "ccl-service";

/// One of the independent channels of a communicator: one of those for collectives, or the one for
/// point-to-point calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChannelId(pub u16);

impl ChannelId {
    /// The channel of send and receive. It is separate from those of collectives, so that neither
    /// blocks the other.
    pub const P2P: Self = Self(u16::MAX);
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::P2P { f.write_str("p2p") } else { self.0.fmt(f) }
    }
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
        // 64-bit ids are serialized as hex strings, because a JSON number holds only 53 bits.
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                u64::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
            }
        }
    };
}

hex_id! {
    /// A hash of the ranks of a job that a verdict blames.
    BlameHash
}
hex_id! {
    /// A communicator. The id is a hash, the same on all its ranks: of the job where init made the
    /// communicator ([`of_job`](CommId::of_job)), of its parent where it was made from another one
    /// ([`of_child`](CommId::of_child), [`of_left`](CommId::of_left)), and of what tells it from
    /// others of the same origin.
    CommId
}
hex_id! {
    /// The public name of one generation of a job: HMAC(secret, the root's random magic), cut to 64
    /// bits.
    JobId
}

impl CommId {
    /// The `nth` communicator that the ranks of a job create together, counted from 0.
    #[must_use]
    pub fn of_job(job: JobId, nth: u32) -> Self {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&job.0.to_le_bytes());
        bytes[8..].copy_from_slice(&nth.to_le_bytes());
        Self(xxhash_rust::xxh3::xxh3_64(&bytes))
    }

    /// The part of that colour of the `nth` communicator made from a parent, counted from 0.
    #[must_use]
    pub fn of_child(parent: Self, nth: u32, colour: u32) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&parent.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&nth.to_le_bytes());
        bytes[12..].copy_from_slice(&colour.to_le_bytes());
        Self(xxhash_rust::xxh3::xxh3_64(&bytes))
    }

    /// The `nth` communicator of these ranks of a parent, which are left of it.
    #[must_use]
    pub fn of_left(parent: Self, nth: u32, members: &[u32]) -> Self {
        let words = members.iter().flat_map(|rank| rank.to_le_bytes());
        let bytes: Vec<u8> = parent
            .0
            .to_le_bytes()
            .into_iter()
            .chain(nth.to_le_bytes())
            .chain(words)
            .chain(*b"left")
            .collect();
        Self(xxhash_rust::xxh3::xxh3_64(&bytes))
    }
}

macro_rules! closed_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $n:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $n,)+ }

        impl $name {
            /// Every member, in numeric order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The member with this number, as found in a mapping or on the wire; `None` if the
            /// number is unknown here.
            #[must_use]
            pub const fn from_u8(n: u8) -> Option<Self> {
                match n { $($n => Some(Self::$variant),)+ _ => None }
            }
            /// The name as shown to users.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

closed_set! {
    /// The kind of a call.
    CollKind {
        /// Every rank gets the reduction of all ranks' data.
        AllReduce = 0,
        /// Every rank gets the concatenation of all ranks' data.
        AllGather = 1,
        /// Rank r gets block r of the reduction.
        ReduceScatter = 2,
        /// Every rank gets the root's data.
        Broadcast = 3,
        /// The root gets the reduction.
        Reduce = 4,
        /// No rank returns before every rank has called it.
        Barrier = 5,
        /// This rank sends data to one peer.
        Send = 6,
        /// This rank receives data from one peer.
        Recv = 7,
        /// Every rank sends a block to each rank, and gets one from each.
        AllToAll = 8,
        /// The root gets the concatenation of all ranks' data.
        Gather = 9,
        /// Rank r gets block r of the root's data.
        Scatter = 10,
    }
}
closed_set! {
    /// The element type.
    Datatype {
        /// 32-bit IEEE float.
        F32 = 0,
        /// 64-bit IEEE float.
        F64 = 1,
        /// 32-bit signed integer, wrapping.
        I32 = 2,
        /// 64-bit signed integer, wrapping.
        I64 = 3,
        /// 8-bit unsigned integer, wrapping.
        U8 = 4,
        /// 8-bit signed integer, wrapping.
        I8 = 5,
        /// 32-bit unsigned integer, wrapping.
        U32 = 6,
        /// 64-bit unsigned integer, wrapping.
        U64 = 7,
        /// 16-bit IEEE float. It and the types after it are combined in 32 bits, and rounded to
        /// nearest, ties to even, where a message or the result is stored.
        F16 = 8,
        /// The upper half of a 32-bit IEEE float.
        BF16 = 9,
        /// 8-bit float of the Open Compute Project with 4 bits of exponent and no infinities; what
        /// is too large becomes 448.
        F8E4M3 = 10,
        /// 8-bit float of the Open Compute Project with 5 bits of exponent; what is too large
        /// becomes 57344, infinities that are combined as well.
        F8E5M2 = 11,
    }
}
closed_set! {
    /// How elements are combined.
    ReduceOp {
        /// Sum; integers wrap. A NaN makes the sum NaN, as it makes products and averages; its bits
        /// may differ between ranks.
        Sum = 0,
        /// Minimum; if one of two floats is NaN, the other one. 0.0 and -0.0 are equal: all ranks
        /// get the same one of them, whichever the algorithm meets first.
        Min = 1,
        /// Maximum; NaN and zeros are treated as by the minimum.
        Max = 2,
        /// Product; integers wrap.
        Prod = 3,
        /// The sum, divided by the number of ranks. Integers wrap while they are summed, and the
        /// quotient is truncated toward zero. `F16`, `F8E4M3` and `F8E5M2`, whose sums are soon too
        /// large, are multiplied by 1 / ranks before they are summed.
        Avg = 4,
        /// The sum of what each rank has multiplied by a factor of its own, of the elements' type;
        /// products are rounded to that type. Without a factor a call is refused: see
        /// [`Reduction::pre_mul_sum`](crate::Reduction::pre_mul_sum).
        PreMulSum = 5,
    }
}
closed_set! {
    /// How the bytes of a link travel.
    TransportKind {
        /// Memory of a process, between ranks of it.
        InProcess = 0,
        /// A shared memory mapping between processes of one host.
        Shm = 1,
        /// TCP between hosts.
        Socket = 2,
        /// The simulator.
        Sim = 3,
        /// Queue pairs of InfiniBand or RoCE between hosts.
        Verbs = 4,
    }
}
closed_set! {
    /// Why a link uses its transport. 0 is not a member: it means that no reason was recorded.
    TransportReason {
        /// Both ranks are in the same process.
        SameProcess = 1,
        /// They are in two processes of one host.
        SameHost = 2,
        /// They are on two hosts.
        OtherHost = 3,
        /// `CCL_TRANSPORT` asked for it, and another transport would have been chosen otherwise.
        Forced = 4,
        /// The link is simulated.
        Simulated = 5,
        /// They are on one host, but no connection of one user can be made between them.
        NoSharedMemory = 6,
        /// They are on two hosts, and a side has no port for queue pairs, or one of another kind.
        NoVerbs = 7,
    }
}
closed_set! {
    /// The direction of a link, seen from its rank.
    Direction {
        /// From this rank to the peer.
        Send = 0,
        /// From the peer to this rank.
        Recv = 1,
    }
}
closed_set! {
    /// What the driver of a link waits for; `Nothing` while it moves.
    WaitReason {
        /// It does not wait.
        Nothing = 0,
        /// The peer's data: the next message of a receiving link.
        Peer = 1,
        /// A free slot: the peer has not taken the messages that were sent.
        Credit = 2,
        /// The kernel: a socket takes no more bytes.
        Kernel = 3,
        /// The connection is not up yet.
        Connect = 4,
        /// A slot of the proxy: other operations of the process hold them all.
        Proxy = 5,
    }
}
closed_set! {
    /// The state of a network step, which is one message of a link; the names are NCCL's.
    ProxyState {
        /// Its bytes have no slot yet: the peer has not taken enough of the messages before it.
        SendPeerWait = 0,
        /// It has a slot, whose bytes are not filled yet.
        SendGPUWait = 1,
        /// It is filled, and the kernel does not have it yet.
        SendWait = 2,
        /// It has not arrived.
        RecvWait = 3,
        /// It is being made visible to the memory that it is for. Sockets need no such step.
        RecvFlushWait = 4,
        /// It has arrived, and was not taken yet.
        RecvGPUWait = 5,
        /// The kernel has all of it, or it was taken.
        Done = 6,
    }
}
closed_set! {
    /// How far the set-up of a connection over queue pairs is, with the names of NCCL.
    SetupState {
        /// It has not begun, or begins anew.
        Start = 0,
        /// The writer connects to the reader.
        Connect = 1,
        /// The reader waits for the writer.
        Accept = 2,
        /// It has told the other side what it has, and waits for the answer.
        Send = 3,
        /// It waits for what the other side has.
        Recv = 4,
        /// Its queue pairs know their other ends; the other side is told.
        Connecting = 5,
        /// It is up.
        Connected = 6,
    }
}
closed_set! {
    /// The state of the latest operation of a communicator on one rank.
    OpState {
        /// No operation is running.
        Idle = 0,
        /// An operation is running.
        Running = 1,
        /// An operation ended with an error. The communicator accepts no more operations.
        Failed = 2,
    }
}
closed_set! {
    /// How the work of a collective is divided among the ranks.
    Algorithm {
        /// Every rank sends to the next and receives from the previous one.
        Ring = 0,
        /// For ranks of one host: each reduces its slice, and every rank reads all ranks' slots.
        Direct = 1,
        /// For ranks of one host and little data: every rank publishes all its data and reduces
        /// everything, in rank order.
        OneShot = 2,
        /// One pair of ranks sends and receives.
        Pair = 3,
        /// Sums go up a binary tree of ranks, and the result comes down.
        Tree = 4,
        /// Every rank sends its blocks straight to the ranks that they are for.
        Pairwise = 5,
    }
}
closed_set! {
    /// The phases of init, in order, and the phase of `finish()`.
    Phase {
        /// Finding the root: environment, store or file.
        Rendezvous = 0,
        /// Checking in at the root and learning the successor.
        CheckIn = 1,
        /// Connecting the bootstrap ring.
        Ring = 2,
        /// The all-gather of all ranks' addresses and settings.
        Exchange = 3,
        /// Links to the ranks of this host.
        Connect = 4,
        /// The barrier that ends init.
        Barrier = 5,
        /// Waiting in `finish()` until all ranks have called it.
        Finish = 6,
    }
}

impl Phase {
    /// The phases of init, in order.
    pub const INIT: &'static [Self] =
        &[Self::Rendezvous, Self::CheckIn, Self::Ring, Self::Exchange, Self::Connect, Self::Barrier];
}

impl Datatype {
    /// Bytes per element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
        }
    }
}

impl CollKind {
    /// Whether the call combines elements, so that dtype and operation matter to its result.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }
    /// Whether the call names a root.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }
    /// Whether a buffer of the call has a block for each rank.
    #[must_use]
    pub const fn has_blocks(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather | Self::Scatter)
    }
    /// Whether the call concerns one pair of ranks only.
    #[must_use]
    pub const fn is_p2p(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }
}
/// What was decided about a request: equal on all ranks, and hashed into every descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Programs, one per channel.
    pub channels: u16,
    /// The most bytes of a message. A multiple of 64.
    pub chunk: u32,
}

/// How an operation is shared out, for those who watch it: with the request, all that its plan is
/// made from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outline {
    /// What was decided about the request.
    pub shape: Shape,
    /// The hash of the topology.
    pub topology: u64,
}
/// Converts ascending ranks to runs (first and last).
#[must_use]
pub fn runs(ranks: &[Rank]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank.0) => *last = rank.0,
            _ => runs.push((rank.0, rank.0)),
        }
    }
    runs
}
