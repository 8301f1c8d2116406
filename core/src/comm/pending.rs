//! Calls that own their buffers, and the progress thread that drives them while no caller waits.
//!
//! The buffer of an asynchronous call lives in a place shared by the handle and the driver until
//! the operation has ended: a handle that is dropped or leaked never lets a link write freed
//! memory.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::{self, Ns, Stopwatch};
use crate::comm::call::Owning;
use crate::comm::driver::{Asked, PANIC_IS_SAID, Unwinding};
use crate::comm::exclusive::{Locked, of_a_parent};
use crate::comm::parking;
use crate::comm::state::{Driver, Inner, lock};
use crate::comm::wait::MESSAGE;
use crate::engine::{Begun, Cause, Failure, Progress, WaitedFor};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::gossip::{Report, Trouble};
use crate::memory::{Element, Region};
use crate::observer::Observed;
use crate::plan::Shape;
use crate::recorder::Attention;
use crate::sys;

/// How long the progress thread yields before it begins to doze. A time slice that it loses to
/// another process delays only operations that no caller waits for.
const BUSY: Duration = Duration::from_millis(1);
/// How long it dozes: the delay of an operation that no caller waits for, once no caller is there.
const DOZE: Duration = Duration::from_micros(200);
/// The longest doze after it was woken: callers that begin and wait in turn would otherwise wake it
/// each time.
const LONGEST_DOZE: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct CallState<T: Element> {
    region: Option<Region<T>>,
    result: Option<Result<()>>,
    waker: Option<Waker>,
}

impl<T: Element> CallState<T> {
    fn has_ended(&self) -> bool {
        self.result.is_some() || self.region.is_none()
    }
}

/// A call under way that owns its buffer.
///
/// Waiting or awaiting gives the buffer back. Dropping the handle lets the operation run on.
///
/// Its waker runs while no lock of the communicator is held, in the thread that found that the call
/// has ended. The waker may call the communicator; while it blocks, that thread drives nothing. One
/// thread serves all communicators of the process: where ranks are threads of one process, a waker
/// must not wait for a rank whose waker has to run.
#[derive(Debug)]
pub struct Pending<T: Element> {
    // Weak: a communicator that has finished gives everything back, even if the results of its
    // calls are still held. It ends each of them before.
    inner: Weak<Inner>,
    place: Arc<Mutex<CallState<T>>>,
    /// Whether it was waited for or polled: before that, no thread waits in the call.
    attended: WaitedFor,
    /// The generation of the process that made it.
    generation: u32,
}

impl Driver {
    /// Stores the results of operations that have ended, and collects the wakers to run.
    #[inline]
    pub(super) fn settle(&mut self) {
        let Self { engine, owned, woken, .. } = self;
        for ticket in engine.ended() {
            woken.extend(owned.take(ticket).and_then(|settle| settle(Ok(()))));
        }
    }

    /// Ends all operations that have not ended yet with `error`.
    pub(super) fn fail_owned(&mut self, error: &Error) {
        self.settle();
        let Self { owned, woken, .. } = self;
        woken.extend(owned.take_all().filter_map(|settle| settle(Err(error.clone()))));
    }
}

/// Submits a call that owns its buffer.
pub(super) fn begin<T: Element>(
    inner: &Arc<Inner>,
    call: &Owning,
    planned: Option<(Shape, u64)>,
    mut region: Region<T>,
) -> Result<Pending<T>> {
    inner.check(&call.asked(region.view_mut()))?;
    let place = Arc::new(Mutex::new(CallState { region: Some(region), result: None, waker: None }));
    // A vector's buffer keeps its address when the vector moves; only the operation touches it
    // until it has ended.
    let lends = call.request.kind.is_p2p();
    let of = |region: &mut Region<T>| (region.lendable().filter(|_| lends), region.view_mut());
    let Some((lendable, buffer)) = lock(&place).region.as_mut().map(of) else {
        unreachable!("the region was just put there")
    };
    let call = call.clone();
    let asked = Asked { planned, ..call.asked(buffer) };
    let shared = Arc::clone(&place);
    let settle = Box::new(move |result: Result<()>| {
        // It holds the terms.
        drop(call);
        let mut place = lock(&shared);
        place.result = Some(result);
        place.waker.take()
    });
    let _guard = Unwinding::of(inner);
    let mut driver = inner.driver()?;
    // Kept before the engine knows the buffer.
    let ticket = driver.owned.keep(settle);
    let attended = WaitedFor::default();
    let begun = Begun { ticket, attended: attended.clone(), lendable };
    // The input is read through the same pointer: another borrow of the buffer would invalidate
    // this one. The observed call ends when this function returns.
    let mut observed = Observed::default();
    let submitted = inner.submit(&mut driver, &asked, Some(begun), &mut observed);
    if submitted.is_err() {
        // The engine did not take it.
        driver.owned.take(ticket);
    }
    submitted?;
    drop(driver);
    progress(inner);
    Ok(Pending { inner: Arc::downgrade(inner), place, attended, generation: sys::generation() })
}

impl<T: Element> Pending<T> {
    /// Whether it has ended, well or not. Who asks waits for it from now on, as a task that polls.
    ///
    /// True in a forked child, where waiting for it fails at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let has_ended = self.has_ended();
        if !has_ended {
            self.attended.poll();
        }
        has_ended
    }

    fn has_ended(&self) -> bool {
        self.is_stale() || lock(&self.place).has_ended()
    }

    /// Drives the communicator until this call has ended, and gives the buffer back.
    ///
    /// # Errors
    /// The failure of the communicator; the buffer is then lost, as its content is undefined.
    /// `Usage` in a forked child.
    pub fn wait(self) -> Result<Region<T>> {
        self.own()?;
        self.attended.set(Attention::Thread);
        let place = Arc::clone(&self.place);
        if let (false, Some(inner)) = (self.has_ended(), self.inner.upgrade()) {
            let mut driver = inner.driver()?;
            // A failure of the communicator is this call's result too, unless the call had ended
            // before.
            let driven = inner.drive(&mut driver, &mut |_| lock(&place).has_ended());
            drop(driver);
            if let (Err(error), false) = (driven, self.has_ended()) {
                return Err(error);
            }
        }
        let mut place = lock(&place);
        take(&mut place, &self.inner)
    }

    /// Whether this is a copy in a forked child.
    fn is_stale(&self) -> bool {
        self.generation != sys::generation()
    }

    /// Refuses a copy in a forked child.
    fn own(&self) -> Result<()> {
        if !self.is_stale() {
            return Ok(());
        }
        self.inner.upgrade().map_or_else(|| Err(of_a_parent()), |inner| inner.own().map(|_own| ()))
    }
}

impl<T: Element> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.is_stale() {
            // A copy: dropping the last reference must not free memory that belongs to the parent.
            std::mem::forget(Arc::clone(&self.place));
        } else {
            // The operation runs on, and nobody waits for it.
            self.attended.set(Attention::Nobody);
        }
    }
}

fn take<T: Element>(place: &mut CallState<T>, of: &Weak<Inner>) -> Result<Region<T>> {
    match (place.result.take(), place.region.take()) {
        (Some(Ok(())), Some(region)) => Ok(region),
        (Some(Err(error)), _) => Err(error),
        // It was polled or waited for after its result was taken.
        (Some(Ok(())) | None, _) => {
            let error = Error::new(ErrorKind::Usage, "the result of this call has been taken before")
                .hint("poll or wait for it once");
            Err(match of.upgrade() {
                Some(inner) => error.in_comm(&inner.name, inner.rank),
                None => error,
            })
        }
    }
}

impl<T: Element> Future for Pending<T> {
    type Output = Result<Region<T>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.own() {
            return Poll::Ready(Err(error));
        }
        self.attended.set(Attention::Task);
        // Cloned and dropped while the place is not locked: a waker is its caller's code.
        let waker = context.waker().clone();
        let mut place = lock(&self.place);
        if place.has_ended() {
            return Poll::Ready(take(&mut place, &self.inner));
        }
        let former = place.waker.replace(waker);
        drop(place);
        drop(former);
        Poll::Pending
    }
}

#[derive(Default)]
struct Thread {
    driven: Vec<Weak<Inner>>,
    runs: bool,
}

static THREAD: Mutex<Thread> = Mutex::new(Thread { driven: Vec::new(), runs: false });

/// Makes the progress thread drive this communicator until no operation owns a buffer any more.
fn progress(inner: &Arc<Inner>) {
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    if !thread.driven.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(inner))) {
        thread.driven.push(Arc::downgrade(inner));
    }
    if !thread.runs {
        // Without the thread, waiting still drives the operation.
        thread.runs = std::thread::Builder::new().name("ccl-progress".into()).spawn(run).is_ok();
    }
    drop(thread);
    parking::tell();
}

/// Whether other threads hold all drivers: they turn what was begun beside their own calls.
fn all_are_held() -> bool {
    // The list is unlocked before the references are dropped: the last one frees a communicator.
    let driven: Vec<Arc<Inner>> = {
        let thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
        thread.driven.iter().filter_map(Weak::upgrade).collect()
    };
    driven.iter().all(|inner| inner.is_held())
}

fn run() {
    crate::observer::thread(c"ccl-progress");
    let mut still: Option<Ns> = None;
    let mut doze = DOZE;
    loop {
        let driven: Vec<Arc<Inner>> = {
            let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
            thread.driven.retain(|inner| {
                inner.upgrade().is_some_and(|inner| inner.free_driver().is_none_or(|it| !it.owned.is_empty()))
            });
            if thread.driven.is_empty() {
                thread.runs = false;
                return;
            }
            thread.driven.iter().filter_map(Weak::upgrade).collect()
        };
        let (mut advanced, mut all_held) = (false, true);
        for turned in driven.iter().map(turn_guarded) {
            all_held &= turned.is_none();
            advanced |= turned == Some(true);
        }
        drop(driven);
        if all_held {
            if parking::park(all_are_held) {
                clock::sleep(doze);
                doze = (doze * 2).min(LONGEST_DOZE);
            } else {
                std::thread::yield_now();
            }
            continue;
        }
        doze = DOZE;
        let now = clock::now();
        match (advanced, still) {
            (true, _) => still = None,
            (false, None) => still = Some(now),
            (false, Some(since)) if now.since(since) < BUSY => std::thread::yield_now(),
            (false, Some(_)) => clock::sleep(DOZE),
        }
    }
}

/// Like `turn`; if it panics, the communicator ends, and the thread goes on with the others.
fn turn_guarded(inner: &Arc<Inner>) -> Option<bool> {
    catch_unwind(AssertUnwindSafe(|| turn(inner))).unwrap_or_else(|_| {
        if let Ok(mut driver) = inner.driver() {
            let text = format!("driving the calls of rank {} panicked", inner.rank);
            inner.tell(Report::new(Trouble::Aborted, inner.rank, inner.rank, text.clone()));
            let error = Error::new(ErrorKind::Aborted, text).hint(PANIC_IS_SAID);
            let failure = Failure { cause: Cause::External(error), op: None, peer: None, channel: None };
            driver.engine.fail(failure, clock::raw());
            inner.give_up(&mut driver);
        }
        Some(true)
    })
}

/// One turn of a communicator that no other thread drives; whether anything moved. `None`: another
/// one drives it.
fn turn(inner: &Arc<Inner>) -> Option<bool> {
    inner.free_driver().map(|mut driver| inner.turn_once(&mut driver))
}

impl Inner {
    /// One turn for all that wait, without waiting; returns whether anything moved.
    pub(super) fn turn_once(&self, driver: &mut Locked<'_>) -> bool {
        if self.shared.flag.load(Ordering::Acquire) {
            self.look(driver);
        }
        self.connect(driver);
        let progress = driver.engine.turn(&clock::raw);
        driver.engine.notify();
        // This thread turns others before it comes back, and runs their wakers.
        driver.engine.rest();
        driver.settle();
        driver.tell();
        match progress {
            Progress::Failed => {
                self.give_up(driver);
                true
            }
            Progress::Blocked => {
                let now = clock::now();
                let still = driver.still.get_or_insert_with(|| Stopwatch::start(now)).look(now);
                // A message may be on its way.
                if still >= MESSAGE {
                    self.stands(driver);
                }
                false
            }
            Progress::Advanced | Progress::Idle => {
                driver.still = None;
                true
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::comm::{Communicator, Config};
    use crate::config::{Key, Settings};
    use crate::plan::Lane;
    use crate::transport::carrier::{Carrier, Outgoing, Up};
    use crate::types::{Rank, TransportKind, TransportReason};

    /// A carrier that panics when it is to connect a lane.
    #[derive(Debug)]
    struct Panics;

    impl Carrier for Panics {
        fn reaches(&self, _: Rank) -> Option<(TransportKind, TransportReason)> {
            Some((TransportKind::Shm, TransportReason::SameHost))
        }
        fn connect(&mut self, _: Outgoing<'_>) -> Option<Up> {
            panic!("a carrier of the test");
        }
        fn accept(&mut self, _: Lane) -> Option<Up> {
            None
        }
    }

    #[test]
    fn a_buffer_is_kept_although_lending_it_panics() {
        let mut settings = Settings::default();
        for (key, value) in [(Key::Observe, "0"), (Key::Log, "NONE"), (Key::InitTimeout, "20")] {
            settings.set(key, value).unwrap();
        }
        let (id, root) = crate::bootstrap::root_task::create(&settings).unwrap();
        let join = |rank| {
            let config = Config { name: "test".into(), settings: Some(settings.clone()) };
            Communicator::init(&id, rank, 3, config).unwrap()
        };
        std::thread::scope(|scope| {
            let join = &join;
            let others = [1, 2].map(|rank| scope.spawn(move || join(rank)));
            let comm = join(0);
            // The engine has the operation before its link is made.
            comm.inner.driver().unwrap().links.carriers = vec![Box::new(Panics)];
            let begun = catch_unwind(AssertUnwindSafe(|| comm.send_async(vec![7_u8; 8], Rank(2)).map(drop)));
            assert!(begun.is_err(), "the carrier panics");
            let driver = comm.inner.driver().unwrap();
            assert!(driver.engine.failure().is_some() && !driver.owned.is_empty(), "{:?}", *driver);
            drop(driver);
            let error = comm.barrier().unwrap_err();
            assert_eq!((error.kind, &*error.what), (ErrorKind::Aborted, "a call of rank 0 panicked"));
            drop((comm, others.map(|other| other.join().unwrap())));
        });
        drop(root);
    }
}
