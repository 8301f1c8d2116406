//! The slots of the proxy: the operations under way that hold one are moved over the network.

use super::lanes::Lanes;
use super::{Cause, Engine, Failure, Mover, Op};
use crate::event::Subscriber;
use crate::proxy::Claim;
use crate::reactor::Interest;

impl<S: Subscriber, M: Mover> Engine<S, M> {
    /// The descriptors on which to sleep until something can move.
    pub fn interests(&self, out: &mut Vec<Interest>) {
        let active = self.claims().filter(|(_, claim)| claim.holds());
        active.for_each(|(op, _)| self.lanes.interests(op, out));
    }

    /// Whether slots of the proxy are short, so that a turn is due after
    /// [`LOOK`](crate::proxy::LOOK): nothing wakes a driver when one is free, or wanted.
    #[must_use]
    pub fn is_short_of_slots(&self) -> bool {
        self.claims().any(|(_, claim)| claim.is_short())
    }

    /// Nobody may turn this engine for a while: what is under way gives its slots of the proxy
    /// back. The next turn takes some again.
    pub fn rest(&mut self) {
        self.for_each_claim(Claim::rest);
    }

    /// What is under way, with its claims to slots of the proxy.
    pub(super) fn claims(&self) -> impl Iterator<Item = (&Op, &Claim)> {
        let collective = self.collectives.first().map(|op| (op, &self.claim));
        collective.into_iter().chain(self.pairs.claims())
    }

    pub(super) fn for_each_claim(&mut self, each: impl Fn(&mut Claim)) {
        each(&mut self.claim);
        self.pairs.for_each_claim(each);
    }
}

/// Moves the messages of an operation that uses the network, if it holds a slot of the proxy.
#[inline]
pub(super) fn pump<S: Subscriber>(
    op: &Op,
    claim: &mut Claim,
    lanes: &mut Lanes,
    events: &mut S,
) -> Result<bool, Failure> {
    if !(claim.is_begun() && claim.hold()) {
        return Ok(false);
    }
    let failed = |(channel, peer, fault)| Failure {
        cause: Cause::Link(fault),
        op: Some((op.kind(), op.descriptor().seq)),
        peer: Some(peer),
        channel: Some(channel),
    };
    lanes.pump(op, events).map_err(failed)
}
