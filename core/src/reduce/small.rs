//! Floats of 16 and 8 bits. All sources of one call are combined in 32 bits, and the result is
//! rounded once, to nearest, ties to even. Between ranks it has the stored type, and so has what
//! was multiplied by a factor.

use float8::{F8E4M3, F8E5M2};
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use super::{Max, Min, Operation, Prod, Scaling, Store, Sum, fence, store, streams};
use crate::memory::{View, ViewMut};
use crate::types::ReduceOp;

/// Elements of a block. Two blocks of 32 bits and one of the stored type leave room in the L1
/// cache.
const BLOCK: usize = 1024;

/// A float of fewer than 32 bits.
pub(super) trait Small: Copy {
    /// Zero.
    const ZERO: Self;

    /// Stores the same values in 32 bits. Both have the same length.
    fn widen(to: &mut [f32], from: &[Self]);

    /// Stores the values, rounded. Both have the same length.
    fn narrow(to: &mut [Self], from: &[f32]);
}

macro_rules! half_sized {
    ($($t:ty),+) => {$(impl Small for $t {
        const ZERO: Self = Self::ZERO;

        fn widen(to: &mut [f32], from: &[Self]) {
            from.convert_to_f32_slice(to);
        }
        fn narrow(to: &mut [Self], from: &[f32]) {
            to.convert_from_f32_slice(from);
        }
    })+};
}
half_sized!(f16, bf16);

macro_rules! byte_sized {
    ($($t:ty),+) => {$(impl Small for $t {
        const ZERO: Self = Self::from_bits(0);

        fn widen(to: &mut [f32], from: &[Self]) {
            /// The values of all bytes.
            const VALUES: &[f32; 256] = &{
                let mut values = [0.0; 256];
                let mut bits = 0;
                while bits < values.len() {
                    values[bits] = <$t>::from_bits(bits as u8).to_f32();
                    bits += 1;
                }
                values
            };
            to.iter_mut().zip(from).for_each(|(to, from)| *to = VALUES[usize::from(from.to_bits())]);
        }
        fn narrow(to: &mut [Self], from: &[f32]) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = Self::from_f32(*from));
        }
    })+};
}
byte_sized!(F8E4M3, F8E5M2);

/// As [`combine`](super::combine), which has checked the arguments.
pub(super) fn combine<T: Small>(
    (op, scaling): (ReduceOp, Scaling),
    len: usize,
    sources: &[View],
    destinations: &[(ViewMut, Store)],
) {
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => {
            blocks::<T, Sum>(scaling, len, sources, destinations);
        }
        ReduceOp::Prod => blocks::<T, Prod>(scaling, len, sources, destinations),
        ReduceOp::Min => blocks::<T, Min>(scaling, len, sources, destinations),
        ReduceOp::Max => blocks::<T, Max>(scaling, len, sources, destinations),
    }
}

fn blocks<T: Small, O: Operation>(
    scaling: Scaling,
    len: usize,
    sources: &[View],
    destinations: &[(ViewMut, Store)],
) {
    let is_moved = sources.len() == 1 && scaling.is_none();
    let (mut stored, mut result, mut next) = ([T::ZERO; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
    let count = len / size_of::<T>();
    for first in (0..count).step_by(BLOCK) {
        let n = BLOCK.min(count - first);
        let (at, bytes) = (first * size_of::<T>(), n * size_of::<T>());
        let (stored, result, next) = (&mut stored[..n], &mut result[..n], &mut next[..n]);
        for (nth, source) in sources.iter().enumerate() {
            // SAFETY: `at + bytes <= len`, the length of the view. `stored` has as many bytes, is
            // this function's own, and any bytes are an element.
            unsafe { store(stored.as_mut_ptr().cast(), source.as_ptr().add(at), bytes, false) };
            if is_moved {
                // It is stored as it is.
                break;
            }
            if let Some(factor) = scaling.factor_of(nth) {
                let factor = f32::from_bits(factor as u32);
                T::widen(next, stored);
                next.iter_mut().for_each(|element| *element *= factor);
                T::narrow(stored, next);
            }
            if nth == 0 {
                T::widen(result, stored);
            } else {
                T::widen(next, stored);
                result.iter_mut().zip(&*next).for_each(|(a, b)| *a = O::of(*a, *b));
            }
        }
        if scaling.divisor > 1 {
            let divisor = scaling.divisor as f32;
            result.iter_mut().for_each(|element| *element /= divisor);
        }
        if !is_moved {
            T::narrow(stored, result);
        }
        for &(to, how) in destinations {
            // SAFETY: as above; the destination may be written.
            unsafe { store(to.as_ptr().add(at), stored.as_ptr().cast(), bytes, streams(how, len)) };
        }
    }
    if destinations.iter().any(|&(_, how)| streams(how, len)) {
        fence();
    }
}
