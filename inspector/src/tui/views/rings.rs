//! The route of an operation's messages as a drawing: which rank writes to which by its plan, how
//! far each rank has come in it, and where no message arrives. If the plan is unknown, the
//! connected links are drawn.

use std::collections::{BTreeMap, BTreeSet};

use ccl::diagnose::duration;
use ccl::snapshot::{Direction, LinkSnapshot, OpSnapshot};
use ccl::types::{ChannelId, Rank};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::matrix;
use crate::tui::listing::{About, Cell, Column, Listing, Row, fit};
use crate::tui::palette::Role;
use crate::tui::plan::{Planned, StepsDone, Uses, Way};
use crate::tui::scene::{Member, Scene, bytes, calm, channel, fields, host};

/// The most ranks in a circle that is drawn whole.
const DRAWN_WHOLE: usize = 16;
/// In a larger circle, the number of routes drawn on either side of a rank that blocks others.
const NEAR: usize = 4;

/// One route from a rank to another on a channel: the writer's link and the reader's.
struct Edge<'a> {
    way: Way,
    send: Option<&'a LinkSnapshot>,
    recv: Option<&'a LinkSnapshot>,
    /// The member whose link is shown in full; `None` if no link exists.
    ///
    /// The reader, or the writer if the reader has no link.
    at: Option<(Member<'a>, usize)>,
    /// Whether the operation uses this route; other operations may.
    is_used: bool,
}

/// All routes of a communicator: those of the plan, and those of links.
///
/// A writer's link to all ranks belongs to each of its readers.
fn edges<'a>(members: &[Member<'a>], known: &Known<'a>) -> Vec<Edge<'a>> {
    let plan = known.plan.as_ref();
    let mut edges: BTreeMap<Way, Edge<'a>> = BTreeMap::new();
    let new = |way, is_used| Edge { way, send: None, recv: None, at: None, is_used };
    edges.extend(plan.iter().flat_map(|plan| plan.ways()).map(|way| (way, new(way, true))));
    let of_link = |way| new(way, plan.is_none() && known.uses.is_none_or(|uses| uses.has(way)));
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
        let way = Way { channel: link.channel, from, to, is_shared: link.shared };
        let edge = edges.entry(way).or_insert_with(|| of_link(way));
        (edge.recv, edge.at) = (Some(link), Some((member, nth)));
    }
    for (member, nth, link) in links(Direction::Send) {
        let from = member.comm.rank;
        let mut join = |edge: &mut Edge<'a>| {
            edge.send = Some(link);
            edge.at = edge.at.or(Some((member, nth)));
        };
        match link.peer {
            Some(to) => {
                let way = Way { channel: link.channel, from, to, is_shared: false };
                join(edges.entry(way).or_insert_with(|| of_link(way)));
            }
            None => edges
                .values_mut()
                .filter(|Edge { way, .. }| {
                    (way.channel, way.from, way.is_shared) == (link.channel, from, true)
                })
                .for_each(&mut join),
        }
    }
    edges.into_values().collect()
}

impl Edge<'_> {
    /// Whether the reader has waited for the writer long enough to be reported.
    fn starves(&self) -> bool {
        let waits = |link: &LinkSnapshot| link.waits_for.is_none_or(|peer| peer == self.way.from);
        self.recv.is_some_and(|link| link.long_wait_ns().is_some() && waits(link))
    }
    /// Whether the writer has waited for the reader long enough to be reported.
    fn is_full(&self) -> bool {
        let waits = |link: &LinkSnapshot| link.waits_for.is_none_or(|peer| peer == self.way.to);
        self.send.is_some_and(|link| link.long_wait_ns().is_some() && waits(link))
    }
    /// Whether neither end has a link, or one is being set up.
    fn is_missing(&self) -> bool {
        let mut ends = [self.send, self.recv].into_iter().flatten();
        self.at.is_none() || ends.any(|link| link.sets_up().is_some())
    }
    fn since_ns(&self) -> u64 {
        let waiting = [self.recv.filter(|_| self.starves()), self.send.filter(|_| self.is_full())];
        waiting.into_iter().flatten().map(|link| link.since_ns).max().unwrap_or(0)
    }
    fn role(&self, scene: &Scene<'_>) -> Role {
        let p99_ns = self.at.map_or(0, |(member, _)| member.comm.p99_ns(self.way.channel));
        calm(scene.role_of_wait(self.since_ns(), p99_ns))
    }
}

/// One row per route.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let members = scene.focus().map(|id| scene.of_comm(id)).unwrap_or_default();
    let columns = vec![
        Column::new("direction"),
        Column::new("from"),
        Column::new("to"),
        Column::new("over").goes(2),
        Column::new("sent"),
        Column::new("arrived"),
        Column::new("state").key("state"),
        Column::new("since"),
        Column::new("bytes").goes(1),
    ];
    let blocked_on = blocking_ranks(scene, &members);
    let known = Known::of(scene, &members);
    let row = |edge: &Edge<'_>| {
        let g = &scene.look.glyphs;
        let Way { channel: id, from, to, is_shared } = edge.way;
        let waits = edge.role(scene);
        let (text, role) = match (edge.starves(), edge.is_full()) {
            (true, _) => (format!("{} {to} waits for {from}", g.waits), waits),
            (false, true) => (format!("{} {from} waits for {to}", g.waits), waits),
            (false, false) if edge.is_missing() => (format!("{} not up yet", g.idle), Role::Dim),
            (false, false) if !edge.is_used => (format!("{} not used in it", g.idle), Role::Dim),
            (false, false) if [edge.send, edge.recv].into_iter().flatten().any(LinkSnapshot::is_waiting) => {
                (format!("{} running", g.idle), Role::Plain)
            }
            (false, false) => (format!("{} no wait", g.idle), Role::Plain),
        };
        let since_ns = edge.since_ns();
        let any = edge.recv.or(edge.send);
        let count = |of: Option<u64>| of.map_or_else(Cell::default, Cell::number);
        let cells = vec![
            Cell::text(format!("{}{}", channel(id), if is_shared { " all" } else { "" })),
            Cell::number(from.0),
            Cell::number(to.0),
            Cell::text(any.map(|link| link.transport.to_string()).unwrap_or_default()),
            count(edge.send.map(|link| link.posted)),
            count(edge.recv.map(|link| link.moved)),
            Cell::text(text).role(role),
            Cell::sorted(if since_ns > 0 { duration(since_ns) } else { String::new() }, since_ns),
            any.map_or_else(Cell::default, |link| Cell::sorted(bytes(link.bytes), link.bytes)),
        ];
        let is_end = |rank| blocked_on.contains(&rank);
        Row {
            key: format!("{} {from} {to} {is_shared}", id.0),
            cells,
            fields: edge.at.map_or_else(Vec::new, |(member, _)| fields(member.rank, Some(member.comm))),
            ranks: vec![from.0, to.0],
            blocked_on: is_end(from) || is_end(to),
            about: edge.at.map_or(About::Itself, |(member, nth)| About::Link(member.at.0, member.at.1, nth)),
        }
    };
    let rows = edges(&members, &known).iter().map(row).collect();
    Listing {
        columns,
        rows,
        empty: "no link is up yet, and no plan is known: the first operation makes both".into(),
    }
}

/// What is known of the operation in focus.
#[derive(Default)]
struct Known<'a> {
    /// The operation as one of its callers reports it.
    op: Option<&'a OpSnapshot>,
    plan: Option<Planned>,
    /// Which lanes it uses.
    uses: Option<Uses>,
}

impl<'a> Known<'a> {
    fn of(scene: &Scene<'_>, members: &[Member<'a>]) -> Self {
        let op = scene.focus().and_then(|id| scene.operation(id));
        let Some(op) = op.and_then(|op| matrix::told_by(members, &op)) else { return Self::default() };
        Self { op: Some(op), plan: Planned::of(members, op), uses: Uses::of(op) }
    }
}

/// The operation, its plan, and the circle of each channel.
pub(crate) fn above(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let look = &scene.look;
    let mut lines: Vec<_> = matrix::above(scene, width).into_iter().take(1).collect();
    let members = scene.focus().map(|id| scene.of_comm(id)).unwrap_or_default();
    if members.is_empty() {
        return lines;
    }
    let known = Known::of(scene, &members);
    let planned = known.plan.as_ref().zip(known.op);
    let places = planned.map(|(plan, op)| plan.places(&members, op)).unwrap_or_default();
    let mut edges = edges(&members, &known);
    edges.retain(|edge| edge.is_used);
    let text = said_of(&known, &members, &edges);
    lines.push(Line::styled(fit(&text, width, look.glyphs.more), look.palette.style(Role::Dim)));
    let mut channels: Vec<_> = edges.iter().map(|edge| edge.way.channel).collect();
    channels.dedup();
    for id in channels {
        let own: Vec<_> = edges.iter().filter(|edge| edge.way.channel == id).collect();
        let drawing = Drawing { scene, members: &members, places: &places, channel: id, width };
        lines.extend(match path(&own, members.first().map_or(0, |member| member.comm.nranks)) {
            Some(path) => drawing.path(&path),
            None => drawing.star(&own),
        });
    }
    let legend = format!(
        "{} blocking   {l}{r}{l} no wait   {l}{}{r} nothing comes   {i}{r}{i} not up   {} another host",
        look.glyphs.blocked_on,
        look.glyphs.dead,
        look.glyphs.border,
        l = look.glyphs.line,
        r = look.glyphs.right,
        i = look.glyphs.idle
    );
    lines.push(Line::styled(fit(&legend, width, look.glyphs.more), look.palette.style(Role::Dim)));
    lines
}

/// The plan in words.
fn said_of(known: &Known<'_>, members: &[Member<'_>], edges: &[Edge<'_>]) -> String {
    let Some(plan) = &known.plan else {
        let drawn = if edges.is_empty() { "no link is up" } else { "the links that are up are drawn" };
        let way = known.uses.and_then(Uses::text);
        let way = way.unwrap_or_else(|| "the plan of its messages is not known".into());
        return format!("{way}; {drawn}");
    };
    let most = |id| members.iter().map(|member| plan.steps(member.comm.rank, id)).max().unwrap_or(0);
    let steps = plan.channels().map(most).max().unwrap_or(0);
    let channels = match plan.shape.channels {
        1 => "1 channel".to_string(),
        several => format!("{several} channels"),
    };
    let missing = edges.iter().filter(|edge| edge.is_missing()).count();
    let up = match missing {
        0 => String::new(),
        missing if missing == edges.len() => "; no link is up yet".into(),
        missing => format!("; {missing} of {} ways not up yet", edges.len()),
    };
    let name = plan.shape.algorithm.name().to_lowercase();
    format!("plan: {name}, {channels}, {steps} steps; r@s: rank r has done s{up}")
}

/// The routes in order, if they make one circle through all ranks or one chain.
fn path<'a, 'b>(edges: &[&'b Edge<'a>], ranks: u32) -> Option<Vec<&'b Edge<'a>>> {
    let mut next: BTreeMap<Rank, &Edge<'_>> = BTreeMap::new();
    for edge in edges {
        if next.insert(edge.way.from, edge).is_some() {
            return None;
        }
    }
    let readers: BTreeSet<Rank> = edges.iter().map(|edge| edge.way.to).collect();
    let begin = next.keys().find(|rank| !readers.contains(rank)).or_else(|| next.keys().next());
    let mut at = *begin?;
    let mut path = Vec::new();
    while let Some(edge) = next.remove(&at) {
        at = edge.way.to;
        path.push(edge);
    }
    (path.len() == edges.len() && path.len() + 1 >= ranks as usize).then_some(path)
}

/// The drawing of a channel.
struct Drawing<'a> {
    scene: &'a Scene<'a>,
    members: &'a [Member<'a>],
    places: &'a BTreeMap<(Rank, ChannelId), StepsDone>,
    channel: ChannelId,
    width: usize,
}

impl Drawing<'_> {
    /// A rank, with the steps it has done if that is known.
    fn node(&self, rank: Rank) -> (String, Role) {
        let g = &self.scene.look.glyphs;
        let at = self.places.get(&(rank, self.channel)).map(|(at, _)| format!("@{at}")).unwrap_or_default();
        match self.members.iter().find(|member| member.comm.rank == rank) {
            Some(member) if self.scene.blocks_others(member) => {
                (format!("{}{rank}{at}", g.blocked_on), self.scene.role_of_blocking(member))
            }
            Some(_) => (format!("{rank}{at}"), Role::Plain),
            None => (format!("?{rank}"), Role::Dim),
        }
    }

    /// `ch0 0 -▸- 1 -▸- *2 -✗▸ 3 -▸- 0`, on as many lines as it takes.
    fn path(&self, path: &[&Edge<'_>]) -> Vec<Line<'static>> {
        let Self { scene, members, channel: id, width, .. } = *self;
        let look = &scene.look;
        let g = &look.glyphs;
        let at = |rank: Rank| {
            members.iter().find(|member| member.comm.rank == rank).map(|member| host(member.rank))
        };
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
        for (edge, is_drawn) in path.iter().zip(drawn_ways(scene, members, path)) {
            if !is_drawn {
                if !std::mem::replace(&mut skips, true) {
                    put(format!("{} ", g.more), Role::Dim, &mut lines);
                }
                continue;
            }
            skips = false;
            let (text, role) = self.node(edge.way.from);
            put(text, role, &mut lines);
            let border = if at(edge.way.from) == at(edge.way.to) { g.line } else { g.border };
            let (arrow, role) = match edge.starves() || edge.is_full() {
                true => {
                    let role = edge.role(scene);
                    (format!(" {border}{}{} ", g.dead, g.right), role)
                }
                false if edge.is_missing() => (format!(" {}{}{} ", g.idle, g.right, g.idle), Role::Dim),
                false => (format!(" {border}{}{} ", g.right, g.line), Role::Good),
            };
            put(arrow, role, &mut lines);
        }
        // The end of the path: for a circle, its beginning.
        if let Some(last) = path.last().filter(|_| !skips) {
            let (text, role) = self.node(last.way.to);
            put(text, role, &mut lines);
        }
        lines.push(Line::from(spans));
        lines
    }

    /// For an operation in which every rank writes to every rank: which rank waits for which.
    fn star(&self, edges: &[&Edge<'_>]) -> Vec<Line<'static>> {
        let Self { scene, members, channel: id, width, .. } = *self;
        let look = &scene.look;
        let head = format!("{} {} ways between {} ranks:", channel(id), edges.len(), members.len());
        let mut spans = vec![Span::styled(head, look.palette.style(Role::Plain))];
        let mut used = spans[0].width();
        for member in members {
            let (text, role) = self.node(member.comm.rank);
            if used + text.width() + 3 > width {
                spans.push(Span::styled(format!(" {}", look.glyphs.more), look.palette.style(Role::Dim)));
                break;
            }
            used += text.width() + 1;
            spans.push(Span::styled(format!(" {text}"), look.palette.style(role)));
        }
        let whole = Line::from(std::mem::take(&mut spans));
        used = 0;
        for edge in edges.iter().filter(|edge| edge.starves() || edge.is_full()) {
            let Way { from, to, .. } = edge.way;
            let (waiting, blocked_on) = if edge.starves() { (to, from) } else { (from, to) };
            let ((who, _), (whom, meaning)) = (self.node(waiting), self.node(blocked_on));
            let text = format!("{who} {}{}", look.glyphs.left, look.glyphs.dead);
            if used + text.width() + whom.width() + 6 > width {
                spans.push(Span::styled(format!("  {}", look.glyphs.more), look.palette.style(Role::Dim)));
                break;
            }
            used += text.width() + whom.width() + 4;
            let role = edge.role(scene);
            spans.push(Span::styled(format!("   {text} "), look.palette.style(role)));
            spans.push(Span::styled(whom, look.palette.style(meaning)));
        }
        if spans.is_empty() { vec![whole] } else { vec![whole, Line::from(spans)] }
    }
}

fn blocking_ranks(scene: &Scene<'_>, members: &[Member<'_>]) -> BTreeSet<Rank> {
    members.iter().filter(|member| scene.blocks_others(member)).map(|member| member.comm.rank).collect()
}

/// Which routes of a circle are drawn.
///
/// In a large one, those near a rank that blocks others, if there is such a rank.
fn drawn_ways(scene: &Scene<'_>, members: &[Member<'_>], round: &[&Edge<'_>]) -> Vec<bool> {
    let all = round.len();
    let blocked_on = blocking_ranks(scene, members);
    if all <= DRAWN_WHOLE || blocked_on.is_empty() {
        return vec![true; all];
    }
    let mut drawn = vec![false; all];
    for at in (0..all).filter(|at| blocked_on.contains(&round[*at].way.from)) {
        (0..=2 * NEAR).for_each(|step| drawn[(at + all + step - NEAR) % all] = true);
    }
    drawn
}
