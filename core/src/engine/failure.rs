//! Why an engine stopped.

use crate::collective::Descriptor;
use crate::error::ErrorKind;
use crate::transport::LinkFault;
use crate::types::{ChannelId, CollKind, Rank};

/// Why an engine stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The cause.
    pub cause: Cause,
    /// The operation in which it was found.
    pub op: Option<(CollKind, u64)>,
    /// The rank on the other side.
    pub peer: Option<Rank>,
    /// The channel.
    pub channel: Option<ChannelId>,
}

/// The cause of a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A link carries no more bytes.
    Link(LinkFault),
    /// A peer's message belongs to another operation than ours.
    Mismatch {
        /// The operation here.
        ours: Descriptor,
        /// The hash in the message.
        theirs: u64,
    },
    /// A rank has called `finish()`, but not the same as this rank; the text names both sides.
    Finished(String),
    /// Decided elsewhere: an abort, a deadline, or failure gossip of a peer's death or mismatch.
    External(crate::error::Error),
}

impl Failure {
    /// The kind of error that this failure becomes.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match &self.cause {
            Cause::Link(LinkFault::Gone) => ErrorKind::Peer,
            Cause::Link(_) => ErrorKind::System,
            Cause::Mismatch { .. } | Cause::Finished(_) => ErrorKind::Mismatch,
            Cause::External(error) => error.kind,
        }
    }
}
