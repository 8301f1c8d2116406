//! Words of a row of `Durations`: the histograms of one kind, taken at its first completion.

/// [`super::RowState`] | kind << 8 | comm row << 16 | generation of the comm row << 32.
///
/// Stored last.
pub const WHAT: usize = 0;
/// One [`super::histogram`] cell per size class.
pub const CELLS: usize = super::LINE;
/// Words of a row.
pub const WORDS: usize = CELLS + super::histogram::CLASSES * super::histogram::CELL;
