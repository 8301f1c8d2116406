//! The processes of this host that this process has met: each once, whatever the number of
//! communicators that have ranks in both.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::net::{SendFlags, send};

use super::arena::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::fds::{Doorbell, Fd};
use crate::sys::shared::{self, Owner};
#[cfg(test)]
#[cfg(not(any(miri, loom)))]
use crate::sys::unix;
use crate::sys::unix::Stream;
use crate::transport::line::{FAREWELL, Heard, Line};

/// A peer process: its memory, its doorbell, and the connection that ends with it.
///
/// The connection is closed when the last communicator that has ranks in both processes ends. The
/// peer is told so, and does not take it for a death.
#[derive(Debug)]
pub struct PeerProcess {
    process: u64,
    memfd: Fd,
    doorbell: Doorbell,
    line: Mutex<Line<Stream>>,
    is_dead: AtomicBool,
    has_left: AtomicBool,
    /// The peer maps parts of it, and may hold its descriptor only.
    _own: Arc<Arena>,
}

/// The processes that were met.
static MET: Mutex<Vec<Weak<PeerProcess>>> = Mutex::new(Vec::new());

fn met() -> MutexGuard<'static, Vec<Weak<PeerProcess>>> {
    // Each change is one push or one retain.
    MET.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerProcess {
    /// The process `process`, which gave its memory and its doorbell over `control` and has those
    /// of `own`. It can be found from now on.
    pub(super) fn new(
        process: u64,
        own: Arc<Arena>,
        (memfd, doorbell): (Fd, Doorbell),
        control: Stream,
    ) -> Arc<Self> {
        let peer = Arc::new(Self {
            process,
            memfd,
            doorbell,
            line: Mutex::new(Line::new(control)),
            is_dead: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            _own: own,
        });
        // Upgraded outside the lock they would be dropped in it.
        let mut met = met();
        met.retain(|known| known.strong_count() > 0);
        met.push(Arc::downgrade(&peer));
        peer
    }

    /// A process whose memory is that of `fd`.
    #[cfg(test)]
    #[cfg(not(any(miri, loom)))]
    pub(super) fn with(fd: std::os::fd::OwnedFd) -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("socket");
        let _listener = unix::listen(unix::Name::Path(&name)).unwrap();
        let control = unix::connect(unix::Name::Path(&name)).unwrap();
        let given = (Fd::new(fd), Doorbell::new().unwrap());
        Self::new(0, Arena::new().unwrap(), given, control)
    }

    /// The process of that identity, if it was met and neither has ended nor closed the connection.
    pub(crate) fn find(process: u64) -> Option<Arc<Self>> {
        let all: Vec<Arc<Self>> = Self::all();
        all.into_iter().rev().find(|peer| peer.process == process && !peer.is_dead() && !peer.has_left())
    }

    /// All that are met.
    pub(crate) fn all() -> Vec<Arc<Self>> {
        met().iter().filter_map(Weak::upgrade).collect()
    }

    /// Which process it is, as it told.
    pub(crate) const fn process(&self) -> u64 {
        self.process
    }
    /// Its memory.
    pub(super) const fn memfd(&self) -> &Fd {
        &self.memfd
    }
    /// Its doorbell.
    pub(super) const fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Uses the connection, as long as it is open.
    pub(super) fn over<T>(&self, work: impl FnOnce(&Stream) -> Result<T>) -> Result<T> {
        let line = self.line();
        let gone = || Error::new(ErrorKind::Peer, "it has closed the connection");
        work(line.stream().ok_or_else(gone)?)
    }

    fn line(&self) -> MutexGuard<'_, Line<Stream>> {
        // A panic of a reader leaves whole lines.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has ended, as far as its connection or [`look`](Self::look) has shown.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }
    /// Whether it has closed the connection and goes on.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// Whether its alive lock is free: no process holds it any more.
    #[must_use]
    pub fn is_unlocked(&self) -> bool {
        shared::owner(&self.memfd).is_ok_and(|owner| owner == Owner::None)
    }

    /// Whether the connection has ended.
    #[cfg(test)]
    #[cfg(not(any(miri, loom)))]
    pub(super) fn is_at_end(&self) -> bool {
        self.line().stream().is_none_or(unix::at_end)
    }

    /// Sends a line. What the kernel does not take now is sent by [`serve`](Self::serve).
    pub(crate) fn say(&self, text: &[u8]) {
        let mut line = self.line();
        line.say(text);
        line.write();
    }

    /// Whether the kernel has taken all that was said.
    pub(crate) fn is_flushed(&self) -> bool {
        self.line().is_flushed()
    }

    /// The end of the connection to wait for.
    pub(crate) fn interest(&self) -> Option<crate::reactor::Interest> {
        self.line().interest()
    }

    /// Reads and writes what can be read and written without waiting. `checks`: looks at the alive
    /// lock instead, and reads only if it is free.
    pub(crate) fn serve(&self, checks: bool, mut hear: impl FnMut(&[u8])) {
        // Read after the lock was checked: a process that ends has said before what it had to say.
        let is_unlocked = checks && self.is_unlocked();
        if checks && !is_unlocked {
            return;
        }
        let mut line = self.line();
        let ended = line.read(|heard| match heard {
            Heard::Text(text) => hear(text),
            Heard::Greeting | Heard::Failed(_) => {}
            Heard::Farewell => self.has_left.store(true, Ordering::Release),
        });
        line.write();
        drop(line);
        if is_unlocked || (ended.is_some() && !self.has_left()) {
            self.is_dead.store(true, Ordering::Release);
        }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let line = self.line.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(stream)) = (line.is_flushed(), line.stream()) {
            // A peer that has ended needs no farewell.
            let _ = send(stream.as_fd(), &[FAREWELL], SendFlags::NOSIGNAL);
        }
    }
}
