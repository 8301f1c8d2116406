//! Drives a machine with real sockets, which are non-blocking and polled; no socket stays open. The
//! guarantees are those of [`machine`](super::machine).

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::auth::fill_random;
use super::machine::{Action, Io, Machine, StreamId};
use crate::clock::{self, Ns};
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::Interest;
use crate::sys::fds::Fd;
use crate::sys::is_readable;
use crate::sys::shortage::Shortage;

/// How long a closed stream may take to deliver what was sent and to learn that the peer closed
/// too. A socket that is dropped with unread bytes resets the connection, and the last bytes that
/// were sent are lost.
const LINGER: Duration = Duration::from_secs(1);
/// How long no connection is accepted after the kernel ran out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const ACCEPTS_PER_TURN: usize = 64;
const READS_PER_TURN: usize = 64;
/// Even with few file descriptors, this many ranks can prove themselves at once.
const FEWEST_SEATS: usize = 4;

#[derive(Debug)]
struct Sock {
    fd: Fd,
    connecting: bool,
    out: Vec<u8>,
    /// Writing failed. The stream is still read, and ends when there is nothing more to read.
    mute: bool,
    /// Something was sent, so closing the stream must deliver it.
    has_sent: bool,
    paused: bool,
    closing: Option<Ns>,
}

/// The sockets of one machine.
#[derive(Debug)]
pub(crate) struct Net {
    listener: Option<Fd>,
    accept_after: Ns,
    streams: BTreeMap<StreamId, Sock>,
    next_stream: u64,
    /// Streams that ended before they came up; the machine has not been notified yet.
    stillborn: Vec<(StreamId, String)>,
    /// How many unauthenticated connections may wait at once.
    seats: usize,
    /// What kept it from connecting or accepting.
    shortage: Shortage,
}

impl Net {
    /// # Errors
    /// `System` if the kernel has no random bytes, or refuses to make the listener non-blocking.
    pub(crate) fn new(listener: Option<Socket>) -> Result<Self> {
        fill_random(&mut [0])?;
        if let Some(listener) = &listener {
            listener.set_nonblocking(true).map_err(|e| Error::system("preparing a listener", e))?;
        }
        Ok(Self {
            listener: listener.map(|socket| Fd::new(socket.into())),
            accept_after: Ns(0),
            streams: BTreeMap::new(),
            next_stream: 0,
            stillborn: Vec::new(),
            seats: seats(),
            shortage: Shortage::default(),
        })
    }

    /// What this process lacks to connect or accept.
    pub(crate) const fn shortage(&self) -> &Shortage {
        &self.shortage
    }

    /// Calls the machine, and carries out its actions.
    pub(crate) fn with<M, T>(&mut self, machine: &mut M, call: impl FnOnce(&mut M, &mut Io<'_>) -> T) -> T {
        let mut actions = Vec::new();
        let mut io = Io {
            seats: self.seats,
            now: clock::now(),
            actions: &mut actions,
            next_stream: &mut self.next_stream,
            random: &mut |out| fill_random(out).expect("it had random bytes when this began"),
        };
        let result = call(machine, &mut io);
        for action in actions {
            self.act(action);
        }
        result
    }

    /// Advances as far as possible without waiting.
    pub(crate) fn turn(&mut self, machine: &mut impl Machine) {
        self.accept(machine);
        for (stream, revents) in self.ready() {
            self.serve(machine, stream, revents);
        }
        for (stream, why) in std::mem::take(&mut self.stillborn) {
            self.with(machine, |machine, io| machine.closed(stream, &why, io));
        }
        self.with(machine, |machine, io| machine.turn(io));
        let now = clock::now();
        self.streams.retain(|_, sock| sock.closing.is_none_or(|until| until > now));
    }

    /// Waits until a socket is ready or the time has come.
    pub(crate) fn wait(&self, until: Ns) {
        let left = if self.stillborn.is_empty() { until.since(clock::now()) } else { Duration::ZERO };
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds: Vec<PollFd<'_>> = self.streams.values().map(poll_fd).collect();
        fds.extend(self.listener.iter().filter(|_| self.accepts()).map(|l| PollFd::new(l, PollFlags::IN)));
        // An interrupted poll becomes a turn with nothing ready.
        let _ = poll(&mut fds, Some(&timeout));
    }

    pub(crate) fn interests(&self, out: &mut Vec<Interest>) {
        for sock in self.streams.values() {
            let write = sock.wants_write();
            out.push(Interest { fd: sock.fd.as_raw_fd(), read: sock.wants_read(), write });
        }
        let listener = self.listener.iter().filter(|_| self.accepts());
        out.extend(listener.map(|l| Interest { fd: l.as_raw_fd(), read: true, write: false }));
    }

    /// When a turn is due even if nothing is ready.
    pub(crate) fn wake(&self, machine: &impl Machine) -> Option<Ns> {
        let closing = self.streams.values().filter_map(|sock| sock.closing).min();
        let accept = (!self.accepts() && self.listener.is_some()).then_some(self.accept_after);
        let stillborn = (!self.stillborn.is_empty()).then_some(Ns(0));
        [machine.wake(), closing, accept, stillborn].into_iter().flatten().min()
    }

    /// Whether the kernel has taken all bytes that were sent on streams that are not closing.
    pub(crate) fn is_flushed(&self) -> bool {
        self.streams.values().all(|sock| sock.closing.is_some() || sock.out.is_empty())
    }
    /// Whether no stream is left that is in use or still has to deliver.
    pub(crate) fn is_settled(&self) -> bool {
        self.streams.is_empty()
    }

    /// Removes a stream: its descriptor, and the bytes that the kernel has not taken yet.
    pub(crate) fn take(&mut self, stream: StreamId) -> Option<(Fd, Vec<u8>)> {
        self.streams.remove(&stream).map(|sock| (sock.fd, sock.out))
    }

    /// Stops listening, and gives closing streams time to deliver, up to `within`.
    pub(crate) fn finish(&mut self, machine: &mut impl Machine, within: Duration) {
        self.listener = None;
        let until = clock::now().after(within);
        while self.streams.values().any(|sock| sock.closing.is_some()) && clock::now() < until {
            self.wait(until);
            self.turn(machine);
        }
    }

    fn accepts(&self) -> bool {
        clock::now() >= self.accept_after
    }

    fn accept(&mut self, machine: &mut impl Machine) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listener.as_ref().filter(|_| self.accepts()) else { return };
            match SockRef::from(listener).accept() {
                Ok((socket, from)) => {
                    self.shortage.ends();
                    let Some(from) = from.as_socket() else { continue };
                    if prepare(&socket).is_err() {
                        continue;
                    }
                    let stream = StreamId(self.next_stream);
                    self.next_stream += 1;
                    self.streams.insert(stream, Sock::new(socket, false));
                    self.with(machine, |machine, io| machine.accepted(stream, from, io));
                }
                // The kernel has found a descriptor for one that may come.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return self.shortage.ends(),
                // A connection that ended in the accept queue is not an error of this process.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                Err(e) => {
                    // It refuses a descriptor also if no connection waits.
                    if is_readable(listener) {
                        Errno::from_io_error(&e).into_iter().for_each(|errno| self.shortage.begins(errno));
                    }
                    self.accept_after = clock::now().after(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn ready(&self) -> Vec<(StreamId, PollFlags)> {
        let mut fds: Vec<PollFd<'_>> = self.streams.values().map(poll_fd).collect();
        if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err() {
            return Vec::new();
        }
        let all = self.streams.keys().zip(&fds);
        all.map(|(stream, fd)| (*stream, fd.revents())).filter(|(_, revents)| !revents.is_empty()).collect()
    }

    fn serve(&mut self, machine: &mut impl Machine, stream: StreamId, revents: PollFlags) {
        let Some(sock) = self.streams.get_mut(&stream) else { return };
        if sock.connecting {
            match sock.connected() {
                Ok(()) => self.with(machine, |machine, io| machine.connected(stream, io)),
                Err(why) => {
                    self.streams.remove(&stream);
                    self.with(machine, |machine, io| machine.closed(stream, &why, io));
                }
            }
            return;
        }
        if revents.contains(PollFlags::OUT) {
            sock.flush();
        }
        if !revents.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        for _ in 0..READS_PER_TURN {
            let Some(sock) = self.streams.get_mut(&stream).filter(|sock| !sock.paused) else { return };
            let mut buffer = [0; 16 << 10];
            let why = match (&*sock.socket()).read(&mut buffer) {
                Ok(0) => "end of stream".to_string(),
                Ok(_) if sock.closing.is_some() => continue,
                Ok(count) => {
                    self.with(machine, |machine, io| machine.bytes(stream, &buffer[..count], io));
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => e.to_string(),
            };
            let closing = sock.closing.is_some();
            self.streams.remove(&stream);
            if !closing {
                self.with(machine, |machine, io| machine.closed(stream, &why, io));
            }
            return;
        }
    }

    /// Closes the oldest lingering streams: each holds a descriptor, and strangers can cause many.
    fn bound_lingering(&mut self) {
        let lingering = self.streams.iter().filter(|(_, sock)| sock.closing.is_some());
        let lingering: Vec<StreamId> = lingering.map(|(stream, _)| *stream).collect();
        for stream in &lingering[..lingering.len().saturating_sub(self.seats)] {
            self.streams.remove(stream);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect(stream, to) => match connect(to) {
                Ok(socket) => {
                    self.shortage.ends();
                    self.streams.insert(stream, Sock::new(socket, true));
                }
                Err(e) => {
                    Errno::from_io_error(&e).into_iter().for_each(|errno| self.shortage.begins(errno));
                    self.stillborn.push((stream, format!("connecting to {to}: {e}")));
                }
            },
            Action::Send(stream, bytes) => {
                if let Some(sock) = self.streams.get_mut(&stream).filter(|sock| sock.closing.is_none()) {
                    sock.has_sent = true;
                    sock.out.extend(bytes);
                    sock.flush();
                }
            }
            Action::Close(stream) => {
                let Some(sock) = self.streams.get_mut(&stream) else { return };
                if sock.connecting || !sock.has_sent {
                    self.streams.remove(&stream);
                    return;
                }
                sock.closing.get_or_insert_with(|| clock::now().after(LINGER));
                sock.flush();
                self.bound_lingering();
            }
            Action::Pause(stream) => {
                if let Some(sock) = self.streams.get_mut(&stream) {
                    sock.paused = true;
                }
            }
        }
    }
}

impl Sock {
    fn new(socket: Socket, connecting: bool) -> Self {
        Self {
            fd: Fd::new(socket.into()),
            connecting,
            out: Vec::new(),
            mute: false,
            has_sent: false,
            paused: false,
            closing: None,
        }
    }
    fn socket(&self) -> SockRef<'_> {
        SockRef::from(&self.fd)
    }
    const fn wants_read(&self) -> bool {
        !self.connecting && !self.paused
    }
    fn wants_write(&self) -> bool {
        self.connecting || !self.out.is_empty()
    }

    /// Completes a connection attempt, or returns why it failed.
    fn connected(&mut self) -> Result<(), String> {
        if let Some(e) = self.socket().take_error().ok().flatten() {
            return Err(e.to_string());
        }
        let ends = (self.socket().local_addr(), self.socket().peer_addr());
        let (Ok(ours), Ok(theirs)) = ends else { return Err("not connected".into()) };
        // A socket that dials a free port of its own host can connect to itself. That would keep
        // the right listener from using the port.
        if ours.as_socket() == theirs.as_socket() {
            return Err("nobody listens there yet".into());
        }
        self.connecting = false;
        Ok(())
    }

    fn flush(&mut self) {
        while !self.out.is_empty() && !self.connecting && !self.mute {
            // `MSG_NOSIGNAL`: a peer that left must not kill this program with SIGPIPE.
            match self.socket().send_with_flags(&self.out, SendFlags::NOSIGNAL.bits() as i32) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.mute = true,
            }
        }
        if self.mute {
            self.out.clear();
        }
        if self.closing.is_some() && self.out.is_empty() {
            // This fails if the peer closed first; then the shutdown is not needed.
            let _ = self.socket().shutdown(Shutdown::Write);
        }
    }
}

fn poll_fd(sock: &Sock) -> PollFd<'_> {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, sock.wants_read());
    flags.set(PollFlags::OUT, sock.wants_write());
    PollFd::from_borrowed_fd(sock.fd.as_fd(), flags)
}

fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    // A host that disappears is noticed after about ten seconds.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(1))
        .with_retries(5);
    socket.set_tcp_keepalive(&keepalive)
}

fn connect(to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    prepare(&socket)?;
    match socket.connect(&to.into()) {
        Err(e)
            if e.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error())
                && e.kind() != io::ErrorKind::WouldBlock =>
        {
            Err(e)
        }
        _ => Ok(socket),
    }
}

/// Listens at `address`. A `forced` port was chosen by the user: connections of an earlier run may
/// still linger there, but no other process may listen there.
pub(crate) fn listen(address: SocketAddr, forced: bool) -> Result<Socket> {
    let refused = |e: io::Error| {
        let in_use = e.kind() == io::ErrorKind::AddrInUse;
        let elsewhere = e.kind() == io::ErrorKind::AddrNotAvailable;
        let error = Error::system(format!("listening at {address}"), e);
        match (in_use, elsewhere) {
            (true, _) => error.hint(
                "who else may hold it: another job (give each a MASTER_PORT or CCL_COMM_ID of its own), an earlier run, torch's TCPStore at MASTER_PORT (then set CCL_COMM_ID to another port), or NCCL, which reads NCCL_COMM_ID too",
            ),
            (_, true) => error.hint("the address is not one of this host: rank 0 must run where it is"),
            _ => error,
        }
    };
    let open = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if forced {
            socket.set_reuse_address(true)?;
        }
        if address.is_ipv6() && address.ip().is_unspecified() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        // The kernel reduces this to its own limit. All ranks of a job may connect at once.
        socket.listen(16384)?;
        Ok(socket)
    };
    open().map_err(refused)
}

/// The address at which a listener listens.
pub(crate) fn local_address(socket: &Socket) -> Result<SocketAddr> {
    let address = socket.local_addr().map_err(|e| Error::system("asking a listener for its address", e))?;
    address.as_socket().ok_or_else(|| Error::new(ErrorKind::System, "a listener without an IP address"))
}

/// How many unauthenticated connections may wait: a quarter of the descriptors that are still free,
/// so that they never keep the process from opening what its job needs.
fn seats() -> usize {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    usize::try_from(limit.saturating_sub(open) / 4).unwrap_or(usize::MAX).max(FEWEST_SEATS)
}
