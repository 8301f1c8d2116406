//! Clocks with skew, in several kernels or in one.

use super::*;
use proptest::prelude::*;

fn known(kernel: &str, real_less_mono_ns: i64) -> Known {
    Known { kernel: kernel.into(), real_less_mono_ns, span: None }
}

/// The reading of a clock that is `offset` ahead and runs `drift` too fast at the true time `t`.
fn shows(t: i64, (offset, drift): (i64, f64)) -> i64 {
    t + offset + (t as f64 * drift) as i64
}

#[test]
fn clocks_of_one_kernel_that_agree_are_left_alone() {
    let clocks = [known("k", 5), known("k", 5), known("k", 5)];
    let messages = [
        TimedMessage { from: 0, sent_ns: 1_000, to: 1, taken_ns: 1_300 },
        TimedMessage { from: 1, sent_ns: 2_000, to: 0, taken_ns: 2_200 },
        TimedMessage { from: 1, sent_ns: 9_000, to: 2, taken_ns: 8_000 },
    ];
    let corrections = align(&clocks, &messages);
    assert!(corrections.iter().all(|c| c.apply(77) == 77), "{corrections:?}");
    // A contradiction of a microsecond is reported as the error.
    let errors: Vec<_> = corrections.iter().map(|c| c.error_ns).collect();
    assert_eq!(errors, [Some(0), Some(1_000), Some(1_000)]);
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
                TimedMessage { from: 0, sent_ns: t, to: 1, taken_ns: t + delay + 15_000 }
            } else {
                TimedMessage { from: 1, sent_ns: t + 15_000, to: 0, taken_ns: t + delay }
            }
        })
        .collect();
    let correction = align(&clocks, &messages)[1];
    assert_eq!(correction.apply(77), 77);
    assert!((15_000..60_000).contains(&correction.error_ns.unwrap()), "{correction:?}");
}

/// Messages around a ring of processes, each to the next, with these kernels' skews.
fn ring(kernels: &[usize], skews: &[(i64, f64)], count: i64) -> (Vec<Known>, Vec<TimedMessage>) {
    let clocks = kernels.iter().map(|kernel| known(&format!("k{kernel}"), 0)).collect();
    let n = kernels.len();
    let messages = (0..count).map(|k| {
        let (from, to) = (k as usize % n, (k as usize + 1) % n);
        let (t, delay) = (k * 50_000, 5_000 + k * 7_919 % 3_000);
        let skew = |process: usize| skews[kernels[process]];
        TimedMessage { from, sent_ns: shows(t, skew(from)), to, taken_ns: shows(t + delay, skew(to)) }
    });
    (clocks, messages.collect())
}

/// Checks that all processes are brought to the first one's clock within the stated errors, which
/// are below `most`.
fn check_ring(kernels: &[usize], skews: &[(i64, f64)], most: u64) {
    let (mut clocks, messages) = ring(kernels, skews, 400);
    // The trace is ten times as long as the time covered by messages.
    let (from, to) = (-100_000_000, 120_000_000);
    for (clock, kernel) in clocks.iter_mut().zip(kernels) {
        clock.span = Some((shows(from, skews[*kernel]), shows(to, skews[*kernel])));
    }
    let corrections = align(&clocks, &messages);
    for (process, correction) in corrections.iter().enumerate() {
        let error = correction.error_ns.unwrap_or_else(|| panic!("process {process} is not related"));
        assert!(error < most, "{process}: {error}");
        for t in [from, 0, 20_000_000, to] {
            let truth = shows(t, skews[kernels[0]]);
            let off = (correction.apply(shows(t, skews[kernels[process]])) - truth).unsigned_abs();
            assert!(off <= error + 10, "{process} at {t}: off by {off}, stated {error}");
        }
    }
}

#[test]
fn a_ring_through_two_hosts_goes_both_ways_between_their_kernels() {
    // Between the processes of any two hosts, messages go one way only.
    check_ring(&[0, 0, 1, 1], &[(0, 0.0), (7_000_000, 40e-6)], 400_000);
}

#[test]
fn a_ring_of_one_direction_through_four_hosts_relates_their_kernels() {
    let skews = [(0, 0.0), (7_000_000, 40e-6), (-30_000_000_000, -20e-6), (1_000, 5e-6)];
    check_ring(&[0, 1, 2, 3], &skews, 3_000_000);
}

#[test]
fn the_error_holds_also_where_the_trace_is_longer_than_its_messages() {
    let clocks: Vec<_> =
        ["k", "l"].map(|kernel| Known { span: Some((-100_000_000, 120_000_000)), ..known(kernel, 0) }).into();
    // Two clocks that agree. Messages one way take longer and longer, messages back less and less:
    // as if one clock ran too fast.
    let messages: Vec<_> = (0..400)
        .map(|k| {
            let (from, to) = (k as usize % 2, (k as usize + 1) % 2);
            let (t, slower) = (k * 50_000, k * 10);
            let delay = if from == 0 { 5_000 + slower } else { 9_000 - slower };
            TimedMessage { from, sent_ns: t, to, taken_ns: t + delay }
        })
        .collect();
    let correction = align(&clocks, &messages)[1];
    for t in [-100_000_000_i64, 0, 20_000_000, 120_000_000] {
        let off = (correction.apply(t) - t).unsigned_abs();
        assert!(off <= correction.error_ns.unwrap() + 10, "off by {off} at {t}: {correction:?}");
    }
}

#[test]
fn kernels_without_a_way_back_are_not_related() {
    // The time of day, which is after 2006.
    let mono = |real: i64, kernel: &str| known(kernel, real);
    let clocks = [mono(1_795_000_000_000_000_000, "k"), mono(1_796_000_000_000_000_000, "l")];
    let messages = [TimedMessage { from: 0, sent_ns: 1_000, to: 1, taken_ns: 2_000 }];
    let corrections = align(&clocks, &messages);
    assert_eq!((corrections[1].error_ns, corrections[1].apply(0)), (None, 1_000_000_000_000_000));
    // Extreme values from a file.
    let clocks = [mono(i64::MIN, "k"), mono(i64::MAX, "l")];
    assert_eq!(align(&clocks, &messages)[1].apply(i64::MAX), i64::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// For any skew, no corrected message runs backwards by more than the errors of its two clocks,
    /// and the corrected clocks agree with the true one within their errors.
    #[test]
    fn skewed_clocks_are_brought_together(
        skews in proptest::collection::vec((-50_000_000i64..50_000_000, -60e-6f64..60e-6), 3..6),
        delays in proptest::collection::vec(500i64..200_000, 200..400),
        far: bool,
    ) {
        let n = skews.len();
        // Clocks of one kernel agree, or differ so much that it shows.
        let (skew, next) = (|k: usize| skews[k].0, |k: usize| skews[(k + 1) % n].0);
        prop_assume!(far || (0..n).all(|k| skew(k).abs_diff(next(k)) > 1_000_000));
        let kernel = |k: usize| if far { format!("k{k}") } else { "k".to_string() };
        let clocks: Vec<_> = (0..n).map(|k| known(&kernel(k), 0)).collect();
        let messages: Vec<_> = delays.iter().enumerate().map(|(k, delay)| {
            // Around the ring both ways, 10 ms apart.
            let (a, b) = (k / 2 % n, (k / 2 + 1) % n);
            let (from, to) = if k % 2 == 0 { (a, b) } else { (b, a) };
            let t = k as i64 * 10_000_000;
            TimedMessage { from, sent_ns: shows(t, skews[from]), to, taken_ns: shows(t + delay, skews[to]) }
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
                // Nanoseconds are rounded in the conversions.
                prop_assert!(off <= correction.error_ns.unwrap() + 10, "{k} at {t}: {off} {correction:?}");
            }
        }
    }
}
