//! Init that does not block: a thread of its own joins, and its state can be polled.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::bootstrap::id::UniqueId;
use crate::comm::phases::Watch;
use crate::comm::state::lock;
use crate::comm::{Communicator, Config, init};
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::types::Phase;

/// A communicator that is being made.
///
/// Waiting or awaiting gives the communicator. Dropping it gives the init up, of which the other
/// ranks are told.
#[derive(Debug)]
pub struct Joining {
    watch: Arc<Watch>,
    outcome: Arc<(Mutex<Outcome>, Condvar)>,
    generation: u32,
}

#[derive(Debug, Default)]
struct Outcome {
    made: Option<Result<Communicator>>,
    is_over: bool,
    waker: Option<Waker>,
}

impl Communicator {
    /// Like [`init`](Self::init), without blocking: a thread of its own joins.
    ///
    /// # Errors
    /// `System` if the thread cannot be started, `Unavailable` in a forked child. All others come
    /// with the outcome.
    pub fn init_async(id: &UniqueId, rank: u32, nranks: u32, config: Config) -> Result<Joining> {
        sys::not_forked()?;
        let watch = Arc::<Watch>::default();
        let outcome = Arc::<(Mutex<Outcome>, Condvar)>::default();
        let (watched, told, id) = (Arc::clone(&watch), Arc::clone(&outcome), id.clone());
        let join = move || {
            let made = catch_unwind(AssertUnwindSafe(|| {
                init::join(&id, rank, nranks, config, Some(Arc::clone(&watched)))
                    .map(|inner| Self { inner, finished: false })
            }));
            let panicked =
                |_| Err(Error::new(ErrorKind::Aborted, format!("the init of rank {rank} panicked")));
            let made = made.unwrap_or_else(panicked);
            let mut outcome = lock(&told.0);
            outcome.made = Some(made);
            outcome.is_over = true;
            let waker = outcome.waker.take();
            // Where nobody takes it any more, the last reference drops it, which tells the others.
            drop(outcome);
            told.1.notify_all();
            waker.into_iter().for_each(Waker::wake);
        };
        std::thread::Builder::new()
            .name("ccl-init".into())
            .spawn(join)
            .map_err(|e| Error::system("starting ccl-init", e))?;
        Ok(Joining { watch, outcome, generation: sys::generation() })
    }
}

impl Joining {
    /// The phase of init under way; `None` before the first.
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        self.watch.phase()
    }

    /// Whether it has ended, well or not.
    ///
    /// True in a forked child, where waiting for it fails at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_stale() || lock(&self.outcome.0).is_over
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// As [`Communicator::init`]; `Usage` in a forked child.
    pub fn wait(self) -> Result<Communicator> {
        self.own()?;
        let mut outcome = lock(&self.outcome.0);
        while !outcome.is_over {
            outcome = self.outcome.1.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
        taken(&mut outcome)
    }

    fn is_stale(&self) -> bool {
        self.generation != sys::generation()
    }

    fn own(&self) -> Result<()> {
        if self.is_stale() { Err(super::exclusive::of_a_parent()) } else { Ok(()) }
    }
}

fn taken(outcome: &mut Outcome) -> Result<Communicator> {
    let again = || Err(Error::new(ErrorKind::Usage, "the communicator has been taken before"));
    outcome.made.take().unwrap_or_else(again)
}

impl Future for Joining {
    type Output = Result<Communicator>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.own() {
            return Poll::Ready(Err(error));
        }
        let waker = context.waker().clone();
        let mut outcome = lock(&self.outcome.0);
        if outcome.is_over {
            return Poll::Ready(taken(&mut outcome));
        }
        let former = outcome.waker.replace(waker);
        drop(outcome);
        drop(former);
        Poll::Pending
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.watch.cancel();
        if self.is_stale() {
            // A copy: what was made belongs to the parent.
            std::mem::forget(Arc::clone(&self.outcome));
        }
    }
}
