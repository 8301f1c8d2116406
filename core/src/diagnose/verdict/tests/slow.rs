//! What moves, but badly.

use super::*;
use crate::snapshot::History;

/// A job whose rank 2 calls each of twenty operations of 20 ms `late_ms` after the others.
fn late(late_ms: u64) -> Snapshot {
    const MS: u64 = 1_000_000;
    let mut job = job(&[]);
    for rank in &mut job.ranks {
        let is_late = rank.rank == Rank(2);
        let op = |seq: u64| {
            let began_ns = seq * 20 * MS;
            let called_ns = began_ns + if is_late { late_ms * MS } else { 0 };
            let waited_ns = if is_late { 0 } else { late_ms * MS };
            let ended_ns = began_ns + (late_ms + 1) * MS;
            PastOp { seq, called_ns, waited_ns, ended_ns, ..PastOp::default() }
        };
        rank.boot_id = "a".into();
        rank.comms[0].history = History { ops: (1..=20).map(op).collect(), ..History::default() };
    }
    job
}

#[test]
fn one_that_is_late_again_and_again_is_slow() {
    let found = check(&late(8), &[(Class::Slow, Reason::Late, &[2], Standing::Suspect)]);
    assert_eq!((found[0].side, found[0].confidence), (Side::Application, Confidence::Probable));
    assert_eq!(found[0].victims, ranks(&[0, 1, 3]));
    let said = "rank 2 (pid 72 on a) called last in 20 of 20 operations of";
    assert!(found[0].why.starts_with(said), "{}", found[0].why);
    assert!(found[0].next[0].command.starts_with("ccl-inspect stack"), "{:?}", found[0].next);
    check(&late(0), &[]);
    check(&late(1), &[]);
}

#[test]
fn one_that_is_late_because_it_waits_for_a_processor_is_slow_because_of_the_machine() {
    let side = |late_ms: u64, measured: Option<bool>, run_delay_pct: u8| {
        let mut job = late(late_ms);
        job.ranks[2].facts = ProcessFacts { is_starved: measured, run_delay_pct, ..ProcessFacts::default() };
        // A victim may wait for a processor as long as it likes.
        job.ranks[1].facts = ProcessFacts { run_delay_pct: 90, ..job.ranks[2].facts.clone() };
        let found = check(&job, &[(Class::Slow, Reason::Late, &[2], Standing::Suspect)]);
        (found[0].side, found[0].next[0].command.clone(), found[0].evidence.last().cloned())
    };
    // 20 % of an operation of 20 ms are half of 8 ms.
    let (machine, next, line) = side(8, Some(false), 20);
    assert_eq!((machine, next.as_str()), (Side::Machine, "top -H -p 72"));
    let said = "rank 2: its threads, taken together, waited for a processor for 20 % of the time";
    assert_eq!(line.as_deref(), Some(said));
    assert_eq!(side(8, Some(false), 19).0, Side::Application);
    assert_eq!(side(16, Some(false), 20).0, Side::Application);
    assert_eq!(side(8, None, 20).0, Side::Machine);
    assert_eq!(side(16, Some(true), 20).0, Side::Machine);
    assert_eq!(side(8, None, 0).0, Side::Application);
}

#[test]
fn one_that_is_busy_while_the_others_wait_is_slow_however_seldom_it_is_last() {
    const MS: u64 = 1_000_000;
    let mut job = job(&[]);
    // Rank 2 never waits, and the others do for 100 of each 110 ms.
    for rank in &mut job.ranks {
        let is_slow = rank.rank == Rank(2);
        let op = |seq: u64| {
            let (ended_ns, waited_ns) = (seq * 110 * MS, if is_slow { 0 } else { 100 * MS * seq });
            let called_ns = ended_ns - MS;
            PastOp { seq, called_ns, ended_ns, waited_so_far_ns: waited_ns, ..PastOp::default() }
        };
        rank.boot_id = "a".into();
        rank.comms[0].history = History { ops: (1..=40).map(op).collect(), ..History::default() };
    }
    let expect = [(Class::Slow, Reason::Late, &[2][..], Standing::Suspect)];
    let found = check(&job, &expect);
    let said = "rank 2 (pid 72 on a) was busy or could not go on for ";
    assert!(found[0].why.starts_with(said), "{}", found[0].why);
    assert!(found[0].why.ends_with(" at most: they wait for it"), "{}", found[0].why);
    let line = "rank 2: called last in 0 of 40 operations of";
    assert!(found[0].evidence[0].starts_with(line), "{:?}", found[0].evidence);
    assert_eq!(found[0].side, Side::Application);
    job.ranks[2].facts = ProcessFacts { run_delay_pct: 50, ..ProcessFacts::default() };
    assert_eq!(check(&job, &expect)[0].side, Side::Machine);
}

#[test]
fn an_operation_that_moves_is_suspect_once_it_takes_far_longer_than_usual_on_a_held_up_stream() {
    let moves = |lasted_s: &[u64], p50_ns, busy_pct| {
        let mut job = job(&[]);
        let socket = SocketSnapshot { busy_pct, ..SocketSnapshot::default() };
        let link = LinkSnapshot { peer: Some(Rank(1)), sockets: vec![socket], ..LinkSnapshot::default() };
        let row = &mut job.ranks[0].comms[0];
        let past = |s: &u64| PastOp { ended_ns: s * SECOND, ..PastOp::default() };
        (row.links, row.history.ops, row.op.p50_ns) =
            (vec![link], lasted_s.iter().map(past).collect(), p50_ns);
        job
    };
    let slow = [(Class::Link, Reason::Throttled, &[0, 1][..], Standing::Suspect)];
    // It has taken 3 s so far.
    check(&moves(&[], 0, 90), &[]);
    check(&moves(&[0, 0], 0, 90), &slow);
    check(&moves(&[0, 1], 0, 90), &[]);
    check(&moves(&[0, 9], SECOND / 2, 90), &slow);
    check(&moves(&[0, 9], SECOND, 90), &[]);
    check(&moves(&[0, 0], SECOND / 2, 40), &[]);
    // Of 1.6 s, most was a wait for a rank that has not called it, or less than half.
    for (since_ms, expect) in [(900, &[][..]), (700, &slow)] {
        let mut job = moves(&[0, 0], 0, 90);
        job.ranks[0].comms[0].op.age_ns = 1_600_000_000;
        job.blocked_on = vec![blocked(&[2], &[], &[0, 1, 3], since_ms * 1_000_000)];
        check(&job, expect);
    }
}
