//! The public API: init of a communicator, its calls, its end.
//!
//! A [`Communicator`] is one rank of a group. Its calls take slices and block until done, or take a
//! [`Region`](crate::Region) and return a [`Pending`]. All ranks make the same collective calls in
//! the same order; a rank that calls something else is found and named. What a failed call has
//! written is undefined.
//!
//! | part | what it holds |
//! |---|---|
//! | `mod` | the calls |
//! | `call` | a call as a value |
//! | `blocks` | the calls with a block for each rank |
//! | `reduction` | how a call combines elements |
//! | `asynchronous` | the calls that own their buffers |
//! | `prepared` | calls that are prepared once and carried out again and again |
//! | `pending`, `parking` | what such calls give, and the progress thread; where that sleeps |
//! | `owned` | what the driver keeps of such calls |
//! | `group` | calls that progress together |
//! | `init` | init: rendezvous, bootstrap, memory, listeners, peers |
//! | `begun` | init before the ranks have met |
//! | `child` | communicators made from another one |
//! | `exchange` | how ranks tell each other what they need while one is made |
//! | `joining` | init that does not block |
//! | `phases`, `report` | the progress of init, and what is said of it on standard error |
//! | `cards` | what each rank tells all others about itself |
//! | `state`, `services` | what a communicator is made of; what a process keeps beside them |
//! | `links` | which links a request needs, and bringing them up |
//! | `driver` | submitting and driving the engine, waiting, deadlines, failing |
//! | `unsatisfiable` | waits that can never end |
//! | `exclusive` | the driver's lock, which thread drives, forked children, wakers |
//! | `wait` | how a driver waits |
//! | `leave` | finishing together, aborting, closing |
//! | `ending` | how a failure becomes the one error of all ranks |
//! | `gathers` | its part in gathering state across hosts |
//! | `watched` | its part in the watchdog of the process |

mod asynchronous;
mod begun;
mod blocks;
mod call;
mod cards;
mod child;
mod driver;
mod ending;
mod exchange;
mod exclusive;
mod gathers;
pub mod group;
mod init;
mod joining;
mod leave;
mod links;
mod owned;
mod parking;
mod pending;
mod phases;
mod prepared;
mod reduction;
mod report;
mod services;
mod state;
mod unsatisfiable;
pub(crate) mod wait;
mod watched;

use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::config::Settings;
use crate::error::Result;
use crate::memory::Element;
use crate::types::{CommId, JobId, Rank};

pub use call::Collective;
pub use child::Invitation;
pub use joining::Joining;
pub use pending::Pending;
pub use prepared::Prepared;
pub use reduction::Reduction;
pub(crate) use state::Inner;

/// The options of one communicator.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Its name in messages, the recorder and the inspector; empty: `world`, or the name that the
    /// call by which it is made says.
    pub name: String,
    /// Settings that override those of the process.
    ///
    /// The settings of the process's recorder and control socket (`CCL_RUNTIME_DIR`,
    /// `CCL_ALLOW_CONTROL` ...) are taken from the first observed communicator.
    pub settings: Option<Settings>,
}

/// One rank of a group of ranks.
///
/// Several threads may call it: while one waits for a peer, the calls of others go on. Collectives
/// run in the order in which they were called, and so do the sends to one peer and the receives
/// from one. A program that calls collectives from several threads must make sure that all ranks
/// call them in the same order. What one thread wants to progress together goes into a
/// [`group`](Self::group), or is begun with the `_async` calls.
///
/// Leave with [`finish`](Self::finish), which all ranks call. Dropping the communicator without it,
/// as a panic does, aborts the communicator: all other ranks get `Aborted`. If the process ends by
/// `exit()` or a signal, they get `Peer`, which names this rank.
///
/// A communicator belongs to the process that made it. A forked child has a copy, on which every
/// call fails with `Usage`; aborting, tagging or dropping it does nothing there.
#[derive(Debug)]
pub struct Communicator {
    inner: Arc<Inner>,
    finished: bool,
}

/// The longest that a communicator waits, when it ends, for threads that look whether they are
/// needed. Longer only if it ends on such a thread.
const RELEASE: Duration = Duration::from_millis(200);

impl Communicator {
    /// Joins the job that the environment describes.
    ///
    /// The environment holds torchrun's variables, or `CCL_COMM_ID` or `CCL_RENDEZVOUS_FILE` with
    /// `RANK` and `WORLD_SIZE`. Without any of these it is a job of one rank.
    ///
    /// # Errors
    /// `Usage` for invalid settings, `Mismatch` if ranks have different settings or numbers of
    /// ranks, `Timeout` naming the ranks that did not join within `CCL_INIT_TIMEOUT` seconds,
    /// `Unavailable` where no transport reaches a peer.
    pub fn from_env() -> Result<Self> {
        Self::from_env_with(Config::default())
    }

    /// Like [`from_env`](Self::from_env), with a name or settings of its own.
    ///
    /// # Errors
    /// As `from_env`.
    pub fn from_env_with(config: Config) -> Result<Self> {
        init::from_env(config).map(|inner| Self { inner, finished: false })
    }

    /// Joins as `rank` of `nranks` with a unique id that one of them made
    /// ([`create_id`](crate::create_id)).
    ///
    /// # Errors
    /// As `from_env`.
    pub fn init(id: &crate::UniqueId, rank: u32, nranks: u32, config: Config) -> Result<Self> {
        init::join(id, rank, nranks, config, None).map(|inner| Self { inner, finished: false })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }
    /// The number of ranks.
    #[must_use]
    pub fn nranks(&self) -> u32 {
        self.inner.nranks
    }
    /// The communicator's id: equal on all its ranks.
    #[must_use]
    pub fn id(&self) -> CommId {
        self.inner.id
    }
    /// The public id of the job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.inner.job
    }
    /// The communicator's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }
    /// The path of the recorder's file, if it has one.
    #[must_use]
    pub fn recorder_path(&self) -> Option<std::path::PathBuf> {
        self.inner.recorder_path()
    }

    /// The number of events that this rank has recorded so far, overwritten ones included.
    ///
    /// 0 in a forked child.
    #[must_use]
    pub fn events_recorded(&self) -> u64 {
        self.inner.events_recorded()
    }

    /// Sets a text that is shown beside the operations that follow. 88 bytes are kept.
    pub fn tag(&self, text: &str) {
        self.inner.tag(text);
    }

    /// Carries out a call that was made as a value.
    ///
    /// # Errors
    /// As the method of its name.
    pub fn run(&self, call: Collective<'_, '_>) -> Result<()> {
        let terms = call.terms();
        self.inner.call(&call.asked(&self.inner, terms.as_ref())?)
    }

    /// Every rank's `output` becomes the reduction of all ranks' `input`.
    ///
    /// # Errors
    /// `Usage` if the lengths differ, or for a pre-multiplied sum without a factor. Otherwise the
    /// failure of the communicator, which takes no further calls after it: `Peer` if a rank has
    /// died, `Mismatch` if ranks have made different calls, `Timeout` if nothing has moved for
    /// `CCL_TIMEOUT` seconds, `Aborted` if a rank has given up, `System` if the operating system
    /// refused something.
    pub fn all_reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        self.run(Collective::all_reduce(input, output, op))
    }

    /// Every rank's `buffer` becomes the reduction of all ranks' buffers.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: impl Into<Reduction<T>>,
    ) -> Result<()> {
        self.run(Collective::all_reduce_in_place(buffer, op))
    }

    /// Every rank's `buffer` becomes the `buffer` of `root`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if `root` is not a rank.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        self.run(Collective::broadcast(buffer, root))
    }

    /// `root`'s `output` becomes the reduction of all ranks' `input`.
    ///
    /// The `output` of the other ranks is not touched and may be empty.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if `root` is not a rank.
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: impl Into<Reduction<T>>,
        root: Rank,
    ) -> Result<()> {
        self.run(Collective::reduce(input, output, op, root))
    }

    /// `root`'s `buffer` becomes the reduction of all ranks' buffers.
    ///
    /// The buffers of the other ranks are left as they were.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn reduce_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: impl Into<Reduction<T>>,
        root: Rank,
    ) -> Result<()> {
        self.run(Collective::reduce_in_place(buffer, op, root))
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// The failure of the communicator.
    pub fn barrier(&self) -> Result<()> {
        self.run(Collective::barrier())
    }

    /// Sends `buffer` to `peer`, which receives as many elements.
    ///
    /// Returns when the bytes are in the peer's memory or the kernel. For long messages that needs
    /// the peer to receive: two ranks that both send to each other before they receive use a
    /// [`group`](Self::group).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Usage` if `peer` is not a rank, or is this rank, which
    /// sends to itself in a [`group`](Self::group) only.
    pub fn send<T: Element>(&self, buffer: &[T], peer: Rank) -> Result<()> {
        self.run(Collective::send(buffer, peer))
    }

    /// Receives `buffer` from `peer`, which sends as many elements.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn recv<T: Element>(&self, buffer: &mut [T], peer: Rank) -> Result<()> {
        self.run(Collective::recv(buffer, peer))
    }

    /// Calls that progress together.
    #[must_use]
    pub fn group(&self) -> crate::comm::group::Group<'_> {
        crate::comm::group::Group::new(&self.inner)
    }

    /// Ends the communicator on all ranks: every current or next call fails with `reason`, or with
    /// why the communicator was ending already.
    ///
    /// It takes bounded time and never waits for peers.
    pub fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    /// Leaves together with all other ranks.
    ///
    /// It completes the operations under way, sleeps until every rank has called it, and gives
    /// everything back. A rank that leaves the communicator in any other way fails it.
    ///
    /// It is collective: a thread that leaves several communicators does so in the same order on
    /// all ranks. It waits for missing ranks for `CCL_TIMEOUT`. Then it leaves without them, which
    /// is not an error, and says so on standard error.
    ///
    /// # Errors
    /// The failure of the communicator, if it failed before or during this call; `Mismatch` if the
    /// ranks have not made the same calls.
    pub fn finish(mut self) -> Result<()> {
        self.finished = true;
        self.inner.finish()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.inner.is_stale() {
            // A copy in a forked child: its resources belong to the parent.
            std::mem::forget(Arc::clone(&self.inner));
            return;
        }
        if !self.finished {
            let panics = std::thread::panicking();
            self.inner.recorder.gave_up(panics);
            self.inner.abort(if panics {
                "it panicked"
            } else {
                "it dropped the communicator without finish()"
            });
        }
        self.inner.close();
        // The progress thread and the service thread may hold it for the moment of a look. A
        // process that ends then would leave its recorder, and look as if it had died.
        let end = clock::now().after(RELEASE);
        while Arc::strong_count(&self.inner) > 1 && clock::now() < end {
            clock::sleep(Duration::from_micros(20));
        }
    }
}
