//! The ends of the chains of waits: which operations are shown, and which behind them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Job, WaitEdges};
use crate::diagnose::{FINISH, SAID_NS};
use crate::snapshot::{Behind, BlockedOn, OpState};
use crate::types::{CommId, Rank};

/// The most operations that are listed behind others.
const MAX_BEHIND: usize = 1 << 14;
/// The most waits in circles among which one is searched that stands for all.
const MAX_CYCLIC: usize = 1 << 10;
/// A wait explains one that is at most this many times as old: a rank may work for some time before
/// it calls and waits in turn. The wait of a rank that is busy elsewhere is always young.
const EXPLAINS: u64 = 4;

/// Whether a wait of this age is a reason for another rank's wait of that age: it began about when
/// that one did, or has lasted for a good part of it.
const fn explains(own_ns: u64, since_ns: u64) -> bool {
    own_ns.saturating_add(SAID_NS) >= since_ns || own_ns.saturating_mul(EXPLAINS) >= since_ns
}

/// Follows holders that wait elsewhere, and keeps the ends.
pub(super) fn ends(job: &Job<'_>, waits: Vec<WaitEdges>) -> Vec<BlockedOn> {
    let waits = waits.as_slice();
    let edges = edges(job, waits);
    let Edges { leads, held_by, .. } = &edges;
    let is_end: Vec<bool> =
        held_by.iter().zip(leads).map(|(by, to)| !by.is_empty() || to.is_empty()).collect();
    let kinds = kinds(waits);
    let reached = reached(&edges, &is_end, &kinds);
    let leads_to = |from: usize, kind: usize| leads[from].iter().any(|who| reached[who].contains(&kind));
    let leads_nowhere = |from: usize| leads[from].iter().all(|who| reached[who].is_empty());
    let shown: Vec<bool> = (0..waits.len()).map(|at| is_end[at] || leads_nowhere(at)).collect();
    let mut folded = folded(job, waits, (held_by, &shown), &|from, at| leads_to(from, kinds[at]));
    let cyclic: Vec<usize> = (0..waits.len()).filter(|at| shown[*at] && !is_end[*at]).collect();
    let cycle = cycle(job, waits, &cyclic);
    if let Some(cycle) = &cycle {
        folded.extend(cyclic.iter().filter(|at| **at != cycle.first).map(|at| (*at, cycle.first)));
    }
    let mut found: BTreeMap<usize, BlockedOn> = BTreeMap::new();
    for at in (0..waits.len()).filter(|at| shown[*at] && !folded.contains_key(at)) {
        let of_cycle = cycle.as_ref().filter(|cycle| cycle.first == at);
        let held: BTreeSet<Rank> = match (of_cycle, is_end[at]) {
            (Some(cycle), _) => BTreeSet::from([cycle.rank]),
            (None, true) => held_by[at].clone(),
            (None, false) => waits[at].holders().collect(),
        };
        let mut end = as_awaited(&waits[at], &held);
        end.waits_in =
            of_cycle.into_iter().flat_map(|cycle| &cycle.waits_in).map(|at| as_behind(&waits[*at])).collect();
        match found.get_mut(&kinds[at]) {
            Some(one) => join(one, end),
            None => {
                found.insert(kinds[at], end);
            }
        }
    }
    // The operations that lead to one that is shown behind another lead to that other.
    let mut led_on: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (from, to) in &folded {
        led_on.entry(kinds[*to]).or_default().insert(kinds[*from]);
    }
    let is_behind = |other: usize, kind: usize| {
        let through = || led_on.get(&kind).into_iter().flatten().any(|from| leads_to(other, *from));
        folded.get(&other).map_or_else(|| leads_to(other, kind) || through(), |to| kinds[*to] == kind)
    };
    // There may be very many operations that are shown, and so are behind none.
    let others: Vec<usize> = (0..waits.len()).filter(|at| !shown[*at] || folded.contains_key(at)).collect();
    let mut room = MAX_BEHIND;
    for (kind, end) in &mut found {
        let behind = others.iter().filter(|other| is_behind(**other, *kind)).map(|other| &waits[*other]);
        put_behind(end, waits[*kind].pair, behind, &mut room);
    }
    let mut found: Vec<BlockedOn> = found.into_values().collect();
    let named = |one: &BlockedOn| !one.missing.is_empty() || !one.inside.is_empty();
    found.sort_by_key(|one| (!named(one), std::cmp::Reverse(one.since_ns), one.comm, one.seq));
    found
}

/// Per operation, the first of its kind: sends that wait in one communicator for the same rank in
/// the same way are told as one, and so are such receives.
fn kinds(waits: &[WaitEdges]) -> Vec<usize> {
    let mut firsts = BTreeMap::new();
    let mut kinds: Vec<usize> = (0..waits.len()).collect();
    for (at, wait) in waits.iter().enumerate().filter(|(_, wait)| wait.pair) {
        let kind = (wait.comm, &wait.op, &wait.missing, &wait.inside, &wait.unseen);
        kinds[at] = *firsts.entry(kind).or_insert(at);
    }
    kinds
}

/// Puts operations behind an end. Behind a send or receive, others of its communicator need no
/// line: their ranks wait, too.
fn put_behind<'a>(
    end: &mut BlockedOn,
    is_pair: bool,
    others: impl Iterator<Item = &'a WaitEdges>,
    room: &mut usize,
) {
    let mut by: BTreeSet<Rank> = end.by.iter().copied().collect();
    for other in others {
        if other.comm == end.comm && other.pair && is_pair {
            by.extend(&other.by);
            end.since_ns = end.since_ns.max(other.since_ns);
        } else if *room > 0 {
            *room -= 1;
            end.behind.push(as_behind(other));
        }
    }
    end.by = by.into_iter().collect();
}

/// What leads from operation to operation.
struct Edges {
    /// Per rank of the job, the operations in which it waits.
    waits_of: BTreeMap<usize, Vec<usize>>,
    /// Per operation, the holders that wait elsewhere and so long that it explains the operation's
    /// wait, as ranks of the job.
    leads: Vec<BTreeSet<usize>>,
    /// Per operation, the other holders: those that do not wait, or are busy elsewhere.
    held_by: Vec<BTreeSet<Rank>>,
}

fn edges(job: &Job<'_>, waits: &[WaitEdges]) -> Edges {
    let mut waits_of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, wait) in waits.iter().enumerate() {
        let who = |rank: &Rank| Some(job.comms[&wait.comm].get(rank)?.who);
        let by: BTreeSet<usize> = wait.by.iter().filter_map(who).collect();
        by.into_iter().for_each(|who| waits_of.entry(who).or_default().push(at));
    }
    let mut leads: Vec<BTreeSet<usize>> = Vec::new();
    let mut held_by: Vec<BTreeSet<Rank>> = Vec::new();
    for (at, wait) in waits.iter().enumerate() {
        let (mut to, mut by) = (BTreeSet::new(), BTreeSet::new());
        for rank in wait.holders() {
            let holder = &job.comms[&wait.comm][&rank];
            let those: &[usize] = waits_of.get(&holder.who).map_or(&[], Vec::as_slice);
            let is_why = |other: &usize| {
                *other != at && explains(waited_ns(job, &waits[*other], holder.who), wait.since_ns)
            };
            if !job.is_out(holder.state) && those.iter().any(is_why) {
                to.insert(holder.who);
            } else {
                by.insert(rank);
            }
        }
        leads.push(to);
        held_by.push(by);
    }
    Edges { waits_of, leads, held_by }
}

/// How long a rank of the job has waited in an operation: it may be several ranks there, and the
/// longest wait counts.
fn waited_ns(job: &Job<'_>, wait: &WaitEdges, who: usize) -> u64 {
    let members = wait.by.iter().filter_map(|rank| job.comms[&wait.comm].get(rank));
    let waited = members.filter(|member| member.who == who).map(|member| match &member.comm.phase {
        _ if wait.pair => wait.since_ns,
        Some(phase) if wait.op == FINISH => phase.duration_ns,
        _ => member.waited_ns(),
    });
    waited.max().unwrap_or(0)
}

/// Of ends in several communicators that the same processes hold, all but the first: each with the
/// one that it is shown behind.
///
/// A rank that is absent from one communicator is soon missed in all its others. First is the one
/// that the others lead to; else the one that the fewest other ranks hold; else the one that the
/// process used least recently, as programs use their communicators in turn; else the one where
/// others have waited longest. A young wait is not the first of an old one.
fn folded(
    job: &Job<'_>,
    waits: &[WaitEdges],
    (held_by, shown): (&[BTreeSet<Rank>], &[bool]),
    leads_to: &dyn Fn(usize, usize) -> bool,
) -> BTreeMap<usize, usize> {
    let mut by_holders: BTreeMap<BTreeSet<usize>, Vec<usize>> = BTreeMap::new();
    for at in (0..waits.len()).filter(|at| shown[*at] && !held_by[*at].is_empty()) {
        let members = &job.comms[&waits[at].comm];
        by_holders.entry(held_by[at].iter().map(|rank| members[rank].who).collect()).or_default().push(at);
    }
    let mut folded = BTreeMap::new();
    for mut those in by_holders.into_values() {
        those.sort_by_key(|at| order(job, &waits[*at], held_by[*at].iter()));
        let earlier =
            |first: usize, at: usize| if leads_to(first, at) && !leads_to(at, first) { at } else { first };
        let longest = those.iter().map(|at| waits[*at].since_ns).max().unwrap_or(0);
        let old = those.iter().copied().filter(|at| explains(waits[*at].since_ns, longest));
        let Some(first) = old.reduce(earlier) else { continue };
        let elsewhere = those.into_iter().filter(|at| waits[*at].comm != waits[first].comm);
        folded.extend(elsewhere.map(|at| (at, first)));
    }
    folded
}

/// A cycle of waits through several communicators, told by one rank in it.
struct Cycle {
    /// The operation in which others wait for that rank.
    first: usize,
    /// The rank, in that operation's communicator.
    rank: Rank,
    /// The operations in which it waits itself.
    waits_in: Vec<usize>,
}

/// The rank that stands for these waits, which lead round in circles.
///
/// It is one that went on while others waited for it already: it has left out a call, and waits
/// itself only since later. Of several it is the one that was missed first, or of these the one
/// that went on for longest. If all began to wait together, it is the one for which the most
/// processes wait: a rank that waits in the wrong place is missed in all others. `None` if one
/// communicator has all of them: it tells the cycle itself.
fn cycle(job: &Job<'_>, waits: &[WaitEdges], cyclic: &[usize]) -> Option<Cycle> {
    let comms: BTreeSet<CommId> = cyclic.iter().map(|at| waits[*at].comm).collect();
    if comms.len() < 2 || cyclic.len() > MAX_CYCLIC {
        return None;
    }
    let who = |at: usize, rank: &Rank| job.comms[&waits[at].comm].get(rank).map(|member| member.who);
    let mut waits_for: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut waited_by: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for at in cyclic.iter().copied() {
        let holders: BTreeSet<usize> = waits[at].holders().filter_map(|rank| who(at, &rank)).collect();
        for by in waits[at].by.iter().filter_map(|rank| who(at, rank)) {
            waits_for.entry(by).or_default().extend(&holders);
            for holder in &holders {
                waited_by.entry(*holder).or_default().insert(by);
            }
        }
    }
    let is_in_cycle = |from: usize| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(one) = next.pop() {
            next.extend(waits_for.get(&one).into_iter().flatten().filter(|to| seen.insert(**to)));
        }
        seen.contains(&from)
    };
    let mut most: Vec<usize> = waited_by.keys().copied().collect();
    most.sort_by_key(|one| (std::cmp::Reverse(waited_by[one].len()), *one));
    most.retain(|one| is_in_cycle(*one));
    let is_inside = |one: usize, at: &usize| waits[*at].by.iter().any(|rank| who(*at, rank) == Some(one));
    let inside = |one: usize| cyclic.iter().copied().filter(move |at| is_inside(one, at));
    let waited = |one: usize| inside(one).map(|at| waited_ns(job, &waits[at], one)).max().unwrap_or(0);
    let own: BTreeMap<usize, u64> = most.iter().map(|one| (*one, waited(*one))).collect();
    let went_on = |at: usize, rank: Rank| {
        let one = who(at, &rank)?;
        let own_ns = own.get(&one)?.saturating_add(SAID_NS);
        (waits[at].since_ns > own_ns).then_some((at, rank, one))
    };
    let missed = cyclic.iter().flat_map(|at| waits[*at].missing.iter().map(|rank| (*at, *rank)));
    let missed: Vec<_> = missed.filter_map(|(at, rank)| went_on(at, rank)).collect();
    let longest = missed.iter().map(|(at, ..)| waits[*at].since_ns).max().unwrap_or(0);
    let first = missed.into_iter().filter(|(at, ..)| waits[*at].since_ns.saturating_add(SAID_NS) >= longest);
    if let Some((first, rank, one)) = first.min_by_key(|(_, _, one)| (own[one], *one)) {
        return Some(Cycle { first, rank, waits_in: inside(one).collect() });
    }
    let one = most.first().copied()?;
    let held =
        |at: &usize| waits[*at].holders().find(|rank| who(*at, rank) == Some(one)).map(|rank| (*at, rank));
    let (first, rank) = cyclic
        .iter()
        .filter_map(held)
        .min_by_key(|(at, rank)| order(job, &waits[*at], std::iter::once(rank)))?;
    Some(Cycle { first, rank, waits_in: inside(one).collect() })
}

/// Orders operations that the same ranks hold: first the one that nobody else holds, then the one
/// whose communicator they have used least recently, then the one that has waited longest.
fn order<'a>(
    job: &Job<'_>,
    wait: &WaitEdges,
    holders: impl Iterator<Item = &'a Rank>,
) -> (usize, std::cmp::Reverse<(Option<u64>, u64)>, CommId, u64) {
    let ops = holders.map(|rank| job.comms[&wait.comm][rank].comm.operation());
    let unused = ops.filter(|op| op.state == OpState::Idle && !op.kind.is_empty()).map(|op| op.age_ns);
    let others = wait.holders().count();
    (others, std::cmp::Reverse((unused.max(), wait.since_ns)), wait.comm, wait.seq)
}

/// Per rank that waits, the kinds of ends to which its waits lead.
///
/// Once per rank, not per operation: there may be thousands of operations that each lead to all
/// others, and thousands in which one rank waits.
fn reached(edges: &Edges, is_end: &[bool], kinds: &[usize]) -> BTreeMap<usize, BTreeSet<usize>> {
    let step = |those: &[usize]| {
        let (ends, on): (Vec<usize>, Vec<usize>) = those.iter().partition(|at| is_end[**at]);
        let ends: BTreeSet<usize> = ends.into_iter().map(|at| kinds[at]).collect();
        let on: BTreeSet<usize> = on.into_iter().flat_map(|at| &edges.leads[at]).copied().collect();
        (ends, on)
    };
    let steps: BTreeMap<usize, _> = edges.waits_of.iter().map(|(who, those)| (*who, step(those))).collect();
    let ends_of = |from: usize| {
        let (mut ends, mut seen, mut next) = (BTreeSet::new(), BTreeSet::from([from]), vec![from]);
        while let Some(who) = next.pop() {
            let (own, on) = &steps[&who];
            ends.extend(own);
            next.extend(on.iter().filter(|who| seen.insert(**who)));
        }
        ends
    };
    steps.keys().map(|who| (*who, ends_of(*who))).collect()
}

/// Joins two pairs that wait for the same rank in the same way.
fn join(one: &mut BlockedOn, other: BlockedOn) {
    let by: BTreeSet<Rank> = one.by.iter().chain(&other.by).copied().collect();
    one.by = by.into_iter().collect();
    if other.since_ns > one.since_ns {
        (one.since_ns, one.seq, one.link) = (other.since_ns, other.seq, other.link);
    }
    one.p99_ns = one.p99_ns.max(other.p99_ns);
}

fn as_awaited(wait: &WaitEdges, held: &BTreeSet<Rank>) -> BlockedOn {
    let of = |ranks: &BTreeSet<Rank>| ranks.intersection(held).copied().collect();
    BlockedOn {
        comm: wait.comm,
        op: wait.op.clone(),
        seq: wait.seq,
        missing: of(&wait.missing),
        inside: of(&wait.inside),
        by: wait.by.iter().copied().collect(),
        since_ns: wait.since_ns,
        p99_ns: wait.p99_ns,
        unseen: wait.unseen.iter().copied().collect(),
        name: wait.name.clone(),
        tag: wait.tag.clone(),
        link: wait.link.clone(),
        ..BlockedOn::default()
    }
}

fn as_behind(wait: &WaitEdges) -> Behind {
    Behind {
        comm: wait.comm,
        name: wait.name.clone(),
        op: wait.op.clone(),
        seq: wait.seq,
        by: wait.by.iter().copied().collect(),
        through: wait.holders().collect(),
    }
}
