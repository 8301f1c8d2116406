use super::*;
use crate::snapshot::{History, KindTotals};

const MS: u64 = 1_000_000;

/// A job of one communicator: by rank, when it called each operation, in milliseconds, and whether
/// its process runs on the first kernel.
struct Hand {
    /// By operation: its number and the times of the calls.
    calls: Vec<(u64, Vec<u64>)>,
    /// How long an operation takes once all have called.
    inside_ms: u64,
    boots: Vec<&'static str>,
    nranks: u32,
    kind: &'static str,
}

impl Hand {
    /// `ops` operations of which rank r calls `late(op, r)` milliseconds after a step of `work_ms`.
    fn new(nranks: u32, ops: u64, work_ms: u64, late: impl Fn(u64, u32) -> u64) -> Self {
        let mut calls = Vec::new();
        let mut now = 1_000;
        for seq in 1..=ops {
            let called: Vec<u64> = (0..nranks).map(|rank| now + work_ms + late(seq, rank)).collect();
            now = called.iter().max().unwrap() + 1;
            calls.push((seq, called));
        }
        Self { calls, inside_ms: 1, boots: vec!["a"; nranks as usize], nranks, kind: "AllReduce" }
    }

    fn job(&self) -> Snapshot {
        let rank = |(rank, boot): (u32, &&str)| {
            let ops = self.calls.iter().map(|(seq, called)| {
                let own = called[rank as usize];
                let all = called.iter().max().unwrap();
                PastOp {
                    seq: *seq,
                    called_ns: own * MS,
                    waited_ns: (all - own) * MS,
                    ended_ns: (all + self.inside_ms) * MS,
                    ..PastOp::default()
                }
            });
            let kinds = vec![KindTotals {
                kind: self.kind.into(),
                operations: self.calls.len() as u64,
                inside_ns: 50 * MS,
                waited_ns: 20 * MS,
                outside_ns: 30 * MS,
            }];
            let comm = CommSnapshot {
                id: CommId(7),
                name: "world".into(),
                rank: Rank(rank),
                nranks: self.nranks,
                history: History { ops: ops.collect(), kinds },
                ..CommSnapshot::default()
            };
            let (rank, pid) = (Rank(rank + 10), 100 + rank);
            RankSnapshot { rank, pid, boot_id: (*boot).into(), comms: vec![comm], ..RankSnapshot::default() }
        };
        Snapshot { ranks: (0..).zip(&self.boots).map(rank).collect(), ..Snapshot::default() }
    }

    fn late(&self) -> Lateness {
        let job = self.job();
        let [one] = <[Lateness; 1]>::try_from(lateness(&job, kernel_clock(&job))).unwrap();
        one
    }
}

#[test]
fn the_same_rank_last_at_the_cost_of_others_is_a_straggler_and_nothing_else_is() {
    let check = |what: &str, hand: &Hand, expect: Option<u32>| {
        assert_eq!(hand.late().straggler, expect.map(Rank), "{what}: {:?}", hand.late());
    };
    let late_ms = |victim: u32, ms: u64| move |_, rank| if rank == victim { ms } else { 0 };
    check("late by 5 ms of 15", &Hand::new(4, 40, 10, late_ms(2, 5)), Some(2));
    check("of two ranks", &Hand::new(2, 40, 10, late_ms(0, 100)), Some(0));
    check("of eight ranks", &Hand::new(8, 10, 10, late_ms(7, 20)), Some(7));
    check("nobody is late", &Hand::new(4, 40, 10, |_, _| 0), None);
    check("late by less than a tenth", &Hand::new(4, 40, 100, late_ms(2, 5)), None);
    check("too few operations", &Hand::new(4, 9, 10, late_ms(2, 5)), None);
    check(
        "in turn",
        &Hand::new(4, 40, 10, |seq, rank| if seq % 4 == u64::from(rank) { 50 } else { 0 }),
        None,
    );
    // In three of four operations only.
    let often = |seq, rank| if rank == 1 && seq % 4 > 0 { 50 } else { 0 };
    check("often, the others never", &Hand::new(4, 40, 10, often), Some(1));
    check("often, of three ranks", &Hand::new(3, 40, 10, often), None);
    check("often, in few operations", &Hand::new(4, 14, 10, often), None);
    let another = |seq, rank| if rank == 2 && seq % 4 == 0 { 75 } else { often(seq, rank) };
    check("often, and else another", &Hand::new(4, 40, 10, another), None);
    let half = |seq, rank| if rank == 1 && seq % 2 > 0 { 50 } else { 0 };
    check("in half of them, of four ranks", &Hand::new(4, 40, 10, half), None);
    check("in half of them, of eight ranks", &Hand::new(8, 40, 10, half), Some(1));
    let third = |seq, rank| if rank == 1 && seq % 3 == 0 { 50 } else { 0 };
    check("in a third of them, of many ranks", &Hand::new(16, 40, 10, third), None);
    // Often by little, and once by much.
    let pause = |seq, rank| if seq == 30 { 40 * often(1, rank) } else { often(seq, rank) / 50 };
    check("often by little, and a pause", &Hand::new(4, 40, 100, pause), None);
    let pause = |seq, rank| if rank == 3 && seq == 30 { 2_000 } else { 0 };
    check("one pause of two seconds", &Hand::new(4, 40, 10, pause), None);
    // It was late for long, and is not any more.
    let recovered = |seq, rank| if rank == 3 && seq <= 30 { 500 } else { 0 };
    check("recovered", &Hand::new(4, 60, 1_000, recovered), None);
    let since = |seq, rank| if rank == 3 && seq > 40 { 500 } else { 0 };
    check("recently", &Hand::new(4, 60, 1_000, since), Some(3));
}

#[test]
fn what_a_debugger_holds_up_is_no_part_of_the_costs() {
    let by = |held: bool| {
        move |seq: u64, rank: u32| match (rank, seq) {
            (2, _) => 30,
            (at, 21..=24) if held && u64::from(at) == seq - 21 => 4_000,
            _ => 0,
        }
    };
    let score = |held| Hand::new(4, 40, 10, by(held)).late().straggler().unwrap().score;
    assert!((score(true) / score(false) - 1.0).abs() < 0.05, "{} {}", score(true), score(false));
}

#[test]
fn lateness_is_told_by_rank() {
    let late = Hand::new(4, 40, 10, |_, rank| u64::from(rank == 2) * 30 + u64::from(rank == 3) * 2).late();
    assert_eq!((late.comm, late.name.as_str(), late.nranks, late.ops), (CommId(7), "world", 4, 40));
    assert_eq!((late.first_seq, late.last_seq, late.op_ns), (1, 40, 41 * MS));
    let of = |at: usize| (late.ranks[at].last, late.ranks[at].late_p50_ns, late.ranks[at].late_p95_ns);
    assert_eq!([of(0), of(2), of(3)], [(0, 0, 0), (40, 30 * MS, 30 * MS), (0, 2 * MS, 2 * MS)]);
    // The others waited for 30, 30 and 28 ms, of 41 for each operation.
    let two = late.straggler().unwrap();
    assert_eq!((two.rank, two.job_rank, two.pid), (Rank(2), Rank(12), 102));
    assert_eq!(two.cost_ns, 88 * MS / 3);
    assert!((two.score - 41.0 / (41.0 - 88.0 / 3.0)).abs() < 1e-3, "{}", two.score);
    assert!((late.ranks[0].score - 1.0).abs() < 1e-9);
    assert_eq!((two.self_ns, two.waited_ns), (60 * MS, 20 * MS));
}

#[test]
fn who_did_not_wait_was_not_held_up() {
    // A reduce: its root calls last, because it is in the operation for longest.
    let mut job = Hand::new(4, 40, 10, |_, rank| u64::from(rank == 0) * 30).job();
    for rank in &mut job.ranks {
        rank.comms[0].history.ops.iter_mut().for_each(|op| op.waited_ns = 0);
    }
    let late = lateness(&job, kernel_clock(&job));
    assert_eq!((late[0].ranks[0].last, late[0].straggler), (40, None));
}

/// A gather of large blocks, whose root is rank 2: the others only send, and come out 20 ms before
/// the root does. Rank r is for `between(r)` milliseconds between two of them. Kept is what
/// recorders keep.
fn gather(between: impl Fn(u32) -> u64, kind: &'static str) -> Lateness {
    let hand = Hand { kind, ..Hand::new(4, 200, 0, |_, _| 0) };
    let mut job = hand.job();
    let mut ended = [1_000 * MS; 4];
    for seq in 1..=200_u64 {
        let called: Vec<u64> = (0..4).map(|rank| ended[rank as usize] + between(rank) * MS).collect();
        let last = called.iter().max().unwrap();
        for (at, rank) in job.ranks.iter_mut().enumerate() {
            let waited_ns = if at == 2 { last - called[2] } else { called[2].saturating_sub(called[at]) };
            ended[at] = if at == 2 { last + 50 * MS } else { called[2].max(called[at]) + 30 * MS };
            let op = PastOp { called_ns: called[at], waited_ns, ended_ns: ended[at], ..PastOp::default() };
            rank.comms[0].history.ops[seq as usize - 1] = PastOp { seq, ..op };
        }
    }
    for rank in &mut job.ranks {
        rank.comms[0].history.ops.retain(|op| op.seq + (8 << op.seq.trailing_zeros()) > 200);
    }
    lateness(&job, kernel_clock(&job)).remove(0)
}

#[test]
fn the_root_of_a_gather_calls_last_by_nature_and_is_late_by_its_own_time_only() {
    let healthy = gather(|_| 0, "Gather");
    assert_eq!((healthy.ranks[2].last, healthy.straggler), (healthy.ops, None), "{healthy:?}");
    assert_eq!((healthy.ranks[2].cost_ns, healthy.ranks[2].late_p50_ns), (0, 20 * MS));
    assert_eq!(gather(|_| 10, "Gather").straggler, None, "all work between them");
    let late = gather(|rank| if rank == 2 { 30 } else { 10 }, "Gather");
    assert_eq!(late.straggler, Some(Rank(2)), "{late:?}");
    assert!(late.ranks[2].cost_ns <= 20 * MS && late.ranks[2].cost_ns > 19 * MS, "{late:?}");
    assert_eq!(gather(|rank| if rank == 0 { 60 } else { 0 }, "Gather").straggler, Some(Rank(0)));
    // Ranks come out of an all-gather together: who calls last is late, whatever came before.
    assert_eq!(gather(|_| 0, "AllGather").straggler, Some(Rank(2)));
}

/// A job of `ops` all-reduces, of four ranks: rank r is busy before operation n for `own(n, r)`
/// milliseconds, and then waits for the last one. Kept is what recorders keep.
fn shared(ops: u64, own: impl Fn(u64, u32) -> u64) -> Snapshot {
    let mut job = Hand::new(4, 0, 0, |_, _| 0).job();
    let mut now = 1_000;
    for seq in 1..=ops {
        let called: Vec<u64> = (0..4).map(|rank| now + own(seq, rank)).collect();
        now = called.iter().max().unwrap() + 1;
        for (rank, own) in job.ranks.iter_mut().zip(&called) {
            let kept = &mut rank.comms[0].history.ops;
            let so_far_ns = kept.last().map_or(0, |op| op.waited_so_far_ns);
            let (called_ns, waited_ns, ended_ns) = (own * MS, (now - 1 - own) * MS, now * MS);
            let waited_so_far_ns = so_far_ns + waited_ns;
            kept.push(PastOp { seq, called_ns, waited_ns, ended_ns, waited_so_far_ns });
        }
    }
    for rank in &mut job.ranks {
        let history = &mut rank.comms[0].history;
        history.ops.retain(|op| op.seq + (8 << op.seq.trailing_zeros()) > ops);
        let waited_ns = history.ops.last().map_or(0, |op| op.waited_so_far_ns);
        (history.kinds[0].operations, history.kinds[0].waited_ns) = (ops, waited_ns);
    }
    job
}

#[test]
fn who_is_busy_while_the_others_wait_is_a_straggler_however_seldom_it_is_last() {
    let check = |what: &str, job: &Snapshot, expect: Option<u32>| {
        let late = lateness(job, kernel_clock(job)).remove(0);
        assert_eq!(late.straggler, expect.map(Rank), "{what}: {late:?}");
        assert_eq!(late.busy.is_some(), expect.is_some(), "{what}: {late:?}");
        late
    };
    // Not given the processor for 150 ms in each tenth operation.
    let starved = |seq, rank| if rank == 2 && seq % 10 == 3 { 150 } else { 2 };
    let late = check("starved", &shared(1_000, starved), Some(2));
    let busy = late.busy.unwrap();
    assert!(busy.own_ns * 10 > busy.span_ns * 9 && busy.others_ns * 4 < busy.span_ns, "{busy:?}");
    assert!(late.ranks[2].last * 2 < late.ops, "{late:?}");
    // Stopped for 400 ms in each hundredth: in none of those that were kept.
    let stopped = |seq, rank| if rank == 1 && seq % 100 == 9 { 400 } else { 1 };
    let late = check("stopped", &shared(20_000, stopped), Some(1));
    assert_eq!(late.ranks[1].last, 0, "{late:?}");
    check(
        "in turn",
        &shared(1_000, |seq, rank| if seq % 40 == u64::from(rank) * 10 + 3 { 150 } else { 2 }),
        None,
    );
    check("all alike", &shared(1_000, |_, _| 10), None);
    check(
        "by less than a quarter",
        &shared(1_000, |seq, rank| if rank == 2 && seq % 10 == 3 { 6 } else { 2 }),
        None,
    );
    for pauses in [&[700_u64][..], &[300, 700]] {
        let pause = |seq, rank| if rank == 3 && pauses.contains(&seq) { 3_000 } else { 5 };
        check("pauses", &shared(1_000, pause), None);
    }
    check("for a moment", &shared(60, |seq, rank| if rank == 2 && seq % 10 == 3 { 20 } else { 1 }), None);
    let long_ago = |seq, rank| if rank == 2 && seq < 1_000 && seq % 10 == 3 { 150 } else { 10 };
    check("long ago", &shared(3_000, long_ago), None);
    let other = |change: &dyn Fn(&mut CommSnapshot)| {
        let mut job = shared(1_000, starved);
        job.ranks.iter_mut().for_each(|rank| change(&mut rank.comms[0]));
        check("not told", &job, None);
    };
    other(&|row| row.history.kinds[0].kind = "Scatter".into());
    other(&|row| row.history.ops.iter_mut().for_each(|op| op.waited_so_far_ns = 0));
    other(&|row| {
        let waited_ns = 20_000 * MS;
        row.history.kinds.push(KindTotals { kind: "Recv".into(), waited_ns, ..KindTotals::default() });
    });
    // It waited in another communicator.
    let mut job = shared(1_000, starved);
    let mut row = job.ranks[2].comms[0].clone();
    (row.id, row.rank, row.history.kinds[0].waited_ns) = (CommId(8), Rank(0), 20_000 * MS);
    row.history.ops.clear();
    job.ranks[2].comms.push(row);
    assert_eq!(lateness(&job, kernel_clock(&job)).iter().find_map(|late| late.straggler), None);
}

#[test]
fn what_the_clocks_do_not_tell_is_not_said() {
    let hand = Hand::new(4, 40, 0, |_, rank| u64::from(rank == 2));
    let job = hand.job();
    // A clock that is worse than the lateness.
    let rough = |_: &RankSnapshot| Some(ClockOffset { offset_ns: 0, error_ns: MS });
    let late = &lateness(&job, rough)[0];
    assert_eq!((late.straggler, late.ranks[2].last, late.ranks[2].late_p95_ns), (None, 0, 0));
    assert_eq!(late.error_ns, 2 * MS);
    // Rank 3 is on another kernel: it is not compared, and may have been later still.
    let mut hand = Hand::new(4, 40, 10, |_, rank| [0, 0, 20, 50][rank as usize]);
    hand.boots[3] = "b";
    let late = hand.late();
    assert_eq!((late.ranks.len(), late.straggler), (3, None));
    assert_eq!(late.incomplete, "1 of 4 ranks have a clock that is not known here");
    // One that none waits for behind it is the last of all.
    let mut hand = Hand::new(4, 40, 10, |_, rank| [0, 0, 50, 0][rank as usize]);
    hand.boots[3] = "b";
    assert_eq!(hand.late().straggler, Some(Rank(2)));
    // Its offset was measured.
    let mut job = hand.job();
    for op in &mut job.ranks[3].comms[0].history.ops {
        (op.called_ns, op.ended_ns) = (op.called_ns + 2_000 * MS, op.ended_ns + 2_000 * MS);
    }
    let measured = |rank: &RankSnapshot| {
        Some(ClockOffset { offset_ns: if rank.boot_id == "b" { 2_000_000_000 } else { 0 }, error_ns: 1_000 })
    };
    let late = &lateness(&job, measured)[0];
    assert_eq!((late.ranks.len(), late.straggler, late.incomplete.as_str()), (4, Some(Rank(2)), ""));
    // An offset that nobody knows shows: one would have ended before the other called.
    let late = &lateness(&job, |_| Some(ClockOffset { offset_ns: 0, error_ns: 1_000 }))[0];
    assert_eq!((late.straggler, late.ranks.len()), (None, 0));
    assert!(late.incomplete.starts_with("the clocks"), "{}", late.incomplete);
}

#[test]
fn only_what_all_kept_is_compared_and_no_number_does_harm() {
    let mut hand = Hand::new(2, 40, 10, |_, rank| u64::from(rank) * 20);
    hand.nranks = 3;
    let mut job = hand.job();
    job.ranks[0].comms[0].history.ops.retain(|op| op.seq % 2 == 1);
    job.ranks[1].comms[0].history.ops.retain(|op| op.seq % 3 == 1);
    let late = &lateness(&job, kernel_clock(&job))[0];
    assert_eq!((late.ops, late.first_seq, late.last_seq), (7, 1, 37));
    assert_eq!((late.straggler, late.incomplete.as_str()), (None, "1 of 3 ranks were not read"));
    for op in &mut job.ranks[1].comms[0].history.ops {
        (op.called_ns, op.waited_ns, op.ended_ns) = (u64::MAX - 1, u64::MAX, u64::MAX);
        op.waited_so_far_ns = u64::MAX;
    }
    job.ranks[1].comms[0].history.kinds[0].inside_ns = u64::MAX;
    job.ranks[1].comms[0].history.kinds.push(KindTotals { waited_ns: u64::MAX, ..KindTotals::default() });
    let far = |_: &RankSnapshot| Some(ClockOffset { offset_ns: i64::MIN, error_ns: u64::MAX });
    assert_eq!(lateness(&job, far)[0].straggler, None);
    assert_eq!(lateness(&job, kernel_clock(&job))[0].straggler, None);
    job.ranks[1].comms[0].history.ops.clear();
    let late = &lateness(&job, kernel_clock(&job))[0];
    assert_eq!(late.incomplete, "1 of 3 ranks were not read, 1 of 3 ranks kept no operation");
    job.ranks[0].comms[0].history.ops.clear();
    assert!(lateness(&job, kernel_clock(&job)).is_empty());
}
