//! Queue pairs, in a line each: where they are, what they are connected to, what is unanswered and
//! what failed.

use ccl::diagnose::duration;
use ccl::snapshot::{CommSnapshot, LinkSnapshot, QueuePairSnapshot, QueuePairState, WorkFailure};

use crate::tui::listing::{About, Cell, Column, Listing, Row};
use crate::tui::palette::Role;
use crate::tui::scene::{Member, Scene, bytes, fields, name};
use crate::tui::views::connections::{ends, way};

fn columns(are_several: bool, is_renumbered: bool) -> Vec<Column> {
    let comm = Column::new("comm").shrinks(5).key("comm");
    let mut columns = vec![Column::new("rank")];
    columns.extend(is_renumbered.then(|| Column::new("job rank")));
    columns.extend([
        Column::new("direction"),
        Column::new("peer"),
        Column::new("device").shrinks(8),
        Column::new("number").goes(6),
        Column::new("to").shrinks(12).goes(7),
        Column::new("state").key("state"),
        Column::new("unanswered"),
        Column::new("written").goes(2),
        Column::new("last answer").shrinks(6),
        Column::new("bytes").goes(1),
        Column::new("credits").goes(4),
        if are_several { comm } else { comm.goes(3) },
        Column::new("failed").shrinks(14),
        Column::new("address").goes(5),
    ]);
    columns
}

/// One row per queue pair of every rank.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let all: Vec<Member<'_>> = scene.members().filter_map(|(_, _, member)| member).collect();
    let is_renumbered = Scene::are_renumbered(all.iter().copied());
    let columns = columns(scene.comms().len() > 1, is_renumbered);
    let mut rows = Vec::new();
    for member in &all {
        for (nth, link) in member.comm.links.iter().enumerate() {
            rows.extend(link.queue_pairs.iter().map(|pair| Row {
                key: format!("{} {} {nth} {}", member.rank.rank, member.comm.id, pair.nth),
                cells: cells((member, is_renumbered), link, pair),
                fields: fields(member.rank, Some(member.comm)),
                ranks: ends(member.comm, link),
                blocked_on: pair.error.is_some(),
                about: About::Link(member.at.0, member.at.1, nth),
            }));
        }
    }
    Listing { columns, rows, empty: "no link is over queue pairs".into() }
}

fn cells(
    (member, is_renumbered): (&Member<'_>, bool),
    link: &LinkSnapshot,
    pair: &QueuePairSnapshot,
) -> Vec<Cell> {
    let QueuePairSnapshot { device, port, number, peer_number, peer_address, .. } = pair;
    let CommSnapshot { id, ref name, rank, .. } = *member.comm;
    let open = pair.outstanding();
    let waits = if open > 0 && link.is_waiting() { Role::Waits } else { Role::Plain };
    let of_state = if pair.state == QueuePairState::ReadyToSend { Role::Plain } else { Role::Bad };
    let last = pair.completed_ns.map_or_else(|| Cell::text("none"), |ns| Cell::sorted(duration(ns), ns));
    let failed = |WorkFailure { name, ago_ns, .. }: &WorkFailure| {
        Cell::sorted(format!("{name} {} ago", duration(*ago_ns)), *ago_ns).role(Role::Bad)
    };
    let mut cells = vec![Cell::number(rank.0)];
    cells.extend(is_renumbered.then(|| Cell::number(member.rank.rank.0)));
    cells.extend([
        Cell::text(way(link)),
        link.peer.map_or_else(|| Cell::text("all"), |peer| Cell::number(peer.0)),
        Cell::text(format!("{device}:{port}")),
        Cell::number(*number),
        Cell::text(format!("{peer_number} at {peer_address}")),
        Cell::text(pair.state.to_string()).role(of_state),
        Cell::number(open).role(waits),
        Cell::number(pair.posted),
        last,
        Cell::sorted(bytes(pair.bytes), pair.bytes),
        Cell::number(pair.credits),
        Cell::text(self::name(name, id)),
        pair.error.as_ref().map_or_else(Cell::default, failed),
        Cell::text(pair.address.clone()),
    ]);
    cells
}
