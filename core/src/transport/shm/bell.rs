//! The doorbell of this process: a peer rings it to wake any of its drivers that sleeps on
//! descriptors.
//!
//! One sleeping thread polls it. The others poll doorbells of their own, which no peer knows. When
//! the bell rings, the thread that polls it wakes those whose words say that they were woken; when
//! it leaves, it has another one poll.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::memory::RankMemory;
use super::sleep::AWAKE;
use crate::error::Result;
use crate::reactor::Interest;
use crate::sys::fds::Doorbell;

/// The longest sleep of a thread that got no doorbell of its own: the process has no descriptors
/// left.
const WITHOUT: Duration = Duration::from_millis(1);

thread_local! {
    /// The doorbell of this thread, made when it first sleeps beside another one.
    static OWN: RefCell<Option<Arc<Doorbell>>> = const { RefCell::new(None) };
}

/// A doorbell, and the threads that sleep beside it.
#[derive(Debug)]
pub struct Bell {
    doorbell: Doorbell,
    sleepers: Mutex<Sleepers>,
}

#[derive(Debug, Default)]
struct Sleepers {
    /// Whether a thread polls the bell.
    is_polled: bool,
    others: Vec<Arc<Sleeper>>,
}

/// A thread that polls its own doorbell.
#[derive(Debug)]
struct Sleeper {
    memory: Arc<RankMemory>,
    own: Option<Arc<Doorbell>>,
}

impl Sleeper {
    fn wake(&self) {
        if let Some(own) = &self.own {
            own.notify();
        }
    }
}

impl Bell {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { doorbell: Doorbell::new()?, sleepers: Mutex::default() })
    }

    /// What peers ring.
    pub(super) const fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    fn lock(&self) -> MutexGuard<'_, Sleepers> {
        // No code panics between two writes to it.
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until a descriptor is ready, `longest` has passed, or the rank of this memory, whose
    /// word says that it sleeps on descriptors, is woken. It may return early.
    pub(crate) fn sleep(&self, memory: &Arc<RankMemory>, fds: &[Interest], longest: Duration) {
        let sleeper = {
            let mut sleepers = self.lock();
            // Whoever woke the rank changed its word before it rang. The bell may have been cleared
            // since; from here on, a ring is seen.
            if is_awake(memory) {
                return;
            }
            if sleepers.is_polled {
                let sleeper = Arc::new(Sleeper { memory: Arc::clone(memory), own: own_doorbell() });
                sleepers.others.push(Arc::clone(&sleeper));
                Some(sleeper)
            } else {
                sleepers.is_polled = true;
                None
            }
        };
        match sleeper {
            None => {
                poll_with(Some(&self.doorbell), fds, longest);
                let mut sleepers = self.lock();
                sleepers.is_polled = false;
                // Cleared before the words are read: a rank that is woken later rings again.
                self.doorbell.clear();
                sleepers.others.iter().filter(|other| is_awake(&other.memory)).for_each(|other| other.wake());
                sleepers.hand_on();
            }
            Some(sleeper) => {
                let longest = if sleeper.own.is_some() { longest } else { longest.min(WITHOUT) };
                poll_with(sleeper.own.as_deref(), fds, longest);
                let mut sleepers = self.lock();
                sleepers.others.retain(|other| !Arc::ptr_eq(other, &sleeper));
                if let Some(own) = &sleeper.own {
                    own.clear();
                }
                sleepers.hand_on();
            }
        }
    }
}

impl Sleepers {
    /// Has one of the others poll the bell, if nobody does.
    fn hand_on(&self) {
        if let (false, Some(other)) = (self.is_polled, self.others.first()) {
            other.wake();
        }
    }
}

fn is_awake(memory: &RankMemory) -> bool {
    memory.sleeping().load(std::sync::atomic::Ordering::SeqCst) == AWAKE
}

fn own_doorbell() -> Option<Arc<Doorbell>> {
    OWN.with_borrow_mut(|own| {
        if own.is_none() {
            *own = Doorbell::new().ok().map(Arc::new);
        }
        own.clone()
    })
}

fn poll_with(bell: Option<&Doorbell>, fds: &[Interest], longest: Duration) {
    let mut polled = Vec::with_capacity(fds.len() + 1);
    polled.extend(bell.map(|bell| PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)));
    polled.extend(fds.iter().map(Interest::poll_fd));
    let limit = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
    // Interrupted or timed out: the driver looks again.
    let _ = poll(&mut polled, Some(&limit));
}

#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::arena::Arena;
    use super::super::memory::{Identity, Layout};
    use super::super::sleep::{ON_SOCKETS, sleep_unless};
    use super::*;
    use crate::clock;
    use crate::seed::Seed;
    use crate::types::{CommId, Rank};

    /// Longer than all of the test takes if every ring is heard.
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn each_of_several_sleepers_is_woken_whoever_polls() {
        const SLEEPERS: usize = 4;
        const ROUNDS: u64 = 400;
        let arena = Arena::new().unwrap();
        let memory = |rank: usize| {
            let identity = Identity { comm: CommId(1), rank: Rank(rank as u32) };
            RankMemory::shared(identity, Layout::new(SLEEPERS as u32, 1).unwrap(), &arena).unwrap()
        };
        let memories: Vec<_> = (0..SLEEPERS).map(memory).collect();
        let (told, heard): (Vec<_>, Vec<_>) =
            (0..SLEEPERS).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).unzip();
        let socket = std::os::unix::net::UnixStream::pair().unwrap();
        let fds = [Interest { fd: socket.0.as_raw_fd(), read: true, write: false }];
        let began = clock::now();
        std::thread::scope(|scope| {
            for (at, memory) in memories.iter().enumerate() {
                let (told, heard, fds) = (&told[at], &heard[at], &fds);
                scope.spawn(move || {
                    let mut last = 0;
                    while last < ROUNDS {
                        let there = || told.load(Ordering::Acquire) > last;
                        let bell = memory.bell().unwrap();
                        sleep_unless(memory.sleeping(), ON_SOCKETS, &mut || there(), |_| {
                            bell.sleep(memory, fds, LONG);
                        });
                        if there() {
                            last = told.load(Ordering::Acquire);
                            heard.store(last, Ordering::Release);
                        }
                    }
                });
            }
            let mut random = Seed(7);
            for round in 1..=ROUNDS {
                // All of them, or all but one that goes on sleeping until the next round.
                let spared = random.place(SLEEPERS + 1);
                let called = (0..SLEEPERS).filter(|at| *at != spared || round == ROUNDS);
                for at in called.clone() {
                    told[at].store(round, Ordering::Release);
                    memories[at].wake_if_asleep();
                }
                for at in called {
                    while heard[at].load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                }
            }
        });
        assert!(clock::now().since(began) < LONG, "a ring was not heard");
    }
}
