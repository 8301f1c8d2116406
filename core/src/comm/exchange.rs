//! How the ranks of a communicator that is being made tell each other what each needs to know: over
//! a bootstrap, over the communicator from which it is made, or over what is left of that.

use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::driver::Bootstrap;
use crate::bootstrap::frame::printable;
use crate::collective::PartOf;
use crate::comm::cards::Exchange;
use crate::comm::driver::Asked;
use crate::comm::state::{Inner, lock};
use crate::diagnose::ranks_text;
use crate::error::{Error, ErrorKind, Result};
use crate::failure::gossip::{Attempt, Share, bounded};
use crate::failure::task::{GossipTask, Unshared};
use crate::memory::{view_of, view_of_mut};
use crate::types::{Datatype, Rank};

impl Exchange for Bootstrap {
    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        Self::all_gather(self, own)
    }
    fn serve(&mut self) -> Result<()> {
        Self::serve(self)
    }
}

/// A block in front of which this stands is what its rank tells the others.
const SAID: u8 = 0;
/// A block in front of which this stands is why its rank gives up.
const GAVE_UP: u8 = 1;

/// The way over the parent of the communicators that are made, which are parts of it.
///
/// All ranks of the parent make the same number of rounds, whatever becomes of their part.
pub(super) struct OverParent<'a> {
    parent: &'a Arc<Inner>,
    /// The ranks of this rank's part, as ranks of the parent and in the order of the part.
    members: Vec<Rank>,
    rounds_left: u32,
}

impl<'a> OverParent<'a> {
    pub(super) const fn new(parent: &'a Arc<Inner>, members: Vec<Rank>, rounds: u32) -> Self {
        Self { parent, members, rounds_left: rounds }
    }

    /// Makes the rounds that are left. The ranks of this rank's part learn why it gives up, if it
    /// does; otherwise, whether one of them does.
    ///
    /// # Errors
    /// A rank gave up, or the parent failed.
    pub(super) fn conclude(mut self, gave_up: Option<&Error>) -> Result<()> {
        let (kind, text) = match gave_up {
            Some(error) => (GAVE_UP, bounded(&error.what)),
            None => (SAID, String::new()),
        };
        let mut outcome = Ok(());
        while self.rounds_left > 0 {
            let round = self.round(kind, text.as_bytes()).map(drop);
            outcome = outcome.and(round);
            if self.parent.has_failed().is_some() {
                break;
            }
        }
        outcome
    }

    fn round(&mut self, kind: u8, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.rounds_left = self.rounds_left.saturating_sub(1);
        let all = self.parent.gather_blocks(PartOf::Split, &[&[kind], own].concat())?;
        let block = |(at, member): (usize, &Rank)| said_by(Rank(at as u32), &all[member.index()]);
        self.members.iter().enumerate().map(block).collect()
    }
}

/// What a rank tells in its block, unless it gives up.
fn said_by(rank: Rank, block: &[u8]) -> Result<Vec<u8>> {
    match block.split_first() {
        Some((&SAID, block)) => Ok(block.to_vec()),
        Some((_, why)) => {
            let what = format!("rank {rank} gave up: {}", printable(why));
            Err(Error::new(ErrorKind::Unavailable, what).with_peer(rank))
        }
        None => Err(Error::new(ErrorKind::Mismatch, format!("rank {rank} said nothing")).with_peer(rank)),
    }
}

impl Exchange for OverParent<'_> {
    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.round(SAID, own)
    }
    fn serve(&mut self) -> Result<()> {
        self.parent.has_failed().map_or(Ok(()), Err)
    }
}

/// The way between the ranks that are left of a communicator: over its failure gossip, which goes
/// on when the communicator has failed.
pub(super) struct OverGossip {
    gossip: Arc<GossipTask>,
    attempt: Attempt,
    /// The ranks that are left, as ranks of the parent.
    members: Vec<Rank>,
    /// The parent's name and this rank there.
    me: (String, Rank),
    round: u32,
    /// Whether a round failed: the others know.
    is_over: bool,
    /// The number that the others' attempt has by now, if this one was given up before.
    behind: Option<u32>,
    /// How long it may wait for others.
    left_over: Duration,
    limit: Duration,
}

impl OverGossip {
    /// An attempt of `parent` without these ranks.
    pub(super) fn new(
        gossip: Arc<GossipTask>,
        parent: &Inner,
        attempt: Attempt,
        left_over: Duration,
    ) -> Self {
        let members = (0..parent.nranks).map(Rank).filter(|rank| !attempt.without.contains(rank));
        let (members, limit) = (members.collect(), parent.timeout);
        let me = (parent.name.clone(), parent.rank);
        Self { gossip, attempt, members, me, round: 0, is_over: false, behind: None, left_over, limit }
    }

    pub(super) fn members(&self) -> &[Rank] {
        &self.members
    }

    /// Whether a rank is gone that this attempt does not leave out.
    pub(super) fn has_grown(&self) -> bool {
        self.gossip.gone().iter().any(|rank| !self.attempt.without.contains(rank))
    }

    /// The number of the attempt to join instead.
    pub(super) const fn behind(&self) -> Option<u32> {
        self.behind
    }

    /// How long it may still wait for others.
    pub(super) const fn left_over(&self) -> Duration {
        self.left_over
    }

    /// Sends this rank's block to all ranks and returns theirs. `lacks` is called while some are
    /// missing, with their ranks among those that are left.
    pub(super) fn round(&mut self, own: &[u8], lacks: &mut dyn FnMut(&[Rank])) -> Result<Vec<Vec<u8>>> {
        let share = self.share(SAID, own);
        let is_last = self.round == ROUNDS_LEFT;
        let members = self.members.clone();
        let mut of_members = |missing: &[Rank]| {
            let at = missing.iter().filter_map(|rank| members.binary_search(rank).ok());
            lacks(&at.map(|at| Rank(at as u32)).collect::<Vec<_>>());
        };
        let shared = self.gossip.share(share, is_last, &mut self.left_over, &mut of_members);
        let blocks = shared.map_err(|why| self.unshared(why, own)).and_then(|blocks| {
            let said = members.iter().zip(&blocks).map(|(rank, block)| said_by(*rank, block));
            said.collect::<Result<Vec<_>>>()
        });
        self.is_over = blocks.is_err();
        // The ranks that it names are those of the parent.
        blocks.map_err(|error| error.in_comm(&self.me.0, self.me.1))
    }

    /// Tells the ranks that wait for this one's next block that there will be none, and why.
    pub(super) fn give_up(&mut self, why: &Error) {
        if !self.is_over && self.round < ROUNDS_LEFT {
            let share = self.share(GAVE_UP, bounded(&why.what).as_bytes());
            self.gossip.tell(share);
        }
    }

    fn share(&mut self, kind: u8, own: &[u8]) -> Share {
        let (attempt, block) = (self.attempt.clone(), [&[kind], own].concat());
        let share = Share { rank: self.me.1, attempt, round: self.round, block };
        self.round += 1;
        share
    }

    fn unshared(&mut self, why: Unshared, own: &[u8]) -> Error {
        match why {
            Unshared::Grew => grown(),
            Unshared::Behind(nth) => {
                self.behind = Some(nth);
                Error::new(ErrorKind::Unavailable, "the other ranks have given this attempt up")
            }
            Unshared::Differs(rank, block) => {
                let theirs = block.get(1..).unwrap_or_default();
                let (theirs, ours) = (listed(theirs), listed(own));
                let what = format!(
                    "rank {rank} leaves other ranks out than rank {}: {theirs}, not {ours}",
                    self.me.1
                );
                let error = Error::new(ErrorKind::Mismatch, what).with_peer(rank);
                error.hint("give the same list on all ranks")
            }
            Unshared::Without(ranks) => {
                let what = format!("{} did not call shrink() within {:?}", ranks_text(&ranks), self.limit);
                let error =
                    Error::new(ErrorKind::Timeout, what).hint("leave ranks out that do not take part");
                match ranks.first() {
                    Some(rank) => error.with_peer(*rank),
                    None => error,
                }
            }
        }
    }
}

/// A list of ranks, of four bytes each.
fn listed(block: &[u8]) -> String {
    let (words, _) = block.as_chunks::<4>();
    let ranks: Vec<Rank> =
        words.iter().take(MAX_LISTED).map(|word| Rank(u32::from_le_bytes(*word))).collect();
    if ranks.is_empty() { "none".into() } else { ranks_text(&ranks) }
}

/// The most ranks of such a list that are shown.
const MAX_LISTED: usize = 64;

/// The rounds among the ranks that are left: who takes part, where the memory of each rank is, and
/// the conclusion.
const ROUNDS_LEFT: u32 = 3;

fn grown() -> Error {
    Error::new(ErrorKind::Peer, "one more rank is gone")
}

impl Exchange for OverGossip {
    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.round(own, &mut |_| ())
    }
    fn serve(&mut self) -> Result<()> {
        if self.has_grown() { Err(grown()) } else { Ok(()) }
    }
}

/// The most bytes of a block: a longer one is no block.
const MAX_BLOCK: usize = 1 << 20;

impl Inner {
    /// The block of every rank; they may differ in length.
    pub(super) fn gather_blocks(&self, call: PartOf, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut lengths = Vec::with_capacity(self.nranks as usize);
        for (rank, length) in (0..).map(Rank).zip(self.gather_words(call, &[own.len() as i64])?) {
            let length = usize::try_from(length).ok().filter(|length| *length <= MAX_BLOCK);
            lengths.push(length.ok_or_else(|| {
                let what = format!("rank {rank} says more than {MAX_BLOCK} bytes");
                Error::new(ErrorKind::Mismatch, what).with_peer(rank).in_comm(&self.name, self.rank)
            })?);
        }
        let longest = lengths.iter().max().copied().unwrap_or(0);
        let mut padded = own.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0_u8; longest * self.nranks as usize];
        let request = call.gathers(Datatype::U8, longest as u64);
        self.call(&Asked::new(request, view_of(&padded), view_of_mut(&mut all)))?;
        let blocks = all.chunks(longest.max(1)).zip(lengths);
        Ok(blocks.map(|(block, length)| block[..length].to_vec()).collect())
    }

    /// The words of every rank, all as many.
    pub(super) fn gather_words(&self, call: PartOf, own: &[i64]) -> Result<Vec<i64>> {
        let mut all = vec![0_i64; own.len() * self.nranks as usize];
        let request = call.gathers(Datatype::I64, own.len() as u64);
        self.call(&Asked::new(request, view_of(own), view_of_mut(&mut all)))?;
        Ok(all)
    }

    /// Why the communicator has failed, if all ranks know that it has.
    pub(super) fn has_failed(&self) -> Option<Error> {
        let decision = lock(&self.shared.decision).clone()?;
        let error = Error::new(decision.trouble.kind(), decision.text).with_peer(decision.about);
        Some(error.in_comm(&self.name, self.rank))
    }
}
