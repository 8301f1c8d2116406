//! Queue pairs and ports, in a line each.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{channel_name, comm_name, duration, shown};
use crate::snapshot::{
    CommSnapshot, Direction, LinkSnapshot, PortSnapshot, PortStanding, RankSnapshot, Snapshot, WorkFailure,
};
use crate::sys::verbs::words::cause;
use crate::types::Rank;

/// The most links whose queue pairs are listed beside those that wait: those that failed come
/// first.
const MAX_LINKS: usize = 64;

/// `queue pair 17 on rxe0 port 1 (10.89.0.1) to 18 (10.89.0.2): RTS, 12 writes, 3 unanswered, last
/// completion 2.1 s ago`, and on a line of its own why it failed. Nobody awaits the answer to what
/// a reader writes.
pub(super) fn queue_pairs(out: &mut String, link: &LinkSnapshot) {
    for pair in &link.queue_pairs {
        let last = match pair.completed_ns {
            None => "nothing completed yet".to_string(),
            Some(ns) => format!("last completion {} ago", duration(ns)),
        };
        let unanswered = match link.direction {
            Direction::Recv => String::new(),
            Direction::Send | Direction::Unknown => format!(", {} unanswered", pair.outstanding()),
        };
        let (ends, state, posted) = (pair.ends(), pair.state, pair.posted);
        let _ = writeln!(out, "    {ends}: {state}, {posted} writes{unanswered}, {last}");
        if let Some(WorkFailure { status, name, vendor, ago_ns }) = &pair.error {
            let ago = duration(*ago_ns);
            let why = cause(*status);
            let _ = writeln!(out, "      failed {ago} ago with {name} ({status}, vendor {vendor:#x}): {why}");
        }
    }
}

/// Whether a work request of the link failed.
fn has_failed(link: &LinkSnapshot) -> bool {
    link.queue_pairs.iter().any(|pair| pair.error.is_some())
}

/// The queue pairs of links that do not wait; those that failed come first. Of a communicator that
/// has ended only these are told: the others are gone.
pub(super) fn others(out: &mut String, job: &Snapshot) {
    let numbers = job.numbers();
    let comms =
        job.ranks.iter().flat_map(|rank| rank.comms.iter().filter(shown).map(move |comm| (rank, comm)));
    let links = comms.flat_map(|(rank, comm)| comm.links.iter().map(move |link| (rank, comm, link)));
    let is_other = |link: &LinkSnapshot| link.long_wait_ns().is_none() && !link.queue_pairs.is_empty();
    let mut links: Vec<(&RankSnapshot, &CommSnapshot, &LinkSnapshot)> =
        links.filter(|(_, comm, link)| is_other(link) && (!comm.ended || has_failed(link))).collect();
    if links.is_empty() {
        return;
    }
    links.sort_by_key(|(.., link)| !has_failed(link));
    out.push_str("\nqueue pairs\n");
    for (rank, comm, link) in links.iter().take(MAX_LINKS) {
        let of_job = |peer: Rank| numbers.get(&(comm.id, peer)).copied().unwrap_or(peer);
        let peer = link.peer.map_or_else(|| "all".into(), |peer| format!("rank {}", of_job(peer)));
        let channel = channel_name(link.channel);
        let name = comm_name(&comm.name, comm.id);
        let _ = writeln!(out, "  {name} rank {} {channel} {} {peer}:", rank.rank, link.direction);
        queue_pairs(out, link);
    }
    if links.len() > MAX_LINKS {
        let _ = writeln!(out, "  and those of {} links more", links.len() - MAX_LINKS);
    }
}

/// The ports that queue pairs are on, each once per host, as the last rank there has read it.
pub(super) fn ports(out: &mut String, job: &Snapshot) {
    let mut all: BTreeMap<(&str, &str, u8), &PortSnapshot> = BTreeMap::new();
    for rank in &job.ranks {
        let host = if rank.host_id.is_empty() { &rank.host } else { &rank.host_id };
        for port in &rank.ports {
            let known = all.entry((host, &port.device, port.port)).or_insert(port);
            if port.age_ns < known.age_ns {
                *known = port;
            }
        }
    }
    if all.is_empty() {
        return;
    }
    out.push_str("\nports (counts are those of the device, whoever uses it)\n");
    for ((host, device, number), port) in all {
        let state = match port.state {
            PortStanding::Active => "active".to_string(),
            other => other.word().to_uppercase(),
        };
        let counts = [
            (port.retries, "retries"),
            (port.lost, "packets missed"),
            (port.not_ready, "not ready"),
            (port.given_up, "given up"),
        ];
        let counts: String =
            counts.iter().filter_map(|(count, what)| Some(format!(", {} {what}", (*count)?))).collect();
        let event = port.event.as_ref().map_or_else(String::new, |event| {
            format!(", reported {} {} ago", event.name, duration(event.ago_ns))
        });
        let PortSnapshot { address, layer, speed_mbps, .. } = port;
        let speed = *speed_mbps as f64 / 1e3;
        let _ = writeln!(
            out,
            "  {device} port {number} on {host} ({address}): {state}, {layer}, {speed} Gbit/s{counts}{event}"
        );
    }
}
