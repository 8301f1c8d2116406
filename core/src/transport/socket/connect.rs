//! The writer's side of setting up a lane: a state machine that never blocks.
//!
//! Each stream goes through its own steps: connect, handshake, wait for the reader's byte. A
//! failure whose reason may pass (no process listens yet, or the reader was too busy and closed the
//! connection) is retried until the deadline. A failure that cannot pass (another secret, another
//! version) ends the lane.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::link::Sender;
use super::{CONFIRMED, MAX_STREAMS, Stream};
use crate::bootstrap::auth::{Handshake, HandshakeError, Hello, Key, Nonce, Refusal};
use crate::clock::{Ns, Stopwatch};
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::Interest;
use crate::sys::fds::Fd;
use crate::sys::is_transient;
use crate::sys::process::{is_own_limit, lacks};

const RETRY_FIRST: Duration = Duration::from_millis(5);
const RETRY_MOST: Duration = Duration::from_millis(200);
/// A proxy that accepts connections for a process that is gone closes each within this time. A busy
/// listener closes them later.
const CLOSED_SOON: Duration = Duration::from_millis(500);

/// The address of a lane's reader, and the data to send to it.
#[derive(Clone, Debug)]
pub struct Target {
    /// The reader's data listener.
    pub address: SocketAddr,
    /// The local address to bind to, whose port is ignored. `None`: the routes decide.
    pub bind: Option<SocketAddr>,
    /// The job's key.
    pub key: Key,
    /// Job, communicator, ranks and channel. Index and count are filled in for each stream.
    pub hello: Hello,
    /// The number of streams.
    pub streams: u32,
}

#[derive(Debug)]
enum State {
    /// Waits for its next try, at this time.
    Waiting(Ns),
    /// The kernel is connecting.
    Connecting(Stream),
    /// The handshake: bytes to send, then bytes of the other side to read.
    Greeting(Stream, Box<Handshake>, Vec<u8>),
    /// Both sides are authenticated. The reader has not yet confirmed that it has all streams.
    Proven(Stream),
    /// The reader has confirmed the lane.
    Up(Stream),
    /// Placeholder during a transition between two states.
    Moving,
}

/// Why a try ended.
enum Failure {
    /// The next try may succeed.
    Passing(String),
    /// No process listens there. The next try may succeed.
    Refused(String),
    /// The other end closed the connection before the handshake ended, or something between the
    /// hosts did. The next try may succeed.
    Closed(String),
    /// This process or its kernel lacks a resource. It may become available again.
    Lacking(Errno),
    /// No later try can succeed.
    Final(HandshakeError),
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        match Errno::from_io_error(&e) {
            Some(Errno::CONNREFUSED) => Self::Refused(e.to_string()),
            Some(Errno::CONNRESET | Errno::NOTCONN | Errno::PIPE) => Self::Closed(e.to_string()),
            Some(errno) if is_own_limit(errno) => Self::Lacking(errno),
            _ => Self::Passing(e.to_string()),
        }
    }
}

impl From<HandshakeError> for Failure {
    fn from(e: HandshakeError) -> Self {
        match e {
            HandshakeError::Closed => Self::Closed(e.to_string()),
            HandshakeError::Deadline | HandshakeError::System(_) => Self::Passing(e.to_string()),
            e => Self::Final(e),
        }
    }
}

#[derive(Debug)]
struct Dial {
    state: State,
    pause: Duration,
    last: String,
    /// When the last try began.
    began: Ns,
    /// The time since which every try was refused because no process listens there.
    refused: Option<Ns>,
    /// The time since which every try was refused, or closed soon, before the handshake ended.
    ended: Option<Ns>,
    /// The time since which the reader's kernel has not answered.
    unanswered: Option<Ns>,
    /// The resource that the kernel refused this process at the last try.
    lacking: Option<Errno>,
}

/// A lane that is being set up.
#[derive(Debug)]
pub struct Connecting {
    target: Target,
    dials: Vec<Dial>,
    /// How long to try. Time in which this rank was stopped does not count.
    limit: Duration,
    watch: Stopwatch,
    /// When the limit is reached, as of the last turn.
    deadline: Ns,
    /// Sockets opened so far.
    opened: u32,
}

impl Connecting {
    /// Creates the lane. Nothing happens before the first [`turn`](Self::turn).
    #[must_use]
    pub fn new(target: Target, now: Ns, limit: Duration) -> Self {
        assert!((1..=MAX_STREAMS).contains(&target.streams), "{} streams", target.streams);
        let dial = |_| Dial {
            state: State::Waiting(Ns(0)),
            pause: RETRY_FIRST,
            last: "no answer".to_string(),
            began: now,
            refused: None,
            ended: None,
            unanswered: None,
            lacking: None,
        };
        let dials = (0..target.streams).map(dial).collect();
        let watch = Stopwatch::start(now);
        Self { target, dials, limit, watch, deadline: now.after(limit), opened: 0 }
    }

    /// Does what can be done without waiting. Returns the lane once it is up.
    ///
    /// # Errors
    /// `Timeout` at the deadline, with the last reason; or an error that says why the reader can
    /// never be reached this way. Each error names reader, channel, address and stream.
    pub fn turn(&mut self, now: Ns) -> Result<Option<Sender>> {
        let to = self.target.hello.to;
        Ok(self.streams(now)?.map(|streams| Sender::new(streams, to)))
    }

    /// Like [`turn`](Self::turn), but returns the streams themselves.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn streams(&mut self, now: Ns) -> Result<Option<Vec<Arc<Fd>>>> {
        self.deadline = now.after(self.limit.saturating_sub(self.watch.look(now)));
        for index in 0..self.dials.len() {
            self.advance(index, now)?;
        }
        if self.dials.iter().all(|dial| matches!(dial.state, State::Up(_))) {
            let streams = self.dials.drain(..).filter_map(|dial| match dial.state {
                State::Up(stream) => Some(stream.0),
                _ => None,
            });
            return Ok(Some(streams.collect()));
        }
        if now >= self.deadline {
            let slow = self.dials.iter().position(|dial| !matches!(dial.state, State::Up(_))).unwrap_or(0);
            let Dial { last, lacking, .. } = &self.dials[slow];
            let what = format!("{} until the deadline: {last}", self.place(slow));
            let hint = lacking.map_or("", |errno| lacks(errno).1);
            return Err(self.error(Error::new(ErrorKind::Timeout, what).hint(hint)));
        }
        Ok(None)
    }

    /// The time since which every try of some stream was refused. `None` while a try is under way:
    /// it may succeed.
    pub(crate) fn refused_since(&self) -> Option<Ns> {
        self.failed().filter_map(|dial| dial.refused).min()
    }

    /// The same of tries that were refused, or closed soon, before the handshake ended.
    pub(crate) fn ended_since(&self) -> Option<Ns> {
        self.failed().filter_map(|dial| dial.ended).min()
    }

    fn failed(&self) -> impl Iterator<Item = &Dial> {
        self.dials.iter().filter(|dial| matches!(dial.state, State::Waiting(_)))
    }

    /// The time since which the reader's kernel has not answered the tries of some stream. Once it
    /// has, it is the process that takes its time.
    pub(crate) fn unanswered_since(&self) -> Option<Ns> {
        self.dials.iter().filter_map(|dial| dial.unanswered).min()
    }

    /// What the kernel refused this process, so that a stream is still to be tried again.
    pub(crate) fn lacking(&self) -> Option<Errno> {
        self.dials.iter().find_map(|dial| dial.lacking)
    }

    /// The reader's data listener.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.target.address
    }

    /// Sockets opened so far: a changed number means that [`sockets`](Self::sockets) are others.
    pub(crate) const fn opened(&self) -> u32 {
        self.opened
    }

    /// The socket of each stream, in order; a dangling one of a stream between two tries.
    pub(crate) fn sockets(&self) -> Vec<Weak<Fd>> {
        let socket = |dial: &Dial| match &dial.state {
            State::Connecting(stream)
            | State::Greeting(stream, ..)
            | State::Proven(stream)
            | State::Up(stream) => Arc::downgrade(&stream.0),
            State::Waiting(_) | State::Moving => Weak::new(),
        };
        self.dials.iter().map(socket).collect()
    }

    /// What to poll for.
    pub fn fds(&self) -> impl Iterator<Item = Interest> + '_ {
        self.dials.iter().filter_map(|dial| {
            let (stream, read, write) = match &dial.state {
                State::Connecting(stream) => (stream, false, true),
                State::Greeting(stream, _, to_send) => (stream, true, !to_send.is_empty()),
                State::Proven(stream) => (stream, true, false),
                State::Waiting(_) | State::Up(_) | State::Moving => return None,
            };
            Some(Interest { fd: stream.0.as_raw_fd(), read, write })
        })
    }

    /// The time of the next turn if no descriptor becomes ready before.
    #[must_use]
    pub fn wake(&self) -> Ns {
        let retry = self.dials.iter().filter_map(|dial| match dial.state {
            State::Waiting(at) => Some(at),
            _ => None,
        });
        retry.min().unwrap_or(self.deadline).min(self.deadline)
    }

    /// Moves one stream forward as far as is possible now.
    fn advance(&mut self, index: usize, now: Ns) -> Result<()> {
        loop {
            let state = std::mem::replace(&mut self.dials[index].state, State::Moving);
            let (state, moved) = match self.step(index, state, now) {
                Ok((state, moved)) => {
                    if moved {
                        self.dials[index].lacking = None;
                    }
                    (state, moved)
                }
                Err(Failure::Final(e)) => {
                    let mut error = e.into_error(&self.target.address.to_string());
                    error.what = format!("{}: {}", self.place(index), error.what);
                    return Err(self.error(error));
                }
                Err(Failure::Passing(why)) => (self.rest(index, why, [None; 2], now), false),
                Err(Failure::Lacking(errno)) => {
                    let why = format!("rank {} has {}", self.target.hello.from, lacks(errno).0);
                    let state = self.rest(index, why, [None; 2], now);
                    let dial = &mut self.dials[index];
                    // The reader was not asked.
                    (dial.lacking, dial.unanswered) = (Some(errno), None);
                    (state, false)
                }
                Err(Failure::Refused(why)) => {
                    let Dial { refused, ended, .. } = self.dials[index];
                    (self.rest(index, why, [refused, ended].map(|since| since.or(Some(now))), now), false)
                }
                Err(Failure::Closed(why)) => {
                    let Dial { began, ended, .. } = self.dials[index];
                    let is_soon = now.since(began) <= CLOSED_SOON;
                    self.dials[index].unanswered = None;
                    (self.rest(index, why, [None, ended.or(Some(now)).filter(|_| is_soon)], now), false)
                }
            };
            self.dials[index].state = state;
            if !moved {
                return Ok(());
            }
        }
    }

    /// Lets a stream wait before its next try. The times are those since which every try was
    /// refused, and since which every try was refused or closed soon.
    fn rest(&mut self, index: usize, why: String, [refused, ended]: [Option<Ns>; 2], now: Ns) -> State {
        let dial = &mut self.dials[index];
        let at = now.after(dial.pause);
        dial.pause = (dial.pause * 2).min(RETRY_MOST);
        (dial.last, dial.refused, dial.ended, dial.lacking) = (why, refused, ended, None);
        if ended.is_some() {
            dial.unanswered = None;
        }
        State::Waiting(at)
    }

    /// One transition of one stream; whether there was any.
    fn step(&mut self, index: usize, state: State, now: Ns) -> std::result::Result<(State, bool), Failure> {
        match state {
            State::Waiting(at) if at > now => Ok((State::Waiting(at), false)),
            State::Waiting(_) => {
                self.dials[index].began = now;
                let stream = self.connect()?;
                self.dials[index].unanswered.get_or_insert(now);
                Ok((State::Connecting(stream), true))
            }
            State::Connecting(stream) => {
                if !is_connected(&stream)? {
                    return Ok((State::Connecting(stream), false));
                }
                self.dials[index].unanswered = None;
                let mut hello = self.target.hello;
                (hello.index, hello.count) = (index as u32, self.target.streams);
                let nonce = Nonce::draw().map_err(|e| Failure::Passing(e.to_string()))?;
                let mut handshake = Box::new(Handshake::connect(self.target.key.clone(), hello, nonce));
                let first = handshake.feed(&[], &|_, _| None)?.to_send;
                Ok((State::Greeting(stream, handshake, first), true))
            }
            State::Greeting(mut stream, mut handshake, mut to_send) => {
                while !to_send.is_empty() {
                    match stream.write(&to_send) {
                        Ok(count) => drop(to_send.drain(..count)),
                        Err(e) if is_transient(&e) => {
                            return Ok((State::Greeting(stream, handshake, to_send), false));
                        }
                        Err(e) => return Err(e.into()),
                    }
                }
                if handshake.wants() == 0 {
                    return Ok((State::Proven(stream), true));
                }
                let mut bytes = [0; 128];
                let wanted = handshake.wants().min(bytes.len());
                match stream.read(&mut bytes[..wanted]) {
                    Ok(0) => Err(HandshakeError::Closed.into()),
                    Ok(count) => {
                        let to_send = handshake.feed(&bytes[..count], &|_, _| None)?.to_send;
                        Ok((State::Greeting(stream, handshake, to_send), true))
                    }
                    Err(e) if is_transient(&e) => Ok((State::Greeting(stream, handshake, to_send), false)),
                    Err(e) => Err(e.into()),
                }
            }
            State::Proven(mut stream) => {
                let mut byte = [0];
                match stream.read(&mut byte) {
                    Ok(1) if byte == CONFIRMED => Ok((State::Up(stream), true)),
                    Ok(0) => Err(HandshakeError::Closed.into()),
                    // A farewell: the reader rejected the last message of the handshake.
                    Ok(_) => Err(Failure::Final(HandshakeError::Refused(Refusal::Proof))),
                    Err(e) if is_transient(&e) => Ok((State::Proven(stream), false)),
                    Err(e) => Err(e.into()),
                }
            }
            state @ (State::Up(_) | State::Moving) => Ok((state, false)),
        }
    }

    fn connect(&mut self) -> std::io::Result<Stream> {
        let address = self.target.address;
        let socket =
            Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        super::tune(&socket)?;
        if let Some(mut bind) = self.target.bind {
            bind.set_port(0);
            socket.bind(&bind.into())?;
        }
        match socket.connect(&address.into()) {
            Err(e) if e.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(e),
            _ => {
                self.opened = self.opened.wrapping_add(1);
                Ok(Stream(Arc::new(Fd::new(socket.into()))))
            }
        }
    }

    fn place(&self, index: usize) -> String {
        format!("connecting stream {} of {} to {}", index + 1, self.target.streams, self.target.address)
    }
    fn error(&self, error: Error) -> Error {
        let hello = &self.target.hello;
        error.in_comm(hello.comm.to_string(), hello.from).with_peer(hello.to).on_channel(hello.channel)
    }
}

/// Whether the kernel has connected the stream. A refusal is returned as an error.
fn is_connected(stream: &Stream) -> std::io::Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&now)) {
        Ok(0) | Err(Errno::INTR) => return Ok(false),
        Ok(_) => {}
        Err(e) => return Err(e.into()),
    }
    let socket = SockRef::from(stream);
    if let Some(refused) = socket.take_error()? {
        return Err(refused);
    }
    // A socket that dials a free port of its own host may get that same port as its local port, and
    // so connect to itself.
    let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
    if local.as_socket() == peer.as_socket() {
        return Err(Errno::CONNREFUSED.into());
    }
    Ok(true)
}
