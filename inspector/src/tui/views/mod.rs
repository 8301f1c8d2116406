//! The screens, one file each: the list, and the lines above and below it. Pure functions of their
//! input; no I/O, no clock.

pub(crate) mod bootstrap;
pub(crate) mod communicators;
pub(crate) mod connections;
pub(crate) mod draw;
pub(crate) mod header;
pub(crate) mod help;
pub(crate) mod joining;
pub(crate) mod latency;
pub(crate) mod log;
pub(crate) mod matrix;
pub(crate) mod overview;
pub(crate) mod popup;
pub(crate) mod queue_pairs;
pub(crate) mod rings;

use ratatui::text::Line;
use unicode_width::UnicodeWidthStr;

use super::listing::{Listing, Row};
use super::scene::Scene;

/// A screen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) enum Screen {
    /// All ranks.
    #[default]
    Overview,
    /// An operation by rank, channel and step.
    Matrix,
    /// The route of its messages.
    Rings,
    /// Links.
    Connections,
    /// The phases of init.
    Bootstrap,
    /// Percentiles of durations.
    Latency,
    /// Events and output.
    Log,
    /// The communicators of a job that has several.
    Communicators,
    /// The queue pairs of a job that has some.
    QueuePairs,
}

impl Screen {
    /// All of them, from left to right.
    pub(crate) const ALL: &'static [Self] = &[
        Self::Overview,
        Self::Matrix,
        Self::Rings,
        Self::Connections,
        Self::Bootstrap,
        Self::Latency,
        Self::Log,
        Self::Communicators,
        Self::QueuePairs,
    ];

    /// The name on its tab.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Matrix => "Matrix",
            Self::Rings => "Rings",
            Self::Connections => "Links",
            Self::Bootstrap => "Init",
            Self::Latency => "Latency",
            Self::Log => "Log",
            Self::Communicators => "Comms",
            Self::QueuePairs => "QPs",
        }
    }

    /// Its number, which is its key.
    pub(crate) const fn number(self) -> usize {
        self as usize + 1
    }

    /// The screens of a job: nobody needs a list of one communicator, or of no queue pair.
    pub(crate) fn of_job(has_several: bool, has_queue_pairs: bool) -> Vec<Self> {
        let has = |screen: &Self| match screen {
            Self::Communicators => has_several,
            Self::QueuePairs => has_queue_pairs,
            _ => true,
        };
        Self::ALL.iter().copied().filter(has).collect()
    }

    /// The screen this many tabs of these to the right, wrapping around.
    pub(crate) fn beside(self, steps: usize, tabs: &[Self]) -> Self {
        let at = tabs.iter().position(|tab| *tab == self).unwrap_or(0);
        tabs[(at + steps) % tabs.len()]
    }
}

/// The list of a screen.
pub(crate) fn listing(screen: Screen, scene: &Scene<'_>) -> Listing {
    match screen {
        Screen::Overview => overview::listing(scene),
        Screen::Matrix => matrix::listing(scene),
        Screen::Rings => rings::listing(scene),
        Screen::Connections => connections::listing(scene),
        Screen::Bootstrap => bootstrap::listing(scene),
        Screen::Latency => latency::listing(scene),
        Screen::Log => log::listing(scene),
        Screen::Communicators => communicators::listing(scene),
        Screen::QueuePairs => queue_pairs::listing(scene),
    }
}

/// The lines above the list, in this width.
pub(crate) fn above(screen: Screen, scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    match screen {
        Screen::Overview => overview::above(scene, width),
        Screen::Connections | Screen::Latency | Screen::QueuePairs => Vec::new(),
        Screen::Matrix => matrix::above(scene, width),
        Screen::Rings => rings::above(scene, width),
        Screen::Bootstrap => bootstrap::above(scene, width),
        Screen::Log => log::above(scene, width),
        Screen::Communicators => communicators::above(scene, width),
    }
}

/// The lines below the list, about the chosen row.
pub(crate) fn below(
    screen: Screen,
    scene: &Scene<'_>,
    chosen: Option<&Row>,
    width: usize,
) -> Vec<Line<'static>> {
    match screen {
        Screen::Overview => overview::below(scene, width),
        Screen::Communicators => overview::below(&Scene { only: None, ..*scene }, width),
        Screen::Latency => latency::below(scene, chosen, width),
        Screen::Matrix
        | Screen::Rings
        | Screen::Connections
        | Screen::Bootstrap
        | Screen::Log
        | Screen::QueuePairs => Vec::new(),
    }
}

/// The text wrapped to this width; lines after the first are indented.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let line = lines.last_mut().map_or("", |line| line.as_str());
        if line.width() + word.trim_end().width() > width && !line.trim().is_empty() {
            lines.push("    ".into());
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(word);
        }
    }
    lines
}
