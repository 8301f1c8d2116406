//! Waits in vain: for one who has called `finish()`, and for one who called something else.

use std::time::Duration;

use crate::bootstrap::notice::{self, Level};
use crate::clock;
use crate::collective::{Descriptor, Numbering};
use crate::comm::driver::{Driver, Inner, lock};
use crate::control::news::{self, Difference, Open, Trouble, Verdict};
use crate::engine::{Cause, Failure, Wait};
use crate::transport::LinkFault;
use crate::types::{ChannelId, Rank, WaitReason};

/// How long a rank waits before it asks whom it waits for whether that calls the same.
pub(super) const ASK: Duration = Duration::from_millis(200);

impl Driver {
    /// Nothing has moved for longer than a spin: says so to whoever looks, and fails what can never end.
    pub(super) fn stands(&mut self) {
        let now = clock::raw();
        self.engine.note_waits(now);
        self.engine.row().driven(now);
        if let Some(failure) = self.mismatch() {
            self.engine.fail(failure, clock::raw());
        }
    }

    /// Whether a call must be compared with what others said.
    pub(super) const fn is_watched(&self) -> bool {
        !(self.finished.is_empty() && self.asked.is_empty())
    }

    /// What was called, and fits neither what ranks that have called `finish()` called in all, nor
    /// what ranks wait in.
    pub(super) fn unfit(&mut self) -> Option<Failure> {
        let op = self.engine.under_way()?;
        self.needless(op).or_else(|| self.answer(op))
    }

    /// A rank that has called `finish()` has not called what this one has.
    fn needless(&self, op: (crate::types::CollKind, u64)) -> Option<Failure> {
        let me = self.links.me;
        let (rank, found) = unfit(me, &self.numbers, &self.finished, || self.links.own_calls().collect())?;
        let cause = match found.differs(me, rank) {
            Some(text) => Cause::Finished(text),
            None => Cause::Mismatch { ours: self.latest()?, theirs: 0 },
        };
        let wait = self.engine.waits().iter().find(|wait| wait.peer == rank);
        let pair = op.0.is_p2p().then_some(ChannelId::P2P);
        let channel = wait.map(|wait| wait.channel).or(pair);
        Some(Failure { cause, op: Some(op), peer: Some(rank), channel })
    }

    /// A rank waits in a collective that this one has called otherwise.
    fn answer(&mut self, op: (crate::types::CollKind, u64)) -> Option<Failure> {
        let latest = self.numbers.next() - 1;
        let (behind, ahead): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.asked).into_iter().partition(|(_, call)| call.seq <= latest);
        self.asked = ahead;
        behind.into_iter().find_map(|(from, call)| {
            let mine = self.links.own_calls().find(|mine| is_collective(mine, call.seq))?;
            let cause = Cause::Mismatch { ours: mine, theirs: call.hash() };
            (mine != call).then_some(Failure { cause, op: Some(op), peer: Some(from), channel: None })
        })
    }

    /// The latest collective this rank called.
    fn latest(&self) -> Option<Descriptor> {
        self.links.own_calls().find(|call| !call.kind.is_p2p())
    }

    /// A wait for one who called something else under the same number. Where both calls use the same lane, a message tells; where they
    /// do not, none ever comes, and only what the peer says of itself does. Between hosts all collectives use the same lanes.
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

    /// A mismatch with `peer`, where `theirs` is the hash of what it called: what there is to say,
    /// and what only that rank can add. What a peer called is known where its memory is. A message
    /// of an earlier call may have waited on a lane that this rank's calls did not use since: then
    /// the two differ in that call, or in one before it.
    pub(super) fn sides(&self, ours: &Descriptor, theirs: u64, peer: Rank) -> (String, Option<Open>) {
        let me = self.links.me;
        let its: Vec<Descriptor> = self.links.calls(peer).collect();
        let mine: Vec<Descriptor> = self.links.own_calls().collect();
        let both = if ours.kind.is_p2p() {
            its.iter().find(|its| its.kind.is_p2p() && its.hash() == theirs).map(|its| (*ours, *its))
        } else {
            news::first(&mine, &its)
        };
        match both {
            Some((ours, its)) => (news::say_both((me, &ours), (peer, &its)), None),
            None => {
                let text = news::say_one((me, ours), peer);
                (text, Some(Open { ours: Some(*ours), theirs: Some(theirs), calls: mine }))
            }
        }
    }
}

impl Inner {
    /// Asks whom a collective has waited for, if it is on another host, whether it calls the same:
    /// once per operation and peer.
    pub(super) fn ask(&self, driver: &mut Driver) {
        let Some(ours) = driver.engine.collective().copied() else { return };
        if driver.asking.0 != ours.seq {
            driver.asking = (ours.seq, Vec::new());
        }
        let is_asked = |wait: &&Wait, asked: &[Rank]| {
            wait.channel == ChannelId::P2P || asked.contains(&wait.peer) || driver.links.is_memory(wait.peer)
        };
        let peers = driver.engine.waits().iter().filter(|wait| !is_asked(wait, &driver.asking.1));
        let mut peers: Vec<Rank> = peers.map(|wait| wait.peer).collect();
        peers.dedup();
        let courier = if peers.is_empty() { None } else { lock(&self.courier).clone() };
        for peer in peers {
            driver.asking.1.push(peer);
            if let Some(courier) = &courier {
                courier.ask(peer, ours);
            }
        }
    }

    /// What this rank lacks, if that is why a link is not up: a sentence, and what to do.
    pub(super) fn lacking(&self, driver: &Driver) -> Option<(String, &'static str)> {
        driver.engine.under_way()?;
        // Before its first turn an operation waits for nothing yet.
        let waits = driver.engine.waits();
        let is_connecting = waits.is_empty() || waits.iter().any(|wait| wait.reason == WaitReason::Connect);
        if is_connecting { self.shortage.of(self.rank) } else { None }
    }

    /// Says once what this rank lacks for connections: it waits for that as long as for anything.
    pub(super) fn say_shortage(&self) {
        if let Some((what, hint)) = self.shortage.to_say(self.rank) {
            let text = format!("comm {}: {what}, and another rank cannot be connected: {hint}", self.name);
            notice::say(&self.settings, Level::Warn, &text);
        }
    }

    /// Whether a call that is being connected is over: something was decided, or it fits nothing
    /// that a rank which has called `finish()` called.
    pub(super) fn is_in_vain(&self, numbers: &Numbering) -> bool {
        let is_decided = lock(&self.shared.verdict).is_some();
        is_decided || unfit(self.rank, numbers, &lock(&self.shared.finished), Vec::new).is_some()
    }
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
    let against = |(rank, its): &(Rank, _)| Some((*rank, news::against((me, &mine, &calls), (*rank, its))?));
    finished.iter().find_map(against)
}

fn is_collective(call: &Descriptor, seq: u64) -> bool {
    call.seq == seq && !call.kind.is_p2p()
}

/// Whose end a failure is: the rank's that all agree has died; where nothing was agreed upon, the one's whose link ended.
pub(super) fn lost(failure: &Failure, verdict: Option<&Verdict>) -> Option<Rank> {
    match (verdict, &failure.cause) {
        (Some(verdict), _) => (verdict.trouble == Trouble::Died).then_some(verdict.about),
        (None, Cause::Link(LinkFault::Gone)) => failure.peer,
        (None, Cause::Link(_) | Cause::Mismatch { .. } | Cause::Finished(_) | Cause::Told(_)) => None,
    }
}
