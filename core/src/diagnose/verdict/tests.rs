//! Each class from snapshots written by hand, and the thresholds.

mod cause;
mod joining;
mod pairs;
mod passed;
mod slow;

use super::*;
use crate::snapshot::{
    BlockedOn, Called, CommSnapshot, End, Failure, FailureSnapshot, Lacks, LinkSnapshot, Missing, OpSnapshot,
    OpState, OpWait, PastOp, ProcessFacts, ProcessLoad, RankSnapshot, Side, SocketSnapshot, StallTold, State,
    ThreadFacts, WaitingLink, Waits,
};
use crate::types::{BlameHash, CommId};

const SECOND: u64 = 1_000_000_000;
const COMM: CommId = CommId(1);

/// A job of four ranks, of which all but `absent` are inside AllReduce #5.
fn job(absent: &[u32]) -> Snapshot {
    let rank = |at: u32| {
        let is_in = !absent.contains(&at);
        let op = OpSnapshot {
            kind: "AllReduce".into(),
            seq: if is_in { 5 } else { 4 },
            called: if is_in { 5 } else { 4 },
            state: if is_in { OpState::Running } else { OpState::Idle },
            age_ns: 3 * SECOND,
            ..OpSnapshot::default()
        };
        let row = CommSnapshot { id: COMM, rank: Rank(at), nranks: 4, op, ..CommSnapshot::default() };
        RankSnapshot {
            rank: Rank(at),
            pid: 70 + at,
            host: "a".into(),
            state: State::Running,
            comms: vec![row],
            ..RankSnapshot::default()
        }
    };
    Snapshot { ranks: (0..4).map(rank).collect(), complete: true, ..Snapshot::default() }
}

fn ranks(numbers: &[u32]) -> Vec<Rank> {
    numbers.iter().copied().map(Rank).collect()
}

fn culprits(numbers: &[u32]) -> Vec<Culprit> {
    numbers.iter().map(|at| Culprit { rank: Rank(*at), pid: 70 + at, host: "a".into() }).collect()
}

fn blocked(missing: &[u32], inside: &[u32], by: &[u32], since_ns: u64) -> BlockedOn {
    let all: Vec<u32> = missing.iter().chain(inside).copied().collect();
    BlockedOn {
        comm: COMM,
        name: "world".into(),
        op: "AllReduce".into(),
        seq: 5,
        missing: ranks(missing),
        inside: ranks(inside),
        culprits: culprits(&all),
        by: ranks(by),
        since_ns,
        ..BlockedOn::default()
    }
}

type Expect<'a> = (Class, Reason, &'a [u32], Standing);

/// The verdicts on a job that was read twice with the same result.
fn check(job: &Snapshot, expect: &[Expect<'_>]) -> Vec<Verdict> {
    let found = verdicts(job, Some(job), 30 * SECOND);
    let of = |one: &Verdict| {
        (one.class, one.reason, one.culprits.iter().map(|one| one.rank.0).collect::<Vec<_>>(), one.standing)
    };
    let found_all: Vec<_> = found.iter().map(of).collect();
    let expect: Vec<_> =
        expect.iter().map(|(class, reason, who, how)| (*class, *reason, who.to_vec(), *how)).collect();
    assert_eq!(found_all, expect, "{found:#?}");
    found
}

#[test]
fn who_is_late_is_suspect_from_a_second_on_and_stalled_after_the_setting() {
    let waits = |since_ns| {
        let blocked_on = vec![blocked(&[2], &[], &[0, 1, 3], since_ns)];
        Snapshot { blocked_on, ..job(&[2]) }
    };
    check(&waits(SECOND - 1), &[]);
    let is = |how| [(Class::NotJoined, Reason::UserCode, &[2][..], how)];
    check(&waits(SECOND), &is(Standing::Suspect));
    check(&waits(30 * SECOND - 1), &is(Standing::Suspect));
    let found = check(&waits(30 * SECOND), &is(Standing::Stalled));
    let one = &found[0];
    assert_eq!((one.side, one.confidence), (Side::Application, Confidence::Certain));
    assert_eq!(one.victims, ranks(&[0, 1, 3]));
    assert_eq!(
        one.why,
        "rank 2 (pid 72 on a) has not called AllReduce #5 of world and is in user code; ranks 0-1,3 wait \
         for it in AllReduce #5 of world for 30.0 s"
    );
    assert!(
        one.next
            .iter()
            .any(|next| (next.host.as_str(), next.command.as_str()) == ("a", "py-spy dump --pid 72"))
    );
}

#[test]
fn of_one_that_lacks_an_earlier_call_that_call_is_named() {
    let mut job = Snapshot { blocked_on: vec![blocked(&[2], &[], &[0, 1, 3], 30 * SECOND)], ..job(&[2]) };
    let op = &mut job.ranks[2].comms[0].op;
    (op.seq, op.called) = (2, 2);
    let found = check(&job, &[(Class::NotJoined, Reason::UserCode, &[2], Standing::Stalled)]);
    let said = "rank 2 (pid 72 on a) has not called #3 of world and is in user code; ranks 0-1,3 wait for it \
                in AllReduce #5 of world";
    assert!(found[0].why.starts_with(said), "{}", found[0].why);
    // Inside of the earlier one, whose kind is known.
    let op = &mut job.ranks[2].comms[0].op;
    (op.seq, op.called, op.state) = (3, 3, OpState::Running);
    let found = check(&job, &[(Class::StuckLocal, Reason::Inside, &[2], Standing::Stalled)]);
    assert!(found[0].why.contains(" is inside AllReduce #3 of world and"), "{}", found[0].why);
    // Inside of something that could not be read.
    job.ranks[2].comms[0].op.state = OpState::Unknown;
    let found = check(&job, &[(Class::StuckLocal, Reason::Inside, &[2], Standing::Stalled)]);
    assert!(found[0].why.contains(" is inside #3 of world and"), "{}", found[0].why);
    let said = "rank 2: it is inside call #3, which could not be read";
    assert!(found[0].evidence.iter().any(|line| line == said), "{:?}", found[0].evidence);
}

#[test]
fn a_wait_is_suspect_only_after_many_times_what_such_operations_take() {
    let waits = |missing: &[u32], inside: &[u32], since_s: u64, p99_s: u64| {
        let by: Vec<u32> = (0..4).filter(|at| !missing.contains(at) && !inside.contains(at)).collect();
        let since_ns = since_s * SECOND;
        let one = BlockedOn { p99_ns: p99_s * SECOND, ..blocked(missing, inside, &by, since_ns) };
        Snapshot { blocked_on: vec![one], ..job(missing) }
    };
    let late = |how| [(Class::NotJoined, Reason::UserCode, &[2][..], how)];
    let inside = |how| [(Class::StuckLocal, Reason::Inside, &[2][..], how)];
    let lost = |how| [(Class::Link, Reason::Lost, &[][..], how)];
    for (since_s, p99_s, standing) in [
        (2, 0, Some(Standing::Suspect)),
        (2, 3, None),
        (23, 3, None),
        (24, 3, Some(Standing::Suspect)),
        (29, 4, None),
        (30, 4, Some(Standing::Stalled)),
        (30, 999, Some(Standing::Stalled)),
    ] {
        let all = |of: &dyn Fn(Standing) -> [Expect<'static>; 1]| standing.map(of).into_iter().flatten();
        let (late, inside, lost): (Vec<_>, Vec<_>, Vec<_>) =
            (all(&late).collect(), all(&inside).collect(), all(&lost).collect());
        check(&waits(&[2], &[], since_s, p99_s), &late);
        check(&waits(&[], &[2], since_s, p99_s), &inside);
        check(&waits(&[], &[], since_s, p99_s), &lost);
    }
    // What is certainly a fault need not wait for that.
    let mut stopped = waits(&[2], &[], 2, 3);
    stopped.ranks[2].state = State::Stopped;
    check(&stopped, &[(Class::StuckLocal, Reason::Stopped, &[2], Standing::Stalled)]);
}

#[test]
fn what_the_kernel_counted_in_two_readings_says_who_starves() {
    let reading = |at_s: u64, run_delay_ms: u64| {
        let mut job = Snapshot { blocked_on: vec![blocked(&[], &[2], &[0, 1, 3], 2 * SECOND)], ..job(&[]) };
        let load =
            |ms| ProcessLoad { at_ns: at_s * SECOND, run_delay_ns: ms * 1_000_000, ..ProcessLoad::default() };
        job.ranks[2].facts.load = Some(load(run_delay_ms));
        job.ranks[3].facts.load = Some(load(0));
        job
    };
    let judged = |before: &Snapshot, mut now: Snapshot| {
        now.judge(Some(before), 30 * SECOND);
        assert_eq!(now.ranks[0].facts.is_starved, None);
        (now.ranks[2].facts.is_starved, now.verdicts[0].reason, now.verdicts[0].standing)
    };
    let stalled = (Some(true), Reason::Starved, Standing::Stalled);
    assert_eq!(judged(&reading(7, 5), reading(8, 900)), stalled);
    let late = |starves| (starves, Reason::Inside, Standing::Suspect);
    assert_eq!(judged(&reading(7, 5), reading(8, 100)), late(Some(false)));
    assert_eq!(judged(&reading(7, 5), reading(7, 5)), late(None));
    let mut other = reading(7, 5);
    other.ranks[2].pid += 1;
    assert_eq!(judged(&other, reading(8, 900)), late(None));
}

#[test]
fn what_ails_the_process_itself_decides_and_each_ailment_is_a_verdict() {
    let with = |state: State, letter: Option<char>| {
        let mut job =
            Snapshot { blocked_on: vec![blocked(&[1, 2], &[], &[0, 3], 2 * SECOND)], ..job(&[1, 2]) };
        (job.ranks[2].state, job.ranks[2].letter) = (state, letter);
        job
    };
    let late: Expect<'_> = (Class::NotJoined, Reason::UserCode, &[1], Standing::Suspect);
    let two = |class, reason| [(class, reason, &[2][..], Standing::Stalled), late];
    let found = check(&with(State::Stopped, Some('T')), &two(Class::StuckLocal, Reason::Stopped));
    assert_eq!(found[0].next[0].command, "kill -CONT 72");
    check(&with(State::Running, Some('D')), &two(Class::StuckLocal, Reason::Uninterruptible));
    // Only in one of two readings.
    let once =
        verdicts(&with(State::Running, Some('D')), Some(&with(State::Running, Some('S'))), 30 * SECOND);
    assert_eq!((once[0].reason, once[0].standing), (Reason::Uninterruptible, Standing::Suspect));
    check(&with(State::Dead, None), &two(Class::PeerDead, Reason::Killed));
    // A rank that is inside and does not wait may be at work: it has the time of one that is late.
    let inside = Snapshot { blocked_on: vec![blocked(&[], &[2], &[0, 1, 3], 2 * SECOND)], ..job(&[]) };
    check(&inside, &[(Class::StuckLocal, Reason::Inside, &[2], Standing::Suspect)]);
}

#[test]
fn a_frozen_process_is_told_and_a_service_thread_that_does_not_run_is_suspect() {
    let thread = |name: &str, wchan: &str| ThreadFacts {
        name: name.into(),
        wchan: wchan.into(),
        ..ThreadFacts::default()
    };
    let waits = |wchan: &str, letter| {
        let mut job = Snapshot { blocked_on: vec![blocked(&[2], &[], &[0, 1, 3], 2 * SECOND)], ..job(&[2]) };
        job.ranks[2].facts.threads = vec![ThreadFacts { letter: Some(letter), ..thread("python", wchan) }];
        job
    };
    for wchan in ["__refrigerator", "do_freezer_trap", "futex_do_wait", "do_syscall_64"] {
        let frozen = [(Class::StuckLocal, Reason::Frozen, &[2][..], Standing::Stalled)];
        let found = check(&waits(wchan, 'D'), &frozen);
        assert_eq!(found[0].next[0].command, "cat /proc/72/cgroup");
    }
    let frozen = [(Class::StuckLocal, Reason::Frozen, &[2][..], Standing::Stalled)];
    check(&waits("get_signal", 'S'), &frozen);
    let late = [(Class::NotJoined, Reason::UserCode, &[2][..], Standing::Suspect)];
    check(&waits("futex_do_wait", 'S'), &late);
    let silent = |wchan: &str, silent_ns| {
        let mut job = job(&[]);
        job.ranks[1].heartbeat_ns = silent_ns;
        job.ranks[1].facts.threads = vec![thread("python", ""), thread("ccl-service", wchan)];
        job
    };
    check(&silent("", 5 * SECOND - 1), &[]);
    let expect = [(Class::StuckLocal, Reason::Silent, &[1][..], Standing::Suspect)];
    let side = |wchan: &str| check(&silent(wchan, 5 * SECOND), &expect)[0].side;
    assert_eq!([side(""), side("__refrigerator")], [Side::Library, Side::Machine]);
}

#[test]
fn who_failed_as_all_were_ended_is_still_the_one_that_was_waited_for() {
    let mut job = Snapshot { blocked_on: vec![blocked(&[2], &[], &[0, 1, 3], 2 * SECOND)], ..job(&[2]) };
    job.ranks[2].comms[0].failure = Some(FailureSnapshot { error: "Peer".into(), ..Default::default() });
    check(&job, &[]);
    job.ranks.iter_mut().for_each(|rank| rank.state = State::Dead);
    let found = check(&job, &[(Class::NotJoined, Reason::UserCode, &[2], Standing::Suspect)]);
    // No process is left of which a stack could be read.
    let next: Vec<_> = found[0].next.iter().map(|next| next.command.as_str()).collect();
    assert_eq!(next, ["ccl-inspect explain 0000000000000000", "ccl-inspect stragglers 0000000000000000"]);
}

#[test]
fn files_say_of_a_process_what_the_watchdogs_saw_before_all_ended() {
    let mut job = Snapshot { blocked_on: vec![blocked(&[2], &[], &[0, 1, 3], 2 * SECOND)], ..job(&[2]) };
    let key = Verdict { culprits: culprits(&[2]), ..Verdict::default() }.key();
    let told = StallTold {
        standing: Standing::Stalled,
        class: Class::StuckLocal,
        reason: Reason::Stopped,
        by: Some(Rank(0)),
        ago_ns: SECOND,
        key,
        text: "rank 2 (pid 72 on a) is stopped".into(),
        ..StallTold::default()
    };
    let late = [(Class::NotJoined, Reason::UserCode, &[2][..], Standing::Suspect)];
    let stopped = [(Class::StuckLocal, Reason::Stopped, &[2][..], Standing::Stalled)];
    job.ranks[3].facts.stall = Some(told.clone());
    check(&job, &late);
    job.ranks.iter_mut().for_each(|rank| rank.state = State::Dead);
    let found = check(&job, &stopped);
    assert_eq!(found[0].side, Side::Machine);
    assert!(found[0].why.starts_with("rank 2 (pid 72 on a) was stopped; ranks 0-1,3 waited"), "{found:?}");
    // Stopped inside, where it waited itself.
    let unnamed = Snapshot { blocked_on: vec![blocked(&[], &[], &[0, 1, 2, 3], 2 * SECOND)], ..job.clone() };
    check(&unnamed, &stopped);
    // Of somebody else.
    job.ranks[3].facts.stall = Some(StallTold { key: BlameHash(key.0 + 1), ..told });
    check(&job, &late);
}

#[test]
fn a_wait_is_stalled_only_if_both_readings_show_the_same() {
    let at = |real_s: u64, seq, since_s: u64| {
        let wait = BlockedOn { seq, ..blocked(&[2], &[], &[0, 1, 3], since_s * SECOND) };
        let mut job = Snapshot { blocked_on: vec![wait], to_real_ns: real_s * SECOND, ..job(&[2]) };
        job.ranks[2].state = State::Stopped;
        job
    };
    let standing = |now: &Snapshot, before: Option<&Snapshot>| verdicts(now, before, 30 * SECOND)[0].standing;
    assert_eq!(standing(&at(10, 5, 4), None), Standing::Suspect);
    assert_eq!(standing(&at(10, 5, 4), Some(&at(9, 5, 3))), Standing::Stalled);
    assert_eq!(standing(&at(10, 5, 4), Some(&at(9, 4, 3))), Standing::Suspect, "another call");
    assert_eq!(standing(&at(10, 5, 2), Some(&at(7, 5, 3))), Standing::Suspect, "it began anew");
    // The dead are read once, and their deaths tell nothing where all are dead.
    let sends = |from, to| BlockedOn { op: "Send".into(), ..blocked(&[to], &[], &[from], 2 * SECOND) };
    let mut dead = Snapshot { blocked_on: vec![sends(0, 1), sends(1, 0)], ..job(&[]) };
    assert_eq!(standing(&dead, None), Standing::Suspect);
    dead.ranks.iter_mut().for_each(|rank| rank.state = State::Dead);
    assert_eq!(standing(&dead, None), Standing::Stalled);
}

#[test]
fn waits_in_a_circle_are_a_deadlock_told_once() {
    let send = |from: u32, to: u32| BlockedOn {
        op: "Send".into(),
        seq: 1,
        ..blocked(&[to], &[], &[from], 2 * SECOND)
    };
    let blocked_on = vec![send(0, 1), send(1, 2), send(2, 0)];
    let found = check(
        &Snapshot { blocked_on, ..job(&[]) },
        &[(Class::Deadlock, Reason::Cycle, &[0, 1, 2], Standing::Stalled)],
    );
    assert_eq!(
        found[0].why,
        "rank 0 waits for rank 1 in Send #1 of world, rank 1 for rank 2 in Send #1 of world, rank 2 for \
         rank 0 in Send #1 of world, for 2.0 s"
    );
    // A rank that waits for a rank in the circle is a victim of the circle.
    let blocked_on = vec![send(0, 1), send(1, 0), send(3, 2), send(2, 1)];
    let found = verdicts(&Snapshot { blocked_on, ..job(&[]) }, None, 30 * SECOND);
    assert_eq!(found[0].victims, ranks(&[0, 1, 2, 3]));
    assert!(found[0].why.contains("; ranks 2-3 wait for them, for 2.0 s"), "{}", found[0].why);
    // A task that waits may do other work meanwhile, and send.
    let mut polled = Snapshot { blocked_on: vec![send(0, 1), send(1, 2), send(2, 0)], ..job(&[]) };
    let wait = OpWait { polled: true, ..OpWait::default() };
    polled.ranks[1].comms[0].p2p = Some(OpSnapshot { wait: Some(wait), ..OpSnapshot::default() });
    let found = check(&polled, &[(Class::Deadlock, Reason::Cycle, &[0, 1, 2], Standing::Suspect)]);
    assert_eq!(found[0].confidence, Confidence::Probable);
    // Nor is one whose calls come and go, though a thread of it waits in one of them.
    let now = Snapshot { blocked_on: vec![send(0, 1), send(1, 2), send(2, 0)], ..job(&[]) };
    let mut before = now.clone();
    before.blocked_on[2].seq += 7;
    let found = verdicts(&now, Some(&before), 30 * SECOND);
    assert!(found.iter().all(|one| one.class != Class::Deadlock), "{found:?}");
    // A chain that ends at a rank in user code is none.
    let blocked_on = vec![send(0, 1), send(1, 2)];
    let found = verdicts(&Snapshot { blocked_on, ..job(&[]) }, None, 30 * SECOND);
    assert!(found.iter().all(|one| one.class != Class::Deadlock), "{found:?}");
}

#[test]
fn a_link_that_does_not_answer_is_blamed_unless_the_rank_is_late_itself() {
    let silent = SocketSnapshot { timeouts: 4, heard_ns: 4 * SECOND, ..SocketSnapshot::default() };
    let with = |mut job: Snapshot, one: BlockedOn, sockets: Vec<SocketSnapshot>| {
        let link = LinkSnapshot { peer: Some(Rank(0)), sockets, ..LinkSnapshot::default() };
        job.ranks[2].comms[0].links = vec![link];
        let link = WaitingLink { rank: Rank(0), peer: Rank(2), ..WaitingLink::default() };
        job.blocked_on = vec![BlockedOn { link: Some(link), ..one }];
        job
    };
    let inside = || blocked(&[], &[2], &[0, 1, 3], 4 * SECOND);
    let is = |class, reason, how| [(class, reason, &[2][..], how)];
    check(
        &with(job(&[]), inside(), vec![silent.clone()]),
        &is(Class::Link, Reason::Unreachable, Standing::Stalled),
    );
    let recent = |busy_pct, rwnd_pct, resent| {
        vec![SocketSnapshot { busy_pct, rwnd_pct, resent, ..SocketSnapshot::default() }]
    };
    for (sockets, reason) in [
        (recent(50, 0, 0), Reason::Throttled),
        (recent(100, 50, 0), Reason::Throttled),
        (recent(30, 0, 1), Reason::Lossy),
    ] {
        let found = check(&with(job(&[]), inside(), sockets), &is(Class::Link, reason, Standing::Stalled));
        assert_eq!(found[0].side, Side::Network);
        assert!(found[0].evidence.iter().any(|line| line.contains("had something to send")), "{found:?}");
    }
    // An answer is overdue, and it is too early to say why.
    let early = SocketSnapshot { heard_ns: 2 * SECOND - 1, resent: 1, ..silent.clone() };
    check(&with(job(&[]), inside(), vec![early]), &is(Class::StuckLocal, Reason::Inside, Standing::Suspect));
    // The receiver holds it up, or nobody does.
    for sockets in [recent(100, 51, 0), recent(49, 0, 0)] {
        let job = with(job(&[]), inside(), sockets);
        check(&job, &is(Class::StuckLocal, Reason::Inside, Standing::Suspect));
    }
    check(&with(job(&[]), inside(), Vec::new()), &is(Class::StuckLocal, Reason::Inside, Standing::Suspect));
    let late = blocked(&[2], &[], &[0, 1, 3], 4 * SECOND);
    check(&with(job(&[2]), late, vec![silent]), &is(Class::NotJoined, Reason::UserCode, Standing::Suspect));
}

#[test]
fn ranks_that_could_not_be_read_are_only_possible_culprits() {
    let wait =
        BlockedOn { unseen: ranks(&[3]), culprits: Vec::new(), ..blocked(&[], &[], &[0, 1], 31 * SECOND) };
    let missing = vec![Missing { rank: Rank(3), host: "b".into(), pid: 9, why: "far".into() }];
    let mut job = Snapshot { blocked_on: vec![wait], missing, ..job(&[]) };
    job.ranks.truncate(3);
    let found = check(&job, &[(Class::Unread, Reason::NotRead, &[3], Standing::Stalled)]);
    assert_eq!(found[0].confidence, Confidence::Possible);
    assert_eq!(found[0].culprits[0], Culprit { rank: Rank(3), pid: 9, host: "b".into() });
}

#[test]
fn failures_are_verdicts_at_once_by_their_kind_and_by_what_was_called() {
    let failed = |error: &str, blamed: &[u32]| Failure {
        comm: COMM,
        name: "world".into(),
        error: error.into(),
        op: "AllReduce".into(),
        seq: 5,
        ranks: ranks(&[0, 1, 2, 3]),
        blamed: ranks(blamed),
        culprits: culprits(blamed),
        ..Failure::default()
    };
    let with = |failure: Failure| Snapshot { failures: vec![failure], ..job(&[]) };
    fn is<'a>(class: Class, reason: Reason, who: &'a [u32]) -> [Expect<'a>; 1] {
        [(class, reason, who, Standing::Stalled)]
    }
    check(&with(failed("Peer", &[])), &is(Class::Link, Reason::Unreachable, &[]));
    check(&with(failed("Aborted", &[1])), &is(Class::Aborted, Reason::Aborts, &[1]));
    let mut dead = with(failed("Peer", &[2]));
    dead.ranks[2].state = State::Dead;
    let found = check(&dead, &is(Class::PeerDead, Reason::Killed, &[2]));
    assert_eq!(found[0].victims, ranks(&[0, 1, 3]));
    let late = Failure { missing: ranks(&[2]), ..failed("Timeout", &[2]) };
    check(&with(late.clone()), &is(Class::NotJoined, Reason::UserCode, &[2]));
    let mut stopped = with(late);
    stopped.ranks[2].state = State::Stopped;
    check(&stopped, &is(Class::StuckLocal, Reason::Stopped, &[2]));
    // It has come since, and failed at once.
    let mut came = with(Failure { lasted_ns: 3 * SECOND, ..failed("Timeout", &[2]) });
    let op = &mut came.ranks[2].comms[0].op;
    (op.state, op.lasted_ns) = (OpState::Failed, SECOND / 10);
    let found = check(&came, &is(Class::NotJoined, Reason::UserCode, &[2]));
    let said = "rank 2 (pid 72 on a) came to AllReduce #5 of world at least 2.9 s after the first rank;";
    assert!(found[0].why.starts_with(said), "{}", found[0].why);

    let called = |ranks: &[u32], call: &str| Called {
        ranks: ranks.iter().copied().map(Rank).collect(),
        call: call.into(),
    };
    let calls = vec![called(&[0, 1, 3], "AllReduce of 8 F32, Sum"), called(&[2], "another")];
    let mismatch = with(Failure { calls, ..failed("Mismatch", &[2]) });
    let differs = |change: fn(&mut OpSnapshot), reason| {
        let mut job = mismatch.clone();
        change(&mut job.ranks[2].comms[0].op);
        check(&job, &is(Class::Mismatch, reason, &[2]));
    };
    differs(|op| op.count = 9, Reason::Count);
    differs(|op| op.root = Rank(1), Reason::Root);
    differs(|op| op.dtype = "F64".into(), Reason::Dtype);
    differs(|op| op.op = "Max".into(), Reason::Operator);
    differs(|op| op.kind = "Broadcast".into(), Reason::Kind);
    differs(|_| {}, Reason::Calls);
    // What failed because of that is none of its own.
    let follows = Failure { follows: Some(COMM), comm: CommId(2), ..failed("Aborted", &[2]) };
    let mut both = mismatch;
    both.failures.push(follows);
    check(&both, &is(Class::Mismatch, Reason::Calls, &[2]));
}

#[test]
fn a_stopped_process_for_which_nobody_waits_is_a_suspicion() {
    let mut job = job(&[0, 1, 2, 3]);
    job.ranks[1].state = State::Stopped;
    check(&job, &[]);
    job.ranks[1].heartbeat_ns = 2 * SECOND;
    check(&job, &[(Class::StuckLocal, Reason::Stopped, &[1], Standing::Suspect)]);
}

#[test]
fn how_a_process_ended_or_what_keeps_it_back_is_the_reason() {
    let with = |facts: ProcessFacts, state| {
        let wait = blocked(&[], &[2], &[0, 1, 3], 2 * SECOND);
        let mut job = Snapshot { blocked_on: vec![wait], ..job(&[]) };
        (job.ranks[2].facts, job.ranks[2].state) = (facts, state);
        job
    };
    let dead = |facts, reason, confidence| {
        let found = check(&with(facts, State::Dead), &[(Class::PeerDead, reason, &[2], Standing::Stalled)]);
        assert_eq!(found[0].confidence, confidence, "{reason}");
        found
    };
    let end = |end| ProcessFacts { end, ..ProcessFacts::default() };
    dead(end(End::Exited), Reason::Exited, Confidence::Certain);
    dead(end(End::Panicked), Reason::Panicked, Confidence::Certain);
    dead(ProcessFacts { signal: Some(15), ..end(End::Signalled) }, Reason::Signalled, Confidence::Certain);
    let found = dead(end(End::Killed), Reason::Killed, Confidence::Possible);
    assert!(found[0].evidence.contains(&"rank 2: killed, by which signal is not known".to_string()));
    dead(ProcessFacts { oom_kills: 1, ..end(End::Killed) }, Reason::Oom, Confidence::Probable);
    dead(ProcessFacts { oom_logged: true, ..end(End::Killed) }, Reason::Oom, Confidence::Certain);
    let held = |facts, reason| {
        check(&with(facts, State::Running), &[(Class::StuckLocal, reason, &[2], Standing::Stalled)]);
    };
    let starved = ProcessFacts { is_starved: Some(true), ..ProcessFacts::default() };
    held(starved.clone(), Reason::Starved);
    held(ProcessFacts { dying: true, ..ProcessFacts::default() }, Reason::Dying);
    let lacks = |lacks| ProcessFacts { lacks: Some(lacks), ..ProcessFacts::default() };
    let all = [(Lacks::Descriptors, Reason::NoDescriptors), (Lacks::Memory, Reason::NoMemory)];
    for (what, reason) in all {
        // It matters only to who waits for a connection of its.
        let mut job = with(lacks(what), State::Running);
        check(&job, &[(Class::StuckLocal, Reason::Inside, &[2], Standing::Suspect)]);
        let wait = OpWait { waits: Waits::Connect, peer: Rank(2), ..OpWait::default() };
        job.ranks[0].comms[0].op.wait = Some(wait);
        check(&job, &[(Class::StuckLocal, reason, &[2], Standing::Stalled)]);
        // In one of two readings only.
        let mut before = job.clone();
        before.ranks[2].facts.lacks = None;
        assert_eq!(verdicts(&job, Some(&before), 30 * SECOND)[0].standing, Standing::Suspect);
    }
    // Before its call it needs no connection.
    let mut late = Snapshot { blocked_on: vec![blocked(&[2], &[], &[0, 1, 3], 2 * SECOND)], ..job(&[2]) };
    late.ranks[2].facts = lacks(Lacks::Descriptors);
    check(&late, &[(Class::NotJoined, Reason::UserCode, &[2], Standing::Suspect)]);
    // In user code it may be meant so.
    for (since_ns, standing) in [(2 * SECOND, Standing::Suspect), (30 * SECOND, Standing::Stalled)] {
        let mut job = Snapshot { blocked_on: vec![blocked(&[2], &[], &[0, 1, 3], since_ns)], ..job(&[2]) };
        job.ranks[2].facts = starved.clone();
        check(&job, &[(Class::StuckLocal, Reason::Starved, &[2], standing)]);
    }
}

#[test]
fn where_nobody_is_named_it_is_all_that_are_stopped_or_a_message() {
    let wait = |since_ns| BlockedOn { culprits: Vec::new(), ..blocked(&[], &[], &[0, 1, 2, 3], since_ns) };
    let with = |since_ns| Snapshot { blocked_on: vec![wait(since_ns)], ..job(&[]) };
    let lost = |how| [(Class::Link, Reason::Lost, &[][..], how)];
    check(&with(2 * SECOND), &lost(Standing::Suspect));
    let found = check(&with(30 * SECOND), &lost(Standing::Stalled));
    assert_eq!(
        found[0].why,
        "all ranks are inside AllReduce #5 of world and wait for each other: a message is on its way or \
         lost, for 30.0 s"
    );
    let mut stopped = with(2 * SECOND);
    stopped.ranks.iter_mut().for_each(|rank| rank.state = State::Stopped);
    check(&stopped, &[(Class::StuckLocal, Reason::Stopped, &[0, 1, 2, 3], Standing::Stalled)]);
    // It was frozen as it waited for a message that has come since.
    let mut frozen = with(2 * SECOND);
    frozen.ranks[1].facts.threads =
        vec![ThreadFacts { wchan: "__refrigerator".into(), ..ThreadFacts::default() }];
    check(&frozen, &[(Class::StuckLocal, Reason::Frozen, &[1], Standing::Stalled)]);
    // A stream to it is full, because it takes nothing.
    let busy = SocketSnapshot { busy_pct: 90, ..SocketSnapshot::default() };
    let link = LinkSnapshot { peer: Some(Rank(1)), sockets: vec![busy], ..LinkSnapshot::default() };
    frozen.ranks[0].comms[0].links.push(link);
    check(&frozen, &[(Class::StuckLocal, Reason::Frozen, &[1], Standing::Stalled)]);
    // Who was not given the processor, or reads from a disk, need not be the one.
    let mut busy = with(2 * SECOND);
    busy.ranks[1].letter = Some('D');
    busy.ranks[2].facts.is_starved = Some(true);
    check(&busy, &lost(Standing::Suspect));
}

#[test]
fn who_is_busy_in_another_communicator_is_not_in_user_code() {
    let mut job = Snapshot { blocked_on: vec![blocked(&[2], &[], &[0, 1, 3], 2 * SECOND)], ..job(&[2]) };
    let op = OpSnapshot {
        kind: "AllGather".into(),
        seq: 9,
        state: OpState::Running,
        age_ns: 2_000_000,
        ..OpSnapshot::default()
    };
    let row = CommSnapshot { id: CommId(2), name: "tensor".into(), op, ..CommSnapshot::default() };
    job.ranks[2].comms.push(row);
    let found = check(&job, &[(Class::NotJoined, Reason::Elsewhere, &[2], Standing::Suspect)]);
    let line = "rank 2: it has been inside AllGather #9 of tensor for 2.0 ms";
    assert!(found[0].evidence.contains(&line.to_string()), "{:?}", found[0].evidence);
    // Or in a receive of the same communicator.
    let recv = OpSnapshot { kind: "Recv".into(), state: OpState::Running, ..OpSnapshot::default() };
    job.ranks[2].comms.truncate(1);
    job.ranks[2].comms[0].p2p = Some(recv);
    check(&job, &[(Class::NotJoined, Reason::Elsewhere, &[2], Standing::Suspect)]);
}
