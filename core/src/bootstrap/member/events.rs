//! Events of a rank's streams, and the part of the member that handles each of them.

use std::net::SocketAddr;

use super::super::auth::{HandshakeError, Refusal};
use super::super::dial::{Dial, Dialled};
use super::super::fault::Fault;
use super::super::frame::Frames;
use super::super::machine::{Io, Machine, StreamId};
use super::super::messages::{MAX_RING_FRAME, MAX_ROOT_FRAME, ToRoot};
use super::super::ring::Side;
use super::super::root::OTHER_PORT;
use super::overdue::behind;
use super::{Member, Neighbour, OTHERS_KNOW_WITHIN, Pending, ToTheRoot};
use crate::clock::Ns;
use crate::error::ErrorKind;

impl Machine for Member {
    fn accepted(&mut self, stream: StreamId, from: SocketAddr, io: &mut Io<'_>) {
        // After the bootstrap, nobody has anything to say to this rank here.
        if self.fault.is_some() || self.pending == Pending::Over {
            return io.close(stream);
        }
        if let Some(evicted) = self.lobby.accepted(stream, from, io) {
            self.early.remove(&evicted);
        }
    }

    fn connected(&mut self, stream: StreamId, io: &mut Io<'_>) {
        let is_root = match &mut self.root {
            ToTheRoot::Dialling(dial) => dial.connected(stream, io),
            ToTheRoot::Up { .. } | ToTheRoot::Left => false,
        };
        let is_successor = self.successor.as_mut().is_some_and(|dial| dial.connected(stream, io));
        if !is_root && !is_successor {
            self.p2p.connected(stream, io);
        }
    }

    fn bytes(&mut self, stream: StreamId, bytes: &[u8], io: &mut Io<'_>) {
        if self.fault.is_some() {
            return;
        }
        match &mut self.root {
            ToTheRoot::Up { stream: root, .. } if *root == stream => return self.root_says(bytes, io),
            ToTheRoot::Dialling(dial) => match dial.bytes(stream, bytes, io) {
                Dialled::NotMine => {}
                Dialled::Pending => return,
                Dialled::Up(stream, rest) => {
                    let frames = Frames::new(MAX_ROOT_FRAME);
                    self.id.key = dial.key();
                    self.root = ToTheRoot::Up { stream, frames, gave_up: None };
                    io.send(stream, ToRoot::CheckIn(self.introduction.contact, self.origin).encode());
                    return self.root_says(&rest, io);
                }
                Dialled::Hopeless(error) => {
                    let is_secret =
                        matches!(error, HandshakeError::WrongProof | HandshakeError::Refused(Refusal::Proof));
                    let error = error.into_error(&format!("the bootstrap root at {}", self.id.root));
                    let mut hint =
                        if error.hint.is_empty() { String::new() } else { format!("; {}", error.hint) };
                    if is_secret && self.id.is_public() {
                        hint = format!("{hint}; or it is the root of another job: {OTHER_PORT}");
                    }
                    return self.fail(Fault::new(error.kind, &[], error.what + &hint), io);
                }
            },
            ToTheRoot::Up { .. } | ToTheRoot::Left => {}
        }
        let is_at = |side: &Option<Neighbour>| side.as_ref().is_some_and(|one| one.stream == stream);
        if is_at(&self.prev) {
            return self.ring_says(Side::Prev, bytes, io);
        }
        if is_at(&self.next) {
            return self.ring_says(Side::Next, bytes, io);
        }
        if let Some(dial) = &mut self.successor {
            match dial.bytes(stream, bytes, io) {
                Dialled::NotMine => {}
                Dialled::Pending => return,
                Dialled::Up(stream, rest) => {
                    let frames = Frames::new(MAX_RING_FRAME);
                    (self.successor, self.next) =
                        (None, Some(Neighbour { stream, frames, handed_over: false }));
                    self.ring_up(io);
                    return self.ring_says(Side::Next, &rest, io);
                }
                Dialled::Hopeless(error) => {
                    let (me, rank) = (self.rank, self.next_rank());
                    let text = format!("handshake of rank {me} with rank {rank}: {error}");
                    return self.blame(Err((rank, text)), io);
                }
            }
        }
        if self.lobby.has(stream) {
            return self.guest_says(stream, bytes, io);
        }
        if let Some(result) = self.p2p.bytes(stream, bytes, io) {
            self.blame(result, io);
        }
    }

    fn closed(&mut self, stream: StreamId, why: &str, io: &mut Io<'_>) {
        self.early.remove(&stream);
        self.lobby.closed(stream);
        match &mut self.root {
            ToTheRoot::Dialling(dial) => {
                if dial.closed(stream, why, io) {
                    return;
                }
            }
            ToTheRoot::Up { stream: root, .. } if *root == stream => {
                if self.id.is_public() && self.job.is_none() {
                    return self.look_for_another_root(why, io.now);
                }
                let before = behind(&self.waiting);
                let text = format!("the bootstrap root at {} went away: {why}{before}", self.id.root);
                self.root = ToTheRoot::Left;
                return self.fail(Fault::new(ErrorKind::Peer, &[], text), io);
            }
            ToTheRoot::Up { .. } | ToTheRoot::Left => {}
        }
        if self.successor.as_mut().is_some_and(|dial| dial.closed(stream, why, io)) {
            return;
        }
        let is_complete = self.pending == Pending::End && self.is_complete();
        for (side, rank) in [(Side::Prev, self.prev_rank()), (Side::Next, self.next_rank())] {
            if let Some(neighbour) = self.side(side).filter(|one| one.stream == stream) {
                // The failure gossip reports a stream that ends after the bootstrap.
                neighbour.handed_over |= is_complete;
                if neighbour.handed_over {
                    return;
                }
                let me = self.rank;
                let text =
                    format!("rank {rank} closed its connection of the bootstrap ring to rank {me}: {why}");
                return self.suspect(rank, text, io);
            }
        }
        self.p2p.closed(stream, why, io);
    }

    fn turn(&mut self, io: &mut Io<'_>) {
        if self.fault.is_some() {
            return;
        }
        if let ToTheRoot::Dialling(dial) = &mut self.root {
            dial.turn(io);
        }
        if let Some(dial) = &mut self.successor {
            dial.turn(io);
        }
        self.lobby.turn(io);
        self.early.retain(|stream, _| self.lobby.has(*stream));
        self.p2p.turn(io);
        if let Pending::Message(from, tag) = self.pending
            && self.p2p.is_gone(from)
            && !self.p2p.holds(from, tag)
        {
            // It may have left because it learned of a failure: that failure is on its way around
            // the ring.
            let what = format!("a message with tag {tag:#x} to rank {}", self.rank);
            let text = format!("rank {from} left the bootstrap before it sent {what}");
            let fault = Fault::new(ErrorKind::Peer, &[from], text);
            let at = io.now.after(OTHERS_KNOW_WITHIN);
            self.suspicion.get_or_insert((at, fault));
        }
        if let Some((_, fault)) = self.suspicion.take_if(|(at, _)| *at <= io.now) {
            self.fail(fault, io);
        }
        if self.fault.is_none() && self.overdue_at().is_some_and(|at| at <= io.now) {
            self.overdue(io);
        }
    }

    fn wake(&self) -> Option<Ns> {
        if self.fault.is_some() {
            return None;
        }
        let root = match &self.root {
            ToTheRoot::Dialling(dial) => dial.wake(),
            ToTheRoot::Up { .. } | ToTheRoot::Left => None,
        };
        let overdue = self.overdue_at();
        let successor = self.successor.as_ref().and_then(Dial::wake);
        let suspicion = self.suspicion.as_ref().map(|(at, _)| *at);
        [root, successor, overdue, suspicion, self.lobby.wake(), self.p2p.wake()].into_iter().flatten().min()
    }
}
