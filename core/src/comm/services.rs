//! The process services: what a process keeps beside its communicators.
//!
//! They are the recorder, the task that writes clock anchors and samples of sockets and ports to it
//! once a second, the watchdog, and the inspector's socket. All communicators of the process share
//! them; they end with the last communicator.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::bootstrap::Launched;
use crate::clock::{Anchor, Ns};
use crate::config::{Key, Settings, environment};
use crate::control::server::Server;
use crate::control::watchdog::Watchdog;
use crate::error::Result;
use crate::event::{Event, publish};
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::recorder::{Events, Recorder};
use crate::sys::cgroup::MemoryGroup;
use crate::transport::ib::watch;
use crate::types::CommId;

/// How often the clocks are read together, so that drift between readings stays far below a
/// microsecond, and how often sockets and ports are sampled.
const ANCHOR: Duration = Duration::from_secs(1);
/// The delay after the first reading: until there are two readings some time apart, the rate of the
/// counter is known to four digits only.
const SECOND_ANCHOR: Duration = Duration::from_millis(4);
/// How often the socket of a dead peer is looked for: the kernel frees a dead process's files one
/// after another.
const SWEEPS: u32 = 3;

/// The recorder and the tasks that maintain it.
#[derive(Debug)]
pub(crate) struct ProcessServices {
    // In drop order: tasks before the recorder that they use.
    _anchors: Option<Handle>,
    watchdog: Option<Watchdog>,
    server: Option<Arc<Server>>,
    sweeps: Arc<AtomicU32>,
    announced: AtomicBool,
    recorder: Arc<Recorder>,
}

static OF_PROCESS: Mutex<Weak<ProcessServices>> = Mutex::new(Weak::new());

impl ProcessServices {
    /// The process's services, made at the first use, or separate ones for an unobserved
    /// communicator.
    ///
    /// The second value says why there is no control socket, if there should be one. A job runs
    /// without.
    pub(crate) fn of_process(settings: &Settings) -> Result<(Arc<Self>, Vec<String>)> {
        if settings.number(Key::Observe) == 0 {
            // Unobserved: private memory and no tasks.
            let sweeps = Arc::new(AtomicU32::new(0));
            let recorder = Recorder::heap();
            let announced = AtomicBool::new(false);
            let unseen = Self { _anchors: None, watchdog: None, server: None, sweeps, announced, recorder };
            return Ok((Arc::new(unseen), Vec::new()));
        }
        let mut slot = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(services) = slot.upgrade() {
            return Ok((services, Vec::new()));
        }
        let recorder = Recorder::for_process(settings)?;
        let Launched { name, rank } = Launched::own(&environment);
        recorder.set_launch(name, rank);
        let group = MemoryGroup::own();
        if let Some(group) = &group {
            recorder.set_memory_group(group);
        }
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
            events: recorder.events(),
            recorder: Arc::clone(&recorder),
            server: server.as_ref().map(Arc::downgrade).unwrap_or_default(),
            sweeps: Arc::clone(&sweeps),
            group,
            count_due: Ns(0),
            due: Ns(0),
            gap: SECOND_ANCHOR,
        };
        let anchors = Some(Service::get()?.add(anchors)?);
        let watchdog = Watchdog::start(&recorder, settings)?;
        let announced = AtomicBool::new(false);
        let services = Arc::new(Self { _anchors: anchors, watchdog, server, sweeps, announced, recorder });
        *slot = Arc::downgrade(&services);
        Ok((services, notes))
    }

    pub(crate) fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.recorder)
    }

    /// The path where the inspector's socket listens.
    pub(crate) fn control(&self) -> Option<&Path> {
        self.server.as_deref().map(Server::path)
    }

    /// Lets inspectors abort a communicator, where the job's settings allow it, until the returned
    /// value is dropped.
    pub(crate) fn abortable(
        &self,
        comm: CommId,
        abort: impl Fn(&str) + Send + Sync + 'static,
    ) -> Option<crate::control::server::Abortable> {
        self.server.as_ref().map(|server| server.abortable(comm, abort))
    }

    /// The process's watchdog, if it has one.
    pub(crate) const fn watchdog(&self) -> Option<&Watchdog> {
        self.watchdog.as_ref()
    }

    /// Whether nothing has said yet how to look at this process: true for the first caller.
    pub(crate) fn is_unannounced(&self) -> bool {
        !self.announced.swap(true, Ordering::Relaxed)
    }

    /// A peer died: removes its socket as soon as the kernel has freed the peer's lock.
    pub(crate) fn on_peer_death(&self) {
        self.sweeps.store(SWEEPS, Ordering::Relaxed);
    }
}

struct Anchors {
    recorder: Arc<Recorder>,
    events: Events,
    server: Weak<Server>,
    sweeps: Arc<AtomicU32>,
    /// The control group whose kills for want of memory are sampled once a second, and when next.
    group: Option<MemoryGroup>,
    count_due: Ns,
    due: Ns,
    /// The gap between the next reading and the one after it.
    gap: Duration,
}

impl Task for Anchors {
    fn interests(&self, _: &mut Vec<Interest>) {}

    fn turn(&mut self, now: Ns) -> Turn {
        if now >= self.due {
            let Anchor { raw, mono, real_ns } = self.recorder.anchor();
            publish(&mut self.events, || Event::ClockAnchored { raw: raw.0, mono_ns: mono.0, real_ns });
            self.recorder.sample_sockets();
            watch::sample(&self.recorder);
            if now >= self.count_due {
                self.recorder.sample_process(self.group.as_ref());
                self.count_due = now.after(ANCHOR);
            }
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
