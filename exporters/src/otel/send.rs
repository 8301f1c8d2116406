//! The sending thread: batch after batch, each until it is accepted, refused, or its time is over.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ccl::clock::{self, Ns};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::trace::SpanExporter as _;
use prost::Message;

use super::client::{Client, Outcome};
use super::fact::{Emitter, Fact};
use super::queue::{Fate, Queue};

/// The first pause before a batch is sent again; each is twice as long as the one before, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// Exporters that are kept, each for one emitter: a process has one or few.
const MOST_EXPORTERS: usize = 64;

/// Where to send, and how long to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Way {
    pub(super) url: String,
    /// For one batch, all attempts together.
    pub(super) timeout: Duration,
}

/// Sends what is queued until the queue is closed and empty, or its time is over.
#[derive(Debug)]
pub(super) struct Sender {
    way: Way,
    queue: Arc<Queue>,
    client: Arc<Client>,
    exporters: BTreeMap<u64, SpanExporter>,
    /// Whether the last batch arrived: changes are said aloud, not every failure.
    arrives: bool,
}

impl Sender {
    pub(super) fn new(way: Way, queue: Arc<Queue>) -> Self {
        Self { way, queue, client: Arc::new(Client::new()), exporters: BTreeMap::new(), arrives: true }
    }

    pub(super) fn run(mut self) {
        while let Some(batch) = self.queue.take() {
            let fate = self.deliver(&batch);
            self.queue.settle(fate);
            // Nobody there, or no time left: at the end nothing is waited for.
            let is_over = self.queue.closes().is_some() && fate == Fate::Dropped;
            if is_over || self.queue.is_late() {
                self.queue.drop_queued();
            }
        }
        self.queue.end();
    }

    /// Sends a batch, again if need be. Ids are the same every time: a collector that got it twice has it once.
    fn deliver(&mut self, batch: &[Fact]) -> Fate {
        let deadline = clock::now().after(self.way.timeout);
        let mut pause = FIRST_PAUSE;
        let mut in_doubt = false;
        loop {
            let until = self.queue.closes().map_or(deadline, |closes| closes.min(deadline));
            let (why, wait) = match self.attempt(batch, until) {
                Outcome::Answered { status: 200..=299, body, .. } => {
                    self.say(Ok(()));
                    return Fate::Delivered { rejected: rejected(&body) };
                }
                Outcome::Answered { status: status @ (429 | 502 | 503 | 504), retry_after, .. } => {
                    (format!("the collector answers {status}"), Some(retry_after.unwrap_or(pause)))
                }
                Outcome::Answered { status, .. } => (format!("the collector answers {status}"), None),
                // At the end nobody waits for a collector that is not there.
                Outcome::NotSent(why) => (why, self.queue.closes().is_none().then_some(pause)),
                Outcome::InDoubt(why) => {
                    in_doubt = true;
                    (why, Some(pause))
                }
            };
            self.say(Err(&why));
            let until = self.queue.closes().map_or(deadline, |closes| closes.min(deadline));
            match wait {
                Some(wait) if clock::now().after(wait) < until => self.queue.pause(wait),
                _ if in_doubt => return Fate::Unknown,
                _ => return Fate::Dropped,
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    fn attempt(&mut self, batch: &[Fact], until: Ns) -> Outcome {
        let emitter = match batch.first() {
            Some(fact) => Arc::clone(&fact.owner.emitter),
            None => return Outcome::NotSent("there is nothing to send".into()),
        };
        let client = Arc::clone(&self.client);
        client.allow(until);
        let exporter = match self.exporter(&emitter) {
            Ok(exporter) => exporter,
            Err(why) => return Outcome::NotSent(why),
        };
        let sent = at_once(exporter.export(batch.iter().map(Fact::span).collect()));
        client.outcome().unwrap_or_else(|| Outcome::NotSent(format!("nothing was sent: {sent:?}")))
    }

    fn exporter(&mut self, emitter: &Emitter) -> Result<&SpanExporter, String> {
        if self.exporters.len() >= MOST_EXPORTERS && !self.exporters.contains_key(&emitter.number) {
            self.exporters.clear();
        }
        match self.exporters.entry(emitter.number) {
            std::collections::btree_map::Entry::Occupied(known) => Ok(known.into_mut()),
            std::collections::btree_map::Entry::Vacant(place) => {
                let mut exporter = build(&self.way, Arc::clone(&self.client))?;
                exporter.set_resource(&emitter.resource);
                Ok(place.insert(exporter))
            }
        }
    }

    fn say(&mut self, result: Result<(), &str>) {
        let url = &self.way.url;
        match (result, self.arrives) {
            (Err(why), true) => tracing::warn!("OpenTelemetry: no spans arrive at {url}: {why}"),
            (Ok(()), false) => tracing::info!("OpenTelemetry: spans arrive at {url} again"),
            _ => {}
        }
        self.arrives = result.is_ok();
    }
}

/// An exporter of the OTLP crate around our client, which alone decides what is tried again.
pub(super) fn build(way: &Way, client: Arc<Client>) -> Result<SpanExporter, String> {
    SpanExporter::builder()
        .with_http()
        .with_shared_http_client(client)
        .with_retry_policy(RetryPolicy::disabled())
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(&way.url)
        .with_timeout(way.timeout)
        .build()
        .map_err(|e| e.to_string())
}

/// Spans that an answer says were not accepted.
fn rejected(body: &[u8]) -> u64 {
    let answer = ExportTraceServiceResponse::decode(body).unwrap_or_default();
    answer.partial_success.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

/// The result of a future that never waits for anything but the thread it runs on: our client blocks.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests;
