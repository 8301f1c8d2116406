//! The first symptom is not the cause, or nobody waits yet.

use super::*;
use crate::types::BlameHash;

#[test]
fn a_death_that_nobody_has_noticed_is_told() {
    let mut job = Snapshot { to_real_ns: 9 * SECOND, ..job(&[0, 1, 2, 3]) };
    (job.ranks[2].state, job.ranks[2].to_real_ns) = (State::Dead, 8 * SECOND);
    check(&job, &[(Class::PeerDead, Reason::Killed, &[2], Standing::Suspect)]);
    job.ranks[2].to_real_ns = 5 * SECOND;
    let found = check(&job, &[(Class::PeerDead, Reason::Killed, &[2], Standing::Stalled)]);
    assert_eq!(found[0].victims, ranks(&[0, 1, 3]));
    let said = "rank 2 (pid 72 on a) was killed, and nobody waits for it yet; the next call of ";
    assert!(found[0].why.starts_with(said), "{}", found[0].why);
    // The others have left that communicator, or it has failed there: they know.
    let mut left = job.clone();
    left.ranks.iter_mut().filter(|rank| rank.rank.0 != 2).for_each(|rank| rank.comms[0].ended = true);
    check(&left, &[]);
    let failure = FailureSnapshot { error: "Peer".into(), ..FailureSnapshot::default() };
    job.ranks.iter_mut().for_each(|rank| rank.comms[0].failure = Some(failure.clone()));
    check(&job, &[]);
}

#[test]
fn a_stopped_process_that_others_waited_for_until_they_failed_is_told_with_them() {
    let mut job = job(&[0, 3]);
    (job.ranks[1].state, job.ranks[1].heartbeat_ns) = (State::Stopped, 2 * SECOND);
    let expect = [(Class::StuckLocal, Reason::Stopped, &[1][..], Standing::Suspect)];
    let found = check(&job, &expect);
    assert_eq!(found[0].why, "rank 1 (pid 71 on a) is stopped, and nobody waits for it yet");
    // Rank 2 failed, and rank 0 was killed there.
    let waits = |rank: &mut RankSnapshot, state: OpState| {
        let row = &mut rank.comms[0];
        row.name = "world".into();
        (row.op.state, row.op.seq) = (state, 5);
        row.op.wait = Some(OpWait { waits: Waits::Peer, peer: Rank(1), ..OpWait::default() });
        row.ended = true;
    };
    waits(&mut job.ranks[2], OpState::Failed);
    let found = check(&job, &expect);
    let said = "rank 1 (pid 71 on a) is stopped; rank 2 waited for it in AllReduce #5 of world until it failed \
                or ended";
    assert_eq!((found[0].why.as_str(), &found[0].victims), (said, &ranks(&[2])));
    waits(&mut job.ranks[0], OpState::Running);
    job.ranks[0].state = State::Left;
    assert_eq!(check(&job, &expect)[0].victims, ranks(&[0, 2]));
}

#[test]
fn what_happened_on_a_rank_that_is_gone_is_as_long_ago_as_its_kernel_tells() {
    let mut job = Snapshot { blocked_on: vec![blocked(&[], &[2, 3], &[0, 1], 4 * SECOND)], ..job(&[]) };
    for rank in &mut job.ranks {
        (rank.boot_id, rank.to_mono_ns) = ("k".into(), 10 * SECOND);
    }
    for rank in &mut job.ranks[2..] {
        (rank.state, rank.to_mono_ns, rank.facts.end) = (State::Exited, 6 * SECOND, End::Exited);
    }
    job.ranks[2].comms[0].op.age_ns = 11_000;
    let line = |job: &Snapshot, state: OpState| {
        let mut job = job.clone();
        job.ranks[2].comms[0].op.state = state;
        let found = check(&job, &[(Class::PeerDead, Reason::Exited, &[2, 3], Standing::Stalled)]);
        found[0].evidence.iter().find(|line| line.contains("AllReduce")).cloned().unwrap_or_default()
    };
    assert_eq!(line(&job, OpState::Failed), "rank 2: AllReduce #5 failed 4.0 s ago");
    let said = "rank 2: it was inside AllReduce #5, for 11.0 us, when it ended";
    assert_eq!(line(&job, OpState::Running), said);
    assert_eq!((job.since_gone_ns(&job.ranks[2]), job.since_gone_ns(&job.ranks[0])), (4 * SECOND, 0));
    // Another kernel has another clock.
    job.ranks[2].boot_id = "other".into();
    assert_eq!(line(&job, OpState::Failed), "rank 2: AllReduce #5 failed 11.0 us ago");
}

#[test]
fn what_a_watchdog_gave_up_for_is_the_cause() {
    let failure = Failure {
        comm: COMM,
        name: "world".into(),
        error: "Aborted".into(),
        op: "AllReduce".into(),
        seq: 5,
        ranks: ranks(&[0, 1, 3]),
        blamed: ranks(&[0]),
        culprits: culprits(&[0]),
        text: "rank 0 aborted: CCL_ON_STALL=abort: rank 2 has not called AllReduce #5".into(),
        ..Failure::default()
    };
    let mut job = Snapshot { failures: vec![failure], ..job(&[2]) };
    check(&job, &[(Class::Aborted, Reason::Aborts, &[0], Standing::Stalled)]);
    let told = StallTold {
        standing: Standing::Stalled,
        class: Class::NotJoined,
        reason: Reason::UserCode,
        key: Verdict { culprits: culprits(&[2]), ..Verdict::default() }.key(),
        text: "rank 2 has not called AllReduce #5".into(),
        ..StallTold::default()
    };
    job.ranks[0].facts.stall = Some(told.clone());
    let found = check(&job, &[(Class::NotJoined, Reason::UserCode, &[2], Standing::Stalled)]);
    assert_eq!(
        found[0].why,
        "rank 2 has not called AllReduce #5; because of that the watchdog of rank 0 gave it up \
         (CCL_ON_STALL=abort)"
    );
    // Of several that were to blame, the text names them.
    job.ranks[0].facts.stall = Some(StallTold { key: BlameHash(1), ..told });
    check(&job, &[(Class::NotJoined, Reason::UserCode, &[], Standing::Stalled)]);
}

#[test]
fn a_job_whose_processes_were_all_killed_between_calls_is_not_healthy() {
    let mut job = job(&[0, 1, 2, 3]);
    job.ranks.iter_mut().for_each(|rank| rank.state = State::Dead);
    let found = check(&job, &[(Class::PeerDead, Reason::Killed, &[0, 1, 2, 3], Standing::Stalled)]);
    assert_eq!(found[0].why, "ranks 0-3 were killed; nobody had waited for long");
    assert!(found[0].next[0].command.starts_with("journalctl"), "{:?}", found[0].next);
    // One panicked, and one has left.
    job.ranks[1].facts.end = End::Panicked;
    (job.ranks[2].state, job.ranks[2].comms[0].ended) = (State::Left, true);
    let killed = (Class::PeerDead, Reason::Killed, &[0, 3][..], Standing::Stalled);
    check(&job, &[killed, (Class::PeerDead, Reason::Panicked, &[1], Standing::Stalled)]);
    // A program that returns without finish() is usual.
    job.ranks[1].facts.end = End::Exited;
    check(&job, &[killed]);
    // All had left the communicator.
    job.ranks.iter_mut().for_each(|rank| rank.comms[0].ended = true);
    check(&job, &[]);
}

#[test]
fn what_a_send_waits_for_is_a_receive() {
    let sends = BlockedOn { op: "Send".into(), seq: 1, ..blocked(&[2], &[], &[0], 60 * SECOND) };
    let job = Snapshot { blocked_on: vec![sends], ..job(&[0, 1, 2, 3]) };
    let found = check(&job, &[(Class::NotJoined, Reason::UserCode, &[2], Standing::Stalled)]);
    let said =
        "rank 2 (pid 72 on a) has not called Recv for Send #1 of world and is in user code; rank 0 waits";
    assert!(found[0].why.starts_with(said), "{}", found[0].why);
}
