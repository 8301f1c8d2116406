//! Lanes of this rank on their way up to other hosts. Connecting never blocks: it goes on over many
//! turns, while the engine does what needs no such lane.
//!
//! A lane has its link cell from the beginning, so that a reader of the recorder sees it connect:
//! to which address, since when, and what the kernel says of its streams.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{self, Ns};
use crate::engine::Engine;
use crate::error::Result;
use crate::plan::LaneId;
use crate::reactor::Interest;
use crate::recorder::{Events, LinkCell};
use crate::transport::SendLink;
use crate::transport::socket::connect::{Connecting, Target};
use crate::transport::socket::shortage::Shortage;
use crate::types::{ChannelId, Direction, TransportKind, TransportReason, WaitReason};

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

/// The lanes that are being connected.
#[derive(Debug)]
pub(super) struct Dials {
    under_way: Vec<Dial>,
    /// How long each may take.
    limit: Duration,
    /// What this rank lacks for connections is noted here.
    shortage: Arc<Shortage>,
    has_lacked: bool,
}

impl Dials {
    pub(super) const fn new(limit: Duration, shortage: Arc<Shortage>) -> Self {
        Self { under_way: Vec::new(), limit, shortage, has_lacked: false }
    }

    /// Begins to connect a lane that this rank writes, for the call with this number.
    pub(super) fn begin(
        &mut self,
        engine: &Engine<Events>,
        (id, seq): (LaneId, u64),
        target: Target,
        why: TransportReason,
    ) {
        let peer = target.hello.to;
        let cell = engine.link_cell(id, Direction::Send, (TransportKind::Socket, why));
        cell.op(if id.channel == ChannelId::P2P { seq } else { 0 });
        cell.waits(WaitReason::Connect, peer, clock::raw());
        let connecting = Connecting::new(target, clock::now(), self.limit);
        self.under_way.push(Dial { id, why, connecting, cell, opened: 0 });
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Does what can be done without waiting, and gives the engine the lanes that came up; whether
    /// any did.
    ///
    /// # Errors
    /// Why a lane cannot come up.
    pub(super) fn turn(&mut self, engine: &mut Engine<Events>) -> Result<bool> {
        let now = clock::now();
        let mut any = false;
        let mut at = 0;
        while let Some(dial) = self.under_way.get_mut(at) {
            let up = dial.connecting.turn(now)?;
            if dial.opened != dial.connecting.opened() {
                dial.opened = dial.connecting.opened();
                dial.cell.watch_connecting(dial.connecting.sockets(), dial.connecting.address());
            }
            let Some(link) = up else {
                at += 1;
                continue;
            };
            let Dial { id, why, cell, .. } = self.under_way.remove(at);
            cell.moves();
            engine.attach_sender(id, SendLink::Socket(Box::new(link)), cell, why);
            any = true;
        }
        self.note_shortage();
        Ok(any)
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

    /// Adds what a sleep must listen to.
    pub(super) fn interests(&self, out: &mut Vec<Interest>) {
        out.extend(self.under_way.iter().flat_map(|dial| dial.connecting.fds()));
    }

    /// When to turn them again at the latest; `None`: nothing is being connected.
    pub(super) fn wake(&self) -> Option<Ns> {
        self.under_way.iter().map(|dial| dial.connecting.wake()).min()
    }

    /// Gives up what is being connected.
    pub(super) fn clear(&mut self) {
        self.under_way.clear();
    }
}
