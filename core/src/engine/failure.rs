//! Why an engine stopped.

use super::mover::Mover;
use super::op::Op;
use super::{Claim, Engine};
use crate::clock::Raw;
use crate::collective::Descriptor;
use crate::error::ErrorKind;
use crate::event::{Event, Subscriber, publish};
use crate::transport::LinkFault;
use crate::types::{ChannelId, CollKind, Rank};

/// Why an engine stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The cause.
    pub cause: Cause,
    /// The operation in which it was found.
    pub op: Option<(CollKind, u64)>,
    /// The rank on the other side.
    pub peer: Option<Rank>,
    /// The channel.
    pub channel: Option<ChannelId>,
}

/// The cause of a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A link carries no more bytes.
    Link(LinkFault),
    /// A peer's message belongs to another operation than ours.
    Mismatch {
        /// The operation here.
        ours: Descriptor,
        /// The hash in the message.
        theirs: u64,
    },
    /// A rank has called something else than this one; the text names both sides.
    Differs(String),
    /// Decided elsewhere: an abort, a deadline, or failure gossip of a peer's death or mismatch.
    External(crate::error::Error),
}

impl Failure {
    /// The kind of error that this failure becomes.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match &self.cause {
            Cause::Link(LinkFault::Gone) => ErrorKind::Peer,
            Cause::Link(_) => ErrorKind::System,
            Cause::Mismatch { .. } | Cause::Differs(_) => ErrorKind::Mismatch,
            Cause::External(error) => error.kind,
        }
    }
}

impl<S: Subscriber, M: Mover> Engine<S, M> {
    /// Advances nothing any more: something has failed here. What all ranks hold to be the cause
    /// may be another thing, and is what [`fail`](Self::fail) is told. The first failure is kept.
    pub fn stop(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        if let (Cause::Mismatch { .. } | Cause::Differs(_), Some(peer), Some((_, seq))) =
            (&failure.cause, failure.peer, failure.op)
        {
            publish(&mut self.events, || Event::MismatchFound { peer, seq });
        }
        let changes = self.lanes.changes();
        self.queue_pairs_changed(changes.into_iter());
        self.for_each_claim(Claim::end);
        self.failure = Some(failure);
    }

    /// Ends everything under way with `failure`; only the first call has an effect.
    pub fn fail(&mut self, failure: Failure, now: Raw) {
        if std::mem::replace(&mut self.has_failed, true) {
            return;
        }
        self.stop(failure.clone());
        // Callers take their buffers back.
        self.mover.stop();
        let error = failure.kind() as u8;
        if self.collectives.is_empty() && self.pairs.busy() == 0 {
            self.row.broken();
        }
        for op in self.collectives.drain() {
            self.row.failed(op.descriptor(), error, now);
            op.publish_failed(&mut self.events, (error, failure.peer), now);
        }
        // Of several sends and receives the cell describes the one that waits, else the first.
        let waits = self.waits_to_tell()[1].map(|(wait, _)| (wait.peer, wait.direction));
        let waits = waits.and_then(|(peer, way)| self.pairs.first_of(peer, way));
        let told = waits.or_else(|| self.pairs.oldest()).map(|op| {
            let outline = op.outline(self.topology_hash);
            self.row.p2p_under_way(op.descriptor(), outline, op.peer(), op.began());
            op.number()
        });
        let pairs = self.pairs.take_all();
        let (first, others): (Vec<&Op>, _) = pairs.iter().partition(|op| Some(op.number()) == told);
        for op in first.into_iter().chain(others) {
            self.row.p2p_failed(op.descriptor(), error, now);
        }
        for op in pairs {
            op.publish_failed(&mut self.events, (error, failure.peer), now);
        }
        if failure.kind() == ErrorKind::Aborted {
            publish(&mut self.events, || Event::Aborted);
        }
        self.failure = Some(failure);
    }

    /// Publishes that a peer was lost, once it is decided which one.
    pub fn lost(&mut self, peer: Rank) {
        publish(&mut self.events, || Event::PeerLost { peer });
    }

    /// Why the engine stopped, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }
}
