//! A histogram: one cell per size class.

/// Before layout 7, the number of kinds of a block, which had a cell per kind and size class.
pub const KINDS: usize = 8;
/// Size classes.
pub const CLASSES: usize = 8;
/// In a cell: the sum of the durations in nanoseconds.
pub const SUM_NS: usize = 0;
/// In a cell: the sum of the bytes.
pub const SUM_BYTES: usize = 1;
/// In a cell: the buckets.
pub const BUCKETS: usize = 2;
/// The number of buckets of a cell.
///
/// Bucket b counts the durations below 2^(8 + b) ns that no bucket before it counts; the last
/// bucket counts all others.
pub const BUCKETS_COUNT: usize = 30;
/// Words of a cell.
pub const CELL: usize = 32;

/// The bucket of a duration.
#[inline]
#[must_use]
pub const fn bucket(ns: u64) -> usize {
    let above = (64 - (ns >> 8).leading_zeros()) as usize;
    if above < BUCKETS_COUNT { above } else { BUCKETS_COUNT - 1 }
}
/// The upper bound of a bucket in nanoseconds, exclusive; `None` for the last.
#[must_use]
pub const fn bound_ns(bucket: usize) -> Option<u64> {
    if bucket + 1 < BUCKETS_COUNT { Some(1 << (8 + bucket)) } else { None }
}
/// The size class: up to 256 B, 4 KiB, 64 KiB, 1 MiB, 16 MiB, 256 MiB, 4 GiB, above.
#[inline]
#[must_use]
pub const fn class(bytes: u64) -> usize {
    let bits = 64 - bytes.saturating_sub(1).leading_zeros() as usize;
    let class = bits.saturating_sub(5) / 4;
    if class < CLASSES { class } else { CLASSES - 1 }
}
/// The largest size of a class in bytes; `None` for the last.
#[must_use]
pub const fn class_bytes(class: usize) -> Option<u64> {
    if class + 1 < CLASSES { Some(256 << (4 * class)) } else { None }
}
