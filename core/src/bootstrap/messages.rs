//! The messages between ranks and the root after a handshake, one type per kind of connection.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::fault::Fault;
use super::frame::{Fields, frame, printable, put, put_bytes};
use super::launch::Origin;
use crate::types::{Rank, runs};

/// The longest block of an all-gather and the longest tagged message.
pub(crate) const MAX_BLOCK: usize = 1 << 20;

/// The limits of frames on the three kinds of connection.
pub(crate) const MAX_ROOT_FRAME: usize = 8 << 10;
pub(crate) const MAX_RING_FRAME: usize = MAX_BLOCK + 64;
pub(crate) const MAX_P2P_FRAME: usize = MAX_BLOCK + 64;

/// From a rank to the root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ToRoot {
    /// I check in; my predecessor reaches me at this address.
    CheckIn(SocketAddr, Origin),
    /// The ring is complete; I no longer need you.
    Ready,
    /// My deadline has passed; tell all ranks which ranks are missing.
    GiveUp,
    /// I am alive.
    Pong,
    /// I have failed; notify the other ranks.
    Failed(Fault),
}

/// From the root to a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FromRoot {
    /// You are admitted; this is the magic of this generation.
    Welcome(u64),
    /// Your successor listens at this address.
    Successor(SocketAddr),
    /// Still waiting: the absent ranks, and other useful information as text.
    Waiting(Absent, String),
    /// Are you alive?
    Ping,
    /// The bootstrap has failed.
    Failed(Fault),
}

/// The ranks that have not checked in.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Absent {
    /// The number of absent ranks.
    pub(crate) count: u32,
    /// The lowest of them, as runs (first and last); at most [`Absent::RUNS`].
    pub(crate) runs: Vec<(u32, u32)>,
}

impl Absent {
    /// How many runs are sent.
    pub(crate) const RUNS: usize = 3;

    pub(crate) fn of(ranks: &[Rank]) -> Self {
        let mut runs = runs(ranks);
        runs.truncate(Self::RUNS);
        Self { count: ranks.len() as u32, runs }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put(out, self.count);
        put(out, self.runs.len() as u8);
        for (first, last) in &self.runs {
            put(out, *first);
            put(out, *last);
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let count = fields.u32()?;
        let told = usize::from(fields.u8()?);
        let run = |_| Some((fields.u32()?, fields.u32()?)).filter(|(first, last)| first <= last);
        let runs = (0..told.min(Self::RUNS)).map(run).collect::<Option<Vec<_>>>()?;
        Some(Self { count, runs })
    }
}

/// Between neighbours of the ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OnRing {
    /// A block of an all-gather, which comes from `origin`.
    Block {
        /// The number of the all-gather, from 0.
        round: u32,
        /// The rank whose block it is.
        origin: Rank,
        /// The block.
        bytes: Vec<u8>,
    },
    /// The bootstrap has failed.
    Failed(Fault),
    /// That rank has come to the end of the bootstrap.
    AtEnd(Rank),
    /// This rank has left the bootstrap: the bytes that follow on this stream are not the
    /// bootstrap's.
    Handover,
    /// The deadline of some rank has passed, and this rank is blocked on those ranks. A rank that
    /// receives this message reports its own waits in the same way.
    Awaits {
        /// The rank that reports its waits.
        rank: Rank,
        /// The ranks that it is blocked on.
        awaited: Vec<OverdueWait>,
    },
}

/// The way by which an awaited message should arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Via {
    /// From that rank itself.
    Direct = 0,
    /// Around the ring, through the previous rank.
    Prev = 1,
    /// Around the ring, through the next rank.
    Next = 2,
}

impl Via {
    const fn from_u8(n: u8) -> Option<Self> {
        match n {
            0 => Some(Self::Direct),
            1 => Some(Self::Prev),
            2 => Some(Self::Next),
            _ => None,
        }
    }
}

/// A wait for a message from that rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OverdueWait {
    pub(crate) via: Via,
    pub(crate) rank: Rank,
}

/// A tagged message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tagged {
    pub(crate) tag: u64,
    pub(crate) bytes: Vec<u8>,
}

impl ToRoot {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::CheckIn(contact, origin) => {
                let mut body = address(*contact);
                put(&mut body, origin.launch);
                put(&mut body, origin.part);
                put(&mut body, origin.age.as_millis() as u64);
                frame(1, &body)
            }
            Self::Ready => frame(2, &[]),
            Self::GiveUp => frame(3, &[]),
            Self::Pong => frame(4, &[]),
            Self::Failed(fault) => frame(5, &fault.encode()),
        }
    }
    pub(crate) fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        match kind {
            1 => {
                let mut fields = Fields(body);
                let contact = take_address(&mut fields)?;
                let (launch, part) = (fields.u64()?, fields.u64()?);
                let age = Duration::from_millis(fields.u64()?);
                Some(Self::CheckIn(contact, Origin { launch, part, age }))
            }
            2 => Some(Self::Ready),
            3 => Some(Self::GiveUp),
            4 => Some(Self::Pong),
            5 => Fault::decode(body).map(Self::Failed),
            _ => None,
        }
    }
}

impl FromRoot {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(magic) => frame(1, &magic.to_le_bytes()),
            Self::Successor(contact) => frame(2, &address(*contact)),
            Self::Waiting(absent, text) => {
                let mut body = Vec::new();
                absent.encode(&mut body);
                body.extend(&text.as_bytes()[..text.len().min(MAX_ROOT_FRAME / 2)]);
                frame(3, &body)
            }
            Self::Ping => frame(4, &[]),
            Self::Failed(fault) => frame(5, &fault.encode()),
        }
    }
    pub(crate) fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        match kind {
            1 => Fields(body).u64().map(Self::Welcome),
            2 => take_address(&mut Fields(body)).map(Self::Successor),
            3 => {
                let mut fields = Fields(body);
                let absent = Absent::decode(&mut fields)?;
                Some(Self::Waiting(absent, printable(fields.0)))
            }
            4 => Some(Self::Ping),
            5 => Fault::decode(body).map(Self::Failed),
            _ => None,
        }
    }
}

impl OnRing {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Block { round, origin, bytes } => {
                let mut body = Vec::with_capacity(8 + bytes.len());
                put(&mut body, *round);
                put(&mut body, origin.0);
                body.extend(bytes);
                frame(1, &body)
            }
            Self::Failed(fault) => frame(2, &fault.encode()),
            Self::Handover => frame(3, &[]),
            Self::Awaits { rank, awaited } => {
                let mut body = Vec::new();
                put(&mut body, rank.0);
                for wait in awaited {
                    put(&mut body, wait.via as u8);
                    put(&mut body, wait.rank.0);
                }
                frame(4, &body)
            }
            Self::AtEnd(rank) => frame(5, &rank.0.to_le_bytes()),
        }
    }
    pub(crate) fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        match kind {
            1 => Some(Self::Block {
                round: fields.u32()?,
                origin: Rank(fields.u32()?),
                bytes: fields.0.to_vec(),
            }),
            2 => Fault::decode(body).map(Self::Failed),
            3 => Some(Self::Handover),
            4 if body.len() <= MAX_ROOT_FRAME => {
                let rank = Rank(fields.u32()?);
                let wait =
                    || Some(OverdueWait { via: Via::from_u8(fields.u8()?)?, rank: Rank(fields.u32()?) });
                Some(Self::Awaits { rank, awaited: std::iter::from_fn(wait).collect() })
            }
            5 => Some(Self::AtEnd(Rank(fields.u32()?))),
            _ => None,
        }
    }
}

impl Tagged {
    pub(crate) fn encode(tag: u64, bytes: &[u8]) -> Vec<u8> {
        let mut body = Vec::with_capacity(8 + bytes.len());
        put(&mut body, tag);
        body.extend(bytes);
        frame(1, &body)
    }
    pub(crate) fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        (kind == 1).then_some(())?;
        Some(Self { tag: fields.u64()?, bytes: fields.0.to_vec() })
    }
}

/// The first block of all: the contact address of a rank, its settings, and the caller's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Introduction {
    pub(crate) contact: SocketAddr,
    /// Settings that must be equal on all ranks, with their values.
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) own: Vec<u8>,
}

impl Introduction {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = address(self.contact);
        put(&mut out, self.settings.len() as u32);
        for (name, value) in &self.settings {
            put_bytes(&mut out, name.as_bytes());
            put_bytes(&mut out, value.as_bytes());
        }
        put_bytes(&mut out, &self.own);
        out
    }
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let contact = take_address(&mut fields)?;
        let mut settings = Vec::new();
        for _ in 0..fields.u32()? {
            settings.push((fields.text()?, fields.text()?));
        }
        Some(Self { contact, settings, own: fields.bytes()?.to_vec() })
    }
}

fn address(address: SocketAddr) -> Vec<u8> {
    let mut out = Vec::with_capacity(19);
    match address.ip() {
        IpAddr::V4(v4) => {
            put(&mut out, 4u8);
            out.extend(v4.octets());
        }
        IpAddr::V6(v6) => {
            put(&mut out, 6u8);
            out.extend(v6.octets());
        }
    }
    put(&mut out, address.port());
    out
}

fn take_address(fields: &mut Fields<'_>) -> Option<SocketAddr> {
    let ip = match fields.u8()? {
        4 => IpAddr::from(<[u8; 4]>::try_from(fields.take(4)?).ok()?),
        6 => IpAddr::from(<[u8; 16]>::try_from(fields.take(16)?).ok()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, fields.u16()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// Splits a whole frame into the arguments of `decode`.
    fn parts(frame: &[u8]) -> (u8, &[u8]) {
        (frame[4], &frame[5..])
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let contact: SocketAddr = "[fd00::1]:7".parse().unwrap();
        let fault = Fault::new(ErrorKind::Peer, &[Rank(1)], "gone");
        for message in [
            ToRoot::CheckIn(contact, Origin { launch: 7, part: 8, age: Duration::from_millis(30) }),
            ToRoot::Ready,
            ToRoot::GiveUp,
            ToRoot::Pong,
            ToRoot::Failed(fault.clone()),
        ] {
            let encoded = message.encode();
            let (kind, body) = parts(&encoded);
            assert_eq!(ToRoot::decode(kind, body), Some(message));
        }
        for message in [
            FromRoot::Welcome(9),
            FromRoot::Successor(contact),
            FromRoot::Waiting(Absent::of(&[1, 4, 5, 7, 9].map(Rank)), "1/2 in".into()),
            FromRoot::Ping,
            FromRoot::Failed(fault.clone()),
        ] {
            let encoded = message.encode();
            let (kind, body) = parts(&encoded);
            assert_eq!(FromRoot::decode(kind, body), Some(message));
        }
        for message in [
            OnRing::Block { round: 3, origin: Rank(4), bytes: vec![1, 2] },
            OnRing::Failed(fault),
            OnRing::AtEnd(Rank(2)),
            OnRing::Handover,
            OnRing::Awaits { rank: Rank(3), awaited: vec![OverdueWait { via: Via::Prev, rank: Rank(1) }] },
        ] {
            let encoded = message.encode();
            let (kind, body) = parts(&encoded);
            assert_eq!(OnRing::decode(kind, body), Some(message));
        }
        let introduction = Introduction {
            contact: "10.0.0.1:5".parse().unwrap(),
            settings: vec![("CCL_ALGO".into(), "ring".into())],
            own: vec![1, 2, 3],
        };
        assert_eq!(Introduction::decode(&introduction.encode()), Some(introduction));
    }

    #[test]
    fn nothing_cut_short_is_taken() {
        let introduction = Introduction {
            contact: "10.0.0.1:5".parse().unwrap(),
            settings: vec![("A".into(), "b".into())],
            own: vec![1],
        };
        let whole = introduction.encode();
        for end in 0..whole.len() {
            assert_eq!(Introduction::decode(&whole[..end]), None, "{end} of {}", whole.len());
        }
        assert_eq!(ToRoot::decode(1, &[4, 1, 2, 3]), None);
        assert_eq!(ToRoot::decode(99, &[]), None);
        assert_eq!(Tagged::decode(1, &[0; 7]), None);
        // A count from the wire does not allocate memory by itself.
        assert_eq!(Introduction::decode(&[4, 1, 2, 3, 4, 0, 1, 255, 255, 255, 255]), None);
    }
}
