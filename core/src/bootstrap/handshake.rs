//! The handshake that begins every connection between ranks. This module does no I/O;
//! [`greet`](super::greet) runs it on real sockets.
//!
//! ```text
//!   connector                                       acceptor
//!   header, hello, nonce C          ->
//!                                   <-   header, nonce A, HMAC("acceptor", hello, C, A)
//!   header, HMAC("connector", ...)  ->                      then both may use the connection
//! ```
//!
//! Both sides prove that they know the key. The proofs cover both nonces and the whole hello. A
//! handshake cannot be replayed (each side draws a nonce), reflected (the labels differ) or moved
//! to another purpose, rank, channel or stream (the hello is part of the proof). The bytes after
//! the handshake are neither encrypted nor signed: the handshake keeps out unknown and misdirected
//! connections, but not an attacker on the network path.
//!
//! The header (magic, version, kind) never changes, so that each side can always name the version
//! of the other. Each side reads exactly the bytes of the next message, so that it never consumes
//! what follows the handshake. This includes descriptors on a Unix socket.

use std::fmt;

use super::auth::{Hello, Key, NONCE, Nonce, PROTOCOL, Salt, hmac};
use super::frame::{Fields, put};
use crate::error::{Error, ErrorKind};
use crate::types::{CommId, JobId};

const MAGIC: [u8; 8] = *b"\xccCCL\r\n\x1a\n";
const HEADER: usize = 16;
const HELLO: usize = Hello::LEN;
const PROOF: usize = 32;

const KIND_HELLO: u8 = 1;
const KIND_CHALLENGE: u8 = 2;
const KIND_PROOF: u8 = 3;
const KIND_REFUSED: u8 = 4;

/// Why an acceptor rejected a connector, as sent on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// The acceptor speaks another version.
    Version = 1,
    /// The acceptor has no such job or communicator at this time.
    UnknownJob = 2,
    /// The connector's proof was wrong.
    Proof = 3,
    /// The hello could not be understood.
    Malformed = 4,
    /// Another reason, defined by a later version.
    Other = 255,
}

/// Why a handshake failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HandshakeError {
    /// The other side does not speak this protocol at all. The field holds its first bytes.
    WrongMagic([u8; 8]),
    /// The other side speaks another version of the protocol.
    Version {
        /// This side's version.
        ours: u32,
        /// The other side's.
        theirs: u32,
    },
    /// The connector asks for a job or communicator that does not exist here.
    UnknownJob(JobId, CommId),
    /// The other side does not know the secret.
    WrongProof,
    /// The acceptor rejected this side.
    Refused(Refusal),
    /// The received bytes violate the protocol.
    Malformed(&'static str),
    /// The other side closed the connection before the end.
    Closed,
    /// The handshake did not end in time.
    Deadline,
    /// An error of the operating system.
    System(String),
}

impl HandshakeError {
    /// The message that an acceptor should send before it closes, so that the connector can report
    /// the reason. Empty if it gets no answer, for example if it does not speak the protocol.
    #[must_use]
    pub fn farewell(&self) -> Vec<u8> {
        let reason = match self {
            Self::Version { .. } => Refusal::Version,
            Self::UnknownJob(..) => Refusal::UnknownJob,
            Self::WrongProof => Refusal::Proof,
            Self::Malformed(_) => Refusal::Malformed,
            Self::WrongMagic(_) | Self::Refused(_) | Self::Closed | Self::Deadline | Self::System(_) => {
                return Vec::new();
            }
        };
        header(PROTOCOL, KIND_REFUSED, reason as u8)
    }

    /// Converts it to an error of the crate; `whom` names the other side.
    #[must_use]
    pub fn into_error(self, whom: &str) -> Error {
        let kind = match self {
            Self::Version { .. } => ErrorKind::Mismatch,
            Self::Deadline => ErrorKind::Timeout,
            Self::Closed | Self::System(_) => ErrorKind::Peer,
            _ => ErrorKind::Unavailable,
        };
        let hint = match self {
            Self::Version { .. } => "run the same version of ccl on all ranks",
            Self::WrongProof | Self::Refused(Refusal::Proof) => {
                "CCL_JOB_SECRET must be equal on all ranks, or unset on all"
            }
            Self::WrongMagic(_) => "another service listens at that address",
            _ => "",
        };
        Error::new(kind, format!("handshake with {whom}: {self}")).hint(hint)
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongMagic(seen) => write!(f, "it does not speak ccl: it said \"{}\"", seen.escape_ascii()),
            Self::Version { ours, theirs } => {
                write!(f, "it speaks protocol version {theirs}, this process speaks version {ours}")
            }
            Self::UnknownJob(job, comm) => {
                write!(f, "it asks for job {job}, communicator {comm}, which is not here")
            }
            Self::WrongProof => f.write_str("it does not know the secret of this job"),
            Self::Refused(Refusal::Version) => f.write_str("it refused this version of the protocol"),
            Self::Refused(Refusal::UnknownJob) => f.write_str("it does not know this job or communicator"),
            Self::Refused(Refusal::Proof) => f.write_str("it did not accept this process's secret"),
            Self::Refused(Refusal::Malformed) => f.write_str("it did not understand the hello"),
            Self::Refused(Refusal::Other) => f.write_str("it refused the connection"),
            Self::Malformed(what) => write!(f, "it sent {what}"),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Deadline => f.write_str("it did not answer in time"),
            Self::System(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for HandshakeError {}

/// The result of one [`feed`](Handshake::feed).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Step {
    /// Bytes to send to the other side before anything else.
    pub to_send: Vec<u8>,
    /// Set once both sides have proven themselves: the hello, and the bytes after the handshake.
    pub done: Option<(Hello, Vec<u8>)>,
    /// Connector, set with `done`: the key that both sides know, stretched if necessary.
    pub(crate) key: Option<Key>,
}

#[derive(Clone, Debug)]
enum State {
    /// Connector: nothing sent yet.
    Start(Key, Nonce),
    /// Connector: hello sent.
    Asked(Key, Nonce),
    /// Acceptor: nothing received yet.
    Listening(Nonce),
    /// Acceptor: challenge sent. The field is the proof that the connector must send.
    Challenged([u8; PROOF]),
    /// Finished, with or without success.
    Over,
}

/// One side of one handshake.
#[derive(Clone, Debug)]
pub struct Handshake {
    state: State,
    hello: Option<Hello>,
    buffer: Vec<u8>,
    /// Connector: the key is stretched with the salt at the front of the acceptor's nonce.
    stretches: bool,
}

impl Handshake {
    /// The connecting side. [`feed`](Self::feed) it an empty slice to get its first message.
    #[must_use]
    pub const fn connect(key: Key, hello: Hello, nonce: Nonce) -> Self {
        Self { state: State::Start(key, nonce), hello: Some(hello), buffer: Vec::new(), stretches: false }
    }

    /// As [`connect`](Self::connect), where the acceptor's key is `key` stretched with a salt,
    /// which the acceptor puts at the front of its nonce.
    pub(crate) fn connect_stretching(key: Key, hello: Hello, nonce: Nonce) -> Self {
        Self { stretches: true, ..Self::connect(key, hello, nonce) }
    }

    /// The accepting side.
    #[must_use]
    pub const fn accept(nonce: Nonce) -> Self {
        Self { state: State::Listening(nonce), hello: None, buffer: Vec::new(), stretches: false }
    }

    /// The connector's hello. It is not proven before the end of the handshake.
    #[must_use]
    pub const fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// How many bytes to read next: never more than the next message of the handshake.
    #[must_use]
    pub fn wants(&self) -> usize {
        let whole = match self.state {
            State::Asked(..) if self.buffer.len() >= HEADER => HEADER + NONCE + PROOF,
            State::Listening(_) if self.buffer.len() >= HEADER => HEADER + HELLO + NONCE,
            State::Challenged(..) if self.buffer.len() >= HEADER => HEADER + PROOF,
            State::Asked(..) | State::Listening(_) | State::Challenged(..) => HEADER,
            State::Start(..) | State::Over => 0,
        };
        whole.saturating_sub(self.buffer.len())
    }

    /// Takes bytes from the other side, in pieces of any size. The acceptor uses `lookup` to find
    /// the key of the job and communicator that the connector asks for.
    ///
    /// # Errors
    /// Why the other side is rejected. The acceptor sends [`HandshakeError::farewell`]; both close.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        lookup: &dyn Fn(JobId, CommId) -> Option<Key>,
    ) -> Result<Step, HandshakeError> {
        let result = self.advance(bytes, lookup);
        if result.is_err() {
            self.state = State::Over;
        }
        result
    }

    fn advance(
        &mut self,
        mut bytes: &[u8],
        lookup: &dyn Fn(JobId, CommId) -> Option<Key>,
    ) -> Result<Step, HandshakeError> {
        let mut step = Step::default();
        if let (State::Start(key, nonce), Some(hello)) = (&self.state, &self.hello) {
            step.to_send = header(hello.version, KIND_HELLO, 0);
            step.to_send.extend(hello.encode());
            step.to_send.extend(nonce.0);
            self.state = State::Asked(key.clone(), *nonce);
        }
        loop {
            // A wrong first byte is rejected at once: the stranger need not send all sixteen bytes.
            let seen = bytes.len().min(self.wants());
            self.buffer.extend(&bytes[..seen]);
            bytes = &bytes[seen..];
            let prefix = self.buffer.len().min(MAGIC.len());
            if self.buffer[..prefix] != MAGIC[..prefix] {
                let mut said = [0; 8];
                said[..prefix].copy_from_slice(&self.buffer[..prefix]);
                return Err(HandshakeError::WrongMagic(said));
            }
            if self.buffer.len() >= HEADER {
                self.check_header()?;
            }
            if seen == 0 || self.wants() > 0 {
                if bytes.is_empty() {
                    return Ok(step);
                }
                if seen == 0 {
                    return Err(HandshakeError::Malformed("bytes out of turn"));
                }
                continue;
            }
            let message = std::mem::take(&mut self.buffer);
            match std::mem::replace(&mut self.state, State::Over) {
                State::Listening(nonce) => self.challenge(&message, nonce, lookup, &mut step)?,
                State::Challenged(expect) => {
                    verify(&expect, &message[HEADER..])?;
                    let hello = self.hello.expect("set with the challenge");
                    step.done = Some((hello, bytes.to_vec()));
                    return Ok(step);
                }
                State::Asked(key, nonce) => {
                    let hello = self.hello.expect("set by connect");
                    let theirs = &message[HEADER..HEADER + NONCE];
                    let key = if self.stretches { key.stretched(&salt_of(theirs)) } else { key };
                    let expect = proof(&key, b"ccl acceptor", &hello, &nonce.0, theirs);
                    verify(&expect, &message[HEADER + NONCE..])?;
                    step.to_send.extend(header(hello.version, KIND_PROOF, 0));
                    step.to_send.extend(proof(&key, b"ccl connector", &hello, &nonce.0, theirs));
                    step.done = Some((hello, bytes.to_vec()));
                    step.key = Some(key);
                    return Ok(step);
                }
                State::Start(..) | State::Over => unreachable!("they want no bytes"),
            }
        }
    }

    fn challenge(
        &mut self,
        message: &[u8],
        nonce: Nonce,
        lookup: &dyn Fn(JobId, CommId) -> Option<Key>,
        step: &mut Step,
    ) -> Result<(), HandshakeError> {
        let hello = Hello::decode(&message[HEADER..HEADER + HELLO], PROTOCOL)?;
        let theirs = &message[HEADER + HELLO..];
        let key = lookup(hello.job, hello.comm).ok_or(HandshakeError::UnknownJob(hello.job, hello.comm))?;
        step.to_send.extend(header(PROTOCOL, KIND_CHALLENGE, 0));
        step.to_send.extend(nonce.0);
        step.to_send.extend(proof(&key, b"ccl acceptor", &hello, theirs, &nonce.0));
        let expect = proof(&key, b"ccl connector", &hello, theirs, &nonce.0);
        self.hello = Some(hello);
        self.state = State::Challenged(expect);
        Ok(())
    }

    fn check_header(&self) -> Result<(), HandshakeError> {
        let mut fields = Fields(&self.buffer[MAGIC.len()..]);
        let version = fields.u32().unwrap_or(0);
        let (kind, reason) = (fields.u8().unwrap_or(0), fields.u8().unwrap_or(0));
        let ours = match (&self.state, &self.hello) {
            (State::Asked(..), Some(hello)) => hello.version,
            _ => PROTOCOL,
        };
        if version != ours {
            return Err(HandshakeError::Version { ours, theirs: version });
        }
        let expected = match self.state {
            State::Asked(..) => KIND_CHALLENGE,
            State::Listening(_) => KIND_HELLO,
            State::Challenged(..) => KIND_PROOF,
            State::Start(..) | State::Over => return Ok(()),
        };
        match kind {
            _ if kind == expected => Ok(()),
            KIND_REFUSED => Err(HandshakeError::Refused(match reason {
                1 => Refusal::Version,
                2 => Refusal::UnknownJob,
                3 => Refusal::Proof,
                4 => Refusal::Malformed,
                _ => Refusal::Other,
            })),
            _ => Err(HandshakeError::Malformed("a message out of turn")),
        }
    }
}

/// The salt that an acceptor put at the front of its nonce. The other 128 bits of the nonce are
/// random and never used twice.
pub(crate) fn salt_of(nonce: &[u8]) -> Salt {
    nonce[..size_of::<Salt>()].try_into().expect("a nonce is longer")
}

fn header(version: u32, kind: u8, reason: u8) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    put(&mut out, version);
    out.extend([kind, reason, 0, 0]);
    out
}

fn proof(key: &Key, label: &[u8], hello: &Hello, connector: &[u8], acceptor: &[u8]) -> [u8; PROOF] {
    hmac(&key.0, &[label, &hello.version.to_le_bytes(), &hello.encode(), connector, acceptor])
}

/// Compares in constant time, so that a proof cannot be guessed byte by byte.
fn verify(expect: &[u8; PROOF], given: &[u8]) -> Result<(), HandshakeError> {
    let differs = expect.iter().zip(given).fold(u8::from(given.len() != PROOF), |acc, (a, b)| acc | (a ^ b));
    if std::hint::black_box(differs) == 0 { Ok(()) } else { Err(HandshakeError::WrongProof) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::auth::Purpose;
    use crate::types::{ChannelId, Rank};

    const JOB: JobId = JobId(7);

    fn key(n: u8) -> Key {
        Key([n; 32])
    }
    fn nonce(n: u8) -> Nonce {
        Nonce([n; NONCE])
    }
    fn hello() -> Hello {
        Hello {
            channel: ChannelId(3),
            index: 1,
            count: 4,
            ..Hello::new(Purpose::Data, JOB, CommId(9), Rank(2), Rank(5))
        }
    }
    fn knows(n: u8) -> impl Fn(JobId, CommId) -> Option<Key> {
        move |job, _| (job == JOB).then(|| key(n))
    }
    fn nobody(_: JobId, _: CommId) -> Option<Key> {
        None
    }

    /// Lets both sides talk, `chunk` bytes at a time, and returns the result of each side.
    fn talk(
        mut a: Handshake,
        mut b: Handshake,
        lookup: &dyn Fn(JobId, CommId) -> Option<Key>,
        chunk: usize,
    ) -> (Result<Hello, HandshakeError>, Result<Hello, HandshakeError>) {
        let (mut to_a, mut to_b) = (Vec::new(), a.feed(&[], &nobody).unwrap().to_send);
        let (mut end_a, mut end_b) = (Err(HandshakeError::Closed), Err(HandshakeError::Closed));
        while !to_a.is_empty() || !to_b.is_empty() {
            let now: Vec<u8> = to_b.drain(..chunk.min(to_b.len())).collect();
            match b.feed(&now, lookup) {
                Ok(step) => {
                    to_a.extend(step.to_send);
                    end_b = step.done.map(|(hello, _)| hello).ok_or(HandshakeError::Closed).or(end_b);
                }
                Err(error) => {
                    to_a.extend(error.farewell());
                    end_b = Err(error);
                    to_b.clear();
                }
            }
            let now: Vec<u8> = to_a.drain(..chunk.min(to_a.len())).collect();
            match a.feed(&now, &nobody) {
                Ok(step) => {
                    to_b.extend(step.to_send);
                    end_a = step.done.map(|(hello, _)| hello).ok_or(HandshakeError::Closed).or(end_a);
                }
                Err(error) => {
                    end_a = Err(error);
                    to_a.clear();
                }
            }
        }
        (end_a, end_b)
    }

    #[test]
    fn both_sides_agree_however_the_bytes_are_split() {
        for chunk in [1, 2, 7, 16, 84, 1000] {
            let (a, b) = talk(
                Handshake::connect(key(1), hello(), nonce(1)),
                Handshake::accept(nonce(2)),
                &knows(1),
                chunk,
            );
            assert_eq!((a, b), (Ok(hello()), Ok(hello())), "in chunks of {chunk}");
        }
    }

    #[test]
    fn a_wrong_key_is_noticed_by_the_connector_and_by_the_acceptor() {
        let (a, b) =
            talk(Handshake::connect(key(1), hello(), nonce(1)), Handshake::accept(nonce(2)), &knows(2), 1000);
        assert_eq!((a, b), (Err(HandshakeError::WrongProof), Err(HandshakeError::Closed)));
        // The connector continues anyway, with a forged proof.
        let mut acceptor = Handshake::accept(nonce(2));
        let first = Handshake::connect(key(1), hello(), nonce(1)).feed(&[], &nobody).unwrap().to_send;
        acceptor.feed(&first, &knows(2)).unwrap();
        let mut forged = header(PROTOCOL, KIND_PROOF, 0);
        forged.extend(proof(&key(1), b"ccl connector", &hello(), &[1; NONCE], &[2; NONCE]));
        let error = acceptor.feed(&forged, &knows(2)).unwrap_err();
        assert_eq!(error, HandshakeError::WrongProof);
        assert!(!error.farewell().is_empty());
    }

    #[test]
    fn differing_versions_are_named_on_both_sides() {
        let newer = Hello { version: PROTOCOL + 1, ..hello() };
        let (a, b) =
            talk(Handshake::connect(key(1), newer, nonce(1)), Handshake::accept(nonce(2)), &knows(1), 5);
        assert_eq!(a, Err(HandshakeError::Version { ours: PROTOCOL + 1, theirs: PROTOCOL }));
        assert_eq!(b, Err(HandshakeError::Version { ours: PROTOCOL, theirs: PROTOCOL + 1 }));
        let text = b.unwrap_err().into_error("rank 3").to_string();
        for version in [PROTOCOL, PROTOCOL + 1] {
            assert!(text.contains(&format!("version {version}")), "{text}");
        }
    }

    #[test]
    fn an_unknown_job_is_refused_with_the_reason() {
        let (a, b) =
            talk(Handshake::connect(key(1), hello(), nonce(1)), Handshake::accept(nonce(2)), &nobody, 1000);
        assert_eq!(a, Err(HandshakeError::Refused(Refusal::UnknownJob)));
        assert_eq!(b, Err(HandshakeError::UnknownJob(JOB, CommId(9))));
    }

    #[test]
    fn strangers_are_known_by_their_first_bytes() {
        for said in [&b"GET / HTTP/1.0\r\n"[..], b"\0", &[0xcc, b'C', b'C', b'X']] {
            let error = Handshake::accept(nonce(2)).feed(said, &knows(1)).unwrap_err();
            assert!(matches!(error, HandshakeError::WrongMagic(_)), "{error:?}");
            assert!(error.farewell().is_empty(), "strangers get no answer");
        }
        // Silence is not an error here: the owner of the stream sets a deadline.
        assert_eq!(Handshake::accept(nonce(2)).feed(&MAGIC, &knows(1)).unwrap(), Step::default());
    }

    #[test]
    fn replayed_reflected_and_moved_handshakes_fail() {
        let mut honest = Handshake::connect(key(1), hello(), nonce(1));
        let mut acceptor = Handshake::accept(nonce(2));
        let first = honest.feed(&[], &nobody).unwrap().to_send;
        let challenge = acceptor.feed(&first, &knows(1)).unwrap().to_send;
        let last = honest.feed(&challenge, &nobody).unwrap().to_send;
        // Replayed to another connection of the same listener: its nonce differs.
        let mut other = Handshake::accept(nonce(3));
        other.feed(&first, &knows(1)).unwrap();
        assert_eq!(other.feed(&last, &knows(1)), Err(HandshakeError::WrongProof));
        // An attacker reflects the connector's own proof, or its hello, as the challenge.
        let mut victim = Handshake::connect(key(1), hello(), nonce(1));
        victim.feed(&[], &nobody).unwrap();
        assert_eq!(
            victim.clone().feed(&first, &nobody),
            Err(HandshakeError::Malformed("a message out of turn"))
        );
        let mut reflected = header(PROTOCOL, KIND_CHALLENGE, 0);
        reflected.extend([2; NONCE]);
        reflected.extend(&last[HEADER..]);
        assert_eq!(victim.feed(&reflected, &nobody), Err(HandshakeError::WrongProof));
        // Moved to another purpose, rank, channel or stream: every byte of the hello counts.
        for byte in HEADER..HEADER + HELLO {
            let mut moved = first.clone();
            moved[byte] ^= 1;
            let mut acceptor = Handshake::accept(nonce(2));
            let any = |_: JobId, _: CommId| Some(key(1));
            let Ok(_) = acceptor.feed(&moved, &any) else { continue };
            // The reserved byte has no meaning and is encoded as zero again.
            let expect = if byte == HEADER + 1 { None } else { Some(HandshakeError::WrongProof) };
            assert_eq!(acceptor.feed(&last, &any).err(), expect, "byte {byte}");
        }
    }

    #[test]
    fn what_follows_the_handshake_is_handed_on() {
        let mut connector = Handshake::connect(key(1), hello(), nonce(1));
        let mut acceptor = Handshake::accept(nonce(2));
        let first = connector.feed(&[], &nobody).unwrap().to_send;
        let challenge = acceptor.feed(&first, &knows(1)).unwrap().to_send;
        let mut last = connector.feed(&challenge, &nobody).unwrap().to_send;
        last.extend(b"and more");
        assert_eq!(acceptor.wants(), HEADER);
        let step = acceptor.feed(&last, &knows(1)).unwrap();
        assert_eq!(step.done, Some((hello(), b"and more".to_vec())));
        // Bytes that arrive when it is the other side's turn violate the protocol.
        let mut early = Handshake::accept(nonce(2));
        let mut both = first;
        both.extend([0; 200]);
        assert!(early.feed(&both, &knows(1)).is_err());
    }
}
