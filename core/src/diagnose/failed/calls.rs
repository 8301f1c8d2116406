//! The call in which ranks differ, of a mismatch.
//!
//! The cells hold the latest call of each rank. A rank that completed the call may have gone on,
//! and its cell then holds a later one: the root of a broadcast hears from nobody, and the others
//! only from the root. What it called follows where it can have completed only one of the calls
//! that are known: from the cells, and from the message of the mismatch, which names two sides.

use std::collections::{BTreeMap, BTreeSet};

use super::Members;
use crate::diagnose::FINISH;
use crate::snapshot::{Called, CommSnapshot, Direction, LinkSnapshot, OpSnapshot, OpState, Transport};
use crate::types::{Phase, Rank};

/// The most calls of a mismatch that are listed.
const MAX_CALLS: usize = 16;

/// A call in which ranks differ.
pub(super) struct Differing {
    /// The call of the largest group of ranks, as a rank made it.
    pub(super) op: OpSnapshot,
    /// The calls of all groups; the largest group first.
    pub(super) calls: Vec<Called>,
    /// The ranks that completed it, of which nothing tells what they called.
    unknown: usize,
}

/// The first call in which ranks differ: of the calls that they were in when they failed, and of
/// the one that the message of the mismatch names.
pub(super) fn differs(members: &Members<'_>, text: &str) -> Option<Differing> {
    let said = said(text);
    let in_some = members.values().filter_map(|(_, comm)| is_inside(&comm.op).then_some(comm.op.seq));
    let mut seqs: BTreeSet<u64> = in_some.collect();
    seqs.extend(said.iter().map(|(_, op)| op.seq));
    seqs.into_iter().take(MAX_CALLS).find_map(|seq| {
        let (mut known, finished) = known(members, seq, &said);
        let unknown = follow(members, seq, &mut known);
        let calls = grouped(&known, finished);
        let of_finish = |called: &&Called| called.call != FINISH;
        let most = calls.iter().find(of_finish).and_then(|called| known.get(called.ranks.first()?));
        let op = most.filter(|_| calls.len() > 1)?.clone();
        Some(Differing { op, calls, unknown })
    })
}

impl Differing {
    /// The ranks that called something else than most ranks did: at least half of all, and more
    /// than the others that called anything or of which that is not known.
    pub(super) fn minority(&self, members: &Members<'_>, nranks: u32) -> Vec<Rank> {
        let Some((most, others)) = self.calls.split_first() else { return Vec::new() };
        let others: BTreeSet<Rank> = others.iter().flat_map(|called| &called.ranks).copied().collect();
        let nranks = nranks as usize;
        let unread = nranks.saturating_sub(members.len()) + self.unknown;
        let is_most = most.ranks.len() * 2 >= nranks && most.ranks.len() > others.len() + unread;
        if is_most { others.into_iter().collect() } else { Vec::new() }
    }
}

/// What ranks called.
type Known = BTreeMap<Rank, OpSnapshot>;

fn is_inside(op: &OpSnapshot) -> bool {
    matches!(op.state, OpState::Failed | OpState::Running) && !op.kind.is_empty()
}

/// What ranks called under that number, by their cells and by the message; and those that called
/// `finish()` instead.
fn known(members: &Members<'_>, seq: u64, said: &[(Rank, OpSnapshot)]) -> (Known, Vec<Rank>) {
    let (mut known, mut finished) = (Known::new(), Vec::new());
    for (rank, (_, comm)) in members {
        // Also of one that has completed it, if it has called nothing since.
        if comm.op.seq == seq && !comm.op.kind.is_empty() {
            known.insert(*rank, comm.op.clone());
        } else if comm.last_called() < seq && has_finished(comm) {
            finished.push(*rank);
        }
    }
    let completed = said.iter().filter(|(rank, op)| op.seq == seq && is_past(members, *rank, seq));
    for (rank, op) in completed {
        known.entry(*rank).or_insert_with(|| op.clone());
    }
    (known, finished)
}

/// Adds what the ranks that completed it must have called, if they called one of the calls that are
/// known; returns how many remain of which that does not follow.
fn follow(members: &Members<'_>, seq: u64, known: &mut Known) -> usize {
    let calls: BTreeMap<String, OpSnapshot> = known.values().map(|op| (call(op), op.clone())).collect();
    let past = members.keys().copied().filter(|rank| is_past(members, *rank, seq));
    let mut open: Vec<Rank> = past.filter(|rank| !known.contains_key(rank)).collect();
    if calls.len() < 2 || calls.len() > MAX_CALLS {
        return if calls.is_empty() { 0 } else { open.len() };
    }
    // Who is told of a root tells of others.
    loop {
        let before = open.len();
        open.retain(|rank| {
            let mut possible = calls.values().filter(|op| can_complete(members, known, *rank, op));
            let (first, second) = (possible.next(), possible.next());
            let only = first.filter(|_| second.is_none()).cloned();
            let is_open = only.is_none();
            known.extend(only.map(|op| (*rank, op)));
            is_open
        });
        if open.is_empty() || open.len() == before {
            return open.len();
        }
    }
}

/// Whether a rank may have completed this call, though others called something else.
fn can_complete(members: &Members<'_>, known: &Known, rank: Rank, op: &OpSnapshot) -> bool {
    let has_called = |rank: Rank| known.get(&rank).map(|other| call(other) == call(op));
    let waits_for = |other: &Rank| {
        let inside = members.get(other).map(|(_, comm)| &comm.op).filter(|own| own.seq == op.seq);
        inside.and_then(|own| own.wait.as_ref()).is_some_and(|wait| wait.peer == op.root)
    };
    match op.kind.as_str() {
        // The root hears from nobody; but who waits for it in that call has nothing from it.
        "Broadcast" | "Scatter" if rank == op.root => {
            !known.keys().any(|other| has_called(*other) == Some(true) && waits_for(other))
        }
        "Broadcast" => has_called(op.root) != Some(false) && !is_without(members, known, rank, op),
        "Scatter" => has_called(op.root) != Some(false),
        "Reduce" | "Gather" => rank != op.root,
        // All of these end with what all ranks have sent.
        _ => false,
    }
}

/// Whether a rank has taken as many messages of the root's shared lane as one that is known to have
/// called something else: then not the one that this broadcast sends.
fn is_without(members: &Members<'_>, known: &Known, rank: Rank, op: &OpSnapshot) -> bool {
    let links = |rank: Rank| members.get(&rank).into_iter().flat_map(|(_, comm)| &comm.links);
    let is_shared = |link: &LinkSnapshot| link.direction == Direction::Send && link.peer.is_none();
    let taken = |rank: Rank| {
        let from_root = |link: &&LinkSnapshot| {
            (link.peer, link.direction) == (Some(op.root), Direction::Recv)
                && matches!(link.transport, Transport::Shm | Transport::InProcess)
                && links(op.root).any(|sends| is_shared(sends) && sends.channel == link.channel)
        };
        links(rank).find(from_root).map(|link| link.done)
    };
    let others = known.iter().filter(|(other, called)| **other != op.root && call(called) != call(op));
    let own = taken(rank);
    own.is_some() && others.map(|(other, _)| taken(*other)).any(|other| other == own)
}

/// Whether a rank has completed the collective of that number.
fn is_past(members: &Members<'_>, rank: Rank, seq: u64) -> bool {
    members.get(&rank).is_some_and(|(_, comm)| comm.op.completed >= seq)
}

/// Groups ranks by what they called; the largest group first.
fn grouped(known: &Known, finished: Vec<Rank>) -> Vec<Called> {
    let mut calls: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
    known.iter().for_each(|(rank, op)| calls.entry(call(op)).or_default().push(*rank));
    if !finished.is_empty() {
        calls.insert(FINISH.into(), finished);
    }
    let mut calls: Vec<Called> = calls.into_iter().map(|(call, ranks)| Called { ranks, call }).collect();
    calls.sort_by_key(|called| std::cmp::Reverse(called.ranks.len()));
    calls.truncate(MAX_CALLS);
    calls
}

/// Whether it called `finish()`, which waited for the others.
fn has_finished(comm: &CommSnapshot) -> bool {
    comm.phase.iter().chain(&comm.phases).any(|phase| phase.phase == Phase::Finish.name())
}

/// The text of a call: `Reduce of 100 F32, Sum, root 2`.
fn call(op: &OpSnapshot) -> String {
    let OpSnapshot { kind, dtype, op, root, count, uneven, plan, .. } = op;
    match kind.as_str() {
        "AllToAll" if *uneven => format!("{kind} of {dtype}, uneven"),
        // Only the hash tells which counts the blocks have.
        "AllGather" if *uneven => format!("{kind} of {count} {dtype}, uneven ({plan})"),
        "ReduceScatter" if *uneven => format!("{kind} of {count} {dtype}, {op}, uneven ({plan})"),
        "Barrier" | "split()" | "invite()" => kind.clone(),
        "Broadcast" | "Gather" | "Scatter" => format!("{kind} of {count} {dtype}, root {root}"),
        "Reduce" => format!("{kind} of {count} {dtype}, {op}, root {root}"),
        "AllReduce" | "ReduceScatter" => format!("{kind} of {count} {dtype}, {op}"),
        _ => format!("{kind} of {count} {dtype}"),
    }
}

/// The two calls that the message of a mismatch names (`say_both` in `failure/gossip/differ.rs`);
/// none if it names one side, or a send or receive.
fn said(text: &str) -> Vec<(Rank, OpSnapshot)> {
    let mut sides = text.split("; ").map(side);
    match (sides.next().flatten(), sides.next().flatten()) {
        (Some(one), Some(other)) if one.1.seq == other.1.seq => vec![one, other],
        _ => Vec::new(),
    }
}

/// `rank 6 called Reduce #18 (count 1, F32, Sum, root 7)`, `... AllGather #18 (count 9, F32, uneven
/// 5f...)`, `... Barrier #18`
fn side(text: &str) -> Option<(Rank, OpSnapshot)> {
    let (rank, rest) = text.strip_prefix("rank ")?.split_once(" called ")?;
    let (kind, rest) = rest.split_once(" #")?;
    let (rank, name) = (Rank(rank.parse().ok()?), String::from(kind));
    if kind == "Barrier"
        && let Ok(seq) = rest.parse()
    {
        return Some((rank, OpSnapshot { kind: name, seq, ..OpSnapshot::default() }));
    }
    let (seq, rest) = rest.split_once(" (count ")?;
    let facts = rest.strip_suffix(')')?;
    let (facts, plan) = facts.split_once(", uneven ").map_or((facts, None), |(it, plan)| (it, Some(plan)));
    let mut facts = facts.split(", ");
    let (count, dtype) = (facts.next()?, facts.next()?);
    let (mut op, mut root) = ("", "0");
    for fact in facts {
        match fact.strip_prefix("root ") {
            Some(of) => root = of,
            None => op = fact,
        }
    }
    let op = OpSnapshot {
        kind: name,
        seq: seq.parse().ok()?,
        count: count.parse().ok()?,
        dtype: dtype.into(),
        op: op.into(),
        root: Rank(root.parse().ok()?),
        uneven: plan.is_some(),
        plan: plan.unwrap_or_default().into(),
        ..OpSnapshot::default()
    };
    Some((rank, op))
}

/// The two calls that the message of a mismatch between a sender and a receiver names: the cells
/// hold only the later one of a send and a receive that run side by side. Those of an all-to-all,
/// whose cells do not have the counts of its pairs, begin with the sender.
pub(in crate::diagnose) fn pair(text: &str) -> Option<[(Rank, OpSnapshot); 2]> {
    let side = |text: &str| {
        let (call, peer) = text.rsplit_once(" to rank ").or_else(|| text.rsplit_once(" from rank "))?;
        let (rank, op) = side(call)?;
        Some((rank, OpSnapshot { peer: Some(Rank(peer.parse().ok()?)), ..op }))
    };
    let mut sides = text.split("; ").map(side);
    let [one, other] = [sides.next()??, sides.next()??];
    let is_pair = |a: &str, b: &str| (one.1.kind.as_str(), other.1.kind.as_str()) == (a, b);
    let is_told = is_pair("Send", "Recv") || is_pair("Recv", "Send") || is_pair("AllToAll", "AllToAll");
    is_told.then_some([one, other])
}

/// The same as calls of their ranks.
pub(super) fn of_pair(text: &str) -> Vec<Called> {
    let called = |(nth, (rank, op)): (usize, (Rank, OpSnapshot))| {
        let is_sender = op.kind == "Send" || op.kind == "AllToAll" && nth == 0;
        let way = if is_sender { "to" } else { "from" };
        let peer = op.peer.unwrap_or_default();
        let call = format!("{} #{} of {} {} {way} rank {peer}", op.kind, op.seq, op.count, op.dtype);
        Called { ranks: vec![rank], call }
    };
    pair(text).into_iter().flatten().enumerate().map(called).collect()
}

#[cfg(test)]
mod tests;
