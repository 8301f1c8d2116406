//! Each case: the injected state as snapshots, and the expected result, derived from the case.

mod busy;

use super::*;
use crate::snapshot::{OpSnapshot, PhaseSnapshot, Waits};

const SECOND: u64 = 1_000_000_000;

/// A rank of communicator 1, idle after operation 6.
fn rank(at: u32, nranks: u32) -> RankSnapshot {
    let op = OpSnapshot {
        kind: "AllReduce".into(),
        seq: 6,
        called: 6,
        started: 6,
        completed: 6,
        state: OpState::Idle,
        age_ns: 9 * SECOND,
        ..OpSnapshot::default()
    };
    let comm = CommSnapshot {
        id: CommId(1),
        name: "dp".into(),
        rank: Rank(at),
        world: Rank(at),
        nranks,
        op,
        ..CommSnapshot::default()
    };
    RankSnapshot { rank: Rank(at), state: State::Running, comms: vec![comm], ..RankSnapshot::default() }
}

fn job(nranks: u32) -> Vec<RankSnapshot> {
    (0..nranks).map(|at| rank(at, nranks)).collect()
}

impl RankSnapshot {
    fn state(&mut self, state: State) -> &mut Self {
        self.state = state;
        self
    }
    /// Puts it inside operation `seq` of its first communicator for `seconds`.
    fn inside(&mut self, seq: u64, seconds: u64) -> &mut Self {
        let op = &mut self.comms[0].op;
        (op.seq, op.called, op.started, op.state) = (seq, seq, seq, OpState::Running);
        op.completed = seq - 1;
        op.age_ns = seconds * SECOND;
        self
    }
    fn failed(&mut self, seq: u64) -> &mut Self {
        self.inside(seq, 1);
        self.comms[0].op.state = OpState::Failed;
        self
    }
    fn link(
        &mut self,
        comm: usize,
        channel: ChannelId,
        direction: Direction,
        peer: u32,
    ) -> &mut LinkSnapshot {
        let link = LinkSnapshot {
            peer: Some(Rank(peer)),
            channel,
            direction,
            waits: Waits::Nothing,
            ..LinkSnapshot::default()
        };
        self.comms[comm].links.push(link);
        self.comms[comm].links.last_mut().unwrap()
    }
    /// Makes its ring link wait for `peer` for `seconds`.
    fn waits(&mut self, peer: u32, seconds: u64) -> &mut Self {
        let link = self.link(0, ChannelId(0), Direction::Recv, peer);
        (link.waits, link.since_ns, link.waits_for) = (Waits::Peer, seconds * SECOND, Some(Rank(peer)));
        self
    }
    /// Makes its collective wait for `peer` for `seconds`, without a link.
    fn connects(&mut self, peer: u32, seconds: u64) -> &mut Self {
        self.comms[0].op.wait = Some(OpWait {
            waits: Waits::Connect,
            peer: Rank(peer),
            channel: ChannelId(0),
            direction: Direction::Recv,
            since_ns: seconds * SECOND,
            unattended: false,
            polled: false,
        });
        self
    }
    /// Makes its operation one that was only begun: its caller does not wait for it.
    fn only_begun(&mut self) {
        let comm = &mut self.comms[0];
        let waits = [comm.op.wait.as_mut(), comm.p2p.as_mut().and_then(|p2p| p2p.wait.as_mut())];
        waits.into_iter().flatten().for_each(|wait| wait.unattended = true);
    }
    /// Puts it in its `seq`th send or receive with `peer` without a link; it waits if `waits` is
    /// given.
    fn meets(&mut self, direction: Direction, peer: u32, seq: u64, waits: Option<u64>) -> &mut Self {
        let (kind, peer) = (if direction == Direction::Send { "Send" } else { "Recv" }, Rank(peer));
        let wait = waits.map(|seconds| OpWait {
            waits: Waits::Connect,
            peer,
            channel: ChannelId::P2P,
            direction,
            since_ns: seconds * SECOND,
            unattended: false,
            polled: false,
        });
        let (kind, state, peer) = (kind.into(), OpState::Running, Some(peer));
        self.comms[0].p2p =
            Some(OpSnapshot { kind, seq, state, called: 1, peer, wait, ..OpSnapshot::default() });
        self
    }
    /// Puts it in its `seq`th send or receive with `peer`; it waits if `waits` is given.
    fn pair(&mut self, direction: Direction, peer: u32, seq: u64, waits: Option<u64>) -> &mut Self {
        let link = self.link(0, ChannelId::P2P, direction, peer);
        link.op = seq;
        if let Some(seconds) = waits {
            (link.waits, link.since_ns) = (Waits::Peer, seconds * SECOND);
        }
        self
    }
}

/// `comm op#seq: missing M inside I by B since S`, without the empty parts.
fn check(ranks: &[RankSnapshot], expect: &[&str]) {
    let list = |ranks: &[Rank]| ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let said: Vec<String> = blocked_on(ranks)
        .iter()
        .map(|one| {
            let mut text = format!("{} {}#{}:", one.comm.0, one.op, one.seq);
            for (word, ranks) in
                [("missing", &one.missing), ("inside", &one.inside), ("unseen", &one.unseen), ("by", &one.by)]
            {
                if !ranks.is_empty() {
                    text += &format!(" {word} {}", list(ranks));
                }
            }
            text += &format!(" since {}", one.since_ns / SECOND);
            for behind in &one.behind {
                text += &format!(
                    "; behind {} {}#{} by {} through {}",
                    behind.comm.0,
                    behind.op,
                    behind.seq,
                    list(&behind.by),
                    list(&behind.through)
                );
            }
            text
        })
        .collect();
    assert_eq!(said, expect);
}

#[test]
fn nobody_is_awaited_where_nobody_waits() {
    check(&[], &[]);
    check(&job(4), &[]);
    // All inside and at work.
    let mut ranks = job(3);
    ranks.iter_mut().for_each(|rank| _ = rank.inside(7, 1));
    check(&ranks, &[]);
    // Idle, and one of them dead or stopped: no rank waits for it.
    for state in [State::Dead, State::Stopped, State::Exited] {
        let mut ranks = job(3);
        ranks[1].state(state);
        check(&ranks, &[]);
    }
}

#[test]
fn a_sleeper_that_does_not_call() {
    let mut ranks = job(4);
    for at in [0, 1, 2] {
        ranks[at].inside(7, at as u64 + 3);
    }
    check(&ranks, &["1 AllReduce#7: missing 3 by 0,1,2 since 5"]);
    // Also if only the neighbour waits on a link, and before it does.
    ranks[0].waits(3, 4);
    check(&ranks, &["1 AllReduce#7: missing 3 by 0,1,2 since 5"]);
    assert_eq!(
        blocked_on(&ranks)[0].link.as_ref().map(|link| (link.rank, link.peer)),
        Some((Rank(0), Rank(3)))
    );
    // Dead after it completed all earlier calls, or left in good order.
    for state in [State::Dead, State::Exited, State::Stopped] {
        ranks[3].state(state);
        check(&ranks, &["1 AllReduce#7: missing 3 by 0,1,2 since 5"]);
    }
    // It left the communicator.
    ranks[3].state(State::Running).comms[0].ended = true;
    check(&ranks, &["1 AllReduce#7: missing 3 by 0,1,2 since 5"]);
}

#[test]
fn an_operation_whose_link_was_never_made() {
    // A receive from a rank that does not call; then from a rank that has called and is not
    // connected either.
    let mut ranks = job(3);
    ranks[0].meets(Direction::Recv, 1, 1, Some(4));
    check(&ranks, &["1 Recv#1: missing 1 by 0 since 4"]);
    ranks[1].meets(Direction::Send, 2, 1, None);
    check(&ranks, &["1 Recv#1: missing 1 by 0 since 4"]);
    ranks[1].meets(Direction::Send, 0, 1, None);
    check(&ranks, &["1 Recv#1: inside 1 by 0 since 4"]);
    // Each waits for the other.
    ranks[1].meets(Direction::Send, 0, 1, Some(2));
    check(&ranks, &["1 Recv#1: inside 1 by 0 since 4", "1 Send#1: inside 0 by 1 since 2"]);
    // The existing link describes the same wait, with the messages too.
    ranks[0].pair(Direction::Recv, 1, 1, Some(4));
    check(&ranks, &["1 Recv#1: inside 1 by 0 since 4", "1 Send#1: inside 0 by 1 since 2"]);
    // A ring in which only the victim's successor waits, before there are links.
    let mut ranks = job(3);
    ranks.iter_mut().for_each(|rank| _ = rank.inside(7, 2));
    ranks[0].connects(2, 3);
    ranks[1].connects(0, 2);
    check(&ranks, &["1 AllReduce#7: inside 2 by 0,1 since 3"]);
}

#[test]
fn who_has_only_begun_a_call_is_held_up_by_nobody_and_is_passed_through() {
    let mut ranks = job(2);
    ranks[0].meets(Direction::Recv, 1, 1, Some(4)).only_begun();
    check(&ranks, &[]);
    ranks[0].pair(Direction::Recv, 1, 1, Some(4));
    check(&ranks, &[]);
    let mut ranks = job(3);
    ranks.iter_mut().for_each(|rank| _ = rank.inside(7, 2));
    ranks[0].connects(2, 3).only_begun();
    ranks[1].connects(0, 2);
    check(&ranks, &["1 AllReduce#7: inside 2 by 1 since 2"]);
    ranks[1].only_begun();
    check(&ranks, &[]);
}

#[test]
fn ranks_that_wait_in_finish_for_one_that_has_not_called_it() {
    let finishes = |rank: &mut RankSnapshot, seconds: u64| {
        let phase = PhaseSnapshot { phase: "Finish".into(), duration_ns: seconds * SECOND };
        rank.comms[0].phase = Some(phase);
    };
    let mut ranks = job(4);
    finishes(&mut ranks[0], 3);
    finishes(&mut ranks[3], 5);
    // One has left after it, one computes.
    ranks[1].comms[0].ended = true;
    check(&ranks, &["1 finish()#0: missing 2 by 0,3 since 5"]);
    // Or it has passed it, and still closes what it had opened.
    ranks[1].comms[0].ended = false;
    ranks[1].comms[0].phases = vec![PhaseSnapshot { phase: "Finish".into(), duration_ns: 6 * SECOND }];
    check(&ranks, &["1 finish()#0: missing 2 by 0,3 since 5"]);
    // Or it waits in a call that the others have made, and no rank blocks it.
    ranks[2].inside(7, 4).waits(1, 4);
    ranks[0].comms[0].op.called = 7;
    ranks[1].comms[0].op.called = 7;
    ranks[3].comms[0].op.called = 7;
    assert!(blocked_on(&ranks).iter().any(|one| one.op == "AllReduce" && one.by == [Rank(2)]));
    // All are in it: none is missing.
    let mut ranks = job(2);
    ranks.iter_mut().for_each(|rank| finishes(rank, 1));
    check(&ranks, &[]);
}

#[test]
fn one_that_is_stopped_or_killed_inside() {
    for state in [State::Stopped, State::Dead] {
        let mut ranks = job(4);
        ranks.iter_mut().for_each(|rank| _ = rank.inside(7, 2));
        ranks[2].state(state);
        check(&ranks, &["1 AllReduce#7: inside 2 by 0,1,3 since 2"]);
        // It was waiting itself when that happened.
        ranks[2].waits(1, 2);
        ranks[3].waits(2, 2);
        check(&ranks, &["1 AllReduce#7: inside 2 by 0,1,3 since 2"]);
        // And another rank has not even called.
        ranks[0] = rank(0, 4);
        check(&ranks, &["1 AllReduce#7: missing 0 inside 2 by 1,3 since 2"]);
    }
}

#[test]
fn one_that_was_stopped_while_it_waited_for_who_has_not_called_holds_nobody_up() {
    let mut ranks = job(5);
    for at in [0, 1, 3, 4] {
        ranks[at].inside(7, 2);
    }
    // A ring, of which 2 has not called.
    for (at, peer) in [(3, 2), (4, 3), (0, 4), (1, 0)] {
        ranks[at].waits(peer, 2);
    }
    ranks[4].state(State::Stopped);
    check(&ranks, &["1 AllReduce#7: missing 2 by 0,1,3,4 since 2"]);
    // The rank before it waits to send what it does not take: it may be the cause.
    ranks[3].waits(4, 1);
    check(&ranks, &["1 AllReduce#7: missing 2 inside 4 by 0,1,3 since 2"]);
    // It recorded no wait, so it may have had work. Or it is dead and will not go on.
    ranks[3].comms[0].links.pop();
    let links = std::mem::take(&mut ranks[4].comms[0].links);
    check(&ranks, &["1 AllReduce#7: missing 2 inside 4 by 0,1,3 since 2"]);
    ranks[4].comms[0].links = links;
    ranks[4].state(State::Dead);
    check(&ranks, &["1 AllReduce#7: missing 2 inside 4 by 0,1,3 since 2"]);
}

#[test]
fn the_longest_of_what_such_operations_take_is_told() {
    let mut ranks = job(4);
    for (at, p99_ns) in [(0, 3 * SECOND), (1, 5), (3, 0)] {
        ranks[at].inside(7, 4).comms[0].op.p99_ns = p99_ns;
    }
    // It is that of another operation.
    ranks[2].comms[0].op.p99_ns = 9 * SECOND;
    assert_eq!(blocked_on(&ranks)[0].p99_ns, 3 * SECOND);
    let mut ranks = job(2);
    ranks[0].meets(Direction::Recv, 1, 1, Some(4)).comms[0].p2p.as_mut().unwrap().p99_ns = 2 * SECOND;
    assert_eq!(blocked_on(&ranks)[0].p99_ns, 2 * SECOND);
}

#[test]
fn the_tag_is_of_a_rank_in_the_operation_that_is_told() {
    let mut ranks = job(4);
    ranks[1].inside(8, 2).comms[0].op.tag = "step 8".into();
    ranks[2].inside(7, 2);
    ranks[3].inside(7, 2).comms[0].op.tag = "step 7".into();
    assert_eq!(blocked_on(&ranks)[0].tag, "step 7");
    // It has already called the next collective, with its own tag.
    ranks[3].comms[0].op.called = 9;
    assert_eq!(blocked_on(&ranks)[0].tag, "");
}

#[test]
fn one_killed_while_the_others_are_stopped() {
    let mut ranks = job(3);
    for at in [0, 1] {
        ranks[at].inside(7, 2).state(State::Stopped);
    }
    ranks[2].state(State::Dead);
    check(&ranks, &["1 AllReduce#7: missing 2 by 0,1 since 2"]);
    ranks[2].inside(7, 2);
    check(&ranks, &["1 AllReduce#7: inside 2 by 0,1 since 2"]);
}

#[test]
fn all_dead_and_read_from_files() {
    let dead = |ranks: &mut [RankSnapshot]| ranks.iter_mut().for_each(|rank| _ = rank.state(State::Dead));
    let mut ranks = job(4);
    for at in [0, 1, 3] {
        ranks[at].inside(7, 2);
    }
    dead(&mut ranks);
    check(&ranks, &["1 AllReduce#7: missing 2 by 0,1,3 since 2"]);
    // All inside: the links decide.
    ranks[2].inside(7, 2);
    ranks[3].waits(2, 2);
    ranks[0].waits(3, 1);
    ranks[1].waits(0, 1);
    check(&ranks, &["1 AllReduce#7: inside 2 by 0,1,3 since 2"]);
    // Idle when they died.
    let mut ranks = job(4);
    dead(&mut ranks);
    check(&ranks, &[]);
}

#[test]
fn of_the_dead_in_a_circle_the_one_that_fell_silent_first_held_the_others_up() {
    let dead = |silent: &[(usize, f64)]| {
        let mut ranks = job(3);
        for (at, rank) in ranks.iter_mut().enumerate() {
            rank.inside(7, 5).waits((at as u32 + 2) % 3, 4).state(State::Dead);
            rank.host = "a".into();
            rank.to_real_ns = 20 * SECOND;
        }
        silent.iter().for_each(|(at, seconds)| ranks[*at].to_real_ns = (seconds * 1e9) as u64);
        ranks
    };
    let nobody = "1 AllReduce#7: by 0,1,2 since 4";
    let silent = "1 AllReduce#7: inside 1 by 0,2 since 4";
    check(&dead(&[(1, 17.0)]), &[silent]);
    // A sign of life may just have been due; and of two silent ranks the first is not known.
    check(&dead(&[(1, 18.7)]), &[nobody]);
    check(&dead(&[(1, 15.0), (0, 15.2)]), &[nobody]);
    // On two clocks; then a rank that left.
    let mut ranks = dead(&[(1, 15.0)]);
    ranks[2].host = "b".into();
    check(&ranks, &[nobody]);
    let mut ranks = dead(&[(1, 15.0)]);
    ranks[2].state = State::Left;
    check(&ranks, &[nobody]);
}

#[test]
fn one_killed_inside_and_the_others_left_with_an_error() {
    let mut ranks = job(3);
    for at in [0, 2] {
        ranks[at].failed(7).state(State::Exited).comms[0].ended = true;
    }
    ranks[1].inside(7, 1).state(State::Dead);
    check(&ranks, &["1 AllReduce#7: inside 1 by 0,2 since 1"]);
    ranks[1] = rank(1, 3);
    ranks[1].state(State::Dead);
    check(&ranks, &["1 AllReduce#7: missing 1 by 0,2 since 1"]);
    // The survivors went on without it: no rank waits any more.
    for at in [0, 2] {
        ranks[at].state(State::Running);
    }
    check(&ranks, &[]);
}

#[test]
fn a_slow_one_inside_a_ring_where_only_its_neighbour_waits_for_it() {
    let mut ranks = job(5);
    ranks.iter_mut().for_each(|rank| _ = rank.inside(7, 2));
    // 3 works, 4 waits for 3, 0 for 4, 1 for 0; 2 waits to send to 3 what 3 has not taken.
    for (at, peer, seconds) in [(4, 3, 9), (0, 4, 8), (1, 0, 7), (2, 3, 6)] {
        ranks[at].waits(peer, seconds);
    }
    check(&ranks, &["1 AllReduce#7: inside 3 by 0,1,2,4 since 9"]);
    assert_eq!(blocked_on(&ranks)[0].link.as_ref().unwrap().rank, Rank(4));
    // All wait, in a cycle: a message is on its way, or lost.
    ranks[3].waits(2, 1);
    check(&ranks, &["1 AllReduce#7: by 0,1,2,3,4 since 9"]);
}

#[test]
fn one_rank_is_an_operation_ahead() {
    // A broadcast's root may return before the others have called.
    let mut ranks = job(3);
    ranks[0].inside(8, 1);
    ranks[1].inside(7, 2);
    check(&ranks, &["1 AllReduce#7: missing 2 by 0,1 since 2"]);
    // 2 completed 7; 1 is still inside it and works; 0 waits in 8.
    ranks[2].comms[0].op.called = 7;
    ranks[2].comms[0].op.completed = 7;
    ranks[0].waits(1, 1);
    check(&ranks, &["1 AllReduce#7: inside 1 by 0 since 1"]);
    // Asynchronous: called ahead, not missing.
    let mut ranks = job(2);
    ranks[0].inside(7, 1).waits(1, 1);
    ranks[1].inside(7, 1).comms[0].op.called = 9;
    check(&ranks, &["1 AllReduce#7: inside 1 by 0 since 1"]);
}

#[test]
fn a_rank_without_a_recorder_may_be_the_one() {
    let mut ranks = job(4);
    ranks.remove(3);
    ranks.iter_mut().for_each(|rank| _ = rank.inside(7, 2));
    // At work: no rank waits yet.
    check(&ranks, &[]);
    ranks[0].waits(3, 2);
    check(&ranks, &["1 AllReduce#7: unseen 3 by 0,1,2 since 2"]);
    // A rank that was read has not called: it is named, and the other is still listed as unseen.
    ranks[1] = rank(1, 4);
    check(&ranks, &["1 AllReduce#7: missing 1 unseen 3 by 0,2 since 2"]);
}

#[test]
fn one_file_alone() {
    let mut ranks = vec![rank(1, 3)];
    ranks[0].inside(7, 2).waits(0, 2).state(State::Dead);
    check(&ranks, &["1 AllReduce#7: unseen 0,2 by 1 since 2"]);
}

/// Adds a second communicator of ranks 2 and 3, in which they are 0 and 1.
fn split(ranks: &mut [RankSnapshot]) {
    for (at, world) in [2, 3].into_iter().enumerate() {
        let mut comm = rank(at as u32, 2).comms.remove(0);
        (comm.id, comm.name, comm.world) = (CommId(2), "tp".into(), Rank(world));
        ranks[world as usize].comms.push(comm);
    }
}

#[test]
fn a_missing_rank_that_waits_in_another_communicator() {
    let mut ranks = job(4);
    split(&mut ranks);
    for at in [0, 1, 3] {
        ranks[at].inside(7, 3);
    }
    // 2 waits in the split for 3, which is inside the world: a cycle.
    let op = &mut ranks[2].comms[1].op;
    (op.seq, op.called, op.state, op.age_ns) = (7, 7, OpState::Running, SECOND);
    check(&ranks, &["1 AllReduce#7: missing 2 by 0,1,3 since 3; behind 2 AllReduce#7 by 0 through 1"]);
    assert_eq!(blocked_on(&ranks)[0].waits_in[0].comm, CommId(2));
    // 3 is not inside the world but asleep: it is the end of both.
    ranks[3].comms[0] = rank(3, 4).comms.remove(0);
    check(&ranks, &["2 AllReduce#7: missing 1 by 0 since 1; behind 1 AllReduce#7 by 0,1 through 2,3"]);
    // 3 has called in the world, and is stopped: both are blocked on it, even if it waits itself.
    ranks[3].inside(7, 3).state(State::Stopped);
    check(&ranks, &["2 AllReduce#7: missing 1 by 0 since 1; behind 1 AllReduce#7 by 0,1 through 2,3"]);
    // 2 waits nowhere else: nothing leads from one to the other, and the longer wait is first.
    ranks[2].inside(7, 3).comms[1].op.state = OpState::Idle;
    ranks[2].comms[1].op.called = 6;
    ranks[3].state(State::Running).comms[0] = rank(3, 4).comms.remove(0);
    check(&ranks, &["1 AllReduce#7: missing 3 by 0,1,2 since 3"]);
}

#[test]
fn the_edge_into_another_communicator_is_followed() {
    let mut ranks = job(4);
    split(&mut ranks);
    for at in [0, 1] {
        ranks[at].inside(7, 3);
    }
    ranks[3].inside(7, 3);
    // 3 has completed the world's 7; 2 waits in the split for 3, which is asleep.
    ranks[3].comms[0].op.state = OpState::Idle;
    ranks[3].comms[0].op.completed = 7;
    let op = &mut ranks[2].comms[1].op;
    (op.seq, op.called, op.state, op.age_ns) = (7, 7, OpState::Running, SECOND);
    check(&ranks, &["2 AllReduce#7: missing 1 by 0 since 1; behind 1 AllReduce#7 by 0,1 through 2"]);
}

#[test]
fn send_and_receive() {
    // 0 receives from 1, which has not sent.
    let mut ranks = job(3);
    ranks[0].pair(Direction::Recv, 1, 4, Some(5));
    check(&ranks, &["1 Recv#4: missing 1 by 0 since 5"]);
    // It has sent its third message, not the fourth.
    ranks[1].pair(Direction::Send, 0, 3, None);
    check(&ranks, &["1 Recv#4: missing 1 by 0 since 5"]);
    ranks[1].comms[0].links[0].op = 4;
    check(&ranks, &["1 Recv#4: inside 1 by 0 since 5"]);
    // A chain: 0 waits for 1, 1 for 2.
    ranks[1].pair(Direction::Recv, 2, 1, Some(4));
    check(&ranks, &["1 Recv#1: missing 2 by 0,1 since 5"]);
    // Two wait for the same rank.
    let mut ranks = job(3);
    ranks[0].pair(Direction::Recv, 2, 1, Some(5));
    ranks[1].pair(Direction::Recv, 2, 8, Some(6));
    check(&ranks, &["1 Recv#8: missing 2 by 0,1 since 6"]);
    // The sender's slots are full, and the receiver is dead.
    let mut ranks = job(2);
    ranks[0].pair(Direction::Send, 1, 1, Some(5));
    ranks[1].state(State::Dead);
    check(&ranks, &["1 Send#1: missing 1 by 0 since 5"]);
    // The sender waits in a collective for the receiver: a cycle.
    let mut ranks = job(3);
    ranks[0].inside(7, 1);
    ranks[1].inside(7, 2);
    ranks[0].pair(Direction::Send, 2, 1, None);
    ranks[2].pair(Direction::Recv, 0, 2, Some(3));
    check(&ranks, &["1 Recv#2: missing 0 by 2 since 3", "1 AllReduce#7: missing 2 by 0,1 since 2"]);
    // It went on long after the receiver began to wait.
    ranks[2].comms[0].links[0].since_ns = 9 * SECOND;
    check(&ranks, &["1 Recv#2: missing 0 by 2 since 9; behind 1 AllReduce#7 by 0,1 through 2"]);
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn a_snapshot_that_lies_is_survived() {
    let mut ranks = job(2);
    ranks[0].inside(u64::MAX, u64::MAX / SECOND).comms[0].nranks = u32::MAX;
    ranks[0].waits(u32::MAX, 1);
    let said = blocked_on(&ranks);
    assert_eq!(said[0].missing, [Rank(1)]);
    assert_eq!(said[0].unseen.len(), MAX_MEMBERS as usize - 2);
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn an_all_to_all_of_many_ranks_is_told_before_it_is_over() {
    const N: u32 = 256;
    let group = |is_held: &dyn Fn(u32, u32) -> bool| {
        let mut ranks = job(N);
        for (at, peer) in (0..N * N).map(|both| (both / N, both % N)).filter(|(at, peer)| is_held(*at, *peer))
        {
            let rank = &mut ranks[at as usize];
            rank.pair(Direction::Recv, peer, 1, Some(5)).pair(Direction::Send, peer, 1, Some(5));
        }
        ranks
    };
    // Cut in two halves: each rank lacks all of the other one.
    let found = blocked_on(&group(&|at, peer| (at < N / 2) != (peer < N / 2)));
    assert_eq!(found.len(), 2 * N as usize);
    assert!(found.iter().all(|one| one.by.len() == N as usize / 2 && one.behind.is_empty()));
    // A quarter is stopped: all others wait for it, and for each other.
    let mut ranks = group(&|at, peer| at >= N / 4 && at != peer);
    for rank in &mut ranks[..N as usize / 4] {
        rank.state(State::Stopped);
    }
    let found = blocked_on(&ranks);
    assert_eq!(found.len(), N as usize / 2);
    assert!(found.iter().all(|one| one.by.len() == 3 * N as usize / 4), "{:?}", found[0]);
}
