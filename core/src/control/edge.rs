//! A rank's edge of the ring of news, made anew where the next rank has left: connecting to the one
//! behind it, and taking the streams of those who connect for the same reason.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::bootstrap::auth::{Hello, Key, Purpose};
use crate::clock::Ns;
use crate::control::service::Interest;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::fds::Fd;
use crate::transport::socket::connect::{Connecting, Target};
use crate::types::{CommId, JobId, Rank};

/// How long nobody may listen where a rank did before it counts as dead: its farewell may take
/// another way and longer.
const REFUSED: Duration = Duration::from_millis(500);
/// How long one try may take: whoever is stopped has not died, and is tried again.
const TRY: Duration = Duration::from_secs(60);

/// How the ranks of a communicator are connected to.
pub(crate) struct Dialling {
    pub(crate) job: JobId,
    pub(crate) comm: CommId,
    pub(crate) key: Key,
    pub(crate) me: Rank,
    /// The address of the interface to go out by.
    pub(crate) bind: Option<SocketAddr>,
    /// The data listener of each rank.
    pub(crate) listeners: Vec<SocketAddr>,
}

/// A stream to the next rank, on its way up.
pub(super) struct Edge {
    target: Target,
    connecting: Connecting,
}

impl Dialling {
    pub(super) fn dial(&self, to: Rank, now: Ns) -> Edge {
        let target = Target {
            address: self.listeners[to.index()],
            bind: self.bind,
            key: self.key.clone(),
            hello: Hello::new(Purpose::Gossip, self.job, self.comm, self.me, to),
            streams: 1,
        };
        Edge { connecting: Connecting::new(target.clone(), now.after(TRY)), target }
    }
}

impl Edge {
    pub(super) fn to(&self) -> Rank {
        self.target.hello.to
    }

    /// Does what can be done without waiting. The stream, once it is up.
    ///
    /// # Errors
    /// Nobody listens there any more, or it is no rank of this communicator that does.
    pub(super) fn turn(&mut self, now: Ns) -> Result<Option<Fd>> {
        match self.connecting.streams(now) {
            Ok(streams) => {
                if self.connecting.refused_since().is_some_and(|since| now.since(since) >= REFUSED) {
                    return Err(Error::new(ErrorKind::Peer, "nobody listens there any more"));
                }
                Ok(streams.and_then(|mut streams| streams.pop()))
            }
            Err(error) if error.kind == ErrorKind::Timeout => {
                self.connecting = Connecting::new(self.target.clone(), now.after(TRY));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = Interest> + '_ {
        self.connecting.fds()
    }

    pub(super) fn wake(&self) -> Ns {
        self.connecting.wake()
    }
}

/// Streams of ranks whose next this one has become: the listener puts them here.
#[derive(Default)]
pub(crate) struct Arrivals {
    streams: Mutex<Vec<(Rank, Fd)>>,
    called: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Arrivals")
    }
}

impl Arrivals {
    /// Has `call` called when a stream is put here; at once, if some were put before. Between the
    /// two none is put unseen.
    pub(super) fn call(self: &Arc<Self>, call: impl Fn() + Send + 'static) {
        let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        call();
        *called = Some(Box::new(call));
    }

    pub(crate) fn put(&self, from: Rank, stream: Fd) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push((from, stream));
        if let Some(call) = &*self.called.lock().unwrap_or_else(PoisonError::into_inner) {
            call();
        }
    }

    pub(super) fn take(&self) -> Vec<(Rank, Fd)> {
        std::mem::take(&mut self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
