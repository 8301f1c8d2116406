//! News between the ranks of a communicator: who died, who left, who called something else, who aborted.
//!
//! After bootstrap its ring stays: every rank keeps a stream to the next and one from the previous rank, watched by the
//! service thread. The end of such a stream without a farewell is a death. News go round both ways, each rank passing on what
//! it has not seen, so one missing rank cuts nobody off; and straight to all peers of the host, so that several do not either.
//!
//! What ends the communicator is decided once: whoever finds something *reports* it; the *arbiter*, the lowest rank
//! that still lives, turns the first report into a *verdict*, and every rank fails with that one text. A rank that hears
//! no verdict in time (the arbiter is stopped, or two cuts lie between) takes the first report it knows for one.
//!
//! [`News`] is the machine: messages, ends and time in; messages and one verdict out.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Ns;
use crate::collective::Descriptor;
use crate::error::ErrorKind;
use crate::text::printable;
use crate::types::{ChannelId, CollKind, Rank};

/// How long the arbiter waits for the other side of a mismatch, or for the cause of a link's failure.
const OTHER_SIDE: Duration = Duration::from_millis(40);
/// How long the others wait for the arbiter.
const ARBITER: Duration = Duration::from_millis(120);

/// One of the two ways round the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Towards the next rank.
    Next,
    /// Towards the previous rank.
    Previous,
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Trouble {
    /// A process ended without a farewell.
    Died,
    /// Ranks called different things.
    Mismatch,
    /// A rank aborted the communicator.
    Aborted,
    /// A rank's operation passed its deadline.
    TimedOut,
    /// A link failed although its peer lives.
    LinkFailed,
}

impl Trouble {
    /// The kind of error it becomes.
    #[must_use]
    pub const fn kind(self) -> ErrorKind {
        match self {
            Self::Died | Self::LinkFailed => ErrorKind::Peer,
            Self::Mismatch => ErrorKind::Mismatch,
            Self::Aborted => ErrorKind::Aborted,
            Self::TimedOut => ErrorKind::Timeout,
        }
    }
}

/// What one rank found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What is wrong.
    pub trouble: Trouble,
    /// Who found it.
    pub from: Rank,
    /// Whom it is about.
    pub about: Rank,
    /// The operation the finder was in.
    pub op: Option<(CollKind, u64)>,
    /// The channel it was found on.
    pub channel: Option<ChannelId>,
    /// Who called what, as far as the finder knows: one side of a mismatch, or both.
    pub called: Vec<(Rank, Descriptor)>,
    /// One sentence.
    #[serde(deserialize_with = "printable")]
    pub text: String,
}

/// What all ranks fail with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// What is wrong.
    pub trouble: Trouble,
    /// Who decided.
    pub by: Rank,
    /// Who is to blame.
    pub about: Rank,
    /// One sentence, the same on all ranks.
    #[serde(deserialize_with = "printable")]
    pub text: String,
}

/// Whither a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// To a neighbour on the ring.
    Ring(Side),
    /// To all peers of this host: past ranks that left, or are slow to pass it on.
    Local,
}

/// What goes from rank to rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// A rank finished its work and closes its streams.
    Farewell {
        /// Which.
        rank: Rank,
    },
    /// Something was found.
    Report(Report),
    /// It was decided.
    Verdict(Verdict),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Lives,
    Left,
    Died,
}

/// The machine of one rank.
#[derive(Debug)]
pub struct News {
    me: Rank,
    next: Rank,
    previous: Rank,
    lives: Vec<Life>,
    reports: Vec<Report>,
    seen: BTreeSet<(Trouble, Rank, Rank)>,
    called: Vec<Descriptor>,
    verdict: Option<Verdict>,
    due: Option<Ns>,
    out: Vec<(To, Message)>,
    /// Who left and has not been taken yet.
    left: Vec<Rank>,
}

impl std::fmt::Debug for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Lives => "lives",
            Self::Left => "left",
            Self::Died => "died",
        })
    }
}

impl News {
    /// The machine of `me`, whose neighbours on the ring are `next` and `previous`.
    #[must_use]
    pub fn new(me: Rank, next: Rank, previous: Rank, nranks: u32) -> Self {
        Self {
            me,
            next,
            previous,
            lives: vec![Life::Lives; nranks as usize],
            reports: Vec::new(),
            seen: BTreeSet::new(),
            called: Vec::new(),
            verdict: None,
            due: None,
            out: Vec::new(),
            left: Vec::new(),
        }
    }

    /// What this rank has called, the latest first: its side, should a mismatch be found.
    pub fn called(&mut self, calls: Vec<Descriptor>) {
        self.called = calls;
    }

    /// A message came from a neighbour on the ring, or (`None`) straight from a peer of this host. It is passed on along the ring, if it
    /// is news. What names no rank of this communicator is ignored.
    pub fn received(&mut self, from: Option<Side>, message: Message, now: Ns) {
        let onward: &[Side] = match from {
            Some(Side::Previous) => &[Side::Next],
            Some(Side::Next) => &[Side::Previous],
            None => &[Side::Next, Side::Previous],
        };
        let is_rank = |rank: Rank| rank.index() < self.lives.len();
        match message {
            Message::Farewell { rank } if is_rank(rank) => {
                if self.left(rank) {
                    self.send(onward, &Message::Farewell { rank });
                }
            }
            Message::Report(report) if is_rank(report.from) && is_rank(report.about) => {
                if self.note(report.clone(), now) {
                    self.send(onward, &Message::Report(report.clone()));
                    self.answer(&report, now);
                }
            }
            Message::Verdict(verdict) if is_rank(verdict.about) => {
                if self.verdict.is_none() {
                    self.send(onward, &Message::Verdict(verdict.clone()));
                    self.verdict = Some(verdict);
                }
            }
            Message::Farewell { .. } | Message::Report(_) | Message::Verdict(_) => {}
        }
    }

    /// A peer said farewell; whether that is news.
    pub fn left(&mut self, peer: Rank) -> bool {
        let is_new = self.lives[peer.index()] == Life::Lives;
        if is_new {
            self.lives[peer.index()] = Life::Left;
            self.left.push(peer);
        }
        is_new
    }

    /// The stream to a neighbour ended.
    pub fn ended(&mut self, side: Side, now: Ns) {
        let peer = match side {
            Side::Next => self.next,
            Side::Previous => self.previous,
        };
        self.lost(peer, now);
    }

    /// A peer was found dead, by the end of a stream or by its lock.
    pub fn lost(&mut self, peer: Rank, now: Ns) {
        if peer == self.me || self.lives[peer.index()] != Life::Lives {
            return;
        }
        self.found(
            Report {
                trouble: Trouble::Died,
                from: self.me,
                about: peer,
                op: None,
                channel: None,
                called: Vec::new(),
                text: format!("the process of rank {peer} ended without leaving the communicator"),
            },
            now,
        );
    }

    /// This rank found something.
    pub fn found(&mut self, report: Report, now: Ns) {
        if self.note(report.clone(), now) {
            self.flood(&Message::Report(report));
        }
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
        if self.verdict.is_some() { None } else { self.due }
    }

    /// What to send.
    pub fn take_out(&mut self) -> Vec<(To, Message)> {
        std::mem::take(&mut self.out)
    }

    /// Who said farewell since this was asked last.
    pub fn take_left(&mut self) -> Vec<Rank> {
        std::mem::take(&mut self.left)
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

    /// Whether this rank said farewell.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.has_left(self.me)
    }

    fn arbiter(&self) -> Rank {
        let lowest = self.lives.iter().position(|life| *life == Life::Lives);
        lowest.map_or(self.me, |at| Rank(at as u32))
    }

    /// Keeps a report that is new; whether it was.
    fn note(&mut self, report: Report, now: Ns) -> bool {
        if !self.seen.insert((report.trouble, report.from, report.about)) {
            return false;
        }
        if report.trouble == Trouble::Died {
            self.lives[report.about.index()] = Life::Died;
        }
        let is_first = self.reports.is_empty();
        self.reports.push(report);
        if self.verdict.is_some() {
            return true;
        }
        if self.arbiter() == self.me {
            let may_improve = match self.reports[0].trouble {
                Trouble::Mismatch => !self.has_both_sides(),
                // A link often ends because of what another report will say: of one who died, all who have links to it say that these
                // ended. Who says so too lives.
                Trouble::LinkFailed => {
                    let lives = |one: &Report| self.reports.iter().any(|other| other.from == one.about);
                    !self.reports.iter().any(|one| one.trouble != Trouble::LinkFailed || lives(one))
                }
                Trouble::Died | Trouble::Aborted | Trouble::TimedOut => false,
            };
            if may_improve {
                self.due.get_or_insert_with(|| now.after(OTHER_SIDE));
            } else {
                self.decide();
            }
        } else if is_first {
            self.due = Some(now.after(ARBITER));
        }
        true
    }

    /// The other side of a mismatch says what it called: as that number, if it still knows.
    fn answer(&mut self, report: &Report, now: Ns) {
        if report.trouble != Trouble::Mismatch || report.about != self.me {
            return;
        }
        let is_that = |mine: &&Descriptor| {
            let is_it = |its: &Descriptor| its.seq == mine.seq && its.kind.is_p2p() == mine.kind.is_p2p();
            report.called.iter().any(|(_, its)| is_it(its))
        };
        if let Some(mine) = self.called.iter().find(is_that).or_else(|| self.called.first()) {
            let called = vec![(self.me, *mine)];
            self.found(Report { from: self.me, about: report.from, called, ..report.clone() }, now);
        }
    }

    fn decide(&mut self) {
        let is_cause = |report: &&Report| report.trouble != Trouble::LinkFailed;
        let Some(first) = self.reports.iter().find(is_cause).or_else(|| self.reports.first()) else { return };
        let verdict = Verdict {
            trouble: first.trouble,
            by: self.me,
            about: first.about,
            text: match first.trouble {
                Trouble::Mismatch => self.both_sides(first),
                Trouble::LinkFailed if self.has_left(first.about) => {
                    let (rank, by) = (first.about, first.from);
                    format!(
                        "rank {rank} has finished and left the communicator, and rank {by} still needs it"
                    )
                }
                Trouble::Died | Trouble::Aborted | Trouble::TimedOut | Trouble::LinkFailed => {
                    first.text.clone()
                }
            },
        };
        self.flood(&Message::Verdict(verdict.clone()));
        self.verdict = Some(verdict);
    }

    /// Whether two ranks have said that they called different things. Several may have found the same one.
    fn has_both_sides(&self) -> bool {
        let mut calls = self.reports.iter().flat_map(|report| &report.called).map(|(_, called)| called);
        calls.next().is_some_and(|one| calls.any(|other| other != one))
    }

    /// The text of a mismatch: what each side called, and in which fields they differ.
    fn both_sides(&self, first: &Report) -> String {
        let mut sides: Vec<(Rank, Descriptor)> =
            self.reports.iter().flat_map(|report| &report.called).copied().collect();
        sides.sort_by_key(|(rank, _)| *rank);
        sides.dedup();
        let say = |(rank, called): &(Rank, Descriptor)| {
            // A receive describes itself as the send it awaits.
            let is_receiver = called.kind == CollKind::Send && called.root != *rank;
            format!(
                "rank {rank} called {} #{} (count {}, {}, {}, root {})",
                if is_receiver { CollKind::Recv } else { called.kind },
                called.seq,
                called.count,
                called.dtype,
                called.op,
                called.root
            )
        };
        let said: Vec<String> = sides.iter().map(say).collect();
        match (sides.first(), sides.iter().find(|(_, called)| Some(called) != sides.first().map(|s| &s.1))) {
            (Some((a, one)), Some((b, other))) => {
                format!("{}; rank {a} / rank {b} differ in {}", said.join("; "), one.differences(other))
            }
            _ => format!("{} {}", first.text, said.join("; ")),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Datatype, ReduceOp};

    /// Delivers everything until nothing is under way; `cut` ranks neither send nor receive. Returns the time.
    fn settle(ring: &mut [News], cut: &[u32], mut now: Ns) -> Ns {
        for _ in 0..400 {
            let n = ring.len();
            for at in 0..n {
                for (to, message) in ring[at].take_out() {
                    let (to, seen_as) = match to {
                        To::Ring(Side::Next) => ((at + 1) % n, Side::Previous),
                        To::Ring(Side::Previous) => ((at + n - 1) % n, Side::Next),
                        // Every rank of these tests has its own host.
                        To::Local => continue,
                    };
                    if !cut.contains(&(to as u32)) && !cut.contains(&(at as u32)) {
                        ring[to].received(Some(seen_as), message, now);
                    }
                }
            }
            now = now.after(Duration::from_millis(1));
            for news in ring.iter_mut() {
                news.tick(now);
            }
        }
        now
    }

    fn ring(n: u32) -> Vec<News> {
        (0..n).map(|r| News::new(Rank(r), Rank((r + 1) % n), Rank((r + n - 1) % n), n)).collect()
    }

    fn verdicts(ring: &[News], except: &[u32]) -> Vec<Verdict> {
        let heard = ring.iter().enumerate().filter(|(at, _)| !except.contains(&(*at as u32)));
        let mut all: Vec<Verdict> = heard.map(|(_, news)| news.verdict().cloned().unwrap()).collect();
        all.dedup();
        all
    }

    #[test]
    fn a_death_reaches_everyone_as_one_verdict_of_the_lowest_living_rank() {
        for n in 2..9 {
            for victim in 0..n {
                let mut ring = ring(n);
                let neighbours = [(victim + 1) % n, (victim + n - 1) % n];
                ring[neighbours[0] as usize].ended(Side::Previous, Ns(0));
                ring[neighbours[1] as usize].ended(Side::Next, Ns(0));
                settle(&mut ring, &[victim], Ns(0));
                let all = verdicts(&ring, &[victim]);
                assert_eq!(all.len(), 1, "{n} ranks, {victim} died: {all:?}");
                assert_eq!((all[0].trouble, all[0].about), (Trouble::Died, Rank(victim)));
                assert_eq!(all[0].by, Rank(u32::from(victim == 0)));
            }
        }
    }

    #[test]
    fn links_that_ended_with_a_process_are_no_verdict_before_its_death_is() {
        let says = |from: u32, about: u32| Report {
            trouble: Trouble::LinkFailed,
            from: Rank(from),
            about: Rank(about),
            op: None,
            channel: None,
            called: Vec::new(),
            text: format!("the link between rank {from} and rank {about} ended"),
        };
        let verdict = |reports: &[(u32, u32)], died: Option<usize>| {
            let mut ring = ring(4);
            for (from, about) in reports {
                ring[*from as usize].found(says(*from, *about), Ns(0));
            }
            // Both have reached the arbiter before the end of the connection has.
            for (to, message) in ring[1].take_out() {
                if to == To::Ring(Side::Previous) {
                    ring[0].received(Some(Side::Next), message, Ns(0));
                }
            }
            let early = ring[0].verdict().map(|verdict| verdict.trouble);
            died.into_iter().for_each(|at| ring[at].ended(Side::Next, Ns(0)));
            let dead: Vec<u32> = died.map(|at| at as u32 + 1).into_iter().collect();
            settle(&mut ring, &dead, Ns(0));
            (early, ring[0].verdict().map(|verdict| verdict.trouble))
        };
        // Ranks 0 and 1 had links to rank 3, whose death rank 2 sees last.
        assert_eq!(verdict(&[(0, 3), (1, 3)], Some(2)), (None, Some(Trouble::Died)));
        // Nobody died.
        assert_eq!(verdict(&[(0, 3), (1, 3)], None), (None, Some(Trouble::LinkFailed)));
        // Both ends live, and say so.
        let both = Some(Trouble::LinkFailed);
        assert_eq!(verdict(&[(0, 1), (1, 0)], None), (both, both));
    }

    #[test]
    fn a_mismatch_shows_both_sides_to_everyone() {
        let called = |count| Descriptor {
            kind: CollKind::AllReduce,
            dtype: Datatype::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            count,
            seq: 7,
            plan: 1,
        };
        let mut ring = ring(5);
        for (at, news) in ring.iter_mut().enumerate() {
            // Rank 3 has gone on meanwhile.
            let calls = [Descriptor { seq: 8, ..called(4) }, called(if at == 3 { 8 } else { 4 })];
            news.called(calls[usize::from(at != 3)..].to_vec());
        }
        let report = Report {
            trouble: Trouble::Mismatch,
            from: Rank(2),
            about: Rank(3),
            op: Some((CollKind::AllReduce, 7)),
            channel: Some(ChannelId(0)),
            called: vec![(Rank(2), called(4))],
            text: "rank 3 called something else".into(),
        };
        // The other neighbour finds it too: two reports, one side.
        let other = Report { from: Rank(4), called: vec![(Rank(4), called(4))], ..report.clone() };
        ring[4].found(other, Ns(0));
        ring[2].found(report, Ns(0));
        settle(&mut ring, &[], Ns(0));
        let all = verdicts(&ring, &[]);
        assert_eq!(all.len(), 1);
        assert_eq!(
            all[0].text,
            "rank 2 called AllReduce #7 (count 4, F32, Sum, root 0); rank 3 called AllReduce #7 (count 8, F32, Sum, root 0); \
             rank 4 called AllReduce #7 (count 4, F32, Sum, root 0); rank 2 / rank 3 differ in count 4 / 8"
        );
    }

    #[test]
    fn a_farewell_is_no_death_and_a_silent_arbiter_does_not_hold_up_the_others() {
        let mut ring = ring(4);
        ring[3].leave();
        settle(&mut ring, &[], Ns(0));
        ring[0].ended(Side::Previous, Ns(0));
        settle(&mut ring, &[], Ns(0));
        assert!(ring.iter().all(|news| news.verdict().is_none()));
        assert!(ring[1].has_left(Rank(3)));
        // Rank 0, the arbiter, is stopped; rank 2 dies.
        ring[1].ended(Side::Next, Ns(0));
        settle(&mut ring, &[0, 2, 3], Ns(0));
        assert_eq!(ring[1].verdict().map(|v| v.about), Some(Rank(2)));
    }

    #[test]
    fn what_a_peer_of_this_host_says_goes_on_both_ways_and_once() {
        let mut news = News::new(Rank(0), Rank(1), Rank(3), 4);
        news.received(None, Message::Farewell { rank: Rank(2) }, Ns(0));
        let ways: Vec<To> = news.take_out().into_iter().map(|(to, _)| to).collect();
        assert_eq!(ways, [To::Ring(Side::Next), To::Ring(Side::Previous)]);
        assert_eq!(news.take_left(), [Rank(2)]);
        news.received(Some(Side::Next), Message::Farewell { rank: Rank(2) }, Ns(0));
        assert!(news.take_out().is_empty() && news.take_left().is_empty());
        news.leave();
        assert!(news.take_out().iter().any(|(to, _)| *to == To::Local));
    }

    #[test]
    fn what_names_no_rank_is_ignored() {
        let mut news = News::new(Rank(0), Rank(1), Rank(1), 2);
        news.received(Some(Side::Next), Message::Farewell { rank: Rank(9) }, Ns(0));
        assert!(news.take_out().is_empty());
    }
}
