//! The carrier of lanes through memory. They need no help from the peer: both ends know where a
//! lane lies.

use std::sync::Arc;

use super::link::{Receiver, Sender};
use super::memory::{CALLS_KEPT, RankMemory};
use crate::plan::{Lane, Readers};
use crate::transport::carrier::{Carrier, Outgoing, Up};
use crate::transport::meet::{Peer, Reach};
use crate::transport::{RecvLink, SendLink};
use crate::types::{Rank, TransportKind, TransportReason};

/// The lanes of one rank to and from the ranks whose memory it has mapped.
#[derive(Debug)]
pub(crate) struct MemoryCarrier {
    own: Arc<RankMemory>,
    /// By rank; `None` for a rank that is reached otherwise.
    peers: Vec<Option<(Arc<RankMemory>, TransportReason)>>,
}

impl MemoryCarrier {
    pub(crate) fn new(own: Arc<RankMemory>, peers: &[Peer]) -> Self {
        let memory = |peer: &Peer| match &peer.reach {
            Reach::Memory(memory) => Some((Arc::clone(memory), peer.why)),
            Reach::Myself | Reach::Network(_) | Reach::Verbs(_) => None,
        };
        Self { own, peers: peers.iter().map(memory).collect() }
    }

    fn peer(&self, peer: Rank) -> Option<&(Arc<RankMemory>, TransportReason)> {
        self.peers.get(peer.index())?.as_ref()
    }
}

impl Carrier for MemoryCarrier {
    fn reaches(&self, peer: Rank) -> Option<(TransportKind, TransportReason)> {
        self.peer(peer).map(|(memory, why)| (memory.transport(), *why))
    }

    fn shares_lanes(&self) -> bool {
        true
    }

    fn connect(&mut self, Outgoing { id, readers, why, cell, .. }: Outgoing<'_>) -> Option<Up> {
        let memory = |rank: &Rank| self.peer(*rank).map(|(memory, _)| Arc::clone(memory));
        let readers: Vec<_> = readers.iter().filter_map(memory).collect();
        let link = match id.readers {
            Readers::One(_) => Sender::pair(&self.own, id.channel, readers.first()?),
            Readers::Group(_) => Sender::shared(&self.own, &readers),
        };
        Some(Up::Sender(id, SendLink::Memory(link), cell, why))
    }

    fn accept(&mut self, lane: Lane) -> Option<Up> {
        let (writer, why) = self.peer(lane.from)?;
        let link = match lane.id.readers {
            Readers::One(_) => Receiver::pair(&self.own, lane.id.channel, writer),
            Readers::Group(_) => Receiver::shared(&self.own, writer),
        };
        Some(Up::Receiver(lane, RecvLink::Memory(link), None, *why))
    }

    fn call(&self, peer: Rank, back: u64) -> Option<[u64; 4]> {
        self.peer(peer).filter(|_| back < CALLS_KEPT)?.0.descriptor(back)
    }
}
