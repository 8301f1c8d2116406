//! How each communicator was initialized: its phases as a timeline per rank. Works while init
//! hangs.

use ccl::diagnose::duration;
use ccl::snapshot::{CommSnapshot, PhaseSnapshot};
use ccl::types::Phase;
use ratatui::text::Line;

use super::joining;
use crate::tui::listing::{About, Cell, Column, Listing, Row, fit};
use crate::tui::palette::Role;
use crate::tui::scene::{Scene, calm, fields, name};

/// Columns of the timeline.
const WIDTH: u64 = 32;

/// The letter of a phase in the timeline.
const fn letter(phase: Phase) -> char {
    match phase {
        Phase::Rendezvous => 'r',
        Phase::CheckIn => 'c',
        Phase::Ring => 'g',
        Phase::Exchange => 'x',
        Phase::Connect => 'n',
        Phase::Barrier => 'b',
        Phase::Finish => 'f',
    }
}

/// One row per rank and communicator.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let members: Vec<_> = scene.members().filter_map(|(_, _, member)| member).collect();
    let is_renumbered = Scene::are_renumbered(members.iter().copied());
    let mut columns = vec![Column::new("rank")];
    columns.extend(is_renumbered.then(|| Column::new("job rank")));
    let comm = Column::new("comm").shrinks(5).key("comm");
    columns.extend([
        Column::new("process").key("state"),
        if scene.comms().len() > 1 { comm } else { comm.goes(8) },
        Column::new("took"),
        Column::new("time").shrinks(12),
        Column::new("phase").key("state"),
    ]);
    columns.extend(Phase::INIT.iter().zip(1..).map(|(phase, goes)| Column::new(phase.name()).goes(goes)));
    let longest = members.iter().map(|member| total_ns(member.comm)).max().unwrap_or(0);
    let rows = members.iter().map(|member| {
        let (comm, total) = (member.comm, total_ns(member.comm));
        let (text, role) = match &comm.phase {
            Some(phase) => {
                let word = if comm.finishes() { "finishes" } else { phase.phase.as_str() };
                let role = calm(scene.role_of_wait(phase.duration_ns, 0));
                (format!("{} {word}", scene.look.glyphs.waits), role)
            }
            None if comm.ended => (format!("{} ended", scene.look.glyphs.idle), Role::Dim),
            None => (format!("{} made", scene.look.glyphs.exited), Role::Good),
        };
        let mut cells = vec![Cell::number(comm.rank.0)];
        cells.extend(is_renumbered.then(|| Cell::number(member.rank.rank.0)));
        cells.extend([
            scene.state(member.rank),
            Cell::text(name(&comm.name, comm.id)),
            Cell::sorted(duration(total), total),
            Cell::text(timeline(comm, longest)),
            Cell::text(text).role(role),
        ]);
        cells.extend(Phase::INIT.iter().map(|phase| {
            let ns = phase_ns(comm, phase.name());
            Cell::sorted(duration(ns), ns)
        }));
        Row {
            key: format!("{} {}", member.rank.rank, comm.id),
            cells,
            fields: fields(member.rank, Some(comm)),
            ranks: vec![comm.rank.0],
            blocked_on: scene.blocks_others(member),
            about: About::Comm(member.at.0, member.at.1),
        }
    });
    let absent = joining::absent(scene).map(|(one, rank, process, about)| {
        let comm = name(&one.name, one.comm);
        let mut cells = vec![Cell::number(rank.0)];
        cells.extend(is_renumbered.then(Cell::default));
        cells.extend([process, Cell::text(comm.clone()), Cell::default(), Cell::default()]);
        let phase = format!("{} {}", scene.look.glyphs.blocked_on, joining::word(one));
        cells.push(Cell::text(phase).role(scene.role_of_wait(one.since_ns, 0)));
        cells.extend(Phase::INIT.iter().map(|_| Cell::default()));
        Row {
            key: format!("{rank} {}", one.comm),
            cells,
            fields: vec![("state", joining::word(one).into()), ("comm", comm)],
            ranks: vec![rank.0],
            blocked_on: true,
            about,
        }
    });
    let rows = rows.chain(absent).collect();
    Listing { rows, columns, empty: "no communicator is being made yet".into() }
}

fn total_ns(comm: &CommSnapshot) -> u64 {
    init_phases(comm).fold(0, |sum, (phase, _)| sum.saturating_add(phase.duration_ns))
}

fn phase_ns(comm: &CommSnapshot, name: &str) -> u64 {
    init_phases(comm)
        .filter(|(phase, _)| phase.phase == name)
        .fold(0, |sum, (phase, _)| sum.saturating_add(phase.duration_ns))
}

/// The phases of init, and whether each is under way.
fn init_phases(comm: &CommSnapshot) -> impl Iterator<Item = (&PhaseSnapshot, bool)> {
    let ended = comm.phases.iter().map(|phase| (phase, false));
    let all = ended.chain(comm.phase.iter().map(|phase| (phase, true)));
    all.filter(|(phase, _)| phase.phase != Phase::Finish.name())
}

/// Each phase as its letter, repeated in proportion to its time; the one under way in capitals.
fn timeline(comm: &CommSnapshot, longest: u64) -> String {
    let mut line = String::new();
    // A file may hold any number.
    let mut until = 0_u64;
    for (phase, under_way) in init_phases(comm) {
        until = until.saturating_add(phase.duration_ns);
        let letter = Phase::ALL.iter().find(|one| one.name() == phase.phase).map_or('?', |one| letter(*one));
        let letter = if under_way { letter.to_ascii_uppercase() } else { letter };
        let end = u128::from(until) * u128::from(WIDTH) / u128::from(longest.max(1));
        let end = end.min(u128::from(WIDTH));
        while (line.len() as u128) < end {
            line.push(letter);
        }
        // A phase under way is visible, however short it is.
        if under_way && !line.ends_with(letter) {
            line.push(letter);
        }
    }
    line
}

/// The ranks that have not joined, and the meaning of the letters.
pub(crate) fn above(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let words: Vec<_> = Phase::INIT.iter().map(|phase| format!("{} {phase}", letter(*phase))).collect();
    let text = format!("{}; a capital is under way", words.join("  "));
    let letters =
        Line::styled(fit(&text, width, scene.look.glyphs.more), scene.look.palette.style(Role::Dim));
    let mut lines = joining::lines(scene, width);
    lines.push(letters);
    lines
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::PhaseSnapshot;

    use super::*;

    #[test]
    fn phases_are_as_long_as_they_took_and_the_one_under_way_is_a_capital() {
        let phase = |phase: &str, duration_ns| PhaseSnapshot { phase: phase.into(), duration_ns };
        let mut comm = CommSnapshot {
            phases: vec![phase("Rendezvous", 50), phase("CheckIn", 25)],
            phase: Some(phase("Ring", 25)),
            ..CommSnapshot::default()
        };
        assert_eq!(timeline(&comm, 100), "rrrrrrrrrrrrrrrrccccccccGGGGGGGG");
        assert_eq!(timeline(&comm, 400), "rrrrccGG");
        comm.phase = Some(phase("Ring", 0));
        assert_eq!(timeline(&comm, 400), "rrrrccG");
        assert_eq!((total_ns(&comm), phase_ns(&comm, "CheckIn")), (75, 25));
        assert_eq!(timeline(&CommSnapshot::default(), 0), "");
        // A recorder may hold false values.
        comm.phases = vec![phase("Rendezvous", u64::MAX), phase("CheckIn", u64::MAX)];
        assert_eq!((total_ns(&comm), phase_ns(&comm, "CheckIn")), (u64::MAX, u64::MAX));
        assert_eq!(timeline(&comm, 1).len(), WIDTH as usize + 1);
    }
}
