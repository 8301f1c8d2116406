//! The interface for code that must run inline: an observer that is called, on the calling thread,
//! when a call or a phase of init begins and ends. Tools that can look later read the recorder
//! instead, which needs no observer.
//!
//! It is set once per process, like a logger. Until then a call pays one load and one branch that
//! is always taken the same way.

use std::ffi::CStr;
use std::fmt;
use std::sync::OnceLock;

use crate::collective::Request;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{CommId, Phase, Rank};

/// A call or a phase of init, which begins and ends on a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// A collective, a send or a receive.
    Operation {
        /// The request: kind, elements, root or peer.
        request: Request,
        /// The communicator that it runs on.
        comm: CommId,
        /// This rank.
        rank: Rank,
        /// Its number among the communicator's collectives, or among its pair's messages.
        seq: u64,
    },
    /// A phase of init, or the phase of leaving, which is the whole of `finish()`.
    Phase(Phase),
}

/// The observer of calls, notified at once.
///
/// `begin` and `end` run on the calling thread, between its own work: peers wait while they run. So
/// they must not block, allocate or panic, and must not call a communicator, because its lock is
/// held. They may rely on the following:
///
/// - Every begin has one end, on the same thread. The last one begun ends first, also when the call
///   fails or unwinds.
/// - A begin comes right before the recorder takes its time. The end of a call comes right after,
///   the end of a phase right before.
/// - The calls of a group end together. An asynchronous call, which continues without its caller,
///   ends when it is submitted: when control returns to the caller.
/// - A call that is refused before it has a number, for example for lengths that do not fit,
///   neither begins nor ends.
pub trait CallObserver: Send + Sync {
    /// The call or phase begins.
    fn begin(&self, call: &Call);
    /// The call or phase has ended, successfully or not.
    fn end(&self, call: &Call);
    /// The current thread, with the kernel's thread number `id`, was started by ccl and does the
    /// work that its name says.
    fn thread(&self, name: &CStr, id: u32) {
        let _ = (name, id);
    }
}

static OBSERVER: OnceLock<Box<dyn CallObserver>> = OnceLock::new();

/// Sets the observer of this process, for good.
///
/// # Errors
/// `Usage` if an observer is already set.
pub fn set_observer(observer: Box<dyn CallObserver>) -> Result<()> {
    OBSERVER.set(observer).map_err(|_| {
        Error::new(ErrorKind::Usage, "this process has an observer of calls already")
            .hint("set one that tells both, before anything else sets one")
    })
}

/// A call or phase that an observer may have been notified of. It ends when this is dropped.
#[must_use = "what is dropped at once ends at once"]
#[derive(Default)]
pub(crate) struct Observed(Option<(&'static dyn CallObserver, Call)>);

impl Observed {
    /// Notifies the observer, if there is one, that a call or phase begins.
    #[inline]
    pub(crate) fn begin(&mut self, call: impl FnOnce() -> Call) {
        if let Some(observer) = OBSERVER.get() {
            let call = call();
            observer.begin(&call);
            self.0 = Some((&**observer, call));
        }
    }
}

/// Notifies the observer, if there is one, that a call or phase begins.
pub(crate) fn begin(call: impl FnOnce() -> Call) -> Observed {
    let mut observed = Observed::default();
    observed.begin(call);
    observed
}

/// Reports the current thread to the observer, if there is one.
pub(crate) fn thread(name: &CStr) {
    if let Some(observer) = OBSERVER.get() {
        observer.thread(name, rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    }
}

impl Drop for Observed {
    #[inline]
    fn drop(&mut self) {
        if let Some((observer, call)) = &self.0 {
            observer.end(call);
        }
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observed({:?})", self.0.as_ref().map(|(_, call)| call))
    }
}

/// Calls that end together. The last one begun ends first; a vector would drop the first one first.
#[derive(Default, Debug)]
pub(crate) struct Together(Vec<Observed>);

impl Together {
    /// Adds a call. Allocates no memory if there is no observer.
    pub(crate) fn push(&mut self, one: Observed) {
        if one.0.is_some() {
            self.0.push(one);
        }
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}
