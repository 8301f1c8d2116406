//! An operation by rank, channel and step: which ranks have called it, and how far each has come.

use std::collections::BTreeSet;

use ccl::diagnose::{duration, ranks_text};
use ccl::snapshot::{CommSnapshot, Direction, OpSnapshot, OpState, State};
use ccl::types::{ChannelId, CollKind};
use ratatui::text::{Line, Span};

use crate::tui::listing::{About, Cell, Column, Listing, Row, fit};
use crate::tui::palette::Role;
use crate::tui::plan::{Planned, StepsDone};
use crate::tui::scene::{Focused, Member, Scene, bytes, calm, channel, fields, name};

/// One row per member of the communicator in focus.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let members = scene.focus().map(|id| scene.of_comm(id)).unwrap_or_default();
    let op = scene.focus().and_then(|id| scene.operation(id));
    let heading = op.as_ref().map_or_else(|| "called".into(), |op| format!("#{}", op.seq));
    let plan = op.as_ref().and_then(|op| planned(&members, op));
    let places = plan.as_ref().map(|(plan, own)| plan.places(&members, own)).unwrap_or_default();
    let channels = channels(&members, plan.as_ref().map(|(plan, _)| plan));
    let is_renumbered = Scene::are_renumbered(members.iter().copied());
    let mut columns = vec![Column::new("rank")];
    columns.extend(is_renumbered.then(|| Column::new("job rank")));
    columns.push(Column::new("process").key("state"));
    columns.push(Column::new(heading).key("state"));
    columns.extend([Column::new("waits for").shrinks(10), Column::new("since")]);
    let after = channels.iter().zip(1..).map(|(id, goes)| Column::new(channel(*id)).goes(goes));
    columns.extend(after);
    columns.extend([Column::new("tag").shrinks(6).goes(254), Column::new("driven").goes(255)]);
    let rows = members.iter().map(|member| {
        let comm = member.comm;
        let mut cells = vec![Cell::number(comm.rank.0)];
        cells.extend(is_renumbered.then(|| Cell::number(member.rank.rank.0)));
        cells.push(scene.state(member.rank));
        cells.push(called(scene, member, op.as_ref()));
        let wait = comm.longest_wait().filter(|link| link.long_wait_ns().is_some());
        let on = wait.map(|link| {
            let peer = link.waits_for.or(link.peer).map_or_else(|| "?".into(), |peer| peer.to_string());
            format!("{peer} ({}, {})", link.waits, channel(link.channel))
        });
        let for_ns = wait.map_or(0, |link| link.since_ns);
        let role = scene.role_of_wait(for_ns, wait.map_or(0, |link| comm.p99_ns(link.channel)));
        cells.push(Cell::text(on.unwrap_or_default()).role(calm(role)));
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
            blocked_on: scene.blocks_others(member),
            about: About::Comm(member.at.0, member.at.1),
        }
    });
    Listing { rows: rows.collect(), columns, empty: "no communicator has been made yet".into() }
}

/// The plan of the operation in focus, and the operation as one of its callers reports it.
fn planned<'a>(members: &[Member<'a>], op: &Focused) -> Option<(Planned, &'a OpSnapshot)> {
    let own = told_by(members, op)?;
    Some((Planned::of(members, own)?, own))
}

/// The operation as the first of its callers reports it.
pub(crate) fn told_by<'a>(members: &[Member<'a>], op: &Focused) -> Option<&'a OpSnapshot> {
    members.iter().find_map(|member| told(member.comm, op))
}

/// The operation as this rank reports it, if it is the rank's last one.
fn told<'a>(comm: &'a CommSnapshot, op: &Focused) -> Option<&'a OpSnapshot> {
    op.of(comm).filter(|own| (own.seq, &own.kind) == (op.seq, &op.kind))
}

/// The channels of the plan, and that of pairs, if it has any.
///
/// If the plan is unknown, the channels that have links.
fn channels(members: &[Member<'_>], plan: Option<&Planned>) -> BTreeSet<ChannelId> {
    let links = members.iter().flat_map(|member| &member.comm.links).map(|link| link.channel);
    let links = links.filter(|id| plan.is_none() || *id == ChannelId::P2P);
    links.chain(plan.into_iter().flat_map(Planned::channels)).collect()
}

/// The place in the plan.
///
/// If the plan is unknown, the messages that have arrived since the communicator was created.
fn progress(scene: &Scene<'_>, comm: &CommSnapshot, id: ChannelId, place: Option<StepsDone>) -> Cell {
    let links = || comm.links.iter().filter(|link| link.channel == id);
    let longest_ns = links().filter_map(|link| link.long_wait_ns()).max().unwrap_or(0);
    let role = calm(scene.role_of_wait(longest_ns, comm.p99_ns(id)));
    match place {
        // The data is too small to use this channel.
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

/// Whether a member has called the operation; empty if the operation does not concern it.
fn called(scene: &Scene<'_>, member: &Member<'_>, op: Option<&Focused>) -> Cell {
    let g = &scene.look.glyphs;
    let Some(op) = op else { return Cell::default() };
    let blocked_on = scene.blocks_others(member);
    let Some(own) = op.of(member.comm) else {
        // A rank that blocks others in a send or receive need not have called one itself.
        let is_in = blocked_on && op.pair.as_ref().is_some_and(|pair| pair.contains(&member.comm.rank));
        let text = format!("{} NOT CALLED", g.blocked_on);
        let role = scene.role_of_blocking(member);
        return if is_in { Cell::text(text).role(role) } else { Cell::default() };
    };
    if op.pair.as_ref().is_some_and(|pair| own.peer.is_none_or(|peer| !pair.contains(&peer))) && !blocked_on {
        return Cell::default();
    }
    let is_missing =
        scene.blocking_in(member.comm.id).next().is_some_and(|one| one.missing.contains(&member.comm.rank));
    // Calls between two ranks are counted per pair: a number means nothing for another pair.
    let has_called = !is_missing && (op.pair.is_some() || own.called.max(own.seq) >= op.seq);
    let role = scene.role_of_blocking(member);
    let (glyph, word, role) = match (has_called, own.state) {
        (_, OpState::Failed) => (g.dead, format!("failed {}", own.error), Role::Bad),
        _ if scene.is_blamed(member) => (g.dead, "TO BLAME".into(), Role::Bad),
        (false, _) if blocked_on && op.pair.is_some() => (g.blocked_on, "NOT CALLED".into(), role),
        (false, _) if blocked_on => (g.blocked_on, format!("NOT CALLED, at #{}", own.seq), role),
        (false, _) => (g.idle, format!("at #{}", own.seq), Role::Plain),
        (true, _) if blocked_on && member.rank.state != State::Running => {
            (g.blocked_on, "HOLDS IT UP".into(), role)
        }
        (true, _) if blocked_on => (g.blocked_on, "BLOCKING".into(), role),
        (true, OpState::Idle) if own.seq >= op.seq => (g.exited, "done".into(), Role::Good),
        // The rank has already gone on to a later call.
        (true, _) if op.pair.is_none() && own.seq > op.seq => (g.exited, "done".into(), Role::Good),
        (true, _) if op.pair.is_none() && own.seq < op.seq => (g.running, "called".into(), Role::Plain),
        (true, _) => (g.running, "inside".into(), Role::Plain),
    };
    Cell::text(format!("{glyph} {word}")).role(role)
}

/// What a call asks for: ` Sum F32 root 2  4096 elements, 16.0 KiB`.
fn terms(op: &OpSnapshot) -> String {
    let kind = CollKind::ALL.iter().copied().find(|kind| kind.name() == op.kind);
    if kind == Some(CollKind::Barrier) {
        return String::new();
    }
    let has = |of: fn(CollKind) -> bool| kind.is_some_and(of);
    let mut text = String::new();
    if has(CollKind::reduces) && !op.op.is_empty() {
        text += &format!(" {}", op.op);
    }
    if !op.dtype.is_empty() {
        text += &format!(" {}", op.dtype);
    }
    if has(CollKind::has_root) {
        text += &format!(" root {}", op.root);
    }
    match (op.uneven, op.count) {
        // Of an all-to-all of blocks that differ no total is recorded.
        (true, 0) => text + "  uneven",
        (true, count) => format!("{text}  {count} elements, {}, uneven", bytes(op.bytes)),
        (false, count) => format!("{text}  {count} elements, {}", bytes(op.bytes)),
    }
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
    // A rank that has called it gives its details.
    let inside = op.as_ref().and_then(|op| told_by(&members, op));
    let what = inside.map(terms);
    let comm = fit(&name(&first.comm.name, id), 24, look.glyphs.more);
    let comms = scene.comms();
    let nth = comms.iter().position(|comm| *comm == id).unwrap_or(0) + 1;
    let text = format!("{title} of {comm}");
    let ranks = match Scene::are_renumbered(members.iter().copied()) {
        true => format!(", job {}", ranks_text(&scene.job.ranks_of(id))),
        false => String::new(),
    };
    let rest = format!("{}  communicator {nth} of {}{ranks}", what.unwrap_or_default(), comms.len());
    let legend = "ch: steps done of the plan; or messages in all, where its beginning is not known";
    vec![
        Line::from(vec![Span::styled(text, look.palette.style(Role::Head)), Span::raw(rest)]),
        Line::styled(fit(legend, width, look.glyphs.more), look.palette.style(Role::Dim)),
    ]
}
