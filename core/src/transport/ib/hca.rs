//! A device of this process, whatever the number of communicators that use it: its context, its
//! domain, one completion queue, and who waits for what completes there.
//!
//! Whoever turns an engine polls the queue, under a lock that nobody waits for. A completion names
//! the end of a lane by its seat and the seat's generation, so one that comes after the end has
//! gone is nobody's. It is noted in the [`End`], which the lane's owner reads. An owner that sleeps
//! is notified if another thread took its completion.
//!
//! A thread that goes to sleep arms the queue, polls once more, and listens to the channel. The
//! queue stays armed until somebody has taken the event that the next completion makes.
//!
//! **Capacity.** Each work request makes at most one completion. Each queue pair is made with a
//! number of work requests, which is taken from the entries of the queue first; so the queue cannot
//! overflow.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use super::link::MAX_PAIRS;
use super::staging::{Block, SLOTS};
use super::watch::Watched;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::PAIR_SLOT_BYTES;
use crate::sys::verbs::{self, Channel, Completion, Context, Cq, Depth, Domain, Qp, Region};
use crate::transport::shm::memory::RankMemory;

/// The most entries of a completion queue: enough for eight hundred lane ends.
const ENTRIES: u32 = 1 << 15;
/// How often at most the queue is polled in one look: other links wait.
const POLLS: usize = 4;

/// An open device.
#[derive(Debug)]
pub(crate) struct Hca {
    /// Dropped first: the task that it has uses the device.
    watched: Watched,
    domain: Arc<Domain>,
    channel: Arc<Channel>,
    cq: Arc<Cq>,
    /// Entries of the queue that no queue pair has taken.
    entries: AtomicU32,
    /// Held by who polls.
    seats: Mutex<Seats>,
}

/// Who waits for completions.
#[derive(Debug, Default)]
struct Seats {
    ends: Vec<Seated>,
    is_armed: bool,
    /// Why the queue can be polled no more.
    failed: Option<String>,
}

#[derive(Debug, Default)]
struct Seated {
    generation: u32,
    end: Option<Arc<End>>,
}

/// The devices that are open in this process.
pub(super) static OPEN: Mutex<Vec<Weak<Hca>>> = Mutex::new(Vec::new());

/// What a completion is about. Its number is part of a work request's, as is that of the queue
/// pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// A writer's part of the message in this slot.
    Part(usize),
    /// A reader's receive: a part of a message has arrived.
    Arrival,
    /// A reader's notice that this slot is clear.
    Clear,
    /// A writer's receive: such a notice has arrived.
    Cleared,
}

/// In the number of a work request: where the number of the queue pair in its lane begins.
const STRAND: u32 = 4;

impl Work {
    const fn number(self) -> u64 {
        match self {
            Self::Part(slot) => (slot as u64) << 8,
            Self::Arrival => 1,
            Self::Clear => 2,
            Self::Cleared => 3,
        }
    }

    const fn from_number(number: u64) -> Self {
        match number & 0xf {
            0 => Self::Part((number >> 8 & 0xff) as usize % SLOTS),
            1 => Self::Arrival,
            2 => Self::Clear,
            _ => Self::Cleared,
        }
    }
}

/// What has completed for one end of a lane: written by who polls, read by the end's owner.
#[derive(Debug)]
pub(super) struct End {
    owner: Arc<RankMemory>,
    /// Of each slot, how many parts of its message were sent, or have arrived.
    pub(super) parts: [AtomicU32; SLOTS],
    /// Of each queue pair of the lane, what has completed, for readers of the recorder.
    pub(super) counts: [Count; MAX_PAIRS],
    /// Of each slot, the bytes that have arrived.
    pub(super) bytes: [AtomicU32; SLOTS],
    /// Of each slot, the number that came with the last part.
    pub(super) immediate: [AtomicU32; SLOTS],
    /// How many messages the reader has cleared, as the writer has heard.
    pub(super) cleared: AtomicU64,
    /// How many such notices the reader's device has delivered, or the writer has heard.
    pub(super) notices: AtomicU64,
    failed: OnceLock<Failed>,
}

/// What has completed on one queue pair.
#[derive(Debug, Default)]
pub(super) struct Count {
    /// Writes.
    pub(super) sent: AtomicU64,
    /// Receives.
    pub(super) arrived: AtomicU64,
    /// The bytes that came with these.
    pub(super) bytes: AtomicU64,
}

impl Count {
    /// Counts a completion. A device's queue is polled by one thread at a time.
    fn note(&self, work: Work, bytes: u32) {
        let add = |count: &AtomicU64, more: u32| {
            count.store(count.load(Ordering::Relaxed) + u64::from(more), Ordering::Relaxed);
        };
        match work {
            Work::Part(_) | Work::Clear => add(&self.sent, 1),
            Work::Arrival => {
                add(&self.bytes, bytes);
                add(&self.arrived, 1);
            }
            Work::Cleared => add(&self.arrived, 1),
        }
    }
}

/// The first work request of an end that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Failed {
    /// The status, the device's code, and the queue pair.
    pub(super) completion: Completion,
    pub(super) work: Work,
}

impl End {
    fn new(owner: Arc<RankMemory>) -> Self {
        Self {
            owner,
            parts: Default::default(),
            counts: Default::default(),
            bytes: Default::default(),
            immediate: Default::default(),
            cleared: AtomicU64::new(0),
            notices: AtomicU64::new(0),
            failed: OnceLock::new(),
        }
    }

    /// Why it can go on no more.
    pub(super) fn failed(&self) -> Option<&Failed> {
        self.failed.get()
    }

    /// Notes a completion.
    fn note(&self, work: Work, completion: &Completion) {
        let strand = (completion.id >> STRAND & 0xf) as usize % MAX_PAIRS;
        let bytes = if completion.status == 0 { completion.bytes } else { 0 };
        self.counts[strand].note(work, bytes);
        if completion.status != 0 {
            // Later ones only say that the queue pair has failed.
            let _ = self.failed.set(Failed { completion: *completion, work });
            return;
        }
        let immediate = completion.immediate.unwrap_or(0);
        match work {
            Work::Part(slot) => _ = self.parts[slot].fetch_add(1, Ordering::Release),
            Work::Arrival => {
                let slot = immediate as usize % SLOTS;
                self.immediate[slot].store(immediate, Ordering::Relaxed);
                self.bytes[slot].fetch_add(completion.bytes, Ordering::Relaxed);
                self.parts[slot].fetch_add(1, Ordering::Release);
            }
            Work::Clear => _ = self.notices.fetch_add(1, Ordering::Release),
            Work::Cleared => {
                self.notices.fetch_add(1, Ordering::Release);
                let before = self.cleared.load(Ordering::Relaxed);
                let more = immediate.wrapping_sub(before as u32);
                self.cleared.store(before + u64::from(more), Ordering::Release);
            }
        }
    }
}

/// An end's place among those that a device completes work for.
#[derive(Debug)]
pub(super) struct Seat {
    hca: Arc<Hca>,
    end: Arc<End>,
    index: u32,
    generation: u32,
    /// The number of its queue pair in the lane.
    strand: u64,
}

impl Seat {
    /// The seat of the lane's queue pair of this number.
    pub(super) fn of(self, strand: usize) -> Self {
        let mut it = self;
        it.strand = strand as u64;
        it
    }

    /// The number of a work request of this end.
    pub(super) const fn id(&self, work: Work) -> u64 {
        work.number() | self.strand << STRAND | (self.index as u64) << 16 | (self.generation as u64) << 40
    }
    pub(super) const fn end(&self) -> &Arc<End> {
        &self.end
    }
    pub(super) const fn hca(&self) -> &Arc<Hca> {
        &self.hca
    }
    /// Takes what has completed, for this end and others. False if more may have completed. The
    /// owner of this end is not woken for what it finds out itself.
    pub(super) fn poll(&self) -> std::result::Result<bool, String> {
        self.hca.poll(Some(&self.end))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if crate::sys::forked() {
            return;
        }
        let mut seats = self.hca.seats();
        if let Some(seated) = seats.ends.get_mut(self.index as usize) {
            seated.end = None;
        }
    }
}

/// A queue pair, and the entries of the completion queue that it has taken.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) qp: Qp,
    _taken: Entries,
}

/// Entries of a completion queue, given back when dropped.
#[derive(Debug)]
struct Entries {
    hca: Arc<Hca>,
    count: u32,
}

impl Drop for Entries {
    fn drop(&mut self) {
        self.hca.entries.fetch_add(self.count, Ordering::Relaxed);
    }
}

impl Hca {
    /// The open device of this name; opens it if it is not.
    ///
    /// # Errors
    /// `Unavailable` if there is none, or the kernel refuses.
    pub(crate) fn get(name: &str) -> Result<Arc<Self>> {
        crate::sys::not_forked()?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|hca| hca.strong_count() > 0);
        let known = open.iter().filter_map(Weak::upgrade).find(|hca| hca.name() == name && !hca.has_failed());
        if let Some(known) = known {
            return Ok(known);
        }
        let refused = |e: io::Error| {
            Error::new(ErrorKind::Unavailable, format!("opening the device {name}: {e}"))
                .hint("see what `ccl-inspect doctor` says of it")
        };
        let made = Arc::new(Self::open(name).map_err(refused)?);
        made.try_memory()?;
        open.push(Arc::downgrade(&made));
        Ok(made)
    }

    fn open(name: &str) -> io::Result<Self> {
        let context = Arc::new(verbs::open(name)?);
        let entries = ENTRIES.min(context.limits()?.completions);
        let domain = Domain::new(&context)?;
        let channel = Channel::new(&context)?;
        let cq = Cq::new(&channel, entries)?;
        let entries = AtomicU32::new(entries);
        Ok(Self { watched: Watched::default(), domain, channel, cq, entries, seats: Mutex::default() })
    }

    /// Registers memory as lanes do, and gives it back: where too little may be locked, sockets
    /// serve from the beginning.
    fn try_memory(&self) -> Result<()> {
        let registered = Block::take(PAIR_SLOT_BYTES as usize)?.region(&self.domain, false);
        registered.map(drop).map_err(|e| {
            let what = format!("registering memory with the device {}: {e}", self.name());
            Error::new(ErrorKind::Unavailable, what).hint("raise RLIMIT_MEMLOCK (ulimit -l unlimited)")
        })
    }

    pub(crate) fn name(&self) -> &str {
        self.context().name()
    }
    pub(crate) fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }
    pub(super) const fn watched(&self) -> &Watched {
        &self.watched
    }
    pub(super) const fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        // Nothing panics under this lock.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for an end that this rank owns.
    pub(super) fn seat(self: &Arc<Self>, owner: &Arc<RankMemory>) -> Seat {
        let end = Arc::new(End::new(Arc::clone(owner)));
        self.share(end)
    }

    /// A place on this device for the end that has another one elsewhere.
    pub(super) fn share(self: &Arc<Self>, end: Arc<End>) -> Seat {
        let mut seats = self.seats();
        let free = seats.ends.iter().position(|seated| seated.end.is_none());
        let index = free.unwrap_or_else(|| {
            seats.ends.push(Seated::default());
            seats.ends.len() - 1
        });
        let seated = &mut seats.ends[index];
        seated.generation = (seated.generation + 1) & 0x00ff_ffff;
        seated.end = Some(Arc::clone(&end));
        let generation = seated.generation;
        drop(seats);
        Seat { hca: Arc::clone(self), end, index: index as u32, generation, strand: 0 }
    }

    /// Makes a queue pair that uses this memory.
    ///
    /// # Errors
    /// The kernel refuses, or the completion queue has no room for its work.
    pub(super) fn pair(self: &Arc<Self>, depth: Depth, region: Arc<Region>) -> io::Result<Pair> {
        let count = depth.sends + depth.receives;
        let rest = |left: u32| left.checked_sub(count);
        // Completions of queue pairs that are gone still take entries.
        let _ = self.poll(None);
        if self.entries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_err() {
            let what = format!("the completion queue of {} has no room for another queue pair", self.name());
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, what));
        }
        let _taken = Entries { hca: Arc::clone(self), count };
        let qp = Qp::new(&self.domain, &self.cq, depth, region)?;
        Ok(Pair { qp, _taken })
    }

    /// Takes what has completed, unless another thread does. False if more may have completed.
    /// Wakes the owners of the ends that it completes something for, but not that of `own`.
    ///
    /// # Errors
    /// Why the queue can be polled no more.
    fn poll(&self, own: Option<&Arc<End>>) -> std::result::Result<bool, String> {
        let mut seats = match self.seats.try_lock() {
            Ok(seats) => seats,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let seats = &mut *seats;
        if let Some(failed) = &seats.failed {
            return Err(failed.clone());
        }
        for _ in 0..POLLS {
            let polled = self.cq.poll(&mut |completion| {
                let (index, generation) = ((completion.id >> 16 & 0x00ff_ffff) as usize, completion.id >> 40);
                let seated =
                    seats.ends.get(index).filter(|seated| u64::from(seated.generation) == generation);
                if let Some(end) = seated.and_then(|seated| seated.end.as_ref()) {
                    end.note(Work::from_number(completion.id), &completion);
                    // About to sleep, a rank looks once more. To wake itself would cost it two
                    // calls of the kernel.
                    if own.is_none_or(|own| !Arc::ptr_eq(own, end)) {
                        end.owner.wake_if_asleep();
                    }
                }
            });
            match polled {
                Ok(count) if count < verbs::BATCH => return Ok(true),
                Ok(_) => {}
                Err(e) => {
                    let what = format!("{e} of {}", self.name());
                    seats.failed = Some(what.clone());
                    return Err(what);
                }
            }
        }
        Ok(false)
    }

    /// Whether nothing completes on it any more: a new one may, if the driver has reset the device.
    fn has_failed(&self) -> bool {
        self.seats().failed.is_some()
    }

    /// Fails all lanes of this device: nothing completes on it any more.
    pub(super) fn fail(&self, what: String) {
        let mut seats = self.seats();
        seats.failed.get_or_insert(what);
        seats.ends.iter().filter_map(|seated| seated.end.as_ref()).for_each(|end| end.owner.wake_if_asleep());
    }

    /// Makes the channel readable at the next completion; who calls it polls once more before it
    /// sleeps. A queue that cannot be armed only makes sleeps last their full time.
    pub(super) fn arm(&self) {
        let mut seats = self.seats();
        if !seats.is_armed || self.cq.heard() {
            seats.is_armed = self.cq.arm().is_ok();
        }
    }

    /// The descriptor that is readable once something has completed, if the queue is armed.
    pub(super) fn fd(&self) -> RawFd {
        self.channel.fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_request_names_what_it_is_for() {
        let all = (0..SLOTS).map(Work::Part).chain([Work::Arrival, Work::Clear, Work::Cleared]);
        for work in all {
            assert_eq!(Work::from_number(work.number() | 0x1234_5678_0000_0070), work);
        }
    }
}
