//! Ranks that wait for each other in a circle: the shortest one, and who waits behind it.

use std::collections::{BTreeMap, BTreeSet};

use super::{process, verb};
use crate::diagnose::standing::has_called;
use crate::diagnose::{call_name, comm_name, is_pair, ranks_text};
use crate::snapshot::{Culprit, Snapshot};
use crate::types::{CommId, Rank};

/// The most waits that are followed to find the shortest circle.
const MAX_STEPS: usize = 1 << 20;

/// The ranks of the job that wait for each other in a circle.
#[derive(Default)]
pub(super) struct Circle {
    /// Each with the rank for which it waits there, and the operation.
    pub(super) edges: BTreeMap<Rank, (Rank, String)>,
    /// The ranks outside whose waits lead into it.
    pub(super) behind: BTreeSet<Rank>,
}

impl Circle {
    /// The shortest circle through the waits that are long enough to be judged.
    pub(super) fn of(job: &Snapshot, suspect_ns: u64) -> Self {
        // Per rank: whom it waits for, and in which operation.
        let mut waits = WaitsFor::new();
        let mut add = |comm: CommId, by: &[Rank], holders: &[Rank], op: String| {
            for rank in job.job_ranks(comm, by) {
                for holder in job.job_ranks(comm, holders).into_iter().filter(|holder| *holder != rank) {
                    waits.entry(rank).or_default().entry(holder).or_insert_with(|| op.clone());
                }
            }
        };
        for one in job.blocked_on.iter().filter(|one| one.since_ns >= suspect_ns) {
            // A send whose receive was called waits for data, not for a call.
            let inside = one.inside.iter().filter(|_| !is_pair(&one.op));
            let holders: Vec<Rank> = one.missing.iter().chain(inside).copied().collect();
            let op = |op: &str, seq, name: &str, comm| {
                format!("{} of {}", call_name(op, seq), comm_name(name, comm))
            };
            add(one.comm, &one.by, &holders, op(&one.op, one.seq, &one.name, one.comm));
            for other in one.behind.iter().chain(&one.waits_in) {
                let has_called = |holder: &Rank| {
                    let rows = job.ranks.iter().flat_map(|rank| &rank.comms);
                    let mut its = rows.filter(|row| row.id == other.comm && row.rank == *holder);
                    its.any(|row| other.by.iter().all(|by| has_called(row, *by, &other.op, other.seq)))
                };
                let lacks = |holder: &&Rank| !(is_pair(&other.op) && has_called(holder));
                let through: Vec<Rank> = other.through.iter().filter(lacks).copied().collect();
                add(other.comm, &other.by, &through, op(&other.op, other.seq, &other.name, other.comm));
            }
        }
        let by = waiters(&waits);
        let path = shortest_circle(&waits, &by);
        let next = |at: usize| path[(at + 1) % path.len()];
        let edge = |(at, rank): (usize, &Rank)| (*rank, (next(at), waits[rank][&next(at)].clone()));
        let edges: BTreeMap<Rank, _> = path.iter().enumerate().map(edge).collect();
        let behind = lead_to(&by, edges.keys().copied().collect());
        Self { edges, behind }
    }

    pub(super) fn has(&self, rank: Rank) -> bool {
        self.edges.contains_key(&rank)
    }

    /// The processes in it.
    pub(super) fn members<'a>(&'a self, job: &'a Snapshot) -> impl Iterator<Item = Culprit> + 'a {
        self.edges.keys().filter_map(|rank| process::of(job, *rank)).map(process::culprit)
    }

    /// `rank 0 waits for rank 1 in Send #1 of world, rank 1 for rank 0 in Send #1 of world`.
    pub(super) fn text(&self, is_past: bool) -> String {
        let waits = if is_past { "waited" } else { "waits" };
        let Some((first, (mut to, op))) = self.edges.iter().next().map(|(rank, edge)| (*rank, edge.clone()))
        else {
            return format!("all {} for each other", if is_past { "waited" } else { "wait" });
        };
        let mut text = format!("rank {first} {waits} for rank {to} in {op}");
        while to != first && text.len() < 1 << 10 {
            let (next, op) = &self.edges[&to];
            text += &format!(", rank {to} for rank {next} in {op}");
            to = *next;
        }
        if to != first {
            text += " ...";
        }
        let behind: Vec<Rank> = self.behind.iter().copied().collect();
        if !behind.is_empty() {
            let wait = if is_past { "waited" } else { verb(behind.len(), "waits", "wait") };
            text += &format!("; {} {wait} for them", ranks_text(&behind));
        }
        text
    }
}

/// Per rank, whom it waits for and in which operation.
type WaitsFor = BTreeMap<Rank, BTreeMap<Rank, String>>;
/// Per rank, who waits for it.
type Waiters = BTreeMap<Rank, Vec<Rank>>;

fn waiters(waits: &WaitsFor) -> Waiters {
    let mut by = Waiters::new();
    for (rank, holders) in waits {
        holders.keys().for_each(|holder| by.entry(*holder).or_default().push(*rank));
    }
    by
}

/// The shortest circle, or a short one where there are very many waits; empty if there is none.
fn shortest_circle(waits: &WaitsFor, by: &Waiters) -> Vec<Rank> {
    // A rank that waits only for ranks outside of circles is in no circle.
    let mut open: BTreeMap<Rank, usize> = BTreeMap::new();
    for (rank, holders) in waits {
        open.insert(*rank, holders.keys().filter(|holder| waits.contains_key(holder)).count());
    }
    let mut ends: Vec<Rank> = open.iter().filter(|(_, count)| **count == 0).map(|(rank, _)| *rank).collect();
    while let Some(end) = ends.pop() {
        open.remove(&end);
        for rank in by.get(&end).into_iter().flatten() {
            if let Some(count) = open.get_mut(rank) {
                *count -= 1;
                ends.extend((*count == 0).then_some(*rank));
            }
        }
    }
    let mut steps = MAX_STEPS;
    let paths = open.keys().map_while(|rank| (steps > 0).then(|| path_back(waits, *rank, &mut steps)));
    let shortest = paths.flatten().min_by_key(Vec::len);
    shortest.unwrap_or_else(|| {
        // Each rank that is left waits for another one of these: such a path ends in a circle.
        let on = |rank: &Rank| waits[rank].keys().find(|to| open.contains_key(to)).copied();
        let mut way: Vec<Rank> = open.keys().next().copied().into_iter().collect();
        while let Some(next) = way.last().and_then(on) {
            if let Some(begin) = way.iter().position(|rank| *rank == next) {
                return way.split_off(begin);
            }
            way.push(next);
        }
        Vec::new()
    })
}

/// The other ranks whose waits lead to one of these.
fn lead_to(by: &Waiters, these: BTreeSet<Rank>) -> BTreeSet<Rank> {
    let (mut found, mut next) = (these.clone(), Vec::from_iter(these.iter().copied()));
    while let Some(rank) = next.pop() {
        next.extend(by.get(&rank).into_iter().flatten().filter(|rank| found.insert(**rank)));
    }
    &found - &these
}

/// The shortest way along the waits from a rank back to itself.
///
/// `None` if there is none, or if it was not found in so many steps.
fn path_back(waits: &WaitsFor, from: Rank, steps: &mut usize) -> Option<Vec<Rank>> {
    let mut came: BTreeMap<Rank, Rank> = BTreeMap::new();
    let mut next = std::collections::VecDeque::from([from]);
    while let Some(rank) = next.pop_front() {
        for to in waits.get(&rank).into_iter().flat_map(BTreeMap::keys) {
            *steps = steps.checked_sub(1)?;
            if *to == from {
                let mut path = vec![rank];
                while path[path.len() - 1] != from {
                    path.push(came[&path[path.len() - 1]]);
                }
                path.reverse();
                return Some(path);
            }
            if let std::collections::btree_map::Entry::Vacant(free) = came.entry(*to) {
                free.insert(rank);
                next.push_back(*to);
            }
        }
    }
    None
}
