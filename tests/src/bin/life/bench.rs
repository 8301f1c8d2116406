//! How long it takes to make a communicator: as a part of another one, and anew.

#![expect(clippy::print_stdout, reason = "figures for people")]

use ccl::clock::{self, Ns};
use ccl::{Communicator, Config, Rank, ReduceOp, Settings, UniqueId, create_id};

use super::Outcome;

/// The bytes of a unique id.
const ID: usize = 128;

/// Milliseconds since then, until the last rank is there.
fn took(world: &Communicator, began: Ns) -> ccl::Result<f64> {
    let mut took = [clock::now().since(began).as_secs_f64() * 1e3];
    world.all_reduce_in_place(&mut took, ReduceOp::Max)?;
    Ok(took[0])
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Makes both in turns, each of all ranks of the job; rank 0 prints the medians.
pub(super) fn bench(times: usize) -> Outcome {
    let world = Communicator::from_env()?;
    let (rank, nranks) = (world.rank(), world.nranks());
    let named = |name: &str| Config { name: name.into(), settings: None };
    let (mut parts, mut anew, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..times.max(1) {
        world.barrier()?;
        let began = clock::now();
        let part = world.split(Some(0), 0, named("part"))?;
        parts.push(took(&world, began)?);
        part.map_or(Ok(()), Communicator::finish)?;

        world.barrier()?;
        let began = clock::now();
        let made = if rank == Rank(0) { Some(create_id(&Settings::of_process()?)?) } else { None };
        let mut bytes = made.as_ref().map_or([0; ID], |(id, _)| id.to_bytes());
        world.broadcast(&mut bytes, Rank(0))?;
        let id = UniqueId::from_bytes(&bytes)?;
        let joins = clock::now();
        let fresh = Communicator::init(&id, rank.0, nranks, named("fresh"))?;
        joined.push(took(&world, joins)?);
        anew.push(took(&world, began)?);
        fresh.finish()?;
    }
    if rank == Rank(0) {
        let (part, anew, joined) = (median(&mut parts), median(&mut anew), median(&mut joined));
        println!("{nranks} processes, medians of {times}: a part by split {part:.2} ms");
        println!("anew {anew:.2} ms ({joined:.2} ms without making and handing on the id)");
        println!("split / anew = {:.2}", part / anew);
    }
    world.finish()?;
    Ok(())
}
