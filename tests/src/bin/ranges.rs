//! One rank that makes every kind of call many times, as any program does; then prints a line, and
//! leaves.
#![expect(clippy::print_stdout, reason = "where it is held")]

use ccl::{Communicator, Rank, ReduceOp, Result};
use ccl_tests::nvtx::{BYTES, LOOSE_BYTES, LOOSE_ROUNDS, ROUNDS};

/// Calls that block until they have ended.
fn blocking(comm: &Communicator) -> Result<()> {
    let (me, n) = (comm.rank(), comm.nranks() as usize);
    let mut one = vec![1.0_f32; BYTES / 4];
    let mut all = vec![1.0_f32; BYTES / 4 * n];
    comm.all_reduce_in_place(&mut one, ReduceOp::Sum)?;
    comm.all_gather(&one, &mut all)?;
    comm.reduce_scatter(&all, &mut one, ReduceOp::Max)?;
    comm.broadcast(&mut one, Rank(1))?;
    comm.reduce_in_place(&mut one, ReduceOp::Min, Rank(0))?;
    comm.barrier()?;
    if me.0 % 2 == 0 { comm.send(&one, Rank(me.0 + 1)) } else { comm.recv(&mut one, Rank(me.0 - 1)) }
}

/// Calls that end together, and an asynchronous call.
fn loose(comm: &Communicator) -> Result<()> {
    let (me, n) = (comm.rank().0, comm.nranks());
    let (mine, mut theirs) = (vec![0.0_f32; LOOSE_BYTES / 4], vec![0.0_f32; LOOSE_BYTES / 4]);
    let mut group = comm.group();
    group.send(&mine, Rank((me + 1) % n)).recv(&mut theirs, Rank((me + n - 1) % n));
    group.run()?;
    comm.all_reduce_async(mine, ReduceOp::Sum)?.wait().map(drop)
}

fn main() -> Result<()> {
    ccl_exporters::init_from_env();
    let comm = Communicator::from_env()?;
    for _ in 0..ROUNDS {
        blocking(&comm)?;
    }
    for _ in 0..LOOSE_ROUNDS {
        loose(&comm)?;
    }
    // Refused before it is counted.
    let refused = comm.all_reduce(&[0.0_f32; 2], &mut [0.0_f32; 1], ReduceOp::Sum);
    assert!(refused.is_err(), "lengths that do not fit");
    std::thread::scope(|scope| scope.spawn(|| comm.barrier()).join().expect("it does not panic"))?;
    println!("rank {} has called everything", comm.rank());
    comm.finish()
}
