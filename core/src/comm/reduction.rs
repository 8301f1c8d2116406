//! How a call combines elements: an operator, and of a pre-multiplied sum a factor.

use crate::memory::{Element, factor};
use crate::types::ReduceOp;

/// How a call combines elements. Most calls pass a [`ReduceOp`], which becomes one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reduction<T: Element> {
    op: ReduceOp,
    factor: Option<T>,
}

impl<T: Element> Reduction<T> {
    /// The sum of what each rank has multiplied by its factor. The factors of the ranks may differ:
    /// they are not compared.
    ///
    /// Products are rounded to `T` before they are added.
    #[must_use]
    pub const fn pre_mul_sum(factor: T) -> Self {
        Self { op: ReduceOp::PreMulSum, factor: Some(factor) }
    }

    /// The operator.
    #[must_use]
    pub const fn op(&self) -> ReduceOp {
        self.op
    }

    /// The factor, as its operation reads it.
    pub(super) fn factor(&self) -> Option<u64> {
        self.factor.map(factor)
    }
}

impl<T: Element> From<ReduceOp> for Reduction<T> {
    fn from(op: ReduceOp) -> Self {
        Self { op, factor: None }
    }
}
