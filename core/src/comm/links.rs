//! Which links a request needs, and bringing them up: lazily, by their writer.
//!
//! Links through memory need nobody's help: both ends know where the lane lies. The writer of a lane to another host connects
//! its streams; the reader's listener takes them in the service thread, whatever the reader is doing, and they arrive here.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::auth::{Hello, Key, Purpose};
use crate::clock;
use crate::collective::{Descriptor, Request};
use crate::comm::driver::lock;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Readers, Shape};
use crate::recorder::EventRing;
use crate::transport::shm::link as memory_link;
use crate::transport::shm::memory::RankMemory;
use crate::transport::socket::connect::{Target, connect_lane};
use crate::transport::socket::listen::Inbox;
use crate::transport::socket::shortage::Shortage;
use crate::transport::{RecvLink, SendLink};
use crate::types::{Algorithm, ChannelId, CollKind, CommId, JobId, Rank, TransportKind, TransportReason};

/// How a peer is reached.
#[derive(Debug)]
pub(super) enum Reach {
    /// It is this rank.
    Myself,
    /// Through its memory.
    Memory(Arc<RankMemory>),
    /// Through its data listener.
    Network(SocketAddr),
}

/// A rank, as this one knows it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) reach: Reach,
    /// Why it is reached that way.
    pub(super) why: TransportReason,
    pub(super) host: String,
    pub(super) pid: u32,
}

/// How long to try to connect; whether to stop before that, and why; where what is lacking stands.
pub(super) type Patience<'a> = (Duration, &'a dyn Fn() -> Option<Error>, &'a Shortage);

/// The peers of one rank and the links made to them so far.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) me: Rank,
    pub(super) job: JobId,
    pub(super) comm: CommId,
    pub(super) key: Key,
    pub(super) memory: Arc<RankMemory>,
    pub(super) peers: Vec<Peer>,
    pub(super) next: Rank,
    pub(super) previous: Rank,
    pub(super) channels: u16,
    pub(super) streams: u32,
    pub(super) arrivals: Inbox,
    /// The address of the interface this rank goes out by.
    pub(super) bind: Option<SocketAddr>,
    pub(super) has_ring: bool,
    pub(super) has_wide: bool,
    pub(super) pairs: BTreeSet<(CollKind, Rank)>,
}

impl Links {
    /// Makes this rank's latest call known to peers that wonder what it called.
    #[inline]
    pub(super) fn describe(&mut self, descriptor: &Descriptor) {
        self.memory.set_descriptor(descriptor.encode());
    }

    /// What a peer that is reached through memory called, the latest first, as far back as it tells.
    pub(super) fn calls(&self, peer: Rank) -> impl Iterator<Item = Descriptor> + '_ {
        let memory = match &self.peers[peer.index()].reach {
            Reach::Memory(memory) => Some(memory),
            Reach::Myself | Reach::Network(_) => None,
        };
        memory.into_iter().flat_map(|memory| memory.calls()).filter_map(Descriptor::decode)
    }

    /// What this rank called, likewise.
    pub(super) fn own_calls(&self) -> impl Iterator<Item = Descriptor> + '_ {
        self.memory.calls().filter_map(Descriptor::decode)
    }

    /// Where a peer runs, for people: the next place to look.
    pub(super) fn where_is(&self, peer: Rank) -> String {
        let peer = &self.peers[peer.index()];
        format!("it ran as pid {} on host {}: look at its output and its recorder", peer.pid, peer.host)
    }

    /// Whether a peer is reached through memory.
    pub(super) fn is_memory(&self, peer: Rank) -> bool {
        matches!(self.peers[peer.index()].reach, Reach::Memory(_))
    }

    /// Makes the links that `request` needs and this rank does not have yet.
    #[inline]
    pub(super) fn ensure(
        &mut self,
        engine: &mut Engine<EventRing>,
        shape: &Shape,
        request: &Request,
        patience: Patience<'_>,
    ) -> Result<()> {
        if self.peers.len() < 2 {
            return Ok(());
        }
        match shape.algorithm {
            Algorithm::Ring if !self.has_ring => {
                self.has_ring = true;
                for channel in (0..self.channels).map(ChannelId) {
                    self.receive(engine, channel, self.previous)?;
                    self.send(engine, channel, self.next, patience)?;
                }
            }
            Algorithm::Direct | Algorithm::Exchange if !self.has_wide => {
                self.has_wide = true;
                self.wide(engine)?;
            }
            Algorithm::Pair if self.pairs.insert((request.kind, request.root)) => {
                if request.kind == CollKind::Send {
                    self.send(engine, ChannelId::P2P, request.root, patience)?;
                } else {
                    self.receive(engine, ChannelId::P2P, request.root)?;
                }
            }
            Algorithm::Ring | Algorithm::Direct | Algorithm::Exchange | Algorithm::Pair => {}
        }
        Ok(())
    }

    fn send(
        &self,
        engine: &mut Engine<EventRing>,
        channel: ChannelId,
        to: Rank,
        (limit, stop, shortage): Patience<'_>,
    ) -> Result<()> {
        let readers = Readers::One(to);
        let link = match &self.peers[to.index()].reach {
            Reach::Myself => return Ok(()),
            Reach::Memory(reader) => {
                SendLink::Memory(memory_link::Sender::pair(&self.memory, channel, reader))
            }
            Reach::Network(address) => {
                let hello = Hello { channel, ..Hello::new(Purpose::Data, self.job, self.comm, self.me, to) };
                let target = Target {
                    address: *address,
                    bind: self.bind,
                    key: self.key.clone(),
                    hello,
                    streams: self.streams,
                };
                SendLink::Socket(Box::new(connect_lane(target, clock::now().after(limit), stop, shortage)?))
            }
        };
        engine.add_sender(channel, readers, link, self.why(to));
        Ok(())
    }

    /// A lane from another host arrives by itself.
    fn receive(&self, engine: &mut Engine<EventRing>, channel: ChannelId, from: Rank) -> Result<()> {
        if let Reach::Memory(writer) = &self.peers[from.index()].reach {
            let link = memory_link::Receiver::pair(&self.memory, channel, writer);
            engine.add_receiver(channel, from, false, RecvLink::Memory(link), self.why(from));
        }
        Ok(())
    }

    fn wide(&self, engine: &mut Engine<EventRing>) -> Result<()> {
        let mut readers = Vec::with_capacity(self.peers.len());
        let channel = ChannelId(0);
        for (rank, peer) in self.peers.iter().enumerate() {
            match &peer.reach {
                Reach::Myself => {}
                Reach::Memory(memory) => readers.push(Arc::clone(memory)),
                Reach::Network(_) => {
                    let what =
                        format!("rank {rank} shares no memory with this rank, which a wide lane needs");
                    return Err(Error::new(ErrorKind::Unavailable, what).hint("leave CCL_ALGO unset"));
                }
            }
        }
        let link = memory_link::Sender::wide(&self.memory, &readers);
        engine.add_sender(channel, Readers::All, SendLink::Memory(link), self.why_all());
        for writer in &readers {
            let link = memory_link::Receiver::wide(&self.memory, writer);
            let from = writer.identity().rank;
            engine.add_receiver(channel, from, true, RecvLink::Memory(link), self.why(from));
        }
        Ok(())
    }

    /// Why a peer is reached as it is.
    fn why(&self, peer: Rank) -> TransportReason {
        self.peers[peer.index()].why
    }

    /// The reason that holds for a lane to all others of this host: that one of them is another process, or else the one they share.
    fn why_all(&self) -> TransportReason {
        let others = || self.peers.iter().filter(|peer| !matches!(peer.reach, Reach::Myself));
        let first = others().map(|peer| peer.why).next();
        let is_apart = others().any(|peer| peer.why == TransportReason::SameHost);
        if is_apart { TransportReason::SameHost } else { first.unwrap_or(TransportReason::SameProcess) }
    }

    /// What carries the links to this rank's peers, for people: `Shm and Socket`.
    pub(super) fn transports(&self) -> String {
        let kinds: BTreeSet<&str> = self
            .peers
            .iter()
            .filter_map(|peer| match &peer.reach {
                Reach::Myself => None,
                Reach::Memory(memory) => Some(memory.transport().name()),
                Reach::Network(_) => Some(TransportKind::Socket.name()),
            })
            .collect();
        if kinds.is_empty() { "none".into() } else { kinds.into_iter().collect::<Vec<_>>().join(" and ") }
    }

    /// Gives the engine the links that came up since the last look.
    pub(super) fn take_arrivals(&self, engine: &mut Engine<EventRing>) {
        for (channel, from, link) in lock(&self.arrivals).drain(..) {
            engine.add_receiver(channel, from, false, RecvLink::Socket(Box::new(link)), self.why(from));
        }
    }
}
