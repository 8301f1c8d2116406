//! Where snapshots come from: a thread that looks at the job several times a second. The processes tell of themselves, all at the
//! same moments; who does not is read from its mapping. Recorders stay open: what is left in them can be read when they are gone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::config::Settings;
use ccl::control::wire::Subscription;
use ccl::error::{Error, ErrorKind, Result};
use ccl::recorder::reader::{Cursor, Histogram, Reader};
use ccl::snapshot::{Given, ProcessSnapshot, Snapshot, State, jobs, merge};
use ccl::types::{CommId, JobId, Rank};
use tokio::sync::{mpsc, watch};

use super::app::Seen;
use super::events;
use super::history::{Rates, Shot};
use super::log::{Entry, Origin};
use crate::discover::{self, Findings, Found, door};
use crate::rates::Counted;
use crate::roll::Roll;
use crate::{attach, process, words};

/// Between two looks at the processes that are known.
const LOOK: Duration = Duration::from_millis(250);
/// How long after the moment of a look its tellings may come.
const PATIENCE: Duration = Duration::from_millis(200);
/// Between two searches for more of them, which go through all processes of the machine.
const SEARCH: Duration = Duration::from_secs(2);
/// How long ago that look was, at least, since which rates count; less in the first second.
const RATED: Duration = Duration::from_millis(950);
/// Between two readings of the histograms.
const COUNT: Duration = Duration::from_secs(1);

/// Whose job is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whom {
    /// This job.
    Job(JobId),
    /// The job of the descendants of this process, as soon as one has a recorder.
    DescendantsOf(u32),
}

/// What is wanted beside snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Wants {
    /// The durations of operations.
    pub(crate) histograms: bool,
    /// Events.
    pub(crate) events: bool,
}

/// The reading end. Dropping it ends the thread at its next look.
#[derive(Debug)]
pub(crate) struct Feed {
    seen: mpsc::Receiver<Seen>,
    wants: watch::Sender<Wants>,
}

impl Feed {
    /// Begins to look.
    ///
    /// # Errors
    /// The system's, if it has no thread to give.
    pub(crate) fn start(whom: Whom, settings: Settings) -> std::io::Result<Self> {
        // Where the screen is slower than this, looks wait for it.
        let (sender, seen) = mpsc::channel(1);
        let (wants, wanted) = watch::channel(Wants::default());
        let mut follower = Follower::new(whom, settings);
        std::thread::Builder::new().name("feed".into()).spawn(move || {
            loop {
                let wants = *wanted.borrow();
                if sender.blocking_send(follower.look(wants)).is_err() {
                    return;
                }
                let now = clock::now();
                clock::sleep(moment(now).after(LOOK).since(now));
            }
        })?;
        Ok(Self { seen, wants })
    }

    /// The next look; `None`: there will be none.
    pub(crate) async fn next(&mut self) -> Option<Seen> {
        self.seen.recv().await
    }

    /// Says what is wanted from the next look on.
    pub(crate) fn want(&self, wants: Wants) {
        self.wants.send_if_modified(|now| std::mem::replace(now, wants) != wants);
    }
}

/// A moment of the past, in nanoseconds since 1970.
fn real_ns_at(moment: Ns) -> u64 {
    clock::real_ns().saturating_sub(clock::now().since(moment).as_nanos() as u64)
}

/// The last moment at which processes told of themselves: a multiple of [`LOOK`].
const fn moment(now: Ns) -> Ns {
    let look = LOOK.as_nanos() as u64;
    Ns(now.0 / look * look)
}

/// A process that is followed.
struct Followed {
    found: Found,
    reader: Reader,
    cursor: Cursor,
    telling: Telling,
    /// It is no more, and was read after its end: nothing will change.
    is_over: bool,
}

/// Whether a process tells of itself.
enum Telling {
    /// It was not asked to: it is stopped, or has no control socket.
    Unasked,
    /// It does.
    Does(Box<Subscription>),
    /// It was asked then, in vain.
    Refused(Ns, Error),
}

/// Looks at one job.
struct Follower {
    whom: Whom,
    settings: Settings,
    /// Whose job it is, once that is known.
    roll: Option<Roll>,
    followed: Vec<Followed>,
    searched: Option<Ns>,
    /// The histograms and when they were read; `None`: nobody looks at them.
    counted: Option<(Ns, Arc<[Histogram]>)>,
    /// What the looks of about the last second have counted, oldest first.
    looks: VecDeque<(Ns, Counted)>,
}

impl Follower {
    fn new(whom: Whom, settings: Settings) -> Self {
        let roll = match whom {
            Whom::Job(job) => Some(Roll::of(job)),
            Whom::DescendantsOf(_) => None,
        };
        Self {
            whom,
            settings,
            roll,
            followed: Vec::new(),
            searched: None,
            counted: None,
            looks: VecDeque::new(),
        }
    }

    fn look(&mut self, wants: Wants) -> Seen {
        let now = clock::now();
        // A job that is just being launched is new every moment.
        let searches = match self.searched {
            Some(at) if !self.followed.is_empty() => now.since(at) >= SEARCH,
            _ => true,
        };
        if searches {
            self.search();
            self.searched = Some(now);
        }
        let nothing = || Seen {
            shot: Arc::new(Shot { taken_ns: clock::real_ns(), ..Shot::default() }),
            ..Seen::default()
        };
        let Some(job) = self.roll.as_ref().map(Roll::job) else { return nothing() };
        let (notes, renamed) = self.refresh(job);
        if renamed {
            // Its other ranks are found under the new name.
            self.search();
        }
        let Some(roll) = &self.roll else { return nothing() };
        let job = roll.job();
        let given: Vec<Given> = self.followed.iter().map(|one| one.found.given.clone()).collect();
        let mut snapshot = merge(&given, Some(job), roll.unreachable());
        snapshot.notes.extend(notes);
        snapshot.notes.extend(self.followed.iter().filter_map(|one| attach::unseen(&one.found)));
        snapshot.notes.iter_mut().for_each(|note| *note = words::line(note));
        let gone = |state| matches!(state, State::Dead | State::Exited);
        let ended = !snapshot.ranks.is_empty() && snapshot.ranks.iter().all(|rank| gone(rank.state));
        self.counted = match self.counted.take().filter(|_| wants.histograms) {
            Some((at, read)) if now.since(at) < COUNT => Some((at, read)),
            _ => wants.histograms.then(|| (now, self.histograms())),
        };
        let histograms = self.counted.as_ref().map(|(_, read)| read.clone());
        let events = if wants.events { self.events(job) } else { Vec::new() };
        let rates = self.rates(&snapshot, now);
        let shot = Shot { taken_ns: clock::real_ns(), snapshot, histograms, rates };
        Seen { shot: Arc::new(shot), ended, events }
    }

    /// Finds the processes of the job that are not followed yet.
    fn search(&mut self) {
        let findings = discover::everything(&self.settings);
        if let (None, Whom::DescendantsOf(ancestor)) = (&self.roll, self.whom) {
            self.roll = job_of_descendants(&findings, ancestor).map(Roll::of);
        }
        let Some(roll) = &mut self.roll else { return };
        let new = roll.newcomers(findings).into_iter().map(|(found, reader)| Followed {
            found,
            reader,
            cursor: Cursor::default(),
            telling: Telling::Unasked,
            is_over: false,
        });
        self.followed.extend(new);
    }

    /// Reads the followed ones anew; gives notes on those that should have told of themselves, and whether the job has a new name.
    fn refresh(&mut self, job: JobId) -> (Vec<String>, bool) {
        let mut living: Vec<&mut Followed> = self.followed.iter_mut().filter(|one| !one.is_over).collect();
        for one in &mut living {
            one.found.given.letter = one.found.process.and_then(process::stat).map(|stat| stat.state);
        }
        let now = clock::now();
        let mut askable: Vec<_> = living.iter_mut().filter(|one| one.is_askable(now)).collect();
        attach::at_once(&mut askable, |one| one.ask());
        let moment = moment(clock::now());
        let mut notes = Vec::new();
        let mut renamed = false;
        for one in living {
            let before = one.found.given.process.comms.clone();
            notes.extend(one.read(moment));
            if one.found.renamed(job).is_some() {
                renamed = true;
            } else if !one.found.is_of(job) {
                // Who leaves a communicator in good order gives its row away; the last state is kept.
                one.found.given.process.comms = before;
            }
        }
        (notes, renamed)
    }

    fn histograms(&self) -> Arc<[Histogram]> {
        self.followed.iter().flat_map(|one| one.reader.histograms().unwrap_or_default()).collect()
    }

    /// How fast everybody is, over about a second: over less, figures jump.
    fn rates(&mut self, job: &Snapshot, now: Ns) -> Rates {
        let counted = Counted::of(job);
        while self.looks.get(1).is_some_and(|(next, _)| now.since(*next) >= RATED) {
            self.looks.pop_front();
        }
        let mut rates = Rates::new();
        if let Some((then, before)) = self.looks.front() {
            for rank in job.ranks.iter().map(|rank| rank.rank) {
                let comms = counted.by_comm(before, now.since(*then), rank).unwrap_or_default();
                rates.extend(comms.into_iter().map(|(comm, rate)| ((rank, comm), rate)));
            }
        }
        self.looks.push_back((now, counted));
        rates
    }

    /// What happened since the last time, in order.
    fn events(&mut self, job: JobId) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.followed.iter_mut().flat_map(|one| one.events(job)).collect();
        entries.sort_by_key(|entry| entry.real_ns);
        entries
    }
}

impl Followed {
    /// Whether it could tell of itself: a stopped process tells nothing, and waiting for it would make the tellings of others old.
    fn is_able(&self) -> bool {
        let given = &self.found.given;
        given.state() == State::Running && !given.process.control.is_empty()
    }

    fn is_askable(&self, now: Ns) -> bool {
        self.is_able()
            && match &self.telling {
                Telling::Unasked => true,
                Telling::Does(_) => false,
                Telling::Refused(at, _) => now.since(*at) >= SEARCH,
            }
    }

    fn ask(&mut self) {
        let subscribed = door::control(&self.found).and_then(|client| client.subscribe(LOOK));
        let was = &self.found.given.process;
        self.telling = match subscribed {
            Ok(telling)
                if (telling.process().pid, telling.process().made_real_ns) == (was.pid, was.made_real_ns) =>
            {
                Telling::Does(Box::new(telling))
            }
            Ok(_) => {
                let what = format!("{} is answered by another process", was.control);
                Telling::Refused(clock::now(), Error::new(ErrorKind::Unavailable, what))
            }
            Err(why) => Telling::Refused(clock::now(), why),
        };
    }

    /// Reads it anew; a note if it should have told of itself and did not.
    fn read(&mut self, moment: Ns) -> Option<String> {
        let told = if self.is_able() { self.hear(moment) } else { None };
        if let Some(Ok(process)) = told {
            // It told of about this moment.
            return self
                .found
                .answers(process, real_ns_at(moment).saturating_sub(LOOK.as_nanos() as u64))
                .err();
        }
        self.found.reread(&self.reader);
        let given = &self.found.given;
        if !given.process.alive {
            // Whoever died while it was listened to is told of by its state.
            self.is_over = true;
            return None;
        }
        let why = told?.err()?;
        Some(format!("pid {} on {} was read from its mapping: {why}", given.process.pid, given.process.host))
    }

    /// What it tells of this moment.
    fn hear(&mut self, moment: Ns) -> Option<Result<ProcessSnapshot>> {
        let telling = match &mut self.telling {
            Telling::Unasked => return None,
            Telling::Does(telling) => telling,
            Telling::Refused(_, why) => return Some(Err(why.clone())),
        };
        let real_ns = real_ns_at(moment);
        let end = moment.after(PATIENCE);
        while telling.process().to_real_ns < real_ns {
            // One that tells of the past without end tells nothing either.
            let heard = match telling.next(end.since(clock::now())) {
                Ok(_) if clock::now() > end => Err(Error::new(ErrorKind::Timeout, "")),
                heard => heard.map(|_| ()),
            };
            if let Err(why) = heard {
                if why.kind == ErrorKind::Timeout {
                    let what = format!("the process told nothing within {} ms", PATIENCE.as_millis());
                    return Some(Err(Error::new(ErrorKind::Timeout, what)));
                }
                self.telling = Telling::Refused(clock::now(), why.clone());
                return Some(Err(why));
            }
        }
        Some(Ok(telling.process().clone()))
    }

    fn events(&mut self, job: JobId) -> Vec<Entry> {
        let (Ok((scale, anchor)), Ok(rings)) = (self.reader.clock(), self.reader.events(&mut self.cursor))
        else {
            return Vec::new();
        };
        let process = &self.found.given.process;
        let mut entries = Vec::new();
        for ring in rings {
            let owner = |(id, rank): (CommId, Rank)| {
                process.comms.iter().find(move |comm| (comm.id, comm.rank, comm.job) == (id, rank, job))
            };
            let comm = ring.owner.and_then(owner);
            // What the service thread writes is about the process.
            let of_process = || process.comms.iter().find(|comm| comm.job == job);
            let rank = comm.or_else(of_process).map(|comm| comm.world.0);
            let name = comm.map(|comm| super::scene::name(&comm.name, comm.id)).unwrap_or_default();
            let entry = |real_ns, text| {
                let (number, comm) = (0, name.clone());
                Entry { number, real_ns, rank, origin: Origin::Event, comm, text }
            };
            let told = ring.reading.events.iter().filter_map(|recorded| {
                let real_ns = anchor.real_ns_at(scale.mono(recorded.raw));
                Some(entry(real_ns, events::text(&recorded.event, &scale)?))
            });
            let told: Vec<Entry> = told.collect();
            if ring.reading.lost > 0 {
                let at = told.first().map_or(anchor.real_ns, |first| first.real_ns);
                entries.push(entry(at, format!("{} events were overwritten before this", ring.reading.lost)));
            }
            entries.extend(told);
        }
        entries
    }
}

/// The job of those processes whose ancestor this is.
fn job_of_descendants(findings: &Findings, ancestor: u32) -> Option<JobId> {
    let descends = |one: &&Found| {
        let mut pid = one.process;
        // A chain of processes is short; a loop would be a race of the kernel's.
        for _ in 0..64 {
            match pid {
                Some(found) if found == ancestor => return true,
                Some(found) => {
                    pid = process::stat(found).map(|stat| stat.parent).filter(|parent| *parent > 1)
                }
                None => return false,
            }
        }
        false
    };
    let given: Vec<Given> = findings.found.iter().filter(descends).map(|one| one.given.clone()).collect();
    jobs(&given).first().copied()
}
