//! Calls that own their buffers, and the thread that drives them while nobody waits.
//!
//! The buffer of an asynchronous call lives in a place shared by the handle and the driver until the operation has ended: a
//! handle that is dropped or leaked never lets a link write freed memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::{self, Ns};
use crate::collective::Request;
use crate::comm::driver::{Driver, Inner, lock};
use crate::engine::{OpId, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Element, Region};

/// How long the progress thread yields before it begins to doze.
const BUSY: Duration = Duration::from_millis(1);
/// How long it dozes: the delay of an operation nobody waits for.
const DOZE: Duration = Duration::from_micros(200);

#[derive(Debug)]
struct Place<T: Element> {
    region: Option<Region<T>>,
    result: Option<Result<()>>,
    waker: Option<Waker>,
}

impl<T: Element> Place<T> {
    fn has_ended(&self) -> bool {
        self.result.is_some() || self.region.is_none()
    }
}

/// A call under way that owns its buffer. Waiting gives the buffer back; so does awaiting. Dropping it lets the operation run on.
#[derive(Debug)]
pub struct Pending<T: Element> {
    inner: Arc<Inner>,
    place: Arc<Mutex<Place<T>>>,
}

/// The driver's side of a pending call.
pub(crate) struct Owned {
    id: OpId,
    settle: Box<dyn Fn(Result<()>) + Send>,
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Owned({:?})", self.id)
    }
}

impl Owned {
    /// Tells the handle that its operation failed. Always settles.
    pub(super) fn fail(&mut self, error: &Error) -> bool {
        (self.settle)(Err(error.clone()));
        true
    }
}

impl Driver {
    /// Tells the handles of operations that have ended.
    pub(super) fn settle(&mut self) {
        let Self { engine, owned, .. } = self;
        owned.retain(|one| {
            let is_done = engine.is_done(one.id);
            if is_done {
                (one.settle)(Ok(()));
            }
            !is_done
        });
    }
}

/// Submits a request whose buffer the operation owns.
pub(super) fn begin<T: Element>(
    inner: &Arc<Inner>,
    request: Request,
    region: Region<T>,
) -> Result<Pending<T>> {
    inner.check(&request)?;
    let place = Arc::new(Mutex::new(Place { region: Some(region), result: None, waker: None }));
    // The buffer of a vector stays where it is when the vector moves; nobody touches it until the operation has ended.
    let view = lock(&place).region.as_mut().map(Region::view_mut);
    let Some(output) = view else { unreachable!("the region was just put there") };
    let mut driver = lock(&inner.driver);
    // Read through the same pointer: another borrow of the buffer would end this one's right to it. What its caller sees of it ends here.
    let (id, _observed) = inner.submit(&mut driver, request, output.read(), output)?;
    let shared = Arc::clone(&place);
    let settle = Box::new(move |result| {
        let waker = {
            let mut place = lock(&shared);
            place.result = Some(result);
            place.waker.take()
        };
        // Whoever is woken may look at once.
        if let Some(waker) = waker {
            waker.wake();
        }
    });
    driver.owned.push(Owned { id, settle });
    drop(driver);
    progress(inner);
    Ok(Pending { inner: Arc::clone(inner), place })
}

impl<T: Element> Pending<T> {
    /// Whether it has ended, well or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        lock(&self.place).has_ended()
    }

    /// Drives the communicator until this call has ended, and gives the buffer back.
    ///
    /// # Errors
    /// What befell the communicator; the buffer is gone then, its content being undefined.
    pub fn wait(self) -> Result<Region<T>> {
        let place = Arc::clone(&self.place);
        if !self.is_done() {
            let mut driver = lock(&self.inner.driver);
            // A failure of the communicator is this call's result too, unless it had ended before.
            let driven = self.inner.drive(&mut driver, &mut |_| lock(&place).has_ended());
            drop(driver);
            if let (Err(error), false) = (driven, self.is_done()) {
                return Err(error);
            }
        }
        let mut place = lock(&place);
        take(&mut place)
    }
}

fn take<T: Element>(place: &mut Place<T>) -> Result<Region<T>> {
    match (place.result.take(), place.region.take()) {
        (Some(Ok(())), Some(region)) => Ok(region),
        (Some(Err(error)), _) => Err(error),
        // Polled, or waited for, after its end was told.
        (Some(Ok(())) | None, _) => {
            Err(Error::new(ErrorKind::Usage, "the result of this call has been taken before"))
        }
    }
}

impl<T: Element> Future for Pending<T> {
    type Output = Result<Region<T>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut place = lock(&self.place);
        if place.has_ended() {
            return Poll::Ready(take(&mut place));
        }
        place.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[derive(Default)]
struct Thread {
    driven: Vec<Weak<Inner>>,
    runs: bool,
}

static THREAD: Mutex<Thread> = Mutex::new(Thread { driven: Vec::new(), runs: false });

/// Has the progress thread drive this communicator until nothing of it is owned any more.
fn progress(inner: &Arc<Inner>) {
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    if !thread.driven.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(inner))) {
        thread.driven.push(Arc::downgrade(inner));
    }
    if !thread.runs {
        // Without the thread, waiting still drives the operation.
        thread.runs = std::thread::Builder::new().name("ccl-progress".into()).spawn(run).is_ok();
    }
}

fn run() {
    let mut still: Option<Ns> = None;
    loop {
        let driven: Vec<Arc<Inner>> = {
            let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
            thread.driven.retain(|inner| {
                inner.upgrade().is_some_and(|inner| match inner.driver.try_lock() {
                    Ok(driver) => !driver.owned.is_empty(),
                    Err(TryLockError::Poisoned(driver)) => !driver.into_inner().owned.is_empty(),
                    Err(TryLockError::WouldBlock) => true,
                })
            });
            if thread.driven.is_empty() {
                thread.runs = false;
                return;
            }
            thread.driven.iter().filter_map(Weak::upgrade).collect()
        };
        let advanced = driven.iter().fold(false, |any, inner| any | turn(inner));
        drop(driven);
        let now = clock::now();
        match (advanced, still) {
            (true, _) => still = None,
            (false, None) => still = Some(now),
            (false, Some(since)) if now.since(since) < BUSY => std::thread::yield_now(),
            (false, Some(_)) => clock::sleep(DOZE),
        }
    }
}

/// One turn of a communicator nobody else drives; whether anything moved.
fn turn(inner: &Arc<Inner>) -> bool {
    let mut driver = match inner.driver.try_lock() {
        Ok(driver) => driver,
        Err(TryLockError::Poisoned(driver)) => driver.into_inner(),
        // A caller drives it.
        Err(TryLockError::WouldBlock) => return false,
    };
    if inner.shared.flag.load(Ordering::Acquire) {
        inner.look(&mut driver);
    }
    let progress = driver.engine.turn(&clock::raw);
    driver.engine.ring();
    driver.settle();
    match progress {
        Progress::Failed => {
            inner.give_up(&mut driver);
            true
        }
        Progress::Blocked => {
            inner.stands(&mut driver);
            false
        }
        Progress::Advanced | Progress::Idle => {
            driver.still = None;
            true
        }
    }
}
