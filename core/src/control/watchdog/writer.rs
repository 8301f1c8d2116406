//! Writes what the watchdog says, one after the other, in a thread that lives as long as there is
//! something to write: files and standard error may block.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::say;
use crate::clock;
use crate::config::Settings;
use crate::snapshot::Snapshot;

/// The most that waits to be written; what comes then is not written.
const MOST: usize = 8;
/// How long a process that leaves waits for what is being written.
const LAST: Duration = Duration::from_millis(200);

/// Something to write.
pub(super) enum Said {
    /// A stall: the state of the job, and the file for it.
    Stall(Box<Snapshot>, Option<PathBuf>),
    /// The end of a stall: what was told, and how long it lasted if that is known.
    Recovered(String, Option<Duration>),
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Said>,
    is_writing: bool,
}

/// Writes in order, and never blocks who says something.
pub(super) struct Writer {
    settings: Settings,
    queue: Arc<(Mutex<Queue>, Condvar)>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // Each change is one push, one take, or one flag.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writer {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, queue: Arc::default() }
    }

    /// Has it written after all that was said before.
    pub(super) fn say(&self, said: Said) {
        let mut queue = lock(&self.queue.0);
        if queue.waiting.len() >= MOST {
            return;
        }
        queue.waiting.push_back(said);
        if std::mem::replace(&mut queue.is_writing, true) {
            return;
        }
        drop(queue);
        let (settings, shared) = (self.settings.clone(), Arc::clone(&self.queue));
        let work = move || {
            while let Some(said) = next(&shared) {
                // A bug in one message must not silence those after it.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(|| match said {
                    Said::Stall(job, path) => say::stall(&settings, &job, path),
                    Said::Recovered(what, lasted) => say::recovered(&settings, &what, lasted),
                }));
            }
        };
        // Without a thread nothing is written: it is recorded and told.
        if std::thread::Builder::new().name("ccl-watchdog".into()).spawn(work).is_err() {
            *lock(&self.queue.0) = Queue::default();
        }
    }

    /// Waits until all is written; only a moment, as that may block for ever.
    pub(super) fn flush(&self) {
        let end = clock::now().after(LAST);
        let mut queue = lock(&self.queue.0);
        loop {
            let left = end.since(clock::now());
            if !queue.is_writing || left.is_zero() {
                return;
            }
            queue = self.queue.1.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What is to be written next; `None` ends the thread.
fn next((queue, is_over): &(Mutex<Queue>, Condvar)) -> Option<Said> {
    let mut queue = lock(queue);
    let said = queue.waiting.pop_front();
    if said.is_none() {
        queue.is_writing = false;
        is_over.notify_all();
    }
    said
}
