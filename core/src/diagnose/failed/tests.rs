use super::*;
use crate::snapshot::{Called, Direction, InitSnapshot, LinkSnapshot, PhaseSnapshot};
use crate::types::{ChannelId, Phase};

/// The operation of one rank, and how it ended.
#[derive(Clone)]
struct Did {
    kind: &'static str,
    seq: u64,
    state: OpState,
    process: State,
    cause: Option<(&'static str, Option<u32>)>,
}

const FAILED: Did =
    Did { kind: "AllReduce", seq: 7, state: OpState::Failed, process: State::Dead, cause: None };

fn with(error: &'static str, blamed: Option<u32>) -> Did {
    Did { cause: Some((error, blamed)), ..FAILED }
}

fn rank(at: u32, did: &Did) -> RankSnapshot {
    let op = OpSnapshot {
        kind: did.kind.into(),
        seq: did.seq,
        state: did.state,
        called: did.seq,
        error: did.cause.map_or(String::new(), |(error, _)| error.into()),
        age_ns: 1_000 + u64::from(at),
        ..OpSnapshot::default()
    };
    let failure = did.cause.map(|(error, blamed)| FailureSnapshot {
        error: error.into(),
        blamed: blamed.map(Rank),
        text: format!("all say {blamed:?}"),
        age_ns: 900,
    });
    let comm = CommSnapshot { rank: Rank(at), nranks: 4, op, failure, ..CommSnapshot::default() };
    RankSnapshot { rank: Rank(at), state: did.process, comms: vec![comm], ..RankSnapshot::default() }
}

fn check(ranks: &[Did], error: &str, blamed: &[u32]) -> Failure {
    let ranks: Vec<_> = (0..).zip(ranks).map(|(at, did)| rank(at, did)).collect();
    check_ranks(&ranks, error, blamed)
}

fn check_ranks(ranks: &[RankSnapshot], error: &str, blamed: &[u32]) -> Failure {
    let found = failed(ranks);
    let [one] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(one.error, error, "{one:?}");
    assert_eq!(one.blamed.iter().map(|rank| rank.0).collect::<Vec<_>>(), blamed, "{one:?}");
    one.clone()
}

#[test]
fn of_a_mismatch_those_are_to_blame_who_called_something_else_than_most_ranks_did() {
    let fits = with("Mismatch", None);
    let other = Did { kind: "Barrier", ..fits.clone() };
    let calls = |one: &Failure| one.calls.iter().map(|called| called.ranks.len()).collect::<Vec<_>>();
    let one = check(&[fits.clone(), other.clone(), fits.clone(), fits.clone()], "Mismatch", &[1]);
    assert_eq!((one.op.as_str(), one.seq, one.ranks.len(), calls(&one)), ("AllReduce", 7, 4, vec![3, 1]));
    // Two against two, or some were not read: no side is blamed, but the calls of both are listed.
    let one = check(&[fits.clone(), other.clone(), other.clone(), fits.clone()], "Mismatch", &[]);
    assert_eq!(calls(&one), [2, 2]);
    check(&[fits.clone(), fits.clone(), other.clone()], "Mismatch", &[]);
    // One of four had not called, as it was still in the call before: two against one.
    let before = Did { seq: 6, ..fits.clone() };
    check(&[fits.clone(), fits.clone(), other.clone(), before.clone()], "Mismatch", &[2]);
    // Two had not: one against one.
    check(&[fits.clone(), other.clone(), before.clone(), before], "Mismatch", &[]);
    // They differ in an earlier call, or one is ahead: only the message says it.
    let ahead = Did { seq: 8, ..fits.clone() };
    let one = check(&[fits.clone(), fits, ahead], "Mismatch", &[]);
    assert_eq!((one.seq, calls(&one)), (7, vec![]));
}

#[test]
fn of_a_broadcast_those_count_too_who_completed_it_and_called_nothing_since() {
    let fits = Did { kind: "Broadcast", ..with("Mismatch", None) };
    let done = Did { state: OpState::Idle, cause: None, ..fits.clone() };
    let mut ranks: Vec<_> = (0..).zip([&done, &done, &fits, &fits]).map(|(at, did)| rank(at, did)).collect();
    ranks[3].comms[0].op.root = Rank(1);
    let one = check_ranks(&ranks, "Mismatch", &[3]);
    assert_eq!(one.calls.iter().map(|called| called.ranks.len()).collect::<Vec<_>>(), [3, 1]);
}

#[test]
fn ranks_that_are_still_in_the_call_before_do_not_hide_in_which_one_the_others_differ() {
    // Two of eight are in the barrier before.
    let early = Did { kind: "Barrier", seq: 4, ..with("Mismatch", None) };
    let fits = Did { seq: 5, ..with("Mismatch", None) };
    let job = |last: &dyn Fn(&mut CommSnapshot)| {
        let ranks = [&early, &early].into_iter().chain([&fits; 6]);
        let mut ranks: Vec<_> = (0..).zip(ranks).map(|(at, did)| rank(at, did)).collect();
        ranks.iter_mut().for_each(|rank| (rank.comms[0].nranks, rank.comms[0].op.dtype) = (8, "F32".into()));
        last(&mut ranks[2].comms[0]);
        ranks
    };
    let of = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0).collect::<Vec<_>>();
    let one = check_ranks(&job(&|comm| comm.op.dtype = "I32".into()), "Mismatch", &[2]);
    assert_eq!((one.op.as_str(), one.seq, of(&one.ranks)), ("AllReduce", 5, vec![2, 3, 4, 5, 6, 7]));
    assert_eq!(
        one.calls.iter().map(|called| of(&called.ranks)).collect::<Vec<_>>(),
        [vec![3, 4, 5, 6, 7], vec![2]]
    );
    assert_eq!(of(&one.missing), [0, 1]);
    // One has called finish() instead; it has left since.
    let finished = |comm: &mut CommSnapshot| {
        (comm.op.state, comm.op.seq, comm.op.called, comm.ended) = (OpState::Idle, 4, 4, true);
        (comm.op.kind, comm.op.error) = ("Barrier".into(), String::new());
        comm.phases = vec![PhaseSnapshot { phase: Phase::Finish.name().into(), duration_ns: 5 }];
    };
    let one = check_ranks(&job(&finished), "Mismatch", &[2]);
    assert_eq!((one.op.as_str(), one.seq, of(&one.missing)), ("AllReduce", 5, vec![0, 1]));
    assert_eq!(one.calls[1], Called { ranks: vec![Rank(2)], call: "finish()".into() });
    // A rank that has neither called it nor finished is not to blame.
    let late = |comm: &mut CommSnapshot| {
        finished(comm);
        comm.phases.clear();
    };
    check_ranks(&job(&late), "Mismatch", &[]);
}

#[test]
fn of_failed_sends_and_receives_the_one_with_who_is_to_blame_is_told() {
    let mut ranks: Vec<_> =
        (0..2).map(|at| rank(at, &Did { state: OpState::Idle, ..with("Peer", Some(3)) })).collect();
    for (rank, (peer, seq, age_ns)) in ranks.iter_mut().zip([(1, 21, 9), (3, 2565, 5)]) {
        let (kind, state, error, peer) = ("Send".into(), OpState::Failed, "Peer".into(), Some(Rank(peer)));
        rank.comms[0].p2p =
            Some(OpSnapshot { kind, seq, state, error, peer, age_ns, ..OpSnapshot::default() });
    }
    let one = check_ranks(&ranks, "Peer", &[3]);
    assert_eq!((one.op.as_str(), one.seq), ("Send", 2565));
}

#[test]
fn of_a_death_the_one_is_to_blame_on_whom_all_agree() {
    let lost = with("Peer", Some(2));
    let inside = Did { state: OpState::Running, ..FAILED };
    // Rank 1 failed only because a link ended, and learnt no more.
    let alone = with("Peer", None);
    let one = check(&[lost.clone(), alone, inside.clone(), lost.clone()], "Peer", &[2]);
    assert_eq!(one.missing, []);
    assert_eq!((one.ranks.len(), one.text.as_str()), (3, "all say Some(2)"));
    // Outside of any operation: the communicator failed.
    let between = Did { state: OpState::Idle, seq: 3, ..lost.clone() };
    let one = check(&[between, inside.clone()], "Peer", &[2]);
    assert_eq!((one.op.as_str(), one.seq), ("", 0));
    // The operation in which all were blocked on the rank that was killed.
    let late = Did { seq: 6, state: OpState::Idle, cause: None, ..FAILED };
    let one = check(&[lost.clone(), late, inside.clone(), lost.clone()], "Peer", &[2]);
    assert_eq!(one.missing, [Rank(1)]);
    // Written by an earlier version: the rank that is gone and never failed.
    let old = |at: u32| {
        let mut one = rank(at, &FAILED);
        one.comms[0].op.error = "Peer".into();
        one
    };
    check_ranks(&[old(0), old(1), rank(2, &inside)], "Peer", &[2]);
    check(&[with("Aborted", Some(3))], "Aborted", &[3]);
}

#[test]
fn when_time_is_up_those_are_to_blame_who_had_not_called_or_never_noticed() {
    let up = with("Timeout", None);
    let late = Did { seq: 6, state: OpState::Idle, cause: None, ..FAILED };
    let one = check(&[up.clone(), late, up.clone(), up.clone()], "Timeout", &[1]);
    assert_eq!(one.since_ns, 1_003);
    let still = Did { state: OpState::Running, process: State::Stopped, cause: None, ..FAILED };
    let lives = Did { process: State::Running, ..up.clone() };
    check(&[lives, still.clone(), up.clone(), up.clone()], "Timeout", &[1]);
    // Of several that were begun together, the one before it holds it up: all have been called.
    let mut group: Vec<_> = (0..4).map(|at| rank(at, &up)).collect();
    group[1] = rank(1, &Did { seq: 6, ..still.clone() });
    group[1].comms[0].op.called = 14;
    check_ranks(&group, "Timeout", &[1]);
    // Another one is inside of it, and waits for the one that is stopped or has come least far.
    group[2] = rank(2, &Did { process: State::Running, ..still.clone() });
    check_ranks(&group, "Timeout", &[1]);
    group[1].state = State::Running;
    check_ranks(&group, "Timeout", &[1]);
    (group[1].comms[0].op.seq, group[2].state) = (8, State::Stopped);
    check_ranks(&group, "Timeout", &[2]);
    check(&[up.clone(), up.clone(), up.clone(), up.clone()], "Timeout", &[]);
    // The last one came to it when it had failed on the others.
    let mut late: Vec<_> = (0..4).map(|at| rank(at, &up)).collect();
    late.iter_mut().zip([3000, 2990, 1, 1600]).for_each(|(rank, ms)| {
        rank.comms[0].op.lasted_ns = ms * 1_000_000;
    });
    check_ranks(&late, "Timeout", &[2]);
    // A receive without a send.
    let mut receives = rank(0, &Did { state: OpState::Idle, cause: Some(("Timeout", None)), ..FAILED });
    let comm = &mut receives.comms[0];
    let op = OpSnapshot { kind: "Recv".into(), seq: 3, state: OpState::Failed, ..comm.op.clone() };
    comm.p2p = Some(OpSnapshot { error: "Timeout".into(), peer: Some(Rank(1)), ..op });
    let idle = || rank(1, &Did { state: OpState::Idle, cause: None, ..FAILED });
    check_ranks(&[receives.clone(), idle()], "Timeout", &[1]);
    let mut sends = idle();
    sends.comms[0].links.push(LinkSnapshot {
        channel: ChannelId::P2P,
        direction: Direction::Send,
        peer: Some(Rank(0)),
        op: 3,
        ..LinkSnapshot::default()
    });
    check_ranks(&[receives, sends], "Timeout", &[]);
}

#[test]
fn what_did_not_fail_is_no_failure() {
    let runs = Did { state: OpState::Running, process: State::Running, ..FAILED };
    let ranks = [rank(0, &runs), rank(1, &Did { state: OpState::Idle, ..runs })];
    assert_eq!(failed(&ranks), []);
    let waits = |state| BlockedOn { by: vec![Rank(0)], comm: state, ..BlockedOn::default() };
    assert!(is_under_way(&ranks, &waits(CommId(0))));
    let failed = [rank(0, &FAILED), rank(1, &FAILED)];
    assert!(!is_under_way(&failed, &waits(CommId(0))));
}

/// What one rank did last in a communicator: its rank there, the state, the number, how long ago.
type Last = (u32, OpState, u64, u64);

/// Processes 0 to 3, of which 3 is dead; in the communicators of these ids, of which each process
/// but the dead one knows that it is. Checks in which one it was missed.
fn check_missed(processes: [&[(u64, Last)]; 4], first: u64) {
    let dead_in = |comm: u64| processes[3].iter().find(|(id, _)| *id == comm).map(|(_, last)| Rank(last.0));
    let process = |(at, rows): (u32, &&[(u64, Last)])| {
        let row = |&(comm, (rank, state, seq, age_ns)): &(u64, Last)| {
            let failure = FailureSnapshot {
                error: "Peer".into(),
                blamed: dead_in(comm),
                text: "a process ended".into(),
                age_ns: 900,
            };
            let kind = "AllReduce".to_string();
            let op = OpSnapshot { kind, seq, called: seq, state, age_ns, ..OpSnapshot::default() };
            let failure = (at != 3).then_some(failure);
            CommSnapshot { id: CommId(comm), rank: Rank(rank), nranks: 4, op, failure, ..Default::default() }
        };
        let comms = rows.iter().map(row).collect();
        RankSnapshot { rank: Rank(at), state: State::Dead, comms, ..RankSnapshot::default() }
    };
    let ranks: Vec<RankSnapshot> = (0..).zip(&processes).map(process).collect();
    let found = failed(&ranks);
    assert_eq!((found[0].comm, found[0].follows), (CommId(first), None), "{found:?}");
    let follows = |one: &Failure| one.follows == Some(CommId(first));
    assert!(found[1..].iter().all(follows), "{found:?}");
}

#[test]
fn a_process_that_died_between_its_calls_was_missed_where_others_called_first() {
    use OpState::{Failed, Idle, Running};
    // 1: all, used every few steps; 2: processes 1 and 3, after 3: processes 2 and 3.
    let uninvolved = (1, (0, Idle, 4, 9_000));
    check_missed(
        [
            &[uninvolved],
            &[(1, (1, Idle, 4, 9_000)), (2, (0, Failed, 8, 950))],
            &[(1, (2, Idle, 4, 9_000)), (3, (0, Failed, 8, 950))],
            &[(1, (3, Idle, 4, 9_000)), (2, (1, Idle, 7, 4_000)), (3, (1, Idle, 7, 5_000))],
        ],
        3,
    );
    // Process 1 waits where it was missed; who is not concerned has come to the call of all.
    let others = (1, (0, Failed, 5, 950));
    let dead = [(1, (3, Idle, 4, 9_000)), (2, (1, Idle, 7, 5_000)), (3, (1, Idle, 8, 100))];
    let third: &[(u64, Last)] = &[(1, (2, Failed, 5, 950)), (3, (0, Idle, 8, 100))];
    check_missed([&[others], &[(1, (1, Idle, 4, 9_000)), (2, (0, Failed, 8, 950))], third, &dead], 2);
    // Process 1 is late in a call that the dead one had made.
    check_missed([&[others], &[(1, (1, Idle, 4, 9_000)), (2, (0, Failed, 7, 950))], third, &dead], 1);
    // It was inside a call that no other rank had made.
    let dead = [(1, (3, Running, 5, 50)), (2, (1, Idle, 7, 5_000))];
    check_missed([&[uninvolved], &[(2, (0, Failed, 8, 950))], &[(1, (2, Idle, 4, 9_000))], &dead], 1);
}

#[test]
fn the_clocks_of_two_hosts_do_not_say_which_failure_came_first() {
    const MS: u64 = 1_000_000;
    // Process 2, alone on host b, failed in the first communicator by the doing of 1, and has given
    // up the second one 5 ms later. Its clock is `ahead_ms` ahead.
    let ranks = |ahead_ms: i64, change: &dyn Fn(&mut RankSnapshot)| {
        let failed = |comm: u64, error: &str, blamed: u32, ago_ms: u64| {
            let (error, age_ns, text) = (error.into(), ago_ms * MS, String::new());
            let failure = FailureSnapshot { error, blamed: Some(Rank(blamed)), text, age_ns };
            CommSnapshot { id: CommId(comm), failure: Some(failure), ..CommSnapshot::default() }
        };
        let process = |at: u32, host: &str, comms: Vec<CommSnapshot>| {
            let comms = comms.into_iter().map(|row| CommSnapshot { rank: Rank(at), ..row }).collect();
            let to_real_ns = 1_000_000 * MS;
            RankSnapshot { rank: Rank(at), host: host.into(), comms, to_real_ns, ..Default::default() }
        };
        let both = |first: &str| vec![failed(1, first, 1, 100), failed(2, "Aborted", 2, 95)];
        let mut last = process(2, "b", both("Aborted"));
        last.to_real_ns = last.to_real_ns.saturating_add_signed(ahead_ms * MS as i64);
        change(&mut last);
        [process(0, "a", both("Aborted")), process(1, "a", both("Aborted")), last]
    };
    let check = |ahead_ms: i64, change: &dyn Fn(&mut RankSnapshot), expect: Option<u64>| {
        let found = failed(&ranks(ahead_ms, change));
        let second = found.iter().find(|one| one.comm == CommId(2)).unwrap();
        assert_eq!(second.follows, expect.map(CommId), "{ahead_ms} ms: {found:?}");
    };
    for ahead_ms in [-50, 0, 50] {
        check(ahead_ms, &|_| {}, Some(1));
        // It had given up the second one before.
        check(ahead_ms, &|last| last.comms[1].failure.as_mut().unwrap().age_ns = 105 * MS, None);
        // It ended, and did not live to see the second one fail.
        let ends = |state| move |last: &mut RankSnapshot| (last.state, last.comms[1].failure) = (state, None);
        check(ahead_ms, &ends(State::Dead), Some(1));
        check(ahead_ms, &ends(State::Running), None);
    }
}

#[test]
fn where_init_failed_those_who_had_not_come_are_to_blame_for_a_timeout() {
    let failed_in = |phase: Phase, absent: Option<(u32, Rank)>, blamed| {
        let mut rank = rank(0, &Did { seq: 0, state: OpState::Idle, ..with("Timeout", blamed) });
        rank.comms[0].phase = Some(PhaseSnapshot { phase: phase.name().into(), duration_ns: 9 });
        rank.comms[0].init = Some(InitSnapshot {
            absent: absent.map(|(count, _)| count),
            absent_runs: absent.into_iter().map(|(_, last)| (Rank(2), last)).collect(),
            ..InitSnapshot::default()
        });
        rank
    };
    let failed = |absent| failed_in(Phase::CheckIn, absent, None);
    let one = check_ranks(&[failed(Some((1, Rank(2))))], "Timeout", &[2]);
    assert_eq!((one.op.as_str(), &one.missing[..]), (INIT, &[Rank(2)][..]));
    // The root's last report counts; without one nobody is known.
    let mut ranks = [failed(Some((2, Rank(3)))), failed(Some((1, Rank(2)))), failed(None)];
    [0, 1, 3].into_iter().zip(&mut ranks).for_each(|(at, rank)| rank.comms[0].rank = Rank(at));
    check_ranks(&ranks, "Timeout", &[2]);
    check_ranks(&ranks[2..], "Timeout", &[]);
    // One that is stopped in it, which may be the root itself, is to blame; one that waits is not.
    let mut stays = failed(None);
    (stays.comms[0].rank, stays.comms[0].failure, stays.comms[0].ended) = (Rank(1), None, false);
    stays.state = State::Stopped;
    check_ranks(&[stays.clone(), ranks[2].clone()], "Timeout", &[1]);
    stays.state = State::Running;
    check_ranks(&[stays, ranks[2].clone()], "Timeout", &[]);
    // Later, all had come: the failure says whom they waited for. Before, it was for the place.
    let one = check_ranks(&[failed_in(Phase::Exchange, Some((1, Rank(2))), Some(1))], "Timeout", &[1]);
    assert_eq!(one.missing, []);
    let mut waits = failed_in(Phase::Rendezvous, None, Some(0));
    waits.comms[0].rank = Rank(1);
    assert_eq!(check_ranks(&[waits.clone()], "Timeout", &[0]).missing, [Rank(0)]);
    // The machine of one rank kept it from the init, which timed out on the others.
    let mut lacks = failed(None);
    lacks.comms[0].rank = Rank(1);
    lacks.comms[0].failure.as_mut().unwrap().error = "System".into();
    let mut blames = failed_in(Phase::CheckIn, None, Some(0));
    blames.comms[0].rank = Rank(2);
    check_ranks(&[failed(None), lacks, blames], "System", &[1]);
    // Rank 0 could not say where: that is the cause.
    let mut refused = failed_in(Phase::Rendezvous, None, None);
    refused.comms[0].failure.as_mut().unwrap().error = "System".into();
    check_ranks(&[waits, refused], "System", &[0]);
}
