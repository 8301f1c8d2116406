//! Composes a screen: header, the lines above the list, the list, the lines below it, the last
//! line, and an open popup over them.

use ccl::diagnose::{call_name, duration, ranks_text};
use ccl::types::Rank;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::popup::Popup;
use super::{above, below, header, joining, listing};
use crate::tui::app::App;
use crate::tui::listing::{Listing, fit};
use crate::tui::palette::Role;

/// Smaller terminals have no useful room.
const WIDTH_MIN: u16 = 40;
const HEIGHT_MIN: u16 = 9;

/// A screen before it is drawn: its text and its layout.
#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) listing: Listing,
    /// The place of the chosen row.
    pub(crate) chosen: usize,
    header: Vec<Line<'static>>,
    above: Vec<Line<'static>>,
    below: Vec<Line<'static>>,
    /// The areas of these three and the list.
    places: [Rect; 4],
}

impl Picture {
    /// The screen of this app; `None` if there is no room for one.
    pub(crate) fn of(app: &App) -> Option<Self> {
        let (width, height) = app.size;
        if width < WIDTH_MIN || height < HEIGHT_MIN {
            return None;
        }
        let scene = app.scene();
        let listing = listing(app.screen, &scene).arranged(&app.filter, app.order());
        let chosen = listing.place_of(app.chosen());
        let header = header::lines(app);
        let above = above(app.screen, &scene, width.into());
        let below = below(app.screen, &scene, listing.rows.get(chosen), width.into());
        let places =
            places((width, height), [header.len(), above.len(), listing.rows.len().max(1) + 1, below.len()]);
        Some(Self { listing, chosen, header, above, below, places })
    }

    /// Rows that are visible at a time.
    pub(crate) fn page(&self) -> usize {
        usize::from(self.places[2].height.saturating_sub(1)).max(1)
    }

    /// Lines that a popup can show.
    pub(crate) fn popup_lines(&self) -> usize {
        self.room().height.saturating_sub(2).into()
    }

    /// The area for a popup: between the header and the last line.
    fn room(&self) -> Rect {
        let [header, .., below] = self.places;
        Rect::new(0, header.height, header.width, below.y + below.height - header.height)
    }

    /// The row on this line of the terminal.
    pub(crate) fn row_at(&self, line: u16) -> Option<usize> {
        let area = self.places[2];
        let nth = usize::from(line.checked_sub(area.y + 1).filter(|nth| nth + 1 < area.height)?);
        let at = self.listing.first_shown(self.chosen, self.page()) + nth;
        (at < self.listing.rows.len()).then_some(at)
    }
}

/// The areas of the header, the lines above, the list and the lines below, for these heights.
///
/// The list keeps half of the space if it wants that much; the last line is kept free.
fn places((width, height): (u16, u16), [header, above, list, below]: [usize; 4]) -> [Rect; 4] {
    let room = usize::from(height) - 1;
    let header = header.min(room);
    let body = room - header;
    let above = above.min(body / 3);
    let list_least = list.min((body - above).div_ceil(2));
    let below = below.min(body - above - list_least);
    let heights = [header, above, body - above - below, below];
    let mut y = 0;
    heights.map(|height| {
        // At most the height of the terminal.
        let height = u16::try_from(height).unwrap_or(0);
        y += height;
        Rect::new(0, y - height, width, height)
    })
}

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &App) {
    let look = &app.look;
    let area = frame.area();
    let Some(picture) = Picture::of(app).filter(|_| (area.width, area.height) == app.size) else {
        return too_small(frame, app);
    };
    let room = picture.room();
    let [header, above, list, below] = picture.places;
    frame.render_widget(Paragraph::new(Text::from(picture.header)), header);
    frame.render_widget(Paragraph::new(Text::from(picture.above)), above);
    frame.render_widget(Paragraph::new(Text::from(picture.below)), below);
    let hidden = if picture.listing.rows.is_empty() {
        let text = fit(&picture.listing.empty, list.width.into(), look.glyphs.more);
        frame.render_widget(Paragraph::new(text).style(look.palette.style(Role::Dim)), list);
        0
    } else {
        let table = picture.listing.widget(list, picture.chosen, app.order(), look);
        frame.render_widget(table, list);
        picture.listing.hidden(list.width.into())
    };
    let last = Rect::new(0, area.height - 1, area.width, 1);
    frame.render_widget(Paragraph::new(header::footer(app, hidden)), last);
    if let Some(popup) = &app.popup {
        open(frame, popup, app, room);
    }
}

/// Draws the open popup, as large as it needs to be within `inside`.
fn open(frame: &mut Frame<'_>, popup: &Popup, app: &App, inside: Rect) {
    let lines = popup.lines(&app.look);
    let wide = lines.iter().map(Line::width).max().unwrap_or(0).max(popup.title().len() + 12) + 4;
    let width = u16::try_from(wide).unwrap_or(u16::MAX).min(inside.width);
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(inside.height);
    let area = Rect::new(inside.x + (inside.width - width) / 2, inside.y, width, height);
    let shown = usize::from(height.saturating_sub(2));
    let first = app.scrolled.min(lines.len().saturating_sub(shown));
    let more = if lines.len() > shown { ", j k scroll" } else { "" };
    let title = format!(" {} (Esc closes{more}) ", popup.title());
    let text: Vec<_> = lines.into_iter().skip(first).take(shown).collect();
    let mut block = Block::bordered().title(title);
    if app.look.glyphs == crate::tui::palette::Glyphs::ASCII {
        block = block.border_set(ASCII_BORDER);
    }
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(text).block(block), area);
}

const ASCII_BORDER: ratatui::symbols::border::Set<'static> = ratatui::symbols::border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// The message for too small a terminal, with what is wrong and the ranks to blame.
fn too_small(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    let mut lines = vec![format!("too small: {}x{}", area.width, area.height)];
    let job = app.scene().job;
    match (job.verdicts.first(), job.not_joined.first(), job.waits().first()) {
        (Some(one), ..) => {
            let ranks: Vec<Rank> = one.culprits.iter().map(|culprit| culprit.rank).collect();
            let who = if ranks.is_empty() { String::new() } else { ranks_text(&ranks) };
            let op = if one.op.is_empty() { String::new() } else { call_name(&one.op, one.seq) };
            lines.extend([one.class.to_string(), who, op, duration(one.since_ns)]);
        }
        (None, Some(one), _) => {
            lines.extend([ranks_text(&one.ranks), joining::word(one).into(), duration(one.since_ns)]);
        }
        (None, None, Some(end)) => {
            lines.extend([ranks_text(&end.ranks), end.op.clone(), duration(end.since_ns)]);
        }
        (None, None, None) => lines.push("nobody waits".into()),
    }
    lines.retain(|line| !line.is_empty());
    let more = app.look.glyphs.more;
    let lines = lines.into_iter().map(|line| Line::from(fit(&line, area.width.into(), more)));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fill_the_screen_and_the_list_keeps_its_half() {
        for height in HEIGHT_MIN..60 {
            for wants in [[3, 0, 5, 0], [4, 2, 100, 30], [3, 40, 2, 40], [3, 5, 2, 1]] {
                let places = places((80, height), wants);
                let mut y = 0;
                for place in places {
                    assert_eq!((place.y, place.width), (y, 80));
                    y += place.height;
                }
                assert_eq!(y, height - 1, "{wants:?}");
                assert!(places[2].height >= 2, "{wants:?} at {height}");
            }
        }
    }
}
