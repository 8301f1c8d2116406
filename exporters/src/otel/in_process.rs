//! The spans of this process: a thread that reads each of its recorders from the first event to the
//! last, with limited time for it at the end.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::recorder::{self, Reader, Recorder};
use ccl::sys::handlers::{self, Handler};
use ccl::sys::signals;

use super::settings::Settings;
use super::{Endpoint, Exporter, Source};

/// How often a recorder is read. Its largest ring has 4,096 slots, enough for 400,000 operations a
/// second.
const LOOK: Duration = Duration::from_millis(10);
/// The longest that the end of the process waits for a slow collector. It does not wait for an
/// absent collector.
const FAREWELL: Duration = Duration::from_secs(3);
/// How long the thread may take after that to notice.
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
    /// The process ends: the time until which spans may be sent.
    leaving: Option<Ns>,
    done: bool,
}

static OF_PROCESS: OnceLock<Own> = OnceLock::new();

impl Own {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a recorder, the end, or the next look if there is a recorder to read.
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
                // The memory belongs to this process, so reading cannot fail.
                let _ = source.look(&exporter);
                source.unless_alone(&exporter)
            };
            sources = sources.into_iter().filter_map(looked).collect();
            if let Some(until) = leaving {
                let account = exporter.finish(until);
                if account.counts.is_complete() {
                    tracing::info!("OpenTelemetry: {account}");
                } else {
                    crate::say(&format!("OpenTelemetry: {account}"));
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

/// Sends the spans of this process to `endpoint` from now on. Later calls change nothing.
///
/// # Errors
/// Why it is not possible.
pub(super) fn start(endpoint: &Endpoint, settings: Settings) -> Result<(), String> {
    if OF_PROCESS.get().is_some() {
        return Ok(());
    }
    let exporter = Exporter::with(endpoint, settings)?;
    let made = Own { pid: std::process::id(), state: Mutex::default(), changed: Condvar::new() };
    if OF_PROCESS.set(made).is_err() {
        return Ok(());
    }
    let Some(own) = OF_PROCESS.get() else { return Ok(()) };
    let thread = std::thread::Builder::new().name("ccl-otel".into());
    thread.spawn(move || own.run(exporter)).map_err(|e| format!("starting ccl-otel: {e}"))?;
    recorder::tail(|reader| {
        own.lock().arrived.push(reader);
        own.changed.notify_all();
    });
    handlers::at_exit::<SayFarewell>();
    if let Err(why) = signals::before_the_end(end_by) {
        crate::say(&format!("OpenTelemetry: a process that a signal ends loses its last spans: {why}"));
    }
    Ok(())
}

/// A signal ends the process: its recorder tells which, and the rest is sent.
fn end_by(signal: u8) {
    if let Some(recorder) = Recorder::of_process() {
        recorder.ended_by_signal(signal);
    }
    say_farewell();
}

/// At exit: sends the rest, if the collector takes it.
struct SayFarewell;

impl Handler for SayFarewell {
    fn run() {
        say_farewell();
    }
}

/// Sends the rest, if the collector takes it; the remainder is counted and reported.
fn say_farewell() {
    let Some(own) = OF_PROCESS.get().filter(|own| own.pid == std::process::id()) else { return };
    let mut state = own.lock();
    // If two threads end the process, the first one sets the time limit.
    state.leaving.get_or_insert_with(|| clock::now().after(FAREWELL));
    own.changed.notify_all();
    // If the thread is still at work after that, it ends with the process.
    drop(own.changed.wait_timeout_while(state, FAREWELL + GRACE, |state| !state.done));
}
