//! Submitting and driving: the path of a call from the public API to the engine.
//!
//! The calling thread locks the driver, hands the operation to the engine and turns the engine
//! until the operation has ended, or sleeps while another thread turns it (`exclusive`). For events
//! from outside (a decision, a link that came up) the service thread sets a flag in [`Shared`] and
//! notifies this rank; the driver checks the flag whenever it waits.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::{self, Stopwatch};
use crate::collective::{CallTerms, Request};
use crate::comm::ending::first_channel;
use crate::comm::exclusive::{Locked, Own};
use crate::comm::report;
use crate::comm::state::{Driver, Inner, LATE};
use crate::comm::unsatisfiable::{ASK, is_long};
use crate::comm::wait::{SLEEP, Waited};
use crate::engine::{Begun, Cause, Failure, Op, OpId, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::gossip::{Report, Trouble};
use crate::memory::{Borrowed, View, ViewMut};
use crate::observer::{Call, Observed, Together};
use crate::plan::{Plan, Shape, Topology, select};
use crate::proxy;
use crate::types::ReduceOp;

/// Where to read why a call panicked.
pub(super) const PANIC_IS_SAID: &str = "its message is on standard error";

/// A call as its thread makes it: what is to be done, with which memory of the caller's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) request: Request,
    /// What it says beside the request, if anything.
    pub(super) terms: Option<Borrowed<CallTerms>>,
    pub(super) input: View,
    pub(super) output: ViewMut,
    /// How it is shared out, and the hash of that, if it was planned before.
    pub(super) planned: Option<(Shape, u64)>,
}

impl Asked {
    pub(super) const fn new(request: Request, input: View, output: ViewMut) -> Self {
        Self { request, terms: None, input, output, planned: None }
    }
}

/// Guards the buffers lent to the engine: if a panic (of an observer, say) unwinds the call, the
/// engine lets go of them. A call that a destructor makes during an earlier panic does not panic.
pub(super) struct Unwinding<'a> {
    inner: &'a Inner,
    panicked_before: bool,
}

impl<'a> Unwinding<'a> {
    pub(super) fn of(inner: &'a Inner) -> Self {
        Self { inner, panicked_before: std::thread::panicking() }
    }
}

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.panicked_before {
            let inner = self.inner;
            let text = format!("a call of rank {} panicked", inner.rank);
            let error = Error::new(ErrorKind::Aborted, text.clone()).hint(PANIC_IS_SAID);
            let failure = Failure { cause: Cause::External(error), op: None, peer: None, channel: None };
            if let Ok(mut driver) = inner.driver() {
                driver.engine.fail(failure, clock::raw());
            }
            // The other ranks are blocked on this one.
            inner.tell(Report::new(Trouble::Aborted, inner.rank, inner.rank, text));
        }
    }
}

impl Inner {
    /// Carries out one call and returns when it has ended.
    pub(super) fn call(&self, asked: &Asked) -> Result<()> {
        let own = self.check(asked)?;
        let _guard = Unwinding::of(self);
        let mut driver = self.locked(own);
        let mut observed = Observed::default();
        let id = self.submit(&mut driver, asked, None, &mut observed)?;
        self.drive(&mut driver, &mut |driver| driver.engine.is_done(id))
    }

    /// Carries out several calls side by side and returns when all have ended.
    pub(super) fn call_all<'a>(&self, calls: impl ExactSizeIterator<Item = &'a Asked>) -> Result<()> {
        let _guard = Unwinding::of(self);
        let mut driver = self.driver()?;
        let mut ids: Vec<OpId> = Vec::with_capacity(calls.len());
        let mut together = Together::default();
        for asked in calls {
            let mut observed = Observed::default();
            ids.push(self.submit(&mut driver, asked, None, &mut observed)?);
            together.push(observed);
        }
        // Operations that have ended are not checked again.
        let mut ended = 0;
        self.drive(&mut driver, &mut |driver| {
            ended += ids[ended..].iter().take_while(|id| driver.engine.is_done(**id)).count();
            ended == ids.len()
        })
    }

    /// Refuses a call that cannot be carried out, before it is counted. `Collective::asked` has
    /// checked its lengths.
    pub(super) fn check(&self, asked: &Asked) -> Result<Own> {
        if asked.request.kind.is_p2p() && asked.request.root == self.rank {
            let error = Error::new(
                ErrorKind::Usage,
                "a rank that sends to itself, or receives from itself, waits for itself",
            )
            .hint("put the send and the receive into one group");
            return Err(error.in_comm(&self.name, self.rank).in_op(asked.request.kind, 0));
        }
        self.check_in_group(asked)
    }

    /// The same of a call of a group, where a rank may send to itself.
    pub(super) fn check_in_group(&self, Asked { request, terms, .. }: &Asked) -> Result<Own> {
        let here = |error: Error| error.in_comm(&self.name, self.rank).in_op(request.kind, 0);
        let own = self.own().map_err(here)?;
        if request.op == ReduceOp::PreMulSum && terms.is_none_or(|terms| terms.factor.is_none()) {
            let error = Error::new(ErrorKind::Usage, "a pre-multiplied sum without a factor")
                .hint("pass Reduction::pre_mul_sum(factor)");
            return Err(here(error));
        }
        Ok(own)
    }

    /// How a request is shared out, and the hash of all that its plan is made from.
    #[inline]
    pub(super) fn plan(
        &self,
        driver: &mut Driver,
        request: &Request,
        terms: Option<&CallTerms>,
    ) -> (Shape, u64) {
        let sizing = terms.map(|terms| terms.sizing(request));
        let shape = select::select(&self.topology, self.rank, &sizing.unwrap_or(*request), self.forced);
        let counts = terms.filter(|_| request.uneven).map_or(0, |terms| terms.hash(request));
        (shape, driver.hash_of(shape, &self.topology) ^ counts)
    }

    /// Numbers a request, plans it, brings its links up and hands it to the engine, with the ticket
    /// of the owner of its buffers. For an observer the operation ends when the caller drops
    /// `observed`, which is not returned, since moving it costs as much as a short step.
    pub(super) fn submit(
        &self,
        driver: &mut Driver,
        asked: &Asked,
        begun: Option<Begun>,
        observed: &mut Observed,
    ) -> Result<OpId> {
        if let Some(ended) = &driver.ended {
            let mut error = ended.clone();
            let kind = asked.request.kind;
            // Only collectives are numbered alike on all ranks.
            error.at.op = Some((kind, if kind.is_p2p() { 0 } else { driver.numbers.next() }));
            error.at.channel = error.at.channel.or_else(|| Some(first_channel(asked.request.kind)));
            return Err(error);
        }
        let Asked { ref request, terms, input, output, planned } = *asked;
        if driver.is_finishing {
            let error =
                Error::new(ErrorKind::Usage, "this rank has called finish(), and makes no more calls")
                    .hint("make it before finish()");
            return Err(error.in_comm(&self.name, self.rank).in_op(request.kind, 0));
        }
        let (shape, hash) = planned.unwrap_or_else(|| self.plan(driver, request, terms.as_deref()));
        let (descriptor, check) = driver.numbers.describe(self.rank, request, hash);
        driver.links.describe(&descriptor);
        driver.still = None;
        let (comm, rank, seq) = (self.id, self.rank, descriptor.seq);
        if self.is_told {
            report::call(self, request, seq, &shape);
        }
        observed.begin(|| Call::Operation { request: *request, comm, rank, seq });
        // An observer may have forked: its child also gets here.
        self.own()?;
        let started = clock::raw();
        let make = || {
            let plan = Plan::Generated { request: *request, shape, me: self.rank, terms };
            Op::new(plan, (descriptor, check), input, output)
        };
        let id = match driver.engine.submit(request.kind, make, begun, started) {
            Ok(id) => id,
            Err(failure) => return Err(self.end(driver, failure)),
        };
        // A decision made meanwhile ends the operation here. So does a mismatch with the calls of
        // other ranks: the operation might need no peer and succeed by mistake.
        if self.shared.flag.load(Ordering::Acquire) || driver.is_watched() {
            self.look(driver);
            if driver.engine.failure().is_some() {
                return Err(self.give_up(driver));
            }
        }
        // The operation is visible as called before its links are made: a wait for an absent peer
        // is shown.
        let Driver { engine, links, .. } = &mut *driver;
        if let Err(error) = links.ensure(engine, &self.topology, &shape, (request, seq)) {
            self.cannot_connect(driver, error);
            return Err(self.give_up(driver));
        }
        Ok(id)
    }

    /// Moves the lanes that are being connected, if there are any.
    #[inline]
    pub(super) fn connect(&self, driver: &mut Driver) {
        let Driver { engine, links, .. } = driver;
        if let Err(error) = links.turn(engine) {
            self.cannot_connect(driver, error);
        }
    }

    /// A lane cannot come up: the communicator ends, here and everywhere.
    #[cold]
    fn cannot_connect(&self, driver: &mut Driver, error: Error) {
        // What was decided meanwhile comes first.
        self.look(driver);
        if driver.engine.failure().is_some() {
            return;
        }
        let (peer, channel) = (error.at.peer, error.at.channel);
        let op = peer.zip(channel).and_then(|(peer, channel)| driver.engine.op_to(channel, peer));
        let whom = peer.map_or_else(|| "its peers".into(), |peer| format!("rank {peer}"));
        let text = format!("rank {} cannot connect to {whom}: {}", self.rank, error.what);
        let is_late = error.kind == ErrorKind::Timeout;
        let about = if is_late {
            self.held_by(driver, driver.engine.waits(), peer)
        } else {
            peer.unwrap_or(self.rank)
        };
        let trouble = if is_late { Trouble::TimedOut } else { Trouble::LinkFailed };
        self.tell(Report { op, ..Report::new(trouble, self.rank, about, text) });
        driver.engine.stop(Failure { cause: Cause::External(error), op, peer, channel });
    }

    /// Turns the engine until `done`, or until the communicator ends. While another thread does so,
    /// this one sleeps.
    pub(super) fn drive(&self, driver: &mut Locked<'_>, done: &mut dyn FnMut(&Driver) -> bool) -> Result<()> {
        let driven = self.turn_until(driver, done);
        driver.engine.notify();
        driver.leave();
        driven
    }

    fn turn_until(&self, driver: &mut Locked<'_>, done: &mut dyn FnMut(&Driver) -> bool) -> Result<()> {
        driver.waiter.reset();
        loop {
            if !driver.drives() {
                if done(driver) {
                    return Ok(());
                }
                if driver.engine.failure().is_some() {
                    return Err(self.give_up(driver));
                }
                driver.await_another();
                continue;
            }
            self.connect(driver);
            let progress = driver.engine.turn(&clock::raw);
            if progress == Progress::Failed {
                return Err(self.give_up(driver));
            }
            if progress != Progress::Blocked {
                driver.moved();
            }
            // Checked even if nothing moved now: the operation may have ended in another thread's
            // turn, or in the look before a sleep.
            if done(driver) {
                return Ok(());
            }
            match progress {
                _ if self.is_wanted() => driver.let_in(),
                Progress::Blocked if self.shared.flag.load(Ordering::Acquire) => self.look(driver),
                Progress::Blocked => {
                    let (waited, advanced) = self.wait(driver);
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

    /// Spins, yields or sleeps as the waiter decides; returns what it did, and whether the engine
    /// moved before the sleep.
    fn wait(&self, driver: &mut Driver) -> (Waited, bool) {
        let Driver { engine, links, waiter, interests, .. } = driver;
        interests.clear();
        let mut longest = SLEEP;
        // Devices are asked to notify: an interrupt for each message, if it were asked too early.
        if waiter.may_sleep() {
            engine.interests(interests);
            links.interests(interests);
            longest = links.wake().map_or(SLEEP, |at| at.since(clock::now()).min(SLEEP));
            if engine.is_short_of_slots() {
                longest = longest.min(proxy::LOOK);
            }
            if self.shared.late_for(clock::now()).is_some() {
                longest = longest.min(LATE);
            }
        }
        if waiter.glance(|| engine.may_advance()) {
            return (Waited::Spun, false);
        }
        engine.notify();
        let flag = &self.shared.flag;
        let mut advanced = false;
        let waited = waiter.idle(interests, longest, &mut || {
            advanced = engine.turn_before_sleep(&clock::raw) != Progress::Blocked;
            advanced || flag.load(Ordering::SeqCst) || self.driver.wanted.load(Ordering::SeqCst) > 0
        });
        (waited, advanced)
    }

    /// Nothing has moved for longer than a message takes. The deadline is the same whether somebody
    /// waits in a call or the progress thread drives. It ends a call that stands while others move,
    /// too, but not what was only begun.
    pub(super) fn stands(&self, driver: &mut Driver) {
        let now = clock::now();
        let still = driver.still.get_or_insert_with(|| Stopwatch::start(now)).look(now);
        driver.stands();
        self.ask(driver);
        // Most waits are short.
        let is_long = driver.engine.waits_since().is_some_and(is_long);
        let (stood, wait) = if is_long { driver.stood(now) } else { Default::default() };
        if still.max(stood) >= ASK {
            self.say_shortage();
        }
        // The rank whose deadline has passed may wait for this one, which waits since later.
        let waits_too = |late: Duration| late >= LATE && still >= late;
        if still >= self.timeout || self.shared.late_for(now).is_some_and(waits_too) {
            self.time_out(driver, None, still);
        } else if stood >= self.timeout {
            self.time_out(driver, wait, stood);
        }
    }

    pub(crate) fn tag(&self, text: &str) {
        if let Ok(mut driver) = self.driver() {
            driver.engine.tag(text);
            driver.tag = text.to_string();
        }
    }

    pub(crate) fn events_recorded(&self) -> u64 {
        self.driver().map_or(0, |driver| driver.engine.events().recorded())
    }

    pub(crate) fn recorder_path(&self) -> Option<PathBuf> {
        self.recorder.path().map(std::path::Path::to_path_buf)
    }
}

impl Driver {
    /// The hash of a shape, computed once for each.
    fn hash_of(&mut self, shape: Shape, topology: &Topology) -> u64 {
        if let Some((_, hash)) = self.shapes.iter().find(|(known, _)| *known == shape) {
            return *hash;
        }
        let hash = shape.hash(topology);
        self.shapes.push((shape, hash));
        hash
    }
}
