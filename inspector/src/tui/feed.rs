//! The source of snapshots: a thread that reads the job several times a second.
//!
//! The processes report their state themselves, all at the same moments; processes that do not
//! answer are read from their mapping. Recorders stay open, so that their last content can be read
//! after the processes have ended.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::config::Settings;
use ccl::control::wire::Subscription;
use ccl::diagnose::{Counted, Given, Job, merge};
use ccl::error::{Error, ErrorKind, Result};
use ccl::recorder::reader::{Cursor, Histogram, Reader};
use ccl::snapshot::{CommSnapshot, LinkSnapshot, OpSnapshot, ProcessSnapshot, RankSnapshot, Snapshot, State};
use ccl::types::{CommId, JobId, Rank};
use tokio::sync::{mpsc, watch};

use super::app::Seen;
use super::events;
use super::history::{Rates, Shot};
use super::log::{Entry, Origin};
use crate::choose::job_of_descendants;
use crate::discover::{self, Found, door};
use crate::members::JobMembers;
use crate::{ask, look, words};

/// The time between two looks at the known processes while they move.
const LOOK: Duration = Duration::from_millis(250);
/// After this many looks that showed only greater ages, only one in so many is taken.
const STILL: u32 = 4;
/// How long after the moment of a look the reports may arrive.
const PATIENCE: Duration = Duration::from_millis(200);
/// The time between two searches for more processes.
///
/// A search goes through all processes of the machine and reads all recorders.
const SEARCH: Duration = Duration::from_secs(2);
/// The longest time between two searches: it doubles while they find no process.
const SEARCH_MAX: Duration = Duration::from_secs(16);
/// The same for a job of which not all ranks were met.
const SEARCH_OPEN_MAX: Duration = Duration::from_secs(4);
/// The least age of the look against which rates are computed; less in the first second.
const RATED: Duration = Duration::from_millis(950);
/// The time between two readings of the histograms.
const COUNT: Duration = Duration::from_secs(1);

/// Which job is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Whom {
    /// This job.
    Job(Job),
    /// The job of the descendants of this process, as soon as one has a recorder.
    DescendantsOf(u32),
}

/// What the screen needs besides snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Wants {
    /// The durations of operations.
    pub(crate) histograms: bool,
    /// Events.
    pub(crate) events: bool,
}

/// The receiving end. Dropping it ends the thread at its next look.
#[derive(Debug)]
pub(crate) struct Feed {
    seen: mpsc::Receiver<Seen>,
    wants: watch::Sender<Wants>,
}

impl Feed {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, if it cannot create a thread.
    pub(crate) fn start(whom: Whom, settings: Settings) -> std::io::Result<Self> {
        // If the screen is slower than this, looks wait for it.
        let (sender, seen) = mpsc::channel(1);
        let (wants, wanted) = watch::channel(Wants::default());
        let mut follower = Follower::new(whom, settings);
        std::thread::Builder::new().name("feed".into()).spawn(move || {
            loop {
                let wants = *wanted.borrow();
                if sender.blocking_send(follower.look(wants)).is_err() {
                    return;
                }
                let looks = if follower.still >= STILL { STILL } else { 1 };
                for _ in 0..looks {
                    let now = clock::now();
                    clock::sleep(moment(now).after(LOOK).since(now));
                    // A change of what the screen needs takes effect soon.
                    if sender.is_closed() || *wanted.borrow() != wants {
                        break;
                    }
                }
            }
        })?;
        Ok(Self { seen, wants })
    }

    /// The next look; `None` if there will be none.
    pub(crate) async fn next(&mut self) -> Option<Seen> {
        self.seen.recv().await
    }

    /// Sets what the screen needs from the next look on.
    pub(crate) fn want(&self, wants: Wants) {
        self.wants.send_if_modified(|now| std::mem::replace(now, wants) != wants);
    }
}

/// Whether the job is unchanged except for ages.
fn is_as_before(before: &Snapshot, now: &Snapshot) -> bool {
    let op = |op: &OpSnapshot| {
        let wait = op.wait.as_ref().map(|wait| (wait.waits, wait.peer, wait.channel));
        (op.state, op.seq, op.called, op.started, op.completed, wait)
    };
    let link = |link: &LinkSnapshot| {
        let LinkSnapshot { direction, channel, peer, posted, moved, done, waits, waits_for, set_up, .. } =
            *link;
        (direction, channel, peer, posted, moved, done, waits, waits_for, set_up)
    };
    let phase = |comm: &CommSnapshot| comm.phase.as_ref().map(|phase| phase.phase.clone());
    let comm = |before: &CommSnapshot, now: &CommSnapshot| {
        (before.id, before.rank, before.ended, op(&before.op), before.p2p.as_ref().map(op), phase(before))
            == (now.id, now.rank, now.ended, op(&now.op), now.p2p.as_ref().map(op), phase(now))
            && before.links.iter().map(link).eq(now.links.iter().map(link))
    };
    let rank = |(before, now): (&RankSnapshot, &RankSnapshot)| {
        (before.rank, before.pid, before.state, before.source, before.failed, before.comms.len())
            == (now.rank, now.pid, now.state, now.source, now.failed, now.comms.len())
            && before.comms.iter().zip(&now.comms).all(|(before, now)| comm(before, now))
    };
    before.job == now.job
        && (before.ranks.len(), before.missing.len()) == (now.ranks.len(), now.missing.len())
        && before.ranks.iter().zip(&now.ranks).all(rank)
}

/// A moment of the past, in nanoseconds since 1970.
fn real_ns_at(moment: Ns) -> u64 {
    clock::real_ns().saturating_sub(clock::now().since(moment).as_nanos() as u64)
}

/// The last moment at which processes reported their state: a multiple of [`LOOK`].
const fn moment(now: Ns) -> Ns {
    let look = LOOK.as_nanos() as u64;
    Ns(now.0 / look * look)
}

/// A process that is followed.
struct Followed {
    found: Found,
    reader: Reader,
    cursor: Cursor,
    telling: SubscriptionState,
    /// It has ended and was read after its end: nothing will change.
    is_over: bool,
}

/// Whether a process reports its state itself.
enum SubscriptionState {
    /// It was not asked to: it is stopped, or has no control socket.
    Unasked,
    /// It does.
    Does(Box<Subscription>),
    /// It was asked at this time and did not answer.
    Refused(Ns, Error),
}

/// Reads one job.
struct Follower {
    whom: Whom,
    settings: Settings,
    /// The members of the job, once the job is known.
    members: Option<JobMembers>,
    followed: Vec<Followed>,
    /// The time of the last search, and the pause until the next.
    searched: Option<(Ns, Duration)>,
    /// The ids of communicators that were not known to belong to the job at the last search.
    unknown: BTreeSet<JobId>,
    /// The number of looks in a row that showed the job unchanged.
    still: u32,
    last: Arc<Shot>,
    /// The histograms and the time when they were read; `None` if the screen does not need them.
    counted: Option<(Ns, Arc<[Histogram]>)>,
    /// The counters of the looks of about the last second, oldest first.
    looks: VecDeque<(Ns, Counted)>,
}

impl Follower {
    fn new(whom: Whom, settings: Settings) -> Self {
        let members = match &whom {
            Whom::Job(job) => Some(JobMembers::of(job.clone())),
            Whom::DescendantsOf(_) => None,
        };
        Self {
            whom,
            settings,
            members,
            followed: Vec::new(),
            searched: None,
            unknown: BTreeSet::new(),
            still: 0,
            last: Arc::default(),
            counted: None,
            looks: VecDeque::new(),
        }
    }

    fn look(&mut self, wants: Wants) -> Seen {
        let now = clock::now();
        // A job that is just being launched changes all the time.
        let searches = match self.searched {
            Some((at, pause)) if !self.followed.is_empty() => now.since(at) >= pause,
            _ => true,
        };
        if searches {
            let known = self.followed.len();
            self.search();
            let most = if self.members.as_ref().is_none_or(JobMembers::is_open) {
                SEARCH_OPEN_MAX
            } else {
                SEARCH_MAX
            };
            let pause = match self.searched {
                Some((_, pause)) if self.followed.len() == known => (2 * pause).min(most),
                _ => SEARCH,
            };
            self.searched = Some((now, pause));
        }
        let nothing = || Seen {
            shot: Arc::new(Shot { taken_ns: clock::real_ns(), ..Shot::default() }),
            ..Seen::default()
        };
        let Some(job) = self.members.as_ref().map(|members| members.job().clone()) else { return nothing() };
        let (notes, unknown) = self.refresh(&job);
        if !unknown.is_empty() && self.unknown != unknown {
            // The other ranks of its new communicators are found under the new names.
            self.unknown = unknown;
            self.search();
            self.searched = Some((now, SEARCH));
        }
        let Some(members) = &self.members else { return nothing() };
        let given: Vec<Given> = self.followed.iter().map(|one| one.found.given.clone()).collect();
        let mut snapshot = merge(&given, members.job(), members.unreachable());
        snapshot.notes.extend(notes);
        snapshot.notes.extend(self.followed.iter().filter_map(|one| ask::beyond_its_state(&one.found)));
        snapshot.notes.iter_mut().for_each(|note| *note = words::line(note));
        let stall_ns = look::stall_ns_of(&self.settings, self.followed.iter().map(|one| &one.found));
        snapshot.judge(Some(&self.last.snapshot), stall_ns);
        let ended = snapshot.is_over();
        self.counted = match self.counted.take().filter(|_| wants.histograms) {
            Some((at, read)) if now.since(at) < COUNT => Some((at, read)),
            _ => wants.histograms.then(|| (now, self.histograms())),
        };
        let histograms = self.counted.as_ref().map(|(_, read)| read.clone());
        self.still =
            if is_as_before(&self.last.snapshot, &snapshot) { self.still.saturating_add(1) } else { 0 };
        let events = if wants.events { self.events(&snapshot) } else { Vec::new() };
        let rates = self.rates(&snapshot, now);
        self.last = Arc::new(Shot { taken_ns: clock::real_ns(), snapshot, histograms, rates });
        Seen { shot: self.last.clone(), ended, events }
    }

    /// Finds the processes of the job that are not followed yet.
    fn search(&mut self) {
        let findings = discover::everything(&self.settings);
        if let (None, Whom::DescendantsOf(ancestor)) = (&self.members, &self.whom) {
            self.members = job_of_descendants(&findings, *ancestor).map(JobMembers::of);
        }
        let Some(members) = &mut self.members else { return };
        let new = members.newcomers(findings).into_iter().map(|(found, reader)| Followed {
            found,
            reader,
            cursor: Cursor::default(),
            telling: SubscriptionState::Unasked,
            is_over: false,
        });
        self.followed.extend(new);
    }

    /// Reads the followed processes; gives notes, and the ids of their communicators that are not
    /// known to belong to the job.
    ///
    /// A note concerns a process that should have reported its state and did not.
    fn refresh(&mut self, job: &Job) -> (Vec<String>, BTreeSet<JobId>) {
        // A process whose ranks left in good order may end at any time.
        let left =
            self.followed.iter_mut().filter(|one| one.is_over && one.found.given.state() == State::Left);
        left.for_each(|one| one.found.look());
        let mut living: Vec<&mut Followed> = self.followed.iter_mut().filter(|one| !one.is_over).collect();
        for one in &mut living {
            one.found.look_at(&one.reader);
        }
        let now = clock::now();
        let mut askable: Vec<_> = living.iter_mut().filter(|one| one.is_askable(now)).collect();
        ask::at_once(&mut askable, |one| one.ask());
        let moment = moment(clock::now());
        let mut notes = Vec::new();
        let mut unknown = BTreeSet::new();
        for one in living {
            let before = one.found.given.process.comms.clone();
            notes.extend(one.read(moment));
            let others: Vec<JobId> = one.found.beyond(job).collect();
            if !others.is_empty() {
                unknown.extend(others);
            } else if !one.found.is_of(job) {
                // A rank that leaves a communicator in good order frees its row; the last state is
                // kept.
                one.found.given.process.comms = before;
            }
        }
        (notes, unknown)
    }

    fn histograms(&self) -> Arc<[Histogram]> {
        self.followed.iter().flat_map(|one| one.reader.histograms().unwrap_or_default()).collect()
    }

    /// The rates of all ranks over about a second: over a shorter time, the figures jump.
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

    /// The events since the last call, in order of time.
    fn events(&mut self, job: &Snapshot) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.followed.iter_mut().flat_map(|one| one.events(job)).collect();
        entries.sort_by_key(|entry| entry.real_ns);
        entries
    }
}

impl Followed {
    /// Whether it can report its state.
    ///
    /// A stopped process reports nothing, and waiting for it would make the reports of others old.
    fn is_able(&self) -> bool {
        let given = &self.found.given;
        given.state() == State::Running && !given.process.control.is_empty()
    }

    fn is_askable(&self, now: Ns) -> bool {
        self.is_able()
            && match &self.telling {
                SubscriptionState::Unasked => true,
                SubscriptionState::Does(_) => false,
                SubscriptionState::Refused(at, _) => now.since(*at) >= SEARCH,
            }
    }

    fn ask(&mut self) {
        let subscribed = door::control(&self.found).and_then(|client| client.subscribe(LOOK));
        let was = &self.found.given.process;
        self.telling = match subscribed {
            Ok(telling)
                if (telling.process().pid, telling.process().made_real_ns) == (was.pid, was.made_real_ns) =>
            {
                SubscriptionState::Does(Box::new(telling))
            }
            Ok(_) => {
                let what = format!("{} is answered by another process", was.control);
                SubscriptionState::Refused(clock::now(), Error::new(ErrorKind::Unavailable, what))
            }
            Err(why) => SubscriptionState::Refused(clock::now(), why),
        };
    }

    /// Reads it; gives a note if it should have reported its state and did not.
    fn read(&mut self, moment: Ns) -> Option<String> {
        let told = if self.is_able() { self.hear(moment) } else { None };
        if let Some(Ok(process)) = told {
            // Its report is at most one interval older than this moment.
            let about = Ns(moment.0.saturating_sub(LOOK.as_nanos() as u64));
            return self.found.answers(process, about).err();
        }
        self.found.reread(&self.reader);
        let given = &self.found.given;
        if !given.process.alive {
            // The state shows that the process died while it was subscribed to; no note is needed.
            self.is_over = true;
            return None;
        }
        let why = told?.err()?;
        Some(format!("pid {} on {} was read from its mapping: {why}", given.process.pid, given.process.host))
    }

    /// Its own report of this moment.
    fn hear(&mut self, moment: Ns) -> Option<Result<ProcessSnapshot>> {
        let telling = match &mut self.telling {
            SubscriptionState::Unasked => return None,
            SubscriptionState::Does(telling) => telling,
            SubscriptionState::Refused(_, why) => return Some(Err(why.clone())),
        };
        // An earlier version reports only the time of day.
        let is_past = |process: &ProcessSnapshot| match process.to_mono_ns {
            0 => process.to_real_ns < real_ns_at(moment),
            to => to < moment.0,
        };
        let end = moment.after(PATIENCE);
        while is_past(telling.process()) {
            // A process that keeps sending old reports counts as one that does not answer.
            let heard = match telling.next(end.since(clock::now())) {
                Ok(_) if clock::now() > end => Err(Error::new(ErrorKind::Timeout, "")),
                heard => heard.map(|_| ()),
            };
            if let Err(why) = heard {
                if why.kind == ErrorKind::Timeout {
                    let what = format!("the process told nothing within {} ms", PATIENCE.as_millis());
                    return Some(Err(Error::new(ErrorKind::Timeout, what)));
                }
                self.telling = SubscriptionState::Refused(clock::now(), why.clone());
                return Some(Err(why));
            }
        }
        Some(Ok(telling.process().clone()))
    }

    fn events(&mut self, job: &Snapshot) -> Vec<Entry> {
        let (Ok((scale, anchor)), Ok(readings)) = (self.reader.clock(), self.reader.events(&mut self.cursor))
        else {
            return Vec::new();
        };
        let process = &self.found.given.process;
        let mut entries = Vec::new();
        for reading in readings {
            let rows = || {
                let of_process =
                    job.ranks.iter().filter(|rank| rank.pid == process.pid && rank.recorder == process.path);
                of_process.flat_map(|rank| rank.comms.iter().map(move |comm| (rank.rank.0, comm)))
            };
            let owner =
                |(id, rank): (CommId, Rank)| rows().find(|(_, comm)| (comm.id, comm.rank) == (id, rank));
            let comm = reading.owner.and_then(owner);
            // Events without an owner concern the whole process.
            let rank = comm.or_else(|| rows().next()).map(|(rank, _)| rank);
            let name = comm.map(|(_, comm)| super::scene::name(&comm.name, comm.id)).unwrap_or_default();
            let entry = |real_ns, text| {
                let (number, comm) = (0, name.clone());
                Entry { number, real_ns, rank, origin: Origin::Event, comm, text }
            };
            let told = reading.events.iter().filter_map(|recorded| {
                let real_ns = anchor.real_ns_at(scale.mono(recorded.raw));
                Some(entry(real_ns, events::text(&recorded.event, &scale)?))
            });
            let told: Vec<Entry> = told.collect();
            if reading.lost > 0 {
                let at = told.first().map_or(anchor.real_ns, |first| first.real_ns);
                entries.push(entry(at, format!("{} events were overwritten before this", reading.lost)));
            }
            entries.extend(told);
        }
        entries
    }
}
