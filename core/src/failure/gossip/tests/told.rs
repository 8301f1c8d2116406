//! What a new neighbour is told, whose blocks count, and what kind of error each trouble becomes.

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
