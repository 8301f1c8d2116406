//! One clock for all ranks: the bounds that messages give for the offset and drift between the
//! clocks of two kernels.
//!
//! A message is taken after it was sent. So each message from `a` to `b` is an upper bound of how
//! far the clock of `a` is ahead of the clock of `b`, and each message back is a lower bound.
//! Between the bounds lies a line over time: offset and drift. The line with the largest distance
//! to all bounds is chosen. Its error is how far any other line between the bounds can be from it,
//! at any time that is corrected. From the reference clock, the lines are followed along the pairs
//! with the smallest errors.
//!
//! All processes of a kernel share its clock, so the messages of all of them bound it: a ring
//! through two hosts leaves by one process and comes back by another. Only if a message between two
//! of the processes contradicts that, by more than the error of reading the clock, each process is
//! given a separate clock. If messages go between two kernels one way only, those forwarded through
//! other kernels bound the other way ([`chain`]). If nothing leads back, the time of day is used,
//! and the error is unknown.

use std::collections::BTreeMap;

use super::chain::with_ways_back;

/// Each process reads the clocks of its kernel at slightly different times: less than this is not a
/// contradiction.
const SAME_KERNEL_NS: i64 = 20_000;
/// The error between clocks of one kernel, if no message shows a larger one: the time it takes to
/// read two counters together.
const SAME_KERNEL_ERROR_NS: u64 = 1_000;
/// No clock drifts faster: 1 in 2,000.
const MOST_DRIFT: f64 = 500e-6;
/// Bounds are kept per bucket of time: more would add no information.
const BUCKETS: i64 = 512;

/// One message: its sender, when it was sent by the sender's clock, its taker, and when it was
/// taken by the taker's clock (nanoseconds).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TimedMessage {
    /// The clock of the sender.
    pub(super) from: usize,
    /// When it was sent.
    pub(super) sent_ns: i64,
    /// The clock of the rank that took it.
    pub(super) to: usize,
    /// When it was taken.
    pub(super) taken_ns: i64,
}

/// The conversion of one clock to the reference clock, and its error.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Correction {
    /// To be added at `at_ns`.
    pub(super) offset_ns: f64,
    /// The growth of the offset per nanosecond.
    pub(super) drift: f64,
    /// The time of the offset, by the clock itself.
    pub(super) at_ns: i64,
    /// The error of the corrected time; `None` if no message bounds it.
    pub(super) error_ns: Option<u64>,
}

impl Correction {
    const NONE: Self = Self { offset_ns: 0.0, drift: 0.0, at_ns: 0, error_ns: Some(0) };

    /// Converts a time of this clock to the reference clock.
    #[must_use]
    pub(super) fn apply(&self, ns: i64) -> i64 {
        ns.saturating_add((self.offset_ns + (ns - self.at_ns) as f64 * self.drift).round() as i64)
    }
}

impl Correction {
    /// The approximate time of this clock at `ns` on the reference clock.
    fn undo(&self, ns: i64) -> i64 {
        let back = ns.saturating_sub(self.offset_ns.round() as i64);
        back.saturating_sub(((back - self.at_ns) as f64 * self.drift).round() as i64)
    }
}

/// The facts about the clock of one process before any message: its kernel, and what to add so that
/// it shows about the same time as the reference (from the time of day).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Known {
    /// Boot id of the kernel.
    pub(super) kernel: String,
    /// CLOCK_REALTIME less CLOCK_MONOTONIC.
    pub(super) real_less_mono_ns: i64,
    /// The first and the last time to be corrected; `None` if there is none.
    pub(super) span: Option<(i64, i64)>,
}

/// The corrections of all clocks; the reference is clock 0.
#[must_use]
pub(super) fn align(clocks: &[Known], messages: &[TimedMessage]) -> Vec<Correction> {
    let kernels = Kernels::of(clocks, messages);
    let between: Vec<TimedMessage> = messages.iter().map(|message| kernels.between(message)).collect();
    let found = align_kernels(&kernels, &with_ways_back(&between));
    let corrected = |(at, kernel): (usize, &usize)| {
        let correction = found[*kernel];
        // The reference itself is exact, whatever the errors of its neighbours.
        let inside = if at == 0 { 0 } else { kernels.inside[*kernel] };
        Correction { error_ns: correction.error_ns.map(|error| error.saturating_add(inside)), ..correction }
    };
    kernels.of.iter().enumerate().map(corrected).collect()
}

/// The processes by kernel.
struct Kernels {
    /// The kernel of each process.
    of: Vec<usize>,
    /// Per kernel, the facts about the clock of its first process, and the times of all.
    known: Vec<Known>,
    /// Per kernel, how far the clocks of two of its processes may differ.
    inside: Vec<u64>,
}

impl Kernels {
    fn of(clocks: &[Known], messages: &[TimedMessage]) -> Self {
        // How far messages between two processes of a kernel run backwards, and so how far their
        // clocks differ.
        let mut backwards: BTreeMap<&str, i64> = BTreeMap::new();
        let inside = |message: &&TimedMessage| {
            message.from != message.to && clocks[message.from].kernel == clocks[message.to].kernel
        };
        for TimedMessage { from, sent_ns, taken_ns, .. } in messages.iter().filter(inside) {
            let off = backwards.entry(&clocks[*from].kernel).or_default();
            *off = sent_ns.saturating_sub(*taken_ns).max(*off);
        }
        let suspected = |message: &&TimedMessage| {
            backwards
                .get(clocks[message.from].kernel.as_str())
                .is_some_and(|off| *off as u64 > SAME_KERNEL_ERROR_NS)
        };
        let suspects: Vec<TimedMessage> = messages.iter().filter(inside).filter(suspected).copied().collect();
        let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
        for ((a, _), bounds) in pairs(&suspects) {
            let error = errors.entry(&clocks[a].kernel).or_default();
            *error = bounds.error_of_zero().max(*error);
        }
        let mut all = Self { of: Vec::new(), known: Vec::new(), inside: Vec::new() };
        let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
        for clock in clocks {
            let off = backwards.get(clock.kernel.as_str()).copied().unwrap_or(0);
            let shared = by_name.get(clock.kernel.as_str()).filter(|_| off <= SAME_KERNEL_NS);
            if let Some(at) = shared.copied() {
                all.of.push(at);
                // Of two contradicting clocks either may be off, in different directions.
                let error = errors.get(clock.kernel.as_str()).copied().unwrap_or(0);
                all.inside[at] = error.saturating_mul(2).max(SAME_KERNEL_ERROR_NS);
                let spans = all.known[at].span.into_iter().chain(clock.span);
                all.known[at].span = spans.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
            } else {
                by_name.insert(&clock.kernel, all.known.len());
                all.of.push(all.known.len());
                all.known.push(clock.clone());
                all.inside.push(0);
            }
        }
        all
    }

    /// The message as one between kernels.
    fn between(&self, message: &TimedMessage) -> TimedMessage {
        TimedMessage { from: self.of[message.from], to: self.of[message.to], ..*message }
    }
}

/// The corrections of the clocks of kernels.
fn align_kernels(kernels: &Kernels, messages: &[TimedMessage]) -> Vec<Correction> {
    let clocks = &kernels.known;
    let Some(reference) = clocks.first() else { return Vec::new() };
    let pairs = pairs(messages);
    let lines = |ends: Option<(i64, i64)>, first: &[Correction]| -> Vec<((usize, usize), Line)> {
        let line = |((a, b), bounds): (&(usize, usize), &Bounds)| {
            let mut line = line(bounds)?;
            // On the axis, the clock of `b`.
            let ends = ends.map(|(from, to)| (first[*b].undo(from), first[*b].undo(to)));
            line.error = error_of(bounds, &line, line.drift, ends)?
                .saturating_add(kernels.inside[*a])
                .saturating_add(kernels.inside[*b]);
            Some(((*a, *b), line))
        };
        pairs.iter().filter_map(line).collect()
    };
    let walked = |lines: &[((usize, usize), Line)]| -> Vec<Correction> {
        let mut corrections: Vec<Option<Correction>> = vec![None; clocks.len()];
        corrections[0] = Some(Correction::NONE);
        // Repeatedly adds the reachable clock with the smallest error.
        while let Some((next, correction)) = lines
            .iter()
            .flat_map(|((a, b), line)| [(*a, *b, line.reversed()), (*b, *a, *line)])
            .filter(|(new, _, _)| corrections[*new].is_none())
            .filter_map(|(new, known, line)| Some((new, line.after(corrections[known]?)?)))
            .min_by_key(|(_, correction)| correction.error_ns)
        {
            corrections[next] = Some(correction);
        }
        let guess = |clock: &Known| Correction {
            offset_ns: (i128::from(clock.real_less_mono_ns) - i128::from(reference.real_less_mono_ns)) as f64,
            error_ns: None,
            ..Correction::NONE
        };
        corrections
            .into_iter()
            .zip(clocks)
            .map(|(found, clock)| found.unwrap_or_else(|| guess(clock)))
            .collect()
    };
    // First the approximate times on one clock, then the errors of the lines over all of these
    // times.
    let first = walked(&lines(None, &[]));
    let spans = clocks.iter().zip(&first).filter_map(|(clock, correction)| {
        let (from, to) = clock.span.filter(|_| correction.error_ns.is_some())?;
        Some((correction.apply(from), correction.apply(to)))
    });
    let ends = spans.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
    walked(&lines(ends, &first))
}

/// The lead of clock `a` over clock `b`: `ahead + drift * (t - at)`, plus or minus `error`.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Line {
    ahead: f64,
    drift: f64,
    at: i64,
    error: u64,
}

impl Line {
    /// The lead of `b` over `a`.
    fn reversed(&self) -> Self {
        let at = self.at + self.ahead.round() as i64;
        Self { ahead: -self.ahead, drift: 1.0 / (1.0 + self.drift) - 1.0, at, error: self.error }
    }

    /// The correction of `b`, where `self` is the lead of `a` over `b` and `known` is the
    /// correction of `a`.
    fn after(&self, known: Correction) -> Option<Correction> {
        // At the time `at` of clock b, clock a shows `at + ahead`.
        let at_a = self.at + self.ahead.round() as i64;
        Some(Correction {
            offset_ns: (known.apply(at_a) - self.at) as f64,
            drift: (1.0 + self.drift) * (1.0 + known.drift) - 1.0,
            at_ns: self.at,
            error_ns: Some(known.error_ns?.saturating_add(self.error)),
        })
    }
}

/// The bounds of one pair of clocks, by bucket of time: each with its time.
#[derive(Default)]
struct Bounds {
    upper: BTreeMap<i64, (i64, i64)>,
    lower: BTreeMap<i64, (i64, i64)>,
}

/// The bounds of all pairs of clocks with messages between them.
fn pairs(messages: &[TimedMessage]) -> BTreeMap<(usize, usize), Bounds> {
    let times = || messages.iter().map(|message| message.taken_ns);
    let (from, to) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let width = ((to - from) / BUCKETS).max(1);
    let mut bounds: BTreeMap<(usize, usize), Bounds> = BTreeMap::new();
    for message in messages.iter().filter(|message| message.from != message.to) {
        let TimedMessage { from: sender, to: taker, sent_ns, taken_ns } = *message;
        let pair = bounds.entry((sender.min(taker), sender.max(taker))).or_default();
        // Clock b (the larger index) is the axis. `a` ahead of `b` by d: a time t of b is t + d of
        // a.
        if sender < taker {
            // sent (a) - d <= taken (b).
            let (at, bound) = (taken_ns, sent_ns - taken_ns);
            keep(&mut pair.lower, at / width, (at, bound), |new, old| new > old);
        } else {
            // sent (b) + d <= taken (a).
            let (at, bound) = (sent_ns, taken_ns - sent_ns);
            keep(&mut pair.upper, at / width, (at, bound), |new, old| new < old);
        }
    }
    bounds
}

fn keep(
    bounds: &mut BTreeMap<i64, (i64, i64)>,
    bucket: i64,
    new: (i64, i64),
    is_tighter: impl Fn(i64, i64) -> bool,
) {
    let kept = bounds.entry(bucket).or_insert(new);
    if is_tighter(new.1, kept.1) {
        *kept = new;
    }
}

impl Bounds {
    /// The lowest and highest offset at `at`, with this drift.
    fn between(&self, at: i64, drift: f64) -> (f64, f64) {
        let along = |(t, bound): &(i64, i64)| *bound as f64 - (t - at) as f64 * drift;
        let most = self.upper.values().map(along).fold(f64::INFINITY, f64::min);
        let least = self.lower.values().map(along).fold(f64::NEG_INFINITY, f64::max);
        (least, most)
    }

    /// The distance between the bounds.
    fn room(&self, at: i64, drift: f64) -> f64 {
        let (least, most) = self.between(at, drift);
        most - least
    }

    /// The possible error of two clocks that are not corrected: the distance of the farthest line
    /// between the bounds, or of the bound if there is only one.
    fn error_of_zero(&self) -> u64 {
        let ends = self.ends().filter(|_| !self.upper.is_empty() && !self.lower.is_empty());
        let zero = ends.map(|(at, _)| {
            let drift = highest((-MOST_DRIFT, MOST_DRIFT), |drift| self.room(at, drift));
            (Line { ahead: 0.0, drift: 0.0, at, error: 0 }, drift)
        });
        let off = self.lower.values().map(|(_, bound)| *bound).max().unwrap_or(0);
        let off =
            off.max(-self.upper.values().map(|(_, bound)| *bound).min().unwrap_or(0)).max(0).unsigned_abs();
        zero.and_then(|(line, drift)| error_of(self, &line, drift, None)).unwrap_or(0).max(off)
    }

    /// The first and the last time of the bounds.
    fn ends(&self) -> Option<(i64, i64)> {
        let times = || self.lower.values().chain(self.upper.values()).map(|(at, _)| *at);
        Some((times().min()?, times().max()?))
    }
}

/// The line between the bounds, still without its error; `None` if there are bounds on one side
/// only.
fn line(bounds: &Bounds) -> Option<Line> {
    if bounds.upper.is_empty() || bounds.lower.is_empty() {
        return None;
    }
    let (at, _) = bounds.ends()?;
    let drift = highest((-MOST_DRIFT, MOST_DRIFT), |drift| bounds.room(at, drift));
    let (least, most) = bounds.between(at, drift);
    Some(Line { ahead: f64::midpoint(least, most), drift, at, error: 0 })
}

/// The error of that line between the two times and wherever there are messages. The true line is
/// any line between the bounds; one with the drift `inside` lies between them if any does.
fn error_of(bounds: &Bounds, line: &Line, inside: f64, ends: Option<(i64, i64)>) -> Option<u64> {
    let Line { ahead, drift, at, .. } = *line;
    let (first, last) = bounds.ends()?;
    let (from, to) = ends.map_or((first, last), |(from, to)| (from.min(first), to.max(last)));
    let (least, most) = bounds.between(at, inside);
    let error = if most < least {
        // There is no such line: the clock was set in between.
        (least - most).max((ahead - f64::midpoint(least, most)).abs())
    } else {
        let room = |drift: f64| bounds.room(at, drift);
        let drifts = (edge(inside, -MOST_DRIFT, room), edge(inside, MOST_DRIFT, room));
        // At either end: between the ends it is smaller.
        let off = |t: f64| {
            let above = highest(drifts, |d| bounds.between(at, d).1 + d * t);
            let below = highest(drifts, |d| -(bounds.between(at, d).0 + d * t));
            let ours = ahead + drift * t;
            (bounds.between(at, above).1 + above * t - ours)
                .max(ours - (bounds.between(at, below).0 + below * t))
        };
        off((from - at) as f64).max(off((to - at) as f64))
    };
    Some((error.ceil() as u64).saturating_add(1))
}

/// The maximum of a concave function.
fn highest((mut low, mut high): (f64, f64), of: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..60 {
        // Drops the third that cannot contain it.
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if of(a) < of(b) { low = a } else { high = b }
    }
    f64::midpoint(low, high)
}

/// The last value from `inside`, where `of` is not negative, towards `to`, at which `of` still is
/// not negative.
fn edge(inside: f64, to: f64, of: impl Fn(f64) -> f64) -> f64 {
    let (mut good, mut beyond) = (inside, to);
    for _ in 0..60 {
        let between = f64::midpoint(good, beyond);
        if of(between) < 0.0 { beyond = between } else { good = between }
    }
    good
}

#[cfg(test)]
mod tests;
