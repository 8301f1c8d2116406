//! Carries the news of one communicator: the machine of [`news`](super::news) on real streams, in the service thread.
//!
//! Messages are JSON lines: rare, and readable when a job is debugged with a packet capture. Beside the ring they go over the
//! control connections of local peers, whose end tells a death without waiting for the ring.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{SendFlags, send};

use crate::bootstrap::driver::RingStream;
use crate::clock::{self, Ns};
use crate::collective::Descriptor;
use crate::control::news::{Message, News, Report, Side, To, Verdict};
use crate::control::service::{Handle, Interest, Service, Task, Turn};
use crate::sys::fds::Fd;
use crate::sys::unix::Stream;
use crate::transport::shm::connect::PeerMemory;
use crate::transport::shm::memory::RankMemory;
use crate::types::Rank;

/// The longest message. A report holds two descriptors and a sentence.
const LINE_MAX: usize = 16 << 10;
/// What a process writes on its control connections before it closes them: leaving is not dying.
const FAREWELL: u8 = b'.';
/// How often locks of local peers are looked at, for deaths that end no stream.
const LOCKS: Duration = Duration::from_millis(100);

/// Whose news are carried: the communicator. Asked and told in the service thread: must not block.
pub(crate) trait Owner: Send {
    /// What it called, the latest first: its side, should a mismatch be found.
    fn called(&self) -> Vec<Descriptor>;
    /// A rank said farewell.
    fn left(&self, rank: Rank);
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

/// One connection, with what has come on it and what waits to go.
struct Line<F: AsFd> {
    stream: Option<F>,
    input: Vec<u8>,
    output: VecDeque<u8>,
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
    /// Set by the task when nothing is left to send.
    flushed: bool,
}

/// The communicator's end: says what it found, hears what was decided.
pub(crate) struct Courier {
    state: Arc<(Mutex<State>, Condvar)>,
    handle: Handle,
}

struct Round {
    state: Arc<(Mutex<State>, Condvar)>,
    lines: Vec<(Side, Line<Fd>)>,
    locals: Vec<Local>,
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
        owner: Box<dyn Owner>,
    ) -> crate::Result<Self> {
        let state = Arc::new((Mutex::new(State { news, flushed: false }), Condvar::new()));
        let sides = [Side::Next, Side::Previous];
        let lines = streams.into_iter().zip(sides).filter_map(|(stream, side)| {
            let RingStream { fd, early, .. } = stream?;
            Some((side, Line { stream: Some(fd), input: early, output: VecDeque::new() }))
        });
        let lines = lines.collect();
        let local = |Watched { rank, peer: PeerMemory { memory, control }, has_lock }| {
            let line = Line { stream: Some(control), input: Vec::new(), output: VecDeque::new() };
            Local { rank, memory, has_lock, line }
        };
        let locals = watched.into_iter().map(local).collect();
        let round = Round {
            state: Arc::clone(&state),
            lines,
            locals,
            locks_due: clock::now(),
            owner,
            is_told: false,
        };
        Ok(Self { state, handle: service.add(round)? })
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

    /// Says farewell and waits, for `limit` at most, until it is on its way.
    pub(crate) fn leave(&self, limit: Duration) {
        self.lock().news.leave();
        self.flush(limit);
    }

    /// Waits, for `limit` at most, until all that was said is on its way. Whoever closes before that takes its last words with
    /// it, and looks dead to the others.
    pub(crate) fn flush(&self, limit: Duration) {
        let end = clock::now().after(limit);
        let mut state = self.lock();
        state.flushed = false;
        self.handle.nudge();
        while !state.flushed {
            let left = end.since(clock::now());
            if left.is_zero() {
                return;
            }
            let waited = self.state.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
        }
    }
}

impl Task for Round {
    fn interests(&self, out: &mut Vec<Interest>) {
        out.extend(self.lines.iter().filter_map(|(_, line)| line.interest()));
        out.extend(self.locals.iter().filter_map(|local| local.line.interest()));
    }

    fn turn(&mut self, now: Ns) -> Turn {
        let state = Arc::clone(&self.state);
        let mut state = lock(&state);
        let news = &mut state.news;
        news.called(self.owner.called());
        for (side, line) in &mut self.lines {
            let ended = line.read(|message| match message {
                Heard::Message(message) => news.received(Some(*side), message, now),
                Heard::Farewell => {}
            });
            if ended {
                news.ended(*side, now);
            }
        }
        self.watch(news, now);
        let mut due = news.tick(now);
        for (to, message) in news.take_out() {
            // Plain data: always written.
            let Ok(mut text) = serde_json::to_vec(&message) else { continue };
            text.push(b'\n');
            match to {
                // Where the ring is broken the other way round carries it.
                To::Ring(side) => {
                    self.lines.iter_mut().filter(|(s, _)| *s == side).for_each(|(_, line)| line.say(&text));
                }
                To::Local => self.locals.iter_mut().for_each(|local| local.line.say(&text)),
            }
        }
        self.lines.iter_mut().for_each(|(_, line)| line.write());
        self.locals.iter_mut().for_each(|local| local.line.write());
        // A local peer that is stopped takes nothing, and must not hold up who leaves.
        state.flushed = self.lines.iter().all(|(_, line)| line.output.is_empty());
        if let (false, Some(verdict)) = (self.is_told, state.news.verdict()) {
            self.is_told = true;
            self.owner.decided(verdict);
        }
        state.news.take_left().into_iter().for_each(|rank| self.owner.left(rank));
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
}

impl Drop for Round {
    fn drop(&mut self) {
        // After a verdict everybody leaves, one after another: nobody dies of that.
        let left = {
            let state = lock(&self.state);
            state.news.is_leaving() || state.news.verdict().is_some()
        };
        for stream in self.lines.iter().filter_map(|(_, line)| line.stream.as_ref()) {
            // Closed with something unread, a stream is reset, and what was sent on it last may be lost: a farewell.
            let _ = rustix::net::shutdown(stream.as_fd(), rustix::net::Shutdown::Write);
            let mut buffer = [0; 4096];
            while rustix::io::read(stream.as_fd(), &mut buffer).is_ok_and(|n| n > 0) {}
        }
        for local in &mut self.locals {
            // Best effort: a peer that is gone has no use for it, and one that took nothing so far hears of it on the ring.
            if let (true, true, Some(stream)) = (left, local.line.output.is_empty(), &local.line.stream) {
                let _ = send(stream.as_fd(), &[FAREWELL], SendFlags::NOSIGNAL);
            }
        }
    }
}

/// What a line brings.
enum Heard {
    Message(Message),
    /// Whoever is at the other end closes it next, and has not died.
    Farewell,
}

impl<F: AsFd> Line<F> {
    fn interest(&self) -> Option<Interest> {
        let stream = self.stream.as_ref()?;
        Some(Interest { fd: stream.as_fd().as_raw_fd(), read: true, write: !self.output.is_empty() })
    }

    fn say(&mut self, text: &[u8]) {
        if self.stream.is_some() {
            self.output.extend(text);
        }
    }

    /// Takes what is there; whether the stream has just ended.
    fn read(&mut self, mut hear: impl FnMut(Heard)) -> bool {
        let mut buffer = [0; 4096];
        // What came with the end of the bootstrap is heard before what comes now.
        self.hear(&mut hear);
        while let Some(stream) = &self.stream {
            match rustix::io::read(stream.as_fd(), &mut buffer) {
                Ok(n) if n > 0 => self.input.extend_from_slice(&buffer[..n]),
                Err(rustix::io::Errno::AGAIN) => return false,
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) | Err(_) => return self.end(),
            }
            self.hear(&mut hear);
            if self.input.len() > LINE_MAX {
                return self.end();
            }
        }
        false
    }

    /// Takes the lines that are there.
    fn hear(&mut self, hear: &mut impl FnMut(Heard)) {
        loop {
            if self.input.first() == Some(&FAREWELL) {
                self.input.remove(0);
                hear(Heard::Farewell);
                continue;
            }
            let Some(at) = self.input.iter().position(|&b| b == b'\n') else { return };
            let line: Vec<u8> = self.input.drain(..=at).collect();
            // The stream is authenticated: what does not parse is from a newer version, and not for us.
            if let Ok(message) = serde_json::from_slice(&line) {
                hear(Heard::Message(message));
            }
        }
    }

    fn end(&mut self) -> bool {
        self.output.clear();
        self.stream.take().is_some()
    }

    fn write(&mut self) {
        while let (Some(stream), false) = (&self.stream, self.output.is_empty()) {
            match send(stream.as_fd(), self.output.as_slices().0, SendFlags::NOSIGNAL) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                // Its end is seen, and told, where it is read.
                Err(_) => self.output.clear(),
            }
        }
    }
}
