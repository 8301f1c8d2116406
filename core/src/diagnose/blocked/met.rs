//! Waits that are over although the rank that waits has not gone on: by the counters of both ends
//! of the link. Only links through memory: what a socket has handed over may be under way.

use super::{Edge, Member, Members};
use crate::diagnose::SAID_NS;
use crate::snapshot::{Direction, LinkSnapshot, OpState, State, Transport, Waits};
use crate::types::{ChannelId, Rank};

/// How long before a rank was read its message must have lain there: less is the time that a busy
/// machine takes to wake it.
const LAIN_NS: u64 = SAID_NS / 2;

/// Takes out the waits that are over.
pub(super) fn remove(members: &mut Members<'_>) {
    let mut over: Vec<(Rank, usize, Vec<Edge>)> = Vec::new();
    let all = &*members;
    for (rank, member) in all {
        for (pairs, edges) in member.waits.iter().enumerate() {
            let rest: Vec<Edge> = edges.iter().filter(|edge| !is_over(all, *rank, edge)).copied().collect();
            if rest.len() < edges.len() {
                over.push((*rank, pairs, rest));
            }
        }
    }
    for (rank, pairs, rest) in over {
        let Some(member) = members.get_mut(&rank) else { continue };
        member.is_met[pairs] = rest.is_empty();
        member.waits[pairs] = rest;
    }
}

/// Whether what a rank waits for has happened, for long enough.
fn is_over(members: &Members<'_>, rank: Rank, edge: &Edge) -> bool {
    let (Some(own), Some(other)) = (members.get(&rank), members.get(&edge.peer)) else { return false };
    let has_moved = match (edge.waits, edge.direction) {
        (Waits::Peer, Direction::Recv) => {
            let ends = link(own, edge, edge.peer).zip(link(other, &opposite(edge), rank));
            ends.is_some_and(|(mine, its)| its.moved > mine.moved)
        }
        (Waits::Credit, Direction::Send) => has_freed(members, rank, edge),
        _ => false,
    };
    // What was read later may have happened later, unless this rank could not go on any more.
    let is_frozen = own.state == State::Stopped || own.is_gone();
    let since_ns = other.at_ns.saturating_sub(stands_ns(other, edge.channel));
    has_moved && (is_frozen || since_ns.saturating_add(LAIN_NS) <= own.at_ns)
}

/// Whether the next slot of a sender is free: all readers of its lane have freed it.
fn has_freed(members: &Members<'_>, rank: Rank, edge: &Edge) -> bool {
    let Some(mine) = members.get(&rank).and_then(|own| link(own, edge, edge.peer)) else { return false };
    let back = opposite(edge);
    let offered = |reader: Rank| {
        members.get(&reader).and_then(|reader| link(reader, &back, rank)).map(|its| its.posted)
    };
    let is_free = |offered: u64| offered > mine.posted;
    // A shared lane waits for the slowest reader, whichever that is now.
    let others = || members.keys().filter(|other| **other != rank).filter_map(|other| offered(*other));
    match mine.peer {
        Some(peer) => offered(peer).is_some_and(is_free),
        None => {
            let is_read = members.values().all(|member| member.comm.nranks as usize == members.len());
            is_read && offered(edge.peer).is_some() && others().all(is_free)
        }
    }
}

/// The only link of a rank on that channel, in that direction, that leads to a peer or to all.
fn link<'a>(member: &Member<'a>, edge: &Edge, peer: Rank) -> Option<&'a LinkSnapshot> {
    let is_it = |link: &&LinkSnapshot| {
        (link.channel, link.direction) == (edge.channel, edge.direction)
            && link.peer.is_none_or(|to| to == peer)
            && matches!(link.transport, Transport::Shm | Transport::InProcess)
    };
    let mut links = member.comm.links.iter().filter(is_it);
    links.next().filter(|_| links.next().is_none())
}

/// The other end.
const fn opposite(edge: &Edge) -> Edge {
    let direction = match edge.direction {
        Direction::Recv => Direction::Send,
        Direction::Send => Direction::Recv,
        Direction::Unknown => Direction::Unknown,
    };
    Edge { direction, ..*edge }
}

/// How long at least a rank has moved nothing on a channel: its operation has ended, or waits
/// there.
fn stands_ns(member: &Member<'_>, channel: ChannelId) -> u64 {
    let is_pair = channel == ChannelId::P2P;
    let op = if is_pair { member.comm.p2p.as_ref() } else { Some(&member.comm.op) };
    match op {
        Some(op) if op.state == OpState::Idle => op.age_ns,
        // Of several sends and receives the others may go on.
        _ if is_pair => 0,
        _ => {
            let here = member.waiting(false).filter(|edge| edge.channel == channel);
            here.map(|edge| edge.since_ns).max().unwrap_or(0)
        }
    }
}

#[cfg(test)]
mod tests;
