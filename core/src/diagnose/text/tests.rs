use super::*;
use crate::diagnose::SAID_NS;
use crate::diagnose::blocked::blocked_on;
use crate::diagnose::failed::failed;
use crate::diagnose::joining::joining;
use crate::snapshot::{
    Behind, BlockedOn, Direction, FailureSnapshot, InitSnapshot, LinkSnapshot, Missing, OpSnapshot,
    PhaseSnapshot, PortEvent, PortLayer, PortSnapshot, PortStanding, QueuePairSnapshot, QueuePairState,
    SCHEMA, SetUp, SocketSnapshot, Transport, Waits, WorkFailure,
};
use crate::types::{CommId, JobId, Phase};

const SECOND: u64 = 1_000_000_000;

fn rank(at: u32, state: State, op: OpState, seq: u64) -> RankSnapshot {
    let op = OpSnapshot {
        kind: "AllReduce".into(),
        seq,
        state: op,
        called: seq,
        started: seq,
        completed: seq - u64::from(op == OpState::Running),
        age_ns: (12 + u64::from(at)) * SECOND + SECOND / 5,
        tag: "step 812".into(),
        ..OpSnapshot::default()
    };
    let comm = CommSnapshot {
        id: CommId(0xc0),
        name: "dp".into(),
        rank: Rank(at),
        world: Rank(at),
        nranks: 4,
        op,
        ..CommSnapshot::default()
    };
    RankSnapshot {
        rank: Rank(at),
        pid: 70 + at,
        host: "a".into(),
        state,
        source: Source::Mapping,
        comms: vec![comm],
        ..RankSnapshot::default()
    }
}

fn job(ranks: Vec<RankSnapshot>) -> Snapshot {
    Snapshot {
        schema: SCHEMA.into(),
        job: JobId(0x10b),
        complete: true,
        blocked_on: blocked_on(&ranks),
        failures: failed(&ranks),
        not_joined: joining(&ranks),
        ranks,
        ..Snapshot::default()
    }
}

#[test]
fn the_answer_is_the_first_line_and_the_evidence_below_it() {
    let mut ranks: Vec<_> = (0..3).map(|at| rank(at, State::Running, OpState::Running, 7)).collect();
    ranks.push(rank(3, State::Stopped, OpState::Idle, 6));
    ranks[0].comms[0].links.push(LinkSnapshot {
        peer: Some(Rank(3)),
        direction: Direction::Recv,
        transport: Transport::Shm,
        step: 2,
        posted: 6,
        moved: 2,
        done: 2,
        waits: Waits::Peer,
        since_ns: 12 * SECOND,
        waits_for: Some(Rank(3)),
        ..LinkSnapshot::default()
    });
    let text = render_text(&job(ranks));
    assert_eq!(
        text,
        "BLOCKED ON rank 3 (pid 73 on a, stopped), which has not called AllReduce #7 of dp; ranks 0-2 wait for 14.2 s (at \"step 812\")
  rank 0 waits for message 3 from rank 3 on channel 0 (shm), peer, for 12.0 s

job 000000000000010b  4 of 4 ranks read
rank  pid  host  process  source   comm  comm rank  operation     state         since   tag
0     70   a     running  mapping  dp    0/4        AllReduce #7  running       12.2 s  step 812
1     71   a     running  mapping  dp    1/4        AllReduce #7  running       13.2 s  step 812
2     72   a     running  mapping  dp    2/4        AllReduce #7  running       14.2 s  step 812
3     73   a     STOPPED  mapping  dp    3/4        AllReduce #6  in user code  15.2 s  step 812

links that wait
  dp rank 0 channel 0 recv rank 3 (shm): posted 6 moved 2 done 2, waits for rank 3 (peer) for 12.0 s
"
    );
}

/// Checks the first line of the text.
fn check(job: &Snapshot, expect: &str) {
    assert_eq!(render_text(job).lines().next().unwrap(), expect);
}

#[test]
fn each_kind_of_answer_has_its_sentence() {
    let idle = |at| rank(at, State::Running, OpState::Idle, 6);
    let inside = |at| rank(at, State::Running, OpState::Running, 7);
    check(&job(vec![idle(0)]), "nobody waits");
    check(&Snapshot { complete: false, ..job(vec![idle(0)]) }, "nobody that was read waits");
    check(
        &job(vec![inside(0), inside(1), idle(2), idle(3)]),
        "BLOCKED ON ranks 2-3, which have not called AllReduce #7 of dp; ranks 0-1 wait for 13.2 s (at \"step 812\")",
    );
    let mut pair = job(vec![inside(0), idle(1), idle(2), idle(3)]);
    pair.blocked_on[0] =
        BlockedOn { op: "Send".into(), missing: vec![Rank(1)], ..pair.blocked_on[0].clone() };
    check(
        &pair,
        "BLOCKED ON rank 1 (pid 71 on a, running), which has not called Recv for Send #7 of dp; rank 0 waits for 12.2 s (at \"step 812\")",
    );
    let dead = rank(2, State::Dead, OpState::Running, 7);
    check(
        &job(vec![inside(0), inside(1), dead.clone(), inside(3)]),
        "BLOCKED ON rank 2 (pid 72 on a, dead), which holds it up inside AllReduce #7 of dp; ranks 0-1,3 wait for 15.2 s (at \"step 812\")",
    );
    check(
        &job(vec![inside(0), dead]),
        "BLOCKED ON rank 2 (pid 72 on a, dead), which holds it up inside AllReduce #7 of dp; rank 0 waits for 12.2 s (at \"step 812\"); ranks 1,3 could not be read and may block it too",
    );
    let mut alone = inside(0);
    alone.comms[0].op.tag.clear();
    alone.comms[0].name.clear();
    let link = LinkSnapshot {
        waits: Waits::Credit,
        waits_for: Some(Rank(1)),
        since_ns: SECOND / 5,
        ..LinkSnapshot::default()
    };
    alone.comms[0].links.push(link);
    let mut one = job(vec![alone]);
    check(
        &one,
        "BLOCKED ON ranks 1-3, which could not be read and may be the one; rank 0 waits in AllReduce #7 of 00000000000000c0 for 200.0 ms",
    );
    one.missing = vec![Missing { rank: Rank(1), host: "b".into(), pid: 9, why: "no permission".into() }];
    one.notes = vec!["look".into()];
    let text = render_text(&one);
    assert!(
        text.contains(
            "  rank 0 waits to send message 1 to rank 1 on channel 0 (unknown), credit, for 200.0 ms\n"
        ),
        "{text}"
    );
    assert!(text.contains("\nnot read: rank 1 (pid 9 on b): no permission\nnote: look\n"), "{text}");
    assert!(text.contains("  1 of 2 ranks read\n"), "{text}");
}

/// A link between ranks 0 and 1 at rank `at`, with the timeouts of each stream and the probes of
/// all.
fn over_sockets(at: u32, direction: Direction, timeouts: &[u8], probes: u8) -> LinkSnapshot {
    let socket = |(stream, timeouts): (u32, &u8)| SocketSnapshot {
        stream,
        timeouts: *timeouts,
        probes,
        // From long ago, so not a reason to wait now.
        retransmits: 9,
        heard_ns: (12 + u64::from(stream)) * SECOND,
        ..SocketSnapshot::default()
    };
    LinkSnapshot {
        peer: Some(Rank(1 - at)),
        direction,
        transport: Transport::Socket,
        sockets: (0..).zip(timeouts).map(socket).collect(),
        ..LinkSnapshot::default()
    }
}

#[test]
fn a_host_that_does_not_answer_is_named_beside_the_link_that_waits() {
    let check = |mine: (&[u8], u8), theirs: (&[u8], u8), expect: Option<&str>| {
        let mut ranks: Vec<_> = (0..2).map(|at| rank(at, State::Running, OpState::Running, 7)).collect();
        let mut waits = over_sockets(0, Direction::Recv, mine.0, mine.1);
        (waits.waits, waits.waits_for, waits.since_ns) = (Waits::Peer, Some(Rank(1)), SECOND);
        ranks[0].comms[0].links.push(waits);
        ranks[1].comms[0].links.push(over_sockets(1, Direction::Send, theirs.0, theirs.1));
        // Links of other directions do not count.
        for (at, direction) in [(0, Direction::Send), (1, Direction::Recv)] {
            ranks[at as usize].comms[0].links.push(over_sockets(at, direction, &[99], 99));
        }
        let text = render_text(&job(ranks));
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with("  ")).collect();
        let clause = |line: &'_ &str| line.split_once("; ").map(|(_, clause)| clause.to_string());
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines.iter().all(|line| clause(line).as_deref() == expect), "{text}");
    };
    check((&[], 0), (&[], 0), None);
    // One probe may be on its way, and an idle link answers all.
    check((&[0, 0], 1), (&[0, 0], 0), None);
    let mine = "3 retransmits unanswered, nothing heard for 13.0 s";
    check((&[1, 3], 0), (&[3], 0), Some(mine));
    check((&[1, 0], 0), (&[], 0), Some("1 retransmit unanswered, nothing heard for 12.0 s"));
    check((&[0], 2), (&[], 0), Some("2 probes unanswered, nothing heard for 12.0 s"));
    check((&[1], 3), (&[], 0), Some("3 probes unanswered, nothing heard for 12.0 s"));
    let theirs = "at rank 1: 2 retransmits unanswered, nothing heard for 12.0 s";
    check((&[0, 0], 0), (&[2, 0], 0), Some(theirs));
}

#[test]
fn a_rank_shows_its_phase_its_failure_and_what_it_left() {
    let mut ranks: Vec<_> = (0..4).map(|at| rank(at, State::Running, OpState::Idle, 6)).collect();
    ranks[0].comms[0].phase = Some(PhaseSnapshot { phase: "Ring".into(), duration_ns: 3_000 });
    ranks[1].comms[0].op.state = OpState::Failed;
    ranks[1].comms[0].op.error = "Peer".into();
    ranks[1].letter = Some('D');
    ranks[2].comms[0].ended = true;
    let p2p = OpSnapshot { kind: "Recv".into(), seq: 9, state: OpState::Running, ..OpSnapshot::default() };
    ranks[3].comms[0].p2p = Some(p2p);
    let text = render_text(&job(ranks));
    for line in
        ["in init: Ring", "failed: Peer", "running (D)", "2     72   a     running      mapping\n", "Recv #9"]
    {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn durations_have_three_digits_and_a_unit() {
    let said = [7, 1_500, 2_500_000, 12_400_000_000, 150_000_000_000, 9_000_000_000_000].map(duration);
    assert_eq!(said, ["7 ns", "1.5 us", "2.5 ms", "12.4 s", "2.5 min", "2.5 h"]);
}

/// Checks the lines before the table.
fn answered(job: &Snapshot, expect: &[&str]) {
    assert_eq!(render_answer(job).lines().collect::<Vec<_>>(), expect);
}

#[test]
fn a_wait_below_a_tenth_of_a_second_is_not_said() {
    let inside = |at, since_ns| {
        let mut rank = rank(at, State::Running, OpState::Running, 7);
        rank.comms[0].op.age_ns = since_ns;
        let link = LinkSnapshot {
            waits: Waits::Peer,
            peer: Some(Rank(1)),
            waits_for: Some(Rank(1)),
            since_ns,
            ..LinkSnapshot::default()
        };
        rank.comms[0].links.push(link);
        rank
    };
    let late = |state| rank(1, state, OpState::Idle, 6);
    let short = job(vec![inside(0, SAID_NS - 1), late(State::Running)]);
    answered(&short, &["running: nobody has waited for 100 ms"]);
    assert!(!render_text(&short).contains("links that wait"), "{}", render_text(&short));
    answered(
        &Snapshot { complete: false, ..short },
        &["running: nobody that was read has waited for 100 ms"],
    );
    let said = render_text(&job(vec![inside(0, SAID_NS), late(State::Running)]));
    assert!(said.starts_with("BLOCKED ON rank 1 ") && said.contains("links that wait"), "{said}");
    // A rank that is gone will not call.
    assert!(render_answer(&job(vec![inside(0, 5), late(State::Dead)])).starts_with("BLOCKED ON rank 1 "));
    // A single reading does not show which rank of a cycle blocks the others.
    let mut circle = job(vec![inside(0, SECOND), inside(1, SECOND)]);
    (circle.blocked_on[0].missing, circle.blocked_on[0].inside, circle.blocked_on[0].link) =
        (vec![], vec![], None);
    circle.blocked_on[0].by = vec![Rank(0), Rank(1)];
    (circle.blocked_on[0].unseen, circle.blocked_on[0].tag) = (vec![], String::new());
    let expect = "BLOCKED ON nobody in particular: who holds them up does not follow from what was read; ranks 0-1 wait in \
        AllReduce #7 of dp for 1.0 s";
    answered(&circle, &[expect]);
    circle.ranks.iter_mut().for_each(|rank| rank.state = State::Stopped);
    let expect = "BLOCKED ON no rank alone: all ranks that were read are stopped; ranks 0-1 wait in AllReduce #7 of dp for \
        1.0 s; ranks 0-1 are stopped";
    answered(&circle, &[expect]);
}

/// A rank on which AllReduce #7 failed.
fn failed_in(at: u32, error: &str, blamed: Option<u32>, text: &str) -> RankSnapshot {
    let mut rank = rank(at, State::Running, OpState::Failed, 7);
    (rank.comms[0].op.error, rank.comms[0].op.lasted_ns) = (error.into(), SECOND);
    (rank.comms[0].op.dtype, rank.comms[0].op.op, rank.comms[0].op.count) = ("F32".into(), "Sum".into(), 4);
    let blamed = blamed.map(Rank);
    let (error, text) = (error.into(), text.into());
    rank.comms[0].failure = Some(FailureSnapshot { error, blamed, text, age_ns: SECOND });
    rank
}

#[test]
fn a_failure_comes_first_with_who_is_to_blame_and_what_each_called() {
    let mut mismatch: Vec<_> = (0..4).map(|at| failed_in(at, "Mismatch", None, "they differ")).collect();
    mismatch[2].comms[0].op.kind = "Broadcast".into();
    answered(
        &job(mismatch.clone()),
        &[
            "FAILED AllReduce #7 of dp (Mismatch), by rank 2 (pid 72 on a, running): they differ",
            "  ranks 0-1,3 called AllReduce of 4 F32, Sum",
            "  rank 2 called Broadcast of 4 F32, root 0",
            "  failed on ranks 0-3, after 1.0 s in it",
        ],
    );
    // Two had completed it: they failed in a later one.
    for (at, seq) in [(0, 8), (3, 9)] {
        let op = &mut mismatch[at].comms[0].op;
        (op.seq, op.called, op.completed, op.lasted_ns) = (seq, seq, seq - 1, seq * SECOND);
    }
    answered(
        &job(mismatch),
        &[
            "FAILED Broadcast #7 of dp (Mismatch), by rank 1 (pid 71 on a, running): they differ",
            "  ranks 0,2-3 called Broadcast of 4 F32, root 0",
            "  rank 1 called AllReduce of 4 F32, Sum",
            "  failed on ranks 1-2, after 1.0 s in it",
            "  failed in AllReduce #8 on rank 0, after 8.0 s in it",
            "  failed in AllReduce #9 on rank 3, after 9.0 s in it",
        ],
    );
    let mut died: Vec<_> = (0..3).map(|at| failed_in(at, "Peer", Some(3), "rank 3 ended\nAWAITED")).collect();
    died[1].state = State::Exited;
    died[2].state = State::Dead;
    (died[1].to_real_ns, died[2].to_real_ns) = (10 * SECOND, 20 * SECOND);
    let died = Snapshot { blocked_on: vec![], ..job(died) };
    answered(
        &died,
        &[
            "FAILED AllReduce #7 of dp (Peer), by rank 3: rank 3 ended\\nAWAITED",
            "  failed on ranks 0-2, after 1.0 s in it",
            "rank 1 (pid 71 on a) failed, then exited: its last sign of life was at 1970-01-01 00:00:10 UTC",
            "rank 2 (pid 72 on a) dead: its last sign of life was at 1970-01-01 00:00:20 UTC",
        ],
    );
    // A recorder that was given back does not mean that its process ended.
    let mut left = died;
    left.ranks.iter_mut().for_each(|rank| (rank.state, rank.to_real_ns) = (State::Left, 10 * SECOND));
    left.ranks[0].state = State::Running;
    left.ranks[1].letter = Some('S');
    let text = render_text(&left);
    for line in [
        "rank 1 (pid 71 on a) failed, then left, and its process lives: it was last seen in the job at 1970-01-01 00:00:10 UTC",
        "rank 2 (pid 72 on a) failed, then left: it was last seen in the job at 1970-01-01 00:00:10 UTC",
    ] {
        assert!(text.lines().any(|one| one == line), "{text}");
    }
    assert!(!text.contains("exited"), "{text}");
    left.ranks[0].state = State::Dead;
    let text = render_text(&left);
    assert!(
        text.contains("all ranks that were read have left or ended: the last sign of life is of rank 2, at "),
        "{text}"
    );
}

#[test]
fn of_the_dead_is_told_what_was_and_who_fell_silent_first_if_that_is_certain() {
    let dead = |at: u32, op, seq, seconds: f64| {
        let mut rank = rank(at, State::Dead, op, seq);
        rank.to_real_ns = (seconds * 1e9) as u64;
        rank
    };
    let with = |third: f64| {
        job(vec![
            dead(0, OpState::Running, 7, 20.0),
            dead(1, OpState::Running, 7, 20.4),
            dead(2, OpState::Idle, 6, third),
            dead(3, OpState::Running, 7, 20.1),
        ])
    };
    let waited = "BLOCKED ON rank 2 (pid 72 on a, dead), which had not called AllReduce #7 of dp; ranks 0-1,3 waited for 15.2 s (at \"step 812\")";
    let last = "no rank that was read lives: the last sign of life is of rank 1, at 1970-01-01 00:00:20 UTC";
    answered(&with(19.0), &[waited, last]);
    let first = format!("{last}; rank 2 fell silent first, at least 9.0 s before the others");
    answered(&with(10.0), &[waited, &first]);
}

#[test]
fn who_has_not_joined_is_named_with_who_knows_it_and_when_init_gives_up() {
    let joins = |at: u32, absent: Option<u32>| {
        let mut rank = rank(at, State::Running, OpState::Idle, 1);
        rank.comms[0].op = OpSnapshot::default();
        rank.comms[0].phase = Some(PhaseSnapshot { phase: "CheckIn".into(), duration_ns: 12 * SECOND });
        let absent_runs = absent.map(|_| (Rank(3), Rank(3))).into_iter().collect();
        rank.comms[0].init = Some(InitSnapshot { gives_up_ns: 108 * SECOND, absent, absent_runs });
        rank
    };
    answered(
        &job((0..3).map(|at| joins(at, Some(1))).collect()),
        &[
            "NOT JOINED rank 3 of dp: ranks 0-2 wait for it in init for 12.0 s, and the bootstrap root, which rank 0 opens, has \
           heard of 3 of 4 ranks; init gives up in 108.0 s (CCL_INIT_TIMEOUT)",
        ],
    );
    answered(
        &job((1..3).map(|at| joins(at, None)).collect()),
        &[
            "NOT JOINED dp: the bootstrap root, which rank 0 opens, has not answered; ranks 1-2 wait for it in init for 12.0 s; \
           init gives up in 108.0 s (CCL_INIT_TIMEOUT)",
        ],
    );
}

#[test]
fn of_those_who_ended_in_init_it_is_said_that_they_were_in_it() {
    let init = |at: u32, phase: Phase, state| {
        let mut rank = rank(at, state, OpState::Idle, 0);
        let comm = &mut rank.comms[0];
        (comm.op, comm.init) = (OpSnapshot::default(), Some(InitSnapshot::default()));
        comm.phase = Some(PhaseSnapshot { phase: phase.name().into(), duration_ns: SECOND / 2 });
        rank
    };
    let said = |state| {
        let ranks = [(0, Phase::CheckIn), (1, Phase::CheckIn), (2, Phase::Exchange)];
        let ranks = ranks.map(|(at, phase)| init(at, phase, state)).to_vec();
        render_text(&Snapshot { ranks, complete: true, ..Snapshot::default() })
    };
    let [check_in, exchange] = [Phase::CheckIn, Phase::Exchange].map(Phase::name);
    let dead = said(State::Dead);
    let mut lines: Vec<_> = dead.lines().take(2).collect();
    lines.sort_unstable();
    let mut expect = [
        format!("ranks 0-1 were in init ({check_in}) when they ended"),
        format!("rank 2 was in init ({exchange}) when it ended"),
    ];
    expect.sort_unstable();
    assert_eq!(lines, expect, "{dead}");
    assert!(!dead.contains("nobody waited"), "{dead}");
    assert!(said(State::Running).starts_with("init is under way, and nobody is known to be missing\n"));
}

#[test]
fn the_only_finish_has_no_number() {
    let finish = |missing: &[u32]| BlockedOn {
        op: "finish()".into(),
        missing: missing.iter().copied().map(Rank).collect(),
        by: vec![Rank(0)],
        since_ns: 3 * SECOND,
        behind: vec![Behind {
            op: "finish()".into(),
            by: vec![Rank(1)],
            through: vec![Rank(2)],
            ..Behind::default()
        }],
        ..BlockedOn::default()
    };
    let text = render_text(&Snapshot { blocked_on: vec![finish(&[2]), finish(&[])], ..Snapshot::default() });
    assert!(
        text.contains("BLOCKED ON rank 2, which has not called finish() of ")
            && text.contains(" in finish() of "),
        "{text}"
    );
    assert!(text.contains("  behind it: finish() of ") && !text.contains('#'), "{text}");
}

#[test]
fn of_one_that_lacks_an_earlier_call_it_is_said_which_and_since_when() {
    let ranks = |late: &[(u32, OpState, u64)]| {
        let mut ranks: Vec<_> = (0..4).map(|at| rank(at, State::Running, OpState::Running, 495)).collect();
        ranks[3] = rank(3, State::Running, OpState::Running, 497);
        late.iter().for_each(|(at, op, seq)| ranks[*at as usize] = rank(*at, State::Running, *op, *seq));
        ranks.iter_mut().for_each(|rank| rank.comms[0].op.tag = format!("call {}", rank.comms[0].op.seq));
        ranks
    };
    check(
        &job(ranks(&[(0, OpState::Idle, 8)])),
        "BLOCKED ON rank 0 (pid 70 on a, running), which has not called #9 of dp (it left AllReduce #8 12.2 s ago); ranks 1-3 wait in \
         AllReduce #495 of dp or later for 15.2 s (at \"call 495\")",
    );
    check(
        &job(ranks(&[(0, OpState::Idle, 8), (1, OpState::Idle, 494), (2, OpState::Idle, 8)])),
        "BLOCKED ON ranks 0,2, which have not called #9 of dp (they left AllReduce #8 14.2 s ago), and rank 1 (pid 71 on a, running), which has \
         not called #495 of dp (it left AllReduce #494 13.2 s ago); rank 3 waits in AllReduce #497 of dp for 15.2 s (at \"call 497\")",
    );
    let mut stopped = ranks(&[(0, OpState::Running, 9)]);
    stopped[0].state = State::Stopped;
    check(
        &job(stopped),
        "BLOCKED ON rank 0 (pid 70 on a, stopped), which is still inside AllReduce #9 of dp; ranks 1-3 wait in AllReduce #495 of dp or \
         later for 15.2 s (at \"call 495\")",
    );
    let mut dead = ranks(&[(0, OpState::Idle, 8)]);
    dead.iter_mut().for_each(|rank| rank.state = State::Dead);
    check(
        &job(dead),
        "BLOCKED ON rank 0 (pid 70 on a, dead), which had not called #9 of dp (it had left AllReduce #8); ranks 1-3 waited in AllReduce \
         #495 of dp or later for 15.2 s (at \"call 495\")",
    );
}

#[test]
fn of_those_who_wait_it_is_said_who_is_stopped() {
    let mut ranks: Vec<_> = (0..3).map(|at| rank(at, State::Running, OpState::Running, 7)).collect();
    ranks.push(rank(3, State::Running, OpState::Idle, 6));
    ranks[2].state = State::Stopped;
    ranks[2].comms[0].links.push(LinkSnapshot {
        peer: Some(Rank(3)),
        waits: Waits::Peer,
        waits_for: Some(Rank(3)),
        since_ns: SECOND,
        ..LinkSnapshot::default()
    });
    check(
        &job(ranks),
        "BLOCKED ON rank 3 (pid 73 on a, running), which has not called AllReduce #7 of dp; ranks 0-2 wait for 13.2 s (at \"step 812\"); \
         rank 2 is stopped",
    );
}

#[test]
fn ranks_that_only_send_and_receive_are_shown_with_their_last_one() {
    let mut sends = rank(0, State::Running, OpState::Idle, 3);
    let comm = &mut sends.comms[0];
    let none = OpSnapshot { state: OpState::Idle, ..OpSnapshot::default() };
    let last = std::mem::replace(&mut comm.op, none.clone());
    comm.p2p = Some(OpSnapshot { kind: "Send".into(), ..last });
    let mut calls_nothing = rank(1, State::Running, OpState::Idle, 3);
    calls_nothing.comms[0].op = none;
    let text = render_text(&job(vec![sends, calls_nothing]));
    let row = |rank: &str| {
        let line = text.lines().find(|line| line.starts_with(rank)).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("0 "), "0 70 a running mapping dp 0/4 Send #3 in user code 12.2 s");
    assert_eq!(row("1 "), "1 71 a running mapping dp 1/4 - in user code", "since when it did not call");
}

/// A link over a queue pair, which waits for so many seconds.
fn over_queue_pair(seconds: u64, error: Option<WorkFailure>) -> LinkSnapshot {
    let state = if error.is_some() { QueuePairState::Error } else { QueuePairState::ReadyToSend };
    let pair = QueuePairSnapshot {
        device: "rxe0".into(),
        port: 1,
        number: 17,
        address: "10.89.0.1".into(),
        peer_port: 1,
        peer_number: 18,
        peer_address: "10.89.0.2".into(),
        state,
        posted: 12,
        completed: 9,
        completed_ns: Some(21 * SECOND / 10),
        error,
        ..QueuePairSnapshot::default()
    };
    LinkSnapshot {
        peer: Some(Rank(1)),
        direction: Direction::Send,
        transport: Transport::Verbs,
        waits: if seconds > 0 { Waits::Credit } else { Waits::Nothing },
        since_ns: seconds * SECOND,
        queue_pairs: vec![pair],
        ..LinkSnapshot::default()
    }
}

#[test]
fn queue_pairs_stand_under_a_link_that_waits_and_are_listed_else() {
    let text = |link: LinkSnapshot| {
        let mut ranks: Vec<_> = (0..2).map(|at| rank(at, State::Running, OpState::Running, 7)).collect();
        ranks[0].comms[0].links.push(link);
        render_text(&job(ranks))
    };
    let line = "    queue pair 17 on rxe0 port 1 (10.89.0.1) to 18 (10.89.0.2): RTS, 12 writes, 3 unanswered, \
                last completion 2.1 s ago\n";
    let waits = text(over_queue_pair(12, None));
    let (links, _) = waits.split_once(line).unwrap();
    assert!(links.contains("links that wait") && !waits.contains("\nqueue pairs\n"), "{waits}");
    let calm = text(over_queue_pair(0, None));
    assert!(calm.contains(&format!("\nqueue pairs\n  dp rank 0 channel 0 send rank 1:\n{line}")), "{calm}");
    let error = WorkFailure { status: 12, name: "RETRY_EXC_ERR".into(), vendor: 0x81, ago_ns: 2 * SECOND };
    let failed = text(over_queue_pair(0, Some(error)));
    assert!(failed.contains(": ERR, 12 writes, 3 unanswered"), "{failed}");
    let why =
        "\n      failed 2.0 s ago with RETRY_EXC_ERR (12, vendor 0x81): the other side did not answer: ";
    assert!(failed.contains(why), "{failed}");
    let set_up = Some(SetUp::Send);
    let connects = LinkSnapshot { waits: Waits::Connect, set_up, ..over_queue_pair(12, None) };
    assert!(text(connects).contains("send rank 1 (verbs, Send): posted"));
}

#[test]
fn a_port_is_told_once_per_host() {
    let mut ranks: Vec<_> = (0..2).map(|at| rank(at, State::Running, OpState::Running, 7)).collect();
    for rank in &mut ranks {
        rank.ports.push(PortSnapshot {
            device: "rxe0".into(),
            port: 1,
            state: PortStanding::Down,
            layer: PortLayer::Ethernet,
            address: "10.89.0.1".into(),
            speed_mbps: 2500,
            event: Some(PortEvent { code: 10, name: "PORT_ERR".into(), ago_ns: 3 * SECOND }),
            retries: Some(4),
            ..PortSnapshot::default()
        });
    }
    let text = render_text(&job(ranks));
    let line =
        "\n  rxe0 port 1 on a (10.89.0.1): DOWN, RoCE, 2.5 Gbit/s, 4 retries, reported PORT_ERR 3.0 s ago\n";
    assert_eq!(text.matches(line).count(), 1, "{text}");
}
