//! The spans of this process: a thread that reads each recorder of it from the first event to the last, and a moment for it at the end.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::recorder::{self, Reader};
use ccl::sys::handlers::{self, Handler};

use super::{Endpoint, Exporter, Source};

/// How often a recorder is looked at. Its largest ring has 4,096 places: up to 400,000 operations a second are seen.
const LOOK: Duration = Duration::from_millis(10);
/// The longest the end of the process waits for a collector that is slow. One that is absent it does not wait for.
const FAREWELL: Duration = Duration::from_secs(3);
/// What the thread may take beyond that to notice.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Own {
    /// A forked child has a copy of this without the thread.
    pid: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default, Debug)]
struct State {
    arrived: Vec<Reader>,
    /// The process ends: until then.
    leaving: Option<Ns>,
    done: bool,
}

static OF_PROCESS: OnceLock<Own> = OnceLock::new();

impl Own {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a recorder, the end, or, if there is something to look at, the next look.
    fn wait(&self, looks: bool) -> (Vec<Reader>, Option<Ns>) {
        let state = self.lock();
        let idle = |state: &mut State| state.arrived.is_empty() && state.leaving.is_none();
        let time = if looks { LOOK } else { Duration::from_secs(3600) };
        let waited = self.changed.wait_timeout_while(state, time, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        (std::mem::take(&mut state.arrived), state.leaving)
    }

    fn run(&self, exporter: Exporter) {
        let mut sources: Vec<Source> = Vec::new();
        loop {
            let (arrived, leaving) = self.wait(!sources.is_empty());
            sources.extend(arrived.into_iter().map(Source::own));
            let looked = |mut source: Source| {
                // It is this process's own memory: there is nothing that could fail.
                let _ = source.look(&exporter, None);
                source.unless_alone(&exporter)
            };
            sources = sources.into_iter().filter_map(looked).collect();
            if let Some(until) = leaving {
                let url = exporter.url().to_string();
                let counts = exporter.finish(until);
                if counts.is_complete() {
                    tracing::info!("OpenTelemetry: {counts} ({url})");
                } else {
                    tracing::warn!("OpenTelemetry: {counts} ({url})");
                }
                self.lock().done = true;
                self.changed.notify_all();
                // Other threads may still write to a recorder.
                std::mem::forget(sources);
                return;
            }
        }
    }
}

/// Has the spans of this process sent to `endpoint` from now on. Later calls change nothing.
///
/// # Errors
/// Why that cannot be.
pub(super) fn start(endpoint: &Endpoint) -> Result<(), String> {
    if OF_PROCESS.get().is_some() {
        return Ok(());
    }
    let exporter = Exporter::start(endpoint)?;
    let made = Own { pid: std::process::id(), state: Mutex::default(), changed: Condvar::new() };
    if OF_PROCESS.set(made).is_err() {
        return Ok(());
    }
    let Some(own) = OF_PROCESS.get() else { return Ok(()) };
    let thread = std::thread::Builder::new().name("ccl-otel".into());
    thread.spawn(move || own.run(exporter)).map_err(|e| format!("starting ccl-otel: {e}"))?;
    recorder::follow(|reader| {
        own.lock().arrived.push(reader);
        own.changed.notify_all();
    });
    handlers::at_exit::<SayFarewell>();
    Ok(())
}

/// The process exits: what was recorded is sent, if somebody takes it.
struct SayFarewell;

impl Handler for SayFarewell {
    fn run() {
        let Some(own) = OF_PROCESS.get().filter(|own| own.pid == std::process::id()) else { return };
        let mut state = own.lock();
        state.leaving = Some(clock::now().after(FAREWELL));
        own.changed.notify_all();
        // Whatever the thread still does then ends with the process.
        drop(own.changed.wait_timeout_while(state, FAREWELL + GRACE, |state| !state.done));
    }
}
