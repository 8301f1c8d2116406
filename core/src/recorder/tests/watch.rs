//! What the watchdog reads of a recorder, and what it writes into it.

use std::time::Duration;

use super::*;
use crate::snapshot::{Class, Reason, StallTold, Standing};
use crate::types::BlameHash;

#[test]
fn operations_that_last_are_found_until_they_end_or_fail() {
    let recorder = Recorder::heap();
    let under_way = |ms| recorder.under_way(Duration::from_millis(ms));
    let row = recorder.comm(INFO);
    assert_eq!(under_way(0), []);
    row.called(&descriptor(CollKind::AllReduce, 7), None, ago(500));
    let [(comm, rank, waited)] = under_way(400)[..] else { panic!("{:?}", under_way(0)) };
    assert_eq!((comm, rank), (INFO.id, INFO.rank));
    assert!(waited >= Duration::from_millis(490), "{waited:?}");
    assert_eq!(under_way(60_000), []);
    row.completed(&descriptor(CollKind::AllReduce, 7), Times::between(ago(500), clock::raw()));
    assert_eq!(under_way(0), []);
    row.p2p_called(&descriptor(CollKind::Send, 1), None, Rank(2), ago(300));
    // Nobody waits for one that was only begun.
    for (attention, count) in [(Attention::Nobody, 0), (Attention::Task, 1), (Attention::Thread, 1)] {
        row.p2p_waits(Some(OpWait {
            reason: WaitReason::Peer,
            channel: ChannelId::P2P,
            direction: Direction::Send,
            peer: Rank(2),
            since: ago(300),
            attention,
        }));
        assert_eq!(under_way(200).len(), count, "{attention:?}");
        let wait = read(&recorder).comms[0].p2p.clone().unwrap().wait.unwrap();
        assert_eq!((wait.unattended, wait.polled), (count == 0, attention == Attention::Task));
        assert_eq!(wait.direction, snapshot::Direction::Send);
    }
    row.ended_by(ErrorKind::Peer as u8, None, "rank 2 is gone", clock::raw());
    assert_eq!(under_way(0), []);
    let other = recorder.comm(CommInfo { id: CommId(9), ..INFO });
    other.called(&descriptor(CollKind::Barrier, 1), None, ago(100));
    assert_eq!(under_way(50).len(), 1);
    drop(other);
    assert_eq!(under_way(50), []);
}

#[test]
fn what_was_told_last_stands_until_it_is_over_and_is_harmless() {
    let recorder = Recorder::heap();
    let told = || read(&recorder).facts.stall;
    assert_eq!(told(), None);
    let stall = StallTold {
        standing: Standing::Stalled,
        class: Class::StuckLocal,
        reason: Reason::Stopped,
        by: Some(Rank(2)),
        is_own: true,
        ago_ns: 0,
        key: BlameHash(77),
        text: "rank 3 is stopped\u{1b}[2J".into(),
    };
    recorder.tell_stall(Some(&stall));
    let seen = told().unwrap();
    let text = "rank 3 is stopped\\u{1b}[2J".to_string();
    assert_eq!(seen, StallTold { ago_ns: seen.ago_ns, text, ..stall.clone() });
    recorder.tell_stall(Some(&StallTold { by: None, is_own: false, text: "x".repeat(5000), ..stall }));
    let seen = told().unwrap();
    assert_eq!((seen.by, seen.is_own, seen.text.len()), (None, false, (layout::watch::TEXT_WORDS - 1) * 8));
    recorder.tell_stall(None);
    assert_eq!(told(), None);
}
