//! `CCL_TRACE=folder`: a process that writes its own part, in a thread of its own.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl::clock;
use ccl::recorder::{self, Reader};
use ccl::sys::handlers::{self, Handler};
use tracing_chrome::FlushGuard;

use super::app::App;
use super::part::{Pace, Part};
use super::who::Who;

/// How long the end of a process waits for a drain under way.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is being written. The thread takes the lock for one drain at a time.
static WRITING: Mutex<Writing> = Mutex::new(Writing { reader: None, part: None, ended: false, app: None });

struct Writing {
    /// Of the process's recorder, with the folder to write to and as whose, as soon as there is one. It is kept to the exit, and with it the recorder:
    /// later communicators are recorded in it, too.
    reader: Option<(Reader, PathBuf, Who)>,
    part: Option<Part>,
    /// No more is to be written: the process exits, or writing failed.
    ended: bool,
    /// Ends the file of the application's spans when it is dropped.
    app: Option<FlushGuard>,
}

/// Begins to write the part of this process to `folder`, from its first communicator to its exit. What it cannot write it says on
/// standard error, once: a trace never fails a job.
pub(crate) fn begin(folder: &Path, app: App) {
    let App { who, guard } = app;
    writing().app = Some(guard);
    handlers::at_exit::<End>();
    let folder = folder.to_path_buf();
    recorder::follow(move |reader| writing().reader = Some((reader, folder.clone(), who.clone())));
    let thread = std::thread::Builder::new().name("ccl-trace".into());
    if let Err(error) = thread.spawn(write) {
        tracing::warn!("no trace is written before the end: {error}");
    }
}

fn writing() -> MutexGuard<'static, Writing> {
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write() {
    let mut pace = Pace::default();
    loop {
        let count = {
            let mut writing = writing();
            if writing.ended {
                return;
            }
            match writing.drain() {
                Ok(count) => count,
                Err(error) => {
                    tracing::warn!("the trace ends here: {error}");
                    writing.ended = true;
                    return;
                }
            }
        };
        std::thread::sleep(pace.after(count));
    }
}

impl Writing {
    fn drain(&mut self) -> ccl::Result<usize> {
        if let Some((reader, folder, who)) = self.reader.take() {
            self.part = Some(Part::own(reader, &folder, who)?);
        }
        self.part.as_mut().map_or(Ok(0), Part::drain)
    }
}

/// At exit: what is left is written.
struct End;

impl Handler for End {
    fn run() {
        // In a forked child the lock may be held for ever, and the file is the parent's.
        if ccl::sys::forked() {
            return;
        }
        // The thread holds it for a drain at a time.
        let until = clock::now().after(PATIENCE);
        let mut writing = loop {
            match WRITING.try_lock() {
                Ok(writing) => break writing,
                Err(_) if clock::now() >= until => return,
                Err(_) => clock::sleep(Duration::from_micros(100)),
            }
        };
        writing.ended = true;
        drop(writing.app.take());
        // There is nobody left to tell what fails now.
        let _ = writing.drain();
        if let Some(part) = writing.part.take() {
            let _ = part.finish();
        }
    }
}
