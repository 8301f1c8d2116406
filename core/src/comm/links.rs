//! Which links a request needs, and bringing them up: lazily, by their writer, through the
//! [`Carrier`] that reaches the peer.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::clock::Ns;
use crate::collective::{Descriptor, Request};
use crate::diagnose::ranks_text;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Lane, LaneId, LaneSet, Readers, Shape, Topology};
use crate::reactor::Interest;
use crate::recorder::Events;
use crate::transport::carrier::{Carrier, Outgoing, Up};
use crate::transport::meet::Peer;
use crate::transport::shm::memory::{CALLS_KEPT, RankMemory};
use crate::types::{Direction, Rank, TransportKind, TransportReason};

/// The peers of one rank and the links made to them so far.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) me: Rank,
    /// This rank's own memory, where its calls are published.
    memory: Arc<RankMemory>,
    pub(super) peers: Vec<Peer>,
    pub(super) carriers: Vec<Box<dyn Carrier>>,
    /// Why this rank has no port for queue pairs; empty if it has one.
    no_ports: String,
    /// Whether a carrier is connecting a lane.
    is_connecting: bool,
    /// The sets of lanes that were made, the lanes of all of them, which may share some, and the
    /// set of the latest request.
    made: BTreeSet<LaneSet>,
    lanes: BTreeSet<Lane>,
    latest: Option<LaneSet>,
    /// Kept so that a turn allocates nothing.
    up: Vec<Up>,
}

impl Links {
    pub(super) fn new(
        me: Rank,
        memory: Arc<RankMemory>,
        peers: Vec<Peer>,
        carriers: Vec<Box<dyn Carrier>>,
        no_ports: String,
    ) -> Self {
        let (made, lanes) = (BTreeSet::new(), BTreeSet::new());
        let (is_connecting, latest, up) = (false, None, Vec::new());
        Self { me, memory, peers, carriers, no_ports, is_connecting, made, lanes, latest, up }
    }

    /// Publishes this rank's latest call for peers that wait for it.
    #[inline]
    pub(super) fn describe(&mut self, descriptor: &Descriptor) {
        self.memory.set_descriptor(descriptor.encode());
    }

    /// The latest calls of a peer, newest first, as far as its carrier shows them.
    pub(super) fn calls(&self, peer: Rank) -> impl Iterator<Item = Descriptor> + '_ {
        let call = move |back| self.carriers.iter().find_map(|carrier| carrier.call(peer, back));
        (0..).map_while(call).filter_map(Descriptor::decode)
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

    /// Whether the latest calls of a peer tell whether it has made the collective of this number.
    /// They do not if the peer is on another host, which publishes no calls here, or if all calls
    /// shown are later ones, sends or receives.
    pub(super) fn tell(&self, peer: Rank, seq: u64) -> bool {
        let way = self.way_to(peer).map(|(transport, _)| transport);
        if !matches!(way, Some(TransportKind::InProcess | TransportKind::Shm)) {
            return false;
        }
        let mut shown = 0;
        let mut calls = self.calls(peer).inspect(|_| shown += 1);
        calls.any(|its| !its.kind.is_p2p() && its.seq <= seq) || shown < CALLS_KEPT
    }

    /// The transport to a peer and the reason for it; `None` for this rank itself.
    fn way_to(&self, peer: Rank) -> Option<(TransportKind, TransportReason)> {
        self.carriers.iter().find_map(|carrier| carrier.reaches(peer))
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
                if !self.lanes.insert(lane) {
                    continue;
                }
                let up = self.carriers.iter_mut().find_map(|carrier| carrier.accept(lane));
                if up.is_none() && !engine.has_receiver(lane) {
                    let cell = |chosen| {
                        let cell = engine.read_cell(lane, chosen);
                        cell.set_up_for(lane.id.channel, seq);
                        cell
                    };
                    self.carriers.iter_mut().for_each(|carrier| carrier.expect(lane, &cell));
                }
                self.up.extend(up);
            }
            for lane in set.written_by(topology, self.me) {
                if self.lanes.insert(lane) {
                    self.send(engine, topology, (lane.id, seq))?;
                }
            }
            self.attach(engine);
        }
        self.latest = Some(set);
        Ok(())
    }

    fn send(&mut self, engine: &Engine<Events>, topology: &Topology, (id, seq): (LaneId, u64)) -> Result<()> {
        let mut readers = match id.readers {
            Readers::One(to) => vec![to],
            Readers::Group(group) => topology.members(group).to_vec(),
        };
        readers.retain(|rank| *rank != self.me);
        let Some((transport, why)) = self.way_to_all(&readers) else { return Ok(()) };
        let reaches = |carrier: &&mut Box<dyn Carrier>| {
            let is_one = readers.len() == 1 && matches!(id.readers, Readers::One(_));
            (is_one || carrier.shares_lanes()) && readers.iter().all(|rank| carrier.reaches(*rank).is_some())
        };
        let Some(carrier) = self.carriers.iter_mut().find(reaches) else {
            return Err(self.unshared(&readers));
        };
        let cell = engine.link_cell(id, Direction::Send, (transport, why));
        let up = carrier.connect(Outgoing { id, readers: &readers, seq, why, cell });
        self.is_connecting |= up.is_none();
        self.up.extend(up);
        Ok(())
    }

    /// The transport of a lane to these ranks and the reason for it, as it is shown: of several the
    /// one that reaches furthest.
    fn way_to_all(&self, readers: &[Rank]) -> Option<(TransportKind, TransportReason)> {
        let ways = || readers.iter().filter_map(|rank| self.way_to(*rank));
        let (_, first) = ways().next()?;
        let is_apart = ways().any(|(_, why)| why == TransportReason::SameHost);
        let transport = ways().map(|(transport, _)| transport).max()?;
        Some((transport, if is_apart { TransportReason::SameHost } else { first }))
    }

    /// No carrier shares a lane with all of them.
    #[cold]
    fn unshared(&self, readers: &[Rank]) -> Error {
        let is_apart = |rank: &&Rank| {
            let mut sharing = self.carriers.iter().filter(|carrier| carrier.shares_lanes());
            sharing.all(|carrier| carrier.reaches(**rank).is_none())
        };
        let rank = readers.iter().find(is_apart).copied().unwrap_or(self.me);
        let what = format!("rank {rank} shares no memory with this rank, which a shared lane needs");
        Error::new(ErrorKind::Unavailable, what).hint("leave CCL_ALGO unset")
    }

    /// Gives the engine the ends that came up.
    fn attach(&mut self, engine: &mut Engine<Events>) {
        for up in self.up.drain(..) {
            match up {
                Up::Sender(id, link, cell, why) => engine.attach_sender(id, link, cell, why),
                Up::Receiver(lane, link, Some(cell), why) => engine.attach_receiver(lane, link, cell, why),
                Up::Receiver(lane, link, None, why) => engine.add_receiver(lane, link, why),
            }
        }
    }

    /// Gives the engine the ends that arrived since the last look.
    pub(super) fn take_arrivals(&mut self, engine: &mut Engine<Events>) {
        self.carriers.iter_mut().for_each(|carrier| carrier.arrived(&mut self.up));
        self.attach(engine);
    }

    /// Goes on with the lanes that are being connected, if there are any.
    ///
    /// # Errors
    /// Why a lane cannot come up.
    #[inline]
    pub(super) fn turn(&mut self, engine: &mut Engine<Events>) -> Result<()> {
        if self.is_connecting { self.connect(engine) } else { Ok(()) }
    }

    #[cold]
    fn connect(&mut self, engine: &mut Engine<Events>) -> Result<()> {
        let mut carriers = self.carriers.iter_mut();
        let turned = carriers.try_for_each(|carrier| carrier.turn(&mut self.up));
        self.attach(engine);
        self.is_connecting = self.wake().is_some();
        turned
    }

    /// Adds what a sleep must listen to while lanes are being connected.
    pub(super) fn interests(&self, out: &mut Vec<Interest>) {
        self.carriers.iter().for_each(|carrier| carrier.interests(out));
    }

    /// When to turn them again at the latest; `None`: nothing is being connected.
    pub(super) fn wake(&self) -> Option<Ns> {
        self.carriers.iter().filter_map(|carrier| carrier.wake()).min()
    }

    /// Gives up what is being connected.
    pub(super) fn clear(&mut self) {
        self.carriers.iter_mut().for_each(|carrier| carrier.clear());
        self.is_connecting = false;
    }

    /// The transport and the reason for each peer: `Shm (same_host)`.
    pub(super) fn ways(&self) -> Vec<(Rank, String)> {
        let ways = self.each_way();
        ways.map(|(rank, (transport, why))| (rank, format!("{} ({})", transport.name(), why.name())))
            .collect()
    }

    /// The transports of the links to this rank's peers, for messages: `Shm and Socket`; and why
    /// sockets serve between hosts.
    pub(super) fn transports(&self) -> String {
        let kinds: BTreeSet<&str> = self.each_way().map(|(_, (transport, _))| transport.name()).collect();
        if kinds.is_empty() {
            return "none".into();
        }
        let is_over_sockets = self.each_way().any(|(_, (kind, _))| kind == TransportKind::Socket);
        let unlike = self.each_way().filter(|(_, (_, why))| *why == TransportReason::NoVerbs);
        let unlike: Vec<Rank> = unlike.map(|(rank, _)| rank).collect();
        let why = match (is_over_sockets, self.no_ports.as_str()) {
            (true, "") if !unlike.is_empty() => {
                format!(" (no queue pairs: {} cannot use a port of this rank's kind)", ranks_text(&unlike))
            }
            (false, _) | (_, "") => String::new(),
            (true, why) => format!(" (no queue pairs: {why})"),
        };
        kinds.into_iter().collect::<Vec<_>>().join(" and ") + &why
    }

    fn each_way(&self) -> impl Iterator<Item = (Rank, (TransportKind, TransportReason))> + '_ {
        (0..self.peers.len() as u32).map(Rank).filter_map(|rank| Some((rank, self.way_to(rank)?)))
    }
}
