//! The communicators of a job that has several, in a line each: who is in it, what it does, and
//! what keeps it from going on. First is the one that everything waits for. Enter narrows all
//! screens to one of them.

use ccl::diagnose::{CommLine, Held, duration};
use ccl::types::CommId;
use ratatui::text::Line;

use crate::tui::listing::{About, Cell, Column, Listing, Row, fit};
use crate::tui::palette::Role;
use crate::tui::scene::{Scene, calm};
use crate::words;

/// One row per communicator, whichever the screens are narrowed to.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let columns = vec![
        Column::new("comm").shrinks(6).key("comm"),
        Column::new("size"),
        Column::new("ranks").shrinks(7),
        Column::new("operation").shrinks(12).key("op"),
        Column::new("state").key("state"),
        Column::new("since"),
        Column::new("held up by").shrinks(22),
        Column::new("inside").goes(1),
        Column::new("id").goes(2),
    ];
    let nranks = scene.job.ranks.len() + scene.job.missing.len();
    let row = |line: CommLine| {
        let (state, since_ns) = state(scene, &line);
        let ranks = words::ranks(&line.ranks);
        let unread = (line.nranks as usize).saturating_sub(line.ranks.len());
        let unread = if unread > 0 { format!(", {unread} not read") } else { String::new() };
        let first = line.ranks.first().map_or(0, |rank| rank.0.into());
        let held = line.held.as_ref();
        let role = held.map_or(Role::Plain, |_| state.role);
        let inside = match line.inside.len() {
            0 => String::new(),
            inside => format!("{inside} of {}", line.ranks.len()),
        };
        let cells = vec![
            Cell::text(line.name.clone()),
            Cell::sorted(format!("{} of {nranks}", line.nranks), line.nranks.into()),
            Cell::sorted(format!("{ranks}{unread}"), first),
            Cell::text(operation(&line)),
            state,
            since_ns.map_or_else(Cell::default, |ns| Cell::sorted(duration(ns), ns)),
            Cell::text(held.map(Held::text).unwrap_or_default()).role(role),
            Cell::sorted(inside, line.inside.len() as u64),
            Cell::text(line.id.to_string()),
        ];
        Row {
            key: line.id.to_string(),
            cells,
            fields: vec![("comm", line.id.to_string()), ("op", line.call.clone())],
            ranks: line.ranks.iter().map(|rank| rank.0).collect(),
            blocked_on: held.is_some_and(|held| held.behind.is_none()),
            about: About::Communicator(line.id),
        }
    };
    let rows = scene.job.comm_lines().into_iter().map(row).collect();
    Listing { columns, rows, empty: "there is no communicator, or all have ended".into() }
}

/// The calls that are under way, or else the last one.
fn operation(line: &CommLine) -> String {
    match (line.under_way.as_slice(), line.call.as_str()) {
        ([], "") => "-".into(),
        ([], call) => call.into(),
        (calls, _) => calls.join(", "),
    }
}

/// The state in a word, and since when.
fn state(scene: &Scene<'_>, line: &CommLine) -> (Cell, Option<u64>) {
    let g = &scene.look.glyphs;
    let own = Some(line.since_ns).filter(|ns| *ns > 0);
    let of_wait = |ns: u64| scene.role_of_wait(ns, line.p99_ns);
    let waits = |ns: u64| calm(of_wait(ns));
    let (glyph, word, role, since_ns) = match (&line.held, line) {
        (held, CommLine { failed, .. }) if !failed.is_empty() => {
            let since_ns = held.as_ref().map(|held| held.since_ns);
            let is_cause = held.as_ref().is_some_and(|held| held.behind.is_none());
            (g.dead, if is_cause { "FAILED" } else { "failed" }, Role::Bad, since_ns)
        }
        (Some(held), _) if held.behind.is_none() => {
            (g.blocked_on, "BLOCKED", of_wait(held.since_ns), Some(held.since_ns))
        }
        (Some(held), _) => (g.waits, "waits", waits(held.since_ns), Some(held.since_ns)),
        (None, CommLine { inside, .. }) if !inside.is_empty() => (g.running, "works", Role::Good, own),
        (None, CommLine { starting, .. }) if !starting.is_empty() => {
            (g.waits, "starts", waits(line.since_ns), own)
        }
        (None, CommLine { finishing, .. }) if !finishing.is_empty() => {
            (g.waits, "ends", waits(line.since_ns), own)
        }
        (None, _) => (g.idle, "in user code", Role::Plain, None),
    };
    (Cell::text(format!("{glyph} {word}")).role(role), since_ns)
}

/// How many there are, and what can be done with them.
pub(crate) fn above(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let all = scene.all_comms().len();
    let text = format!("{all} communicators; Enter shows only one on all screens, Esc shows all again");
    let look = &scene.look;
    vec![Line::styled(fit(&text, width, look.glyphs.more), look.palette.style(Role::Dim))]
}

/// A row as JSON.
pub(crate) fn json(scene: &Scene<'_>, id: CommId) -> Option<serde_json::Value> {
    let line = scene.job.comm_lines().into_iter().find(|line| line.id == id)?;
    let held = line.held.map(|held| {
        serde_json::json!({
            "by": held.by, "how": held.how, "since_ns": held.since_ns, "behind": held.behind,
        })
    });
    Some(serde_json::json!({
        "comm": line.id, "name": line.name, "nranks": line.nranks, "ranks": line.ranks, "call": line.call,
        "under_way": line.under_way, "inside": line.inside, "starting": line.starting,
        "finishing": line.finishing, "since_ns": line.since_ns, "failed": line.failed, "held": held,
    }))
}
