//! A collector that keeps and checks what it receives: OTLP over HTTP, as protobuf.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl::clock;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span as Wire;
use prost::Message;

use crate::job::PATIENCE;

/// A span as it arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// Trace id, in hex.
    pub trace: String,
    /// Span id, in hex.
    pub id: String,
    /// The parent's id, in hex; empty if there is none.
    pub parent: String,
    /// Its name.
    pub name: String,
    /// When it began, in nanoseconds since 1970.
    pub from_ns: u64,
    /// When it ended.
    pub to_ns: u64,
    /// Its attributes, numbers as text.
    pub attributes: BTreeMap<String, String>,
    /// Trace and span id of each link.
    pub links: Vec<(String, String)>,
    /// The attributes of the sender.
    pub resource: BTreeMap<String, String>,
    /// Whether its status is an error.
    pub failed: bool,
}

impl Span {
    /// An attribute; empty if it has none of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

/// Everything that arrived.
#[derive(Clone, Default, Debug)]
pub struct Received {
    /// The spans, by trace and span id: a span that arrived twice counts once.
    pub spans: BTreeMap<(String, String), Span>,
    /// Spans that arrived again.
    pub again: u64,
    /// The requests, in order of arrival.
    pub requests: Vec<Asked>,
    /// Errors that were found.
    pub problems: Vec<String>,
}

/// One request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Its headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The number of its spans.
    pub spans: usize,
}

/// A collector on a port of its own. It listens until the test ends.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    received: Arc<Mutex<Received>>,
}

impl Receiver {
    /// Starts to listen.
    ///
    /// # Panics
    /// If the machine refuses.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its own address");
        let received: Arc<Mutex<Received>> = Arc::default();
        let into = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let into = Arc::clone(&into);
                std::thread::spawn(move || {
                    // The sender may die in the middle.
                    let _ = serve(&stream, &into);
                });
            }
        });
        Self { address, received }
    }

    /// Its address, as in `OTEL_EXPORTER_OTLP_ENDPOINT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that has arrived.
    #[must_use]
    pub fn received(&self) -> Received {
        lock(&self.received).clone()
    }

    /// Waits until `is_enough` accepts what has arrived.
    ///
    /// # Panics
    /// It did not within a minute.
    pub fn until(&self, what: &str, is_enough: impl Fn(&Received) -> bool) -> Received {
        let end = clock::now().after(PATIENCE);
        loop {
            let received = self.received();
            if is_enough(&received) {
                return received;
            }
            let (spans, problems) = (received.spans.len(), &received.problems);
            assert!(clock::now() < end, "{what} did not arrive: {spans} spans, {problems:?}");
            clock::sleep(Duration::from_millis(10));
        }
    }
}

fn lock(received: &Mutex<Received>) -> MutexGuard<'_, Received> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(stream: &TcpStream, into: &Mutex<Received>) -> std::io::Result<()> {
    let mut input = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line == "\r\n" {
                break;
            }
            head.push(line.trim_end().to_string());
        }
        let header = |name: &str| {
            let mut pairs = head.iter().filter_map(|line| line.split_once(": "));
            pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
        };
        let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
        input.read_exact(&mut body)?;
        if header("content-encoding") == "gzip" {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(&*body).read_to_end(&mut plain)?;
            body = plain;
        }
        let said = head.first().map_or("", String::as_str);
        let problem = if !said.starts_with("POST /v1/traces HTTP/1.1") {
            Some(format!("asked for {said}"))
        } else if header("content-type") != "application/x-protobuf" {
            Some(format!("content-type {}", header("content-type")))
        } else {
            let split =
                |line: &String| line.split_once(": ").map(|(k, v)| (k.to_ascii_lowercase(), v.to_string()));
            keep(&body, head.iter().filter_map(split).collect(), &mut lock(into)).err()
        };
        let status = if problem.is_some() { "400 Bad Request" } else { "200 OK" };
        lock(into).problems.extend(problem);
        let answer = "content-type: application/x-protobuf\r\ncontent-length: 0";
        write!(&mut &*stream, "HTTP/1.1 {status}\r\n{answer}\r\n\r\n")?;
    }
}

fn keep(body: &[u8], headers: BTreeMap<String, String>, received: &mut Received) -> Result<(), String> {
    let request = ExportTraceServiceRequest::decode(body).map_err(|e| format!("no OTLP: {e}"))?;
    let scopes = request.resource_spans.iter().flat_map(|from| &from.scope_spans);
    let spans = scopes.map(|scope| scope.spans.len()).sum();
    received.requests.push(Asked { headers, spans });
    for from in request.resource_spans {
        let resource = attributes(from.resource.map(|resource| resource.attributes).unwrap_or_default());
        for wire in from.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let span = span(wire, &resource);
            received.problems.extend(wrong(&span));
            let key = (span.trace.clone(), span.id.clone());
            match received.spans.get(&key) {
                Some(known) if *known == span => received.again += 1,
                Some(known) => {
                    received.problems.push(format!("two spans with one id: {known:?} and {span:?}"));
                }
                None => drop(received.spans.insert(key, span)),
            }
        }
    }
    Ok(())
}

fn span(wire: Wire, resource: &BTreeMap<String, String>) -> Span {
    Span {
        trace: hex(&wire.trace_id),
        id: hex(&wire.span_id),
        parent: hex(&wire.parent_span_id),
        name: wire.name,
        from_ns: wire.start_time_unix_nano,
        to_ns: wire.end_time_unix_nano,
        attributes: attributes(wire.attributes),
        links: wire.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
        resource: resource.clone(),
        failed: wire.status.is_some_and(|status| status.code == 2),
    }
}

/// An error in a span by itself.
fn wrong(span: &Span) -> Option<String> {
    let zero = |id: &str, digits| id.len() != digits || id.bytes().all(|b| b == b'0');
    let what = if zero(&span.trace, 32) || zero(&span.id, 16) {
        "its ids are none"
    } else if !span.parent.is_empty() && zero(&span.parent, 16) {
        "its parent's id is none"
    } else if span.to_ns < span.from_ns {
        "it ends before it begins"
    } else if span.to_ns > clock::real_ns() {
        "it ends in the future"
    } else if !["service.name", "host.name", "process.pid"].iter().all(|key| span.resource.contains_key(*key))
    {
        "nobody says who it is from"
    } else {
        return None;
    };
    Some(format!("{what}: {span:?}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(pairs: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    pairs.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}
