//! The nouns of the crate: newtypes and closed sets, with no logic beyond names and sizes.

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

/// One of the independent ways through a communicator: a ring of collectives, or the point-to-point way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChannelId(pub u16);

impl ChannelId {
    /// The channel of send and receive, apart from those of collectives so that neither holds up the other.
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
        // 64-bit ids travel as hex strings: a JSON number holds 53 bits.
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
    /// A communicator: hash of (parent, child count, colour), equal on all its ranks.
    CommId
}
hex_id! {
    /// The public name of one generation of a job: HMAC(secret, the root's random magic), cut to 64 bits.
    JobId
}

impl CommId {
    /// The `nth` communicator that the ranks of a job make together, from 0.
    #[must_use]
    pub fn of_job(job: JobId, nth: u32) -> Self {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&job.0.to_le_bytes());
        bytes[8..].copy_from_slice(&nth.to_le_bytes());
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

            /// The member with this number, as found in a mapping or on the wire; `None` if it is unknown here.
            #[must_use]
            pub const fn from_u8(n: u8) -> Option<Self> {
                match n { $($n => Some(Self::$variant),)+ _ => None }
            }
            /// The name as shown to people.
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
    /// What a call asks for.
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
        /// Nobody leaves before everybody came.
        Barrier = 5,
        /// Data for one peer.
        Send = 6,
        /// Data from one peer.
        Recv = 7,
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
    }
}
closed_set! {
    /// How elements are combined.
    ReduceOp {
        /// Sum; integers wrap.
        Sum = 0,
        /// Minimum; of two floats the one that is not NaN.
        Min = 1,
        /// Maximum; of two floats the one that is not NaN.
        Max = 2,
    }
}
closed_set! {
    /// How the bytes of a link travel.
    TransportKind {
        /// Pointers between ranks of one process.
        Direct = 0,
        /// A shared memory mapping between processes of one host.
        Shm = 1,
        /// TCP between hosts.
        Socket = 2,
        /// The simulator.
        Sim = 3,
    }
}
closed_set! {
    /// Why a link is carried by what carries it. 0 is free: no reason was recorded.
    TransportReason {
        /// Both ranks are of one process.
        SameProcess = 1,
        /// They are of two processes of one host.
        SameHost = 2,
        /// They are on two hosts.
        OtherHost = 3,
        /// `CCL_TRANSPORT` asked for it where another would have been chosen.
        Forced = 4,
        /// It is simulated.
        Simulated = 5,
        /// They are on one host, but no connection of one user leads from one to the other's memory.
        NoSharedMemory = 6,
    }
}
closed_set! {
    /// Which way a link points, seen from its rank.
    Direction {
        /// From this rank to the peer.
        Send = 0,
        /// From the peer to this rank.
        Recv = 1,
    }
}
closed_set! {
    /// What the driver of a link waits for. `Nothing` while it moves.
    WaitReason {
        /// It does not wait.
        Nothing = 0,
        /// The peer's data: the next message of a receiving link.
        Peer = 1,
        /// A free slot: the peer has not taken what was sent.
        Credit = 2,
        /// The kernel: a socket takes no more bytes.
        Kernel = 3,
        /// The connection is not up yet.
        Connect = 4,
    }
}
closed_set! {
    /// Where the latest operation of a communicator stands on one rank.
    OpState {
        /// None is under way.
        Idle = 0,
        /// One is under way.
        Running = 1,
        /// One ended with an error; the communicator takes no more.
        Failed = 2,
    }
}
closed_set! {
    /// How the work of a collective is shared out.
    Algorithm {
        /// Every rank sends to the next and receives from the previous one.
        Ring = 0,
        /// Ranks of one host: each reduces its slice, and everyone reads everyone's slots.
        Direct = 1,
        /// Ranks of one host, little data: everyone publishes all and reduces all, in rank order.
        Exchange = 2,
        /// One pair of ranks.
        Pair = 3,
    }
}
closed_set! {
    /// The phases of making a communicator, in order; and that of leaving it.
    Phase {
        /// Finding the root: environment, store or file.
        Rendezvous = 0,
        /// Checking in at the root and learning the successor.
        CheckIn = 1,
        /// Connecting the bootstrap ring.
        Ring = 2,
        /// The all-gather of peers' addresses and settings.
        Exchange = 3,
        /// Links to the ranks of this host.
        Connect = 4,
        /// The barrier that ends the making.
        Barrier = 5,
        /// Waiting in `finish()` until all ranks have called it.
        Finish = 6,
    }
}

impl Phase {
    /// Those of making a communicator.
    pub const MAKING: &'static [Self] =
        &[Self::Rendezvous, Self::CheckIn, Self::Ring, Self::Exchange, Self::Connect, Self::Barrier];
}

impl Datatype {
    /// Bytes per element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::U8 => 1,
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
        matches!(self, Self::Broadcast | Self::Reduce)
    }
    /// Whether the call concerns one pair of ranks only.
    #[must_use]
    pub const fn is_p2p(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }
}
