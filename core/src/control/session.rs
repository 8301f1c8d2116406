//! One client of the control socket: lines in, lines out, both bounded. A session never blocks, and
//! the server never waits for it.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::asking::Asking;
use super::lease::Lease;
use super::wire::{Answer, MAX_REQUEST};
use crate::clock::Ns;
use crate::reactor::Interest;
use crate::snapshot::ProcessSnapshot;
use crate::sys::is_transient;
use crate::sys::unix::Stream;
use crate::types::CommId;

/// How long a client may leave an answer unread.
pub(super) const TAKE_WITHIN: Duration = Duration::from_secs(5);
/// How long a client without a subscription or a lease may go without a request: its seat may be
/// the last one.
pub(super) const ASK_WITHIN: Duration = Duration::from_secs(60);
/// The most pieces of 4 KiB read from one client in one turn: other clients need their turn too.
const PIECES_PER_TURN: usize = 4;
/// The most leases of one client: one for each communicator is plenty.
const MAX_LEASES: usize = 64;

/// A client.
#[derive(Debug)]
pub(super) struct Session {
    stream: Stream,
    input: Vec<u8>,
    /// The length of the input that was already searched for an end of line.
    searched: usize,
    output: Vec<u8>,
    sent: usize,
    /// When the client last took some of the output.
    taken: Ns,
    /// When it connected, or last sent a request.
    asked: Ns,
    /// The client sends no more.
    ended: bool,
    /// It is closed once it has the output.
    closing: bool,
    leases: Vec<Lease>,
    subscription: Option<Subscription>,
    asking: Option<Asking>,
}

/// The repeated updates of a client.
#[derive(Debug)]
pub(super) struct Subscription {
    /// The id of the request.
    id: u64,
    every: Duration,
    due: Ns,
    /// The last reading that the client got.
    pub(super) told: ProcessSnapshot,
    /// The updates left out since, because the client had not taken the one before.
    pub(super) skipped: u64,
}

impl Subscription {
    /// A subscription of a client that gets `told` now.
    pub(super) const fn new(id: u64, every: Duration, told: ProcessSnapshot, now: Ns) -> Self {
        Self { id, every, due: next(every, now), told, skipped: 0 }
    }

    /// The id of the request.
    pub(super) const fn id(&self) -> u64 {
        self.id
    }
}

/// The next multiple of `every`. All processes of a host share the clock, so a client that
/// subscribes to several processes gets updates of the same times.
const fn next(every: Duration, now: Ns) -> Ns {
    let every = every.as_nanos() as u64;
    Ns((now.0 / every + 1) * every)
}

/// The fate of a client after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// It waits for input or output.
    Stays,
    /// It has more requests: turn it again soon.
    Hurries,
    /// It is gone, or was closed.
    Leaves,
}

/// A line of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line<'a> {
    /// A request.
    Whole(&'a [u8]),
    /// More than [`MAX_REQUEST`] bytes without an end of line: the client is not read any more.
    TooLong,
    /// No line for [`ASK_WITHIN`].
    None,
}

impl Session {
    /// A client that first gets `greeting`; and nothing else, if `let_in` is false.
    pub(super) const fn new(stream: Stream, greeting: Vec<u8>, let_in: bool, now: Ns) -> Self {
        Self {
            stream,
            input: Vec::new(),
            searched: 0,
            output: greeting,
            sent: 0,
            taken: now,
            asked: now,
            ended: false,
            closing: !let_in,
            leases: Vec::new(),
            subscription: None,
            asking: None,
        }
    }

    /// Begins a question that is answered later; false if there is one already.
    pub(super) fn asks(&mut self, begin: impl FnOnce() -> crate::Result<Asking>) -> crate::Result<bool> {
        let is_first = self.asking.is_none();
        if is_first {
            self.asking = Some(begin()?);
        }
        Ok(is_first)
    }

    /// Queues the next part of the answer to such a question, if there is one and the client has
    /// taken the last line; whether it did. The session must be turned after it.
    pub(super) fn says_part(&mut self, line: impl FnOnce(Answer) -> Vec<u8>, now: Ns) -> bool {
        let is_free = self.output.is_empty() && !self.closing;
        let Some(part) = self.asking.as_mut().filter(|_| is_free).and_then(Asking::part) else {
            return false;
        };
        if part.gather.as_ref().is_none_or(|gathered| !gathered.more) {
            self.asking = None;
        }
        self.say(line(part), now);
        true
    }

    /// Begins or ends a subscription.
    pub(super) fn subscribe(&mut self, subscription: Option<Subscription>) {
        self.subscription = subscription;
    }

    /// When the next update is due.
    pub(super) fn due(&self) -> Option<Ns> {
        self.subscription.as_ref().map(|subscription| subscription.due)
    }

    /// The subscription, if its next update is due and can be sent.
    ///
    /// An update that comes due while the last one is not taken is left out: a slow client gets
    /// fewer updates, not more at once. The same holds if there is no time to make one
    /// (`has_time`).
    pub(super) fn takes_update(&mut self, now: Ns, has_time: bool) -> Option<&mut Subscription> {
        let is_free = has_time && self.output.is_empty() && !self.closing;
        let subscription = self.subscription.as_mut().filter(|subscription| subscription.due <= now)?;
        subscription.due = next(subscription.every, now);
        if !is_free {
            subscription.skipped += 1;
        }
        Some(subscription).filter(|_| is_free)
    }

    /// Queues a line that was not requested just now. The session must be turned after it.
    pub(super) fn say(&mut self, line: Vec<u8>, now: Ns) {
        self.output = line;
        (self.sent, self.taken) = (0, now);
    }

    /// The events it waits for; while clients `rest`, only that it takes its output.
    pub(super) fn interest(&self, rest: bool) -> Option<Interest> {
        let write = self.sent < self.output.len();
        let interest = Interest { fd: self.stream.as_fd().as_raw_fd(), read: !write && !self.ended, write };
        (write || !rest).then_some(interest)
    }

    /// When it is closed, if it takes no output or sends no request until then. A client with a
    /// subscription or a lease need not send requests.
    pub(super) fn deadline(&self) -> Option<Ns> {
        if self.sent < self.output.len() {
            return Some(self.taken.after(TAKE_WITHIN));
        }
        let waits = self.subscription.is_some() || self.asking.is_some() || !self.leases.is_empty();
        (!waits).then(|| self.asked.after(ASK_WITHIN))
    }

    /// The leases it holds.
    pub(super) fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Changes one lease; false if the client has too many.
    pub(super) fn lease(&mut self, (comm, level): Lease) -> bool {
        self.release(comm);
        let room = self.leases.len() < MAX_LEASES;
        if room {
            self.leases.push((comm, level));
        }
        room
    }

    /// Ends one lease.
    pub(super) fn release(&mut self, comm: Option<CommId>) {
        self.leases.retain(|(of, _)| *of != comm);
    }

    /// Sends, reads and answers one request, as far as possible without blocking.
    pub(super) fn turn(&mut self, now: Ns, answer: &mut dyn FnMut(&mut Self, Line<'_>) -> Vec<u8>) -> Fate {
        for _ in 0..PIECES_PER_TURN {
            if !self.flush(now) {
                return Fate::Leaves;
            }
            let is_late = self.deadline().is_some_and(|deadline| now >= deadline);
            if self.sent < self.output.len() {
                return if is_late { Fate::Leaves } else { Fate::Stays };
            }
            if self.closing {
                return Fate::Leaves;
            }
            if let Some(line) = self.line() {
                self.asked = now;
                let answer = answer(self, Line::Whole(&line));
                self.say(answer, now);
                return if self.flush(now) { Fate::Hurries } else { Fate::Leaves };
            } else if self.input.len() > MAX_REQUEST {
                let answer = answer(self, Line::TooLong);
                self.say(answer, now);
                self.closing = true;
            } else if self.ended {
                // It may still read what it asked for.
                return if self.asking.is_some() { Fate::Stays } else { Fate::Leaves };
            } else {
                match self.fill() {
                    Ok(true) => {}
                    Ok(false) if is_late => {
                        let answer = answer(self, Line::None);
                        self.say(answer, now);
                        self.closing = true;
                    }
                    Ok(false) => return Fate::Stays,
                    Err(()) => return Fate::Leaves,
                }
            }
        }
        Fate::Hurries
    }

    /// Only sends, while clients rest.
    pub(super) fn rest(&mut self, now: Ns) -> Fate {
        let is_there = self.flush(now);
        let is_late =
            self.sent < self.output.len() && self.deadline().is_some_and(|deadline| now >= deadline);
        if is_there && !is_late { Fate::Stays } else { Fate::Leaves }
    }

    /// Sends what the kernel takes; false if the client is gone.
    fn flush(&mut self, now: Ns) -> bool {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    self.taken = now;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return is_transient(&e),
            }
        }
        // Frees the buffer: an answer may have been large, and the next may be long in coming.
        self.output = Vec::new();
        self.sent = 0;
        true
    }

    /// Reads a piece; true if something came or the stream ended.
    fn fill(&mut self) -> Result<bool, ()> {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => {
                self.ended = true;
                // A last line may lack its newline.
                if !self.input.is_empty() {
                    self.input.push(b'\n');
                }
                Ok(true)
            }
            Ok(count) => {
                self.input.extend(&bytes[..count]);
                Ok(true)
            }
            Err(e) if is_transient(&e) => Ok(false),
            Err(_) => Err(()),
        }
    }

    /// Takes the oldest whole line out of the input.
    fn line(&mut self) -> Option<Vec<u8>> {
        let Some(at) = self.input[self.searched..].iter().position(|&byte| byte == b'\n') else {
            self.searched = self.input.len();
            return None;
        };
        let rest = self.input.split_off(self.searched + at + 1);
        let mut line = std::mem::replace(&mut self.input, rest);
        self.searched = 0;
        line.pop();
        Some(line)
    }
}
