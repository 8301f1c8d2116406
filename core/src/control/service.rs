//! The service thread: one per process, started by the first task, ended with the last.
//!
//! A [`Task`] is a state machine over descriptors that must be served while the application is elsewhere: accepting
//! connections, answering inspectors, noticing death. Tasks never block; the loop polls all their descriptors and turns the
//! tasks that have something to do.

use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::clock::{self, Ns};
use crate::sys::fds::Doorbell;

/// What a task waits for on one descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interest {
    /// The descriptor. The task keeps it open at least until its next `turn` has returned.
    pub fd: RawFd,
    /// Turn me when it can be read (or is at its end).
    pub read: bool,
    /// Turn me when it can be written.
    pub write: bool,
}

impl Interest {
    /// As `poll` takes it. Whoever is interested holds the descriptor open meanwhile.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.read);
        flags.set(PollFlags::OUT, self.write);
        PollFd::from_borrowed_fd(crate::sys::fds::borrow(self.fd), flags)
    }
}

/// What a turn decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Call me again when a descriptor is ready, or at this moment.
    Again(Option<Ns>),
    /// I have ended: drop me.
    Done,
}

/// Work of the service thread.
pub trait Task: Send + 'static {
    /// The descriptors to wait for, asked before each poll.
    fn interests(&self, out: &mut Vec<Interest>);
    /// Does what can be done without blocking. Called at first, when a descriptor is ready, when the moment asked for
    /// has come, and after [`Handle::nudge`].
    fn turn(&mut self, now: Ns) -> Turn;
}

struct Entry {
    id: u64,
    /// `None` while the thread turns it.
    task: Option<Box<dyn Task>>,
    wake: Option<Ns>,
    nudged: bool,
    leaving: bool,
}

#[derive(Default)]
struct Tasks {
    entries: Vec<Entry>,
    next_id: u64,
    running: bool,
}

/// The thread's shared part.
pub struct Service {
    tasks: Mutex<Tasks>,
    left: Condvar,
    bell: Doorbell,
    /// The process it belongs to: a forked child has a copy without the thread, and perhaps a lock that nobody will free.
    generation: u32,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Service(generation {})", self.generation)
    }
}

/// A task in the service thread. Dropping it removes the task, and returns when the task has been dropped.
#[derive(Debug)]
pub struct Handle {
    id: u64,
    service: Arc<Service>,
}

impl Service {
    /// The service of this process.
    ///
    /// # Errors
    /// `System` if its doorbell could not be made, `Unavailable` in a forked child of a process that has one.
    pub fn get() -> crate::Result<Arc<Self>> {
        static SERVICE: OnceLock<Arc<Service>> = OnceLock::new();
        if let Some(service) = SERVICE.get() {
            crate::sys::not_forked()?;
            return Ok(Arc::clone(service));
        }
        let made = Arc::new(Self {
            tasks: Mutex::default(),
            left: Condvar::new(),
            bell: Doorbell::new()?,
            generation: crate::sys::generation(),
        });
        Ok(Arc::clone(SERVICE.get_or_init(|| made)))
    }

    /// Hands a task over; starts the thread if it does not run.
    ///
    /// # Errors
    /// `System` if the thread could not be started.
    pub fn add(self: &Arc<Self>, task: impl Task) -> crate::Result<Handle> {
        let mut tasks = self.lock();
        tasks.next_id += 1;
        let id = tasks.next_id;
        if !tasks.running {
            let service = Arc::clone(self);
            std::thread::Builder::new()
                .name("ccl-service".into())
                .spawn(move || service.run())
                .map_err(|e| crate::Error::system("starting ccl-service", e))?;
            tasks.running = true;
        }
        tasks.entries.push(Entry {
            id,
            task: Some(Box::new(task)),
            wake: None,
            nudged: true,
            leaving: false,
        });
        drop(tasks);
        self.bell.ring();
        Ok(Handle { id, service: Arc::clone(self) })
    }

    fn is_stale(&self) -> bool {
        self.generation != crate::sys::generation()
    }

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        // A panic in a task poisons nothing that matters: entries are consistent between statements.
        self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn run(self: Arc<Self>) {
        let mut interests: Vec<Interest> = Vec::new();
        let mut owners: Vec<(u64, usize)> = Vec::new();
        loop {
            interests.clear();
            owners.clear();
            let mut wake: Option<Ns> = None;
            {
                let mut tasks = self.lock();
                tasks.entries.retain(|entry| !entry.leaving);
                self.left.notify_all();
                if tasks.entries.is_empty() {
                    tasks.running = false;
                    return;
                }
                for entry in &tasks.entries {
                    if let Some(task) = &entry.task {
                        let from = interests.len();
                        task.interests(&mut interests);
                        owners.push((entry.id, interests.len() - from));
                    }
                    let due = if entry.nudged { Some(Ns(0)) } else { entry.wake };
                    wake = [wake, due].into_iter().flatten().min();
                }
            }
            let ready = self.wait(&interests, wake);
            let now = clock::now();
            let mut at = 0;
            for &(id, count) in &owners {
                let is_ready = ready[at..at + count].iter().any(|&r| r);
                at += count;
                self.turn(id, is_ready, now);
            }
        }
    }

    /// Polls until something is ready, the moment has come or the bell rang.
    fn wait(&self, interests: &[Interest], wake: Option<Ns>) -> Vec<bool> {
        let timeout = wake.map(|at| {
            let left = at.since(clock::now());
            rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let mut fds = Vec::with_capacity(interests.len() + 1);
        fds.push(PollFd::new(&self.bell, PollFlags::IN));
        for interest in interests {
            fds.push(interest.poll_fd());
        }
        // An interrupted or refused poll is a turn with nothing ready; a refusal must not become a hot loop.
        if poll(&mut fds, timeout.as_ref()).is_err_and(|e| e != rustix::io::Errno::INTR) {
            clock::sleep(Duration::from_millis(1));
        }
        self.bell.clear();
        fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect()
    }

    fn turn(&self, id: u64, ready: bool, now: Ns) {
        let mut tasks = self.lock();
        let Some(entry) = tasks.entries.iter_mut().find(|entry| entry.id == id) else { return };
        let due = entry.nudged || entry.wake.is_some_and(|at| at <= now);
        if entry.leaving || !(ready || due) {
            return;
        }
        entry.nudged = false;
        let Some(mut task) = entry.task.take() else { return };
        drop(tasks);
        let turn =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task.turn(now))).unwrap_or(Turn::Done);
        let mut tasks = self.lock();
        if let Some(entry) = tasks.entries.iter_mut().find(|entry| entry.id == id) {
            match turn {
                Turn::Again(wake) => {
                    entry.task = Some(task);
                    entry.wake = wake;
                    return;
                }
                Turn::Done => entry.leaving = true,
            }
        }
        drop(tasks);
        drop(task);
    }
}

impl Handle {
    /// Has the task turned soon.
    pub fn nudge(&self) {
        if self.service.is_stale() {
            return;
        }
        if let Some(entry) = self.service.lock().entries.iter_mut().find(|entry| entry.id == self.id) {
            entry.nudged = true;
        }
        self.service.bell.ring();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.service.is_stale() {
            return;
        }
        let on_thread = std::thread::current().name() == Some("ccl-service");
        let mut tasks = self.service.lock();
        if let Some(entry) = tasks.entries.iter_mut().find(|entry| entry.id == self.id) {
            entry.leaving = true;
        }
        self.service.bell.ring();
        // The thread itself drops a task that drops a handle: it cannot wait for itself.
        while !on_thread && tasks.running && tasks.entries.iter().any(|entry| entry.id == self.id) {
            tasks = self.service.left.wait(tasks).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    /// Never has anything to do.
    struct Idle;

    impl Task for Idle {
        fn interests(&self, _: &mut Vec<Interest>) {}
        fn turn(&mut self, _: Ns) -> Turn {
            Turn::Again(None)
        }
    }

    #[test]
    fn a_forked_child_is_refused_and_leaves_its_copies_alone() {
        let handle = Service::get().unwrap().add(Idle).unwrap();
        let (handle, service) = (&mut Some(handle), Service::get().unwrap());
        let status = crate::sys::process::in_fork(|| {
            let refused = Service::get().is_err_and(|e| e.hint.contains("spawn"));
            let handle = handle.take().unwrap();
            handle.nudge();
            drop(handle);
            i32::from(!refused || !service.is_stale())
        });
        assert_eq!(status, Some(0));
        assert!(Service::get().is_ok());
    }
}
