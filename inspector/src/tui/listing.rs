//! A table as data: every screen is a list. Filter, order, chosen row and widths work the same on
//! all screens, and are defined here.

use ccl::types::CommId;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row as TableRow, Table};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::filter::Filter;
use super::palette::{Glyphs, Palette, Role};

/// A column of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Column {
    /// Its heading.
    pub(crate) title: String,
    /// The least width to which it may shrink.
    pub(crate) least: usize,
    /// If not all columns fit, the one with the highest number is hidden first; 0 is never hidden.
    pub(crate) goes: u8,
    /// The filter key that is compared with its text; empty if there is none.
    pub(crate) key: &'static str,
}

impl Column {
    /// A column that is never hidden and never shrinks.
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), least: usize::MAX, goes: 0, key: "" }
    }
    /// Lets it shrink to this width.
    pub(crate) fn shrinks(self, least: usize) -> Self {
        Self { least, ..self }
    }
    /// Compares filters of this key with its text.
    pub(crate) fn key(self, key: &'static str) -> Self {
        Self { key, ..self }
    }
    /// Lets it be hidden, before columns with lower numbers.
    pub(crate) fn goes(self, goes: u8) -> Self {
        Self { goes, ..self }
    }
}

/// One cell.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Cell {
    /// The text.
    pub(crate) text: String,
    /// The meaning of the text.
    pub(crate) role: Role,
    /// The value to sort by, if it is not the text.
    pub(crate) by: Option<u64>,
}

impl Cell {
    /// Text without a meaning.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
    /// A number.
    pub(crate) fn number(number: impl Into<u64>) -> Self {
        let number = number.into();
        Self { text: number.to_string(), by: Some(number), ..Self::default() }
    }
    /// Text that is sorted by a number.
    pub(crate) fn sorted(text: impl Into<String>, by: u64) -> Self {
        Self { text: text.into(), by: Some(by), ..Self::default() }
    }
    /// Sets the meaning.
    pub(crate) fn role(self, role: Role) -> Self {
        Self { role, ..self }
    }
}

/// One row: its text, and the item it describes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Row {
    /// Its identity from one snapshot to the next.
    pub(crate) key: String,
    /// One cell per column.
    pub(crate) cells: Vec<Cell>,
    /// Further fields for filters, besides its text.
    pub(crate) fields: Vec<(&'static str, String)>,
    /// The ranks it is about.
    pub(crate) ranks: Vec<u32>,
    /// Whether it describes a rank that blocks others.
    pub(crate) blocked_on: bool,
    /// The item it describes.
    pub(crate) about: About,
}

/// The item that a row describes, by its place in the snapshot.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum About {
    /// An item that has no JSON beyond the row's text.
    #[default]
    Itself,
    /// A rank that was not read.
    Missing(usize),
    /// A rank.
    Rank(usize),
    /// A communicator of a rank.
    Comm(usize, usize),
    /// A link of a communicator of a rank.
    Link(usize, usize, usize),
    /// A communicator, on all its ranks.
    Communicator(CommId),
    /// A line of the log, by its number.
    Line(u64),
    /// A communicator's durations of one kind and size: the row with this number among all of them.
    Durations(usize),
}

/// The order of rows: by a column, or as they come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Order {
    /// The column.
    pub(crate) by: Option<usize>,
    /// Whether the order is reversed.
    pub(crate) inverted: bool,
}

/// A table.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Listing {
    /// Its columns.
    pub(crate) columns: Vec<Column>,
    /// Its rows.
    pub(crate) rows: Vec<Row>,
    /// The text shown if it has no rows.
    pub(crate) empty: String,
}

impl Listing {
    /// The rows that pass the filter, in order.
    pub(crate) fn arranged(mut self, filter: &Filter, order: Order) -> Self {
        let before = self.rows.len();
        self.rows.retain(|row| filter.takes(row, &self.columns));
        if self.rows.is_empty() && before > 0 {
            self.empty = format!("the filter takes none of {before}; / and Enter without a word shows all");
        }
        if let Some(by) = order.by.filter(|by| *by < self.columns.len()) {
            let key = |row: &Row| row.cells.get(by).map(|cell| (cell.by, cell.text.clone()));
            self.rows.sort_by_cached_key(key);
        }
        if order.inverted {
            self.rows.reverse();
        }
        self
    }

    /// The place of the chosen row; if that row is gone, its last place.
    pub(crate) fn place_of(&self, chosen: &Chosen) -> usize {
        if chosen.follows {
            return self.rows.len().saturating_sub(1);
        }
        let found = self.rows.iter().position(|row| row.key == chosen.key);
        found.unwrap_or(chosen.at).min(self.rows.len().saturating_sub(1))
    }

    /// The first visible row, so that the chosen one is visible.
    pub(crate) fn first_shown(&self, chosen: usize, height: usize) -> usize {
        let last = self.rows.len().saturating_sub(height);
        chosen.saturating_sub(height / 2).min(last)
    }

    /// The table as a widget for this area, whose first line is the heading.
    pub(crate) fn widget(&self, area: Rect, chosen: usize, order: Order, look: &Look) -> Table<'static> {
        let widths = self.widths(area.width.into());
        let height = usize::from(area.height.saturating_sub(1));
        let first = self.first_shown(chosen, height);
        let line = |text: &str, width: usize, style| {
            Line::from(Span::styled(fit(text, width, look.glyphs.more), style))
        };
        let shown = || widths.iter().enumerate().filter_map(|(at, width)| Some((at, (*width)?)));
        let heads = shown().map(|(at, width)| {
            let marked = match order {
                Order { by: Some(by), inverted } if by == at => {
                    format!("{}{}", self.columns[at].title, if inverted { '^' } else { 'v' })
                }
                _ => self.columns[at].title.clone(),
            };
            line(&marked, width, look.palette.style(Role::Head))
        });
        let rows = self.rows.iter().enumerate().skip(first).take(height).map(|(number, row)| {
            let cells = shown().map(|(at, width)| {
                let cell = row.cells.get(at).cloned().unwrap_or_default();
                line(&cell.text, width, look.palette.style(cell.role))
            });
            let style =
                if number == chosen { look.palette.chosen() } else { look.palette.style(Role::Plain) };
            TableRow::new(cells.collect::<Vec<_>>()).style(style)
        });
        let lengths = shown().map(|(_, width)| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
        Table::new(rows.collect::<Vec<_>>(), lengths.collect::<Vec<_>>())
            .header(TableRow::new(heads.collect::<Vec<_>>()))
            .column_spacing(1)
    }

    /// The number of columns that are hidden in this width.
    pub(crate) fn hidden(&self, room: usize) -> usize {
        self.widths(room).iter().filter(|width| width.is_none()).count()
    }

    /// The width of each column if `room` columns are available; `None` if it is hidden.
    fn widths(&self, room: usize) -> Vec<Option<usize>> {
        let natural = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(at)).map(|cell| cell.text.width());
            // One more for the mark of the order.
            cells.chain([self.columns[at].title.width() + 1]).max().unwrap_or(0)
        };
        let natural: Vec<usize> = (0..self.columns.len()).map(natural).collect();
        let mut shown: Vec<bool> = vec![true; natural.len()];
        loop {
            let mut widths: Vec<Option<usize>> =
                natural.iter().zip(&shown).map(|(width, shown)| shown.then_some(*width)).collect();
            while over(&widths, room) > 0 {
                // The widest of the columns that may shrink loses one cell of width.
                let may = |at: &usize| widths[*at].is_some_and(|width| width > self.columns[*at].least);
                let Some(widest) = (0..widths.len()).filter(may).max_by_key(|at| widths[*at]) else { break };
                widths[widest] = widths[widest].map(|width| width - 1);
            }
            if over(&widths, room) == 0 {
                return widths;
            }
            let goes = |at: &usize| shown[*at] && self.columns[*at].goes > 0;
            match (0..shown.len()).filter(goes).max_by_key(|at| self.columns[*at].goes) {
                Some(at) => shown[at] = false,
                None => return widths,
            }
        }
    }
}

/// How many cells too wide these columns are, with one space between them.
fn over(widths: &[Option<usize>], room: usize) -> usize {
    let shown = widths.iter().flatten();
    (shown.clone().sum::<usize>() + shown.count().saturating_sub(1)).saturating_sub(room)
}

/// Which row is chosen: its key, and its last place.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Chosen {
    /// Its key.
    pub(crate) key: String,
    /// Its place.
    pub(crate) at: usize,
    /// Whether the last row is chosen, whichever that is.
    pub(crate) follows: bool,
}

/// Colours and glyphs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    /// The colours.
    pub(crate) palette: Palette,
    /// The glyphs.
    pub(crate) glyphs: Glyphs,
}

/// Text fitted to this width: longer text is cut, and each invisible character becomes `?`.
pub(crate) fn fit(text: &str, width: usize, more: char) -> String {
    let mut out = String::new();
    let mut used = 0;
    let clean = visible(text);
    let mut clean = clean.chars().peekable();
    while let Some(c) = clean.next() {
        let wide = c.width().unwrap_or(0);
        let is_last = clean.peek().is_none();
        if used + wide > width || (!is_last && used + wide == width) {
            if used < width {
                out.push(more);
            }
            return out;
        }
        out.push(c);
        used += wide;
    }
    out
}

/// Text without control characters, which the terminal would obey.
pub(crate) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            // Colours that a program has set: ESC [ parameters letter.
            '\u{1b}' if rest.peek() == Some(&'[') => {
                rest.next();
                while rest.next_if(|c| !('@'..='~').contains(c)).is_some() {}
                rest.next();
            }
            '\t' => out.push(' '),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(rows: &[(&str, u64)]) -> Listing {
        let row = |(name, number): &(&str, u64)| Row {
            key: (*name).to_string(),
            cells: vec![Cell::text(*name), Cell::number(*number)],
            ..Row::default()
        };
        Listing {
            columns: vec![Column::new("name").shrinks(4).goes(1), Column::new("number")],
            rows: rows.iter().map(row).collect(),
            empty: "nothing".into(),
        }
    }

    fn names(listing: &Listing) -> Vec<&str> {
        listing.rows.iter().map(|row| row.key.as_str()).collect()
    }

    #[test]
    fn rows_are_sorted_by_number_where_there_is_one() {
        let all = || listing(&[("b", 9), ("a", 10), ("c", 2)]);
        let arranged = |by, inverted| {
            let listing = all().arranged(&Filter::default(), Order { by, inverted });
            names(&listing).join("")
        };
        assert_eq!(arranged(None, false), "bac");
        assert_eq!(arranged(None, true), "cab");
        assert_eq!(arranged(Some(0), false), "abc");
        assert_eq!(arranged(Some(1), false), "cba");
        assert_eq!(arranged(Some(1), true), "abc");
        assert_eq!(arranged(Some(7), false), "bac");
        let none = all().arranged(&Filter::parse("zebra").unwrap(), Order::default());
        assert!(none.rows.is_empty() && none.empty.starts_with("the filter takes none of 3"));
    }

    #[test]
    fn a_choice_follows_its_row_and_else_its_place() {
        let all = listing(&[("a", 1), ("b", 2), ("c", 3)]);
        let place = |key: &str, at| all.place_of(&Chosen { key: key.into(), at, follows: false });
        assert_eq!([place("c", 0), place("gone", 1), place("gone", 9)], [2, 1, 2]);
        assert_eq!(all.place_of(&Chosen { follows: true, ..Chosen::default() }), 2);
        assert_eq!(listing(&[]).place_of(&Chosen::default()), 0);
    }

    #[test]
    fn the_chosen_row_is_always_shown() {
        for rows in 0..30_usize {
            let all = listing(&vec![("x", 0); rows]);
            for height in 1..12_usize {
                for chosen in 0..rows {
                    let first = all.first_shown(chosen, height);
                    assert!(first <= chosen && chosen < first + height, "{rows} {height} {chosen}");
                    assert!(first + height.min(rows) <= rows, "no empty lines below");
                }
            }
        }
    }

    #[test]
    fn columns_shrink_before_they_go() {
        let all = listing(&[("a long name", 1)]);
        assert_eq!(all.widths(30), [Some(11), Some(7)]);
        assert_eq!(all.widths(15), [Some(7), Some(7)]);
        assert_eq!(all.widths(12), [Some(4), Some(7)]);
        assert_eq!(all.widths(11), [None, Some(7)]);
        assert_eq!(all.widths(2), [None, Some(7)]);
    }

    #[test]
    fn text_is_cut_by_columns_and_commands_are_not_obeyed() {
        let check = |text: &str, width, expect: &str| assert_eq!(fit(text, width, '$'), expect, "{text:?}");
        check("abc", 3, "abc");
        check("abcd", 3, "ab$");
        check("abc", 0, "");
        check("語語語", 4, "語$");
        check("a\u{1b}[31mred\u{1b}[0m", 9, "ared");
        check("a\u{1b}]0;title\u{7}b\n", 20, "a?]0;title?b?");
    }
}
