//! Calls that progress together, so that no order of calls on the ranks can deadlock: of one
//! communicator, or of several.

use std::time::Duration;

use crate::clock;
use crate::collective::{CallTerms, Request};
use crate::comm::driver::{Asked, Unwinding};
use crate::comm::state::Inner;
use crate::comm::wait::SPIN;
use crate::comm::{Collective, Communicator};
use crate::engine::OpId;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Element;
use crate::observer::{Observed, Together};
use crate::types::{CollKind, Rank};

/// How long a thread that drives several communicators sleeps between two looks, once it has spun
/// as long as a driver of one does. A rank is woken through the memory of one communicator, so
/// nobody wakes this thread: a message may be late by as much. The kernel ends a sleep up to 50 us
/// late, so a much shorter one would gain little.
const DOZE: Duration = Duration::from_micros(100);
/// How often it asks threads that drive one of them to let go. Each time such a thread is woken and
/// gives up the lock for a moment; the end of a call that it has moved is noticed as late as this.
const ASK: Duration = Duration::from_millis(1);

/// Calls that [`run`](Self::run) carries out side by side: of one communicator, or of several of
/// this process.
///
/// The calls of each communicator begin in the order in which they were added, and all have begun
/// before the first one moves. To other ranks they are the same calls as without a group: these
/// need not use one.
///
/// If the group is dropped without `run`, none is carried out. A group can be moved to another
/// thread; the thread that runs it drives its calls.
#[derive(Debug)]
pub struct Group<'a> {
    inner: &'a Inner,
    calls: Vec<GroupCall<'a>>,
}

/// One call of a group.
#[derive(Debug)]
struct GroupCall<'a> {
    inner: &'a Inner,
    call: Collective<'a, 'a>,
    /// Where its operation reads them.
    terms: Option<CallTerms>,
}

/// A call of a group, ready to begin.
struct Ready<'a> {
    inner: &'a Inner,
    asked: Asked,
}

impl<'a> Group<'a> {
    pub(crate) const fn new(inner: &'a Inner) -> Self {
        Self { inner, calls: Vec::new() }
    }

    /// Adds a call.
    pub fn add(&mut self, call: Collective<'a, 'a>) -> &mut Self {
        self.push(self.inner, call)
    }

    /// Adds a call of another communicator of this process.
    pub fn add_on(&mut self, comm: &'a Communicator, call: Collective<'a, 'a>) -> &mut Self {
        self.push(&comm.inner, call)
    }

    /// Adds all calls of another group, behind those of this one.
    pub fn append(&mut self, other: Self) -> &mut Self {
        self.calls.extend(other.calls);
        self
    }

    /// Adds a send.
    pub fn send<T: Element>(&mut self, buffer: &'a [T], peer: Rank) -> &mut Self {
        self.add(Collective::send(buffer, peer))
    }

    /// Adds a receive.
    pub fn recv<T: Element>(&mut self, buffer: &'a mut [T], peer: Rank) -> &mut Self {
        self.add(Collective::recv(buffer, peer))
    }

    fn push(&mut self, inner: &'a Inner, call: Collective<'a, 'a>) -> &mut Self {
        let terms = call.terms();
        self.calls.push(GroupCall { inner, call, terms });
        self
    }

    /// Carries out all calls; returns when all have ended.
    ///
    /// Where one of several communicators fails, the calls of the others are carried out all the
    /// same.
    ///
    /// # Errors
    /// As the methods of [`Communicator`]. Where several communicators fail, the error is that of
    /// the one that was added first. What cannot be carried out is refused before any call begins:
    /// `Usage` if a rank sends to itself without a receive from itself on the same communicator, or
    /// the reverse, `Mismatch` if the two differ in length or type.
    pub fn run(self) -> Result<()> {
        let calls = self.ready()?;
        let first = calls.first().map_or(self.inner, |call| call.inner);
        if calls.iter().all(|call| std::ptr::eq(call.inner, first)) {
            return first.call_all(calls.iter().map(|call| &call.asked));
        }
        side_by_side(&calls, &mut || false)
    }

    /// The same, for a thread that has other work: `work` is called again and again until all calls
    /// have ended, and the calls move in between.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_while(self, mut work: impl FnMut()) -> Result<()> {
        let mut turn = || {
            work();
            true
        };
        side_by_side(&self.ready()?, &mut turn)
    }

    /// What is to be carried out.
    fn ready(&self) -> Result<Vec<Ready<'a>>> {
        let ready = |GroupCall { inner, call, terms }: &GroupCall<'a>| {
            let asked = call.asked(inner, terms.as_ref())?;
            inner.check_in_group(&asked)?;
            Ok(Ready { inner, asked })
        };
        let mut calls = self.calls.iter().map(ready).collect::<Result<Vec<_>>>()?;
        join_own(&mut calls)?;
        Ok(calls)
    }
}

/// Gives each send of a rank to itself the output of the receive that it meets, which is the
/// next one of this communicator.
///
/// # Errors
/// `Usage` for one without the other, `Mismatch` where they differ.
fn join_own(calls: &mut [Ready<'_>]) -> Result<()> {
    let is_own = |call: &Ready<'_>, kind| {
        let Request { kind: its, root, .. } = call.asked.request;
        its == kind && root == call.inner.rank
    };
    let own = |calls: &[Ready<'_>], kind| -> Vec<usize> {
        (0..calls.len()).filter(|at| is_own(&calls[*at], kind)).collect()
    };
    let sends = own(calls, CollKind::Send);
    let mut receives = own(calls, CollKind::Recv);
    for send in sends {
        let Ready { inner, asked } = &calls[send];
        let is_its = |at: &usize| std::ptr::eq(calls[*at].inner, *inner);
        let Some(met) = receives.iter().position(is_its) else {
            return Err(alone(inner, &asked.request, "no receive for what this rank sends to itself"));
        };
        let receive = &calls[receives.remove(met)].asked;
        let (ours, theirs) = (asked.request, receive.request);
        if (ours.count, ours.dtype) != (theirs.count, theirs.dtype) {
            let what = format!(
                "this rank sends itself {} {} and receives {} {}",
                ours.count, ours.dtype, theirs.count, theirs.dtype
            );
            let error = Error::new(ErrorKind::Mismatch, what).hint("give both the same type and length");
            return Err(error.in_comm(&inner.name, inner.rank).in_op(CollKind::Send, 0));
        }
        calls[send].asked.output = receive.output;
    }
    let left = receives.first().map(|at| &calls[*at]);
    left.map_or(Ok(()), |call| {
        Err(alone(call.inner, &call.asked.request, "no send for what this rank receives from itself"))
    })
}

fn alone(inner: &Inner, request: &Request, what: &str) -> Error {
    let error = Error::new(ErrorKind::Usage, format!("the group has {what}"));
    error
        .hint("add the send or receive of this rank that matches it")
        .in_comm(&inner.name, inner.rank)
        .in_op(request.kind, 0)
}

/// Begins all, and drives them until they have ended. Between two looks it does some `work`; where
/// there is none, it returns false, and the thread sleeps while nothing moves.
fn side_by_side(calls: &[Ready<'_>], work: &mut dyn FnMut() -> bool) -> Result<()> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    for Ready { inner, asked } in calls {
        match parts.iter_mut().find(|part| std::ptr::eq(part.inner, *inner)) {
            Some(part) => part.calls.push(*asked),
            None => parts.push(Part::of(inner, *asked)),
        }
    }
    let mut together = Together::default();
    parts.iter_mut().for_each(|part| part.begin(&mut together));
    drive(&mut parts, work);
    parts.into_iter().try_for_each(|part| part.error.map_or(Ok(()), Err))
}

/// The calls of one communicator of the group.
struct Part<'a> {
    inner: &'a Inner,
    _guard: Unwinding<'a>,
    calls: Vec<Asked>,
    under_way: Vec<OpId>,
    error: Option<Error>,
}

impl<'a> Part<'a> {
    fn of(inner: &'a Inner, call: Asked) -> Self {
        Self { inner, _guard: Unwinding::of(inner), calls: vec![call], under_way: Vec::new(), error: None }
    }

    fn begin(&mut self, together: &mut Together) {
        let begun = self.inner.driver().and_then(|mut driver| {
            for asked in &self.calls {
                let mut observed = Observed::default();
                let id = self.inner.submit(&mut driver, asked, None, &mut observed)?;
                self.under_way.push(id);
                together.push(observed);
            }
            Ok(())
        });
        self.fail(begun);
    }

    /// What has failed has nothing under way any more.
    fn fail(&mut self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.under_way.clear();
            self.error.get_or_insert(error);
        }
    }

    /// One turn; returns whether anything moved. While another thread drives, it does nothing,
    /// unless it `asks` that thread to let go.
    fn turn(&mut self, asks: bool) -> bool {
        let inner = self.inner;
        // A child that was forked meanwhile.
        if let Err(error) = inner.own() {
            self.fail(Err(error));
            return false;
        }
        let locked = if asks { inner.driver().ok() } else { inner.free_driver() };
        let Some(mut driver) = locked else { return false };
        let moved = inner.turn_once(&mut driver);
        self.under_way.retain(|id| !driver.engine.is_done(*id));
        let failed = driver.engine.failure().is_some().then(|| inner.give_up(&mut driver));
        drop(driver);
        if let (Some(error), false) = (failed, self.under_way.is_empty()) {
            self.fail(Err(error));
        }
        moved
    }
}

/// Drives all until their calls have ended. It locks one driver at a time.
fn drive(parts: &mut [Part<'_>], work: &mut dyn FnMut() -> bool) {
    let mut still = None;
    let mut asked = clock::now();
    loop {
        let mut moved = false;
        // Another thread that drives moves these calls too, but only they know when they ended.
        let asks = clock::now().since(asked) >= ASK;
        for part in parts.iter_mut().filter(|part| !part.under_way.is_empty()) {
            moved |= part.turn(asks);
        }
        if asks {
            asked = clock::now();
        }
        if parts.iter().all(|part| part.under_way.is_empty()) {
            return;
        }
        if work() {
            continue;
        }
        if moved {
            still = None;
            continue;
        }
        let now = clock::now();
        if now.since(*still.get_or_insert(now)) < SPIN {
            std::hint::spin_loop();
        } else {
            clock::sleep(DOZE);
        }
    }
}
