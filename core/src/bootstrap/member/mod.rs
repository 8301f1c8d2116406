//! One rank of the bootstrap: it checks in, joins the ring, and exchanges the data that is needed
//! to create a communicator.
//!
//! ```text
//!  dial the root -> check in -> learn the generation and the successor
//!    -> ring (dial next, admit previous) -> round 0: introductions; settings must agree
//!    -> ready: leave the root -> rounds, messages -> the end, at which all leave
//! ```
//!
//! A rank that fails notifies both neighbours, and the root while it is connected to it; they pass
//! the fault on. So every rank ends with the text of the first failure, not with "my neighbour
//! closed".

mod events;
mod overdue;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::agreement::differing_settings;
use super::auth::{Hello, Key, Purpose};
use super::dial::Dial;
use super::ending::{BootstrapRest, EndBarrier};
use super::fault::Fault;
use super::frame::Frames;
use super::id::UniqueId;
use super::launch::Origin;
use super::lobby::{Entered, Lobby};
use super::machine::{Io, StreamId};
use super::messages::{Absent, FromRoot, Introduction, MAX_RING_FRAME, OnRing, ToRoot};
use super::p2p::{P2p, Wrong};
use super::ring::{Rounds, Side};
use crate::clock::Ns;
use crate::error::ErrorKind;
use crate::types::{CommId, JobId, Phase, Rank};

/// How long the other ranks have to report why a rank closed its connection.
const OTHERS_KNOW_WITHIN: Duration = Duration::from_millis(200);
/// How long a rank waits before it dials another root, so that it does not dial without a pause if
/// each root ends at once.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How many bytes of a guest are kept before this rank knows its job: a hello is shorter.
const MAX_EARLY: usize = 256;

#[derive(Debug)]
enum ToTheRoot {
    Dialling(Dial),
    Up { stream: StreamId, frames: Frames, gave_up: Option<Ns> },
    Left,
}

#[derive(Debug)]
struct Neighbour {
    stream: StreamId,
    frames: Frames,
    /// It has sent `Handover`, or its stream has ended when this rank's bootstrap was complete:
    /// what follows is not the bootstrap's.
    handed_over: bool,
}

/// The operation that the caller waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pending {
    Nothing,
    Join,
    Round(u32),
    Message(Rank, u64),
    Delivery(Rank),
    /// That all ranks come to the end.
    End,
    /// The bootstrap is over.
    Over,
}

/// A rank as a state machine.
#[derive(Debug)]
pub(crate) struct Member {
    /// The id, with the key that this rank shares with the root.
    id: UniqueId,
    /// The secret from the original id.
    secret: Key,
    rank: Rank,
    nranks: u32,
    introduction: Introduction,
    origin: Origin,
    job: Option<JobId>,
    root: ToTheRoot,
    successor: Option<Dial>,
    next: Option<Neighbour>,
    prev: Option<Neighbour>,
    lobby: Lobby,
    /// Bytes that guests sent before this rank knew its job.
    early: BTreeMap<StreamId, Vec<u8>>,
    rounds: Rounds,
    end: EndBarrier,
    p2p: P2p,
    peers: Vec<Introduction>,
    pending: Pending,
    deadline: Ns,
    /// The phase of joining that began last.
    phase: Phase,
    /// The ranks that the root waits for, as it reported last.
    waiting: String,
    /// The same as data; `None` if the root has not reported yet.
    absent: Option<Absent>,
    unheard: Vec<String>,
    /// Blocks that arrived from one neighbour before the other one was connected.
    held_back: Vec<(Side, Vec<u8>)>,
    /// The fault of a rank that left; used at this time, unless another rank reports the cause.
    suspicion: Option<(Ns, Fault)>,
    overdue: overdue::Overdue,
    fault: Option<Fault>,
}

impl Member {
    /// A rank that other ranks reach at `introduction.contact`. It must have joined by `deadline`.
    pub(crate) fn new(
        id: UniqueId,
        rank: Rank,
        nranks: u32,
        introduction: Introduction,
        now: Ns,
        deadline: Ns,
    ) -> Self {
        let root = Self::dial_root(&id, rank, nranks, now);
        Self {
            secret: id.key.clone(),
            rank,
            nranks,
            introduction,
            origin: Origin::default(),
            job: None,
            root: ToTheRoot::Dialling(root),
            successor: None,
            next: None,
            prev: None,
            lobby: Lobby::default(),
            early: BTreeMap::new(),
            rounds: Rounds::new(rank, nranks),
            end: EndBarrier::new(rank, nranks),
            p2p: P2p::default(),
            peers: Vec::new(),
            pending: Pending::Join,
            deadline,
            phase: Phase::CheckIn,
            waiting: String::new(),
            absent: None,
            unheard: Vec::new(),
            held_back: Vec::new(),
            suspicion: None,
            overdue: overdue::Overdue::default(),
            fault: None,
            id,
        }
    }

    fn dial_root(id: &UniqueId, rank: Rank, nranks: u32, now: Ns) -> Dial {
        let hello =
            Hello { count: nranks, ..Hello::new(Purpose::Root, id.asked(), id.comm(), rank, Rank(0)) };
        Dial::to_root(id, hello, now)
    }

    /// Dials again after the root at a public address ended before it admitted this rank: it may
    /// have been the root of another job that has ended.
    fn look_for_another_root(&mut self, why: &str, now: Ns) {
        let text = format!("the root that was there went away before it took this rank in: {why}");
        if self.waiting != text {
            self.unheard.push(format!("{text}; it is looked for again"));
            self.waiting = text;
        }
        self.id.key = self.secret.clone();
        let then = now.after(LOOK_AGAIN);
        self.root = ToTheRoot::Dialling(Self::dial_root(&self.id, self.rank, self.nranks, then));
    }

    /// Sets the origin, with which the root of a public address tells two jobs' ranks apart.
    pub(crate) const fn of(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    // --- the caller's operations; the caller drives the machine until each has a result ---

    pub(crate) const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }
    pub(crate) const fn has_joined(&self) -> bool {
        !matches!(self.pending, Pending::Join)
    }
    pub(crate) fn job(&self) -> JobId {
        self.job.unwrap_or_else(|| self.id.job())
    }
    /// The key that all ranks of the job know, once this one has joined.
    pub(crate) fn key(&self) -> Key {
        self.id.key.clone()
    }
    /// The introductions of all ranks, once this one has joined.
    pub(crate) fn peers(&self) -> &[Introduction] {
        &self.peers
    }
    /// The phase of joining that began last.
    pub(crate) const fn phase(&self) -> Phase {
        self.phase
    }
    /// Whether nobody can be told anything yet: the root has not been reached.
    pub(crate) const fn is_dialling(&self) -> bool {
        matches!(self.root, ToTheRoot::Dialling(_))
    }
    /// The ranks that the root waits for, as it reported last; `None` if it has not reported yet.
    pub(crate) const fn absent(&self) -> Option<&Absent> {
        self.absent.as_ref()
    }
    /// Takes the new texts for the log, which say which ranks the root waits for.
    pub(crate) fn hear(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unheard)
    }

    pub(crate) fn begin_round(&mut self, own: &[u8], deadline: Ns, io: &mut Io<'_>) {
        let number = self.rounds.begin(own.to_vec());
        self.wait_for(Pending::Round(number), deadline);
        let block = OnRing::Block { round: number, origin: self.rank, bytes: own.to_vec() }.encode();
        let (onward, back) = self.rounds.ways();
        if let Some(next) = self.next.as_ref().filter(|_| onward) {
            io.send(next.stream, block.clone());
        }
        if let Some(prev) = self.prev.as_ref().filter(|_| back) {
            io.send(prev.stream, block);
        }
    }

    /// The blocks of the current round, once all of them have arrived.
    pub(crate) fn end_round(&mut self) -> Option<Vec<Vec<u8>>> {
        let Pending::Round(number) = self.pending else { return None };
        let blocks = self.rounds.take(number)?;
        self.pending = Pending::Nothing;
        Some(blocks)
    }

    pub(crate) fn begin_send(&mut self, to: Rank, tag: u64, bytes: &[u8], deadline: Ns, io: &mut Io<'_>) {
        if to == self.rank {
            return self.p2p.keep(to, tag, bytes.to_vec());
        }
        let (job, key, comm) = (self.job(), self.id.key.clone(), self.id.comm());
        let (from, contact) = (self.rank, self.peers[to.index()].contact);
        let dial = || Dial::new(contact, Hello::new(Purpose::P2p, job, comm, from, to), key, false, io.now);
        self.wait_for(Pending::Delivery(to), deadline);
        // The dial is created with the time of `io` and used with the same `io`.
        let dial = dial();
        let result = self.p2p.send(to, tag, bytes, || dial, io);
        self.blame(result, io);
    }

    /// Whether the connection is up and has been given all bytes that were to be sent.
    pub(crate) fn end_send(&mut self) -> bool {
        let Pending::Delivery(to) = self.pending else { return true };
        let up = self.fault.is_none() && self.p2p.trouble(to).is_none();
        if up {
            self.pending = Pending::Nothing;
        }
        up
    }

    pub(crate) fn begin_receive(&mut self, from: Rank, tag: u64, deadline: Ns) {
        self.wait_for(Pending::Message(from, tag), deadline);
    }

    pub(crate) fn end_receive(&mut self) -> Option<Vec<u8>> {
        let Pending::Message(from, tag) = self.pending else { return None };
        let bytes = self.p2p.receive(from, tag)?;
        self.pending = Pending::Nothing;
        Some(bytes)
    }

    /// Tells the ring that this rank has come to the end.
    pub(crate) fn begin_end(&mut self, deadline: Ns, io: &mut Io<'_>) {
        self.wait_for(Pending::End, deadline);
        self.end.has_come(self.rank);
        for neighbour in [&self.next, &self.prev].into_iter().flatten() {
            io.send(neighbour.stream, OnRing::AtEnd(self.rank).encode());
        }
    }

    /// Leaves the bootstrap once all ranks have come to the end: the streams to the next and from
    /// the previous rank, with what these may still send of their bootstrap.
    pub(crate) fn end(&mut self, io: &mut Io<'_>) -> Option<Vec<(StreamId, BootstrapRest)>> {
        if self.fault.is_some() || self.pending != Pending::End || !self.end.is_complete() {
            return None;
        }
        self.pending = Pending::Over;
        self.lobby.close_all(io);
        self.p2p.close_all(io);
        let sides = [self.next.take(), self.prev.take()].into_iter().flatten();
        let left = sides.map(|Neighbour { stream, frames, handed_over }| {
            io.send(stream, OnRing::Handover.encode());
            io.pause(stream);
            (stream, BootstrapRest::new(frames, handed_over))
        });
        Some(left.collect())
    }

    /// Fails, notifies the ranks and the root that can still be notified, and closes everything.
    pub(crate) fn fail(&mut self, fault: Fault, io: &mut Io<'_>) {
        if self.fault.is_some() {
            return;
        }
        for neighbour in [&self.next, &self.prev].into_iter().flatten() {
            io.send(neighbour.stream, OnRing::Failed(fault.clone()).encode());
            io.close(neighbour.stream);
        }
        match &mut self.root {
            ToTheRoot::Up { stream, .. } => {
                io.send(*stream, ToRoot::Failed(fault.clone()).encode());
                io.close(*stream);
            }
            ToTheRoot::Dialling(dial) => dial.hang_up(io),
            ToTheRoot::Left => {}
        }
        if let Some(dial) = &mut self.successor {
            dial.hang_up(io);
        }
        self.lobby.close_all(io);
        self.p2p.close_all(io);
        (self.next, self.prev, self.successor, self.root) = (None, None, None, ToTheRoot::Left);
        self.fault = Some(fault);
    }

    // --- the parts ---

    fn wait_for(&mut self, what: Pending, deadline: Ns) {
        (self.pending, self.deadline, self.overdue) = (what, deadline, overdue::Overdue::default());
    }

    fn next_rank(&self) -> Rank {
        Rank((self.rank.0 + 1) % self.nranks)
    }
    fn prev_rank(&self) -> Rank {
        Rank((self.rank.0 + self.nranks - 1) % self.nranks)
    }

    fn root_says(&mut self, bytes: &[u8], io: &mut Io<'_>) {
        if let ToTheRoot::Up { frames, .. } = &mut self.root {
            frames.extend(bytes);
        }
        while let ToTheRoot::Up { stream, frames, .. } = &mut self.root {
            let message = match frames.next() {
                Ok(None) => return,
                Ok(Some((kind, body))) => FromRoot::decode(kind, &body),
                Err(_) => None,
            };
            match message {
                Some(FromRoot::Welcome(magic)) => {
                    self.job = Some(self.id.key.job(magic));
                    for (stream, bytes) in std::mem::take(&mut self.early) {
                        self.guest_says(stream, &bytes, io);
                    }
                }
                Some(FromRoot::Successor(contact)) => self.meet(contact, io),
                Some(FromRoot::Waiting(absent, text)) => {
                    self.unheard.push(text.clone());
                    self.absent = Some(absent);
                    self.waiting = text;
                }
                Some(FromRoot::Ping) => io.send(*stream, ToRoot::Pong.encode()),
                Some(FromRoot::Failed(fault)) => self.fail(fault, io),
                None => {
                    let text =
                        format!("the bootstrap root at {} said something that makes no sense", self.id.root);
                    self.fail(Fault::new(ErrorKind::System, &[], text), io);
                }
            }
        }
    }

    fn meet(&mut self, contact: SocketAddr, io: &mut Io<'_>) {
        self.phase = Phase::Ring;
        let to = self.next_rank();
        let hello = Hello::new(Purpose::Ring, self.job(), self.id.comm(), self.rank, to);
        let mut dial = Dial::new(contact, hello, self.id.key.clone(), false, io.now);
        dial.turn(io);
        self.successor = Some(dial);
    }

    fn guest_says(&mut self, stream: StreamId, bytes: &[u8], io: &mut Io<'_>) {
        let Some(job) = self.job else {
            let early = self.early.entry(stream).or_default();
            if early.len() + bytes.len() <= MAX_EARLY {
                early.extend(bytes);
            }
            return;
        };
        let (comm, key) = (self.id.comm(), self.id.key.clone());
        let lookup = |j: JobId, c: CommId| -> Option<Key> { (j == job && c == comm).then(|| key.clone()) };
        let Some(entered) = self.lobby.bytes(stream, bytes, &lookup, io) else { return };
        let Entered { stream, hello, rest, .. } = entered;
        let for_me = hello.to == self.rank && hello.from.0 < self.nranks;
        match hello.purpose {
            Purpose::Ring if for_me && hello.from == self.prev_rank() && self.prev.is_none() => {
                self.prev =
                    Some(Neighbour { stream, frames: Frames::new(MAX_RING_FRAME), handed_over: false });
                self.ring_up(io);
                self.ring_says(Side::Prev, &rest, io);
            }
            Purpose::P2p if for_me && self.p2p.accepted(stream, hello.from) => {
                let result = self.p2p.bytes(stream, &rest, io).unwrap_or(Ok(()));
                self.blame(result, io);
            }
            _ => io.close(stream),
        }
    }

    /// Begins round 0 once both neighbours are connected.
    fn ring_up(&mut self, io: &mut Io<'_>) {
        let (Some(next), Some(prev)) = (&self.next, &self.prev) else { return };
        for (side, block) in std::mem::take(&mut self.held_back) {
            io.send(if side == Side::Prev { next.stream } else { prev.stream }, block);
        }
        self.phase = Phase::Exchange;
        let (own, deadline) = (self.introduction.encode(), self.deadline);
        self.begin_round(&own, deadline, io);
        self.pending = Pending::Join;
    }

    fn ring_says(&mut self, side: Side, bytes: &[u8], io: &mut Io<'_>) {
        let rank = if side == Side::Prev { self.prev_rank() } else { self.next_rank() };
        if let Some(neighbour) = self.side(side) {
            neighbour.frames.extend(bytes);
        }
        while let Some(neighbour) = self.side(side).filter(|one| !one.handed_over) {
            let message = match neighbour.frames.next() {
                Ok(None) => break,
                Ok(Some((kind, body))) => OnRing::decode(kind, &body),
                Err(_) => None,
            };
            match message {
                Some(OnRing::Block { round, origin, bytes }) => {
                    self.block(side, rank, round, origin, bytes, io);
                }
                Some(OnRing::Failed(fault)) => self.fail(fault, io),
                Some(OnRing::Awaits { rank, awaited }) => self.heard_awaits(side, rank, awaited, io),
                Some(OnRing::AtEnd(rank)) => self.has_come(side, rank, io),
                Some(OnRing::Handover) => {
                    neighbour.handed_over = true;
                    let stream = neighbour.stream;
                    io.pause(stream);
                }
                None => self.blame(
                    Err((rank, format!("rank {rank} sent rank {} a frame that makes no sense", self.rank))),
                    io,
                ),
            }
        }
        self.introduced(io);
    }

    fn side(&mut self, side: Side) -> Option<&mut Neighbour> {
        match side {
            Side::Prev => self.prev.as_mut(),
            Side::Next => self.next.as_mut(),
        }
    }

    fn block(&mut self, side: Side, rank: Rank, round: u32, origin: Rank, bytes: Vec<u8>, io: &mut Io<'_>) {
        let on = match side {
            Side::Prev => self.next.as_ref(),
            Side::Next => self.prev.as_ref(),
        };
        let on = on.map(|neighbour| neighbour.stream);
        let copy = OnRing::Block { round, origin, bytes };
        let encoded = copy.encode();
        let OnRing::Block { bytes, .. } = copy else { unreachable!("made above") };
        match (self.rounds.arrived(side, round, origin, bytes), on) {
            (Ok(true), Some(stream)) => io.send(stream, encoded),
            // The other neighbour is not connected yet: the block is sent when it is.
            (Ok(true), None) => self.held_back.push((side, encoded)),
            (Ok(false), _) => {}
            (Err(what), _) => {
                self.blame(Err((rank, format!("rank {rank} sent rank {} {what}", self.rank))), io)
            }
        }
    }

    fn has_come(&mut self, side: Side, rank: Rank, io: &mut Io<'_>) {
        let on = if side == Side::Prev { &self.next } else { &self.prev };
        if self.end.has_come(rank)
            && let Some(on) = on
        {
            io.send(on.stream, OnRing::AtEnd(rank).encode());
        }
    }

    /// After round 0: takes the introductions of all ranks, compares settings, and leaves the root.
    fn introduced(&mut self, io: &mut Io<'_>) {
        if self.pending != Pending::Join || self.fault.is_some() {
            return;
        }
        let Some(blocks) = self.rounds.take(0) else { return };
        for (rank, block) in blocks.iter().enumerate() {
            match Introduction::decode(block) {
                Some(introduction) => self.peers.push(introduction),
                None => {
                    let (me, rank) = (self.rank, Rank(rank as u32));
                    let text = format!("rank {me} got an introduction of rank {rank} that makes no sense");
                    return self.blame(Err((rank, text)), io);
                }
            }
        }
        if let Some(fault) = differing_settings(&self.peers) {
            return self.fail(fault, io);
        }
        self.pending = Pending::Nothing;
        if let ToTheRoot::Up { stream, .. } = self.root {
            io.send(stream, ToRoot::Ready.encode());
            io.close(stream);
        }
        self.root = ToTheRoot::Left;
    }

    /// A neighbour closed its connection, either for its own reasons or because it learned of a
    /// failure. While the root is connected, it reports which of the two it was.
    fn suspect(&mut self, rank: Rank, text: String, io: &mut Io<'_>) {
        let fault = Fault::new(ErrorKind::Peer, &[rank], text);
        if matches!(self.root, ToTheRoot::Up { .. }) {
            let at = io.now.after(OTHERS_KNOW_WITHIN);
            self.suspicion.get_or_insert((at, fault));
        } else {
            self.fail(fault, io);
        }
    }

    fn blame(&mut self, result: Result<(), Wrong>, io: &mut Io<'_>) {
        if let Err((rank, text)) = result {
            self.fail(Fault::new(ErrorKind::Peer, &[rank], text), io);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Machine;
    use super::*;

    #[test]
    fn what_guests_said_that_had_to_make_room_is_forgotten() {
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        let id =
            UniqueId { magic: 1, root: from, nranks: 2, key: Key([1; 32]), instance: 0, stretches: false };
        let introduction = Introduction { contact: from, settings: Vec::new(), own: Vec::new() };
        let mut member = Member::new(id, Rank(0), 2, introduction, Ns(0), Ns(1 << 40));
        let (mut actions, mut next_stream) = (Vec::new(), 100);
        let mut io = Io {
            now: Ns(0),
            actions: &mut actions,
            next_stream: &mut next_stream,
            random: &mut |out: &mut [u8]| out.fill(7),
            seats: 2,
        };
        for stream in (0..50).map(StreamId) {
            member.accepted(stream, from, &mut io);
            member.bytes(stream, b"\xcc", &mut io);
        }
        assert_eq!(member.early.into_keys().collect::<Vec<_>>(), [StreamId(48), StreamId(49)]);
    }
}
