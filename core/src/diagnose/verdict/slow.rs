//! Verdicts on what moves, but badly: a rank that calls later than all others, again and again.

use super::named;
use crate::diagnose::late::{Lateness, kernel_clock, lateness};
use crate::diagnose::{comm_name, duration};
use crate::snapshot::{Class, Confidence, Culprit, Reason, Side, Snapshot, Standing, Verdict};
use crate::types::Rank;

/// A verdict for each communicator in which one rank holds up the others.
pub(super) fn verdicts(job: &Snapshot) -> Vec<Verdict> {
    lateness(job, kernel_clock(job)).iter().filter_map(of_comm).collect()
}

fn of_comm(of: &Lateness) -> Option<Verdict> {
    let late = of.straggler()?;
    let culprits = vec![Culprit { rank: late.job_rank, pid: late.pid, host: late.host.clone() }];
    let others: Vec<Rank> =
        of.ranks.iter().map(|one| one.job_rank).filter(|rank| *rank != late.job_rank).collect();
    let comm = comm_name(&of.name, of.comm);
    let why = format!(
        "{} called last in {} of {} operations of {comm}, {} after the first of the others (p50); an operation \
         takes {:.2} times as long because of that",
        named(&culprits),
        late.last,
        of.ops,
        duration(late.late_p50_ns),
        late.score
    );
    let evidence = vec![
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
    Some(Verdict {
        class: Class::Slow,
        standing: Standing::Suspect,
        reason: Reason::Late,
        culprits,
        victims: others,
        comm: of.comm,
        name: of.name.clone(),
        since_ns: 0,
        side: Side::Application,
        confidence: Confidence::Probable,
        why,
        evidence,
        ..Verdict::default()
    })
}
