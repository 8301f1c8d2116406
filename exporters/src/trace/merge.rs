//! The parts of a job become one trace: on one clock, with an arrow from each message sent to where it was taken.
//!
//! The clock is that of the first part. How the others are corrected, and how far off they may be, [`align`](super::align) finds in
//! the messages themselves; each rank's track list says it. Halves of arrows whose other half was not recorded are left
//! out and counted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use ccl::error::{Error, ErrorKind, Result};
use serde_json::Value;

use super::align::{Correction, Known, Message, align};
use super::app::{APP_HEADER, AppHeader};
use super::part::{Footer, Header, SCHEMA, refused};
use super::tracks::micros;

/// What a merged trace holds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Merged {
    /// Parts, one per process.
    pub parts: usize,
    /// Those whose end is missing: their processes were killed, or run still.
    pub unfinished: usize,
    /// Slices.
    pub slices: u64,
    /// Arrows: messages seen by both ranks.
    pub arrows: u64,
    /// Messages that were sent and not seen taken.
    pub only_sent: u64,
    /// Messages that were taken and not seen sent.
    pub only_taken: u64,
    /// Messages that the ranks counted as taken while their parts were written; of finished parts.
    pub taken: u64,
    /// Events overwritten before they were read.
    pub lost: u64,
    /// How far off two ranks' times may be; `None`: for some rank no message tells.
    pub error_ns: Option<u64>,
    /// How far the worst arrow runs backwards.
    pub backwards_ns: u64,
    /// What could not be read of the folder, and why: a sentence each.
    pub notes: Vec<String>,
}

/// One file of a folder.
struct Source {
    path: PathBuf,
    /// Whose clock it goes by: an index of the parts.
    clock: usize,
    /// To be added to its times first, in nanoseconds.
    shift_ns: i64,
    /// Of the application's own spans: the rank they belong to.
    rank: Option<u64>,
}

/// One half of an arrow.
#[derive(Clone, Copy)]
struct Half {
    clock: usize,
    ns: i64,
}

/// The parts of a folder, read once.
#[derive(Default)]
struct Gathered {
    clocks: Vec<Known>,
    sources: Vec<Source>,
    /// Of each process the clock and a rank.
    ranks: BTreeMap<u32, (usize, u64)>,
    /// The halves of arrows, by their names.
    sent: BTreeMap<u64, Half>,
    taken: BTreeMap<u64, Half>,
}

/// Merges all parts of a folder into `to`.
///
/// # Errors
/// `System` if the folder cannot be read or the trace not be written; `Usage` if there is no part in the folder, or `to` would be taken for one.
pub fn merge(folder: &Path, to: &Path) -> Result<Merged> {
    refuse_the_name_of_a_part(folder, to)?;
    let mut merged = Merged::default();
    let gathered = gather(folder, &mut merged)?;
    let pairs = gathered.sent.iter().filter_map(|(id, from)| Some((from, gathered.taken.get(id)?)));
    let messages: Vec<Message> = pairs
        .map(|(from, to)| Message { from: from.clock, sent_ns: from.ns, to: to.clock, taken_ns: to.ns })
        .collect();
    let corrections = align(&gathered.clocks, &messages);
    merged.arrows = messages.len() as u64;
    merged.only_sent = gathered.sent.len() as u64 - merged.arrows;
    merged.only_taken = gathered.taken.len() as u64 - merged.arrows;
    merged.error_ns = error_between(&corrections);
    let backwards = |m: &Message| corrections[m.from].apply(m.sent_ns) - corrections[m.to].apply(m.taken_ns);
    merged.backwards_ns = messages.iter().map(backwards).max().unwrap_or(0).max(0) as u64;
    let unfinished = to.with_extension("unfinished");
    write(&gathered, &corrections, &unfinished, &mut merged)?;
    std::fs::rename(&unfinished, to).map_err(|e| refused(to, "writing", e))?;
    Ok(merged)
}

fn gather(folder: &Path, merged: &mut Merged) -> Result<Gathered> {
    let mut gathered = Gathered::default();
    let (parts, apps): (Vec<_>, Vec<_>) = files(folder)?.into_iter().partition(|path| is_named(path, "ccl-"));
    for path in parts {
        let clock = gathered.clocks.len();
        let (mut header, mut footer): (Option<Header>, Option<Footer>) = (None, None);
        let outcome = read(&path, |event| match (event["ph"].as_str(), event["name"].as_str()) {
            (Some("M"), Some("ccl_trace")) if header.is_none() => {
                header = serde_json::from_value(event["args"].clone()).ok().filter(Header::is_known);
            }
            (Some("M"), Some("ccl_trace_end")) => footer = serde_json::from_value(event["args"].clone()).ok(),
            (Some("M"), Some("process_name")) => {
                if let (Some(header), Some(rank)) = (&header, event["pid"].as_u64()) {
                    gathered.ranks.entry(header.pid).or_insert((clock, rank));
                }
            }
            // Before it is known that this is a part there is no clock that they would go by.
            (Some(half @ ("s" | "f")), _) if header.is_some() => {
                let halves = if half == "s" { &mut gathered.sent } else { &mut gathered.taken };
                halves.insert(name_of(&event), Half { clock, ns: nanos(&event["ts"]) });
            }
            _ => {}
        });
        // What was read before is as good as any.
        let is_read = outcome.map_err(|why| merged.notes.push(format!("not read to its end: {why}"))).is_ok();
        let Some(header) = header else {
            if is_read {
                merged
                    .notes
                    .push(format!("left out: {} does not begin as a part of a trace", path.display()));
            }
            continue;
        };
        merged.unfinished += usize::from(footer.is_none());
        if let Some(footer) = footer {
            merged.lost += footer.lost;
            merged.taken += footer.taken.saturating_sub(header.taken);
        }
        gathered.clocks.push(Known { kernel: header.boot_id, real_less_mono_ns: header.real_less_mono_ns });
        gathered.sources.push(Source { path, clock, shift_ns: 0, rank: None });
    }
    merged.parts = gathered.sources.len();
    if gathered.sources.is_empty() {
        let what = format!("{} holds no part of a trace", folder.display());
        return Err(Error::new(ErrorKind::Usage, what)
            .hint("run the job with CCL_TRACE=FOLDER, or trace it with: ccl-inspect trace PID -o FILE"));
    }
    for path in apps {
        let mut header: Option<AppHeader> = None;
        let outcome = read(&path, |event| {
            if event["name"] == APP_HEADER {
                header = serde_json::from_value(event["args"].clone()).ok();
            }
        });
        if let Err(why) = outcome {
            merged.notes.push(format!("not read to its end: {why}"));
        }
        // Spans of a process without ranks have no place among them.
        if let Some((header, (clock, rank))) = header.and_then(|h| Some((h, *gathered.ranks.get(&h.pid)?))) {
            gathered.sources.push(Source { path, clock, shift_ns: header.base_mono_ns, rank: Some(rank) });
        }
    }
    Ok(gathered)
}

/// What the times of two ranks may be off from each other: both may be, in different directions.
fn error_between(corrections: &[Correction]) -> Option<u64> {
    let mut errors: Vec<u64> = corrections.iter().map(|c| c.error_ns).collect::<Option<_>>()?;
    errors.sort_unstable();
    Some(errors.iter().rev().take(2).sum())
}

fn write(gathered: &Gathered, corrections: &[Correction], path: &Path, merged: &mut Merged) -> Result<()> {
    let base = first_time(&gathered.sources, corrections);
    let file = File::create(path).map_err(|e| refused(path, "writing", e))?;
    let mut out = Out { file: BufWriter::new(file), path, first: true, ends: BTreeMap::new(), base };
    out.text("{\"traceEvents\":[")?;
    for source in &gathered.sources {
        let mut outcome = Ok(());
        // What cannot be read was noted when it was gathered.
        let _ = read(&source.path, |event| {
            let name = || name_of(&event);
            let keeps = match event["ph"].as_str() {
                Some("s") => gathered.taken.contains_key(&name()),
                Some("f") => gathered.sent.contains_key(&name()),
                Some("M") => event["name"].as_str().is_none_or(|name| !name.starts_with("ccl_")),
                _ => true,
            };
            if keeps && outcome.is_ok() {
                merged.slices += u64::from(event["ph"] == "X");
                outcome = out.event(event, source, corrections[source.clock]);
            }
        });
        outcome?;
    }
    for (clock, rank) in gathered.ranks.values() {
        let error = corrections[*clock].error_ns.map(|ns| format!("clock +- {} us", micros(ns as i64)));
        let label = error.unwrap_or_else(|| "clock not compared".to_string());
        out.line(&format!(
            r#"{{"ph":"M","pid":{rank},"tid":0,"name":"process_labels","args":{{"labels":"{label}"}}}}"#
        ))?;
    }
    let (real, error) =
        (base + gathered.clocks[0].real_less_mono_ns, merged.error_ns.map(|ns| ns.to_string()));
    out.text(&format!(
        "\n],\"displayTimeUnit\":\"ns\",\"otherData\":{{\"schema\":\"{SCHEMA}\",\"base_mono_ns\":\"{base}\",\
         \"base_real_ns\":\"{real}\",\"clock_error_ns\":\"{}\"}}}}\n",
        error.as_deref().unwrap_or("unknown"),
    ))?;
    out.file.flush().map_err(|e| refused(path, "writing", e))
}

/// Writes corrected events.
struct Out<'a> {
    file: BufWriter<File>,
    path: &'a Path,
    first: bool,
    /// When the last slice of a track ended: rounding must not let the next begin before.
    ends: BTreeMap<(u64, u64), i64>,
    base: i64,
}

impl Out<'_> {
    fn text(&mut self, text: &str) -> Result<()> {
        self.file.write_all(text.as_bytes()).map_err(|e| refused(self.path, "writing", e))
    }

    fn line(&mut self, line: &str) -> Result<()> {
        let separator = if std::mem::replace(&mut self.first, false) { "\n" } else { ",\n" };
        self.text(separator)?;
        self.text(line)
    }

    fn event(&mut self, mut event: Value, source: &Source, correction: Correction) -> Result<()> {
        let Some(fields) = event.as_object_mut() else { return Ok(()) };
        if let Some(rank) = source.rank {
            // Behind the tracks of its rank.
            let tid = fields.get("tid").and_then(Value::as_u64).unwrap_or(0);
            fields.insert("pid".into(), rank.into());
            fields.insert("tid".into(), (APP_TRACKS + tid).into());
        }
        let corrected = |ns: i64| correction.apply(ns + source.shift_ns) - self.base;
        if let Some(ts) = fields.get("ts").map(nanos) {
            let mut begin = corrected(ts);
            if let Some(dur) = fields.get("dur").map(nanos) {
                let track = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or(0);
                let end_of_last = self.ends.entry((track("pid"), track("tid"))).or_insert(i64::MIN);
                begin = begin.max(*end_of_last);
                // The last nanosecond, where arrows bind, is moved as they are.
                let end = (corrected(ts + dur - 1) + 1).max(begin + 1);
                *end_of_last = end;
                fields.insert("dur".into(), number(end - begin));
            }
            fields.insert("ts".into(), number(begin));
        }
        let line = event.to_string();
        self.line(&line)
    }
}

/// Number of the first track of the application's own spans, behind ours.
const APP_TRACKS: u64 = 100_000;

/// The first time of all, corrected: from there the merged trace counts.
fn first_time(sources: &[Source], corrections: &[Correction]) -> i64 {
    let mut first = i64::MAX;
    for source in sources {
        let _ = read(&source.path, |event| {
            if !event["ts"].is_null() {
                let ns = nanos(&event["ts"]) + source.shift_ns;
                first = first.min(corrections[source.clock].apply(ns));
            }
        });
    }
    if first == i64::MAX { 0 } else { first }
}

/// The name of an arrow.
fn name_of(event: &Value) -> u64 {
    event["id"].as_str().and_then(|id| u64::from_str_radix(id, 16).ok()).unwrap_or_default()
}

/// Microseconds of a trace, in nanoseconds. A double holds them to the nanosecond for a hundred days of uptime.
fn nanos(micros: &Value) -> i64 {
    (micros.as_f64().unwrap_or(0.0) * 1000.0).round() as i64
}

/// Nanoseconds as a number of microseconds.
fn number(ns: i64) -> Value {
    serde_json::from_str(&micros(ns)).unwrap_or(Value::Null)
}

fn is_named(path: &Path, prefix: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
}

/// A trace in the folder of its parts must not be one of them the next time.
fn refuse_the_name_of_a_part(folder: &Path, to: &Path) -> Result<()> {
    let beside = to.parent().filter(|beside| !beside.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_there =
        beside.canonicalize().is_ok_and(|beside| folder.canonicalize().is_ok_and(|it| it == beside));
    if is_there && is_file_name(to) {
        let what = format!("{} is the name of a part in the folder of the parts", to.display());
        return Err(Error::new(ErrorKind::Usage, what).hint("call the trace otherwise, or put it elsewhere"));
    }
    Ok(())
}

/// Whether a file has the name of a part, ours or the application's.
fn is_file_name(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "json") && (is_named(path, "ccl-") || is_named(path, "app-"))
}

/// The files of a folder that are parts, ours and the application's, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| refused(folder, "reading", e))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> = paths.filter(|path| is_file_name(path)).collect();
    files.sort();
    Ok(files)
}

/// Hands over the events of a part, one a line. A line that was cut is left out: the last one of who was killed, anywhere in a character.
fn read(path: &Path, mut each: impl FnMut(Value)) -> Result<()> {
    let mut file = BufReader::new(File::open(path).map_err(|e| refused(path, "reading", e))?);
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line).map_err(|e| refused(path, "reading", e))? > 0 {
        let text = line.trim_ascii();
        if let Ok(event @ Value::Object(_)) = serde_json::from_slice(text.strip_suffix(b",").unwrap_or(text))
        {
            each(event);
        }
        line.clear();
    }
    Ok(())
}
