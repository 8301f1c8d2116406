//! Writing the merged trace: all lines on one clock, each rank with its own number.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use ccl::error::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use super::align::Correction;
use super::files::{name_of, nanos};
use super::lines::micros;
use super::merge::{Gathered, Merged, Ranks, Source};
use super::part::{SCHEMA, refused};
use super::profile::Profile;

pub(super) fn write(
    gathered: &Gathered,
    corrections: &[Correction],
    (path, is_zipped): (&Path, bool),
    merged: &mut Merged,
    profile: Option<&mut Profile>,
) -> Result<()> {
    let base = first_time(&gathered.sources, corrections);
    // Removes a file of that name, possibly left from an earlier run: it is not written through.
    let _ = std::fs::remove_file(path);
    let file = File::create_new(path).map_err(|e| refused(path, "writing", e))?;
    let file = Sink::of(file, is_zipped);
    let mut out = Out { file, path, first: true, ends: BTreeMap::new(), base, profile };
    out.text("{\"traceEvents\":[")?;
    let last = last_of_ranks(&gathered.sources);
    for (index, source) in gathered.sources.iter().enumerate() {
        let mut outcome = Ok(());
        source.each(|event| {
            let name = || name_of(&event);
            let keeps = match event["ph"].as_str() {
                Some("s") => gathered.taken.contains_key(&name()),
                Some("f") => gathered.sent.contains_key(&name()),
                Some("M") => event["name"].as_str().is_none_or(|name| !name.starts_with("ccl_")),
                Some("B" | "E") => !source.standing.skips(&event),
                _ => true,
            };
            if let Some(rank) = source.ranks.of(&event).filter(|_| keeps && outcome.is_ok()) {
                let is_ours = matches!(source.ranks, Ranks::Of(_));
                merged.slices += u64::from(event["ph"] == "X" || is_ours && event["ph"] == "E");
                outcome = out.event(event, source, rank, corrections[source.clock]);
            }
        });
        outcome?;
        let Ranks::Of(ranks) = &source.ranks else { continue };
        let error = corrections[source.clock].error_ns.map(|ns| format!("clock +- {} us", micros(ns as i64)));
        let label = error.unwrap_or_else(|| "clock error unknown".to_string());
        for rank in ranks.values() {
            if let Some(profile) = out.profile.as_mut().filter(|_| last.get(rank) == Some(&index)) {
                profile.end(*rank);
            }
            out.line(&format!(
                r#"{{"ph":"M","pid":{rank},"tid":0,"name":"process_labels","args":{{"labels":"{label}"}}}}"#
            ))?;
        }
    }
    let (real, error) =
        (base.saturating_add(gathered.clocks[0].real_less_mono_ns), merged.error_ns.map(|ns| ns.to_string()));
    out.text(&format!(
        "\n],\"displayTimeUnit\":\"ns\",\"otherData\":{{\"schema\":\"{SCHEMA}\",\"base_mono_ns\":\"{base}\",\
         \"base_real_ns\":\"{real}\",\"clock_error_ns\":\"{}\"}}}}\n",
        error.as_deref().unwrap_or("unknown"),
    ))?;
    out.file.finish().map_err(|e| refused(path, "writing", e))
}

/// The output file, plain or compressed.
enum Sink {
    Plain(BufWriter<File>),
    Zipped(Box<GzEncoder<BufWriter<File>>>),
}

impl Sink {
    fn of(file: File, is_zipped: bool) -> Self {
        let file = BufWriter::new(file);
        if is_zipped {
            Self::Zipped(Box::new(GzEncoder::new(file, Compression::default())))
        } else {
            Self::Plain(file)
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.write_all(bytes),
            Self::Zipped(file) => file.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut file) => file.flush(),
            Self::Zipped(file) => file.finish()?.flush(),
        }
    }
}

/// Writes corrected events.
struct Out<'a> {
    file: Sink,
    path: &'a Path,
    first: bool,
    /// When the last slice of a track ended: rounding must not let the next one begin before.
    ends: BTreeMap<(u64, u64), i64>,
    base: i64,
    /// Takes the network steps.
    profile: Option<&'a mut Profile>,
}

impl Out<'_> {
    fn text(&mut self, text: &str) -> Result<()> {
        self.file.put(text.as_bytes()).map_err(|e| refused(self.path, "writing", e))
    }

    fn line(&mut self, line: &str) -> Result<()> {
        let separator = if std::mem::replace(&mut self.first, false) { "\n" } else { ",\n" };
        self.text(separator)?;
        self.text(line)
    }

    fn event(&mut self, mut event: Value, source: &Source, rank: u64, correction: Correction) -> Result<()> {
        let waits_for = source.standing.waits_for(&event).cloned();
        if let (Some(ranks), Some(args)) = (waits_for, event["args"].as_object_mut()) {
            args.insert("waits_for".into(), ranks.into_iter().collect());
        }
        let is_ours = matches!(source.ranks, Ranks::Of(_));
        let (begins, ends) = (is_ours && event["ph"] == "B", is_ours && event["ph"] == "E");
        if is_ours {
            rename(&mut event, rank);
        }
        let Some(fields) = event.as_object_mut() else { return Ok(()) };
        fields.insert("pid".into(), rank.into());
        if let Ranks::All(_) = source.ranks {
            // After the tracks of its rank.
            let tid = fields.get("tid").and_then(Value::as_u64).unwrap_or(0);
            fields.insert("tid".into(), APP_TRACKS.saturating_add(tid).into());
        }
        let corrected = |ns: i64| correction.apply(ns + source.shift_ns) - self.base;
        if let Some(ts) = fields.get("ts").map(nanos) {
            let mut begin = corrected(ts);
            if begins || ends {
                let track = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or(0);
                let end_of_last = self.ends.entry((track("pid"), track("tid"))).or_insert(i64::MIN);
                begin = if begins {
                    begin.max(*end_of_last)
                } else {
                    (corrected(ts - 1) + 1).max(end_of_last.saturating_add(1))
                };
                *end_of_last = begin;
            }
            if let Some(dur) = fields.get("dur").map(nanos) {
                let track = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or(0);
                let end_of_last = self.ends.entry((track("pid"), track("tid"))).or_insert(i64::MIN);
                begin = begin.max(*end_of_last);
                // The last nanosecond, where arrows bind, is converted in the same way as they are.
                let end = (corrected(ts + dur - 1) + 1).max(begin + 1);
                *end_of_last = end;
                fields.insert("dur".into(), number(end - begin));
            }
            fields.insert("ts".into(), number(begin));
        }
        if let Some(profile) = self.profile.as_mut().filter(|_| is_ours) {
            profile.take(rank, &event);
        }
        let line = event.to_string();
        self.line(&line)
    }
}

/// The last source that has lines of a rank itself, by rank: two may have the same rank.
fn last_of_ranks(sources: &[Source]) -> BTreeMap<u64, usize> {
    let ours = sources.iter().enumerate().filter(|(_, source)| matches!(source.ranks, Ranks::Of(_)));
    ours.flat_map(|(index, source)| source.ranks.all().map(move |rank| (rank, index))).collect()
}

/// Names a process by its rank in the trace; in its part it may have had another number.
fn rename(event: &mut Value, rank: u64) {
    let name = match event["name"].as_str() {
        Some("process_name") => {
            let text = event["args"]["name"].as_str().and_then(|text| text.split_once(" ("));
            text.map(|(_, place)| Value::from(format!("rank {rank} ({place}")))
        }
        Some("process_sort_index") => Some(Value::from(rank)),
        _ => None,
    };
    let key = if event["name"] == "process_name" { "name" } else { "sort_index" };
    if let (Some(name), Some(args)) = (name, event["args"].as_object_mut()) {
        args.insert(key.into(), name);
    }
}

/// Number of the first track of the application's spans, after ours.
const APP_TRACKS: u64 = 100_000;

/// The earliest corrected time, from which the merged trace counts.
fn first_time(sources: &[Source], corrections: &[Correction]) -> i64 {
    let mut first = i64::MAX;
    for source in sources {
        source.each(|event| {
            if !event["ts"].is_null() && source.ranks.of(&event).is_some() {
                let ns = nanos(&event["ts"]) + source.shift_ns;
                first = first.min(corrections[source.clock].apply(ns));
            }
        });
    }
    if first == i64::MAX { 0 } else { first }
}

/// Nanoseconds as a number of microseconds.
fn number(ns: i64) -> Value {
    serde_json::from_str(&micros(ns)).unwrap_or(Value::Null)
}
