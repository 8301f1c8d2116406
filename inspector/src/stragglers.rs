//! `ccl-inspect stragglers`: who calls late, and what that costs the others.

use ccl::diagnose::{
    Busy, Lateness, RankLateness, comm_name, duration, kernel_clock, lateness, ranks_text, render_verdict,
};
use ccl::snapshot::{Missing, Snapshot, Standing};
use ccl::types::{JobId, Rank};
use serde::{Deserialize, Serialize};

use crate::subject::{self, Subject};
use crate::table::table;
use crate::{exit, look, words};

/// The schema of [`Told`].
const SCHEMA: &str = "ccl.stragglers/1";

/// What is said of a file that does not tell when its ranks called.
const NO_HISTORY: &str = "who calls late is not known: the file has no history of calls (`ccl-inspect snapshot --json` \
and watchdogs leave it out); use a dump (`ccl-inspect dump`) or the recorder files";

/// Show which ranks call late, what that costs the others, and which one is a straggler
#[derive(clap::Args, Debug)]
pub(crate) struct Stragglers {
    /// A process, one rank of a process, or a job; or a recorder file, a folder of them, or a dump
    #[arg(value_name = "PID | PID:RANK | JOB | PATH")]
    target: Option<Subject>,
    /// Print it as JSON, schema ccl.stragglers/1
    #[arg(long)]
    json: bool,
}

/// What is printed.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
struct Told {
    /// The name of this schema.
    schema: String,
    /// The public job id.
    job: JobId,
    /// Whether all ranks of the job were read.
    complete: bool,
    /// The communicators in which an operation has ended, the largest first.
    comms: Vec<Lateness>,
    /// Further remarks.
    notes: Vec<String>,
}

impl Stragglers {
    /// Reads the job and prints the lateness of its ranks.
    ///
    /// # Errors
    /// The exit status and why there is nothing to print.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let looked = subject::look(self.target.as_ref(), None, true)?;
        let job = looked.job;
        // Only the saved state of a job comes without a process: what recorders did not keep, no
        // other file has.
        let is_cut = looked.found.is_empty() && lacks_history(&job);
        let mut notes = job.notes.clone();
        // What is told below was before that.
        if let Some(first) = job.verdicts.first().filter(|one| one.standing == Standing::Stalled) {
            notes.insert(0, render_verdict(first));
        }
        let missing: Vec<Rank> = job.missing.iter().map(|Missing { rank, .. }| *rank).collect();
        if !missing.is_empty() {
            notes.push(format!("not read: {}", ranks_text(&missing)));
        }
        if is_cut {
            notes.insert(0, NO_HISTORY.into());
        }
        let told = Told {
            schema: SCHEMA.into(),
            job: job.job,
            complete: job.complete,
            comms: lateness(&job, kernel_clock(&job)),
            notes,
        };
        exit::say(&if self.json { look::to_json(&told)? } else { text(&told, is_cut) })?;
        Ok(if told.complete && !is_cut { exit::OK } else { exit::INCOMPLETE })
    }
}

/// Whether no history came with a job although its ranks have completed collectives, which they
/// keep the times of at any level above 0.
fn lacks_history(job: &Snapshot) -> bool {
    let rows = || job.ranks.iter().flat_map(|rank| &rank.comms);
    rows().all(|row| row.history.ops.is_empty()) && rows().any(|row| row.level > 0 && row.op.completed > 0)
}

/// `is_cut`: whether the history of calls was left out, so that there may well be a straggler.
fn text(told: &Told, is_cut: bool) -> String {
    let mut out = String::new();
    let stragglers: Vec<&Lateness> = told.comms.iter().filter(|comm| comm.straggler.is_some()).collect();
    for comm in &stragglers {
        out.extend(comm.straggler().map(|rank| sentence(comm, rank)));
    }
    if stragglers.is_empty() && !is_cut {
        out.push_str("no straggler: no rank is last far more often than the others and costs them a tenth of their time, or is busy \
             for most of the time while they wait\n");
    }
    for note in &told.notes {
        out.push_str(&format!("note: {}\n", words::line(note)));
    }
    for comm in &told.comms {
        out.push('\n');
        out.push_str(&of_comm(comm));
    }
    out
}

/// What makes a rank the straggler of a communicator, on one line.
fn sentence(comm: &Lateness, rank: &RankLateness) -> String {
    let RankLateness { job_rank, pid, host, last, late_p50_ns, cost_ns, .. } = rank;
    if let Some(Busy { span_ns, own_ns, others_ns }) = comm.busy {
        return format!(
            "SLOW rank {job_rank} (pid {pid} on {}) holds up {}: it was busy or could not go on for {} of {}, the others \
             for {} at most; it was last in {last} of {} operations\n",
            words::line(host),
            words::line(&comm_name(&comm.name, comm.comm)),
            duration(own_ns),
            duration(span_ns),
            duration(others_ns),
            comm.ops
        );
    }
    format!(
        "SLOW rank {job_rank} (pid {pid} on {}) is late in {}: last in {last} of {} operations, {} after the \
         first rank on the median; that costs the others {} of {} for each\n",
        words::line(host),
        words::line(&comm_name(&comm.name, comm.comm)),
        comm.ops,
        duration(*late_p50_ns),
        duration(*cost_ns),
        duration(comm.op_ns),
    )
}

fn of_comm(comm: &Lateness) -> String {
    let name = words::line(&comm_name(&comm.name, comm.comm));
    let mut out = match comm.ops {
        0 => format!("{name}: no operation that its ranks kept can be compared\n"),
        ops => format!(
            "{name}: {ops} operations, #{} to #{}, {} each\n",
            comm.first_seq,
            comm.last_seq,
            duration(comm.op_ns)
        ),
    };
    if !comm.incomplete.is_empty() {
        out.push_str(&format!("  {}\n", words::line(&comm.incomplete)));
    }
    if comm.ranks.is_empty() {
        return out;
    }
    let row = |rank: &RankLateness| {
        // What the clocks do not tell apart is not said.
        let late = |ns: u64| if ns == 0 { "-".into() } else { duration(ns) };
        let share = rank.last * 100 / comm.ops.max(1);
        [
            rank.job_rank.to_string(),
            rank.pid.to_string(),
            words::line(&rank.host),
            format!("{}/{}", rank.rank, comm.nranks),
            format!("{share} %"),
            late(rank.late_p50_ns),
            late(rank.late_p95_ns),
            late(rank.cost_ns),
            format!("{:.2}", rank.score),
            duration(rank.self_ns),
            duration(rank.waited_ns),
        ]
    };
    let head = [
        "rank",
        "pid",
        "host",
        "comm rank",
        "last",
        "late p50",
        "late p95",
        "costs",
        "score",
        "self",
        "waits",
    ];
    out + &table(head, &comm.ranks.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl::snapshot::{CommSnapshot, History, OpSnapshot, PastOp, RankSnapshot};
    use ccl::types::CommId;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_straggler_leads_and_each_rank_has_a_line() {
        let rank = |rank: u32, last: u64, late_ms: u64| RankLateness {
            rank: Rank(rank),
            job_rank: Rank(rank + 4),
            pid: 70 + rank,
            host: "a".into(),
            last,
            late_p50_ns: late_ms * MS,
            late_p95_ns: late_ms * MS,
            cost_ns: late_ms * MS,
            score: 1.0 + late_ms as f64 / 10.0,
            self_ns: 900 * MS,
            waited_ns: 100 * MS,
        };
        let comm = Lateness {
            comm: CommId(7),
            name: "tp\u{1b}".into(),
            nranks: 2,
            ops: 20,
            first_seq: 1,
            last_seq: 31,
            op_ns: 50 * MS,
            ranks: vec![rank(0, 1, 0), rank(1, 19, 40)],
            straggler: Some(Rank(1)),
            ..Lateness::default()
        };
        let mut told = Told { comms: vec![comm], ..Told::default() };
        let seen = text(&told, false);
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!(
            lines[0],
            "SLOW rank 5 (pid 71 on a) is late in tp\\u{1b}: last in 19 of 20 operations, 40.0 ms after the \
             first rank on the median; that costs the others 40.0 ms of 50.0 ms for each"
        );
        assert_eq!(lines[2], "tp\\u{1b}: 20 operations, #1 to #31, 50.0 ms each");
        let cells = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>().join(" ");
        assert_eq!(cells(lines[4]), "4 70 a 0/2 5 % - - - 1.00 900.0 ms 100.0 ms");
        assert_eq!(cells(lines[5]), "5 71 a 1/2 95 % 40.0 ms 40.0 ms 40.0 ms 5.00 900.0 ms 100.0 ms");
        let json = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<Told>(&json).unwrap(), told);
        told.comms[0].busy = Some(Busy { span_ns: 900 * MS, own_ns: 800 * MS, others_ns: 90 * MS });
        let said = "SLOW rank 5 (pid 71 on a) holds up tp\\u{1b}: it was busy or could not go on for 800.0 ms of 900.0 ms, \
                    the others for 90.0 ms at most; it was last in 19 of 20 operations";
        assert_eq!(text(&told, false).lines().next(), Some(said));
        (told.comms[0].straggler, told.comms[0].busy) = (None, None);
        assert!(text(&told, false).starts_with("no straggler: "));
    }

    #[test]
    fn without_a_history_nobody_is_acquitted() {
        let check = |level: u8, completed: u64, ops: usize, expect: bool| {
            let op = OpSnapshot { called: completed + 1, completed, ..OpSnapshot::default() };
            let history = History { ops: vec![PastOp::default(); ops], ..History::default() };
            let row = CommSnapshot { level, op, history, ..CommSnapshot::default() };
            let one = RankSnapshot { comms: vec![row], ..RankSnapshot::default() };
            let job = Snapshot { ranks: vec![RankSnapshot::default(), one], ..Snapshot::default() };
            assert_eq!(lacks_history(&job), expect, "level {level}, {completed} completed, {ops} kept");
        };
        check(1, 9, 0, true);
        check(1, 9, 1, false);
        // No recorder has one of these either.
        check(1, 0, 0, false);
        check(0, 9, 0, false);
        let told = Told { notes: vec![NO_HISTORY.into()], ..Told::default() };
        assert_eq!(text(&told, true), format!("note: {NO_HISTORY}\n"));
    }
}
