//! OpenTelemetry: the content of a recorder as spans, sent to a collector as OTLP over HTTP.
//!
//! ```text
//!   recorder --events--> Source --facts--> Queue --batches--> Sender --OTLP/HTTP--> collector
//!     ring, read in place  | ccl-otel      bounded,           | ccl-otel-send
//!                                          counts drops
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `ids` | trace and span ids, which every rank computes alike |
//! | `span_builder` | events to facts: phases, operations, messages |
//! | `fact` | facts to spans, with their names and attributes |
//! | `queue` | the spans to send, and their counts |
//! | `client`, `send` | HTTP; batches, attempts, their outcomes |
//! | `settings`, `variables` | the values of OpenTelemetry's variables, and the table of them |
//! | `sample`, `resource` | which traces are sent; the resource of the sender |
//! | `source`, `in_process` | a recorder; the recorders of this process, until it ends |
//!
//! Each collective is one trace, and each rank's part of it is a span: the span of rank 0 is the
//! root, and the spans of all others lie under it. No span covers all ranks: no rank knows when the
//! last of them began or ended. At level 2 each message is a span under its rank's span, linked
//! from its receiver to its sender. A send and its receive are a trace of two spans, and the init
//! of a communicator is a trace with its phases.
//!
//! All ranks share a trace, so it cannot lie under the span of one program: the spans have a link
//! to that span (`TRACEPARENT`) instead. A span that is active in the program when it calls is not
//! seen: the events are read later, on another thread. The data path does not depend on any of
//! this: a slow or absent collector costs memory up to a bound, and then spans, which are counted.

mod client;
mod fact;
mod ids;
mod in_process;
mod queue;
mod resource;
mod sample;
mod send;
mod settings;
mod source;
mod span_builder;
mod variables;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::config::environment_names;

use fact::Fact;
use queue::Queue;
use send::{Sender, Way};
use settings::{Settings, TRACES};

pub use queue::Counts;
pub use source::Source;

/// How long the sender may take after its deadline to notice it.
const GRACE: Duration = Duration::from_millis(100);

/// A collector, by its url for traces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint(String);

impl Endpoint {
    /// The collector at `url`: `http://host:4318`, or with the path for traces if it is not
    /// `/v1/traces`.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn at(url: &str) -> Result<Self, String> {
        let bare = url.trim_end_matches('/');
        let has_path = bare.strip_prefix("http://").is_none_or(|rest| rest.contains('/'));
        Self::traces(if has_path { url.to_string() } else { format!("{bare}/{TRACES}") }, url)
    }

    fn traces(url: String, given: &str) -> Result<Self, String> {
        if !url.starts_with("http://") {
            return Err(format!(
                "{given:?} is no http:// address, and only those are spoken: point it to a collector on this host or network, \
                 which may speak https to others"
            ));
        }
        let way = Way { url, ..Way::default() };
        way.uri().map_err(|why| format!("{given:?}: {why}"))?;
        Ok(Self(way.url))
    }
}

/// Sends spans from a separate thread.
#[derive(Debug)]
pub struct Exporter {
    queue: Arc<Queue>,
    settings: Settings,
    emitters: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

/// The final outcome of all spans.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Account {
    /// The counts.
    pub counts: Counts,
    /// Why spans were not delivered: the url, and the reason of the last failed attempt.
    pub failure: Option<String>,
}

impl Exporter {
    /// Starts the thread. OpenTelemetry's variables configure how spans are collected and sent.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start(endpoint: &Endpoint) -> Result<Self, String> {
        Self::with(endpoint, Settings::from_env())
    }

    fn with(endpoint: &Endpoint, settings: Settings) -> Result<Self, String> {
        let queue = Arc::new(Queue::new(settings.batch));
        let way = Way { url: endpoint.0.clone(), ..settings.way.clone() };
        let sender = Sender::new(way, settings.limits, Arc::clone(&queue))?;
        let thread = std::thread::Builder::new().name("ccl-otel-send".into()).spawn(move || sender.run());
        let thread = Some(thread.map_err(|e| format!("starting ccl-otel-send: {e}"))?);
        Ok(Self { queue, settings, emitters: AtomicU64::new(0), thread })
    }

    /// The OpenTelemetry variables that are not applied, and why; one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.settings.notes
    }

    /// The counts so far: queued and in-flight spans count as made only.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.queue.counts()
    }

    /// Sends the queued spans until `until`, and returns the account.
    ///
    /// It does not wait for a collector that is unreachable.
    #[must_use]
    pub fn finish(mut self, until: Ns) -> Account {
        self.queue.close(until);
        let counts = self.queue.await_end(until.since(clock::now()) + GRACE);
        // The thread may hang in a name lookup: then it is left behind.
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
        let failure = self.queue.failure().filter(|_| counts.dropped + counts.unknown > 0);
        Account { counts, failure }
    }

    /// Queues facts; facts that are sampled out do not count as made.
    fn push(&self, mut facts: Vec<Fact>) {
        facts.retain(|fact| self.settings.sampler.keeps(fact.trace()));
        self.queue.push(facts);
    }

    fn lost(&self, events: u64) {
        self.queue.lost(events);
    }

    fn next_emitter(&self) -> u64 {
        self.emitters.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.queue.close(Ns(0));
    }
}

/// The variables of this process's environment that are probably misspelt names of OpenTelemetry's;
/// one sentence each.
#[must_use]
pub fn remarks() -> Vec<String> {
    variables::misspelled(environment_names())
}

/// Sends the spans of this process if the environment asks for it.
pub(crate) fn init_from_env() {
    let settings = Settings::from_env();
    // The endpoint's own name may be misspelt.
    let notes = if settings.url == Ok(None) { remarks() } else { settings.notes.clone() };
    for note in notes {
        crate::say(&format!("OpenTelemetry: {note}"));
    }
    let started = settings.url.clone().and_then(|url| match url {
        None => Ok(()),
        Some(url) => in_process::start(&Endpoint::traces(url.clone(), &url)?, settings),
    });
    if let Err(why) = started {
        crate::say(&format!("OpenTelemetry: no spans are sent: {why}"));
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.counts.fmt(f)?;
        match &self.failure {
            Some(why) => write!(f, "; not delivered: {why}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
