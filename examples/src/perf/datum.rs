//! The element types as the checks see them: their names in nccl-tests, their bits, and the numbers
//! that the bits stand for.
//!
//! The numbers of floats are computed here from their formats, not by the conversions that ccl
//! itself uses: a conversion that is wrong is then found like any other wrong result.

use ccl::{Datatype, Element, F8E4M3, F8E5M2, bf16, f16};

/// An element that can be made from bits, and compared by them.
pub trait Datum: Element {
    /// What its bits mean.
    const FORM: Form;

    /// Its bits, in the low end of a word.
    fn bits(self) -> u64;
    /// The element with these bits; higher bits are dropped.
    fn from_bits(bits: u64) -> Self;

    /// A small whole number.
    #[must_use]
    fn whole(number: u32) -> Self {
        Self::from_bits(match Self::FORM {
            Form::Integer { .. } => number.into(),
            Form::Float(format) => format.encode(number.into()),
        })
    }
}

/// What the bits of a type mean.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// An integer that wraps.
    Integer {
        /// Two's complement.
        signed: bool,
    },
    /// A binary float.
    Float(Format),
}

impl Form {
    /// Whether it is a float of few bits of exponent: sums are soon too large, and averages are
    /// divided first.
    #[must_use]
    pub const fn is_short(self) -> bool {
        matches!(self, Self::Float(format) if format.exponent < Format::FLOAT.0)
    }
}

/// A binary float: a sign, an exponent, a mantissa.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// Bits of the exponent.
    pub exponent: u32,
    /// Bits of the mantissa that are stored: the significand has one more.
    pub mantissa: u32,
    /// The inputs use powers of two from `-span` to `span`. A significand times `2^span` is still
    /// below the largest number, and `2^-span` is not subnormal.
    pub span: i32,
}

/// Implements the types, and lists them in the order of nccl-tests.
macro_rules! data {
    ($($name:literal $dtype:ident $t:ty as $bits:ty: $form:expr, $to:expr, $from:expr;)+) => {
        $(impl Datum for $t {
            const FORM: Form = $form;

            fn bits(self) -> u64 {
                let to: fn(Self) -> $bits = $to;
                u64::from(to(self))
            }
            fn from_bits(bits: u64) -> Self {
                let from: fn($bits) -> Self = $from;
                from(bits as $bits)
            }
        })+

        /// Every type and its name in nccl-tests.
        pub const TYPES: &[(&str, Datatype)] = &[$(($name, Datatype::$dtype)),+];

        /// Does something with the Rust type of elements of `dtype`.
        pub fn with_type<V: TypeVisitor>(dtype: Datatype, visitor: V) -> V::Output {
            match dtype {
                $(Datatype::$dtype => visitor.visit::<$t>(),)+
            }
        }
    };
}

/// What [`with_type`] does.
pub trait TypeVisitor {
    /// What comes of it.
    type Output;
    /// Does it with elements of type `T`.
    fn visit<T: Datum>(self) -> Self::Output;
}

const SIGNED: Form = Form::Integer { signed: true };
const UNSIGNED: Form = Form::Integer { signed: false };

const fn float(exponent: u32, mantissa: u32, span: i32) -> Form {
    Form::Float(Format { exponent, mantissa, span })
}

data! {
    "int8" I8 i8 as u8: SIGNED, |x| x as u8, |bits| bits as i8;
    "uint8" U8 u8 as u8: UNSIGNED, |x| x, |bits| bits;
    "int32" I32 i32 as u32: SIGNED, |x| x as u32, |bits| bits as i32;
    "uint32" U32 u32 as u32: UNSIGNED, |x| x, |bits| bits;
    "int64" I64 i64 as u64: SIGNED, |x| x as u64, |bits| bits as i64;
    "uint64" U64 u64 as u64: UNSIGNED, |x| x, |bits| bits;
    "half" F16 f16 as u16: float(5, 10, 4), f16::to_bits, f16::from_bits;
    "float" F32 f32 as u32: float(8, 23, 100), f32::to_bits, f32::from_bits;
    "double" F64 f64 as u64: float(11, 52, 900), f64::to_bits, f64::from_bits;
    "bfloat16" BF16 bf16 as u16: float(8, 7, 100), bf16::to_bits, bf16::from_bits;
    "f8e4m3" F8E4M3 F8E4M3 as u8: float(4, 3, 4), |x| x.to_bits(), F8E4M3::from_bits;
    "f8e5m2" F8E5M2 F8E5M2 as u8: float(5, 2, 12), |x| x.to_bits(), F8E5M2::from_bits;
}

/// The name of a type in nccl-tests.
#[must_use]
pub fn name(dtype: Datatype) -> &'static str {
    TYPES.iter().find(|(_, known)| *known == dtype).map_or("unknown", |(name, _)| name)
}

/// The integer with the low bits `bits` of a type `T`.
#[must_use]
pub fn integer<T: Datum>(bits: u64, signed: bool) -> i128 {
    let unused = 64 - 8 * size_of::<T>() as u32;
    if signed { i128::from((bits << unused) as i64 >> unused) } else { i128::from(bits) }
}

/// `2^exponent`, for the exponents of normal doubles.
#[must_use]
pub const fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl Format {
    /// Exponent and mantissa of what the processor reads and rounds itself.
    const FLOAT: (u32, u32) = (8, 23);
    const DOUBLE: (u32, u32) = (11, 52);

    /// Bits of the significand.
    #[must_use]
    pub const fn precision(self) -> u32 {
        self.mantissa + 1
    }

    /// The largest relative error of one rounding to nearest.
    #[must_use]
    pub const fn unit_roundoff(self) -> f64 {
        power(-(self.precision() as i32))
    }

    /// The smallest number above zero of a short float.
    #[must_use]
    pub const fn smallest(self) -> f64 {
        power(1 - self.bias() - self.mantissa as i32)
    }

    const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The bit of the sign.
    #[must_use]
    pub const fn sign(self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    /// The number of these bits. Infinities and NaN of small floats become large numbers: no input
    /// has them, and as a result they are wrong.
    #[must_use]
    pub fn decode(self, bits: u64) -> f64 {
        match (self.exponent, self.mantissa) {
            Self::FLOAT => return f32::from_bits(bits as u32).into(),
            Self::DOUBLE => return f64::from_bits(bits),
            _ => {}
        }
        let stored = (bits >> self.mantissa) as i32 & ((1 << self.exponent) - 1);
        let fraction = bits & ((1 << self.mantissa) - 1);
        let significand = if stored == 0 { fraction } else { fraction | 1 << self.mantissa };
        let magnitude = significand as f64 * power(stored.max(1) - self.bias() - self.mantissa as i32);
        if bits & self.sign() == 0 { magnitude } else { -magnitude }
    }

    /// The bits of a number, rounded to nearest, ties to even; zero has no sign. The number must
    /// not be too large for the format.
    #[must_use]
    pub fn encode(self, number: f64) -> u64 {
        // The sum of -0 and 0 is 0.
        match (self.exponent, self.mantissa) {
            Self::FLOAT => return (number as f32 + 0.0).to_bits().into(),
            Self::DOUBLE => return (number + 0.0).to_bits(),
            _ => {}
        }
        let magnitude = number.abs();
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - self.bias());
        let units = (magnitude * power(self.mantissa as i32 - exponent)).round_ties_even() as u64;
        // The highest bit of `units` is not stored: it adds one to the exponent, also where the
        // number was rounded up to the next power of two.
        let bits = (((exponent + self.bias() - 1) as u64) << self.mantissa) + units;
        if number < 0.0 && bits != 0 { bits | self.sign() } else { bits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl::seed::Seed;

    fn format<T: Datum>() -> Format {
        match T::FORM {
            Form::Float(format) => format,
            Form::Integer { .. } => unreachable!("a float"),
        }
    }

    /// All patterns of a small float, against another implementation of it.
    fn check<T: Datum>(to: impl Fn(T) -> f32, from: impl Fn(f32) -> T) {
        let format = format::<T>();
        let mut seed = Seed(5);
        for bits in 0..1_u64 << (8 * size_of::<T>()) {
            let (ours, theirs) = (format.decode(bits), f64::from(to(T::from_bits(bits))));
            if theirs.is_finite() {
                assert_eq!(ours, theirs, "{:?} {bits:#x}", T::DTYPE);
                assert_eq!(format.encode(ours), if ours == 0.0 { 0 } else { bits });
            }
            // 32 bits: some round a double twice.
            let number = (seed.signed_unit() * power((bits % 20) as i32 - 14)) as f32;
            let (ours, theirs) = (format.decode(format.encode(number.into())), to(from(number)));
            assert_eq!(ours, f64::from(theirs), "{:?} {number}", T::DTYPE);
        }
    }

    #[test]
    fn small_floats_are_read_and_rounded_as_elsewhere() {
        check(f16::to_f32, f16::from_f32);
        check(bf16::to_f32, bf16::from_f32);
        check(|x: F8E4M3| x.to_f32(), F8E4M3::from_f32);
        check(|x: F8E5M2| x.to_f32(), F8E5M2::from_f32);
    }

    #[test]
    fn floats_of_32_and_64_bits_are_read_and_rounded_as_by_the_processor() {
        let mut seed = Seed(6);
        for _ in 0..10_000 {
            let bits = seed.bits() as u32;
            let number = f64::from(f32::from_bits(bits));
            if number.is_finite() {
                assert_eq!(format::<f32>().decode(u64::from(bits)), number);
            }
            let number = seed.signed_unit();
            assert_eq!(format::<f32>().encode(number), u64::from((number as f32).to_bits()));
            assert_eq!(format::<f64>().encode(number), number.to_bits());
        }
        assert_eq!((format::<f64>().encode(-0.0), format::<f32>().encode(-0.0)), (0, 0));
    }

    #[test]
    fn the_span_fits_into_the_format() {
        fn fits<T: Datum>(largest: f64, normal: f64) {
            let Format { span, .. } = format::<T>();
            let smallest = format::<T>().decode(1);
            assert!(!T::FORM.is_short() || format::<T>().smallest() == smallest, "{:?}", T::DTYPE);
            let significand = (1_u64 << format::<T>().precision()) as f64;
            assert!(significand * power(span) <= largest && power(-span) >= normal, "{:?}", T::DTYPE);
        }
        fits::<F8E4M3>(448.0, power(-6));
        fits::<F8E5M2>(57_344.0, power(-14));
        fits::<f16>(65_504.0, power(-14));
        fits::<bf16>(f64::from(f32::MAX), power(-126));
        fits::<f32>(f64::from(f32::MAX), power(-126));
        fits::<f64>(f64::MAX, f64::MIN_POSITIVE);
    }

    #[test]
    fn integers_keep_their_sign() {
        assert_eq!((integer::<i8>(0xff, true), integer::<u8>(0xff, false)), (-1, 255));
        assert_eq!(integer::<u64>(u64::MAX, false), i128::from(u64::MAX));
        assert_eq!((i32::from_bits(u64::MAX).bits(), (-2_i8).bits()), (0xffff_ffff, 0xfe));
        assert_eq!(TYPES.len(), Datatype::ALL.len());
        assert_eq!((u8::whole(2), bf16::whole(2).to_f32(), F8E5M2::whole(2).to_f32()), (2, 2.0, 2.0));
    }
}
