//! The log: the events of the recorders, and the output of the ranks if they were launched here.

use std::collections::BTreeSet;

use ratatui::text::Line;

use super::header::time_of_day;
use super::joining;
use crate::tui::listing::{About, Cell, Column, Listing, Row, visible};
use crate::tui::log::{Entry, Origin};
use crate::tui::palette::Role;
use crate::tui::scene::{Scene, name};

/// One row per line, oldest first.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let columns = vec![
        Column::new("time"),
        Column::new("rank"),
        Column::new("source"),
        Column::new("comm").shrinks(5).goes(1),
        Column::new("text").shrinks(20),
    ];
    let blocked_on = |rank: Option<u32>| {
        let world = |one: &ccl::snapshot::BlockedOn, rank: u32| {
            let member = scene.of_comm(one.comm).into_iter().find(|member| member.rank.rank.0 == rank);
            member.is_some_and(|member| scene.blocks_others(&member))
        };
        rank.is_some_and(|rank| scene.job.blocked_on.iter().any(|one| world(one, rank)))
    };
    let mut culprits: Vec<u32> = scene.job.ranks.iter().map(|rank| rank.rank.0).collect();
    culprits.retain(|rank| blocked_on(Some(*rank)));
    let said = scene.log.entries().filter(|entry| entry.real_ns <= scene.until_ns);
    let said = said.filter(of_shown(scene));
    let rows = said.map(|entry| {
        let time = format!(
            "{}.{:03}",
            time_of_day(entry.real_ns).trim_end_matches('Z'),
            entry.real_ns / 1_000_000 % 1000
        );
        let role = if entry.origin == Origin::Error { Role::Waits } else { Role::Plain };
        let mut fields = Vec::new();
        if !entry.comm.is_empty() {
            fields.push(("comm", entry.comm.clone()));
        }
        if entry.origin == Origin::Event {
            fields.push(("op", entry.text.clone()));
        }
        Row {
            key: entry.number.to_string(),
            cells: vec![
                Cell::sorted(time, entry.real_ns),
                entry.rank.map_or_else(Cell::default, Cell::number),
                Cell::text(entry.origin.word()).role(role),
                Cell::text(entry.comm.clone()),
                Cell::text(visible(&entry.text)),
            ],
            fields,
            ranks: entry.rank.into_iter().collect(),
            blocked_on: entry.rank.is_some_and(|rank| culprits.contains(&rank)),
            about: About::Line(entry.number),
        }
    });
    Listing { columns, rows: rows.collect(), empty: "nothing has happened yet".into() }
}

/// Whether a line is of a communicator that is shown, or of one of its ranks; a line has its name.
fn of_shown(scene: &Scene<'_>) -> impl Fn(&&Entry) -> bool + use<> {
    let members = scene.members().filter_map(|(_, _, member)| member);
    let shown: BTreeSet<(u32, String)> =
        members.map(|member| (member.rank.rank.0, name(&member.comm.name, member.comm.id))).collect();
    let is_all = scene.only.is_none();
    move |entry| {
        let is_of = |(rank, name): &(u32, String)| {
            entry.rank.is_none_or(|own| own == *rank) && (entry.comm.is_empty() || entry.comm == *name)
        };
        is_all || shown.iter().any(is_of)
    }
}

/// The ranks that have not joined, which have no event; and the number of dropped lines.
pub(crate) fn above(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let mut lines = joining::lines(scene, width);
    let lost = scene.log.lost();
    if lost > 0 {
        let text = format!("{lost} older lines are not kept");
        lines.push(Line::styled(text, scene.look.palette.style(Role::Dim)));
    }
    lines
}
