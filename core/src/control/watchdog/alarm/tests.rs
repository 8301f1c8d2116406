use super::*;
use crate::snapshot::Culprit;

const PATIENCE: Duration = Duration::from_secs(1);
const STALL: Duration = Duration::from_secs(30);

fn at(ms: u64) -> Ns {
    Ns(1_000_000_000_000 + ms * 1_000_000)
}

fn verdict(standing: Standing, culprit: u32) -> Verdict {
    Verdict {
        standing,
        class: Class::NotJoined,
        reason: Reason::UserCode,
        culprits: vec![Culprit { rank: Rank(culprit), ..Culprit::default() }],
        since_ns: 1_000_000_000,
        ..Verdict::default()
    }
}

/// An alarm whose process turns every half a second.
struct Run {
    alarm: Alarm,
    ms: u64,
}

impl Run {
    fn new() -> Self {
        Self { alarm: Alarm::new(PATIENCE, STALL), ms: 0 }
    }

    /// Turns until something is to be done, `ms` at most; returns what, and after how many ms.
    fn until(&mut self, wait: Option<u32>, ms: u64) -> (Do, u64) {
        let began = self.ms;
        while self.ms < began + ms {
            self.ms += 500;
            let wait = wait.map(|rank| (Duration::from_millis(1000 + self.ms - began), Rank(rank)));
            self.alarm.wakes(at(self.ms));
            let what = self.alarm.turn(wait, at(self.ms));
            if what != Do::Nothing {
                return (what, self.ms - began);
            }
        }
        (Do::Nothing, ms)
    }

    fn looked(&mut self, verdict: Option<&Verdict>, is_first: bool) -> Tell {
        let longest_ns = verdict.map_or(0, |one| one.since_ns);
        self.alarm.looked(&Seen { verdict, longest_ns, is_first, told: Vec::new() }, at(self.ms))
    }
}

#[test]
fn a_stall_is_told_once_repeated_to_the_others_and_ended() {
    let mut run = Run::new();
    assert_eq!(run.until(None, 5_000), (Do::Nothing, 5_000));
    assert_eq!(run.until(Some(0), 5_000), (Do::Look, 500));
    // Nobody is told twice, and nothing is looked at twice at a time.
    assert_eq!(run.until(Some(0), 2_000), (Do::Nothing, 2_000));
    let suspect = verdict(Standing::Suspect, 3);
    assert_eq!(run.looked(Some(&suspect), true), Tell::New);
    assert_eq!(run.until(Some(0), 5_000).0, Do::Look);
    assert_eq!(run.looked(Some(&suspect), true), Tell::Still);
    let stalled = verdict(Standing::Stalled, 3);
    assert_eq!(run.until(Some(0), 5_000).0, Do::Look);
    assert_eq!(run.looked(Some(&stalled), true), Tell::New);
    // A later look that calls it a suspicion changes nothing.
    assert_eq!(run.until(Some(0), 6_000).0, Do::Look);
    assert_eq!(run.looked(Some(&suspect), true), Tell::Nothing);
    // Somebody else is to blame.
    assert_eq!(run.until(Some(0), 6_000).0, Do::Look);
    assert_eq!(run.looked(Some(&verdict(Standing::Stalled, 4)), true), Tell::New);
    // The next operation waits again within a second.
    assert_eq!(run.until(None, 500), (Do::Nothing, 500));
    assert_eq!(run.until(Some(0), 500), (Do::Nothing, 500));
    let (what, after) = run.until(None, 5_000);
    assert!(matches!(what, Do::End { is_own: true, lasted } if lasted > Duration::from_secs(5)), "{what:?}");
    assert_eq!(after, 1_500);
    assert_eq!(run.until(None, 5_000), (Do::Nothing, 5_000));
}

#[test]
fn a_look_that_fails_does_not_end_a_stall() {
    let mut run = Run::new();
    assert_eq!(run.until(Some(0), 5_000).0, Do::Look);
    assert_eq!(run.looked(Some(&verdict(Standing::Stalled, 3)), true), Tell::New);
    for _ in 0..3 {
        assert_eq!(run.until(Some(0), 6_000).0, Do::Look);
        run.alarm.saw_nothing(at(run.ms));
        assert_eq!(run.alarm.is_cleared(at(run.ms)), Do::Nothing);
    }
    // Two that show nothing do.
    for expect in [false, true] {
        assert_eq!(run.until(Some(0), 6_000).0, Do::Look);
        assert_eq!(run.looked(None, true), Tell::Nothing);
        assert_eq!(run.alarm.is_cleared(at(run.ms)) != Do::Nothing, expect);
    }
}

#[test]
fn a_wait_that_is_no_verdict_yet_is_looked_at_when_it_becomes_a_stall() {
    let check = |longest_s: u64, expect_ms: u64| {
        let mut run = Run::new();
        for _ in 0..5 {
            assert_eq!(run.until(Some(0), 30_000).0, Do::Look);
            assert_eq!(run.looked(None, true), Tell::Nothing);
        }
        assert_eq!(run.until(Some(0), 30_000), (Do::Look, 5_000));
        let seen = Seen { longest_ns: longest_s * 1_000_000_000, ..Seen::default() };
        assert_eq!(run.alarm.looked(&seen, at(run.ms)), Tell::Nothing);
        assert_eq!(run.until(Some(0), 30_000), (Do::Look, expect_ms), "{longest_s} s");
    };
    check(3, 5_000);
    check(28, 2_000);
    // It has been one for long: nothing comes of it.
    check(40, 5_000);
}

#[test]
fn higher_ranks_look_later_and_not_at_all_if_they_hear() {
    let after = |rank: u32| Run::new().until(Some(rank), 10_000);
    assert_eq!(after(0), (Do::Look, 500));
    assert_eq!(after(1), (Do::Look, 3_000));
    assert_eq!(after(9), (Do::Look, 3_000));
    assert_eq!(after(u32::MAX), (Do::Look, 4_000));
    let mut run = Run::new();
    assert_eq!(run.until(Some(2), 1_000), (Do::Nothing, 1_000));
    assert!(run.alarm.heard(Told::of(&verdict(Standing::Suspect, 3)), at(run.ms)));
    assert!(run.alarm.heard(Told::of(&verdict(Standing::Stalled, 3)), at(run.ms)));
    for _ in 0..10 {
        assert_eq!(run.until(Some(2), 5_000), (Do::Nothing, 5_000));
        assert!(!run.alarm.heard(Told::of(&verdict(Standing::Stalled, 3)), at(run.ms)));
    }
    // The process that told it says nothing more: this one looks, and tells what it sees.
    assert_eq!(run.until(Some(2), 30_000), (Do::Look, 14_500));
    assert_eq!(run.looked(Some(&verdict(Standing::Stalled, 0)), true), Tell::New);
}

#[test]
fn a_lower_process_that_waits_tells_it_unless_it_stays_silent() {
    let mut run = Run::new();
    let stalled = verdict(Standing::Stalled, 3);
    assert_eq!(run.until(Some(0), 5_000).0, Do::Look);
    assert_eq!(run.looked(Some(&stalled), false), Tell::Nothing);
    let held = run.ms;
    let told = loop {
        assert_eq!(run.until(Some(0), 5_000).0, Do::Look);
        if run.looked(Some(&stalled), false) == Tell::New {
            break run.ms - held;
        }
    };
    assert!((2_000..=3_500).contains(&told), "{told}");
    // It reads in another recorder that it was told.
    let mut run = Run::new();
    assert_eq!(run.until(Some(0), 5_000).0, Do::Look);
    let told = vec![Told::of(&stalled)];
    let seen = Seen { verdict: Some(&stalled), is_first: true, told, ..Seen::default() };
    assert_eq!(run.alarm.looked(&seen, at(run.ms)), Tell::Nothing);
    assert!(matches!(run.until(None, 5_000).0, Do::End { is_own: false, .. }));
}

#[test]
fn a_process_that_was_stopped_counts_its_waits_anew() {
    let mut run = Run::new();
    assert_eq!(run.until(None, 1_000), (Do::Nothing, 1_000));
    // Stopped for a minute in the middle of a call.
    run.ms += 60_000;
    let long = Some((Duration::from_secs(60), Rank(0)));
    for (after, what) in [(0, Do::Nothing), (500, Do::Nothing), (1_000, Do::Look)] {
        run.alarm.wakes(at(run.ms + after));
        assert_eq!(run.alarm.turn(long, at(run.ms + after)), what, "after {after} ms");
    }
}

#[test]
fn what_is_not_seen_any_more_is_over_after_two_looks() {
    let mut run = Run::new();
    assert_eq!(run.until(Some(0), 5_000).0, Do::Look);
    assert_eq!(run.looked(Some(&verdict(Standing::Stalled, 1)), true), Tell::New);
    for looks in 1..=2 {
        assert_eq!(run.until(Some(0), 6_000).0, Do::Look);
        assert_eq!(run.looked(None, true), Tell::Nothing);
        let is_over = matches!(run.alarm.is_cleared(at(run.ms)), Do::End { is_own: true, .. });
        assert_eq!(is_over, looks == 2);
    }
}

#[test]
fn an_end_told_by_another_ends_what_it_told_and_nothing_of_ours() {
    let mut run = Run::new();
    assert!(run.alarm.heard(Told::of(&verdict(Standing::Stalled, 3)), at(0)));
    assert!(matches!(run.alarm.heard_end(at(100)), Do::End { is_own: false, .. }));
    assert_eq!(run.alarm.heard_end(at(200)), Do::Nothing);
    assert_eq!(run.until(Some(0), 5_000).0, Do::Look);
    assert_eq!(run.looked(Some(&verdict(Standing::Stalled, 1)), true), Tell::New);
    assert!(!run.alarm.heard(Told::of(&verdict(Standing::Stalled, 3)), at(run.ms)));
    assert_eq!(run.alarm.heard_end(at(run.ms)), Do::Nothing);
}

#[test]
fn a_bad_network_is_one_trouble() {
    let link =
        |standing, reason, culprit| Verdict { class: Class::Link, reason, ..verdict(standing, culprit) };
    let mut run = Run::new();
    assert_eq!(run.until(Some(0), 5_000).0, Do::Look);
    assert_eq!(run.looked(Some(&link(Standing::Suspect, Reason::Lossy, 3)), true), Tell::New);
    for (reason, culprit, tell) in [
        (Reason::Unreachable, 3, Tell::New),
        (Reason::Unreachable, 5, Tell::Still),
        (Reason::Lossy, 3, Tell::Still),
    ] {
        assert_eq!(run.until(Some(0), 6_000).0, Do::Look);
        assert_eq!(run.looked(Some(&link(Standing::Stalled, reason, culprit)), true), tell);
    }
}
