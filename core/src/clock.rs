//! All readings of the time.
//!
//! There are two scales. `Raw` is the processor's counter (the time-stamp counter if it exists,
//! else the monotonic clock in nanoseconds): it takes 10 ns to read and has no meaning by itself.
//! `Ns` is CLOCK_MONOTONIC in nanoseconds, which processes of one host can compare. An [`Anchor`]
//! is one reading of all clocks at once; two anchors convert raw ticks to nanoseconds. Hot paths
//! store raw ticks, and readers convert them.

use std::sync::OnceLock;
use std::time::Duration;

/// Nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Ns(pub u64);

impl Ns {
    /// This time plus `d`.
    #[must_use]
    pub const fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d.as_nanos() as u64))
    }
    /// The time since `earlier`; zero if `earlier` is in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Ticks of the raw counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Raw(pub u64);

/// One simultaneous reading of all clocks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Anchor {
    /// The raw counter.
    pub raw: Raw,
    /// CLOCK_MONOTONIC.
    pub mono: Ns,
    /// CLOCK_REALTIME in nanoseconds since 1970.
    pub real_ns: u64,
}

impl Anchor {
    /// The nanoseconds since 1970 at a time of CLOCK_MONOTONIC, before or after this reading.
    #[must_use]
    pub const fn real_ns_at(&self, mono: Ns) -> u64 {
        if mono.0 >= self.mono.0 {
            self.real_ns.saturating_add(mono.0 - self.mono.0)
        } else {
            self.real_ns.saturating_sub(self.mono.0 - mono.0)
        }
    }
}

/// The raw counter now; CLOCK_MONOTONIC in nanoseconds if the processor has no counter.
#[inline]
#[must_use]
pub fn raw() -> Raw {
    #[cfg(test)]
    if let Some(raw) = settable::RAW.get() {
        return raw;
    }
    Raw(crate::sys::counter().unwrap_or_else(|| now().0))
}

/// A counter that a test can set, for its own thread.
#[cfg(test)]
pub(crate) mod settable {
    use super::Raw;
    use std::cell::Cell;

    thread_local! {
        pub(super) static RAW: Cell<Option<Raw>> = const { Cell::new(None) };
        pub(super) static REAL_STEP: Cell<i64> = const { Cell::new(0) };
    }

    /// Shifts CLOCK_REALTIME by this much from now on, like a step of the wall clock.
    pub(crate) fn step_real(ns: i64) {
        REAL_STEP.set(ns);
    }

    /// Makes the raw counter show this value from now on; `None` restores the processor's counter.
    pub(crate) fn set_raw(raw: Option<Raw>) {
        RAW.set(raw);
    }
}

/// CLOCK_MONOTONIC now.
#[inline]
#[must_use]
pub fn now() -> Ns {
    Ns(skewed(true_now().0))
}

#[inline]
fn true_now() -> Ns {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Ns(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// The processor time that the calling thread has used.
#[must_use]
pub fn thread_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// CLOCK_REALTIME in nanoseconds since 1970, now.
#[must_use]
pub fn real_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let real_ns = skewed(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64);
    #[cfg(test)]
    let real_ns = real_ns.saturating_add_signed(settable::REAL_STEP.get());
    real_ns
}

/// How long the kernel has been running, including sleep.
///
/// The kernel records the start time of processes by this clock.
#[must_use]
pub fn since_boot() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// How often the clocks are read for one anchor.
const READINGS: usize = 8;

/// Reads all clocks at once.
///
/// It reads them several times and keeps the reading that took least time. A thread may be
/// interrupted between two clocks, and every time converted with that anchor would then be wrong by
/// the length of the interruption.
#[must_use]
pub fn anchor() -> Anchor {
    let read = |_| {
        let before = raw();
        let mono = now();
        let between = raw();
        let real_ns = real_ns();
        let took = raw().0.saturating_sub(before.0);
        let half = between.0.saturating_sub(before.0) / 2;
        (took, Anchor { raw: Raw(before.0 + half), mono, real_ns })
    };
    let closest = (0..READINGS).map(read).min_by_key(|(took, _)| *took);
    closest.map(|(_, anchor)| anchor).unwrap_or_default()
}

/// What is added to the clocks of this process, and since when.
static SKEW: OnceLock<(Ns, i64, i64)> = OnceLock::new();

/// Makes the clocks of this process show other times, as those of another host would.
///
/// From now on CLOCK_MONOTONIC and CLOCK_REALTIME are `offset_ns` ahead and run `ppb` parts in 10^9
/// too fast; the raw counter stays as it is. This is for tests of what compares the clocks of
/// several hosts: to be called before anything else, and only the first call has an effect.
pub fn skew(offset_ns: i64, ppb: i64) {
    let _ = SKEW.set((true_now(), offset_ns, ppb));
}

/// What a clock that shows `ns` shows with the skew.
#[inline]
fn skewed(ns: u64) -> u64 {
    match SKEW.get() {
        None => ns,
        Some(skew) => moved(ns, skew),
    }
}

/// Only in tests: apart from the code of each call, which reads the clock.
#[cold]
#[inline(never)]
fn moved(ns: u64, (from, offset, ppb): &(Ns, i64, i64)) -> u64 {
    let drift = i128::from(true_now().0.saturating_sub(from.0)) * i128::from(*ppb) / 1_000_000_000;
    ns.saturating_add_signed(*offset + drift as i64)
}

/// The longest time between two looks that counts: longer than any sleep of a waiting thread.
const LOOK_MOST: Duration = Duration::from_millis(250);

/// Measures how much time a thread that looks repeatedly was able to observe.
///
/// A thread that was stopped, suspended or starved between two looks observed nothing of that time,
/// and the rank that it is blocked on may have been held up as well. So that time does not count
/// towards deadlines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopwatch {
    began: Ns,
    last: Ns,
}

impl Stopwatch {
    /// Starts now.
    #[must_use]
    pub const fn start(now: Ns) -> Self {
        Self { began: now, last: now }
    }
    /// Looks, and returns the time observed since the start.
    pub fn look(&mut self, now: Ns) -> Duration {
        self.began = self.began.after(now.since(self.last).saturating_sub(LOOK_MOST));
        self.last = now;
        now.since(self.began)
    }
}

/// Sleeps for `d`: for threads that poll. Nothing ends this sleep early. A driver sleeps where its
/// peers can wake it. Of those that carry out calls, only the progress thread and a group over
/// several communicators sleep here.
pub fn sleep(d: Duration) {
    std::thread::sleep(d);
}

/// Converts raw ticks to nanoseconds; made from two anchors that are far enough apart.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale {
    base: Anchor,
    ns_per_tick: f64,
}

impl Scale {
    /// The line through two anchors. If they are less than 1 ms apart, `fallback` gives the slope.
    #[must_use]
    pub fn between(first: Anchor, last: Anchor, fallback: f64) -> Self {
        let ticks = last.raw.0.saturating_sub(first.raw.0);
        let ns = last.mono.0.saturating_sub(first.mono.0);
        let ns_per_tick = if ns < 1_000_000 || ticks == 0 { fallback } else { ns as f64 / ticks as f64 };
        Self { base: last, ns_per_tick }
    }
    /// CLOCK_MONOTONIC at that tick.
    #[must_use]
    pub fn mono(&self, raw: Raw) -> Ns {
        let ticks = raw.0.wrapping_sub(self.base.raw.0) as i64;
        Ns((self.base.mono.0 as i64).saturating_add((ticks as f64 * self.ns_per_tick) as i64).max(0) as u64)
    }
    /// The length of `ticks` in nanoseconds.
    #[must_use]
    pub fn ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * self.ns_per_tick) as u64
    }
    /// Nanoseconds per tick.
    #[must_use]
    pub const fn ns_per_tick(&self) -> f64 {
        self.ns_per_tick
    }
}

/// The scale of this process: measured once over 2 ms, at the first use.
#[must_use]
pub fn scale() -> Scale {
    static SCALE: OnceLock<Scale> = OnceLock::new();
    *SCALE.get_or_init(|| {
        let first = anchor();
        std::thread::sleep(Duration::from_millis(2));
        Scale::between(first, anchor(), 1.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_ticks_become_monotonic_nanoseconds() {
        let first = Anchor { raw: Raw(1_000), mono: Ns(5_000_000), real_ns: 0 };
        let last = Anchor { raw: Raw(1_000 + 26_000_000), mono: Ns(15_000_000), real_ns: 0 };
        let scale = Scale::between(first, last, 1.0);
        assert_eq!(scale.mono(Raw(1_000)), Ns(5_000_000));
        assert_eq!(scale.ns(2_600), 1_000);
        // The anchors are too close for a slope, so the fallback is used.
        assert_eq!(Scale::between(first, first, 0.5).ns(10), 5);
    }

    #[test]
    fn a_stopwatch_counts_what_could_be_seen() {
        let tenth = |tenths: u64| Ns(tenths * 100_000_000);
        let mut watch = Stopwatch::start(tenth(100));
        let seen: Vec<Duration> = (100..120).map(|now| watch.look(tenth(now))).collect();
        assert_eq!((seen[0], seen[19]), (Duration::ZERO, Duration::from_millis(1900)));
        // Stopped for an hour: only a quarter of a second counts.
        assert_eq!(watch.look(tenth(119 + 36_000)), Duration::from_millis(2150));
        assert_eq!(watch.look(tenth(120 + 36_000)), Duration::from_millis(2250));
        // A clock that went backward shows nothing.
        assert_eq!(watch.look(tenth(100)), Duration::ZERO);
    }

    #[test]
    fn an_anchor_was_read_when_it_says() {
        let first = (raw(), now(), real_ns());
        let Anchor { raw: at, mono, real_ns: real } = anchor();
        let last = (raw(), now(), real_ns());
        assert!(first.0 <= at && at <= last.0 && first.1 <= mono && mono <= last.1, "{first:?} {last:?}");
        // CLOCK_REALTIME may be set meanwhile.
        assert_ne!(real, 0);
    }

    #[test]
    fn the_scale_of_this_process_agrees_with_the_monotonic_clock() {
        let scale = scale();
        let (tick, ns) = (raw(), now());
        assert!(scale.mono(tick).0.abs_diff(ns.0) < 10_000_000, "{:?} against {ns:?}", scale.mono(tick));
    }
}
