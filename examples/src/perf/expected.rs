//! The reference: what a result must be, computed from the inputs of all ranks in another way than
//! ccl does, and without its code.
//!
//! Integers are reduced in 128 bits and then cut; an average is the quotient of what is left,
//! truncated toward zero. Floats are reduced in double precision, with the error of each step kept
//! beside the result, so that the reference is as good as exact for doubles too. With *n* ranks,
//! values *x* and the unit roundoff *u* of the stored type, a result may differ from that by
//!
//! | | at most |
//! |---|---|
//! | exact inputs, minimum, maximum, copies | 0 |
//! | sum, also of exact products | *s = (n - 1) u (sum of \|x\|)* |
//! | product | *((1 + u)^(n - 1) - 1) \|product\|* |
//! | average, divided once | *(s + 2 u (\|sum\| + s)) / n* |
//! | average of short floats | *d + (n - 1) u (m + d)*, where *m = (sum of \|x\|) / n* |
//!
//! The bound of the sum holds for each order of n - 1 additions, however large n is (Jeannerod and
//! Rump 2013). That of the product does since each of n - 1 multiplications rounds once, and no
//! part of the product is subnormal. A quotient is rounded to the type, and to the 24 bits of a
//! float first if the type is shorter. Short floats are divided before they are summed: multiplied
//! by a float near 1/n, so that their quotients differ by *d = (u + 2^-22) m + n t / 2* in all from
//! what they are, where *t* is the smallest number of the type: some may be subnormal.
//!
//! ccl combines small floats in 32 bits and rounds what it stores. It rounds to the stored type
//! less often than n - 1 times then; or each time, and two values are rounded twice: first to the
//! 24 bits of a float. That gives the same as once, since 24 is at least 2 * 11 + 2, for the 11
//! bits of a half.
//!
//! Nor does it matter where the quotient of an exact sum is rounded twice: to *q* bits first, then
//! to *p*. In units of its last bit the sum is an integer *k* of at most 2^p. A number half way
//! between two of the type is *h / 2^b* with h < 2^(p + 1) and b >= 0, if it is near k / n. If it
//! is not k / n itself, it differs from that by |k 2^b - n h| / (n 2^b), so at least by the part
//! 1 / (n h) of itself; the first rounding moves the quotient by the part 2^-q, and not across a
//! number of q bits. So both roundings give what one does for n < 2^(q - p - 2): for up to 2^14
//! ranks where ccl divides a bfloat16 (q = 24, p = 8), and 2^27 where the reference divides a float
//! (q = 53, p = 24).

use ccl::ReduceOp;

use super::datum::{Datum, Form, Format, integer, power};
use super::inputs::{Column, Inputs, multiplier};

/// What an element must be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Expected {
    /// Exactly this.
    Bits(u64),
    /// A float near `high + low`.
    Near {
        /// The number.
        high: f64,
        /// What it lacks.
        low: f64,
        /// The largest difference that rounding explains.
        within: f64,
    },
}

impl Expected {
    /// Whether an element is right.
    #[must_use]
    pub fn admits<T: Datum>(&self, found: T) -> bool {
        match (*self, T::FORM) {
            (Self::Bits(bits), _) => found.bits() == bits,
            (Self::Near { high, low, within }, Form::Float(format)) => {
                ((format.decode(found.bits()) - high) - low).abs() <= within
            }
            (Self::Near { .. }, Form::Integer { .. }) => false,
        }
    }
}

/// What the reduction of all ranks' elements at `index` must be.
#[must_use]
pub fn reduction<T: Datum>(inputs: &Inputs<T>, op: ReduceOp, index: u64) -> Expected {
    let column = inputs.column(index);
    match T::FORM {
        Form::Integer { signed } => Expected::Bits(integers(&column, op, signed).bits()),
        Form::Float(format) => floats(&column, op, format, inputs.are_exact()),
    }
}

fn integers<T: Datum>(column: &Column<'_, T>, op: ReduceOp, signed: bool) -> T {
    let combine = match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => i128::wrapping_add,
        ReduceOp::Prod => i128::wrapping_mul,
        ReduceOp::Min => Ord::min,
        ReduceOp::Max => Ord::max,
    };
    let number = |datum: T| integer::<T>(datum.bits(), signed);
    let all = (0..).zip(column.all()).map(|(rank, datum)| match op {
        ReduceOp::PreMulSum => number(datum) * i128::from(multiplier(rank)),
        _ => number(datum),
    });
    let combined = T::from_bits(all.reduce(combine).unwrap_or_default() as u64);
    match op {
        ReduceOp::Avg => T::from_bits((number(combined) / i128::from(column.nranks())) as u64),
        _ => combined,
    }
}

/// A reduction of floats, and what its bound follows from.
struct Reduced {
    high: f64,
    /// What `high` lacks.
    low: f64,
    magnitudes: f64,
    steps: f64,
}

impl Reduced {
    fn of(op: ReduceOp, mut all: impl Iterator<Item = f64>) -> Self {
        let first = all.next().unwrap_or_default();
        let (mut high, mut low, mut magnitudes, mut steps) = (first, 0.0, first.abs(), 0.0);
        for x in all {
            match op {
                ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => {
                    let sum = high + x;
                    let rest = sum - high;
                    low += (high - (sum - rest)) + (x - rest);
                    high = sum;
                }
                ReduceOp::Prod => {
                    let product = high * x;
                    low = low * x + high.mul_add(x, -product);
                    high = product;
                }
                ReduceOp::Min => high = high.min(x),
                ReduceOp::Max => high = high.max(x),
            }
            magnitudes += x.abs();
            steps += 1.0;
        }
        Self { high, low, magnitudes, steps }
    }

    /// The quotient of the sum and a number of ranks.
    fn over(&self, ranks: f64) -> Self {
        let high = self.high / ranks;
        let low = ((-high).mul_add(ranks, self.high) + self.low) / ranks;
        Self { high, low, ..*self }
    }
}

fn floats<T: Datum>(column: &Column<'_, T>, op: ReduceOp, format: Format, exact: bool) -> Expected {
    let all = (0..).zip(column.all()).map(|(rank, datum)| {
        let factor = if op == ReduceOp::PreMulSum { multiplier(rank) } else { 1 };
        format.decode(datum.bits()) * f64::from(factor)
    });
    let (reduced, ranks) = (Reduced::of(op, all), f64::from(column.nranks()));
    let Reduced { magnitudes, steps, .. } = reduced;
    let unit = format.unit_roundoff();
    let sum = steps * unit * magnitudes;
    let within = match op {
        _ if exact => 0.0,
        ReduceOp::Sum | ReduceOp::PreMulSum => sum,
        ReduceOp::Avg if T::FORM.is_short() => {
            let mean = magnitudes / ranks;
            let divided = (unit + power(-22)) * mean + ranks * format.smallest() / 2.0;
            divided + steps * unit * (mean + divided)
        }
        ReduceOp::Avg => (sum + 2.0 * unit * (reduced.high.abs() + sum)) / ranks,
        // Without cancellation where the unit is as small as that of the reference.
        ReduceOp::Prod => (steps * unit.ln_1p()).exp_m1() * reduced.high.abs(),
        ReduceOp::Min | ReduceOp::Max => 0.0,
    };
    let Reduced { high, low, .. } = if op == ReduceOp::Avg { reduced.over(ranks) } else { reduced };
    if within == 0.0 { Expected::Bits(format.encode(high)) } else { Expected::Near { high, low, within } }
}
