//! Runs the gathering of a process: the machine of [`wave`](super::wave) on real streams, in the
//! service thread. Recorders are read in a thread of their own, one at a time.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::answer::{GatheredRow, Lack};
use super::ask::{EdgeId, HARD, Seat};
use super::local;
use super::message::{MAX_LINE, WaveMessage};
use super::readings::Readings;
use super::tree::HostTree;
use super::wave::{Action, Gather, Home, Piece};
use crate::bootstrap::auth::{Hello, Purpose, fill_random};
use crate::clock::{self, Ns};
use crate::error::Result;
use crate::failure::edge::Dialling;
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::recorder::Recorder;
use crate::sys;
use crate::sys::fds::Fd;
use crate::transport::socket::connect::{Connecting, Target};
use crate::transport::socket::listen::Listener;
use crate::types::Rank;

/// The most bytes read from one stream in one turn: other tasks need their turn too.
const READ_PER_TURN: usize = 256 << 10;
/// The most bytes that wait to be sent on one stream: those of an answer, about.
const MAX_OUTPUT: usize = 64 << 20;
/// How long to try to connect to the parent: its process may be busy with its own init.
const KEPT_WITHIN: Duration = Duration::from_secs(30);

/// How long a rank's listener must refuse connections before the rank counts as gone.
const REFUSED: Duration = Duration::from_millis(200);

/// How a rank reaches the others of its communicator, and how they reach it.
pub(crate) struct Way {
    pub(crate) tree: HostTree,
    pub(crate) dialling: Dialling,
    pub(crate) listener: Arc<Listener>,
}

/// The part of a process that gathers: one, whatever the number of its communicators.
pub(crate) struct Gathering {
    shared: Arc<Shared>,
    handle: Arc<Handle>,
}

/// A rank of a communicator whose edges are kept as long as this lives.
pub(crate) struct Member {
    seat: Seat,
    gathering: Arc<Gathering>,
    /// Where ranks that stand in for others connect to.
    _listener: Arc<Listener>,
}

/// A question that was asked here. Dropping it ends the question.
pub(crate) struct Ticket {
    wave: u64,
    shared: Arc<Shared>,
    // Weak: the last communicator of the process ends the gathering.
    gathering: Weak<Gathering>,
}

static OF_PROCESS: Mutex<Weak<Gathering>> = Mutex::new(Weak::new());

/// Calls somebody who waits.
type Call = Box<dyn Fn() + Send>;

/// What other threads want of the task, and what it has for them.
#[derive(Default)]
struct Shared {
    wishes: Mutex<Vec<Wish>>,
    /// By question: the parts of the answer that were not taken yet, and whom to call.
    answers: Mutex<BTreeMap<u64, (Vec<Piece>, Call)>>,
    /// The seats whose edge to their parent is up, or was refused.
    ready: Mutex<Vec<Seat>>,
    is_ready: Condvar,
}

enum Wish {
    Join(Seat, Box<Way>),
    Leave(Seat),
    Ask(u64),
    Forget(u64),
    /// The reading under way has ended.
    Read(Vec<GatheredRow>, Vec<Lack>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one push, one take, one insert or one removal.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Gathering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gathering")
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({:?})", self.seat)
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({:016x})", self.wave)
    }
}

impl Gathering {
    /// The gathering of this process, if it has a communicator over several hosts.
    pub(crate) fn known() -> Option<Arc<Self>> {
        lock(&OF_PROCESS).upgrade()
    }

    fn of_process(recorder: &Arc<Recorder>) -> Result<Arc<Self>> {
        sys::not_forked()?;
        let mut slot = lock(&OF_PROCESS);
        if let Some(known) = slot.upgrade() {
            return Ok(known);
        }
        let shared = Arc::<Shared>::default();
        let home = recorder.reader().snapshot().map(|own| (own.boot_id, own.host_id)).unwrap_or_default();
        let run = Run::new(home, Arc::clone(&shared), Arc::clone(recorder));
        let caller = Arc::clone(&run.caller);
        let handle = Arc::new(Service::get()?.add(run)?);
        *lock(&caller) = Arc::downgrade(&handle);
        let made = Arc::new(Self { shared, handle });
        *slot = Arc::downgrade(&made);
        Ok(made)
    }

    /// Asks all processes that can be reached; `call` is called when a part of the answer is there.
    ///
    /// # Errors
    /// `System` if there are no random numbers.
    pub(crate) fn ask(self: &Arc<Self>, call: impl Fn() + Send + 'static) -> Result<Ticket> {
        let mut wave = [0; 8];
        fill_random(&mut wave)?;
        let wave = u64::from_le_bytes(wave);
        lock(&self.shared.answers).insert(wave, (Vec::new(), Box::new(call)));
        self.wish(Wish::Ask(wave));
        Ok(Ticket { wave, shared: Arc::clone(&self.shared), gathering: Arc::downgrade(self) })
    }

    fn wish(&self, wish: Wish) {
        lock(&self.shared.wishes).push(wish);
        self.handle.nudge();
    }
}

impl Member {
    /// Takes part in gathering. Waits until the edge to the parent is up, at most for `limit`: a
    /// communicator works without.
    ///
    /// # Errors
    /// `System` if the service thread cannot run.
    pub(crate) fn join(recorder: &Arc<Recorder>, way: Way, limit: Duration) -> Result<Arc<Self>> {
        let gathering = Gathering::of_process(recorder)?;
        let seat = (way.dialling.comm, way.dialling.me);
        let listener = Arc::clone(&way.listener);
        let arrivals = Arc::clone(listener.gathers());
        let member = Arc::new(Self { seat, gathering: Arc::clone(&gathering), _listener: listener });
        gathering.wish(Wish::Join(seat, Box::new(way)));
        // Weak: what the listener keeps must not keep the gathering alive.
        let it = Arc::downgrade(&gathering);
        arrivals.call(move || {
            if let Some(gathering) = it.upgrade() {
                gathering.handle.nudge();
            }
        });
        let end = clock::now().after(limit);
        let mut ready = lock(&gathering.shared.ready);
        while !ready.contains(&seat) {
            let left = end.since(clock::now());
            if left.is_zero() {
                break;
            }
            let waited = gathering.shared.is_ready.wait_timeout(ready, left);
            ready = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(ready);
        Ok(member)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A forked child has a copy: another thread of the parent may hold the lock.
        if !sys::forked() {
            self.gathering.wish(Wish::Leave(self.seat));
        }
    }
}

impl Ticket {
    /// What has arrived since the last call.
    pub(crate) fn take(&self) -> Vec<Piece> {
        let mut answers = lock(&self.shared.answers);
        let mut pieces: Vec<Piece> =
            answers.get_mut(&self.wave).map(|(pieces, _)| std::mem::take(pieces)).unwrap_or_default();
        if pieces.is_empty() && self.gathering.strong_count() == 0 {
            let why = "the process left its communicators meanwhile".into();
            pieces.extend([Piece::Lack(Lack { why, ..Lack::default() }), Piece::Done]);
        }
        pieces
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !sys::forked() {
            lock(&self.shared.answers).remove(&self.wave);
            if let Some(gathering) = self.gathering.upgrade() {
                gathering.wish(Wish::Forget(self.wave));
            }
        }
    }
}

/// A connection that is up.
struct Stream {
    fd: Fd,
    input: Vec<u8>,
    /// The length of the input that was searched for the end of a line.
    searched: usize,
    output: Vec<u8>,
    sent: usize,
    /// Close it once all is sent.
    is_closing: bool,
}

/// How a stream has fared in a turn.
#[derive(PartialEq, Eq)]
enum Fate {
    Stays,
    /// There may be more to read.
    Hurries,
    Ended,
}

impl Stream {
    const fn new(fd: Fd) -> Self {
        Self { fd, input: Vec::new(), searched: 0, output: Vec::new(), sent: 0, is_closing: false }
    }

    fn interest(&self) -> Interest {
        let write = self.sent < self.output.len();
        Interest { fd: self.fd.as_fd().as_raw_fd(), read: true, write }
    }

    /// Reads lines, as many as one turn allows.
    fn read(&mut self, hear: &mut dyn FnMut(&[u8])) -> Fate {
        let mut buffer = [0; 16 << 10];
        let mut taken = 0;
        while taken < READ_PER_TURN {
            match rustix::io::read(self.fd.as_fd(), &mut buffer) {
                Ok(count) if count > 0 => {
                    taken += count;
                    self.input.extend_from_slice(&buffer[..count]);
                }
                Err(Errno::AGAIN) => return Fate::Stays,
                Err(Errno::INTR) => continue,
                Ok(_) | Err(_) => return Fate::Ended,
            }
            let mut from = 0;
            while let Some(at) = self.input[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + at + 1;
                hear(&self.input[from..end]);
                (from, self.searched) = (end, end);
            }
            self.input.drain(..from);
            self.searched = self.input.len();
            if self.input.len() > MAX_LINE {
                return Fate::Ended;
            }
        }
        Fate::Hurries
    }

    /// Sends what the kernel takes.
    fn write(&mut self) -> Fate {
        while self.sent < self.output.len() {
            match send(self.fd.as_fd(), &self.output[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Fate::Stays,
                Err(Errno::INTR) => {}
                Err(_) => return Fate::Ended,
            }
        }
        // Frees the memory: an answer may have been large.
        (self.output, self.sent) = (Vec::new(), 0);
        if self.is_closing { Fate::Ended } else { Fate::Stays }
    }
}

/// The task.
struct Run {
    gather: Gather,
    shared: Arc<Shared>,
    recorder: Arc<Recorder>,
    ways: BTreeMap<Seat, Box<Way>>,
    streams: BTreeMap<EdgeId, Stream>,
    dials: BTreeMap<EdgeId, Connecting>,
    /// Streams to be closed when they have sent all.
    last: Vec<Stream>,
    readings: Readings,
    caller: Arc<Mutex<Weak<Handle>>>,
}

impl Task for Run {
    fn interests(&self, out: &mut Vec<Interest>) {
        out.extend(self.streams.values().map(Stream::interest));
        out.extend(self.last.iter().map(|stream| Interest { read: false, ..stream.interest() }));
        out.extend(self.dials.values().flat_map(Connecting::fds));
    }

    fn turn(&mut self, now: Ns) -> Turn {
        let wishes = std::mem::take(&mut *lock(&self.shared.wishes));
        for wish in wishes {
            self.grant(wish, now);
        }
        self.arrivals(now);
        self.connect(now);
        let hurries = self.hear();
        let now = clock::now();
        let due = self.gather.tick(now);
        // Acting may fail at once, which is heard.
        loop {
            let out = self.gather.take_out();
            if out.is_empty() {
                break;
            }
            out.into_iter().for_each(|action| self.act(action, now));
        }
        self.send(now);
        self.tell_ready();
        let again = !lock(&self.shared.wishes).is_empty();
        let dials = self.dials.values().map(Connecting::wake);
        let soon = (hurries || again).then_some(now);
        Turn::Again(dials.chain(due).chain(soon).min())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Who waits is told that nothing more comes.
        lock(&self.shared.answers).values().for_each(|(_, call)| call());
    }
}

impl Run {
    fn new(home: Home, shared: Arc<Shared>, recorder: Arc<Recorder>) -> Self {
        Self {
            gather: Gather::of(home),
            shared,
            recorder,
            ways: BTreeMap::new(),
            streams: BTreeMap::new(),
            dials: BTreeMap::new(),
            last: Vec::new(),
            readings: Readings::default(),
            caller: Arc::default(),
        }
    }

    fn grant(&mut self, wish: Wish, now: Ns) {
        match wish {
            Wish::Join(seat, way) => {
                self.gather.join(seat, way.tree.clone(), now);
                self.ways.insert(seat, way);
            }
            Wish::Leave(seat) => {
                self.gather.leave(seat, now);
                self.ways.remove(&seat);
                lock(&self.shared.ready).retain(|ready| *ready != seat);
            }
            Wish::Ask(wave) => {
                if !self.gather.ask(wave, now) {
                    let why = "this process gathers for others already: ask again".into();
                    self.tell(wave, Piece::Lack(Lack { why, ..Lack::default() }));
                    self.tell(wave, Piece::Done);
                }
            }
            Wish::Forget(wave) => self.gather.forget(wave),
            Wish::Read(rows, lacks) => {
                for wave in self.readings.end() {
                    self.gather.read(wave, rows.clone(), lacks.clone(), now);
                }
                self.read_next();
            }
        }
    }

    /// Takes the connections of others.
    fn arrivals(&mut self, now: Ns) {
        for (seat, way) in &self.ways {
            for (from, _, fd) in way.listener.gathers().take() {
                if let Some(edge) = self.gather.accepted(*seat, from, now) {
                    self.streams.insert(edge, Stream::new(fd));
                }
            }
        }
    }

    /// Moves the connections on that are being made.
    fn connect(&mut self, now: Ns) {
        for id in self.dials.keys().copied().collect::<Vec<_>>() {
            let Some(dial) = self.dials.get_mut(&id) else { continue };
            match dial.streams(now) {
                Ok(None) => {
                    if dial.refused_since().is_some_and(|since| now.since(since) >= REFUSED) {
                        self.dials.remove(&id);
                        self.gather.lost(id, "nobody listens there any more", now);
                    }
                }
                Ok(Some(mut streams)) => {
                    self.dials.remove(&id);
                    if let Some(fd) = streams.pop().and_then(Arc::into_inner) {
                        self.streams.insert(id, Stream::new(fd));
                        self.gather.opened(id, now);
                    }
                }
                Err(error) => {
                    self.dials.remove(&id);
                    self.gather.lost(id, &error.what, now);
                }
            }
        }
    }

    /// Reads what has arrived; whether there may be more.
    fn hear(&mut self) -> bool {
        let mut hurries = false;
        for id in self.streams.keys().copied().collect::<Vec<_>>() {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            let gather = &mut self.gather;
            let fate = stream.read(&mut |line| {
                // The stream is authenticated. A line that is none of ours is skipped.
                if let Some(message) = WaveMessage::decoded(line) {
                    gather.heard(id, message, clock::now());
                }
            });
            hurries |= fate == Fate::Hurries;
            if fate == Fate::Ended {
                self.streams.remove(&id);
                self.gather.lost(id, "the connection ended", clock::now());
            }
        }
        hurries
    }

    fn act(&mut self, action: Action, now: Ns) {
        match action {
            Action::Send(edge, message) => {
                let Some(stream) = self.streams.get_mut(&edge) else { return };
                // One that takes nothing does not read.
                if stream.output.len() - stream.sent > MAX_OUTPUT {
                    self.streams.remove(&edge);
                    self.gather.lost(edge, "it does not take the answer", now);
                } else if let Some(line) = message.encoded() {
                    stream.output.extend(line);
                }
            }
            Action::Dial(edge, seat, to) => match self.ways.get(&seat).and_then(|way| dial(way, to, now)) {
                Some(dial) => drop(self.dials.insert(edge, dial)),
                None => self.gather.lost(edge, "it has no listener", now),
            },
            Action::Close(edge) => {
                self.dials.remove(&edge);
                if let Some(mut stream) = self.streams.remove(&edge) {
                    stream.is_closing = true;
                    self.last.push(stream);
                }
            }
            Action::Read(wave) => {
                self.readings.add(wave);
                self.read_next();
            }
            Action::Tell(wave, piece) => self.tell(wave, piece),
        }
    }

    /// Sends what the kernel takes.
    fn send(&mut self, now: Ns) {
        for id in self.streams.keys().copied().collect::<Vec<_>>() {
            if self.streams.get_mut(&id).is_some_and(|stream| stream.write() == Fate::Ended) {
                self.streams.remove(&id);
                self.gather.lost(id, "the connection ended", now);
            }
        }
        self.last.retain_mut(|stream| stream.write() == Fate::Stays);
    }

    fn tell(&self, wave: u64, piece: Piece) {
        let mut answers = lock(&self.shared.answers);
        if let Some((pieces, call)) = answers.get_mut(&wave) {
            pieces.push(piece);
            call();
        }
    }

    fn tell_ready(&self) {
        let mut ready = lock(&self.shared.ready);
        let now: Vec<Seat> = self.ways.keys().copied().filter(|seat| self.gather.is_ready(*seat)).collect();
        if *ready != now {
            *ready = now;
            self.shared.is_ready.notify_all();
        }
    }

    /// Reads this host for the questions that wait, in a thread: it may have many processes.
    fn read_next(&mut self) {
        if !self.readings.begin(|wave| self.gather.is_to_read(wave)) {
            return;
        }
        let (recorder, shared) = (Arc::clone(&self.recorder), Arc::clone(&self.shared));
        let caller = Arc::clone(&self.caller);
        let work = move || {
            let (rows, lacks) = local::read(&recorder);
            drop(recorder);
            lock(&shared.wishes).push(Wish::Read(rows, lacks));
            let handle = lock(&caller).upgrade();
            if let Some(handle) = handle {
                handle.nudge();
            }
        };
        if let Err(e) = std::thread::Builder::new().name("ccl-gather".into()).spawn(work) {
            let lack = Lack { why: format!("starting a thread: {e}"), ..Lack::default() };
            lock(&self.shared.wishes).push(Wish::Read(Vec::new(), vec![lack]));
        }
    }
}

/// A connection to another rank of a communicator.
fn dial(way: &Way, to: Rank, now: Ns) -> Option<Connecting> {
    let Dialling { job, comm, me, bind, .. } = way.dialling;
    let target = Target {
        address: *way.dialling.listeners.get(to.index())?,
        bind,
        key: way.dialling.key.clone(),
        hello: Hello::new(Purpose::Gather, job, comm, me, to),
        streams: 1,
    };
    let limit = if way.tree.parent() == Some(to) { KEPT_WITHIN } else { HARD };
    Some(Connecting::new(target, now, limit))
}
