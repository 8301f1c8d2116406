//! The element-wise kernels: copying, and reducing several sources into one or two destinations.
//!
//! Safe functions over [`View`]s: that the memory may be read or written was promised when the views were made. They work on
//! raw pointers throughout, because some of that memory is shared with other processes: no reference to it is ever made, and
//! any alignment will do. Work goes in blocks that stay in the nearest cache, so that whatever is stored twice (to the caller's
//! output and into a message) is computed once and the second store reads what the first has just left there.
//!
//! The vector code is the compiler's: one generic loop, compiled twice, for any machine and for AVX2, and chosen when it runs.
//! Both give the same bits (but for which NaN a NaN is), so that ranks on different machines agree. Only streaming stores, which go past the
//! caches because another core reads the bytes next, are written by hand.

use std::mem::MaybeUninit;

use crate::memory::{View, ViewMut};
use crate::types::{Datatype, ReduceOp};

/// How bytes are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Store {
    /// Through the caches.
    Plain,
    /// Past the caches, for a reader on another core. Below [`STREAM_FROM`] bytes the same as `Plain`.
    Streaming,
}

/// Bytes from which streaming stores beat ordinary ones; below, the reader gets its lines faster from the writer's cache.
pub const STREAM_FROM: usize = 4096;

/// Bytes of a block. Three of them (two sources, one result) leave most of a 32 KiB cache to the prefetcher.
const BLOCK: usize = 4096;
/// Bytes of a cache line, which streaming stores should fill at once.
const LINE: usize = 64;

/// Copies `from` to `to`. They may be the very same memory (nothing happens), but must not overlap otherwise.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy(to: ViewMut, from: View, how: Store) {
    assert_eq!(to.len(), from.len(), "a copy between different lengths");
    let streams = streams(how, to.len());
    // SAFETY: both views hold `len` bytes, by their making and by the assertion.
    unsafe { store(to.as_ptr(), from.as_ptr(), to.len(), streams) };
    if streams {
        fence();
    }
}

/// Reduces `sources` element by element, in their order, and stores the result to every destination. A destination may
/// be the very same memory as a source; destinations must not overlap each other, nor a source otherwise.
///
/// # Panics
/// If there are not 1 to 8 sources and 1 to 2 destinations, all of one length, which is a whole number of elements.
pub fn combine(op: ReduceOp, dtype: Datatype, sources: &[View], destinations: &[(ViewMut, Store)]) {
    let len = check(dtype, sources, destinations);
    match dtype {
        Datatype::F32 => choose::<f32>(op, len, sources, destinations),
        Datatype::F64 => choose::<f64>(op, len, sources, destinations),
        Datatype::I32 => choose::<i32>(op, len, sources, destinations),
        Datatype::I64 => choose::<i64>(op, len, sources, destinations),
        Datatype::U8 => choose::<u8>(op, len, sources, destinations),
    }
}

fn check(dtype: Datatype, sources: &[View], destinations: &[(ViewMut, Store)]) -> usize {
    assert!((1..=8).contains(&sources.len()), "{} sources", sources.len());
    assert!((1..=2).contains(&destinations.len()), "{} destinations", destinations.len());
    let len = sources[0].len();
    assert!(sources.iter().all(|s| s.len() == len), "sources of different lengths");
    assert!(
        destinations.iter().all(|(d, _)| d.len() == len),
        "destinations of another length than the sources"
    );
    assert!(len.is_multiple_of(dtype.size()), "{len} bytes are no whole number of {dtype}");
    len
}

fn choose<T: Number>(op: ReduceOp, len: usize, sources: &[View], destinations: &[(ViewMut, Store)]) {
    match op {
        ReduceOp::Sum => blocks::<T, Sum>(len, sources, destinations),
        ReduceOp::Min => blocks::<T, Min>(len, sources, destinations),
        ReduceOp::Max => blocks::<T, Max>(len, sources, destinations),
    }
}

fn blocks<T: Number, O: Operation>(len: usize, sources: &[View], destinations: &[(ViewMut, Store)]) {
    let mut scratch = [MaybeUninit::<[u8; BLOCK]>::uninit(); 2];
    let scratch = scratch.each_mut().map(|block| block.as_mut_ptr().cast::<u8>());
    // The kernel's result goes straight to a destination if it can. It cannot go to a source: the compiler's vector loops
    // check at their start that what they write is not what they read, and are slow where it is.
    let is_source = |d: ViewMut| sources.iter().any(|s| std::ptr::eq(s.as_ptr(), d.as_ptr()));
    let direct = destinations.iter().position(|&(d, how)| !streams(how, len) && !is_source(d));
    let two = kernel::<T, O>();
    let both = both::<T, O>(len, destinations);
    let last = sources.len() - 1;
    let mut at = 0;
    while at < len {
        let n = BLOCK.min(len - at);
        // SAFETY: `at + n <= len`, which is the length of every view, by `check`.
        let source = |k: usize| unsafe { sources[k].as_ptr().add(at) };
        // SAFETY: as above.
        let destination = |k: usize| unsafe { destinations[k].0.as_ptr().add(at) };
        let mut sum = source(0);
        for k in 1..last {
            // SAFETY: `n <= BLOCK` bytes at each pointer: of views as above, or of a scratch block, the other one than the
            // pass before wrote.
            unsafe { two(scratch[k % 2], sum, source(k), n) };
            sum = scratch[k % 2];
        }
        if let Some(both) = both.filter(|_| last > 0 && n.is_multiple_of(LINE)) {
            // SAFETY: as above; `both` was given for these destinations, of which each block begins on a line of its own.
            unsafe { both(destination(0), destination(1), sum, source(last), n) };
        } else {
            if last > 0 {
                let to = direct.map_or(scratch[last % 2], destination);
                // SAFETY: as above: `to` is neither the block `sum` is in nor, by the choice of `direct`, a source.
                unsafe { two(to, sum, source(last), n) };
                sum = to;
            }
            for (k, &(_, how)) in destinations.iter().enumerate() {
                // SAFETY: as above.
                unsafe { store(destination(k), sum, n, streams(how, len)) };
            }
        }
        at += n;
    }
    if destinations.iter().any(|&(_, how)| streams(how, len)) {
        fence();
    }
}

/// An element type that can be reduced.
trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
}

/// What two elements become.
trait Operation {
    fn of<T: Number>(a: T, b: T) -> T;
}

struct Sum;
struct Min;
struct Max;

impl Operation for Sum {
    #[inline(always)]
    fn of<T: Number>(a: T, b: T) -> T {
        a.sum(b)
    }
}
impl Operation for Min {
    #[inline(always)]
    fn of<T: Number>(a: T, b: T) -> T {
        a.min(b)
    }
}
impl Operation for Max {
    #[inline(always)]
    fn of<T: Number>(a: T, b: T) -> T {
        a.max(b)
    }
}

macro_rules! number {
    ($t:ty, |$a:ident, $b:ident| $sum:expr, $nan:expr) => {
        impl Number for $t {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $sum
            }
            // Spelled out, not `f32::min`: which of -0.0 and 0.0 wins is then the same in every build.
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let least = if other < self { other } else { self };
                if $nan(self) { other } else { least }
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let most = if other > self { other } else { self };
                if $nan(self) { other } else { most }
            }
        }
    };
}
number!(f32, |a, b| a + b, f32::is_nan);
number!(f64, |a, b| a + b, f64::is_nan);
number!(i32, |a, b| a.wrapping_add(b), |_| false);
number!(i64, |a, b| a.wrapping_add(b), |_| false);
number!(u8, |a, b| a.wrapping_add(b), |_| false);

/// Stores `O` of the `len` bytes of elements at `a` and at `b` to `to`.
///
/// # Safety
/// `len` bytes at each pointer are valid, `to` for writing, and `to` overlaps neither of the others.
#[inline(always)]
unsafe fn two<T: Number, O: Operation>(to: *mut u8, a: *const u8, b: *const u8, len: usize) {
    let count = len / size_of::<T>();
    let (to, a, b) = (to.cast::<T>(), a.cast::<T>(), b.cast::<T>());
    for i in 0..count {
        // SAFETY: element `i < count` lies inside the `len` bytes the caller vouches for; any alignment.
        unsafe {
            to.add(i).write_unaligned(O::of(a.add(i).read_unaligned(), b.add(i).read_unaligned()));
        }
    }
}

/// A compiled [`two`].
type Kernel = unsafe fn(*mut u8, *const u8, *const u8, usize);

/// The best kernel for this machine.
#[inline]
fn kernel<T: Number, O: Operation>() -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        /// # Safety
        /// As [`two`], on a machine with AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn with_avx2<T: Number, O: Operation>(to: *mut u8, a: *const u8, b: *const u8, len: usize) {
            // SAFETY: the caller's promise is the same.
            unsafe { two::<T, O>(to, a, b, len) }
        }
        return with_avx2::<T, O>;
    }
    two::<T, O>
}

/// A compiled [`two_to_both`].
type Both = unsafe fn(*mut u8, *mut u8, *const u8, *const u8, usize);

/// The kernel that stores to the caller's output and into a message in one pass, where these destinations are such and this
/// machine has one.
#[inline]
fn both<T: Number, O: Operation>(len: usize, destinations: &[(ViewMut, Store)]) -> Option<Both> {
    #[cfg(target_arch = "x86_64")]
    if let [(_, Store::Plain), (message, how)] = *destinations
        && streams(how, len)
        && message.as_ptr().addr().is_multiple_of(LINE)
        && std::arch::is_x86_feature_detected!("avx2")
    {
        return Some(two_to_both::<T, O>);
    }
    let _ = (len, destinations);
    None
}

/// Stores `O` of the `len` bytes of elements at `a` and at `b` to `to`, and past the caches to `message`: line by line, so
/// that loads of what another core wrote and streaming stores are under way together (Zen 4, 1 MiB: a tenth of an all-reduce).
///
/// # Safety
/// On a machine with AVX2: `len` bytes, whole lines, at each pointer are valid, `to` and `message` for writing. `message` is
/// on a line and overlaps nothing else; `to` is the same as a source or overlaps none.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn two_to_both<T: Number, O: Operation>(
    to: *mut u8,
    message: *mut u8,
    a: *const u8,
    b: *const u8,
    len: usize,
) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256};
    const VECTOR: usize = size_of::<__m256i>();
    let mut line = [0u8; LINE];
    for at in (0..len).step_by(LINE) {
        // SAFETY: whole lines, so `at + LINE <= len`: inside what the caller vouches for. `line` is of that size, and stays in registers.
        unsafe {
            two::<T, O>(line.as_mut_ptr(), a.add(at), b.add(at), LINE);
            for half in [0, VECTOR] {
                let vector = _mm256_loadu_si256(line.as_ptr().add(half).cast());
                _mm256_storeu_si256(to.add(at + half).cast(), vector);
                _mm256_stream_si256(message.add(at + half).cast(), vector);
            }
        }
    }
}

/// Whether a store of `len` bytes goes past the caches.
#[inline]
fn streams(how: Store, len: usize) -> bool {
    how == Store::Streaming && len >= STREAM_FROM && has_vectors()
}

#[inline]
fn has_vectors() -> bool {
    // The interpreter has no streaming stores.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return std::arch::is_x86_feature_detected!("avx");
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Makes streamed bytes visible before whatever is stored next: a message must not be published before its bytes.
#[inline]
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE belongs to every x86_64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Stores `len` bytes from `from` to `to`.
///
/// # Safety
/// `len` bytes at both are valid, `to` for writing; they are the same or do not overlap. `streams` only where `has_vectors`.
#[inline]
unsafe fn store(to: *mut u8, from: *const u8, len: usize, streams: bool) {
    if std::ptr::eq(to, from) {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if streams || len >= STREAM_FROM && has_vectors() {
        // SAFETY: the caller's promise; `has_vectors` said so, here or before.
        unsafe {
            if streams { by_vectors::<true>(to, from, len) } else { by_vectors::<false>(to, from, len) }
        };
        return;
    }
    debug_assert!(!streams, "streaming where it cannot be");
    // SAFETY: the caller's promise. An overlap that breaks it garbles bytes but is no undefined behaviour.
    unsafe { std::ptr::copy(from, to, len) };
}

/// [`store`] by vectors that are aligned where they are stored, past the caches or through them; but for the bytes before and
/// after whole vectors. The C library's copy is three times slower where it uses `rep movsb` and the destination is
/// not on a line, as any large allocation's is not (Zen 4, 128 KiB read from another core's streamed stores: 56 against 173 us
/// per MiB).
///
/// # Safety
/// As `store`, on a machine with AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn by_vectors<const STREAM: bool>(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_lddqu_si256, _mm256_store_si256, _mm256_stream_si256};
    const VECTOR: usize = size_of::<__m256i>();
    let head = to.align_offset(VECTOR).min(len);
    let body = (len - head) / VECTOR * VECTOR;
    let tail = head + body;
    // SAFETY: `head <= tail <= len`, so all offsets are inside what the caller vouches for; `to + head` and whatever is
    // whole vectors after it is aligned, as these stores require.
    unsafe {
        std::ptr::copy(from, to, head);
        let mut at = head;
        while at < tail {
            // Not a plain load: the compiler would make a call of the C library's copy of the loop.
            let vector = _mm256_lddqu_si256(from.add(at).cast());
            if STREAM {
                _mm256_stream_si256(to.add(at).cast(), vector);
            } else {
                _mm256_store_si256(to.add(at).cast(), vector);
            }
            at += VECTOR;
        }
        std::ptr::copy(from.add(tail), to.add(tail), len - tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Element;

    /// Bytes with room to be misaligned, and guards around.
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
            // SAFETY: the tests keep the buffer while they use the view, and touch it through the view only meanwhile.
            unsafe { ViewMut::new(self.bytes.as_mut_ptr().add(self.at), self.len) }
        }
        fn check<T: Element + Bits>(&self, expected: &[T], what: &str) {
            let found: Vec<T> = self.bytes[self.at..self.at + self.len]
                .chunks_exact(size_of::<T>())
                // SAFETY: a chunk has the bytes of one element, and any bytes are one.
                .map(|c| unsafe { c.as_ptr().cast::<T>().read_unaligned() })
                .collect();
            assert_eq!(found.len(), expected.len(), "{what}");
            for (i, (f, e)) in found.iter().zip(expected).enumerate() {
                assert_eq!(f.bits(), e.bits(), "{what}: element {i}");
            }
            let around = self.bytes[..self.at].iter().chain(&self.bytes[self.at + self.len..]);
            assert!(around.copied().all(|b| b == GUARD), "{what}: written outside");
        }
    }

    /// Element types as the tests make, compare and (slowly) reduce them.
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
                match op { ReduceOp::Sum => a.wrapping_add(b), ReduceOp::Min => Ord::min(a, b), ReduceOp::Max => Ord::max(a, b) }
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
                match op { ReduceOp::Sum => a + b, ReduceOp::Min => a.min(b), ReduceOp::Max => a.max(b) }
            }
        })+};
    }
    bits_int!(i32, i64, u8);
    bits_float!(f32, f64);

    fn case<T: Bits>(
        op: ReduceOp,
        count: usize,
        nsources: usize,
        misaligned: usize,
        in_place: Option<usize>,
    ) {
        let what =
            format!("{:?} {op} x{count}, {nsources} sources, +{misaligned}, in place {in_place:?}", T::DTYPE);
        let values: Vec<Vec<T>> = (0..nsources as u64)
            .map(|s| (0..count as u64).map(|i| T::make(s * 1_000_003 + i)).collect())
            .collect();
        let expected: Vec<T> = (0..count)
            .map(|i| values[1..].iter().fold(values[0][i], |a, v| T::reduce(op, a, v[i])))
            .collect();
        let mut sources: Vec<Buffer> =
            values.iter().enumerate().map(|(s, v)| Buffer::of(v, (misaligned * (s + 1)) % 64)).collect();
        let views: Vec<View> = sources.iter_mut().map(|b| b.view().read()).collect();
        let mut first = Buffer::new(count * size_of::<T>(), misaligned);
        let mut second = Buffer::new(count * size_of::<T>(), 0);
        let to = in_place.map_or_else(|| first.view(), |k| sources[k].view());
        let how = if misaligned.is_multiple_of(2) { Store::Plain } else { Store::Streaming };
        combine(op, T::DTYPE, &views, &[(to, how), (second.view(), Store::Streaming)]);
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
            both::<T, Min>();
            both::<T, Max>();
        }
        ops::<f32>();
        ops::<f64>();
        ops::<i32>();
        ops::<i64>();
        ops::<u8>();
    }

    #[test]
    fn of_two_floats_the_one_that_is_not_nan() {
        for op in [ReduceOp::Min, ReduceOp::Max] {
            let mut a = Buffer::of(&[f64::NAN, 1.0, f64::NAN, -0.0], 0);
            let mut b = Buffer::of(&[2.0, f64::NAN, f64::NAN, 0.0], 0);
            let mut to = Buffer::new(32, 0);
            combine(op, Datatype::F64, &[a.view().read(), b.view().read()], &[(to.view(), Store::Plain)]);
            to.check(&[2.0, 1.0, f64::NAN, -0.0], "NaN");
        }
    }

    #[test]
    fn a_copy_arrives_however_it_is_stored_and_whatever_the_alignment() {
        let lengths: &[usize] =
            if cfg!(miri) { &[0, 1, 4099] } else { &[0, 1, 63, 4095, 4096, 4099, 100_003] };
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
        combine(ReduceOp::Sum, Datatype::F32, &[a.view().read()], &[(b.view(), Store::Plain)]);
    }
}
