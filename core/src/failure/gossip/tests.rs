//! The state machines of all ranks of a communicator, and the streams between them, in one thread.

use std::collections::VecDeque;

mod causes;
mod told;

use super::*;
use crate::collective::Pair;
use crate::seed::Seed;
use crate::types::{CollKind, Datatype, ReduceOp};

/// One stream of the ring, from a rank to its next rank.
struct Stream {
    from: usize,
    to: usize,
    /// The messages under way towards `to`, and back; `None` is the end of the stream.
    flying: [VecDeque<Option<GossipMessage>>; 2],
    is_over: bool,
}

/// Every rank of these tests has its own host.
struct Ring {
    ranks: Vec<Gossip>,
    streams: Vec<Stream>,
    /// Which ranks have no process any more, or have closed their streams.
    gone: Vec<bool>,
    /// The ranks that neither receive nor send anything.
    cut: Vec<u32>,
    /// How often each rank was refused by its next rank.
    refused: Vec<u64>,
    now: Ns,
    seed: Seed,
}

impl Ring {
    fn new(n: u32) -> Self {
        let stream = |from: u32| Stream {
            from: from as usize,
            to: ((from + 1) % n) as usize,
            flying: Default::default(),
            is_over: false,
        };
        Self {
            ranks: (0..n).map(|rank| Gossip::new(Rank(rank), n)).collect(),
            streams: (0..n).map(stream).collect(),
            gone: vec![false; n as usize],
            cut: Vec::new(),
            refused: vec![0; n as usize],
            now: Ns(0),
            seed: Seed(0),
        }
    }

    /// Closes all streams of a rank; what it has sent before still arrives.
    fn close(&mut self, rank: usize) {
        self.say(rank);
        self.gone[rank] = true;
        for stream in &mut self.streams {
            if stream.from == rank || stream.to == rank {
                stream.flying[usize::from(stream.to == rank)].push_back(None);
                stream.flying[usize::from(stream.from == rank)].clear();
            }
        }
    }

    /// Closes the streams that are no longer needed, and all streams of ranks that may close them.
    fn close_spent(&mut self) {
        for rank in (0..self.ranks.len()).filter(|rank| !self.gone[*rank]).collect::<Vec<_>>() {
            let mut open = Vec::new();
            for (at, stream) in self.streams.iter().enumerate().filter(|(_, stream)| !stream.is_over) {
                let ways = [(stream.from, stream.to, Side::Next), (stream.to, stream.from, Side::Previous)];
                let its = ways.into_iter().filter(|(me, ..)| *me == rank);
                open.extend(its.map(|(_, other, side)| (at, Rank(other as u32), side)));
            }
            let news = &self.ranks[rank];
            if news.is_leaving() {
                if news.may_close(open.iter().map(|(_, other, _)| *other)) {
                    self.close(rank);
                }
                continue;
            }
            for (at, other, side) in &open {
                let there = open.iter().filter(|(_, _, its)| its == side).map(|(_, other, _)| *other);
                if news.is_spent(*other, there) {
                    let stream = &mut self.streams[*at];
                    let back = usize::from(*side == Side::Previous);
                    stream.flying[back].push_back(None);
                    stream.flying[1 - back].clear();
                }
            }
        }
    }

    fn say(&mut self, rank: usize) {
        for (to, message) in self.ranks[rank].take_out() {
            let To::Ring(side) = to else { continue };
            for stream in self.streams.iter_mut().filter(|stream| !stream.is_over) {
                let is_its = if side == Side::Next { stream.from == rank } else { stream.to == rank };
                if is_its {
                    stream.flying[usize::from(side == Side::Previous)].push_back(Some(message.clone()));
                }
            }
        }
    }

    fn hear(&mut self, at: usize) {
        for way in 0..2 {
            let stream = &mut self.streams[at];
            let (hears, says) = if way == 0 { (stream.to, stream.from) } else { (stream.from, stream.to) };
            let count = self.seed.place(stream.flying[way].len() + 1);
            for message in stream.flying[way].drain(..count).collect::<Vec<_>>() {
                if self.gone[hears] || self.cut.iter().any(|c| *c as usize == hears || *c as usize == says) {
                    continue;
                }
                let side = if way == 0 { Side::Previous } else { Side::Next };
                match message {
                    Some(message) => self.ranks[hears].received(Some(side), message, self.now),
                    None => {
                        self.streams[at].is_over = true;
                        self.ranks[hears].lost(Rank(says as u32), self.now);
                    }
                }
            }
        }
    }

    /// Connects a rank to its next rank if there is no stream between them.
    fn mend(&mut self, rank: usize) {
        let Some(next) = self.ranks[rank].next().map(Rank::index) else { return };
        let mut streams = self.streams.iter();
        if streams.any(|stream| !stream.is_over && (stream.from, stream.to) == (rank, next)) {
            return;
        }
        if self.ranks[rank].decision().is_some() || self.seed.below(4) > 0 {
            return;
        }
        if self.gone[next] {
            self.refused[rank] += 1;
            // Counted in attempts, of which one in four is made: longer than any way of a farewell.
            if self.refused[rank] > 100 {
                self.ranks[rank].lost(Rank(next as u32), self.now);
            }
            return;
        }
        self.refused[rank] = 0;
        self.streams.push(Stream { from: rank, to: next, flying: Default::default(), is_over: false });
        self.ranks[rank].joined(Side::Next);
        self.ranks[next].joined(Side::Previous);
    }

    /// Runs one millisecond.
    fn step(&mut self) {
        for rank in 0..self.ranks.len() {
            self.say(rank);
        }
        for at in 0..self.streams.len() {
            self.hear(at);
        }
        self.now = self.now.after(Duration::from_millis(1));
        for rank in (0..self.ranks.len()).filter(|rank| !self.gone[*rank]).collect::<Vec<_>>() {
            self.mend(rank);
            let now = self.now;
            self.ranks[rank].tick(now);
        }
        self.close_spent();
    }

    fn settle(&mut self) {
        (0..1500).for_each(|_| self.step());
    }

    /// The distinct decisions of the ranks that are still running.
    fn decisions(&self) -> Vec<Decision> {
        let there =
            (0..).zip(&self.ranks).filter(|(at, _)| !self.gone[*at as usize] && !self.cut.contains(at));
        let mut all: Vec<Decision> = there
            .map(|(at, news)| news.decision().cloned().unwrap_or_else(|| panic!("rank {at}: {news:?}")))
            .collect();
        all.dedup();
        all
    }
}

fn call(kind: CollKind, seq: u64, root: u32, count: u64) -> Descriptor {
    Descriptor {
        kind,
        dtype: Datatype::F32,
        op: ReduceOp::Sum,
        root: Rank(root),
        count,
        seq,
        plan: 1,
        uneven: false,
    }
}

fn open(ours: Descriptor, theirs: &Descriptor, calls: &[Descriptor]) -> Option<Open> {
    Some(Open { ours: Some(ours), theirs: Some(theirs.hash()), calls: calls.to_vec() })
}

#[test]
fn a_death_reaches_everyone_as_one_verdict_of_the_lowest_living_rank() {
    for n in 2..9 {
        for victim in 0..n {
            let mut ring = Ring::new(n);
            ring.close(victim as usize);
            ring.settle();
            let all = ring.decisions();
            assert_eq!(all.len(), 1, "{n} ranks, {victim} died: {all:?}");
            assert_eq!((all[0].trouble, all[0].about), (Trouble::Died, Rank(victim)));
            assert_eq!(all[0].by, Rank(u32::from(victim == 0)));
        }
    }
}

#[test]
fn links_that_ended_with_a_process_are_no_verdict_before_its_death_is() {
    let says = |from: u32, about: u32| {
        let text = format!("the link between rank {from} and rank {about} ended");
        Report::new(Trouble::LinkFailed, Rank(from), Rank(about), text)
    };
    let decision = |reports: &[(u32, u32)], died: Option<usize>| {
        let mut ring = Ring::new(4);
        for (from, about) in reports {
            ring.ranks[*from as usize].found(says(*from, *about), Ns(0));
        }
        // Both reports have reached the arbiter before the end of the connection has.
        for (to, message) in ring.ranks[1].take_out() {
            if to == To::Ring(Side::Previous) {
                ring.ranks[0].received(Some(Side::Next), message, Ns(0));
            }
        }
        let early = ring.ranks[0].decision().map(|decision| decision.trouble);
        died.into_iter().for_each(|at| ring.close(at));
        ring.settle();
        (early, ring.ranks[0].decision().map(|decision| decision.trouble))
    };
    // Ranks 0 and 1 had links to rank 3, and rank 2 sees its death last.
    assert_eq!(decision(&[(0, 3), (1, 3)], Some(3)), (None, Some(Trouble::Died)));
    // No rank died.
    assert_eq!(decision(&[(0, 3), (1, 3)], None), (None, Some(Trouble::LinkFailed)));
    // Both ends are alive and report it.
    let both = Some(Trouble::LinkFailed);
    assert_eq!(decision(&[(0, 1), (1, 0)], None), (both, both));
}

#[test]
fn a_mismatch_shows_both_sides_to_everyone() {
    let called = |count| call(CollKind::AllReduce, 7, 0, count);
    let mut ring = Ring::new(5);
    for (at, news) in ring.ranks.iter_mut().enumerate() {
        // Rank 3 has made another call meanwhile.
        let calls = [Descriptor { seq: 8, ..called(4) }, called(if at == 3 { 8 } else { 4 })];
        news.called(calls[usize::from(at != 3)..].to_vec());
    }
    let text = "rank 3 called something else";
    // Both neighbours of rank 3 find it, and so does rank 3: three reports, each of one side.
    for (from, about) in [(2, 3), (4, 3), (3, 2)] {
        let (ours, theirs) = (called(if from == 3 { 8 } else { 4 }), called(if from == 3 { 4 } else { 8 }));
        let report = Report {
            open: open(ours, &theirs, &[ours]),
            ..Report::new(Trouble::Mismatch, Rank(from), Rank(about), text)
        };
        ring.ranks[from as usize].found(report, Ns(0));
    }
    ring.settle();
    let all = ring.decisions();
    assert_eq!(all.len(), 1, "{all:?}");
    let said = [
        "rank 2 called AllReduce #7 (count 4, F32, Sum); rank 3 called AllReduce #7 (count 8, F32, Sum); \
         rank 2 / rank 3 differ in count 4 / 8",
        "rank 3 called AllReduce #7 (count 8, F32, Sum); rank 4 called AllReduce #7 (count 4, F32, Sum); \
         rank 3 / rank 4 differ in count 8 / 4",
    ];
    assert!(said.contains(&all[0].text.as_str()), "{}", all[0].text);
}

#[test]
fn of_an_earlier_call_that_differs_the_text_names_that_call() {
    let mut ring = Ring::new(3);
    let (ours, later) = (call(CollKind::Broadcast, 1, 0, 4), call(CollKind::AllReduce, 2, 0, 4));
    let theirs = call(CollKind::Broadcast, 1, 2, 4);
    ring.ranks[2].called(vec![later, theirs]);
    // Rank 0, in its second call, found a message that belongs to rank 2's first call.
    let report = Report {
        open: open(later, &theirs, &[later, ours]),
        ..Report::new(Trouble::Mismatch, Rank(0), Rank(2), "")
    };
    ring.ranks[0].found(report, Ns(0));
    ring.settle();
    assert_eq!(
        ring.decisions()[0].text,
        "rank 0 called Broadcast #1 (count 4, F32, root 0); rank 2 called Broadcast #1 (count 4, F32, root 2); \
         rank 0 / rank 2 differ in root 0 / 2"
    );
}

#[test]
fn a_farewell_is_no_death_and_a_silent_arbiter_does_not_hold_up_the_others() {
    let mut ring = Ring::new(4);
    ring.ranks[3].leave();
    ring.settle();
    assert!(ring.ranks.iter().all(|news| news.decision().is_none()));
    assert!(ring.ranks[1].has_left(Rank(3)));
    // Rank 0, the arbiter, is stopped; rank 2 dies.
    ring.cut = vec![0];
    ring.close(2);
    ring.settle();
    assert_eq!(ring.ranks[1].decision().map(|v| v.about), Some(Rank(2)));
}

#[test]
fn what_a_peer_of_this_host_says_goes_on_both_ways_and_once() {
    let mut news = Gossip::new(Rank(0), 4);
    let finish = GossipMessage::Finish { rank: Rank(2), tally: Tally::default() };
    news.received(None, finish.clone(), Ns(0));
    let ways: Vec<To> = news.take_out().into_iter().map(|(to, _)| to).collect();
    assert_eq!(ways, [To::Ring(Side::Next), To::Ring(Side::Previous)]);
    assert_eq!(news.take_finished(), [(Rank(2), Tally::default())]);
    news.received(Some(Side::Next), finish, Ns(0));
    assert!(news.take_out().is_empty() && news.take_finished().is_empty());
    news.leave();
    assert!(news.take_out().iter().any(|(to, _)| *to == To::Local));
}

#[test]
fn what_names_no_rank_is_ignored() {
    let called = |from: u32, to: u32| {
        let call = call(CollKind::Barrier, 1, 0, 0);
        GossipMessage::Called { from: Rank(from), to: Rank(to), call, hops: 2 }
    };
    let report =
        |from, about| GossipMessage::Report(Report::new(Trouble::Aborted, Rank(from), Rank(about), ""));
    let decision = |about: u32, other: u32| {
        let (trouble, by, text) = (Trouble::Mismatch, Rank(0), String::new());
        GossipMessage::Decision(Decision { trouble, by, about: Rank(about), other: Some(Rank(other)), text })
    };
    let share = |rank: u32, without: u32| {
        let attempt = Attempt { nth: 1, without: vec![Rank(without)] };
        GossipMessage::Share(Share { rank: Rank(rank), attempt, round: 0, block: Vec::new() })
    };
    let unknown = [
        GossipMessage::Finish { rank: Rank(9), tally: Tally::default() },
        GossipMessage::Farewell { rank: Rank(9) },
        called(9, 0),
        called(1, 9),
        report(9, 1),
        report(1, 9),
        decision(9, 1),
        decision(1, 9),
        share(9, 1),
        share(1, 9),
    ];
    for message in unknown {
        let mut news = Gossip::new(Rank(0), 2);
        news.received(Some(Side::Next), message.clone(), Ns(0));
        assert!(news.take_out().is_empty() && news.take_asked().is_empty(), "{message:?}");
        assert!(news.decision().is_none() && news.gone().is_empty(), "{message:?}");
    }
}

#[test]
fn whoever_leaves_in_whatever_order_the_rest_hears_of_a_death_and_of_an_abort() {
    for round in 0..400 {
        let mut seed = Seed(round);
        let n = 3 + seed.below(5) as u32;
        let mut ring = Ring::new(n);
        ring.seed = seed.part(1);
        let mut ranks: Vec<usize> = (0..n as usize).collect();
        seed.shuffle(&mut ranks);
        let leavers = 1 + seed.place(n as usize - 2);
        for rank in &ranks[..leavers] {
            ring.ranks[*rank].leave();
            // Often several ranks leave at the same moment.
            let steps = if seed.below(2) == 0 { 0 } else { seed.below(40) };
            (0..steps).for_each(|_| ring.step());
        }
        let last = ranks[leavers];
        let aborts = seed.below(2) == 0;
        if aborts {
            let who = Rank(last as u32);
            let now = ring.now;
            ring.ranks[last].found(Report::new(Trouble::Aborted, who, who, "told to"), now);
        } else {
            ring.close(last);
        }
        ring.settle();
        let mut all = ring.decisions();
        // On a death, both sides of a gap that is being closed may have decided.
        all.dedup_by_key(|decision| decision.text.clone());
        let expected = if aborts { Trouble::Aborted } else { Trouble::Died };
        let is_it = |decision: &Decision| (decision.trouble, decision.about) == (expected, Rank(last as u32));
        assert!(all.len() == 1 && is_it(&all[0]), "round {round}: {ranks:?}, {leavers} left: {all:?}");
    }
}

#[test]
fn all_finish_together_however_late_each_is() {
    let tally = Tally { calls: 3, hash: 5, ..Tally::default() };
    for round in 0..50 {
        let mut ring = Ring::new(5);
        ring.seed = Seed(round);
        let late = round as usize % 5;
        for rank in (0..5).filter(|rank| *rank != late) {
            let now = ring.now;
            ring.ranks[rank].finish(tally.clone(), Vec::new(), now);
            (0..round).for_each(|_| ring.step());
        }
        ring.settle();
        assert!(ring.ranks.iter().all(|news| !news.may_leave()));
        assert_eq!(ring.ranks[(late + 1) % 5].blocked_on(), [Rank(late as u32)]);
        let now = ring.now;
        ring.ranks[late].finish(tally.clone(), Vec::new(), now);
        let mut gone = 0;
        // Each rank leaves as soon as it may, and no last message of another rank is lost with it.
        for _ in 0..500 {
            ring.step();
            for rank in 0..5 {
                if !ring.gone[rank] && ring.ranks[rank].may_leave() {
                    ring.ranks[rank].leave();
                    gone += 1;
                }
            }
        }
        assert_eq!(gone, 5, "round {round}");
        assert!(ring.ranks.iter().all(|news| news.decision().is_none()));
    }
}

#[test]
fn what_was_called_differently_is_found_where_all_have_finished() {
    let check = |first: Tally, its: Descriptor, second: Tally, mine: Descriptor, expect: &str| {
        // Before it has heard of the others, and after.
        for pause in [0, 50] {
            let mut ring = Ring::new(4);
            for rank in [0, 1, 3, 2] {
                (0..pause).for_each(|_| ring.step());
                let (differs, now) = (rank == 2, ring.now);
                let tally = if differs { first.clone() } else { second.clone() };
                ring.ranks[rank].finish(tally, vec![if differs { its } else { mine }], now);
            }
            (0..200).for_each(|_| ring.step());
            assert!(ring.ranks.iter().all(|news| !news.may_leave()));
            let all = ring.decisions();
            assert_eq!(all.iter().map(|one| one.trouble).collect::<Vec<_>>(), [Trouble::Mismatch], "{pause}");
            assert!(all[0].text.contains(expect), "{}", all[0].text);
        }
    };
    let (mine, its) = (call(CollKind::Broadcast, 1, 0, 4), call(CollKind::Broadcast, 1, 2, 4));
    let tally = Tally { calls: 1, hash: 5, ..Tally::default() };
    check(Tally { hash: 6, ..tally.clone() }, its, tally.clone(), mine, "differ in root ");
    let one_more = Descriptor { seq: 2, ..its };
    let expect = "rank 2 called Broadcast #2 (count 4, F32, root 2); rank ";
    check(Tally { calls: 2, ..tally.clone() }, one_more, tally.clone(), mine, expect);
    let sent = vec![(Rank(1), Pair { calls: 1, count: 9, dtype: Datatype::U8 })];
    let expect = "rank 2 called Send #1 (count 9, U8) to rank 1; rank 1 called finish() after 0 receives from rank 2; \
                  rank 2 / rank 1 differ in calls 1 / 0";
    check(Tally { sent, ..tally.clone() }, mine, tally, mine, expect);
}

#[test]
fn a_question_is_answered_by_what_was_called_and_kept_for_what_will_be() {
    let asks = |called: &[Descriptor], later: &[Descriptor]| {
        let mut ring = Ring::new(4);
        ring.ranks[2].called(called.to_vec());
        ring.ranks[0].ask(Rank(2), call(CollKind::Broadcast, 5, 0, 4));
        (0..15).for_each(|_| ring.step());
        let kept = ring.ranks[2].take_asked().len();
        assert_eq!(ring.ranks[2].tick(ring.now).is_some(), kept > 0, "it is looked at again");
        // Called just before the driver could know of the question.
        ring.ranks[2].called(later.to_vec());
        (0..100).for_each(|_| ring.step());
        let decisions: Vec<_> =
            ring.ranks.iter().filter_map(|news| news.decision()).map(|v| v.text.clone()).collect();
        (kept, decisions.len(), decisions.first().cloned().unwrap_or_default())
    };
    let (same, other) = (call(CollKind::Broadcast, 5, 0, 4), call(CollKind::Broadcast, 5, 2, 4));
    let text = "rank 0 called Broadcast #5 (count 4, F32, root 0); rank 2 called Broadcast #5 (count 4, F32, root 2); \
                rank 0 / rank 2 differ in root 0 / 2";
    assert_eq!(asks(&[same], &[same]), (0, 0, String::new()));
    assert_eq!(asks(&[other], &[other]), (0, 4, text.to_string()));
    assert_eq!(asks(&[], &[other]), (1, 4, text.to_string()));
    assert_eq!(asks(&[], &[]), (1, 0, String::new()));
    // A question between two ranks that have left does not circle for ever.
    let mut ring = Ring::new(4);
    ring.ranks[1].ask(Rank(3), same);
    ring.ranks[1].leave();
    ring.ranks[3].leave();
    ring.settle();
    assert!(ring.streams.iter().all(|stream| stream.flying.iter().flatten().flatten().count() == 0));
}

#[test]
fn whoever_leaves_in_whatever_order_a_question_reaches_whom_it_is_for() {
    for round in 0..400 {
        let mut seed = Seed(round);
        let n = 4 + seed.below(5) as u32;
        let mut ring = Ring::new(n);
        ring.seed = seed.part(1);
        let mut ranks: Vec<usize> = (0..n as usize).collect();
        seed.shuffle(&mut ranks);
        let (asks, answers) = (ranks[0], ranks[1]);
        let leavers = &ranks[2..3 + seed.place(n as usize - 2)];
        ring.ranks[answers].called(vec![call(CollKind::Broadcast, 5, 2, 4)]);
        let when = seed.place(leavers.len());
        for (at, rank) in leavers.iter().enumerate() {
            if at == when {
                let about = call(CollKind::Broadcast, 5, 0, 4);
                ring.ranks[asks].ask(Rank(answers as u32), about);
                (0..seed.below(4)).for_each(|_| ring.step());
            }
            ring.ranks[*rank].leave();
            let steps = if seed.below(2) == 0 { 0 } else { seed.below(40) };
            (0..steps).for_each(|_| ring.step());
        }
        ring.settle();
        for rank in ranks.iter().filter(|rank| !leavers.contains(rank)) {
            let decision = ring.ranks[*rank].decision().map(|decision| decision.trouble);
            assert_eq!(decision, Some(Trouble::Mismatch), "round {round}, rank {rank}, left {leavers:?}");
        }
    }
}

#[test]
fn who_reported_a_failed_link_is_undecided_until_it_hears_what_all_fail_with() {
    let mut ring = Ring::new(3);
    assert!(!ring.ranks[1].is_undecided());
    let report = Report::new(Trouble::LinkFailed, Rank(1), Rank(2), "rank 1 cannot connect to rank 2");
    ring.ranks[1].found(report, Ns(0));
    assert!(ring.ranks[1].is_undecided());
    ring.settle();
    assert!(ring.ranks.iter().all(|news| !news.is_undecided()));
    assert_eq!(ring.decisions().iter().map(|decision| decision.about).collect::<Vec<_>>(), [Rank(2)]);
}

#[test]
fn a_rank_that_gives_up_because_a_link_failed_is_not_the_cause() {
    let (one, two) = (Rank(1), Rank(2));
    let failed = Report::new(Trouble::LinkFailed, one, two, "rank 2 refuses queue pairs");
    for end in [Trouble::Aborted, Trouble::Died] {
        for round in 0..50 {
            let mut ring = Ring::new(4);
            ring.seed = Seed(round);
            let now = ring.now;
            ring.ranks[1].found(failed.clone(), now);
            (0..round % 4).for_each(|_| ring.step());
            if end == Trouble::Aborted {
                ring.ranks[1].found(Report::new(end, one, one, "it dropped the communicator"), now);
            } else {
                ring.close(1);
            }
            ring.settle();
            let all = ring.decisions();
            let is_it = |decision: &Decision| {
                (decision.trouble, decision.text.as_str()) == (Trouble::LinkFailed, failed.text.as_str())
            };
            assert!(!all.is_empty() && all.iter().all(is_it), "{end:?} {round}: {all:?}");
        }
    }
}
