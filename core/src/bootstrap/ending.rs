//! The end of the bootstrap on the ring: no rank leaves before all have come to it, and none waits
//! for a neighbour that is slow to say that it left.
//!
//! A rank that comes to the end tells the ring so, both ways; each rank forwards what is new to it.
//! So one rank that forwards nothing any more holds up no other: once it has told that it came to
//! the end, all others leave without it. A rank leaves when it knows that all have come. What its
//! neighbours still send of their bootstrap is read by the next owner of its streams: see
//! [`BootstrapRest`].

use super::fault::Fault;
use super::frame::Frames;
use super::messages::OnRing;
use super::ring::Side;
use crate::error::ErrorKind;
use crate::types::Rank;

/// The ranks that have come to the end, as one rank knows them.
#[derive(Debug)]
pub(crate) struct EndBarrier {
    me: u32,
    ranks: Vec<bool>,
    left: usize,
}

impl EndBarrier {
    pub(crate) fn new(me: Rank, nranks: u32) -> Self {
        Self { me: me.0, ranks: vec![false; nranks as usize], left: nranks as usize }
    }

    /// Records that a rank has come; returns whether it is new. A rank that does not exist is not.
    pub(crate) fn has_come(&mut self, rank: Rank) -> bool {
        let is_new = self.ranks.get_mut(rank.index()).is_some_and(|come| !std::mem::replace(come, true));
        self.left -= usize::from(is_new);
        is_new
    }

    pub(crate) const fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// The nearest rank on each side that has not come, if one has not.
    pub(crate) fn awaited(&self) -> Vec<(Side, Rank)> {
        let n = self.ranks.len() as u32;
        let lacks = |rank: &u32| !self.ranks[*rank as usize];
        let before = (1..n).map(|d| (self.me + n - d) % n).find(lacks);
        let behind = (1..n).map(|d| (self.me + d) % n).find(lacks);
        let sides = [(Side::Prev, before), (Side::Next, behind)];
        sides.into_iter().filter_map(|(side, rank)| Some((side, Rank(rank?)))).collect()
    }
}

/// Reads the bootstrap messages that a neighbour still sends after this rank has left.
#[derive(Debug)]
pub struct BootstrapRest {
    frames: Frames,
    /// Its next bytes are not the bootstrap's.
    is_over: bool,
}

impl BootstrapRest {
    pub(crate) const fn new(frames: Frames, is_over: bool) -> Self {
        Self { frames, is_over }
    }

    /// Takes bytes that the neighbour sent. Returns those that are not the bootstrap's once it has
    /// left the bootstrap too; `None` as long as it has not.
    ///
    /// # Errors
    /// Why the neighbour's bootstrap failed.
    pub fn hear(&mut self, bytes: &[u8]) -> Option<Result<Vec<u8>, Fault>> {
        self.frames.extend(bytes);
        while !self.is_over {
            let message = match self.frames.next() {
                Ok(None) => return None,
                Ok(Some((kind, body))) => OnRing::decode(kind, &body),
                Err(_) => None,
            };
            match message {
                Some(OnRing::Handover) => self.is_over = true,
                Some(OnRing::Failed(fault)) => return Some(Err(fault)),
                // It forwards what this rank knew already.
                Some(OnRing::AtEnd(_) | OnRing::Awaits { .. }) => {}
                // This rank has all blocks of all rounds.
                Some(OnRing::Block { .. }) | None => {
                    let text = "it sent a bootstrap frame that makes no sense";
                    return Some(Err(Fault::new(ErrorKind::System, &[], text)));
                }
            }
        }
        Some(Ok(self.frames.rest()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::MAX_RING_FRAME;
    use super::*;

    #[test]
    fn the_nearest_rank_of_each_side_that_has_not_come_is_awaited() {
        let mut end = EndBarrier::new(Rank(1), 5);
        for (rank, is_new) in [(1, true), (2, true), (2, false), (5, false), (0, true)] {
            assert_eq!(end.has_come(Rank(rank)), is_new, "rank {rank}");
        }
        assert_eq!(end.awaited(), [(Side::Prev, Rank(4)), (Side::Next, Rank(3))]);
        end.has_come(Rank(3));
        assert_eq!(end.awaited(), [(Side::Prev, Rank(4)), (Side::Next, Rank(4))]);
        assert!(!end.is_complete() && end.has_come(Rank(4)) && end.is_complete());
        assert_eq!(end.awaited(), []);
    }

    #[test]
    fn what_a_neighbour_still_sends_ends_with_its_own_end() {
        let mut rest = BootstrapRest::new(Frames::new(MAX_RING_FRAME), false);
        let said = [OnRing::AtEnd(Rank(3)).encode(), OnRing::Handover.encode(), b"{}\n".to_vec()].concat();
        let (first, second) = said.split_at(12);
        assert_eq!(rest.hear(first), None);
        assert_eq!(rest.hear(second), Some(Ok(b"{}\n".to_vec())));
        assert_eq!(rest.hear(b"more"), Some(Ok(b"more".to_vec())));
        // What it sent before this rank left counts.
        let mut frames = Frames::new(MAX_RING_FRAME);
        frames.extend(b"early");
        assert_eq!(BootstrapRest::new(frames, true).hear(b""), Some(Ok(b"early".to_vec())));
    }

    #[test]
    fn a_neighbour_that_fails_or_talks_nonsense_is_told_apart_from_one_that_leaves() {
        let fault = Fault::new(ErrorKind::Timeout, &[Rank(2)], "it waits for rank 2");
        let block = OnRing::Block { round: 0, origin: Rank(0), bytes: Vec::new() };
        for (said, is_its) in
            [(OnRing::Failed(fault.clone()).encode(), true), (block.encode(), false), (vec![255; 9], false)]
        {
            let heard =
                BootstrapRest::new(Frames::new(MAX_RING_FRAME), false).hear(&said).unwrap().unwrap_err();
            assert_eq!(heard == fault, is_its, "{heard:?}");
        }
    }
}
