//! Colours and glyphs. Every meaning of a colour is also shown by a glyph and a word.

use ratatui::style::{Color, Modifier, Style};

/// The meaning of something on the screen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Role {
    /// No particular meaning.
    #[default]
    Plain,
    /// Less important.
    Dim,
    /// In order.
    Good,
    /// It waits for another rank.
    Waits,
    /// A culprit or a failure.
    Bad,
    /// A heading.
    Head,
}

/// A set of colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Palette {
    /// Green, yellow and red.
    Default,
    /// Blue and orange, which every eye tells apart.
    ColourBlind,
    /// No colours: bold, underlined and reversed.
    Mono,
}

impl Palette {
    /// The palette to begin with: NO_COLOR asks for none.
    pub(crate) fn of_environment() -> Self {
        let none = ccl::config::environment("NO_COLOR").is_some_and(|value| !value.is_empty());
        if none { Self::Mono } else { Self::Default }
    }

    /// The next palette.
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Default => Self::ColourBlind,
            Self::ColourBlind => Self::Mono,
            Self::Mono => Self::Default,
        }
    }

    /// The name shown to users.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::ColourBlind => "colour-blind safe",
            Self::Mono => "mono",
        }
    }

    /// The style of something with this meaning.
    pub(crate) const fn style(self, role: Role) -> Style {
        let style = Style::new();
        let bold = style.add_modifier(Modifier::BOLD);
        match (self, role) {
            (_, Role::Plain) => style,
            (_, Role::Head) => bold,
            (Self::Mono, Role::Dim) => style.add_modifier(Modifier::DIM),
            (Self::Mono, Role::Good) => style,
            (Self::Mono, Role::Waits) => style.add_modifier(Modifier::UNDERLINED),
            (Self::Mono, Role::Bad) => bold.add_modifier(Modifier::UNDERLINED),
            (_, Role::Dim) => style.fg(Color::DarkGray),
            (Self::Default, Role::Good) => style.fg(Color::Green),
            (Self::Default, Role::Waits) => style.fg(Color::Yellow),
            (Self::Default, Role::Bad) => bold.fg(Color::Red),
            (Self::ColourBlind, Role::Good) => style.fg(Color::Rgb(86, 180, 233)),
            (Self::ColourBlind, Role::Waits) => style.fg(Color::Rgb(240, 228, 66)),
            (Self::ColourBlind, Role::Bad) => bold.fg(Color::Rgb(230, 159, 0)),
        }
    }

    /// The style of the chosen row or tab.
    pub(crate) const fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// The symbols drawn where a word would be too long. Each is one column wide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Glyphs {
    /// A process that runs.
    pub(crate) running: char,
    /// A stopped process.
    pub(crate) stopped: char,
    /// A dead process.
    pub(crate) dead: char,
    /// A process that left in good order.
    pub(crate) exited: char,
    /// A rank that blocks others.
    pub(crate) blocked_on: char,
    /// A rank that waits.
    pub(crate) waits: char,
    /// A rank without work here.
    pub(crate) idle: char,
    /// Text is cut at the edge.
    pub(crate) more: char,
    /// A line.
    pub(crate) line: char,
    /// The head of an arrow to the right.
    pub(crate) right: char,
    /// The head of an arrow to the left.
    pub(crate) left: char,
    /// The border between hosts.
    pub(crate) border: char,
    /// The bar, from empty to full.
    pub(crate) bars: [char; 9],
}

impl Glyphs {
    /// For terminals that show Unicode.
    pub(crate) const UNICODE: Self = Self {
        running: '▸',
        stopped: '‖',
        dead: '✗',
        exited: '✓',
        blocked_on: '✱',
        waits: '◦',
        idle: '·',
        more: '…',
        line: '─',
        right: '▸',
        left: '◂',
        border: '│',
        bars: [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
    };
    /// For all other terminals.
    pub(crate) const ASCII: Self = Self {
        running: '>',
        stopped: '=',
        dead: 'x',
        exited: '+',
        blocked_on: '*',
        waits: '~',
        idle: '.',
        more: '$',
        line: '-',
        right: '>',
        left: '<',
        border: '|',
        bars: [' ', '.', '.', ':', ':', '+', '+', '#', '#'],
    };

    /// The glyphs that the locale of this process can show.
    ///
    /// The first of LC_ALL, LC_CTYPE and LANG that is set decides.
    pub(crate) fn of_environment() -> Self {
        Self::of_locale(&|name| ccl::config::environment(name))
    }

    fn of_locale(environment: &dyn Fn(&str) -> Option<String>) -> Self {
        let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(environment);
        let locale = set.filter(|value| !value.is_empty()).map(|value| value.to_lowercase()).next();
        match locale {
            Some(locale) if locale.contains("utf-8") || locale.contains("utf8") => Self::UNICODE,
            _ => Self::ASCII,
        }
    }

    /// The bar for `part` of `whole`.
    pub(crate) fn bar(&self, part: u64, whole: u64) -> char {
        let at = if whole == 0 { 0 } else { u128::from(part) * 8 / u128::from(whole) };
        // Any part above zero is visible.
        let at = usize::try_from(at).unwrap_or(8).clamp(usize::from(part > 0), 8);
        self.bars[at]
    }
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthChar;

    use super::*;

    #[test]
    fn every_glyph_is_one_column_wide() {
        for g in [Glyphs::UNICODE, Glyphs::ASCII] {
            let all = [
                g.running,
                g.stopped,
                g.dead,
                g.exited,
                g.blocked_on,
                g.waits,
                g.idle,
                g.more,
                g.line,
                g.right,
                g.left,
                g.border,
            ];
            for glyph in all.into_iter().chain(g.bars) {
                assert_eq!(glyph.width(), Some(1), "{glyph}");
            }
        }
        let ascii = format!("{:?}", Glyphs::ASCII);
        assert!(ascii.is_ascii());
    }

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let check = |set: &[(&str, &str)], expect: Glyphs| {
            let look =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_string());
            assert_eq!(Glyphs::of_locale(&look), expect, "{set:?}");
        };
        check(&[], Glyphs::ASCII);
        check(&[("LANG", "en_GB.UTF-8")], Glyphs::UNICODE);
        check(&[("LANG", "en_GB.UTF-8"), ("LC_ALL", "C")], Glyphs::ASCII);
        check(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")], Glyphs::UNICODE);
    }

    #[test]
    fn a_little_is_seen_and_all_is_full() {
        let bar = |part, whole| Glyphs::UNICODE.bar(part, whole);
        assert_eq!([bar(0, 9), bar(1, 1000), bar(5, 10), bar(9, 9), bar(0, 0)], [' ', '▁', '▄', '█', ' ']);
    }

    #[test]
    fn without_colours_no_style_has_one() {
        for role in [Role::Plain, Role::Dim, Role::Good, Role::Waits, Role::Bad, Role::Head] {
            assert_eq!(Palette::Mono.style(role).fg, None);
        }
        assert_ne!(Palette::Mono.style(Role::Bad), Palette::Mono.style(Role::Waits));
    }
}
