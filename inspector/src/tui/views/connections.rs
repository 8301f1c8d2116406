//! Links: what carries them and why, how much they carried, what they wait for, and what the kernel
//! says of their sockets.

use ccl::diagnose::duration;
use ccl::snapshot::{CommSnapshot, Direction, LinkSnapshot, QueuePairSnapshot, SocketSnapshot, Why};
use ccl::types::Rank;

use crate::tui::listing::{About, Cell, Column, Listing, Row};
use crate::tui::palette::Role;
use crate::tui::scene::{Member, Scene, bytes, calm, channel, fields, host, name};

/// The columns for one communicator or several, and where ranks have other numbers in the job.
fn columns(are_several: bool, is_renumbered: bool) -> Vec<Column> {
    let comm = Column::new("comm").shrinks(5).key("comm");
    let mut columns = vec![Column::new("rank")];
    columns.extend(is_renumbered.then(|| Column::new("job rank")));
    columns.extend([
        Column::new("direction"),
        Column::new("peer"),
        Column::new("over"),
        Column::new("why").shrinks(9).goes(2),
        Column::new("posted").goes(4),
        Column::new("moved"),
        Column::new("done").goes(5),
        Column::new("bytes").goes(1),
        Column::new("waited").goes(6),
        Column::new("state").key("state"),
        Column::new("since"),
        if are_several { comm } else { comm.goes(3) },
        Column::new("peer's host").shrinks(8).goes(7),
        Column::new("rtt").goes(9),
        Column::new("retrans").goes(8),
        Column::new("unsent").goes(10),
    ]);
    columns
}

/// One row per link of every rank.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let all: Vec<Member<'_>> = scene.members().filter_map(|(_, _, member)| member).collect();
    let is_renumbered = Scene::are_renumbered(all.iter().copied());
    let columns = columns(scene.comms().len() > 1, is_renumbered);
    let mut rows = Vec::new();
    for member in all {
        let members = scene.of_comm(member.comm.id);
        for (nth, link) in member.comm.links.iter().enumerate() {
            let peer = link.peer.and_then(|peer| members.iter().find(|other| other.comm.rank == peer));
            let (text, role) = state(scene, member.comm, link);
            let since_ns = link.long_wait_ns().unwrap_or(0);
            let to = link.peer.map_or_else(|| Cell::text("all"), |peer| Cell::number(peer.0));
            let [rtt, retransmits, unsent] = worst(&link.sockets);
            let mut cells = vec![Cell::number(member.comm.rank.0)];
            cells.extend(is_renumbered.then(|| Cell::number(member.rank.rank.0)));
            cells.extend([
                Cell::text(way(link)),
                to,
                Cell::text(link.transport.to_string()),
                Cell::text(why(link.why)),
                Cell::number(link.posted),
                Cell::number(link.moved),
                Cell::number(link.done),
                Cell::sorted(bytes(link.bytes), link.bytes),
                Cell::number(link.waited),
                Cell::text(text).role(role),
                Cell::sorted(if since_ns > 0 { duration(since_ns) } else { String::new() }, since_ns),
                Cell::text(name(&member.comm.name, member.comm.id)),
                Cell::text(peer.map(|peer| host(peer.rank)).unwrap_or_default()),
                rtt,
                retransmits,
                unsent,
            ]);
            rows.push(Row {
                key: format!("{} {} {nth}", member.rank.rank, member.comm.id),
                cells,
                fields: fields(member.rank, Some(member.comm)),
                ranks: ends(member.comm, link),
                blocked_on: concerns_awaited(scene, &member, link.waits_for),
                about: About::Link(member.at.0, member.at.1, nth),
            });
        }
    }
    Listing { columns, rows, empty: "no link is up yet: links are made by the first operation".into() }
}

/// The channel and direction of a link: `ch0 send`; `ch0 recv all` reads what goes to all.
pub(crate) fn way(link: &LinkSnapshot) -> String {
    let way = match link.direction {
        Direction::Send => "send",
        Direction::Recv => "recv",
        Direction::Unknown => "?",
    };
    // A rank may read a shared lane and one of its own from the same peer.
    let all = if link.shared && link.peer.is_some() { " all" } else { "" };
    format!("{} {way}{all}", channel(link.channel))
}

/// The ranks of the communicator at the ends of a link.
pub(crate) fn ends(comm: &CommSnapshot, link: &LinkSnapshot) -> Vec<u32> {
    [Some(comm.rank.0), link.peer.map(|peer| peer.0)].into_iter().flatten().collect()
}

fn concerns_awaited(scene: &Scene<'_>, member: &Member<'_>, waits_for: Option<Rank>) -> bool {
    waits_for.is_some_and(|rank| scene.blocking_in(member.comm.id).any(|one| one.is_held_by(rank)))
}

fn state(scene: &Scene<'_>, comm: &CommSnapshot, link: &LinkSnapshot) -> (String, Role) {
    let g = &scene.look.glyphs;
    let Some(since_ns) = link.long_wait_ns() else {
        let word = if link.is_waiting() { "running" } else { "no wait" };
        let word = link.sets_up().map_or(word, |set_up| set_up.word());
        return (format!("{} {word}", g.idle), Role::Plain);
    };
    let on = link.waits_for.map(|rank| format!(" of {rank}")).unwrap_or_default();
    let set_up = link.sets_up().map(|set_up| format!(" ({set_up})")).unwrap_or_default();
    (
        format!("{} {}{on}{set_up}", g.waits, link.waits.word()),
        calm(scene.role_of_wait(since_ns, comm.p99_ns(link.channel))),
    )
}

/// Why this transport was chosen.
fn why(why: Why) -> String {
    if why == Why::Unknown { "?".into() } else { why.word().replace('_', " ") }
}

/// The worst smoothed round trip, retransmits and unsent bytes of the streams.
///
/// Empty for a link without streams.
fn worst(sockets: &[SocketSnapshot]) -> [Cell; 3] {
    let most = |of: fn(&SocketSnapshot) -> u32| sockets.iter().map(of).max();
    let cell = |most: Option<u32>, text: fn(u64) -> String| {
        most.map_or_else(Cell::default, |most| Cell::sorted(text(most.into()), most.into()))
    };
    let silent = sockets.iter().any(|socket| socket.unanswered() > 0);
    let role = if silent { Role::Waits } else { Role::Plain };
    [
        cell(most(|socket| socket.rtt_us), |us| duration(us.saturating_mul(1000))),
        cell(most(|socket| socket.retransmits), |count| count.to_string()).role(role),
        cell(most(|socket| socket.unsent_bytes), bytes),
    ]
}

/// Every stream and every queue pair of a link, on three lines each, which fit 80 columns.
pub(crate) fn streams(link: &LinkSnapshot) -> Vec<String> {
    let lines = |socket: &SocketSnapshot| {
        let SocketSnapshot { stream, local, remote, state, window, unacked, backoff, .. } = socket;
        let SocketSnapshot { retransmits, timeouts, probes, .. } = socket;
        let [rtt, variation] = [socket.rtt_us, socket.rtt_var_us].map(|us| duration(u64::from(us) * 1000));
        let unsent = bytes(socket.unsent_bytes.into());
        let [heard, data, asked] = [socket.heard_ns, socket.received_ns, socket.age_ns].map(duration);
        [
            format!("stream {stream}  {local} - {remote}  {state}, asked {asked} ago"),
            format!(
                "  rtt {rtt} +- {variation}, window {window}, unacked {unacked}, unsent {unsent}, backoff {backoff}"
            ),
            format!(
                "  retransmits {retransmits}; in a row: {timeouts} timeouts, {probes} probes; heard {heard}, data {data} ago"
            ),
        ]
    };
    link.sockets.iter().flat_map(lines).chain(link.queue_pairs.iter().flat_map(queue_pair)).collect()
}

/// A queue pair, on three lines, and a fourth one if it failed.
fn queue_pair(pair: &QueuePairSnapshot) -> Vec<String> {
    let QueuePairSnapshot { nth, device, port, number, address, state, posted, credits, .. } = pair;
    let QueuePairSnapshot { peer_port, peer_number, peer_address, .. } = pair;
    let last = pair.completed_ns.map_or_else(|| "none".to_string(), |ns| format!("{} ago", duration(ns)));
    let mut lines = vec![
        format!("queue pair {nth}  {number} on {device} port {port} ({address})  {state}"),
        format!("  to {peer_number} at port {peer_port} ({peer_address}), {} carried", bytes(pair.bytes)),
        format!(
            "  {} of {posted} writes unanswered, credits {credits}, last completion {last}",
            pair.outstanding()
        ),
    ];
    lines.extend(pair.error.as_ref().map(|error| {
        let ago = duration(error.ago_ns);
        format!("  FAILED {ago} ago: {} ({}, vendor {:#x})", error.name, error.status, error.vendor)
    }));
    lines
}
