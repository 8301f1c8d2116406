//! The sizes to measure: from `-b` to `-e`, by a factor or an increment.

/// How one size follows from the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// So many bytes more.
    Increment(u64),
    /// So many times as many.
    Factor(u64),
}

/// Reads a number of bytes: `8`, `64K`, `128M`, `2G`.
///
/// # Errors
/// The text is something else, or too large.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a number of bytes: write 8, 64K, 128M or 2G");
    let shift = match text.chars().last().map(|unit| unit.to_ascii_uppercase()) {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes <= i64::MAX as u64).ok_or_else(wrong)
}

/// The sizes from `least` to `most`.
pub fn sizes(least: u64, most: u64, step: Step) -> impl Iterator<Item = u64> {
    let next = move |size: &u64| match step {
        Step::Increment(more) => size.checked_add(more),
        Step::Factor(times) => size.checked_mul(times),
    };
    std::iter::successors(Some(least), next).take_while(move |size| *size <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (text, expect) in [("0", 0), ("8", 8), ("64K", 64 << 10), ("128m", 128 << 20), ("2G", 2 << 30)] {
            assert_eq!(bytes(text), Ok(expect));
        }
        for bad in
            ["", "K", "-1", "+1", "1.5M", "8B", "1T", "8 K", "99999999999999999999", "9999999999G", "1é"]
        {
            let error = bytes(bad).unwrap_err();
            assert!(error.starts_with(&format!("`{bad}` is not a number of bytes")), "{error}");
        }
    }

    #[test]
    fn sizes_end_at_the_largest_that_is_not_above_the_end() {
        let check = |least, most, step, expect: &[u64]| {
            assert_eq!(sizes(least, most, step).collect::<Vec<_>>(), expect);
        };
        check(8, 64, Step::Factor(2), &[8, 16, 32, 64]);
        check(1, 100, Step::Factor(7), &[1, 7, 49]);
        check(5, 5, Step::Factor(3), &[5]);
        check(0, 25, Step::Increment(10), &[0, 10, 20]);
        check(9, 8, Step::Increment(1), &[]);
        check(u64::MAX / 2, u64::MAX - 1, Step::Factor(4), &[u64::MAX / 2]);
        check(u64::MAX - 1, u64::MAX, Step::Increment(5), &[u64::MAX - 1]);
    }
}
