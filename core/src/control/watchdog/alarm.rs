//! When the watchdog of a process looks, what of it is told and who tells it: a state machine
//! without I/O and clock.
//!
//! A wait of this process that outlasts its patience makes it look at the job. The lowest ranks
//! look first: whoever hears a verdict meanwhile need not look. Among those that looked, the lowest
//! process of the job that waits itself tells the verdict; the next one does if that stays silent
//! for [`HOLD`]. A wait that has ended, and has not come back for [`CALM`], ends the stall.

use std::time::Duration;

use crate::clock::Ns;
use crate::snapshot::{Class, Reason, StallTold, Standing, Verdict};
use crate::types::{BlameHash, Rank};

/// How long a process leaves it to a lower one to tell a verdict.
pub(super) const HOLD: Duration = Duration::from_secs(2);
/// How much later each rank looks than the one below it, beside [`HOLD`], and the most of it.
const STAGGER: Duration = Duration::from_millis(50);
const MAX_STAGGER: Duration = Duration::from_millis(1500);
/// The times between looks as long as a wait lasts.
const FIRST_GAP: Duration = Duration::from_millis(500);
const MAX_GAP: Duration = Duration::from_secs(5);
/// How long the process that told a stall may be silent before another one looks.
const SILENCE: Duration = Duration::from_secs(12);
/// How long nothing may wait before a stall is over: the next operation may hang on the same.
const CALM: Duration = Duration::from_secs(1);
/// A turn that comes this much too late shows that the process itself was stopped: what waited
/// meanwhile counts anew.
const PAUSED: Duration = Duration::from_secs(1);

/// What makes two verdicts the same for whoever reads the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Told {
    pub(super) standing: Standing,
    pub(super) class: Class,
    pub(super) reason: Reason,
    pub(super) key: BlameHash,
}

impl Told {
    pub(super) fn of(verdict: &Verdict) -> Self {
        let Verdict { standing, class, reason, .. } = *verdict;
        Self { standing, class, reason, key: verdict.key() }
    }
}

impl From<&StallTold> for Told {
    fn from(told: &StallTold) -> Self {
        let StallTold { standing, class, reason, key, .. } = *told;
        Self { standing, class, reason, key }
    }
}

/// A stall that stands.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stands {
    told: Told,
    is_own: bool,
    /// When it was found here, and when it was last told or heard.
    found: Ns,
    last: Ns,
}

/// What is to be done after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Do {
    /// Nothing.
    Nothing,
    /// Look at the job.
    Look,
    /// The stall is over, which was found this long ago; `is_own`: this process told it.
    End { is_own: bool, lasted: Duration },
}

/// What is to be done after a look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Tell {
    /// Nothing: it is known, or another process tells it.
    Nothing,
    /// The first verdict is news.
    New,
    /// The same still stands: others are told so.
    Still,
}

/// What was seen of the job.
#[derive(Default)]
pub(super) struct Seen<'a> {
    /// The first verdict, if there is any.
    pub(super) verdict: Option<&'a Verdict>,
    /// The longest wait.
    pub(super) longest_ns: u64,
    /// Whether no lower process of the job waits as this one does.
    pub(super) is_first: bool,
    /// What the watchdogs of other processes have told and still tell.
    pub(super) told: Vec<Told>,
}

/// The state of one process.
#[derive(Debug)]
pub(super) struct Alarm {
    patience: Duration,
    stall: Duration,
    stands: Option<Stands>,
    /// When a wait of this process outlasted its patience; `None`: none does.
    began: Option<Ns>,
    /// Since when none does any more.
    calm: Option<Ns>,
    look_at: Ns,
    gap: Duration,
    is_looking: bool,
    /// When the look under way began, or else the last one.
    looks_since: Ns,
    /// When a look first showed a verdict that a lower process is to tell.
    held: Option<Ns>,
    /// How many looks in a row have shown nothing.
    clear: u32,
    last_turn: Option<Ns>,
    /// When this process went on after it was stopped.
    resumed: Option<Ns>,
}

impl Alarm {
    /// Waits shorter than `patience` are no verdict; `stall` is `CCL_STALL_AFTER`.
    pub(super) const fn new(patience: Duration, stall: Duration) -> Self {
        Self {
            patience,
            stall,
            stands: None,
            began: None,
            calm: None,
            look_at: Ns(0),
            gap: FIRST_GAP,
            is_looking: false,
            looks_since: Ns(0),
            held: None,
            clear: 0,
            last_turn: None,
            resumed: None,
        }
    }

    /// The time between turns.
    pub(super) fn tick(&self) -> Duration {
        (self.patience / 2).clamp(Duration::from_millis(20), Duration::from_millis(500))
    }

    /// The end of a turn, which began with [`wakes`](Self::wakes): `wait` is the longest wait of
    /// this process and its rank there, as far as it is longer than the patience.
    pub(super) fn turn(&mut self, wait: Option<(Duration, Rank)>, now: Ns) -> Do {
        let counts = |(waited, _): &(Duration, Rank)| {
            let since = self.resumed.map_or(*waited, |resumed| now.since(resumed).min(*waited));
            // What waited before goes on waiting.
            since >= self.patience || self.began.is_some()
        };
        match wait.filter(counts) {
            None => self.is_calm(now),
            Some((waited, rank)) => self.waits(rank, waited, now),
        }
    }

    /// Before anything else in a turn: whether this process was stopped meanwhile.
    pub(super) fn wakes(&mut self, now: Ns) {
        if self.last_turn.is_some_and(|last| now.since(last) > self.tick() + PAUSED) {
            self.resumed = Some(now);
            // What moves again shows that first.
            self.look_at = self.look_at.max(now.after(self.patience + FIRST_GAP));
        }
        self.last_turn = Some(now);
    }

    fn is_calm(&mut self, now: Ns) -> Do {
        let calm = *self.calm.get_or_insert(now);
        if self.began.is_none() || now.since(calm) < CALM {
            return Do::Nothing;
        }
        (self.began, self.held) = (None, None);
        self.end(now)
    }

    fn end(&mut self, now: Ns) -> Do {
        match self.stands.take() {
            Some(Stands { is_own, found, .. }) => Do::End { is_own, lasted: now.since(found) },
            None => Do::Nothing,
        }
    }

    fn waits(&mut self, rank: Rank, waited: Duration, now: Ns) -> Do {
        self.calm = None;
        let after = |from: Ns| match rank.0 {
            0 => from,
            n => from.after(HOLD + (STAGGER * n.min(1000)).min(MAX_STAGGER)),
        };
        if self.began.is_none() {
            self.began = Some(now);
            (self.look_at, self.gap, self.clear) = (after(now), FIRST_GAP, 0);
        }
        if let Some(Stands { is_own: false, last, .. }) = &self.stands
            && now.since(*last) <= waited
        {
            // It is somebody else's, as long as that repeats it. A later wait may be another's.
            self.look_at = self.look_at.max(after(last.after(SILENCE)));
        }
        if self.is_looking || now < self.look_at {
            return Do::Nothing;
        }
        self.is_looking = true;
        self.looks_since = now;
        Do::Look
    }

    /// A look has ended without seeing anything: that says neither that a stall stands nor that it
    /// is over.
    pub(super) fn saw_nothing(&mut self, now: Ns) {
        self.is_looking = false;
        self.gap = (self.gap * 2).min(MAX_GAP);
        self.look_at = self.look_at.max(now.after(self.gap));
    }

    /// A look has ended.
    pub(super) fn looked(&mut self, seen: &Seen<'_>, now: Ns) -> Tell {
        self.saw_nothing(now);
        if self.resumed.is_some_and(|resumed| resumed >= self.looks_since) {
            // It shows what was before this process was stopped.
            return Tell::Nothing;
        }
        let left = self.stall.saturating_sub(Duration::from_nanos(seen.longest_ns));
        let is_suspect = seen.verdict.is_some_and(|one| one.standing == Standing::Suspect);
        if is_suspect || (seen.verdict.is_none() && !left.is_zero()) {
            // It may become a stall before the next look would be due.
            self.look_at = self.look_at.min(now.after(left.max(FIRST_GAP)));
        }
        let Some(verdict) = seen.verdict.filter(|_| self.began.is_some()) else {
            self.clear += 1;
            return Tell::Nothing;
        };
        self.clear = 0;
        let told = Told::of(verdict);
        // A network that is bad is one trouble, whichever of its streams shows it.
        let is_link = |told: &Told| (told.class, told.standing) == (Class::Link, Standing::Stalled);
        if let Some(stands) = &mut self.stands
            && (stands.told == told || (is_link(&stands.told) && is_link(&told)))
        {
            stands.last = now;
            return if stands.is_own { Tell::Still } else { Tell::Nothing };
        }
        if seen.told.contains(&told) {
            self.stands(told, false, now);
            return Tell::Nothing;
        }
        // A stall that a later look calls a suspicion is the same trouble.
        let is_less = self.stands.as_ref().is_some_and(|one| one.told.standing == Standing::Stalled);
        if is_less && told.standing == Standing::Suspect {
            return Tell::Nothing;
        }
        if !seen.is_first && now.since(*self.held.get_or_insert(now)) < HOLD {
            self.look_at = self.look_at.min(now.after(FIRST_GAP));
            return Tell::Nothing;
        }
        self.held = None;
        self.stands(told, true, now);
        Tell::New
    }

    /// Whether what this process told is not seen any more although it still waits: the stall is
    /// over. Looked at twice, as one look may fall between two operations.
    pub(super) fn is_cleared(&mut self, now: Ns) -> Do {
        match self.clear >= 2 && self.stands.as_ref().is_some_and(|one| one.is_own) {
            true => self.end(now),
            false => Do::Nothing,
        }
    }

    /// Another process told this; returns whether it is news here.
    pub(super) fn heard(&mut self, told: Told, now: Ns) -> bool {
        let is_same = self.stands.as_ref().is_some_and(|one| one.told == told);
        match &mut self.stands {
            Some(stands) if is_same => stands.last = now,
            // Two found the same trouble, and this process has told what it found.
            Some(stands) if stands.is_own && stands.told.standing == Standing::Stalled => return false,
            _ => self.stands(told, false, now),
        }
        self.held = None;
        !is_same
    }

    /// Another process told that its stall is over.
    pub(super) fn heard_end(&mut self, now: Ns) -> Do {
        match self.stands.as_ref().is_some_and(|one| !one.is_own) {
            true => {
                self.look_at = now.after(FIRST_GAP);
                self.end(now)
            }
            false => Do::Nothing,
        }
    }

    fn stands(&mut self, told: Told, is_own: bool, now: Ns) {
        let found = self.stands.as_ref().map_or(now, |before| before.found);
        self.stands = Some(Stands { told, is_own, found, last: now });
    }
}

#[cfg(test)]
mod tests;
