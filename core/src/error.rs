//! The error type of this crate. `kind` says what a caller can do, `at` says where the error
//! happened, and `hint` says what to do next.

use std::fmt;

use rustix::io::Errno;

use crate::types::{ChannelId, CollKind, Rank};

/// What a caller can do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The call or a setting is wrong: change the program.
    Usage,
    /// Something needed is missing (a transport, a file system, a library): choose another.
    Unavailable,
    /// A peer is gone: continue without it.
    Peer,
    /// Ranks made different calls: change the program. The text names both sides.
    Mismatch,
    /// A deadline passed: look which ranks block others.
    Timeout,
    /// The communicator was aborted, here or elsewhere.
    Aborted,
    /// The operating system refused something.
    System,
}

impl ErrorKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: &'static [Self] = &[
        Self::Usage,
        Self::Unavailable,
        Self::Peer,
        Self::Mismatch,
        Self::Timeout,
        Self::Aborted,
        Self::System,
    ];
    /// The kind with this number, as events and recorders store it; `None` if it is unknown.
    #[must_use]
    pub fn from_u8(n: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| *kind as u8 == n)
    }
}

/// Where an error happened. A field is `None` if it is unknown or does not apply.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct At {
    /// The communicator, by name or id.
    pub comm: Option<String>,
    /// The rank that reports the error.
    pub rank: Option<Rank>,
    /// The operation and its sequence number.
    pub op: Option<(CollKind, u64)>,
    /// The rank on the other side.
    pub peer: Option<Rank>,
    /// The channel.
    pub channel: Option<ChannelId>,
}

/// An error of this crate.
#[derive(Clone)]
pub struct Error {
    /// What a caller can do about it.
    pub kind: ErrorKind,
    /// Where it happened.
    pub at: At,
    /// What happened, one sentence.
    pub what: String,
    /// The next thing to do; empty if there is nothing to add.
    pub hint: String,
    source: Option<std::sync::Arc<dyn std::error::Error + Send + Sync>>,
}

/// The hint for a process that has no descriptors left.
pub(crate) const OPEN_FILES: &str =
    "the limit on open files is reached: raise it where the ranks are started (ulimit -n, LimitNOFILE=)";

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` that says `what`.
    #[must_use]
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, at: At::default(), what: what.into(), hint: String::new(), source: None }
    }
    /// An error of the operating system that occurred while doing `what`.
    #[must_use]
    pub fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        let source = source.into();
        let mut error = Self::new(ErrorKind::System, format!("{}: {source}", what.into()));
        let no_descriptors = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
        if no_descriptors.contains(&source.raw_os_error()) {
            error.hint = OPEN_FILES.into();
        }
        error.source = Some(std::sync::Arc::new(source));
        error
    }
    /// Adds the next thing to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
    /// What happened, and the hint behind it, for a text that goes elsewhere.
    pub(crate) fn with_hint(&self) -> String {
        match self.hint.as_str() {
            "" => self.what.clone(),
            hint => format!("{} ({hint})", self.what),
        }
    }
    /// The operating system's error, if this error has one.
    pub(crate) fn io(&self) -> Option<&std::io::Error> {
        self.source.as_deref().and_then(|source| source.downcast_ref::<std::io::Error>())
    }
    /// Whether the operating system refused an address because another socket uses it.
    pub(crate) fn is_in_use(&self) -> bool {
        self.io().is_some_and(|source| source.kind() == std::io::ErrorKind::AddrInUse)
    }
    /// Adds the communicator and the reporting rank.
    #[must_use]
    pub fn in_comm(mut self, comm: impl Into<String>, rank: Rank) -> Self {
        self.at.comm = Some(comm.into());
        self.at.rank = Some(rank);
        self
    }
    /// Adds the operation.
    #[must_use]
    pub fn in_op(mut self, kind: CollKind, seq: u64) -> Self {
        self.at.op = Some((kind, seq));
        self
    }
    /// Adds the peer.
    #[must_use]
    pub fn with_peer(mut self, peer: Rank) -> Self {
        self.at.peer = Some(peer);
        self
    }
    /// Adds the channel.
    #[must_use]
    pub fn on_channel(mut self, channel: ChannelId) -> Self {
        self.at.channel = Some(channel);
        self
    }
}

impl PartialEq for Error {
    /// Equal in everything but the source, which is only for people.
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.at, &self.what, &self.hint) == (other.kind, &other.at, &other.what, &other.hint)
    }
}

impl Eq for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(comm) = &self.at.comm {
            write!(f, "comm {comm}: ")?;
        }
        if let Some(rank) = self.at.rank {
            write!(f, "rank {rank}: ")?;
        }
        match self.at.op {
            // A call that was refused has no number.
            Some((kind, 0)) => write!(f, "{kind}: ")?,
            Some((kind, seq)) => write!(f, "{kind} #{seq}: ")?,
            None => {}
        }
        if let Some(channel) = self.at.channel {
            write!(f, "channel {channel}: ")?;
        }
        if let Some(peer) = self.at.peer {
            write!(f, "peer rank {peer}: ")?;
        }
        f.write_str(&self.what)?;
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_refused_has_no_number() {
        let said = |seq| Error::new(ErrorKind::Usage, "no").in_op(CollKind::Broadcast, seq).to_string();
        assert_eq!((said(0).as_str(), said(3).as_str()), ("Broadcast: no", "Broadcast #3: no"));
    }
}
