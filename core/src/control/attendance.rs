//! What a process that uses ccl keeps beside its communicators: the recorder, what is recorded in it once a second (clock
//! anchors, the kernel's account of sockets), and the inspector's socket.
//! Shared by all communicators of the process, gone with the last.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::clock::{Anchor, Ns};
use crate::config::{Key, Settings};
use crate::control::server::Server;
use crate::control::service::{Handle, Interest, Service, Task, Turn};
use crate::error::Result;
use crate::event::{Event, publish};
use crate::recorder::{EventRing, Recorder};
use crate::types::CommId;

/// How often the clocks are read together, so that drift between readings stays far below a microsecond; and the sockets looked at.
const ANCHOR: Duration = Duration::from_secs(1);
/// And after the first reading: until there are two apart, how fast the counter runs is known to four digits only.
const SECOND_ANCHOR: Duration = Duration::from_millis(4);
/// How often after a peer's death its socket is looked for: the kernel frees a dead process's files one after another.
const SWEEPS: u32 = 3;

/// The recorder and the tasks that attend it.
#[derive(Debug)]
pub(crate) struct Attendance {
    // In the order of leaving: tasks before the recorder they use.
    _anchors: Option<Handle>,
    server: Option<Arc<Server>>,
    sweeps: Arc<AtomicU32>,
    recorder: Arc<Recorder>,
}

static OF_PROCESS: Mutex<Weak<Attendance>> = Mutex::new(Weak::new());

impl Attendance {
    /// The process's, made at the first use; one of its own for a communicator that is not to be observed. Returned beside
    /// it: why there is no control socket, if there should be one. A job
    /// runs without.
    pub(crate) fn of_process(settings: &Settings) -> Result<(Arc<Self>, Vec<String>)> {
        if settings.number(Key::Observe) == 0 {
            // Nobody looks: private memory, and nothing beside it.
            let sweeps = Arc::new(AtomicU32::new(0));
            let unseen = Self { _anchors: None, server: None, sweeps, recorder: Recorder::heap() };
            return Ok((Arc::new(unseen), Vec::new()));
        }
        let mut slot = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(attendance) = slot.upgrade() {
            return Ok((attendance, Vec::new()));
        }
        let recorder = Recorder::for_process(settings)?;
        let mut notes = recorder.notes().to_vec();
        let server = match Server::beside(&recorder, settings).map(Arc::new) {
            Ok(server) => Some(server),
            Err(error) => {
                notes.push(format!("no control socket: {error}"));
                None
            }
        };
        let sweeps = Arc::new(AtomicU32::new(0));
        let anchors = Anchors {
            ring: recorder.ring(),
            recorder: Arc::clone(&recorder),
            server: server.as_ref().map(Arc::downgrade).unwrap_or_default(),
            sweeps: Arc::clone(&sweeps),
            due: Ns(0),
            gap: SECOND_ANCHOR,
        };
        let anchors = Some(Service::get()?.add(anchors)?);
        let attendance = Arc::new(Self { _anchors: anchors, server, sweeps, recorder });
        *slot = Arc::downgrade(&attendance);
        Ok((attendance, notes))
    }

    pub(crate) fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.recorder)
    }

    /// Where the inspector's socket listens.
    pub(crate) fn control(&self) -> Option<&Path> {
        self.server.as_deref().map(Server::path)
    }

    /// Lets inspectors abort a communicator, where the job's settings allow it, as long as what this returns lives.
    pub(crate) fn abortable(
        &self,
        comm: CommId,
        abort: impl Fn(&str) + Send + Sync + 'static,
    ) -> Option<crate::control::server::Abortable> {
        self.server.as_ref().map(|server| server.abortable(comm, abort))
    }

    /// A peer died: its socket is removed as soon as the kernel has freed its lock.
    pub(crate) fn bereaved(&self) {
        self.sweeps.store(SWEEPS, Ordering::Relaxed);
    }
}

struct Anchors {
    recorder: Arc<Recorder>,
    /// The service thread's own.
    ring: EventRing,
    server: Weak<Server>,
    sweeps: Arc<AtomicU32>,
    due: Ns,
    /// From the next reading to the one after it.
    gap: Duration,
}

impl Task for Anchors {
    fn interests(&self, _: &mut Vec<Interest>) {}

    fn turn(&mut self, now: Ns) -> Turn {
        if now >= self.due {
            let Anchor { raw, mono, real_ns } = self.recorder.anchor();
            publish(&mut self.ring, || Event::ClockAnchored { raw: raw.0, mono_ns: mono.0, real_ns });
            self.recorder.sample_sockets();
            self.due = now.after(self.gap);
            self.gap = (self.gap * 2).min(ANCHOR);
            let left = self.sweeps.load(Ordering::Relaxed);
            if let (1.., Some(server)) = (left, self.server.upgrade()) {
                self.sweeps.store(left - 1, Ordering::Relaxed);
                server.sweep();
            }
        }
        Turn::Again(Some(self.due))
    }
}
