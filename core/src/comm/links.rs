//! Which links a request needs, and bringing them up: lazily, by their writer.
//!
//! Links through memory need no help from the peer: both ends know where the lane lies. The writer
//! of a lane to another host connects its streams ([`Dials`]). The reader's listener accepts them
//! in the service thread, whatever the reader is doing, and they arrive here.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use crate::bootstrap::auth::{Hello, Key, Purpose};
use crate::collective::{Descriptor, Request};
use crate::comm::dials::Dials;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Lane, LaneId, LaneSet, Readers, Shape, Topology};
use crate::recorder::Events;
use crate::transport::meet::{Peer, Reach};
use crate::transport::shm::link as memory_link;
use crate::transport::shm::memory::RankMemory;
use crate::transport::socket::connect::Target;
use crate::transport::socket::listen::Inbox;
use crate::transport::{RecvLink, SendLink};
use crate::types::{CommId, JobId, Rank, TransportKind, TransportReason};

/// The peers of one rank and the links made to them so far.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) me: Rank,
    pub(super) job: JobId,
    pub(super) comm: CommId,
    pub(super) key: Key,
    pub(super) memory: Arc<RankMemory>,
    pub(super) peers: Vec<Peer>,
    pub(super) streams: u32,
    pub(super) arrivals: Inbox,
    /// The address of the interface that this rank uses for outgoing connections.
    pub(super) bind: Option<SocketAddr>,
    pub(super) dials: Dials,
    /// The lanes that were made, and those of the latest request.
    pub(super) made: BTreeSet<LaneSet>,
    pub(super) latest: Option<LaneSet>,
}

impl Links {
    /// Publishes this rank's latest call for peers that wait for it.
    #[inline]
    pub(super) fn describe(&mut self, descriptor: &Descriptor) {
        self.memory.set_descriptor(descriptor.encode());
    }

    /// The latest calls of a peer that is reached through memory, newest first, as far as it
    /// publishes them.
    pub(super) fn calls(&self, peer: Rank) -> impl Iterator<Item = Descriptor> + '_ {
        let memory = match &self.peers[peer.index()].reach {
            Reach::Memory(memory) => Some(memory),
            Reach::Myself | Reach::Network(_) => None,
        };
        memory.into_iter().flat_map(|memory| memory.calls()).filter_map(Descriptor::decode)
    }

    /// The latest calls of this rank, likewise.
    pub(super) fn own_calls(&self) -> impl Iterator<Item = Descriptor> + '_ {
        self.memory.calls().filter_map(Descriptor::decode)
    }

    /// Where a peer runs, as a hint for the user.
    pub(super) fn where_is(&self, peer: Rank) -> String {
        let peer = &self.peers[peer.index()];
        format!("it ran as pid {} on host {}: look at its output and its recorder", peer.pid, peer.host)
    }

    /// Whether a peer is reached through memory.
    pub(super) fn is_memory(&self, peer: Rank) -> bool {
        matches!(self.peers[peer.index()].reach, Reach::Memory(_))
    }

    /// Makes the links that a request of this shape needs and this rank does not have yet. Those to
    /// other hosts begin to connect. `seq` is the number of the call.
    ///
    /// # Errors
    /// `Unavailable` if a shared lane is needed and a peer shares no memory with this rank.
    #[inline]
    pub(super) fn ensure(
        &mut self,
        engine: &mut Engine<Events>,
        topology: &Topology,
        shape: &Shape,
        (request, seq): (&Request, u64),
    ) -> Result<()> {
        let set = LaneSet::of(request, shape, self.me);
        if self.latest == Some(set) || self.peers.len() < 2 {
            return Ok(());
        }
        if self.made.insert(set) {
            for lane in set.read_by(topology, self.me) {
                self.receive(engine, lane)?;
            }
            for lane in set.written_by(topology, self.me) {
                self.send(engine, topology, (lane.id, seq))?;
            }
        }
        self.latest = Some(set);
        Ok(())
    }

    fn send(
        &mut self,
        engine: &mut Engine<Events>,
        topology: &Topology,
        (id, seq): (LaneId, u64),
    ) -> Result<()> {
        let to = match id.readers {
            Readers::One(to) => to,
            Readers::Group(group) => {
                let members = topology.members(group);
                let readers = self.neighbours(members)?;
                let link = memory_link::Sender::shared(&self.memory, &readers);
                engine.add_sender(id, SendLink::Memory(link), self.why_all(members));
                return Ok(());
            }
        };
        let why = self.why(to);
        match &self.peers[to.index()].reach {
            Reach::Myself => {}
            Reach::Memory(reader) => {
                let link = memory_link::Sender::pair(&self.memory, id.channel, reader);
                engine.add_sender(id, SendLink::Memory(link), why);
            }
            Reach::Network(address) => {
                let channel = id.channel;
                let hello = Hello { channel, ..Hello::new(Purpose::Data, self.job, self.comm, self.me, to) };
                let target = Target {
                    address: *address,
                    bind: self.bind,
                    key: self.key.clone(),
                    hello,
                    streams: self.streams,
                };
                self.dials.begin(engine, (id, seq), target, why);
            }
        }
        Ok(())
    }

    /// A lane from another host arrives by itself.
    fn receive(&self, engine: &mut Engine<Events>, lane: Lane) -> Result<()> {
        let from = lane.from;
        let Reach::Memory(writer) = &self.peers[from.index()].reach else { return Ok(()) };
        let link = match lane.id.readers {
            Readers::One(_) => memory_link::Receiver::pair(&self.memory, lane.id.channel, writer),
            Readers::Group(_) => memory_link::Receiver::shared(&self.memory, writer),
        };
        engine.add_receiver(lane, RecvLink::Memory(link), self.why(from));
        Ok(())
    }

    /// The memory of the other members of this rank's group, which a shared lane needs.
    fn neighbours(&self, members: &[Rank]) -> Result<Vec<Arc<RankMemory>>> {
        let mut all = Vec::with_capacity(members.len());
        for rank in members {
            match &self.peers[rank.index()].reach {
                Reach::Myself => {}
                Reach::Memory(memory) => all.push(Arc::clone(memory)),
                Reach::Network(_) => {
                    let what =
                        format!("rank {rank} shares no memory with this rank, which a shared lane needs");
                    return Err(Error::new(ErrorKind::Unavailable, what).hint("leave CCL_ALGO unset"));
                }
            }
        }
        Ok(all)
    }

    /// The reason for a peer's transport.
    fn why(&self, peer: Rank) -> TransportReason {
        self.peers[peer.index()].why
    }

    /// The reason for the transport of a lane to these ranks: `SameHost` if one of them is another
    /// process, else the reason that they share.
    fn why_all(&self, members: &[Rank]) -> TransportReason {
        let peers = || members.iter().map(|rank| &self.peers[rank.index()]);
        let others = || peers().filter(|peer| !matches!(peer.reach, Reach::Myself));
        let first = others().map(|peer| peer.why).next();
        let is_apart = others().any(|peer| peer.why == TransportReason::SameHost);
        if is_apart { TransportReason::SameHost } else { first.unwrap_or(TransportReason::SameProcess) }
    }

    /// The transport and the reason for each peer: `Shm (same_host)`.
    pub(super) fn ways(&self) -> Vec<(Rank, String)> {
        let way = |(rank, peer): (u32, &Peer)| {
            let name = match &peer.reach {
                Reach::Myself => return None,
                Reach::Memory(memory) => memory.transport().name(),
                Reach::Network(_) => TransportKind::Socket.name(),
            };
            Some((Rank(rank), format!("{name} ({})", peer.why.name())))
        };
        (0..).zip(&self.peers).filter_map(way).collect()
    }

    /// The transports of the links to this rank's peers, for messages: `Shm and Socket`.
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
    pub(super) fn take_arrivals(&self, engine: &mut Engine<Events>) {
        for (channel, from, link) in self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let lane = Lane { from, id: LaneId::pair(channel, self.me) };
            engine.add_receiver(lane, RecvLink::Socket(Box::new(link)), self.why(from));
        }
    }
}
