//! The parts of a job become one trace: on one clock, with an arrow from each message sent to where it was taken. A folder may hold parts
//! of several jobs, and a process ranks of several: one job is merged.
//!
//! The clock is that of the first part. How the others are corrected, and how far off they may be, [`align`](super::align) finds in
//! the messages themselves; each rank's track list says it. Halves of arrows whose other half was not recorded are left
//! out and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use ccl::error::{Error, ErrorKind, Result};
use ccl::sys::reference::Reference;
use ccl::types::JobId;
use serde_json::Value;

use super::align::{Correction, Known, Message, align};
use super::app::{APP_HEADER, AppHeader};
use super::part::{FOOTER, Footer, HEADER, Header, SCHEMA, refused};
use super::tracks::{RANK, micros};
use super::who::Who;

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

/// A part, as its first and last lines and those of its ranks tell of it.
struct Part {
    path: PathBuf,
    header: Header,
    footer: Option<Footer>,
    /// The ranks and their jobs, by their numbers in the part.
    ranks: BTreeMap<u64, (JobId, u64)>,
}

/// One file that goes into the trace.
struct Source {
    path: PathBuf,
    /// Whose clock it goes by: an index of the clocks.
    clock: usize,
    /// To be added to its times first, in nanoseconds.
    shift_ns: i64,
    ranks: Ranks,
}

/// Whose the lines of a file are.
enum Ranks {
    /// By their numbers; of others they are left out.
    Of(BTreeMap<u64, u64>),
    /// Of the application's own spans: all of this one.
    All(u64),
}

impl Ranks {
    /// The rank that an event is of.
    fn of(&self, event: &Value) -> Option<u64> {
        match self {
            Self::Of(ranks) => ranks.get(&event["pid"].as_u64()?).copied(),
            Self::All(rank) => Some(*rank),
        }
    }
}

/// One half of an arrow.
#[derive(Clone, Copy)]
struct Half {
    clock: usize,
    ns: i64,
}

/// What becomes a trace, read once.
#[derive(Default)]
struct Gathered {
    clocks: Vec<Known>,
    sources: Vec<Source>,
    /// The halves of arrows, by their names.
    sent: BTreeMap<u64, Half>,
    taken: BTreeMap<u64, Half>,
}

/// Merges the parts of a job, or of the only one there is, in a folder into `to`.
///
/// # Errors
/// `System` if the folder cannot be read or the trace not be written; `Usage` if there is no part of that job in the folder, or of several
/// jobs and none is named, or `to` would be taken for a part.
pub fn merge(folder: &Path, to: &Path, job: Option<JobId>) -> Result<Merged> {
    refuse_the_name_of_a_part(folder, to)?;
    let mut merged = Merged::default();
    let gathered = gather(folder, job, &mut merged)?;
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
    let written = write(&gathered, &corrections, &unfinished, &mut merged)
        .and_then(|()| std::fs::rename(&unfinished, to).map_err(|e| refused(to, "writing", e)));
    if written.is_err() {
        // It may not have come to be.
        let _ = std::fs::remove_file(&unfinished);
    }
    written.map(|()| merged)
}

/// Reads the parts of a job and the spans of its processes.
fn gather(folder: &Path, job: Option<JobId>, merged: &mut Merged) -> Result<Gathered> {
    let (paths, apps): (Vec<_>, Vec<_>) = files(folder)?.into_iter().partition(|path| is_named(path, "ccl-"));
    let parts: Vec<Part> = paths.into_iter().filter_map(|path| survey(path, &mut merged.notes)).collect();
    let job = chosen(folder, &parts, job)?;
    let mut gathered = Gathered::default();
    // Of parts that tell of no rank nobody knows whose they are: they count where there is nothing else.
    let is_of_job = |part: &Part| part.ranks.values().any(|(of, _)| Some(*of) == job);
    let is_known = parts.iter().any(is_of_job);
    // The clock and the first rank of each process.
    let mut processes: Vec<(Who, usize, u64)> = Vec::new();
    for part in parts {
        if !(is_of_job(&part) || !is_known && part.ranks.is_empty()) {
            continue;
        }
        let Part { path, header, footer, ranks } = part;
        let of_job = ranks.into_iter().filter(|(_, (of, _))| Some(*of) == job);
        let ranks: BTreeMap<u64, u64> = of_job.map(|(number, (_, rank))| (number, rank)).collect();
        let clock = gathered.clocks.len();
        // What cannot be read was noted by the survey.
        let _ = read(&path, |event| {
            let halves = match event["ph"].as_str() {
                Some("s") => &mut gathered.sent,
                Some("f") => &mut gathered.taken,
                _ => return,
            };
            if event["pid"].as_u64().is_some_and(|number| ranks.contains_key(&number)) {
                halves.insert(name_of(&event), Half { clock, ns: nanos(&event["ts"]) });
            }
        });
        merged.unfinished += usize::from(footer.is_none());
        if let (Some(footer), Some(job)) = (footer, job) {
            let of_job = |counts: &BTreeMap<JobId, u64>| counts.get(&job).copied().unwrap_or(0);
            let (lost, taken) = (of_job(&footer.lost), of_job(&footer.taken));
            merged.lost = merged.lost.saturating_add(lost).saturating_add(footer.lost_of_unknown);
            merged.taken = merged.taken.saturating_add(taken.saturating_sub(of_job(&header.taken)));
        }
        if let Some(rank) = ranks.values().min() {
            processes.push((header.who, clock, *rank));
        }
        let real_less_mono_ns = believed(header.real_less_mono_ns);
        gathered.clocks.push(Known { kernel: header.boot_id, real_less_mono_ns });
        gathered.sources.push(Source { path, clock, shift_ns: 0, ranks: Ranks::Of(ranks) });
    }
    merged.parts = gathered.sources.len();
    for path in apps {
        let Some(header) = app_header(&path, &mut merged.notes) else { continue };
        // Spans of a process without ranks have no place among them.
        if let Some((_, clock, rank)) = processes.iter().find(|(who, ..)| *who == header.who) {
            let (clock, ranks) = (*clock, Ranks::All(*rank));
            gathered.sources.push(Source { path, clock, shift_ns: believed(header.base_mono_ns), ranks });
        }
    }
    Ok(gathered)
}

/// Reads what a part tells of itself; notes why it is none, or is not whole.
fn survey(path: PathBuf, notes: &mut Vec<String>) -> Option<Part> {
    let (mut header, mut footer): (Option<Header>, Option<Footer>) = (None, None);
    let mut ranks = BTreeMap::new();
    let outcome = read(&path, |mut event| {
        if event["ph"] != "M" {
            return;
        }
        let args = event["args"].take();
        match (event["name"].as_str(), &header) {
            (Some(HEADER), None) => header = serde_json::from_value(args).ok().filter(Header::is_known),
            (Some(FOOTER), Some(_)) => footer = serde_json::from_value(args).ok(),
            (Some(RANK), Some(_)) => {
                let job: Option<JobId> = serde_json::from_value(args["job"].clone()).ok();
                if let (Some(number), Some(job), Some(rank)) =
                    (event["pid"].as_u64(), job, args["rank"].as_u64())
                {
                    ranks.insert(number, (job, rank));
                }
            }
            _ => {}
        }
    });
    // What was read before is as good as any.
    let is_read = outcome.map_err(|why| notes.push(format!("not read to its end: {why}"))).is_ok();
    if header.is_none() && is_read {
        notes.push(format!("left out: {} does not begin as a part of a trace", path.display()));
    }
    Some(Part { path, header: header?, footer, ranks })
}

fn app_header(path: &Path, notes: &mut Vec<String>) -> Option<AppHeader> {
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

/// The job that is meant; `None`: no part tells of any.
fn chosen(folder: &Path, parts: &[Part], job: Option<JobId>) -> Result<Option<JobId>> {
    let mut there: BTreeMap<JobId, usize> = BTreeMap::new();
    for part in parts {
        let jobs: BTreeSet<JobId> = part.ranks.values().map(|(job, _)| *job).collect();
        jobs.into_iter().for_each(|job| *there.entry(job).or_default() += 1);
    }
    let list = || there.iter().map(|(job, n)| format!("\n  {job}  processes: {n}")).collect::<String>();
    let refuse = |what: String| Err(Error::new(ErrorKind::Usage, what));
    let folder = folder.display();
    match job {
        _ if parts.is_empty() => {
            Err(Error::new(ErrorKind::Usage, format!("{folder} holds no part of a trace"))
                .hint("run the job with CCL_TRACE=FOLDER, or trace it with: ccl-inspect trace PID -o FILE"))
        }
        None if there.len() > 1 => {
            refuse(format!("{folder} holds parts of several jobs; say which one is meant:{}", list()))
        }
        None => Ok(there.into_keys().next()),
        Some(job) if there.contains_key(&job) || parts.iter().any(|part| part.ranks.is_empty()) => {
            Ok(Some(job))
        }
        Some(job) => refuse(format!("{folder} holds no part of job {job}, but of:{}", list())),
    }
}

/// What the times of two ranks may be off from each other: both may be, in different directions.
fn error_between(corrections: &[Correction]) -> Option<u64> {
    let mut errors: Vec<u64> = corrections.iter().map(|c| c.error_ns).collect::<Option<_>>()?;
    errors.sort_unstable();
    Some(errors.iter().rev().take(2).sum())
}

fn write(gathered: &Gathered, corrections: &[Correction], path: &Path, merged: &mut Merged) -> Result<()> {
    let base = first_time(&gathered.sources, corrections);
    // What is left of an earlier one, or whatever else has that name: it is not written through.
    let _ = std::fs::remove_file(path);
    let file = File::create_new(path).map_err(|e| refused(path, "writing", e))?;
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
            if let Some(rank) = source.ranks.of(&event).filter(|_| keeps && outcome.is_ok()) {
                merged.slices += u64::from(event["ph"] == "X");
                outcome = out.event(event, source, rank, corrections[source.clock]);
            }
        });
        outcome?;
        let Ranks::Of(ranks) = &source.ranks else { continue };
        let error = corrections[source.clock].error_ns.map(|ns| format!("clock +- {} us", micros(ns as i64)));
        let label = error.unwrap_or_else(|| "clock not compared".to_string());
        for rank in ranks.values() {
            out.line(&format!(
                r#"{{"ph":"M","pid":{rank},"tid":0,"name":"process_labels","args":{{"labels":"{label}"}}}}"#
            ))?;
        }
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

    fn event(&mut self, mut event: Value, source: &Source, rank: u64, correction: Correction) -> Result<()> {
        let Some(fields) = event.as_object_mut() else { return Ok(()) };
        fields.insert("pid".into(), rank.into());
        if let Ranks::All(_) = source.ranks {
            // Behind the tracks of its rank.
            let tid = fields.get("tid").and_then(Value::as_u64).unwrap_or(0);
            fields.insert("tid".into(), APP_TRACKS.saturating_add(tid).into());
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
            if !event["ts"].is_null() && source.ranks.of(&event).is_some() {
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
    believed((micros.as_f64().unwrap_or(0.0) * 1000.0).round() as i64)
}

/// A time out of a file, whatever it says: thirty years at most, so that a few of them can be added.
fn believed(ns: i64) -> i64 {
    ns.clamp(-MOST_NS, MOST_NS)
}

const MOST_NS: i64 = 1 << 60;

/// Nanoseconds as a number of microseconds.
fn number(ns: i64) -> Value {
    serde_json::from_str(&micros(ns)).unwrap_or(Value::Null)
}

fn is_named(path: &Path, prefix: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
}

/// A trace in the folder of its parts must not be one of them the next time.
fn refuse_the_name_of_a_part(folder: &Path, to: &Path) -> Result<()> {
    let beside =
        to.parent().filter(|beside| !beside.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
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

/// The longest line of a part that is read; one of ours has less than a thousandth of it.
const MAX_LINE: u64 = 1 << 20;

/// Hands over the events of a part, one a line. A line that was cut is left out: the last one of who was killed, anywhere in a character.
fn read(path: &Path, mut each: impl FnMut(Value)) -> Result<()> {
    // A folder of parts is written by others: no link, FIFO or device in it is opened, and no line has no end.
    let part = Reference::to_itself(path).and_then(|part| part.open());
    let mut file = BufReader::new(part.map_err(|e| refused(path, "reading", e))?);
    let mut line = Vec::new();
    let mut more = |line: &mut Vec<u8>| {
        let read = (&mut file).take(MAX_LINE).read_until(b'\n', line);
        read.map_err(|e| refused(path, "reading", e))
    };
    while more(&mut line)? > 0 {
        let text = line.trim_ascii();
        if let Ok(event @ Value::Object(_)) = serde_json::from_slice(text.strip_suffix(b",").unwrap_or(text))
        {
            each(event);
        }
        line.clear();
    }
    Ok(())
}
