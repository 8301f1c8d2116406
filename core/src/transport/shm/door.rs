//! The door of one rank: the task of the service thread that accepts connections of the rank's
//! lower local peers.
//!
//! Connections of other users are closed at once, and they cost at most [`PER_TURN`] connections a
//! turn. A connection of this user must prove within [`PATIENCE`] that it knows the job's key, and
//! then swap descriptors.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::connect::{Swap, Terms, check_user, send_own};
use super::memory::Identity;
use super::peer::PeerProcess;
use crate::bootstrap::auth::{Accepted, Accepting, Hello, Purpose};
use crate::clock::{self, Ns};
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::{Interest, Task, Turn};
use crate::sys;
use crate::sys::unix::{self, Stream};
use crate::types::{CommId, JobId, Rank};

/// How long a connection may take to authenticate, and then to swap descriptors.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a wait checks whether it is unsatisfiable.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The most connections that have not finished. Further connections wait in the kernel's queue.
const MAX_PENDING: usize = 256;
/// The most connections accepted from one listener in one turn: the service thread has other tasks.
const PER_TURN: usize = 32;
/// How long a listener pauses when the process has no descriptors left.
const REST: Duration = Duration::from_millis(100);

/// The peers that have connected, put here by the service thread.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    arrived: Mutex<Arrived>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Arrived {
    peers: Vec<(Rank, Arc<PeerProcess>)>,
    /// Why connections were refused, for the error of a wait for a peer that never comes. Bounded.
    refused: Vec<String>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Arrived> {
        // No code panics between two writes to it.
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, rank: Rank) -> bool {
        self.lock().peers.iter().any(|(peer, _)| *peer == rank)
    }

    fn put(&self, rank: Rank, peer: Arc<PeerProcess>) {
        self.lock().peers.push((rank, peer));
        self.bell.notify_all();
    }

    fn refuse(&self, why: String) {
        let mut arrived = self.lock();
        if arrived.refused.len() < 8 && !arrived.refused.contains(&why) {
            arrived.refused.push(why);
        }
    }

    pub(super) fn take(
        &self,
        rank: Rank,
        deadline: Ns,
        still: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<PeerProcess>> {
        loop {
            still()?;
            let mut arrived = self.lock();
            let found = arrived.peers.iter().position(|(peer, _)| *peer == rank);
            if let Some(at) = found {
                return Ok(arrived.peers.swap_remove(at).1);
            }
            let left = deadline.since(clock::now());
            if left.is_zero() {
                let mut what = "it did not connect to this rank's memory in time".to_string();
                if !arrived.refused.is_empty() {
                    what = format!("{what} (turned away: {})", arrived.refused.join("; "));
                }
                return Err(Error::new(ErrorKind::Timeout, what).with_peer(rank));
            }
            // The next round checks whether the peer has arrived.
            drop(self.bell.wait_timeout(arrived, left.min(LOOK_EVERY)));
        }
    }
}

/// The task of the service thread that serves the listeners.
pub(super) struct Door {
    terms: Terms,
    inbox: Arc<Inbox>,
    listeners: Vec<sys::fds::Fd>,
    proving: Vec<Accepting<Stream>>,
    swapping: Vec<Swap>,
    /// The time at which to accept again, after the process ran out of descriptors.
    resting: Option<Ns>,
}

impl Door {
    pub(super) const fn new(terms: Terms, inbox: Arc<Inbox>, listeners: Vec<sys::fds::Fd>) -> Self {
        Self { terms, inbox, listeners, proving: Vec::new(), swapping: Vec::new(), resting: None }
    }

    fn accepts(&self) -> bool {
        self.resting.is_none() && self.proving.len() + self.swapping.len() < MAX_PENDING
    }

    fn accept(&mut self, now: Ns) {
        for at in 0..self.listeners.len() {
            for _ in 0..PER_TURN {
                if !self.accepts() {
                    return;
                }
                match unix::accept(&self.listeners[at]) {
                    Ok(None) => break,
                    Ok(Some(stream)) => {
                        let accepted =
                            check_user(&stream).and_then(|()| Accepting::new(stream, now.after(PATIENCE)));
                        match accepted {
                            Ok(accepting) => self.proving.push(accepting),
                            Err(e) => self.inbox.refuse(e.what),
                        }
                    }
                    Err(e) => {
                        self.inbox.refuse(Error::system("accepting", e).to_string());
                        self.resting = Some(now.after(REST));
                    }
                }
            }
        }
    }

    fn prove(&mut self, now: Ns) {
        let (job, comm) = (self.terms.job, self.terms.identity.comm);
        let key = &self.terms.key;
        let lookup = |of: JobId, within: CommId| (of == job && within == comm).then(|| key.clone());
        for accepting in std::mem::take(&mut self.proving) {
            match accepting.turn(now, &lookup) {
                Accepted::Pending(accepting) => self.proving.push(accepting),
                Accepted::Failed(e) => self.inbox.refuse(e.to_string()),
                Accepted::Done(hello, stream) => match self.admit(&hello) {
                    Ok(()) => {
                        let peer = Identity { comm, rank: hello.from };
                        self.swapping.push(Swap::new(stream, peer, now.after(PATIENCE)));
                    }
                    Err(why) => self.inbox.refuse(why),
                },
            }
        }
    }

    /// Whether this is a lower rank that connects for the first time.
    fn admit(&self, hello: &Hello) -> Result<(), String> {
        let me = self.terms.identity.rank;
        if hello.purpose != Purpose::Memory || hello.to != me || hello.from >= me {
            return Err(format!("rank {} came to rank {me} for {:?}", hello.from, hello.purpose));
        }
        if self.inbox.has(hello.from) || self.swapping.iter().any(|swap| swap.peer.rank == hello.from) {
            return Err(format!("rank {} came twice", hello.from));
        }
        Ok(())
    }

    fn swap(&mut self, now: Ns) {
        for mut swap in std::mem::take(&mut self.swapping) {
            let rank = swap.peer.rank;
            let result = swap.receive().and_then(|whole| match whole {
                false if now >= swap.deadline => {
                    Err(Error::new(ErrorKind::Timeout, "it did not send its memory in time"))
                }
                false => Ok(Err(swap)),
                // The peer's process can be found before this one's memory is sent: a peer that has
                // received it may rely on being met.
                true => swap
                    .finish(&self.terms.arena)
                    .and_then(|peer| peer.over(|stream| send_own(stream, &self.terms)).map(|()| Ok(peer))),
            });
            match result {
                Ok(Ok(peer)) => self.inbox.put(rank, peer),
                Ok(Err(waiting)) => self.swapping.push(waiting),
                Err(e) => self.inbox.refuse(format!("rank {rank}: {e}")),
            }
        }
    }
}

impl Task for Door {
    fn interests(&self, out: &mut Vec<Interest>) {
        if self.accepts() {
            let listening = |fd: &sys::fds::Fd| Interest { fd: fd.as_raw_fd(), read: true, write: false };
            out.extend(self.listeners.iter().map(listening));
        }
        out.extend(self.proving.iter().map(Accepting::interest));
        let reading =
            |swap: &Swap| Interest { fd: swap.stream.as_fd().as_raw_fd(), read: true, write: false };
        out.extend(self.swapping.iter().map(reading));
    }

    fn turn(&mut self, now: Ns) -> Turn {
        self.resting = self.resting.filter(|&until| until > now);
        self.accept(now);
        self.prove(now);
        self.swap(now);
        let deadlines = self.proving.iter().map(Accepting::deadline);
        Turn::Again(deadlines.chain(self.swapping.iter().map(|swap| swap.deadline)).chain(self.resting).min())
    }
}

#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests {
    use super::super::arena::Arena;
    use super::*;
    use crate::bootstrap::auth::Key;
    use crate::sys::unix::Name;

    #[test]
    fn a_crowd_is_taken_in_turns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("door.link");
        let identity = Identity { comm: CommId(1), rank: Rank(1) };
        let arena = Arena::new().unwrap();
        let terms = Terms { job: JobId(1), key: Key([1; 32]), identity, process: 1, arena };
        let listener = unix::listen(Name::Path(&path)).unwrap();
        let mut door = Door::new(terms, Arc::default(), vec![listener]);
        let crowd: Vec<_> = (0..PER_TURN + 5).map(|_| unix::connect(Name::Path(&path)).unwrap()).collect();
        door.turn(clock::now());
        assert_eq!(door.proving.len(), PER_TURN);
        door.turn(clock::now());
        assert_eq!(door.proving.len(), crowd.len());
    }
}
