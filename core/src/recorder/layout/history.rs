//! Words of a row of `History`: when collectives of one communicator were called and ended on one
//! rank. The row is taken at the first completion.
//!
//! Which operations are kept depends on their sequence numbers only, so all ranks keep the same: of
//! each number of trailing zero bits the last four. They reach back to the first operation, and
//! the more recent the time, the more of its operations there are.

/// [`super::RowState`] | comm row << 16 | generation of the comm row << 32.
///
/// Stored last.
pub const WHAT: usize = 0;
/// The sum of the waits of all operations so far, in nanoseconds. From layout 14 on.
pub const WAITED_SO_FAR_NS: usize = 1;
/// The operations, each at its [`place`].
pub const OPS: usize = super::LINE;
/// The number of operations that a row holds.
pub const OPS_COUNT: usize = 64;
/// In an operation: its sequence number; 0: none, or being written.
///
/// Stored first as 0, and last.
pub const SEQ: usize = 0;
/// In an operation: raw time of the call.
pub const CALLED: usize = 1;
/// In an operation: for how long it waited, in nanoseconds, waits below a microsecond left out.
pub const WAITED_NS: usize = 2;
/// In an operation: raw time of its end.
pub const ENDED: usize = 3;
/// Words of an operation.
pub const OP: usize = 4;
/// For each [`place`], what [`WAITED_SO_FAR_NS`] was at the end of its operation. From layout 14
/// on.
pub const SO_FAR: usize = OPS + OPS_COUNT * OP;
/// Words of a row.
pub const WORDS: usize = SO_FAR + OPS_COUNT;

/// The place of an operation among those of its row.
#[inline]
#[must_use]
pub const fn place(seq: u64) -> usize {
    let zeros = seq.trailing_zeros();
    let zeros = if zeros < 15 { zeros } else { 15 };
    zeros as usize * 4 + (seq >> (zeros + 1)) as usize % 4
}
