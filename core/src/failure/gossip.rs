//! Failure gossip between the ranks of a communicator. It reports which ranks died, finished, left,
//! called something else or aborted.
//!
//! The bootstrap ring stays open: every rank keeps a stream to the next rank and one from the
//! previous rank, which the service thread watches. Where one ends without a farewell, the rank
//! connects once more to find out whether the other one has died. Messages travel round the ring in
//! both directions, and each rank forwards the messages that it has not seen, so one missing rank
//! cuts off no other. Messages also go directly to all peers of the same host, so that several
//! missing ranks cut off none of these. Each rank owns its
//! *edge* to the next rank: if that rank has left, it connects to the rank behind it, and both send
//! each other everything they know.
//!
//! The end of the communicator is decided once. A rank that finds a problem *reports* it. The
//! *arbiter*, the lowest rank that is alive, turns the first report into a *decision*, and every
//! rank fails with its text. A rank that receives no decision in time (the arbiter is stopped, or
//! the ring is cut in two places) decides itself from the reports it knows.
//!
//! A rank that finishes sends the tally of all its calls and waits until all ranks have finished.
//! From then on, no call of another rank that the tally does not contain can be matched. A rank
//! that still needs the finished rank knows so at once, and two finished ranks whose tallies differ
//! are a mismatch, even if no message was ever due between them.
//!
//! [`Gossip`] is the state machine: it takes messages, stream ends and time, and yields messages
//! and one decision.

mod cause;
mod differ;
mod message;
mod news;
mod share;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::bootstrap::fault::Fault;
use crate::clock::Ns;
use crate::collective::{Descriptor, Tally};
use crate::error::ErrorKind;
use crate::types::Rank;

use cause::Chain;
pub use differ::{Difference, against, first, say_both, say_one};
pub use message::{Decision, GossipMessage, MESSAGE_MAX, Open, Report, Side, To, Trouble, bounded};
pub(crate) use news::Latest;
pub use news::{NEWS_TEXT, News, Stall};
pub use share::{Attempt, Share};

/// How long the arbiter waits for the cause of a link's failure.
const CAUSE: Duration = Duration::from_millis(40);
/// How long the arbiter waits, when a deadline has passed, for those of the ranks in between.
const CHAIN: Duration = Duration::from_millis(250);
/// How long the arbiter waits for the other side of a mismatch.
const OTHER_SIDE: Duration = Duration::from_millis(150);
/// How long the other ranks wait for the arbiter.
const ARBITER: Duration = Duration::from_millis(350);
/// When a question is checked again: a call made while it arrived may be visible only then.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Lives,
    Left,
    Died,
}

/// A peer's question whether this rank made the same call, which could not be answered yet.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Question {
    from: Rank,
    call: Descriptor,
    again: Ns,
}

/// A question that this rank asked or forwarded. A neighbour that left may have lost it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Passed {
    side: Side,
    from: Rank,
    to: Rank,
    call: Descriptor,
    hops: u32,
}

/// The state machine of one rank.
#[derive(Debug)]
pub struct Gossip {
    me: Rank,
    lives: Vec<Life>,
    finished: Vec<Option<Tally>>,
    reports: Vec<Report>,
    /// The reports seen: the trouble, the finder, the rank it is about, whether one side is open.
    seen: BTreeSet<(Trouble, Rank, Rank, bool)>,
    called: Vec<Descriptor>,
    questions: Vec<Question>,
    /// The latest question between each two ranks, for each way round the ring.
    passed: Vec<Passed>,
    decision: Option<Decision>,
    due: Option<Ns>,
    out: Vec<(To, GossipMessage)>,
    /// Ranks that finished, and questions that came too early, which the caller has not taken yet.
    told: Vec<(Rank, Tally)>,
    asked: Vec<(Rank, Descriptor)>,
    /// What the ranks tell each other to go on without those that are gone.
    shares: Vec<Share>,
    /// The attempt of this rank, if it has begun one.
    sharing: Option<Attempt>,
    /// What watchdogs told: the latest of each, and what the caller has not taken yet.
    news: Latest,
    heard: Vec<News>,
}

impl Gossip {
    /// The state machine of `me`, one of `nranks`.
    #[must_use]
    pub fn new(me: Rank, nranks: u32) -> Self {
        Self {
            me,
            lives: vec![Life::Lives; nranks as usize],
            finished: vec![None; nranks as usize],
            reports: Vec::new(),
            seen: BTreeSet::new(),
            called: Vec::new(),
            questions: Vec::new(),
            passed: Vec::new(),
            decision: None,
            due: None,
            out: Vec::new(),
            told: Vec::new(),
            asked: Vec::new(),
            shares: Vec::new(),
            sharing: None,
            news: Latest::default(),
            heard: Vec::new(),
        }
    }

    /// The number of ranks.
    #[must_use]
    pub fn nranks(&self) -> u32 {
        self.lives.len() as u32
    }

    /// Sets this rank's calls, the latest first. They are its side of a mismatch, if one is found.
    pub fn called(&mut self, calls: Vec<Descriptor>) {
        self.called = calls;
    }

    /// Handles a message from a ring neighbour or (`None`) directly from a peer of this host.
    ///
    /// A new message is forwarded along the ring. A message that names an unknown rank is ignored.
    pub fn received(&mut self, from: Option<Side>, message: GossipMessage, now: Ns) {
        if !message.is_of(self.lives.len()) {
            return;
        }
        let onward: &[Side] = match from {
            Some(Side::Previous) => &[Side::Next],
            Some(Side::Next) => &[Side::Previous],
            None => &[Side::Next, Side::Previous],
        };
        match message {
            GossipMessage::Finish { rank, tally } => {
                if rank != self.me && self.has_finished(rank, &tally) {
                    self.send(onward, &GossipMessage::Finish { rank, tally });
                    self.compare(rank, now);
                }
            }
            GossipMessage::Farewell { rank } => {
                if self.left(rank) {
                    self.send(onward, &GossipMessage::Farewell { rank });
                }
            }
            GossipMessage::Called { from, to, call, .. } if to == self.me => self.asked(from, call, now),
            GossipMessage::Called { from, to, call, hops } => {
                if hops > 0 && from != self.me {
                    self.pass(onward, (from, to), call, hops - 1);
                }
            }
            GossipMessage::Report(report) => {
                if self.note(report.clone(), now) {
                    self.send(onward, &GossipMessage::Report(report.clone()));
                    self.answer(&report, now);
                }
            }
            GossipMessage::Decision(decision) => {
                if self.decision.is_none() {
                    self.send(onward, &GossipMessage::Decision(decision.clone()));
                    // Also to the peers of this host: this rank's farewell will follow there, and
                    // must not arrive before the reason for it.
                    self.out.push((To::Local, GossipMessage::Decision(decision.clone())));
                    self.decision = Some(decision);
                }
            }
            GossipMessage::News(news) => self.hear_news(onward, news),
            GossipMessage::Share(share) => {
                if self.keep(share.clone()) {
                    self.pass_on(onward, share);
                }
            }
        }
    }

    /// Records a peer's farewell; returns whether it is new.
    pub fn left(&mut self, peer: Rank) -> bool {
        let is_new = self.lives[peer.index()] == Life::Lives;
        if is_new {
            self.lives[peer.index()] = Life::Left;
        }
        is_new
    }

    /// Handles the loss of a peer: its lock shows that it is dead, or nobody answers for it at the
    /// address of its listener.
    ///
    /// It is a death unless the peer said farewell. A rank that leaves ignores it, because the
    /// ranks that stay close their streams to it.
    pub fn lost(&mut self, peer: Rank, now: Ns) {
        if !self.is_missed(peer) {
            return;
        }
        let text = format!("the process of rank {peer} ended without leaving the communicator");
        self.found(Report::new(Trouble::Died, self.me, peer, text), now);
    }

    /// The host of a ring neighbour has been silent for long; `what` says how. Nobody can tell
    /// whether the rank lives; those that are reached go on without it, as if it were dead.
    pub fn unreachable(&mut self, peer: Rank, what: &str, now: Ns) {
        if !self.is_missed(peer) {
            return;
        }
        let text = format!("the host of rank {peer} {what}: it is down, or the network is cut");
        self.found(Report::new(Trouble::Unreachable, self.me, peer, text), now);
    }

    /// Reports what a rank found that failed in the bootstrap, which this rank has left: it has no
    /// gossip to report it itself.
    pub(crate) fn failed_in_init(&mut self, rank: Rank, fault: &Fault, now: Ns) {
        let trouble = match fault.kind {
            ErrorKind::Timeout => Trouble::TimedOut,
            ErrorKind::Peer => Trouble::LinkFailed,
            _ => Trouble::Aborted,
        };
        let exists = |culprit: &Rank| culprit.index() < self.lives.len();
        let about = fault.culprits.first().copied().filter(exists).unwrap_or(rank);
        let me = self.me;
        let text = format!("rank {me} heard that rank {rank} failed in its initialization: {}", fault.text);
        self.found(Report::new(trouble, rank, about, text), now);
    }

    /// The rank to which this rank's edge of the ring leads: the next rank that is not known to
    /// have left; `None` if all others have left. Ranks that go on without the dead pass these over
    /// too.
    #[must_use]
    pub fn next(&self) -> Option<Rank> {
        let n = self.lives.len();
        let mut after = (1..n).map(|d| Rank(((self.me.index() + d) % n) as u32));
        after.find(|rank| !(self.has_left(*rank) || self.is_sharing() && self.has_died(*rank)))
    }

    /// Whether a neighbour's stream is no longer needed.
    ///
    /// `open` are the ranks of the open streams on that side. The stream is not needed once its
    /// rank has left and the ring is closed behind it. Until then it forwards messages that reach
    /// only that neighbour, such as the farewell of a rank that leaves at the same moment.
    #[must_use]
    pub fn is_spent(&self, neighbour: Rank, mut open: impl Iterator<Item = Rank>) -> bool {
        self.has_left(neighbour) && (self.next().is_none() || open.any(|rank| !self.has_left(rank)))
    }

    /// Whether this rank, which has said farewell, may close its streams; `open` are the ranks of
    /// its open streams.
    ///
    /// The ranks that stay close these streams first, when they no longer need them.
    #[must_use]
    pub fn may_close(&self, mut open: impl Iterator<Item = Rank>) -> bool {
        self.decision.is_some() || self.may_leave() || open.all(|rank| self.has_left(rank))
    }

    /// Sends everything that this rank knows over a new stream to or from a neighbour on that side.
    pub fn joined(&mut self, side: Side) {
        let finished = (0..).map(Rank).zip(&self.finished);
        let finished = finished
            .filter_map(|(rank, tally)| Some(GossipMessage::Finish { rank, tally: tally.clone()? }))
            .collect::<Vec<_>>();
        let left = (0..).map(Rank).take(self.lives.len()).filter(|rank| self.has_left(*rank));
        let left = left.map(|rank| GossipMessage::Farewell { rank }).collect::<Vec<_>>();
        let reports = self.reports.iter().cloned().map(GossipMessage::Report);
        let decision = self.decision.iter().cloned().map(GossipMessage::Decision);
        let lives = |rank: Rank| self.lives[rank.index()] == Life::Lives;
        let passed = self.passed.iter().filter(|one| one.side == side && lives(one.from) && lives(one.to));
        let passed =
            passed.map(|&Passed { from, to, call, hops, .. }| GossipMessage::Called { from, to, call, hops });
        let shares = self.shares.iter().cloned().map(GossipMessage::Share);
        let all: Vec<GossipMessage> =
            reports.chain(decision).chain(finished).chain(left).chain(passed).chain(shares).collect();
        all.iter().for_each(|message| self.send(&[side], message));
    }

    /// Reports a problem that this rank found.
    pub fn found(&mut self, report: Report, now: Ns) {
        let report = Report { text: bounded(&report.text), ..report };
        if self.note(report.clone(), now) {
            self.flood(&GossipMessage::Report(report));
        }
    }

    /// Asks a peer, for which this rank has waited in a collective, whether it made the same call.
    pub fn ask(&mut self, to: Rank, call: Descriptor) {
        let hops = self.lives.len() as u32;
        self.pass(&[Side::Next, Side::Previous], (self.me, to), call, hops);
        self.out.push((To::Local, GossipMessage::Called { from: self.me, to, call, hops: 0 }));
    }

    /// Sends a question once each way; [`joined`](Self::joined) repeats it for a new neighbour.
    fn pass(&mut self, ways: &[Side], (from, to): (Rank, Rank), call: Descriptor, hops: u32) {
        for &side in ways {
            let of_both = |one: &Passed| (one.side, one.from, one.to) == (side, from, to);
            if self.passed.iter().any(|one| of_both(one) && one.call == call) {
                continue;
            }
            // A rank that asks about its next call has completed the one before.
            self.passed.retain(|one| !of_both(one));
            self.passed.push(Passed { side, from, to, call, hops });
            self.send(&[side], &GossipMessage::Called { from, to, call, hops });
        }
    }

    /// Records that this rank makes no more calls: its tally and its latest calls. The calls given
    /// to [`called`](Self::called) may be older.
    pub fn finish(&mut self, tally: Tally, calls: Vec<Descriptor>, now: Ns) {
        let me = self.me;
        self.called = calls;
        self.finished[me.index()] = Some(tally.clone());
        self.flood(&GossipMessage::Finish { rank: me, tally });
        for peer in (0..self.lives.len() as u32).map(Rank) {
            self.compare(peer, now);
        }
    }

    /// Whether this rank can leave: all ranks have finished or left, and their calls match. If they
    /// do not match, a rank reports it.
    #[must_use]
    pub fn may_leave(&self) -> bool {
        let tallies: Vec<&Tally> = self.finished.iter().flatten().collect();
        self.blocked_on().is_empty() && (tallies.len() < self.lives.len() || differ::fit(&tallies))
    }

    /// The ranks that have neither finished nor left.
    #[must_use]
    pub fn blocked_on(&self) -> Vec<Rank> {
        let all = (0..).map(Rank).zip(&self.finished);
        all.filter(|(rank, tally)| tally.is_none() && !self.has_left(*rank)).map(|(rank, _)| rank).collect()
    }

    /// Leaves the communicator; this rank has nothing under way.
    pub fn leave(&mut self) {
        self.lives[self.me.index()] = Life::Left;
        let me = self.me;
        self.flood(&GossipMessage::Farewell { rank: me });
    }

    /// Makes the decision and the checks that are due. Returns when to call it again.
    pub fn tick(&mut self, now: Ns) -> Option<Ns> {
        if self.decision.is_none() && self.due.is_some_and(|due| due <= now) {
            self.decide();
        }
        if self.decision.is_some() {
            return None;
        }
        for question in std::mem::take(&mut self.questions) {
            if question.again <= now {
                // Answered or not: from now on, the driver checks the question with each call.
                self.compare_call(question.from, &question.call, now);
            } else {
                self.questions.push(question);
            }
        }
        let again = self.questions.iter().map(|question| question.again).min();
        [self.due, again].into_iter().flatten().min()
    }

    /// Takes the messages to send.
    pub fn take_out(&mut self) -> Vec<(To, GossipMessage)> {
        std::mem::take(&mut self.out)
    }

    /// Takes the ranks that have finished since the last call.
    pub fn take_finished(&mut self) -> Vec<(Rank, Tally)> {
        std::mem::take(&mut self.told)
    }

    /// Takes the questions since the last call about collectives that are none of the latest: this
    /// rank has not called them yet, or long ago.
    pub fn take_asked(&mut self) -> Vec<(Rank, Descriptor)> {
        std::mem::take(&mut self.asked)
    }

    /// The decision, once it is made.
    #[must_use]
    pub const fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Whether that rank has said farewell.
    #[must_use]
    pub fn has_left(&self, rank: Rank) -> bool {
        self.lives[rank.index()] == Life::Left
    }

    /// Whether something was reported and nothing is decided yet. A rank that closed its streams
    /// now would look dead to the others.
    #[must_use]
    pub const fn is_undecided(&self) -> bool {
        self.decision.is_none() && self.due.is_some()
    }

    /// Whether that rank was found dead.
    #[must_use]
    pub fn has_died(&self, rank: Rank) -> bool {
        self.lives[rank.index()] == Life::Died
    }

    /// Whether the end of a peer must be reported: it has neither left nor died, and this rank does
    /// not leave.
    pub(super) fn is_missed(&self, peer: Rank) -> bool {
        peer != self.me && self.lives[peer.index()] == Life::Lives && !self.is_leaving()
    }

    /// Whether this rank has said farewell.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.has_left(self.me)
    }

    fn arbiter(&self) -> Rank {
        let lowest = self.lives.iter().position(|life| *life == Life::Lives);
        lowest.map_or(self.me, |at| Rank(at as u32))
    }

    /// Records that a rank has finished; returns whether it is new.
    fn has_finished(&mut self, rank: Rank, tally: &Tally) -> bool {
        let known = &mut self.finished[rank.index()];
        let is_new = known.is_none();
        if is_new {
            *known = Some(tally.clone());
            self.told.push((rank, tally.clone()));
        }
        is_new
    }

    /// Once both have finished, reports a call of this rank that the peer has not made.
    fn compare(&mut self, peer: Rank, now: Ns) {
        let me = self.me;
        let (Some(mine), Some(its)) = (&self.finished[me.index()], &self.finished[peer.index()]) else {
            return;
        };
        if peer == me {
            return;
        }
        let report = |open, text| Report { open, ..Report::new(Trouble::Mismatch, me, peer, text) };
        let found = match against((me, mine, &self.called), (peer, its)) {
            Some(Difference::Other) => {
                let open = Open { ours: None, theirs: None, calls: self.called.clone() };
                let text = format!(
                    "rank {me} and rank {peer} have finished after {} collective calls, which are not the same",
                    mine.calls
                );
                Some(report(Some(open), text))
            }
            Some(more) => more.differs(me, peer).map(|text| report(None, text)),
            // The peer would report it itself, but it has left.
            None if self.has_left(peer) => against((peer, its, &[]), (me, mine))
                .and_then(|more| more.differs(peer, me))
                .map(|text| report(None, text)),
            None => None,
        };
        if let Some(report) = found {
            self.found(report, now);
        }
    }

    /// Handles the question of a peer that has waited for this rank in a collective.
    fn asked(&mut self, from: Rank, call: Descriptor, now: Ns) {
        let is_known = self.questions.iter().any(|question| (question.from, question.call) == (from, call));
        if !is_known && !self.compare_call(from, &call, now) {
            self.questions.push(Question { from, call, again: now.after(LOOK_AGAIN) });
            self.asked.push((from, call));
        }
    }

    /// Compares a collective in which a peer waits with this rank's call of the same number, if it
    /// is one of the latest; returns whether it is.
    fn compare_call(&mut self, peer: Rank, call: &Descriptor, now: Ns) -> bool {
        let is_known = self.called.iter().any(|mine| !mine.kind.is_p2p() && mine.seq == call.seq);
        if let Some((mine, _)) = first(&self.called, &[*call]) {
            let text = say_both((self.me, &mine), (peer, call));
            let op = Some((mine.kind, mine.seq));
            self.found(Report { op, ..Report::new(Trouble::Mismatch, self.me, peer, text) }, now);
        }
        is_known
    }

    /// Stores a report unless it is known; returns whether it was new.
    fn note(&mut self, report: Report, now: Ns) -> bool {
        let Report { trouble, from, about, ref open, .. } = report;
        if !self.seen.insert((trouble, from, about, open.is_some())) {
            return false;
        }
        if matches!(trouble, Trouble::Died | Trouble::Unreachable) {
            self.lives[about.index()] = Life::Died;
        }
        let is_first = self.reports.iter().all(|known| known.trouble != trouble);
        self.reports.push(report);
        if self.decision.is_some() {
            return true;
        }
        if self.arbiter() == self.me {
            let fails = |other: &&Report| other.trouble == Trouble::LinkFailed;
            let lives = |one: &Report| self.reports.iter().filter(fails).any(|other| other.from == one.about);
            match self.cause().map(|cause| (cause.trouble, cause.open.is_some())) {
                Some((Trouble::Mismatch, true)) if is_first => self.due = Some(now.after(OTHER_SIDE)),
                Some((Trouble::Mismatch, true)) => {}
                // A link often ends for a reason that another report will give: when a rank dies,
                // all ranks that have links to it report that these ended. A rank that sends such a
                // report itself is alive.
                Some((Trouble::LinkFailed, _)) if !self.reports.iter().any(lives) => {
                    self.due.get_or_insert_with(|| now.after(CAUSE));
                }
                // Most ranks wait for one that waits itself, and their deadlines pass together.
                Some((Trouble::TimedOut, _)) => {
                    self.due.get_or_insert_with(|| now.after(CHAIN));
                }
                _ => self.decide(),
            }
        } else {
            self.due.get_or_insert_with(|| now.after(ARBITER));
        }
        true
    }

    /// As the other side of a mismatch, reports this rank's call and where the two differ. The
    /// caller may know of calls that were made too long ago.
    fn answer(&mut self, report: &Report, now: Ns) {
        if let (Trouble::Mismatch, Some(open)) = (report.trouble, &report.open)
            && report.about == self.me
        {
            let (from, about) = (self.me, report.from);
            match differ::close(report, open, self.me, &self.called) {
                Some(text) => self.found(Report { from, about, text, open: None, ..report.clone() }, now),
                None => {
                    let calls = open.calls.iter().rev().filter(|call| !call.kind.is_p2p());
                    self.asked.extend(calls.map(|call| (about, *call)));
                }
            }
        }
    }

    fn decide(&mut self) {
        let Some(first) = self.cause() else { return };
        let Report { trouble, from, about, ref text, .. } = *first;
        let mut other = None;
        let (about, text) = match trouble {
            Trouble::TimedOut => {
                let chain = Chain::of(first, &self.reports);
                (chain.end(), chain.say(text))
            }
            // The rank that answered is no more to blame than the rank that reported first.
            Trouble::Mismatch => {
                let one = self.reports.iter().find(|report| report.trouble == Trouble::Mismatch);
                let blamed = one.map(|one| one.about).filter(|one| *one == from).unwrap_or(about);
                other = [from, about].into_iter().find(|rank| *rank != blamed);
                (blamed, text.clone())
            }
            Trouble::LinkFailed if self.has_left(about) => {
                let text = format!(
                    "rank {about} has called finish() and left the communicator, and rank {from} still needs it"
                );
                (about, text)
            }
            _ => (about, text.clone()),
        };
        let decision = Decision { trouble, by: self.me, about, other, text };
        self.flood(&GossipMessage::Decision(decision.clone()));
        self.decision = Some(decision);
    }

    fn send(&mut self, ways: &[Side], message: &GossipMessage) {
        self.out.extend(ways.iter().map(|side| (To::Ring(*side), message.clone())));
    }

    /// Sends a message of this rank's own to all ranks.
    fn flood(&mut self, message: &GossipMessage) {
        // Both ways, even on a ring of two ranks, where both streams lead to the same rank: the end
        // of a stream that has not carried the last message would be taken for a death. A message
        // that arrives twice counts once.
        self.send(&[Side::Next, Side::Previous], message);
        self.out.push((To::Local, message.clone()));
    }
}
