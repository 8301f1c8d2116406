//! All-gathers over the bootstrap ring.
//!
//! Every rank sends its block in both directions. A block travels `n / 2` ranks forward and
//! `(n - 1) / 2` ranks backward, so every rank has it after half a turn of the ring. A rank
//! forwards a block as soon as it arrives, whether or not it has begun that round itself; it adds
//! its own block only when it begins. So a round is also a barrier: no rank completes it before all
//! ranks have begun it. A neighbour can be at most one round ahead.

use std::collections::VecDeque;

use super::messages::MAX_BLOCK;
use crate::types::Rank;

/// The side of the ring that a block came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Prev,
    Next,
}

#[derive(Debug)]
struct Round {
    blocks: Vec<Option<Vec<u8>>>,
    have: usize,
}

/// The all-gather rounds of one rank that are in progress.
#[derive(Debug)]
pub(crate) struct Rounds {
    rank: u32,
    nranks: u32,
    /// How many rounds this rank has begun.
    begun: u32,
    /// The number of the first round in `open`; all earlier ones were taken.
    first: u32,
    open: VecDeque<Round>,
}

impl Rounds {
    pub(crate) const fn new(rank: Rank, nranks: u32) -> Self {
        Self { rank: rank.0, nranks, begun: 0, first: 0, open: VecDeque::new() }
    }

    /// How many ranks a block travels: forward and backward.
    const fn reach(&self) -> (u32, u32) {
        (self.nranks / 2, (self.nranks - 1) / 2)
    }

    /// Whether a block that came from one side is forwarded to the other. For the rank's own block,
    /// `travelled` is 0.
    const fn goes_on(&self, from: Side, travelled: u32) -> bool {
        let (onward, back) = self.reach();
        match from {
            Side::Prev => travelled < onward,
            Side::Next => travelled < back,
        }
    }

    /// Whether the rank's own block is sent to the next rank, and to the previous one.
    pub(crate) const fn ways(&self) -> (bool, bool) {
        (self.goes_on(Side::Prev, 0), self.goes_on(Side::Next, 0))
    }

    /// Begins the next round with this rank's block and returns the round's number.
    pub(crate) fn begin(&mut self, own: Vec<u8>) -> u32 {
        let number = self.begun;
        self.begun += 1;
        let (rank, round) = (self.rank as usize, self.round(number).expect("at most one ahead"));
        round.blocks[rank] = Some(own);
        round.have += 1;
        number
    }

    fn round(&mut self, number: u32) -> Option<&mut Round> {
        // A neighbour is at most one round ahead of this rank.
        if number < self.first || number > self.begun {
            return None;
        }
        let at = (number - self.first) as usize;
        while self.open.len() <= at {
            self.open.push_back(Round { blocks: vec![None; self.nranks as usize], have: 0 });
        }
        Some(&mut self.open[at])
    }

    /// Stores a block that came from `side`; returns whether to forward it to the other side.
    pub(crate) fn arrived(
        &mut self,
        side: Side,
        number: u32,
        origin: Rank,
        bytes: Vec<u8>,
    ) -> Result<bool, &'static str> {
        if origin.0 >= self.nranks || bytes.len() > MAX_BLOCK {
            return Err("a block of an impossible rank or size");
        }
        let (onward, back) = self.reach();
        let (travelled, furthest) = match side {
            Side::Prev => ((self.rank + self.nranks - origin.0) % self.nranks, onward),
            Side::Next => ((origin.0 + self.nranks - self.rank) % self.nranks, back),
        };
        if travelled == 0 || travelled > furthest {
            return Err("a block that came the wrong way");
        }
        let round = self.round(number).ok_or("a block of an impossible round")?;
        let place = &mut round.blocks[origin.index()];
        if place.is_some() {
            return Err("a block that was here before");
        }
        *place = Some(bytes);
        round.have += 1;
        Ok(self.goes_on(side, travelled))
    }

    /// Whether all blocks of that round have arrived, and none was taken.
    pub(crate) fn is_complete(&self, number: u32) -> bool {
        let has_all = self.open.front().is_some_and(|round| round.have == self.nranks as usize);
        number == self.first && has_all
    }

    /// The blocks of a round, ordered by rank, once all of them have arrived.
    pub(crate) fn take(&mut self, number: u32) -> Option<Vec<Vec<u8>>> {
        if !self.is_complete(number) {
            return None;
        }
        self.first += 1;
        self.open.pop_front()?.blocks.into_iter().collect()
    }

    /// The ranks that block a round: on each side, the nearest rank whose block is missing. Blocks
    /// of ranks further away may only be delayed behind it. The rank named may have sent its block,
    /// and a rank in between may not have forwarded it.
    pub(crate) fn awaited(&mut self, number: u32) -> Vec<(Side, Rank)> {
        let ((onward, back), n, me) = (self.reach(), self.nranks, self.rank);
        let Some(round) = self.round(number) else { return Vec::new() };
        let lacks = |rank: &u32| round.blocks[*rank as usize].is_none();
        let before = (1..=onward).map(|d| (me + n - d) % n).find(lacks);
        let behind = (1..=back).map(|d| (me + d) % n).find(lacks);
        let sides = [(Side::Prev, before), (Side::Next, behind)];
        sides.into_iter().filter_map(|(side, rank)| Some((side, Rank(rank?)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs one round on `n` ranks; `absent` never begins. Returns, for each rank, its blocks or
    /// the ranks it is blocked on.
    #[expect(clippy::type_complexity)]
    fn play(n: u32, absent: Option<u32>) -> Vec<Result<Vec<Vec<u8>>, Vec<(Side, Rank)>>> {
        let mut ranks: Vec<Rounds> = (0..n).map(|r| Rounds::new(Rank(r), n)).collect();
        let mut flying = VecDeque::new();
        for rank in (0..n).filter(|rank| Some(*rank) != absent) {
            ranks[rank as usize].begin(vec![rank as u8; rank as usize]);
            let (next, prev) = ranks[rank as usize].ways();
            if next {
                flying.push_back(((rank + 1) % n, Side::Prev, rank));
            }
            if prev {
                flying.push_back(((rank + n - 1) % n, Side::Next, rank));
            }
        }
        while let Some((at, side, origin)) = flying.pop_front() {
            let block = vec![origin as u8; origin as usize];
            if ranks[at as usize].arrived(side, 0, Rank(origin), block).unwrap() {
                let on = if side == Side::Prev { (at + 1) % n } else { (at + n - 1) % n };
                flying.push_back((on, side, origin));
            }
        }
        ranks.iter_mut().map(|rank| rank.take(0).ok_or_else(|| rank.awaited(0))).collect()
    }

    #[test]
    fn everybody_gets_every_block_once() {
        for n in 1..=17 {
            let expect: Vec<Vec<u8>> = (0..n).map(|r| vec![r as u8; r as usize]).collect();
            for (rank, seen) in play(n, None).into_iter().enumerate() {
                assert_eq!(seen.as_ref(), Ok(&expect), "rank {rank} of {n}");
            }
        }
    }

    #[test]
    fn the_absent_rank_is_the_one_awaited() {
        for n in 2..=9 {
            for absent in 0..n {
                for (rank, seen) in play(n, Some(absent)).into_iter().enumerate() {
                    if rank as u32 != absent {
                        let awaited = seen.unwrap_err();
                        assert!(
                            matches!(awaited[..], [(_, Rank(r))] if r == absent),
                            "rank {rank} of {n}: {awaited:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_out_of_place_are_refused() {
        let mut rounds = Rounds::new(Rank(1), 4);
        assert!(rounds.arrived(Side::Prev, 0, Rank(4), vec![]).is_err(), "no such rank");
        assert!(rounds.arrived(Side::Prev, 0, Rank(1), vec![]).is_err(), "an own block came back");
        assert!(rounds.arrived(Side::Next, 0, Rank(3), vec![]).is_err(), "too far");
        assert!(rounds.arrived(Side::Prev, 1, Rank(0), vec![]).is_err(), "two rounds ahead");
        assert_eq!(rounds.arrived(Side::Prev, 0, Rank(0), vec![]), Ok(true));
        assert!(rounds.arrived(Side::Prev, 0, Rank(0), vec![]).is_err(), "twice");
        rounds.begin(vec![]);
        assert_eq!(rounds.arrived(Side::Prev, 1, Rank(3), vec![]), Ok(false), "a round ahead is fine now");
    }
}
