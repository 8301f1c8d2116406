use crate::diagnose::blocked::blocked_on;
use crate::snapshot::{
    CommSnapshot, Direction, LinkSnapshot, OpSnapshot, OpState, RankSnapshot, State, Transport, Waits,
};
use crate::types::{ChannelId, CommId, Rank};

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// What others wait for: its kind, the ranks named, those that wait.
type Named = (String, Vec<u32>, Vec<u32>);

/// A rank inside call 7 for a second, read at 50 s.
fn rank(at: u32, nranks: u32) -> RankSnapshot {
    let op = OpSnapshot {
        kind: "AllReduce".into(),
        seq: 7,
        called: 7,
        completed: 6,
        state: OpState::Running,
        age_ns: SECOND,
        ..OpSnapshot::default()
    };
    let comm = CommSnapshot { id: CommId(1), rank: Rank(at), nranks, op, ..CommSnapshot::default() };
    let (state, to_real_ns) = (State::Running, 50 * SECOND);
    RankSnapshot { rank: Rank(at), state, comms: vec![comm], to_real_ns, ..RankSnapshot::default() }
}

/// A link with its counters; it waits if it is told for whom.
fn link(
    peer: Option<u32>,
    direction: Direction,
    [posted, moved, done]: [u64; 3],
    waits_for: Option<u32>,
) -> LinkSnapshot {
    let reason = if direction == Direction::Recv { Waits::Peer } else { Waits::Credit };
    LinkSnapshot {
        peer: peer.map(Rank),
        channel: ChannelId(0),
        direction,
        transport: Transport::Shm,
        posted,
        moved,
        done,
        waits: if waits_for.is_some() { reason } else { Waits::Nothing },
        since_ns: if waits_for.is_some() { SECOND } else { 0 },
        waits_for: waits_for.map(Rank),
        ..LinkSnapshot::default()
    }
}

/// Ranks 0 and 1 wait for rank 2, which has noted that it waits for rank 1: the message was handed
/// over, or it was not.
fn ring(is_handed_over: bool) -> Vec<RankSnapshot> {
    let mut ranks: Vec<RankSnapshot> = (0..3).map(|at| rank(at, 3)).collect();
    let sent = if is_handed_over { 107 } else { 105 };
    for (at, links) in [
        (0, vec![link(Some(2), Direction::Recv, [114, 106, 106], Some(2))]),
        (
            1,
            vec![
                link(None, Direction::Send, [sent, sent, 103], None),
                link(Some(2), Direction::Recv, [114, 106, 106], Some(2)),
            ],
        ),
        (
            2,
            vec![
                link(None, Direction::Send, [106, 106, 103], None),
                link(Some(1), Direction::Recv, [113, 105, 105], Some(1)),
            ],
        ),
    ] {
        ranks[at].comms[0].links = links;
    }
    ranks
}

fn named(ranks: &[RankSnapshot]) -> Vec<Named> {
    let numbers = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0).collect::<Vec<_>>();
    let found = blocked_on(ranks);
    let told = found.iter().map(|one| {
        let held: Vec<Rank> = one.missing.iter().chain(&one.inside).copied().collect();
        (one.op.clone(), numbers(&held), numbers(&one.by))
    });
    told.collect()
}

fn all(held: &[u32], by: &[u32]) -> Vec<Named> {
    vec![("AllReduce".into(), held.to_vec(), by.to_vec())]
}

#[test]
fn a_rank_whose_message_has_come_holds_up_the_others_itself() {
    assert_eq!(named(&ring(true)), all(&[2], &[0, 1]));
    assert_eq!(named(&ring(false)), all(&[], &[0, 1, 2]));
    // A message of a socket may be under way; a second lane of the channel may be the one.
    let check = |what: &str, change: &dyn Fn(&mut Vec<RankSnapshot>)| {
        let mut ranks = ring(true);
        change(&mut ranks);
        assert_eq!(named(&ranks), all(&[], &[0, 1, 2]), "{what}");
    };
    check("socket", &|ranks| ranks[2].comms[0].links[1].transport = Transport::Socket);
    check("two lanes", &|ranks| {
        let other = link(Some(2), Direction::Send, [9, 9, 9], None);
        ranks[1].comms[0].links.push(other);
    });
}

#[test]
fn a_message_that_came_after_the_rank_was_read_tells_nothing() {
    // Rank 1 was read later, and has waited since a moment before or after rank 2 was read.
    let read = |later_ms: u64, waited_ms: u64| {
        let mut ranks = ring(true);
        ranks[1].to_real_ns += later_ms * MS;
        ranks[1].comms[0].links[1].since_ns = waited_ms * MS;
        named(&ranks)
    };
    assert_eq!(read(20, 200), all(&[2], &[0, 1]));
    assert_eq!(read(20, 10), all(&[], &[0, 1, 2]));
    assert_eq!(read(0, 20), all(&[], &[0, 1, 2]), "it may be waking up");
    // It could not go on any more.
    let mut ranks = ring(true);
    ranks.iter_mut().for_each(|rank| rank.state = State::Stopped);
    ranks[1].to_real_ns += 20 * MS;
    ranks[1].comms[0].links[1].since_ns = 10 * MS;
    assert_eq!(named(&ranks), all(&[2], &[0, 1]));
}

#[test]
fn a_sender_whose_slot_is_free_holds_up_the_others_itself() {
    // Rank 1 has noted that it waits for a slot of its lane to rank 2, or to all; both wait for it.
    let ring = |offered: [u64; 2], shared: bool| {
        let mut ranks: Vec<RankSnapshot> = (0..3).map(|at| rank(at, 3)).collect();
        let to = (!shared).then_some(2);
        ranks[1].comms[0].links = vec![link(to, Direction::Send, [16, 16, 8], Some(2))];
        for (at, offered) in [(0, offered[0]), (2, offered[1])] {
            let reads = link(Some(1), Direction::Recv, [offered, offered - 8, offered - 8], None);
            let waits = link(Some(1), Direction::Recv, [8, 0, 0], Some(1));
            ranks[at].comms[0].links = vec![reads, LinkSnapshot { channel: ChannelId(1), ..waits }];
            ranks[at].state = State::Stopped;
        }
        ranks[1].state = State::Stopped;
        named(&ranks)
    };
    let [held, cycle] = [all(&[1], &[0, 2]), all(&[], &[0, 1, 2])];
    assert_eq!(ring([16, 16], false), cycle);
    assert_eq!(ring([16, 17], false), held);
    assert_eq!(ring([17, 17], true), held);
    assert_eq!(ring([16, 17], true), cycle, "another reader has not");
}

#[test]
fn a_wait_that_is_over_makes_no_cycle() {
    // Rank 0 waits in communicator 1 for rank 1, which has not called: it has noted that it waits
    // for rank 0 in communicator 2, whose message it has.
    let job = |sent: u64| {
        let mut ranks: Vec<RankSnapshot> = (0..2).map(|at| rank(at, 2)).collect();
        let mut other = ranks.clone();
        ranks[0].comms[0].links = vec![link(Some(1), Direction::Recv, [8, 0, 0], Some(1))];
        let op = &mut ranks[1].comms[0].op;
        (op.seq, op.called, op.state) = (6, 6, OpState::Idle);
        for rank in &mut other {
            let comm = &mut rank.comms[0];
            comm.id = CommId(2);
            let (kind, seq, peer) = (["Send", "Recv"][comm.rank.index()].into(), 628, Some(Rank(0)));
            comm.p2p = Some(OpSnapshot { kind, seq, peer, called: seq, ..comm.op.clone() });
            (comm.op.seq, comm.op.called, comm.op.state) = (6, 6, OpState::Idle);
        }
        let sender = &mut other[0].comms[0];
        sender.p2p.as_mut().unwrap().state = OpState::Idle;
        sender.links = vec![link(Some(1), Direction::Send, [sent, sent, 620], None)];
        other[1].comms[0].links = vec![link(Some(0), Direction::Recv, [630, 626, 626], Some(0))];
        for (rank, mut other) in ranks.iter_mut().zip(other) {
            other.comms[0].links.iter_mut().for_each(|link| link.channel = ChannelId::P2P);
            rank.comms.append(&mut other.comms);
        }
        let found = blocked_on(&ranks);
        found.iter().map(|one| (one.comm.0, one.missing.clone(), one.waits_in.len())).collect::<Vec<_>>()
    };
    assert_eq!(job(628), [(1, vec![Rank(1)], 0)]);
    assert_eq!(job(626).iter().map(|one| one.2).collect::<Vec<_>>(), [1]);
}
