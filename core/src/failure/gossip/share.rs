//! What the survivors tell each other to make a communicator without the ranks that are gone.
//!
//! Every rank floods one block per round. An attempt is named by the ranks that it leaves out: a
//! rank that learns of one more that is gone begins a new attempt. As all ranks learn of all that
//! are gone, all come to the same attempt.

use serde::{Deserialize, Serialize};

use super::{Gossip, GossipMessage, Life, To};
use crate::types::Rank;

/// An attempt to make a communicator of the ranks that are left.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// How many such communicators were made before.
    pub nth: u32,
    /// The ranks that it leaves out, ascending.
    pub without: Vec<Rank>,
}

/// What one rank tells all others in one round of an attempt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The rank.
    pub rank: Rank,
    /// The attempt.
    pub attempt: Attempt,
    /// The round, from 0.
    pub round: u32,
    /// What it tells.
    pub block: Vec<u8>,
}

impl Share {
    fn is_same(&self, other: &Self) -> bool {
        (self.rank, &self.attempt, self.round) == (other.rank, &other.attempt, other.round)
    }
}

impl Gossip {
    /// The ranks that are dead or have left, ascending.
    #[must_use]
    pub fn gone(&self) -> Vec<Rank> {
        let lives = (0..).map(Rank).zip(&self.lives);
        lives.filter(|(_, life)| **life != Life::Lives).map(|(rank, _)| rank).collect()
    }

    /// Whether this rank makes a communicator without those that are gone. The ring is then mended
    /// past the dead, also after a decision.
    #[must_use]
    pub const fn is_sharing(&self) -> bool {
        self.sharing.is_some()
    }

    /// This rank closes: what it knows it has passed on, and the ring needs no more repair.
    pub fn stop_sharing(&mut self) {
        self.sharing = None;
    }

    /// Tells all ranks this rank's block of a round. Attempts of earlier numbers are forgotten.
    pub fn share(&mut self, share: Share) {
        self.shares.retain(|known| known.attempt.nth >= share.attempt.nth);
        self.sharing = Some(share.attempt.clone());
        self.keep(share.clone());
        self.flood(&GossipMessage::Share(share));
    }

    /// The blocks of a round that have arrived, by rank.
    pub fn shares(&self, attempt: &Attempt, round: u32) -> impl Iterator<Item = (Rank, &[u8])> {
        let of = move |share: &&Share| share.attempt == *attempt && share.round == round;
        self.shares.iter().filter(of).map(|share| (share.rank, share.block.as_slice()))
    }

    /// A rank that told another block in the first round of an attempt of this number, whichever
    /// ranks it leaves out, and that block.
    pub fn differs(&self, attempt: &Attempt, own: &[u8]) -> Option<(Rank, &[u8])> {
        let is_of = |share: &&Share| (share.attempt.nth, share.round) == (attempt.nth, 0);
        self.shares
            .iter()
            .filter(is_of)
            .find(|share| share.block != own)
            .map(|share| (share.rank, &share.block[..]))
    }

    /// The number of the latest attempt that another rank has begun, if this one is an earlier one.
    pub fn later(&self, attempt: &Attempt) -> Option<u32> {
        self.shares.iter().map(|share| share.attempt.nth).max().filter(|nth| *nth > attempt.nth)
    }

    /// Keeps another rank's block; returns whether it is new.
    pub(super) fn keep(&mut self, share: Share) -> bool {
        let is_past = self.sharing.as_ref().is_some_and(|own| share.attempt.nth < own.nth);
        let is_new = !is_past && !self.shares.iter().any(|known| known.is_same(&share));
        if is_new {
            self.shares.push(share);
        }
        is_new
    }

    /// Passes a new block on: also to the peers of this host, as its rank may be gone before it
    /// has told all.
    pub(super) fn pass_on(&mut self, onward: &[super::Side], share: Share) {
        let message = GossipMessage::Share(share);
        self.send(onward, &message);
        self.out.push((To::Local, message));
    }
}
