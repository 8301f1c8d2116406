//! The socket that inspectors attach to, beside the recorder's file: a task of the service thread.
//!
//! The folder's mode protects it; the kernel's credentials of the client are checked too (this user
//! or root). A client can do nothing that outlives it, except to abort, and that only where the
//! job's settings allow it. The resources of clients are bounded: seats, lines in, lines out, the
//! time to take them and to ask, and the processor time for all of them together (`Share`). If the
//! service thread is stuck, the socket does not answer, and the inspector reads the mapping.
//!
//! A socket whose process is gone is removed by the next process that finds it: [`sweep`]. Its name
//! begins with the name of the process's recorder, whose lock shows whether the process lives. If
//! there is no recorder, a socket that refuses to connect is stale: a socket gets its final name
//! only once it listens.

use std::fmt;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::asking::Asking;
use super::lease::{Base, Lease};
use super::session::{ASK_WITHIN, Fate, Line, Session, Subscription};
use super::share::Share;
use super::wire::{
    Answer, Dump, EventDump, Hello, Histogram, MAX_ANSWER, MAX_REQUEST, PROTOCOL, Refusal, Request, RingDump,
    to_line,
};
use crate::clock::{self, Ns};
use crate::config::{Key, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::recorder::Recorder;
use crate::recorder::reader::{Cursor, Reader};
use crate::snapshot::{ProcessSnapshot, Update};
use crate::sys::fds::Fd;
use crate::sys::shared::{self, Owner};
use crate::sys::unix::{self, Name};
use crate::types::{CommId, JobId};

/// The most clients at once. A further client gets a refusal.
const MAX_CLIENTS: usize = 16;
/// The most connections accepted, or refused, in one turn; the others wait for the next.
const ACCEPTS_PER_TURN: usize = 2 * MAX_CLIENTS;
/// After this much processor time other tasks have their turn.
const TURN: Duration = Duration::from_millis(2);
/// The pause after the system refused to accept (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The highest level.
const MAX_LEVEL: u8 = 3;
const CAPABILITIES: [&str; 7] = ["hello", "snapshot", "histograms", "dump", "level", "subscribe", "gather"];
/// The shortest and the longest interval of updates.
const UPDATES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(60)];
/// The interval if the client does not give one, in milliseconds.
const USUAL_UPDATES: u64 = 500;

/// Aborts one communicator, for this reason.
type Abort = Arc<dyn Fn(&str) + Send + Sync>;

/// State shared by the task and its owners.
struct Shared {
    recorder: Arc<Recorder>,
    may_abort: bool,
    aborts: Mutex<Vec<(u64, CommId, Abort)>>,
    next_abort: AtomicU64,
    /// The task.
    task: Mutex<Weak<Handle>>,
}

impl Shared {
    fn aborts(&self) -> MutexGuard<'_, Vec<(u64, CommId, Abort)>> {
        self.aborts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The control socket of a process. Dropping it closes and removes it.
pub struct Server {
    path: PathBuf,
    /// The inode of the socket's file.
    inode: Option<u64>,
    shared: Arc<Shared>,
    generation: u32,
    _task: Arc<Handle>,
}

/// A communicator that clients may abort, as long as this lives.
pub struct Abortable {
    id: u64,
    shared: Arc<Shared>,
}

impl Server {
    /// Opens the control socket of a process, beside its recorder.
    ///
    /// # Errors
    /// `Unavailable` if the recorder has no place in the file system; `System` if the socket cannot
    /// be made. A job can run without the socket.
    pub fn beside(recorder: &Arc<Recorder>, settings: &Settings) -> Result<Self> {
        let path = recorder.beside("sock").ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the recorder has no folder, so there is no control socket")
        })?;
        Self::open(&path, recorder, settings)
    }

    /// Opens a control socket at `path`, which may be of any length.
    ///
    /// # Errors
    /// `System` if it cannot be made.
    pub fn open(path: &Path, recorder: &Arc<Recorder>, settings: &Settings) -> Result<Self> {
        let refused = |e| Error::system(format!("listening on {}", path.display()), e);
        let nameless = path.with_extension("new");
        let socket = unix::listen(Name::Path(&nameless)).map_err(refused)?;
        std::fs::rename(&nameless, path).map_err(|e| {
            let _ = std::fs::remove_file(&nameless);
            refused(e)
        })?;
        let shared = Arc::new(Shared {
            recorder: Arc::clone(recorder),
            may_abort: settings.number(Key::AllowControl) == 1,
            aborts: Mutex::default(),
            next_abort: AtomicU64::new(0),
            task: Mutex::default(),
        });
        let task = Serve::new(socket, Arc::clone(&shared));
        let added = Service::get().and_then(|service| service.add(task));
        let task = Arc::new(added.inspect_err(|_| drop(std::fs::remove_file(path)))?);
        *shared.task.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&task);
        recorder.set_control(Some(path));
        let generation = crate::sys::generation();
        let server = Self { path: path.to_path_buf(), inode: inode(path), shared, generation, _task: task };
        server.sweep();
        Ok(server)
    }

    /// The path where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets clients abort a communicator, where the job allows it.
    ///
    /// `abort` is called with the reason, in a separate thread.
    #[must_use]
    pub fn abortable(&self, comm: CommId, abort: impl Fn(&str) + Send + Sync + 'static) -> Abortable {
        let id = self.shared.next_abort.fetch_add(1, Ordering::Relaxed);
        self.shared.aborts().push((id, comm, Arc::new(abort)));
        Abortable { id, shared: Arc::clone(&self.shared) }
    }

    /// Removes the sockets beside this one whose process is gone, as when a peer has died; returns
    /// their number.
    pub fn sweep(&self) -> usize {
        let (folder, own) = (self.path.parent(), self.path.file_stem());
        folder.map_or(0, |folder| sweep_but(folder, own.and_then(|own| own.to_str())))
    }
}

/// The inode of the file at a path.
fn inode(path: &Path) -> Option<u64> {
    path.symlink_metadata().ok().map(|about| about.ino())
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.path.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A forked child has a copy: the socket belongs to its parent.
        if self.generation == crate::sys::generation() {
            // A thread that makes a communicator while another drops the last one may already have
            // made the next socket here.
            if inode(&self.path) == self.inode {
                let _ = std::fs::remove_file(&self.path);
                self.shared.recorder.set_control(None);
            }
            self.sweep();
        }
    }
}

impl fmt::Debug for Abortable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Abortable({})", self.id)
    }
}

impl Drop for Abortable {
    fn drop(&mut self) {
        if !crate::sys::forked() {
            self.shared.aborts().retain(|(id, ..)| *id != self.id);
        }
    }
}

/// Removes the sockets in `folder` whose process is gone; returns their number.
///
/// They are control sockets and the memory listeners of ranks in init.
pub fn sweep(folder: &Path) -> usize {
    sweep_but(folder, None)
}

fn sweep_but(folder: &Path, own: Option<&str>) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok());
    // A connection to a regular file is refused, too: only own sockets are removed, even if another
    // folder was put in place of ours.
    let uid = rustix::process::geteuid().as_raw();
    let is_own = |about: std::fs::Metadata| about.file_type().is_socket() && about.uid() == uid;
    let entries = entries.filter(|entry| entry.metadata().is_ok_and(is_own));
    let lost = |path: &Path| {
        let is_socket = path.extension().is_some_and(|is| is == "sock" || is == "link" || is == "new");
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let process = name.split('.').next().unwrap_or_default();
        is_socket && own != Some(process) && is_lost(path, process)
    };
    entries.filter(|entry| lost(&entry.path()) && std::fs::remove_file(entry.path()).is_ok()).count()
}

/// Whether the process of a socket is gone. A live process holds the lock of the recorder beside
/// the socket. A socket that refuses to connect is not always stale: it may just be made.
fn is_lost(path: &Path, process: &str) -> bool {
    // A process never opens its own recorder: closing the file would release its lock.
    let is_ours = process.starts_with(&format!("{}-", std::process::id()));
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let recorder = path.with_file_name(format!("{process}.rec"));
    match (!is_ours).then(|| rustix::fs::open(recorder, flags, Mode::empty())) {
        Some(Ok(recorder)) => shared::owner(&recorder).is_ok_and(|owner| owner == Owner::None),
        Some(Err(_)) | None => refuses(path),
    }
}

/// Whether no process listens at a socket any more.
fn refuses(path: &Path) -> bool {
    unix::connect(Name::Path(path)).is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}

struct Serve {
    socket: Fd,
    paused: Option<Ns>,
    share: Share,
    /// The time until which clients are not served, because they have used more than their share.
    rests: Option<Ns>,
    sessions: Vec<Session>,
    base: Option<Base>,
    shared: Arc<Shared>,
}

impl Task for Serve {
    fn interests(&self, out: &mut Vec<Interest>) {
        let rests = self.rests.is_some();
        if self.paused.is_none() && !rests {
            out.push(Interest { fd: self.socket.as_raw_fd(), read: true, write: false });
        }
        out.extend(self.sessions.iter().filter_map(|session| session.interest(rests)));
    }

    fn turn(&mut self, now: Ns) -> Turn {
        self.rests = self.rests.filter(|until| *until > now);
        let rests = self.rests.is_some();
        let began = clock::thread_time();
        let mut hurries = false;
        if !rests && self.paused.is_none_or(|until| until <= now) {
            self.paused = None;
            hurries = self.accept(now);
        }
        // One reading for all subscribers that are due.
        let mut reading = None;
        for _ in 0..self.sessions.len() {
            if clock::thread_time().saturating_sub(began) >= TURN {
                // The sessions at the front come first the next time.
                hurries = true;
                break;
            }
            let mut session = self.sessions.remove(0);
            self.update(&mut session, now, (!rests).then_some(&mut reading));
            // Another part may follow once this one is taken.
            hurries |= !rests && session.says_part(bounded, now);
            let fate = if rests {
                session.rest(now)
            } else {
                session.turn(now, &mut |session, line| self.answer(session, line))
            };
            match fate {
                Fate::Stays => self.sessions.push(session),
                Fate::Hurries => {
                    hurries = true;
                    self.sessions.push(session);
                }
                Fate::Leaves if session.leases().is_empty() => {}
                Fate::Leaves => {
                    // If the recorder cannot be read now, the next change of a lease puts the
                    // levels right.
                    let _ = self.apply(&[]);
                }
            }
        }
        self.share.pay(clock::thread_time().saturating_sub(began), now);
        self.rests = self.share.rests_until().filter(|until| *until > now);
        let resting = self.rests.is_some();
        let deadlines = self.sessions.iter().filter(|session| !resting || session.interest(true).is_some());
        let deadlines = deadlines.filter_map(Session::deadline);
        let due = self.sessions.iter().filter_map(Session::due);
        let soon = (hurries && !resting).then_some(now);
        Turn::Again(deadlines.chain(due).chain(self.paused).chain(self.rests).chain(soon).min())
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        self.sessions.clear();
        let _ = self.apply(&[]);
    }
}

impl Serve {
    const fn new(socket: Fd, shared: Arc<Shared>) -> Self {
        Self {
            socket,
            paused: None,
            share: Share::new(),
            rests: None,
            sessions: Vec::new(),
            base: None,
            shared,
        }
    }

    /// Accepts waiting clients; true if there may be more.
    fn accept(&mut self, now: Ns) -> bool {
        for _ in 0..ACCEPTS_PER_TURN {
            let stream = match unix::accept(&self.socket) {
                Ok(Some(stream)) => stream,
                Ok(None) => return false,
                Err(_) => {
                    self.paused = Some(now.after(ACCEPT_PAUSE));
                    return false;
                }
            };
            let user = unix::peer_uid(&stream).map_err(|_| "the kernel does not say whose the client is");
            let refusal = if let Err(why) = user.and_then(unix::may_talk) {
                Some(refusal("denied", why))
            } else if self.sessions.len() >= MAX_CLIENTS {
                Some(refusal("busy", format!("{MAX_CLIENTS} clients are attached already")))
            } else {
                None
            };
            // A refused client only waits for its refusal; as many of them are kept as there are
            // seats.
            if self.sessions.len() < 2 * MAX_CLIENTS {
                let let_in = refusal.is_none();
                let greeting = match refusal {
                    Some(error) => to_line(&Answer { error: Some(error), ..Answer::default() }),
                    None => to_line(&self.hello()),
                };
                self.sessions.push(Session::new(stream, greeting, let_in, now));
            }
        }
        true
    }

    fn hello(&self) -> Hello {
        let abort = self.shared.may_abort.then_some("abort");
        Hello {
            ccl: PROTOCOL.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            job: self.shared.recorder.reader().job().unwrap_or(JobId(0)),
            capabilities: CAPABILITIES.into_iter().chain(abort).map(String::from).collect(),
        }
    }

    /// The line that answers a line; an empty line, which `nc` easily sends, gets no answer.
    fn answer(&mut self, session: &mut Session, line: Line<'_>) -> Vec<u8> {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong => {
                let what = format!("a request has at most {MAX_REQUEST} bytes; goodbye");
                return to_line(&Answer { error: Some(refusal("usage", what)), ..Answer::default() });
            }
            Line::None => {
                let what = format!("nothing was asked for {} s; goodbye", ASK_WITHIN.as_secs());
                return to_line(&Answer { error: Some(refusal("idle", what)), ..Answer::default() });
            }
        };
        if line.trim_ascii().is_empty() {
            return Vec::new();
        }
        let request = match serde_json::from_slice::<Request>(line) {
            Ok(request) => request,
            Err(e) => {
                let error = refusal("usage", format!("that is no request: {e}"));
                return to_line(&Answer { error: Some(error), ..Answer::default() });
            }
        };
        let answer = match self.fulfil(session, &request) {
            Ok(Some(answer)) => answer,
            Ok(None) => return Vec::new(),
            Err(error) => Answer { error: Some(error), ..Answer::default() },
        };
        bounded(Answer { id: request.id, ..answer })
    }

    /// The answer to a request; `None` if it comes later.
    fn fulfil(&mut self, session: &mut Session, request: &Request) -> Result<Option<Answer>, Refusal> {
        let mut answer = Answer::default();
        let failed = |e: Error| refusal("failed", e.to_string());
        let reader = self.shared.recorder.reader();
        match request.request.as_str() {
            "hello" => answer.hello = Some(self.hello()),
            "snapshot" => answer.snapshot = Some(Box::new(reader.snapshot().map_err(failed)?)),
            "histograms" => answer.histograms = Some(histograms(&reader).map_err(failed)?),
            "dump" => answer.dump = Some(Box::new(dump(&reader).map_err(failed)?)),
            "level" => answer.level = Some(self.level(session, request)?),
            "subscribe" => answer.update = self.subscribe(session, request)?,
            "gather" => return self.gather(session, request).map(|()| None),
            "abort" => answer.abort = Some(self.abort(request)?),
            "" => return Err(refusal("usage", "the request has no field \"request\"")),
            other => {
                let known = CAPABILITIES.join(", ");
                return Err(refusal("unknown", format!("there is no request {other:?} here, but {known}")));
            }
        }
        Ok(Some(answer))
    }

    /// Begins to gather what other hosts know.
    fn gather(&self, session: &mut Session, request: &Request) -> Result<(), Refusal> {
        let task = self.shared.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let call = move || {
            if let Some(task) = task.upgrade() {
                task.nudge();
            }
        };
        let begun = session.asks(|| Asking::begin(request.id, call));
        match begun.map_err(|e| refusal("failed", e.to_string()))? {
            true => Ok(()),
            false => Err(refusal("busy", "this client gathers already")),
        }
    }

    /// Begins or ends a subscription; the first update has everything.
    fn subscribe(&self, session: &mut Session, request: &Request) -> Result<Option<Box<Update>>, Refusal> {
        let every = request.every_ms.unwrap_or(USUAL_UPDATES);
        if every == 0 {
            session.subscribe(None);
            return Ok(None);
        }
        let [shortest, longest] = UPDATES;
        let every = Duration::from_millis(every).clamp(shortest, longest);
        let told = self.shared.recorder.reader().snapshot().map_err(|e| refusal("failed", e.to_string()))?;
        let update = told.since(&ProcessSnapshot::default());
        session.subscribe(Some(Subscription::new(request.id, every, told, clock::now())));
        Ok(Some(Box::new(update)))
    }

    /// Sends a subscriber what has changed, if an update is due. `reading` is this turn's reading,
    /// once one was needed; `None` if there is no time for one.
    fn update(&self, session: &mut Session, now: Ns, reading: Option<&mut Option<ProcessSnapshot>>) {
        let has_time = reading.is_some();
        let (Some(subscription), Some(reading)) = (session.takes_update(now, has_time), reading) else {
            return;
        };
        if reading.is_none() {
            *reading = self.shared.recorder.reader().snapshot().ok();
        }
        let Some(process) = reading.clone() else { return };
        let mut update = process.since(&subscription.told);
        update.skipped = std::mem::take(&mut subscription.skipped);
        subscription.told = process;
        let id = subscription.id();
        session.say(bounded(Answer { id, update: Some(Box::new(update)), ..Answer::default() }), now);
    }

    fn level(&mut self, session: &mut Session, request: &Request) -> Result<u8, Refusal> {
        match request.level {
            Some(level) if level > MAX_LEVEL => {
                return Err(refusal("usage", format!("levels go from 0 to {MAX_LEVEL}")));
            }
            Some(level) if !session.lease((request.comm, level)) => {
                return Err(refusal("denied", "this client has too many leases"));
            }
            Some(_) => {}
            None => session.release(request.comm),
        }
        let leases = session.leases().to_vec();
        match self.apply(&leases) {
            Ok(base) => match request.comm {
                Some(comm) if !base.comms.contains_key(&comm) => {
                    session.release(Some(comm));
                    Err(refusal("usage", format!("there is no communicator {comm} here")))
                }
                comm => Ok(base.under(&self.leases(&leases), comm)),
            },
            Err(e) => Err(refusal("failed", e.to_string())),
        }
    }

    /// All leases: those of the sessions that are not in their turn, and `more`.
    fn leases(&self, more: &[Lease]) -> Vec<Lease> {
        self.sessions.iter().flat_map(Session::leases).chain(more).copied().collect()
    }

    /// Applies the levels that result from the leases and the levels before them; returns the
    /// levels before.
    fn apply(&mut self, more: &[Lease]) -> Result<Base> {
        let leases = self.leases(more);
        let recorder = &self.shared.recorder;
        let comms = recorder.reader().snapshot()?.comms;
        let live = comms.iter().filter(|comm| !comm.ended);
        let now = Base { process: recorder.level(), comms: live.map(|comm| (comm.id, comm.level)).collect() };
        let mut base = self.base.take().unwrap_or_else(|| now.clone());
        // Communicators made meanwhile began with the level of the process.
        base.comms.retain(|id, _| now.comms.contains_key(id));
        for id in now.comms.keys() {
            base.comms.entry(*id).or_insert(base.process);
        }
        recorder.set_level(None, base.under(&leases, None));
        for id in now.comms.keys() {
            recorder.set_level(Some(*id), base.under(&leases, Some(*id)));
        }
        self.base = (!leases.is_empty()).then(|| base.clone());
        Ok(base)
    }

    fn abort(&self, request: &Request) -> Result<u64, Refusal> {
        if !self.shared.may_abort {
            return Err(refusal("denied", "the job does not allow it: set CCL_ALLOW_CONTROL=1 on its ranks"));
        }
        let named = |comm: &CommId| request.comm.is_none_or(|wanted| wanted == *comm);
        let aborts: Vec<Abort> = {
            let all = self.shared.aborts();
            all.iter().filter(|(_, comm, _)| named(comm)).map(|(.., abort)| Arc::clone(abort)).collect()
        };
        let count = aborts.len() as u64;
        let reason = match request.reason.as_str() {
            "" => "an inspector asked for it".to_string(),
            reason => format!("an inspector asked for it: {reason}"),
        };
        // An abort is spread by the service thread, which runs this task: it cannot wait for
        // itself.
        std::thread::Builder::new()
            .name("ccl-abort".into())
            .spawn(move || aborts.iter().for_each(|abort| abort(&reason)))
            .map_err(|e| refusal("failed", format!("starting a thread: {e}")))?;
        Ok(count)
    }
}

fn refusal(kind: &str, what: impl Into<String>) -> Refusal {
    Refusal { kind: kind.into(), what: what.into() }
}

fn histograms(reader: &Reader) -> Result<Vec<Histogram>> {
    let all = reader.histograms()?.into_iter().map(|h| Histogram {
        comm: h.comm,
        name: h.name,
        rank: h.rank,
        kind: h.kind.name().into(),
        class_bytes: h.class_bytes,
        sum_ns: h.sum_ns,
        sum_bytes: h.sum_bytes,
        buckets: h.buckets,
    });
    Ok(all.collect())
}

/// An answer as a line, or a refusal if it is longer than a client accepts.
fn bounded(answer: Answer) -> Vec<u8> {
    let line = to_line(&answer);
    if line.len() <= MAX_ANSWER {
        return line;
    }
    let error = refusal("failed", format!("the answer has {} bytes: read the recorder", line.len()));
    to_line(&Answer { id: answer.id, error: Some(error), ..Answer::default() })
}

fn dump(reader: &Reader) -> Result<Dump> {
    let (scale, _) = reader.clock()?;
    let rings = reader.events(&mut Cursor::default())?.into_iter().map(|one| RingDump {
        comm: one.owner.map(|(comm, _)| comm),
        rank: one.owner.map(|(_, rank)| rank),
        lost: one.lost,
        events: (one.events.into_iter())
            .map(|e| EventDump { mono_ns: scale.mono(e.raw).0, event: format!("{:?}", e.event) })
            .collect(),
    });
    Ok(Dump { snapshot: reader.snapshot()?, rings: rings.collect(), histograms: histograms(reader)? })
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
