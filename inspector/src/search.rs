//! Looking for the processes of a job beside reading them: a search takes longer than a ring takes to come around.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ccl::config::Settings;
use ccl::recorder::reader::Reader;
use ccl::types::JobId;

use crate::attach::{self, Lease};
use crate::discover::{self, Findings, Found};
use crate::roll::Roll;

/// How often members of the job are looked for that were not met yet.
const SEARCH: Duration = Duration::from_secs(1);

/// A process that was met, and the job by the name that it had then.
pub(crate) type Met = (Found, Reader, JobId);

/// Who belongs to a job, and the level that is wanted of them.
#[derive(Debug)]
pub(crate) struct Search {
    settings: Settings,
    roll: Roll,
    level: Option<u8>,
    leases: Vec<Lease>,
}

impl Search {
    /// For the processes of a job, which are to record at `level` for as long as this lives; `None`: as they do.
    pub(crate) const fn of(job: JobId, settings: Settings, level: Option<u8>) -> Self {
        Self { settings, roll: Roll::of(job), level, leases: Vec::new() }
    }

    /// Those among the findings who were not met before. Who has not the level yet is asked for it.
    pub(crate) fn meet(&mut self, findings: Findings) -> Vec<Met> {
        let new = self.roll.newcomers(findings);
        if let Some(level) = self.level {
            self.leases.extend(new.iter().map(|(found, _)| Lease::of(found.clone(), level)));
        }
        attach::at_once(&mut self.leases, Lease::renew);
        let job = self.roll.job();
        new.into_iter().map(|(found, reader)| (found, reader, job)).collect()
    }

    /// Goes on in a thread of its own.
    pub(crate) fn beside(self) -> Beside {
        let ((met, arriving), (stop, stopped)) = (channel(), channel());
        let thread = std::thread::spawn(move || self.run(&met, &stopped));
        Beside { arriving, stop: Some(stop), thread }
    }

    fn run(mut self, met: &Sender<Met>, stopped: &Receiver<()>) -> Self {
        while stopped.recv_timeout(SEARCH) == Err(RecvTimeoutError::Timeout) {
            if !self.roll.is_open() {
                attach::at_once(&mut self.leases, Lease::renew);
                continue;
            }
            for one in self.meet(discover::everything(&self.settings)) {
                // Nobody takes it: then the reading is over.
                let _ = met.send(one);
            }
        }
        // The job may have got its name since.
        if self.roll.is_open() {
            for one in self.meet(discover::everything(&self.settings)) {
                let _ = met.send(one);
            }
        }
        self
    }

    /// The job, by its present name.
    pub(crate) const fn job(&self) -> JobId {
        self.roll.job()
    }

    /// Who of the job was not met, a sentence each.
    pub(crate) fn missing(&self) -> Vec<String> {
        self.roll.missing()
    }

    /// Who goes on at a level of its own, a sentence each.
    pub(crate) fn refused(&self) -> impl Iterator<Item = String> + '_ {
        self.leases.iter().filter_map(Lease::refused)
    }
}

/// A search that goes on.
#[derive(Debug)]
pub(crate) struct Beside {
    arriving: Receiver<Met>,
    stop: Option<Sender<()>>,
    thread: JoinHandle<Search>,
}

impl Beside {
    /// Those that were met since the last time.
    pub(crate) fn newcomers(&self) -> Vec<Met> {
        self.arriving.try_iter().collect()
    }

    /// Asks it to end. What it is doing just now may take a moment, in which reading can go on.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.is_none() && self.thread.is_finished()
    }

    /// Waits for its end; and those that it met last.
    pub(crate) fn end(mut self) -> (Search, Vec<Met>) {
        self.stop();
        let search = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let last = self.arriving.try_iter().collect();
        (search, last)
    }
}
