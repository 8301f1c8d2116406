//! Carries the news of one communicator: the machine of [`news`](super::news) on real streams, in the service thread.
//!
//! Messages are JSON lines: rare, and readable when a job is debugged with a packet capture. Beside the ring it watches
//! the control connections of local peers, whose end tells a death without waiting for the ring.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{SendFlags, send};

use crate::bootstrap::driver::RingStream;
use crate::clock::{self, Ns};
use crate::collective::Descriptor;
use crate::control::news::{News, Report, Side, Verdict};
use crate::control::service::{Handle, Interest, Service, Task, Turn};
use crate::sys::fds::Fd;
use crate::transport::shm::connect::PeerMemory;
use crate::types::Rank;

/// The longest message. A report holds two descriptors and a sentence.
const LINE_MAX: usize = 16 << 10;
/// What a process writes on its control connections before it closes them: leaving is not dying.
const FAREWELL: u8 = b'.';
/// How often locks of local peers are looked at, for deaths that end no stream.
const LOCKS: Duration = Duration::from_millis(100);

/// Whose news are carried: the communicator. Asked and told in the service thread: must not block.
pub(crate) trait Owner: Send {
    /// What it called last: its side, should a mismatch be found.
    fn called(&self) -> Option<Descriptor>;
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

struct Line {
    stream: Option<Fd>,
    side: Side,
    input: Vec<u8>,
    output: VecDeque<u8>,
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
    lines: Vec<Line>,
    watched: Vec<Watched>,
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
            Some(Line { stream: Some(fd), side, input: early, output: VecDeque::new() })
        });
        let lines = lines.collect();
        let round = Round {
            state: Arc::clone(&state),
            lines,
            watched,
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
        for line in &self.lines {
            if let Some(stream) = &line.stream {
                out.push(Interest {
                    fd: stream.as_fd().as_raw_fd(),
                    read: true,
                    write: !line.output.is_empty(),
                });
            }
        }
        out.extend(self.watched.iter().map(|peer| Interest {
            fd: peer.peer.control.as_fd().as_raw_fd(),
            read: true,
            write: false,
        }));
    }

    fn turn(&mut self, now: Ns) -> Turn {
        let state = Arc::clone(&self.state);
        let mut state = lock(&state);
        state.news.called(self.owner.called());
        for line in &mut self.lines {
            line.read(&mut state.news, now);
        }
        self.watch(&mut state.news, now);
        let mut due = state.news.tick(now);
        for (side, message) in state.news.take_out() {
            // Where the ring is broken the other way round carries it.
            if let (Some(line), Ok(mut text)) =
                (self.lines.iter_mut().find(|line| line.is_to(side)), serde_json::to_vec(&message))
            {
                text.push(b'\n');
                line.output.extend(text);
            }
        }
        for line in &mut self.lines {
            line.write();
        }
        state.flushed = self.lines.iter().all(|line| line.output.is_empty());
        if let (false, Some(verdict)) = (self.is_told, state.news.verdict()) {
            self.is_told = true;
            self.owner.decided(verdict);
        }
        state.news.take_left().into_iter().for_each(|rank| self.owner.left(rank));
        drop(state);
        self.state.1.notify_all();
        if !self.watched.is_empty() {
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
        self.watched.retain(|peer| {
            let dead = look_at_locks && peer.has_lock && peer.peer.memory.is_dead();
            // Read after the lock was looked at: who leaves says so before it lets go of its lock.
            let mut byte = [0u8; 8];
            let lives = match rustix::io::read(peer.peer.control.as_fd(), &mut byte) {
                Ok(n) if n > 0 && byte[0] == FAREWELL => {
                    news.left(peer.rank);
                    return false;
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => !dead,
                Ok(_) | Err(_) => false,
            };
            if !lives {
                news.lost(peer.rank, now);
            }
            lives
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
        for stream in self.lines.iter().filter_map(|line| line.stream.as_ref()) {
            // Closed with something unread, a stream is reset, and what was sent on it last may be lost: a farewell.
            let _ = rustix::net::shutdown(stream.as_fd(), rustix::net::Shutdown::Write);
            let mut buffer = [0; 4096];
            while rustix::io::read(stream.as_fd(), &mut buffer).is_ok_and(|n| n > 0) {}
        }
        for peer in &self.watched {
            if left {
                // Best effort: a peer that is gone has no use for it.
                let _ = send(peer.peer.control.as_fd(), &[FAREWELL], SendFlags::NOSIGNAL);
            }
        }
    }
}

impl Line {
    fn is_to(&self, side: Side) -> bool {
        self.side == side && self.stream.is_some()
    }

    fn read(&mut self, news: &mut News, now: Ns) {
        let mut buffer = [0; 4096];
        // What came with the end of the bootstrap is heard before what comes now.
        self.hear(news, now);
        while let Some(stream) = &self.stream {
            match rustix::io::read(stream.as_fd(), &mut buffer) {
                Ok(0) => return self.end(news, now),
                Ok(n) => self.input.extend_from_slice(&buffer[..n]),
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return self.end(news, now),
            }
            self.hear(news, now);
            if self.input.len() > LINE_MAX {
                return self.end(news, now);
            }
        }
    }

    /// Takes the lines that are there.
    fn hear(&mut self, news: &mut News, now: Ns) {
        while let Some(at) = self.input.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.input.drain(..=at).collect();
            // The stream is authenticated: what does not parse is from a newer version, and not for us.
            if let Ok(message) = serde_json::from_slice(&line) {
                news.received(self.side, message, now);
            }
        }
    }

    fn end(&mut self, news: &mut News, now: Ns) {
        self.stream = None;
        self.output.clear();
        news.ended(self.side, now);
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
