//! What the programs of an engine wait for, and its record in the cells.

use super::{Engine, Mover, Progress};
use crate::clock::Raw;
use crate::event::{Event, Subscriber, publish_at};
use crate::recorder::{Attention, OpWait};
use crate::types::{ChannelId, CollKind, Direction, Rank, WaitReason};

/// What one program waits for. Two that are equal are one wait: it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The operation, by its place in the order of submission.
    pub op: u64,
    /// The step of the program that waits; [`Wait::FLUSH`] where all have run and bytes are left to
    /// be sent.
    pub step: u64,
    /// The channel of the program.
    pub channel: ChannelId,
    /// The rank that is waited for.
    pub peer: Rank,
    /// The direction of the link that waits.
    pub direction: Direction,
    /// Whether it is a shared lane.
    pub shared: bool,
    /// Why it waits.
    pub reason: WaitReason,
}

impl Wait {
    /// The step of a program that has run.
    pub const FLUSH: u64 = u64::MAX;

    /// Whether both are of one step and link.
    fn is_at_place_of(&self, other: &Self) -> bool {
        Self { reason: other.reason, ..*self } == *other
    }

    /// Whether a send or receive waits.
    pub(super) fn is_pair(&self) -> bool {
        self.channel == ChannelId::P2P
    }

    /// As its operation's cell tells it.
    const fn told(&self, since: Raw, attention: Attention) -> OpWait {
        let Self { reason, channel, direction, peer, .. } = *self;
        OpWait { reason, channel, direction, peer, since, attention }
    }
}

/// For how long operations waited: the time during which at least one wait of theirs was noted.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Waited {
    since: Option<Raw>,
    ticks: u64,
}

impl Waited {
    /// Whether something of theirs waits from now on.
    fn mark(&mut self, waits: bool, now: Raw) {
        match self.since {
            None if waits => self.since = Some(now),
            Some(_) if !waits => self.stop(now),
            _ => {}
        }
    }

    /// An operation ends, and its waits with it: for how long it waited.
    #[inline]
    pub(super) fn take(&mut self, now: Raw) -> u64 {
        self.stop(now);
        std::mem::take(&mut self.ticks)
    }

    #[inline]
    fn stop(&mut self, now: Raw) {
        if let Some(since) = self.since.take() {
            self.ticks = self.ticks.saturating_add(now.0.saturating_sub(since.0));
        }
    }
}

impl<S: Subscriber, M: Mover> Engine<S, M> {
    /// Writes what is waited for into the cells, in place of what was. The driver calls this when
    /// it has waited for longer than a message takes, and again as long as it does; a turn that
    /// advances takes out what has ended.
    pub fn note_waits(&mut self, now: Raw) {
        let ended = self.end_noted(now);
        let before = self.noted.len();
        for wait in &self.waits {
            if self.noted[..before].iter().any(|(noted, _)| noted == wait) {
                continue;
            }
            self.noted.push((*wait, now));
            self.lanes.note(wait, now);
            publish_at(&mut self.events, now, || Event::WaitBegan {
                channel: wait.channel,
                peer: wait.peer,
                reason: wait.reason,
            });
        }
        let attended = self.waits_to_tell().map(|told| told.map(|(_, wait)| wait.attention));
        let former = std::mem::replace(&mut self.attended, attended);
        for ((now_by, by), since) in attended.into_iter().zip(former).zip(&mut self.attended_since) {
            if now_by > Some(Attention::Nobody) && by == Some(Attention::Nobody) {
                *since = now;
            }
        }
        if ended || self.noted.len() > before || former != attended {
            self.note_ops();
        }
        self.mark_waits(now);
    }

    /// A step that waited for something before its operation gave its slot of the proxy away still
    /// waits for that, as far as is known: it is what must happen, and the slot comes round.
    #[inline]
    pub(super) fn keep_waits(&mut self) {
        for wait in self.waits.iter_mut().filter(|wait| wait.reason == WaitReason::Proxy) {
            // A lane comes up without a slot.
            let is_same =
                |before: &&Wait| before.reason != WaitReason::Connect && before.is_at_place_of(wait);
            if let Some(before) = self.waits_before.iter().find(is_same) {
                *wait = *before;
            }
        }
    }

    /// Somebody waits for all that is under way.
    pub fn attend(&self) {
        self.collectives.attend();
        self.pairs.attend();
    }

    /// The last turn before a sleep. What it finds awaited may have changed although nothing
    /// advanced (the first of two messages that one step takes has come): it is noted, for nothing
    /// else is until the sleep ends.
    pub fn turn_before_sleep(&mut self, clock: &impl Fn() -> Raw) -> Progress {
        let progress = self.turn(clock);
        if progress == Progress::Blocked {
            self.note_waits(clock());
        }
        progress
    }

    /// Something moved: the waits that ended are taken out of the cells. Others go on: that of a
    /// receive does not begin anew because a collective moves.
    pub(super) fn end_waits(&mut self, now: Raw) {
        if self.end_noted(now) {
            self.note_ops();
        }
        self.mark_waits(now);
    }

    /// Keeps since when collectives, and sends and receives have waited.
    fn mark_waits(&mut self, now: Raw) {
        for (pair, waited) in [false, true].into_iter().zip(&mut self.waited) {
            waited.mark(self.noted.iter().any(|(wait, _)| wait.is_pair() == pair), now);
        }
    }

    /// Whether a noted wait has ended.
    fn end_noted(&mut self, now: Raw) -> bool {
        let Self { lanes, waits, noted, events, .. } = self;
        let before = noted.len();
        noted.retain(|(wait, since)| {
            let stands = waits.contains(wait);
            if !stands {
                lanes.moves(wait);
                let Wait { channel, peer, reason, .. } = *wait;
                let duration_ticks = now.0.saturating_sub(since.0);
                publish_at(events, now, || Event::WaitEnded {
                    channel,
                    peer: Some(peer),
                    reason,
                    duration_ticks,
                });
            }
            stands
        });
        noted.len() < before
    }

    /// What collectives, and what sends and receives have waited for longest; of several, one that
    /// somebody waits for.
    pub(super) fn waits_to_tell(&self) -> [Option<(&Wait, OpWait)>; 2] {
        [false, true].map(|pair| {
            let told = |(wait, since): &'_ (Wait, Raw)| {
                let Wait { peer, direction, .. } = *wait;
                let attention = match pair {
                    true => self.pairs.attention(peer, direction),
                    false => self.collectives.attention(),
                };
                // Nobody waited before.
                wait.told((*since).max(self.attended_since[usize::from(pair)]), attention)
            };
            let waits = || self.noted.iter().filter(move |(wait, _)| wait.is_pair() == pair);
            let first =
                waits().find(|noted| told(noted).attention > Attention::Nobody).or_else(|| waits().next());
            first.map(|noted| (&noted.0, told(noted)))
        })
    }

    /// Since when a collective has waited for a peer, whatever else moved meanwhile; `None` if no
    /// wait of one is noted.
    #[must_use]
    pub fn collective_waits_since(&self) -> Option<Raw> {
        let noted = self.noted.iter().filter(|(wait, _)| wait.channel != ChannelId::P2P);
        noted.map(|(_, since)| *since).min()
    }

    /// Of collectives, and of sends and receives that a thread waits for: a wait of the one that
    /// has moved no message for longest, and since when.
    #[must_use]
    pub fn stands(&self) -> [Option<(Wait, Raw)>; 2] {
        let waits = |pair: bool| self.noted.iter().filter(move |(wait, _)| wait.is_pair() == pair);
        let has_thread = |wait: &Wait| self.pairs.attention(wait.peer, wait.direction) == Attention::Thread;
        // A collective moved until the last of its programs began to wait; a send or receive has
        // one.
        let collective = match self.collectives.attention() {
            Attention::Thread => waits(false).next_back(),
            Attention::Task | Attention::Nobody => None,
        };
        let pair = waits(true).find(|(wait, _)| has_thread(wait));
        let [collectives, pairs] = self.attended_since;
        let since = |noted: Option<&(Wait, Raw)>, attended: Raw| {
            noted.map(|(wait, since)| (*wait, (*since).max(attended)))
        };
        [since(collective, collectives), since(pair, pairs)]
    }

    /// Since when the oldest wait is noted.
    #[must_use]
    pub fn waits_since(&self) -> Option<Raw> {
        self.noted.first().map(|(_, since)| *since)
    }

    /// The operation that waits so.
    #[must_use]
    pub fn op_of(&self, wait: &Wait) -> Option<(CollKind, u64)> {
        let op = match wait.is_pair() {
            true => self.pairs.first_of(wait.peer, wait.direction),
            false => self.collectives.first(),
        };
        op.map(|op| (op.kind(), op.descriptor().seq))
    }

    /// Writes that into the operations' own cells, with or without a link.
    pub(super) fn note_ops(&self) {
        let [collective, pair] = self.waits_to_tell();
        self.row.waits(collective.map(|(_, told)| told));
        // Of several sends and receives the cell tells of the one that waits.
        if let Some(op) = pair.and_then(|(wait, _)| self.pairs.first_of(wait.peer, wait.direction)) {
            let outline = op.outline(self.topology_hash);
            self.row.p2p_under_way(op.descriptor(), outline, op.peer(), op.began());
        }
        self.row.p2p_waits(pair.map(|(_, told)| told));
    }
}
