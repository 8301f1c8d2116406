//! Messages to a new neighbour, the blocks of a shrink, and decisions about ranks.

use super::*;

fn share(rank: u32, without: &[u32], round: u32) -> Share {
    let attempt = Attempt { nth: 1, without: without.iter().map(|rank| Rank(*rank)).collect() };
    Share { rank: Rank(rank), attempt, round, block: vec![rank as u8, round as u8] }
}

#[test]
fn a_new_neighbour_is_told_all_that_a_rank_knows() {
    let now = Ns(0);
    // Rank 0 decides.
    let mut gossip = Gossip::new(Rank(1), 6);
    let report = Report::new(Trouble::Died, Rank(0), Rank(5), "it ended");
    let (trouble, text) = (Trouble::Died, "it ended".to_string());
    let decision = Decision { trouble, by: Rank(0), about: Rank(5), other: None, text };
    let question = call(CollKind::AllReduce, 1, 0, 8);
    let known = [
        GossipMessage::Report(report),
        GossipMessage::Decision(decision),
        GossipMessage::Finish { rank: Rank(2), tally: Tally { calls: 3, ..Tally::default() } },
        GossipMessage::Farewell { rank: Rank(3) },
        GossipMessage::Called { from: Rank(0), to: Rank(4), call: question, hops: 4 },
        GossipMessage::Called { from: Rank(4), to: Rank(0), call: question, hops: 4 },
        GossipMessage::Share(share(2, &[3, 5], 0)),
    ];
    for message in &known {
        gossip.received(Some(Side::Previous), message.clone(), now);
    }
    gossip.take_out();
    gossip.joined(Side::Next);
    let told = gossip.take_out();
    assert!(told.iter().all(|(to, _)| *to == To::Ring(Side::Next)), "{told:?}");
    for message in known {
        let expect = match message {
            GossipMessage::Called { from, to, call, hops } => {
                GossipMessage::Called { from, to, call, hops: hops - 1 }
            }
            message => message,
        };
        assert!(told.iter().any(|(_, message)| *message == expect), "{expect:?} is not in {told:?}");
    }
}

#[test]
fn only_blocks_of_the_same_ranks_and_the_same_round_count() {
    let mut gossip = Gossip::new(Rank(0), 4);
    gossip.share(share(0, &[3], 1));
    for other in [share(1, &[3], 1), share(2, &[3], 0), share(2, &[1, 3], 1)] {
        gossip.received(None, GossipMessage::Share(other), Ns(0));
    }
    let attempt = share(0, &[3], 1).attempt;
    let blocks: Vec<_> = gossip.shares(&attempt, 1).map(|(rank, block)| (rank.0, block.to_vec())).collect();
    assert_eq!(blocks, [(0, vec![0, 1]), (1, vec![1, 1])]);
}

#[test]
fn each_trouble_becomes_one_kind_of_error() {
    let kinds = [
        (Trouble::Died, ErrorKind::Peer),
        (Trouble::Unreachable, ErrorKind::Peer),
        (Trouble::LinkFailed, ErrorKind::Peer),
        (Trouble::Mismatch, ErrorKind::Mismatch),
        (Trouble::Aborted, ErrorKind::Aborted),
        (Trouble::TimedOut, ErrorKind::Timeout),
    ];
    for (trouble, kind) in kinds {
        assert_eq!(trouble.kind(), kind, "{trouble:?}");
    }
}

#[test]
fn a_mismatch_is_about_the_rank_that_was_found_and_names_its_other_side() {
    let mut gossip = Gossip::new(Rank(0), 4);
    let (ours, theirs) = (call(CollKind::AllReduce, 1, 0, 4), call(CollKind::AllReduce, 1, 0, 8));
    let found = Report::new(Trouble::Mismatch, Rank(1), Rank(2), "rank 2 called something else");
    let found = Report { open: open(ours, &theirs, &[ours]), ..found };
    // Rank 2 answers, about the rank that has found it.
    let answer = Report::new(Trouble::Mismatch, Rank(2), Rank(1), "rank 1 / rank 2 differ in count 4 / 8");
    for report in [found, answer] {
        gossip.received(Some(Side::Next), GossipMessage::Report(report), Ns(0));
    }
    let decision = gossip.decision().unwrap();
    assert_eq!((decision.about, decision.other), (Rank(2), Some(Rank(1))), "{decision:?}");
}

#[test]
fn a_rank_that_has_made_more_calls_and_left_is_a_mismatch() {
    let tally = |calls| Tally { calls, hash: calls, ..Tally::default() };
    for has_left in [false, true] {
        let mut gossip = Gossip::new(Rank(0), 2);
        let finish = GossipMessage::Finish { rank: Rank(1), tally: tally(2) };
        gossip.received(Some(Side::Next), finish, Ns(0));
        if has_left {
            gossip.left(Rank(1));
        }
        gossip.finish(tally(1), vec![call(CollKind::AllReduce, 1, 0, 4)], Ns(0));
        // One that has not left reports it itself.
        let decided = gossip.decision().map(|decision| decision.trouble);
        assert_eq!(decided, has_left.then_some(Trouble::Mismatch));
    }
}

#[test]
fn a_rank_whose_host_is_silent_is_gone_for_those_who_go_on() {
    let mut gossip = Gossip::new(Rank(1), 3);
    gossip.unreachable(Rank(0), "does not answer", Ns(0));
    assert_eq!(gossip.gone(), [Rank(0)]);
    let decision = gossip.decision().unwrap();
    assert_eq!((decision.trouble, decision.by), (Trouble::Unreachable, Rank(1)), "the lowest that is left");
}

#[test]
fn what_must_arrive_before_a_farewell_goes_to_the_peers_of_this_host_too() {
    let (trouble, text) = (Trouble::Aborted, "told to".to_string());
    let decision = Decision { trouble, by: Rank(0), about: Rank(2), other: None, text };
    let news = News { teller: 9, number: 1, stall: None };
    let all = [
        GossipMessage::Decision(decision),
        GossipMessage::News(news),
        GossipMessage::Share(share(2, &[3], 0)),
    ];
    for message in all {
        let mut gossip = Gossip::new(Rank(1), 4);
        gossip.received(Some(Side::Previous), message.clone(), Ns(0));
        let told = [(To::Ring(Side::Next), message.clone()), (To::Local, message.clone())];
        assert_eq!(gossip.take_out(), told);
        gossip.received(None, message, Ns(0));
        assert_eq!(gossip.take_out(), [], "once");
    }
}
