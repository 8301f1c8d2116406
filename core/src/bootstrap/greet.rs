//! The handshake on real sockets: blocking with a deadline, or as part of a service task.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::auth::{Handshake, HandshakeError, Hello, Key, Nonce, Step};
use crate::clock::{self, Ns};
use crate::reactor::Interest;
use crate::sys::is_transient;
use crate::types::{CommId, JobId};

/// Connects: proves to the other side of `stream` that this process knows `key`, and verifies the
/// proof of the other side. The stream may be blocking or non-blocking. Nothing beyond the
/// handshake is read.
///
/// # Errors
/// Why the other side was rejected, or `Deadline`.
pub fn connect_blocking<S: Read + Write + AsFd>(
    stream: &mut S,
    key: &Key,
    hello: Hello,
    deadline: Ns,
) -> Result<(), HandshakeError> {
    let handshake = Handshake::connect(key.clone(), hello, draw()?);
    run(stream, handshake, &|_, _| None, deadline).map(drop)
}

/// As [`connect_blocking`], with a handshake that exists already.
pub(crate) fn run_connector<S: Read + Write + AsFd>(
    stream: &mut S,
    handshake: Handshake,
    deadline: Ns,
) -> Result<(), HandshakeError> {
    run(stream, handshake, &|_, _| None, deadline).map(drop)
}

/// Accepts: admits a connector that knows the key of the communicator that it asks for. Nothing
/// beyond the handshake is read.
///
/// # Errors
/// Why the connector was rejected, or `Deadline`.
pub fn accept_blocking<S: Read + Write + AsFd>(
    stream: &mut S,
    lookup: &dyn Fn(JobId, CommId) -> Option<Key>,
    deadline: Ns,
) -> Result<Hello, HandshakeError> {
    run(stream, Handshake::accept(draw()?), lookup, deadline)
}

fn draw() -> Result<Nonce, HandshakeError> {
    Nonce::draw().map_err(|e| HandshakeError::System(e.to_string()))
}

fn run<S: Read + Write + AsFd>(
    stream: &mut S,
    mut handshake: Handshake,
    lookup: &dyn Fn(JobId, CommId) -> Option<Key>,
    deadline: Ns,
) -> Result<Hello, HandshakeError> {
    let mut step = handshake.feed(&[], lookup)?;
    loop {
        send(stream, &step.to_send, deadline)?;
        if let Some((hello, _)) = step.done {
            return Ok(hello);
        }
        step = match receive(stream, &mut handshake, lookup, deadline) {
            Ok(step) => step,
            Err(error) => {
                // The farewell is optional: the result here is the same if it does not arrive.
                let _ = send(stream, &error.farewell(), deadline);
                return Err(error);
            }
        };
    }
}

fn receive<S: Read + AsFd>(
    stream: &mut S,
    handshake: &mut Handshake,
    lookup: &dyn Fn(JobId, CommId) -> Option<Key>,
    deadline: Ns,
) -> Result<Step, HandshakeError> {
    let mut bytes = [0; 128];
    let wanted = handshake.wants().min(bytes.len());
    loop {
        wait(stream, PollFlags::IN, deadline)?;
        match stream.read(&mut bytes[..wanted]) {
            Ok(0) => return Err(HandshakeError::Closed),
            Ok(count) => return handshake.feed(&bytes[..count], lookup),
            Err(e) if is_transient(&e) => {}
            Err(e) => return Err(HandshakeError::System(format!("receiving: {e}"))),
        }
    }
}

fn send<S: Write + AsFd>(stream: &mut S, mut bytes: &[u8], deadline: Ns) -> Result<(), HandshakeError> {
    while !bytes.is_empty() {
        wait(stream, PollFlags::OUT, deadline)?;
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(e) if is_transient(&e) => {}
            Err(e) => return Err(HandshakeError::System(format!("sending: {e}"))),
        }
    }
    Ok(())
}

/// Waits until the stream is ready, or fails at the deadline.
fn wait<S: AsFd>(stream: &S, flags: PollFlags, deadline: Ns) -> Result<(), HandshakeError> {
    loop {
        let left = deadline.since(clock::now());
        if left.is_zero() {
            return Err(HandshakeError::Deadline);
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(stream, flags)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(HandshakeError::System(format!("polling: {e}"))),
        }
    }
}

/// The state of an accepted connection.
#[derive(Debug)]
pub enum Accepted<S> {
    /// Not yet decided.
    Pending(Accepting<S>),
    /// The connector knows the key. The stream is positioned right after the handshake.
    Done(Hello, S),
    /// The connection was rejected and closed.
    Failed(HandshakeError),
}

/// A connection that a service task accepted and that has not proven itself yet. The stream must be
/// non-blocking.
#[derive(Debug)]
pub struct Accepting<S> {
    stream: S,
    handshake: Handshake,
    to_send: Vec<u8>,
    deadline: Ns,
}

impl<S: Read + Write + AsFd> Accepting<S> {
    /// A connection that must have proven itself by `deadline`.
    ///
    /// # Errors
    /// `System` if the kernel has no random bytes.
    pub fn new(stream: S, deadline: Ns) -> crate::Result<Self> {
        Ok(Self { stream, handshake: Handshake::accept(Nonce::draw()?), to_send: Vec::new(), deadline })
    }

    /// The events to wait for.
    #[must_use]
    pub fn interest(&self) -> Interest {
        Interest { fd: self.stream.as_fd().as_raw_fd(), read: true, write: !self.to_send.is_empty() }
    }

    /// When the connection is rejected, unless it has proven itself.
    #[must_use]
    pub const fn deadline(&self) -> Ns {
        self.deadline
    }

    /// Advances as far as possible without waiting.
    pub fn turn(mut self, now: Ns, lookup: &dyn Fn(JobId, CommId) -> Option<Key>) -> Accepted<S> {
        match self.advance(lookup) {
            Ok(Some(hello)) => Accepted::Done(hello, self.stream),
            Ok(None) if now >= self.deadline => Accepted::Failed(HandshakeError::Deadline),
            Ok(None) => Accepted::Pending(self),
            Err(error) => {
                // The farewell fits into the socket's send buffer, because almost nothing was sent
                // before it. If it does not, it may be lost.
                let _ = self.stream.write(&error.farewell());
                Accepted::Failed(error)
            }
        }
    }

    fn advance(
        &mut self,
        lookup: &dyn Fn(JobId, CommId) -> Option<Key>,
    ) -> Result<Option<Hello>, HandshakeError> {
        loop {
            while !self.to_send.is_empty() {
                match self.stream.write(&self.to_send) {
                    Ok(count) => drop(self.to_send.drain(..count)),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    Err(e) => return Err(HandshakeError::System(format!("sending: {e}"))),
                }
            }
            let mut bytes = [0; 128];
            let wanted = self.handshake.wants().min(bytes.len());
            match self.stream.read(&mut bytes[..wanted]) {
                Ok(0) => return Err(HandshakeError::Closed),
                Ok(count) => {
                    let step = self.handshake.feed(&bytes[..count], lookup)?;
                    self.to_send.extend(step.to_send);
                    if let Some((hello, _)) = step.done {
                        return Ok(Some(hello));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(HandshakeError::System(format!("receiving: {e}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::super::auth::Purpose;
    use super::*;
    use crate::types::Rank;

    fn soon() -> Ns {
        clock::now().after(Duration::from_secs(5))
    }
    fn hello() -> Hello {
        Hello::new(Purpose::Memory, JobId(1), CommId(2), Rank(0), Rank(1))
    }
    fn lookup(_: JobId, _: CommId) -> Option<Key> {
        Some(Key([1; 32]))
    }

    #[test]
    fn blocking_sides_meet_and_read_nothing_beyond() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let connector = std::thread::spawn(move || {
            connect_blocking(&mut a, &Key([1; 32]), hello(), soon()).unwrap();
            a.write_all(b"next").unwrap();
        });
        assert_eq!(accept_blocking(&mut b, &lookup, soon()).unwrap(), hello());
        let mut next = [0; 4];
        b.read_exact(&mut next).unwrap();
        assert_eq!(&next, b"next");
        connector.join().unwrap();
    }

    #[test]
    fn a_non_blocking_acceptor_meets_a_blocking_connector() {
        let (mut a, b) = UnixStream::pair().unwrap();
        b.set_nonblocking(true).unwrap();
        let connector = std::thread::spawn(move || connect_blocking(&mut a, &Key([1; 32]), hello(), soon()));
        let mut accepting = Accepting::new(b, soon()).unwrap();
        let (seen, _stream) = loop {
            assert!(accepting.interest().read && accepting.deadline() > clock::now());
            match accepting.turn(clock::now(), &lookup) {
                Accepted::Pending(still) => accepting = still,
                Accepted::Done(hello, stream) => break (hello, stream),
                Accepted::Failed(error) => panic!("{error}"),
            }
            clock::sleep(Duration::from_millis(1));
        };
        assert_eq!(seen, hello());
        assert_eq!(connector.join().unwrap(), Ok(()));
    }

    #[test]
    fn silence_ends_at_the_deadline_and_a_refusal_says_why() {
        let (mut a, _b) = UnixStream::pair().unwrap();
        let brief = clock::now().after(Duration::from_millis(20));
        assert_eq!(connect_blocking(&mut a, &Key([1; 32]), hello(), brief), Err(HandshakeError::Deadline));
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let acceptor = std::thread::spawn(move || accept_blocking(&mut b, &|_, _| None, soon()));
        let error = connect_blocking(&mut a, &Key([1; 32]), hello(), soon()).unwrap_err();
        assert_eq!(error, HandshakeError::Refused(super::super::auth::Refusal::UnknownJob));
        assert!(matches!(acceptor.join().unwrap(), Err(HandshakeError::UnknownJob(..))));
        let (a, mut b) = UnixStream::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        b.write_all(b"hello?").unwrap();
        let turned = Accepting::new(a, soon()).unwrap().turn(clock::now(), &lookup);
        assert!(matches!(turned, Accepted::Failed(HandshakeError::WrongMagic(_))), "{turned:?}");
    }
}
