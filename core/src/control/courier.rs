//! Carries the news of one communicator: the machine of [`news`](super::news) on real streams, in the service thread.
//!
//! Beside the ring they go over the control connections of local peers, whose end tells a death
//! without waiting for the ring.

use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{SendFlags, send};

use crate::bootstrap::driver::RingStream;
use crate::clock::{self, Ns};
use crate::collective::{Descriptor, Tally};
use crate::control::edge::{Arrivals, Dialling, Edge};
use crate::control::line::{FAREWELL, Heard, Line, written};
use crate::control::news::{News, Report, Side, To, Verdict};
use crate::control::service::{Handle, Interest, Service, Task, Turn};
use crate::sys::fds::Fd;
use crate::sys::unix::Stream;
use crate::transport::shm::connect::PeerMemory;
use crate::transport::shm::memory::RankMemory;
use crate::types::Rank;

/// How often locks of local peers are looked at, for deaths that end no stream: a call to the kernel for each peer, while nothing happens.
const LOCKS: Duration = Duration::from_millis(250);
/// The longest sleep while others have not finished.
const STEP: Duration = Duration::from_secs(1);

/// The same while last words are on their way.
const FLUSH_STEP: Duration = Duration::from_millis(50);

/// Whose news are carried: the communicator. Asked and told in the service thread: must not block.
pub(crate) trait Owner: Send {
    /// What it called, the latest first: its side, should a mismatch be found.
    fn called(&self) -> Vec<Descriptor>;
    /// A rank has called `finish()`, and this in all.
    fn finished(&self, rank: Rank, tally: &Tally);
    /// A rank waits in a collective that this one has not called yet: does it call the same?
    fn asked(&self, from: Rank, call: &Descriptor);
    /// Something was decided; said once.
    fn decided(&self, verdict: &Verdict);
}

/// A local peer in another process: its memory with its lock, and its control connection.
pub(crate) struct Watched {
    pub(crate) rank: Rank,
    pub(crate) peer: PeerMemory,
    /// Whether its lock tells anything: a process cannot see its own.
    pub(crate) has_lock: bool,
}

/// A watched peer, and the line to it.
struct Local {
    rank: Rank,
    memory: Arc<RankMemory>,
    has_lock: bool,
    line: Line<Stream>,
}

struct State {
    news: News,
    /// Set by the task when nothing is left to send, nor to pass on by who leaves.
    flushed: bool,
}

/// How a wait for all to finish ended.
pub(crate) enum Finished {
    /// All have, and what they called fits.
    All,
    /// This was decided before or meanwhile.
    Ended(Verdict),
    /// These have not in time.
    Without(Vec<Rank>),
}

/// The communicator's end: says what it found, hears what was decided.
pub(crate) struct Courier {
    state: Arc<(Mutex<State>, Condvar)>,
    handle: Handle,
}

/// A stream of the ring: which way it leads, and to whom.
struct Neighbour {
    side: Side,
    rank: Rank,
    line: Line<Fd>,
    /// Whether its end tells of a death. Of one that was made anew, only when something was heard
    /// on it: whoever connected may have given it up as it was made, for all have finished, and
    /// whoever was connected to may have been gone already. Who has died is found by dialling.
    tells: bool,
}

struct Round {
    state: Arc<(Mutex<State>, Condvar)>,
    lines: Vec<Neighbour>,
    locals: Vec<Local>,
    /// How to reach who becomes the next rank, and who comes because this one has become its next.
    dialling: Dialling,
    edge: Option<Edge>,
    arrivals: Arc<Arrivals>,
    locks_due: Ns,
    owner: Box<dyn Owner>,
    is_told: bool,
}

impl std::fmt::Debug for Courier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lock().news.fmt(f)
    }
}

fn lock(state: &(Mutex<State>, Condvar)) -> MutexGuard<'_, State> {
    state.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Courier {
    /// Begins to carry news over the ring's streams, to the next and from the previous rank (`None` where this rank is alone).
    pub(crate) fn start(
        service: &Arc<Service>,
        news: News,
        streams: [Option<RingStream>; 2],
        watched: Vec<Watched>,
        (dialling, arrivals): (Dialling, &Arc<Arrivals>),
        owner: Box<dyn Owner>,
    ) -> crate::Result<Arc<Self>> {
        let state = Arc::new((Mutex::new(State { news, flushed: false }), Condvar::new()));
        let sides = [Side::Next, Side::Previous];
        let lines = streams.into_iter().zip(sides).filter_map(|(stream, side)| {
            let RingStream { fd, early, peer } = stream?;
            Some(Neighbour { side, rank: peer, line: Line::new(fd, early), tells: true })
        });
        let lines = lines.collect();
        let local = |Watched { rank, peer: PeerMemory { memory, control }, has_lock }| Local {
            rank,
            memory,
            has_lock,
            line: Line::new(control, Vec::new()),
        };
        let locals = watched.into_iter().map(local).collect();
        let round = Round {
            state: Arc::clone(&state),
            lines,
            locals,
            dialling,
            edge: None,
            arrivals: Arc::clone(arrivals),
            locks_due: clock::now(),
            owner,
            is_told: false,
        };
        let courier = Arc::new(Self { state, handle: service.add(round)? });
        // Weak: what the listener keeps must not keep the courier.
        let it = Arc::downgrade(&courier);
        arrivals.call(move || {
            if let Some(courier) = it.upgrade() {
                courier.handle.nudge();
            }
        });
        Ok(courier)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Reports something and waits, for `limit` at most, until it is decided. Returns the verdict, if there is one by then.
    pub(crate) fn report(&self, report: Report, limit: Duration) -> Option<Verdict> {
        self.lock().news.found(report, clock::now());
        self.handle.nudge();
        let end = clock::now().after(limit);
        let mut state = self.lock();
        loop {
            if let Some(verdict) = state.news.verdict() {
                return Some(verdict.clone());
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
        self.lock().news.ask(peer, call);
        self.handle.nudge();
    }

    /// Says what this rank has called in all, and waits until all have done so, or until the
    /// communicator ends; for `limit` at most, in which a time of being stopped counts little.
    /// Returns who has not finished.
    pub(crate) fn finish(&self, tally: Tally, calls: Vec<Descriptor>, limit: Duration) -> Finished {
        self.lock().news.finish(tally, calls, clock::now());
        self.handle.nudge();
        let mut left = limit;
        let mut state = self.lock();
        loop {
            if let Some(verdict) = state.news.verdict() {
                return Finished::Ended(verdict.clone());
            }
            if state.news.may_leave() {
                return Finished::All;
            }
            if left.is_zero() {
                return Finished::Without(state.news.awaited());
            }
            let (step, began) = (left.min(STEP), clock::now());
            let waited = self.state.1.wait_timeout(state, step).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            left = left.saturating_sub(clock::now().since(began).min(step));
        }
    }

    /// Says farewell and waits, for `limit` at most, until those who stay need this rank's streams
    /// no more.
    pub(crate) fn leave(&self, limit: Duration) {
        self.lock().news.leave();
        self.flush(limit);
    }

    /// Waits, for `limit` at most, until all that was said is on its way. Whoever closes before that takes its last words with
    /// it, and looks dead to the others. A time of being stopped counts little.
    pub(crate) fn flush(&self, limit: Duration) {
        let mut left = limit;
        let mut state = self.lock();
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
        out.extend(self.lines.iter().filter_map(|neighbour| neighbour.line.interest()));
        out.extend(self.locals.iter().filter_map(|local| local.line.interest()));
        out.extend(self.edge.iter().flat_map(Edge::fds));
    }

    fn turn(&mut self, now: Ns) -> Turn {
        let state = Arc::clone(&self.state);
        let mut state = lock(&state);
        let news = &mut state.news;
        news.called(self.owner.called());
        for Neighbour { side, rank, line, tells } in &mut self.lines {
            let ended = line.read(|message| match message {
                Heard::Message(message) => {
                    *tells = true;
                    news.received(Some(*side), message, now);
                }
                Heard::Farewell => {}
            });
            if ended && *tells {
                news.lost(*rank, now);
            }
        }
        self.watch(news, now);
        let again = self.mend(news, now);
        self.close_spent(news);
        let mut due = [news.tick(now), again].into_iter().flatten().min();
        for (to, message) in news.take_out() {
            let Some(text) = written(&message) else { continue };
            match to {
                // Where the ring is broken the other way round carries it.
                To::Ring(side) => {
                    let ways = self.lines.iter_mut().filter(|neighbour| neighbour.side == side);
                    ways.for_each(|neighbour| neighbour.line.say(&text));
                }
                To::Local => self.locals.iter_mut().for_each(|local| local.line.say(&text)),
            }
        }
        self.lines.iter_mut().for_each(|neighbour| neighbour.line.write());
        self.locals.iter_mut().for_each(|local| local.line.write());
        // A local peer that is stopped takes nothing, and must not hold up who leaves.
        let flushed = self.edge.is_none() && self.lines.iter().all(|neighbour| neighbour.line.is_flushed());
        let mut open = self.lines.iter().map(|neighbour| neighbour.rank);
        let may_close = !state.news.is_leaving() || state.news.may_close(&mut open);
        state.flushed = flushed && may_close && !state.news.is_undecided();
        if let (false, Some(verdict)) = (self.is_told, state.news.verdict()) {
            self.is_told = true;
            self.owner.decided(verdict);
        }
        let news = &mut state.news;
        news.take_finished().iter().for_each(|(rank, tally)| self.owner.finished(*rank, tally));
        news.take_asked().iter().for_each(|(from, call)| self.owner.asked(*from, call));
        drop(state);
        self.state.1.notify_all();
        if !self.locals.is_empty() {
            due = [due, Some(self.locks_due)].into_iter().flatten().min();
        }
        Turn::Again(due)
    }
}

impl Round {
    fn watch(&mut self, news: &mut News, now: Ns) {
        let look_at_locks = now >= self.locks_due;
        if look_at_locks {
            self.locks_due = now.after(LOCKS);
        }
        self.locals.retain_mut(|local| {
            let dead = look_at_locks && local.has_lock && local.memory.is_dead();
            // Read after the lock was looked at: who leaves says so before it lets go of its lock.
            let mut left = false;
            let ended = local.line.read(|heard| match heard {
                Heard::Message(message) => news.received(None, message, now),
                Heard::Farewell => left = true,
            });
            if left {
                news.left(local.rank);
            } else if ended || dead {
                news.lost(local.rank, now);
            }
            !(left || ended || dead)
        });
    }

    /// Closes the streams that have ended, and those that are spent.
    fn close_spent(&mut self, news: &News) {
        self.lines.retain(|neighbour| neighbour.line.is_open());
        let open: Vec<_> = self.lines.iter().map(|neighbour| (neighbour.side, neighbour.rank)).collect();
        self.lines.retain(|Neighbour { side, rank, .. }| {
            !news.is_spent(*rank, open.iter().filter(|(other, _)| other == side).map(|(_, rank)| *rank))
        });
    }

    /// Keeps the ring closed: connects to the next rank where the one before it has left, and takes
    /// streams of those whose next this rank has become. Returns when to look again.
    fn mend(&mut self, news: &mut News, now: Ns) -> Option<Ns> {
        for (rank, fd) in self.arrivals.take() {
            let line = Line::new(fd, Vec::new());
            self.lines.push(Neighbour { side: Side::Previous, rank, line, tells: false });
            news.joined(Side::Previous);
        }
        // Once this rank leaves, or all is decided, only a stream that is on its way is waited for,
        // to carry the last words; and whoever may leave has passed on all there will be.
        let is_over = news.is_leaving() || news.verdict().is_some();
        let is_wanted = !news.may_leave() && (!is_over || self.edge.is_some());
        // Nobody connects to the dead: the ring needs no more mending.
        let next = news.next().filter(|next| is_wanted && !news.has_died(*next));
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
            self.edge = Some(self.dialling.dial(next, now));
        }
        let edge = self.edge.as_mut()?;
        match edge.turn(now) {
            Ok(None) => Some(edge.wake()),
            Ok(Some(fd)) => {
                self.edge = None;
                let line = Line::new(fd, Vec::new());
                self.lines.push(Neighbour { side: Side::Next, rank: next, line, tells: false });
                news.joined(Side::Next);
                None
            }
            Err(_) => {
                // Whoever does not listen any more and has not said farewell has died; then the
                // ring needs no more mending.
                self.edge = None;
                news.lost(next, now);
                None
            }
        }
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        // After a verdict everybody leaves, one after another: nobody dies of that.
        let left = {
            let state = lock(&self.state);
            state.news.is_leaving() || state.news.verdict().is_some()
        };
        for stream in self.lines.iter().filter_map(|neighbour| neighbour.line.stream()) {
            // Closed with something unread, a stream is reset, and what was sent on it last may be lost: a farewell.
            let _ = rustix::net::shutdown(stream.as_fd(), rustix::net::Shutdown::Write);
            let mut buffer = [0; 4096];
            while rustix::io::read(stream.as_fd(), &mut buffer).is_ok_and(|n| n > 0) {}
        }
        for local in &mut self.locals {
            // Best effort: a peer that is gone has no use for it, and one that took nothing so far hears of it on the ring.
            if let (true, true, Some(stream)) = (left, local.line.is_flushed(), local.line.stream()) {
                let _ = send(stream.as_fd(), &[FAREWELL], SendFlags::NOSIGNAL);
            }
        }
    }
}
