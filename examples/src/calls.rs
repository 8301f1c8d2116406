//! One call of any kind, on data that is a function of rank, index and iteration, with its result
//! checked.

use ccl::{Communicator, Error, ErrorKind, Rank, ReduceOp, Result};
use clap::ValueEnum;

/// The call to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Call {
    /// All-reduce: the sum.
    AllReduce,
    /// All-gather.
    AllGather,
    /// Reduce-scatter: the sum.
    ReduceScatter,
    /// Broadcast from rank 0.
    Broadcast,
    /// Reduce to rank 0: the maximum.
    Reduce,
    /// Barrier.
    Barrier,
    /// All-to-all.
    AllToAll,
    /// Gather at rank 0.
    Gather,
    /// Scatter from rank 0.
    Scatter,
    /// Even ranks send to the next rank, odd ranks receive from the one before.
    Pair,
}

/// Element `index` of `rank` in `iteration`: whole numbers, so that sums are exact.
fn datum(rank: u32, index: usize, iteration: u64) -> f64 {
    (u64::from(rank) * 7 + index as u64 % 1_009 * 3 + iteration % 101) as f64
}

fn data(rank: u32, from: usize, count: usize, iteration: u64) -> Vec<f64> {
    (from..from + count).map(|index| datum(rank, index, iteration)).collect()
}

fn check(found: &[f64], expect: impl Fn(usize) -> f64) -> Result<()> {
    match found.iter().enumerate().find(|(index, value)| **value != expect(*index)) {
        None => Ok(()),
        Some((index, value)) => Err(Error::new(
            ErrorKind::System,
            format!("element {index} is {value} instead of {}: this is a bug of ccl", expect(index)),
        )),
    }
}

/// Makes the call once with `count` elements per rank.
///
/// # Errors
/// The error of the call, or a wrong result.
pub fn call(comm: &Communicator, which: Call, count: usize, iteration: u64) -> Result<()> {
    let (me, n) = (comm.rank().0, comm.nranks());
    let mine = data(me, 0, count, iteration);
    let sum = |index| (0..n).map(|rank| datum(rank, index, iteration)).sum::<f64>();
    match which {
        Call::AllReduce => {
            let mut output = vec![-1.0; count];
            comm.all_reduce(&mine, &mut output, ReduceOp::Sum)?;
            check(&output, sum)
        }
        Call::AllGather => {
            let mut output = vec![-1.0; count * n as usize];
            comm.all_gather(&mine, &mut output)?;
            check(&output, |at| datum((at / count) as u32, at % count, iteration))
        }
        Call::ReduceScatter => {
            let mut output = vec![-1.0; count];
            comm.reduce_scatter(&data(me, 0, count * n as usize, iteration), &mut output, ReduceOp::Sum)?;
            check(&output, |at| sum(me as usize * count + at))
        }
        Call::Broadcast => {
            let mut buffer = mine;
            comm.broadcast(&mut buffer, Rank(0))?;
            check(&buffer, |at| datum(0, at, iteration))
        }
        Call::Reduce => {
            let mut output = vec![-1.0; if me == 0 { count } else { 0 }];
            comm.reduce(&mine, &mut output, ReduceOp::Max, Rank(0))?;
            check(&output, |at| datum(n - 1, at, iteration))
        }
        Call::Barrier => comm.barrier(),
        Call::AllToAll => {
            let mut output = vec![-1.0; count * n as usize];
            comm.all_to_all(&data(me, 0, count * n as usize, iteration), &mut output)?;
            check(&output, |at| datum((at / count) as u32, me as usize * count + at % count, iteration))
        }
        Call::Gather => {
            let mut output = vec![-1.0; if me == 0 { count * n as usize } else { 0 }];
            comm.gather(&mine, &mut output, Rank(0))?;
            check(&output, |at| datum((at / count) as u32, at % count, iteration))
        }
        Call::Scatter => {
            let all = data(0, 0, if me == 0 { count * n as usize } else { 0 }, iteration);
            let mut output = vec![-1.0; count];
            comm.scatter(&all, &mut output, Rank(0))?;
            check(&output, |at| datum(0, me as usize * count + at, iteration))
        }
        Call::Pair if me % 2 == 0 && me + 1 < n => comm.send(&mine, Rank(me + 1)),
        Call::Pair if me % 2 == 1 => {
            let mut output = vec![-1.0; count];
            comm.recv(&mut output, Rank(me - 1))?;
            check(&output, |at| datum(me - 1, at, iteration))
        }
        Call::Pair => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_element_is_named() {
        check(&data(3, 0, 5, 2), |at| datum(3, at, 2)).unwrap();
        let error = check(&[23.0, 26.0, 0.0], |at| datum(3, at, 2)).unwrap_err();
        assert_eq!(error.what, "element 2 is 0 instead of 29: this is a bug of ccl");
    }
}
