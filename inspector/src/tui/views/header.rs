//! What every screen begins with: the job, who is awaited, how old this is, the tabs. And what it ends with.

use ccl::snapshot::{State, duration};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::Screen;
use crate::tui::app::{App, Ended};
use crate::tui::keys::{Action, KEYS};
use crate::tui::listing::{fit, visible};
use crate::tui::palette::Role;
use crate::tui::scene::Verdict;

/// The most columns for a list of ranks.
const RANKS_WIDTH: usize = 22;
/// The most columns for a communicator's name.
const COMM_WIDTH: usize = 16;

/// The header: job, verdict, tabs; and a line that says that this is not now, if it is not.
pub(crate) fn lines(app: &App) -> Vec<Line<'static>> {
    let mut lines = vec![job(app), Line::from(verdict(app)), tabs(app)];
    lines.extend(banner(app));
    lines
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
            palette.style(role(up == all, Role::Good, Role::Bad)),
        ),
    ];
    let others = [
        (count(State::Stopped), "stopped"),
        (count(State::Dead), "dead"),
        (count(State::Exited), "exited"),
        (scene.job.missing.len(), "not read"),
    ];
    for (number, word) in others.into_iter().filter(|(number, _)| *number > 0) {
        spans.push(Span::styled(format!(", {number} {word}"), palette.style(Role::Bad)));
    }
    let age = app.now_ns.saturating_sub(app.shot().taken_ns);
    let text = if app.shot().taken_ns == 0 { "no data yet".into() } else { format!("age {}", seconds(age)) };
    spans.push(Span::styled(
        format!("  {text}"),
        palette.style(role(age < 2_000_000_000, Role::Dim, Role::Bad)),
    ));
    Line::from(spans)
}

const fn role(fine: bool, then: Role, otherwise: Role) -> Role {
    if fine { then } else { otherwise }
}

/// Whole seconds from ten on: a figure that jumps is not read.
fn seconds(ns: u64) -> String {
    if ns < 10_000_000_000 {
        format!("{}.{} s", ns / 1_000_000_000, ns / 100_000_000 % 10)
    } else {
        duration(ns)
    }
}

/// Who is awaited, in what, since when: one line, the operation early enough for narrow screens.
fn verdict(app: &App) -> Vec<Span<'static>> {
    let palette = app.look.palette;
    let scene = app.scene();
    let Some(verdict) = scene.verdict() else {
        let text = match (scene.job.ranks.is_empty(), scene.job.complete) {
            (true, _) => "no rank has shown itself yet",
            (false, true) => "nobody waits",
            (false, false) => "nobody that was read waits",
        };
        return vec![Span::styled(
            format!("  {text}"),
            palette.style(role(scene.job.complete, Role::Good, Role::Dim)),
        )];
    };
    let role = if verdict.stands { Role::Bad } else { Role::Plain };
    let (first, rest) = verdict_text(&verdict, app);
    vec![Span::styled(first, palette.style(role)), Span::styled(rest, palette.style(Role::Plain))]
}

/// The verdict in two parts: who and in what; how, for how long, and who waits.
pub(crate) fn verdict_text(verdict: &Verdict, app: &App) -> (String, String) {
    let g = &app.look.glyphs;
    let Verdict { state, op, how, since, stands, .. } = verdict;
    let mark = if *stands { format!("{} AWAITED", g.awaited) } else { format!("{} awaited", g.waits) };
    let state = if state.is_empty() { String::new() } else { format!(" {state}") };
    let comm = fit(&verdict.comm, COMM_WIDTH, g.more);
    let first = format!("{mark} {}{state}: {op} of {comm}", fit(&verdict.who, RANKS_WIDTH, g.more));
    let more = if verdict.more > 0 { format!("; {} more", verdict.more) } else { String::new() };
    // One that waits alone is not several.
    let by = verdict.by.trim_start_matches("ranks ").trim_start_matches("rank ");
    let waits = if by.contains(['-', ',']) { "wait" } else { "waits" };
    (first, format!(" {how}, {since}{more}; {} {waits}", fit(by, RANKS_WIDTH, g.more)))
}

/// The tabs as they stand: which, from which column, how wide.
pub(crate) fn tab_places(width: usize) -> Vec<(Screen, usize, usize)> {
    let mut at = 0;
    let wide: usize = Screen::ALL.iter().map(|screen| screen.name().len() + 4).sum();
    let places = Screen::ALL.iter().map(|screen| {
        // Where names do not fit, the numbers are the names.
        let length = if wide <= width { screen.name().len() + 4 } else { 3 };
        at += length;
        (*screen, at - length, length)
    });
    places.collect()
}

fn tabs(app: &App) -> Line<'static> {
    let tabs = tab_places(app.size.0.into()).into_iter().zip(1..).map(|((screen, _, length), number)| {
        let text = if length == 3 { format!(" {number} ") } else { format!(" {number} {} ", screen.name()) };
        let style =
            if screen == app.screen { app.look.palette.chosen() } else { app.look.palette.style(Role::Dim) };
        Span::styled(text, style)
    });
    let mut spans: Vec<_> = tabs.collect();
    spans.push(Span::styled("  ? help", app.look.palette.style(Role::Dim)));
    Line::from(spans)
}

/// What must be known before anything else is believed.
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
        (false, Some(how)) => format!("the job has ended{how}; last state of {at}"),
        (false, None) => return None,
    };
    Some(Line::styled(format!("{} {text}", app.look.glyphs.stopped), app.look.palette.style(Role::Bad)))
}

/// The time of day (UTC).
pub(crate) fn time_of_day(real_ns: u64) -> String {
    let seconds = real_ns / 1_000_000_000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The last line: what is typed, what was said last, or what can be pressed.
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
        let how = if app.screen == Screen::Overview { "J" } else { "Enter" };
        let columns = if hidden == 1 { "column" } else { "columns" };
        text += &format!("{hidden} {columns} hidden, {how} shows all  ");
    }
    let hints = [Action::Culprit, Action::Enter, Action::Filter, Action::Sort, Action::Freeze, Action::Older];
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
