//! Exactness, proved by computing in several orders; and the references of both families.

use ccl::{Datatype, ReduceOp};

use super::*;
use crate::perf::datum::{TYPES, TypeVisitor, integer, with_type};
use crate::perf::expected::{Expected, reduction};

/// Combines two elements as the type does, each result rounded to it.
fn combine<T: Datum>(op: ReduceOp, a: T, b: T) -> T {
    let float = |format: Format| {
        let (a, b) = (format.decode(a.bits()), format.decode(b.bits()));
        format.encode(match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => a + b,
            ReduceOp::Prod => a * b,
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
        })
    };
    let whole = |signed: bool| {
        let (a, b) = (integer::<T>(a.bits(), signed), integer::<T>(b.bits(), signed));
        (match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => a.wrapping_add(b),
            ReduceOp::Prod => a.wrapping_mul(b),
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
        }) as u64
    };
    T::from_bits(match T::FORM {
        Form::Float(format) => float(format),
        Form::Integer { signed } => whole(signed),
    })
}

/// What a rank contributes, rounded to the type.
fn contribution<T: Datum>(op: ReduceOp, (rank, x): (usize, T), nranks: usize) -> T {
    match (op, T::FORM) {
        (ReduceOp::PreMulSum, Form::Float(_)) if rank % 2 == 1 => combine(ReduceOp::Prod, x, T::whole(2)),
        (ReduceOp::PreMulSum, Form::Integer { .. }) if rank % 2 == 1 => combine(ReduceOp::Sum, x, x),
        (ReduceOp::Avg, Form::Float(format)) if [2, 3, 10].contains(&format.mantissa) => {
            let quotient = format.decode(x.bits()) as f32 * (1.0 / nranks as f32);
            T::from_bits(format.encode(quotient.into()))
        }
        _ => x,
    }
}

/// What becomes of all that was combined: a quotient in the precision of ccl.
fn conclusion<T: Datum>(op: ReduceOp, all: T, nranks: usize) -> T {
    match (op, T::FORM) {
        (ReduceOp::Avg, Form::Integer { signed }) => {
            T::from_bits((integer::<T>(all.bits(), signed) / nranks as i128) as u64)
        }
        (ReduceOp::Avg, Form::Float(format)) if format.mantissa == 52 => {
            T::from_bits(format.encode(format.decode(all.bits()) / nranks as f64))
        }
        (ReduceOp::Avg, Form::Float(format)) if [7, 23].contains(&format.mantissa) => {
            let quotient = format.decode(all.bits()) as f32 / nranks as f32;
            T::from_bits(format.encode(quotient.into()))
        }
        _ => all,
    }
}

/// Combines neighbours, then their results, and so on.
fn pairwise<T: Datum>(op: ReduceOp, data: &[T]) -> T {
    match data {
        [one] => *one,
        _ => {
            let (left, right) = data.split_at(data.len() / 2);
            combine(op, pairwise(op, left), pairwise(op, right))
        }
    }
}

/// The reduction in several orders: forwards, backwards, in a tree, and shuffled.
fn orders<T: Datum>(op: ReduceOp, inputs: &[T]) -> Vec<T> {
    let nranks = inputs.len();
    let data: Vec<T> = inputs.iter().copied().enumerate().map(|own| contribution(op, own, nranks)).collect();
    let data = &data[..];
    let chain = |data: &[T]| data[1..].iter().fold(data[0], |a, b| combine(op, a, *b));
    let (mut backwards, mut shuffled) = (data.to_vec(), data.to_vec());
    backwards.reverse();
    Seed(3).shuffle(&mut shuffled);
    [chain(data), chain(&backwards), pairwise(op, data), chain(&shuffled), pairwise(op, &shuffled)]
        .map(|all| conclusion(op, all, nranks))
        .to_vec()
}

/// Whether results must be right bit by bit: only a short float cannot be divided by any number.
fn is_determined<T: Datum>(family: Family, op: ReduceOp, nranks: u32) -> bool {
    let is_divided = op == ReduceOp::Avg && T::FORM.is_short();
    family == Family::Exact && (!is_divided || nranks.is_power_of_two())
}

/// Checks one type, with many numbers of ranks.
struct Check {
    family: Family,
    op: ReduceOp,
}

impl TypeVisitor for Check {
    /// How many different results there were.
    type Output = usize;

    fn visit<T: Datum>(self) -> usize {
        let mut different = std::collections::BTreeSet::new();
        for nranks in [1, 2, 3, 5, 8, 17, 64, 100] {
            for iteration in 0..4 {
                let inputs = Inputs::<T>::new(self.family, Some(self.op), nranks, 9, iteration);
                for index in 0..25 {
                    let data: Vec<T> = inputs.column(index).all().collect();
                    let expected = reduction(&inputs, self.op, index);
                    for found in orders(self.op, &data) {
                        let bits = found.bits();
                        let what = format!("{:?} {} of {nranks}: {bits:#x}", T::DTYPE, self.op);
                        assert!(expected.admits(found), "{what}, expected {expected:?}");
                        different.insert(bits);
                    }
                    if is_determined::<T>(self.family, self.op, nranks) {
                        assert!(matches!(expected, Expected::Bits(_)), "{expected:?}");
                    }
                }
            }
        }
        different.len()
    }
}

fn check(family: Family) {
    for &(name, dtype) in TYPES {
        for &op in ReduceOp::ALL {
            let different = with_type(dtype, Check { family, op });
            // A reduction that is always the same would not find much.
            assert!(different >= 15, "{name} {op}: {different} results");
        }
    }
}

#[test]
fn exact_inputs_give_the_same_bits_in_each_order() {
    check(Family::Exact);
}

#[test]
fn random_inputs_stay_within_the_bound_in_each_order() {
    check(Family::Random);
}

/// A result that lies beside the right one is found.
#[test]
fn a_neighbour_of_an_exact_result_is_wrong() {
    let inputs = Inputs::<f32>::new(Family::Exact, Some(ReduceOp::Sum), 3, 1, 0);
    let right = inputs.column(4).all().sum::<f32>();
    let expected = reduction(&inputs, ReduceOp::Sum, 4);
    assert!(expected.admits(right) && !expected.admits(right.next_up()) && !expected.admits(f32::NAN));
    let near = Expected::Near { high: 1.0, low: 0.0, within: 0.25 };
    assert!(near.admits(1.25_f32) && !near.admits(1.26_f32) && !near.admits(f32::NAN));
    assert!(!near.admits(f32::INFINITY));
}

/// What no rank may have, since comparing it is not the same everywhere.
#[test]
fn no_input_is_nan_or_minus_zero() {
    struct Fine;
    impl TypeVisitor for Fine {
        type Output = bool;
        fn visit<T: Datum>(self) -> bool {
            let Form::Float(format) = T::FORM else { return true };
            let exponent = format.sign() - (1 << format.mantissa);
            let fine = |bits: u64| bits != format.sign() && bits & exponent != exponent;
            ReduceOp::ALL.iter().copied().map(Some).chain([None]).all(|op| {
                [Family::Exact, Family::Random].into_iter().all(|family| {
                    let inputs = Inputs::<T>::new(family, op, 5, 2, 1);
                    (0..2_000).all(|index| inputs.column(index).all().all(|x| fine(x.bits())))
                })
            })
        }
    }
    assert!(Datatype::ALL.iter().all(|dtype| with_type(*dtype, Fine)));
}

#[test]
fn inputs_depend_on_rank_index_iteration_and_seed() {
    let datum = |rank, index, iteration, seed| {
        Inputs::<u64>::new(Family::Exact, None, 4, seed, iteration).datum(rank, index)
    };
    let all = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0)];
    let made: std::collections::BTreeSet<u64> = all.map(|(r, x, i, s)| datum(r, x, i, s)).into();
    assert_eq!(made.len(), all.len());
    assert_eq!(datum(2, 7, 3, 5), datum(2, 7, 3, 5));
}
