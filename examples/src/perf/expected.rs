//! The reference: what a result must be, computed from the inputs of all ranks in another way than
//! ccl does, and without its code.
//!
//! Integers are reduced in 128 bits and then cut. Floats are reduced in double precision, with the
//! error of each step kept beside the result, so that the reference is as good as exact for doubles
//! too. With *n* ranks, values *x* and the unit roundoff *u* of the stored type, a result may
//! differ from that by
//!
//! | | at most |
//! |---|---|
//! | exact inputs, minimum, maximum, copies | 0 |
//! | sum | *(n - 1) u (sum of \|x\|)* |
//! | product | *((1 + u)^(n - 1) - 1) \|product\|* |
//!
//! The bound of the sum holds for each order of n - 1 additions, however large n is (Jeannerod and
//! Rump 2013). That of the product does since each of n - 1 multiplications rounds once, and no
//! part of the product is subnormal.
//!
//! ccl combines small floats in 32 bits and rounds what it stores. It rounds to the stored type
//! less often than n - 1 times then; or each time, and two values are rounded twice: first to the
//! 24 bits of a float. That gives the same as once, since 24 is at least 2 * 11 + 2, for the 11
//! bits of a half.

use ccl::ReduceOp;

use super::datum::{Datum, Form, Format, integer};
use super::inputs::{Column, Inputs};

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
        ReduceOp::Sum => i128::wrapping_add,
        ReduceOp::Prod => i128::wrapping_mul,
        ReduceOp::Min => Ord::min,
        ReduceOp::Max => Ord::max,
    };
    let all = column.all().map(|datum| integer::<T>(datum.bits(), signed));
    T::from_bits(all.reduce(combine).unwrap_or_default() as u64)
}

fn floats<T: Datum>(column: &Column<'_, T>, op: ReduceOp, format: Format, exact: bool) -> Expected {
    let mut all = column.all().map(|datum| format.decode(datum.bits()));
    let first = all.next().unwrap_or_default();
    // The result, what it lacks, the sum of magnitudes, and the number of steps.
    let (mut high, mut low, mut magnitudes, mut steps) = (first, 0.0, first.abs(), 0_i32);
    for x in all {
        match op {
            ReduceOp::Sum => {
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
        steps += 1;
    }
    let unit = format.unit_roundoff();
    let within = match op {
        _ if exact => 0.0,
        ReduceOp::Sum => f64::from(steps) * unit * magnitudes,
        // Without cancellation where the unit is as small as that of the reference.
        ReduceOp::Prod => (f64::from(steps) * unit.ln_1p()).exp_m1() * high.abs(),
        ReduceOp::Min | ReduceOp::Max => 0.0,
    };
    if within == 0.0 { Expected::Bits(format.encode(high)) } else { Expected::Near { high, low, within } }
}
