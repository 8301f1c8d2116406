//! Tagged messages between any two ranks of the bootstrap.
//!
//! The first message to a rank dials it. The connection carries all later messages to it in order,
//! in one direction. Relaying over the ring would need no connections, but every rank on the way
//! would have to be in a bootstrap call at that moment; a direct connection needs only the
//! receiver. A message that arrives before the receiver asks for it waits in the queue of its
//! sender and tag.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::auth::HandshakeError;
use super::dial::{Dial, Dialled};
use super::frame::Frames;
use super::machine::{Io, StreamId};
use super::messages::{MAX_P2P_FRAME, Tagged};
use crate::clock::Ns;
use crate::types::Rank;

/// The limit of bytes that wait before this rank asks for them. A rank that sends more is at fault.
const MAX_HELD: usize = 64 << 20;

#[derive(Debug)]
enum Way {
    Dialling(Box<Dial>, Vec<u8>),
    Up(StreamId),
    /// The connection was up and has ended. A rank that has all it needs may leave before this rank
    /// does, so this is not a fault until this rank sends again.
    Lost(String),
}

/// The point-to-point part of one rank.
#[derive(Debug, Default)]
pub(crate) struct P2p {
    out: BTreeMap<Rank, Way>,
    inn: BTreeMap<StreamId, (Rank, Frames)>,
    /// Ranks whose connection to this rank has ended.
    gone: BTreeSet<Rank>,
    inbox: BTreeMap<(Rank, u64), VecDeque<Vec<u8>>>,
    held: usize,
}

/// A rank, and what it did wrong.
pub(crate) type Wrong = (Rank, String);

impl P2p {
    /// Sends to a rank over its connection; the first time, dials it with the result of `dial`.
    pub(crate) fn send(
        &mut self,
        to: Rank,
        tag: u64,
        bytes: &[u8],
        dial: impl FnOnce() -> Dial,
        io: &mut Io<'_>,
    ) -> Result<(), Wrong> {
        let way = self.out.entry(to).or_insert_with(|| Way::Dialling(Box::new(dial()), Vec::new()));
        let message = Tagged::encode(tag, bytes);
        match way {
            Way::Up(stream) => io.send(*stream, message),
            Way::Dialling(dial, queue) => {
                queue.extend(message);
                dial.turn(io);
            }
            Way::Lost(why) => {
                return Err((to, format!("rank {to} has closed its bootstrap connection: {why}")));
            }
        }
        Ok(())
    }

    /// Puts a message into the inbox: one that arrived, or one of this rank to itself.
    pub(crate) fn keep(&mut self, from: Rank, tag: u64, bytes: Vec<u8>) {
        self.held += bytes.len();
        self.inbox.entry((from, tag)).or_default().push_back(bytes);
    }

    /// The oldest message from that rank with that tag.
    pub(crate) fn receive(&mut self, from: Rank, tag: u64) -> Option<Vec<u8>> {
        let queue = self.inbox.get_mut(&(from, tag))?;
        let bytes = queue.pop_front()?;
        if queue.is_empty() {
            self.inbox.remove(&(from, tag));
        }
        self.held -= bytes.len();
        Some(bytes)
    }

    /// Whether such a message is waiting.
    pub(crate) fn holds(&self, from: Rank, tag: u64) -> bool {
        self.inbox.contains_key(&(from, tag))
    }

    /// Whether no more messages can arrive from that rank.
    pub(crate) fn is_gone(&self, from: Rank) -> bool {
        self.gone.contains(&from)
    }

    /// The state of the connection to a rank: `None` if it is not being dialled, else the attempts
    /// so far.
    pub(crate) fn trouble(&self, to: Rank) -> Option<String> {
        match self.out.get(&to) {
            Some(Way::Dialling(dial, _)) => Some(dial.history()),
            Some(Way::Up(_) | Way::Lost(_)) | None => None,
        }
    }

    /// Adds a proven connection from another rank. Returns whether it is accepted.
    pub(crate) fn accepted(&mut self, stream: StreamId, from: Rank) -> bool {
        let first = !self.gone.contains(&from) && !self.inn.values().any(|(rank, _)| *rank == from);
        if first {
            self.inn.insert(stream, (from, Frames::new(MAX_P2P_FRAME)));
        }
        first
    }

    pub(crate) fn connected(&mut self, stream: StreamId, io: &mut Io<'_>) -> bool {
        self.out.values_mut().any(|way| match way {
            Way::Dialling(dial, _) => dial.connected(stream, io),
            Way::Up(_) | Way::Lost(_) => false,
        })
    }

    /// Takes bytes. `None` if the stream is not one of these.
    pub(crate) fn bytes(
        &mut self,
        stream: StreamId,
        bytes: &[u8],
        io: &mut Io<'_>,
    ) -> Option<Result<(), Wrong>> {
        if let Some((from, frames)) = self.inn.get_mut(&stream) {
            let from = *from;
            frames.extend(bytes);
            return Some(self.sort(stream, from));
        }
        for (to, way) in &mut self.out {
            let Way::Dialling(dial, queue) = way else { continue };
            match dial.bytes(stream, bytes, io) {
                Dialled::NotMine => {}
                Dialled::Pending => return Some(Ok(())),
                Dialled::Up(stream, _) => {
                    io.send(stream, std::mem::take(queue));
                    *way = Way::Up(stream);
                    return Some(Ok(()));
                }
                Dialled::Hopeless(error) => return Some(Err((*to, hopeless(*to, &error)))),
            }
        }
        None
    }

    fn sort(&mut self, stream: StreamId, from: Rank) -> Result<(), Wrong> {
        let nonsense = || (from, format!("rank {from} sent a message that makes no sense"));
        while let Some((_, frames)) = self.inn.get_mut(&stream) {
            let Some((kind, body)) = frames.next().map_err(|_| nonsense())? else { break };
            let Tagged { tag, bytes } = Tagged::decode(kind, &body).ok_or_else(nonsense)?;
            if self.held + bytes.len() > MAX_HELD {
                let text = format!("rank {from} sends messages that this rank does not ask for");
                return Err((from, text));
            }
            self.keep(from, tag, bytes);
        }
        Ok(())
    }

    /// Handles the end of a stream. Returns whether it was one of these.
    pub(crate) fn closed(&mut self, stream: StreamId, why: &str, io: &mut Io<'_>) -> bool {
        if let Some((from, _)) = self.inn.remove(&stream) {
            self.gone.insert(from);
            return true;
        }
        self.out.values_mut().any(|way| match way {
            Way::Dialling(dial, _) => dial.closed(stream, why, io),
            Way::Up(up) if *up == stream => {
                *way = Way::Lost(why.to_string());
                true
            }
            Way::Up(_) | Way::Lost(_) => false,
        })
    }

    pub(crate) fn turn(&mut self, io: &mut Io<'_>) {
        for way in self.out.values_mut() {
            if let Way::Dialling(dial, _) = way {
                dial.turn(io);
            }
        }
    }

    pub(crate) fn wake(&self) -> Option<Ns> {
        let dials = self.out.values().filter_map(|way| match way {
            Way::Dialling(dial, _) => dial.wake(),
            Way::Up(_) | Way::Lost(_) => None,
        });
        dials.min()
    }

    pub(crate) fn close_all(&mut self, io: &mut Io<'_>) {
        for way in self.out.values_mut() {
            match way {
                Way::Dialling(dial, _) => dial.hang_up(io),
                Way::Up(stream) => io.close(*stream),
                Way::Lost(_) => {}
            }
        }
        self.inn.keys().for_each(|stream| io.close(*stream));
        self.out.clear();
        self.inn.clear();
    }
}

fn hopeless(to: Rank, error: &HandshakeError) -> String {
    format!("handshake with rank {to}: {error}")
}
