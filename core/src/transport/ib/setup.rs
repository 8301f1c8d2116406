//! Setting up a lane: what both sides tell each other over an authenticated connection, and the
//! queue pairs that become of it.
//!
//! ```text
//!   writer                                reader (in its service thread)
//!   Send: queue pairs, INIT; offer   ->   Recv
//!                                         queue pairs, INIT, RTR, RTS
//!   Connecting                       <-   Send: answer, with the first clear entries
//!   RTR, RTS; ready                  ->   Connecting
//!   Connected                             Connected
//! ```
//!
//! The states have NCCL's names ([`SetupState`](crate::types::SetupState)). The reader writes
//! nothing before the writer is ready, so no packet comes too early.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::process::{Resource, getrlimit};

use serde::{Deserialize, Serialize};

use super::hca::{End, Pair, Seat, Work};
use super::line::Line;
use super::link::{DEPTH, Half, Lent, MAX_PAIRS, RECEIVES, Sender, Strand};
use super::port::Port;
use super::seen::Seen;
use super::staging::{Block, CLEAR, HEADER, SLOTS};
use crate::bootstrap::auth::fill_random;
use crate::bootstrap::frame::frame;
use crate::config::{Key, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::longest;
use crate::recorder::QueuePairEnd;
use crate::sys::verbs::{Address, LinkLayer, Local, Path, Patience};
use crate::text::harmless;
use crate::transport::shm::memory::RankMemory;
use crate::types::{ChannelId, Rank};

/// The longest message of the set-up: that of a lane of [`MAX_PAIRS`] queue pairs.
pub(super) const LONGEST: usize = 8 << 10;
/// The longest name of a device: as in the kernel.
const LONGEST_NAME: usize = 64;
/// Numbers of queue pairs and packets have so many bits.
const NUMBERS: u32 = 1 << 24;

/// The kinds of the messages.
pub(super) mod kind {
    /// Of the writer, first.
    pub(crate) const OFFER: u8 = 1;
    /// Of the reader.
    pub(crate) const ANSWER: u8 = 2;
    /// Of the writer, last; without a body.
    pub(crate) const READY: u8 = 3;
}

/// The terms of queue pairs, from the settings.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pairs: usize,
    patience: Patience,
    traffic_class: u8,
    service_level: u8,
    pkey: u16,
    relaxed: bool,
    /// Whether callers' memory may be registered: not where memory for lanes could get short.
    lends: bool,
    adaptive_above: Option<usize>,
}

impl Terms {
    /// The terms that these settings ask for.
    pub(crate) fn of(settings: &Settings) -> Self {
        let byte = |key| settings.number(key) as u8;
        let adaptive_above = (settings.number(Key::IbAdaptiveRouting) == 1)
            .then(|| settings.number(Key::IbArThreshold) as usize);
        Self {
            pairs: settings.number(Key::IbQpsPerConnection) as usize,
            patience: Patience {
                timeout: byte(Key::IbTimeout),
                retries: byte(Key::IbRetryCount),
                unready_retries: byte(Key::IbRetryCount),
            },
            traffic_class: byte(Key::IbTrafficClass),
            service_level: byte(Key::IbServiceLevel),
            pkey: settings.number(Key::IbPkey) as u16,
            relaxed: settings.number(Key::IbRelaxedOrdering) == 1,
            lends: getrlimit(Resource::Memlock).current.is_none(),
            adaptive_above,
        }
    }
}

/// One side of a queue pair, as the other side must know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Endpoint {
    device: String,
    port: u8,
    queue_pair: u32,
    first_packet: u32,
    lid: u16,
    /// The code of the largest packet.
    mtu: u32,
    gid: Option<[u8; 16]>,
    /// The key of the block.
    key: u32,
}

impl Endpoint {
    /// Where it is, for messages.
    fn place(&self) -> String {
        let Self { device, port, queue_pair, .. } = self;
        let address = self.address();
        format!("{} port {port} queue pair {queue_pair} ({address})", harmless(device, LONGEST_NAME))
    }

    /// The address of its port.
    fn address(&self) -> Address {
        self.gid.map_or(Address::Lid(self.lid), Address::Gid)
    }

    /// The same for the recorder.
    fn seen(&self) -> QueuePairEnd {
        QueuePairEnd { port: self.port, number: self.queue_pair, address: self.address() }
    }

    fn is_possible(&self) -> bool {
        self.device.len() <= LONGEST_NAME
            && self.queue_pair < NUMBERS
            && self.first_packet < NUMBERS
            && (1..=5).contains(&self.mtu)
    }
}

/// What one side tells the other: an offer has a channel, an answer may refuse.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) channel: u16,
    /// The address of the block.
    block: u64,
    ends: Vec<Endpoint>,
    /// Why there will be no lane; empty if there will.
    pub(super) refused: String,
}

impl Told {
    /// A refusal.
    pub(super) fn refusal(channel: u16, why: &str) -> Self {
        Self { channel, block: 0, ends: Vec::new(), refused: harmless(why, 1000).into_owned() }
    }

    /// What a writer says once it is connected.
    pub(super) fn ready() -> Vec<u8> {
        frame(kind::READY, &[])
    }

    /// The number of queue pairs.
    pub(super) fn ends(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn encode(&self, kind: u8) -> Vec<u8> {
        frame(kind, &serde_json::to_vec(self).expect("numbers and texts"))
    }

    /// Reads what the other side tells.
    ///
    /// # Errors
    /// What is impossible about it.
    pub(super) fn decode(body: &[u8]) -> std::result::Result<Self, String> {
        let told: Self = serde_json::from_slice(body).map_err(|e| format!("it cannot be read: {e}"))?;
        if !told.refused.is_empty() {
            return Ok(Self::refusal(told.channel, &told.refused));
        }
        if told.ends.is_empty() || told.ends.len() > MAX_PAIRS {
            return Err(format!("it has {} queue pairs", told.ends.len()));
        }
        if !told.ends.iter().all(Endpoint::is_possible) {
            return Err("it has an impossible queue pair".into());
        }
        Ok(told)
    }
}

/// Which end of a lane it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Writer,
    Reader,
}

/// The queue pairs of one end of a lane, which do not know their other ends yet.
#[derive(Debug)]
pub(super) struct Unconnected {
    pairs: Vec<(Pair, Seat, Endpoint, Port, u32)>,
    end: Arc<End>,
    block: Block,
    /// The bytes of the longest message.
    room: usize,
    terms: Terms,
}

/// An error of the kernel or the device, with the place and what to do.
fn refused(what: &str, port: &Port, e: &io::Error) -> Error {
    let what = format!("{what} on {} port {}: {e}", port.hca.name(), port.number);
    let hint = match e.raw_os_error() {
        _ if e.kind() == io::ErrorKind::QuotaExceeded => {
            "use fewer queue pairs (CCL_IB_QPS_PER_CONNECTION=1), or fewer communicators"
        }
        Some(libc::ENOMEM) => {
            "raise RLIMIT_MEMLOCK (ulimit -l unlimited), or use fewer queue pairs (CCL_IB_QPS_PER_CONNECTION=1)"
        }
        Some(libc::EINVAL) => {
            "compare the addresses of both ends: one kind must reach the other (CCL_IB_GID_INDEX of both ranks)"
        }
        Some(libc::ETIMEDOUT) => {
            "nobody answers at the other side's address: check its port and the network between"
        }
        _ => "see what `ccl-inspect doctor` says of the device",
    };
    Error::new(ErrorKind::System, what).hint(hint)
}

impl Unconnected {
    /// Makes `count` queue pairs, over these ports in turn; `None`: as many as the settings say,
    /// and at least one per port.
    ///
    /// # Errors
    /// `System` if the kernel refuses.
    pub(super) fn make(
        ports: &[Port],
        count: Option<usize>,
        owner: &Arc<RankMemory>,
        (role, terms): (Role, &Terms),
        channel: ChannelId,
    ) -> Result<Self> {
        let count = count.unwrap_or_else(|| (terms.pairs * ports.len()).min(MAX_PAIRS));
        let room = longest(channel) as usize;
        let block = Block::take(room)?;
        let first = ports.first().ok_or_else(|| Error::new(ErrorKind::Unavailable, "there is no port"))?;
        let seat = first.hca.seat(owner);
        let end = Arc::clone(seat.end());
        let mut seat = Some(seat);
        let mut pairs = Vec::with_capacity(count);
        // Queue pairs of one device follow each other.
        let mut over: Vec<&Port> = (0..count).map(|at| &ports[at % ports.len()]).collect();
        over.sort_by_key(|port| port.hca.name());
        for (at, port) in over.into_iter().enumerate() {
            let hca = &port.hca;
            let region = block.region(hca.domain(), terms.relaxed);
            let region = region.map_err(|e| refused("registering memory", port, &e))?;
            let key = region.remote_key();
            let pair = hca.pair(DEPTH, region).map_err(|e| refused("making a queue pair", port, &e))?;
            let local = Local { port: port.number, pkey: terms.pkey };
            pair.qp.to_init(local).map_err(|e| refused("giving a queue pair its port", port, &e))?;
            let is_same = seat.as_ref().is_some_and(|seat| Arc::ptr_eq(seat.hca(), hca));
            let seat = if is_same { seat.take() } else { None };
            let seat = seat.unwrap_or_else(|| hca.share(Arc::clone(&end))).of(at);
            let (work, receives) = match role {
                Role::Writer if at == 0 => (Work::Cleared, RECEIVES),
                Role::Writer => (Work::Cleared, 0),
                Role::Reader => (Work::Arrival, RECEIVES),
            };
            for _ in 0..receives {
                pair.qp.receive(seat.id(work)).map_err(|e| refused("posting a receive", port, &e))?;
            }
            let endpoint = Endpoint {
                device: hca.name().to_string(),
                port: port.number,
                queue_pair: pair.qp.number(),
                first_packet: draw()? % NUMBERS,
                lid: port.state.lid,
                mtu: port.state.mtu,
                gid: port.gid.map(|gid| gid.address),
                key,
            };
            pairs.push((pair, seat, endpoint, port.clone(), key));
        }
        Ok(Self { pairs, end, block, room, terms: terms.clone() })
    }

    /// What the other side must know.
    pub(super) fn told(&self, channel: u16) -> Told {
        let ends = self.pairs.iter().map(|(_, _, endpoint, ..)| endpoint.clone()).collect();
        Told { channel, block: self.block.address(0), ends, refused: String::new() }
    }

    /// Connects the queue pairs to those of the other side, so that they can send and receive.
    ///
    /// # Errors
    /// `System` if the kernel refuses; `Mismatch` if there are not as many.
    pub(super) fn connect(self, theirs: &Told, peer: Rank) -> Result<Half> {
        if theirs.ends.len() != self.pairs.len() {
            let what = format!("rank {peer} has {} queue pairs for {}", theirs.ends.len(), self.pairs.len());
            return Err(Error::new(ErrorKind::Mismatch, what).with_peer(peer));
        }
        let Self { pairs, end, block, room, terms } = self;
        let mut strands = Vec::with_capacity(pairs.len());
        for ((pair, seat, own, port, own_key), its) in pairs.into_iter().zip(&theirs.ends) {
            let ends = format!("{} to {}", own.place(), its.place());
            let is_global = port.state.link_layer == LinkLayer::Ethernet || own.gid.is_some();
            let path = Path {
                port: port.number,
                gid_index: port.gid.map_or(0, |gid| gid.index),
                gid: its.gid.filter(|_| is_global),
                lid: its.lid,
                queue_pair: its.queue_pair,
                first_packet: its.first_packet,
                mtu: own.mtu.min(its.mtu),
                traffic_class: terms.traffic_class,
                service_level: terms.service_level,
            };
            let failed = |e: io::Error| refused(&format!("connecting {ends}"), &port, &e).with_peer(peer);
            pair.qp.to_ready_to_receive(&path).map_err(failed)?;
            pair.qp.to_ready_to_send(own.first_packet, terms.patience).map_err(failed)?;
            let (own_end, other) = (own.seen(), its.seen());
            let seen = Seen::new(own.device, own_end, other);
            strands.push(Strand { pair, seat, ends, key: its.key, own_key, seen });
        }
        let (there, adaptive_above, relaxed) = (theirs.block, terms.adaptive_above, terms.relaxed);
        let lends = terms.lends;
        let (lent, changes) = (Lent::new(room), Vec::new());
        Ok(Half { strands, end, block, there, room, peer, adaptive_above, relaxed, lends, lent, changes })
    }
}

/// The writing end, whose reader has told the first clear entries: its slots.
pub(super) fn writer(half: Half, line: Line) -> Sender {
    for slot in 0..SLOTS {
        let entry = slot * CLEAR;
        let put = |at: usize, value: u64| half.word(entry + at).store(value, Ordering::Relaxed);
        put(0, slot as u64);
        put(8, half.there.wrapping_add((half.slot(slot) + HEADER) as u64));
        for (two, strands) in half.strands.chunks(2).enumerate() {
            let key = |at: usize| strands.get(at).map_or(0, |strand: &Strand| u64::from(strand.key));
            put(16 + two * 8, key(0) | key(1) << 32);
        }
    }
    Sender::new(half, line)
}

/// Random bits. A queue pair that takes the number of an earlier one must not begin with the same
/// packet: late packets would be taken.
fn draw() -> Result<u32> {
    let mut bytes = [0; 4];
    fill_random(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            device: "mlx5_0".into(),
            port: 1,
            queue_pair: 17,
            first_packet: 0x00ab_cdef,
            lid: 3,
            mtu: 5,
            gid: None,
            key: 9,
        }
    }

    #[test]
    fn what_is_told_travels_and_fits() {
        let ends = vec![Endpoint { device: "d".repeat(64), gid: Some([255; 16]), ..endpoint() }; MAX_PAIRS];
        let told = Told { channel: 3, block: u64::MAX, ends, refused: String::new() };
        let bytes = told.encode(kind::OFFER);
        assert!(bytes.len() <= LONGEST, "{}", bytes.len());
        assert_eq!(Told::decode(&bytes[5..]), Ok(told));
        let refusal = Told::refusal(1, "no\nmemory");
        assert_eq!(Told::decode(&refusal.encode(kind::ANSWER)[5..]).unwrap().refused, "no\\nmemory");
    }

    #[test]
    fn what_is_impossible_is_refused() {
        let check = |ends: Vec<Endpoint>, expect: &str| {
            let told = Told { channel: 0, block: 1, ends, refused: String::new() };
            let error = Told::decode(&told.encode(kind::OFFER)[5..]).unwrap_err();
            assert!(error.contains(expect), "{error}");
        };
        check(Vec::new(), "0 queue pairs");
        check(vec![endpoint(); 9], "9 queue pairs");
        check(vec![Endpoint { queue_pair: NUMBERS, ..endpoint() }], "impossible");
        check(vec![Endpoint { mtu: 6, ..endpoint() }], "impossible");
        check(vec![Endpoint { device: "x".repeat(65), ..endpoint() }], "impossible");
        assert!(Told::decode(b"{").unwrap_err().contains("cannot be read"));
    }

    proptest! {
        /// A message with changed bytes is refused, or describes only possible queue pairs.
        #[test]
        fn whatever_is_changed_is_refused_or_possible(
            at in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..8),
            cut in any::<Index>(),
            is_cut: bool,
            ends in 0..MAX_PAIRS + 2,
            device in "\\PC{0,70}",
        ) {
            let ends = vec![Endpoint { device, gid: Some([7; 16]), ..endpoint() }; ends];
            let mut body = Told { channel: 3, block: 9, ends, refused: String::new() }.encode(kind::OFFER)[5..].to_vec();
            for (at, byte) in at {
                let at = at.index(body.len());
                body[at] = byte;
            }
            if is_cut {
                body.truncate(cut.index(body.len()));
            }
            if let Ok(told) = Told::decode(&body) {
                prop_assert!(told.ends() <= MAX_PAIRS && told.ends.iter().all(Endpoint::is_possible));
                prop_assert!(told.refused.is_empty() != told.ends.is_empty());
                for end in &told.ends {
                    prop_assert!(!end.place().chars().any(char::is_control), "{}", end.place());
                }
            }
        }
    }

    #[test]
    fn a_place_names_what_an_operator_can_look_up() {
        assert_eq!(endpoint().place(), "mlx5_0 port 1 queue pair 17 (lid 3)");
        let gid = Some("::ffff:10.0.0.2".parse::<std::net::Ipv6Addr>().unwrap().octets());
        let roce = Endpoint { gid, ..endpoint() };
        assert_eq!(roce.place(), "mlx5_0 port 1 queue pair 17 (10.0.0.2)");
    }
}
