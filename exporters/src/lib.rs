//! What ccl records, in the tools people already use. Exporters are readers: none can block or fail the data path.
//!
//! | what | where it goes |
//! |---|---|
//! | [`init_from_env`] | the one line of a program: switches on what the environment asks for, as below |
//! | [`otel`] | OpenTelemetry: phases, collectives and messages as spans, sent as OTLP |
//!
//! | the environment says | what is switched on |
//! |---|---|
//! | `RUST_LOG`, `CCL_DEBUG` | the program's own `tracing` events, as lines on standard error |
//! | `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | OpenTelemetry. What is spoken is `http/protobuf` (port 4318), without TLS: to a collector on this host or network. Also read: `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER=none`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`, `_TIMEOUT`, `_PROTOCOL` and the same for `TRACES` alone. `CCL_LEVEL=2` adds a span per message |
//!
//! NVTX ranges, Chrome and Perfetto traces and Prometheus are not here yet; a program that calls [`init_from_env`] today gets them
//! without a change when they are. `ccl-inspect` reads what ccl records from outside, and exports it for programs that do not.

#[cfg(feature = "otel")]
pub mod otel;

use ccl::config::{self, Key, Settings};
use tracing_subscriber::EnvFilter;

/// Switches on what the environment asks for. The one line a program adds; calling it again changes nothing.
///
/// `RUST_LOG` says which of the program's `tracing` events are written to standard error; where it is not set, `CCL_DEBUG` does
/// (`WARN` by default). A subscriber that the program has already set stays.
pub fn init_from_env() {
    // A setting that is not valid is reported by the communicator, which refuses it: an exporter never fails a job.
    let settings = Settings::of_process().unwrap_or_default();
    let rust_log = config::environment("RUST_LOG");
    let filter = directives(rust_log.as_deref(), settings.text(Key::Log));
    // The error means that there is a subscriber: the program's own, or ours from an earlier call.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(filter))
        .with_writer(std::io::stderr)
        .try_init();
    #[cfg(feature = "otel")]
    otel::init_from_env();
}

/// The directives of the filter, in the notation of `RUST_LOG`.
fn directives<'a>(rust_log: Option<&'a str>, debug: &str) -> &'a str {
    match (rust_log, debug) {
        (Some(directives), _) if !directives.is_empty() => directives,
        (_, "TRACE") => "trace",
        (_, "INFO") => "info",
        (_, "NONE" | "VERSION") => "off",
        _ => "warn",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_log_goes_before_ccl_debug() {
        assert_eq!(directives(Some("my_program=debug"), "NONE"), "my_program=debug");
        assert_eq!(directives(Some(""), "INFO"), "info");
        for (debug, expect) in [("", "warn"), ("WARN", "warn"), ("VERSION", "off"), ("TRACE", "trace")] {
            assert_eq!(directives(None, debug), expect, "{debug}");
        }
    }

    #[test]
    fn calling_twice_changes_nothing() {
        init_from_env();
        init_from_env();
        tracing::error!("a line of the test");
    }
}
