//! Sends and receives that progress together, so that no order of calls on the ranks can deadlock:
//! of one communicator, or of several.

use std::time::Duration;

use crate::clock;
use crate::collective::Request;
use crate::comm::Communicator;
use crate::comm::driver::{Asked, Unwinding};
use crate::comm::state::Inner;
use crate::engine::OpId;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Element, View, ViewMut, view_of, view_of_mut};
use crate::observer::{Observed, Together};
use crate::types::{CollKind, Rank, ReduceOp};

/// How long a thread that drives several communicators spins while none moves: as long as a driver
/// of one does.
const SPIN: Duration = Duration::from_micros(200);
/// How long it sleeps then between two looks. A rank is woken through the memory of one
/// communicator, so nobody wakes this thread: a message may be late by as much. The kernel ends a
/// sleep up to 50 us late, so a much shorter one would gain little.
const DOZE: Duration = Duration::from_micros(100);
/// How often it asks threads that drive one of them to let go. Each time such a thread is woken and
/// gives up the lock for a moment; the end of a call that it has moved is noticed as late as this.
const ASK: Duration = Duration::from_millis(1);

/// Collects sends and receives; [`run`](Self::run) carries all of them out side by side.
///
/// If the group is dropped without `run`, none is carried out.
#[derive(Debug)]
pub struct Group<'a> {
    inner: &'a Inner,
    calls: Vec<GroupCall<'a>>,
    // The views borrow the callers' buffers until `run` has returned.
    buffers: std::marker::PhantomData<&'a mut ()>,
}

/// One call of a group.
#[derive(Debug)]
struct GroupCall<'a> {
    inner: &'a Inner,
    asked: Asked,
}

impl<'a> Group<'a> {
    pub(crate) const fn new(inner: &'a Inner) -> Self {
        Self { inner, calls: Vec::new(), buffers: std::marker::PhantomData }
    }

    /// Adds a send.
    pub fn send<T: Element>(&mut self, buffer: &'a [T], peer: Rank) -> &mut Self {
        self.add(
            self.inner,
            request::<T>(CollKind::Send, peer, buffer.len()),
            (view_of(buffer), ViewMut::EMPTY),
        )
    }

    /// Adds a receive.
    pub fn recv<T: Element>(&mut self, buffer: &'a mut [T], peer: Rank) -> &mut Self {
        self.add(
            self.inner,
            request::<T>(CollKind::Recv, peer, buffer.len()),
            (View::EMPTY, view_of_mut(buffer)),
        )
    }

    /// Adds a send over another communicator of this process.
    pub fn send_on<T: Element>(&mut self, comm: &'a Communicator, buffer: &'a [T], peer: Rank) -> &mut Self {
        self.add(
            &comm.inner,
            request::<T>(CollKind::Send, peer, buffer.len()),
            (view_of(buffer), ViewMut::EMPTY),
        )
    }

    /// Adds a receive over another communicator of this process.
    pub fn recv_on<T: Element>(
        &mut self,
        comm: &'a Communicator,
        buffer: &'a mut [T],
        peer: Rank,
    ) -> &mut Self {
        self.add(
            &comm.inner,
            request::<T>(CollKind::Recv, peer, buffer.len()),
            (View::EMPTY, view_of_mut(buffer)),
        )
    }

    fn add(&mut self, inner: &'a Inner, request: Request, (input, output): (View, ViewMut)) -> &mut Self {
        let asked = Asked::new(request, input, output);
        self.calls.push(GroupCall { inner, asked });
        self
    }

    /// Carries out all sends and receives; returns when all have ended.
    ///
    /// Where one of several communicators fails, the calls of the others are carried out all the
    /// same.
    ///
    /// # Errors
    /// As [`Communicator::send`](crate::comm::Communicator::send): the first, of several.
    pub fn run(mut self) -> Result<()> {
        for call in &self.calls {
            call.inner.check_in_group(&call.asked)?;
        }
        self.join_own()?;
        let first = self.calls.first().map_or(self.inner, |call| call.inner);
        if self.calls.iter().all(|call| std::ptr::eq(call.inner, first)) {
            return first.call_all(self.calls.iter().map(|call| call.asked));
        }
        let mut parts: Vec<Part<'_>> = Vec::new();
        for call in self.calls {
            match parts.iter_mut().find(|part| std::ptr::eq(part.inner, call.inner)) {
                Some(part) => part.calls.push(call),
                None => parts.push(Part::of(call)),
            }
        }
        let mut together = Together::default();
        parts.iter_mut().for_each(|part| part.begin(&mut together));
        drive(&mut parts);
        parts.into_iter().try_for_each(|part| part.error.map_or(Ok(()), Err))
    }

    /// Gives each send of a rank to itself the output of the receive that it meets, which is the
    /// next one of this communicator.
    ///
    /// # Errors
    /// `Usage` for one without the other, `Mismatch` where they differ.
    fn join_own(&mut self) -> Result<()> {
        let is_own = |call: &GroupCall<'_>, kind| {
            let Request { kind: its, root, .. } = call.asked.request;
            its == kind && root == call.inner.rank
        };
        let own = |calls: &[GroupCall<'_>], kind| -> Vec<usize> {
            (0..calls.len()).filter(|at| is_own(&calls[*at], kind)).collect()
        };
        let sends = own(&self.calls, CollKind::Send);
        let mut receives = own(&self.calls, CollKind::Recv);
        for send in sends {
            let GroupCall { inner, asked } = &self.calls[send];
            let is_its = |at: &usize| std::ptr::eq(self.calls[*at].inner, *inner);
            let Some(met) = receives.iter().position(is_its) else {
                return Err(alone(inner, &asked.request, "no receive for what this rank sends to itself"));
            };
            let receive = &self.calls[receives.remove(met)].asked;
            let (ours, theirs) = (asked.request, receive.request);
            if (ours.count, ours.dtype) != (theirs.count, theirs.dtype) {
                let what = format!(
                    "this rank sends itself {} {} and receives {} {}",
                    ours.count, ours.dtype, theirs.count, theirs.dtype
                );
                let error = Error::new(ErrorKind::Mismatch, what).hint("make both alike");
                return Err(error.in_comm(&inner.name, inner.rank).in_op(CollKind::Send, 0));
            }
            self.calls[send].asked.output = receive.output;
        }
        let left = receives.first().map(|at| &self.calls[*at]);
        left.map_or(Ok(()), |call| {
            Err(alone(call.inner, &call.asked.request, "no send for what this rank receives from itself"))
        })
    }
}

fn alone(inner: &Inner, request: &Request, what: &str) -> Error {
    let error = Error::new(ErrorKind::Usage, format!("the group has {what}"));
    error.hint("add the other one").in_comm(&inner.name, inner.rank).in_op(request.kind, 0)
}

/// The calls of one communicator in a group of several.
struct Part<'a> {
    inner: &'a Inner,
    _guard: Unwinding<'a>,
    calls: Vec<GroupCall<'a>>,
    under_way: Vec<OpId>,
    error: Option<Error>,
}

impl<'a> Part<'a> {
    fn of(call: GroupCall<'a>) -> Self {
        let (inner, _guard) = (call.inner, Unwinding(call.inner));
        Self { inner, _guard, calls: vec![call], under_way: Vec::new(), error: None }
    }

    fn begin(&mut self, together: &mut Together) {
        let begun = self.inner.driver().and_then(|mut driver| {
            for call in &self.calls {
                let mut observed = Observed::default();
                let id = self.inner.submit(&mut driver, call.asked, None, &mut observed)?;
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
fn drive(parts: &mut [Part<'_>]) {
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

const fn request<T: Element>(kind: CollKind, peer: Rank, len: usize) -> Request {
    Request { kind, dtype: T::DTYPE, op: ReduceOp::Sum, root: peer, count: len as u64, uneven: false }
}
