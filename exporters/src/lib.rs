//! What ccl records, in the tools people already use. Exporters are readers: none can block or fail the data path.
//!
//! | what | where it goes |
//! |---|---|
//! | [`init_from_env`] | the one line of a program: switches on what the environment asks for, as below |
//! | [`trace`] | Chrome traces: what ccl records and the program's own `tracing` spans |
//! | [`otel`] | OpenTelemetry: phases, collectives and messages as spans, sent as OTLP |
//! | `nvtx` | every call and phase of making, as ranges of the calling thread; with the feature `nvtx` |
//! | `told` | which events tell of a rank's work, for all of these |
//!
//! | the environment says | what is switched on |
//! |---|---|
//! | `RUST_LOG`, `CCL_DEBUG` | the program's own `tracing` events, as lines on standard error |
//! | `CCL_TRACE=folder` | a Chrome trace of the process, with the program's own spans; `ccl-inspect trace --folder` makes one of all ranks |
//! | `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | OpenTelemetry. What is spoken is `http/protobuf` (port 4318), without TLS: to a collector on this host or network. Also read: `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER=none`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`, `_TIMEOUT`, `_PROTOCOL` and the same for `TRACES` alone. `CCL_LEVEL=2` adds a span per message |
//! | `NVTX_INJECTION64_PATH` | that tool is told of calls and phases |
//!
//! NVTX is told inline, from within; everything else reads. Prometheus is not here yet; a program that calls [`init_from_env`] today gets
//! it without a change when it is. `ccl-inspect` reads what ccl records from outside, and exports it for programs that do not call it.

#[cfg(feature = "nvtx")]
mod nvtx;
#[cfg(feature = "otel")]
pub mod otel;
mod told;
pub mod trace;

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Once;

use ccl::config::{self, Key, Settings};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Switches on what the environment asks for. The one line a program adds; calling it again changes nothing.
///
/// `RUST_LOG` says which of the program's `tracing` events are written to standard error; where it is not set, `CCL_DEBUG` does
/// (`WARN` by default). A subscriber that the program has already set stays.
///
/// A tool for NVTX, such as `nsys profile --trace=nvtx`, is told of calls where this crate was built with the feature `nvtx`.
pub fn init_from_env() {
    static ONCE: Once = Once::new();
    ONCE.call_once(init);
}

fn init() {
    // A setting that is not valid is reported by the communicator, which refuses it: an exporter never fails a job.
    let settings = Settings::of_process().unwrap_or_default();
    let rust_log = config::environment("RUST_LOG");
    let filter = directives(rust_log.as_deref(), settings.text(Key::Log));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // Left alone on a terminal, it heeds NO_COLOR.
    let lines = if std::io::stderr().is_terminal() { lines } else { lines.with_ansi(false) };
    let lines = lines.with_filter(EnvFilter::builder().parse_lossy(filter));
    let folder = Some(settings.text(Key::Trace)).filter(|folder| !folder.is_empty()).map(Path::new);
    let (spans, app) = match folder.map(trace::layer) {
        None => (None, None),
        Some(Ok((spans, app))) => (Some(spans), Some(Ok(app))),
        Some(Err(error)) => (None, Some(Err(error))),
    };
    // The error means that there is a subscriber, the program's own: its spans are its own affair.
    let _ = tracing_subscriber::registry().with(lines).with(spans).try_init();
    match (folder, app) {
        (Some(folder), Some(Err(error))) => tracing::warn!("CCL_TRACE={}: {error}", folder.display()),
        (Some(folder), Some(Ok(app))) => trace::begin(folder, app),
        _ => {}
    }
    #[cfg(feature = "nvtx")]
    nvtx::init();
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
