//! The help screen: the table of keys.

use ratatui::text::{Line, Span};

use super::Screen;
use crate::tui::keys::KEYS;
use crate::tui::listing::Look;
use crate::tui::palette::Role;

/// Its lines.
pub(crate) fn lines(look: &Look) -> Vec<Line<'static>> {
    let row = |key: &str, what: String| {
        Line::from(vec![
            Span::styled(format!("{key:>10}  "), look.palette.style(Role::Head)),
            Span::raw(what),
        ])
    };
    let keys = KEYS.iter().map(|key| {
        let everywhere = key.on.len() == Screen::ALL.len();
        let on: Vec<_> = key.on.iter().map(|screen| screen.name()).collect();
        let on = if everywhere { String::new() } else { format!(" (on {})", on.join(", ")) };
        row(key.shown, format!("{}{on}", key.what))
    });
    let g = &look.glyphs;
    let glyphs = [
        (g.blocked_on, "blocking: the others wait for it"),
        (g.waits, "waits for somebody"),
        (g.running, "runs, works, is inside"),
        (g.stopped, "stopped by a signal or a debugger"),
        (g.dead, "dead, failed"),
        (g.exited, "left in good order, done"),
        (g.idle, "in user code: in no operation; no wait"),
    ];
    let mouse = row("mouse", "click tabs and rows; the wheel moves".into());
    let glyphs = glyphs.into_iter().map(|(glyph, what)| row(&glyph.to_string(), what.into()));
    keys.chain([mouse, Line::default()]).chain(glyphs).collect()
}
