//! The application's own `tracing` spans, by way of `tracing-chrome`, in a file beside the part of
//! its process.
//!
//! `tracing-chrome` counts its times from when its layer was made and knows one process only. So
//! the file begins with a line with that time and the process, and [`merge`](super::merge) does the
//! rest. A span costs a microsecond or two on the thread that makes it: use spans for the
//! application's steps, not for events that happen a million times a second. A file that has
//! reached its size limit continues in another, as a part does, and the newest two are kept.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};

use ccl::clock;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_chrome::{ChromeLayer, ChromeLayerBuilder, FlushGuard};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::files::read;
use super::who::Who;

/// The name of the first line.
const APP_HEADER: &str = "ccl_app";
/// The kind of these files, the first word of their names.
const KIND: &str = "app";

/// The first line of the spans of a program.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct AppHeader {
    /// The process.
    #[serde(flatten)]
    pub(super) who: Who,
    /// CLOCK_MONOTONIC at time 0 of the file.
    pub(super) base_mono_ns: i64,
    /// The number of the file, from 0; there are two files once the first has reached its size
    /// limit.
    pub(super) segment: u64,
    /// Beginnings and ends of spans, and events, that were dropped with the files before these two.
    pub(super) dropped: u64,
}

/// The file of a process's spans.
pub(super) struct App {
    /// The process, for the names of its other files.
    pub(super) who: Who,
    /// The path of the file.
    pub(super) path: PathBuf,
    /// Ends the file when it is dropped.
    pub(super) guard: FlushGuard,
}

/// A layer that writes spans to files in that folder, with at most `bound` bytes together, and the
/// guard that must live until the last span.
///
/// # Errors
/// The error if the file cannot be made.
pub(super) fn layer_to<S>(folder: &Path, bound: u64) -> io::Result<(SpanLayer<S>, App)>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    std::fs::create_dir_all(folder)?;
    let who = Who::of_this_process();
    let (tell, told) = mpsc::channel();
    let spans = Spans::to(folder, bound, &who, told)?;
    let path = spans.path.clone();
    let (layer, guard) = ChromeLayerBuilder::new().writer(spans).include_args(true).build();
    // Its times begin with the last thing that `build` did.
    let base_mono_ns = clock::anchor().mono.0 as i64;
    let header = AppHeader { who: who.clone(), base_mono_ns, ..AppHeader::default() };
    tell.send(header).map_err(|_| io::Error::other("its writer has ended"))?;
    Ok((SpanLayer { inner: layer, of: std::process::id() }, App { who, path, guard }))
}

/// Writes a program's spans into its trace.
///
/// Spans of a forked child are left out: the thread that writes belongs to the parent, and a lock
/// on the way there may be held for ever.
pub struct SpanLayer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    inner: ChromeLayer<S>,
    /// The process that writes.
    of: u32,
}

impl<S> SpanLayer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    fn inner(&self) -> Option<&ChromeLayer<S>> {
        (std::process::id() == self.of).then_some(&self.inner)
    }
}

impl<S> fmt::Debug for SpanLayer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanLayer").field("of", &self.of).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for SpanLayer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(inner) = self.inner() {
            inner.on_new_span(attributes, id, context);
        }
    }
    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(inner) = self.inner() {
            inner.on_record(id, values, context);
        }
    }
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if let Some(inner) = self.inner() {
            inner.on_event(event, context);
        }
    }
    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(inner) = self.inner() {
            inner.on_enter(id, context);
        }
    }
    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        if let Some(inner) = self.inner() {
            inner.on_exit(id, context);
        }
    }
    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if let Some(inner) = self.inner() {
            inner.on_close(id, context);
        }
    }
}

/// The writer to which `tracing-chrome` writes its array, one event a line. It writes our files,
/// each of which begins with a line that identifies the process.
struct Spans {
    /// Receives the header, before anything is written.
    told: Receiver<AppHeader>,
    header: Option<AppHeader>,
    file: File,
    folder: PathBuf,
    path: PathBuf,
    /// The most bytes of two files together, and the bytes of the present one.
    bound: u64,
    bytes: u64,
    /// Events in the present file.
    count: u64,
    /// The file before, with the events in it.
    older: Option<(PathBuf, u64)>,
    /// The lines that name threads: they come once, and every file gets them.
    names: Vec<String>,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
}

impl Spans {
    /// Opens the first file of that process; it begins once the header has come.
    fn to(folder: &Path, bound: u64, who: &Who, told: Receiver<AppHeader>) -> io::Result<Self> {
        let path = folder.join(who.segment_name(KIND, 0));
        Ok(Self {
            told,
            header: None,
            file: File::create_new(&path)?,
            folder: folder.to_path_buf(),
            path,
            bound,
            bytes: 0,
            count: 0,
            older: None,
            names: Vec::new(),
            line: Vec::new(),
        })
    }

    /// Begins the present file.
    fn begin(&mut self) -> io::Result<()> {
        let args = serde_json::to_string(&self.header)?;
        let mut text = format!(
            r#"[
{{"ph":"M","pid":1,"tid":0,"name":"{APP_HEADER}","args":{args}}}"#
        );
        for name in &self.names {
            text.push_str(",\n");
            text.push_str(name);
        }
        self.put(&text)
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        self.file.write_all(text.as_bytes())
    }

    /// Writes an event, or another line of the array.
    fn event(&mut self, line: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(line);
        let text = text.trim().trim_end_matches(',');
        match text {
            "" | "[" => return Ok(()),
            "]" => return self.put("\n]\n"),
            _ if is_about_a_thread(text) => self.names.push(text.to_string()),
            _ => self.count += 1,
        }
        self.put(&format!(",\n{text}"))?;
        if self.bytes > self.bound / 2 { self.go_on() } else { Ok(()) }
    }

    /// Continues in another file, and drops the file before the present one.
    fn go_on(&mut self) -> io::Result<()> {
        self.put("\n]\n")?;
        let Some(header) = &mut self.header else { return Ok(()) };
        if let Some((path, count)) = self.older.replace((self.path.clone(), std::mem::take(&mut self.count)))
        {
            std::fs::remove_file(path)?;
            header.dropped = header.dropped.saturating_add(count);
        }
        header.segment += 1;
        self.path = self.folder.join(header.who.segment_name(KIND, header.segment));
        self.file = File::create_new(&self.path)?;
        self.bytes = 0;
        self.begin()
    }
}

impl Write for Spans {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.header.is_none() {
            self.header = Some(self.told.recv().map_err(io::Error::other)?);
            self.begin()?;
        }
        self.line.extend_from_slice(bytes);
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            self.event(&line)?;
        }
        Ok(bytes.len())
    }

    /// At a flush only whole events were written, or finally the closing bracket.
    fn flush(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.event(&line)?;
        self.file.flush()
    }
}

/// Whether a line names a thread: all other lines are events.
fn is_about_a_thread(line: &str) -> bool {
    // An event may have such an argument.
    line.contains(r#""ph":"M""#) && serde_json::from_str::<Value>(line).is_ok_and(|event| event["ph"] == "M")
}

/// The spans of the processes that wrote such files, each with its files, the oldest first, and the
/// header of the last. Read errors are noted.
pub(super) fn survey(paths: Vec<PathBuf>, notes: &mut Vec<String>) -> Vec<(AppHeader, Vec<PathBuf>)> {
    let told = paths.into_iter().filter_map(|path| Some((header_of(&path, notes)?, path)));
    let mut told: Vec<_> = told.collect();
    let first: Vec<Who> = told.iter().map(|(header, _)| header.who.clone()).collect();
    told.sort_by_cached_key(|(header, _)| (first.iter().position(|who| *who == header.who), header.segment));
    let mut joined: Vec<(AppHeader, Vec<PathBuf>)> = Vec::new();
    for (header, path) in told {
        match joined.last_mut().filter(|(last, _)| last.who == header.who && last.segment < header.segment) {
            Some((last, paths)) => {
                *last = header;
                paths.push(path);
            }
            None => joined.push((header, vec![path])),
        }
    }
    joined
}

fn header_of(path: &Path, notes: &mut Vec<String>) -> Option<AppHeader> {
    let mut header: Option<AppHeader> = None;
    let outcome = read(path, |mut event| {
        if header.is_none() && event["name"] == APP_HEADER {
            header = serde_json::from_value(event["args"].take()).ok();
        }
    });
    if let Err(why) = outcome {
        notes.push(format!("not read to its end: {why}"));
    }
    header
}

#[cfg(test)]
mod tests;
