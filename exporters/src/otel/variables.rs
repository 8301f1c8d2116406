//! OpenTelemetry's variables: each variable of its specification that is about spans, and its
//! effect here. The page `exporters/OPENTELEMETRY.md` is made from this table, and `settings` reads
//! no other variable.

use ccl::config::nearest;

/// The prefix of OpenTelemetry's names.
const PREFIX: &str = "OTEL_";

/// The effect of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It does what the specification says.
    Honoured,
    /// It has no effect, and is named on standard error if it is set.
    NotSupported,
    /// It has nothing to change here.
    Nothing,
}

/// One variable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) standing: Standing,
    /// The value if it is not set or invalid.
    pub(super) default: &'static str,
    pub(super) what: &'static str,
}

const fn honoured(name: &'static str, default: &'static str, what: &'static str) -> Variable {
    Variable { name, standing: Standing::Honoured, default, what }
}

const fn refused(name: &'static str, what: &'static str) -> Variable {
    Variable { name, standing: Standing::NotSupported, default: "", what }
}

const fn nothing(name: &'static str, what: &'static str) -> Variable {
    Variable { name, standing: Standing::Nothing, default: "", what }
}

/// All variables.
pub(super) const VARIABLES: &[Variable] = &[
    honoured("OTEL_SDK_DISABLED", "false", "`true`: no spans are sent."),
    honoured(
        "OTEL_TRACES_EXPORTER",
        "otlp",
        "`otlp` or `none`; others are named as not supported. Spans are sent where this is `otlp` or an endpoint is set, \
         so that nobody connects to a collector unasked.",
    ),
    honoured(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "http://localhost:4318",
        "The collector; `/v1/traces` is added. Only `http://`: a collector of this host or network, which may speak TLS to others.",
    ),
    honoured(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "",
        "The same for spans alone, taken as it is. It goes first.",
    ),
    honoured(
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "http/protobuf",
        "`http/protobuf`. With `grpc` or `http/json`, which are not supported, no spans are sent, and that is said.",
    ),
    honoured("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "", "The same for spans alone. It goes first."),
    honoured(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "",
        "Headers of every request, as `name=value,name=value`; values are percent-decoded. A malformed list is ignored whole.",
    ),
    honoured("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "", "The same for spans alone. It goes first."),
    honoured("OTEL_EXPORTER_OTLP_COMPRESSION", "none", "`gzip` or `none`."),
    honoured("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "", "The same for spans alone. It goes first."),
    honoured(
        "OTEL_EXPORTER_OTLP_TIMEOUT",
        "10000",
        "Milliseconds that a batch has, all attempts to send it together; 0: no limit.",
    ),
    honoured("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "", "The same for spans alone. It goes first."),
    refused("OTEL_EXPORTER_OTLP_CERTIFICATE", "There is no TLS."),
    refused("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "There is no TLS."),
    refused("OTEL_EXPORTER_OTLP_CLIENT_KEY", "There is no TLS."),
    refused("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "There is no TLS."),
    refused("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "There is no TLS."),
    refused("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "There is no TLS."),
    refused("OTEL_EXPORTER_OTLP_INSECURE", "It is about gRPC, which is not spoken."),
    refused("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "It is about gRPC, which is not spoken."),
    honoured(
        "OTEL_SERVICE_NAME",
        "unknown_service:PROGRAM",
        "`service.name`. It goes before `service.name` in `OTEL_RESOURCE_ATTRIBUTES`.",
    ),
    honoured(
        "OTEL_RESOURCE_ATTRIBUTES",
        "",
        "Attributes of the resource, as `name=value,name=value`; names and values are percent-decoded. They go before what was \
         found out (`host.name`, `process.pid`, ...), but not before `ccl.job` and `ccl.rank`. A malformed list is ignored whole.",
    ),
    honoured(
        "OTEL_TRACES_SAMPLER",
        "parentbased_always_on",
        "`always_on`, `always_off`, `traceidratio`, and `parentbased_` with each: the decision is made from the trace id, which all \
         ranks share, so all of them decide alike. No span here has a parent outside of its trace, so a `parentbased_` one does what it is \
         based on. `jaeger_remote`, `parentbased_jaeger_remote` and `xray` are named as not supported.",
    ),
    honoured("OTEL_TRACES_SAMPLER_ARG", "1.0", "The share of traces for `traceidratio`, 0 to 1."),
    honoured("OTEL_BSP_SCHEDULE_DELAY", "200", "Milliseconds that spans wait for more before they are sent."),
    honoured(
        "OTEL_BSP_EXPORT_TIMEOUT",
        "30000",
        "Milliseconds that a batch has, as `OTEL_EXPORTER_OTLP_TIMEOUT`: the shorter one counts; 0: no limit.",
    ),
    honoured(
        "OTEL_BSP_MAX_QUEUE_SIZE",
        "65536",
        "Spans that wait to be sent at most; what finds no room is dropped, and counted.",
    ),
    honoured(
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        "512",
        "Spans of one request at most. As many are sent at once, without waiting. Not more than the queue holds.",
    ),
    honoured(
        "OTEL_ATTRIBUTE_COUNT_LIMIT",
        "128",
        "Attributes of a span at most; what is dropped is counted in the span.",
    ),
    honoured("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "", "The same for spans alone. It goes first."),
    honoured(
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
        "no limit",
        "Characters of a text in an attribute of a span; the rest is cut off.",
    ),
    honoured("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "", "The same for spans alone. It goes first."),
    honoured(
        "OTEL_SPAN_LINK_COUNT_LIMIT",
        "128",
        "Links of a span at most; what is dropped is counted in the span.",
    ),
    nothing("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "Links have no attributes here."),
    nothing("OTEL_SPAN_EVENT_COUNT_LIMIT", "Spans have no events here."),
    nothing("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "Spans have no events here."),
    honoured(
        "OTEL_PROPAGATORS",
        "tracecontext,baggage",
        "With `tracecontext`, `TRACEPARENT` is read. `baggage` and `none` have no effect; others are named as not supported.",
    ),
    honoured(
        "TRACEPARENT",
        "",
        "The program's own span, as its launcher or job system sets it: every span of an operation, and of init of a \
         communicator, has a link to it. `ccl-inspect export` does not know that of another process.",
    ),
    honoured("TRACESTATE", "", "Goes with the link."),
    refused("OTEL_CONFIG_FILE", "There is no declarative configuration: the variables of this table hold."),
    refused("OTEL_LOG_LEVEL", "What the exporter says follows `RUST_LOG`, else `CCL_DEBUG`."),
    refused("OTEL_EXPORTER_ZIPKIN_ENDPOINT", "Only OTLP is spoken."),
    refused("OTEL_EXPORTER_ZIPKIN_TIMEOUT", "Only OTLP is spoken."),
    nothing(
        "OTEL_METRICS_EXPORTER",
        "Only spans are sent; the same goes for every other variable of metrics.",
    ),
    nothing("OTEL_LOGS_EXPORTER", "Only spans are sent; the same goes for every other variable of logs."),
];

/// Names that are similar to variables, each with the variable that was probably meant, as a
/// sentence. Names of other programs are left alone.
pub(super) fn misspelled(names: impl Iterator<Item = String>) -> Vec<String> {
    let known = || VARIABLES.iter().map(|variable| variable.name).filter(|name| name.starts_with(PREFIX));
    // The batches of log records have variables whose names are similar to those of spans.
    let others = |name: &String| name.starts_with("OTEL_BLRP_") || known().any(|known| known == name);
    let names = names.filter(|name| name.starts_with(PREFIX) && !others(name));
    let remark = |name: String| {
        let meant = nearest(&name, known())?;
        Some(format!("{name} is no variable of OpenTelemetry: {meant} is probably meant"))
    };
    let mut remarks: Vec<_> = names.filter_map(remark).collect();
    remarks.sort();
    remarks
}

/// The table of the page.
#[cfg(test)]
pub(super) fn page() -> String {
    let row = |variable: &Variable| {
        let Variable { name, standing, default, what } = variable;
        let standing = match standing {
            Standing::Honoured => "honoured",
            Standing::NotSupported => "not supported: named where it is set",
            Standing::Nothing => "nothing to do",
        };
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        format!("| `{name}` | {standing} | {default} | {what} |\n")
    };
    let head = "| Variable | | Default | What it does |\n|---|---|---|---|\n";
    head.to_string() + &VARIABLES.iter().map(row).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_a_variable_is_told_and_others_are_left_alone() {
        let check = |name: &str, meant: Option<&str>| {
            let said = |meant| format!("{name} is no variable of OpenTelemetry: {meant} is probably meant");
            let expect: Vec<_> = meant.into_iter().map(said).collect();
            assert_eq!(misspelled(std::iter::once(name.to_string())), expect);
        };
        check("OTEL_EXPORTER_OTLP_ENDPONT", Some("OTEL_EXPORTER_OTLP_ENDPOINT"));
        check("OTEL_EXPORTER_OTLP_TRACE_ENDPOINT", Some("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"));
        check("OTEL_SERVICENAME", Some("OTEL_SERVICE_NAME"));
        check("OTEL_TRACE_SAMPLER", Some("OTEL_TRACES_SAMPLER"));
        VARIABLES.iter().for_each(|variable| check(variable.name, None));
        // Variables of logs, of metrics, of SDKs of other languages, and one that only looks
        // similar.
        for others in [
            "OTEL_BLRP_SCHEDULE_DELAY",
            "OTEL_BLRP_EXPORT_TIMEOUT",
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
            "OTEL_EXPORTER_JAEGER_ENDPOINT",
            "OTEL_EXPORTER_PROMETHEUS_PORT",
            "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT",
            "OTEL_METRIC_EXPORT_INTERVAL",
            "OTEL_METRICS_EXEMPLAR_FILTER",
            "OTEL_PYTHON_LOG_LEVEL",
            "TRACEPARENTS",
        ] {
            check(others, None);
        }
    }
}
