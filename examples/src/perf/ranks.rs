//! The ranks: the job of a launcher, or a job of threads of this process.

use std::panic::resume_unwind;
use std::thread;

use ccl::{Communicator, Config, Settings, create_id};

use super::Outcome;

/// Whether a launcher has started this process as a rank.
#[must_use]
pub fn is_launched() -> bool {
    ["RANK", "WORLD_SIZE"].iter().any(|name| ccl::config::environment(name).is_some())
}

/// Runs `body` as each of `nranks` ranks of a job, in a thread each; returns what rank 0 returns.
///
/// # Errors
/// The error of the first rank that has one.
pub fn in_threads<R: Send>(nranks: u32, body: impl Fn(Communicator) -> Outcome<R> + Sync) -> Outcome<R> {
    // The root lives until all have joined.
    let (id, _root) = create_id(&Settings::of_process()?)?;
    let rank = |rank| body(Communicator::init(&id, rank, nranks, Config::default())?);
    thread::scope(|scope| {
        let rank = &rank;
        let all: Vec<_> = (0..nranks).map(|at| scope.spawn(move || rank(at))).collect();
        let ended: Vec<_> =
            all.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| resume_unwind(panic))).collect();
        let mut results = ended.into_iter().collect::<Outcome<Vec<R>>>()?;
        Ok(results.swap_remove(0))
    })
}
