//! Numbers as people read and write them; and words of others.

use std::time::Duration;

use ccl::text::harmless;

/// The most of a foreign text that is repeated in a sentence.
const LINE_BYTES: usize = 16 << 10;

/// What others have written, as a part of a line: names of files, reasons, whatever is not ours.
pub(crate) fn line(text: &str) -> String {
    harmless(text, LINE_BYTES).into_owned()
}

/// The name of a file, whoever has given it.
pub(crate) fn path(path: &std::path::Path) -> String {
    line(&path.to_string_lossy())
}

/// A moment, given in nanoseconds since 1970, as `2026-11-21 18:52:46 UTC`.
pub(crate) fn utc(real_ns: u64) -> String {
    let seconds = real_ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // The calendar repeats every 400 years, which begin on a first of March: then a leap day is the last of its year.
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

/// A time as people type it: `2s`, `500ms`, `1m`, `1h`, or a number of seconds; up to a day.
///
/// # Errors
/// What it takes.
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
    // There are no parts of a byte.
    if unit == 0 { format!("{rest:.0} B") } else { format!("{} {}", digits(rest), units[unit]) }
}

/// A number with about three digits.
pub(crate) fn digits(number: f64) -> String {
    if number == 0.0 || number >= 100.0 { format!("{number:.0}") } else { format!("{number:.1}") }
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
