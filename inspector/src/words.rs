//! Numbers in the form that people read and write, and text that comes from others.

use std::time::Duration;

use ccl::diagnose::ranks_text;
use ccl::text::harmless;
pub(crate) use ccl::text::utc;
use ccl::types::Rank;

/// The most bytes of a foreign text that are repeated in a sentence.
const LINE_BYTES: usize = 16 << 10;

/// Foreign text (file names, reasons) as a part of a line.
pub(crate) fn line(text: &str) -> String {
    harmless(text, LINE_BYTES).into_owned()
}

/// The name of a file, which may come from another program.
pub(crate) fn path(path: &std::path::Path) -> String {
    line(&path.to_string_lossy())
}

/// A time as people type it: `2s`, `500ms`, `1m`, `1h`, or a number of seconds; up to a day.
///
/// # Errors
/// A sentence on the accepted forms.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let takes = || "it takes a number with ms, s, m or h behind it, up to 24h".to_string();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = text[..text.len() - unit.len()].parse::<f64>().map_err(|_| takes())?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "s" | "" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(takes()),
    };
    if seconds > 0.0 && seconds <= 86_400.0 { Ok(Duration::from_secs_f64(seconds)) } else { Err(takes()) }
}

/// Bytes with three digits and a unit.
pub(crate) fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut rest, mut unit) = (bytes, 0);
    while rest >= 1000.0 && unit + 1 < units.len() {
        rest /= 1024.0;
        unit += 1;
    }
    // There are no fractions of a byte.
    if unit == 0 { format!("{rest:.0} B") } else { format!("{} {}", digits(rest), units[unit]) }
}

/// A number with about three digits.
pub(crate) fn digits(number: f64) -> String {
    if number == 0.0 || number >= 100.0 { format!("{number:.0}") } else { format!("{number:.1}") }
}

/// A list of ranks without the word: `0-2,5`.
pub(crate) fn ranks(ranks: &[Rank]) -> String {
    let text = ranks_text(ranks);
    text.split_once(' ').map_or_else(String::new, |(_, numbers)| numbers.to_string())
}

/// The user of a file: `user 1000`, or one that is not known here.
pub(crate) fn user(owner: Option<u32>) -> String {
    owner.map_or_else(|| "another user".into(), |owner| format!("user {owner}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(time(text).ok(), expect.map(Duration::from_millis), "{text}");
        };
        check("10s", Some(10_000));
        check("10", Some(10_000));
        check("0.5s", Some(500));
        check("250ms", Some(250));
        check("2m", Some(120_000));
        for nonsense in ["", "s", "10x", "-1s", "1e3s", "..s", "0", "25h"] {
            check(nonsense, None);
        }
    }

    #[test]
    fn moments_are_days_and_hours() {
        let at = |seconds: u64| utc(seconds * 1_000_000_000);
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(at(1_795_287_166), "2026-11-21 18:52:46 UTC");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00 UTC");
        assert!(utc(u64::MAX).starts_with("2554-07-21 "));
    }

    #[test]
    fn bytes_have_three_digits_and_a_unit() {
        let said = [0.0, 7.0, 640.0, 1536.0, 2.5e6, 3.0 * 1073741824.0, 5e15].map(bytes);
        assert_eq!(said, ["0 B", "7 B", "640 B", "1.5 KiB", "2.4 MiB", "3.0 GiB", "4.4 PiB"]);
        assert_eq!([999.0, 1000.0, u64::MAX as f64].map(bytes), ["999 B", "1.0 KiB", "16.0 EiB"]);
    }
}
