//! Which of several reports becomes the decision, and whom it is about.

use super::*;

/// Reports that the deadline of each of these ranks passed while it waited for the other.
fn pass_deadlines(ring: &mut Ring, waits: &[(u32, u32)]) {
    for (from, about) in waits {
        let text = format!("rank {from} saw no progress: it waits for rank {about}");
        let report = Report::new(Trouble::TimedOut, Rank(*from), Rank(*about), text);
        let now = ring.now;
        ring.ranks[*from as usize].found(report, now);
    }
}

#[test]
fn deadlines_that_pass_together_name_the_rank_for_which_all_wait_in_the_end() {
    for round in 0..50 {
        for stopped in 0..5 {
            let mut ring = Ring::new(5);
            (ring.seed, ring.cut) = (Seed(round), vec![stopped]);
            // Each waits for the one before it, and the one behind the stopped rank for that.
            let mut waits: Vec<(u32, u32)> =
                (1..5).map(|d| (stopped + d) % 5).map(|r| (r, (r + 4) % 5)).collect();
            waits.rotate_left(round as usize % 4);
            pass_deadlines(&mut ring, &waits);
            ring.settle();
            let all = ring.decisions();
            let names = |decision: &Decision| {
                decision.about == Rank(stopped) && decision.text.ends_with(&format!("rank {stopped}"))
            };
            assert!(!all.is_empty() && all.iter().all(names), "{all:?}");
            // One voice, if the lowest rank has one.
            assert!(stopped == 0 || all.len() == 1, "{all:?}");
        }
    }
}

#[test]
fn ranks_that_wait_for_each_other_say_so() {
    let mut ring = Ring::new(3);
    pass_deadlines(&mut ring, &[(0, 1), (1, 2), (2, 0)]);
    ring.settle();
    let text = "rank 0 saw no progress: it waits for rank 1; rank 1 waits for rank 2, rank 2 waits for rank 0: they wait \
                for each other";
    assert_eq!(ring.decisions().iter().map(|decision| decision.text.as_str()).collect::<Vec<_>>(), [text]);
}

#[test]
fn what_else_happened_is_the_cause_of_a_deadline_and_its_end_is_not() {
    // The rank whose process ended made the others wait.
    let mut ring = Ring::new(4);
    pass_deadlines(&mut ring, &[(0, 1), (1, 2)]);
    ring.close(3);
    ring.settle();
    let all = ring.decisions();
    assert!(all.iter().all(|one| (one.trouble, one.about) == (Trouble::Died, Rank(3))), "{all:?}");
    // One that has told that its deadline passed ended because of it.
    let mut ring = Ring::new(4);
    pass_deadlines(&mut ring, &[(1, 2)]);
    ring.say(1);
    ring.close(1);
    ring.settle();
    let all = ring.decisions();
    assert!(all.iter().all(|one| (one.trouble, one.about) == (Trouble::TimedOut, Rank(2))), "{all:?}");
}

#[test]
fn who_waits_for_ranks_that_wait_for_each_other_says_so() {
    let mut ring = Ring::new(3);
    pass_deadlines(&mut ring, &[(0, 1), (1, 2), (2, 1)]);
    ring.settle();
    let text = "rank 0 saw no progress: it waits for rank 1; rank 1 waits for rank 2, rank 2 waits for rank 1: they wait \
                for each other";
    let all = ring.decisions();
    assert_eq!(all.iter().map(|one| (one.about, one.text.as_str())).collect::<Vec<_>>(), [(Rank(2), text)]);
}

#[test]
fn a_deadline_is_no_cause_beside_a_mismatch_or_a_silent_host() {
    for trouble in [Trouble::Mismatch, Trouble::Unreachable] {
        let mut ring = Ring::new(4);
        pass_deadlines(&mut ring, &[(0, 1)]);
        ring.ranks[2].found(Report::new(trouble, Rank(2), Rank(3), "something else"), Ns(0));
        ring.settle();
        let all = ring.decisions();
        assert!(all.iter().all(|one| (one.trouble, one.about) == (trouble, Rank(3))), "{all:?}");
    }
}

#[test]
fn a_mismatch_waits_for_its_other_side_also_behind_the_end_of_a_link() {
    let at = |ms: u64| Ns(ms * 1_000_000);
    let (ours, theirs) = (call(CollKind::AllReduce, 1, 0, 4), call(CollKind::AllReduce, 1, 0, 8));
    let mut gossip = Gossip::new(Rank(0), 4);
    gossip.found(Report::new(Trouble::LinkFailed, Rank(1), Rank(2), "the link ended"), at(0));
    let found = Report::new(Trouble::Mismatch, Rank(1), Rank(3), "rank 3 called something else");
    let found = Report { open: open(ours, &theirs, &[ours]), ..found };
    gossip.received(Some(Side::Next), GossipMessage::Report(found), at(10));
    gossip.tick(at(60));
    assert_eq!(gossip.decision(), None, "the other side may still answer");
    let answer = Report::new(Trouble::Mismatch, Rank(3), Rank(1), "they differ in count 4 / 8");
    gossip.received(Some(Side::Next), GossipMessage::Report(answer), at(100));
    assert_eq!(gossip.decision().map(|decision| decision.text.as_str()), Some("they differ in count 4 / 8"));
}

#[test]
fn who_needs_a_rank_that_has_left_is_told_that_it_has() {
    let mut gossip = Gossip::new(Rank(0), 3);
    gossip.left(Rank(2));
    gossip.found(Report::new(Trouble::LinkFailed, Rank(0), Rank(2), "the link ended"), Ns(0));
    gossip.tick(Ns(1_000_000_000));
    let decision = gossip.decision().unwrap();
    let text = "rank 2 has called finish() and left the communicator, and rank 0 still needs it";
    assert_eq!((decision.about, decision.text.as_str()), (Rank(2), text));
}
