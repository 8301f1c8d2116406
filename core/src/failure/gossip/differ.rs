//! Where the calls of two ranks differ, and the text for it. Pure functions.

use crate::collective::{Descriptor, Pair, Tally};
use crate::failure::gossip::message::{Open, Report};
use crate::types::{CollKind, Rank};

/// A call as people read it: `Reduce #7 (count 4, F32, Sum, root 1)`, with an operator and a root
/// where its kind has one. The descriptor of a receive is that of the send that it matches.
///
/// `diagnose/failed/calls.rs` reads these texts.
#[must_use]
pub(super) fn say(call: &Descriptor, by: Rank) -> String {
    let Descriptor { kind, dtype, op, root, count, seq, plan, uneven } = call;
    match kind {
        CollKind::Send | CollKind::Recv => {
            let kind = if *root == by { CollKind::Send } else { CollKind::Recv };
            format!("{kind} #{seq} (count {count}, {dtype})")
        }
        CollKind::AllGather if call.is_part() => call.name().into(),
        CollKind::Barrier => format!("{kind} #{seq}"),
        kind => {
            let mut terms = format!("count {count}, {dtype}");
            if kind.reduces() {
                terms += &format!(", {op}");
            }
            if kind.has_root() {
                terms += &format!(", root {root}");
            }
            if *uneven {
                terms += &format!(", uneven {plan:016x}");
            }
            format!("{} #{seq} ({terms})", call.name())
        }
    }
}

/// A mismatch of which only one side is known.
#[must_use]
pub fn say_one((me, call): (Rank, &Descriptor), peer: Rank) -> String {
    format!("rank {me} called {}; rank {peer} called something else", say(call, me))
}

/// Both sides of a mismatch, the lower rank first.
#[must_use]
pub fn say_both(one: (Rank, &Descriptor), other: (Rank, &Descriptor)) -> String {
    let ((a, ours), (b, theirs)) = if one.0 <= other.0 { (one, other) } else { (other, one) };
    let called = |me: Rank, call: &Descriptor, peer: Rank| {
        let way = if call.root == me { "to" } else { "from" };
        let pair = if call.kind.is_p2p() { format!(" {way} rank {peer}") } else { String::new() };
        format!("rank {me} called {}{pair}", say(call, me))
    };
    let (first, second) = (called(a, ours, b), called(b, theirs, a));
    format!("{first}; {second}; rank {a} / rank {b} differ in {}", ours.differences(theirs))
}

/// The first collective that both ranks know and that differs.
#[must_use]
pub fn first(ours: &[Descriptor], theirs: &[Descriptor]) -> Option<(Descriptor, Descriptor)> {
    let collectives = |calls: &'_ [Descriptor]| -> Vec<Descriptor> {
        calls.iter().filter(|call| !call.kind.is_p2p()).copied().collect()
    };
    let theirs = collectives(theirs);
    let pairs = collectives(ours).into_iter().filter_map(|mine| {
        let its = theirs.iter().find(|its| its.seq == mine.seq)?;
        (mine != *its).then_some((mine, *its))
    });
    pairs.min_by_key(|(mine, _)| mine.seq)
}

/// The text of a mismatch of which both sides are known: the finder's side as it was reported, and
/// the calls of `me`, the rank that the report is about. `None` if the collectives that differ are
/// none of these.
#[must_use]
pub(super) fn close(report: &Report, open: &Open, me: Rank, calls: &[Descriptor]) -> Option<String> {
    let finder = report.from;
    let is_pair = open.ours.is_some_and(|ours| ours.kind.is_p2p());
    if let (true, Some(ours)) = (is_pair, &open.ours) {
        let is_it = |its: &&Descriptor| its.kind.is_p2p() && Some(its.hash()) == open.theirs;
        return Some(match calls.iter().find(is_it) {
            Some(its) => say_both((finder, ours), (me, its)),
            None => format!(
                "rank {finder} called {} from rank {me}; rank {me} sent something else as number {}, and what is too long ago to be known",
                say(ours, finder),
                ours.seq
            ),
        });
    }
    first(&open.calls, calls).map(|(ours, its)| say_both((finder, &ours), (me, &its)))
}

/// The calls of one rank that a finished rank has not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The rank made more calls.
    More {
        /// The first of these calls, or its number if the call is not known any more.
        call: String,
        /// What the finished rank has called.
        there: String,
        /// The number of calls of this rank, and of the finished rank.
        counts: (u64, u64),
    },
    /// The same number of collectives, but different ones.
    Other,
}

/// The calls of `me` that `rank` has not matched before its `finish()`.
#[must_use]
pub fn against(
    (me, mine, calls): (Rank, &Tally, &[Descriptor]),
    (rank, its): (Rank, &Tally),
) -> Option<Difference> {
    if mine.calls > its.calls {
        let next = its.calls + 1;
        let known = calls.iter().find(|call| call.seq == next && !call.kind.is_p2p());
        let call = known.map_or_else(|| format!("collective call #{next}"), |call| say(call, me));
        let there = format!("{} collective calls", its.calls);
        return Some(Difference::More { call, there, counts: (mine.calls, its.calls) });
    }
    if mine.calls == its.calls && mine.hash != its.hash {
        return Some(Difference::Other);
    }
    let calls = |pair: Option<Pair>| pair.map_or(0, |pair| pair.calls);
    let more = |pair: Option<Pair>, its: u64, name: &str, way: &str, there: &str| {
        let Pair { calls, count, dtype } = pair.filter(|pair| pair.calls > its)?;
        Some(Difference::More {
            call: format!("{name} #{calls} (count {count}, {dtype}) {way} rank {rank}"),
            there: format!("{its} {there} rank {me}"),
            counts: (calls, its),
        })
    };
    more(mine.sent(rank), calls(its.received(me)), "Send", "to", "receives from")
        .or_else(|| more(mine.received(rank), calls(its.sent(me)), "Recv", "from", "sends to"))
}

/// Whether the calls of all ranks match.
#[must_use]
pub(super) fn fit(tallies: &[&Tally]) -> bool {
    let one_order = tallies.windows(2).all(|two| (two[0].calls, two[0].hash) == (two[1].calls, two[1].hash));
    let ranks = || (0..).map(Rank).zip(tallies);
    one_order
        && ranks().all(|(me, mine)| {
            let is_received = |(to, sent): &(Rank, Pair)| {
                let received = |its: &&Tally| its.received(me).map_or(0, |pair| pair.calls);
                tallies.get(to.index()).is_none_or(|its| received(its) == sent.calls)
            };
            mine.sent.iter().all(is_received)
        })
}

impl Difference {
    /// The text on both sides, if one rank made more calls.
    #[must_use]
    pub fn differs(&self, me: Rank, rank: Rank) -> Option<String> {
        let Self::More { call, there, counts: (a, b) } = self else { return None };
        Some(format!(
            "rank {me} called {call}; rank {rank} called finish() after {there}; rank {me} / rank {rank} differ in calls {a} / {b}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Datatype, ReduceOp};

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

    #[test]
    fn the_first_difference_is_said_not_the_last() {
        let ours = [call(CollKind::AllReduce, 3, 0, 4), call(CollKind::Broadcast, 2, 0, 4)];
        let theirs = [
            call(CollKind::Barrier, 3, 0, 0),
            call(CollKind::Send, 2, 0, 9),
            call(CollKind::Broadcast, 2, 1, 4),
        ];
        let (mine, its) = first(&ours, &theirs).unwrap();
        assert_eq!(
            say_both((Rank(1), &mine), (Rank(0), &its)),
            "rank 0 called Broadcast #2 (count 4, F32, root 1); rank 1 called Broadcast #2 (count 4, F32, root 0); \
             rank 0 / rank 1 differ in root 1 / 0"
        );
    }

    #[test]
    fn a_call_is_said_with_what_its_kind_has() {
        let check = |kind, expect: &str| assert_eq!(say(&call(kind, 3, 2, 4), Rank(0)), expect);
        check(CollKind::AllReduce, "AllReduce #3 (count 4, F32, Sum)");
        check(CollKind::Reduce, "Reduce #3 (count 4, F32, Sum, root 2)");
        check(CollKind::Gather, "Gather #3 (count 4, F32, root 2)");
        check(CollKind::AllToAll, "AllToAll #3 (count 4, F32)");
        check(CollKind::Barrier, "Barrier #3");
        let uneven = Descriptor { uneven: true, ..call(CollKind::ReduceScatter, 3, 0, 4) };
        assert_eq!(say(&uneven, Rank(0)), "ReduceScatter #3 (count 4, F32, Sum, uneven 0000000000000001)");
    }

    #[test]
    fn of_two_sends_with_one_number_the_one_whose_message_came_is_said() {
        let receive = call(CollKind::Send, 1, 0, 8);
        let (to_one, to_two) = (call(CollKind::Send, 1, 0, 4), call(CollKind::Send, 1, 0, 100));
        let report = Report::new(crate::failure::gossip::Trouble::Mismatch, Rank(1), Rank(0), "");
        let open = Open { ours: Some(receive), theirs: Some(to_one.hash()), calls: vec![receive] };
        assert_eq!(
            close(&report, &open, Rank(0), &[to_two, to_one]).unwrap(),
            "rank 0 called Send #1 (count 4, F32) to rank 1; rank 1 called Recv #1 (count 8, F32) from rank 0; \
             rank 0 / rank 1 differ in count 4 / 8"
        );
        // Too many calls were made since, so the text makes nothing up.
        let said = close(&report, &open, Rank(0), &[to_two]).unwrap();
        assert!(said.contains("Recv #1 (count 8, F32) from rank 0") && !said.contains("100"), "{said}");
    }

    #[test]
    fn what_a_finished_rank_has_not_called_is_found() {
        let pair = |calls| Pair { calls, count: 4, dtype: Datatype::F32 };
        let none = Tally { calls: 2, hash: 7, ..Tally::default() };
        let check = |mine: &Tally, its: &Tally, expect: Option<&str>| {
            let found = against((Rank(0), mine, &[call(CollKind::Barrier, 3, 0, 0)]), (Rank(1), its));
            let said = found.map(|found| found.differs(Rank(0), Rank(1)).unwrap_or_else(|| "other".into()));
            assert_eq!(said.as_deref(), expect);
        };
        check(&none, &none, None);
        check(&none, &Tally { calls: 3, ..none.clone() }, None);
        check(&none, &Tally { hash: 8, ..none.clone() }, Some("other"));
        check(
            &Tally { calls: 4, ..none.clone() },
            &none,
            Some(
                "rank 0 called Barrier #3; rank 1 called finish() after 2 collective calls; rank 0 / rank 1 differ in calls 4 / 2",
            ),
        );
        check(
            &Tally { sent: vec![(Rank(1), pair(2))], ..none.clone() },
            &Tally { received: vec![(Rank(0), pair(1))], ..none.clone() },
            Some(
                "rank 0 called Send #2 (count 4, F32) to rank 1; rank 1 called finish() after 1 receives from rank 0; rank 0 / rank 1 differ in calls 2 / 1",
            ),
        );
        check(
            &Tally { received: vec![(Rank(1), pair(1))], ..none.clone() },
            &none,
            Some(
                "rank 0 called Recv #1 (count 4, F32) from rank 1; rank 1 called finish() after 0 sends to rank 0; rank 0 / rank 1 differ in calls 1 / 0",
            ),
        );
        let fits = Tally { sent: vec![(Rank(1), pair(1))], ..none.clone() };
        assert!(fit(&[&fits, &Tally { received: vec![(Rank(0), pair(1))], ..none.clone() }]));
        assert!(!fit(&[&fits, &none]));
        assert!(!fit(&[&none, &Tally { hash: 8, ..none.clone() }]));
    }
}
