//! Links over queue pairs: work that stands, and work that failed.

use super::*;
use crate::snapshot::{Direction, QueuePairSnapshot, QueuePairState, WorkFailure};

fn pair(completed_ns: u64) -> QueuePairSnapshot {
    QueuePairSnapshot {
        device: "rxe0".into(),
        port: 1,
        number: 17,
        address: "10.89.0.1".into(),
        peer_number: 18,
        peer_address: "10.89.0.2".into(),
        state: QueuePairState::ReadyToSend,
        posted: 9,
        completed: 7,
        completed_ns: Some(completed_ns),
        ..QueuePairSnapshot::default()
    }
}

/// A link on which messages are unanswered.
fn sends() -> LinkSnapshot {
    LinkSnapshot { direction: Direction::Send, posted: 9, moved: 7, ..LinkSnapshot::default() }
}

/// Rank 0 waits for rank 2, to which it has this queue pair.
fn waits_over(mut job: Snapshot, pair: QueuePairSnapshot) -> Snapshot {
    let peer = Some(Rank(2));
    let link = LinkSnapshot { peer, queue_pairs: vec![pair], ..sends() };
    job.ranks[0].comms[0].links = vec![link];
    let link = WaitingLink { rank: Rank(0), peer: Rank(2), ..WaitingLink::default() };
    job.blocked_on = vec![BlockedOn { link: Some(link), ..blocked(&[], &[2], &[0, 1, 3], 4 * SECOND) }];
    job
}

#[test]
fn a_queue_pair_whose_writes_stand_is_blamed_with_its_device_and_both_ends() {
    let is = |class, reason| [(class, reason, &[2][..], Standing::Suspect)];
    let stands = waits_over(job(&[]), pair(600 * SECOND));
    let found = verdicts(&stands, None, 30 * SECOND);
    assert_eq!(
        (found[0].class, found[0].reason, found[0].side),
        (Class::Link, Reason::Unreachable, Side::Network)
    );
    let line = "queue pair 17 on rxe0 port 1 (10.89.0.1) to 18 (10.89.0.2) is RTS, 2 of 9 writes unanswered for 3.0 s";
    assert!(found[0].evidence.iter().any(|has| has == line), "{found:#?}");
    assert_eq!(found[0].next[0].command, "rdma link show");
    // A send and its receive wait for each other, which is no circle; and the end that writes knows
    // more than the one that waits for data.
    let mut both = waits_over(job(&[]), pair(600 * SECOND));
    let link = both.blocked_on[0].link.clone();
    let one = |op: &str, to, from, since_ns| BlockedOn {
        op: op.into(),
        link: link.clone(),
        ..blocked(&[], &[to], &[from], since_ns)
    };
    both.blocked_on = vec![one("Recv", 0, 2, 5 * SECOND), one("Send", 2, 0, 4 * SECOND)];
    let found = check(&both, &[(Class::Link, Reason::Unreachable, &[2], Standing::Stalled)]);
    let why = "nothing that rank 0 writes from rxe0 port 1 to rank 2 (10.89.0.2) is answered: port, cable or switch, or its \
               host; rank 0 waits for it in Send #5 of world for 4.0 s";
    assert_eq!(found[0].why, why);
    // What completed lately, and all that was written.
    check(&waits_over(job(&[]), pair(SECOND - 1)), &is(Class::StuckLocal, Reason::Inside));
    let all = QueuePairSnapshot { completed: 9, ..pair(600 * SECOND) };
    check(&waits_over(job(&[]), all), &is(Class::StuckLocal, Reason::Inside));
    // What a reader wrote: nobody awaits its answer.
    let mut notices = waits_over(job(&[]), pair(600 * SECOND));
    notices.ranks[0].comms[0].links[0].direction = Direction::Recv;
    check(&notices, &is(Class::StuckLocal, Reason::Inside));
    // Completions that nobody looks for.
    let mut stopped = waits_over(job(&[]), pair(600 * SECOND));
    stopped.ranks[2].state = State::Stopped;
    let own = std::mem::take(&mut stopped.ranks[0].comms[0].links[0].queue_pairs);
    let link = LinkSnapshot { peer: Some(Rank(0)), queue_pairs: own, ..sends() };
    stopped.ranks[2].comms[0].links = vec![link];
    let found = verdicts(&stopped, None, 30 * SECOND);
    assert_eq!((found[0].class, found[0].reason), (Class::StuckLocal, Reason::Stopped));
    assert!(!found[0].evidence.iter().any(|line| line.contains("queue pair")), "{found:#?}");
}

#[test]
fn a_failure_of_a_queue_pair_names_the_first_that_failed() {
    let failed = |status, name: &str, ago_ns| {
        let error = WorkFailure { status, name: name.into(), vendor: 0, ago_ns };
        QueuePairSnapshot { error: Some(error), ..pair(SECOND) }
    };
    let mut job = job(&[]);
    for (rank, pair) in [
        (0, failed(12, "RETRY_EXC_ERR", SECOND)),
        (1, failed(5, "WR_FLUSH_ERR", 3 * SECOND)),
        (2, failed(12, "RETRY_EXC_ERR", 2 * SECOND)),
    ] {
        let peer = Some(Rank(3));
        job.ranks[rank].comms[0].links =
            vec![LinkSnapshot { peer, queue_pairs: vec![pair], ..LinkSnapshot::default() }];
    }
    job.failures = vec![Failure {
        comm: COMM,
        name: "world".into(),
        error: "Peer".into(),
        op: "AllReduce".into(),
        seq: 5,
        ranks: ranks(&[0, 1, 2, 3]),
        ..Failure::default()
    }];
    let found = check(&job, &[(Class::Link, Reason::Unreachable, &[], Standing::Stalled)]);
    let why = "the link of AllReduce #5 of world between rank 2 (rxe0 port 1) and rank 3 (10.89.0.2) failed, and no \
               process is to blame: host or network";
    assert!(found[0].why.starts_with(why), "{found:#?}");
    let lines: Vec<&String> = found[0].evidence.iter().filter(|line| line.contains("queue pair")).collect();
    assert_eq!(lines.len(), 2, "{found:#?}");
    assert!(lines[0].starts_with("rank 2: queue pair 17 on rxe0 port 1 (10.89.0.1) to 18 (10.89.0.2) failed 2.0 s ago with RETRY_EXC_ERR (12): "), "{found:#?}");
}

#[test]
fn what_stood_when_a_call_timed_out_is_blamed_and_so_is_what_the_machine_refused() {
    let failed = |error: &str, text: &str| Failure {
        comm: COMM,
        name: "world".into(),
        error: error.into(),
        text: text.into(),
        op: "AllReduce".into(),
        seq: 5,
        since_ns: 20 * SECOND,
        ranks: ranks(&[0, 1, 2, 3]),
        ..Failure::default()
    };
    let mut late = waits_over(job(&[]), pair(45 * SECOND));
    late.blocked_on.clear();
    late.failures = vec![failed("Timeout", "")];
    let found = check(&late, &[(Class::Link, Reason::Unreachable, &[], Standing::Stalled)]);
    let why = "the link of AllReduce #5 of world between rank 0 (rxe0 port 1) and rank 2 (10.89.0.2) carried nothing until \
               it timed out";
    assert!(found[0].why.starts_with(why), "{found:#?}");
    assert!(found[0].evidence.iter().any(|line| line.contains("2 of 9 writes unanswered")), "{found:#?}");
    // What completed until shortly before says nothing.
    late.ranks[0].comms[0].links[0].queue_pairs[0].completed_ns = Some(20 * SECOND);
    check(&late, &[(Class::StuckLocal, Reason::Inside, &[], Standing::Stalled)]);

    late.failures = vec![failed("System", "registering memory on rxe1 port 1: Cannot allocate memory")];
    let found = check(&late, &[(Class::Aborted, Reason::Aborts, &[], Standing::Stalled)]);
    assert_eq!(found[0].side, Side::Machine);
    assert!(
        found[0].why.starts_with("AllReduce #5 of world failed: registering memory on rxe1 port 1"),
        "{found:#?}"
    );
}
