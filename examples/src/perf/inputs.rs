//! The inputs: each element is a pure function of rank, index, iteration and seed, so that every
//! rank knows what every other one has.
//!
//! **Exact** inputs are chosen such that their reduction, and each part of it in any order, is a
//! number of the type: nothing is ever rounded, and the result must be right bit by bit. The idea
//! is that of nccl-tests. A *budget* is divided among the ranks:
//!
//! - Sum of floats: multiples of one power of two, whose magnitudes add up to no more than the
//!   significand holds. So do those of each part of the sum. Half of that where each input is
//!   multiplied by 1 or 2 first.
//! - Average of floats: the same, so that only the quotient is rounded. Short floats (16 or 8 bits,
//!   but not bfloat16) are divided first: their quotients are such multiples, if the number of
//!   ranks is a power of two. If not, they are rounded whatever the inputs are, and these are
//!   random.
//! - Product of floats: powers of two, whose exponents add up to no more than the span; one rank
//!   has an odd significand. Each part is that significand, or 1, times a power of two.
//! - Integers: any bits, since they wrap; odd ones for a product, which would soon be 0 otherwise.
//! - Minimum, maximum and copies: any bits but NaN, infinities and -0.
//!
//! Where there are more ranks than budget, as with floats of 8 bits, some have the neutral element:
//! which ones changes from element to element.
//!
//! **Random** inputs are uniform: floats from -1 to 1, for a product with magnitudes from 1/2 to 2,
//! as many as the span allows; integers from -100 to 100, or 0 to 200.

use std::marker::PhantomData;

use ccl::ReduceOp;
use ccl::seed::Seed;

use super::datum::{Datum, Form, Format, power};

/// How the inputs are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Nothing is rounded.
    Exact,
    /// Uniform in a range.
    Random,
}

/// The inputs of all ranks in one iteration.
#[derive(Clone, Debug)]
pub struct Inputs<T: Datum> {
    family: Family,
    op: Option<ReduceOp>,
    /// How many powers of two there are, of which all addends are multiples.
    units: u64,
    /// By what the inputs are divided before they are summed.
    divisor: f64,
    /// What is divided among the ranks at each element, and how much each rank gets.
    budget: u64,
    each: u64,
    /// What all ranks share at an element is drawn from this.
    common: u64,
    /// What a rank draws its own from.
    ranks: Vec<u64>,
    elements: PhantomData<T>,
}

/// The inputs of all ranks for one element.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a, T: Datum> {
    inputs: &'a Inputs<T>,
    index: u64,
    /// The rank whose turn is the first.
    first: u64,
    /// The power of two that all addends are multiples of.
    unit: f64,
}

/// What a rank multiplies its inputs by in a pre-multiplied sum, as in nccl-tests. Powers of two:
/// products are exact.
#[must_use]
pub const fn multiplier(rank: u32) -> u32 {
    1 + rank % 2
}

/// 64 random bits, for each pair of numbers other ones.
const fn mix(key: u64, number: u64) -> u64 {
    Seed(key ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03)).bits()
}

/// A number below `n`, by the upper bits of `random`.
const fn below(random: u64, n: u64) -> u64 {
    ((random as u128 * n as u128) >> 64) as u64
}

/// A number from `-most` to `most`.
const fn within(random: u64, most: u64) -> i64 {
    below(random, 2 * most + 1) as i64 - most as i64
}

impl<T: Datum> Inputs<T> {
    /// The inputs of `nranks` ranks; `op` is `None` where nothing is reduced.
    #[must_use]
    pub fn new(family: Family, op: Option<ReduceOp>, nranks: u32, seed: u64, iteration: u64) -> Self {
        let key = mix(mix(seed, 1), iteration);
        let (budget, span) = match (T::FORM, op) {
            (Form::Float(format), Some(ReduceOp::Sum | ReduceOp::Avg)) => {
                (1 << format.precision(), format.span)
            }
            (Form::Float(format), Some(ReduceOp::PreMulSum)) => (1 << (format.precision() - 1), format.span),
            (Form::Float(format), Some(ReduceOp::Prod)) => (format.span as u64, format.span),
            _ => (0, 0),
        };
        let is_divided_first = op == Some(ReduceOp::Avg) && T::FORM.is_short();
        let divisor = if is_divided_first { nranks } else { 1 };
        // An input has a part of the budget, at least 1, and must not be too large before it is
        // divided.
        let excess = u64::from(divisor).checked_div(budget).and_then(u64::checked_ilog2).unwrap_or(0) as i32;
        let is_rounded = !divisor.is_power_of_two() || excess > 2 * span;
        Self {
            family: if is_rounded { Family::Random } else { family },
            op,
            units: (2 * span - excess).max(0) as u64 + 1,
            divisor: divisor.into(),
            budget,
            each: budget / u64::from(nranks),
            common: mix(key, 0),
            ranks: (0..u64::from(nranks)).map(|rank| mix(key, rank + 1)).collect(),
            elements: PhantomData,
        }
    }

    /// Whether results are compared bit by bit.
    #[must_use]
    pub const fn are_exact(&self) -> bool {
        matches!(self.family, Family::Exact)
    }

    /// The inputs for one element.
    #[must_use]
    pub fn column(&self, index: u64) -> Column<'_, T> {
        let common = mix(self.common, index);
        let unit = match T::FORM {
            Form::Float(format) => power(below(common.rotate_left(32), self.units) as i32 - format.span),
            Form::Integer { .. } => 1.0,
        };
        Column { inputs: self, index, first: below(common, self.ranks.len() as u64), unit }
    }

    /// The input of a rank at an index.
    #[must_use]
    pub fn datum(&self, rank: u32, index: u64) -> T {
        self.column(index).datum(rank)
    }
}

impl<T: Datum> Column<'_, T> {
    /// The inputs of all ranks.
    pub fn all(&self) -> impl Iterator<Item = T> {
        (0..self.inputs.ranks.len() as u32).map(|rank| self.datum(rank))
    }

    /// How many they are.
    #[must_use]
    pub const fn nranks(&self) -> u32 {
        self.inputs.ranks.len() as u32
    }

    /// The input of a rank.
    #[must_use]
    pub fn datum(&self, rank: u32) -> T {
        let random = mix(self.inputs.ranks[rank as usize], self.index);
        let is_product = self.inputs.op == Some(ReduceOp::Prod);
        T::from_bits(match (self.inputs.family, T::FORM) {
            (Family::Exact, Form::Integer { .. }) => random | u64::from(is_product),
            (Family::Exact, Form::Float(format)) => match self.inputs.op {
                Some(ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum) => {
                    format.encode(self.part(rank, random) as f64 * self.unit * self.inputs.divisor)
                }
                Some(ReduceOp::Prod) => format.encode(self.factor(format, rank, random)),
                Some(ReduceOp::Min | ReduceOp::Max) | None => any_number(format, random),
            },
            (Family::Random, Form::Integer { signed: true }) => within(random, 100) as u64,
            (Family::Random, Form::Integer { signed: false }) => below(random, 201),
            (Family::Random, Form::Float(format)) if is_product => {
                format.encode(self.random_factor(rank, random))
            }
            (Family::Random, Form::Float(format)) => format.encode(Seed(random).signed_unit()),
        })
    }

    /// When it is the rank's turn to get a part of the budget: a different rank is first at each
    /// element.
    fn turn(&self, rank: u32) -> u64 {
        let (n, at) = (self.inputs.ranks.len() as u64, u64::from(rank) + self.first);
        if at < n { at } else { at - n }
    }

    /// The part of the budget that a rank has, with a random sign.
    fn part(&self, rank: u32, random: u64) -> i64 {
        match self.inputs.each {
            0 if self.turn(rank) < self.inputs.budget => within(random, 1),
            each => within(random, each),
        }
    }

    fn factor(&self, format: Format, rank: u32, random: u64) -> f64 {
        let exponent = self.part(rank, random) as i32;
        let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
        let significand =
            if self.turn(rank) == 0 { mix(random, 1) >> (64 - format.precision()) | 1 } else { 1 };
        sign * significand as f64 * power(exponent)
    }

    fn random_factor(&self, rank: u32, random: u64) -> f64 {
        let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
        let is_neutral = self.turn(rank) >= self.inputs.budget;
        // Uniform from 1/2 to 2.
        sign * if is_neutral { 1.0 } else { 1.25 + 0.75 * Seed(random).signed_unit() }
    }
}

/// Any bits, less what is not compared in one way by all: NaN, infinities and -0. A type without
/// infinities loses some large numbers.
const fn any_number(format: Format, random: u64) -> u64 {
    let lowest = 1 << format.mantissa;
    let exponent = format.sign() - lowest;
    let finite = if random & exponent == exponent { random ^ lowest } else { random };
    if finite & (format.sign() - 1) == 0 { 0 } else { finite }
}

#[cfg(test)]
mod tests;
