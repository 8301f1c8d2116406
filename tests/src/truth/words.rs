//! Parts of a text: patterns with holes, ranks, times.

/// The text in the holes `{}` of `pattern`, if `text` matches. A hole takes as little as it can.
#[must_use]
pub fn holes<'a>(pattern: &str, text: &'a str) -> Option<Vec<&'a str>> {
    let mut parts = pattern.split("{}");
    let mut rest = text.strip_prefix(parts.next()?)?;
    let mut found = Vec::new();
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        let at = match parts.peek() {
            None if part.is_empty() => rest.len(),
            None => rest.strip_suffix(part)?.len(),
            Some(_) => rest.find(part)?,
        };
        found.push(&rest[..at]);
        rest = &rest[at + part.len()..];
    }
    rest.is_empty().then_some(found)
}

/// `rank 3`, `ranks 0-2,5`.
#[must_use]
pub fn ranks(text: &str) -> Option<Vec<u32>> {
    let text = text.trim();
    let runs = text.strip_prefix("ranks ").or_else(|| text.strip_prefix("rank "))?;
    let run = |run: &str| -> Option<Vec<u32>> {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        Some((first.parse().ok()?..=last.parse().ok()?).collect())
    };
    Some(runs.split(',').map(run).collect::<Option<Vec<_>>>()?.concat())
}

/// `12.4 s`.
#[must_use]
pub fn duration(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    let number: f64 = number.parse().ok()?;
    let unit = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "h" => 3600e9,
        _ => return None,
    };
    Some((number * unit) as u64)
}

/// `2026-11-21 18:52:46 UTC`, in seconds since 1970.
#[must_use]
pub fn utc(text: &str) -> Option<u64> {
    let parts = holes("{}-{}-{} {}:{}:{} UTC", text.trim())?;
    let numbers: Vec<u64> = parts.iter().map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [year, month, day, hour, minute, second] = numbers[..] else { return None };
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days: u64 = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum();
    let days = days + lengths.iter().take(month as usize - 1).sum::<u64>() + day - 1;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        assert_eq!(holes("a {} of {}", "a b of c d"), Some(vec!["b", "c d"]));
        assert_eq!(holes("a {} of {}!", "a b of c"), None);
        assert_eq!(holes("all", "all"), Some(vec![]));
        assert_eq!(ranks("ranks 0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(ranks("rank 3"), Some(vec![3]));
        assert_eq!(ranks("3"), None);
        assert_eq!(duration("12.4 s"), Some(12_400_000_000));
        assert_eq!(duration("7 ns"), Some(7));
        assert_eq!(duration("long"), None);
        assert_eq!(utc("1970-01-02 00:00:10 UTC"), Some(86_410));
        assert_eq!(utc("2026-11-22 15:21:34 UTC"), Some(1_795_360_894));
    }
}
