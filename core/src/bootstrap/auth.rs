//! Authentication: a process may join if it knows the key of the job. This module defines the keys
//! and what a proof covers; [`handshake`](super::handshake) is the protocol.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::frame::{Fields, put};
pub use super::greet::{Accepted, Accepting, accept_blocking, connect_blocking};
pub use super::handshake::{Handshake, HandshakeError, Refusal, Step};
use crate::error::{Error, ErrorKind};
use crate::types::{ChannelId, CommId, JobId, Rank};

/// The version of all messages between ranks. All ranks of a job must use the same version.
pub const PROTOCOL: u32 = 9;

/// The salt of a stretched key. It is public, and the root draws it.
pub type Salt = [u8; 16];

/// Rounds of PBKDF2-HMAC-SHA256: about 0.1 s in all, or 0.3 s without SHA instructions.
const ROUNDS: u32 = 600_000;

/// The secret of a job. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

impl Key {
    /// The key of jobs without a secret: every process that speaks the protocol may join.
    pub const NONE: Self = Self([0; 32]);

    /// The key for a text secret. If the text could be guessed, the key proves nothing until it is
    /// [`stretched`](Self::stretched).
    #[must_use]
    pub fn from_secret(secret: &str) -> Self {
        Self(hmac(&[0; 32], &[b"ccl job secret", secret.as_bytes()]))
    }
    /// This key, made expensive to guess.
    ///
    /// With an overheard proof, or one that a root gave, an attacker can test a guessed secret.
    /// Each guess costs about a tenth of a second, and the work starts anew for each salt.
    /// [`NONE`](Self::NONE) stays as it is.
    #[must_use]
    pub fn stretched(&self, salt: &Salt) -> Self {
        if self.is_none() {
            return Self::NONE;
        }
        // A process creates all its communicators with one secret, mostly at one root.
        static LAST: Mutex<Option<(Key, Salt, Key)>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((key, with, stretched)) = &*last
            && (key, with) == (self, salt)
        {
            return stretched.clone();
        }
        let mut out = [0; 32];
        pbkdf2::pbkdf2_hmac::<Sha256>(&self.0, salt, ROUNDS, &mut out);
        *last = Some((self.clone(), *salt, Self(out)));
        Self(out)
    }
    /// The key of processes that know both this key and `other`; this key if `other` is none.
    #[must_use]
    pub fn mixed_with(&self, other: &Self) -> Self {
        if other.is_none() {
            return self.clone();
        }
        Self(hmac(&self.0, &[b"ccl both keys", &other.0]))
    }
    /// Whether this is the key of jobs without a secret.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
    /// The public id of one generation of a job, whose root drew `magic`.
    #[must_use]
    pub fn job(&self, magic: u64) -> JobId {
        let mac = hmac(&self.0, &[b"ccl job id", &magic.to_le_bytes()]);
        JobId(u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], mac[6], mac[7]]))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "Key(none)" } else { "Key(...)" })
    }
}

pub(crate) fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

pub(crate) const NONCE: usize = 32;

/// A number that is used once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonce(pub [u8; NONCE]);

impl Nonce {
    /// A fresh nonce from the kernel.
    ///
    /// # Errors
    /// `System` if the kernel has no random bytes.
    pub fn draw() -> crate::Result<Self> {
        let mut bytes = [0; NONCE];
        fill_random(&mut bytes)?;
        Ok(Self(bytes))
    }
}

/// Fills `bytes` from the kernel's random numbers.
pub(crate) fn fill_random(bytes: &mut [u8]) -> crate::Result<()> {
    getrandom::fill(bytes).map_err(|e| Error::new(ErrorKind::System, format!("drawing random bytes: {e}")))
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// A rank checks in at the bootstrap root.
    Root = 1,
    /// A rank connects to its successor in the bootstrap ring.
    Ring = 2,
    /// Tagged messages of the bootstrap.
    P2p = 3,
    /// One stream of a lane of the socket transport.
    Data = 4,
    /// Two processes of one host exchange memory mappings. The connection stays open; its end
    /// reports the peer's death.
    Memory = 5,
    /// Notifications and requests between processes.
    Control = 6,
    /// Checks that a process that knows the key listens at the address. Closed after the handshake.
    Probe = 7,
    /// Failure gossip of a communicator between two ranks that became neighbours as others left.
    Gossip = 8,
    /// State is gathered across hosts: an edge of the tree of leaders, or a connection for one
    /// question.
    Gather = 9,
    /// Queue pairs of a lane are set up.
    Verbs = 10,
}

impl Purpose {
    const fn from_u8(n: u8) -> Option<Self> {
        Some(match n {
            1 => Self::Root,
            2 => Self::Ring,
            3 => Self::P2p,
            4 => Self::Data,
            5 => Self::Memory,
            6 => Self::Control,
            7 => Self::Probe,
            8 => Self::Gossip,
            9 => Self::Gather,
            10 => Self::Verbs,
            _ => return None,
        })
    }
}

/// The connector's description of the connection. Both proofs cover all fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// The protocol version of the connector: [`PROTOCOL`], except in tests.
    pub version: u32,
    /// The job.
    pub job: JobId,
    /// The communicator.
    pub comm: CommId,
    /// The connector's rank.
    pub from: Rank,
    /// The rank that the connector wants to reach.
    pub to: Rank,
    /// The channel.
    pub channel: ChannelId,
    /// The index of this connection among the `count` connections of its kind.
    pub index: u32,
    /// The number of connections of this kind.
    pub count: u32,
}

impl Hello {
    /// The size of an encoded hello in bytes.
    pub(crate) const LEN: usize = 36;

    /// A hello in this version, for the only connection of its kind.
    #[must_use]
    pub const fn new(purpose: Purpose, job: JobId, comm: CommId, from: Rank, to: Rank) -> Self {
        Self { purpose, version: PROTOCOL, job, comm, from, to, channel: ChannelId(0), index: 0, count: 1 }
    }

    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut out = Vec::with_capacity(Self::LEN);
        out.extend([self.purpose as u8, 0]);
        put(&mut out, self.channel.0);
        put(&mut out, self.job.0);
        put(&mut out, self.comm.0);
        for word in [self.from.0, self.to.0, self.index, self.count] {
            put(&mut out, word);
        }
        out.try_into().expect("LEN is the sum of the fields")
    }

    pub(crate) fn decode(bytes: &[u8], version: u32) -> Result<Self, HandshakeError> {
        const SHORT: HandshakeError = HandshakeError::Malformed("a hello that is too short");
        let mut fields = Fields(bytes);
        let purpose = Purpose::from_u8(fields.u8().ok_or(SHORT)?)
            .ok_or(HandshakeError::Malformed("a hello for an unknown purpose"))?;
        let _reserved = fields.u8().ok_or(SHORT)?;
        let channel = ChannelId(fields.u16().ok_or(SHORT)?);
        let job = JobId(fields.u64().ok_or(SHORT)?);
        let comm = CommId(fields.u64().ok_or(SHORT)?);
        let mut word = || fields.u32().ok_or(SHORT);
        let (from, to) = (Rank(word()?), Rank(word()?));
        Ok(Self { purpose, version, job, comm, from, to, channel, index: word()?, count: word()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed_and_jobs_differ_by_key_and_generation() {
        let key = |n| Key([n; 32]);
        assert_eq!(format!("{:?} {:?}", key(3), Key::NONE), "Key(...) Key(none)");
        assert_ne!(key(1).job(1), key(1).job(2));
        assert_ne!(key(1).job(1), key(2).job(1));
        assert_ne!(Key::from_secret("a"), Key::from_secret("b"));
    }

    #[test]
    fn a_stretched_secret_differs_by_salt_and_takes_its_time_to_guess() {
        let key = Key::from_secret("sesame");
        let began = crate::clock::now();
        let first = key.stretched(&[1; 16]);
        let took = crate::clock::now().since(began);
        assert!(took >= std::time::Duration::from_millis(20), "guessing is cheap: {took:?}");
        assert_ne!(first, key.stretched(&[2; 16]));
        assert_eq!(first, key.stretched(&[1; 16]));
        assert!(Key::NONE.stretched(&[1; 16]).is_none());
        assert_ne!(first.mixed_with(&key), first);
        assert_eq!(first.mixed_with(&Key::NONE), first);
    }
}
