//! Averages and pre-multiplied sums: elements that are multiplied before they are added, and sums
//! that are divided.

use std::mem::MaybeUninit;

use super::{BLOCK, Number, Store, Sum, fence, kernel, store, streams};
use crate::memory::{View, ViewMut};
use crate::types::{Datatype, ReduceOp};

/// What is done to elements beside combining them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scaling {
    /// The sources whose elements are multiplied, as bits, and by what: the bits of an element; for
    /// floats of fewer bits than 32, those of an `f32`.
    pub(super) scaled: u8,
    pub(super) factor: u64,
    /// The divisor of the result.
    pub(super) divisor: u32,
}

impl Scaling {
    /// Nothing.
    pub const NONE: Self = Self { scaled: 0, factor: 0, divisor: 1 };

    /// What a call does to all that its ranks contribute, and to the sum of all; `factor` is this
    /// rank's, of a pre-multiplied sum.
    #[must_use]
    pub fn of(op: ReduceOp, dtype: Datatype, factor: Option<u64>, nranks: u32) -> Self {
        let scaled = |factor| Self { scaled: u8::MAX, factor, ..Self::NONE };
        match (op, dtype) {
            (ReduceOp::PreMulSum, _) => factor.map_or(Self::NONE, scaled),
            (ReduceOp::Avg, Datatype::F16 | Datatype::F8E4M3 | Datatype::F8E5M2) => {
                scaled(u64::from((1.0 / nranks as f32).to_bits()))
            }
            (ReduceOp::Avg, _) => Self { divisor: nranks, ..Self::NONE },
            _ => Self::NONE,
        }
    }

    /// The same of one step: these of its sources, as bits, are what its rank contributes, and its
    /// result is the sum of all or is not.
    #[must_use]
    pub const fn of_step(self, contributed: u8, is_last: bool) -> Self {
        let divisor = if is_last { self.divisor } else { 1 };
        Self { scaled: self.scaled & contributed, divisor, ..self }
    }

    /// Whether nothing is done.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.scaled == 0 && self.divisor == 1
    }

    /// The factor of a source.
    pub(super) const fn factor_of(self, source: usize) -> Option<u64> {
        if self.scaled >> source & 1 == 1 { Some(self.factor) } else { None }
    }
}

/// As [`combine`](super::combine), which has checked the arguments, for sums.
pub(super) fn combine<T: Number>(
    scaling: Scaling,
    len: usize,
    sources: &[View],
    destinations: &[(ViewMut, Store)],
) {
    // Of the sum so far, of the next one, and of a source that was multiplied.
    let mut scratch = [MaybeUninit::<[u8; BLOCK]>::uninit(); 3];
    let [mut free, mut used, multiplied] = scratch.each_mut().map(|block| block.as_mut_ptr().cast::<u8>());
    let add = kernel::<T, Sum>();
    for at in (0..len).step_by(BLOCK) {
        let n = BLOCK.min(len - at);
        let mut sum = std::ptr::null();
        for (nth, view) in sources.iter().enumerate() {
            // SAFETY: `at + n <= len`, which is the length of every view, by `check`.
            let mut source = unsafe { view.as_ptr().add(at) };
            if let Some(factor) = scaling.factor_of(nth) {
                let to = if nth == 0 { used } else { multiplied };
                // SAFETY: `n <= BLOCK` bytes at each pointer, and the scratch block is no source.
                unsafe { each::<T>(to, source, n, |element| element.times(factor)) };
                source = to;
            }
            if nth > 0 {
                // SAFETY: as above. The sum so far lies in a source or in `used`, not in `free`.
                unsafe { add(free, sum, source, n) };
                source = free;
                std::mem::swap(&mut free, &mut used);
            }
            sum = source;
        }
        if scaling.divisor > 1 {
            // SAFETY: as above.
            unsafe { each::<T>(free, sum, n, |element| element.over(scaling.divisor)) };
            sum = free;
        }
        for &(to, how) in destinations {
            // SAFETY: as above; the destination may be written, and is a source or overlaps none.
            unsafe { store(to.as_ptr().add(at), sum, n, streams(how, len)) };
        }
    }
    if destinations.iter().any(|&(_, how)| streams(how, len)) {
        fence();
    }
}

/// Stores what `of` makes of each element at `from`, `len` bytes, to `to`.
///
/// # Safety
/// `len` bytes at both pointers are valid, and writable at `to`. They are identical or do not
/// overlap.
#[inline(always)]
unsafe fn each<T: Number>(to: *mut u8, from: *const u8, len: usize, of: impl Fn(T) -> T) {
    let (to, from) = (to.cast::<T>(), from.cast::<T>());
    for i in 0..len / size_of::<T>() {
        // SAFETY: element `i` lies inside the `len` bytes that the caller promises; any alignment
        // is allowed.
        unsafe { to.add(i).write_unaligned(of(from.add(i).read_unaligned())) };
    }
}
