//! The one seam for what must happen inline: somebody who is told, on the calling thread, that a call or a phase of making a
//! communicator begins and ends there. Everything that can look later reads the recorder instead, which needs no observer.
//!
//! It is set once per process, like a logger. Until then a call pays one load and one branch that is always taken the same way.

use std::fmt;
use std::sync::OnceLock;

use crate::collective::Request;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{CommId, Phase, Rank};

/// What begins and ends on a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// A collective, a send or a receive.
    Operation {
        /// What was called: kind, elements, root or peer.
        request: Request,
        /// On which communicator.
        comm: CommId,
        /// This rank.
        rank: Rank,
        /// Its number: of the communicator's collectives, or of the messages of its pair of ranks.
        seq: u64,
    },
    /// A phase of making a communicator.
    Phase(Phase),
}

/// Somebody who is told at once.
///
/// Both functions run on the thread that called, between its own work: while they run, peers wait. So they do not block, allocate or
/// panic, and do not call a communicator, whose lock is held. What they may rely on:
///
/// - Every begin has one end, on the same thread, the last begun ending first; also when the call fails or unwinds.
/// - A begin comes right before the recorder's time of it; the end of a call comes right after, that of a phase right before.
/// - The calls of a group end together, and an asynchronous call, which goes on without its caller, when it is submitted: when control goes
///   back to the caller.
/// - What is refused before it has a number, such as lengths that do not fit, neither begins nor ends.
pub trait CallObserver: Send + Sync {
    /// It begins.
    fn begin(&self, call: &Call);
    /// It has ended, well or not.
    fn end(&self, call: &Call);
}

static OBSERVER: OnceLock<Box<dyn CallObserver>> = OnceLock::new();

/// Sets the observer of this process, for good.
///
/// # Errors
/// `Usage` if it has one.
pub fn set_observer(observer: Box<dyn CallObserver>) -> Result<()> {
    OBSERVER.set(observer).map_err(|_| {
        Error::new(ErrorKind::Usage, "this process has an observer of calls already")
            .hint("set one that tells both, before anything else sets one")
    })
}

/// Something an observer was told of, or that nobody observes. Dropped, it has ended.
#[must_use = "what is dropped at once ends at once"]
pub(crate) struct Observed(Option<(&'static dyn CallObserver, Call)>);

/// Tells the observer, if there is one, that something begins.
#[inline]
pub(crate) fn begin(call: impl FnOnce() -> Call) -> Observed {
    Observed(OBSERVER.get().map(|observer| {
        let call = call();
        observer.begin(&call);
        (&**observer, call)
    }))
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

/// What ends together: the last begun first, as the elements of a vector would not.
#[derive(Default, Debug)]
pub(crate) struct Together(Vec<Observed>);

impl Together {
    /// One more. Takes no memory for what nobody observes.
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
