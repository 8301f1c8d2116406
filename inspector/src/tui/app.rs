//! The state of the screen, and `update`, which changes it on input. No terminal, no clock, no I/O:
//! `update` returns what the caller is to do.

use std::sync::Arc;

use ccl::types::CommId;
use crossterm::event::{
    KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

use super::filter::Filter;
use super::history::{History, Shot};
use super::keys::{self, Action};
use super::listing::{About, Chosen, Look, Order};
use super::log::{Entry, Log, Origin};
use super::scene::{Only, Scene};
use super::views::Screen;
use super::views::draw::Picture;
use super::views::header::{tab_places, tabs_line};
use super::views::popup::Popup;

/// Rows that one turn of the wheel moves.
const WHEEL: usize = 3;

/// An input to the app.
#[derive(Debug)]
pub(crate) enum Input {
    /// A key.
    Key(KeyEvent),
    /// The mouse.
    Mouse(MouseEvent),
    /// The terminal has a new size.
    Resize(u16, u16),
    /// The job was read.
    Seen(Box<Seen>),
    /// Labelled lines that ranks or their launcher printed.
    Said(Vec<u8>, Origin),
    /// The job that was launched here has ended in this way.
    Over(String),
    /// Time has passed.
    Tick,
}

/// The result of a look at the job.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The job.
    pub(crate) shot: Arc<Shot>,
    /// Whether none of its processes is left.
    pub(crate) ended: bool,
    /// Events since the last look, if they were asked for.
    pub(crate) events: Vec<Entry>,
}

/// What the caller is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Copy this text to the clipboard.
    Copy(String),
    /// Stop this process, as Ctrl-Z asks for.
    Suspend,
    /// Leave the screen.
    Leave(Leave),
}

/// What happens to the job when the screen is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leave {
    /// Nothing: it goes on, or has ended.
    Alone,
    /// The job that was launched here is asked to end.
    EndJob,
}

/// Whether the job has ended.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum Ended {
    /// It has not ended.
    #[default]
    No,
    /// None of its processes is left.
    Gone,
    /// It has ended in the way that its launcher reported.
    With(String),
}

/// The state.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) screen: Screen,
    pub(crate) look: Look,
    pub(crate) size: (u16, u16),
    /// The length from which a wait is called a stall.
    pub(crate) stall_ns: u64,
    /// Nanoseconds since 1970.
    pub(crate) now_ns: u64,
    /// The last look at the job.
    live: Arc<Shot>,
    /// The earlier look that is shown instead.
    pub(crate) pinned: Option<Arc<Shot>>,
    history: History,
    log: Log,
    pub(crate) ended: Ended,
    /// Whether the job was launched from here; then leaving opens a question.
    launched: bool,
    /// The communicator that the user chose.
    pub(crate) comm: Option<CommId>,
    /// The communicators to which the screens are narrowed.
    pub(crate) only: Option<Only>,
    pub(crate) filter: Filter,
    /// A filter that is being typed.
    pub(crate) typing: Option<String>,
    orders: [Order; Screen::ALL.len()],
    chosen: [Chosen; Screen::ALL.len()],
    pub(crate) popup: Option<Popup>,
    /// The number of lines by which the popup is scrolled down.
    pub(crate) scrolled: usize,
    /// The last message; it stays until the next key.
    pub(crate) notice: String,
}

impl App {
    /// The state before the first look.
    pub(crate) fn new(look: Look, size: (u16, u16), launched: bool) -> Self {
        let mut chosen: [Chosen; Screen::ALL.len()] = std::array::from_fn(|_| Chosen::default());
        chosen[Screen::Log as usize].follows = true;
        Self {
            screen: Screen::default(),
            look,
            size,
            stall_ns: u64::MAX,
            now_ns: 0,
            live: Arc::default(),
            pinned: None,
            history: History::default(),
            log: Log::default(),
            ended: Ended::No,
            launched,
            comm: None,
            only: None,
            filter: Filter::default(),
            typing: None,
            orders: Default::default(),
            chosen,
            popup: None,
            scrolled: 0,
            notice: String::new(),
        }
    }

    /// The look that is shown.
    pub(crate) fn shot(&self) -> &Shot {
        self.pinned.as_ref().unwrap_or(&self.live)
    }

    /// The input of the views.
    pub(crate) fn scene(&self) -> Scene<'_> {
        Scene {
            job: &self.shot().snapshot,
            comm: self.comm,
            only: self.only.as_ref().map(|only| &only.comms),
            stall_ns: self.stall_ns,
            histograms: self.shot().histograms.as_deref(),
            rates: &self.shot().rates,
            log: &self.log,
            until_ns: self.pinned.as_ref().map_or(u64::MAX, |shot| shot.taken_ns),
            look: self.look,
        }
    }

    /// The order of the rows of this screen.
    pub(crate) const fn order(&self) -> Order {
        self.orders[self.screen as usize]
    }

    /// The row that is chosen on this screen.
    pub(crate) const fn chosen(&self) -> &Chosen {
        &self.chosen[self.screen as usize]
    }

    /// Takes an input at `now_ns`; gives what the caller is to do.
    pub(crate) fn update(&mut self, input: Input, now_ns: u64) -> Option<Effect> {
        self.now_ns = now_ns;
        let mut effect = None;
        match input {
            Input::Key(key) if key.kind != KeyEventKind::Release => effect = self.press(key),
            Input::Mouse(mouse) => self.mouse(mouse),
            Input::Resize(width, height) => self.size = (width, height),
            Input::Seen(seen) => self.see(*seen),
            Input::Said(lines, origin) => self.log.push_output(&lines, origin, now_ns),
            Input::Over(how) => self.ended = Ended::With(how),
            Input::Key(_) | Input::Tick => {}
        }
        // The job, or the picture of it, may be another one now.
        let shot = self.pinned.as_ref().unwrap_or(&self.live);
        if let Some(only) = &mut self.only {
            only.look(&shot.snapshot);
        }
        effect
    }

    /// The screens that have a tab.
    pub(crate) fn tabs(&self) -> Vec<Screen> {
        let scene = self.scene();
        let is = |screen| self.screen == screen;
        Screen::of_job(
            is(Screen::Communicators) || scene.has_several(),
            is(Screen::QueuePairs) || scene.has_queue_pairs(),
        )
    }

    fn see(&mut self, seen: Seen) {
        self.history.push(&seen.shot);
        self.live = seen.shot;
        seen.events.into_iter().for_each(|entry| self.log.push(entry));
        if !matches!(self.ended, Ended::With(_)) {
            self.ended = if seen.ended { Ended::Gone } else { Ended::No };
        }
    }

    fn press(&mut self, key: KeyEvent) -> Option<Effect> {
        self.notice.clear();
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            // A raw terminal sends no signal for these keys; they mean the same on every screen.
            return match (key.code, &self.popup) {
                (KeyCode::Char('c'), Some(Popup::Leave)) => Some(Effect::Leave(Leave::EndJob)),
                (KeyCode::Char('c'), _) => self.quit(),
                (KeyCode::Char('z'), _) => Some(Effect::Suspend),
                _ => None,
            };
        }
        if let Some(typed) = self.typing.take() {
            self.typing = self.typed(typed, key.code);
            return None;
        }
        if let Some(Popup::Leave) = self.popup {
            self.popup = None;
            return match key.code {
                KeyCode::Char('e') => Some(Effect::Leave(Leave::EndJob)),
                KeyCode::Char('k') => Some(Effect::Leave(Leave::Alone)),
                _ => None,
            };
        }
        let action = keys::action(key.code, self.screen)?;
        if self.popup.is_some() && self.in_popup(action) {
            return None;
        }
        self.act(action)
    }

    /// Adds a key to the filter being typed; `None` if the filter is complete or was given up.
    fn typed(&mut self, mut typed: String, code: KeyCode) -> Option<String> {
        match code {
            KeyCode::Char(c) => typed.push(c),
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Enter => match Filter::parse(&typed) {
                Ok(filter) => {
                    self.filter = filter;
                    return None;
                }
                Err(why) => {
                    self.notice = why;
                    return None;
                }
            },
            KeyCode::Esc => return None,
            _ => {}
        }
        Some(typed)
    }

    /// Applies a key to the open popup; gives whether the key does nothing else.
    fn in_popup(&mut self, action: Action) -> bool {
        let page = usize::from(self.size.1 / 2).max(1);
        // Scrolls no further than the text reaches; a popup of another size scrolls less far.
        let lines = self.popup.as_ref().map_or(0, |popup| popup.lines(&self.look).len());
        let last = lines.saturating_sub(Picture::of(self).map_or(0, |picture| picture.popup_lines()));
        self.scrolled = self.scrolled.min(last);
        match action {
            Action::Down => self.scrolled = self.scrolled.saturating_add(1),
            Action::Up => self.scrolled = self.scrolled.saturating_sub(1),
            Action::PageDown => self.scrolled = self.scrolled.saturating_add(page),
            Action::PageUp => self.scrolled = self.scrolled.saturating_sub(page),
            Action::Top => self.scrolled = 0,
            Action::Bottom => self.scrolled = usize::MAX,
            Action::Copy => return false,
            // Any other key closes it; the key may open another popup in its place.
            Action::Back | Action::Enter | Action::Help => self.popup = None,
            _ => {
                self.popup = None;
                return false;
            }
        }
        self.scrolled = self.scrolled.min(last);
        true
    }

    fn act(&mut self, action: Action) -> Option<Effect> {
        match action {
            Action::Show(screen) if self.tabs().contains(&screen) => self.screen = screen,
            Action::Show(Screen::QueuePairs) => self.notice = "the job has no queue pairs".into(),
            Action::Show(_) => self.notice = "the job has no more than one communicator".into(),
            Action::NextScreen => self.screen = self.screen.beside(1, &self.tabs()),
            Action::PreviousScreen => self.screen = self.screen.beside(self.tabs().len() - 1, &self.tabs()),
            Action::Down => self.step(|at, _| at + 1),
            Action::Up => self.step(|at, _| at.saturating_sub(1)),
            Action::Top => self.step(|_, _| 0),
            Action::Bottom => self.step(|_, _| usize::MAX),
            Action::PageDown => self.step(|at, page| at + page),
            Action::PageUp => self.step(|at, page| at.saturating_sub(page)),
            Action::Enter => self.enter(),
            Action::Back => self.back(),
            Action::Filter => self.typing = Some(String::new()),
            Action::Sort => self.sort(),
            Action::Invert => {
                let order = &mut self.orders[self.screen as usize];
                order.inverted = !order.inverted;
            }
            Action::Freeze => self.pinned = self.pinned.is_none().then(|| self.live.clone()),
            Action::Older => match self.history.before(self.shot().taken_ns) {
                Some(shot) => self.pinned = Some(shot),
                None => self.notice = "this is the oldest picture that is kept".into(),
            },
            Action::Newer => self.newer(),
            Action::Culprit => self.culprit(),
            Action::NextComm => self.next_comm(),
            Action::Copy => return self.copy(),
            Action::Json => self.json(),
            Action::Palette => {
                self.look.palette = self.look.palette.next();
                self.notice = format!("palette: {}", self.look.palette.name());
            }
            Action::Help => self.open(Popup::Help),
            Action::Quit => return self.quit(),
        }
        None
    }

    fn open(&mut self, popup: Popup) {
        self.popup = Some(popup);
        self.scrolled = 0;
    }

    fn quit(&mut self) -> Option<Effect> {
        // The job was launched here and still runs, so the user must say what is to become of it.
        if self.launched && !matches!(self.ended, Ended::With(_)) {
            self.open(Popup::Leave);
            return None;
        }
        Some(Effect::Leave(Leave::Alone))
    }

    /// Chooses the row that `to` computes from the place of the chosen row and the rows per page.
    fn step(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        if let Some(picture) = Picture::of(self) {
            self.choose(&picture, to(picture.chosen, picture.page()));
        }
    }

    fn choose(&mut self, picture: &Picture, at: usize) {
        let last = picture.listing.rows.len().saturating_sub(1);
        let at = at.min(last);
        let key = picture.listing.rows.get(at).map(|row| row.key.clone()).unwrap_or_default();
        let follows = self.screen == Screen::Log && at == last;
        self.chosen[self.screen as usize] = Chosen { key, at, follows };
    }

    fn enter(&mut self) {
        let Some(picture) = Picture::of(self) else { return };
        let Some(row) = picture.listing.rows.get(picture.chosen) else { return };
        match (self.screen, &row.about) {
            (Screen::Overview, About::Comm(at, nth)) => {
                let comms = self.shot().snapshot.ranks.get(*at).map(|rank| rank.comms.as_slice());
                self.comm = comms.and_then(|comms| comms.get(*nth)).map(|comm| comm.id);
                self.screen = Screen::Matrix;
            }
            (Screen::Communicators, About::Communicator(id)) => {
                self.comm = Some(*id);
                self.only = Some(Only::named(id.to_string()));
                self.screen = Screen::Overview;
            }
            _ => {
                if let Some(popup) = Popup::row(&picture.listing, picture.chosen, &self.scene()) {
                    self.open(popup);
                }
            }
        }
    }

    fn back(&mut self) {
        if self.pinned.take().is_some() {
        } else if !self.filter.text().is_empty() {
            self.filter = Filter::default();
        } else if self.only.take().is_some() && self.scene().has_several() {
            // Where the next one can be chosen.
            self.screen = Screen::Communicators;
        } else {
            self.screen = Screen::Overview;
        }
    }

    fn sort(&mut self) {
        let columns = Picture::of(self).map_or(0, |picture| picture.listing.columns.len());
        let order = &mut self.orders[self.screen as usize];
        let next = order.by.map_or(0, |by| by + 1);
        order.by = (next < columns).then_some(next);
    }

    fn newer(&mut self) {
        let Some(pinned) = &self.pinned else {
            self.notice = "this is the newest picture".into();
            return;
        };
        let after = self.history.after(pinned.taken_ns);
        self.pinned = after.filter(|shot| shot.taken_ns < self.live.taken_ns);
    }

    fn culprit(&mut self) {
        if self.shot().snapshot.is_calm() {
            self.notice = "nobody blocks the others".into();
            return;
        }
        // Looks in the culprit's communicator, whatever was shown before, and then on the Overview
        // if this screen has no row of the culprit.
        self.comm = None;
        for screen in [self.screen, Screen::Overview] {
            self.screen = screen;
            if self.choose_blocking() {
                return;
            }
            let filter = std::mem::take(&mut self.filter);
            if self.choose_blocking() {
                self.notice = "the filter hid the culprit and was taken away".into();
                return;
            }
            let only = self.only.take();
            if only.is_some() && self.choose_blocking() {
                self.notice = "the culprit is in another communicator: all are shown again".into();
                return;
            }
            (self.filter, self.only) = (filter, only);
        }
        self.notice = "the rank that blocks the others was not read: see why below".into();
    }

    fn choose_blocking(&mut self) -> bool {
        let Some(picture) = Picture::of(self) else { return false };
        let found = picture.listing.rows.iter().position(|row| row.blocked_on);
        if let Some(at) = found {
            self.choose(&picture, at);
        }
        found.is_some()
    }

    fn next_comm(&mut self) {
        let scene = self.scene();
        let comms = scene.comms();
        let at = scene.focus().and_then(|focus| comms.iter().position(|comm| *comm == focus));
        let next = at.and_then(|at| comms.get((at + 1) % comms.len()).copied());
        if comms.len() < 2 {
            let one = if self.only.is_some() {
                "only this communicator is shown"
            } else {
                "there is no other communicator"
            };
            self.notice = one.into();
        }
        self.comm = next;
    }

    fn copy(&mut self) -> Option<Effect> {
        let text = match &self.popup {
            Some(Popup::Text { lines, .. }) => lines.join("\n"),
            _ => {
                let picture = Picture::of(self)?;
                let row = picture.listing.rows.get(picture.chosen)?;
                let cells = row.cells.iter().map(|cell| super::listing::visible(&cell.text));
                cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
            }
        };
        self.notice = "copied, if the terminal knows OSC 52".into();
        Some(Effect::Copy(text))
    }

    fn json(&mut self) {
        let Some(picture) = Picture::of(self) else { return };
        let about = picture.listing.rows.get(picture.chosen).map(|row| row.about.clone());
        match about.and_then(|about| self.scene().json(&about)) {
            Some(json) => {
                let lines = json.lines().map(str::to_string).collect();
                self.open(Popup::Text { title: "JSON, y copies it".into(), lines });
            }
            None => self.notice = "this row has no JSON".into(),
        }
    }

    fn mouse(&mut self, mouse: MouseEvent) {
        match mouse.kind {
            MouseEventKind::ScrollDown if self.popup.is_some() => _ = self.in_popup(Action::Down),
            MouseEventKind::ScrollUp if self.popup.is_some() => _ = self.in_popup(Action::Up),
            MouseEventKind::ScrollDown => self.step(|at, _| at + WHEEL),
            MouseEventKind::ScrollUp => self.step(|at, _| at.saturating_sub(WHEEL)),
            MouseEventKind::Down(MouseButton::Left) if usize::from(mouse.row) == tabs_line(self) => {
                let column = usize::from(mouse.column);
                let tabs = tab_places(self.size.0.into(), &self.tabs());
                let hit = tabs.into_iter().find(|(_, at, length)| (*at..at + length).contains(&column));
                if let Some((screen, ..)) = hit {
                    self.screen = screen;
                    self.popup = None;
                }
            }
            MouseEventKind::Down(MouseButton::Left) if self.popup.is_none() => {
                if let Some(picture) = Picture::of(self)
                    && let Some(at) = picture.row_at(mouse.row)
                {
                    self.choose(&picture, at);
                }
            }
            _ => {}
        }
    }
}
