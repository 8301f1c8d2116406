//! The only table of keys: what each does, and on which screens. The help screen is made from it,
//! and so is a test that presses every key.

use crossterm::event::KeyCode;

use super::views::Screen;

/// What a key does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Show this screen.
    Show(Screen),
    /// The screen to the right.
    NextScreen,
    /// The screen to the left.
    PreviousScreen,
    /// The next row.
    Down,
    /// The previous row.
    Up,
    /// The first row.
    Top,
    /// The last row.
    Bottom,
    /// Down by one page.
    PageDown,
    /// Up by one page.
    PageUp,
    /// Open the row.
    Enter,
    /// Go back.
    Back,
    /// Type a filter.
    Filter,
    /// Sort by the next column.
    Sort,
    /// Reverse the order.
    Invert,
    /// Freeze the picture, or let it go on.
    Freeze,
    /// Show the picture before.
    Older,
    /// Show the picture after.
    Newer,
    /// Go to the rank that blocks others.
    Culprit,
    /// Show the next communicator.
    NextComm,
    /// Copy the row to the clipboard.
    Copy,
    /// Show the row as JSON.
    Json,
    /// Change the colours.
    Palette,
    /// Show this table.
    Help,
    /// Leave.
    Quit,
}

/// A line of the table.
#[derive(Debug)]
pub(crate) struct Key {
    /// The keys.
    pub(crate) codes: &'static [KeyCode],
    /// Their names as printed on keyboards.
    pub(crate) shown: &'static str,
    /// What they do, in words.
    pub(crate) what: &'static str,
    /// The screens on which they do it.
    pub(crate) on: &'static [Screen],
    /// The action.
    pub(crate) action: Action,
}

use KeyCode::Char;

const ALL: &[Screen] = Screen::ALL;
/// Screens about one communicator.
const OF_A_COMM: &[Screen] = &[Screen::Matrix, Screen::Rings];

const fn key(
    codes: &'static [KeyCode],
    shown: &'static str,
    what: &'static str,
    on: &'static [Screen],
    action: Action,
) -> Key {
    Key { codes, shown, what, on, action }
}

/// The table.
pub(crate) const KEYS: &[Key] = &[
    key(&[Char('1')], "1", "Overview: every rank, and why it stands", ALL, Action::Show(Screen::Overview)),
    key(
        &[Char('2')],
        "2",
        "Matrix: an operation by rank, channel and step",
        ALL,
        Action::Show(Screen::Matrix),
    ),
    key(&[Char('3')], "3", "Rings: the way of its messages, drawn", ALL, Action::Show(Screen::Rings)),
    key(
        &[Char('4')],
        "4",
        "Links: what carries them, why, and counters",
        ALL,
        Action::Show(Screen::Connections),
    ),
    key(&[Char('5')], "5", "Init: how long each phase of init took", ALL, Action::Show(Screen::Bootstrap)),
    key(&[Char('6')], "6", "Latency: percentiles by kind and size", ALL, Action::Show(Screen::Latency)),
    key(&[Char('7')], "7", "Log: events, and what the ranks print", ALL, Action::Show(Screen::Log)),
    key(
        &[Char('8')],
        "8",
        "Comms: the communicators of the job, in a line each",
        ALL,
        Action::Show(Screen::Communicators),
    ),
    key(
        &[Char('9')],
        "9",
        "QPs: the queue pairs of InfiniBand and RoCE",
        ALL,
        Action::Show(Screen::QueuePairs),
    ),
    key(&[KeyCode::Tab], "Tab", "next screen", ALL, Action::NextScreen),
    key(&[KeyCode::BackTab], "Shift-Tab", "previous screen", ALL, Action::PreviousScreen),
    key(&[Char('j'), KeyCode::Down], "j Down", "next row", ALL, Action::Down),
    key(&[Char('k'), KeyCode::Up], "k Up", "previous row", ALL, Action::Up),
    key(&[Char('g'), KeyCode::Home], "g Home", "first row", ALL, Action::Top),
    key(&[Char('G'), KeyCode::End], "G End", "last row; of the log: follow it", ALL, Action::Bottom),
    key(&[KeyCode::PageDown], "PgDn", "further down", ALL, Action::PageDown),
    key(&[KeyCode::PageUp], "PgUp", "further up", ALL, Action::PageUp),
    key(
        &[KeyCode::Enter],
        "Enter",
        "into the row: its matrix, only that communicator, or all it says",
        ALL,
        Action::Enter,
    ),
    key(
        &[KeyCode::Esc, KeyCode::Backspace],
        "Esc",
        "out again; ends a freeze, then a filter, then shows all again",
        ALL,
        Action::Back,
    ),
    key(&[Char('c')], "c", "jump to the culprit: who blocks the others", ALL, Action::Culprit),
    key(&[Char('n')], "n", "next communicator", OF_A_COMM, Action::NextComm),
    key(&[Char('/')], "/", "filter: words, state= rank= host= comm= op=", ALL, Action::Filter),
    key(&[Char('s')], "s", "sort by the next column", ALL, Action::Sort),
    key(&[Char('S')], "S", "invert the order", ALL, Action::Invert),
    key(&[Char(' ')], "Space", "freeze the picture; data goes on", ALL, Action::Freeze),
    key(&[Char('[')], "[", "step back through the last minutes", ALL, Action::Older),
    key(&[Char(']')], "]", "step forward", ALL, Action::Newer),
    key(&[Char('y')], "y", "copy the row (OSC 52)", ALL, Action::Copy),
    key(&[Char('J')], "J", "the row as JSON", ALL, Action::Json),
    key(&[Char('p')], "p", "palette: default, colour-blind safe, mono", ALL, Action::Palette),
    key(&[Char('?')], "?", "this help", ALL, Action::Help),
    key(&[Char('q')], "q", "quit; the job goes on", ALL, Action::Quit),
];

/// The action of a key on this screen.
pub(crate) fn action(pressed: KeyCode, screen: Screen) -> Option<Action> {
    let mut keys = KEYS.iter().filter(|key| key.on.contains(&screen));
    keys.find(|key| key.codes.contains(&pressed)).map(|key| key.action)
}
