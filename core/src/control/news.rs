//! News between the ranks of a communicator: who died, who finished, who left, who called something
//! else, who aborted.
//!
//! After bootstrap its ring stays: every rank keeps a stream to the next and one from the previous
//! rank, watched by the service thread. The end of such a stream without a farewell is a death.
//! News go round both ways, each rank passing on what it has not seen, so one missing rank cuts
//! nobody off; and straight to all peers of the host, so that several do not either. Each rank owns
//! its *edge* to the next: where that rank has left, it connects to the one behind it, and both
//! tell each other all they know.
//!
//! What ends the communicator is decided once: whoever finds something *reports* it; the *arbiter*, the lowest rank
//! that still lives, turns the first report into a *verdict*, and every rank fails with that one text. A rank that hears
//! no verdict in time (the arbiter is stopped, or two cuts lie between) takes the first report it knows for one.
//!
//! Who finishes says what it has called in all, and waits until all have. What another has called
//! that this rank has not then fits nothing any more: whoever still needs a finished rank knows at
//! once, and two finished ranks that differ are a mismatch, also where no message was ever due
//! between them.
//!
//! [`News`] is the machine: messages, ends and time in; messages and one verdict out.

mod differ;
mod message;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Ns;
use crate::collective::{Descriptor, Tally};
use crate::types::Rank;

pub use differ::{Difference, against, first, say_both, say_one};
pub use message::{MESSAGE_MAX, Message, Open, Report, Side, To, Trouble, Verdict, bounded};

/// How long the arbiter waits for the cause of a link's failure.
const CAUSE: Duration = Duration::from_millis(40);
/// How long it waits for the other side of a mismatch.
const OTHER_SIDE: Duration = Duration::from_millis(150);
/// How long the others wait for the arbiter.
const ARBITER: Duration = Duration::from_millis(350);
/// What a rank calls while a question about it arrives may be seen only this much later.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Lives,
    Left,
    Died,
}

/// A question whether this rank calls the same, which it could not answer yet.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Question {
    from: Rank,
    call: Descriptor,
    again: Ns,
}

/// A question of this rank, or one that it passes on: it may have gone to a neighbour that left with it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Passed {
    side: Side,
    from: Rank,
    to: Rank,
    call: Descriptor,
    hops: u32,
}

/// The machine of one rank.
#[derive(Debug)]
pub struct News {
    me: Rank,
    lives: Vec<Life>,
    finished: Vec<Option<Tally>>,
    reports: Vec<Report>,
    /// What is wrong, who found it, about whom, and whether that was all there is to say.
    seen: BTreeSet<(Trouble, Rank, Rank, bool)>,
    called: Vec<Descriptor>,
    questions: Vec<Question>,
    /// The latest questions between two ranks that went a way round the ring.
    passed: Vec<Passed>,
    verdict: Option<Verdict>,
    due: Option<Ns>,
    out: Vec<(To, Message)>,
    /// Who finished, and which questions came too early, and have not been taken yet.
    told: Vec<(Rank, Tally)>,
    asked: Vec<(Rank, Descriptor)>,
}

impl News {
    /// The machine of `me`, one of `nranks`.
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
            verdict: None,
            due: None,
            out: Vec::new(),
            told: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// What this rank has called, the latest first: its side, should a mismatch be found.
    pub fn called(&mut self, calls: Vec<Descriptor>) {
        self.called = calls;
    }

    /// A message came from a neighbour on the ring, or (`None`) straight from a peer of this host. It is passed on along the ring, if it
    /// is news. What names no rank of this communicator is ignored.
    pub fn received(&mut self, from: Option<Side>, message: Message, now: Ns) {
        if !message.is_of(self.lives.len()) {
            return;
        }
        let onward: &[Side] = match from {
            Some(Side::Previous) => &[Side::Next],
            Some(Side::Next) => &[Side::Previous],
            None => &[Side::Next, Side::Previous],
        };
        match message {
            Message::Finish { rank, tally } => {
                if rank != self.me && self.has_finished(rank, &tally) {
                    self.send(onward, &Message::Finish { rank, tally });
                    self.compare(rank, now);
                }
            }
            Message::Farewell { rank } => {
                if self.left(rank) {
                    self.send(onward, &Message::Farewell { rank });
                }
            }
            Message::Called { from, to, call, .. } if to == self.me => self.asked(from, call, now),
            Message::Called { from, to, call, hops } => {
                if hops > 0 && from != self.me {
                    self.pass(onward, (from, to), call, hops - 1);
                }
            }
            Message::Report(report) => {
                if self.note(report.clone(), now) {
                    self.send(onward, &Message::Report(report.clone()));
                    self.answer(&report, now);
                }
            }
            Message::Verdict(verdict) => {
                if self.verdict.is_none() {
                    self.send(onward, &Message::Verdict(verdict.clone()));
                    // Also to the peers of this host: there this rank's farewell will follow, and
                    // must not be heard before what made it leave.
                    self.out.push((To::Local, Message::Verdict(verdict.clone())));
                    self.verdict = Some(verdict);
                }
            }
        }
    }

    /// A peer said farewell; whether that is news.
    pub fn left(&mut self, peer: Rank) -> bool {
        let is_new = self.lives[peer.index()] == Life::Lives;
        if is_new {
            self.lives[peer.index()] = Life::Left;
        }
        is_new
    }

    /// The stream to or from a neighbour ended, or a peer was found dead by its lock, or nobody
    /// listens any more where it did: a death, if it did not say farewell; but whoever stays closes
    /// its streams to a rank that leaves.
    pub fn lost(&mut self, peer: Rank, now: Ns) {
        if peer == self.me || self.lives[peer.index()] != Life::Lives || self.is_leaving() {
            return;
        }
        let text = format!("the process of rank {peer} ended without leaving the communicator");
        self.found(Report::new(Trouble::Died, self.me, peer, text), now);
    }

    /// Whom this rank's edge of the ring leads to: the next rank that is not known to have left.
    /// `None`: all others have.
    #[must_use]
    pub fn next(&self) -> Option<Rank> {
        let n = self.lives.len();
        let after = (1..n).map(|d| Rank(((self.me.index() + d) % n) as u32));
        after.into_iter().find(|rank| !self.has_left(*rank))
    }

    /// Of a neighbour's stream on a side of the ring where these ranks' are open: whether it has
    /// served its time. Its rank has left, and the ring is closed behind it. Until then it passes
    /// on what only it may hear: the farewell of one that leaves at the same moment.
    #[must_use]
    pub fn is_spent(&self, neighbour: Rank, mut open: impl Iterator<Item = Rank>) -> bool {
        self.has_left(neighbour) && (self.next().is_none() || open.any(|rank| !self.has_left(rank)))
    }

    /// Whether this rank, which has said farewell, may close its streams; these ranks' are open.
    /// Whoever stays closes them first, when they are spent.
    #[must_use]
    pub fn may_close(&self, mut open: impl Iterator<Item = Rank>) -> bool {
        self.verdict.is_some() || self.may_leave() || open.all(|rank| self.has_left(rank))
    }

    /// A new stream leads to a neighbour on that side, or comes from it: it hears all that this
    /// rank knows.
    pub fn joined(&mut self, side: Side) {
        let finished = (0..).map(Rank).zip(&self.finished);
        let finished = finished
            .filter_map(|(rank, tally)| Some(Message::Finish { rank, tally: tally.clone()? }))
            .collect::<Vec<_>>();
        let left = (0..).map(Rank).take(self.lives.len()).filter(|rank| self.has_left(*rank));
        let left = left.map(|rank| Message::Farewell { rank }).collect::<Vec<_>>();
        let reports = self.reports.iter().cloned().map(Message::Report);
        let verdict = self.verdict.iter().cloned().map(Message::Verdict);
        let lives = |rank: Rank| self.lives[rank.index()] == Life::Lives;
        let passed = self.passed.iter().filter(|one| one.side == side && lives(one.from) && lives(one.to));
        let passed =
            passed.map(|&Passed { from, to, call, hops, .. }| Message::Called { from, to, call, hops });
        let all: Vec<Message> = reports.chain(verdict).chain(finished).chain(left).chain(passed).collect();
        all.iter().for_each(|message| self.send(&[side], message));
    }

    /// This rank found something.
    pub fn found(&mut self, report: Report, now: Ns) {
        let report = Report { text: bounded(&report.text), ..report };
        if self.note(report.clone(), now) {
            self.flood(&Message::Report(report));
        }
    }

    /// This rank has waited for a peer in a collective: does it call the same?
    pub fn ask(&mut self, to: Rank, call: Descriptor) {
        let hops = self.lives.len() as u32;
        self.pass(&[Side::Next, Side::Previous], (self.me, to), call, hops);
    }

    /// Sends a question on, once each way; and again when that way leads to another neighbour.
    fn pass(&mut self, ways: &[Side], (from, to): (Rank, Rank), call: Descriptor, hops: u32) {
        for &side in ways {
            let of_both = |one: &Passed| (one.side, one.from, one.to) == (side, from, to);
            if self.passed.iter().any(|one| of_both(one) && one.call == call) {
                continue;
            }
            // Who asks for its next call has done with the one before.
            self.passed.retain(|one| !of_both(one));
            self.passed.push(Passed { side, from, to, call, hops });
            self.send(&[side], &Message::Called { from, to, call, hops });
        }
    }

    /// This rank has called all it will: so much in all, and lately this. What it said with
    /// [`called`](Self::called) may be older.
    pub fn finish(&mut self, tally: Tally, calls: Vec<Descriptor>, now: Ns) {
        let me = self.me;
        self.called = calls;
        self.finished[me.index()] = Some(tally.clone());
        self.flood(&Message::Finish { rank: me, tally });
        for peer in (0..self.lives.len() as u32).map(Rank) {
            self.compare(peer, now);
        }
    }

    /// Whether this rank can leave: all have finished or left, and what they called fits. Where it
    /// does not, somebody reports it.
    #[must_use]
    pub fn may_leave(&self) -> bool {
        let tallies: Vec<&Tally> = self.finished.iter().flatten().collect();
        self.awaited().is_empty() && (tallies.len() < self.lives.len() || differ::fit(&tallies))
    }

    /// Who has not finished.
    #[must_use]
    pub fn awaited(&self) -> Vec<Rank> {
        let all = (0..).map(Rank).zip(&self.finished);
        all.filter(|(rank, tally)| tally.is_none() && !self.has_left(*rank)).map(|(rank, _)| rank).collect()
    }

    /// This rank leaves, having nothing under way.
    pub fn leave(&mut self) {
        self.lives[self.me.index()] = Life::Left;
        let me = self.me;
        self.flood(&Message::Farewell { rank: me });
    }

    /// Time passed: decides what was waiting for it. Returns when to call again.
    pub fn tick(&mut self, now: Ns) -> Option<Ns> {
        if self.verdict.is_none() && self.due.is_some_and(|due| due <= now) {
            self.decide();
        }
        if self.verdict.is_some() {
            return None;
        }
        for question in std::mem::take(&mut self.questions) {
            if question.again <= now {
                // Whether it is answered now or not: from here on the driver knows of it with each
                // call.
                self.compare_call(question.from, &question.call, now);
            } else {
                self.questions.push(question);
            }
        }
        let again = self.questions.iter().map(|question| question.again).min();
        [self.due, again].into_iter().flatten().min()
    }

    /// What to send.
    pub fn take_out(&mut self) -> Vec<(To, Message)> {
        std::mem::take(&mut self.out)
    }

    /// Who finished since this was asked last.
    pub fn take_finished(&mut self) -> Vec<(Rank, Tally)> {
        std::mem::take(&mut self.told)
    }

    /// The questions that came before this rank called what they are about, since this was asked
    /// last.
    pub fn take_asked(&mut self) -> Vec<(Rank, Descriptor)> {
        std::mem::take(&mut self.asked)
    }

    /// What was decided, once it was.
    #[must_use]
    pub const fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// Whether that rank said farewell.
    #[must_use]
    pub fn has_left(&self, rank: Rank) -> bool {
        self.lives[rank.index()] == Life::Left
    }

    /// Whether something was reported and nothing is decided yet: whoever closed its streams now
    /// would look dead to the others.
    #[must_use]
    pub const fn is_undecided(&self) -> bool {
        self.verdict.is_none() && self.due.is_some()
    }

    /// Whether that rank was found dead.
    #[must_use]
    pub fn has_died(&self, rank: Rank) -> bool {
        self.lives[rank.index()] == Life::Died
    }

    /// Whether this rank said farewell.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.has_left(self.me)
    }

    fn arbiter(&self) -> Rank {
        let lowest = self.lives.iter().position(|life| *life == Life::Lives);
        lowest.map_or(self.me, |at| Rank(at as u32))
    }

    /// Keeps who finished; whether it is news.
    fn has_finished(&mut self, rank: Rank, tally: &Tally) -> bool {
        let known = &mut self.finished[rank.index()];
        let is_new = known.is_none();
        if is_new {
            *known = Some(tally.clone());
            self.told.push((rank, tally.clone()));
        }
        is_new
    }

    /// Both have finished: what this rank has called and the other has not is a mismatch.
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
            // It would say so itself, if it were still there.
            None if self.has_left(peer) => against((peer, its, &[]), (me, mine))
                .and_then(|more| more.differs(peer, me))
                .map(|text| report(None, text)),
            None => None,
        };
        if let Some(report) = found {
            self.found(report, now);
        }
    }

    /// A peer has waited for this rank in a collective.
    fn asked(&mut self, from: Rank, call: Descriptor, now: Ns) {
        let is_known = self.questions.iter().any(|question| (question.from, question.call) == (from, call));
        if !is_known && !self.compare_call(from, &call, now) {
            self.questions.push(Question { from, call, again: now.after(LOOK_AGAIN) });
            self.asked.push((from, call));
        }
    }

    /// Compares a collective that a peer waits in with what this rank called under that number;
    /// whether that is behind it.
    fn compare_call(&mut self, peer: Rank, call: &Descriptor, now: Ns) -> bool {
        let mut collectives = self.called.iter().filter(|mine| !mine.kind.is_p2p());
        let is_behind = collectives.next().is_some_and(|latest| latest.seq >= call.seq);
        if let Some((mine, _)) = first(&self.called, &[*call]) {
            let text = say_both((self.me, &mine), (peer, call));
            let op = Some((mine.kind, mine.seq));
            self.found(Report { op, ..Report::new(Trouble::Mismatch, self.me, peer, text) }, now);
        }
        is_behind
    }

    /// Keeps a report that is new; whether it was.
    fn note(&mut self, report: Report, now: Ns) -> bool {
        let Report { trouble, from, about, ref open, .. } = report;
        if !self.seen.insert((trouble, from, about, open.is_some())) {
            return false;
        }
        if trouble == Trouble::Died {
            self.lives[about.index()] = Life::Died;
        }
        let is_first = self.reports.iter().all(|known| known.trouble != trouble);
        self.reports.push(report);
        if self.verdict.is_some() {
            return true;
        }
        if self.arbiter() == self.me {
            let lives = |one: &Report| self.reports.iter().any(|other| other.from == one.about);
            match self.cause().map(|cause| (cause.trouble, cause.open.is_some())) {
                Some((Trouble::Mismatch, true)) if is_first => self.due = Some(now.after(OTHER_SIDE)),
                Some((Trouble::Mismatch, true)) => {}
                // A link often ends because of what another report will say: of one who died, all who have links to it say that these
                // ended. Who says so too lives.
                Some((Trouble::LinkFailed, _)) if !self.reports.iter().any(lives) => {
                    self.due.get_or_insert_with(|| now.after(CAUSE));
                }
                _ => self.decide(),
            }
        } else {
            self.due.get_or_insert_with(|| now.after(ARBITER));
        }
        true
    }

    /// The report that will be the verdict: the first that is no consequence of another, and of a
    /// mismatch one that says both sides.
    fn cause(&self) -> Option<&Report> {
        let is_cause = |report: &&Report| report.trouble != Trouble::LinkFailed;
        let first = self.reports.iter().find(is_cause).or_else(|| self.reports.first())?;
        let says_all = |report: &&Report| report.trouble == first.trouble && report.open.is_none();
        match first.trouble {
            Trouble::Mismatch => self.reports.iter().find(says_all).or(Some(first)),
            _ => Some(first),
        }
    }

    /// The other side of a mismatch says what it called, and so where the two differ.
    fn answer(&mut self, report: &Report, now: Ns) {
        if let (Trouble::Mismatch, Some(open)) = (report.trouble, &report.open)
            && report.about == self.me
        {
            let text = differ::close(report, open, self.me, &self.called);
            let (from, about) = (self.me, report.from);
            self.found(Report { from, about, text, open: None, ..report.clone() }, now);
        }
    }

    fn decide(&mut self) {
        let Some(first) = self.cause() else { return };
        // Who answered is no more to blame than who asked.
        let earliest = self.reports.iter().find(|report| report.trouble == first.trouble);
        let verdict = Verdict {
            trouble: first.trouble,
            by: self.me,
            about: earliest.map_or(first.about, |report| report.about),
            text: match first.trouble {
                Trouble::LinkFailed if self.has_left(first.about) => {
                    let (rank, by) = (first.about, first.from);
                    format!(
                        "rank {rank} has called finish() and left the communicator, and rank {by} still needs it"
                    )
                }
                _ => first.text.clone(),
            },
        };
        self.flood(&Message::Verdict(verdict.clone()));
        self.verdict = Some(verdict);
    }

    fn send(&mut self, ways: &[Side], message: &Message) {
        self.out.extend(ways.iter().map(|side| (To::Ring(*side), message.clone())));
    }

    /// Says something of this rank's own to everyone.
    fn flood(&mut self, message: &Message) {
        // Both ways also on a ring of two, where both streams lead to the same rank: no stream must end before it has carried the
        // last words, or its end is taken for a death. What is heard twice counts once.
        self.send(&[Side::Next, Side::Previous], message);
        self.out.push((To::Local, message.clone()));
    }
}
