//! What a process that uses ccl keeps beside its communicators: the recorder, its clock anchors and the inspector's socket.
//! Shared by all communicators of the process, gone with the last.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::clock::Ns;
use crate::config::{Key, Settings};
use crate::control::service::{Handle, Interest, Service, Task, Turn};
use crate::error::Result;
use crate::recorder::Recorder;

/// How often the clocks are read together: drift between readings stays far below a microsecond.
const ANCHOR: Duration = Duration::from_secs(1);

/// The recorder and the tasks that attend it.
#[derive(Debug)]
pub(crate) struct Attendance {
    // In the order of leaving: tasks before the recorder they use.
    _anchors: Option<Handle>,
    recorder: Arc<Recorder>,
}

static OF_PROCESS: Mutex<Weak<Attendance>> = Mutex::new(Weak::new());

impl Attendance {
    /// The process's, made at the first use.
    pub(crate) fn of_process(settings: &Settings) -> Result<Arc<Self>> {
        let mut slot = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(attendance) = slot.upgrade() {
            return Ok(attendance);
        }
        let recorder = Recorder::for_process(settings)?;
        let anchors = match settings.number(Key::Observe) {
            0 => None,
            _ => Some(Service::get()?.add(Anchors { recorder: Arc::clone(&recorder), due: Ns(0) })?),
        };
        let attendance = Arc::new(Self { _anchors: anchors, recorder });
        *slot = Arc::downgrade(&attendance);
        Ok(attendance)
    }

    pub(crate) fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.recorder)
    }

    /// Where the inspector's socket listens.
    pub(crate) fn control(&self) -> Option<&Path> {
        None
    }
}

struct Anchors {
    recorder: Arc<Recorder>,
    due: Ns,
}

impl Task for Anchors {
    fn interests(&self, _: &mut Vec<Interest>) {}

    fn turn(&mut self, now: Ns) -> Turn {
        if now >= self.due {
            self.recorder.anchor();
            self.due = now.after(ANCHOR);
        }
        Turn::Again(Some(self.due))
    }
}
