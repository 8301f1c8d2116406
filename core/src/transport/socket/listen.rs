//! The reader's side of setting up lanes: a listener in the service thread, one for all
//! communicators of this process that use the same interface.
//!
//! A connection must prove within [`PROVE_WITHIN`] that its process knows the job's key and is a
//! rank of this communicator with a lane to this rank. Strangers (scanners, half-open connections,
//! replays, other jobs) are dropped and counted, and do not disturb the lanes. If there are too
//! many unproven connections, the oldest is dropped.
//!
//! Proven streams are gathered per lane. A stream that ends before its lane is complete is removed,
//! and its writer may connect it again. A set that stays incomplete is dropped after
//! [`COMPLETE_WITHIN`], which is long because the writer may be stopped. A complete lane is
//! confirmed by one byte on each stream and put into the inbox.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::arrivals::Arrivals;
use super::link::Receiver;
use super::{CONFIRMED, MAX_STREAMS, SILENCE, Stream};
use crate::bootstrap::auth::{Accepted, Accepting, Hello, Key, PROTOCOL, Purpose};
use crate::clock::Ns;
use crate::error::{Error, Result};
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::sys;
use crate::sys::fds::Fd;
use crate::sys::is_readable;
use crate::sys::shortage::Shortage;
use crate::types::{ChannelId, CommId, JobId, Rank};

/// How long a connection may take to authenticate.
pub const PROVE_WITHIN: Duration = Duration::from_secs(5);
/// How long a lane may stay incomplete.
pub const COMPLETE_WITHIN: Duration = Duration::from_secs(120);
/// The most connections that may be unproven at the same time.
const MAX_UNPROVEN: usize = 64;
/// The most streams for gathering that wait to be taken: a process that is not observed takes none.
const MAX_UNTAKEN: usize = 16;
/// The most connections accepted in one turn: the service thread has other tasks.
const PER_TURN: usize = 32;
/// The pause after the system refused to accept (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Lanes that are complete, for the engine to take.
pub type Inbox = Arc<Mutex<Vec<(ChannelId, Rank, Receiver)>>>;

/// The job, communicator and rank for which lanes are accepted.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The job.
    pub job: JobId,
    /// Its key.
    pub key: Key,
    /// The communicator.
    pub comm: CommId,
    /// The reader.
    pub rank: Rank,
    /// The number of ranks of the communicator.
    pub nranks: u32,
    /// The number of channels for collectives; the point-to-point channel is accepted too.
    pub channels: u16,
}

impl Scope {
    /// Whether a proven connection is meant for this rank.
    fn is_for(&self, hello: &Hello, purpose: Purpose) -> bool {
        hello.purpose == purpose
            && hello.version == PROTOCOL
            && (hello.job, hello.comm, hello.to) == (self.job, self.comm, self.rank)
            && hello.from.0 < self.nranks
            && hello.from != self.rank
    }

    /// Whether the connection may be a stream of a lane to this rank.
    fn admits(&self, hello: &Hello) -> bool {
        self.is_for(hello, Purpose::Data)
            && (hello.channel.0 < self.channels || hello.channel == ChannelId::P2P)
            && hello.index < hello.count
            && hello.count <= MAX_STREAMS
    }
}

/// The counters of a listener.
#[derive(Default, Debug)]
pub struct Counts {
    /// Lanes put in the inbox.
    pub lanes: AtomicU64,
    /// Connections that failed to authenticate, or asked for a lane that does not exist here.
    pub strangers: AtomicU64,
    /// Proven streams whose lane never became complete.
    pub incomplete: AtomicU64,
}

/// A communicator's rank as the listener admits streams to it. Dropping it refuses them, and
/// closes the port if it is the last.
#[derive(Debug)]
pub struct Listener {
    id: u64,
    edges: Arc<Arrivals>,
    gathers: Arc<Arrivals>,
    pairs: Arc<Arrivals>,
    listening: Arc<Listening>,
}

/// A listener in the service thread.
#[derive(Debug)]
struct Listening {
    address: SocketAddr,
    counts: Arc<Counts>,
    shortage: Arc<Shortage>,
    entries: Entries,
    /// The number of the next entry.
    next: AtomicU64,
    task: Handle,
}

/// The listeners of this process.
static LISTENING: Mutex<Vec<Weak<Listening>>> = Mutex::new(Vec::new());

/// Those to whom a listener admits streams.
type Entries = Arc<Mutex<Vec<Entry>>>;

#[derive(Clone)]
struct Entry {
    id: u64,
    scope: Scope,
    inbox: Inbox,
    wake: Arc<dyn Fn() + Send + Sync>,
    edges: Arc<Arrivals>,
    gathers: Arc<Arrivals>,
    pairs: Arc<Arrivals>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({} rank {})", self.scope.comm, self.scope.rank)
    }
}

impl Entry {
    /// Where streams that carry no data arrive; `None` if there are too many that nobody takes.
    fn arrivals(&self, purpose: Purpose) -> Option<&Arrivals> {
        match purpose {
            Purpose::Gossip => Some(&self.edges),
            Purpose::Verbs => Some(&self.pairs),
            Purpose::Gather => Some(&*self.gathers).filter(|gathers| gathers.len() < MAX_UNTAKEN),
            _ => None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one push, one pop or one retain.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listener {
    /// Admits streams to a rank on the listener of this process at `address`, whose port the kernel
    /// chooses if there is none yet. `wake` is called after a lane has been put into the inbox.
    ///
    /// # Errors
    /// `System` if it cannot listen on the address.
    pub fn open(
        address: IpAddr,
        scope: Scope,
        inbox: Inbox,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self> {
        Ok(Self::on(Listening::at(address)?, scope, inbox, wake))
    }

    /// Listens at an address of its own.
    #[cfg(test)]
    pub fn alone(
        address: SocketAddr,
        scope: Scope,
        inbox: Inbox,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self> {
        Ok(Self::on(Arc::new(Listening::open(address)?), scope, inbox, wake))
    }

    fn on(listening: Arc<Listening>, scope: Scope, inbox: Inbox, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let id = listening.next.fetch_add(1, Ordering::Relaxed);
        let [edges, gathers, pairs] = [(); 3].map(|()| Arc::<Arrivals>::default());
        let entry = Entry {
            id,
            scope,
            inbox,
            wake,
            edges: Arc::clone(&edges),
            gathers: Arc::clone(&gathers),
            pairs: Arc::clone(&pairs),
        };
        lock(&listening.entries).push(entry);
        Self { id, edges, gathers, pairs, listening }
    }

    /// The streams that carry the failure gossip and no data.
    pub(crate) const fn edges(&self) -> &Arc<Arrivals> {
        &self.edges
    }

    /// The streams over which state is gathered across hosts.
    pub(crate) const fn gathers(&self) -> &Arc<Arrivals> {
        &self.gathers
    }

    /// The streams over which queue pairs are set up.
    pub(crate) const fn queue_pairs(&self) -> &Arc<Arrivals> {
        &self.pairs
    }

    /// The address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listening.address
    }
    /// The resource that it lacks to accept waiting connections, if any.
    #[must_use]
    pub fn shortage(&self) -> &Arc<Shortage> {
        &self.listening.shortage
    }
    /// Its counters, of all ranks to which it admits streams.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.listening.counts
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if sys::forked() {
            // A copy: another thread of the parent may hold the lock.
            return;
        }
        lock(&self.listening.entries).retain(|entry| entry.id != self.id);
        // Streams of lanes that were not complete are closed.
        self.listening.task.nudge();
    }
}

impl Listening {
    /// The listener of this process at that address.
    fn at(address: IpAddr) -> Result<Arc<Self>> {
        sys::not_forked()?;
        let mut all = lock(&LISTENING);
        let known: Vec<Arc<Self>> = all.iter().filter_map(Weak::upgrade).collect();
        all.retain(|known| known.strong_count() > 0);
        if let Some(known) = known.iter().find(|known| known.address.ip() == address) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(Self::open(SocketAddr::new(address, 0))?);
        all.push(Arc::downgrade(&made));
        drop(all);
        Ok(made)
    }

    fn open(address: SocketAddr) -> Result<Self> {
        let refused = |e| Error::system(format!("listening for data on {address}"), e);
        let socket =
            Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))
                .map_err(refused)?;
        socket.bind(&address.into()).map_err(refused)?;
        socket.listen(1024).map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?.as_socket().unwrap_or(address);
        let accept = Accept::new(Fd::new(socket.into()), Entries::default());
        let (counts, shortage) = (Arc::clone(&accept.counts), Arc::clone(&accept.shortage));
        let entries = Arc::clone(&accept.entries);
        let (next, task) = (AtomicU64::new(0), Service::get()?.add(accept)?);
        Ok(Self { address, counts, shortage, entries, next, task })
    }
}

/// The entry, the channel and the writer of a lane.
type LaneKey = (u64, ChannelId, Rank);

/// The streams of a lane that is not complete yet.
struct Set {
    lane: LaneKey,
    streams: Vec<Option<Stream>>,
    deadline: Ns,
}

struct Accept {
    socket: Fd,
    paused: Option<Ns>,
    unproven: Vec<Accepting<Stream>>,
    sets: Vec<Set>,
    complete: BTreeSet<LaneKey>,
    entries: Entries,
    counts: Arc<Counts>,
    shortage: Arc<Shortage>,
}

impl Task for Accept {
    fn interests(&self, out: &mut Vec<Interest>) {
        if self.paused.is_none() {
            out.push(Interest { fd: self.socket.as_raw_fd(), read: true, write: false });
        }
        out.extend(self.unproven.iter().map(Accepting::interest));
        // For a stream that waits for its lane only the end matters: its writer sends nothing until
        // the lane is confirmed.
        let gathered = self.sets.iter().flat_map(|set| set.streams.iter().flatten());
        out.extend(gathered.map(|s| Interest { fd: s.0.as_raw_fd(), read: true, write: false }));
    }

    fn turn(&mut self, now: Ns) -> Turn {
        if self.paused.is_none_or(|until| until <= now) {
            self.paused = None;
            self.accept(now);
        }
        self.prove(now);
        self.gather(now);
        let wakes = [
            self.paused,
            self.unproven.iter().map(Accepting::deadline).min(),
            self.sets.iter().map(|set| set.deadline).min(),
        ];
        Turn::Again(wakes.into_iter().flatten().min())
    }
}

impl Accept {
    fn new(socket: Fd, entries: Entries) -> Self {
        Self {
            socket,
            paused: None,
            unproven: Vec::new(),
            sets: Vec::new(),
            complete: BTreeSet::new(),
            entries,
            counts: Arc::default(),
            shortage: Arc::default(),
        }
    }

    fn accept(&mut self, now: Ns) {
        for _ in 0..PER_TURN {
            let stream = match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => Stream(Arc::new(Fd::new(fd))),
                Err(Errno::AGAIN) => return self.shortage.ends(),
                // The connection was gone before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => continue,
                Err(e) => {
                    // The kernel also refuses a descriptor if no connection waits to be accepted.
                    if is_readable(&self.socket) {
                        self.shortage.begins(e);
                    }
                    self.paused = Some(now.after(ACCEPT_PAUSE));
                    return;
                }
            };
            if self.unproven.len() >= MAX_UNPROVEN {
                self.unproven.remove(0);
                self.counts.strangers.fetch_add(1, Ordering::Relaxed);
            }
            let deadline = now.after(PROVE_WITHIN);
            let tuned = super::tune(&stream)
                .and_then(|()| SockRef::from(&stream).set_tcp_user_timeout(Some(SILENCE)));
            if let (Ok(()), Ok(accepting)) = (tuned, Accepting::new(stream, deadline)) {
                self.unproven.push(accepting);
            }
        }
    }

    fn prove(&mut self, now: Ns) {
        if self.unproven.is_empty() {
            return;
        }
        let entries = lock(&self.entries).clone();
        let lookup = |job, comm| {
            let scopes = || entries.iter().map(|entry| &entry.scope);
            scopes().find(|scope| (job, comm) == (scope.job, scope.comm)).map(|scope| scope.key.clone())
        };
        for accepting in std::mem::take(&mut self.unproven) {
            let (hello, mut stream) = match accepting.turn(now, &lookup) {
                Accepted::Pending(still) => {
                    self.unproven.push(still);
                    continue;
                }
                Accepted::Done(hello, stream) => (hello, stream),
                Accepted::Failed(_) => {
                    self.counts.strangers.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
            };
            let is_for = |entry: &&Entry| entry.scope.is_for(&hello, hello.purpose);
            let arrivals = entries.iter().find(is_for).and_then(|entry| entry.arrivals(hello.purpose));
            if let Some(arrivals) = arrivals {
                // As with lanes: if the stream has already ended, the first read reports it.
                let _ = stream.write(&CONFIRMED);
                if let Some(fd) = Arc::into_inner(stream.0) {
                    arrivals.put((hello.from, hello.channel, fd));
                }
                continue;
            }
            let lane = self.admit(&entries, &hello, now);
            let set = self.sets.iter_mut().find(|set| Some(set.lane) == lane);
            match set.and_then(|set| set.streams.get_mut(hello.index as usize)) {
                Some(place) => *place = Some(stream),
                None => drop(self.counts.strangers.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    /// The lane in which this stream has a place. Creates the set if the stream is the first of its
    /// lane.
    fn admit(&mut self, entries: &[Entry], hello: &Hello, now: Ns) -> Option<LaneKey> {
        let entry = entries.iter().find(|entry| entry.scope.admits(hello))?;
        let lane = (entry.id, hello.channel, hello.from);
        if self.complete.contains(&lane) {
            return None;
        }
        let count = hello.count as usize;
        match self.sets.iter().find(|set| set.lane == lane) {
            Some(set) => (set.streams.len() == count).then_some(lane),
            None => {
                let streams = (0..count).map(|_| None).collect();
                let deadline = now.after(COMPLETE_WITHIN);
                self.sets.push(Set { lane, streams, deadline });
                Some(lane)
            }
        }
    }

    /// Hands over complete lanes, and drops streams that have ended, and sets that are overdue or
    /// whose reader has gone.
    fn gather(&mut self, now: Ns) {
        if self.sets.is_empty() && self.complete.is_empty() {
            return;
        }
        let entries = lock(&self.entries).clone();
        self.complete.retain(|(id, ..)| entries.iter().any(|entry| entry.id == *id));
        let mut called: Vec<&Entry> = Vec::new();
        for mut set in std::mem::take(&mut self.sets) {
            let Some(entry) = entries.iter().find(|entry| entry.id == set.lane.0) else { continue };
            for stream in &mut set.streams {
                if stream.as_ref().is_some_and(|s| !is_quiet(s)) {
                    *stream = None;
                }
            }
            let there = set.streams.iter().flatten().count();
            if there == set.streams.len() {
                self.complete(set, entry);
                called.push(entry);
            } else if now >= set.deadline {
                self.counts.incomplete.fetch_add(there as u64, Ordering::Relaxed);
            } else if there > 0 {
                self.sets.push(set);
            }
        }
        called.iter().for_each(|entry| (entry.wake)());
    }

    fn complete(&mut self, set: Set, entry: &Entry) {
        let mut streams: Vec<Stream> = set.streams.into_iter().flatten().collect();
        // A new connection has room for a byte. If the write fails, the stream has ended, and the
        // lane's first read reports that.
        for stream in &mut streams {
            let _ = stream.write(&CONFIRMED);
        }
        let (_, channel, from) = set.lane;
        let receiver = Receiver::new(streams.into_iter().map(|stream| stream.0).collect(), from);
        self.complete.insert(set.lane);
        lock(&entry.inbox).push((channel, from, receiver));
        self.counts.lanes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether the writer has neither left nor sent anything before the lane is confirmed.
fn is_quiet(stream: &Stream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(rustix::net::recv(stream, &mut [0u8][..], flags), Err(Errno::AGAIN | Errno::INTR))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::bootstrap::auth::connect_blocking;
    use crate::clock;

    fn task() -> (Accept, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let scope = Scope {
            job: JobId(1),
            key: Key([7; 32]),
            comm: CommId(2),
            rank: Rank(1),
            nranks: 2,
            channels: 1,
        };
        let (inbox, edges) = (Inbox::default(), Arc::default());
        let (gathers, pairs) = (Arc::default(), Arc::default());
        let entry = Entry { id: 0, scope, inbox, wake: Arc::new(|| ()), edges, gathers, pairs };
        let entries = Arc::new(Mutex::new(vec![entry]));
        (Accept::new(Fd::new(listener.into()), entries), address)
    }

    fn interests(task: &Accept) -> usize {
        let mut out = Vec::new();
        task.interests(&mut out);
        out.len()
    }

    #[test]
    fn the_silent_are_dropped_after_five_seconds() {
        let (mut task, address) = task();
        let _silent = TcpStream::connect(address).unwrap();
        let now = clock::now();
        let deadline = now.after(PROVE_WITHIN);
        assert_eq!(task.turn(now), Turn::Again(Some(deadline)));
        assert_eq!(interests(&task), 2);
        assert_eq!(task.turn(Ns(deadline.0 - 1)), Turn::Again(Some(deadline)));
        assert_eq!(task.turn(deadline), Turn::Again(None));
        assert_eq!((interests(&task), task.counts.strangers.load(Ordering::Relaxed)), (1, 1));
    }

    #[test]
    fn a_lane_that_stays_incomplete_is_dropped() {
        let (mut task, address) = task();
        let mut hello = Hello::new(Purpose::Data, JobId(1), CommId(2), Rank(0), Rank(1));
        hello.count = 2;
        let writer = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            connect_blocking(&mut stream, &Key([7; 32]), hello, clock::now().after(PROVE_WITHIN)).unwrap();
            stream
        });
        let now = clock::now();
        while task.sets.is_empty() {
            task.turn(now);
        }
        let _stream = writer.join().unwrap();
        let deadline = now.after(COMPLETE_WITHIN);
        assert_eq!(task.turn(now), Turn::Again(Some(deadline)));
        assert_eq!(task.turn(deadline), Turn::Again(None));
        assert_eq!((task.sets.len(), task.counts.incomplete.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn a_crowd_is_taken_in_turns() {
        let (mut task, address) = task();
        let crowd: Vec<_> = (0..PER_TURN + 5).map(|_| TcpStream::connect(address).unwrap()).collect();
        task.turn(clock::now());
        assert_eq!(task.unproven.len(), PER_TURN);
        task.turn(clock::now());
        assert_eq!(task.unproven.len(), crowd.len());
    }

    #[test]
    fn a_refusal_to_accept_is_a_pause_and_no_hot_loop() {
        let (mut task, _) = task();
        // A descriptor that cannot accept simulates a process that is out of descriptors.
        task.socket = Fd::new(std::fs::File::open("/dev/null").unwrap().into());
        let now = clock::now();
        assert_eq!(task.turn(now), Turn::Again(Some(now.after(ACCEPT_PAUSE))));
        assert_eq!(interests(&task), 0);
    }
}
