//! Popups over a screen: a row in full, a row as JSON, the help, and the question on leaving.

use ratatui::text::Line;

use crate::tui::listing::{About, Listing, Look, visible};
use crate::tui::scene::Scene;

/// The open popup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Popup {
    /// The table of keys.
    Help,
    /// Lines of text.
    Text {
        /// The title.
        title: String,
        /// The lines.
        lines: Vec<String>,
    },
    /// The question what is to become of the job that was launched here.
    Leave,
}

impl Popup {
    /// A row in full: each column, hidden ones included; for a link, every stream too.
    pub(crate) fn row(listing: &Listing, at: usize, scene: &Scene<'_>) -> Option<Self> {
        let row = listing.rows.get(at)?;
        let wide = listing.columns.iter().map(|column| column.title.chars().count()).max().unwrap_or(0);
        let line = |(column, cell): (&crate::tui::listing::Column, &crate::tui::listing::Cell)| {
            format!("{:>wide$}  {}", column.title, visible(&cell.text))
        };
        let mut lines: Vec<String> = listing.columns.iter().zip(&row.cells).map(line).collect();
        if let About::Link(rank, comm, link) = row.about {
            let comm = scene.job.ranks.get(rank).and_then(|rank| rank.comms.get(comm));
            let link = comm.and_then(|comm| comm.links.get(link));
            lines.extend(link.map(super::connections::streams).unwrap_or_default());
        }
        Some(Self::Text { title: "the row in full".into(), lines })
    }

    /// Its title.
    pub(crate) fn title(&self) -> &str {
        match self {
            Self::Help => "keys",
            Self::Text { title, .. } => title,
            Self::Leave => "leave",
        }
    }

    /// Its lines.
    pub(crate) fn lines(&self, look: &Look) -> Vec<Line<'static>> {
        match self {
            Self::Help => super::help::lines(look),
            Self::Text { lines, .. } => lines.iter().map(|line| Line::from(visible(line))).collect(),
            Self::Leave => [
                "The job was started from here and still runs.",
                "",
                "  e    end it: as Ctrl-C would, and does once more",
                "  k    keep it running in the foreground; what it prints is printed",
                "  Esc  stay",
            ]
            .into_iter()
            .map(Line::from)
            .collect(),
        }
    }
}
