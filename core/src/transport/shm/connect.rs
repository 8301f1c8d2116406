//! How ranks of different processes of one host come to map each other's memory.
//!
//! Each rank listens at an abstract name, and at a path in the runtime folder for peers in other network namespaces, whom an
//! abstract name does not reach. Of two ranks the lower connects to the higher. Both look at the other's user, prove to each
//! other that they know the job's key, and swap one message each, with the descriptors of memory and doorbell attached. The
//! connection stays: its end tells that the peer's process is gone.
//!
//! Accepting runs in the service thread, so that ranks may connect to each other in any order, each in its caller's thread. A
//! listener is dropped, and its file removed, as soon as all peers are connected.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::memory::{Identity, RankMemory};
use crate::bootstrap::auth::{Accepted, Accepting, Hello, Key, Purpose, connect_blocking};
use crate::clock::{self, Ns};
use crate::control::service::{Handle, Interest, Service, Task, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::sys::unix::{self, Name, Stream};
use crate::types::{CommId, JobId, Rank};

/// What each side says with its descriptors attached.
const SWAP: &[u8; 8] = b"cclSWAP\x01";
/// How long a connection may take to prove itself and swap.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a wait looks whether it is in vain.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the reason why a peer left may take to arrive.
const CAUSE_WITHIN: Duration = Duration::from_millis(200);
/// Connections that have not proven themselves yet. More of them wait in the kernel's queue.
const MAX_PENDING: usize = 256;
/// How long a listener rests when the process has no descriptors left.
const REST: Duration = Duration::from_millis(100);

/// What a rank brings to its local peers.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The job.
    pub job: JobId,
    /// The job's secret.
    pub key: Key,
    /// The rank's own memory, made with [`RankMemory::shared`].
    pub memory: Arc<RankMemory>,
}

/// A rank of this host, in another process.
#[derive(Clone, Debug)]
pub struct LocalPeer {
    /// Its rank.
    pub rank: Rank,
    /// Where it listens in the file system ([`Listener::path`] there), if it does.
    pub path: Option<PathBuf>,
}

/// A peer in another process: its memory, and the connection that ends with its process.
#[derive(Debug)]
pub struct PeerMemory {
    /// The peer's memory, with its doorbell.
    pub memory: Arc<RankMemory>,
    /// The kept connection. It carries nothing but what its owner sends on it.
    pub control: Stream,
}

impl PeerMemory {
    /// Whether the peer's process is gone: the connection is at its end, or nobody holds the memory's alive lock.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        unix::at_end(&self.control) || self.memory.is_dead()
    }
}

/// The file of a path socket, removed when dropped; but not by a forked child.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    generation: u32,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.generation == sys::generation() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The open door of one rank while its peers connect.
#[derive(Debug)]
pub struct Listener {
    terms: Terms,
    inbox: Arc<Inbox>,
    file: Option<SocketFile>,
    _task: Handle,
}

impl Listener {
    /// Listens for the local peers of a rank. `path` is for this rank alone, in a folder private to this user; without one, or
    /// where it takes no sockets, peers of other network namespaces do not reach this rank through memory.
    ///
    /// # Errors
    /// `Unavailable` if neither name can be listened at; `System` if the service thread cannot run.
    pub fn open(terms: Terms, path: Option<PathBuf>) -> Result<Self> {
        let identity = terms.memory.identity();
        let name = name_of(terms.job, identity);
        let mut listeners = Vec::new();
        let mut refused = Vec::new();
        match unix::listen(Name::Abstract(&name)) {
            Ok(fd) => listeners.push(fd),
            Err(e) => refused.push(format!("abstract name {name}: {e}")),
        }
        let mut file = None;
        if let Some(path) = path {
            match unix::listen(Name::Path(&path)) {
                Ok(fd) => {
                    listeners.push(fd);
                    file = Some(SocketFile { path, generation: sys::generation() });
                }
                Err(e) => refused.push(format!("{}: {e}", path.display())),
            }
        }
        if listeners.is_empty() {
            let what = format!("cannot listen for local peers: {}", refused.join("; "));
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        let inbox = Arc::new(Inbox::default());
        let door = Door {
            terms: terms.clone(),
            inbox: Arc::clone(&inbox),
            listeners,
            proving: Vec::new(),
            swapping: Vec::new(),
            resting: None,
        };
        Ok(Self { terms, inbox, file, _task: Service::get()?.add(door)? })
    }

    /// Where peers of other network namespaces find this rank.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// Meets all of `peers`, which do the same with this rank: connects to the higher ones, waits for the lower ones. The
    /// results stand in the order of `peers`. All peers must be listening already. One that dies before it comes is nobody's
    /// to see here: `still` is asked while waiting, and its error ends the wait.
    ///
    /// # Errors
    /// The first peer that could not be met.
    pub fn connect(
        &self,
        peers: &[LocalPeer],
        deadline: Ns,
        still: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<PeerMemory>> {
        let me = self.terms.memory.identity().rank;
        let mut met: Vec<Option<PeerMemory>> = Vec::new();
        for peer in peers {
            let is_higher = peer.rank > me;
            let reached = is_higher.then(|| self.reach(peer, deadline)).transpose();
            met.push(reached.map_err(|e| cause_of(e.with_peer(peer.rank), still))?);
        }
        let met = met.into_iter().zip(peers);
        met.map(|(met, peer)| met.map_or_else(|| self.inbox.take(peer.rank, deadline, still), Ok)).collect()
    }

    fn reach(&self, peer: &LocalPeer, deadline: Ns) -> Result<PeerMemory> {
        let identity = Identity { rank: peer.rank, ..self.terms.memory.identity() };
        let name = name_of(self.terms.job, identity);
        let names = [Some(Name::Abstract(&name)), peer.path.as_deref().map(Name::Path)];
        let mut refused = Vec::new();
        for name in names.into_iter().flatten() {
            match self.try_reach(name, identity, deadline) {
                Ok(met) => return Ok(met),
                Err(e) => refused.push(format!("{name:?}: {}", e.what)),
            }
        }
        let what = format!("no way to its memory: {}", refused.join("; "));
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    fn try_reach(&self, name: Name<'_>, peer: Identity, deadline: Ns) -> Result<PeerMemory> {
        let mut stream = loop {
            match unix::connect(name) {
                Ok(stream) => break stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && clock::now() < deadline => {
                    clock::sleep(Duration::from_millis(1));
                }
                Err(e) => {
                    // Nobody listens at a file that is there: its process died. Its survivors tidy up.
                    if let (Name::Path(path), io::ErrorKind::ConnectionRefused) = (name, e.kind()) {
                        let _ = std::fs::remove_file(path);
                    }
                    return Err(Error::system("connecting", e));
                }
            }
        };
        check_user(&stream)?;
        let me = self.terms.memory.identity();
        let hello = Hello::new(Purpose::Memory, self.terms.job, me.comm, me.rank, peer.rank);
        connect_blocking(&mut stream, &self.terms.key, hello, deadline)
            .map_err(|e| e.into_error(&format!("rank {}", peer.rank)))?;
        send_own(&stream, &self.terms.memory)?;
        let mut swap = Swap { stream, peer, deadline, got: 0, fds: Vec::new() };
        while !swap.receive()? {
            let left = deadline.since(clock::now());
            if left.is_zero() {
                return Err(Error::new(ErrorKind::Timeout, "it did not send its memory in time"));
            }
            let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            // Interrupted, or the time is over: both are seen above.
            let _ = poll(&mut [PollFd::new(&swap.stream, PollFlags::IN)], Some(&limit));
        }
        swap.finish(&self.terms.memory)
    }
}

/// Why a peer could not be met: it may have left for a reason that `still` is about to tell.
fn cause_of(error: Error, still: &mut dyn FnMut() -> Result<()>) -> Error {
    let end = clock::now().after(CAUSE_WITHIN);
    while clock::now() < end {
        if let Err(cause) = still() {
            return cause;
        }
        clock::sleep(Duration::from_millis(1));
    }
    error
}

fn name_of(job: JobId, identity: Identity) -> String {
    format!("ccl-{job}-{}-{}", identity.comm, identity.rank)
}

fn check_user(stream: &Stream) -> Result<()> {
    let uid = unix::peer_uid(stream).map_err(|e| Error::system("asking for a peer's user", e))?;
    if unix::may_talk(uid) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unavailable, format!("a process of user {uid} is at the other end")))
}

/// Sends memory and doorbell: few bytes, which the empty buffer of a fresh connection takes at once.
fn send_own(stream: &Stream, memory: &RankMemory) -> Result<()> {
    let memfd = memory.memfd().expect("a rank with peers in other processes has a shared memory");
    let fds: Vec<_> = [Some(memfd), memory.doorbell().map(AsFd::as_fd)].into_iter().flatten().collect();
    match unix::send_with(stream, SWAP, &fds) {
        Ok(sent) if sent == SWAP.len() => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::System, "a peer's socket takes no 8 bytes")),
        Err(e) => Err(Error::system("sending the memory's descriptor", e)),
    }
}

/// A proven connection on which the peer's descriptors are awaited.
#[derive(Debug)]
struct Swap {
    stream: Stream,
    peer: Identity,
    deadline: Ns,
    got: usize,
    fds: Vec<OwnedFd>,
}

impl Swap {
    /// Receives what is there; whether all of it is.
    fn receive(&mut self) -> Result<bool> {
        let refuse = |what: &str| Err(Error::new(ErrorKind::Unavailable, what));
        while self.got < SWAP.len() {
            let mut bytes = [0; SWAP.len()];
            match unix::recv_with(&self.stream, &mut bytes[self.got..], &mut self.fds) {
                Ok(0) => return refuse("it closed the connection instead of sending its memory"),
                Ok(n) if bytes[self.got..][..n] != SWAP[self.got..][..n] => {
                    return refuse("it sent something else than its memory");
                }
                Ok(n) => self.got += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::system("receiving a peer's memory", e)),
            }
            if self.fds.len() > 2 {
                return refuse("it sent more descriptors than memory and doorbell");
            }
        }
        Ok(true)
    }

    /// Maps what was received.
    fn finish(self, own: &RankMemory) -> Result<PeerMemory> {
        let mut fds = self.fds.into_iter();
        let Some(memfd) = fds.next() else {
            return Err(Error::new(ErrorKind::Unavailable, "it sent no descriptor of its memory"));
        };
        let memory = RankMemory::of_peer(self.peer, *own.layout(), memfd, fds.next())?;
        Ok(PeerMemory { memory, control: self.stream })
    }
}

/// Where the service thread puts the peers that came.
#[derive(Debug, Default)]
struct Inbox {
    arrived: Mutex<Arrived>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Arrived {
    peers: Vec<PeerMemory>,
    /// Why connections were turned away, for whoever waits in vain. Bounded.
    refused: Vec<String>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Arrived> {
        // Nothing panics between two writes to it.
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, rank: Rank) -> bool {
        self.lock().peers.iter().any(|peer| peer.memory.identity().rank == rank)
    }

    fn put(&self, peer: PeerMemory) {
        self.lock().peers.push(peer);
        self.bell.notify_all();
    }

    fn refuse(&self, why: String) {
        let mut arrived = self.lock();
        if arrived.refused.len() < 8 {
            arrived.refused.push(why);
        }
    }

    fn take(&self, rank: Rank, deadline: Ns, still: &mut dyn FnMut() -> Result<()>) -> Result<PeerMemory> {
        loop {
            still()?;
            let mut arrived = self.lock();
            let found = arrived.peers.iter().position(|peer| peer.memory.identity().rank == rank);
            if let Some(at) = found {
                return Ok(arrived.peers.swap_remove(at));
            }
            let left = deadline.since(clock::now());
            if left.is_zero() {
                let mut what = "it did not connect to this rank's memory in time".to_string();
                if !arrived.refused.is_empty() {
                    what = format!("{what} (turned away: {})", arrived.refused.join("; "));
                }
                return Err(Error::new(ErrorKind::Timeout, what).with_peer(rank));
            }
            // Whether it came or not is seen above.
            drop(self.bell.wait_timeout(arrived, left.min(LOOK_EVERY)));
        }
    }
}

/// The listener's work in the service thread.
struct Door {
    terms: Terms,
    inbox: Arc<Inbox>,
    listeners: Vec<sys::fds::Fd>,
    proving: Vec<Accepting<Stream>>,
    swapping: Vec<Swap>,
    /// When to accept again, after the process ran out of descriptors.
    resting: Option<Ns>,
}

impl Door {
    fn accepts(&self) -> bool {
        self.resting.is_none() && self.proving.len() + self.swapping.len() < MAX_PENDING
    }

    fn accept(&mut self, now: Ns) {
        for at in 0..self.listeners.len() {
            while self.accepts() {
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
                        self.inbox.refuse(format!("accepting: {e}"));
                        self.resting = Some(now.after(REST));
                    }
                }
            }
        }
    }

    fn prove(&mut self, now: Ns) {
        let (job, comm) = (self.terms.job, self.terms.memory.identity().comm);
        let key = &self.terms.key;
        let lookup = |of: JobId, within: CommId| (of == job && within == comm).then(|| key.clone());
        for accepting in std::mem::take(&mut self.proving) {
            match accepting.turn(now, &lookup) {
                Accepted::Pending(accepting) => self.proving.push(accepting),
                Accepted::Failed(e) => self.inbox.refuse(e.to_string()),
                Accepted::Done(hello, stream) => match self.admit(&hello) {
                    Ok(()) => {
                        let peer = Identity { comm, rank: hello.from };
                        let deadline = now.after(PATIENCE);
                        self.swapping.push(Swap { stream, peer, deadline, got: 0, fds: Vec::new() });
                    }
                    Err(why) => self.inbox.refuse(why),
                },
            }
        }
    }

    /// Whether this is a lower rank that comes for the first time.
    fn admit(&self, hello: &Hello) -> Result<(), String> {
        let me = self.terms.memory.identity().rank;
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
                true => send_own(&swap.stream, &self.terms.memory)
                    .and_then(|()| swap.finish(&self.terms.memory))
                    .map(Ok),
            });
            match result {
                Ok(Ok(peer)) => self.inbox.put(peer),
                Ok(Err(waiting)) => self.swapping.push(waiting),
                Err(e) => self.inbox.refuse(format!("rank {rank}: {}", e.what)),
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
