//! The lanes of one rank: its links by channel and peer, each beside its cell in the recorder.

use std::sync::atomic::{Ordering, fence};

use crate::clock::Raw;
use crate::control::service::Interest;
use crate::engine::{Op, Wait};
use crate::memory::ViewMut;
use crate::plan::Readers;
use crate::recorder::LinkCell;
use crate::transport::{LinkFault, RecvLink, SendLink};
use crate::types::{ChannelId, CollKind, Direction, Rank, TransportKind, WaitReason};

/// The writing end of a lane, with the message being filled.
#[derive(Debug)]
pub(super) struct Out {
    /// Dropped before the link: nobody looks at sockets that close.
    pub(super) cell: LinkCell,
    pub(super) link: SendLink,
    pub(super) channel: ChannelId,
    pub(super) to: Readers,
    pub(super) filling: Option<ViewMut>,
    pub(super) bytes: u64,
}

/// The reading end of a lane.
#[derive(Debug)]
pub(super) struct In {
    /// Dropped before the link, as in [`Out`].
    pub(super) cell: LinkCell,
    pub(super) link: RecvLink,
    pub(super) bytes: u64,
    /// Bytes of the message last peeked by the step that frees it.
    pub(super) head: u32,
}

/// No lane.
const NONE: u32 = u32::MAX;

/// Links by index, found through tables: rows are channels and, last, the point-to-point one; columns are peers.
#[derive(Debug)]
pub(super) struct Lanes {
    nranks: usize,
    channels: u16,
    outs: Vec<Out>,
    ins: Vec<In>,
    out_wide: u32,
    in_wide: Vec<u32>,
    out_pair: Vec<u32>,
    in_pair: Vec<u32>,
    /// Links that must be pumped: those whose carrier is not memory.
    pumped_outs: Vec<u32>,
    pumped_ins: Vec<u32>,
    /// Something was published or released since `ring`.
    pub(super) unrung: bool,
}

impl Lanes {
    pub(super) fn new(nranks: u32, channels: u16) -> Self {
        let n = nranks as usize;
        let cells = n * (usize::from(channels) + 1);
        Self {
            nranks: n,
            channels,
            outs: Vec::new(),
            ins: Vec::new(),
            out_wide: NONE,
            in_wide: vec![NONE; n],
            out_pair: vec![NONE; cells],
            in_pair: vec![NONE; cells],
            pumped_outs: Vec::new(),
            pumped_ins: Vec::new(),
            unrung: false,
        }
    }

    fn at(&self, channel: ChannelId, peer: Rank) -> usize {
        let row = if channel == ChannelId::P2P { self.channels } else { channel.0.min(self.channels) };
        usize::from(row) * self.nranks + peer.index()
    }

    pub(super) fn add_sender(&mut self, channel: ChannelId, to: Readers, link: SendLink, cell: LinkCell) {
        let index = self.outs.len() as u32;
        if is_pumped(link.transport()) {
            self.pumped_outs.push(index);
        }
        self.outs.push(Out { link, cell, channel, to, filling: None, bytes: 0 });
        match to {
            Readers::All => self.out_wide = index,
            Readers::One(peer) => {
                let at = self.at(channel, peer);
                self.out_pair[at] = index;
            }
        }
    }

    pub(super) fn add_receiver(
        &mut self,
        channel: ChannelId,
        from: Rank,
        wide: bool,
        link: RecvLink,
        cell: LinkCell,
    ) {
        let index = self.ins.len() as u32;
        if is_pumped(link.transport()) {
            self.pumped_ins.push(index);
        }
        self.ins.push(In { link, cell, bytes: 0, head: 0 });
        if wide {
            self.in_wide[from.index()] = index;
        } else {
            let at = self.at(channel, from);
            self.in_pair[at] = index;
        }
    }

    #[inline]
    pub(super) fn sender(&self, channel: ChannelId, to: Readers) -> Option<u32> {
        let index = match to {
            Readers::All => self.out_wide,
            Readers::One(peer) => self.out_pair[self.at(channel, peer)],
        };
        (index != NONE).then_some(index)
    }

    #[inline]
    pub(super) fn receiver(&self, channel: ChannelId, from: Rank, wide: bool) -> Option<u32> {
        let index = if wide { self.in_wide[from.index()] } else { self.in_pair[self.at(channel, from)] };
        (index != NONE).then_some(index)
    }

    #[inline]
    pub(super) fn out(&mut self, index: u32) -> &mut Out {
        &mut self.outs[index as usize]
    }

    #[inline]
    pub(super) fn input(&mut self, index: u32) -> &mut In {
        &mut self.ins[index as usize]
    }

    /// Pumps every link that needs it; whether anything moved.
    #[inline]
    pub(super) fn pump(&mut self) -> Result<bool, (ChannelId, Rank, LinkFault)> {
        let mut moved = false;
        for &index in &self.pumped_outs {
            let lane = &mut self.outs[index as usize];
            if lane.link.moved() < lane.link.posted() {
                let any = lane.link.pump().map_err(|fault| (lane.channel, lane.link.slowest(), fault))?;
                if any {
                    lane.store();
                }
                moved |= any;
            }
        }
        for &index in &self.pumped_ins {
            let lane = &mut self.ins[index as usize];
            // A fault of a link nobody waits for is not an error yet: who reads it will be told.
            moved |= lane.link.pump().unwrap_or(false);
        }
        Ok(moved)
    }

    /// Whether one of these waits is over, as far as a look into memory tells: for a message that is there now.
    #[inline]
    pub(super) fn may_advance(&mut self, waits: &[Wait]) -> bool {
        waits.iter().any(|wait| match (wait.direction, self.receiver(wait.channel, wait.peer, wait.wide)) {
            (Direction::Recv, Some(index)) => {
                let link = &mut self.ins[index as usize].link;
                !is_pumped(link.transport()) && !matches!(link.peek(), Ok(None))
            }
            (Direction::Recv, None) | (Direction::Send, _) => false,
        })
    }

    /// Wakes whoever sleeps for what was stored since the last time: one fence for all of it.
    #[inline]
    pub(super) fn ring(&mut self) {
        if std::mem::take(&mut self.unrung) {
            fence(Ordering::SeqCst);
            for lane in &mut self.outs {
                lane.link.ring();
            }
            for lane in &mut self.ins {
                lane.link.ring();
            }
        }
    }

    /// Whether all that was published on the lanes that an operation uses has left this rank; says what waits where not.
    #[inline]
    pub(super) fn is_flushed(&self, op: &Op, waits: &mut Vec<Wait>) -> bool {
        let is_used = |lane: &Out| match op.kind() {
            CollKind::Send => lane.channel == ChannelId::P2P && lane.to == Readers::One(op.peer()),
            CollKind::Recv => false,
            _ => lane.channel != ChannelId::P2P,
        };
        let mut flushed = true;
        for &index in &self.pumped_outs {
            let lane = &self.outs[index as usize];
            if is_used(lane) && lane.link.moved() < lane.link.posted() {
                flushed = false;
                waits.push(Wait {
                    channel: lane.channel,
                    peer: lane.link.slowest(),
                    direction: Direction::Send,
                    wide: lane.to == Readers::All,
                    reason: WaitReason::Kernel,
                });
            }
        }
        flushed
    }

    /// Writes into the cell of a pair's lane for which operation it works.
    #[inline]
    pub(super) fn work_for(&self, op: &Op) {
        let (peer, seq) = (op.peer(), op.descriptor().seq);
        if op.kind() == CollKind::Send {
            if let Some(index) = self.sender(ChannelId::P2P, Readers::One(peer)) {
                self.outs[index as usize].cell.op(seq);
            }
        } else if let Some(index) = self.receiver(ChannelId::P2P, peer, false) {
            self.ins[index as usize].cell.op(seq);
        }
    }

    /// Writes into a cell that its link waits.
    pub(super) fn note(&mut self, wait: &Wait, now: Raw) {
        let cell = match wait.direction {
            Direction::Send => {
                let to = if wait.wide { Readers::All } else { Readers::One(wait.peer) };
                self.sender(wait.channel, to).map(|index| &self.outs[index as usize].cell)
            }
            Direction::Recv => {
                self.receiver(wait.channel, wait.peer, wait.wide).map(|index| &self.ins[index as usize].cell)
            }
        };
        // A link that is not connected yet has no cell: the operation's own cell says that it runs.
        if let Some(cell) = cell {
            cell.waits(wait.reason, wait.peer, now);
        }
    }

    /// Writes into all cells that their links move.
    pub(super) fn moves(&self) {
        for lane in &self.outs {
            lane.cell.moves();
        }
        for lane in &self.ins {
            lane.cell.moves();
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        self.outs.iter().all(|lane| lane.filling.is_none())
    }

    pub(super) fn interests(&self, out: &mut Vec<Interest>) {
        for &index in &self.pumped_outs {
            let lane = &self.outs[index as usize];
            if let SendLink::Socket(link) = &lane.link {
                out.extend(link.fds());
            }
        }
        for &index in &self.pumped_ins {
            if let RecvLink::Socket(link) = &self.ins[index as usize].link {
                out.extend(link.fds());
            }
        }
    }
}

const fn is_pumped(transport: TransportKind) -> bool {
    matches!(transport, TransportKind::Socket)
}

impl Out {
    /// Copies the link's counters into its cell.
    #[inline]
    pub(super) fn store(&self) {
        self.cell.set(self.link.posted(), self.link.moved(), self.link.done());
        self.cell.bytes(self.bytes);
    }
}

impl In {
    /// Copies the link's counters into its cell.
    #[inline]
    pub(super) fn store(&self) {
        self.cell.set(self.link.posted(), self.link.moved(), self.link.done());
        self.cell.bytes(self.bytes);
    }
}
