//! A job's snapshot as text for an engineer: first the answer, then the evidence, then everything.

mod active;
mod answer;
mod calm;
mod gone;
mod pairs;
mod shrinking;
mod verdict;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{CommLine, Held, comm_name};
use crate::snapshot::{CommSnapshot, Missing, OpState, RankSnapshot, Snapshot, Source, State};
use crate::text::harmless;
use crate::types::{ChannelId, Rank, runs};
use answer::{answer, silence};

pub use active::render_active;
pub use answer::{due, render_not_joined};
pub use gone::render_gone;
pub use verdict::{render_next, render_verdict, render_verdicts};

/// The most bytes of a line that quotes the text of others: names of files, hosts, reasons.
const MAX_LINE: usize = 16 << 10;
/// The most lines that say why ranks were not read.
const MAX_UNREAD: usize = 64;

/// The snapshot as text; lines end with a newline.
#[must_use]
pub fn render_text(job: &Snapshot) -> String {
    let mut out = render_answer(job);
    let gathered = job.ranks.iter().filter(|rank| rank.source == Source::Gather).map(|rank| rank.rank);
    let gathered: Vec<Rank> = gathered.collect();
    let from =
        if gathered.is_empty() { String::new() } else { format!(", from gather: {}", ranks_text(&gathered)) };
    let _ = writeln!(
        out,
        "\njob {}  {} of {} ranks read{from}",
        job.job,
        job.ranks.len(),
        job.ranks.len() + job.missing.len()
    );
    comms(&mut out, job);
    table(&mut out, job);
    waiting_links(&mut out, job);
    pairs::others(&mut out, job);
    pairs::ports(&mut out, job);
    out
}

/// The first part of [`render_text`]: verdicts, failures, ranks that block others, ranks not read,
/// and notes.
#[must_use]
pub fn render_answer(job: &Snapshot) -> String {
    let mut out = render_verdicts(job);
    answer(&mut out, job);
    unread(&mut out, job);
    out
}

/// The ranks not read, those of one place and reason together, and notes.
fn unread(out: &mut String, job: &Snapshot) {
    let mut places: BTreeMap<(&str, u32, &str), Vec<Rank>> = BTreeMap::new();
    for Missing { rank, host, pid, why } in &job.missing {
        places.entry((host, *pid, why)).or_default().push(*rank);
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, ranks)| ranks.first().copied());
    for ((host, pid, why), ranks) in places.iter().take(MAX_UNREAD) {
        let place = if host.is_empty() { String::new() } else { format!(" (pid {pid} on {host})") };
        let line = format!("not read: {}{place}: {why}", ranks_text(ranks));
        let _ = writeln!(out, "{}", harmless(&line, MAX_LINE));
    }
    let more: Vec<Rank> = places.iter().skip(MAX_UNREAD).flat_map(|(_, ranks)| ranks.clone()).collect();
    if !more.is_empty() {
        let _ = writeln!(out, "not read: {}: `--json` says why", ranks_text(&more));
    }
    for note in &job.notes {
        let _ = writeln!(out, "note: {}", harmless(note, MAX_LINE));
    }
}

/// The communicators in a line each, if there are several; first the one that the others wait for.
fn comms(out: &mut String, job: &Snapshot) {
    let lines = job.comm_lines();
    if lines.len() < 2 {
        return;
    }
    let row = |line: &CommLine| {
        let are = |ranks: &[Rank], there: &str| {
            format!("{} {there} for {}", plural(ranks, "is", "are"), duration(line.since_ns))
        };
        let state = match line {
            CommLine { failed, .. } if !failed.is_empty() => line.failed_text(),
            CommLine { inside, under_way, call, .. } if !inside.is_empty() => match under_way.as_slice() {
                [one] if one == call => are(inside, "inside"),
                // Not all are in the last call.
                calls => are(inside, &format!("inside {}", calls.join(", "))),
            },
            CommLine { starting, .. } if !starting.is_empty() => are(starting, "in init"),
            CommLine { finishing, .. } if !finishing.is_empty() => are(finishing, "in finish()"),
            _ => "in user code".to_string(),
        };
        let call = if line.call.is_empty() { "-".to_string() } else { line.call.clone() };
        let held = line.held.as_ref().map(Held::text).unwrap_or_default();
        [line.name.clone(), line.nranks.to_string(), ranks_text(&line.ranks), call, state, held]
    };
    let head = ["comm", "size", "ranks of the job", "last call", "state", "held up by"].map(String::from);
    aligned(out, &std::iter::once(head).chain(lines.iter().map(row)).collect::<Vec<_>>());
    out.push('\n');
}

fn table(out: &mut String, job: &Snapshot) {
    let mut rows = vec![
        [
            "rank",
            "pid",
            "host",
            "process",
            "source",
            "comm",
            "comm rank",
            "operation",
            "state",
            "since",
            "tag",
        ]
        .map(String::from),
    ];
    for rank in &job.ranks {
        let mut comms = rank.comms.iter().filter(shown).peekable();
        if comms.peek().is_none() {
            rows.push(row(job, rank, None));
        }
        rows.extend(comms.map(|comm| row(job, rank, Some(comm))));
    }
    aligned(out, &rows);
}

/// Whether a communicator is shown: an ended one matters only if it failed.
fn shown(comm: &&CommSnapshot) -> bool {
    !comm.ended || comm.has_failed()
}

/// Rows of cells in columns as wide as they need.
fn aligned<const N: usize>(out: &mut String, rows: &[[String; N]]) {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn row(job: &Snapshot, rank: &RankSnapshot, comm: Option<&CommSnapshot>) -> [String; 11] {
    let since = |ns: u64| duration(ns.saturating_add(job.since_gone_ns(rank)));
    let letter = rank.letter.filter(|letter| *letter == 'D').map(|_| " (D)").unwrap_or_default();
    let process = [
        rank.rank.to_string(),
        rank.pid.to_string(),
        rank.host.clone(),
        format!("{}{letter}", state(rank)),
        rank.source.word().into(),
    ];
    let about = match comm {
        None => std::array::from_fn(|_| String::new()),
        Some(comm) => {
            let op = comm.operation();
            let state = match (op.state, op.error.as_str()) {
                (OpState::Failed, error) if !error.is_empty() => format!("failed: {error}"),
                (OpState::Idle, _) if comm.has_failed() && comm.init.is_some() => {
                    format!("failed: {}", comm.failure.as_ref().map_or("", |failure| &failure.error))
                }
                (OpState::Idle, _) if comm.has_failed() => "failed between calls".to_string(),
                (OpState::Idle, _) if comm.phase.is_some() => OpState::Running.to_string(),
                (OpState::Idle, _) => "in user code".to_string(),
                (state, _) => state.to_string(),
            };
            [
                comm_name(&comm.name, comm.id),
                format!("{}/{}", comm.rank, comm.nranks),
                comm.activity(),
                state,
                match (&comm.phase, op.state) {
                    // Ages are shown for live ranks only: for a rank that is gone they have no
                    // meaning.
                    (None, OpState::Failed) if rank.is_gone() => format!("after {}", duration(op.lasted_ns)),
                    _ => comm.standing_ns().map_or_else(String::new, since),
                },
                comm.op.tag.clone(),
            ]
        }
    };
    let mut cells = process.into_iter().chain(about);
    std::array::from_fn(|_| cells.next().unwrap_or_default())
}

/// The channel as sentences name it.
fn channel_name(channel: ChannelId) -> String {
    if channel == ChannelId::P2P { channel.to_string() } else { format!("channel {channel}") }
}

/// The links that wait long, with the ranks of the job.
fn waiting_links(out: &mut String, job: &Snapshot) {
    let mut first = true;
    let numbers = job.numbers();
    for rank in &job.ranks {
        for comm in rank.comms.iter().filter(shown) {
            // A failed operation no longer waits, nor does a dead rank.
            let is_over = rank.is_gone() || comm.has_failed();
            for link in comm.links.iter().filter(|link| link.long_wait_ns().is_some()) {
                if std::mem::take(&mut first) {
                    out.push_str("\nlinks that wait\n");
                }
                let of_job = |rank: Rank| numbers.get(&(comm.id, rank)).copied().unwrap_or(rank);
                let whom = |peer: Option<Rank>, none: &str| {
                    peer.map_or_else(|| none.into(), |peer| format!("rank {}", of_job(peer)))
                };
                let channel = channel_name(link.channel);
                let _ = writeln!(
                    out,
                    "  {} rank {} {channel} {} {} ({}{}): posted {} moved {} done {}, {} for {} ({}) for {}{}",
                    comm_name(&comm.name, comm.id),
                    rank.rank,
                    link.direction,
                    whom(link.peer, "all"),
                    link.transport,
                    link.sets_up().map_or_else(String::new, |set_up| format!(", {set_up}")),
                    link.posted,
                    link.moved,
                    link.done,
                    if is_over { "waited" } else { "waits" },
                    whom(link.waits_for.or(link.peer), "?"),
                    link.waits,
                    duration(link.since_ns),
                    link.peer.map_or_else(String::new, |peer| {
                        silence(job, comm.id, link.channel, link.direction, [comm.rank, peer])
                    })
                );
                pairs::queue_pairs(out, link);
            }
        }
    }
}

/// The state as a word, so that it is not shown by colour alone.
fn state(rank: &RankSnapshot) -> &'static str {
    match rank.state {
        State::Exited if rank.has_failed() => "failed, then exited",
        State::Left if rank.has_failed() => "failed, then left",
        State::Running => "running",
        State::Stopped => "STOPPED",
        State::Dead => "DEAD",
        State::Exited => "exited",
        State::Left => "left",
        State::Unknown => "?",
    }
}

fn plural(ranks: &[Rank], one: &str, many: &str) -> String {
    format!("{} {}", ranks_text(ranks), if ranks.len() == 1 { one } else { many })
}

/// A list of ranks: `rank 3`, `ranks 0-2,5`.
#[must_use]
pub fn ranks_text(ranks: &[Rank]) -> String {
    runs_text(&runs(ranks))
}

/// The same for ranges of ranks, first and last.
#[must_use]
pub fn runs_text(runs: &[(u32, u32)]) -> String {
    let is_one = matches!(runs, [(first, last)] if first == last);
    let runs: Vec<String> =
        runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    format!("rank{} {}", if is_one { "" } else { "s" }, runs.join(","))
}

/// A duration with its unit.
#[must_use]
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000..120_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        120_000_000_000..7_200_000_000_000 => format!("{:.1} min", ns as f64 / 60e9),
        _ => format!("{:.1} h", ns as f64 / 3600e9),
    }
}

#[cfg(test)]
mod tests;
