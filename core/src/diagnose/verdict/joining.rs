//! Verdicts on ranks that have not come to the init of a communicator.

use std::collections::BTreeMap;

use super::sentence::told;
use super::{Groups, process, verb};
use crate::diagnose::joining::{checks_in, in_init_ns};
use crate::diagnose::{comm_name, duration, ranks_text, runs_text, suspect_ns};
use crate::snapshot::{
    Class, CommSnapshot, Confidence, Culprit, NotJoined, RankSnapshot, Reason, Side, Snapshot, Standing,
    State, Verdict,
};
use crate::types::{CommId, Rank, runs};

/// The verdicts on the ranks that others wait for in init.
pub(super) fn verdicts(job: &Snapshot, stall_ns: u64) -> Vec<Verdict> {
    let lasts = |one: &NotJoined| one.since_ns >= suspect_ns(0, stall_ns);
    let joining = job.not_joined.iter().filter(|one| lasts(one));
    let mut found: Vec<Verdict> = joining.flat_map(|one| of_init(job, one, stall_ns)).collect();
    for one in held_up(job).into_iter().filter(lasts) {
        let told = |rank: &Rank| found.iter().any(|it| it.culprits.iter().any(|its| its.rank == *rank));
        let those: Vec<&RankSnapshot> = one
            .ranks
            .iter()
            .filter_map(|rank| member(job, &one, *rank))
            .filter(|it| !told(&it.rank))
            .collect();
        let mut groups = Groups::default();
        for rank in those {
            if let Some(reason) = held(job, rank) {
                groups.add((Class::StuckLocal, reason), process::culprit(rank));
            }
        }
        found.extend(groups.0.into_iter().map(|(what, those)| verdict(job, &one, what, &those, stall_ns)));
    }
    found
}

/// What keeps a process from going on, or where all have ended, kept it as far as it said so.
fn held(job: &Snapshot, rank: &RankSnapshot) -> Option<Reason> {
    if job.is_over() { process::lacks(rank) } else { process::held(rank) }
}

/// The rows of inits in which ranks wait, with their ranks of the job.
fn waiting(job: &Snapshot) -> impl Iterator<Item = (&RankSnapshot, &CommSnapshot)> {
    let is_over = job.is_over();
    let ranks = job.ranks.iter().filter(move |rank| is_over || !rank.is_gone());
    let rows = ranks.flat_map(|rank| rank.comms.iter().map(move |row| (rank, row)));
    rows.filter(|(_, row)| row.init.is_some() && !row.ended && !row.has_failed())
}

/// The inits in which ranks are that cannot go on: without them no other comes out.
fn held_up(job: &Snapshot) -> Vec<NotJoined> {
    let mut inits: BTreeMap<CommId, NotJoined> = BTreeMap::new();
    for (rank, row) in waiting(job) {
        let Some(init) = row.init.as_ref().filter(|_| checks_in(row)) else { continue };
        let one = inits.entry(row.id).or_insert_with(|| NotJoined {
            comm: row.id,
            name: row.name.clone(),
            nranks: row.nranks,
            gives_up_ns: init.gives_up_ns,
            ..NotJoined::default()
        });
        if held(job, rank).is_some() {
            one.ranks.push(row.rank);
        } else {
            one.by.push(row.rank);
            one.since_ns = one.since_ns.max(in_init_ns(row));
            one.gives_up_ns = one.gives_up_ns.min(init.gives_up_ns);
        }
        if process::lacks(rank).is_some() {
            // It waits itself.
            one.since_ns = one.since_ns.max(in_init_ns(row));
        }
    }
    let holds = |one: &NotJoined| !one.ranks.is_empty() && (!one.by.is_empty() || one.since_ns > 0);
    inits.into_values().filter(holds).collect()
}

/// One verdict for those who have not come, and one for each thing that keeps processes from it.
///
/// A process that died on the way has a verdict of its own, see [`process::idle`], and so has an
/// init that failed.
fn of_init(job: &Snapshot, one: &NotJoined, stall_ns: u64) -> Vec<Verdict> {
    let mut groups = Groups::default();
    let all_gone = job.is_over();
    let leader = leader_out(job, one);
    if let Some((leader, what)) = leader {
        groups.add(what, process::culprit(leader));
    }
    for rank in &one.ranks {
        let read = coming(job, one, *rank);
        // The root did not learn any more that it had come.
        if all_gone && member(job, one, *rank).is_some_and(|read| !has_failed(read, one)) {
            continue;
        }
        // Who is there cannot check in without the leader, whose last report is old.
        if leader.is_some() && (one.count.is_none() || member(job, one, *rank).is_some()) {
            continue;
        }
        if read.is_some_and(|read| process::is_lost(job, read, one.comm) || has_failed(read, one)) {
            continue;
        }
        let what = read.and_then(|read| out(job, read)).unwrap_or((Class::NotJoined, Reason::NeverJoined));
        groups.add(what, read.map_or_else(|| culprit(job, one, *rank), process::culprit));
    }
    groups.0.into_iter().map(|(what, those)| verdict(job, one, what, &those, stall_ns)).collect()
}

/// The process of a rank that is in this init; one that lives rather than one that it replaces.
fn member<'a>(job: &'a Snapshot, one: &NotJoined, rank: Rank) -> Option<&'a RankSnapshot> {
    let is_it = |row: &CommSnapshot| (row.id, row.rank) == (one.comm, rank);
    job.ranks.iter().filter(|read| read.comms.iter().any(is_it)).min_by_key(|read| read.is_gone())
}

/// The same, or that of a rank that has not begun it, where its ranks are those of the job.
fn coming<'a>(job: &'a Snapshot, one: &NotJoined, rank: Rank) -> Option<&'a RankSnapshot> {
    let of_job = || process::of(job, rank).filter(|_| has_ranks_of_job(job, one));
    member(job, one, rank).or_else(of_job)
}

/// Whether the ranks of that communicator are those of the job, as far as is known.
fn has_ranks_of_job(job: &Snapshot, one: &NotJoined) -> bool {
    job.has_ranks(one.comm, one.nranks)
}

/// Whether the init has failed on that process, which has a verdict of its own.
fn has_failed(read: &RankSnapshot, one: &NotJoined) -> bool {
    let mut rows = read.comms.iter().filter(|row| row.id == one.comm).peekable();
    rows.peek().is_some() && rows.all(CommSnapshot::has_failed)
}

/// What keeps a process from coming. One that runs, if slowly, comes.
fn out(job: &Snapshot, rank: &RankSnapshot) -> Option<(Class, Reason)> {
    // One that has left lives on, or ended well.
    let is_gone = matches!(rank.state, State::Dead | State::Exited);
    let is_out = is_gone || process::held(rank).is_some();
    process::condition(job, rank).filter(|_| is_out)
}

/// Rank 0, which leads the init and knows who has come, if its own process is what holds it up.
fn leader_out<'a>(job: &'a Snapshot, one: &NotJoined) -> Option<(&'a RankSnapshot, (Class, Reason))> {
    let leader = member(job, one, Rank(0)).filter(|leader| !has_failed(leader, one))?;
    out(job, leader).map(|what| (leader, what))
}

/// A rank of the job that was not read.
fn culprit(job: &Snapshot, one: &NotJoined, rank: Rank) -> Culprit {
    let missing = job.missing.iter().find(|missing| missing.rank == rank && has_ranks_of_job(job, one));
    let named = missing.map(|one| Culprit { rank, pid: one.pid, host: one.host.clone() });
    named.unwrap_or_else(|| Culprit { rank, ..Culprit::default() })
}

/// The ranks that wait for the culprits. For those that cannot go on all others do, also those of
/// which the root has not heard.
fn victims(job: &Snapshot, one: &NotJoined, class: Class, culprits: &[Culprit]) -> Vec<Rank> {
    let mut by = job.job_ranks(one.comm, &one.by);
    if class == Class::StuckLocal {
        by.extend(waiting(job).filter(|(_, row)| row.id == one.comm).map(|(rank, _)| rank.rank));
        by.sort_unstable();
        by.dedup();
    }
    // Of one that was not read, the number is that in the communicator.
    by.retain(|rank| !culprits.iter().any(|culprit| culprit.rank == *rank && culprit.pid != 0));
    by
}

fn verdict(
    job: &Snapshot,
    one: &NotJoined,
    (class, reason): (Class, Reason),
    culprits: &[Culprit],
    stall_ns: u64,
) -> Verdict {
    let ranks: Vec<Rank> = culprits.iter().map(|culprit| culprit.rank).collect();
    let comm = comm_name(&one.name, one.comm);
    let by = victims(job, one, class, culprits);
    let is_past = job.is_over();
    let (side, confidence, who) = match (reason, one.count) {
        (Reason::NeverJoined, None) => {
            (Side::Application, Confidence::Probable, one.unanswered().to_string())
        }
        (Reason::NeverJoined, Some(_)) => {
            let has = if is_past { "had" } else { verb(ranks.len(), "has", "have") };
            let who = runs_text(&runs(&ranks));
            let text = match has_ranks_of_job(job, one) {
                true => format!("{who} {has} not come to the init of {comm}"),
                false => format!("{who} of {comm} {has} not come to its init"),
            };
            // Who has come since the last report of the leader, it has not said.
            match leader_out(job, one).is_some() {
                true => (Side::Application, Confidence::Possible, format!("{text}, as rank 0 reported last")),
                false => (Side::Application, Confidence::Certain, text),
            }
        }
        _ => {
            let (side, confidence, what) = told(reason, culprits, "init", is_past);
            let is_it = |rank: Option<&RankSnapshot>| rank.is_some_and(|it| ranks.contains(&it.rank));
            let is_leader = culprits.len() == 1 && is_it(member(job, one, Rank(0)));
            let part = match () {
                () if is_leader && is_past => "and led",
                () if is_leader => "and leads",
                () if one.ranks.iter().any(|rank| is_it(member(job, one, *rank))) => "in",
                () if is_past => "and had not come to",
                () => "and has not come to",
            };
            (side, confidence, format!("{what}, {part} the init of {comm}"))
        }
    };
    let heard = |count: u32| {
        let (came, nranks) = (one.nranks.saturating_sub(count), one.nranks);
        let has = if is_past { "had" } else { "has" };
        format!("the bootstrap root {has} heard of {came} of {nranks} ranks")
    };
    Verdict {
        class,
        standing: match class == Class::StuckLocal && one.since_ns >= super::SETTLED_NS {
            false if one.since_ns < stall_ns => Standing::Suspect,
            _ => Standing::Stalled,
        },
        reason,
        culprits: culprits.to_vec(),
        comm: one.comm,
        name: one.name.clone(),
        since_ns: one.since_ns,
        side,
        confidence,
        why: if by.is_empty() { who } else { format!("{who}; {}", waits(job, one, &by)) },
        victims: by,
        evidence: one.count.map(heard).into_iter().collect(),
        ..Verdict::default()
    }
}

/// `ranks 0-2 wait in init for 12.0 s; init gives up in 88.0 s`.
fn waits(job: &Snapshot, one: &NotJoined, by: &[Rank]) -> String {
    let (who, since) = (ranks_text(by), duration(one.since_ns));
    let is_gone = |rank: &Rank| process::of(job, *rank).is_some_and(RankSnapshot::is_gone);
    match one.gives_up_ns {
        _ if !by.is_empty() && by.iter().all(is_gone) => {
            format!("{who} had waited in init for {since} at the last sign of life")
        }
        0 => format!("{who} {} in init for {since}", verb(by.len(), "waits", "wait")),
        ns => {
            let wait = verb(by.len(), "waits", "wait");
            format!("{who} {wait} in init for {since}; init gives up in {}", duration(ns))
        }
    }
}
