//! The sending thread: sends batch after batch, each until it is accepted, refused, or its time is
//! over.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use ccl::clock;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderName, HeaderValue, Uri};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::trace::SpanData;
use prost::Message;

use super::client::{Client, Outcome, Request};
use super::fact::Fact;
use super::queue::{Fate, Queue};
use super::settings::Limits;

/// The first pause before a batch is sent again; each pause is twice the one before, up to the
/// last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Where and how to send, and how long to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Way {
    pub(super) url: String,
    /// The timeout of one batch, for all attempts together.
    pub(super) timeout: Duration,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) gzip: bool,
}

impl Default for Way {
    fn default() -> Self {
        Self { url: String::new(), timeout: Duration::from_secs(10), headers: Vec::new(), gzip: false }
    }
}

impl Way {
    /// Parses the url.
    ///
    /// # Errors
    /// Why nothing can be sent there.
    pub(super) fn uri(&self) -> Result<Uri, String> {
        let uri: Uri = self.url.parse().map_err(|e| format!("{e}"))?;
        if uri.host().is_none_or(str::is_empty) { Err("it names no host".into()) } else { Ok(uri) }
    }

    /// The headers of every request.
    fn all_headers(&self) -> Vec<Vec<u8>> {
        let line = |name: &str, value: &[u8]| [name.as_bytes(), b": ", value].concat();
        let mut all = vec![line("content-type", b"application/x-protobuf")];
        if self.gzip {
            all.push(line("content-encoding", b"gzip"));
        }
        let given = |name: &str| self.headers.iter().any(|(known, _)| known == name);
        if !given("user-agent") {
            all.push(line(
                "user-agent",
                concat!("OTel-OTLP-Exporter-Ccl/", env!("CARGO_PKG_VERSION")).as_bytes(),
            ));
        }
        all.extend(self.headers.iter().map(|(name, value)| line(name.as_str(), value.as_bytes())));
        all
    }
}

/// Sends the queued facts until the queue is closed and empty, or its time is over.
#[derive(Debug)]
pub(super) struct Sender {
    way: Way,
    uri: Uri,
    limits: Limits,
    queue: Arc<Queue>,
    client: Client,
    /// Whether the last batch arrived: only changes are reported, not every failure.
    arrives: bool,
}

impl Sender {
    /// Creates a sender.
    ///
    /// # Errors
    /// Why nothing can be sent that way.
    pub(super) fn new(way: Way, limits: Limits, queue: Arc<Queue>) -> Result<Self, String> {
        let uri = way.uri()?;
        Ok(Self { way, uri, limits, queue, client: Client::new(), arrives: true })
    }

    pub(super) fn run(mut self) {
        while let Some(batch) = self.queue.take() {
            let fate = self.deliver(&batch);
            self.queue.settle(fate);
            // The collector is unreachable, or no time is left: it does not wait at the end.
            let is_over = self.queue.closes().is_some() && fate == Fate::Dropped;
            if is_over || self.queue.is_late() {
                self.queue.drop_queued();
            }
        }
        self.queue.end();
    }

    /// Sends a batch, repeatedly if needed. The ids stay the same: a collector that got it twice
    /// has it once.
    fn deliver(&mut self, batch: &[Fact]) -> Fate {
        let (headers, body) = (self.way.all_headers(), self.body(batch));
        let deadline = clock::now().after(self.way.timeout);
        let mut pause = FIRST_PAUSE;
        let mut in_doubt = false;
        loop {
            let until = self.queue.closes().map_or(deadline, |closes| closes.min(deadline));
            let (why, wait) =
                match self.client.post(&Request { uri: &self.uri, headers: &headers, body: &body }, until) {
                    Outcome::Answered { status: 200..=299, body, .. } => {
                        self.say(Ok(()));
                        return Fate::Delivered { rejected: rejected(&body) };
                    }
                    Outcome::Answered { status: status @ (429 | 502 | 503 | 504), retry_after, .. } => {
                        (format!("the collector answers {status}"), Some(retry_after.unwrap_or(pause)))
                    }
                    Outcome::Answered { status, .. } => (format!("the collector answers {status}"), None),
                    // At the end it does not wait for a collector that is unreachable.
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

    /// A batch as OTLP, all of one emitter.
    fn body(&self, batch: &[Fact]) -> Vec<u8> {
        let Some(first) = batch.first() else { return Vec::new() };
        let spans = batch.iter().map(|fact| self.limits.cut(fact.span())).collect();
        let resource = ResourceAttributesWithSchema::from(&first.owner.emitter.resource);
        let resource_spans = group_spans_by_resource_and_scope(spans, &resource);
        let plain = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        if !self.way.gzip {
            return plain;
        }
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        let written = packed.write_all(&plain).and_then(|()| packed.finish());
        written.expect("a vector takes what it is given")
    }

    fn say(&mut self, result: Result<(), &str>) {
        let url = &self.way.url;
        match (result, self.arrives) {
            (Err(why), arrives) => {
                if arrives {
                    tracing::warn!("OpenTelemetry: no spans arrive at {url}: {why}");
                }
                self.queue.failed(format!("{url}: {why}"));
            }
            (Ok(()), false) => tracing::info!("OpenTelemetry: spans arrive at {url} again"),
            (Ok(()), true) => {}
        }
        self.arrives = result.is_ok();
    }
}

impl Limits {
    /// Cuts a span to the limits.
    fn cut(&self, mut span: SpanData) -> SpanData {
        let most =
            |count: usize, limit: usize| u32::try_from(count.saturating_sub(limit)).unwrap_or(u32::MAX);
        span.dropped_attributes_count += most(span.attributes.len(), self.attributes);
        span.attributes.truncate(self.attributes);
        span.links.dropped_count += most(span.links.links.len(), self.links);
        span.links.links.truncate(self.links);
        for pair in &mut span.attributes {
            if let opentelemetry::Value::String(text) = &pair.value
                && let Some((at, _)) = text.as_str().char_indices().nth(self.text)
            {
                pair.value = text.as_str()[..at].to_string().into();
            }
        }
        span
    }
}

/// The number of spans that were not accepted according to the answer.
fn rejected(body: &[u8]) -> u64 {
    let answer = ExportTraceServiceResponse::decode(body).unwrap_or_default();
    answer.partial_success.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

#[cfg(test)]
mod tests;
