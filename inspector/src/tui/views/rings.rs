//! The way of an operation's messages, drawn: who writes to whom, and where nothing comes.

use std::collections::{BTreeMap, BTreeSet};

use ccl::snapshot::{Direction, LinkSnapshot, duration};
use ccl::types::{ChannelId, Rank};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::matrix;
use crate::tui::listing::{About, Cell, Column, Listing, Row};
use crate::tui::palette::Role;
use crate::tui::scene::{Member, Scene, bytes, channel, fields, host, link_waits};

/// The most ranks whose circle is drawn whole.
const DRAWN_WHOLE: usize = 16;
/// Of a larger one, so many ways on either side of who is awaited.
const NEAR: usize = 4;

/// One way from a rank to another on a channel: the writer's link and the reader's.
struct Edge<'a> {
    channel: ChannelId,
    from: Rank,
    to: Rank,
    send: Option<&'a LinkSnapshot>,
    recv: Option<&'a LinkSnapshot>,
    /// The member whose link is shown in full: the reader, or where it has none the writer.
    at: (Member<'a>, usize),
}

/// All ways of a communicator. A writer's link to everybody belongs to each of its readers.
fn edges<'a>(members: &[Member<'a>]) -> Vec<Edge<'a>> {
    let mut edges: BTreeMap<(ChannelId, Rank, Rank), Edge<'a>> = BTreeMap::new();
    let links = |direction| {
        let of = move |member: &Member<'a>| {
            let member = *member;
            let all = member.comm.links.iter().enumerate();
            all.filter(move |(_, link)| link.direction == direction)
                .map(move |(nth, link)| (member, nth, link))
        };
        members.iter().flat_map(of)
    };
    for (member, nth, link) in links(Direction::Recv) {
        let (Some(from), to) = (link.peer, member.comm.rank) else { continue };
        let edge = Edge { channel: link.channel, from, to, send: None, recv: Some(link), at: (member, nth) };
        edges.insert((link.channel, from, to), edge);
    }
    for (member, nth, link) in links(Direction::Send) {
        let from = member.comm.rank;
        match link.peer {
            Some(to) => {
                let new = Edge { channel: link.channel, from, to, send: None, recv: None, at: (member, nth) };
                edges.entry((link.channel, from, to)).or_insert(new).send = Some(link);
            }
            None => {
                let mine =
                    edges.values_mut().filter(|edge| (edge.channel, edge.from) == (link.channel, from));
                mine.for_each(|edge| edge.send = Some(link));
            }
        }
    }
    edges.into_values().collect()
}

impl Edge<'_> {
    /// The reader waits for the writer.
    fn starves(&self) -> bool {
        self.recv.is_some_and(|link| link_waits(link) && link.waits_for.is_none_or(|peer| peer == self.from))
    }
    /// The writer waits for the reader.
    fn is_full(&self) -> bool {
        self.send.is_some_and(|link| link_waits(link) && link.waits_for.is_none_or(|peer| peer == self.to))
    }
    fn since_ns(&self) -> u64 {
        let waiting = [self.recv.filter(|_| self.starves()), self.send.filter(|_| self.is_full())];
        waiting.into_iter().flatten().map(|link| link.since_ns).max().unwrap_or(0)
    }
}

/// One row per way.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let members = scene.focus().map(|id| scene.of_comm(id)).unwrap_or_default();
    let columns = vec![
        Column::new("way"),
        Column::new("from"),
        Column::new("to"),
        Column::new("over").goes(2),
        Column::new("sent"),
        Column::new("arrived"),
        Column::new("state"),
        Column::new("for"),
        Column::new("bytes").goes(1),
    ];
    let awaited = awaited_ranks(scene, &members);
    let row = |edge: &Edge<'_>| {
        let g = &scene.look.glyphs;
        let (text, role) = match (edge.starves(), edge.is_full()) {
            (true, _) => (format!("{} {} waits for {}", g.waits, edge.to, edge.from), Role::Waits),
            (false, true) => (format!("{} {} waits for {}", g.waits, edge.from, edge.to), Role::Waits),
            (false, false) => (format!("{} no wait", g.idle), Role::Plain),
        };
        let since_ns = edge.since_ns();
        let (member, nth) = &edge.at;
        let any = edge.recv.or(edge.send);
        let count = |of: Option<u64>| of.map_or_else(Cell::default, Cell::number);
        let cells = vec![
            Cell::text(channel(edge.channel)),
            Cell::number(edge.from.0),
            Cell::number(edge.to.0),
            Cell::text(any.map(|link| link.transport.to_string()).unwrap_or_default()),
            count(edge.send.map(|link| link.posted)),
            count(edge.recv.map(|link| link.moved)),
            Cell::text(text).role(role),
            Cell::sorted(if since_ns > 0 { duration(since_ns) } else { String::new() }, since_ns),
            any.map_or_else(Cell::default, |link| Cell::sorted(bytes(link.bytes), link.bytes)),
        ];
        let is_end = |rank| awaited.contains(&rank);
        Row {
            key: format!("{} {} {}", edge.channel.0, edge.from, edge.to),
            cells,
            fields: fields(member.rank, Some(member.comm)),
            ranks: vec![edge.from.0, edge.to.0],
            awaited: is_end(edge.from) || is_end(edge.to),
            about: About::Link(member.at.0, member.at.1, *nth),
        }
    };
    let rows = edges(&members).iter().map(row).collect();
    Listing { columns, rows, empty: "no link of this communicator is up yet".into() }
}

/// The operation, and each channel as it goes round.
pub(crate) fn above(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let look = &scene.look;
    let mut lines: Vec<_> = matrix::above(scene, width).into_iter().take(1).collect();
    let members = scene.focus().map(|id| scene.of_comm(id)).unwrap_or_default();
    let edges = edges(&members);
    let mut channels: Vec<_> = edges.iter().map(|edge| edge.channel).collect();
    channels.dedup();
    for id in channels {
        let own: Vec<_> = edges.iter().filter(|edge| edge.channel == id).collect();
        lines.extend(match circle(&own, members.len()) {
            Some(circle) => drawn_circle(scene, &members, &circle, id, width),
            None => vec![drawn_star(scene, &members, &own, id, width)],
        });
    }
    let legend = format!(
        "{} awaited   {l}{r}{l} no wait   {l}{}{r} nothing comes   {} another host",
        look.glyphs.awaited,
        look.glyphs.dead,
        look.glyphs.border,
        l = look.glyphs.line,
        r = look.glyphs.right
    );
    lines.push(Line::styled(legend, look.palette.style(Role::Dim)));
    lines
}

/// The ways in their order round all members, if each has one successor and they make one circle.
fn circle<'a, 'b>(edges: &[&'b Edge<'a>], members: usize) -> Option<Vec<&'b Edge<'a>>> {
    let mut next: BTreeMap<Rank, &Edge<'_>> = BTreeMap::new();
    for edge in edges {
        if next.insert(edge.from, edge).is_some() {
            return None;
        }
    }
    let first = *next.keys().next()?;
    let mut round = Vec::new();
    let mut at = first;
    while let Some(edge) = next.remove(&at) {
        at = edge.to;
        round.push(edge);
    }
    (at == first && round.len() == members).then_some(round)
}

fn node(scene: &Scene<'_>, members: &[Member<'_>], rank: Rank) -> (String, Role) {
    match members.iter().find(|member| member.comm.rank == rank) {
        Some(member) if scene.is_awaited(member) => {
            (format!("{}{rank}", scene.look.glyphs.awaited), Role::Bad)
        }
        Some(_) => (rank.to_string(), Role::Plain),
        None => (format!("?{rank}"), Role::Dim),
    }
}

/// `ch0 0 -▸- 1 -▸- *2 -✗▸ 3 -▸- 0`, on as many lines as it takes.
fn drawn_circle(
    scene: &Scene<'_>,
    members: &[Member<'_>],
    round: &[&Edge<'_>],
    id: ChannelId,
    width: usize,
) -> Vec<Line<'static>> {
    let look = &scene.look;
    let g = &look.glyphs;
    let at =
        |rank: Rank| members.iter().find(|member| member.comm.rank == rank).map(|member| host(member.rank));
    let mut lines = Vec::new();
    let mut spans = vec![Span::styled(format!("{} ", channel(id)), look.palette.style(Role::Dim))];
    let mut used = 4;
    let mut put = |text: String, role: Role, lines: &mut Vec<Line<'static>>| {
        if used + text.width() > width && used > 4 {
            lines.push(Line::from(std::mem::take(&mut spans)));
            spans.push(Span::raw("    "));
            used = 4;
        }
        used += text.width();
        spans.push(Span::styled(text, look.palette.style(role)));
    };
    let mut skips = false;
    for (edge, is_drawn) in round.iter().zip(drawn_ways(scene, members, round)) {
        if !is_drawn {
            if !std::mem::replace(&mut skips, true) {
                put(format!("{} ", g.more), Role::Dim, &mut lines);
            }
            continue;
        }
        skips = false;
        let (text, role) = node(scene, members, edge.from);
        put(text, role, &mut lines);
        let border = if at(edge.from) == at(edge.to) { g.line } else { g.border };
        let (arrow, role) = match edge.starves() || edge.is_full() {
            true => (format!(" {border}{}{} ", g.dead, g.right), Role::Bad),
            false => (format!(" {border}{}{} ", g.right, g.line), Role::Good),
        };
        put(arrow, role, &mut lines);
    }
    // Round to where it began.
    if !skips {
        let (text, role) =
            round.first().map_or_else(Default::default, |edge| node(scene, members, edge.from));
        put(text, role, &mut lines);
    }
    lines.push(Line::from(spans));
    lines
}

fn awaited_ranks(scene: &Scene<'_>, members: &[Member<'_>]) -> BTreeSet<Rank> {
    members.iter().filter(|member| scene.is_awaited(member)).map(|member| member.comm.rank).collect()
}

/// Which ways of a circle are drawn: of a large one those near somebody who is awaited, if anybody is.
fn drawn_ways(scene: &Scene<'_>, members: &[Member<'_>], round: &[&Edge<'_>]) -> Vec<bool> {
    let all = round.len();
    let awaited = awaited_ranks(scene, members);
    if all <= DRAWN_WHOLE || awaited.is_empty() {
        return vec![true; all];
    }
    let mut drawn = vec![false; all];
    for at in (0..all).filter(|at| awaited.contains(&round[*at].from)) {
        (0..=2 * NEAR).for_each(|step| drawn[(at + all + step - NEAR) % all] = true);
    }
    drawn
}

/// Where everybody writes to everybody: who waits for whom.
fn drawn_star(
    scene: &Scene<'_>,
    members: &[Member<'_>],
    edges: &[&Edge<'_>],
    id: ChannelId,
    width: usize,
) -> Line<'static> {
    let look = &scene.look;
    let mut spans = vec![Span::styled(
        format!("{} {} ways between {} ranks", channel(id), edges.len(), members.len()),
        look.palette.style(Role::Plain),
    )];
    let mut used = spans[0].width();
    for edge in edges.iter().filter(|edge| edge.starves() || edge.is_full()) {
        let (waiting, awaited) = if edge.starves() { (edge.to, edge.from) } else { (edge.from, edge.to) };
        let ((who, how), (whom, bad)) = (node(scene, members, waiting), node(scene, members, awaited));
        let text = format!("{who} {}{}", look.glyphs.left, look.glyphs.dead);
        if used + text.width() + whom.width() + 6 > width {
            spans.push(Span::styled(format!("  {}", look.glyphs.more), look.palette.style(Role::Dim)));
            break;
        }
        used += text.width() + whom.width() + 4;
        let role = if how == Role::Bad { how } else { Role::Waits };
        spans.push(Span::styled(format!("   {text} "), look.palette.style(role)));
        spans.push(Span::styled(whom, look.palette.style(bad)));
    }
    Line::from(spans)
}
