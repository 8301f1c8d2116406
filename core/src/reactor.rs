//! The service thread: one per process, started by the first task, ended after the last one.
//!
//! A [`Task`] is a state machine over descriptors that must be served while the application does
//! other work: accepting connections, answering inspectors, noticing deaths. Tasks never block. The
//! loop polls all their descriptors and calls the tasks that are due.

use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::clock::{self, Ns};
use crate::sys::fds::Doorbell;
use crate::types::SERVICE_THREAD;

/// The events of one descriptor that a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interest {
    /// The descriptor. The task keeps it open at least until its next `turn` has returned.
    pub fd: RawFd,
    /// Call the task when the descriptor is readable (or at its end).
    pub read: bool,
    /// Call the task when the descriptor is writable.
    pub write: bool,
}

impl Interest {
    /// The argument for `poll`. The task holds the descriptor open meanwhile.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.read);
        flags.set(PollFlags::OUT, self.write);
        PollFd::from_borrowed_fd(crate::sys::fds::borrow(self.fd), flags)
    }
}

/// The result of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Call the task again when a descriptor is ready, or at this time.
    Again(Option<Ns>),
    /// The task has ended and is to be dropped.
    Done,
}

/// A task of the service thread.
pub trait Task: Send + 'static {
    /// The descriptors to wait for. Called before each poll.
    fn interests(&self, out: &mut Vec<Interest>);
    /// Does all work that is possible without blocking.
    ///
    /// Called first after the task was added, then when a descriptor is ready, when the requested
    /// time has come, and after [`Handle::nudge`].
    fn turn(&mut self, now: Ns) -> Turn;
}

struct Entry {
    id: u64,
    /// `None` while the thread runs its turn.
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

/// The state that the service thread shares with other threads.
pub struct Service {
    tasks: Mutex<Tasks>,
    left: Condvar,
    bell: Doorbell,
    /// The process generation that it belongs to. A forked child has a copy without the thread, and
    /// its lock may be held by a thread that does not exist there.
    generation: u32,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Service(generation {})", self.generation)
    }
}

/// The handle of a task in the service thread.
///
/// Dropping the handle removes the task, and returns once the task has been dropped.
#[derive(Debug)]
pub struct Handle {
    id: u64,
    service: Arc<Service>,
}

impl Service {
    /// The service of this process.
    ///
    /// # Errors
    /// `System` if its doorbell could not be created, `Unavailable` in a forked child of a process
    /// that has a service.
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

    /// Adds a task, and starts the thread if it is not running.
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
                .name(SERVICE_THREAD.into())
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
        self.bell.notify();
        Ok(Handle { id, service: Arc::clone(self) })
    }

    fn is_stale(&self) -> bool {
        self.generation != crate::sys::generation()
    }

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        // A panic in a task leaves the entries consistent: they are so between statements.
        self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn run(self: Arc<Self>) {
        crate::observer::thread(c"ccl-service");
        let mut interests: Vec<Interest> = Vec::new();
        let mut owners: Vec<(u64, usize)> = Vec::new();
        loop {
            interests.clear();
            owners.clear();
            let mut wake: Option<Ns> = None;
            self.drop_leaving();
            {
                let mut tasks = self.lock();
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

    /// Drops the tasks whose handles were dropped. A task that is dropped may nudge others.
    fn drop_leaving(&self) {
        let is_leaving = |entry: &&mut Entry| entry.leaving;
        let mut tasks = self.lock();
        let leaving: Vec<_> = tasks.entries.iter_mut().filter(is_leaving).collect();
        if leaving.is_empty() {
            return;
        }
        let ids: Vec<u64> = leaving.iter().map(|entry| entry.id).collect();
        let dropped: Vec<_> = leaving.into_iter().map(|entry| entry.task.take()).collect();
        drop(tasks);
        drop(dropped);
        self.lock().entries.retain(|entry| !ids.contains(&entry.id));
        self.left.notify_all();
    }

    /// Polls until a descriptor is ready, the time has come or the doorbell was notified.
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
        // After an interrupted or refused poll no descriptor is ready. A refusal must not cause a
        // busy loop.
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
    /// Requests a turn of the task as soon as possible.
    pub fn nudge(&self) {
        if self.service.is_stale() {
            return;
        }
        if let Some(entry) = self.service.lock().entries.iter_mut().find(|entry| entry.id == self.id) {
            entry.nudged = true;
        }
        self.service.bell.notify();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.service.is_stale() {
            return;
        }
        let on_thread = std::thread::current().name() == Some(SERVICE_THREAD);
        let mut tasks = self.service.lock();
        if let Some(entry) = tasks.entries.iter_mut().find(|entry| entry.id == self.id) {
            entry.leaving = true;
        }
        self.service.bell.notify();
        // The service thread itself may drop a handle within a task. It cannot wait for itself.
        while !on_thread && tasks.running && tasks.entries.iter().any(|entry| entry.id == self.id) {
            tasks = self.service.left.wait(tasks).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    /// A task that never has work.
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
