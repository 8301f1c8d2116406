//! Writes what the watchdog says, one after the other: the state of the job into its file, and then
//! a line on standard error. Both may block, so each is done by a thread that lives as long as
//! there is something to do, and a standard error that blocks holds up no file.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::say;
use crate::clock::{self, Ns};
use crate::config::Settings;
use crate::notice;
use crate::snapshot::Snapshot;

/// The most that waits for a thread; what comes then is not written, and counted.
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

/// What waits for a thread.
struct Waiting<T> {
    all: VecDeque<T>,
    is_working: bool,
}

/// A queue with a thread that works on it while something is in it. It never blocks who adds.
struct Queue<T>(Arc<(Mutex<Waiting<T>>, Condvar)>);

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + 'static> Queue<T> {
    fn new() -> Self {
        let waiting = Waiting { all: VecDeque::new(), is_working: false };
        Self(Arc::new((Mutex::new(waiting), Condvar::new())))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        // Each change is one push, one take, or one flag.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `work` done on this after all that was added before; false if it is not taken.
    fn add(&self, name: &str, item: T, work: impl Fn(T) + Send + 'static) -> bool {
        let mut waiting = self.lock();
        if waiting.all.len() >= MOST {
            return false;
        }
        waiting.all.push_back(item);
        if std::mem::replace(&mut waiting.is_working, true) {
            return true;
        }
        drop(waiting);
        let queue = self.clone();
        let run = move || {
            while let Some(item) = queue.next() {
                // A bug in one message must not silence those after it.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(|| work(item)));
            }
        };
        let is_running = std::thread::Builder::new().name(name.into()).spawn(run).is_ok();
        if !is_running {
            // Without a thread nothing is written: it is recorded and told.
            *self.lock() = Waiting { all: VecDeque::new(), is_working: false };
        }
        is_running
    }

    /// What is to be done next; `None` ends the thread.
    fn next(&self) -> Option<T> {
        let mut waiting = self.lock();
        let item = waiting.all.pop_front();
        if item.is_none() {
            waiting.is_working = false;
            self.0.1.notify_all();
        }
        item
    }

    /// Waits until all is done, until `end` at most.
    fn flush(&self, end: Ns) {
        let mut waiting = self.lock();
        loop {
            let left = end.since(clock::now());
            if !waiting.is_working || left.is_zero() {
                return;
            }
            waiting = self.0.1.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Writes in order, and never blocks who says something.
pub(super) struct Writer {
    settings: Settings,
    files: Queue<Said>,
    lines: Queue<String>,
    /// The messages that were not written since the last line that was.
    lost: Arc<AtomicU64>,
}

impl Writer {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, files: Queue::new(), lines: Queue::new(), lost: Arc::default() }
    }

    /// Has it written after all that was said before.
    pub(super) fn say(&self, said: Said) {
        let (settings, lines, lost) = (self.settings.clone(), self.lines.clone(), Arc::clone(&self.lost));
        let work = move |said| {
            let line = match said {
                Said::Stall(job, path) => say::stall(&job, path),
                Said::Recovered(what, lasted) => Some(say::recovered(&what, lasted)),
            };
            let (settings, taken) = (settings.clone(), Arc::clone(&lost));
            let print = move |line: String| {
                notice::warn(&settings, &say::with_lost(line, taken.swap(0, Ordering::Relaxed)));
            };
            if let Some(line) = line
                && !lines.add("ccl-watch-line", line, print)
            {
                lost.fetch_add(1, Ordering::Relaxed);
            }
        };
        if !self.files.add("ccl-watch-file", said, work) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is written; only a moment, as that may block for ever.
    pub(super) fn flush(&self) {
        let end = clock::now().after(LAST);
        self.files.flush(end);
        self.lines.flush(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn what_finds_no_room_is_refused_and_the_rest_is_done_in_order() {
        let (queue, (done, results), (go, gate)) = (Queue::new(), mpsc::channel(), mpsc::channel::<()>());
        let gate = Arc::new(Mutex::new(gate));
        let add = |n: usize| {
            let (done, gate) = (done.clone(), Arc::clone(&gate));
            queue.add("test", n, move |n| {
                // A bug in one of them.
                assert_ne!(n, 2);
                let _ = done.send(n);
                let _ = gate.lock().unwrap().recv();
            })
        };
        assert!(add(0));
        // The thread has it, and is blocked.
        assert_eq!(results.recv(), Ok(0));
        let taken: Vec<bool> = (1..=MOST + 2).map(add).collect();
        assert_eq!(taken.iter().filter(|taken| **taken).count(), MOST);
        assert_eq!(taken[MOST..], [false; 2]);
        drop(go);
        queue.flush(clock::now().after(Duration::from_secs(60)));
        let all: Vec<usize> = results.try_iter().collect();
        assert_eq!(all, (1..=MOST).filter(|n| *n != 2).collect::<Vec<_>>());
        assert!(add(9) && results.recv() == Ok(9));
    }
}
