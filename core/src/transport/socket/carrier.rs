//! The carrier of lanes to other hosts. The writer of a lane connects its streams, over many turns,
//! while the engine does what needs no such lane. The reader's listener accepts them in the service
//! thread, whatever the reader is doing, and they arrive here.
//!
//! A lane has its link cell from the beginning, so that a reader of the recorder sees it connect:
//! to which address, since when, and what the kernel says of its streams.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::connect::{Connecting, Target};
use super::listen::Inbox;
use crate::bootstrap::auth::{Hello, Key, Purpose};
use crate::clock::{self, Ns};
use crate::error::Result;
use crate::plan::{Lane, LaneId};
use crate::reactor::Interest;
use crate::recorder::LinkCell;
use crate::sys::shortage::Shortage;
use crate::transport::carrier::{Carrier, Outgoing, Up};
use crate::transport::meet::{Peer, Reach};
use crate::transport::{RecvLink, SendLink};
use crate::types::{CommId, JobId, Rank, TransportKind, TransportReason, WaitReason};

/// The terms on which a rank connects lanes to other hosts.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) me: Rank,
    pub(crate) job: JobId,
    pub(crate) comm: CommId,
    pub(crate) key: Key,
    /// The streams of each lane.
    pub(crate) streams: u32,
    /// The address of the interface that this rank uses for outgoing connections.
    pub(crate) bind: Option<SocketAddr>,
    /// How long a lane may take.
    pub(crate) limit: Duration,
}

/// The lanes of one rank to and from ranks that it reaches over the network.
#[derive(Debug)]
pub(crate) struct SocketCarrier {
    terms: Terms,
    /// By rank, the address of its data listener; `None` for a rank that is reached otherwise.
    peers: Vec<Option<(SocketAddr, TransportReason)>>,
    /// The lanes that the listener has accepted.
    arrivals: Inbox,
    under_way: Vec<Dial>,
    /// What this rank lacks for connections is noted here.
    shortage: Arc<Shortage>,
    has_lacked: bool,
}

/// A lane that is being connected.
#[derive(Debug)]
struct Dial {
    id: LaneId,
    why: TransportReason,
    connecting: Connecting,
    cell: LinkCell,
    /// The sockets opened when the cell last took them.
    opened: u32,
}

impl SocketCarrier {
    pub(crate) fn new(terms: Terms, peers: &[Peer], arrivals: Inbox, shortage: Arc<Shortage>) -> Self {
        let address = |peer: &Peer| match peer.reach {
            Reach::Network(address) => Some((address, peer.why)),
            Reach::Myself | Reach::Memory(_) | Reach::Verbs(_) => None,
        };
        let peers = peers.iter().map(address).collect();
        Self { terms, peers, arrivals, under_way: Vec::new(), shortage, has_lacked: false }
    }

    fn note_shortage(&mut self) {
        let lacking = self.under_way.iter().find_map(|dial| dial.connecting.lacking());
        match lacking {
            Some(errno) => self.shortage.begins(errno),
            None if self.has_lacked => self.shortage.ends(),
            None => {}
        }
        self.has_lacked = lacking.is_some();
    }
}

impl Carrier for SocketCarrier {
    fn reaches(&self, peer: Rank) -> Option<(TransportKind, TransportReason)> {
        self.peers.get(peer.index())?.map(|(_, why)| (TransportKind::Socket, why))
    }

    fn connect(&mut self, Outgoing { id, readers, seq, why, cell }: Outgoing<'_>) -> Option<Up> {
        let (to, channel) = (*readers.first()?, id.channel);
        let (address, _) = (*self.peers.get(to.index())?)?;
        let Terms { me, job, comm, ref key, streams, bind, limit } = self.terms;
        let hello = Hello { channel, ..Hello::new(Purpose::Data, job, comm, me, to) };
        let target = Target { address, bind, key: key.clone(), hello, streams };
        cell.set_up_for(channel, seq);
        cell.waits(WaitReason::Connect, to, clock::raw());
        let connecting = Connecting::new(target, clock::now(), limit);
        self.under_way.push(Dial { id, why, connecting, cell, opened: 0 });
        None
    }

    fn accept(&mut self, _: Lane) -> Option<Up> {
        None
    }

    fn arrived(&mut self, up: &mut Vec<Up>) {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        for (channel, from, link) in arrivals.drain(..) {
            let lane = Lane { from, id: LaneId::pair(channel, self.terms.me) };
            // A rank that is reached otherwise connects none.
            if let Some((_, why)) = self.reaches(from) {
                up.push(Up::Receiver(lane, RecvLink::Socket(Box::new(link)), None, why));
            }
        }
    }

    fn turn(&mut self, up: &mut Vec<Up>) -> Result<()> {
        let now = clock::now();
        let mut at = 0;
        while let Some(dial) = self.under_way.get_mut(at) {
            let link = dial.connecting.turn(now)?;
            if dial.opened != dial.connecting.opened() {
                dial.opened = dial.connecting.opened();
                dial.cell.watch_connecting(dial.connecting.sockets(), dial.connecting.address());
            }
            let Some(link) = link else {
                at += 1;
                continue;
            };
            let Dial { id, why, cell, .. } = self.under_way.remove(at);
            cell.moves();
            up.push(Up::Sender(id, SendLink::Socket(Box::new(link)), cell, why));
        }
        self.note_shortage();
        Ok(())
    }

    fn interests(&self, out: &mut Vec<Interest>) {
        out.extend(self.under_way.iter().flat_map(|dial| dial.connecting.fds()));
    }

    fn wake(&self) -> Option<Ns> {
        self.under_way.iter().map(|dial| dial.connecting.wake()).min()
    }

    fn clear(&mut self) {
        self.under_way.clear();
        self.note_shortage();
    }
}

impl Drop for SocketCarrier {
    /// What it lacked, it needs no more.
    fn drop(&mut self) {
        self.clear();
    }
}
