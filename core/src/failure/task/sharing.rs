//! The remaining ranks exchange blocks in rounds, to go on without the dead.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use super::{FLUSH_STEP, GossipTask};
use crate::clock;
use crate::failure::gossip::Share;
use crate::types::Rank;

/// How long the last blocks of an attempt may take to arrive once a rank is gone.
const GRACE: Duration = Duration::from_millis(300);

/// Why the ranks that are left did not tell each other everything.
pub(crate) enum Unshared {
    /// One more is gone.
    Grew,
    /// They have begun a later attempt, of this number.
    Behind(u32),
    /// This rank told this where all tell the same.
    Differs(Rank, Vec<u8>),
    /// These have not told anything in time.
    Without(Vec<Rank>),
}

impl GossipTask {
    /// Tells all ranks this rank's block of a round, and waits for none.
    pub(crate) fn tell(&self, share: Share) {
        self.lock().gossip.share(share);
        self.handle.nudge();
    }

    /// Tells all ranks that an attempt does not leave out this rank's block of a round, and waits
    /// for theirs, as long as there is time `left`. `lacks` is called with the ranks whose blocks
    /// have not arrived, again and again. In the first round all tell the same. In the last round,
    /// what others may have received is awaited a little before one more rank that is gone counts.
    pub(crate) fn share(
        &self,
        share: Share,
        is_last: bool,
        left: &mut Duration,
        lacks: &mut dyn FnMut(&[Rank]),
    ) -> Result<Vec<Vec<u8>>, Unshared> {
        let (attempt, round) = (share.attempt.clone(), share.round);
        let own = share.block.clone();
        let mut state = self.lock();
        state.gossip.share(share);
        let nranks = state.gossip.nranks();
        let members = (0..nranks).map(Rank).filter(|rank| !attempt.without.contains(rank));
        let members: Vec<Rank> = members.collect();
        self.handle.nudge();
        let mut grace = if is_last { GRACE } else { Duration::ZERO };
        let mut behind = GRACE;
        loop {
            if round == 0
                && let Some((rank, block)) = state.gossip.differs(&attempt, &own)
            {
                return Err(Unshared::Differs(rank, block.to_vec()));
            }
            let blocks: BTreeMap<Rank, &[u8]> = state.gossip.shares(&attempt, round).collect();
            let missing = members.iter().filter(|rank| !blocks.contains_key(rank)).copied();
            let missing: Vec<Rank> = missing.collect();
            if missing.is_empty() {
                return Ok(members.iter().map(|rank| blocks[rank].to_vec()).collect());
            }
            let grew = state.gossip.gone().iter().any(|rank| !attempt.without.contains(rank));
            if grew && grace.is_zero() {
                return Err(Unshared::Grew);
            }
            // What it lacks may be on its way from ranks that came to the end of this attempt.
            let later = state.gossip.later(&attempt);
            if let Some(nth) = later.filter(|_| behind.is_zero()) {
                return Err(Unshared::Behind(nth));
            }
            if left.is_zero() {
                return Err(Unshared::Without(missing));
            }
            drop(state);
            lacks(&missing);
            let (step, began) = ((*left).min(FLUSH_STEP), clock::now());
            let waited = self.state.1.wait_timeout(self.lock(), step).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            let took = clock::now().since(began).min(step);
            *left = left.saturating_sub(took);
            if grew {
                grace = grace.saturating_sub(took);
            }
            if later.is_some() {
                behind = behind.saturating_sub(took);
            }
        }
    }
}
