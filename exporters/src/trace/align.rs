//! One clock for all ranks: what messages prove about the offset and drift between two processes' clocks.
//!
//! A message is taken after it was sent. So each message from `a` to `b` is an upper bound of how far the clock of `a` is ahead
//! of that of `b`, and each one back a lower bound. Between the bounds lies a line over time: offset and drift. The one that keeps
//! the largest distance to all bounds is taken; the error is how far any other line between them can be from it. Clocks of one
//! kernel that no message contradicts, or by little, are left alone: the error says by how much they
//! may disagree. From the reference the lines are followed along the pairs with the smallest errors.

use std::collections::BTreeMap;

/// The clocks of one kernel are read at slightly different moments by each process: less than this is no contradiction.
const SAME_KERNEL_NS: i64 = 20_000;
/// What clocks of one kernel are off, where nothing says otherwise: what reading two counters together takes.
const SAME_KERNEL_ERROR_NS: u64 = 1_000;
/// No clock drifts faster: 1 in 2,000.
const MOST_DRIFT: f64 = 500e-6;
/// Bounds are kept per bucket of time: more would say the same again.
const BUCKETS: i64 = 512;

/// One message: who sent it, when by the sender's clock, who took it, when by the taker's clock (nanoseconds).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message {
    /// The clock of the sender.
    pub(super) from: usize,
    /// When it was sent.
    pub(super) sent_ns: i64,
    /// The clock of the taker.
    pub(super) to: usize,
    /// When it was taken.
    pub(super) taken_ns: i64,
}

/// How one clock becomes the reference clock, and how far off that may be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Correction {
    /// To be added at `at_ns`.
    pub(super) offset_ns: f64,
    /// By how much the offset grows per nanosecond.
    pub(super) drift: f64,
    /// Where the offset was taken, by the clock itself.
    pub(super) at_ns: i64,
    /// How far off the corrected time may be; `None`: no message tells.
    pub(super) error_ns: Option<u64>,
}

impl Correction {
    const NONE: Self = Self { offset_ns: 0.0, drift: 0.0, at_ns: 0, error_ns: Some(0) };

    /// A time of this clock, on the reference clock.
    #[must_use]
    pub(super) fn apply(&self, ns: i64) -> i64 {
        ns + (self.offset_ns + (ns - self.at_ns) as f64 * self.drift).round() as i64
    }
}

/// What is known of the clock of one process before any message: which kernel keeps it, and what is to be added so that it tells
/// about the same time as the reference (from the time of day).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Known {
    /// Boot id of the kernel.
    pub(super) kernel: String,
    /// CLOCK_REALTIME less CLOCK_MONOTONIC.
    pub(super) real_less_mono_ns: i64,
}

/// The corrections of all clocks; the reference is clock 0.
#[must_use]
pub(super) fn align(clocks: &[Known], messages: &[Message]) -> Vec<Correction> {
    let mut corrections: Vec<Option<Correction>> = vec![None; clocks.len()];
    let Some(reference) = clocks.first() else { return Vec::new() };
    corrections[0] = Some(Correction::NONE);
    let pairs = pairs(clocks, messages);
    // The reachable clock with the least error, again and again.
    while let Some((next, correction)) = pairs
        .iter()
        .flat_map(|((a, b), line)| [(*a, *b, line.reversed()), (*b, *a, *line)])
        .filter(|(new, _, _)| corrections[*new].is_none())
        .filter_map(|(new, known, line)| Some((new, line.after(corrections[known]?)?)))
        .min_by_key(|(_, correction)| correction.error_ns)
    {
        corrections[next] = Some(correction);
    }
    let guess = |clock: &Known| Correction {
        offset_ns: if clock.kernel == reference.kernel {
            0.0
        } else {
            (clock.real_less_mono_ns - reference.real_less_mono_ns) as f64
        },
        error_ns: (clock.kernel == reference.kernel).then_some(SAME_KERNEL_ERROR_NS),
        ..Correction::NONE
    };
    corrections.into_iter().zip(clocks).map(|(found, clock)| found.unwrap_or_else(|| guess(clock))).collect()
}

/// How far clock `a` is ahead of clock `b`: `ahead + drift * (t - at)`, plus or minus `error`.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Line {
    ahead: f64,
    drift: f64,
    at: i64,
    error: u64,
}

impl Line {
    /// How far `b` is ahead of `a`.
    fn reversed(&self) -> Self {
        let at = self.at + self.ahead.round() as i64;
        Self { ahead: -self.ahead, drift: 1.0 / (1.0 + self.drift) - 1.0, at, error: self.error }
    }

    /// The correction of `b`, where `self` tells how far `a` is ahead of it and `known` is the correction of `a`.
    fn after(&self, known: Correction) -> Option<Correction> {
        // At the moment `at` of clock b, clock a shows `at + ahead`.
        let at_a = self.at + self.ahead.round() as i64;
        Some(Correction {
            offset_ns: (known.apply(at_a) - self.at) as f64,
            drift: (1.0 + self.drift) * (1.0 + known.drift) - 1.0,
            at_ns: self.at,
            error_ns: Some(known.error_ns?.saturating_add(self.error)),
        })
    }
}

/// The bounds of one pair of clocks, by bucket of time: the moment and the bound.
#[derive(Default)]
struct Bounds {
    upper: BTreeMap<i64, (i64, i64)>,
    lower: BTreeMap<i64, (i64, i64)>,
}

fn pairs(clocks: &[Known], messages: &[Message]) -> BTreeMap<(usize, usize), Line> {
    let times = || messages.iter().map(|message| message.taken_ns);
    let (from, to) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let width = ((to - from) / BUCKETS).max(1);
    let mut bounds: BTreeMap<(usize, usize), Bounds> = BTreeMap::new();
    for message in messages.iter().filter(|message| message.from != message.to) {
        let Message { from: sender, to: taker, sent_ns, taken_ns } = *message;
        let pair = bounds.entry((sender.min(taker), sender.max(taker))).or_default();
        // Clock b (the larger index) is the axis. `a` ahead of `b` by d: a time t of b is t + d of a.
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
        .into_iter()
        .filter_map(|((a, b), bounds)| {
            let same = clocks[a].kernel == clocks[b].kernel;
            Some(((a, b), line(&bounds, same)?))
        })
        .collect()
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

/// The line between the bounds; `None` if they are on one side only and nothing else is known.
fn line(bounds: &Bounds, same_kernel: bool) -> Option<Line> {
    let upper = bounds.upper.values().map(|(_, bound)| *bound).min();
    let lower = bounds.lower.values().map(|(_, bound)| *bound).max();
    // sent - taken <= d <= taken - sent: zero contradicts none if it lies between.
    let off = lower.unwrap_or(0).max(-upper.unwrap_or(0)).max(0);
    let is_zero = same_kernel && off <= SAME_KERNEL_NS;
    let is_one_sided = bounds.upper.is_empty() || bounds.lower.is_empty();
    let error = SAME_KERNEL_ERROR_NS.max(off as u64);
    if is_zero && (is_one_sided || error == SAME_KERNEL_ERROR_NS) {
        return Some(Line { ahead: 0.0, drift: 0.0, at: 0, error });
    }
    if is_one_sided {
        return None;
    }
    let times = || bounds.lower.values().chain(bounds.upper.values()).map(|(at, _)| *at);
    let (at, until) = (times().min()?, times().max()?);
    // With this drift the offset at `at` lies between these two.
    let between = |drift: f64| {
        let along = |(t, bound): &(i64, i64)| *bound as f64 - (t - at) as f64 * drift;
        let most = bounds.upper.values().map(along).fold(f64::INFINITY, f64::min);
        let least = bounds.lower.values().map(along).fold(f64::NEG_INFINITY, f64::max);
        (least, most)
    };
    let room = |drift: f64| {
        let (least, most) = between(drift);
        most - least
    };
    let best = highest((-MOST_DRIFT, MOST_DRIFT), room);
    let (least, most) = between(best);
    let (ahead, drift) = if is_zero { (0.0, 0.0) } else { (f64::midpoint(least, most), best) };
    let error = if most < least {
        // No line: the clock was set in between.
        (least - most).max(error as f64)
    } else {
        // The true line is any that lies between the bounds: how far such a one can be from ours, at either end.
        let drifts = (edge(best, -MOST_DRIFT, room), edge(best, MOST_DRIFT, room));
        let off = |t: f64| {
            let above = highest(drifts, |d| between(d).1 + d * t);
            let below = highest(drifts, |d| -(between(d).0 + d * t));
            let ours = ahead + drift * t;
            (between(above).1 + above * t - ours).max(ours - (between(below).0 + below * t))
        };
        off(0.0).max(off((until - at) as f64))
    };
    Some(Line { ahead, drift, at, error: error.ceil() as u64 + 1 })
}

/// Where a concave function is highest.
fn highest((mut low, mut high): (f64, f64), of: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..60 {
        // The third that cannot hold it is ruled out.
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if of(a) < of(b) { low = a } else { high = b }
    }
    f64::midpoint(low, high)
}

/// The last place from `inside`, where `of` is not negative, towards `to`, where it still is not.
fn edge(inside: f64, to: f64, of: impl Fn(f64) -> f64) -> f64 {
    let (mut good, mut beyond) = (inside, to);
    for _ in 0..60 {
        let between = f64::midpoint(good, beyond);
        if of(between) < 0.0 { beyond = between } else { good = between }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known(kernel: &str, real_less_mono_ns: i64) -> Known {
        Known { kernel: kernel.into(), real_less_mono_ns }
    }

    /// What a clock that is `offset` ahead and runs `drift` too fast shows at the true time `t`.
    fn shows(t: i64, (offset, drift): (i64, f64)) -> i64 {
        t + offset + (t as f64 * drift) as i64
    }

    #[test]
    fn clocks_of_one_kernel_that_agree_are_left_alone() {
        let clocks = [known("k", 5), known("k", 5), known("k", 5)];
        let messages = [
            Message { from: 0, sent_ns: 1_000, to: 1, taken_ns: 1_300 },
            Message { from: 1, sent_ns: 2_000, to: 0, taken_ns: 2_200 },
            Message { from: 1, sent_ns: 9_000, to: 2, taken_ns: 8_000 },
        ];
        let corrections = align(&clocks, &messages);
        assert!(corrections.iter().all(|c| c.apply(77) == 77), "{corrections:?}");
        // A contradiction of a microsecond is told as the error.
        let errors: Vec<_> = corrections.iter().map(|c| c.error_ns).collect();
        assert_eq!(errors, [Some(0), Some(1_000), Some(2_000)]);
    }

    #[test]
    fn without_messages_the_time_of_day_has_to_do() {
        let corrections = align(&[known("k", 100), known("l", 400), known("k", 100)], &[]);
        assert_eq!(corrections.iter().map(|c| c.apply(1_000)).collect::<Vec<_>>(), [1_000, 1_300, 1_000]);
        assert_eq!(corrections.iter().map(|c| c.error_ns).collect::<Vec<_>>(), [Some(0), None, Some(1_000)]);
        assert_eq!(align(&[], &[]), []);
    }

    #[test]
    fn a_small_contradiction_within_a_kernel_is_an_error_that_bounds_it() {
        let clocks = [known("k", 0), known("k", 0)];
        // Clock 1 is 15 us ahead; messages take 5 to 9 us.
        let messages: Vec<_> = (0..100)
            .map(|k| {
                let (t, delay) = (k * 10_000_000, 5_000 + k % 5 * 1_000);
                if k % 2 == 0 {
                    Message { from: 0, sent_ns: t, to: 1, taken_ns: t + delay + 15_000 }
                } else {
                    Message { from: 1, sent_ns: t + 15_000, to: 0, taken_ns: t + delay }
                }
            })
            .collect();
        let correction = align(&clocks, &messages)[1];
        assert_eq!(correction.apply(77), 77);
        assert!((15_000..30_000).contains(&correction.error_ns.unwrap()), "{correction:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        /// However the clocks are skewed: no corrected message runs backwards by more than the errors of its two clocks, and
        /// the corrected clocks agree with the true one within theirs.
        #[test]
        fn skewed_clocks_are_brought_together(
            skews in proptest::collection::vec((-50_000_000i64..50_000_000, -60e-6f64..60e-6), 3..6),
            delays in proptest::collection::vec(500i64..200_000, 200..400),
            far: bool,
        ) {
            let n = skews.len();
            // Clocks of one kernel agree, or something is wrong with them that shows.
            let (skew, next) = (|k: usize| skews[k].0, |k: usize| skews[(k + 1) % n].0);
            prop_assume!(far || (0..n).all(|k| skew(k).abs_diff(next(k)) > 1_000_000));
            let kernel = |k: usize| if far { format!("k{k}") } else { "k".to_string() };
            let clocks: Vec<_> = (0..n).map(|k| known(&kernel(k), 0)).collect();
            let messages: Vec<_> = delays.iter().enumerate().map(|(k, delay)| {
                // Around the ring both ways, 10 ms apart.
                let (a, b) = (k / 2 % n, (k / 2 + 1) % n);
                let (from, to) = if k % 2 == 0 { (a, b) } else { (b, a) };
                let t = k as i64 * 10_000_000;
                Message { from, sent_ns: shows(t, skews[from]), to, taken_ns: shows(t + delay, skews[to]) }
            }).collect();
            let corrections = align(&clocks, &messages);
            for m in &messages {
                let (from, to) = (corrections[m.from], corrections[m.to]);
                let error = (from.error_ns.unwrap() + to.error_ns.unwrap()) as i64;
                prop_assert!(to.apply(m.taken_ns) + error >= from.apply(m.sent_ns), "{m:?} {from:?} {to:?}");
            }
            for (k, correction) in corrections.iter().enumerate() {
                for t in [500_000_000, 1_000_000_000] {
                    let truth = shows(t, skews[0]);
                    let off = (correction.apply(shows(t, skews[k])) - truth).unsigned_abs();
                    // Nanoseconds are rounded on the way.
                    prop_assert!(off <= correction.error_ns.unwrap() + 10, "{k} at {t}: {off} {correction:?}");
                }
            }
        }
    }
}
