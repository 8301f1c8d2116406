//! `CCL_TRACE=folder`: a process that writes its own part, in a separate thread.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl::clock;
use ccl::config::{Key, Settings};
use ccl::recorder::{self, Reader};
use ccl::sys::handlers::{self, Handler};
use tracing::Subscriber;
use tracing_chrome::FlushGuard;
use tracing_subscriber::registry::LookupSpan;

use super::app::{App, SpanLayer, layer_to};
use super::part::{Pace, Part};
use super::who::Who;

/// How long the end of a process waits for a drain under way.
const PATIENCE: Duration = Duration::from_secs(2);

/// The state of writing. The thread takes the lock for one drain at a time.
static WRITING: Mutex<Writing> =
    Mutex::new(Writing { has_begun: false, reader: None, part: None, ended: false, app: None });

struct Writing {
    /// The trace of `CCL_TRACE` was begun: a process has one trace, with one layer.
    has_begun: bool,
    /// A reader of the process's recorder, once there is one, with the folder and the identity to
    /// write as. It is kept to the exit, and the recorder with it: later communicators are recorded
    /// in it too.
    reader: Option<(Reader, PathBuf, Who)>,
    part: Option<Part>,
    /// Writing has ended: the process exits, or writing failed.
    ended: bool,
    /// The file of the application's spans, and the guard that ends it when dropped.
    app: Option<(PathBuf, FlushGuard)>,
}

/// Begins the trace that `CCL_TRACE` asks for, and returns a layer that writes the program's own
/// spans into it.
///
/// `None` if no trace is asked for, or if the trace already has its layer. It is for a program with
/// its own `tracing` subscriber; [`init_from_env`](crate::init_from_env) installs one, with this
/// layer, if there is none.
///
/// ```no_run
/// use tracing_subscriber::layer::SubscriberExt;
/// use tracing_subscriber::util::SubscriberInitExt;
///
/// tracing_subscriber::registry()
///     .with(ccl_exporters::trace::layer())
///     .with(tracing_subscriber::fmt::layer())
///     .init();
/// ccl_exporters::init_from_env();
/// ```
///
/// Errors in writing are reported once, on standard error: a trace never fails a job.
#[must_use = "a layer writes what the subscriber that it is added to is told"]
pub fn layer<S>() -> Option<SpanLayer<S>>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    // An invalid setting is reported by the communicator, which refuses it.
    let settings = Settings::of_process().unwrap_or_default();
    let folder = Some(settings.text(Key::Trace)).filter(|folder| !folder.is_empty())?;
    if std::mem::replace(&mut writing().has_begun, true) {
        return None;
    }
    match layer_to(Path::new(folder), settings.number(Key::TraceMaxMb).saturating_mul(1 << 20)) {
        Ok((layer, app)) => {
            begin(Path::new(folder), app);
            Some(layer)
        }
        Err(error) => {
            crate::say(&format!("CCL_TRACE={folder}: no trace is written: {error}"));
            None
        }
    }
}

/// Whether a layer was returned that receives the program's spans.
pub(crate) fn writes_spans() -> bool {
    writing().app.is_some()
}

/// No subscriber has the layer: removes the file of spans.
pub(crate) fn without_spans() {
    let app = writing().app.take();
    if let Some((path, guard)) = app {
        drop(guard);
        // An empty file does no harm.
        let _ = std::fs::remove_file(path);
    }
}

/// Begins to write the part of this process to `folder`, from its first communicator to its exit.
/// Errors are reported on standard error, once: a trace never fails a job.
fn begin(folder: &Path, app: App) {
    let App { who, path, guard } = app;
    writing().app = Some((path, guard));
    handlers::at_exit::<End>();
    let folder = folder.to_path_buf();
    recorder::tail(move |reader| writing().reader = Some((reader, folder.clone(), who.clone())));
    let thread = std::thread::Builder::new().name("ccl-trace".into());
    if let Err(error) = thread.spawn(write) {
        crate::say(&format!("no trace is written before the end: {error}"));
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
            // Flushed, so that a killed process leaves its spans, too.
            if let Some((_, guard)) = &writing.app {
                guard.flush();
            }
            match writing.drain() {
                Ok(count) => count,
                Err(error) => {
                    crate::say(&format!("the trace ends here: {error}"));
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

/// At exit: writes the rest.
struct End;

impl Handler for End {
    fn run() {
        // In a forked child the lock may be held for ever, and the file is the parent's.
        if ccl::sys::forked() {
            return;
        }
        // The thread holds it for one drain at a time.
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
        // An error can no longer be reported here.
        let _ = writing.drain();
        if let Some(part) = writing.part.take() {
            let _ = part.finish();
        }
    }
}
