//! The top of every screen: the job, the age of the picture, the first verdict and what to do next,
//! the tabs. And its last line.

use std::collections::BTreeSet;

use ccl::diagnose::{comm_name, duration, ranks_text, render_next, render_verdict};
use ccl::snapshot::{Standing, State};
use ccl::types::Rank;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::{Screen, joining, wrapped};
use crate::tui::app::{App, Ended};
use crate::tui::keys::{Action, KEYS};
use crate::tui::listing::{fit, visible};
use crate::tui::palette::Role;

/// The most columns for a list of ranks.
const RANKS_WIDTH: usize = 22;
/// The most columns for a communicator's name.
const COMM_WIDTH: usize = 16;
/// The most lines of a verdict.
const MOST_LINES: usize = 3;
/// For each line of a verdict the terminal has this many.
const HEIGHT_OF_LINE: u16 = 12;

/// The header: job, verdict, tabs; a line that says that not all communicators are shown, and one
/// that says that this is not the present, where that is so.
pub(crate) fn lines(app: &App) -> Vec<Line<'static>> {
    let mut lines = vec![job(app)];
    lines.extend(verdict(app));
    lines.push(tabs(app));
    lines.extend(only(app));
    lines.extend(banner(app));
    lines
}

/// The line of the tabs.
pub(crate) fn tabs_line(app: &App) -> usize {
    1 + verdict(app).len()
}

/// The communicators to which the screens are narrowed, and how to show all again. The lines above
/// are about the whole job.
fn only(app: &App) -> Option<Line<'static>> {
    let scene = app.scene();
    let only = app.only.as_ref()?;
    let ranks: BTreeSet<Rank> = only.comms.iter().flat_map(|id| scene.job.ranks_of(*id)).collect();
    let ranks: Vec<Rank> = ranks.into_iter().collect();
    let rows = scene.job.ranks.iter().flat_map(|rank| &rank.comms);
    let name = rows.clone().find(|row| only.comms.contains(&row.id)).map(|row| comm_name(&row.name, row.id));
    let name = fit(&name.unwrap_or_else(|| only.name.clone()), COMM_WIDTH, app.look.glyphs.more);
    let those = match only.comms.len() {
        0 | 1 => name,
        several => format!("the {several} named {name}"),
    };
    let who = match ranks.as_slice() {
        [] => "no rank is in it".to_string(),
        ranks => fit(&ranks_text(ranks), RANKS_WIDTH, app.look.glyphs.more),
    };
    let text = match scene.all_comms().len() {
        0 | 1 => format!("ONLY {those} ({who})"),
        all => format!("ONLY {those} ({who}); Esc shows all {all} communicators"),
    };
    Some(Line::styled(text, app.look.palette.style(Role::Head)))
}

fn job(app: &App) -> Line<'static> {
    let scene = app.scene();
    let palette = app.look.palette;
    let count = |state| scene.job.ranks.iter().filter(|rank| rank.state == state).count();
    let all = scene.job.ranks.len() + scene.job.missing.len();
    let up = count(State::Running);
    let mut spans = vec![
        Span::styled(format!("ccl-inspect  job {}  ", scene.job.job), palette.style(Role::Head)),
        Span::styled(
            format!("{up} of {all} ranks up"),
            palette.style(role(up == all, Role::Good, Role::Plain)),
        ),
    ];
    let failed =
        |state| scene.job.ranks.iter().filter(|rank| rank.state == state && rank.has_failed()).count();
    let (exited, left) = (failed(State::Exited), failed(State::Left));
    let others = [
        (count(State::Stopped), "stopped", Role::Waits),
        (count(State::Dead), "dead", Role::Bad),
        (count(State::Exited) - exited, "exited", Role::Plain),
        (exited, "exited after a failure", Role::Bad),
        (count(State::Left) - left, "left", Role::Plain),
        (left, "left after a failure", Role::Bad),
        (scene.job.missing.len(), "not read", Role::Waits),
    ];
    let unseen = scene.job.ranks.iter().map(|rank| rank.comms_without_row).max().unwrap_or(0);
    for (number, word, role) in others.into_iter().filter(|(number, ..)| *number > 0) {
        spans.push(Span::styled(format!(", {number} {word}"), palette.style(role)));
    }
    if unseen > 0 {
        let text = format!(", up to {unseen} communicators unseen");
        spans.push(Span::styled(text, palette.style(Role::Waits)));
    }
    let age = app.now_ns.saturating_sub(app.shot().taken_ns);
    let text = if app.shot().taken_ns == 0 { "no data yet".into() } else { format!("age {}", seconds(age)) };
    spans.push(Span::styled(
        format!("  {text}"),
        palette.style(role(age < 2_000_000_000, Role::Dim, Role::Waits)),
    ));
    Line::from(spans)
}

const fn role(fine: bool, then: Role, otherwise: Role) -> Role {
    if fine { then } else { otherwise }
}

/// A duration; from ten seconds on in whole seconds, because a jumping figure is not readable.
fn seconds(ns: u64) -> String {
    if ns < 10_000_000_000 {
        format!("{}.{} s", ns / 1_000_000_000, ns / 100_000_000 % 10)
    } else {
        duration(ns)
    }
}

/// The first verdict as `snapshot` prints it, and what to do next; what waits and is none yet.
///
/// A verdict may take several lines, where the terminal has the room.
fn verdict(app: &App) -> Vec<Line<'static>> {
    let (palette, scene, g) = (app.look.palette, app.scene(), &app.look.glyphs);
    let Some(verdict) = scene.job.verdicts.first() else { return vec![short_wait(app)] };
    let (width, height) = (usize::from(app.size.0), app.size.1);
    let role = if verdict.standing == Standing::Stalled { Role::Bad } else { Role::Waits };
    let which = match scene.job.verdicts.len() {
        1 => String::new(),
        all => format!("1 of {all}: "),
    };
    let text = format!("{} {which}{}", g.blocked_on, visible(&render_verdict(verdict)));
    let mut told = wrapped(&text, width);
    let most = usize::from(height / HEIGHT_OF_LINE).clamp(1, MOST_LINES);
    if told.len() > most {
        told.truncate(most);
        let last = told.pop().unwrap_or_default();
        let cut = fit(last.trim_end(), width.saturating_sub(1), g.more);
        told.push(format!("{}{}", cut.trim_end_matches(g.more), g.more));
    }
    let mut lines: Vec<_> = told.into_iter().map(|line| Line::styled(line, palette.style(role))).collect();
    if let Some(next) = verdict.next.first().filter(|_| most > 1) {
        let text = format!("  next: {}", visible(&render_next(next)));
        lines.push(Line::styled(fit(&text, width, g.more), palette.style(Role::Plain)));
    }
    lines
}

/// A wait that is too short for a verdict, uncoloured: `waits for rank 2, not called: AllReduce #7
/// of world, 0.4 s`; else that nobody waits.
fn short_wait(app: &App) -> Line<'static> {
    let (scene, g) = (app.scene(), &app.look.glyphs);
    let who = |ranks: &[Rank]| fit(&ranks_text(ranks), RANKS_WIDTH, g.more);
    let text = match (scene.job.not_joined.first(), scene.job.waits().first()) {
        (Some(one), _) => {
            let name = fit(&comm_name(&one.name, one.comm), COMM_WIDTH, g.more);
            let (word, since) = (joining::word(one), duration(one.since_ns));
            format!("waits for {}, {word}: init of {name}, {since}", who(&one.ranks))
        }
        (None, Some(end)) => {
            let comm = fit(&end.comm, COMM_WIDTH, g.more);
            format!(
                "waits for {}, {}: {} of {comm}, {}",
                who(&end.ranks),
                end.how,
                end.op,
                duration(end.since_ns)
            )
        }
        (None, None) => return Line::from(calm(app)),
    };
    Line::styled(format!("{} {text}", g.waits), app.look.palette.style(Role::Plain))
}

/// The line if there is nothing to report.
fn calm(app: &App) -> Span<'static> {
    let scene = app.scene();
    let sees_all = scene.job.is_all_seen();
    let text = match (scene.job.ranks.is_empty(), scene.job.complete) {
        (true, _) if app.ended != Ended::No => "it was over before a rank was seen",
        (true, _) => "no rank has shown itself yet",
        // Waits that every healthy job has all the time.
        (false, true) if !sees_all && !scene.job.is_over() => {
            "nobody waits in the communicators that were read"
        }
        (false, true) if !scene.job.blocked_on.is_empty() && !scene.job.is_over() => "running",
        (false, true) => "nobody waits",
        (false, false) => "nobody that was read waits",
    };
    let style = app.look.palette.style(role(sees_all, Role::Good, Role::Dim));
    Span::styled(format!("  {text}"), style)
}

/// The layout of the tabs: screen, first column, width.
pub(crate) fn tab_places(width: usize, tabs: &[Screen]) -> Vec<(Screen, usize, usize)> {
    let mut at = 0;
    let wide = |room: usize| tabs.iter().map(|screen| screen.name().len() + room).sum::<usize>();
    // Around each name there is room for its number and blanks.
    let room = [4, 3].into_iter().find(|room| wide(*room) <= width);
    let places = tabs.iter().map(|screen| {
        // If the names do not fit, the numbers stand for them.
        let length = room.map_or(3, |room| screen.name().len() + room);
        at += length;
        (*screen, at - length, length)
    });
    places.collect()
}

fn tabs(app: &App) -> Line<'static> {
    let width = usize::from(app.size.0);
    let tabs = tab_places(width, &app.tabs()).into_iter().map(|(screen, _, length)| {
        let name = if length == 3 { "" } else { screen.name() };
        let text = format!("{:<length$}", format!(" {} {name}", screen.number()));
        let style =
            if screen == app.screen { app.look.palette.chosen() } else { app.look.palette.style(Role::Dim) };
        Span::styled(text, style)
    });
    let mut spans: Vec<_> = tabs.collect();
    let used: usize = spans.iter().map(Span::width).sum();
    let help = ["  ? help", " ?"][usize::from(used + 8 > width)];
    spans.push(Span::styled(help, app.look.palette.style(Role::Dim)));
    Line::from(spans)
}

/// The fact that a user must know first: the picture is frozen, or the job has ended.
fn banner(app: &App) -> Option<Line<'static>> {
    let age = seconds(app.now_ns.saturating_sub(app.shot().taken_ns));
    let at = time_of_day(app.shot().taken_ns);
    let ended = match &app.ended {
        Ended::No => None,
        Ended::Gone => Some(String::new()),
        Ended::With(how) => Some(format!(", {how}")),
    };
    let text = match (app.pinned.is_some(), ended) {
        (true, _) => format!("FROZEN: this was {age} ago, at {at}; data goes on, Space shows it"),
        (false, Some(how)) => {
            // The time of the last state, not of the look: dead processes are read as long as the
            // screen is open.
            let last = app.shot().snapshot.ranks.iter().map(|rank| rank.to_real_ns).max();
            let at = last.filter(|at| *at > 0).map_or(at, time_of_day);
            format!("the job has ended{how}; last state of {at}")
        }
        (false, None) => return None,
    };
    Some(Line::styled(format!("{} {text}", app.look.glyphs.stopped), app.look.palette.style(Role::Bad)))
}

/// The time of day (UTC).
pub(crate) fn time_of_day(real_ns: u64) -> String {
    let seconds = real_ns / 1_000_000_000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The last line: the typed filter, the last message, or the keys that can be pressed.
pub(crate) fn footer(app: &App, hidden: usize) -> Line<'static> {
    let palette = app.look.palette;
    if let Some(typed) = &app.typing {
        return Line::styled(format!("/{typed}_  (Enter applies, Esc leaves)"), palette.style(Role::Head));
    }
    if !app.notice.is_empty() {
        return Line::styled(visible(&app.notice), palette.style(Role::Head));
    }
    let mut text = String::new();
    if !app.filter.text().is_empty() {
        text += &format!("filter: {}  ", app.filter.text());
    }
    if hidden > 0 {
        let leads_on = matches!(app.screen, Screen::Overview | Screen::Communicators);
        let how = if leads_on { "J" } else { "Enter" };
        let columns = if hidden == 1 { "column" } else { "columns" };
        text += &format!("{hidden} {columns} hidden, {how} shows all  ");
    }
    let hints = [
        Action::Quit,
        Action::Culprit,
        Action::Enter,
        Action::Filter,
        Action::Sort,
        Action::Freeze,
        Action::Older,
    ];
    let shown = hints.iter().filter_map(|action| KEYS.iter().find(|key| key.action == *action));
    for key in shown {
        let what = key.what.split([':', ';']).next().unwrap_or_default();
        let hint = format!("{} {what}  ", key.shown);
        if text.width() + hint.width() <= usize::from(app.size.0) {
            text += &hint;
        }
    }
    Line::styled(text, palette.style(Role::Dim))
}
