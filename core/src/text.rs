//! Makes text from elsewhere (the network, a file, another process) safe to print.
//!
//! A terminal obeys control characters. A log takes a new line for a new message. A bidirectional
//! override makes text appear in another order than it was written. So foreign text is escaped
//! where it is decoded, before it becomes part of an error, and again where a message is printed.

use std::borrow::Cow;
use std::fmt::Write;

use serde::{Deserialize, Deserializer};

/// The mark at the place where text was cut.
const CUT: &str = "...";

/// Returns `text` on one line, in at most `limit` bytes, safe to print.
///
/// Characters that a terminal obeys, or that change the order or the visibility of the text, are
/// replaced by Rust's escapes (`\n`, `\u{1b}`). Harmless text is returned unchanged.
#[must_use]
pub fn harmless(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit && is_harmless(text) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    // The length to which the text may be cut so that `CUT` still fits after it.
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

/// For serde: decodes a text that a peer sent and escapes its harmful characters.
///
/// # Errors
/// If the value is not a text.
pub fn printable<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(harmless(&String::deserialize(from)?, usize::MAX).into_owned())
}

/// Whether no character of a text is harmful.
#[must_use]
pub fn is_harmless(text: &str) -> bool {
    // Nearly all texts are plain ASCII, which is quick to see.
    text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.contains(is_harmful)
}

/// Whether a character has an effect other than being shown. These are controls (C0, C1, DEL), line
/// and paragraph separators, bidirectional marks, embeddings, overrides and isolates, and
/// characters that are invisible by design (byte order mark, annotations, tags).
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

/// Formats a time, given in nanoseconds since 1970, as `2026-11-21 18:52:46 UTC`.
#[must_use]
pub fn utc(real_ns: u64) -> String {
    let seconds = real_ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // The calendar repeats every 400 years. Years are taken to begin on the first of March, so that
    // a leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
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
        let verdict: crate::failure::gossip::Decision = serde_json::from_str(said).unwrap();
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
