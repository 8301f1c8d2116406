//! The reader's side of setting up lanes: a listener in the service thread.
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
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::arrivals::Arrivals;
use super::link::Receiver;
use super::shortage::Shortage;
use super::{CONFIRMED, MAX_STREAMS, SILENCE, Stream};
use crate::bootstrap::auth::{Accepted, Accepting, Hello, Key, PROTOCOL, Purpose};
use crate::clock::Ns;
use crate::error::{Error, Result};
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::sys::fds::Fd;
use crate::types::{ChannelId, CommId, JobId, Rank};

/// How long a connection may take to authenticate.
pub const PROVE_WITHIN: Duration = Duration::from_secs(5);
/// How long a lane may stay incomplete.
pub const COMPLETE_WITHIN: Duration = Duration::from_secs(120);
/// The most connections that may be unproven at the same time.
const MAX_UNPROVEN: usize = 64;
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

/// A listener in the service thread. Dropping it closes the port.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    counts: Arc<Counts>,
    shortage: Arc<Shortage>,
    edges: Arc<Arrivals>,
    _task: Handle,
}

impl Listener {
    /// Listens on `address`; port 0 lets the kernel choose. `wake` is called after a lane has been
    /// put into the inbox.
    ///
    /// # Errors
    /// `System` if it cannot listen on the address.
    pub fn open(
        address: SocketAddr,
        scope: Scope,
        inbox: Inbox,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self> {
        let refused = |e| Error::system(format!("listening for data on {address}"), e);
        let socket =
            Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))
                .map_err(refused)?;
        socket.bind(&address.into()).map_err(refused)?;
        socket.listen(1024).map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?.as_socket().unwrap_or(address);
        let task = Accept::new(Fd::new(socket.into()), scope, inbox, wake);
        let (counts, edges) = (Arc::clone(&task.counts), Arc::clone(&task.edges));
        let shortage = Arc::clone(&task.shortage);
        Ok(Self { address, counts, shortage, edges, _task: Service::get()?.add(task)? })
    }

    /// The streams that carry the failure gossip and no data.
    pub(crate) const fn edges(&self) -> &Arc<Arrivals> {
        &self.edges
    }

    /// The address at which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
    /// The resource that it lacks to accept waiting connections, if any.
    #[must_use]
    pub const fn shortage(&self) -> &Arc<Shortage> {
        &self.shortage
    }
    /// Its counters.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// The streams of a lane that is not complete yet.
struct Set {
    channel: ChannelId,
    from: Rank,
    streams: Vec<Option<Stream>>,
    deadline: Ns,
}

struct Accept {
    socket: Fd,
    paused: Option<Ns>,
    unproven: Vec<Accepting<Stream>>,
    sets: Vec<Set>,
    complete: BTreeSet<(ChannelId, Rank)>,
    scope: Scope,
    inbox: Inbox,
    wake: Arc<dyn Fn() + Send + Sync>,
    counts: Arc<Counts>,
    shortage: Arc<Shortage>,
    edges: Arc<Arrivals>,
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
    fn new(socket: Fd, scope: Scope, inbox: Inbox, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self {
            socket,
            paused: None,
            unproven: Vec::new(),
            sets: Vec::new(),
            complete: BTreeSet::new(),
            scope,
            inbox,
            wake,
            counts: Arc::default(),
            shortage: Arc::default(),
            edges: Arc::default(),
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
        let scope = self.scope.clone();
        let lookup = |job, comm| ((job, comm) == (scope.job, scope.comm)).then(|| scope.key.clone());
        for accepting in std::mem::take(&mut self.unproven) {
            match accepting.turn(now, &lookup) {
                Accepted::Pending(still) => self.unproven.push(still),
                Accepted::Done(hello, mut stream) if scope.is_for(&hello, Purpose::Gossip) => {
                    // As with lanes: if the stream has already ended, the first read reports it.
                    let _ = stream.write(&CONFIRMED);
                    if let Some(fd) = Arc::into_inner(stream.0) {
                        self.edges.put(hello.from, fd);
                    }
                }
                Accepted::Done(hello, stream) if self.admit(&hello, now) => {
                    let set =
                        self.sets.iter_mut().find(|s| (s.channel, s.from) == (hello.channel, hello.from));
                    if let Some(set) = set {
                        set.streams[hello.index as usize] = Some(stream);
                    }
                }
                Accepted::Done(..) | Accepted::Failed(_) => {
                    self.counts.strangers.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Whether this stream has a place. Creates the set if the stream is the first of its lane.
    fn admit(&mut self, hello: &Hello, now: Ns) -> bool {
        let lane = (hello.channel, hello.from);
        if !self.scope.admits(hello) || self.complete.contains(&lane) {
            return false;
        }
        let count = hello.count as usize;
        match self.sets.iter().find(|set| (set.channel, set.from) == lane) {
            Some(set) => set.streams.len() == count,
            None => {
                let streams = (0..count).map(|_| None).collect();
                let deadline = now.after(COMPLETE_WITHIN);
                self.sets.push(Set { channel: lane.0, from: lane.1, streams, deadline });
                true
            }
        }
    }

    /// Hands over complete lanes, and drops streams that have ended and sets that are overdue.
    fn gather(&mut self, now: Ns) {
        let mut any = false;
        for mut set in std::mem::take(&mut self.sets) {
            for stream in &mut set.streams {
                if stream.as_ref().is_some_and(|s| !is_quiet(s)) {
                    *stream = None;
                }
            }
            let there = set.streams.iter().flatten().count();
            if there == set.streams.len() {
                self.complete(set);
                any = true;
            } else if now >= set.deadline {
                self.counts.incomplete.fetch_add(there as u64, Ordering::Relaxed);
            } else if there > 0 {
                self.sets.push(set);
            }
        }
        if any {
            (self.wake)();
        }
    }

    fn complete(&mut self, set: Set) {
        let mut streams: Vec<Stream> = set.streams.into_iter().flatten().collect();
        // A new connection has room for a byte. If the write fails, the stream has ended, and the
        // lane's first read reports that.
        for stream in &mut streams {
            let _ = stream.write(&CONFIRMED);
        }
        let receiver = Receiver::new(streams.into_iter().map(|stream| stream.0).collect(), set.from);
        self.complete.insert((set.channel, set.from));
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push((set.channel, set.from, receiver));
        self.counts.lanes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether a connection waits to be accepted.
fn is_readable(socket: &Fd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
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
        (Accept::new(Fd::new(listener.into()), scope, Inbox::default(), Arc::new(|| ())), address)
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
