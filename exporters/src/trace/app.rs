//! The application's own `tracing` spans, by way of `tracing-chrome`, as a file beside the part of its process.
//!
//! `tracing-chrome` counts its times from when its layer was made and knows one process only; so the file begins with a line that
//! says when that was and which process it is, and [`merge`](super::merge) does the rest. It costs a microsecond or two per span on the
//! thread that makes it: for the application's steps, not for what happens a million times a second.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};

use ccl::clock;
use serde::{Deserialize, Serialize};
use tracing_chrome::{ChromeLayer, ChromeLayerBuilder, FlushGuard};
use tracing_subscriber::registry::LookupSpan;

use super::who::Who;

/// The name of the first line.
pub(super) const APP_HEADER: &str = "ccl_app";

/// The first line.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct AppHeader {
    /// The process.
    #[serde(flatten)]
    pub(super) who: Who,
    /// CLOCK_MONOTONIC when its times were 0.
    pub(super) base_mono_ns: i64,
}

/// The file of a process's spans.
pub(crate) struct App {
    /// The process, for its other files.
    pub(super) who: Who,
    /// Ends the file when it is dropped.
    pub(super) guard: FlushGuard,
}

/// A layer that writes spans to a file in that folder, and what must live until the last of them.
///
/// # Errors
/// If the file cannot be made.
pub(crate) fn layer<S>(folder: &Path) -> io::Result<(ChromeLayer<S>, App)>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    std::fs::create_dir_all(folder)?;
    let who = Who::of_this_process();
    let file = File::create_new(folder.join(who.file_name("app")))?;
    let (tell, told) = mpsc::channel();
    let (layer, guard) =
        ChromeLayerBuilder::new().writer(Headed { file, header: Some(told) }).include_args(true).build();
    // Its times begin with the last thing it did.
    let header = AppHeader { who: who.clone(), base_mono_ns: clock::anchor().mono.0 as i64 };
    tell.send(header).map_err(|_| io::Error::other("its writer has ended"))?;
    Ok((layer, App { who, guard }))
}

/// A file whose array begins with a line of ours.
struct Headed {
    file: File,
    /// Brings the line; `None`: it is written.
    header: Option<Receiver<AppHeader>>,
}

impl Write for Headed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The first byte is the bracket that opens the array.
        let Some(told) = self.header.take().filter(|_| bytes.first() == Some(&b'[')) else {
            return self.file.write(bytes);
        };
        let header = told.recv().map_err(io::Error::other)?;
        let args = serde_json::to_string(&header)?;
        let line =
            format!("[\n{{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"{APP_HEADER}\",\"args\":{args}}},\n");
        self.file.write_all(line.as_bytes()).map(|()| 1)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
