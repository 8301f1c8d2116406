//! Unsatisfiable waits: for a rank that has called `finish()`, or that called something else.

use std::time::Duration;

use crate::clock::{self, Ns, Raw, Stopwatch};
use crate::collective::{Descriptor, Numbering};
use crate::comm::state::{Driver, Inner, lock};
use crate::engine::{Cause, Failure, Wait};
use crate::failure::gossip::{self, Decision, Difference, Open, Trouble};
use crate::notice::{self, Level};
use crate::transport::LinkFault;
use crate::types::{ChannelId, Rank, WaitReason};

/// How long a rank waits before it asks the rank it is blocked on whether that rank calls the same.
pub(super) const ASK: Duration = Duration::from_millis(200);

impl Driver {
    /// Handles a wait longer than a message takes: records it, and fails an unsatisfiable wait.
    pub(super) fn stands(&mut self) {
        let now = clock::raw();
        self.engine.note_waits(now);
        self.engine.row().driven(now);
        if let Some(failure) = self.mismatch() {
            self.engine.stop(failure);
        }
    }

    /// For how long the operation was seen to stand that a thread has waited for longest, and a
    /// wait of it.
    pub(super) fn stood(&mut self, now: Ns) -> (Duration, Option<Wait>) {
        let mut longest = (Duration::ZERO, None);
        for (found, known) in self.engine.stands().into_iter().zip(&mut self.stands) {
            let Some((wait, since)) = found else {
                *known = None;
                continue;
            };
            let fresh = (wait.op, since, Stopwatch::start(now));
            let (.., watch) = match known {
                Some(same) if (same.0, same.1) == (wait.op, since) => same,
                _ => known.insert(fresh),
            };
            let stood = watch.look(now);
            if stood > longest.0 {
                longest = (stood, Some(wait));
            }
        }
        longest
    }

    /// Whether a call must be compared with what other ranks reported. A question about a later
    /// call than the latest one need not.
    pub(super) fn is_watched(&self) -> bool {
        let is_due = |(_, call): &(Rank, Descriptor)| call.seq < self.numbers.next();
        !self.finished.is_empty() || self.asked.iter().any(is_due)
    }

    /// The failure of a call that fits neither the tallies of ranks that have called `finish()`,
    /// nor the calls in which other ranks wait.
    pub(super) fn unfit(&mut self) -> Option<Failure> {
        let op = self.engine.under_way()?;
        self.needless(op).or_else(|| self.answer(op))
    }

    /// The failure if a rank that has called `finish()` has not made this rank's call.
    fn needless(&self, op: (crate::types::CollKind, u64)) -> Option<Failure> {
        let me = self.links.me;
        let (rank, found) = unfit(me, &self.numbers, &self.finished, || self.links.own_calls().collect())?;
        let cause = match found.differs(me, rank) {
            Some(text) => Cause::Differs(text),
            None => Cause::Mismatch { ours: self.latest()?, theirs: 0 },
        };
        let wait = self.engine.waits().iter().find(|wait| wait.peer == rank);
        let pair = op.0.is_p2p().then_some(ChannelId::P2P);
        let channel = wait.map(|wait| wait.channel).or(pair);
        Some(Failure { cause, op: Some(op), peer: Some(rank), channel })
    }

    /// The failure if a rank waits in a collective for which this rank made another call.
    fn answer(&mut self, op: (crate::types::CollKind, u64)) -> Option<Failure> {
        let latest = self.numbers.next() - 1;
        let (behind, ahead): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.asked).into_iter().partition(|(_, call)| call.seq <= latest);
        self.asked = ahead;
        behind.into_iter().find_map(|(from, call)| {
            let mine = self.numbers.collective(call.seq).filter(|mine| *mine != call)?;
            // The first call that differs is told, if it is one of the latest. Both sides are known
            // of this one, however long ago it was.
            let is_late = self.links.own_calls().any(|late| is_collective(&late, call.seq));
            let cause = if is_late {
                Cause::Mismatch { ours: mine, theirs: call.hash() }
            } else {
                Cause::Differs(gossip::say_both((self.links.me, &mine), (from, &call)))
            };
            Some(Failure { cause, op: Some(op), peer: Some(from), channel: None })
        })
    }

    /// The latest collective this rank called.
    fn latest(&self) -> Option<Descriptor> {
        self.links.own_calls().find(|call| !call.kind.is_p2p())
    }

    /// The failure of a wait for a peer that called something else under the same number.
    ///
    /// If both calls use the same lane, a message shows it. If they do not, no message ever comes,
    /// and only the call that the peer publishes shows it. Between hosts all collectives use the
    /// same lanes.
    fn mismatch(&self) -> Option<Failure> {
        let ours = *self.engine.collective()?;
        let op = Some((ours.kind, ours.seq));
        self.engine.waits().iter().filter(|wait| wait.channel != ChannelId::P2P).find_map(|wait| {
            let theirs = self.links.calls(wait.peer).find(|its| is_collective(its, ours.seq))?;
            let cause = Cause::Mismatch { ours, theirs: theirs.hash() };
            let failure = Failure { cause, op, peer: Some(wait.peer), channel: Some(wait.channel) };
            (theirs != ours).then_some(failure)
        })
    }

    /// Describes a mismatch with `peer`, where `theirs` is the hash of its call: the message, and
    /// the part that only that rank can add. A peer's call is known if its memory is mapped. A
    /// message of an earlier call may have waited on a lane that this rank's calls did not use
    /// since: then the two ranks differ in that call, or in one before it.
    pub(super) fn sides(&self, ours: &Descriptor, theirs: u64, peer: Rank) -> (String, Option<Open>) {
        let me = self.links.me;
        let its: Vec<Descriptor> = self.links.calls(peer).collect();
        let mine: Vec<Descriptor> = self.links.own_calls().collect();
        let both = if ours.kind.is_p2p() {
            its.iter().find(|its| its.kind.is_p2p() && its.hash() == theirs).map(|its| (*ours, *its))
        } else {
            gossip::first(&mine, &its)
        };
        match both {
            Some((ours, its)) => (gossip::say_both((me, &ours), (peer, &its)), None),
            None => {
                let text = gossip::say_one((me, ours), peer);
                (text, Some(Open { ours: Some(*ours), theirs: Some(theirs), calls: mine }))
            }
        }
    }
}

impl Inner {
    /// Asks the peers that a collective has been blocked on for long whether they call the same:
    /// once per operation and peer. Other calls may move meanwhile. A peer in memory is asked only
    /// if its latest calls do not tell it: it has made many sends and receives since.
    pub(super) fn ask(&self, driver: &mut Driver) {
        let Some(since) = driver.engine.collective_waits_since() else { return };
        if !is_long(since) {
            return;
        }
        let Some(ours) = driver.engine.collective().copied() else { return };
        if driver.asking.0 != ours.seq {
            driver.asking = (ours.seq, Vec::new());
        }
        let is_asked = |wait: &&Wait, asked: &[Rank]| {
            wait.channel == ChannelId::P2P
                || asked.contains(&wait.peer)
                || driver.links.tell(wait.peer, ours.seq)
        };
        let peers = driver.engine.waits().iter().filter(|wait| !is_asked(wait, &driver.asking.1));
        let mut peers: Vec<Rank> = peers.map(|wait| wait.peer).collect();
        peers.dedup();
        let gossip = if peers.is_empty() { None } else { lock(&self.gossip).clone() };
        for peer in peers {
            driver.asking.1.push(peer);
            if let Some(gossip) = &gossip {
                gossip.ask(peer, ours);
            }
        }
    }

    /// The shortage of this rank that keeps a link from coming up which one of these waits for, if
    /// there is one: a sentence, and a hint.
    pub(super) fn lacking(&self, driver: &Driver, waits: &[Wait]) -> Option<(String, &'static str)> {
        driver.engine.under_way()?;
        // Before its first turn an operation has no wait yet.
        let is_connecting = waits.is_empty() || waits.iter().any(|wait| wait.reason == WaitReason::Connect);
        if is_connecting { self.shortage.of(self.rank) } else { None }
    }

    /// Warns once what this rank lacks for connections: it waits for it until its normal deadline.
    pub(super) fn say_shortage(&self) {
        if let Some((what, hint)) = self.shortage.to_say(self.rank) {
            let text = format!("comm {}: {what}, and another rank cannot be connected: {hint}", self.name);
            notice::say(&self.settings, Level::Warn, &text);
        }
    }
}

/// Whether a wait that began then has lasted long enough to ask others.
pub(super) fn is_long(since: Raw) -> bool {
    let waited_ns = clock::scale().ns(clock::raw().0.saturating_sub(since.0));
    Duration::from_nanos(waited_ns) >= ASK
}

fn unfit(
    me: Rank,
    numbers: &Numbering,
    finished: &[(Rank, crate::collective::Tally)],
    calls: impl Fn() -> Vec<Descriptor>,
) -> Option<(Rank, Difference)> {
    if finished.is_empty() {
        return None;
    }
    let (mine, calls) = (numbers.tally(), calls());
    let against =
        |(rank, its): &(Rank, _)| Some((*rank, gossip::against((me, &mine, &calls), (*rank, its))?));
    finished.iter().find_map(against)
}

fn is_collective(call: &Descriptor, seq: u64) -> bool {
    call.seq == seq && !call.kind.is_p2p()
}

/// The rank that a failure lost: the rank that all agree has died, or without an agreement the peer
/// whose link ended.
pub(super) fn lost(failure: &Failure, decision: Option<&Decision>) -> Option<Rank> {
    match (decision, &failure.cause) {
        (Some(decision), _) => {
            matches!(decision.trouble, Trouble::Died | Trouble::Unreachable).then_some(decision.about)
        }
        (None, Cause::Link(LinkFault::Gone)) => failure.peer,
        (None, Cause::Link(_) | Cause::Mismatch { .. } | Cause::Differs(_) | Cause::External(_)) => None,
    }
}
