//! Every rank: how its process is, where it stands, whom it waits for; and below, why.

use ccl::snapshot::{Source, duration, render_answer};
use ratatui::text::Line;

use super::wrapped;
use crate::tui::listing::{About, Cell, Column, Listing, Row, visible};
use crate::tui::palette::Role;
use crate::tui::scene::{Member, Scene, fields, host, longest_wait, name, operation, operation_text};

/// One row per rank and communicator, and one per rank that was not read.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let columns = vec![
        Column::new("rank"),
        Column::new("process"),
        Column::new("operation").shrinks(12),
        Column::new("stands").shrinks(14),
        Column::new("for"),
        Column::new("on").goes(1),
        Column::new("comm").shrinks(5).goes(2),
        Column::new("tag").shrinks(6).goes(4),
        Column::new("pid").goes(3),
        Column::new("host").shrinks(6).goes(5),
        Column::new("in it").goes(7),
        Column::new("from").goes(8),
        Column::new("failed").goes(6),
    ];
    let ranks = scene.members().map(|(at, rank, member)| {
        let about = match &member {
            Some(member) => About::Comm(member.at.0, member.at.1),
            None => About::Rank(at),
        };
        let comm = member.map(|member| member.comm);
        let mut cells = vec![Cell::number(rank.rank.0), scene.state(rank)];
        cells.extend(of_member(scene, member));
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
        cells.extend(std::iter::repeat_n(Cell::default(), 5));
        cells.extend([Cell::number(missing.pid), Cell::text(missing.host.clone())]);
        cells.extend(std::iter::repeat_n(Cell::default(), 3));
        let fields = vec![("state", "not read".into()), ("host", missing.host.clone())];
        let (key, about) = (format!("{} missing", missing.rank), About::Missing(at));
        Row { key, cells, fields, ranks: vec![missing.rank.0], awaited: false, about }
    });
    let rows = ranks.chain(missing).collect();
    Listing { columns, rows, empty: "no rank has made a recorder yet".into() }
}

/// Operation, how it stands, for how long, on whom, communicator.
fn of_member(scene: &Scene<'_>, member: Option<Member<'_>>) -> [Cell; 5] {
    let Some(member) = member else { return std::array::from_fn(|_| Cell::default()) };
    let comm = member.comm;
    let age_ns = comm.phase.as_ref().map_or_else(|| operation(comm).age_ns, |phase| phase.duration_ns);
    let on = longest_wait(comm).and_then(|link| link.waits_for.or(link.peer));
    [
        Cell::text(operation_text(comm)),
        scene.standing(&member),
        Cell::sorted(duration(age_ns), age_ns),
        on.map_or_else(Cell::default, |peer| Cell::number(peer.0)),
        Cell::text(name(&comm.name, comm.id)),
    ]
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
