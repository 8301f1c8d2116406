//! Exporters of what ccl records, for common tools. Exporters are readers: none can block or fail
//! the data path.
//!
//! | what | where it goes |
//! |---|---|
//! | [`init_from_env`] | the one line of a program: switches on what the environment asks for |
//! | [`trace`] | Chrome traces: what ccl records and the program's own `tracing` spans |
//! | [`otel`] | OpenTelemetry: phases, collectives and messages as spans, sent as OTLP |
//! | `nvtx` | every call and phase of init, as ranges of the calling thread; feature `nvtx` |
//! | [`bandwidth`] | the bandwidth of an operation, as nccl-tests defines it |
//! | `exportable` | which events describe a rank's work, for all of these |
//!
//! | the environment says | what is switched on |
//! |---|---|
//! | `RUST_LOG`, `CCL_DEBUG` | the program's own `tracing` events, as lines on standard error |
//! | `CCL_TRACE=folder` | a Chrome trace of the process, with the program's own spans |
//! | `OTEL_EXPORTER_OTLP_ENDPOINT` | OpenTelemetry, to a collector on this host or network |
//! | `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | the same, for traces only |
//! | `OTEL_TRACES_EXPORTER=otlp` | the same, with the default endpoint |
//! | `NVTX_INJECTION64_PATH` | that tool is notified of calls and phases |
//!
//! `ccl-inspect trace --folder` makes one trace of all ranks. `exporters/OPENTELEMETRY.md` lists
//! the effect of each of OpenTelemetry's variables; `CCL_LEVEL=2` adds a span per message. NVTX is
//! notified inline, from within the process; all other exporters read the recorder. Prometheus is
//! not supported yet; a program that calls [`init_from_env`] today gets it without a change when it
//! is. `ccl-inspect` reads what ccl records from outside, and exports it for programs that do not
//! call `init_from_env`.

pub mod bandwidth;
mod exportable;
#[cfg(feature = "nvtx")]
mod nvtx;
#[cfg(feature = "otel")]
pub mod otel;
pub mod trace;

use std::io::IsTerminal;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ccl::config::{self, Key, Settings};
use ccl::notice;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Switches on what the environment asks for.
///
/// It is the one line that a program adds; calling it again changes nothing.
///
/// `RUST_LOG` selects which of the program's `tracing` events are written to standard error; if it
/// is not set, `CCL_DEBUG` does (`WARN` by default). A subscriber that the program has already set
/// stays. For `CCL_TRACE` it needs [`trace::layer`]; without it the trace lacks the program's
/// spans, and a warning says so.
///
/// A tool for NVTX, such as `nsys profile --trace=nvtx`, is notified of calls if this crate was
/// built with the feature `nvtx`.
pub fn init_from_env() {
    static ONCE: Once = Once::new();
    ONCE.call_once(init);
}

fn init() {
    // An invalid setting is reported by the communicator, which refuses it: an exporter never fails
    // a job.
    let settings = Settings::of_process().unwrap_or_default();
    let rust_log = config::environment("RUST_LOG");
    let filter = directives(rust_log.as_deref(), settings.text(Key::Log));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // On a terminal the default is kept, which heeds NO_COLOR.
    let lines = if std::io::stderr().is_terminal() { lines } else { lines.with_ansi(false) };
    let lines = lines.with_filter(EnvFilter::builder().parse_lossy(filter));
    let folder = Some(settings.text(Key::Trace)).filter(|folder| !folder.is_empty());
    if tracing::dispatcher::has_been_set() {
        // The program's own subscriber stays. Its spans are in the trace if it has our layer.
        match folder {
            Some(folder) if !trace::writes_spans() => begin_without_spans(folder),
            Some(folder) => say_what_is_filtered(folder),
            None => {}
        }
    } else {
        // If the program sets one at this moment, it keeps it.
        let ours = tracing_subscriber::registry().with(lines).with(trace::layer()).try_init();
        LINES_ARE_OURS.store(ours.is_ok(), Ordering::Relaxed);
    }
    #[cfg(feature = "nvtx")]
    nvtx::init();
    #[cfg(feature = "otel")]
    otel::init_from_env();
}

/// Whether the subscriber that [`init_from_env`] installed writes `tracing` events as lines on
/// standard error.
static LINES_ARE_OURS: AtomicBool = AtomicBool::new(false);

/// Reports a failure of an exporter: it never fails a job, but a loss must be known. A subscriber
/// of the program may hide it, or may not be set yet: then it is printed directly on standard
/// error.
pub(crate) fn say(text: &str) {
    if LINES_ARE_OURS.load(Ordering::Relaxed) {
        tracing::warn!("{text}");
        return;
    }
    notice::warn(&Settings::of_process().unwrap_or_default(), text);
}

/// Begins the trace of a program whose subscriber lacks our layer. Standard error reports what is
/// missing, whatever that subscriber shows.
fn begin_without_spans(folder: &str) {
    let layer = trace::layer::<tracing_subscriber::Registry>();
    drop(layer);
    trace::without_spans();
    say(&format!(
        "CCL_TRACE={folder}: the program has a tracing subscriber of its own, so the trace lacks the program's spans. \
         To have them, add the layer to it, before init_from_env(): \
         tracing_subscriber::registry().with(ccl_exporters::trace::layer())"
    ));
}

/// Warns of a filter on the whole subscriber, which hides spans from every layer. `RUST_LOG` makes
/// such a filter, of errors only, if it is not set.
fn say_what_is_filtered(folder: &str) {
    let most = LevelFilter::current();
    if most < LevelFilter::INFO {
        say(&format!(
            "CCL_TRACE={folder}: a filter of the program's tracing subscriber lets nothing beyond {most} through, so the trace lacks \
             the program's spans of other levels. To have them, give the filter to the layer that writes lines: layer.with_filter(filter)"
        ));
    }
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
