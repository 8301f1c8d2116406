//! The inputs: each element is a pure function of rank, index, iteration and seed, so that every
//! rank knows what every other one has.
//!
//! **Exact** inputs are chosen such that their reduction, and each part of it in any order, is a
//! number of the type: nothing is ever rounded, and the result must be right bit by bit. The idea
//! is that of nccl-tests. A *budget* is divided among the ranks:
//!
//! - Sum of floats: multiples of one power of two, whose magnitudes add up to no more than the
//!   significand holds. So do those of each part of the sum.
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
        let budget = match (T::FORM, op) {
            (Form::Float(format), Some(ReduceOp::Sum)) => 1 << format.precision(),
            (Form::Float(format), Some(ReduceOp::Prod)) => format.span as u64,
            _ => 0,
        };
        Self {
            family,
            op,
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
            Form::Float(format) => power(within(common.rotate_left(32), format.span as u64) as i32),
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

    /// The input of a rank.
    #[must_use]
    pub fn datum(&self, rank: u32) -> T {
        let random = mix(self.inputs.ranks[rank as usize], self.index);
        let is_product = self.inputs.op == Some(ReduceOp::Prod);
        T::from_bits(match (self.inputs.family, T::FORM) {
            (Family::Exact, Form::Integer { .. }) => random | u64::from(is_product),
            (Family::Exact, Form::Float(format)) => match self.inputs.op {
                Some(ReduceOp::Sum) => format.encode(self.part(rank, random) as f64 * self.unit),
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
