//! The enumerations of a snapshot, as words: a word that a later version adds is `unknown` to an
//! earlier version.

use serde::{Deserialize, Serialize};

use crate::types;

// A word's number is its place in the list. Recorders and events hold the numbers of `Class`,
// `Standing` and `Reason`, and other versions read them: a new word goes to the end.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant,)+
            /// A word of a later version, or one that an earlier version did not record.
            #[default]
            #[serde(rename = "unknown", other)]
            Unknown,
        }
        impl $name {
            /// The words of this version, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its number in a recorder, from 1; 0 for an unknown word.
            #[must_use]
            pub fn number(self) -> u8 {
                Self::ALL.iter().position(|one| *one == self).map_or(0, |at| at as u8 + 1)
            }
            /// The word with this number.
            #[must_use]
            pub fn numbered(number: u8) -> Self {
                let at = usize::from(number).checked_sub(1);
                at.and_then(|at| Self::ALL.get(at)).copied().unwrap_or(Self::Unknown)
            }
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
    /// The state of the process of a rank.
    State {
        /// It exists and may run.
        Running = "running",
        /// It exists and is stopped, by a signal or a debugger.
        Stopped = "stopped",
        /// It ended without leaving.
        Dead = "dead",
        /// It left in good order, and has ended.
        Exited = "exited",
        /// It gave its recorder back in good order; it lives, or its end could not be verified.
        Left = "left",
    }
}
words! {
    /// How a rank was read.
    Source {
        /// Its control socket answered.
        Socket = "socket",
        /// Its mapping was read while it lived.
        Mapping = "mapping",
        /// Its file was read after it had ended, or a dump of the file.
        File = "file",
        /// A process of its own host has read it, and told it across the network.
        Gather = "gather",
        /// A copy of its recorder was read while it lived: what it did since is not known.
        Copy = "copy",
    }
}
words! {
    /// The state of the operation on its rank.
    OpState {
        /// No operation is under way.
        Idle = "idle",
        /// It is under way.
        Running = "running",
        /// It ended with an error.
        Failed = "failed",
    }
}
words! {
    /// The direction of a link, seen from its rank.
    Direction {
        /// To the peer.
        Send = "send",
        /// From the peer.
        Recv = "recv",
    }
}
words! {
    /// The transport of a link.
    Transport {
        /// Pointers within one process.
        InProcess = "in-process",
        /// Shared memory.
        Shm = "shm",
        /// TCP.
        Socket = "socket",
        /// The simulator.
        Sim = "sim",
        /// Queue pairs of InfiniBand or RoCE.
        Verbs = "verbs",
    }
}
words! {
    /// The reason for a link's transport.
    Why {
        /// Both ranks are in one process.
        SameProcess = "same_process",
        /// The ranks are in two processes of one host.
        SameHost = "same_host",
        /// The ranks are on two hosts.
        OtherHost = "other_host",
        /// `CCL_TRANSPORT` forced it where another would have been chosen.
        Forced = "forced",
        /// It is simulated.
        Simulated = "simulated",
        /// The ranks are on one host, but neither can connect to the other's memory as the same
        /// user.
        NoSharedMemory = "no_shared_memory",
        /// The ranks are on two hosts, and a side has no port for queue pairs, or one of another
        /// kind.
        NoVerbs = "no_verbs",
    }
}
words! {
    /// The reason why the driver of a link waits.
    Waits {
        /// It does not wait.
        Nothing = "nothing",
        /// It waits for the peer's data.
        Peer = "peer",
        /// It waits for a free slot: the peer has not taken the sent messages.
        Credit = "credit",
        /// The kernel takes no more bytes.
        Kernel = "kernel",
        /// The connection is not up yet.
        Connect = "connect",
        /// It waits for a slot of the proxy: other operations of its process hold them all.
        Proxy = "proxy",
    }
}

impl Waits {
    /// Whether who waits for this reason waits for another rank.
    #[must_use]
    pub const fn is_for_rank(self) -> bool {
        !matches!(self, Self::Proxy)
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
            types::TransportKind::InProcess => Self::InProcess,
            types::TransportKind::Shm => Self::Shm,
            types::TransportKind::Socket => Self::Socket,
            types::TransportKind::Sim => Self::Sim,
            types::TransportKind::Verbs => Self::Verbs,
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
            types::TransportReason::NoVerbs => Self::NoVerbs,
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
            types::WaitReason::Proxy => Self::Proxy,
        }
    }
}
