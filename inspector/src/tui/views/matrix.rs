//! An operation by rank, channel and step: who has called it, and how far the messages of each channel have come.

use ccl::snapshot::{CommSnapshot, Direction, OpState, State, duration};
use ccl::types::ChannelId;
use ratatui::text::{Line, Span};

use crate::tui::listing::{About, Cell, Column, Listing, Row, fit};
use crate::tui::palette::Role;
use crate::tui::scene::{Member, Scene, bytes, channel, fields, link_waits, longest_wait, name, operation};

/// One row per member of the communicator in focus.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let members = scene.focus().map(|id| scene.of_comm(id)).unwrap_or_default();
    let op = scene.focus().and_then(|id| scene.operation(id));
    let heading = op.as_ref().map_or_else(|| "called".into(), |(_, seq)| format!("#{seq}"));
    let channels = channels(&members);
    let foremost: Vec<u64> = channels
        .iter()
        .map(|id| members.iter().filter_map(|member| arrived(member.comm, *id)).max().unwrap_or(0))
        .collect();
    let mut columns = vec![Column::new("rank"), Column::new("process"), Column::new(heading)];
    columns.extend([Column::new("waits on").shrinks(10), Column::new("for")]);
    let after = channels.iter().zip(1..).map(|(id, goes)| Column::new(channel(*id)).goes(goes));
    columns.extend(after);
    columns.extend([Column::new("tag").shrinks(6).goes(254), Column::new("driven").goes(255)]);
    let rows = members.iter().map(|member| {
        let comm = member.comm;
        let mut cells = vec![Cell::number(comm.rank.0), scene.state(member.rank)];
        cells.push(called(scene, member, op.as_ref()));
        let wait = longest_wait(comm);
        let on = wait.map(|link| {
            let peer = link.waits_for.or(link.peer).map_or_else(|| "?".into(), |peer| peer.to_string());
            format!("{peer} ({}, {})", link.waits, channel(link.channel))
        });
        let for_ns = wait.map_or(0, |link| link.since_ns);
        cells.push(Cell::text(on.unwrap_or_default()).role(Role::Waits));
        cells.push(Cell::sorted(if for_ns > 0 { duration(for_ns) } else { String::new() }, for_ns));
        cells.extend(
            channels.iter().zip(&foremost).map(|(id, foremost)| progress(scene, comm, *id, *foremost)),
        );
        cells.push(Cell::text(comm.op.tag.clone()));
        let driven = comm.driven_ns.map_or_else(Cell::default, |ns| Cell::sorted(duration(ns), ns));
        cells.push(driven);
        Row {
            key: comm.rank.to_string(),
            cells,
            fields: fields(member.rank, Some(comm)),
            ranks: vec![comm.rank.0],
            awaited: scene.is_awaited(member),
            about: About::Comm(member.at.0, member.at.1),
        }
    });
    Listing { rows: rows.collect(), columns, empty: "no communicator has been made yet".into() }
}

/// The channels of collectives, and that of pairs if anything went over it.
fn channels(members: &[Member<'_>]) -> Vec<ChannelId> {
    let mut channels: Vec<_> =
        members.iter().flat_map(|member| &member.comm.links).map(|link| link.channel).collect();
    channels.sort();
    channels.dedup();
    channels
}

/// The messages that have come on a channel: of its slowest link. Which one holds up the rank.
fn arrived(comm: &CommSnapshot, id: ChannelId) -> Option<u64> {
    let links = comm.links.iter().filter(|link| link.channel == id && link.direction == Direction::Recv);
    links.map(|link| link.moved).min()
}

fn progress(scene: &Scene<'_>, comm: &CommSnapshot, id: ChannelId, foremost: u64) -> Cell {
    let sent = comm.links.iter().filter(|link| link.channel == id && link.direction == Direction::Send);
    let sent = sent.map(|link| link.posted).max();
    let Some(arrived) = arrived(comm, id) else {
        return sent.map_or_else(Cell::default, |sent| {
            Cell::sorted(format!("  {}{sent}", scene.look.glyphs.right), sent)
        });
    };
    let behind = foremost.saturating_sub(arrived);
    let bar = scene.look.glyphs.bar(8_u64.saturating_sub(behind), 8);
    let lag = if behind > 0 { format!(" -{behind}") } else { String::new() };
    let sent = sent.map_or_else(String::new, |sent| format!(" {}{sent}", scene.look.glyphs.right));
    let waits = comm.links.iter().any(|link| link.channel == id && link_waits(link));
    Cell::sorted(format!("{bar} {arrived}{lag}{sent}"), arrived).role(if waits {
        Role::Waits
    } else {
        Role::Plain
    })
}

/// Whether a member has called the operation.
fn called(scene: &Scene<'_>, member: &Member<'_>, op: Option<&(String, u64)>) -> Cell {
    let g = &scene.look.glyphs;
    let Some((_, seq)) = op else { return Cell::default() };
    let own = operation(member.comm);
    let awaited = scene.is_awaited(member);
    let (glyph, word, role) = match (own.called.max(own.seq) >= *seq, own.state) {
        (_, OpState::Failed) => (g.dead, format!("failed {}", own.error), Role::Bad),
        (false, _) => (g.awaited, format!("NOT CALLED, at #{}", own.seq), Role::Bad),
        (true, _) if awaited && member.rank.state != State::Running => {
            (g.awaited, "HOLDS IT UP".into(), Role::Bad)
        }
        (true, _) if awaited => (g.awaited, "AWAITED".into(), Role::Bad),
        (true, _) if own.completed >= *seq => (g.exited, "done".into(), Role::Good),
        (true, _) => (g.running, "inside".into(), Role::Plain),
    };
    Cell::text(format!("{glyph} {word}")).role(role)
}

/// The operation, and how to read its matrix.
pub(crate) fn above(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let look = &scene.look;
    let Some(id) = scene.focus() else { return Vec::new() };
    let members = scene.of_comm(id);
    let Some(first) = members.first() else { return Vec::new() };
    let op = scene.operation(id);
    let title = op.as_ref().map_or_else(|| "no operation yet".into(), |(kind, seq)| format!("{kind} #{seq}"));
    // What it is about is told by one that has called it.
    let inside = members.iter().map(|member| operation(member.comm));
    let what =
        inside.into_iter().find(|own| op.as_ref().is_some_and(|(_, seq)| own.seq == *seq)).map(|own| {
            let dtype =
                if own.dtype.is_empty() { String::new() } else { format!(" {} {}", own.op, own.dtype) };
            format!("{dtype}  {} elements, {}", own.count, bytes(own.bytes))
        });
    let comm = fit(&name(&first.comm.name, id), 24, look.glyphs.more);
    let comms = scene.comms();
    let nth = comms.iter().position(|comm| *comm == id).unwrap_or(0) + 1;
    let text = format!("{title} of {comm}");
    let rest = format!("{}  communicator {nth} of {}", what.unwrap_or_default(), comms.len());
    let legend = format!(
        "per channel: messages arrived on its slowest link, -n behind the foremost rank, {}sent",
        look.glyphs.right
    );
    vec![
        Line::from(vec![Span::styled(text, look.palette.style(Role::Head)), Span::raw(rest)]),
        Line::styled(fit(&legend, width, look.glyphs.more), look.palette.style(Role::Dim)),
    ]
}
