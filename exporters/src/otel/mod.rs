//! OpenTelemetry: what a recorder holds, as spans, sent to a collector as OTLP over HTTP.
//!
//! ```text
//!   recorder --events--> Source --facts--> Queue (bounded) --batches--> Sender --OTLP/HTTP--> collector
//!     ring, read in place  | ccl-otel      counts drops      | ccl-otel-send
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `ids` | trace and span ids, which every rank computes alike |
//! | `story` | events to facts: phases, operations, messages |
//! | `fact` | facts to spans, with their names and attributes |
//! | `queue` | what is to be sent, and the account of it |
//! | `client`, `send` | HTTP; batches, attempts, what became of them |
//! | `source`, `own` | a recorder; those of this process, until it ends |
//!
//! One trace per collective: rank 0 makes its root, each rank a span under it, at level 2 each message a span under that, linked from its
//! receiver to its sender. A send and its receive are a trace of two spans, and so is the making of a communicator one with its phases.
//! The data path knows nothing of all this: a collector that is slow or away costs memory up to a bound, and then spans, which are counted.

mod client;
mod fact;
mod ids;
mod own;
mod queue;
mod send;
mod source;
mod story;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::config::environment;

use client::Client;
use fact::Fact;
use queue::Queue;
use send::{Sender, Way};

pub use queue::Counts;
pub use source::Source;

/// Where OTLP's traces go, below an endpoint for everything.
const TRACES: &str = "v1/traces";
/// What the sender may take beyond its deadline to notice.
const GRACE: Duration = Duration::from_millis(100);

/// A collector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint(Way);

impl Endpoint {
    /// The collector at `url`: `http://host:4318`, or with the path for traces if it is another than `/v1/traces`.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn at(url: &str) -> Result<Self, String> {
        let bare = url.trim_end_matches('/');
        let has_path = bare.strip_prefix("http://").is_none_or(|rest| rest.contains('/'));
        Self::traces(if has_path { url.to_string() } else { format!("{bare}/{TRACES}") }, url)
    }

    /// What the environment asks for, in OpenTelemetry's own variables; `None` if it asks for nothing.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn from_env() -> Result<Option<Self>, String> {
        Self::from_variables(|name| environment(name).filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let is =
            |name: &str, word: &str| variable(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
        if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let base = |base: String| format!("{}/{TRACES}", base.trim_end_matches('/'));
        let given = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            .or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT").map(base));
        let Some(url) = given else { return Ok(None) };
        let own = |name: &str| {
            variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"))
                .or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        if let Some(protocol) = own("PROTOCOL").filter(|protocol| protocol != "http/protobuf") {
            return Err(format!(
                "OTLP is spoken as http/protobuf, not as {protocol}: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, and \
                 the endpoint to the collector's port for it (4318)"
            ));
        }
        let mut endpoint = Self::traces(url.clone(), &url)?;
        let timeout = own("TIMEOUT").and_then(|ms| ms.parse().ok()).filter(|ms| *ms > 0);
        endpoint.0.timeout = timeout.map_or(endpoint.0.timeout, Duration::from_millis);
        Ok(Some(endpoint))
    }

    fn traces(url: String, given: &str) -> Result<Self, String> {
        if !url.starts_with("http://") {
            return Err(format!(
                "{given:?} is no http:// address, and only those are spoken: point it to a collector on this host or network, \
                 which may speak https to others"
            ));
        }
        let way = Way { url, timeout: Duration::from_secs(10) };
        // The OTLP crate knows best what it takes.
        send::build(&way, Arc::new(Client::new())).map_err(|why| format!("{given:?}: {why}"))?;
        Ok(Self(way))
    }
}

/// Sends spans from a thread of its own.
#[derive(Debug)]
pub struct Exporter {
    queue: Arc<Queue>,
    url: String,
    emitters: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start(endpoint: &Endpoint) -> Result<Self, String> {
        let queue = Arc::new(Queue::default());
        let sender = Sender::new(endpoint.0.clone(), Arc::clone(&queue));
        let thread = std::thread::Builder::new().name("ccl-otel-send".into()).spawn(move || sender.run());
        let thread = Some(thread.map_err(|e| format!("starting ccl-otel-send: {e}"))?);
        Ok(Self { queue, url: endpoint.0.url.clone(), emitters: AtomicU64::new(0), thread })
    }

    /// The account so far: what is queued or in flight is made, and not yet anything else.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.queue.counts()
    }

    /// Sends what is queued until `until`, and gives the account. Does not wait for a collector that is not there.
    #[must_use]
    pub fn finish(mut self, until: Ns) -> Counts {
        self.queue.close(until);
        let counts = self.queue.await_end(until.since(clock::now()) + GRACE);
        // It may hang in looking a name up: then it is left behind.
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
        counts
    }

    fn url(&self) -> &str {
        &self.url
    }

    fn push(&self, facts: Vec<Fact>) {
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

/// Sends the spans of this process where the environment asks for it.
pub(crate) fn init_from_env() {
    let started = Endpoint::from_env().and_then(|endpoint| endpoint.map_or(Ok(()), |e| own::start(&e)));
    if let Err(why) = started {
        tracing::warn!("OpenTelemetry: no spans are sent: {why}");
    }
}

#[cfg(test)]
mod tests;
