//! A capture: a recorder's bytes at one moment, to be read elsewhere with the same result.

use std::sync::atomic::AtomicU64;

use crate::clock::Anchor;

/// A copy of a recorder, with the facts that cannot be read from the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capture {
    /// The bytes of the file.
    pub bytes: Vec<u8>,
    /// Whether the process held its alive lock.
    pub alive: bool,
    /// When copying began, in nanoseconds since 1970.
    pub from_real_ns: u64,
    /// When copying had ended, on the clocks of the machine: the ages of a live process count from
    /// it.
    pub at: Anchor,
}

impl Capture {
    /// The whole words in its bytes.
    pub(super) fn words(&self) -> Vec<AtomicU64> {
        super::words::words(&self.bytes).collect()
    }
}
