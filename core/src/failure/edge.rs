//! A rank's edge of the failure gossip ring, renewed when the next rank has left: it connects to
//! the rank behind that one. And the connection that tells whether a rank lives whose stream ended
//! without a farewell.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::auth::{Hello, Key, Purpose};
use crate::clock::Ns;
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::Interest;
use crate::sys::fds::Fd;
use crate::transport::socket::SILENCE;
use crate::transport::socket::connect::{Connecting, Target};
use crate::types::{CommId, JobId, Rank};

/// How long a rank's listener must refuse connections before the rank counts as dead. Its farewell
/// may arrive later, through other ranks.
const REFUSED: Duration = Duration::from_millis(500);
/// The same where each connection is closed soon and not refused: what lies between the hosts may
/// accept them for a process that is gone. A listener with many connections also closes some.
const CLOSED: Duration = Duration::from_millis(1500);
/// How long one attempt may take. A stopped process has not died, so the rank is tried again.
const TRY: Duration = Duration::from_secs(60);

/// How to connect to the ranks of a communicator.
#[derive(Clone)]
pub(crate) struct Dialling {
    pub(crate) job: JobId,
    pub(crate) comm: CommId,
    pub(crate) key: Key,
    pub(crate) me: Rank,
    /// The local address of the interface to use.
    pub(crate) bind: Option<SocketAddr>,
    /// The data listener of each rank.
    pub(crate) listeners: Vec<SocketAddr>,
}

/// A stream to a rank that is being connected.
pub(super) struct Edge {
    target: Target,
    connecting: Connecting,
    /// How long the listener must refuse connections before the rank counts as dead.
    refused: Duration,
}

impl Dialling {
    /// Connects to the next rank.
    pub(super) fn dial(&self, to: Rank, now: Ns) -> Edge {
        self.edge(to, now, REFUSED)
    }

    /// Connects to a rank that has not said farewell and whose stream ended: if its listener is
    /// gone, so is the rank.
    pub(super) fn probe(&self, to: Rank, now: Ns) -> Edge {
        self.edge(to, now, Duration::ZERO)
    }

    fn edge(&self, to: Rank, now: Ns, refused: Duration) -> Edge {
        let target = Target {
            address: self.listeners[to.index()],
            bind: self.bind,
            key: self.key.clone(),
            hello: Hello::new(Purpose::Gossip, self.job, self.comm, self.me, to),
            streams: 1,
        };
        Edge { connecting: Connecting::new(target.clone(), now, TRY), target, refused }
    }
}

impl Edge {
    pub(super) fn to(&self) -> Rank {
        self.target.hello.to
    }

    /// Does what can be done without waiting; returns the stream once it is connected.
    ///
    /// # Errors
    /// The rank no longer listens, its connections are closed again and again, or the listener is
    /// not a rank of this communicator, or no more.
    pub(super) fn turn(&mut self, now: Ns) -> Result<Option<Fd>> {
        match self.connecting.streams(now) {
            Ok(streams) => {
                let lasts = |since: Option<Ns>, limit| since.is_some_and(|since| now.since(since) >= limit);
                let is_refused = lasts(self.connecting.refused_since(), self.refused);
                if is_refused || lasts(self.connecting.ended_since(), CLOSED) {
                    return Err(Error::new(ErrorKind::Peer, "nobody listens there any more"));
                }
                Ok(streams.and_then(|mut streams| streams.pop()).and_then(Arc::into_inner))
            }
            Err(error) if error.kind == ErrorKind::Timeout => {
                self.connecting = Connecting::new(self.target.clone(), now, TRY);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the host has answered nothing for as long as a stream may be silent. The kernel of a
    /// stopped process answers, until the queue of its listener is full.
    pub(super) fn is_silent(&self, now: Ns) -> bool {
        self.connecting.unanswered_since().is_some_and(|since| now.since(since) >= SILENCE)
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = Interest> + '_ {
        self.connecting.fds()
    }

    pub(super) fn wake(&self) -> Ns {
        self.connecting.wake()
    }
}
