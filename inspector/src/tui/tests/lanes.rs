//! Operations whose ranks have both a shared lane and lanes of their own: what the screens say of
//! them, and which links the Rings screen shows.

use ccl::snapshot::{
    BlockedOn, CommSnapshot, Direction, LinkSnapshot, OpSnapshot, OpState, RankSnapshot, Snapshot, State,
    Transport, Waits,
};
use ccl::types::{CommId, Rank};
use crossterm::event::KeyCode;

use super::{SECOND, app, drawn, jobs, press};

const RANKS: u32 = 3;

/// The links of a rank that has moved 1 message on shared lanes, which come last, and 700 on those
/// of its own; it waits for rank 2 if that sends to it.
fn links(me: u32, sends: impl Fn(u32, u32) -> bool) -> Vec<LinkSnapshot> {
    let mut links = Vec::new();
    let link = |peer: Option<u32>, direction, moved, shared| LinkSnapshot {
        peer: peer.map(Rank),
        direction,
        transport: Transport::Shm,
        posted: moved,
        moved,
        done: moved,
        bytes: (moved - 1) * 64,
        shared,
        ..LinkSnapshot::default()
    };
    for peer in (0..RANKS).filter(|peer| *peer != me) {
        links.extend(sends(me, peer).then(|| link(Some(peer), Direction::Send, 700, false)));
        if sends(peer, me) {
            let mut own = link(Some(peer), Direction::Recv, 700, false);
            if peer == 2 {
                (own.waits, own.since_ns, own.waits_for) = (Waits::Peer, 4 * SECOND, Some(Rank(2)));
            }
            links.push(own);
        }
        links.push(link(Some(peer), Direction::Recv, 1, true));
    }
    links.push(link(None, Direction::Send, 1, true));
    links
}

/// A job whose rank 2 is stopped in an operation of this kind.
fn job(kind: &str, sends: impl Fn(u32, u32) -> bool) -> Snapshot {
    let rank = |me: u32| {
        let op = OpSnapshot {
            kind: kind.into(),
            seq: 7,
            state: OpState::Running,
            called: 7,
            started: 7,
            completed: 6,
            dtype: "F32".into(),
            op: "Sum".into(),
            root: Rank(1),
            count: 4096,
            bytes: 16 << 10,
            algorithm: "Pairwise".into(),
            ..OpSnapshot::default()
        };
        let comm = CommSnapshot {
            id: CommId(1),
            name: "world".into(),
            rank: Rank(me),
            nranks: RANKS,
            op,
            links: links(me, &sends),
            ..CommSnapshot::default()
        };
        let state = if me == 2 { State::Stopped } else { State::Running };
        RankSnapshot { rank: Rank(me), state, comms: vec![comm], ..RankSnapshot::default() }
    };
    let blocked_on = BlockedOn {
        comm: CommId(1),
        op: kind.into(),
        seq: 7,
        inside: vec![Rank(2)],
        by: vec![Rank(1)],
        since_ns: 4 * SECOND,
        ..BlockedOn::default()
    };
    Snapshot {
        complete: true,
        blocked_on: vec![blocked_on],
        ranks: (0..RANKS).map(rank).collect(),
        ..Snapshot::default()
    }
}

fn screen(job: Snapshot, key: char) -> String {
    let mut app = app(job, (140, 24));
    press(&mut app, KeyCode::Char(key));
    drawn(&app)
}

#[test]
fn the_rings_of_pairs_show_the_lanes_that_the_operation_uses() {
    let check = |kind: &str, sends: fn(u32, u32) -> bool, expect: &[&str]| {
        let screen = screen(job(kind, sends), '3');
        for line in expect {
            assert!(screen.contains(line), "{kind}: no {line:?} in\n{screen}");
        }
    };
    let to_all = [
        "each rank sends to each directly; the links that are up are drawn",
        "ch0 6 ways between 3 ranks: 0 1 ✱2",
        "0 ◂✗ ✱2   1 ◂✗ ✱2",
        "ch0        2     1   shm   700   700      ◦ 1 waits for 2  4.0 s  43.7 KiB",
        "ch0 all    2     1   shm   1     1        · not used in it        0 B",
    ];
    check("AllToAll", |_, _| true, &to_all);
    let to_root = [
        "all send to the root 1; the links that are up are drawn",
        "ch0 2 ways between 3 ranks: 0 1 ✱2",
        "1 ◂✗ ✱2",
        "ch0        2     1   shm   700   700      ◦ 1 waits for 2",
    ];
    check("Gather", |_, to| to == 1, &to_root);
    check("Scatter", |from, _| from == 1, &["the root 1 sends to all; the links that are up are drawn"]);
}

#[test]
fn a_lane_that_goes_to_all_is_told_from_one_of_the_same_peer() {
    let screen = screen(job("AllToAll", |_, _| true), '4');
    assert!(screen.contains("ch0 recv  ") && screen.contains("ch0 recv all "), "{screen}");
}

#[test]
fn operator_root_and_count_are_said_where_there_are_any() {
    let check = |kind: &str, change: fn(&mut OpSnapshot), expect: &str| {
        let mut job = jobs::hang();
        job.ranks.iter_mut().flat_map(|rank| &mut rank.comms).for_each(|comm| {
            (comm.op.kind, comm.op.root) = (kind.into(), Rank(2));
            change(&mut comm.op);
        });
        job.blocked_on[0].op = kind.into();
        for key in ['2', '3'] {
            let screen = screen(job.clone(), key);
            let line = screen.lines().find(|line| line.contains("  communicator ")).unwrap_or_default();
            assert!(line.contains(&format!("{kind} #7 of world{expect}  communicator")), "{kind}: {line}");
        }
    };
    let nothing = |_: &mut OpSnapshot| {};
    check("AllReduce", nothing, " Sum F32  1048576 elements, 4.0 MiB");
    check("Reduce", nothing, " Sum F32 root 2  1048576 elements, 4.0 MiB");
    check("Gather", nothing, " F32 root 2  1048576 elements, 4.0 MiB");
    check("AllGather", nothing, " F32  1048576 elements, 4.0 MiB");
    check("Barrier", |op| (op.count, op.bytes) = (0, 0), "");
    check("AllGather", |op| op.uneven = true, " F32  1048576 elements, 4.0 MiB, uneven");
    check("AllToAll", |op| (op.uneven, op.count, op.bytes) = (true, 0, 0), " F32  uneven");
}
