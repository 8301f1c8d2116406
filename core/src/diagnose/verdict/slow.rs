//! Verdicts on what moves, but badly: a rank that calls later than all others, again and again.

use super::{named, process};
use crate::diagnose::late::{Busy, Lateness, RankLateness, kernel_clock, lateness};
use crate::diagnose::{comm_name, duration};
use crate::snapshot::{Class, Confidence, Culprit, Reason, Side, Snapshot, Standing, Verdict};
use crate::types::Rank;

/// A verdict for each communicator in which one rank holds up the others.
pub(super) fn verdicts(job: &Snapshot) -> Vec<Verdict> {
    lateness(job, kernel_clock(job)).iter().filter_map(|of| of_comm(job, of)).collect()
}

fn of_comm(job: &Snapshot, of: &Lateness) -> Option<Verdict> {
    let late = of.straggler()?;
    let culprits = vec![Culprit { rank: late.job_rank, pid: late.pid, host: late.host.clone() }];
    let others: Vec<Rank> =
        of.ranks.iter().map(|one| one.job_rank).filter(|rank| *rank != late.job_rank).collect();
    let comm = comm_name(&of.name, of.comm);
    let often = format!(
        "called last in {} of {} operations of {comm}, {} after the first of the others (p50)",
        late.last,
        of.ops,
        duration(late.late_p50_ns)
    );
    let who = named(&culprits);
    let why = match of.busy {
        None => format!("{who} {often}; an operation takes {:.2} times as long because of that", late.score),
        Some(Busy { span_ns, own_ns, others_ns }) => format!(
            "{who} was busy or could not go on for {} of {} in {comm}, the others for {} at most: they wait for it",
            duration(own_ns),
            duration(span_ns),
            duration(others_ns)
        ),
    };
    let mut evidence = vec![
        format!(
            "rank {}: p95 {}; it cost the others {} per operation",
            late.job_rank,
            duration(late.late_p95_ns),
            duration(late.cost_ns)
        ),
        format!(
            "rank {}: {} of its own and {} of waiting so far",
            late.job_rank,
            duration(late.self_ns),
            duration(late.waited_ns)
        ),
    ];
    if of.busy.is_some() {
        evidence.insert(0, format!("rank {}: {often}", late.job_rank));
    }
    let (all_ns, late_ns) = match of.busy {
        None => (of.op_ns, late.late_p50_ns),
        Some(Busy { span_ns, own_ns, others_ns }) => (span_ns, own_ns.saturating_sub(others_ns)),
    };
    let crowded = delay_pct(job, late, |pct| all_ns.saturating_mul(pct) / 100 >= late_ns / 2);
    let (side, confidence) = match crowded {
        Some(pct) => {
            let line = "its threads, taken together, waited for a processor for";
            evidence.push(format!("rank {}: {line} {pct} % of the time", late.job_rank));
            (Side::Machine, Confidence::Possible)
        }
        None => (Side::Application, Confidence::Probable),
    };
    Some(Verdict {
        class: Class::Slow,
        standing: Standing::Suspect,
        reason: Reason::Late,
        culprits,
        victims: others,
        comm: of.comm,
        name: of.name.clone(),
        since_ns: 0,
        side,
        confidence,
        why,
        evidence,
        ..Verdict::default()
    })
}

/// For how much of the time the process of a rank waited for a processor, if it starved or if that
/// share explains how late it is.
fn delay_pct(job: &Snapshot, late: &RankLateness, explains: impl Fn(u64) -> bool) -> Option<u8> {
    let facts = &process::of(job, late.job_rank)?.facts;
    let is_starved = facts.is_starved == Some(true);
    (is_starved || explains(facts.run_delay_pct.into())).then_some(facts.run_delay_pct)
}
