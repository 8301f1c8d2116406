//! Who may join: whoever knows the key of the job. This is what is proven, and for what; [`handshake`](super::handshake) is how.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::frame::{Fields, put};
pub use super::greet::{Accepted, Accepting, accept_blocking, connect_blocking};
pub use super::handshake::{Handshake, HandshakeError, Refusal, Step};
use crate::error::{Error, ErrorKind};
use crate::types::{ChannelId, CommId, JobId, Rank};

/// The version of everything that ranks say to each other. Ranks of one job must speak the same.
pub const PROTOCOL: u32 = 3;

/// What a stretched key was stretched with; public, drawn by the root.
pub type Salt = [u8; 16];

/// Rounds of PBKDF2-HMAC-SHA256: about a tenth of a second, 0.3 s without SHA instructions.
const ROUNDS: u32 = 600_000;

/// The secret of a job. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

impl Key {
    /// The key of jobs without a secret: whoever knows the protocol may join.
    pub const NONE: Self = Self([0; 32]);

    /// The key that a text secret stands for. Where the text could be guessed it proves nothing until
    /// it is [`stretched`](Self::stretched).
    #[must_use]
    pub fn from_secret(secret: &str) -> Self {
        Self(hmac(&[0; 32], &[b"ccl job secret", secret.as_bytes()]))
    }
    /// This key made dear to guess: a proof that was overheard, or that a root gave, tells whether a
    /// guessed secret is right only at the price of about a tenth of a second a guess, anew for each
    /// salt. No secret stays none.
    #[must_use]
    pub fn stretched(&self, salt: &Salt) -> Self {
        if self.is_none() {
            return Self::NONE;
        }
        // A process makes all its communicators with one secret, mostly at one root.
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
    /// The key of those who know both this one and `other`; where there is no other, this one.
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
    /// The public name of the generation of a job whose root drew `magic`.
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

/// A number used once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonce(pub [u8; NONCE]);

impl Nonce {
    /// A fresh one from the kernel.
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

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// A rank checks in at the bootstrap root.
    Root = 1,
    /// A rank's way to its successor in the bootstrap ring.
    Ring = 2,
    /// Tagged messages of the bootstrap.
    P2p = 3,
    /// One stream of a lane of the socket transport.
    Data = 4,
    /// Two processes of one host exchange mappings; kept, its end tells of the peer's death.
    Memory = 5,
    /// News and questions between processes.
    Control = 6,
    /// Is somebody there who knows the key? Closed after the handshake.
    Probe = 7,
    /// News of a communicator, between two ranks that have become neighbours because others left.
    Gossip = 8,
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
            _ => return None,
        })
    }
}

/// What the connector says about the connection. All of it is covered by both proofs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// What the connection is for.
    pub purpose: Purpose,
    /// The protocol the connector speaks; [`PROTOCOL`] but in tests.
    pub version: u32,
    /// The job.
    pub job: JobId,
    /// The communicator.
    pub comm: CommId,
    /// The connector's rank.
    pub from: Rank,
    /// The rank it wants to reach.
    pub to: Rank,
    /// The channel.
    pub channel: ChannelId,
    /// Which of `count` connections of this kind it is.
    pub index: u32,
    /// How many there will be.
    pub count: u32,
}

impl Hello {
    /// Bytes of an encoded hello.
    pub(crate) const LEN: usize = 36;

    /// A hello in this version, the only connection of its kind.
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
