//! Ranks that others wait for in init.

use super::*;
use crate::snapshot::{InitSnapshot, Missing, NotJoined, PhaseSnapshot};
use crate::types::Phase;

/// Ranks 0 to 2 wait in init for rank 3.
fn without_3(since_ns: u64) -> NotJoined {
    NotJoined {
        comm: COMM,
        name: "world".into(),
        nranks: 4,
        count: Some(1),
        ranks: ranks(&[3]),
        by: ranks(&[0, 1, 2]),
        since_ns,
        gives_up_ns: 88 * SECOND,
        nowhere: false,
    }
}

/// Four processes that have begun that init.
fn in_init(since_ns: u64) -> Snapshot {
    let not_joined = vec![without_3(since_ns)];
    let mut job = Snapshot { not_joined, to_real_ns: 9 * SECOND, ..job(&[]) };
    for rank in &mut job.ranks {
        let comm = &mut rank.comms[0];
        (comm.op, comm.init) = (OpSnapshot::default(), Some(InitSnapshot::default()));
        comm.name = "world".into();
    }
    job
}

const IN_12: (Class, Reason, &[u32], Standing) =
    (Class::NotJoined, Reason::NeverJoined, &[3], Standing::Suspect);

#[test]
fn who_never_came_to_init_is_named() {
    let joining = |since_ns| Snapshot { not_joined: vec![without_3(since_ns)], ..Snapshot::default() };
    check(&joining(SECOND - 1), &[]);
    let is = |how| [(Class::NotJoined, Reason::NeverJoined, &[3][..], how)];
    let found = check(&joining(12 * SECOND), &is(Standing::Suspect));
    assert_eq!(
        found[0].why,
        "rank 3 has not come to the init of world; ranks 0-2 wait in init for 12.0 s; init gives up in 88.0 s"
    );
    check(&joining(30 * SECOND), &is(Standing::Stalled));
}

/// Four processes in an init to which all have come, or of which the root has not said who lacks.
fn all_in_init() -> Snapshot {
    let mut job = Snapshot { not_joined: Vec::new(), ..in_init(0) };
    for rank in &mut job.ranks {
        let phase = PhaseSnapshot { phase: Phase::Ring.name().into(), duration_ns: 12 * SECOND };
        rank.comms[0].phase = Some(phase);
        rank.comms[0].init = Some(InitSnapshot { gives_up_ns: 88 * SECOND, ..InitSnapshot::default() });
    }
    job
}

#[test]
fn who_is_stopped_in_an_init_that_all_have_come_to_holds_it_up() {
    let mut job = all_in_init();
    check(&job, &[]);
    job.ranks[1].state = State::Stopped;
    let found = check(&job, &[(Class::StuckLocal, Reason::Stopped, &[1], Standing::Stalled)]);
    assert_eq!(
        found[0].why,
        "rank 1 (pid 71 on a) is stopped, in the init of world; ranks 0,2-3 wait in init for 12.0 s; init \
         gives up in 88.0 s"
    );
    for rank in &mut job.ranks {
        rank.comms[0].phase.as_mut().unwrap().duration_ns = 30 * SECOND;
    }
    check(&job, &[(Class::StuckLocal, Reason::Stopped, &[1], Standing::Stalled)]);
    job.ranks[1].state = State::Dead;
    job.ranks[2].state = State::Running;
    assert!(verdicts(&job, Some(&job), 30 * SECOND).iter().all(|one| one.class != Class::StuckLocal));
}

#[test]
fn who_lacks_descriptors_in_an_init_holds_it_up() {
    let lacks = ProcessFacts { lacks: Some(Lacks::Descriptors), ..ProcessFacts::default() };
    let is = [(Class::StuckLocal, Reason::NoDescriptors, &[1][..], Standing::Stalled)];
    let mut job = all_in_init();
    job.ranks[1].facts = lacks.clone();
    let found = check(&job, &is);
    assert_eq!(
        found[0].why,
        "rank 1 (pid 71 on a) has no file descriptor left for connections, in the init of world; ranks \
         0,2-3 wait in init for 12.0 s; init gives up in 88.0 s"
    );
    assert_eq!(found[0].next[0].command, "ls -l /proc/71/fd");
    // As all others do.
    let mut low = job.clone();
    low.ranks.iter_mut().for_each(|rank| rank.facts = lacks.clone());
    let all = [(Class::StuckLocal, Reason::NoDescriptors, &[0, 1, 2, 3][..], Standing::Stalled)];
    assert_eq!(
        check(&low, &all)[0].why,
        "ranks 0-3 have no file descriptor left for connections, in the init of world"
    );
    // All were killed.
    job.ranks.iter_mut().for_each(|rank| rank.state = State::Dead);
    let found = check(&job, &is);
    let said = "rank 1 (pid 71 on a) had no file descriptor left for connections, in the init of world; \
                ranks 0,2-3 had waited in init for 12.0 s at the last sign of life";
    assert_eq!(found[0].why, said);
    // The root has not heard of it.
    let mut job = in_init(12 * SECOND);
    job.ranks[3].facts = lacks.clone();
    check(&job, &[(Class::StuckLocal, Reason::NoDescriptors, &[3], Standing::Stalled)]);
    // The root cannot hear of any: all others wait for it.
    let mut job = in_init(12 * SECOND);
    job.not_joined[0].by = ranks(&[0]);
    job.not_joined[0].ranks = ranks(&[1, 2, 3]);
    job.ranks[0].facts = lacks.clone();
    let found = check(&job, &[(Class::StuckLocal, Reason::NoDescriptors, &[0], Standing::Stalled)]);
    assert_eq!(found[0].victims, ranks(&[1, 2, 3]));
    // It has timed out on all.
    let failures = vec![Failure {
        comm: COMM,
        error: "Timeout".into(),
        op: crate::diagnose::standing::INIT.into(),
        ranks: ranks(&[0, 1, 2, 3]),
        blamed: ranks(&[1]),
        culprits: culprits(&[1]),
        ..Failure::default()
    }];
    let mut job = Snapshot { failures, not_joined: Vec::new(), ..in_init(0) };
    job.ranks[0].facts = lacks;
    job.ranks[0].comms[0].failure = Some(FailureSnapshot { error: "Timeout".into(), ..Default::default() });
    check(&job, &[(Class::StuckLocal, Reason::NoDescriptors, &[0], Standing::Stalled)]);
    // A shortage that was read long after the time-out is not its cause.
    job.failures[0].since_ns = 60 * SECOND;
    check(&job, &[(Class::StuckLocal, Reason::Inside, &[1], Standing::Stalled)]);
}

#[test]
fn whom_nobody_waits_for_is_told_after_whom_others_wait_for() {
    let blocked_on = vec![blocked(&[2], &[], &[0, 1], 3 * SECOND)];
    let mut job = Snapshot { blocked_on, ..job(&[2]) };
    (job.ranks[3].state, job.ranks[3].heartbeat_ns) = (State::Stopped, 9 * SECOND);
    check(
        &job,
        &[
            (Class::NotJoined, Reason::UserCode, &[2], Standing::Suspect),
            (Class::StuckLocal, Reason::Stopped, &[3], Standing::Suspect),
        ],
    );
}

#[test]
fn who_leads_an_init_and_is_stopped_holds_it_up() {
    let mut job = in_init(12 * SECOND);
    job.ranks[0].letter = Some('D');
    check(&job, &[IN_12]);
    job.ranks[0].state = State::Stopped;
    let found = check(&job, &[(Class::StuckLocal, Reason::Stopped, &[0], Standing::Stalled)]);
    assert_eq!(
        found[0].why,
        "rank 0 (pid 70 on a) is stopped, and leads the init of world; ranks 1-3 wait in init for 12.0 s; \
         init gives up in 88.0 s"
    );
    // Beside it, one of whom nothing is known has not come either, as the leader had reported.
    job.ranks.pop();
    job.missing = vec![Missing { rank: Rank(3), ..Missing::default() }];
    let found = check(&job, &[(Class::StuckLocal, Reason::Stopped, &[0], Standing::Stalled), IN_12]);
    assert_eq!(found[1].confidence, Confidence::Possible);
    job.not_joined[0].count = None;
    check(&job, &[(Class::StuckLocal, Reason::Stopped, &[0], Standing::Stalled)]);
}

#[test]
fn who_died_or_is_stopped_on_the_way_to_init_has_not_just_failed_to_come() {
    let mut job = in_init(12 * SECOND);
    (job.ranks[3].state, job.ranks[3].to_real_ns) = (State::Dead, 5 * SECOND);
    let found = check(&job, &[(Class::PeerDead, Reason::Killed, &[3], Standing::Stalled)]);
    assert_eq!(found[0].why, "rank 3 (pid 73 on a) was killed; others wait for it in the init of world");
    assert_eq!(found[0].victims, ranks(&[0, 1, 2]));
    // One that the root had heard of, and that exited, beside one that has not come.
    let mut both = in_init(12 * SECOND);
    (both.ranks[1].state, both.ranks[1].facts.end) = (State::Exited, End::Exited);
    check(&both, &[(Class::PeerDead, Reason::Exited, &[1], Standing::Stalled), IN_12]);
    // It gave the init up by itself, which is told as a failure, and lives.
    let mut gave_up = in_init(12 * SECOND);
    gave_up.ranks[3].state = State::Left;
    gave_up.ranks[3].comms[0].ended = true;
    gave_up.ranks[3].comms[0].failure = Some(FailureSnapshot::default());
    check(&gave_up, &[]);
    // Its launcher has started it again.
    let mut again = job.ranks[3].clone();
    (again.state, again.pid) = (State::Running, 99);
    job.ranks.push(again);
    check(&job, &[IN_12]);
    // It died before it began this init, which has all ranks of the job.
    let mut before = in_init(12 * SECOND);
    before.ranks[3].state = State::Dead;
    before.ranks[3].comms[0].id = CommId(9);
    let found = check(&before, &[(Class::PeerDead, Reason::Killed, &[3], Standing::Suspect)]);
    let said = "rank 3 (pid 73 on a) was killed, and has not come to the init of world; ranks 0-2 wait";
    assert!(found[0].why.starts_with(said), "{}", found[0].why);
    let mut stopped = in_init(12 * SECOND);
    stopped.ranks[3].state = State::Stopped;
    let found = check(&stopped, &[(Class::StuckLocal, Reason::Stopped, &[3], Standing::Stalled)]);
    let said = "rank 3 (pid 73 on a) is stopped, in the init of world; ranks 0-2 wait in init for 12.0 s";
    assert!(found[0].why.starts_with(said), "{}", found[0].why);
}

#[test]
fn where_all_were_killed_in_init_nobody_waits_any_more() {
    let mut job = in_init(12 * SECOND);
    job.ranks.pop();
    job.not_joined[0].gives_up_ns = 0;
    job.ranks.iter_mut().for_each(|rank| rank.state = State::Dead);
    let found = check(&job, &[IN_12]);
    let said = "rank 3 had not come to the init of world; \
                ranks 0-2 had waited in init for 12.0 s at the last sign of life";
    assert_eq!(found[0].why, said);
    // The last one had come, and the root, which was stopped, did not learn it.
    let mut all = in_init(12 * SECOND);
    for rank in &mut all.ranks {
        rank.state = State::Dead;
        rank.to_real_ns = if rank.rank == Rank(0) { 3 * SECOND } else { 9 * SECOND };
        let phase = PhaseSnapshot { phase: Phase::CheckIn.name().into(), duration_ns: 12 * SECOND };
        rank.comms[0].phase = Some(phase);
    }
    let found = check(&all, &[(Class::PeerDead, Reason::Killed, &[0, 1, 2, 3], Standing::Stalled)]);
    assert_eq!(found[0].why, "ranks 0-3 were killed; they had been in init for 12.0 s");
}

#[test]
fn an_init_that_failed_is_told_by_its_kind() {
    let failed = |error: &str, blamed: &[u32]| Failure {
        comm: COMM,
        name: "world".into(),
        error: error.into(),
        op: crate::diagnose::standing::INIT.into(),
        ranks: ranks(&[0, 1, 2]),
        blamed: ranks(blamed),
        ..Failure::default()
    };
    let told = |failure: Failure, what| {
        let mut job = Snapshot { failures: vec![failure], not_joined: Vec::new(), ..in_init(0) };
        job.ranks.pop();
        let found = check(&job, &[what]);
        found[0].why.split(';').next().unwrap_or_default().to_string()
    };
    let never = (Class::NotJoined, Reason::NeverJoined, &[3][..], Standing::Stalled);
    let timeout = Failure { missing: ranks(&[3]), ..failed("Timeout", &[3]) };
    assert_eq!(told(timeout, never), "rank 3 has not come to init() of world, which timed out");
    // One of them was killed before the last one came.
    let culprits = vec![Culprit { rank: Rank(1), pid: 71, host: "a".into() }];
    let killed = Failure { missing: ranks(&[3]), culprits, ..failed("Peer", &[1]) };
    let mut job = Snapshot { failures: vec![killed], not_joined: Vec::new(), ..in_init(0) };
    job.ranks.pop();
    job.ranks[1].state = State::Dead;
    let found = check(&job, &[(Class::PeerDead, Reason::Killed, &[1], Standing::Stalled)]);
    assert!(found[0].why.ends_with("; rank 3 had not come to it"), "{}", found[0].why);
    // In a communicator of some of the ranks, its number is none of the job's.
    let dp = Failure { name: "dp".into(), missing: ranks(&[1]), ..failed("Timeout", &[1]) };
    let mut job = Snapshot { failures: vec![dp], not_joined: Vec::new(), ..in_init(0) };
    job.ranks.iter_mut().for_each(|rank| rank.comms[0].nranks = 2);
    job.ranks[2].comms[0].rank = Rank(0);
    for at in [0, 1, 3] {
        job.ranks[at].comms[0].id = CommId(9);
    }
    let found = check(&job, &[(Class::NotJoined, Reason::NeverJoined, &[], Standing::Stalled)]);
    assert!(
        found[0].why.starts_with("rank 1 of dp has not come to its init, which timed out"),
        "{}",
        found[0].why
    );
    let refused = failed("System", &[1]);
    let aborts = (Class::Aborted, Reason::Aborts, &[1][..], Standing::Stalled);
    assert_eq!(told(refused, aborts), "rank 1 could not complete init() of world: System");
    let differ = (Class::Mismatch, Reason::Calls, &[][..], Standing::Stalled);
    assert_eq!(told(failed("Mismatch", &[]), differ), "the ranks do not fit together in init() of world");
}
