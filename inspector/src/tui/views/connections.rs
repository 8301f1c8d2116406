//! Links: what carries them and why, how much went over them, what they wait for.

use ccl::snapshot::{Direction, RankSnapshot, Transport, duration};
use ccl::types::Rank;

use crate::tui::listing::{About, Cell, Column, Listing, Row};
use crate::tui::palette::Role;
use crate::tui::scene::{Member, Scene, bytes, channel, fields, host, link_waits, name};

/// One row per link of every rank.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let columns = vec![
        Column::new("rank"),
        Column::new("way"),
        Column::new("peer"),
        Column::new("over"),
        Column::new("why").shrinks(9).goes(2),
        Column::new("posted").goes(4),
        Column::new("moved"),
        Column::new("done").goes(5),
        Column::new("bytes").goes(1),
        Column::new("waited").goes(6),
        Column::new("state"),
        Column::new("for"),
        Column::new("comm").shrinks(5).goes(3),
        Column::new("peer's host").shrinks(8).goes(7),
    ];
    let mut rows = Vec::new();
    for member in scene.members().filter_map(|(_, _, member)| member) {
        let members = scene.of_comm(member.comm.id);
        for (nth, link) in member.comm.links.iter().enumerate() {
            let peer = link.peer.and_then(|peer| members.iter().find(|other| other.comm.rank == peer));
            let (text, role) = state(scene, link.waits.word(), link.waits_for, link_waits(link));
            let way = match link.direction {
                Direction::Send => "send",
                Direction::Recv => "recv",
                Direction::Unknown => "?",
            };
            let since_ns = if link_waits(link) { link.since_ns } else { 0 };
            let to = link.peer.map_or_else(|| Cell::text("all"), |peer| Cell::number(peer.0));
            let cells = vec![
                Cell::number(member.comm.rank.0),
                Cell::text(format!("{} {way}", channel(link.channel))),
                to,
                Cell::text(link.transport.to_string()),
                Cell::text(why(link.transport, member.rank, peer.map(|peer| peer.rank))),
                Cell::number(link.posted),
                Cell::number(link.moved),
                Cell::number(link.done),
                Cell::sorted(bytes(link.bytes), link.bytes),
                Cell::number(link.waited),
                Cell::text(text).role(role),
                Cell::sorted(if since_ns > 0 { duration(since_ns) } else { String::new() }, since_ns),
                Cell::text(name(&member.comm.name, member.comm.id)),
                Cell::text(peer.map(|peer| host(peer.rank)).unwrap_or_default()),
            ];
            rows.push(Row {
                key: format!("{} {} {nth}", member.rank.rank, member.comm.id),
                cells,
                fields: fields(member.rank, Some(member.comm)),
                ranks: [Some(member.comm.rank.0), link.peer.map(|peer| peer.0)]
                    .into_iter()
                    .flatten()
                    .collect(),
                awaited: concerns_awaited(scene, &member, link.waits_for),
                about: About::Link(member.at.0, member.at.1, nth),
            });
        }
    }
    Listing { columns, rows, empty: "no link is up yet: links are made by the first operation".into() }
}

fn concerns_awaited(scene: &Scene<'_>, member: &Member<'_>, waits_for: Option<Rank>) -> bool {
    let awaited = |rank| {
        scene.awaited_in(member.comm.id).any(|one| one.missing.contains(&rank) || one.inside.contains(&rank))
    };
    waits_for.is_some_and(awaited)
}

fn state(scene: &Scene<'_>, word: &str, waits_for: Option<Rank>, waits: bool) -> (String, Role) {
    let g = &scene.look.glyphs;
    if !waits {
        return (format!("{} no wait", g.idle), Role::Plain);
    }
    let on = waits_for.map(|rank| format!(" of {rank}")).unwrap_or_default();
    (format!("{} {word}{on}", g.waits), Role::Waits)
}

/// Why this transport: what the two ends tell.
fn why(transport: Transport, own: &RankSnapshot, peer: Option<&RankSnapshot>) -> &'static str {
    let Some(peer) = peer else {
        return match transport {
            Transport::Direct => "same process",
            Transport::Shm => "same host",
            Transport::Socket => "other hosts",
            Transport::Sim => "simulated",
            Transport::Unknown => "?",
        };
    };
    let same_host = host(own) == host(peer);
    match transport {
        Transport::Direct => "same process",
        Transport::Shm if own.pid == peer.pid => "same process, forced",
        Transport::Shm => "same host",
        Transport::Socket if same_host => "same host, no shm",
        Transport::Socket => "hosts differ",
        Transport::Sim => "simulated",
        Transport::Unknown => "?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_what_the_ends_have_in_common() {
        let rank = |pid, id: &str| RankSnapshot {
            pid,
            host: "a".into(),
            host_id: id.into(),
            ..RankSnapshot::default()
        };
        let check = |transport, peer: Option<&RankSnapshot>, expect: &str| {
            assert_eq!(why(transport, &rank(1, "x"), peer), expect);
        };
        check(Transport::Shm, Some(&rank(2, "x")), "same host");
        check(Transport::Shm, None, "same host");
        check(Transport::Socket, Some(&rank(2, "y")), "hosts differ");
        check(Transport::Socket, Some(&rank(2, "x")), "same host, no shm");
        check(Transport::Direct, Some(&rank(1, "x")), "same process");
    }
}
