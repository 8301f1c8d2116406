//! Words of a row of `Durations`: the histograms of one kind, taken at its first completion.

/// [`super::RowState`] | kind << 8 | comm row << 16 | generation of the comm row << 32.
///
/// Stored last.
pub const WHAT: usize = 0;
/// The sum of the times for which operations waited, in nanoseconds. From layout 9 on.
///
/// Waits below a microsecond are left out.
pub const WAITED_NS: usize = 1;
/// The sum of the times between the end of an operation and the next call, which is of this kind,
/// in nanoseconds. From layout 9 on.
pub const OUTSIDE_NS: usize = 2;
/// One [`super::histogram`] cell per size class.
pub const CELLS: usize = super::LINE;
/// Words of a row.
pub const WORDS: usize = CELLS + super::histogram::CLASSES * super::histogram::CELL;
