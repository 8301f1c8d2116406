//! What a communicator is made of on one rank: plain state. The files beside this one say what is
//! done with it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::bootstrap::auth::Key as JobKey;
use crate::bootstrap::root_task::Seat;
use crate::clock::{Ns, Raw, Stopwatch};
use crate::collective::{Descriptor, Numbering, Tally};
use crate::comm::cards::Known;
use crate::comm::links::Links;
use crate::comm::owned::Owned;
use crate::comm::services::ProcessServices;
use crate::comm::wait::Waiter;
use crate::config::Settings;
use crate::control::gather::Member;
use crate::control::server::Abortable;
use crate::control::watchdog::Seated;
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::gossip::Decision;
use crate::failure::task::GossipTask;
use crate::plan::{Shape, Topology};
use crate::reactor::Interest;
use crate::recorder::{Events, Recorder};
use crate::sys;
use crate::sys::shortage::Shortage;
use crate::transport::shm::memory::RankMemory;
use crate::transport::socket::listen::Listener as DataListener;
use crate::types::{Algorithm, CommId, JobId, Rank};

/// How long a failing rank waits for the decision that all ranks share, before it speaks for
/// itself.
pub(super) const DECISION: Duration = Duration::from_millis(500);

/// A rank that has waited this long since it heard of another one's passed deadline tells for whom
/// it waits. Less than the time that the arbiter gives it before it decides.
pub(super) const LATE: Duration = Duration::from_millis(50);

/// What the service thread may touch of a communicator without its driver's lock.
pub(crate) struct Shared {
    /// Something is to be looked at: a decision, a link that came up.
    pub(super) flag: AtomicBool,
    pub(super) decision: Mutex<Option<Decision>>,
    /// Who has called `finish()`, and what it has called in all.
    pub(super) finished: Mutex<Vec<(Rank, Tally)>>,
    /// Who waits in a collective that this rank had not called when it was asked for it.
    pub(super) asked: Mutex<Vec<(Rank, Descriptor)>>,
    /// When this rank heard that a deadline has passed at one of the ranks; 0: it has not.
    pub(super) late: AtomicU64,
    /// Ends a driver's sleep.
    pub(super) wake: Box<dyn Fn() + Send + Sync>,
}

impl Shared {
    /// Has the driver look.
    pub(crate) fn call(&self) {
        self.flag.store(true, Ordering::Release);
        (self.wake)();
    }
    /// A rank has called `finish()`: whoever needs more of it waits for something that never comes.
    pub(crate) fn finished(&self, rank: Rank, tally: &Tally) {
        lock(&self.finished).push((rank, tally.clone()));
        self.call();
    }
    /// A rank waits in a collective that this one has not called yet.
    pub(crate) fn asked(&self, from: Rank, call: &Descriptor) {
        lock(&self.asked).push((from, *call));
        self.call();
    }
    /// A deadline has passed at one of the ranks.
    pub(crate) fn late(&self, now: Ns) {
        if self.late.compare_exchange(0, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.call();
        }
    }
    /// How long ago this rank heard that.
    pub(super) fn late_for(&self, now: Ns) -> Option<Duration> {
        match self.late.load(Ordering::Relaxed) {
            0 => None,
            heard => Some(now.since(Ns(heard))),
        }
    }
    /// Something was decided.
    pub(crate) fn decided(&self, decision: &Decision) {
        *lock(&self.decision) = Some(decision.clone());
        self.call();
    }
}

/// The part of a communicator that drives its engine.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(super) engine: Engine<Events>,
    pub(super) links: Links,
    pub(super) waiter: Waiter,
    /// The descriptors a sleep listens to. Kept, so that not every wait allocates.
    pub(super) interests: Vec<Interest>,
    pub(super) owned: Owned,
    /// Who waited for what has ended: woken when the lock is let go of.
    pub(super) woken: Vec<Waker>,
    pub(super) numbers: Numbering,
    pub(super) shapes: Vec<(Shape, u64)>,
    /// The text that is shown beside the operations.
    pub(super) tag: String,
    /// For how long nothing has moved, whoever drives; as soon as that has outlasted a message.
    pub(super) still: Option<Stopwatch>,
    /// Of collectives, and of sends and receives: the operation that stands while others may move,
    /// by its place in the order of submission, since when, and for how long that was observed.
    pub(super) stands: [Option<(u64, Raw, Stopwatch)>; 2],
    /// Who has called `finish()`, and who asked what this rank had not called, as of the last look.
    pub(super) finished: Vec<(Rank, Tally)>,
    pub(super) asked: Vec<(Rank, Descriptor)>,
    /// The collective about which peers were asked last, and which.
    pub(super) asking: (u64, Vec<Rank>),
    /// Why no more calls are taken.
    pub(super) ended: Option<Error>,
    /// Whether this rank has called `finish()`: it makes no more calls.
    pub(super) is_finishing: bool,
    /// Whether a thread turns the engine until its call has ended. It may have let go of the lock
    /// for a moment.
    pub(super) is_driven: bool,
    /// The threads that wait until it has, or until their own calls have ended.
    pub(super) waiters: u32,
    /// How often they were woken.
    pub(super) told: u64,
}

/// One rank of a communicator, as calls, pending operations and the progress thread share it.
pub(crate) struct Inner {
    pub(crate) id: CommId,
    pub(crate) job: JobId,
    /// The key that all ranks know. Children have the same.
    pub(super) key: JobKey,
    /// The address of the interface that is used.
    pub(super) ip: IpAddr,
    pub(crate) name: String,
    pub(crate) rank: Rank,
    pub(crate) nranks: u32,
    /// The rank in the job's root communicator of each rank.
    pub(super) worlds: Vec<Rank>,
    /// What is known of each rank, and its host as the topology sees it.
    pub(super) cards: Vec<Arc<Known>>,
    pub(super) hosts: Vec<u64>,
    /// How many communicators were made from this one.
    pub(super) children: AtomicU32,
    /// How many were made of the ranks that are left of this one.
    pub(super) shrunk: Mutex<u32>,
    pub(super) topology: Arc<Topology>,
    pub(super) forced: Option<Algorithm>,
    pub(super) timeout: Duration,
    pub(super) driver: Exclusive,
    pub(super) shared: Arc<Shared>,
    /// This rank's own memory.
    pub(super) memory: Arc<RankMemory>,
    /// What this rank lacks for connections.
    pub(super) shortage: Arc<Shortage>,
    pub(super) recorder: Arc<Recorder>,
    /// Given back when the communicator closes.
    pub(super) attended: Mutex<Option<Attended>>,
    pub(super) gossip: Mutex<Option<Arc<GossipTask>>>,
    pub(super) settings: Settings,
    /// Whether each call is said.
    pub(super) is_told: bool,
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
    pub(super) fn new(engine: Engine<Events>, links: Links, waiter: Waiter) -> Self {
        Self {
            engine,
            links,
            waiter,
            interests: Vec::new(),
            owned: Owned::default(),
            woken: Vec::new(),
            numbers: Numbering::default(),
            shapes: Vec::new(),
            tag: String::new(),
            still: None,
            stands: [None; 2],
            finished: Vec::new(),
            asked: Vec::new(),
            asking: (0, Vec::new()),
            ended: None,
            is_finishing: false,
            is_driven: false,
            waiters: 0,
            told: 0,
        }
    }
}

/// A driver behind its lock, and the process that may take it.
#[derive(Debug)]
pub(super) struct Exclusive {
    pub(super) driver: Mutex<Driver>,
    /// The threads that want the lock: who drives lets them have it.
    pub(super) wanted: AtomicU32,
    /// Tells waiting threads that calls have ended, or that nobody drives any more.
    pub(super) changed: Condvar,
    pub(super) generation: u32,
    /// A waker that panics is to be told of. Once.
    pub(super) warns: AtomicBool,
}

impl Exclusive {
    /// Of this process. `warns`: whether people want to hear of wakers that panic.
    pub(super) fn new(driver: Driver, warns: bool) -> Self {
        let warns = AtomicBool::new(warns);
        let (wanted, changed) = (AtomicU32::new(0), Condvar::new());
        Self { driver: Mutex::new(driver), wanted, changed, generation: sys::generation(), warns }
    }
}

/// What a communicator keeps running beside itself. Dropped, all of it ends.
pub(crate) struct Attended {
    /// Its part in gathering state across hosts.
    pub(super) gathers: Option<Arc<Member>>,
    pub(super) _data: Arc<DataListener>,
    /// Where this process is rank 0 of a public address: the address.
    pub(super) seat: Option<Seat>,
    pub(super) _abortable: Option<Abortable>,
    pub(super) _watched: Option<Seated>,
    pub(super) _services: Arc<ProcessServices>,
}
