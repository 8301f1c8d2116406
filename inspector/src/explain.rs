//! `ccl-inspect explain`: one operation on all ranks.

use std::collections::BTreeMap;

use ccl::diagnose::{
    Explained, ExplainedRank, Stage, call_name, comm_name, comms_named, duration, explain, is_pair,
    kernel_clock, ranks_text, render_verdict,
};
use ccl::event::Event;
use ccl::recorder::reader::Cursor;
use ccl::snapshot::{Called, RankSnapshot, Snapshot, Verdict};
use ccl::types::{CollKind, CommId, JobId, Rank};
use ccl_exporters::bandwidth::{algbw, busbw};
use serde::{Deserialize, Serialize};

use crate::choose::no_comm;
use crate::discover::Found;
use crate::look::Looked;
use crate::subject::{self, Subject};
use crate::table::table;
use crate::{exit, look, words};

/// The schema of [`Told`].
const SCHEMA: &str = "ccl.explain/1";

/// Explain one collective: what it is, who called it when, who waited for whom, who ended last
#[derive(clap::Args, Debug)]
pub(crate) struct Explain {
    /// A process, one rank of a process, or a job; or a recorder file, a folder of them, or a dump
    #[arg(value_name = "PID | PID:RANK | JOB | PATH")]
    target: Option<Subject>,
    /// The communicator, by its name or id; else the one that holds the job up, or is in use
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// The number of the operation; else the one under way, or the last that all ranks kept
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    op: Option<u64>,
    /// Print it as JSON, schema ccl.explain/1
    #[arg(long)]
    json: bool,
}

/// What is printed.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
struct Told {
    /// The name of this schema.
    schema: String,
    /// The public job id.
    job: JobId,
    /// Whether all ranks of the job were read.
    complete: bool,
    /// What is wrong with the job first of all; absent if nothing is, or a number was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<Verdict>,
    /// The operation; absent if no collective was called, or a send or receive is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<Explained>,
    /// If no collective was called, or a send or receive is wrong: what the ranks called, and what
    /// they do, or did last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    instead: Vec<String>,
    /// Further remarks.
    notes: Vec<String>,
}

impl Explain {
    /// Reads the job and prints the operation.
    ///
    /// # Errors
    /// The exit status and why there is nothing to print.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let Looked { job, found } = subject::look(self.target.as_ref(), None, true)?;
        let rows = job.ranks.iter().flat_map(|rank| &rank.comms);
        let among =
            self.comm.as_deref().map(|name| comms_named(rows, name).map_err(|all| no_comm(name, &all)));
        let among = among.transpose()?;
        let is_asked = |one: &Verdict| among.as_ref().is_none_or(|among| among.contains(&one.comm));
        let pair = job.verdicts.first().filter(|one| self.op.is_none() && is_pair(&one.op) && is_asked(one));
        let pair = pair.cloned();
        let mut operation = match pair {
            Some(_) => None,
            None => explain(&job, among.as_ref(), self.op, kernel_clock(&job)),
        };
        if let Some(operation) = operation.as_mut().filter(|operation| operation.algorithm.is_empty()) {
            describe(operation, &found);
        }
        // An operation that is asked for by its number may be another than the one that is wrong.
        let status = match self.op {
            Some(_) if job.complete => exit::OK,
            Some(_) => exit::INCOMPLETE,
            None => exit::status(&job),
        };
        let told = Told {
            schema: SCHEMA.into(),
            job: job.job,
            complete: job.complete,
            verdict: job.verdicts.first().filter(|_| self.op.is_none()).cloned(),
            instead: match (&operation, pair) {
                (Some(_), _) => Vec::new(),
                (None, None) => instead(&job.ranks),
                (None, Some(pair)) => pair_calls(&job, pair.comm),
            },
            operation,
            notes: job.notes,
        };
        exit::say(&if self.json { look::to_json(&told)? } else { text(&told) })?;
        Ok(status)
    }
}

/// What the two sides of a failed send and receive called, and what the ranks do there.
fn pair_calls(job: &Snapshot, comm: CommId) -> Vec<String> {
    let failures = job.failures.iter().filter(|failure| failure.comm == comm && is_pair(&failure.op));
    let called = |called: &Called| {
        format!("{} called {}", ranks_text(&job.job_ranks(comm, &called.ranks)), called.call)
    };
    let mut lines: Vec<String> = failures.flat_map(|failure| &failure.calls).map(called).collect();
    lines.extend(instead(&job.ranks));
    lines
}

/// `world: ranks 0-2, in init: CheckIn, for 8.0 s`: what ranks do in which communicator.
fn instead(ranks: &[RankSnapshot]) -> Vec<String> {
    let mut groups: BTreeMap<(CommId, String, String), (Vec<Rank>, u64)> = BTreeMap::new();
    let rows = ranks.iter().flat_map(|rank| rank.comms.iter().map(move |row| (rank.rank, row)));
    for (rank, row) in rows.filter(|(_, row)| !row.ended || row.has_failed()) {
        let what = match row.operation() {
            _ if row.activity() == "-" => "nothing was called".into(),
            op if row.phase.is_none() => {
                let peer = op.peer.map_or_else(String::new, |peer| format!(" with comm rank {peer}"));
                format!("{}{peer}, {}", row.activity(), op.state)
            }
            _ => row.activity(),
        };
        let name = comm_name(&row.name, row.id);
        let (those, since_ns) = groups.entry((row.id, name, what)).or_default();
        those.push(rank);
        *since_ns = row.standing_ns().unwrap_or(0).max(*since_ns);
    }
    let line = |((_, name, what), (ranks, since_ns)): (_, (Vec<Rank>, u64))| {
        let since = if since_ns == 0 { String::new() } else { format!(", for {}", duration(since_ns)) };
        format!("{name}: {}, {what}{since}", ranks_text(&ranks))
    };
    groups.into_iter().map(line).collect()
}

/// Takes what the operation was from the events of a rank whose cells have gone on.
fn describe(told: &mut Explained, found: &[Found]) {
    for one in found {
        let Ok(readings) = one.open().and_then(|reader| reader.events(&mut Cursor::default())) else {
            continue;
        };
        let ours = readings.iter().filter(|of| of.owner.is_some_and(|(comm, _)| comm == told.comm));
        for event in ours.flat_map(|of| &of.events).map(|recorded| &recorded.event) {
            if let Event::OpCompleted { kind, dtype, op, algorithm, seq, bytes, other, .. } = *event
                && seq == told.seq
                && !kind.is_p2p()
            {
                (told.kind, told.dtype, told.op) = (kind.to_string(), dtype.to_string(), op.to_string());
                (told.algorithm, told.bytes) = (algorithm.to_string(), bytes);
                told.count = bytes / dtype.size().max(1) as u64;
                told.root = other.unwrap_or_default();
                return;
            }
        }
    }
}

fn text(told: &Told) -> String {
    let mut out =
        told.verdict.as_ref().map_or_else(String::new, |one| words::line(&render_verdict(one)) + "\n");
    match &told.operation {
        None => {
            let pair = told.verdict.as_ref().filter(|one| is_pair(&one.op));
            match pair.map(|one| call_name(&one.op, one.seq)) {
                Some(call) => out.push_str(&format!("{call} is no collective:\n")),
                None => out.push_str("no collective was called\n"),
            }
            told.instead.iter().for_each(|line| out.push_str(&format!("  {}\n", words::line(line))));
        }
        Some(operation) => of_operation(&mut out, operation),
    }
    for note in &told.notes {
        out.push_str(&format!("note: {}\n", words::line(note)));
    }
    out
}

fn of_operation(out: &mut String, told: &Explained) {
    let mut what = format!("{} of {}", told.call(), words::line(&told.name));
    if !told.dtype.is_empty() {
        let of = if told.uneven && told.count == 0 {
            // Of an all-to-all of blocks that differ no total is recorded.
            told.dtype.clone()
        } else {
            format!("{} {}, {}", told.count, told.dtype, words::bytes(told.bytes as f64))
        };
        what += &format!(": {of}{}", if told.uneven { ", uneven" } else { "" });
    }
    let kind = kind_of(told);
    if kind.is_some_and(CollKind::reduces) && !told.op.is_empty() {
        what += &format!(", {}", told.op);
    }
    if kind.is_some_and(CollKind::has_root) {
        what += &format!(", root {}", told.root);
    }
    if !told.algorithm.is_empty() {
        what += &format!("; {}", told.algorithm);
    }
    if told.channels > 0 {
        let plural = if told.channels == 1 { "" } else { "s" };
        let chunk = words::bytes(f64::from(told.chunk_bytes));
        what += &format!(", {} channel{plural}, chunks of {chunk}", told.channels);
    }
    what += &bandwidths(told);
    if !told.tag.is_empty() {
        what += &format!(" (at \"{}\")", words::line(&told.tag));
    }
    out.push_str(&format!("{what}\n"));
    if !told.path.is_empty() {
        out.push_str(&format!("{}\n", words::line(&told.path)));
    }
    for called in &told.calls {
        let ranks = told.ranks.iter().filter(|rank| called.ranks.contains(&rank.rank));
        let ranks: Vec<Rank> = ranks.map(|rank| rank.job_rank).collect();
        let who = match ranks.as_slice() {
            [] => format!("comm {}", ranks_text(&called.ranks)),
            ranks => ranks_text(ranks),
        };
        out.push_str(&format!("{who} called {}\n", words::line(&called.call)));
    }
    if !told.unseen.is_empty() {
        out.push_str(&format!("not read: comm {}\n", ranks_text(&told.unseen)));
    }
    let row = |rank: &ExplainedRank| {
        let at = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| format!("+{}", duration(ns)));
        let waited = rank.waited_ns.map_or_else(|| "-".into(), duration);
        let waits_for = rank.waits_for_job_rank.map_or_else(|| "-".into(), |rank| format!("rank {rank}"));
        [
            rank.job_rank.to_string(),
            rank.pid.to_string(),
            words::line(&rank.host),
            format!("{}/{}", rank.rank, told.nranks),
            rank.stage.to_string(),
            at(rank.called_ns),
            at(rank.began_ns),
            at(rank.ended_ns),
            waited,
            waits_for,
        ]
    };
    let head =
        ["rank", "pid", "host", "comm rank", "stage", "called", "began", "ended", "waited", "waits for"];
    out.push('\n');
    out.push_str(&table(head, &told.ranks.iter().map(row).collect::<Vec<_>>()));
}

/// `None` of a part of another call.
fn kind_of(told: &Explained) -> Option<CollKind> {
    CollKind::ALL.iter().copied().find(|kind| kind.name() == told.kind)
}

/// The bandwidths of a call that has ended on all ranks, by the time of the rank that it took
/// longest; empty if it has not, or if only cells tell of blocks that differ.
fn bandwidths(told: &Explained) -> String {
    let took = told.ranks.iter().map(|rank| match rank.stage {
        Stage::Ended => rank.ended_ns?.checked_sub(rank.called_ns?),
        _ => None,
    });
    let longest = took.collect::<Option<Vec<u64>>>().and_then(|took| took.into_iter().max());
    let (Some(ns), Some(kind), false) = (longest, kind_of(told), told.uneven || !told.unseen.is_empty())
    else {
        return String::new();
    };
    let of =
        |bandwidth: fn(CollKind, u32, u64, u64) -> Option<f64>| bandwidth(kind, told.nranks, told.bytes, ns);
    of(algbw)
        .zip(of(busbw))
        .map_or_else(String::new, |(alg, bus)| format!("; algbw {alg:.2} GB/s, busbw {bus:.2} GB/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_told_of_what_has_ended_on_all_ranks() {
        let stage = Stage::Ended;
        let rank =
            |called_ns, ended_ns| ExplainedRank { called_ns, ended_ns, stage, ..ExplainedRank::default() };
        let (kind, bytes, nranks) = ("AllReduce".to_string(), 1_000_000, 4);
        let ranks = vec![rank(Some(0), Some(900_000)), rank(Some(100_000), Some(1_100_000))];
        let told = Explained { kind, bytes, nranks, ranks, ..Explained::default() };
        assert_eq!(bandwidths(&told), "; algbw 1.00 GB/s, busbw 1.50 GB/s");
        let without = |change: fn(&mut Explained)| {
            let mut told = told.clone();
            change(&mut told);
            assert_eq!(bandwidths(&told), "");
        };
        without(|told| told.ranks[1].ended_ns = None);
        without(|told| told.unseen = vec![Rank(2)]);
        without(|told| told.ranks[0].stage = Stage::Failed);
        without(|told| told.uneven = true);
        without(|told| told.kind = "split()".into());
    }

    #[test]
    fn the_operation_its_path_and_each_rank_are_told() {
        let rank = ExplainedRank {
            rank: Rank(1),
            job_rank: Rank(5),
            pid: 71,
            host: "a".into(),
            stage: Stage::Inside,
            called_ns: Some(0),
            began_ns: Some(2_000_000),
            waited_ns: Some(30_000_000),
            waits_for_job_rank: Some(Rank(4)),
            ..ExplainedRank::default()
        };
        let operation = Explained {
            name: "tp".into(),
            nranks: 2,
            kind: "AllReduce".into(),
            seq: 7,
            dtype: "F32".into(),
            op: "Sum".into(),
            count: 1024,
            bytes: 4096,
            algorithm: "Ring".into(),
            channels: 2,
            chunk_bytes: 2048,
            ranks: vec![rank],
            calls: vec![Called { ranks: vec![Rank(1)], call: "Reduce of 1024 F32".into() }],
            path: "rank 4 has not called it".into(),
            ..Explained::default()
        };
        let told = Told { operation: Some(operation), notes: vec!["a\nb".into()], ..Told::default() };
        assert_eq!(
            text(&told),
            "AllReduce #7 of tp: 1024 F32, 4.0 KiB, Sum; Ring, 2 channels, chunks of 2.0 KiB\n\
             rank 4 has not called it\n\
             rank 5 called Reduce of 1024 F32\n\n\
             rank  pid  host  comm rank  stage   called  began    ended  waited   waits for\n\
             5     71   a     1/2        inside  +0 ns   +2.0 ms  -      30.0 ms  rank 4\n\
             note: a\\nb\n"
        );
        let mut uneven = told.operation.clone().unwrap();
        (uneven.kind, uneven.count, uneven.bytes, uneven.uneven) = ("AllToAll".into(), 0, 0, true);
        let said = |operation| text(&Told { operation: Some(operation), ..Told::default() });
        let of_all = said(uneven.clone());
        assert!(of_all.starts_with("AllToAll #7 of tp: F32, uneven; Ring, 2 channels"), "{of_all}");
        (uneven.kind, uneven.count, uneven.bytes) = ("ReduceScatter".into(), 12, 48);
        let of_all = said(uneven);
        assert!(of_all.starts_with("ReduceScatter #7 of tp: 12 F32, 48 B, uneven, Sum; Ring"), "{of_all}");
        let verdict = Verdict { why: "rank 0 has not said where to meet".into(), ..Verdict::default() };
        let said = text(&Told { verdict: Some(verdict), ..Told::default() });
        assert!(said.ends_with(": rank 0 has not said where to meet\nno collective was called\n"), "{said}");
        let verdict = Verdict { op: "Recv".into(), seq: 2, ..Verdict::default() };
        let instead = vec!["rank 1 called Recv of 8 F32".into()];
        let said = text(&Told { verdict: Some(verdict), instead, ..Told::default() });
        assert!(said.ends_with("\nRecv #2 is no collective:\n  rank 1 called Recv of 8 F32\n"), "{said}");
    }
}
