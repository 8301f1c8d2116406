//! Which rank is at fault when a deadline has passed.
//!
//! While a rank is connected to the root, the root knows which ranks are missing. Later the ranks
//! ask each other. A rank whose deadline has passed tells the ring which ranks it is blocked on,
//! and each rank that hears this does the same. After a moment the rank at the end of the chain is
//! named: other ranks are blocked on it, or on a message that it must forward, and it has not
//! reported that it is blocked itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::fault::{Fault, name_ranks};
use super::super::machine::Io;
use super::super::messages::{OnRing, OverdueWait, ToRoot, Via};
use super::super::ring::Side;
use super::{Member, Pending, ToTheRoot};
use crate::clock::Ns;
use crate::error::ErrorKind;
use crate::types::Rank;

/// How long the root may take to name the culprit after the deadline has passed.
const ROOT_ANSWERS_WITHIN: Duration = Duration::from_millis(600);
/// How long the other ranks may take.
const RANKS_ANSWER_WITHIN: Duration = Duration::from_millis(400);

/// The waits that are known since the deadline of some rank has passed.
#[derive(Debug, Default)]
pub(crate) struct Overdue {
    awaited: BTreeMap<Rank, Vec<OverdueWait>>,
    verdict_at: Option<Ns>,
}

impl Overdue {
    /// The ranks at the ends of the chains that begin at `me`.
    fn ends(&self, me: Rank, nranks: u32) -> Vec<Rank> {
        let (mut seen, mut ends) = (BTreeSet::new(), BTreeSet::new());
        let mut next = vec![me];
        while let Some(waiter) = next.pop() {
            if !seen.insert(waiter) {
                continue;
            }
            for wait in self.awaited.get(&waiter).into_iter().flatten() {
                match way(waiter, *wait, nranks).find(|rank| !self.awaited.contains_key(rank)) {
                    Some(silent) => {
                        ends.insert(silent);
                    }
                    None => next.push(wait.rank),
                }
            }
        }
        ends.into_iter().collect()
    }
}

/// The ranks that the awaited message passes through, the nearest first, its origin last.
fn way(waiter: Rank, wait: OverdueWait, nranks: u32) -> impl Iterator<Item = Rank> {
    let (me, to) = (waiter.0, wait.rank.0);
    let (step, count) = match wait.via {
        Via::Direct => (0, 1),
        Via::Next => (1, (to + nranks - me) % nranks),
        Via::Prev => (nranks - 1, (me + nranks - to) % nranks),
    };
    let first = if wait.via == Via::Direct { to } else { (me + step) % nranks };
    (0..u64::from(count))
        .map(move |hop| Rank(((u64::from(first) + hop * u64::from(step)) % u64::from(nranks)) as u32))
}

/// What was heard of others, behind another text; nothing if nothing was.
pub(super) fn behind(waiting: &str) -> String {
    if waiting.is_empty() { String::new() } else { format!("; {waiting}") }
}

impl Member {
    /// When the deadline, or the step after it, is due.
    pub(super) fn overdue_at(&self) -> Option<Ns> {
        let gave_up = match &self.root {
            ToTheRoot::Up { gave_up, .. } => *gave_up,
            ToTheRoot::Dialling(_) | ToTheRoot::Left => None,
        };
        (!matches!(self.pending, Pending::Nothing | Pending::Over) && !self.is_complete())
            .then(|| gave_up.or(self.overdue.verdict_at).unwrap_or(self.deadline))
    }

    /// Whether all has come that the caller waits for: a rank that was stopped beyond its deadline
    /// may find that when it goes on.
    pub(super) fn is_complete(&self) -> bool {
        match self.pending {
            Pending::Round(number) => self.rounds.is_complete(number),
            Pending::End => self.end.is_complete(),
            Pending::Message(from, tag) => self.p2p.holds(from, tag),
            Pending::Nothing | Pending::Join | Pending::Delivery(_) | Pending::Over => false,
        }
    }

    /// Handles the deadline, or the step after it, once it is due.
    pub(super) fn overdue(&mut self, io: &mut Io<'_>) {
        if self.pending == Pending::Join {
            return self.overdue_join(io);
        }
        if self.overdue.verdict_at.is_none() {
            self.overdue.verdict_at = Some(io.now.after(RANKS_ANSWER_WITHIN));
            return self.say_awaits(io);
        }
        let waits = self.awaits();
        let awaited: Vec<Rank> =
            waits.iter().map(|wait| wait.rank).collect::<BTreeSet<_>>().into_iter().collect();
        self.overdue.awaited.insert(self.rank, waits);
        let ends = self.overdue.ends(self.rank, self.nranks);
        let mut text = self.pending_text(&awaited);
        if ends != awaited && !ends.is_empty() {
            text = format!("{text}; in the end all wait for {}", name_ranks(&ends));
        }
        let culprits = if ends.is_empty() { awaited } else { ends };
        self.fail(Fault::new(ErrorKind::Timeout, &culprits, text), io);
    }

    fn overdue_join(&mut self, io: &mut Io<'_>) {
        let text = match &mut self.root {
            ToTheRoot::Up { stream, gave_up: gave_up @ None, .. } => {
                *gave_up = Some(io.now.after(ROOT_ANSWERS_WITHIN));
                return io.send(*stream, ToRoot::GiveUp.encode());
            }
            ToTheRoot::Up { .. } | ToTheRoot::Left => format!(
                "the deadline of initialization has passed and the bootstrap root at {}, which rank 0 opens, does not \
                 answer{}",
                self.id.root,
                behind(&self.waiting)
            ),
            ToTheRoot::Dialling(dial) => {
                let before = behind(&self.waiting);
                format!(
                    "the bootstrap root was not found in time: {}{before}; rank 0 opens it: look whether rank 0 has \
                     started, and whether all ranks were given the same address",
                    dial.history()
                )
            }
        };
        self.fail(Fault::new(ErrorKind::Timeout, &[], text), io);
    }

    /// The ranks that this rank is blocked on now.
    fn awaits(&mut self) -> Vec<OverdueWait> {
        let wait = |via, rank| OverdueWait { via, rank };
        let round = match self.pending {
            Pending::Nothing | Pending::Over => return Vec::new(),
            Pending::Join => Some(0),
            Pending::Round(number) => Some(number),
            Pending::Message(rank, _) | Pending::Delivery(rank) => return vec![wait(Via::Direct, rank)],
            Pending::End => None,
        };
        let via = |side| if side == Side::Prev { Via::Prev } else { Via::Next };
        let awaited = round.map_or_else(|| self.end.awaited(), |round| self.rounds.awaited(round));
        awaited.into_iter().map(|(side, rank)| wait(via(side), rank)).collect()
    }

    /// What this rank waits for, as all ranks will read it.
    fn pending_text(&self, awaited: &[Rank]) -> String {
        let (me, awaited) = (self.rank, name_ranks(awaited));
        match self.pending {
            Pending::Nothing | Pending::Over | Pending::Join => {
                format!("rank {me} waits for {awaited} in its initialization")
            }
            Pending::Round(number) => {
                format!("rank {me} waits for {awaited} in round {number} of the bootstrap")
            }
            Pending::Message(_, tag) => {
                format!("no bootstrap message with tag {tag:#x} came to rank {me} from {awaited} in time")
            }
            Pending::Delivery(to) => {
                let how = self.p2p.trouble(to).unwrap_or_else(|| "it takes no bytes".into());
                format!("a bootstrap message of rank {me} to {awaited} was not delivered in time: {how}")
            }
            Pending::End => format!("rank {me} waits for {awaited} at the end of the bootstrap"),
        }
    }

    /// Tells the ring, once per wait, which ranks this rank is blocked on.
    fn say_awaits(&mut self, io: &mut Io<'_>) {
        let awaited = self.awaits();
        // A rank that is blocked on no rank has nothing to report.
        if awaited.is_empty() || self.overdue.awaited.contains_key(&self.rank) {
            return;
        }
        self.overdue.awaited.insert(self.rank, awaited.clone());
        let said = OnRing::Awaits { rank: self.rank, awaited }.encode();
        for neighbour in [&self.next, &self.prev].into_iter().flatten() {
            io.send(neighbour.stream, said.clone());
        }
    }

    pub(super) fn heard_awaits(
        &mut self,
        side: Side,
        rank: Rank,
        awaited: Vec<OverdueWait>,
        io: &mut Io<'_>,
    ) {
        let sound = rank.0 < self.nranks && awaited.iter().all(|wait| wait.rank.0 < self.nranks);
        let known = !sound || self.overdue.awaited.contains_key(&rank);
        if known || self.pending == Pending::Over {
            return;
        }
        let other = if side == Side::Prev { &self.next } else { &self.prev };
        if let Some(other) = other {
            io.send(other.stream, OnRing::Awaits { rank, awaited: awaited.clone() }.encode());
        }
        self.overdue.awaited.insert(rank, awaited);
        self.say_awaits(io);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: u32 = 8;

    fn check(said: &[(u32, &[(Via, u32)])], expect: &[u32]) {
        let waits = |list: &[(Via, u32)]| {
            list.iter().map(|(via, r)| OverdueWait { via: *via, rank: Rank(*r) }).collect()
        };
        let awaited = said.iter().map(|(rank, list)| (Rank(*rank), waits(list))).collect();
        let overdue = Overdue { awaited, verdict_at: None };
        let expect: Vec<Rank> = expect.iter().copied().map(Rank).collect();
        assert_eq!(overdue.ends(Rank(7), N), expect, "{said:?}");
    }

    #[test]
    fn the_end_of_the_chain_is_named() {
        use Via::{Direct, Next, Prev};
        check(&[(7, &[(Direct, 3)])], &[3]);
        check(&[(7, &[(Direct, 2)]), (2, &[(Direct, 1)]), (1, &[(Direct, 0)])], &[0]);
        check(&[(7, &[(Direct, 1), (Direct, 2)]), (1, &[(Direct, 4)]), (2, &[(Direct, 5)])], &[4, 5]);
        // Rank 0 is on the way to rank 1 and reports nothing: it did not forward what rank 1 sent.
        check(&[(7, &[(Next, 1)]), (1, &[(Prev, 7)])], &[0]);
        check(&[(7, &[(Prev, 4)]), (6, &[(Prev, 4)])], &[5]);
        // All ranks on the way are blocked on the same rank.
        check(&[(7, &[(Prev, 4)]), (6, &[(Prev, 4)]), (5, &[(Prev, 4)])], &[4]);
        // A cycle has no end.
        check(&[(7, &[(Direct, 2)]), (2, &[(Direct, 7)])], &[]);
    }
}
