//! Merging the parts of a job to one trace: on one clock, with an arrow from each sent message to
//! where it was taken. A folder may hold parts of several jobs: one is merged.
//!
//! The clock is that of the first part. [`align`](super::align) finds the corrections of the others
//! and their errors from the messages themselves; each rank's track list shows them. Halves of
//! arrows whose other half was not recorded are left out and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ccl::diagnose::{Job, Numbers, jobs};
use ccl::error::{Error, ErrorKind, Result};
use ccl::snapshot::{CommSnapshot, ProcessSnapshot};
use ccl::types::{CommId, JobId, Rank};
use serde::Deserialize;
use serde_json::Value;

use super::align::{Correction, Known, TimedMessage, align};
use super::app;
use super::files::{
    believed, files, is_named, is_zipped, name_of, nanos, read, refuse_the_name_of_a_part, unfinished,
};
use super::open::Standing;
use super::part::{FOOTER, Footer, HEADER, Header, refused};
use super::profile::{Profile, Profiles, check_profile_name, of_rank};
use super::tracks::RANK;
use super::who::Who;
use super::write::write;

/// The content of a merged trace.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Merged {
    /// The number of parts, one per process.
    pub parts: usize,
    /// The number of parts without an end: their processes were killed, or still run.
    pub unfinished: usize,
    /// The number of slices that have ended.
    pub slices: u64,
    /// The number of slices under way at the end of their parts: operations, waits, phases of init.
    pub open: u64,
    /// The number of arrows: messages recorded by both ranks.
    pub arrows: u64,
    /// Messages that were recorded as sent but not as taken.
    pub only_sent: u64,
    /// Messages that were recorded as taken but not as sent.
    pub only_taken: u64,
    /// Messages that the ranks counted as taken while their parts were written; of finished parts.
    pub taken: u64,
    /// Events overwritten before they were read, or dropped.
    pub lost: u64,
    /// The part of `lost` that was dropped from parts that had reached their size limit.
    pub dropped: u64,
    /// The ranks of the job without a part, as ranges: first and last.
    pub missing: Vec<(u32, u32)>,
    /// How far the times of two ranks may be off; `None` if no message bounds some rank's time.
    pub error_ns: Option<u64>,
    /// How far the worst arrow runs backwards.
    pub backwards_ns: u64,
    /// The files that could not be read, and why: one sentence each.
    pub notes: Vec<String>,
}

impl Merged {
    /// Counts events that were dropped from files that had reached their size limit.
    const fn drops(&mut self, events: u64) {
        self.dropped = self.dropped.saturating_add(events);
        self.lost = self.lost.saturating_add(events);
    }
}

/// A part, as described by its first, last and rank lines.
struct Part {
    /// Its files, the oldest first.
    paths: Vec<PathBuf>,
    header: Header,
    footer: Option<Footer>,
    /// The ranks, by their numbers in the part: in each of their jobs.
    ranks: BTreeMap<u64, Vec<RankLine>>,
}

/// A rank in one job, and the number of that job's ranks.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct RankLine {
    job: Option<JobId>,
    rank: Option<u32>,
    ranks: u64,
    /// The same rank in further jobs.
    also: Vec<Self>,
}

impl Part {
    /// Its process, as far as it tells which job it is of.
    fn process(&self) -> ProcessSnapshot {
        let Header { who, launch, launch_rank, .. } = &self.header;
        ProcessSnapshot {
            pid: who.pid,
            host: who.host.clone(),
            path: who.file_name("part"),
            made_real_ns: who.begun_ns,
            alive: true,
            launch: *launch,
            launch_rank: *launch_rank,
            comms: self.ranks.values().flatten().filter_map(RankLine::comm).collect(),
            ..ProcessSnapshot::default()
        }
    }
}

impl RankLine {
    /// The rank in its job's largest communicator.
    fn comm(&self) -> Option<CommSnapshot> {
        let (job, rank) = self.job.zip(self.rank.map(Rank))?;
        let nranks = u32::try_from(self.ranks).unwrap_or(0);
        Some(CommSnapshot { id: CommId(job.0), job, rank, world: rank, nranks, ..CommSnapshot::default() })
    }
}

/// One part or one set of span files that goes into the trace.
pub(super) struct Source {
    /// Its files, the oldest first.
    pub(super) paths: Vec<PathBuf>,
    /// The index of its clock.
    pub(super) clock: usize,
    /// Added to its times first, in nanoseconds.
    pub(super) shift_ns: i64,
    pub(super) ranks: Ranks,
    /// The slices under way at its end.
    pub(super) standing: Standing,
}

impl Source {
    /// Passes on the events of its files. Read errors were noted when the files were surveyed.
    pub(super) fn each(&self, mut each: impl FnMut(Value)) {
        for path in &self.paths {
            let _ = read(path, &mut each);
        }
    }
}

/// The ranks that the lines of a file belong to.
pub(super) enum Ranks {
    /// The ranks by number; lines of other numbers are left out.
    Of(BTreeMap<u64, u64>),
    /// One rank for all lines, as for the application's spans.
    All(u64),
}

impl Ranks {
    /// The rank of an event.
    pub(super) fn of(&self, event: &Value) -> Option<u64> {
        match self {
            Self::Of(ranks) => ranks.get(&event["pid"].as_u64()?).copied(),
            Self::All(rank) => Some(*rank),
        }
    }

    /// All ranks.
    pub(super) fn all(&self) -> impl Iterator<Item = u64> {
        let (some, one) = match self {
            Self::Of(ranks) => (Some(ranks.values()), None),
            Self::All(rank) => (None, Some(*rank)),
        };
        some.into_iter().flatten().copied().chain(one)
    }
}

/// One half of an arrow.
#[derive(Clone, Copy)]
pub(super) struct Half {
    clock: usize,
    ns: i64,
}

/// The input of a trace, read once.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) clocks: Vec<Known>,
    pub(super) sources: Vec<Source>,
    /// The halves of arrows, by id.
    pub(super) sent: BTreeMap<u64, Half>,
    pub(super) taken: BTreeMap<u64, Half>,
}

/// Merges the parts of a job, or of the only job in the folder, into `to`.
///
/// # Errors
/// `System` if the folder cannot be read or the trace cannot be written. `Usage` if the folder has
/// no part of that job, or has parts of several jobs and none is named, or if `to` has the name of
/// a part.
pub fn merge(folder: &Path, to: &Path, job: Option<JobId>) -> Result<Merged> {
    merge_into(folder, to, job, None)
}

/// The same, and writes the classic profile of the proxy of each rank, beside `profile` and named
/// after it and the rank.
///
/// # Errors
/// As [`merge`], and `Usage` for a name that [`check_profile_name`] refuses, or that would give a
/// profile the name of a part. If only a profile cannot be written, the trace is there.
pub fn merge_profiled(
    folder: &Path,
    to: &Path,
    job: Option<JobId>,
    profile: &Path,
) -> Result<(Merged, Profiles)> {
    check_profile_name(to, profile)?;
    // The number of the rank makes no difference.
    refuse_the_name_of_a_part(folder, &of_rank(profile, 0))?;
    let mut steps = Profile::beside(profile);
    match merge_into(folder, to, job, Some(&mut steps)) {
        Ok(merged) => Ok((merged, steps.finish()?)),
        Err(why) => {
            steps.discard();
            Err(why)
        }
    }
}

fn merge_into(folder: &Path, to: &Path, job: Option<JobId>, profile: Option<&mut Profile>) -> Result<Merged> {
    refuse_the_name_of_a_part(folder, to)?;
    let mut merged = Merged::default();
    let gathered = gather(folder, job, &mut merged)?;
    let pairs = gathered.sent.iter().filter_map(|(id, from)| Some((from, gathered.taken.get(id)?)));
    let messages: Vec<TimedMessage> = pairs
        .map(|(from, to)| TimedMessage { from: from.clock, sent_ns: from.ns, to: to.clock, taken_ns: to.ns })
        .collect();
    let corrections = align(&gathered.clocks, &messages);
    merged.arrows = messages.len() as u64;
    merged.only_sent = gathered.sent.len() as u64 - merged.arrows;
    merged.only_taken = gathered.taken.len() as u64 - merged.arrows;
    merged.error_ns = error_between(&corrections);
    let backwards =
        |m: &TimedMessage| corrections[m.from].apply(m.sent_ns) - corrections[m.to].apply(m.taken_ns);
    merged.backwards_ns = messages.iter().map(backwards).max().unwrap_or(0).max(0) as u64;
    let unfinished = unfinished(to);
    let is_zipped = is_zipped(to);
    let written = write(&gathered, &corrections, (&unfinished, is_zipped), &mut merged, profile)
        .and_then(|()| std::fs::rename(&unfinished, to).map_err(|e| refused(to, "writing", e)));
    if written.is_err() {
        // It may not have been created.
        let _ = std::fs::remove_file(&unfinished);
    }
    written.map(|()| merged)
}

/// Reads the parts of a job and the spans of its processes.
fn gather(folder: &Path, job: Option<JobId>, merged: &mut Merged) -> Result<Gathered> {
    let (paths, apps): (Vec<_>, Vec<_>) = files(folder)?.into_iter().partition(|path| is_named(path, "ccl-"));
    let parts = joined(paths.into_iter().filter_map(|path| survey(path, &mut merged.notes)).collect());
    let job = chosen(folder, &parts, job)?;
    let mut gathered = Gathered::default();
    let all: Vec<ProcessSnapshot> = parts.iter().map(Part::process).collect();
    let numbers = Numbers::new(&job, all.iter());
    // Parts without a rank belong to an unknown job: they count only if there are no others.
    let is_known = all.iter().any(|process| job.includes(process));
    // The clock and the first rank of each process.
    let mut processes: Vec<(Who, usize, u64)> = Vec::new();
    for (part, process) in parts.into_iter().zip(&all) {
        if !(job.includes(process) || !is_known && part.ranks.is_empty()) {
            continue;
        }
        let Part { paths, header, footer, ranks, .. } = part;
        let ranks: BTreeMap<u64, u64> = ranks
            .iter()
            .filter_map(|(number, lines)| Some((*number, rank_of(&job, &numbers, process, lines)?)))
            .collect();
        let clock = gathered.clocks.len();
        let ranks = Ranks::Of(ranks);
        let mut source = Source { paths, clock, shift_ns: 0, ranks, standing: Standing::default() };
        let (mut standing, mut span) = (Standing::default(), None);
        source.each(|event| {
            if event["ts"].is_null() || source.ranks.of(&event).is_none() {
                return;
            }
            let ns = nanos(&event["ts"]);
            let (from, to) = span.unwrap_or((ns, ns));
            span = Some((ns.min(from), ns.max(to)));
            let halves = match event["ph"].as_str() {
                Some("s") => &mut gathered.sent,
                Some("f") => &mut gathered.taken,
                _ => return standing.take(&event),
            };
            halves.insert(name_of(&event), Half { clock, ns });
        });
        merged.open += standing.finish();
        source.standing = standing;
        merged.unfinished += usize::from(footer.is_none());
        let of_job = |counts: &BTreeMap<JobId, u64>| {
            counts
                .iter()
                .filter(|(id, _)| job.is_named(**id))
                .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
        };
        if let Some(footer) = footer.filter(|_| is_known) {
            let (lost, taken) = (of_job(&footer.lost), of_job(&footer.taken));
            merged.lost = merged.lost.saturating_add(lost).saturating_add(footer.lost_of_unknown);
            merged.taken = merged.taken.saturating_add(taken.saturating_sub(of_job(&header.taken)));
        }
        merged.drops(of_job(&header.dropped));
        if let Some(rank) = source.ranks.all().min() {
            processes.push((header.who, clock, rank));
        }
        let real_less_mono_ns = header.real_less_mono_ns;
        gathered.clocks.push(Known { kernel: header.boot_id, real_less_mono_ns, span });
        gathered.sources.push(source);
    }
    let there: BTreeSet<u64> = gathered.sources.iter().flat_map(|source| source.ranks.all()).collect();
    merged.missing = missing(&there, numbers.nranks);
    merged.parts = gathered.sources.len();
    for (header, paths) in app::survey(apps, &mut merged.notes) {
        // Spans of a process without ranks are left out.
        if let Some((_, clock, rank)) = processes.iter().find(|(who, ..)| *who == header.who) {
            let (clock, ranks) = (*clock, Ranks::All(*rank));
            let shift_ns = believed(header.base_mono_ns);
            let standing = Standing::default();
            let mut source = Source { paths, clock, shift_ns, ranks, standing };
            if header.dropped > 0 {
                merged.drops(header.dropped);
                // If the beginning of a span was dropped, its end is left out.
                let mut standing = Standing::default();
                source.each(|event| standing.take(&event));
                source.standing = standing;
            }
            gathered.sources.push(source);
        }
    }
    Ok(gathered)
}

/// Reads the description of a part; notes if the file is not a part, or is not complete.
fn survey(path: PathBuf, notes: &mut Vec<String>) -> Option<Part> {
    let (mut header, mut footer): (Option<Header>, Option<Footer>) = (None, None);
    let mut ranks: BTreeMap<u64, Vec<RankLine>> = BTreeMap::new();
    let outcome = read(&path, |mut event| {
        if event["ph"] != "M" {
            return;
        }
        let args = event["args"].take();
        match (event["name"].as_str(), &header) {
            (Some(HEADER), None) => header = serde_json::from_value(args).ok().filter(Header::is_known),
            (Some(FOOTER), Some(_)) => footer = serde_json::from_value(args).ok(),
            (Some(RANK), Some(_)) => {
                let line: Option<RankLine> = serde_json::from_value(args).ok();
                if let Some((number, mut line)) = event["pid"].as_u64().zip(line) {
                    let also = std::mem::take(&mut line.also);
                    ranks.insert(number, std::iter::once(line).chain(also).collect());
                }
            }
            _ => {}
        }
    });
    // What was read before the error is valid.
    let is_read = outcome.map_err(|why| notes.push(format!("not read to its end: {why}"))).is_ok();
    if header.is_none() && is_read {
        notes.push(format!("left out: {} does not begin as a part of a trace", path.display()));
    }
    Some(Part { paths: vec![path], header: header?, footer, ranks })
}

/// Joins the files of each part: a part that had to drop its older half has two.
fn joined(mut parts: Vec<Part>) -> Vec<Part> {
    // Otherwise in the order of their names.
    let first: Vec<Who> = parts.iter().map(|part| part.header.who.clone()).collect();
    parts.sort_by_cached_key(|part| {
        (first.iter().position(|who| *who == part.header.who), part.header.segment)
    });
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match joined.last_mut().filter(|last| last.header.who == part.header.who) {
            // Two files with the same number are from two processes that cannot be told apart.
            Some(last) if last.header.segment < part.header.segment => {
                last.paths.extend(part.paths);
                (last.header, last.footer) = (part.header, part.footer);
                last.ranks.extend(part.ranks);
            }
            _ => joined.push(part),
        }
    }
    joined
}

/// The ranks below `count` without a part. The count comes from a file, so a large one must cost
/// nothing.
fn missing(there: &BTreeSet<u64>, count: u32) -> Vec<(u32, u32)> {
    let (mut next, mut runs) = (0, Vec::new());
    let count = u64::from(count);
    for end in there.iter().map(|rank| (*rank).min(count)).chain([count]) {
        if next < end {
            runs.push((next as u32, (end - 1) as u32));
        }
        next = next.max(end.saturating_add(1));
    }
    runs
}

/// The hint on how parts are made.
pub(super) const NO_PART: &str = "run the job with CCL_TRACE=FOLDER, which a program heeds that calls ccl_exporters::init_from_env(), \
                                  or trace any with: ccl-inspect trace PID -o FILE";

/// The job to merge; one without a name if no part has a rank.
fn chosen(folder: &Path, parts: &[Part], job: Option<JobId>) -> Result<Job> {
    let processes: Vec<ProcessSnapshot> = parts.iter().map(Part::process).collect();
    let there = jobs(&processes);
    let count = |job: &Job| processes.iter().filter(|process| job.includes(process)).count();
    let list =
        || there.iter().map(|job| format!("\n  {}  processes: {}", job.id, count(job))).collect::<String>();
    let refuse = |what: String| Err(Error::new(ErrorKind::Usage, what));
    let folder = folder.display();
    match job {
        _ if parts.is_empty() => {
            Err(Error::new(ErrorKind::Usage, format!("{folder} holds no part of a trace")).hint(NO_PART))
        }
        None if there.len() > 1 => {
            refuse(format!("{folder} holds parts of several jobs; say which one is meant:{}", list()))
        }
        None => Ok(there.into_iter().next().unwrap_or_default()),
        Some(id) => match there.iter().find(|job| job.is_named(id)) {
            Some(job) => Ok(job.clone()),
            None if parts.iter().any(|part| part.ranks.is_empty()) => Ok(id.into()),
            None => refuse(format!("{folder} holds no part of job {id}, but of:{}", list())),
        },
    }
}

/// The rank that a number of a part stands for; `None` if it is none of this job.
fn rank_of(job: &Job, numbers: &Numbers<'_>, process: &ProcessSnapshot, lines: &[RankLine]) -> Option<u64> {
    let comms: Vec<CommSnapshot> = lines.iter().filter_map(RankLine::comm).collect();
    let of_job = || comms.iter().filter(|comm| job.is_named(comm.job));
    let comm = of_job().find(|comm| comm.job == job.id).or_else(|| of_job().next())?;
    Some(numbers.of_row(process, comm).0.into())
}

/// How far the times of two ranks may be off from each other: both may be off, in opposite
/// directions.
fn error_between(corrections: &[Correction]) -> Option<u64> {
    let mut errors: Vec<u64> = corrections.iter().map(|c| c.error_ns).collect::<Option<_>>()?;
    errors.sort_unstable();
    Some(errors.iter().rev().take(2).sum())
}
