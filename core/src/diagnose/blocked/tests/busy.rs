//! Ranks that go on elsewhere while others wait for them: ages tell them from ranks that wait.

use super::*;

/// Makes a rank wait in operation `seq` of its second communicator for `ns`.
fn in_second(rank: &mut RankSnapshot, seq: u64, peer: u32, ns: u64) {
    let op = &mut rank.comms[1].op;
    (op.seq, op.called, op.state, op.age_ns) = (seq, seq, OpState::Running, ns);
    let link = rank.link(1, ChannelId(0), Direction::Recv, peer);
    (link.waits, link.since_ns, link.waits_for) = (Waits::Peer, ns, Some(Rank(peer)));
}

#[test]
fn who_is_busy_in_another_communicator_is_the_end_of_the_old_wait() {
    const MS: u64 = 1_000_000;
    let world = "1 AllReduce#7: missing 2,3 by 0,1 since 10";
    let busy = |ns: u64| {
        let mut ranks = job(4);
        split(&mut ranks);
        ranks[..2].iter_mut().for_each(|rank| _ = rank.inside(7, 10));
        in_second(&mut ranks[2], 900, 1, ns);
        in_second(&mut ranks[3], 900, 0, ns);
        ranks
    };
    // 2 and 3 loop in the split: neither waits for long. Both wait for each other for a moment.
    for ns in [MS / 5, 99 * MS, 2400 * MS] {
        check(&busy(ns), &[world, &format!("2 AllReduce#900: by 0,1 since {}", ns / SECOND)]);
    }
    // They have waited for each other for a good part of the time: that is why they do not call.
    for ns in [2500 * MS, 9900 * MS, 12 * SECOND] {
        assert_eq!(blocked_on(&busy(ns))[0].comm, CommId(2));
    }
    // 3 works between its calls.
    let mut ranks = busy(MS);
    ranks[3].comms[1] = rank(1, 2).comms.remove(0);
    (ranks[3].comms[1].id, ranks[3].comms[1].world) = (CommId(2), Rank(3));
    ranks[3].comms[1].op.called = 899;
    let split = "2 AllReduce#900: missing 1 by 0 since 0";
    check(&ranks, &[world, split]);
    // Only 3 is missed in the world, which it has never used: the young wait for it is not the
    // first.
    ranks[2].comms[0].op.called = 7;
    ranks[3].comms[0].op = OpSnapshot::default();
    check(&ranks, &["1 AllReduce#7: missing 3 by 0,1 since 10; behind 2 AllReduce#900 by 0 through 1"]);
    // An operation that they only began, while they loop.
    let mut ranks = busy(MS);
    for (at, peer) in [(2, 3), (3, 2)] {
        ranks[at].inside(7, 10).connects(peer, 10).only_begun();
    }
    ranks[1] = rank(1, 4);
    check(&ranks, &["1 AllReduce#7: missing 1 by 0 since 10", "2 AllReduce#900: by 0,1 since 0"]);
}

/// A communicator of these ranks: the first waits in AllReduce #`seq` for the second.
fn group(ranks: &mut [RankSnapshot], id: u64, members: [u32; 2], seq: u64, waits_ns: u64) {
    for (at, world) in members.into_iter().enumerate() {
        let mut comm = rank(at as u32, 2).comms.remove(0);
        (comm.id, comm.world) = (CommId(id), Rank(world));
        (comm.op.called, comm.op.completed, comm.op.seq) = (seq - 1, seq - 1, seq - 1);
        if at == 0 {
            (comm.op.called, comm.op.seq, comm.op.state) = (seq, seq, OpState::Running);
            comm.op.age_ns = waits_ns;
        }
        ranks[world as usize].comms.push(comm);
    }
}

#[test]
fn of_a_cycle_who_went_on_while_others_waited_for_it_is_named() {
    let circle = |ns: [u64; 4]| {
        let mut ranks = job(4);
        ranks.iter_mut().for_each(|rank| rank.comms.clear());
        // 3 waits for 2, 2 for 0, 0 for 1, and 1 for 3.
        for (id, members, seq, ns) in
            [(1, [3, 2], 5, ns[3]), (2, [2, 0], 6, ns[2]), (3, [0, 1], 6, ns[0]), (4, [1, 3], 5, ns[1])]
        {
            group(&mut ranks, id, members, seq, ns);
        }
        ranks
    };
    let named = |ns: [u64; 4]| {
        let ranks = circle(ns);
        let found = blocked_on(&ranks);
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!(one.behind.len(), 3, "{one:?}");
        let of = |one: &BlockedOn| {
            let row = |rank: &RankSnapshot| {
                let mut rows = rank.comms.iter();
                rows.any(|row| row.id == one.comm && one.missing == [row.rank]).then_some(rank.rank.0)
            };
            ranks.iter().find_map(row)
        };
        (of(one), one.comm.0, one.waits_in.iter().map(|one| one.comm.0).collect::<Vec<_>>())
    };
    // 2 has left out #5 of 1, and waits in #6 of 2 a second later. The others came in turn.
    assert_eq!(named([8, 8, 7, 8].map(|seconds| seconds * SECOND)), (Some(2), 1, vec![2]));
    assert_eq!(named([600, 590, 480, 600].map(|seconds| seconds * SECOND)), (Some(2), 1, vec![2]));
    // Two went on: the one for longer, if they were missed at one time; else the one that was
    // missed first.
    assert_eq!(named([80, 60, 50, 80].map(|seconds| seconds * SECOND)), (Some(2), 1, vec![2]));
    assert_eq!(named([80, 60, 85, 84].map(|seconds| seconds * SECOND)), (Some(0), 2, vec![3]));
    // All began to wait at about one time: nobody is known to have gone on.
    assert_eq!(named([8_000_000_000, 8_050_000_000, 7_950_000_000, 8_020_000_000]), (Some(0), 2, vec![3]));
}

#[test]
fn ranks_at_work_in_a_long_operation_do_not_wait_since_it_began() {
    let mut ranks = job(4);
    ranks.iter_mut().for_each(|rank| _ = rank.inside(7, 31));
    // 3 copies, and 0 has waited for it for a moment; 1 and 2 copy, too.
    ranks[0].waits(3, 0);
    check(&ranks, &["1 AllReduce#7: inside 3 by 0,1,2 since 0"]);
}

#[test]
fn a_receive_that_nobody_waits_for_is_not_told_beside_one_that_somebody_waits_for() {
    let mut ranks = job(3);
    ranks[0].pair(Direction::Recv, 1, 1, Some(3600));
    ranks[0].meets(Direction::Recv, 2, 5, Some(4));
    check(&ranks, &["1 Recv#5: missing 2 by 0 since 4"]);
    // A younger one may be waited for, too.
    ranks[0].comms[0].links[0].since_ns = 3 * SECOND;
    check(&ranks, &["1 Recv#5: missing 2 by 0 since 4", "1 Recv#1: missing 1 by 0 since 3"]);
}

/// Two ranks in thousands of receives from each other, as a file may claim.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn thousands_of_waits_in_a_circle_are_told() {
    let mut ranks = job(2);
    for seq in 1..2001 {
        ranks[0].pair(Direction::Recv, 1, seq, Some(5));
        ranks[1].pair(Direction::Recv, 0, seq, Some(5));
    }
    check(&ranks, &["1 Recv#1: missing 1 by 0 since 5", "1 Recv#1: missing 0 by 1 since 5"]);
}
