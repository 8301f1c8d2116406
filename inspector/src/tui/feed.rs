//! Where snapshots come from: a thread that looks at the job several times a second. It asks the processes, and keeps their
//! recorders open, so that it can still read what they left when they are gone.

use std::sync::Arc;
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::config::Settings;
use ccl::recorder::reader::{Cursor, Histogram, Reader};
use ccl::snapshot::{CommSnapshot, Given, ProcessSnapshot, Source, State, Unreachable, jobs, merge};
use ccl::types::{CommId, JobId, Rank};
use tokio::sync::{mpsc, watch};

use super::app::Seen;
use super::events;
use super::history::Shot;
use super::log::{Entry, Origin};
use crate::discover::{self, Findings, Found};
use crate::{attach, process};

/// Between two looks at the processes that are known.
const LOOK: Duration = Duration::from_millis(250);
/// Between two searches for more of them, which go through all processes of the machine.
const SEARCH: Duration = Duration::from_secs(2);
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
                let begin = clock::now();
                let wants = *wanted.borrow();
                if sender.blocking_send(follower.look(wants)).is_err() {
                    return;
                }
                clock::sleep(LOOK.saturating_sub(clock::now().since(begin)));
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

/// A process that is followed.
struct Followed {
    found: Found,
    reader: Reader,
    cursor: Cursor,
    /// It is no more, and was read after its end: nothing will change.
    is_over: bool,
}

/// Looks at one job.
struct Follower {
    whom: Whom,
    settings: Settings,
    job: Option<JobId>,
    followed: Vec<Followed>,
    unreachable: Vec<Unreachable>,
    searched: Option<Ns>,
    counted: Option<Ns>,
}

impl Follower {
    fn new(whom: Whom, settings: Settings) -> Self {
        let job = match whom {
            Whom::Job(job) => Some(job),
            Whom::DescendantsOf(_) => None,
        };
        let (followed, unreachable) = (Vec::new(), Vec::new());
        Self { whom, settings, job, followed, unreachable, searched: None, counted: None }
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
        let Some(job) = self.job else {
            return Seen { shot: shot(ccl::snapshot::Snapshot::default()), ..Seen::default() };
        };
        let notes = self.refresh(job);
        let job = self.job.unwrap_or(job);
        let given: Vec<Given> = self.followed.iter().map(|one| one.found.given.clone()).collect();
        let mut snapshot = merge(&given, Some(job), &self.unreachable);
        snapshot.notes.extend(notes);
        snapshot.notes.extend(self.followed.iter().filter_map(|one| attach::unseen(&one.found)));
        let gone = |state| matches!(state, State::Dead | State::Exited);
        let ended = !snapshot.ranks.is_empty() && snapshot.ranks.iter().all(|rank| gone(rank.state));
        let counts = wants.histograms && self.counted.is_none_or(|at| now.since(at) >= COUNT);
        let histograms = counts.then(|| self.histograms());
        if counts {
            self.counted = Some(now);
        }
        let events = if wants.events { self.events(job) } else { Vec::new() };
        Seen { shot: shot(snapshot), ended, histograms, events }
    }

    /// Finds the processes of the job that are not followed yet.
    fn search(&mut self) {
        let mut findings = discover::everything(&self.settings);
        if let (None, Whom::DescendantsOf(ancestor)) = (self.job, self.whom) {
            self.job = job_of_descendants(&findings, ancestor);
        }
        let Some(job) = self.job else { return };
        self.unreachable = discover::follow_peers(&mut findings, job);
        for found in findings.found.into_iter().filter(|one| one.is_of(job)) {
            let is_it = |one: &Followed| same(&one.found.given.process, &found.given.process);
            if self.followed.iter().any(is_it) {
                continue;
            }
            // It may have ended since it was found, and be found no more.
            if let Ok(reader) = Reader::open(&found.file) {
                self.followed.push(Followed { found, reader, cursor: Cursor::default(), is_over: false });
            }
        }
        // Who ended in good order has left no file, but was read.
        let followed = &self.followed;
        let read = |lost: &Unreachable| {
            followed.iter().any(|one| {
                let process = &one.found.given.process;
                (process.pid, process.host.as_str()) == (lost.pid, lost.host.as_str())
            })
        };
        self.unreachable.retain(|lost| !read(lost));
    }

    /// Reads the followed ones anew; gives notes on those that should have answered.
    fn refresh(&mut self, job: JobId) -> Vec<String> {
        let living = || self.followed.iter().filter(|one| !one.is_over);
        let known = |one: &Followed| (one.found.given.process.job, one.found.given.process.comms.clone());
        let before: Vec<(JobId, Vec<CommSnapshot>)> = living().map(known).collect();
        let mut living: Vec<&mut Followed> = self.followed.iter_mut().filter(|one| !one.is_over).collect();
        for one in &mut living {
            let given = &mut one.found.given;
            given.source = Source::Mapping;
            given.letter = one.found.process.and_then(process::stat).map(|stat| stat.state);
        }
        let notes = attach::ask_all(living.iter_mut().map(|one| &mut one.found));
        let mut said = Vec::new();
        let mut renamed = None;
        for (one, (job_before, before)) in living.into_iter().zip(before) {
            let given = &mut one.found.given;
            if given.source != Source::Socket
                && let Ok(process) = one.reader.snapshot()
            {
                let path = std::mem::take(&mut given.process.path);
                given.process = ProcessSnapshot { path, ..process };
            }
            if !given.process.alive {
                (given.source, given.letter, one.is_over) = (Source::File, None, true);
            }
            if job_before == job && given.process.job != job {
                // A job has its name once the root has spoken; until then each rank shows one of its own making.
                renamed = Some(given.process.job);
            } else if !given.process.comms.iter().any(|comm| comm.job == job) {
                // Who leaves a communicator in good order gives its row away; the last state is kept.
                given.process.comms = before;
            }
            // Whoever died while it was asked is told of by its state.
            let pid = format!("pid {} ", given.process.pid);
            let is_note = |note: &&String| given.process.alive && note.starts_with(&pid);
            said.extend(notes.iter().filter(is_note).cloned());
        }
        if renamed.is_some() {
            // Its other ranks are searched for under the new name.
            (self.job, self.searched) = (renamed, None);
        }
        said
    }

    fn histograms(&self) -> Vec<Histogram> {
        self.followed.iter().flat_map(|one| one.reader.histograms().unwrap_or_default()).collect()
    }

    /// What happened since the last time, in order.
    fn events(&mut self, job: JobId) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.followed.iter_mut().flat_map(|one| one.events(job)).collect();
        entries.sort_by_key(|entry| entry.real_ns);
        entries
    }
}

impl Followed {
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
                let before = anchor.mono.0.saturating_sub(scale.mono(recorded.raw).0);
                let after = scale.mono(recorded.raw).0.saturating_sub(anchor.mono.0);
                let real_ns = anchor.real_ns.saturating_sub(before).saturating_add(after);
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

fn shot(snapshot: ccl::snapshot::Snapshot) -> Arc<Shot> {
    Arc::new(Shot { taken_ns: clock::real_ns(), snapshot })
}

/// Whether two readings are of one recorder: one process may be named twice, one pid may be used twice.
fn same(one: &ProcessSnapshot, other: &ProcessSnapshot) -> bool {
    let name = |process: &ProcessSnapshot| (process.pid, process.pid_namespace, process.made_real_ns);
    name(one) == name(other)
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
