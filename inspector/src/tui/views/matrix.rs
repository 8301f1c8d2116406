//! An operation by rank, channel and step: who has called it, and how far each has come on each channel.

use std::collections::BTreeSet;

use ccl::snapshot::{CommSnapshot, Direction, OpSnapshot, OpState, State, duration};
use ccl::types::ChannelId;
use ratatui::text::{Line, Span};

use crate::tui::listing::{About, Cell, Column, Listing, Row, fit};
use crate::tui::palette::Role;
use crate::tui::plan::{Place, Planned};
use crate::tui::scene::{Focused, Member, Scene, bytes, channel, fields, name};

/// One row per member of the communicator in focus.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let members = scene.focus().map(|id| scene.of_comm(id)).unwrap_or_default();
    let op = scene.focus().and_then(|id| scene.operation(id));
    let heading = op.as_ref().map_or_else(|| "called".into(), |op| format!("#{}", op.seq));
    let plan = op.as_ref().and_then(|op| planned(&members, op));
    let places = plan.as_ref().map(|(plan, own)| plan.places(&members, own)).unwrap_or_default();
    let channels = channels(&members, plan.as_ref().map(|(plan, _)| plan));
    let mut columns = vec![Column::new("rank"), Column::new("process"), Column::new(heading)];
    columns.extend([Column::new("waits on").shrinks(10), Column::new("for")]);
    let after = channels.iter().zip(1..).map(|(id, goes)| Column::new(channel(*id)).goes(goes));
    columns.extend(after);
    columns.extend([Column::new("tag").shrinks(6).goes(254), Column::new("driven").goes(255)]);
    let rows = members.iter().map(|member| {
        let comm = member.comm;
        let mut cells = vec![Cell::number(comm.rank.0), scene.state(member.rank)];
        cells.push(called(scene, member, op.as_ref()));
        let wait = comm.longest_wait();
        let on = wait.map(|link| {
            let peer = link.waits_for.or(link.peer).map_or_else(|| "?".into(), |peer| peer.to_string());
            format!("{peer} ({}, {})", link.waits, channel(link.channel))
        });
        let for_ns = wait.map_or(0, |link| link.since_ns);
        cells.push(Cell::text(on.unwrap_or_default()).role(Role::Waits));
        cells.push(Cell::sorted(if for_ns > 0 { duration(for_ns) } else { String::new() }, for_ns));
        let of = |id: &ChannelId| progress(scene, comm, *id, places.get(&(comm.rank, *id)).copied());
        cells.extend(channels.iter().map(of));
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

/// The plan of the operation in focus, and the operation as one tells it who has called it.
pub(crate) fn planned<'a>(members: &[Member<'a>], op: &Focused) -> Option<(Planned, &'a OpSnapshot)> {
    let own = members.iter().find_map(|member| told(member.comm, op))?;
    Some((Planned::of(members, own)?, own))
}

/// The operation, if this rank's last one is it.
fn told<'a>(comm: &'a CommSnapshot, op: &Focused) -> Option<&'a OpSnapshot> {
    op.of(comm).filter(|own| (own.seq, &own.kind) == (op.seq, &op.kind))
}

/// The channels of the plan; where that is not known, those that have links; and that of pairs, if it has any.
fn channels(members: &[Member<'_>], plan: Option<&Planned>) -> BTreeSet<ChannelId> {
    let links = members.iter().flat_map(|member| &member.comm.links).map(|link| link.channel);
    let links = links.filter(|id| plan.is_none() || *id == ChannelId::P2P);
    links.chain(plan.into_iter().flat_map(Planned::channels)).collect()
}

/// The place in the plan; where that is not known, how many messages have come since the communicator was made.
fn progress(scene: &Scene<'_>, comm: &CommSnapshot, id: ChannelId, place: Option<Place>) -> Cell {
    let links = || comm.links.iter().filter(|link| link.channel == id);
    let role = if links().any(|link| link.is_waiting()) { Role::Waits } else { Role::Plain };
    match place {
        // Too little for this channel.
        Some((_, 0)) => Cell::default(),
        Some((at, all)) => {
            Cell::sorted(format!("{} {at}/{all}", scene.look.glyphs.bar(at, all)), at).role(role)
        }
        None if links().next().is_none() => Cell::default(),
        None => {
            let receivers = links().filter(|link| link.direction == Direction::Recv);
            let arrived = receivers.fold(0_u64, |sum, link| sum.saturating_add(link.moved));
            Cell::sorted(format!("  {arrived} in all"), arrived).role(role)
        }
    }
}

/// Whether a member has called the operation; nothing where it is none of its business.
fn called(scene: &Scene<'_>, member: &Member<'_>, op: Option<&Focused>) -> Cell {
    let g = &scene.look.glyphs;
    let Some(op) = op else { return Cell::default() };
    let awaited = scene.is_awaited(member);
    let Some(own) = op.of(member.comm) else {
        // Who is awaited in a send or receive need not have called any.
        let is_in = awaited && op.pair.as_ref().is_some_and(|pair| pair.contains(&member.comm.rank));
        let text = format!("{} NOT CALLED", g.awaited);
        return if is_in { Cell::text(text).role(Role::Bad) } else { Cell::default() };
    };
    if op.pair.as_ref().is_some_and(|pair| own.peer.is_none_or(|peer| !pair.contains(&peer))) && !awaited {
        return Cell::default();
    }
    let is_missing =
        scene.awaited_in(member.comm.id).next().is_some_and(|one| one.missing.contains(&member.comm.rank));
    // Calls between two ranks are counted by pair: a number says nothing of another pair's.
    let has_called = !is_missing && (op.pair.is_some() || own.called.max(own.seq) >= op.seq);
    let (glyph, word, role) = match (has_called, own.state) {
        (_, OpState::Failed) => (g.dead, format!("failed {}", own.error), Role::Bad),
        (false, _) if awaited && op.pair.is_some() => (g.awaited, "NOT CALLED".into(), Role::Bad),
        (false, _) if awaited => (g.awaited, format!("NOT CALLED, at #{}", own.seq), Role::Bad),
        (false, _) => (g.idle, format!("at #{}", own.seq), Role::Plain),
        (true, _) if awaited && member.rank.state != State::Running => {
            (g.awaited, "HOLDS IT UP".into(), Role::Bad)
        }
        (true, _) if awaited => (g.awaited, "AWAITED".into(), Role::Bad),
        (true, OpState::Idle) if own.seq >= op.seq => (g.exited, "done".into(), Role::Good),
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
    let title =
        op.as_ref().map_or_else(|| "no operation yet".into(), |op| format!("{} #{}", op.kind, op.seq));
    // What it is about is told by one that has called it.
    let inside = op.as_ref().and_then(|op| members.iter().find_map(|member| told(member.comm, op)));
    let what = inside.map(|own| {
        let dtype = if own.dtype.is_empty() { String::new() } else { format!(" {} {}", own.op, own.dtype) };
        format!("{dtype}  {} elements, {}", own.count, bytes(own.bytes))
    });
    let comm = fit(&name(&first.comm.name, id), 24, look.glyphs.more);
    let comms = scene.comms();
    let nth = comms.iter().position(|comm| *comm == id).unwrap_or(0) + 1;
    let text = format!("{title} of {comm}");
    let rest = format!("{}  communicator {nth} of {}", what.unwrap_or_default(), comms.len());
    let legend = "ch: steps done of the plan; or messages in all, where its beginning is not known";
    vec![
        Line::from(vec![Span::styled(text, look.palette.style(Role::Head)), Span::raw(rest)]),
        Line::styled(fit(legend, width, look.glyphs.more), look.palette.style(Role::Dim)),
    ]
}
