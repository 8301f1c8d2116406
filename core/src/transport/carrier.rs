//! Carriers: what brings the lanes of one rank up, by one transport.
//!
//! A communicator has one carrier per transport, and asks each which peers it reaches. Nothing
//! outside of `transport/` knows what a carrier does to connect a lane: it never blocks, is turned
//! while something is under way, and says what a sleeping rank must listen to meanwhile.

use std::fmt;

use super::{RecvLink, SendLink};
use crate::clock::Ns;
use crate::error::Result;
use crate::plan::{Lane, LaneId};
use crate::reactor::Interest;
use crate::recorder::LinkCell;
use crate::types::{Rank, TransportKind, TransportReason};

/// A lane that this rank is to write.
pub(crate) struct Outgoing<'a> {
    pub(crate) id: LaneId,
    /// Its readers, at least one.
    pub(crate) readers: &'a [Rank],
    /// The number of the call that needs it.
    pub(crate) seq: u64,
    /// Why this transport was chosen.
    pub(crate) why: TransportReason,
    /// The cell of its link, which shows it while it is connected.
    pub(crate) cell: LinkCell,
}

/// An end of a lane that is up, and why its transport was chosen.
#[derive(Debug)]
pub(crate) enum Up {
    /// The writing end, with its cell.
    Sender(LaneId, SendLink, LinkCell, TransportReason),
    /// The reading end, with its cell if it has one.
    Receiver(Lane, RecvLink, Option<LinkCell>, TransportReason),
}

/// Brings lanes up by one transport.
pub(crate) trait Carrier: fmt::Debug + Send {
    /// The transport to this peer and why it was chosen; `None` if another carrier reaches it.
    fn reaches(&self, peer: Rank) -> Option<(TransportKind, TransportReason)>;

    /// Whether several readers may share a lane.
    fn shares_lanes(&self) -> bool {
        false
    }

    /// Begins to connect a lane that this rank writes; `None` if [`turn`](Self::turn) goes on with
    /// it.
    fn connect(&mut self, lane: Outgoing<'_>) -> Option<Up>;

    /// The reading end of a lane of a peer; `None` if it arrives by itself.
    fn accept(&mut self, lane: Lane) -> Option<Up>;

    /// A call needs a lane of a peer that arrives by itself and is not up: a carrier that shows how
    /// far it is makes a cell for it, once.
    fn expect(&mut self, _: Lane, _: &dyn Fn((TransportKind, TransportReason)) -> LinkCell) {}

    /// Takes the ends that arrived by themselves.
    fn arrived(&mut self, _: &mut Vec<Up>) {}

    /// Goes on connecting, without waiting.
    ///
    /// # Errors
    /// Why a lane cannot come up.
    fn turn(&mut self, _: &mut Vec<Up>) -> Result<()> {
        Ok(())
    }

    /// Adds what a sleep must listen to while lanes are being connected.
    fn interests(&self, _: &mut Vec<Interest>) {}

    /// When to turn it again at the latest; `None`: nothing is being connected.
    fn wake(&self) -> Option<Ns> {
        None
    }

    /// Gives up what is being connected.
    fn clear(&mut self) {}

    /// The call that a peer made `back` calls before its latest one, as far as the transport shows
    /// it: the words of its descriptor.
    fn call(&self, peer: Rank, back: u64) -> Option<[u64; 4]> {
        let _ = (peer, back);
        None
    }
}
