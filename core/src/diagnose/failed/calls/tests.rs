use super::*;
use crate::collective::Descriptor;
use crate::failure::gossip::say_both;
use crate::snapshot::{OpWait, State, Waits};
use crate::types::{ChannelId, CollKind, Datatype, ReduceOp};

const RANKS: u32 = 8;

fn descriptor(kind: CollKind, root: u32) -> Descriptor {
    let (dtype, op) = (Datatype::F32, ReduceOp::Sum);
    Descriptor { kind, dtype, op, root: Rank(root), count: 1, seq: 18, plan: 0, uneven: false }
}

fn broadcast(root: u32) -> OpSnapshot {
    OpSnapshot {
        kind: "Broadcast".into(),
        dtype: "F32".into(),
        count: 1,
        seq: 18,
        root: Rank(root),
        ..OpSnapshot::default()
    }
}

/// A rank that has completed call 18 and failed in the next one.
fn past(rank: u32) -> CommSnapshot {
    let (kind, state) = ("AllReduce".into(), OpState::Failed);
    let op = OpSnapshot { kind, state, seq: 19, called: 19, completed: 18, ..OpSnapshot::default() };
    CommSnapshot { rank: Rank(rank), nranks: RANKS, op, ..CommSnapshot::default() }
}

/// A rank that failed in call 18, in which it waited for the root.
fn inside(rank: u32, root: u32) -> CommSnapshot {
    let wait = OpWait { waits: Waits::Peer, peer: Rank(root), ..OpWait::default() };
    let mut comm = past(rank);
    comm.op =
        OpSnapshot { state: OpState::Failed, called: 18, completed: 17, wait: Some(wait), ..broadcast(root) };
    comm
}

/// The calls and the minority: of each call the ranks.
fn found(comms: &[CommSnapshot], text: &str) -> Option<(Vec<Vec<u32>>, Vec<u32>)> {
    let members: Members<'_> = comms.iter().map(|comm| (comm.rank, (State::Dead, comm))).collect();
    let one = differs(&members, text)?;
    let numbers = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0).collect::<Vec<_>>();
    let calls = one.calls.iter().map(|called| numbers(&called.ranks)).collect();
    Some((calls, numbers(&one.minority(&members, RANKS))))
}

fn text(one: (u32, CollKind, u32), other: (u32, CollKind, u32)) -> String {
    let [one, other] = [one, other].map(|(rank, kind, root)| (Rank(rank), descriptor(kind, root)));
    say_both((one.0, &one.1), (other.0, &other.1))
}

#[test]
fn the_message_names_both_calls_as_the_cells_do() {
    let kinds = [CollKind::Broadcast, CollKind::Reduce, CollKind::AllReduce, CollKind::AllGather];
    for kind in kinds {
        let said = said(&text((3, kind, 0), (6, CollKind::Barrier, 0)));
        assert_eq!(said[0].1.kind, kind.name());
        assert_eq!(said.iter().map(|(rank, op)| (rank.0, op.seq)).collect::<Vec<_>>(), [(3, 18), (6, 18)]);
        let op = said[0].1.op.as_str();
        assert_eq!((op, said[1].1.kind.as_str()), (if kind.reduces() { "Sum" } else { "" }, "Barrier"));
    }
    let said_of = said(&text((2, CollKind::Broadcast, 7), (7, CollKind::Broadcast, 0)));
    assert_eq!(said_of, [(Rank(2), broadcast(7)), (Rank(7), broadcast(0))]);
    // One side, a pair, and what nobody wrote.
    let pair = text((2, CollKind::Send, 2), (7, CollKind::Send, 2));
    for other in ["rank 2 called Barrier #1 (count 0, F32); rank 3 called something else", &pair, "", "; "] {
        assert_eq!(said(other), [], "{other}");
    }
}

#[test]
fn ranks_that_went_on_called_what_they_can_have_completed() {
    // Rank 2 waits for rank 7, which has gone on: so have all others, with the root of most.
    let mut comms: Vec<_> = (0..RANKS).map(past).collect();
    comms[2] = inside(2, 7);
    let both = text((2, CollKind::Broadcast, 7), (7, CollKind::Broadcast, 0));
    let expect = (vec![vec![0, 1, 3, 4, 5, 6, 7], vec![2]], vec![2]);
    assert_eq!(found(&comms, &both), Some(expect.clone()));
    // The message names another one than rank 7.
    let other = text((2, CollKind::Broadcast, 7), (4, CollKind::Broadcast, 0));
    assert_eq!(found(&comms, &other), Some(expect));
    // One of many was not read; the message of most was not.
    assert_eq!(found(&comms[1..], &both).map(|(_, minority)| minority), Some(vec![2]));
    let few = [&comms[2], &comms[5], &comms[7]].map(Clone::clone);
    assert_eq!(found(&few, &both), Some((vec![vec![5, 7], vec![2]], vec![])));
    assert_eq!(found(&comms, ""), None);
}

#[test]
fn who_has_taken_nothing_of_another_root_called_what_the_others_called() {
    let link = |peer: Option<u32>, direction, done| LinkSnapshot {
        peer: peer.map(Rank),
        channel: ChannelId(0),
        direction,
        transport: Transport::Shm,
        done,
        ..LinkSnapshot::default()
    };
    // Rank 7 handed out its own message and went on: it heard from nobody.
    let mut comms: Vec<_> = (0..RANKS).map(past).collect();
    comms[7].links.push(link(None, Direction::Send, 15));
    comms[..7].iter_mut().for_each(|comm| comm.links.push(link(Some(7), Direction::Recv, 16)));
    let both = text((4, CollKind::Broadcast, 0), (7, CollKind::Broadcast, 7));
    assert_eq!(found(&comms, &both), Some((vec![vec![0, 1, 2, 3, 4, 5, 6], vec![7]], vec![7])));
    // Half of them took it, or nothing tells: they may have called either.
    comms[..4].iter_mut().for_each(|comm| comm.links[0].done = 17);
    assert_eq!(found(&comms, &both), Some((vec![vec![4, 5, 6], vec![7]], vec![])));
    comms[..7].iter_mut().for_each(|comm| comm.links.clear());
    assert_eq!(found(&comms, &both), Some((vec![vec![4], vec![7]], vec![])));
}

#[test]
fn a_rank_may_have_completed_a_reduce_to_any_other_root() {
    let mut comms: Vec<_> = (0..RANKS).map(past).collect();
    comms[0] = inside(0, 0);
    comms[0].op.kind = "Reduce".into();
    let both = text((0, CollKind::Reduce, 0), (3, CollKind::Reduce, 7));
    assert_eq!(found(&comms, &both), Some((vec![vec![0, 7], vec![3]], vec![])));
}

#[test]
fn the_sides_of_a_pair_are_those_that_the_message_names() {
    let send = Descriptor { count: 65, seq: 6, ..descriptor(CollKind::Send, 0) };
    let text = say_both((Rank(0), &send), (Rank(1), &Descriptor { count: 64, ..send }));
    let calls: Vec<(Vec<Rank>, String)> =
        of_pair(&text).into_iter().map(|one| (one.ranks, one.call)).collect();
    let is = |rank, call: &str| (vec![Rank(rank)], call.to_string());
    assert_eq!(calls, [is(0, "Send #6 of 65 F32 to rank 1"), is(1, "Recv #6 of 64 F32 from rank 0")]);
    assert!(pair(&say_both((Rank(0), &descriptor(CollKind::AllReduce, 0)), (Rank(1), &send))).is_none());
    for other in ["", "rank 0 is gone", "rank 0 called Send #6 (count 65, F32) to rank x; a; b"] {
        assert_eq!(of_pair(other), []);
    }
}
