//! Words of a recorder, as somebody else wrote them: everything is checked before it is believed.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{self, RowState, Table, header};
use super::protocol::latch_read;

/// The most bytes of a file that are read: many times what a recorder has.
pub(super) const MAX_BYTES: u64 = 16 << 20;

/// The words of these bytes, as many as are whole.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = AtomicU64> {
    let words = bytes.chunks_exact(8);
    words.map(|word| AtomicU64::new(u64::from_le_bytes(word.try_into().expect("8 bytes"))))
}

/// A word of a row; zero where an older writer's row ends before it.
pub(super) fn word(row: &[AtomicU64], at: usize) -> u64 {
    row.get(at).map_or(0, |word| word.load(Ordering::Acquire))
}

/// The lower and the upper half.
pub(super) const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// The fact behind a latch; `None` if the row ends before it or the writer was too fast.
pub(super) fn fact<const N: usize>(row: &[AtomicU64], latch: usize, copies: usize) -> Option<[u64; N]> {
    latch_read(row.get(latch)?, row.get(copies..copies + 2 * N)?)
}

/// The words of a text.
pub(super) fn text(row: &[AtomicU64], at: usize, words: usize) -> String {
    let words: Vec<u64> = (at..at + words).map(|at| word(row, at)).collect();
    layout::decode_text(&words)
}

/// Where the directory says that a table lies, in words.
#[derive(Clone, Copy)]
pub(super) struct TableSpan {
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) count: usize,
}

impl TableSpan {
    pub(super) fn of(words: &[AtomicU64], table: Table) -> Option<Self> {
        let size = |at: usize| usize::try_from(word(words, at)).ok();
        let first = size(header::DIRECTORY)? / 8;
        let stride = (size(header::DIRECTORY_STRIDE)? / 8).max(1);
        // A directory of more entries than this is none.
        let count = size(header::DIRECTORY_COUNT)?.min(1024);
        let entries = words.get(first..)?.chunks(stride).take(count);
        let entry = entries.into_iter().find(|entry| word(entry, 0) == table as u64)?;
        let field = |at: usize| usize::try_from(word(entry, at)).ok().filter(|n| *n <= MAX_BYTES as usize);
        let (offset, stride, count) = (field(1)?, field(2)? / 8, field(3)?);
        (stride > 0).then_some(Self { first: offset / 8, stride, count })
    }
}

/// One table of a mapping, as far as it is there.
#[derive(Clone, Copy)]
pub(super) struct TableRows<'a> {
    words: &'a [AtomicU64],
    /// Words per row.
    stride: usize,
}

impl<'a> TableRows<'a> {
    pub(super) fn of(words: &'a [AtomicU64], table: Table) -> Self {
        Self::find(words, table).unwrap_or(Self { words: &[], stride: 1 })
    }

    fn find(words: &'a [AtomicU64], table: Table) -> Option<Self> {
        let TableSpan { first, stride, count } = TableSpan::of(words, table)?;
        let there = words.get(first..)?;
        let len = stride.checked_mul(count)?.min(there.len());
        Some(Self { words: &there[..len], stride })
    }

    pub(super) fn iter(self) -> impl Iterator<Item = &'a [AtomicU64]> {
        self.words.chunks_exact(self.stride)
    }
    pub(super) fn row(self, at: usize) -> Option<&'a [AtomicU64]> {
        let first = at.checked_mul(self.stride)?;
        self.words.get(first..first.checked_add(self.stride)?)
    }
}

/// The longest string that is read: longer than any path or settings line.
pub(super) const MAX_STRING: usize = 64 << 10;
/// The longest failure message of a communicator, in bytes.
pub(super) const MOST_OF_A_FAILURE: usize = 1 << 10;

/// The string of a reference; empty if there is none, or it leads out of the table.
pub(super) fn string(words: &[AtomicU64], reference: u64) -> String {
    string_within(words, reference, MAX_STRING)
}

/// The same, of at most `most` bytes.
pub(super) fn string_within(words: &[AtomicU64], reference: u64, most: usize) -> String {
    let (at, len) = halves(reference);
    let (at, len) = (at as usize, len as usize);
    let strings = TableRows::of(words, Table::Strings).words;
    let is_there = |there: &&[AtomicU64]| (1..=most).contains(&len) && len <= there.len() * 8;
    let Some(there) = strings.get(at / 8..).filter(is_there) else {
        return String::new();
    };
    let bytes: Vec<u8> =
        there[..len.div_ceil(8)].iter().flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// The state in the low byte of a row's first word; `None` if it is free or unknown.
pub(super) fn state(word: u64) -> Option<RowState> {
    match word as u8 {
        n if n == RowState::Live as u8 => Some(RowState::Live),
        n if n == RowState::Ended as u8 => Some(RowState::Ended),
        _ => None,
    }
}
