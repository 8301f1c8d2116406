//! How a driver waits: it spins, then sleeps in the kernel. It yields only where ranks outnumber
//! their processors.
//!
//! Beside other busy processes a yield is the most expensive: it hands the processor to another
//! process for a slice of milliseconds, while the awaited message comes in microseconds; and the
//! other side does the same in turn. A spin must outlast the wake-up of a sleeping peer, or both
//! sides sleep for every message. A rank that spins much longer uses up the slice that it will need
//! when its peer runs again.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{self, Raw};
use crate::reactor::Interest;
use crate::sys::futex;
use crate::transport::shm::memory::RankMemory;
use crate::transport::shm::sleep::{ON_SOCKETS, ON_WORD, sleep_unless};

/// A wait longer than this is recorded: a message takes less.
pub(super) const MESSAGE: Duration = Duration::from_micros(1);
/// How long a wait spins: ten times what it takes to wake a sleeper, and a small part of a slice.
/// Of the lengths tried, from 20 us up, it has the lowest mean time per operation beside other busy
/// processes, and is as good as any without them.
pub(super) const SPIN: Duration = Duration::from_micros(200);
/// How long it spins where a device without hardware needs the processors: about what it takes to
/// wake a sleeper.
const BRIEF: Duration = Duration::from_micros(20);
/// How often a wait yields where ranks outnumber their processors, and for how long at most.
const YIELDS: u32 = 1000;
const YIELD: Duration = Duration::from_millis(1);
/// The longest sleep: after it the driver looks for changes that it was not notified of.
pub(crate) const SLEEP: Duration = Duration::from_millis(200);

/// The number of looks of [`Waiter::glance`].
const GLANCES: u32 = 16;
/// How many times a wait has `Lasted` once it sleeps next.
const WILL_SLEEP: u32 = 2;
/// Calls of [`Waiter::idle`] before it first reads the clock.
const CLOCKLESS: u32 = 2;

/// The action of [`Waiter::idle`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waited {
    /// It spun.
    Spun,
    /// It spun, and the wait has become longer than a message takes, or will sleep next. Each is
    /// reported once in a wait.
    Lasted,
    /// It yielded to other threads.
    Yielded,
    /// It slept in the kernel.
    Slept,
}

/// How a wait passes the time before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// It spins.
    Spin,
    /// It spins briefly: the kernel carries the messages of a device without hardware, and needs
    /// the processors for that.
    SpinBriefly,
    /// It yields: this host has more ranks than processors, so that spinning would take the
    /// processor from the rank that it waits for.
    Yield,
}

/// The wait state of one driver.
#[derive(Debug)]
pub(crate) struct Waiter {
    memory: Arc<RankMemory>,
    pace: Pace,
    message_ticks: u64,
    /// How long a wait spins or yields.
    busy_ticks: u64,
    turns: u32,
    yields: u32,
    /// How many times `Lasted` was returned in this wait: the last time before it sleeps.
    lasted: u32,
    since: Raw,
}

impl Waiter {
    /// The waiter of the driver of the rank that has this memory.
    #[must_use]
    pub(crate) fn new(memory: Arc<RankMemory>, pace: Pace) -> Self {
        let ticks = |d: Duration| (d.as_nanos() as f64 / clock::scale().ns_per_tick()) as u64;
        let busy = match pace {
            Pace::Spin => SPIN,
            Pace::SpinBriefly => BRIEF,
            Pace::Yield => YIELD,
        };
        Self {
            memory,
            pace,
            message_ticks: ticks(MESSAGE),
            busy_ticks: ticks(busy),
            turns: 0,
            yields: 0,
            lasted: 0,
            since: Raw(0),
        }
    }

    const fn is_crowded(&self) -> bool {
        matches!(self.pace, Pace::Yield)
    }

    /// Something moved: the next wait is a new one.
    #[inline]
    pub(crate) const fn reset(&mut self) {
        (self.turns, self.yields, self.lasted) = (0, 0, 0);
    }

    /// Whether the next call of [`idle`](Self::idle) may sleep, and needs descriptors for that.
    pub(crate) const fn may_sleep(&self) -> bool {
        if self.is_crowded() { self.yields > 0 } else { self.lasted == WILL_SLEEP }
    }

    /// Waits a little, longer and deeper with each call since `reset`.
    ///
    /// It returns soon while it spins or yields. While it sleeps, it returns when notified, when a
    /// descriptor is ready or after `longest`, less than 1 s. `recheck` is called once before it
    /// sleeps and returns whether something could move: it must look at everything that a notifying
    /// thread may have stored.
    ///
    /// A rank that waits for descriptors must have a doorbell.
    #[inline]
    pub(crate) fn idle(
        &mut self,
        fds: &[Interest],
        longest: Duration,
        recheck: &mut dyn FnMut() -> bool,
    ) -> Waited {
        self.turns = self.turns.saturating_add(1);
        // The first turns do not read the clock, which takes as long as a message on its way.
        if self.turns <= CLOCKLESS && !self.is_crowded() {
            self.since = if self.turns == CLOCKLESS { clock::raw() } else { self.since };
            std::hint::spin_loop();
            return Waited::Spun;
        }
        self.idle_longer(fds, longest, recheck)
    }

    /// Calls `is_there` a few times, for as long as a message takes between two processors; true if
    /// it returned true. It does not spin where that takes the processor from the rank that it
    /// waits for.
    #[inline]
    pub(crate) fn glance(&self, mut is_there: impl FnMut() -> bool) -> bool {
        let looks = if self.is_crowded() { 0 } else { GLANCES };
        (0..looks).any(|_| {
            let found = is_there();
            if !found {
                std::hint::spin_loop();
            }
            found
        })
    }

    fn idle_longer(
        &mut self,
        fds: &[Interest],
        longest: Duration,
        recheck: &mut dyn FnMut() -> bool,
    ) -> Waited {
        let now = clock::raw();
        if self.turns == 1 {
            self.since = now;
        }
        // A counter that ran backwards (another processor's, or that of a machine that was
        // suspended) says nothing about this wait, which begins anew.
        let Some(waited) = now.0.checked_sub(self.since.0) else {
            self.since = now;
            return Waited::Spun;
        };
        let is_busy = waited < self.busy_ticks;
        // It never sleeps at once, however late it is: the caller gathers the descriptors for a
        // sleep only once a wait is long.
        if self.is_crowded() && (is_busy && self.yields < YIELDS || self.yields == 0) {
            self.yields += 1;
            std::thread::yield_now();
            return Waited::Yielded;
        }
        let lasts = if is_busy { u32::from(waited >= self.message_ticks) } else { WILL_SLEEP };
        if !self.is_crowded() && self.lasted < lasts {
            self.lasted = lasts;
            return Waited::Lasted;
        }
        if !self.is_crowded() && is_busy {
            std::hint::spin_loop();
            return Waited::Spun;
        }
        if self.sleep(fds, longest, recheck) { Waited::Slept } else { Waited::Spun }
    }

    fn sleep(&self, fds: &[Interest], longest: Duration, recheck: &mut dyn FnMut() -> bool) -> bool {
        let word = self.memory.sleeping();
        if fds.is_empty() {
            return sleep_unless(word, ON_WORD, recheck, |word| futex::wait(word, ON_WORD, longest));
        }
        let bell = self.memory.bell().expect("a rank that waits for descriptors has a doorbell");
        sleep_unless(word, ON_SOCKETS, recheck, |_| bell.sleep(&self.memory, fds, longest))
    }
}

#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests {
    use super::*;
    use crate::transport::shm::arena::Arena;
    use crate::transport::shm::memory::{Identity, Layout};
    use crate::types::{CommId, Rank};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn memory(bell: bool) -> Arc<RankMemory> {
        let identity = Identity { comm: CommId(1), rank: Rank(0) };
        let layout = Layout::new(1, 1).unwrap();
        if !bell {
            return RankMemory::private(identity, layout).unwrap();
        }
        RankMemory::shared(identity, layout, &Arena::new().unwrap()).unwrap()
    }

    /// Waits until another thread sets `there` after `delay`; returns the last action, and how late
    /// the wait ended.
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
                last = waiter.idle(fds, SLEEP, &mut || there.load(Ordering::Acquire));
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
            let mut waiter = Waiter::new(Arc::clone(memory), Pace::Spin);
            let waits: Vec<_> =
                (0..5).map(|_| wait_for(&mut waiter, memory, fds, Duration::from_millis(10))).collect();
            assert!(waits.iter().all(|(waited, _)| *waited == Waited::Slept), "{waits:?}");
            // A sleeper that is not woken would be 190 ms late each time; a loaded machine is late
            // now and then.
            assert!(waits.iter().any(|(_, late)| *late < Duration::from_millis(50)), "{waits:?}");
        }
    }

    /// The sequence of actions of a wait until it sleeps.
    fn until_asleep(waiter: &mut Waiter) -> Vec<Waited> {
        let mut seen = vec![waiter.idle(&[], SLEEP, &mut || false)];
        while seen.last() != Some(&Waited::Slept) {
            seen.push(waiter.idle(&[], SLEEP, &mut || false));
            seen.dedup();
        }
        seen
    }

    #[test]
    fn waits_deepen_and_a_reset_begins_anew() {
        let mut waiter = Waiter::new(memory(false), Pace::Spin);
        // On a loaded machine the first reading of the clock may be too late for a spin after it.
        let seen = until_asleep(&mut waiter);
        assert!(
            seen.starts_with(&[Waited::Spun, Waited::Lasted]) && !seen.contains(&Waited::Yielded),
            "{seen:?}"
        );
        // If the last look finds something, it does not sleep.
        assert_eq!(waiter.idle(&[], SLEEP, &mut || true), Waited::Spun);
        waiter.reset();
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Spun);
    }

    #[test]
    fn a_crowded_rank_yields_a_bounded_number_of_times() {
        let mut waiter = Waiter::new(memory(false), Pace::Yield);
        clock::settable::set_raw(Some(Raw(1 << 40)));
        // The number is bounded although no time passes.
        let yields =
            (0..YIELDS).filter(|_| waiter.idle(&[], SLEEP, &mut || false) == Waited::Yielded).count();
        assert_eq!(yields, YIELDS as usize);
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Slept);
        // After a yield that lost a whole slice there is no second one.
        waiter.reset();
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Yielded);
        clock::settable::set_raw(Some(Raw((1 << 40) + waiter.busy_ticks)));
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Slept);
        clock::settable::set_raw(None);
    }

    #[test]
    fn a_spin_outlasts_the_wake_up_of_a_sleeper_and_ends() {
        let mut waiter = Waiter::new(memory(false), Pace::Spin);
        let at = |us: f64| {
            let ticks = (us * 1000.0 / clock::scale().ns_per_tick()) as u64;
            clock::settable::set_raw(Some(Raw((1 << 40) + ticks)));
        };
        at(0.0);
        (0..CLOCKLESS).for_each(|_| assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Spun));
        // Waking a sleeper takes 20 us.
        at(150.0);
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Lasted);
        (0..10).for_each(|_| assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Spun));
        // A small part of a slice.
        at(1000.0);
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Lasted);
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Slept);
        clock::settable::set_raw(None);
    }

    #[test]
    fn a_device_without_hardware_gets_the_processor_soon() {
        let mut waiter = Waiter::new(memory(false), Pace::SpinBriefly);
        let ticks = (100_000.0 / clock::scale().ns_per_tick()) as u64;
        clock::settable::set_raw(Some(Raw(1 << 40)));
        (0..10).for_each(|_| assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Spun));
        // After half of another wait's spin.
        clock::settable::set_raw(Some(Raw((1 << 40) + ticks)));
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Lasted);
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Slept);
        clock::settable::set_raw(None);
    }

    #[test]
    fn a_counter_that_runs_backwards_does_not_keep_a_rank_spinning() {
        let at = |ticks: u64| clock::settable::set_raw(Some(Raw(ticks)));
        let mut waiter = Waiter::new(memory(false), Pace::Spin);
        at(1 << 60);
        (0..10).for_each(|_| assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Spun));
        // As after a suspension: the window of the wait begins anew, and ends.
        at(1000);
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Spun);
        at(1000 + waiter.busy_ticks);
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Lasted);
        assert_eq!(waiter.idle(&[], SLEEP, &mut || false), Waited::Slept);
        clock::settable::set_raw(None);
    }

    #[test]
    fn a_ready_socket_ends_a_sleep() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        rustix::io::write(&theirs, b"x").unwrap();
        let fds = [Interest { fd: ours.as_raw_fd(), read: true, write: false }];
        let mut waiter = Waiter::new(memory(true), Pace::Yield);
        let begin = clock::now();
        while waiter.idle(&fds, SLEEP, &mut || false) != Waited::Slept {}
        assert!(clock::now().since(begin) < Duration::from_millis(90));
    }
}
