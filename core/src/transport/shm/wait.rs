//! How a driver waits: it spins, then sleeps in the kernel. It yields only where ranks outnumber their processors.
//!
//! Beside other busy processes a yield is the dearest of all: it hands the processor to a stranger for a whole slice of milliseconds, while what
//! is waited for comes in microseconds; and so does the other side in turn. A spin must outlast the wake-up of a peer that sleeps, or both
//! sides sleep for every message. Who spins on for much longer uses up the slice that it will need when its peer runs again.
//!
//! Sleeping and waking meet at one word of the sleeper's memory:
//!
//! ```text
//!   sleeper                            waker
//!   word = ON_WORD | ON_SOCKETS        store what the sleeper waits for
//!   fence(SeqCst)                      fence(SeqCst)
//!   look again for what it waits for   if word != AWAKE: word = AWAKE, wake by the way it said
//!   sleep while word != AWAKE
//! ```
//!
//! With both fences one of the two sees the other's store: either the sleeper finds what it waits for, or the waker finds the
//! sleeper. In the usual case nobody sleeps and a waker pays for a fence and a load of a line that nobody writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(not(loom))]
use std::sync::atomic::fence;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::memory::RankMemory;
use crate::clock::{self, Raw};
use crate::control::service::Interest;
use crate::sys::futex;

/// Nobody sleeps. What zero bytes say.
pub(super) const AWAKE: u32 = 0;
/// The driver sleeps on the word itself.
pub(super) const ON_WORD: u32 = 1;
/// The driver sleeps on descriptors, its doorbell among them.
pub(super) const ON_SOCKETS: u32 = 2;

/// A wait that outlasts this is a wait to be told of: messages take less.
const MESSAGE: Duration = Duration::from_micros(1);
/// How long a wait spins: ten times what it takes to wake a sleeper, and a small part of a slice. Of the lengths tried, from 20 us up, it has the
/// lowest mean time per operation beside busy strangers, and is as good as any without them.
const SPIN: Duration = Duration::from_micros(200);
/// How often a wait yields where ranks outnumber their processors, and for how long at most.
const YIELDS: u32 = 1000;
const YIELD: Duration = Duration::from_millis(1);
/// The longest sleep: what nobody rings for is seen then.
const SLEEP: Duration = Duration::from_millis(100);

/// Looks of a [`Waiter::glance`].
const GLANCES: u32 = 16;
/// Calls of [`Waiter::idle`] before it first reads the clock.
const CLOCKLESS: u32 = 2;

/// The word, as the protocol sees it: real, or a model's.
pub(super) trait Word {
    fn load(&self) -> u32;
    fn store(&self, value: u32);
    fn swap(&self, value: u32) -> u32;
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }
    fn store(&self, value: u32) {
        self.store(value, Ordering::Relaxed);
    }
    fn swap(&self, value: u32) -> u32 {
        self.swap(value, Ordering::Relaxed)
    }
}

/// The sleeper's half: sleeps unless `recheck` finds what is waited for. Whether it slept.
fn lie_down<W: Word>(word: &W, how: u32, recheck: &mut dyn FnMut() -> bool, sleep: impl FnOnce(&W)) -> bool {
    word.store(how);
    fence(Ordering::SeqCst);
    let sleeps = !recheck();
    if sleeps {
        sleep(word);
    }
    word.store(AWAKE);
    sleeps
}

/// The waker's half, after its store: how the sleeper is to be woken. Whoever gets an answer other than `AWAKE` must do it.
#[inline]
pub(super) fn look<W: Word>(word: &W) -> u32 {
    fence(Ordering::SeqCst);
    if word.load() == AWAKE { AWAKE } else { word.swap(AWAKE) }
}

/// What [`Waiter::idle`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// It spun.
    Spun,
    /// It spun, and found that the wait has outlasted a message, or that it is to sleep now: each once in a wait.
    Lasted,
    /// It let others run.
    Yielded,
    /// It slept in the kernel.
    Slept,
}

/// The waiting of one driver.
#[derive(Debug)]
pub struct Waiter {
    memory: Arc<RankMemory>,
    crowded: bool,
    message_ticks: u64,
    /// How long a wait spins, or yields.
    busy_ticks: u64,
    turns: u32,
    yields: u32,
    /// How often it was said that the wait lasts.
    lasted: u32,
    since: Raw,
}

impl Waiter {
    /// The waiting of the driver of the rank whose memory this is. `crowded`: more ranks than processors share this host, so
    /// that spinning would take the processor from the rank that is waited for.
    #[must_use]
    pub fn new(memory: Arc<RankMemory>, crowded: bool) -> Self {
        let ticks = |d: Duration| (d.as_nanos() as f64 / clock::scale().ns_per_tick()) as u64;
        Self {
            memory,
            crowded,
            message_ticks: ticks(MESSAGE),
            busy_ticks: ticks(if crowded { YIELD } else { SPIN }),
            turns: 0,
            yields: 0,
            lasted: 0,
            since: Raw(0),
        }
    }

    /// Something moved: the next wait is a new one.
    #[inline]
    pub const fn reset(&mut self) {
        (self.turns, self.yields, self.lasted) = (0, 0, 0);
    }

    /// Waits a little, longer and deeper with each call since `reset`: returns soon while it spins or yields, and when woken,
    /// when a descriptor is ready or after 100 ms when it sleeps. `recheck` is asked once before it sleeps, and says
    /// whether something could move: it must look at everything that whoever wakes this rank may have stored.
    ///
    /// A rank that waits for descriptors must have a doorbell.
    #[inline]
    pub fn idle(&mut self, fds: &[Interest], recheck: &mut dyn FnMut() -> bool) -> Waited {
        self.turns = self.turns.saturating_add(1);
        // The first looks are free of the clock, which takes as long as a message on its way.
        if self.turns <= CLOCKLESS && !self.crowded {
            self.since = if self.turns == CLOCKLESS { clock::raw() } else { self.since };
            std::hint::spin_loop();
            return Waited::Spun;
        }
        self.idle_longer(fds, recheck)
    }

    /// Looks a few times, as long as a message takes from one processor to another; whether `is_there` said so. Not
    /// where spinning takes the processor from the rank that is waited for.
    #[inline]
    pub fn glance(&self, mut is_there: impl FnMut() -> bool) -> bool {
        let looks = if self.crowded { 0 } else { GLANCES };
        (0..looks).any(|_| {
            let found = is_there();
            if !found {
                std::hint::spin_loop();
            }
            found
        })
    }

    fn idle_longer(&mut self, fds: &[Interest], recheck: &mut dyn FnMut() -> bool) -> Waited {
        let now = clock::raw();
        if self.turns == 1 {
            self.since = now;
        }
        // A counter that ran backwards (another processor's, or that of a machine that was suspended) tells nothing of this wait, which
        // begins anew.
        let Some(waited) = now.0.checked_sub(self.since.0) else {
            self.since = now;
            return Waited::Spun;
        };
        let is_busy = waited < self.busy_ticks;
        // Never asleep at once, however late it is: the caller gathers what it sleeps on once a wait is long.
        if self.crowded && (is_busy && self.yields < YIELDS || self.yields == 0) {
            self.yields += 1;
            std::thread::yield_now();
            return Waited::Yielded;
        }
        let lasts = if is_busy { u32::from(waited >= self.message_ticks) } else { 2 };
        if !self.crowded && self.lasted < lasts {
            self.lasted = lasts;
            return Waited::Lasted;
        }
        if !self.crowded && is_busy {
            std::hint::spin_loop();
            return Waited::Spun;
        }
        if self.sleep(fds, recheck) { Waited::Slept } else { Waited::Spun }
    }

    fn sleep(&self, fds: &[Interest], recheck: &mut dyn FnMut() -> bool) -> bool {
        let word = self.memory.sleeping();
        if fds.is_empty() {
            return lie_down(word, ON_WORD, recheck, |word| futex::wait(word, ON_WORD, SLEEP));
        }
        let bell = self.memory.doorbell().expect("a rank that waits for descriptors has a doorbell");
        lie_down(word, ON_SOCKETS, recheck, |_| {
            let mut polled = Vec::with_capacity(fds.len() + 1);
            polled.push(PollFd::new(bell, PollFlags::IN));
            polled.extend(fds.iter().map(Interest::poll_fd));
            let limit = Timespec { tv_sec: 0, tv_nsec: SLEEP.as_nanos() as _ };
            // Interrupted or timed out: the driver looks again.
            let _ = poll(&mut polled, Some(&limit));
            bell.clear();
        })
    }
}

#[cfg(test)]
#[cfg(loom)]
mod model {
    use super::*;
    use loom::sync::{Condvar, Mutex, atomic::AtomicU64};

    impl Word for loom::sync::atomic::AtomicU32 {
        fn load(&self) -> u32 {
            self.load(Ordering::Relaxed)
        }
        fn store(&self, value: u32) {
            self.store(value, Ordering::Relaxed);
        }
        fn swap(&self, value: u32) -> u32 {
            self.swap(value, Ordering::Relaxed)
        }
    }

    /// One rank: its word, what it waits for, and the kernel's part of a futex (or of an eventfd, for `ON_SOCKETS`).
    #[derive(Default)]
    struct Rank {
        word: loom::sync::atomic::AtomicU32,
        message: AtomicU64,
        kernel: Mutex<bool>,
        bed: Condvar,
    }

    impl Rank {
        fn wait_for(&self, message: u64, how: u32) {
            let there = || self.message.load(Ordering::Acquire) == message;
            while !there() {
                lie_down(&self.word, how, &mut || there(), |word| {
                    let mut rung = self.kernel.lock().unwrap();
                    // The kernel compares the word under its own lock; a doorbell stays rung until it is cleared.
                    while if how == ON_WORD { Word::load(word) == ON_WORD } else { !*rung } {
                        rung = self.bed.wait(rung).unwrap();
                    }
                    *rung = false;
                });
            }
        }
        fn send(&self, message: u64) {
            self.message.store(message, Ordering::Release);
            if look(&self.word) != AWAKE {
                *self.kernel.lock().unwrap() = true;
                self.bed.notify_one();
            }
        }
    }

    /// A lost wake-up is a deadlock, which loom reports: model sleeps have no bound.
    fn check(how: u32) {
        loom::model(move || {
            let rank = loom::sync::Arc::new(Rank::default());
            let waker = loom::sync::Arc::clone(&rank);
            let thread = loom::thread::spawn(move || waker.send(1));
            rank.wait_for(1, how);
            thread.join().unwrap();
        });
    }

    #[test]
    fn loom_a_wake_up_of_a_sleeper_on_its_word_is_never_lost() {
        check(ON_WORD);
    }

    #[test]
    fn loom_a_wake_up_of_a_sleeper_on_sockets_is_never_lost() {
        check(ON_SOCKETS);
    }

    #[test]
    fn loom_two_wakers_and_one_sleeper() {
        // Three threads have too many schedules: those with up to three preemptions.
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let rank = loom::sync::Arc::new(Rank::default());
            let waker = loom::sync::Arc::clone(&rank);
            // Another wakes it for no reason of its own, as the service thread may.
            let other = loom::sync::Arc::clone(&rank);
            let first = loom::thread::spawn(move || waker.send(1));
            let second = loom::thread::spawn(move || {
                if look(&other.word) != AWAKE {
                    *other.kernel.lock().unwrap() = true;
                    other.bed.notify_one();
                }
            });
            rank.wait_for(1, ON_WORD);
            first.join().unwrap();
            second.join().unwrap();
        });
    }
}

#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests {
    use super::super::memory::{Identity, Layout};
    use super::*;
    use crate::types::{CommId, Rank};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::AtomicBool;

    fn memory(bell: bool) -> Arc<RankMemory> {
        let identity = Identity { comm: CommId(1), rank: Rank(0) };
        RankMemory::private(identity, Layout::new(1, 1).unwrap(), bell).unwrap()
    }

    /// Waits until `there` is set by another thread after `delay`; how it waited last, and for how long.
    fn wait_for(
        waiter: &mut Waiter,
        memory: &RankMemory,
        fds: &[Interest],
        delay: Duration,
    ) -> (Waited, Duration) {
        let there = AtomicBool::new(false);
        let set = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                clock::sleep(delay);
                set.store((clock::now().0 / 1000) as u32, Ordering::Relaxed);
                there.store(true, Ordering::Release);
                memory.wake_if_asleep();
            });
            waiter.reset();
            let mut last = Waited::Spun;
            while !there.load(Ordering::Acquire) {
                last = waiter.idle(fds, &mut || there.load(Ordering::Acquire));
            }
            let late = ((clock::now().0 / 1000) as u32).wrapping_sub(set.load(Ordering::Relaxed));
            (last, Duration::from_micros(u64::from(late)))
        })
    }

    #[test]
    fn a_long_wait_sleeps_and_is_woken() {
        let (plain, bell) = (memory(false), memory(true));
        let socket = std::os::unix::net::UnixStream::pair().unwrap();
        let fds = [Interest { fd: socket.0.as_raw_fd(), read: true, write: false }];
        for (memory, fds) in [(&plain, &[][..]), (&bell, &fds[..])] {
            let mut waiter = Waiter::new(Arc::clone(memory), false);
            let waits: Vec<_> =
                (0..5).map(|_| wait_for(&mut waiter, memory, fds, Duration::from_millis(10))).collect();
            assert!(waits.iter().all(|(waited, _)| *waited == Waited::Slept), "{waits:?}");
            // An unwoken sleeper would be 90 ms late each time; a loaded machine is late now and then.
            assert!(waits.iter().any(|(_, late)| *late < Duration::from_millis(50)), "{waits:?}");
        }
    }

    /// What the waits are, one after another, until one sleeps.
    fn until_asleep(waiter: &mut Waiter) -> Vec<Waited> {
        let mut seen = vec![waiter.idle(&[], &mut || false)];
        while seen.last() != Some(&Waited::Slept) {
            seen.push(waiter.idle(&[], &mut || false));
            seen.dedup();
        }
        seen
    }

    #[test]
    fn waits_deepen_and_a_reset_begins_anew() {
        let mut waiter = Waiter::new(memory(false), false);
        // On a loaded machine the first look at the clock may be too late for a spin after it.
        let seen = until_asleep(&mut waiter);
        assert!(
            seen.starts_with(&[Waited::Spun, Waited::Lasted]) && !seen.contains(&Waited::Yielded),
            "{seen:?}"
        );
        // What is found at the last look is not slept on.
        assert_eq!(waiter.idle(&[], &mut || true), Waited::Spun);
        waiter.reset();
        assert_eq!(waiter.idle(&[], &mut || false), Waited::Spun);
    }

    #[test]
    fn a_crowded_rank_yields_a_bounded_number_of_times() {
        let mut waiter = Waiter::new(memory(false), true);
        clock::settable::set_raw(Some(Raw(1 << 40)));
        // Though no time passes.
        let yields = (0..YIELDS).filter(|_| waiter.idle(&[], &mut || false) == Waited::Yielded).count();
        assert_eq!(yields, YIELDS as usize);
        assert_eq!(waiter.idle(&[], &mut || false), Waited::Slept);
        // After a slice that a yield gave away there is no second one.
        waiter.reset();
        assert_eq!(waiter.idle(&[], &mut || false), Waited::Yielded);
        clock::settable::set_raw(Some(Raw((1 << 40) + waiter.busy_ticks)));
        assert_eq!(waiter.idle(&[], &mut || false), Waited::Slept);
        clock::settable::set_raw(None);
    }

    #[test]
    fn a_spin_outlasts_the_wake_up_of_a_sleeper_and_ends() {
        let mut waiter = Waiter::new(memory(false), false);
        let at = |us: f64| {
            let ticks = (us * 1000.0 / clock::scale().ns_per_tick()) as u64;
            clock::settable::set_raw(Some(Raw((1 << 40) + ticks)));
        };
        at(0.0);
        (0..CLOCKLESS).for_each(|_| assert_eq!(waiter.idle(&[], &mut || false), Waited::Spun));
        // To wake one takes 20 us.
        at(150.0);
        assert_eq!(waiter.idle(&[], &mut || false), Waited::Lasted);
        (0..10).for_each(|_| assert_eq!(waiter.idle(&[], &mut || false), Waited::Spun));
        // A small part of a slice.
        at(1000.0);
        assert_eq!(waiter.idle(&[], &mut || false), Waited::Lasted);
        assert_eq!(waiter.idle(&[], &mut || false), Waited::Slept);
        clock::settable::set_raw(None);
    }

    #[test]
    fn a_counter_that_runs_backwards_does_not_keep_a_rank_spinning() {
        let at = |ticks: u64| clock::settable::set_raw(Some(Raw(ticks)));
        let mut waiter = Waiter::new(memory(false), false);
        at(1 << 60);
        (0..10).for_each(|_| assert_eq!(waiter.idle(&[], &mut || false), Waited::Spun));
        // As after a suspension: the window of the wait begins anew, and ends.
        at(1000);
        assert_eq!(waiter.idle(&[], &mut || false), Waited::Spun);
        at(1000 + waiter.busy_ticks);
        assert_eq!(waiter.idle(&[], &mut || false), Waited::Lasted);
        assert_eq!(waiter.idle(&[], &mut || false), Waited::Slept);
        clock::settable::set_raw(None);
    }

    #[test]
    fn a_ready_socket_ends_a_sleep() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        rustix::io::write(&theirs, b"x").unwrap();
        let fds = [Interest { fd: ours.as_raw_fd(), read: true, write: false }];
        let mut waiter = Waiter::new(memory(true), true);
        let begin = clock::now();
        while waiter.idle(&fds, &mut || false) != Waited::Slept {}
        assert!(clock::now().since(begin) < Duration::from_millis(90));
    }
}
