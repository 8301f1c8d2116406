//! Ranks that wait for one that has completed its call of that number.

use super::*;
use crate::snapshot::Direction;

/// Rank 1 is inside AllReduce #5 and has had 3 messages of rank 0; the others are inside Scatter
/// #40. `published` is the number of messages that rank 0 has published for rank 1.
fn passed(published: Option<u64>) -> Snapshot {
    let wait = BlockedOn { culprits: Vec::new(), ..blocked(&[], &[], &[0, 1, 2, 3], 2 * SECOND) };
    let mut job = Snapshot { blocked_on: vec![wait], ..job(&[]) };
    for rank in job.ranks.iter_mut().filter(|rank| rank.rank.0 != 1) {
        let op = &mut rank.comms[0].op;
        (op.kind, op.seq, op.called, op.completed) = ("Scatter".into(), 40, 40, 39);
    }
    let link =
        |peer, direction| LinkSnapshot { peer: Some(Rank(peer)), direction, ..LinkSnapshot::default() };
    let waits = LinkSnapshot {
        moved: 3,
        waits: Waits::Peer,
        since_ns: 2 * SECOND,
        waits_for: Some(Rank(0)),
        ..link(0, Direction::Recv)
    };
    job.ranks[1].comms[0].links = vec![waits];
    let sends = published.map(|posted| LinkSnapshot { posted, ..link(1, Direction::Send) });
    job.ranks[0].comms[0].links.extend(sends);
    job
}

#[test]
fn who_waits_for_one_that_went_on_and_owes_nothing_called_something_else() {
    let found = check(&passed(Some(3)), &[(Class::Mismatch, Reason::Calls, &[1], Standing::Stalled)]);
    let one = &found[0];
    assert_eq!((one.side, one.confidence), (Side::Application, Confidence::Probable));
    assert_eq!(
        one.why,
        "rank 1 (pid 71 on a) called something else than the others as #5 of world: rank 1 waits in \
         AllReduce #5 for rank 0, which has completed its call #5 and owes it no message, for 2.0 s"
    );
    let line = "rank 0: 3 messages published for rank 1 on channel 0, and all have come";
    assert!(one.evidence.iter().any(|seen| seen == line), "{:?}", one.evidence);
    assert!(one.next[0].command.starts_with("ccl-inspect explain"), "{:?}", one.next);
    // As many called the one as the other.
    let mut half = passed(Some(3));
    (half.ranks[2].comms[0].op.seq, half.ranks[2].comms[0].op.completed) = (5, 4);
    let found = check(&half, &[(Class::Mismatch, Reason::Calls, &[], Standing::Stalled)]);
    assert!(found[0].why.starts_with("ranks called different things as #5 of world: rank 1 waits"));
    // No message was ever sent on that lane.
    let mut never = passed(None);
    never.ranks[1].comms[0].links[0].moved = 0;
    check(&never, &[(Class::Mismatch, Reason::Calls, &[1], Standing::Stalled)]);
}

#[test]
fn a_message_that_is_under_way_is_lost_and_only_who_is_inside_is_called_so() {
    for published in [Some(4), None] {
        let found = check(&passed(published), &[(Class::Link, Reason::Lost, &[], Standing::Suspect)]);
        assert_eq!(
            found[0].why,
            "rank 1 is inside AllReduce #5 of world, and rank 1 waits for rank 0, which has completed it: a \
             message is on its way or lost, for 2.0 s"
        );
    }
}

#[test]
fn a_timeout_that_nobody_is_to_blame_for_is_a_mismatch_where_no_message_was_owed() {
    let failure = Failure {
        comm: COMM,
        name: "world".into(),
        error: "Timeout".into(),
        op: "AllReduce".into(),
        seq: 5,
        ranks: ranks(&[1]),
        ..Failure::default()
    };
    let failed = |published| {
        let mut job = passed(published);
        job.blocked_on.clear();
        job.ranks[1].comms[0].op.state = OpState::Failed;
        Snapshot { failures: vec![failure.clone()], ..job }
    };
    check(&failed(Some(3)), &[(Class::Mismatch, Reason::Calls, &[], Standing::Stalled)]);
    check(&failed(Some(4)), &[(Class::StuckLocal, Reason::Inside, &[], Standing::Stalled)]);
}
