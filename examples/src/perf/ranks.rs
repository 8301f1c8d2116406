//! The ranks: the job of a launcher, or a job of threads of this process.

use std::panic::resume_unwind;
use std::thread;

use ccl::{Communicator, Config, ErrorKind, Settings, create_id};

use super::Outcome;

/// Whether a rank has failed because its system refused it something.
fn lacks<R>(ended: &Outcome<R>) -> bool {
    let error = ended.as_ref().err().and_then(|error| error.downcast_ref::<ccl::Error>());
    error.is_some_and(|error| error.kind == ErrorKind::System)
}

/// Whether a launcher has started this process as a rank.
#[must_use]
pub fn is_launched() -> bool {
    ["RANK", "WORLD_SIZE"].iter().any(|name| ccl::config::environment(name).is_some())
}

/// Runs `body` as each of `nranks` ranks of a job with these settings, in a thread each; returns
/// what rank 0 returns.
///
/// # Errors
/// The error of the first rank that has one. A rank to which the system refused something comes
/// before the others, which fail because of it.
pub fn in_threads<R: Send>(
    nranks: u32,
    settings: &Settings,
    body: impl Fn(Communicator) -> Outcome<R> + Sync,
) -> Outcome<R> {
    // The root lives until all have joined.
    let (id, _root) = create_id(settings)?;
    let config = Config { settings: Some(settings.clone()), ..Config::default() };
    let rank = |rank| body(Communicator::init(&id, rank, nranks, config.clone())?);
    thread::scope(|scope| {
        let rank = &rank;
        let all: Vec<_> = (0..nranks).map(|at| scope.spawn(move || rank(at))).collect();
        let mut ended: Vec<_> =
            all.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| resume_unwind(panic))).collect();
        let failed = ended.iter().position(lacks).or_else(|| ended.iter().position(Result::is_err));
        ended.swap_remove(failed.unwrap_or(0))
    })
}
