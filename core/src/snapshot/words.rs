//! The closed sets of a snapshot, as words: what a later version adds is `unknown` to an earlier one.

use serde::{Deserialize, Serialize};

use crate::types;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant,)+
            /// A word of a later version, or what an earlier one did not tell.
            #[default]
            #[serde(rename = "unknown", other)]
            Unknown,
        }
        impl $name {
            /// The word, as in JSON.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ Self::Unknown => "unknown" }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }
    };
}

pub(super) use words;

words! {
    /// How the process of a rank is.
    State {
        /// It exists and may run.
        Running = "running",
        /// It exists and is stopped, by a signal or a debugger.
        Stopped = "stopped",
        /// It ended without taking leave.
        Dead = "dead",
        /// It left in good order.
        Exited = "exited",
    }
}
words! {
    /// Where a rank's part comes from.
    Source {
        /// Its control socket answered.
        Socket = "socket",
        /// Its mapping was read while it lived.
        Mapping = "mapping",
        /// Its file was read after it had ended, or a dump of it.
        File = "file",
    }
}
words! {
    /// Where the operation stands on its rank.
    OpState {
        /// None is under way.
        Idle = "idle",
        /// It is under way.
        Running = "running",
        /// It ended with an error.
        Failed = "failed",
    }
}
words! {
    /// Which way a link points, seen from its rank.
    Direction {
        /// To the peer.
        Send = "send",
        /// From the peer.
        Recv = "recv",
    }
}
words! {
    /// What carries a link's bytes.
    Transport {
        /// Pointers within one process.
        Direct = "direct",
        /// Shared memory.
        Shm = "shm",
        /// TCP.
        Socket = "socket",
        /// The simulator.
        Sim = "sim",
    }
}
words! {
    /// Why a link is carried by what carries it.
    Why {
        /// Both ranks are of one process.
        SameProcess = "same_process",
        /// They are of two processes of one host.
        SameHost = "same_host",
        /// They are on two hosts.
        OtherHost = "other_host",
        /// `CCL_TRANSPORT` asked for it where another would have been chosen.
        Forced = "forced",
        /// It is simulated.
        Simulated = "simulated",
        /// They are on one host, but no connection of one user leads from one to the other's memory.
        NoSharedMemory = "no_shared_memory",
    }
}
words! {
    /// What the driver of a link waits for.
    Waits {
        /// It does not wait.
        Nothing = "nothing",
        /// The peer's data.
        Peer = "peer",
        /// A free slot: the peer has not taken what was sent.
        Credit = "credit",
        /// The kernel takes no more bytes.
        Kernel = "kernel",
        /// The connection is not up yet.
        Connect = "connect",
    }
}

impl From<types::Direction> for Direction {
    fn from(direction: types::Direction) -> Self {
        match direction {
            types::Direction::Send => Self::Send,
            types::Direction::Recv => Self::Recv,
        }
    }
}
impl From<types::TransportKind> for Transport {
    fn from(kind: types::TransportKind) -> Self {
        match kind {
            types::TransportKind::Direct => Self::Direct,
            types::TransportKind::Shm => Self::Shm,
            types::TransportKind::Socket => Self::Socket,
            types::TransportKind::Sim => Self::Sim,
        }
    }
}
impl From<types::TransportReason> for Why {
    fn from(reason: types::TransportReason) -> Self {
        match reason {
            types::TransportReason::SameProcess => Self::SameProcess,
            types::TransportReason::SameHost => Self::SameHost,
            types::TransportReason::OtherHost => Self::OtherHost,
            types::TransportReason::Forced => Self::Forced,
            types::TransportReason::Simulated => Self::Simulated,
            types::TransportReason::NoSharedMemory => Self::NoSharedMemory,
        }
    }
}
impl From<types::WaitReason> for Waits {
    fn from(reason: types::WaitReason) -> Self {
        match reason {
            types::WaitReason::Nothing => Self::Nothing,
            types::WaitReason::Peer => Self::Peer,
            types::WaitReason::Credit => Self::Credit,
            types::WaitReason::Kernel => Self::Kernel,
            types::WaitReason::Connect => Self::Connect,
        }
    }
}
