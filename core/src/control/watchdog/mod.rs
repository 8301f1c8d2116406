//! The watchdog: tells of stalls by itself, once for the whole job, while nobody looks.
//!
//! A task in the service thread of every process watches for operations of this process that last.
//! If one does, it looks (`look`) at the job as an inspector would, other hosts included, and
//! judges it with the same verdicts. Who looks, and which process tells, is decided without
//! messages (`alarm`); what is told travels over the failure gossip of all communicators and lands
//! in every recorder. A suspicion is recorded only. A stall is also written to standard error, with
//! the next command to type, and the state of the job is saved (`say`, in a thread of `writer`).
//! With `CCL_ON_STALL=abort` the communicators that wait are aborted with the verdict as the
//! reason.
//!
//! The watchdog never runs in a thread that carries out operations, and it changes nothing unless
//! it was told to abort.

mod alarm;
mod look;
mod say;
mod writer;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use alarm::{Alarm, Do, Seen, Tell, Told};
use look::Looked;
use writer::{Said, Writer};

use crate::bootstrap::auth::fill_random;
use crate::clock::Ns;
use crate::config::{Key, Settings};
use crate::diagnose::suspect_ns;
use crate::error::Result;
use crate::event::{Event, publish};
use crate::failure::gossip::{Latest, NEWS_TEXT, News, Stall};
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::recorder::place::STALL;
use crate::recorder::{Events, Recorder};
use crate::snapshot::{StallTold, Standing, Verdict};
use crate::sys;
use crate::text::harmless;
use crate::types::{CommId, Rank};

/// The watchdog of this process, as long as this lives.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    handle: Arc<Handle>,
}

/// What the watchdog may do in a communicator, as long as this lives.
#[derive(Debug)]
pub(crate) struct Seated {
    number: u64,
    shared: Arc<Shared>,
}

/// What the watchdog needs of a communicator.
pub(crate) struct Seat {
    pub(crate) comm: CommId,
    pub(crate) events: Events,
    /// Tells the other ranks.
    pub(crate) tell: Box<dyn Fn(&News) + Send>,
    /// Aborts it with this reason. It may block.
    pub(crate) abort: Arc<dyn Fn(&str) + Send + Sync>,
}

#[derive(Default)]
struct Shared {
    seats: Mutex<(u64, Vec<(u64, Seat)>)>,
    heard: Mutex<Vec<News>>,
    /// The result of a look; `None` within: nothing could be seen.
    looked: Mutex<Option<Option<Looked>>>,
    /// The task, for the thread that looks.
    task: Mutex<Weak<Handle>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({} communicators)", lock(&self.seats).1.len())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one push, one take or one retain.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watchdog {
    /// Starts the watchdog; `None` if the settings want none.
    ///
    /// # Errors
    /// `System` if the service thread cannot run.
    pub(crate) fn start(recorder: &Arc<Recorder>, settings: &Settings) -> Result<Option<Self>> {
        if settings.text(Key::OnStall) == "off" {
            return Ok(None);
        }
        let mut teller = [0; 8];
        fill_random(&mut teller)?;
        let stall = settings.duration(Key::StallAfter);
        let stall_ns = stall.as_nanos() as u64;
        let patience = Duration::from_nanos(suspect_ns(0, stall_ns));
        let shared = Arc::<Shared>::default();
        let watch = Watch {
            recorder: Arc::clone(recorder),
            is_to_abort: settings.text(Key::OnStall) == "abort",
            writer: Writer::new(settings.clone()),
            shared: Arc::clone(&shared),
            alarm: Alarm::new(patience, stall),
            patience,
            stall_ns,
            teller: u64::from_le_bytes(teller),
            number: 0,
            latest: Latest::default(),
            stands: None,
            failures: 0,
            before_look: 0,
        };
        let handle = Arc::new(Service::get()?.add(watch)?);
        *lock(&shared.task) = Arc::downgrade(&handle);
        Ok(Some(Self { shared, handle }))
    }

    /// Lets the watchdog tell in a communicator, and abort it.
    pub(crate) fn seat(&self, seat: Seat) -> Seated {
        let mut seats = lock(&self.shared.seats);
        seats.0 += 1;
        let number = seats.0;
        seats.1.push((number, seat));
        drop(seats);
        Seated { number, shared: Arc::clone(&self.shared) }
    }

    /// Another process told this, in some communicator.
    pub(crate) fn heard(&self, news: News) {
        lock(&self.shared.heard).push(news);
        self.handle.nudge();
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        // A forked child has a copy: another thread of the parent may hold the lock.
        if !sys::forked() {
            let mut seats = lock(&self.shared.seats);
            let at = seats.1.iter().position(|(number, _)| *number == self.number);
            let seat = at.map(|at| seats.1.swap_remove(at));
            drop(seats);
            drop(seat);
        }
    }
}

/// The task.
struct Watch {
    recorder: Arc<Recorder>,
    /// Whether what waits in a stall is to be aborted.
    is_to_abort: bool,
    writer: Writer,
    shared: Arc<Shared>,
    alarm: Alarm,
    patience: Duration,
    stall_ns: u64,
    /// This process among those that tell, and the number of its last news.
    teller: u64,
    number: u32,
    latest: Latest,
    /// What stands, as it was told, and by whom.
    stands: Option<(u64, Stall)>,
    /// How many failures this process had seen before that.
    failures: u64,
    /// How many operations had failed here when the last look began.
    before_look: u64,
}

impl Task for Watch {
    fn interests(&self, _: &mut Vec<Interest>) {}

    fn turn(&mut self, now: Ns) -> Turn {
        self.alarm.wakes(now);
        let looked = lock(&self.shared.looked).take();
        if let Some(looked) = looked {
            self.looked(looked, now);
        }
        let heard = std::mem::take(&mut *lock(&self.shared.heard));
        for news in heard {
            self.hear(news, now);
        }
        let waits = self.recorder.under_way(self.patience);
        let longest = waits.iter().map(|(.., waited)| *waited).max();
        let lowest = waits.iter().map(|(_, rank, _)| *rank).min();
        match self.alarm.turn(longest.zip(lowest), now) {
            Do::Nothing => {}
            Do::Look => {
                self.before_look = self.recorder.failures();
                self.look();
            }
            Do::End { is_own, lasted } => self.ended(is_own, lasted),
        }
        Turn::Again(Some(now.after(self.alarm.tick())))
    }
}

impl Drop for Watch {
    /// The process leaves: what it told is over, unless the job has failed.
    fn drop(&mut self) {
        let own = self.stands.take().filter(|(teller, _)| *teller == self.teller);
        if let Some((_, stall)) = own.filter(|(_, one)| one.told.standing == Standing::Stalled)
            && !self.recorder.is_evidence()
        {
            self.writer.say(Said::Recovered(stall.told.text, None));
        }
        self.writer.flush();
    }
}

impl Watch {
    /// Looks at the job, in a thread: it may have many processes.
    fn look(&self) {
        // Weak: a look must not keep the recorder of a process that leaves.
        let (recorder, shared) = (Arc::downgrade(&self.recorder), Arc::clone(&self.shared));
        let limits_ns = (self.patience.as_nanos() as u64, self.stall_ns);
        let stands = self.stands.as_ref().is_some_and(|(_, one)| one.told.standing == Standing::Stalled);
        let work = move || {
            let looked = guarded(|| look::look(&recorder, limits_ns, stands));
            *lock(&shared.looked) = Some(looked);
            let task = lock(&shared.task).upgrade();
            if let Some(task) = task {
                task.nudge();
            }
        };
        if std::thread::Builder::new().name("ccl-watchdog".into()).spawn(work).is_err() {
            *lock(&self.shared.looked) = Some(None);
        }
    }

    fn looked(&mut self, looked: Option<Looked>, now: Ns) {
        let Some(Looked { job, me, is_first, told }) = looked else { return self.alarm.saw_nothing(now) };
        let waits = job.blocked_on.iter().map(|one| one.since_ns);
        let longest_ns = waits.chain(job.not_joined.iter().map(|one| one.since_ns)).max().unwrap_or(0);
        let seen = Seen { verdict: job.verdicts.first(), longest_ns, is_first, told };
        let tell = self.alarm.looked(&seen, now);
        if let Do::End { is_own, lasted } = self.alarm.is_cleared(now) {
            self.ended(is_own, lasted);
        }
        match tell {
            Tell::New => {
                let Some(verdict) = job.verdicts.first() else { return };
                let stall = stall_of(verdict, me);
                let is_stall = stall.told.standing == Standing::Stalled;
                self.tell(Some(stall.clone()));
                self.note(self.teller, stall);
                if is_stall {
                    self.writer.say(Said::Stall(Box::new(job), self.recorder.beside(STALL)));
                }
            }
            Tell::Still => {
                let stands = self.stands.as_ref().map(|(_, stall)| stall.clone());
                self.tell(stands);
            }
            Tell::Nothing => {}
        }
    }

    /// Tells the other processes of all communicators.
    fn tell(&mut self, stall: Option<Stall>) {
        self.number += 1;
        let news = News { teller: self.teller, number: self.number, stall };
        self.latest.is_new(&news);
        self.spread(&news);
    }

    fn spread(&self, news: &News) {
        lock(&self.shared.seats).1.iter().for_each(|(_, seat)| (seat.tell)(news));
    }

    fn hear(&mut self, news: News, now: Ns) {
        if news.teller == self.teller || !self.latest.is_new(&news) {
            return;
        }
        self.spread(&news);
        match news.stall {
            Some(mut stall) => {
                stall.told.is_own = false;
                if self.alarm.heard(Told::from(&stall.told), now) {
                    self.note(news.teller, stall);
                }
            }
            None if self.stands.as_ref().is_some_and(|(teller, _)| *teller == news.teller) => {
                if let Do::End { is_own, lasted } = self.alarm.heard_end(now) {
                    self.ended(is_own, lasted);
                }
            }
            None => {}
        }
    }

    /// Records what stands from now on, and aborts what waits, if that was asked for.
    fn note(&mut self, teller: u64, stall: Stall) {
        let StallTold { standing, class, reason, .. } = stall.told;
        let (culprit, since_ns) = (stall.culprit, stall.since_ns);
        self.failures = if teller == self.teller { self.before_look } else { self.recorder.failures() };
        self.recorder.tell_stall(Some(&stall.told));
        self.publish(|| Event::StallFound { standing, class, reason, culprit, since_ns });
        if standing == Standing::Stalled && self.is_to_abort {
            self.abort(&stall.told.text);
        }
        self.stands = Some((teller, stall));
    }

    fn ended(&mut self, is_own: bool, lasted: Duration) {
        let duration_ns = lasted.as_nanos() as u64;
        let stands = self.stands.take();
        // What was told stays in the recorder where it led to a failure.
        let has_failed = stands.is_some() && self.recorder.failures() > self.failures;
        if !has_failed {
            self.recorder.tell_stall(None);
        }
        self.publish(|| Event::StallEnded { duration_ns });
        if is_own {
            self.tell(None);
            let stalled = stands.filter(|(_, one)| one.told.standing == Standing::Stalled && !has_failed);
            if let Some((_, stall)) = stalled {
                self.writer.say(Said::Recovered(stall.told.text, Some(lasted)));
            }
        }
    }

    /// Publishes to the communicator in which this process waits, or else to any.
    fn publish(&self, event: impl FnOnce() -> Event) {
        let waits = self.recorder.under_way(self.patience);
        let is_it = |comm: CommId| waits.iter().any(|(waiting, ..)| *waiting == comm);
        let mut seats = lock(&self.shared.seats);
        let at = seats.1.iter().position(|(_, seat)| is_it(seat.comm)).unwrap_or(0);
        if let Some((_, seat)) = seats.1.get_mut(at) {
            publish(&mut seat.events, event);
        }
    }

    /// Aborts the communicators of this process that wait.
    fn abort(&self, text: &str) {
        let waits = self.recorder.under_way(self.patience);
        let reason = format!("CCL_ON_STALL=abort: {text}");
        for (_, seat) in &lock(&self.shared.seats).1 {
            if waits.iter().any(|(waiting, ..)| *waiting == seat.comm) {
                let (abort, reason) = (Arc::clone(&seat.abort), reason.clone());
                let work = move || abort(&reason);
                let _ = std::thread::Builder::new().name("ccl-abort".into()).spawn(work);
            }
        }
    }
}

/// What a look shows; nothing if it panics, so that the watchdog looks again.
fn guarded<T>(look: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(look)).ok().flatten()
}

/// A verdict, as it is told by this process.
fn stall_of(verdict: &Verdict, me: Option<Rank>) -> Stall {
    let Told { standing, class, reason, key } = Told::of(verdict);
    let told = StallTold {
        standing,
        class,
        reason,
        by: me,
        is_own: true,
        ago_ns: 0,
        key,
        text: harmless(&verdict.why, NEWS_TEXT).into_owned(),
    };
    Stall { told, culprit: verdict.culprits.first().map(|one| one.rank), since_ns: verdict.since_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_panics_has_ended() {
        assert_eq!(guarded(|| Some(7)), Some(7));
        assert_eq!(guarded(|| -> Option<u32> { panic!("a look of the test") }), None);
    }
}
