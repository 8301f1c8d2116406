//! Text that came from elsewhere (the network, a file, another process), made fit to be printed.
//!
//! A terminal obeys control characters, a log takes a new line for a new message, and a bidirectional
//! override shows other words than were written. So text of others is made harmless where it is
//! decoded, before it becomes a part of an error, and once more where a message is printed.

use std::borrow::Cow;
use std::fmt::Write;

use serde::{Deserialize, Deserializer};

/// What stands where text was cut.
const CUT: &str = "...";

/// `text` on one line, in at most `limit` bytes, with nothing in it that a terminal obeys or that
/// changes the order or the visibility of what is read: such characters are written as Rust's
/// escapes (`\n`, `\u{1b}`). What is harmless already comes back as it is.
#[must_use]
pub fn harmless(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit && !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    // Where the text may be cut so that `CUT` still fits behind it.
    let mut room = 0;
    for c in text.chars() {
        if is_harmful(c) {
            write!(out, "{}", c.escape_default()).expect("a String takes all");
        } else {
            out.push(c);
        }
        if out.len() > limit {
            out.truncate(room);
            out.push_str(&CUT[..CUT.len().min(limit)]);
            break;
        }
        if out.len() + CUT.len() <= limit {
            room = out.len();
        }
    }
    Cow::Owned(out)
}

/// For serde: a text that a peer sent, made harmless as it is decoded.
///
/// # Errors
/// If it is no text.
pub fn printable<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(harmless(&String::deserialize(from)?, usize::MAX).into_owned())
}

/// Whether a character does anything but stand where it was written: controls (C0, C1, DEL), line and
/// paragraph separators, bidirectional marks, embeddings, overrides and isolates, and what is
/// invisible by design (byte order mark, annotations, tags).
#[must_use]
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, limit: usize, expect: &str) {
        let seen = harmless(text, limit);
        assert_eq!(seen, expect, "{text:?} in {limit}");
        assert!(seen.len() <= limit && !seen.contains(is_harmful));
        assert_eq!(harmless(&seen, limit), seen, "it stays as it is");
    }

    #[test]
    fn what_steers_a_terminal_or_forges_a_line_is_escaped() {
        check("as it is: é, 漢字, \\n", 100, "as it is: é, 漢字, \\n");
        check("gone\nccl: all is well", 100, "gone\\nccl: all is well");
        check("\u{1b}[2J\u{9b}1m\r\t\0\u{7f}", 100, "\\u{1b}[2J\\u{9b}1m\\r\\t\\u{0}\\u{7f}");
        check("a\u{202e}b\u{2066}c\u{200f}\u{2028}", 100, "a\\u{202e}b\\u{2066}c\\u{200f}\\u{2028}");
        check("\u{feff}\u{e0041}", 100, "\\u{feff}\\u{e0041}");
    }

    #[test]
    fn decoded_news_hold_nothing_that_steers_a_terminal() {
        let said = r#"{"trouble":"Aborted","by":1,"about":1,"text":"enough\nccl: all is well\u001b[2J"}"#;
        let verdict: crate::control::news::Verdict = serde_json::from_str(said).unwrap();
        assert_eq!(verdict.text, "enough\\nccl: all is well\\u{1b}[2J");
    }

    #[test]
    fn what_is_long_is_cut_between_characters() {
        check("abcdef", 6, "abcdef");
        check("abcdefg", 6, "abc...");
        check("ééé", 5, "é...");
        check("ab\n\n\n\n", 6, "ab...");
        check("ab\n\n\n", 8, "ab\\n\\n\\n");
        check("\u{1b}", 5, "...");
        check("abc", 2, "..");
        check("", 0, "");
    }
}
