//! Submitting and driving: what a call does between the door and the engine.
//!
//! Whoever calls locks the driver, hands the operation to the engine and turns it until the operation has ended: no thread in
//! between. What comes from outside (a verdict, a link that came up) is flagged in [`Shared`] by the service thread, which
//! rings this rank's doorbell; the driver looks at the flag whenever it waits.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::clock::{self, Stopwatch};
use crate::collective::{Descriptor, Numbering, Request, Tally};
use crate::comm::exclusive::{Exclusive, Locked};
use crate::comm::links::Links;
use crate::comm::owned::Owned;
use crate::comm::vain::{ASK, lost};
use crate::config::Settings;
use crate::control::courier::Courier;
use crate::control::news::{Report, Trouble, Verdict};
use crate::control::service::Interest;
use crate::engine::{Cause, Engine, Failure, Op, OpId, Progress, Ticket};
use crate::error::{At, Error, ErrorKind, Result};
use crate::memory::{View, ViewMut};
use crate::observer::{self, Call, Observed, Together};
use crate::plan::{Plan, Shape, Topology, select};
use crate::recorder::{EventRing, Recorder};
use crate::transport::LinkFault;
use crate::transport::shm::wait::{Waited, Waiter};
use crate::transport::socket::shortage::Shortage;
use crate::types::{Algorithm, ChannelId, CollKind, CommId, JobId, Rank};

/// How long a failing rank waits for the verdict that all ranks share, before it speaks for itself.
pub(super) const VERDICT: Duration = Duration::from_millis(500);

const CALL_THE_SAME: &str = "make all ranks call the same, in the same order, before they finish()";

/// What the service thread may touch of a communicator without its driver's lock.
pub(crate) struct Shared {
    /// Something is to be looked at: a verdict, a link that came up.
    pub(super) flag: AtomicBool,
    pub(super) verdict: Mutex<Option<Verdict>>,
    /// Who has called `finish()`, and what it has called in all.
    pub(super) finished: Mutex<Vec<(Rank, Tally)>>,
    /// Who waits in a collective that this rank had not called when it was asked for it.
    pub(super) asked: Mutex<Vec<(Rank, Descriptor)>>,
    /// Ends a driver's sleep.
    pub(super) wake: Box<dyn Fn() + Send + Sync>,
}

impl Shared {
    /// Has the driver look.
    pub(crate) fn call(&self) {
        self.flag.store(true, Ordering::Release);
        (self.wake)();
    }
    /// A rank has called `finish()`: whoever needs more of it waits in vain.
    pub(crate) fn finished(&self, rank: Rank, tally: &Tally) {
        lock(&self.finished).push((rank, tally.clone()));
        self.call();
    }
    /// A rank waits in a collective that this one has not called yet.
    pub(crate) fn asked(&self, from: Rank, call: &Descriptor) {
        lock(&self.asked).push((from, *call));
        self.call();
    }
    /// Something was decided.
    pub(crate) fn decided(&self, verdict: &Verdict) {
        *lock(&self.verdict) = Some(verdict.clone());
        self.call();
    }
}

/// The part of a communicator that drives its engine.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(super) engine: Engine<EventRing>,
    pub(super) links: Links,
    pub(super) waiter: Waiter,
    /// The descriptors a sleep listens to. Kept: waiting allocates nothing.
    interests: Vec<Interest>,
    pub(super) owned: Owned,
    /// Who waited for what has ended: woken when the lock is let go of.
    pub(super) woken: Vec<Waker>,
    pub(super) numbers: Numbering,
    shapes: Vec<(Shape, u64)>,
    /// For how long nothing has moved, whoever drives; as soon as that has outlasted a message.
    pub(super) still: Option<Stopwatch>,
    /// Who has called `finish()`, and who asked what this rank had not called, as of the last look.
    pub(super) finished: Vec<(Rank, Tally)>,
    pub(super) asked: Vec<(Rank, Descriptor)>,
    /// The collective about which peers were asked last, and which.
    pub(super) asking: (u64, Vec<Rank>),
    /// Why no more calls are taken.
    pub(super) ended: Option<Error>,
}

/// One rank of a communicator, as calls, pending operations and the progress thread share it.
pub(crate) struct Inner {
    pub(crate) id: CommId,
    pub(crate) job: JobId,
    pub(crate) name: String,
    pub(crate) rank: Rank,
    pub(crate) nranks: u32,
    pub(super) topology: Arc<Topology>,
    pub(super) forced: Option<Algorithm>,
    pub(super) timeout: Duration,
    pub(super) driver: Exclusive,
    pub(super) shared: Arc<Shared>,
    /// What this rank lacks for connections.
    pub(super) shortage: Arc<Shortage>,
    pub(super) recorder: Arc<Recorder>,
    /// Given back when the communicator closes.
    pub(super) attended: Mutex<Option<super::init::Attended>>,
    pub(super) courier: Mutex<Option<Arc<Courier>>>,
    pub(super) settings: Settings,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator({} {}, rank {} of {})", self.name, self.id, self.rank, self.nranks)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared(flag {:?})", self.flag)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under one of these locks left consistent data: nothing is updated in two steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    pub(super) fn new(engine: Engine<EventRing>, links: Links, waiter: Waiter) -> Self {
        Self {
            engine,
            links,
            waiter,
            interests: Vec::new(),
            owned: Owned::default(),
            woken: Vec::new(),
            numbers: Numbering::default(),
            shapes: Vec::new(),
            still: None,
            finished: Vec::new(),
            asked: Vec::new(),
            asking: (0, Vec::new()),
            ended: None,
        }
    }
}

/// While it lives, somebody's buffers are lent to the engine: should a panic (an observer's, say)
/// end that, the engine lets go of them.
struct Unwinding<'a>(&'a Inner);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = format!("a call of rank {} panicked", self.0.rank);
            let error = Error::new(ErrorKind::Aborted, text.clone());
            let failure = Failure { cause: Cause::Told(error), op: None, peer: None, channel: None };
            if let Ok(mut driver) = self.0.driver() {
                driver.engine.fail(failure, clock::raw());
            }
            // The others wait for it.
            self.0.tell(Report::new(Trouble::Aborted, self.0.rank, self.0.rank, text));
        }
    }
}

impl Inner {
    /// Carries out one request and returns when it has ended.
    pub(crate) fn call(&self, request: Request, input: View, output: ViewMut) -> Result<()> {
        self.check(&request)?;
        let _guard = Unwinding(self);
        let mut driver = self.driver()?;
        let (id, _observed) = self.submit(&mut driver, request, (input, output), None)?;
        self.drive(&mut driver, &mut |driver| driver.engine.is_done(id))
    }

    /// Carries out several requests side by side and returns when all have ended.
    pub(crate) fn call_all(&self, calls: &[(Request, View, ViewMut)]) -> Result<()> {
        for (request, ..) in calls {
            self.check(request)?;
        }
        let _guard = Unwinding(self);
        let mut driver = self.driver()?;
        let mut ids: Vec<OpId> = Vec::with_capacity(calls.len());
        let mut together = Together::default();
        for &(request, input, output) in calls {
            let (id, observed) = self.submit(&mut driver, request, (input, output), None)?;
            ids.push(id);
            together.push(observed);
        }
        // What has ended is not asked for again.
        let mut ended = 0;
        self.drive(&mut driver, &mut |driver| {
            ended += ids[ended..].iter().take_while(|id| driver.engine.is_done(**id)).count();
            ended == ids.len()
        })
    }

    /// Refuses what cannot be carried out, before anything of it is counted.
    pub(super) fn check(&self, request: &Request) -> Result<()> {
        let here = |error: Error| error.in_comm(&self.name, self.rank).in_op(request.kind, 0);
        self.own().map_err(here)?;
        request.check(self.nranks).map_err(here)?;
        if request.kind.is_p2p() && request.root == self.rank {
            let error = Error::new(ErrorKind::Usage, "a rank does not send to itself")
                .hint("copy the buffer instead");
            return Err(here(error));
        }
        Ok(())
    }

    /// Numbers a request, plans it, brings its links up and hands it to the engine, with the ticket
    /// of who owns its buffers. To an observer it ends when the caller lets go of it.
    pub(super) fn submit(
        &self,
        driver: &mut Driver,
        request: Request,
        (input, output): (View, ViewMut),
        ticket: Option<Ticket>,
    ) -> Result<(OpId, Observed)> {
        if let Some(ended) = &driver.ended {
            let mut error = ended.clone();
            error.at.op = Some((request.kind, driver.numbers.next()));
            error.at.channel = error.at.channel.or_else(|| Some(first_channel(request.kind)));
            return Err(error);
        }
        let shape = select::select(&self.topology, &request, self.forced);
        let plan = Plan::Generated { request, shape, me: self.rank };
        let hash = match driver.shapes.iter().find(|(known, _)| *known == shape) {
            Some((_, hash)) => *hash,
            None => {
                let hash = shape.hash(&self.topology);
                driver.shapes.push((shape, hash));
                hash
            }
        };
        let descriptor = driver.numbers.describe(self.rank, &request, hash);
        driver.links.describe(&descriptor);
        driver.still = None;
        let (comm, rank, seq) = (self.id, self.rank, descriptor.seq);
        let observed = observer::begin(|| Call::Operation { request, comm, rank, seq });
        // An observer may have forked: its child comes back here, too.
        self.own()?;
        let started = clock::raw();
        let op = Op::new(request, plan, descriptor, input, output);
        if !request.kind.is_p2p() {
            driver.numbers.add(op.check());
        }
        let id = match driver.engine.submit_owned(op, ticket, started) {
            Ok(id) => id,
            Err(failure) => return Err(self.end(driver, failure)),
        };
        // What was decided meanwhile ends it here, and what fits nothing that others called: it
        // might need nobody, and end well.
        if self.shared.flag.load(Ordering::Acquire) || driver.is_watched() {
            self.look(driver);
            if driver.engine.failure().is_some() {
                return Err(self.give_up(driver));
            }
        }
        // The operation is visible as called before its links are made: a peer that is not there yet is waited for in the open.
        let Driver { engine, links, numbers, .. } = &mut *driver;
        let stop = || {
            self.say_shortage();
            self.is_in_vain(numbers).then(|| Error::new(ErrorKind::Peer, "it is not awaited any more"))
        };
        if let Err(error) = links.ensure(engine, &shape, &request, (self.timeout, &stop, &self.shortage)) {
            self.look(driver);
            if driver.engine.failure().is_some() {
                return Err(self.give_up(driver));
            }
            let (op, peer) = (Some((request.kind, descriptor.seq)), error.at.peer);
            let about = peer.unwrap_or(self.rank);
            let whom = peer.map_or_else(|| "its peers".into(), |peer| format!("rank {peer}"));
            let text = format!("rank {} cannot connect to {whom}: {}", self.rank, error.what);
            self.tell(Report { op, ..Report::new(Trouble::LinkFailed, self.rank, about, text) });
            return Err(self.end(driver, Failure { cause: Cause::Told(error), op, peer, channel: None }));
        }
        Ok((id, observed))
    }

    /// Turns the engine until `done`, or until the communicator ends.
    pub(super) fn drive(&self, driver: &mut Locked<'_>, done: &mut dyn FnMut(&Driver) -> bool) -> Result<()> {
        let driven = self.turn_until(driver, done);
        driver.engine.ring();
        driven
    }

    fn turn_until(&self, driver: &mut Locked<'_>, done: &mut dyn FnMut(&Driver) -> bool) -> Result<()> {
        driver.waiter.reset();
        loop {
            let progress = driver.engine.turn(&clock::raw);
            if progress == Progress::Failed {
                return Err(self.give_up(driver));
            }
            if progress != Progress::Blocked {
                driver.moved();
            }
            // Asked also where nothing moves now: what is waited for may have ended in another's turn, or in the look before a
            // sleep.
            if done(driver) {
                return Ok(());
            }
            match progress {
                Progress::Blocked if self.shared.flag.load(Ordering::Acquire) => self.look(driver),
                Progress::Blocked => {
                    let is_long = driver.still.is_some();
                    let (waited, advanced) = self.wait(driver, is_long);
                    if advanced {
                        driver.moved();
                    } else if waited != Waited::Spun {
                        self.stands(driver);
                    }
                }
                Progress::Advanced | Progress::Idle | Progress::Failed => {}
            }
        }
    }

    /// Spins, yields or sleeps, whichever the waiter finds right; what it did, and whether the engine moved before it slept.
    fn wait(&self, driver: &mut Driver, is_long: bool) -> (Waited, bool) {
        let Driver { engine, waiter, interests, .. } = driver;
        interests.clear();
        // Only a long wait sleeps, and only a sleep needs them.
        if is_long {
            engine.interests(interests);
        }
        if waiter.glance(|| engine.may_advance()) {
            return (Waited::Spun, false);
        }
        engine.ring();
        let flag = &self.shared.flag;
        let mut advanced = false;
        let waited = waiter.idle(interests, &mut || {
            advanced = engine.turn(&clock::raw) != Progress::Blocked;
            advanced || flag.load(Ordering::SeqCst)
        });
        (waited, advanced)
    }

    /// Looks at what the service thread flagged.
    pub(super) fn look(&self, driver: &mut Driver) {
        self.shared.flag.store(false, Ordering::Release);
        driver.links.take_arrivals(&mut driver.engine);
        driver.finished.clone_from(&lock(&self.shared.finished));
        driver.asked.append(&mut lock(&self.shared.asked));
        let verdict = lock(&self.shared.verdict).clone();
        let failure = match verdict {
            Some(verdict) => Some(self.told(driver, &verdict)),
            None => driver.unfit(),
        };
        if let Some(failure) = failure {
            driver.engine.fail(failure, clock::raw());
        }
    }

    /// Gives the communicator up for `failure`: learns or makes the verdict all ranks share, and keeps the error for later calls.
    pub(super) fn end(&self, driver: &mut Driver, failure: Failure) -> Error {
        if let Some(ended) = &driver.ended {
            return ended.clone();
        }
        driver.engine.fail(failure.clone(), clock::raw());
        let (failure, verdict) = match &failure.cause {
            Cause::Told(_) => (failure, lock(&self.shared.verdict).clone()),
            Cause::Link(_) | Cause::Mismatch { .. } | Cause::Finished(_) => {
                let report = self.report(driver, &failure);
                let courier = lock(&self.courier).clone();
                let verdict = courier.and_then(|courier| courier.report(report, VERDICT));
                (verdict.as_ref().map_or(failure, |verdict| self.told(driver, verdict)), verdict)
            }
        };
        if let Some(peer) = lost(&failure, verdict.as_ref()) {
            driver.engine.lost(peer);
        }
        let error = self.error(driver, &failure);
        driver.ended = Some(error.clone());
        driver.fail_owned(&error);
        error
    }

    /// The engine has failed: what it failed with, as every call from now on will say it.
    pub(super) fn give_up(&self, driver: &mut Driver) -> Error {
        match driver.engine.failure().cloned() {
            Some(failure) => self.end(driver, failure),
            None => {
                Error::new(ErrorKind::Aborted, "the communicator has ended").in_comm(&self.name, self.rank)
            }
        }
    }

    /// Nothing has moved for longer than a message takes. The deadline is the same whether somebody waits in a call or the progress thread drives.
    pub(super) fn stands(&self, driver: &mut Driver) {
        let now = clock::now();
        let still = driver.still.get_or_insert_with(|| Stopwatch::start(now)).look(now);
        driver.stands();
        if still >= ASK {
            self.ask(driver);
            self.say_shortage();
        }
        if still >= self.timeout {
            self.time_out(driver);
        }
    }

    /// Ends the communicator here and everywhere: the operation under way has passed its deadline.
    fn time_out(&self, driver: &mut Driver) {
        let error = self.timed_out(driver);
        let (peer, channel, op) = (error.at.peer, error.at.channel, error.at.op);
        let about = peer.unwrap_or(self.rank);
        let report = Report::new(Trouble::TimedOut, self.rank, about, error.what.clone());
        self.tell(Report { op, channel, ..report });
        driver.engine.fail(Failure { cause: Cause::Told(error), op, peer, channel }, clock::raw());
    }

    /// Tells the others what this rank has found and fails with, if nothing else was decided before.
    pub(super) fn tell(&self, report: Report) {
        if self.is_stale() {
            return;
        }
        if let Some(courier) = lock(&self.courier).clone() {
            courier.report(report, Duration::ZERO);
        }
    }

    fn report(&self, driver: &Driver, failure: &Failure) -> Report {
        let peer = failure.peer.unwrap_or(self.rank);
        let (trouble, text, open) = match &failure.cause {
            Cause::Link(fault) => {
                let what =
                    if *fault == LinkFault::Gone { "ended".to_string() } else { format!("failed: {fault}") };
                (
                    Trouble::LinkFailed,
                    format!("the link between rank {} and rank {peer} {what}", self.rank),
                    None,
                )
            }
            Cause::Mismatch { ours, theirs } => {
                let (text, open) = driver.sides(ours, *theirs, peer);
                (Trouble::Mismatch, text, open)
            }
            Cause::Finished(text) => (Trouble::Mismatch, text.clone(), None),
            Cause::Told(error) => (Trouble::Aborted, error.what.clone(), None),
        };
        let Failure { op, channel, .. } = *failure;
        Report { op, channel, open, ..Report::new(trouble, self.rank, peer, text) }
    }

    /// A verdict, as this rank's failure: where it stood, and whom it is about.
    fn told(&self, driver: &Driver, verdict: &Verdict) -> Failure {
        let hint = match verdict.trouble {
            Trouble::Died => driver.links.where_is(verdict.about),
            Trouble::Mismatch => CALL_THE_SAME.into(),
            Trouble::TimedOut | Trouble::LinkFailed => match self.lacking(driver) {
                Some((what, hint)) if verdict.text.contains(&what) => hint.into(),
                Some((what, hint)) => format!("{what}: {hint}"),
                None => String::new(),
            },
            Trouble::Aborted => String::new(),
        };
        let own = driver.engine.failure();
        let op = driver.engine.under_way().or_else(|| own.and_then(|failure| failure.op));
        // A verdict about this rank itself names the peer that this rank failed with, if there is one.
        let other = |peer: &Rank| *peer != self.rank;
        let peer = Some(verdict.about).filter(other).or_else(|| own?.peer.filter(other));
        let waits = driver.engine.waits();
        let awaited = waits.iter().find(|wait| Some(wait.peer) == peer).map(|wait| wait.channel);
        let failed = own.filter(|failure| failure.peer == peer).and_then(|failure| failure.channel);
        // Otherwise where the rank stands: on the channel of what it waits for, or the first of the operation.
        let first = || op.map(|(kind, _)| first_channel(kind));
        let stands = || waits.first().map(|wait| wait.channel).or_else(first);
        let channel = awaited.or(failed).or_else(stands);
        let mut error = Error::new(verdict.trouble.kind(), verdict.text.clone()).hint(hint);
        (error.at.op, error.at.peer, error.at.channel) = (op, peer, channel);
        Failure { cause: Cause::Told(error), op, peer, channel }
    }

    fn error(&self, driver: &Driver, failure: &Failure) -> Error {
        let at = At {
            comm: Some(self.name.clone()),
            rank: Some(self.rank),
            op: failure.op,
            peer: failure.peer,
            channel: failure.channel,
        };
        match &failure.cause {
            Cause::Told(error) => {
                let mut error = error.clone();
                error.at = At {
                    op: error.at.op.or(at.op),
                    peer: error.at.peer.or(at.peer),
                    channel: error.at.channel.or(at.channel),
                    ..at
                };
                error
            }
            Cause::Link(fault) => {
                let mut error = Error::new(failure.kind(), fault.to_string())
                    .hint(failure.peer.map_or_else(String::new, |peer| driver.links.where_is(peer)));
                error.at = at;
                error
            }
            Cause::Mismatch { .. } | Cause::Finished(_) => {
                let text = match &failure.cause {
                    Cause::Finished(text) => text,
                    _ => "the peer called something else",
                };
                let mut error = Error::new(ErrorKind::Mismatch, text).hint(CALL_THE_SAME);
                error.at = at;
                error
            }
        }
    }

    fn timed_out(&self, driver: &Driver) -> Error {
        let op = driver.engine.under_way();
        let waits = driver.engine.waits();
        let whom: Vec<String> = waits
            .iter()
            .map(|wait| format!("rank {} on channel {} ({})", wait.peer, wait.channel, wait.reason))
            .collect();
        let whom = whom.join(", ");
        let what = format!("rank {} saw no progress for {:?}: it waits for {whom}", self.rank, self.timeout);
        let (what, hint) = match self.lacking(driver) {
            Some((lacks, hint)) => (format!("{what}, and {lacks}"), hint.to_string()),
            None => (what, self.how_to_look()),
        };
        let mut error = Error::new(ErrorKind::Timeout, what).hint(hint);
        error.at.op = op;
        error.at.peer = waits.first().map(|wait| wait.peer);
        error.at.channel = waits.first().map(|wait| wait.channel);
        error
    }

    /// What shows how the ranks of this host stood, also when a log is read after their end: what
    /// fails leaves its recorder.
    fn how_to_look(&self) -> String {
        let path = self.recorder_path().filter(|path| !path.starts_with("/proc"));
        path.as_deref().and_then(std::path::Path::parent).map_or_else(String::new, |folder| {
            format!(
                "look, also after the end, with: ccl-inspect open {} --job {}",
                folder.display(),
                self.job
            )
        })
    }

    pub(crate) fn tag(&self, text: &str) {
        if let Ok(driver) = self.driver() {
            driver.engine.row().tag(text);
        }
    }

    pub(crate) fn events_recorded(&self) -> u64 {
        self.driver().map_or(0, |driver| driver.engine.events().written())
    }

    pub(crate) fn recorder_path(&self) -> Option<PathBuf> {
        self.recorder.path().map(std::path::Path::to_path_buf)
    }
}

/// The channel on which an operation begins.
fn first_channel(kind: CollKind) -> ChannelId {
    if kind.is_p2p() { ChannelId::P2P } else { ChannelId(0) }
}
