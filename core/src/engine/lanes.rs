//! The lanes of one rank: its links by channel and peer, each with its cell in the recorder.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::clock::Raw;
use crate::engine::{Op, Wait};
use crate::event::Subscriber;
use crate::memory::{Lendable, ViewMut};
use crate::plan::Readers;
use crate::proxy::{Claim, Sub};
use crate::reactor::Interest;
use crate::recorder::LinkCell;
use crate::transport::{Change, LinkFault, RecvLink, SendLink};
use crate::types::{ChannelId, CollKind, Direction, Rank, WaitReason};

/// The sending end of a lane, with the message that is being filled.
#[derive(Debug)]
pub(super) struct Out {
    /// Dropped before the link, so that the sockets are not sampled while they close.
    pub(super) cell: LinkCell,
    pub(super) link: SendLink,
    /// The sub-operation of the proxy; `None` if the link carries its bytes without being pumped.
    pub(super) sub: Option<Sub>,
    pub(super) channel: ChannelId,
    pub(super) to: Readers,
    pub(super) filling: Option<ViewMut>,
    pub(super) bytes: u64,
}

/// The receiving end of a lane.
#[derive(Debug)]
pub(super) struct In {
    /// Dropped before the link, as in [`Out`].
    pub(super) cell: LinkCell,
    pub(super) link: RecvLink,
    /// As in [`Out`].
    pub(super) sub: Option<Sub>,
    channel: ChannelId,
    from: Rank,
    pub(super) bytes: u64,
    /// The size of the message last peeked by a step that releases it.
    pub(super) head: u32,
    /// The check of the oldest message without its checksum, and the number of that message, once
    /// it was compared.
    pub(super) compared: (u64, u64),
}

/// What has become of a queue pair, and of which link it is.
pub(super) type Changed = (ChannelId, Option<Rank>, Direction, Change);

/// Marks a lane that does not exist.
const NONE: u32 = u32::MAX;

/// The links of one rank, found through tables. The rows of a table are the channels and, last, the
/// point-to-point channel; the columns are the peers.
#[derive(Debug)]
pub(super) struct Lanes {
    nranks: usize,
    channels: u16,
    outs: Vec<Out>,
    ins: Vec<In>,
    out_shared: u32,
    in_shared: Vec<u32>,
    out_pair: Vec<u32>,
    in_pair: Vec<u32>,
    /// The links of collectives that must be pumped: they do not carry bytes through memory.
    pumped_outs: Vec<u32>,
    pumped_ins: Vec<u32>,
    /// Whether messages carry checksums.
    pub(super) has_checksums: bool,
    /// Whether anything was published or released since the last `notify`.
    pub(super) needs_notify: bool,
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
            out_shared: NONE,
            in_shared: vec![NONE; n],
            out_pair: vec![NONE; cells],
            in_pair: vec![NONE; cells],
            pumped_outs: Vec::new(),
            pumped_ins: Vec::new(),
            has_checksums: false,
            needs_notify: false,
        }
    }

    fn at(&self, channel: ChannelId, peer: Rank) -> usize {
        let row = if channel == ChannelId::P2P { self.channels } else { channel.0.min(self.channels) };
        usize::from(row) * self.nranks + peer.index()
    }

    pub(super) fn add_sender(&mut self, channel: ChannelId, to: Readers, link: SendLink, cell: LinkCell) {
        let index = self.outs.len() as u32;
        let peer = super::peer_of(to).filter(|_| link.is_pumped());
        let sub = peer.map(|peer| Sub::new(channel, peer, Direction::Send));
        if sub.is_some() && channel != ChannelId::P2P {
            self.pumped_outs.push(index);
        }
        self.outs.push(Out { link, cell, sub, channel, to, filling: None, bytes: 0 });
        match to {
            Readers::Group(_) => self.out_shared = index,
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
        shared: bool,
        link: RecvLink,
        cell: LinkCell,
    ) {
        let index = self.ins.len() as u32;
        let sub = (link.is_pumped() && !shared).then(|| Sub::new(channel, from, Direction::Recv));
        if sub.is_some() && channel != ChannelId::P2P {
            self.pumped_ins.push(index);
        }
        self.ins.push(In { link, cell, sub, channel, from, bytes: 0, head: 0, compared: (0, 0) });
        if shared {
            self.in_shared[from.index()] = index;
        } else {
            let at = self.at(channel, from);
            self.in_pair[at] = index;
        }
    }

    /// What has become of all queue pairs since they were asked last.
    pub(super) fn changes(&mut self) -> Vec<Changed> {
        let outs = self.outs.iter_mut().flat_map(|out| {
            let (channel, peer) = (out.channel, super::peer_of(out.to));
            out.link.changes().into_iter().map(move |change| (channel, peer, Direction::Send, change))
        });
        let ins = self.ins.iter_mut().flat_map(|input| {
            let (channel, peer) = (input.channel, Some(input.from));
            input.link.changes().into_iter().map(move |change| (channel, peer, Direction::Recv, change))
        });
        outs.chain(ins).collect()
    }

    /// This rank's shared lane: a rank has one, to its group.
    fn shared(&self) -> Option<u32> {
        (self.out_shared != NONE).then_some(self.out_shared)
    }

    #[inline]
    pub(super) fn sender(&self, channel: ChannelId, to: Readers) -> Option<u32> {
        let index = match to {
            Readers::Group(_) => self.out_shared,
            Readers::One(peer) => self.out_pair[self.at(channel, peer)],
        };
        (index != NONE).then_some(index)
    }

    #[inline]
    pub(super) fn receiver(&self, channel: ChannelId, from: Rank, shared: bool) -> Option<u32> {
        let index = if shared { self.in_shared[from.index()] } else { self.in_pair[self.at(channel, from)] };
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

    /// Moves what can be moved on the links that work for an operation; whether anything moved.
    #[inline]
    pub(super) fn pump<S: Subscriber>(
        &mut self,
        op: &Op,
        events: &mut S,
    ) -> Result<bool, (ChannelId, Rank, LinkFault)> {
        let mut moved = false;
        if op.kind().is_p2p() {
            let (out, input) = self.pair(op);
            if let Some(index) = out {
                moved |= self.outs[index as usize].pump(op, events)?;
            }
            if let Some(index) = input {
                moved |= self.ins[index as usize].pump(op, events);
            }
            return Ok(moved);
        }
        for &index in &self.pumped_outs {
            moved |= self.outs[index as usize].pump(op, events)?;
        }
        for &index in &self.pumped_ins {
            moved |= self.ins[index as usize].pump(op, events);
        }
        Ok(moved)
    }

    /// The link of a send or receive, on the side of it that this rank has.
    fn pair(&self, op: &Op) -> (Option<u32>, Option<u32>) {
        match op.kind() {
            CollKind::Send => (self.sender(ChannelId::P2P, Readers::One(op.peer())), None),
            _ => (None, self.receiver(ChannelId::P2P, op.peer(), false)),
        }
    }

    /// A pair's messages from this one on lie in these bytes, which its link may lend to devices,
    /// so many bytes each. A link that is not up yet copies them.
    pub(super) fn lend(
        &mut self,
        (direction, peer): (Direction, Rank),
        first: u64,
        bytes: (ViewMut, usize),
        memory: &Arc<Lendable>,
    ) {
        if direction == Direction::Send {
            if let Some(index) = self.sender(ChannelId::P2P, Readers::One(peer)) {
                self.outs[index as usize].link.lend(first, bytes, memory);
            }
        } else if let Some(index) = self.receiver(ChannelId::P2P, peer, false) {
            self.ins[index as usize].link.lend(first, bytes, memory);
        }
    }

    /// Whether one of these waits is over because a message has arrived, as far as memory shows.
    #[inline]
    pub(super) fn may_advance(&mut self, waits: &[Wait]) -> bool {
        waits.iter().any(|wait| match (wait.direction, self.receiver(wait.channel, wait.peer, wait.shared)) {
            (Direction::Recv, Some(index)) => {
                let link = &mut self.ins[index as usize].link;
                !link.is_pumped() && !matches!(link.peek(), Ok(None))
            }
            (Direction::Recv, None) | (Direction::Send, _) => false,
        })
    }

    /// Wakes the peers that sleep for data stored since the last call; one fence covers it all.
    #[inline]
    pub(super) fn notify(&mut self) {
        if std::mem::take(&mut self.needs_notify) {
            fence(Ordering::SeqCst);
            for lane in &mut self.outs {
                lane.link.notify();
            }
            for lane in &mut self.ins {
                lane.link.notify();
            }
        }
    }

    /// How many messages were published on the link of a send that is still moving some of them;
    /// `None` if all have moved.
    pub(super) fn until(&self, op: &Op) -> Option<u64> {
        let lane = self.pair(op).0.map(|index| &self.outs[index as usize]);
        let link = &lane.filter(|lane| lane.sub.is_some())?.link;
        (link.moved() < link.posted()).then(|| link.posted())
    }

    /// Whether all bytes published on the lanes of an operation have left this rank, of a pair's
    /// lane the messages before `until`; otherwise adds the waits of those lanes.
    #[inline]
    pub(super) fn is_flushed(
        &self,
        op: &Op,
        until: Option<u64>,
        claim: &Claim,
        waits: &mut Vec<Wait>,
    ) -> bool {
        let reason = if claim.waits() { WaitReason::Proxy } else { WaitReason::Kernel };
        let mut flushed = true;
        let mut look = |lane: &Out| {
            if lane.sub.is_some() && lane.link.moved() < until.unwrap_or_else(|| lane.link.posted()) {
                flushed = false;
                waits.push(Wait {
                    op: op.number(),
                    step: Wait::FLUSH,
                    channel: lane.channel,
                    peer: lane.link.slowest(),
                    direction: Direction::Send,
                    shared: matches!(lane.to, Readers::Group(_)),
                    reason,
                });
            }
        };
        if op.kind().is_p2p() {
            self.pair(op).0.into_iter().for_each(|index| look(&self.outs[index as usize]));
        } else {
            self.pumped_outs.iter().for_each(|index| look(&self.outs[*index as usize]));
        }
        flushed
    }

    /// Writes into the cell of a pair's lane which operation it works for.
    #[inline]
    pub(super) fn work_for(&self, op: &Op) {
        let seq = op.descriptor().seq;
        let (out, input) = self.pair(op);
        if let Some(index) = out {
            self.outs[index as usize].cell.op(seq);
        }
        if let Some(index) = input {
            self.ins[index as usize].cell.op(seq);
        }
    }

    /// Records in its cell that a link waits. Of a link that is not up, only the operation's own
    /// cell records the wait.
    pub(super) fn note(&self, wait: &Wait, now: Raw) {
        if let Some(cell) = self.cell(wait) {
            cell.waits(wait.reason, wait.peer, now);
        }
    }

    /// Records in its cell that a link no longer waits.
    pub(super) fn moves(&self, wait: &Wait) {
        if let Some(cell) = self.cell(wait) {
            cell.moves();
        }
    }

    /// The cell of the link that a wait belongs to.
    fn cell(&self, wait: &Wait) -> Option<&LinkCell> {
        match wait.direction {
            Direction::Send => {
                let index = if wait.shared {
                    self.shared()
                } else {
                    self.sender(wait.channel, Readers::One(wait.peer))
                };
                index.map(|index| &self.outs[index as usize].cell)
            }
            Direction::Recv => self
                .receiver(wait.channel, wait.peer, wait.shared)
                .map(|index| &self.ins[index as usize].cell),
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        self.outs.iter().all(|lane| lane.filling.is_none())
    }

    /// Adds what shows that the links that work for an operation can go on.
    pub(super) fn interests(&self, op: &Op, all: &mut Vec<Interest>) {
        if op.kind().is_p2p() {
            let (out, input) = self.pair(op);
            out.into_iter().for_each(|index| self.outs[index as usize].interests(op, all));
            input.into_iter().for_each(|index| self.ins[index as usize].interests(op, all));
            return;
        }
        self.pumped_outs.iter().for_each(|index| self.outs[*index as usize].interests(op, all));
        self.pumped_ins.iter().for_each(|index| self.ins[*index as usize].interests(op, all));
    }
}

impl Out {
    /// Pumps the link, if it works for that operation and has something to send.
    fn pump<S: Subscriber>(&mut self, op: &Op, events: &mut S) -> Result<bool, (ChannelId, Rank, LinkFault)> {
        let Some(sub) = self.sub.as_mut().filter(|sub| sub.is_of(op.number())) else { return Ok(false) };
        if self.link.moved() == self.link.posted() {
            return Ok(false);
        }
        let pumped = sub.pump_send(&mut self.link, events);
        let any = pumped.map_err(|fault| (self.channel, self.link.slowest(), fault))?;
        if any {
            self.store();
        }
        Ok(any)
    }

    fn interests(&self, op: &Op, all: &mut Vec<Interest>) {
        if self.sub.as_ref().is_some_and(|sub| sub.is_of(op.number())) {
            self.link.interests(all);
        }
    }

    /// Copies the link's counters into its cell.
    #[inline]
    pub(super) fn store(&self) {
        self.cell.set(self.link.posted(), self.link.moved(), self.link.done());
        self.cell.bytes(self.bytes);
    }
}

impl In {
    /// Pumps the link, if it works for that operation.
    fn pump<S: Subscriber>(&mut self, op: &Op, events: &mut S) -> bool {
        let sub = self.sub.as_mut().filter(|sub| sub.is_of(op.number()));
        sub.is_some_and(|sub| sub.pump_recv(&mut self.link, events))
    }

    fn interests(&self, op: &Op, all: &mut Vec<Interest>) {
        if self.sub.as_ref().is_some_and(|sub| sub.is_of(op.number())) {
            self.link.interests(all);
        }
    }

    /// Copies the link's counters into its cell.
    #[inline]
    pub(super) fn store(&self) {
        self.cell.set(self.link.posted(), self.link.moved(), self.link.done());
        self.cell.bytes(self.bytes);
    }
}
