//! The protocol between an inspector and a process: one JSON object a line, so that `nc -U` is an
//! inspector too.
//!
//! ```text
//!   server: {"ccl":"control/1","version":"0.1.0","pid":71,"job":"00...2a",
//!            "capabilities":["snapshot",...]}   first, unasked
//!   client: {"request":"snapshot","id":7}
//!   server: {"id":7,"snapshot":{...}}        or {"id":7,"error":{"kind":"unknown","what":"..."}}
//!   client: {"request":"subscribe","id":8,"every_ms":100}
//!   server: {"id":8,"update":{...}}          repeated, each time with the rows that changed
//!   client: {"request":"gather","id":9}
//!   server: {"id":9,"gather":{"rows":[...],"more":true}}   repeated, until there is no more
//! ```
//!
//! Unknown fields are ignored and absent fields have a default, so that either side may be older.
//! Answers come in the order of the requests, except that what is gathered from other hosts comes
//! when it is there. 64-bit ids are hex strings.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::gather::{Gathered, GatheredRow, Lack};
use crate::clock::{self, Ns};
use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::{ProcessSnapshot, Update};
use crate::sys::is_transient;
use crate::sys::reference::Reference;
use crate::sys::unix::{self, Name, Stream};
use crate::text::harmless;
use crate::types::{CommId, JobId, Rank};

/// The protocol of this version's server.
pub const PROTOCOL: &str = "control/1";
/// The longest line a server reads.
pub const MAX_REQUEST: usize = 64 << 10;
/// The longest line a server writes and a client reads.
pub const MAX_ANSWER: usize = 8 << 20;
/// The most bytes of a refusal that are repeated.
const MAX_REFUSAL: usize = 1 << 10;
/// The most memory that all rows take that were gathered, and the most statements on what is
/// missing.
const MAX_GATHERED: usize = 64 << 20;
const MAX_LACKS: usize = 1 << 12;
/// How long a client waits for an answer before it reads the mapping instead.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(250);

/// The first line of a server.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub ccl: String,
    /// The version of its library.
    pub version: String,
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// The job of its first communicator; zero while it has none.
    pub job: JobId,
    /// The requests it answers.
    pub capabilities: Vec<String>,
}

impl Hello {
    /// Whether the server answers this request.
    #[must_use]
    pub fn can(&self, request: &str) -> bool {
        self.capabilities.iter().any(|capability| capability == request)
    }
}

/// A request.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// The request: `hello`, `snapshot`, `histograms`, `dump`, `level`, `subscribe`,
    /// `gather`, `abort`.
    pub request: String,
    /// The id that the answer repeats.
    pub id: u64,
    /// `level`, `abort`: the communicator; absent for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<CommId>,
    /// `level`: the least level, until the client leaves; absent to end the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// `subscribe`: the interval, at least 50 ms. 0 ends the subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// `abort`: the reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// An answer: `error`, or the field named like the request.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// The id of the request.
    pub id: u64,
    /// Why the request was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Refusal>,
    /// The first line again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hello: Option<Hello>,
    /// One reading of the process's recorder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Box<ProcessSnapshot>>,
    /// The durations of operations so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histograms: Option<Vec<Histogram>>,
    /// Everything the recorder holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dump: Option<Box<Dump>>,
    /// The level now in force for the requested communicator or process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// What changed since the last update; the first has everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update: Option<Box<Update>>,
    /// A part of what was gathered from other hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gather: Option<Box<Gathered>>,
    /// The number of communicators aborted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort: Option<u64>,
}

/// Why a request was not answered.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// `usage`: the request is wrong. `unknown`: this version does not have such a request.
    /// `denied`: not allowed here. `busy`: too many clients. `failed`: it was tried. `idle`: the
    /// client sent no request for a minute, and has lost its seat.
    pub kind: String,
    /// One sentence.
    pub what: String,
}

/// The durations of one kind of operation and one size class, on one communicator and rank.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Histogram {
    /// The communicator.
    pub comm: CommId,
    /// The communicator's name.
    pub name: String,
    /// The rank in the communicator.
    pub rank: Rank,
    /// The kind of operation.
    pub kind: String,
    /// The largest size of the class in bytes; absent for the last class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_bytes: Option<u64>,
    /// The sum of all durations.
    pub sum_ns: u64,
    /// The sum of all bytes.
    pub sum_bytes: u64,
    /// Upper bound, exclusive, in nanoseconds (null for the last) and count.
    pub buckets: Vec<(Option<u64>, u64)>,
}

/// Everything a recorder holds.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Dump {
    /// The current state.
    pub snapshot: ProcessSnapshot,
    /// The durations so far.
    pub histograms: Vec<Histogram>,
    /// The events so far, by communicator and rank.
    pub rings: Vec<RingDump>,
}

/// The events of one rank of a communicator, or of the process.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RingDump {
    /// The communicator; absent for events of the process itself, and for those whose owner is
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<CommId>,
    /// The rank in that communicator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Events that were overwritten before they were read.
    pub lost: u64,
    /// The events, oldest first.
    pub events: Vec<EventDump>,
}

/// An event as text.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct EventDump {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub mono_ns: u64,
    /// What happened.
    pub event: String,
}

/// A client that waits for each answer, with a short timeout.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    hello: Hello,
    buffer: Vec<u8>,
    next_id: u64,
    patience: Duration,
}

impl Client {
    /// Connects to the socket at `path`, of any length, and reads the server's hello.
    ///
    /// # Errors
    /// `Unavailable` if no process listens there or it does not speak this protocol; `Timeout` if
    /// it does not answer within [`ANSWER_WITHIN`].
    pub fn connect(path: &Path) -> Result<Self> {
        Self::greet(unix::connect(Name::Path(path)), path, ANSWER_WITHIN)
    }

    /// Like [`connect`](Self::connect), with another timeout for each answer. For tests and the
    /// bench.
    ///
    /// # Errors
    /// As `connect`.
    pub fn connect_within(path: &Path, patience: Duration) -> Result<Self> {
        Self::greet(unix::connect(Name::Path(path)), path, patience)
    }

    /// Connects to a socket that was looked at before, with the rights of its owner.
    ///
    /// `path` names it in messages. Seen from a user namespace that does not map it, root would
    /// look like nobody, and be refused.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn through(socket: &Reference, path: &Path) -> Result<Self> {
        Self::greet(socket.connect(), path, ANSWER_WITHIN)
    }

    fn greet(stream: std::io::Result<Stream>, path: &Path, patience: Duration) -> Result<Self> {
        let stream = stream.map_err(|e| unavailable(format!("connecting to {}: {e}", path.display())))?;
        let mut client = Self { stream, hello: Hello::default(), buffer: Vec::new(), next_id: 1, patience };
        let line = client.line(clock::now().after(patience))?;
        // A server that refuses the client sends the reason in place of its hello.
        if let Some(refusal) = parse::<Answer>(&line).ok().and_then(|answer| answer.error) {
            return Err(refused(&refusal));
        }
        client.hello = parse(&line)
            .ok()
            .filter(|hello: &Hello| hello.ccl == PROTOCOL)
            .ok_or_else(|| unavailable(format!("{} does not speak ccl's {PROTOCOL}", path.display())))?;
        Ok(client)
    }

    /// The first line of the server.
    #[must_use]
    pub const fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Sends a request, and waits for the answer. The id is filled in here.
    ///
    /// # Errors
    /// `Timeout` without an answer in time: then this client is of no further use. `Unavailable` if
    /// the server left or refused, with its message; `Usage` if it found the request wrong.
    pub fn ask(&mut self, request: Request) -> Result<Answer> {
        let deadline = clock::now().after(self.patience);
        let id = self.next_id;
        self.next_id += 1;
        let mut line = to_line(&Request { id, ..request });
        while !line.is_empty() {
            self.wait(PollFlags::OUT, deadline)?;
            match self.stream.write(&line) {
                Ok(count) => drop(line.drain(..count)),
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(unavailable(format!("the process does not listen any more: {e}"))),
            }
        }
        self.next_of(id, deadline)
    }

    /// Requests one reading of the process's recorder.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn snapshot(&mut self) -> Result<ProcessSnapshot> {
        let answer = self.ask(Request { request: "snapshot".into(), ..Request::default() })?;
        let mut process = answer.snapshot.ok_or_else(|| unavailable("an answer without a snapshot"))?;
        if process.is_believed() { Ok(*process) } else { Err(too_much()) }
    }

    /// Asks for the processes of other hosts, and of this one, that the process reaches.
    ///
    /// It takes `limit` at most, which is the timeout of later requests too. If it ends early, what
    /// has arrived is returned. `is_enough` is shown the processes as they arrive; if it says so,
    /// the rest of the answer is not waited for, and the client is of no more use.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), if nothing has arrived.
    pub fn gather(
        &mut self,
        limit: Duration,
        mut is_enough: impl FnMut(&[GatheredRow]) -> bool,
    ) -> Result<Gathered> {
        let deadline = clock::now().after(limit);
        self.patience = limit;
        let mut answer = self.ask(Request { request: "gather".into(), ..Request::default() });
        let mut all = Gathered::default();
        let mut bytes = 0;
        loop {
            let part =
                answer.and_then(|answer| answer.gather.ok_or_else(|| unavailable("an answer without rows")));
            let mut part = match part {
                Ok(part) => part,
                // What has arrived counts.
                Err(error) if all.rows.is_empty() && all.lacks.is_empty() => return Err(error),
                Err(_) => return Ok(all),
            };
            part.rows.retain_mut(GatheredRow::is_believed);
            part.lacks.retain_mut(Lack::is_believed);
            bytes += part.rows.iter_mut().map(|row| row.process.weight()).sum::<usize>();
            if bytes > MAX_GATHERED || all.lacks.len() + part.lacks.len() > MAX_LACKS {
                return Err(too_much());
            }
            let is_last = !part.more || is_enough(&part.rows);
            all.rows.append(&mut part.rows);
            all.lacks.append(&mut part.lacks);
            all.more = part.more;
            if is_last {
                break;
            }
            answer = self.next_of(self.next_id - 1, deadline);
        }
        Ok(all)
    }

    /// The next line with this id.
    fn next_of(&mut self, id: u64, deadline: Ns) -> Result<Answer> {
        loop {
            let line = self.line(deadline)?;
            let answer: Answer = parse(&line)?;
            // A line without the id of this request is not its answer, or is something that a later
            // version sends unasked.
            if answer.id == id {
                return answer.error.as_ref().map_or(Ok(()), |why| Err(refused(why))).map(|()| answer);
            }
            self.in_time(deadline)?;
        }
    }

    /// Subscribes to updates of the process, until the returned subscription is dropped.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn subscribe(mut self, every: Duration) -> Result<Subscription> {
        let every_ms = Some(every.as_millis().max(1) as u64);
        let request = Request { request: "subscribe".into(), every_ms, ..Request::default() };
        let first = self.ask(request)?;
        let mut subscription = Subscription {
            id: self.next_id - 1,
            client: self,
            process: ProcessSnapshot::default(),
            skipped: 0,
        };
        subscription.take(first)?;
        Ok(subscription)
    }

    /// Raises the level of one communicator, or of all, until this client is dropped.
    ///
    /// Returns the level in force.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn level(&mut self, comm: Option<CommId>, level: u8) -> Result<u8> {
        let request = Request { request: "level".into(), comm, level: Some(level), ..Request::default() };
        self.ask(request)?.level.ok_or_else(|| unavailable("an answer without a level"))
    }

    /// Aborts one communicator, or all, if the job allows it; returns their number.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn abort(&mut self, comm: Option<CommId>, reason: &str) -> Result<u64> {
        let request = Request { request: "abort".into(), comm, reason: reason.into(), ..Request::default() };
        self.ask(request)?.abort.ok_or_else(|| unavailable("an answer without a count"))
    }

    /// The next line, without its end.
    fn line(&mut self, deadline: Ns) -> Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|&byte| byte == b'\n') {
                let rest = self.buffer.split_off(searched + at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(line);
            }
            searched = self.buffer.len();
            if searched > MAX_ANSWER {
                return Err(unavailable("the process sent a line without end"));
            }
            self.wait(PollFlags::IN, deadline)?;
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(unavailable("the process closed the connection")),
                Ok(count) => self.buffer.extend(&bytes[..count]),
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(unavailable(format!("the process does not answer any more: {e}"))),
            }
        }
    }

    /// A server that sends lines without end does not answer.
    fn in_time(&self, deadline: Ns) -> Result<()> {
        if clock::now() < deadline { Ok(()) } else { Err(self.late()) }
    }

    fn late(&self) -> Error {
        let what = format!("the process did not answer within {} ms", self.patience.as_millis());
        Error::new(ErrorKind::Timeout, what)
    }

    fn wait(&self, flags: PollFlags, deadline: Ns) -> Result<()> {
        loop {
            // With no time left it still takes what has arrived.
            let left = deadline.since(clock::now());
            let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.stream, flags)], Some(&timeout)) {
                Ok(0) if left.is_zero() => return Err(self.late()),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(Error::system("waiting for a process to answer", e)),
            }
        }
    }
}

/// A process that sends updates of itself.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    id: u64,
    process: ProcessSnapshot,
    skipped: u64,
}

impl Subscription {
    /// Waits for the next update; returns the process as it is then.
    ///
    /// # Errors
    /// `Timeout` if none comes within `patience`, which may be tried again; `Unavailable` if the
    /// process has left.
    pub fn next(&mut self, patience: Duration) -> Result<&ProcessSnapshot> {
        let deadline = clock::now().after(patience);
        loop {
            let line = self.client.line(deadline)?;
            let answer: Answer = parse(&line)?;
            if answer.id == self.id {
                self.take(answer)?;
                return Ok(&self.process);
            }
            self.client.in_time(deadline)?;
        }
    }

    /// The process as of the last update.
    #[must_use]
    pub const fn process(&self) -> &ProcessSnapshot {
        &self.process
    }

    /// The number of updates that were left out because this side was slow.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    fn take(&mut self, answer: Answer) -> Result<()> {
        if let Some(why) = &answer.error {
            return Err(refused(why));
        }
        let update = answer.update.ok_or_else(|| unavailable("an answer without an update"))?;
        self.skipped = self.skipped.saturating_add(update.skipped);
        self.process.apply(*update);
        // Each update may be small, and the sum of all grow without end.
        if self.process.is_believed() { Ok(()) } else { Err(too_much()) }
    }
}

/// One line of the protocol. A value that cannot be written, which none of ours is, becomes an
/// empty object.
pub(super) fn to_line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_else(|_| b"{}".to_vec());
    line.push(b'\n');
    line
}

fn unavailable(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}

/// The most objects, the most arrays, which may stand for objects, and the most values in a line.
/// Those of an empty recorder's answer take twenty bytes each. A value takes at least two bytes of
/// a line, but a hundred in memory.
const MAX_OBJECTS: usize = 1 << 16;
const MAX_VALUES: usize = 1 << 20;

/// Whether a line has no more objects and values than one of ours: it may be parsed.
pub(super) fn is_plausible(line: &[u8]) -> bool {
    let count = |wanted: u8| line.iter().filter(|byte| **byte == wanted).count();
    [b'{', b'['].iter().all(|one| count(*one) <= MAX_OBJECTS) && count(b',') <= MAX_VALUES
}

/// Parses a line.
fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T> {
    if !is_plausible(line) {
        return Err(too_much());
    }
    serde_json::from_slice(line)
        .map_err(|e| unavailable(format!("the process said what cannot be understood: {e}")))
}

fn too_much() -> Error {
    unavailable("the process tells of more than a recorder holds")
}

fn refused(why: &Refusal) -> Error {
    let kind = if why.kind == "usage" { ErrorKind::Usage } else { ErrorKind::Unavailable };
    Error::new(kind, format!("the process refused: {}", harmless(&why.what, MAX_REFUSAL)))
}
