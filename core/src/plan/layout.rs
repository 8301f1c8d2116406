//! Divides bytes into rounds of equal parts. This arithmetic is shared by all collectives.

use crate::types::Datatype;

/// Bytes of a cache line. Parts that are long enough begin on a cache line.
pub(super) const LINE: u64 = 64;

/// `total` bytes, cut into rounds of a fixed number of parts.
///
/// All parts are equally long except in the last round. It divides the remaining bytes equally
/// among its parts, as far as cache lines allow: its last parts may be shorter, or empty. There is
/// always at least one round, even of no bytes, because a call of no elements announces itself too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    /// The number of rounds.
    pub(super) count: u64,
    total: u64,
    parts: u64,
    part: u64,
    align: u64,
}

/// One round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Offset of its first byte.
    pub(super) at: u64,
    /// Bytes of all its parts.
    pub(super) len: u64,
    part: u64,
}

/// A range of bytes that one message can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    /// Offset of the first byte from the start of the round.
    pub(super) at: u64,
    /// The number of bytes.
    pub(super) len: u32,
}

/// The most bytes of one of `pieces` equal pieces of a message of `chunk` bytes.
///
/// It is a multiple of the cache line, or at least of the element size. If the chunk is too small
/// for that, a piece is one element; such a message still fits its slot, which `select` ensures.
pub(super) fn piece(chunk: u32, pieces: u32, dtype: Datatype) -> u64 {
    let (even, size) = (u64::from(chunk / pieces), dtype.size() as u64);
    if even >= LINE { even / LINE * LINE } else { (even / size * size).max(size) }
}

impl Rounds {
    /// Cuts `total` bytes into rounds of `parts` parts of at most `most` bytes, where `most` is a
    /// value that `piece` returns.
    pub(super) fn new(total: u64, parts: u32, most: u64) -> Self {
        let parts = u64::from(parts);
        let align = if most >= LINE { LINE } else { most };
        // As few rounds as possible, then parts as even as possible. `most` is a multiple of
        // `align`, so no part exceeds it.
        let (count, part) = if total <= parts * most {
            (1, most)
        } else {
            let count = total.div_ceil(parts * most);
            let part = total.div_ceil(count * parts).next_multiple_of(align);
            (total.div_ceil(parts * part), part)
        };
        Self { count, total, parts, part, align }
    }

    /// Round `index`, below `count`.
    pub(super) fn round(&self, index: u64) -> Round {
        let at = index * self.parts * self.part;
        if index + 1 < self.count {
            return Round { at, len: self.parts * self.part, part: self.part };
        }
        let len = self.total - at;
        Round { at, len, part: len.div_ceil(self.parts).next_multiple_of(self.align) }
    }

    /// The most bytes of a part in any round.
    pub(super) fn most(&self) -> u64 {
        if self.count == 1 { self.round(0).part } else { self.part }
    }
}

impl Round {
    /// Part `index` of the round.
    pub(super) fn part(&self, index: u32) -> Span {
        let at = (u64::from(index) * self.part).min(self.len);
        Span { at, len: (self.len - at).min(self.part) as u32 }
    }
}

/// The share of `total` bytes of one of `channels`, as (first byte, bytes).
///
/// Shares are whole cache lines. The last shares may be shorter.
pub(super) fn share(total: u64, channels: u16, channel: u16) -> (u64, u64) {
    if channels == 1 {
        return (0, total);
    }
    let most = total.div_ceil(u64::from(channels)).next_multiple_of(LINE);
    let at = (u64::from(channel) * most).min(total);
    (at, (total - at).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of all rounds cover all bytes, in order and without gaps, and obey the bounds.
    fn check(total: u64, parts: u32, most: u64) {
        let rounds = Rounds::new(total, parts, most);
        assert!(rounds.count >= 1);
        let mut at = 0;
        for k in 0..rounds.count {
            let round = rounds.round(k);
            assert_eq!(round.at, at);
            assert!(k + 1 == rounds.count || round.len > 0);
            for j in 0..parts {
                let part = round.part(j);
                assert_eq!(round.at + part.at, at, "{rounds:?} {k} {j}");
                assert!(u64::from(part.len) <= most && u64::from(part.len) <= rounds.most());
                assert!(part.len == 0 || part.at.is_multiple_of(most.min(LINE)));
                at += u64::from(part.len);
            }
        }
        assert_eq!(at, total);
    }

    #[test]
    fn rounds_cover_everything_once() {
        for total in (0..400).chain([1021 * 8, 65536, 65544]).map(|n| n * 8) {
            for parts in [1, 2, 3, 7, 64] {
                for most in [8, 24, 64, 192, 4096] {
                    check(total, parts, most);
                }
            }
        }
    }

    #[test]
    fn pieces_fit_and_are_whole() {
        assert_eq!(piece(256 << 10, 1, Datatype::F32), 256 << 10);
        assert_eq!(piece(16 << 10, 3, Datatype::F32), 5440);
        assert_eq!(piece(128, 3, Datatype::F64), 40);
        assert_eq!(piece(64, 63, Datatype::F64), 8);
    }

    #[test]
    fn shares_cover_everything_once() {
        for total in [0, 1, 63, 64, 65, 1000, 4096] {
            for channels in 1..5 {
                let mut at = 0;
                for channel in 0..channels {
                    let (start, len) = share(total, channels, channel);
                    assert_eq!(start, at);
                    at += len;
                }
                assert_eq!(at, total);
            }
        }
    }
}
