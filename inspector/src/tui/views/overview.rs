//! Every rank: how its process is, where it stands, whom it waits for; and below, why.

use ccl::snapshot::{OpState, Source, duration, render_answer};
use ratatui::text::Line;

use super::wrapped;
use crate::rates::Rate;
use crate::tui::listing::{About, Cell, Column, Listing, Row, fit, visible};
use crate::tui::palette::Role;
use crate::tui::scene::{Member, Scene, fields, host, name, operation_text};
use crate::words;

/// One row per rank and communicator, and one per rank that was not read.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let columns = vec![
        Column::new("rank"),
        Column::new("process"),
        Column::new("operation").shrinks(16),
        Column::new("stands").shrinks(14),
        Column::new("for"),
        Column::new("on").goes(1),
        Column::new("ops/s").goes(4),
        Column::new("bytes/s").goes(5),
        Column::new("comm").shrinks(5).goes(2),
        Column::new("tag").shrinks(6).goes(6),
        Column::new("pid").goes(3),
        Column::new("host").shrinks(6).goes(7),
        Column::new("in it").goes(9),
        Column::new("from").goes(10),
        Column::new("failed").goes(8),
    ];
    let ranks = scene.members().map(|(at, rank, member)| {
        let about = match &member {
            Some(member) => About::Comm(member.at.0, member.at.1),
            None => About::Rank(at),
        };
        let comm = member.map(|member| member.comm);
        let mut cells = vec![Cell::number(rank.rank.0), scene.state(rank)];
        cells.extend(of_member(scene, member));
        let rate = comm.and_then(|comm| scene.rates.get(&(rank.rank, comm.id)));
        cells.extend(rates(rate));
        cells.push(Cell::text(comm.map(|comm| name(&comm.name, comm.id)).unwrap_or_default()));
        let tag = comm.map(|comm| comm.op.tag.clone()).unwrap_or_default();
        let within = comm.map(|comm| format!("{}/{}", comm.rank, comm.nranks)).unwrap_or_default();
        let source = match rank.source {
            Source::Socket => "socket",
            Source::Mapping => "mapping",
            Source::File => "file",
            Source::Unknown => "?",
        };
        cells.extend([Cell::text(tag), Cell::number(rank.pid), Cell::text(host(rank)), Cell::text(within)]);
        cells.extend([Cell::text(source), Cell::number(rank.failed)]);
        Row {
            key: format!("{} {}", rank.rank, comm.map(|comm| comm.id).unwrap_or_default()),
            cells,
            fields: fields(rank, comm),
            ranks: vec![rank.rank.0],
            awaited: member.is_some_and(|member| scene.is_awaited(&member)),
            about,
        }
    });
    let missing = scene.job.missing.iter().enumerate().map(|(at, missing)| {
        let mut cells = vec![Cell::number(missing.rank.0), Cell::text("? not read").role(Role::Bad)];
        cells.extend([Cell::text(missing.why.clone()).role(Role::Dim)]);
        cells.extend(std::iter::repeat_n(Cell::default(), 7));
        cells.extend([Cell::number(missing.pid), Cell::text(missing.host.clone())]);
        cells.extend(std::iter::repeat_n(Cell::default(), 3));
        let fields = vec![("state", "not read".into()), ("host", missing.host.clone())];
        let (key, about) = (format!("{} missing", missing.rank), About::Missing(at));
        Row { key, cells, fields, ranks: vec![missing.rank.0], awaited: false, about }
    });
    let rows = ranks.chain(missing).collect();
    Listing { columns, rows, empty: "no rank has made a recorder yet".into() }
}

/// Operation, how it stands, for how long, on whom.
fn of_member(scene: &Scene<'_>, member: Option<Member<'_>>) -> [Cell; 4] {
    let Some(member) = member else { return std::array::from_fn(|_| Cell::default()) };
    let comm = member.comm;
    let age_ns = comm.phase.as_ref().map_or_else(|| comm.operation().age_ns, |phase| phase.duration_ns);
    let on = comm.longest_wait().and_then(|link| link.waits_for.or(link.peer));
    [
        Cell::text(operation_text(comm)),
        scene.standing(&member),
        Cell::sorted(duration(age_ns), age_ns),
        on.map_or_else(Cell::default, |peer| Cell::number(peer.0)),
    ]
}

/// Operations and bytes per second.
fn rates(rate: Option<&Rate>) -> [Cell; 2] {
    let Some(Rate { ops_per_s, bytes_per_s }) = rate else { return [Cell::default(), Cell::default()] };
    [
        Cell::sorted(words::digits(*ops_per_s), (ops_per_s * 1000.0) as u64),
        Cell::sorted(words::bytes(*bytes_per_s), *bytes_per_s as u64),
    ]
}

/// The operation under way for longest, and how fast all links are together.
pub(crate) fn above(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let look = &scene.look;
    let members = scene.members().filter_map(|(_, _, member)| member);
    let under_way = members.filter(|member| member.comm.operation().state == OpState::Running);
    let Some(oldest) = under_way.max_by_key(|member| member.comm.operation().age_ns) else {
        let text = if scene.job.ranks.is_empty() { Vec::new() } else { vec!["no operation is under way"] };
        let rate = text.into_iter().map(|text| format!("{text}{}", all_rates(scene)));
        return rate.map(|text| Line::styled(text, look.palette.style(Role::Dim))).collect();
    };
    let op = oldest.comm.operation();
    let comm = fit(&name(&oldest.comm.name, oldest.comm.id), 16, look.glyphs.more);
    let text = format!(
        "oldest: {} #{} of {comm}, {} on rank {}",
        op.kind,
        op.seq,
        duration(op.age_ns),
        oldest.rank.rank
    );
    vec![Line::raw(fit(&(text + &all_rates(scene)), width, look.glyphs.more))]
}

/// How fast all links are together. Operations are not added up: every rank counts the same one.
fn all_rates(scene: &Scene<'_>) -> String {
    if scene.rates.is_empty() {
        return String::new();
    }
    let all = scene.rates.values().fold(Rate::default(), |sum, rate| sum + *rate);
    format!("; all links {}/s", words::bytes(all.bytes_per_s))
}

/// The answer in full, as `snapshot` prints it.
pub(crate) fn below(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let look = &scene.look;
    let rule = look.glyphs.line.to_string().repeat(width.saturating_sub(6));
    let mut lines = vec![Line::styled(format!(" why {rule}"), look.palette.style(Role::Dim))];
    for line in render_answer(scene.job).lines() {
        lines.extend(wrapped(&visible(line), width).into_iter().map(Line::from));
    }
    lines
}
