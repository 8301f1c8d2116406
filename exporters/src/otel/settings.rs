//! The values of OpenTelemetry's variables, read once as its specification says: an empty variable
//! is not set, an invalid one is named and its default taken, and an unsupported one is named.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use ccl::config::{environment, environment_names};
use http::{HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

use super::sample::Sampler;
use super::send::Way;
use super::variables::{Standing, VARIABLES, misspelled};

/// The path of traces in OTLP, below a general endpoint.
pub(super) const TRACES: &str = "v1/traces";
/// The endpoint if none is set and spans are asked for.
const LOCAL: &str = "http://localhost:4318";
/// Long enough to be no limit.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// How spans are collected and sent.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The url, if spans are asked for; otherwise the reason.
    pub(super) url: Result<Option<String>, String>,
    pub(super) way: Way,
    pub(super) batch: Batch,
    pub(super) limits: Limits,
    pub(super) sampler: Sampler,
    pub(super) service: Option<String>,
    /// Attributes of the resource.
    pub(super) attributes: Vec<(String, String)>,
    /// The program's own span.
    pub(super) program: Option<SpanContext>,
    /// The settings that could not be applied, one sentence each.
    pub(super) notes: Vec<String>,
}

/// How spans are queued and batched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Batch {
    /// How long a batch waits for more spans.
    pub(super) delay: Duration,
    /// The most spans in the queue.
    pub(super) queue: usize,
    /// The most spans in one request.
    pub(super) most: usize,
}

impl Default for Batch {
    /// Eight seconds of 8,000 operations each, in 10 MB; requests as large as those of
    /// OpenTelemetry's own SDKs.
    fn default() -> Self {
        Self { delay: Duration::from_millis(200), queue: 1 << 16, most: 512 }
    }
}

/// The limits of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub(super) attributes: usize,
    /// The most characters of a text.
    pub(super) text: usize,
    pub(super) links: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { attributes: 128, text: usize::MAX, links: 128 }
    }
}

impl Settings {
    pub(super) fn from_env() -> Self {
        let mut settings = Self::read(&environment);
        settings.notes.extend(misspelled(environment_names()));
        settings
    }

    pub(super) fn read(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut reading = Reading { variable, notes: Vec::new() };
        let url = reading.url();
        let program = reading.program();
        let (service, attributes) = (reading.text("OTEL_SERVICE_NAME"), reading.attributes());
        let (batch, limits, sampler) = (reading.batch(), reading.limits(), reading.sampler());
        let way = Way { url: String::new(), ..reading.way() };
        for refused in VARIABLES.iter().filter(|known| known.standing == Standing::NotSupported) {
            if reading.text(refused.name).is_some() {
                let why = refused.what.trim_end_matches('.');
                reading.notes.push(format!("{} is not supported, and has no effect: {why}", refused.name));
            }
        }
        Self { url, way, batch, limits, sampler, service, attributes, program, notes: reading.notes }
    }
}

struct Reading<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    notes: Vec<String>,
}

impl Reading<'_> {
    fn text(&self, name: &str) -> Option<String> {
        debug_assert!(VARIABLES.iter().any(|known| known.name == name), "{name} stands in the table");
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// The first of these variables that is set, with its name.
    fn first<'a>(&self, names: [&'a str; 2]) -> Option<(&'a str, String)> {
        let [first, second] = names.map(|name| self.text(name).map(|value| (name, value)));
        first.or(second)
    }

    fn of_otlp(&self, what: &str) -> Option<(String, String)> {
        let [own, general] =
            ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"].map(|begin| format!("{begin}{what}"));
        self.first([own.as_str(), general.as_str()]).map(|(name, value)| (name.to_string(), value))
    }

    /// Notes that a value is invalid.
    fn wrong(&mut self, name: &str, value: &str, instead: &str) {
        self.notes.push(format!("{name}={value}: {instead}"));
    }

    /// A number of at least `least`.
    fn number(&mut self, name: &str, least: u64) -> Option<u64> {
        let value = self.text(name)?;
        let number = value.trim().parse().ok().filter(|number| *number >= least);
        if number.is_none() {
            let default = VARIABLES.iter().find(|known| known.name == name).map_or("", |known| known.default);
            let instead =
                if default.is_empty() { "it counts as not set".into() } else { format!("{default} holds") };
            self.wrong(name, &value, &format!("not a whole number of at least {least}; {instead}"));
        }
        number
    }

    fn url(&mut self) -> Result<Option<String>, String> {
        let disabled = self.is_true("OTEL_SDK_DISABLED");
        let exporters = self.text("OTEL_TRACES_EXPORTER");
        let own = self.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let general = self.text("OTEL_EXPORTER_OTLP_ENDPOINT");
        let protocol = self.of_otlp("PROTOCOL");
        let given = own.or_else(|| general.map(|base| below(&base)));
        let mut asked = given.is_some();
        if let Some(exporters) = exporters.as_deref().filter(|_| !disabled) {
            let known: Vec<_> = exporters.split(',').map(|word| word.trim().to_ascii_lowercase()).collect();
            let others: Vec<_> =
                known.iter().filter(|word| !["otlp", "none", ""].contains(&word.as_str())).collect();
            asked = known.iter().any(|word| word == "otlp");
            for other in &others {
                let what = format!("OTEL_TRACES_EXPORTER={other} is not supported: it is otlp or none");
                if !asked {
                    return Err(what);
                }
                self.notes.push(what);
            }
        }
        if disabled || !asked {
            return Ok(None);
        }
        match protocol {
            Some((name, value)) if ["grpc", "http/json"].contains(&value.to_ascii_lowercase().as_str()) => {
                return Err(format!(
                    "{name}={value} is not supported: set it to http/protobuf, and the endpoint to the collector's port for \
                     that (4318)"
                ));
            }
            Some((name, value)) if !value.eq_ignore_ascii_case("http/protobuf") => {
                self.wrong(&name, &value, "no protocol of OTLP; http/protobuf is spoken");
            }
            _ => {}
        }
        Ok(Some(given.unwrap_or_else(|| below(LOCAL))))
    }

    fn is_true(&mut self, name: &str) -> bool {
        let Some(value) = self.text(name) else { return false };
        let is_true = value.eq_ignore_ascii_case("true");
        if !is_true && !value.eq_ignore_ascii_case("false") {
            self.wrong(name, &value, "neither true nor false; it counts as false");
        }
        is_true
    }

    fn way(&mut self) -> Way {
        let mut way = Way::default();
        let names = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let batch = self.time("OTEL_BSP_EXPORT_TIMEOUT").unwrap_or(Duration::from_secs(30));
        let [own, general] = names.map(|name| self.time(name));
        way.timeout = own.or(general).unwrap_or(way.timeout).min(batch);
        if let Some((name, value)) = self.of_otlp("COMPRESSION") {
            way.gzip = value.eq_ignore_ascii_case("gzip");
            if !way.gzip && !value.eq_ignore_ascii_case("none") {
                self.wrong(&name, &value, "not supported; it is gzip or none, and nothing is compressed");
            }
        }
        if let Some((name, value)) = self.of_otlp("HEADERS") {
            let pairs = pairs(&value).and_then(|pairs| {
                let header = |(name, value): (String, String)| {
                    Some((HeaderName::from_str(&name).ok()?, HeaderValue::from_str(&value).ok()?))
                };
                pairs.into_iter().map(header).collect()
            });
            match pairs {
                Some(headers) => way.headers = headers,
                // Headers may hold a secret, which is not repeated.
                None => self.wrong(&name, "...", "not a list name=value,name=value; no header is added"),
            }
        }
        way
    }

    fn time(&mut self, name: &str) -> Option<Duration> {
        let limited = |ms| if ms == 0 { NO_LIMIT } else { Duration::from_millis(ms).min(NO_LIMIT) };
        self.number(name, 0).map(limited)
    }

    fn batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        if let Some(ms) = self.number("OTEL_BSP_SCHEDULE_DELAY", 0) {
            batch.delay = Duration::from_millis(ms).min(NO_LIMIT);
        }
        if let Some(queue) = self.number("OTEL_BSP_MAX_QUEUE_SIZE", 1) {
            batch.queue = queue as usize;
        }
        let most = self.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1).map(|most| most as usize);
        if let Some(most) = most.filter(|most| *most > batch.queue) {
            let instead = format!("more than OTEL_BSP_MAX_QUEUE_SIZE; {} holds", batch.queue);
            self.wrong("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", &most.to_string(), &instead);
        }
        batch.most = most.unwrap_or(batch.most).min(batch.queue);
        batch
    }

    fn limits(&mut self) -> Limits {
        let mut of = |general: Option<&str>, own: &str, default: usize| {
            let general = general.and_then(|general| self.number(general, 0));
            self.number(own, 0)
                .or(general)
                .map_or(default, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
        };
        let all = Limits::default();
        Limits {
            attributes: of(
                Some("OTEL_ATTRIBUTE_COUNT_LIMIT"),
                "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
                all.attributes,
            ),
            text: of(
                Some("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"),
                "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
                all.text,
            ),
            links: of(None, "OTEL_SPAN_LINK_COUNT_LIMIT", all.links),
        }
    }

    fn sampler(&mut self) -> Sampler {
        let argument = self.text("OTEL_TRACES_SAMPLER_ARG");
        let Some(value) = self.text("OTEL_TRACES_SAMPLER") else { return Sampler::All };
        let name = value.to_ascii_lowercase();
        match name.strip_prefix("parentbased_").unwrap_or(&name) {
            "always_on" => Sampler::All,
            "always_off" => Sampler::None,
            "traceidratio" => {
                let Some(argument) = argument else { return Sampler::All };
                let ratio = argument.trim().parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
                if ratio.is_none() {
                    let instead = "not a number from 0 to 1; 1.0 holds";
                    self.wrong("OTEL_TRACES_SAMPLER_ARG", &argument, instead);
                }
                Sampler::Share(ratio.unwrap_or(1.0))
            }
            "jaeger_remote" | "xray" => {
                self.wrong("OTEL_TRACES_SAMPLER", &value, "not supported; parentbased_always_on holds");
                Sampler::All
            }
            _ => {
                self.wrong("OTEL_TRACES_SAMPLER", &value, "no sampler; parentbased_always_on holds");
                Sampler::All
            }
        }
    }

    fn attributes(&mut self) -> Vec<(String, String)> {
        let Some(value) = self.text("OTEL_RESOURCE_ATTRIBUTES") else { return Vec::new() };
        pairs(&value).unwrap_or_else(|| {
            let instead =
                "not a list name=value,name=value with %XX for other characters; all of it is ignored";
            self.wrong("OTEL_RESOURCE_ATTRIBUTES", &value, instead);
            Vec::new()
        })
    }

    fn program(&mut self) -> Option<SpanContext> {
        let parent = self.text("TRACEPARENT");
        let state = self.text("TRACESTATE");
        if let Some(propagators) = self.text("OTEL_PROPAGATORS") {
            let words: BTreeSet<_> =
                propagators.split(',').map(|word| word.trim().to_ascii_lowercase()).collect();
            let known = ["tracecontext", "baggage", "none", ""];
            for other in words.iter().filter(|word| !known.contains(&word.as_str())) {
                self.wrong("OTEL_PROPAGATORS", other, "not supported; it is tracecontext, baggage or none");
            }
            if !words.contains("tracecontext") {
                return None;
            }
        }
        let parent = parent?;
        let state = state.and_then(|state| TraceState::from_str(&state).ok()).unwrap_or_default();
        let context = context(&parent, state);
        if context.is_none() {
            self.wrong(
                "TRACEPARENT",
                &parent,
                "no context as W3C writes it (00-TRACE-SPAN-FLAGS); no link is made",
            );
        }
        context
    }
}

fn below(base: &str) -> String {
    format!("{}/{TRACES}", base.trim_end_matches('/'))
}

/// Parses a list as in W3C's baggage; `None` if it is malformed.
fn pairs(list: &str) -> Option<Vec<(String, String)>> {
    let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let pair = |entry: &str| {
        let (name, value) = entry.split_once('=')?;
        let name = decoded(name.trim())?;
        (!name.is_empty()).then_some((name, decoded(value.trim())?))
    };
    entries.map(pair).collect()
}

/// Decodes %XX in a text; `None` if it is malformed.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let (byte, others) = match (first, others) {
            (b'%', [high, low, others @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                (u8::try_from(digit(high)? << 4 | digit(low)?).ok()?, others)
            }
            (b'%', _) => return None,
            (byte, others) => (*byte, others),
        };
        bytes.push(byte);
        rest = others;
    }
    String::from_utf8(bytes).ok()
}

/// Parses a context in the form of W3C's `traceparent`.
fn context(parent: &str, state: TraceState) -> Option<SpanContext> {
    let is_hex = |word: &str, digits: usize| {
        word.len() == digits && word.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let words: Vec<&str> = parent.trim().split('-').collect();
    let [version, trace, span, flags, ref more @ ..] = words[..] else { return None };
    let well = is_hex(version, 2)
        && version != "ff"
        && (version != "00" || more.is_empty())
        && is_hex(trace, 32)
        && is_hex(span, 16)
        && is_hex(flags, 2);
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let context = SpanContext::new(trace, span, flags, true, state);
    (well && context.is_valid()).then_some(context)
}

#[cfg(test)]
mod tests;
