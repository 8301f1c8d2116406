//! Runs the failure gossip of one communicator: the [`gossip`](super::gossip) machine on real
//! streams, in the service thread.
//!
//! Messages also go to the peers of this host, over the connections between processes, which all
//! communicators share ([`lines`](super::lines)). The end of such a connection reports a death
//! without waiting for the ring. Where all ranks are on one host there is no ring.

mod sharing;
#[cfg(test)]
mod tests;

pub(crate) use sharing::Unshared;

use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bootstrap::driver::RingStream;
use crate::clock::{self, Ns};
use crate::collective::{Descriptor, Tally};
use crate::failure::edge::{Dialling, Edge};
use crate::failure::gossip::{Decision, Gossip, GossipMessage, News, Report, Side, To};
use crate::failure::lines::{Post, letter};
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::sys::fds::Fd;
use crate::transport::line::{End, Heard, LINE_MAX, Line};
use crate::transport::shm::peer::PeerProcess;
use crate::transport::socket::arrivals::Arrivals;
use crate::types::Rank;

/// The longest sleep while other ranks have not finished.
const STEP: Duration = Duration::from_secs(1);

/// The longest sleep while the last messages are being sent.
const FLUSH_STEP: Duration = Duration::from_millis(50);

/// The least time between two connections to a next rank: something may end each at once.
const REDIAL: Duration = Duration::from_millis(200);

/// What is said of a silent host: of one that was silent on an open stream, and of one to which no
/// new stream could be opened.
const SILENT: &str = "does not answer";
const UNANSWERED: &str = "does not answer new connections";

/// The communicator that a gossip task works for.
///
/// Its methods are called in the service thread and must not block.
pub(crate) trait Owner: Send {
    /// The calls of this rank, latest first. They are its side of a mismatch, if one is found.
    fn called(&self) -> Vec<Descriptor>;
    /// A rank has called `finish()`. `tally` counts all its calls.
    fn finished(&self, rank: Rank, tally: &Tally);
    /// A rank waits in a collective that this rank has not called yet, and asks whether both call
    /// the same.
    fn asked(&self, from: Rank, call: &Descriptor);
    /// A deadline has passed at some rank. Called again and again until something is decided.
    fn late(&self, now: Ns);
    /// A decision was made. Called once.
    fn decided(&self, decision: &Decision);
    /// A watchdog told of a stall.
    fn heard(&self, news: News);
}

/// A rank of this host in another process.
struct Local {
    rank: Rank,
    peer: Arc<PeerProcess>,
}

/// What the gossip of a rank runs over.
pub(crate) struct Ways {
    /// The ranks of this host in other processes.
    pub(crate) locals: Vec<(Rank, Arc<PeerProcess>)>,
    /// Where messages of the ranks of this host arrive.
    pub(crate) post: Arc<Post>,
    /// The streams of a bootstrap's ring, to the next and from the previous rank.
    pub(crate) ring: [Option<RingStream>; 2],
    /// The ranks to or from which such a stream ended before the gossip began.
    pub(crate) ended: Vec<Rank>,
    /// How the ring is closed and kept closed; `None`: all ranks are on this host, and need none.
    pub(crate) mending: Option<(Dialling, Arc<Arrivals>)>,
}

struct State {
    gossip: Gossip,
    /// Set by the task when nothing is left to send, or to forward for a rank that leaves.
    flushed: bool,
}

/// How the wait for all ranks to finish ended.
pub(crate) enum Finished {
    /// All ranks have finished, and their calls match.
    All,
    /// This decision was made before or during the wait.
    Ended(Decision),
    /// These ranks have not finished in time.
    Without(Vec<Rank>),
}

/// The communicator's handle of the task: reports what it found and waits for the decision.
pub(crate) struct GossipTask {
    state: Arc<(Mutex<State>, Condvar)>,
    handle: Arc<Handle>,
}

/// A stream of the ring: its direction and the rank at its other end.
struct Neighbour {
    side: Side,
    rank: Rank,
    line: Line<Fd>,
    opened: Ns,
    /// Whether the end of the stream may mean that the peer died.
    ///
    /// For a stream opened after the bootstrap, it does so only once the peer has greeted. The
    /// connecting rank may have dropped the stream as it was opened, because all ranks have
    /// finished. The accepting rank may already have left. A rank that died is then found by
    /// connecting to it.
    tells: bool,
}

struct Round {
    state: Arc<(Mutex<State>, Condvar)>,
    me: Rank,
    lines: Vec<Neighbour>,
    /// Streams that are closed once the neighbour has left the bootstrap too: closed earlier, they
    /// would cut off what it has not read yet.
    parting: Vec<Neighbour>,
    locals: Vec<Local>,
    post: Arc<Post>,
    /// How to connect to the rank that becomes the next one, and the streams of ranks that connect
    /// because this rank has become their next one.
    mending: Option<(Dialling, Arc<Arrivals>)>,
    edge: Option<Edge>,
    /// The last rank that it began to connect to, and from when on it may begin again.
    dialled: Option<(Rank, Ns)>,
    /// To the ranks whose streams ended without a farewell.
    probes: Vec<Edge>,
    /// Whether any has, and the ring was not found to be left since.
    is_cut: bool,
    owner: Box<dyn Owner>,
    is_told: bool,
}

impl std::fmt::Debug for GossipTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lock().gossip.fmt(f)
    }
}

/// Encodes a message as a line.
///
/// `None` if it is longer than the receiver accepts. The creating code bounds the content.
pub(super) fn written(message: &impl serde::Serialize) -> Option<Vec<u8>> {
    let mut text = serde_json::to_vec(message).ok()?;
    text.push(b'\n');
    debug_assert!(text.len() <= LINE_MAX, "{} bytes", text.len());
    (text.len() <= LINE_MAX).then_some(text)
}

fn lock(state: &(Mutex<State>, Condvar)) -> MutexGuard<'_, State> {
    state.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GossipTask {
    /// Starts the gossip of `me`.
    pub(crate) fn start(
        service: &Arc<Service>,
        gossip: Gossip,
        me: Rank,
        Ways { locals, post, ring, ended, mending }: Ways,
        owner: Box<dyn Owner>,
    ) -> crate::Result<Arc<Self>> {
        let state = Arc::new((Mutex::new(State { gossip, flushed: false }), Condvar::new()));
        let sides = [Side::Next, Side::Previous];
        let opened = clock::now();
        let lines = ring.into_iter().zip(sides).filter_map(|(stream, side)| {
            let RingStream { fd, peer, rest, unsent } = stream?;
            Some(Neighbour { side, rank: peer, line: Line::after(fd, rest, unsent), opened, tells: true })
        });
        let (lines, parting) = lines.partition(|_| mending.is_some());
        let probe = |rank| Some(mending.as_ref()?.0.probe(rank, clock::now()));
        let is_cut = !ended.is_empty();
        let probes = ended.into_iter().filter_map(probe).collect();
        let round = Round {
            state: Arc::clone(&state),
            me,
            lines,
            parting,
            locals: locals.into_iter().map(|(rank, peer)| Local { rank, peer }).collect(),
            post: Arc::clone(&post),
            mending: mending.as_ref().map(|(dialling, arrivals)| (dialling.clone(), Arc::clone(arrivals))),
            edge: None,
            dialled: None,
            probes,
            is_cut,
            owner,
            is_told: false,
        };
        let handle = Arc::new(service.add(round)?);
        post.read_by(&handle);
        let gossip = Arc::new(Self { state, handle });
        if let Some((_, arrivals)) = mending {
            // Weak: the callback that the listener keeps must not keep the gossip alive.
            let it = Arc::downgrade(&gossip);
            arrivals.call(move || {
                if let Some(gossip) = it.upgrade() {
                    gossip.handle.nudge();
                }
            });
        }
        Ok(gossip)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Reports a problem and waits at most `limit` for a decision.
    ///
    /// Returns the decision, if there is one by then.
    pub(crate) fn report(&self, report: Report, limit: Duration) -> Option<Decision> {
        self.lock().gossip.found(report, clock::now());
        self.handle.nudge();
        let end = clock::now().after(limit);
        let mut state = self.lock();
        loop {
            if let Some(decision) = state.gossip.decision() {
                return Some(decision.clone());
            }
            let left = end.since(clock::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.state.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
        }
    }

    /// Asks a peer, for which this rank has waited in a collective, whether it calls the same.
    pub(crate) fn ask(&self, peer: Rank, call: Descriptor) {
        self.lock().gossip.ask(peer, call);
        self.handle.nudge();
    }

    /// Tells all ranks what a watchdog found or heard.
    pub(crate) fn tell_news(&self, news: News) {
        self.lock().gossip.tell_news(news);
        self.handle.nudge();
    }

    /// Announces all calls of this rank, and waits until all ranks have finished or the
    /// communicator ends.
    ///
    /// It waits at most `limit`. Time in which the process is stopped hardly counts.
    pub(crate) fn finish(&self, tally: Tally, calls: Vec<Descriptor>, limit: Duration) -> Finished {
        self.lock().gossip.finish(tally, calls, clock::now());
        self.handle.nudge();
        let mut left = limit;
        let mut state = self.lock();
        loop {
            if let Some(decision) = state.gossip.decision() {
                return Finished::Ended(decision.clone());
            }
            if state.gossip.may_leave() {
                return Finished::All;
            }
            if left.is_zero() {
                return Finished::Without(state.gossip.blocked_on());
            }
            let (step, began) = (left.min(STEP), clock::now());
            let waited = self.state.1.wait_timeout(state, step).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            left = left.saturating_sub(clock::now().since(began).min(step));
        }
    }

    /// The ranks that are dead or have left, ascending.
    pub(crate) fn gone(&self) -> Vec<Rank> {
        self.lock().gossip.gone()
    }

    /// Sends the farewell and waits, at most `limit`, until the other ranks no longer need this
    /// rank's streams.
    pub(crate) fn leave(&self, limit: Duration) {
        self.lock().gossip.leave();
        self.flush(limit);
    }

    /// Waits, at most `limit`, until all queued messages are sent, before this rank closes.
    ///
    /// A rank that closes its streams before that loses its last messages, and looks dead to the
    /// others. Time in which the process is stopped hardly counts.
    pub(crate) fn flush(&self, limit: Duration) {
        let mut left = limit;
        let mut state = self.lock();
        state.gossip.stop_sharing();
        state.flushed = false;
        self.handle.nudge();
        while !state.flushed && !left.is_zero() {
            let (step, began) = (left.min(FLUSH_STEP), clock::now());
            let waited = self.state.1.wait_timeout(state, step).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            left = left.saturating_sub(clock::now().since(began).min(step));
        }
    }
}

impl Task for Round {
    fn interests(&self, out: &mut Vec<Interest>) {
        out.extend(self.lines.iter().chain(&self.parting).filter_map(|neighbour| neighbour.line.interest()));
        out.extend(self.edge.iter().chain(&self.probes).flat_map(Edge::fds));
    }

    fn turn(&mut self, now: Ns) -> Turn {
        let state = Arc::clone(&self.state);
        let mut state = lock(&state);
        let gossip = &mut state.gossip;
        gossip.called(self.owner.called());
        self.hear(gossip, now);
        self.part(gossip, now);
        self.watch(gossip, now);
        let probed = self.probe(gossip, now);
        let again = self.mend(gossip, now);
        self.close_spent(gossip);
        let due = [gossip.tick(now), probed, again].into_iter().flatten().min();
        for (to, message) in gossip.take_out() {
            match to {
                // Where the ring is broken, the copy in the other direction arrives.
                To::Ring(side) => {
                    let Some(text) = written(&message) else { continue };
                    let ways = self.lines.iter_mut().filter(|neighbour| neighbour.side == side);
                    ways.for_each(|neighbour| neighbour.line.say(&text));
                }
                To::Local => self.tell_locals(&message),
            }
        }
        self.lines.iter_mut().for_each(|neighbour| neighbour.line.write());
        let flushed = self.edge.is_none()
            && !self.is_cut_off(gossip)
            && self.lines.iter().all(|neighbour| neighbour.line.is_flushed())
            && self.locals.iter().all(|local| local.peer.is_flushed());
        let mut open = self.lines.iter().map(|neighbour| neighbour.rank);
        let may_close = !state.gossip.is_leaving() || state.gossip.may_close(&mut open);
        state.flushed = flushed && may_close && !state.gossip.is_undecided();
        self.tell_owner(&state.gossip, now);
        let gossip = &mut state.gossip;
        gossip.take_finished().iter().for_each(|(rank, tally)| self.owner.finished(*rank, tally));
        let news = gossip.take_news();
        gossip.take_asked().iter().for_each(|(from, call)| self.owner.asked(*from, call));
        drop(state);
        self.state.1.notify_all();
        // What hears it may tell it in other communicators, or in this one.
        news.into_iter().for_each(|news| self.owner.heard(news));
        Turn::Again(due)
    }
}

impl Round {
    /// Tells the owner that a deadline has passed, and what was decided.
    fn tell_owner(&mut self, gossip: &Gossip, now: Ns) {
        if let (false, Some(decision)) = (self.is_told, gossip.decision()) {
            self.is_told = true;
            self.owner.decided(decision);
        }
        if gossip.is_late() {
            self.owner.late(now);
        }
    }

    /// Reads the streams of the ring. One that has ended may be the end of its rank.
    fn hear(&mut self, gossip: &mut Gossip, now: Ns) {
        let mut silent = Vec::new();
        for Neighbour { side, rank, line, opened, tells } in &mut self.lines {
            let ended = line.read(|heard| match heard {
                // The stream is authenticated. A line that does not parse comes from a newer
                // version and is skipped.
                Heard::Text(text) => {
                    if let Ok(message) = serde_json::from_slice(text) {
                        *tells = true;
                        gossip.received(Some(*side), message, now);
                    }
                }
                Heard::Greeting => *tells = true,
                Heard::Farewell => {}
                Heard::Failed(fault) => gossip.failed_in_init(*rank, &fault, now),
            });
            self.is_cut |= ended.is_some() && !gossip.has_left(*rank);
            match ended {
                Some(End::Silent) => silent.push((*rank, *opened)),
                // What lies between two hosts may close a stream, too.
                Some(End::Closed) if *tells && gossip.is_missed(*rank) => {
                    let dialling = self.mending.as_ref().map(|(dialling, _)| dialling);
                    let is_probed = self.probes.iter().any(|probe| probe.to() == *rank);
                    let probe = dialling.filter(|_| !is_probed).map(|dialling| dialling.probe(*rank, now));
                    self.probes.extend(probe);
                }
                Some(End::Closed) | None => {}
            }
        }
        for (to, before) in silent {
            // The host has answered since, if a stream to the rank was opened later.
            let is_later = |other: &Neighbour| other.rank == to && other.opened > before;
            if !self.lines.iter().any(|other| is_later(other) && other.line.is_open()) {
                gossip.unreachable(to, SILENT, now);
            }
        }
    }

    /// Reads the last bootstrap messages of the neighbours where no ring is needed.
    fn part(&mut self, gossip: &mut Gossip, now: Ns) {
        self.parting.retain_mut(|Neighbour { rank, line, .. }| {
            line.write();
            let ended = line.read(|heard| {
                if let Heard::Failed(fault) = heard {
                    gossip.failed_in_init(*rank, &fault, now);
                }
            });
            ended.is_none() && (line.has_rest() || !line.is_flushed())
        });
    }

    /// Hears the ranks of this host, and which of their processes have ended.
    fn watch(&mut self, gossip: &mut Gossip, now: Ns) {
        // Looked at before the messages are taken: what an ended process had to say has arrived.
        let ended: Vec<(bool, bool)> =
            self.locals.iter().map(|local| (local.peer.is_dead(), local.peer.has_left())).collect();
        for (from, message) in self.post.take() {
            // A process tells only of communicators that it has ranks of.
            let is_known = |process| self.locals.iter().any(|local| local.peer.process() == process);
            if from.is_none_or(is_known) {
                gossip.received(None, message, now);
            }
        }
        for (local, (is_dead, has_left)) in self.locals.iter().zip(&ended) {
            if *has_left {
                gossip.left(local.rank);
            } else if *is_dead {
                gossip.lost(local.rank, now);
            }
        }
        let mut ended = ended.iter();
        self.locals.retain(|_| ended.next().is_none_or(|(is_dead, has_left)| !is_dead && !has_left));
    }

    /// Finds out whether the ranks whose streams ended are alive; returns when to look again.
    ///
    /// A rank that is alive accepts the connection, which is then closed. The ring is closed again
    /// by the previous rank, which connects to this one, and by [`mend`](Self::mend), which
    /// connects to the next one.
    fn probe(&mut self, gossip: &mut Gossip, now: Ns) -> Option<Ns> {
        // Also after a decision: ranks that go on without the dead need to know them all.
        self.probes.retain(|probe| gossip.is_missed(probe.to()));
        self.probes.retain_mut(|probe| match probe.turn(now) {
            Err(_) => {
                gossip.lost(probe.to(), now);
                false
            }
            Ok(None) if probe.is_silent(now) => {
                gossip.unreachable(probe.to(), UNANSWERED, now);
                false
            }
            Ok(answer) => answer.is_none(),
        });
        self.probes.iter().map(|probe| probe.wake().min(now.after(STEP))).min()
    }

    /// Tells the other ranks of this host.
    fn tell_locals(&self, message: &GossipMessage) {
        self.post.tell_here(message);
        let Some(text) = letter(self.post.comm(), message) else { return };
        let mut told: Vec<u64> = Vec::new();
        for Local { peer, .. } in &self.locals {
            // One letter is for all ranks of a process.
            if !told.contains(&peer.process()) {
                told.push(peer.process());
                peer.say(&text);
            }
        }
    }

    /// Closes the streams that have ended, and the streams that are no longer needed.
    fn close_spent(&mut self, gossip: &Gossip) {
        self.lines.retain(|neighbour| neighbour.line.is_open());
        let open: Vec<_> = self.lines.iter().map(|neighbour| (neighbour.side, neighbour.rank)).collect();
        self.lines.retain(|Neighbour { side, rank, .. }| {
            !gossip.is_spent(*rank, open.iter().filter(|(other, _)| other == side).map(|(_, rank)| *rank))
        });
    }

    /// Whether this rank leaves and no stream carries its farewell, because all were cut. Without a
    /// cut, the ranks that were told have passed it on.
    fn is_cut_off(&self, gossip: &Gossip) -> bool {
        let lives = gossip.next().is_some_and(|next| !gossip.has_died(next));
        let is_open = self.lines.iter().any(|neighbour| neighbour.line.is_open());
        let leaves = gossip.is_leaving() && gossip.decision().is_none();
        self.is_cut && self.mending.is_some() && leaves && lives && !is_open
    }

    /// Keeps the ring closed.
    ///
    /// Connects to the next rank where the previous next rank has left, and accepts the streams of
    /// ranks whose next rank this one has become. Returns when to check again.
    fn mend(&mut self, gossip: &mut Gossip, now: Ns) -> Option<Ns> {
        let (dialling, arrivals) = self.mending.as_ref()?;
        for (rank, _, fd) in arrivals.take() {
            let line = Line::greeting(fd);
            self.lines.push(Neighbour { side: Side::Previous, rank, line, opened: now, tells: false });
            gossip.joined(Side::Previous);
        }
        // Once this rank leaves or there is a decision, it waits only for a stream that is already
        // being opened, to send its last messages. A rank that may leave has forwarded all messages
        // there will be, but its farewell needs a stream.
        let is_over = gossip.is_leaving() || (gossip.decision().is_some() && !gossip.is_sharing());
        let is_wanted = self.is_cut_off(gossip) || (!gossip.may_leave() && (!is_over || self.edge.is_some()));
        // No rank connects to a dead rank: the ring needs no more repair.
        let next = gossip.next().filter(|next| is_wanted && !gossip.has_died(*next));
        let has_line = |rank| {
            let mut lines = self.lines.iter();
            lines.any(|neighbour| {
                neighbour.side == Side::Next && neighbour.rank == rank && neighbour.line.is_open()
            })
        };
        let Some(next) = next.filter(|rank| !has_line(*rank)) else {
            self.edge = None;
            return None;
        };
        if self.edge.as_ref().is_none_or(|edge| edge.to() != next) {
            let last = self.dialled.filter(|(to, again)| *to == next && now < *again);
            if let Some((_, again)) = last {
                return Some(again);
            }
            self.dialled = Some((next, now.after(REDIAL)));
            self.edge = Some(dialling.dial(next, now));
        }
        let edge = self.edge.as_mut()?;
        match edge.turn(now) {
            Ok(None) => Some(edge.wake()),
            Ok(Some(fd)) => {
                self.edge = None;
                let line = Line::greeting(fd);
                self.lines.push(Neighbour { side: Side::Next, rank: next, line, opened: now, tells: false });
                gossip.joined(Side::Next);
                None
            }
            Err(_) => {
                // A rank that no longer listens and has not said farewell has died.
                self.edge = None;
                self.is_cut = false;
                gossip.lost(next, now);
                // Ranks that go on without the dead look for the rank behind it.
                Some(now)
            }
        }
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        // After a decision all ranks leave, one after another. None of them has died.
        let left = {
            let state = lock(&self.state);
            state.gossip.is_leaving() || state.gossip.decision().is_some()
        };
        for stream in self.lines.iter().filter_map(|neighbour| neighbour.line.stream()) {
            // A stream that is closed with unread data is reset, and the last bytes sent on it (a
            // farewell) may be lost.
            let _ = rustix::net::shutdown(stream.as_fd(), rustix::net::Shutdown::Write);
            let mut buffer = [0; 4096];
            while rustix::io::read(stream.as_fd(), &mut buffer).is_ok_and(|n| n > 0) {}
        }
        if left {
            // The connections to their processes stay open for other communicators.
            self.tell_locals(&GossipMessage::Farewell { rank: self.me });
        }
    }
}
