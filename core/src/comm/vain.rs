//! Waits in vain: for one who has left, and for one who called something else.

use std::time::Duration;

use crate::clock::{self, Ns};
use crate::collective::Descriptor;
use crate::comm::driver::Driver;
use crate::control::news::{Trouble, Verdict};
use crate::engine::{Cause, Failure, Wait};
use crate::transport::LinkFault;
use crate::types::{ChannelId, Rank, WaitReason};

/// How long a connection of one who has left since may take to arrive.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

impl Driver {
    /// Nothing has moved for longer than a spin: says so to whoever looks, and fails what can never end.
    pub(super) fn stands(&mut self) {
        let now = clock::raw();
        self.engine.note_waits(now);
        self.engine.row().driven(now);
        if let Some(failure) = self.mismatch().or_else(|| self.deserted(clock::now())) {
            self.engine.fail(failure, clock::raw());
        }
    }

    /// A wait for one who has left. What it stored in memory before is there by now; a socket tells its end by itself; a connection
    /// may still be on its way for a while.
    fn deserted(&self, now: Ns) -> Option<Failure> {
        let is_vain = |wait: &&Wait| {
            self.left.iter().any(|(rank, heard)| {
                *rank == wait.peer
                    && (self.links.is_memory(*rank)
                        || wait.reason == WaitReason::Connect && now.since(*heard) >= ON_ITS_WAY)
            })
        };
        let Wait { peer, channel, .. } = *self.engine.waits().iter().find(is_vain)?;
        let op = self.engine.under_way();
        Some(Failure { cause: Cause::Link(LinkFault::Gone), op, peer: Some(peer), channel: Some(channel) })
    }

    /// A wait for one who called something else under the same number. Where both calls use the same lane, a message tells; where they
    /// do not, none ever comes, and only what the peer says of itself does. Between hosts all collectives use the same lanes.
    fn mismatch(&self) -> Option<Failure> {
        let ours = *self.engine.collective()?;
        let op = Some((ours.kind, ours.seq));
        self.engine.waits().iter().filter(|wait| wait.channel != ChannelId::P2P).find_map(|wait| {
            let theirs = self.links.calls(wait.peer).find(|its| its.seq == ours.seq && !its.kind.is_p2p())?;
            let cause = Cause::Mismatch { ours, theirs: theirs.hash() };
            let failure = Failure { cause, op, peer: Some(wait.peer), channel: Some(wait.channel) };
            (theirs != ours).then_some(failure)
        })
    }

    /// Who called what in a mismatch, as far as this rank sees. A message of an earlier call may have waited on a lane that this rank's calls
    /// did not use since: then its own side is what it had called under that number.
    pub(super) fn sides(&self, failure: &Failure) -> Vec<(Rank, Descriptor)> {
        let Cause::Mismatch { ours, theirs } = &failure.cause else { return Vec::new() };
        let message = failure
            .peer
            .and_then(|peer| Some((peer, self.links.calls(peer).find(|its| its.hash() == *theirs)?)));
        let earlier = message.and_then(|(_, its)| {
            let is_that = |mine: &Descriptor| mine.seq == its.seq && mine.kind.is_p2p() == its.kind.is_p2p();
            self.links.own_calls().find(|mine| is_that(mine) && *mine != its)
        });
        let own = (self.links.me, earlier.unwrap_or(*ours));
        std::iter::once(own).chain(message).collect()
    }
}

/// Whose end a failure is: the rank's that all agree has died; where nothing was agreed upon, the one's whose link ended.
pub(super) fn lost(failure: &Failure, verdict: Option<&Verdict>) -> Option<Rank> {
    match (verdict, &failure.cause) {
        (Some(verdict), _) => (verdict.trouble == Trouble::Died).then_some(verdict.about),
        (None, Cause::Link(LinkFault::Gone)) => failure.peer,
        (None, Cause::Link(_) | Cause::Mismatch { .. } | Cause::Told(_)) => None,
    }
}
