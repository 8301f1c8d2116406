use super::*;
use crate::memory::Element;

/// Bytes with room for misalignment, and guard bytes around them.
struct Buffer {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

const GUARD: u8 = 0xa5;

impl Buffer {
    fn new(len: usize, misaligned: usize) -> Self {
        let mut bytes = vec![GUARD; len + 192];
        let at = bytes.as_ptr().align_offset(64) + 64 + misaligned;
        bytes[at..at + len].fill(0);
        Self { bytes, at, len }
    }
    fn of<T: Element>(values: &[T], misaligned: usize) -> Self {
        let len = size_of_val(values);
        let mut buffer = Self::new(len, misaligned);
        // SAFETY: any element type is readable as bytes.
        let raw = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), len) };
        buffer.bytes[buffer.at..buffer.at + len].copy_from_slice(raw);
        buffer
    }
    fn view(&mut self) -> ViewMut {
        // SAFETY: the tests keep the buffer while they use the view, and access it only through
        // the view in that time.
        unsafe { ViewMut::new(self.bytes.as_mut_ptr().add(self.at), self.len) }
    }
    fn elements<T: Element>(&self) -> Vec<T> {
        self.bytes[self.at..self.at + self.len]
            .chunks_exact(size_of::<T>())
            // SAFETY: a chunk has the bytes of one element, and any bytes are a valid element.
            .map(|c| unsafe { c.as_ptr().cast::<T>().read_unaligned() })
            .collect()
    }
    fn check<T: Element + Bits>(&self, expected: &[T], what: &str) {
        let found: Vec<T> = self.elements();
        assert_eq!(found.len(), expected.len(), "{what}");
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            assert_eq!(f.bits(), e.bits(), "{what}: element {i}");
        }
        let around = self.bytes[..self.at].iter().chain(&self.bytes[self.at + self.len..]);
        assert!(around.copied().all(|b| b == GUARD), "{what}: written outside");
    }
}

/// Creates, compares and (slowly) reduces the element types in tests.
trait Bits: Element {
    fn bits(self) -> u64;
    fn make(n: u64) -> Self;
    fn reduce(op: ReduceOp, a: Self, b: Self) -> Self;
}
macro_rules! bits_int {
    ($($t:ty),+) => {$(impl Bits for $t {
        fn bits(self) -> u64 { self as u64 }
        fn make(n: u64) -> Self { n.wrapping_mul(0x9e37_79b9_7f4a_7c15) as Self }
        fn reduce(op: ReduceOp, a: Self, b: Self) -> Self {
            match op { ReduceOp::Prod => a.wrapping_mul(b), ReduceOp::Min => Ord::min(a, b), ReduceOp::Max => Ord::max(a, b), _ => a.wrapping_add(b) }
        }
    })+};
}
macro_rules! bits_float {
    ($($t:ty),+) => {$(impl Bits for $t {
        fn bits(self) -> u64 { if self.is_nan() { u64::MAX } else { u64::from(self.to_bits()) } }
        fn make(n: u64) -> Self {
            if n % 11 == 3 { Self::NAN } else { (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as Self * 0.37 - 2e6 }
        }
        fn reduce(op: ReduceOp, a: Self, b: Self) -> Self {
            match op { ReduceOp::Prod => a * b, ReduceOp::Min => a.min(b), ReduceOp::Max => a.max(b), _ => a + b }
        }
    })+};
}
bits_int!(i8, i32, i64, u8, u32, u64);
bits_float!(f32, f64);

fn case<T: Bits>(op: ReduceOp, count: usize, nsources: usize, misaligned: usize, in_place: Option<usize>) {
    let what =
        format!("{:?} {op} x{count}, {nsources} sources, +{misaligned}, in place {in_place:?}", T::DTYPE);
    let values: Vec<Vec<T>> = (0..nsources as u64)
        .map(|s| (0..count as u64).map(|i| T::make(s * 1_000_003 + i)).collect())
        .collect();
    let expected: Vec<T> =
        (0..count).map(|i| values[1..].iter().fold(values[0][i], |a, v| T::reduce(op, a, v[i]))).collect();
    let mut sources: Vec<Buffer> =
        values.iter().enumerate().map(|(s, v)| Buffer::of(v, (misaligned * (s + 1)) % 64)).collect();
    let views: Vec<View> = sources.iter_mut().map(|b| b.view().read()).collect();
    let mut first = Buffer::new(count * size_of::<T>(), misaligned);
    let mut second = Buffer::new(count * size_of::<T>(), misaligned * 5 % 64);
    let to = in_place.map_or_else(|| first.view(), |k| sources[k].view());
    let how = if misaligned.is_multiple_of(2) { Store::Plain } else { Store::Streaming };
    combine((op, Scaling::NONE), T::DTYPE, &views, &[(to, how), (second.view(), Store::Streaming)]);
    second.check(&expected, &what);
    in_place.map_or(&first, |k| &sources[k]).check(&expected, &what);
    for (s, buffer) in sources.iter().enumerate().filter(|(s, _)| in_place != Some(*s)) {
        buffer.check(&values[s], &what);
    }
}

fn all_ops<T: Bits>() {
    let counts: &[usize] = if cfg!(miri) { &[0, 19] } else { &[0, 1, 2, 61, 1021, 5_003] };
    let misalignments: &[usize] = if cfg!(miri) { &[3] } else { &[0, 1, 4, 7, 31] };
    for &op in ReduceOp::ALL {
        for &count in counts {
            for &misaligned in misalignments {
                for nsources in (1..=8).step_by(if cfg!(miri) { 3 } else { 1 }) {
                    case::<T>(op, count, nsources, misaligned, None);
                    case::<T>(op, count, nsources, misaligned, Some(nsources / 2));
                }
            }
        }
    }
}

#[test]
fn f32_agrees_with_the_reference() {
    all_ops::<f32>();
}
#[test]
fn f64_agrees_with_the_reference() {
    all_ops::<f64>();
}
#[test]
fn i8_agrees_with_the_reference() {
    all_ops::<i8>();
}
#[test]
fn i32_agrees_with_the_reference() {
    all_ops::<i32>();
}
#[test]
fn i64_agrees_with_the_reference() {
    all_ops::<i64>();
}
#[test]
fn u8_agrees_with_the_reference() {
    all_ops::<u8>();
}
#[test]
fn u32_agrees_with_the_reference() {
    all_ops::<u32>();
}
#[test]
fn u64_agrees_with_the_reference() {
    all_ops::<u64>();
}

#[test]
fn the_portable_kernel_gives_the_same_bits_as_the_best_one() {
    fn both<T: Bits + Number, O: Operation>() {
        let make = |s: u64| (0..203).map(|i| T::make(s + i)).collect::<Vec<_>>();
        let (a, b) = (make(1), make(5_000));
        let bytes = size_of_val(&a[..]);
        let mut results = [make(0), make(0)];
        for (kernel, result) in [two::<T, O> as Kernel, kernel::<T, O>()].into_iter().zip(&mut results) {
            // SAFETY: three disjoint buffers of `bytes` bytes.
            unsafe { kernel(result.as_mut_ptr().cast(), a.as_ptr().cast(), b.as_ptr().cast(), bytes) };
        }
        let [portable, best] = results.map(|r| r.into_iter().map(T::bits).collect::<Vec<_>>());
        assert_eq!(portable, best);
    }
    fn ops<T: Bits + Number>() {
        both::<T, Sum>();
        both::<T, Prod>();
        both::<T, Min>();
        both::<T, Max>();
    }
    ops::<f32>();
    ops::<f64>();
    ops::<i8>();
    ops::<i32>();
    ops::<i64>();
    ops::<u8>();
    ops::<u32>();
    ops::<u64>();
}

#[test]
fn of_two_floats_the_one_that_is_not_nan() {
    for op in [ReduceOp::Min, ReduceOp::Max] {
        let mut a = Buffer::of(&[f64::NAN, 1.0, f64::NAN, -0.0], 0);
        let mut b = Buffer::of(&[2.0, f64::NAN, f64::NAN, 0.0], 0);
        let mut to = Buffer::new(32, 0);
        combine(
            (op, Scaling::NONE),
            Datatype::F64,
            &[a.view().read(), b.view().read()],
            &[(to.view(), Store::Plain)],
        );
        to.check(&[2.0, 1.0, f64::NAN, -0.0], "NaN");
    }
}

#[test]
fn a_copy_arrives_however_it_is_stored_and_whatever_the_alignment() {
    let lengths: &[usize] = if cfg!(miri) { &[0, 1, 4099] } else { &[0, 1, 63, 4095, 4096, 4099, 100_003] };
    for &len in lengths {
        for how in [Store::Plain, Store::Streaming] {
            for (from_at, to_at) in [(0, 0), (1, 0), (0, 1), (5, 37)] {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
                let mut from = Buffer::of(&bytes, from_at);
                let mut to = Buffer::new(len, to_at);
                copy(to.view(), from.view().read(), how);
                to.check(&bytes, "copy");
                let same = to.view();
                copy(same, same.read(), how);
                to.check(&bytes, "copy to itself");
            }
        }
    }
}

#[test]
#[should_panic(expected = "no whole number")]
fn a_part_of_an_element_is_refused() {
    let (mut a, mut b) = (Buffer::new(6, 0), Buffer::new(6, 0));
    combine((ReduceOp::Sum, Scaling::NONE), Datatype::F32, &[a.view().read()], &[(b.view(), Store::Plain)]);
}

#[test]
fn what_an_average_of_a_narrow_type_adds_is_divided_before() {
    for dtype in Datatype::ALL {
        let divided = Scaling::of(ReduceOp::PreMulSum, *dtype, Some(u64::from(0.25_f32.to_bits())), 4);
        let is_narrow = matches!(dtype, Datatype::F16 | Datatype::F8E4M3 | Datatype::F8E5M2);
        let expect = if is_narrow { divided } else { Scaling { divisor: 4, ..Scaling::NONE } };
        assert_eq!(Scaling::of(ReduceOp::Avg, *dtype, None, 4), expect, "{dtype}");
    }
}

#[test]
fn sources_of_different_lengths_are_refused() {
    for lens in [[8, 4], [8, 12]] {
        let [mut a, mut b] = lens.map(|len| Buffer::new(len, 0));
        let mut c = Buffer::new(8, 0);
        let (from, to) = ([a.view().read(), b.view().read()], [(c.view(), Store::Plain)]);
        let refused = std::panic::catch_unwind(|| {
            combine((ReduceOp::Sum, Scaling::NONE), Datatype::F32, &from, &to);
        });
        assert!(refused.is_err(), "{lens:?}");
    }
}

#[test]
#[should_panic(expected = "another length")]
fn a_destination_of_another_length_is_refused() {
    let (mut a, mut b, mut c) = (Buffer::new(8, 0), Buffer::new(8, 0), Buffer::new(4, 0));
    let to = [(b.view(), Store::Plain), (c.view(), Store::Plain)];
    combine((ReduceOp::Sum, Scaling::NONE), Datatype::F32, &[a.view().read()], &to);
}

/// What a float of fewer than 32 bits is, from its definition.
trait Rounded: Element {
    /// Bits behind the point, the exponent of the smallest normal number, and the largest number.
    const FORM: (i32, i32, f64);
    /// Whether a number that is too large becomes the largest one, else infinity.
    const SATURATES: bool;
    fn of(bits: u16) -> Self;
    fn value(self) -> f64;
}

macro_rules! rounded {
    ($($t:ty, $bits:ty: $form:expr, $saturates:expr);+) => {$(impl Rounded for $t {
        const FORM: (i32, i32, f64) = $form;
        const SATURATES: bool = $saturates;
        fn of(bits: u16) -> Self { Self::from_bits(bits as $bits) }
        fn value(self) -> f64 { self.to_f64() }
    })+};
}
rounded!(
    f16, u16: (10, -14, 65504.0), false;
    bf16, u16: (7, -126, f64::from_bits(0x47ef_e000_0000_0000)), false;
    F8E4M3, u8: (3, -6, 448.0), true;
    F8E5M2, u8: (2, -14, 57344.0), true
);

/// The nearest number of that form; of two the even one.
fn rounded<T: Rounded>(value: f64) -> f64 {
    let (bits, smallest, largest) = T::FORM;
    if value.is_nan() || value == 0.0 {
        return value;
    }
    // The exponent of a number that is a normal one in 64 bits, and the power of two of one.
    let exponent = if value.is_finite() { (value.to_bits() >> 52 & 0x7ff) as i32 - 1023 } else { 0 };
    let unit = f64::from_bits(((Ord::max(exponent, smallest) - bits + 1023) as u64) << 52);
    let near = (value / unit).round_ties_even() * unit;
    match (near.abs() > largest, T::SATURATES) {
        (true, true) => largest.copysign(value),
        (true, false) => f64::INFINITY.copysign(value),
        (false, _) => near,
    }
}

/// Combines these numbers, column by column, and compares with what is rounded once.
fn small_case<T: Rounded>(op: ReduceOp, values: &[Vec<T>], misaligned: usize, in_place: Option<usize>) {
    let count = values[0].len();
    let what = format!("{:?} {op} x{count} of {}, +{misaligned}, {in_place:?}", T::DTYPE, values.len());
    let mut sources: Vec<Buffer> = values.iter().map(|source| Buffer::of(source, misaligned)).collect();
    let views: Vec<View> = sources.iter_mut().map(|buffer| buffer.view().read()).collect();
    let (mut first, mut second) =
        (Buffer::new(count * size_of::<T>(), misaligned), Buffer::new(count * size_of::<T>(), 0));
    let to = in_place.map_or_else(|| first.view(), |k| sources[k].view());
    combine((op, Scaling::NONE), T::DTYPE, &views, &[(to, Store::Plain), (second.view(), Store::Streaming)]);
    let combined = |a: f32, b: f32| match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => a + b,
        ReduceOp::Prod => a * b,
        ReduceOp::Min if a.is_nan() || b < a => b,
        ReduceOp::Max if a.is_nan() || b > a => b,
        ReduceOp::Min | ReduceOp::Max => a,
    };
    for buffer in [in_place.map_or(&first, |k| &sources[k]), &second] {
        for (at, found) in buffer.elements::<T>().into_iter().enumerate() {
            let all = values[1..].iter().map(|source| source[at].value() as f32);
            let exact = f64::from(all.fold(values[0][at].value() as f32, combined));
            let expected = if values.len() == 1 { exact } else { rounded::<T>(exact) };
            let found = found.value();
            let is_same = found == expected && found.is_sign_negative() == expected.is_sign_negative();
            assert!(is_same || found.is_nan() && expected.is_nan(), "{what}: {at}: {found} {expected}");
        }
    }
}

fn small_ops<T: Rounded>() {
    let counts: &[usize] = if cfg!(miri) { &[0, 19] } else { &[0, 1, 61, 1024, 5_003] };
    for &op in ReduceOp::ALL {
        for &count in counts {
            for nsources in [1, 2, 3, 8] {
                let bits = |s: usize, i: usize| ((s * 7919 + i) as u32).wrapping_mul(0x9e37_79b1) >> 13;
                let source = |s| (0..count).map(|i| T::of(bits(s, i) as u16)).collect();
                let values: Vec<Vec<T>> = (0..nsources).map(source).collect();
                small_case(op, &values, 0, None);
                small_case(op, &values, 3, Some(nsources / 2));
            }
        }
    }
}

/// Each number with each.
fn each_pair<T: Rounded>() {
    let bits = || (0..=255_u16).step_by(if cfg!(miri) { 16 } else { 1 });
    let a: Vec<T> = bits().flat_map(|a| bits().map(move |_| T::of(a))).collect();
    let b: Vec<T> = bits().flat_map(|_| bits().map(T::of)).collect();
    for &op in ReduceOp::ALL {
        small_case(op, &[a.clone(), b.clone()], 0, None);
    }
}

#[test]
fn floats_of_16_bits_are_combined_in_32_and_rounded_once() {
    small_ops::<f16>();
    small_ops::<bf16>();
}

#[test]
fn floats_of_8_bits_are_combined_in_32_and_rounded_once() {
    small_ops::<F8E4M3>();
    small_ops::<F8E5M2>();
    each_pair::<F8E4M3>();
    each_pair::<F8E5M2>();
}

/// Combines with a scaling, column by column, and compares with `expected` of the columns.
fn scaled_case<T: Element + PartialEq + std::fmt::Debug>(
    (op, scaling): (ReduceOp, Scaling),
    values: &[Vec<T>],
    in_place: Option<usize>,
    expected: impl Fn(&[T]) -> T,
) {
    let bytes = size_of_val(&values[0][..]);
    let mut sources: Vec<Buffer> = values.iter().map(|source| Buffer::of(source, 3)).collect();
    let views: Vec<View> = sources.iter_mut().map(|buffer| buffer.view().read()).collect();
    let (mut first, mut second) = (Buffer::new(bytes, 3), Buffer::new(bytes, 0));
    let to = in_place.map_or_else(|| first.view(), |k| sources[k].view());
    combine((op, scaling), T::DTYPE, &views, &[(to, Store::Plain), (second.view(), Store::Streaming)]);
    for buffer in [in_place.map_or(&first, |k| &sources[k]), &second] {
        for (at, found) in buffer.elements::<T>().into_iter().enumerate() {
            let column: Vec<T> = values.iter().map(|source| source[at]).collect();
            assert_eq!(found, expected(&column), "{op} {scaling:?} of {column:?}, {in_place:?}");
        }
    }
}

/// Values of so many sources, which `make` makes of a number.
fn columns<T>(sources: usize, make: impl Fn(i64) -> T) -> Vec<Vec<T>> {
    let count = if cfg!(miri) { 9 } else { 5_003 };
    let value = |source: usize, at: usize| make((at * 7 + source * 31) as i64 % 101 - 50);
    (0..sources).map(|source| (0..count).map(|at| value(source, at)).collect()).collect()
}

#[test]
fn an_average_of_integers_is_truncated_toward_zero_after_the_sum_has_wrapped() {
    let average = |dtype, ranks| Scaling::of(ReduceOp::Avg, dtype, None, ranks).of_step(0, true);
    for sources in [1, 2, 3, 8] {
        for in_place in [None, Some(0), Some(sources - 1)] {
            let op = |dtype| (ReduceOp::Avg, average(dtype, 3));
            scaled_case(op(Datatype::I8), &columns(sources, |n| n as i8), in_place, |all| {
                (i64::from(all.iter().fold(0_i8, |sum, x| sum.wrapping_add(*x))) / 3) as i8
            });
            scaled_case(op(Datatype::U64), &columns(sources, |n| n as u64), in_place, |all| {
                all.iter().fold(0_u64, |sum, x| sum.wrapping_add(*x)) / 3
            });
            scaled_case(op(Datatype::I64), &columns(sources, |n| n << 40), in_place, |all| {
                all.iter().sum::<i64>() / 3
            });
            scaled_case(op(Datatype::F32), &columns(sources, |n| n as f32), in_place, |all| {
                all[1..].iter().fold(all[0], |sum, x| sum + x) / 3.0
            });
            scaled_case(
                op(Datatype::BF16),
                &columns(sources, |n| bf16::from_f32(n as f32)),
                in_place,
                |all| bf16::from_f32(all.iter().map(|x| x.to_f32()).sum::<f32>() / 3.0),
            );
        }
    }
    // More ranks than the type can count.
    scaled_case((ReduceOp::Avg, average(Datatype::I8, 300)), &columns(1, |n| n as i8), None, |_| 0);
    // What is not the sum of all is not divided.
    let partial = Scaling::of(ReduceOp::Avg, Datatype::I32, None, 3).of_step(1, false);
    assert!(partial.is_none());
}

#[test]
fn an_average_of_short_floats_does_not_overflow() {
    let scaling = Scaling::of(ReduceOp::Avg, Datatype::F16, None, 4).of_step(0b11, false);
    scaled_case((ReduceOp::Avg, scaling), &columns(2, |_| f16::MAX), None, |_| f16::from_f32(32752.0));
    let scaling = Scaling::of(ReduceOp::Avg, Datatype::F8E4M3, None, 2).of_step(0b11, true);
    scaled_case((ReduceOp::Avg, scaling), &columns(2, |_| F8E4M3::MAX), None, |_| F8E4M3::MAX);
}

#[test]
fn only_what_a_rank_contributes_is_multiplied_and_rounded_to_its_type() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(
        factor: T,
        make: impl Fn(i64) -> T + Copy,
        sum: impl Fn(T, T) -> T,
        times: impl Fn(T) -> T,
    ) {
        let scaling = Scaling::of(ReduceOp::PreMulSum, T::DTYPE, Some(crate::memory::factor(factor)), 3);
        for sources in [1, 2, 3, 8] {
            for own in [0, sources - 1] {
                for in_place in [None, Some(own)] {
                    let op = (ReduceOp::PreMulSum, scaling.of_step(1 << own, true));
                    scaled_case(op, &columns(sources, make), in_place, |all| {
                        let scaled = |at: usize| if at == own { times(all[at]) } else { all[at] };
                        (1..all.len()).fold(scaled(0), |so_far, at| sum(so_far, scaled(at)))
                    });
                }
            }
        }
    }
    check(-3_i8, |n| n as i8, i8::wrapping_add, |x| x.wrapping_mul(-3));
    check(7_u32, |n| n as u32, u32::wrapping_add, |x| x.wrapping_mul(7));
    check(i64::MAX, |n| n, i64::wrapping_add, |x| x.wrapping_mul(i64::MAX));
    check(0.1_f32, |n| n as f32, |a, b| a + b, |x| x * 0.1);
    check(0.1_f64, |n| n as f64, |a, b| a + b, |x| x * 0.1);
    // Sums of these are exact in 32 bits and in 16; products are not.
    for factor in [0.1, -0.1].map(f16::from_f32) {
        let times = |x: f16| f16::from_f32(x.to_f32() * factor.to_f32());
        let (op, make) = (ReduceOp::PreMulSum, |n| f16::from_f32(n as f32));
        let scaling = Scaling::of(op, Datatype::F16, Some(crate::memory::factor(factor)), 2).of_step(1, true);
        scaled_case((op, scaling), &columns(2, make), None, |all| {
            f16::from_f32(times(all[0]).to_f32() + all[1].to_f32())
        });
    }
}
