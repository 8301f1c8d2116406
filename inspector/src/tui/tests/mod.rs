//! The screens with made-up jobs: every state, and every key on every screen.

mod calm;
mod groups;
mod jobs;
mod keys;
mod lanes;
mod plans;
mod screens;

use std::sync::Arc;

use ccl::snapshot::Snapshot;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::backend::TestBackend;

use super::app::{App, Effect, Input, Seen};
use super::history::Shot;
use super::listing::Look;
use super::palette::{Glyphs, Palette};
use super::views::draw::draw;

/// The time of the first picture of a test: noon of some day.
const NOON: u64 = 1_700_049_600_000_000_000;
const SECOND: u64 = 1_000_000_000;

const LOOK: Look = Look { palette: Palette::Default, glyphs: Glyphs::UNICODE };

/// An app of this size that has seen this job.
fn app(snapshot: Snapshot, size: (u16, u16)) -> App {
    let mut app = App::new(LOOK, size, false);
    see(&mut app, snapshot, NOON);
    app
}

/// A look at the job, the second one that shows this, with histograms and rates.
fn see(app: &mut App, mut snapshot: Snapshot, taken_ns: u64) {
    snapshot.judge(Some(&snapshot.clone()), app.stall_ns);
    let ended = !snapshot.ranks.is_empty() && snapshot.ranks.iter().all(|rank| rank.state.word() == "dead");
    let histograms = Some(jobs::histograms().into());
    let seen = Seen {
        shot: Arc::new(Shot { taken_ns, rates: jobs::rates(&snapshot), snapshot, histograms }),
        ended,
        events: Vec::new(),
    };
    app.update(Input::Seen(Box::new(seen)), taken_ns + SECOND / 5);
}

fn press(app: &mut App, code: KeyCode) -> Option<Effect> {
    app.update(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)), app.now_ns)
}

fn type_keys(app: &mut App, text: &str) {
    for c in text.chars() {
        press(app, KeyCode::Char(c));
    }
}

/// The content of the terminal, line by line.
fn drawn(app: &App) -> String {
    let mut terminal = ratatui::Terminal::new(TestBackend::new(app.size.0, app.size.1)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let text: String = (0..app.size.0).map(|x| buffer[(x, y)].symbol()).collect();
        text.trim_end().to_string() + "\n"
    };
    (0..app.size.1).map(line).collect()
}
