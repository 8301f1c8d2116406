//! Searching for the processes of a job in a second thread while they are read: a search takes
//! longer than a ring takes to be overwritten.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ccl::config::Settings;
use ccl::diagnose::Job;
use ccl::recorder::reader::Reader;

use crate::ask::{self, Lease};
use crate::discover::{self, Findings, Found};
use crate::members::JobMembers;

/// How often to look for members of the job that were not met yet.
const SEARCH: Duration = Duration::from_secs(1);

/// A process that was met.
pub(crate) type Met = (Found, Reader);

/// The members of a job, and the level at which they are to record.
#[derive(Debug)]
pub(crate) struct Search {
    settings: Settings,
    members: JobMembers,
    level: Option<u8>,
    leases: Vec<Lease>,
}

impl Search {
    /// Searches for the processes of a job.
    ///
    /// They are to record at `level` for as long as this value lives; with `None` they keep their
    /// level.
    pub(crate) fn of(job: Job, settings: Settings, level: Option<u8>) -> Self {
        Self { settings, members: JobMembers::of(job), level, leases: Vec::new() }
    }

    /// The processes among the findings that were not met before; each is asked for the level.
    pub(crate) fn meet(&mut self, findings: Findings) -> Vec<Met> {
        let new = self.members.newcomers(findings);
        if let Some(level) = self.level {
            self.leases.extend(new.iter().map(|(found, _)| Lease::of(found.clone(), level)));
        }
        ask::at_once(&mut self.leases, Lease::renew);
        new
    }

    /// Goes on in its own thread.
    pub(crate) fn beside(self) -> Beside {
        let ((met, arriving), (stop, stopped)) = (channel(), channel());
        let thread = std::thread::spawn(move || self.run(&met, &stopped));
        Beside { arriving, stop: Some(stop), thread }
    }

    fn run(mut self, met: &Sender<Met>, stopped: &Receiver<()>) -> Self {
        while stopped.recv_timeout(SEARCH) == Err(RecvTimeoutError::Timeout) {
            if !self.members.is_open() {
                ask::at_once(&mut self.leases, Lease::renew);
                continue;
            }
            for one in self.meet(discover::everything(&self.settings)) {
                // If the receiver is gone, the reading is over.
                let _ = met.send(one);
            }
        }
        // The job may have got its name since the last look.
        if self.members.is_open() {
            for one in self.meet(discover::everything(&self.settings)) {
                let _ = met.send(one);
            }
        }
        self
    }

    /// The job, as it is known now.
    pub(crate) const fn job(&self) -> &Job {
        self.members.job()
    }

    /// The members of the job that were not met, a sentence each.
    pub(crate) fn missing(&self) -> Vec<String> {
        self.members.missing()
    }

    /// The processes that keep a level of their own, a sentence each.
    pub(crate) fn refused(&self) -> impl Iterator<Item = String> + '_ {
        self.leases.iter().filter_map(Lease::refused)
    }
}

/// A search that runs in its own thread.
#[derive(Debug)]
pub(crate) struct Beside {
    arriving: Receiver<Met>,
    stop: Option<Sender<()>>,
    thread: JoinHandle<Search>,
}

impl Beside {
    /// The processes that were met since the last call.
    pub(crate) fn newcomers(&self) -> Vec<Met> {
        self.arriving.try_iter().collect()
    }

    /// Asks the search to end.
    ///
    /// The look under way may take a moment, in which the caller can go on reading.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.is_none() && self.thread.is_finished()
    }

    /// Waits for the end; gives the search and the processes that it met last.
    pub(crate) fn end(mut self) -> (Search, Vec<Met>) {
        self.stop();
        let search = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let last = self.arriving.try_iter().collect();
        (search, last)
    }
}
