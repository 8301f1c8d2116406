//! The late rank as the caller drew it, and its delay. It comes by an argument or the environment
//! of the program, and no other program knows it: the programs only call ccl, a little later than
//! the others.

use std::str::FromStr;
use std::time::Duration;

use ccl::{Communicator, clock, config};

/// A rank that is late at every step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Straggler {
    /// The rank.
    pub rank: u32,
    /// The delay in milliseconds.
    pub late_ms: u64,
}

impl FromStr for Straggler {
    type Err = String;

    /// Reads `RANK:MILLISECONDS`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (rank, late_ms) = text.split_once(':')?;
            Some(Self { rank: rank.parse().ok()?, late_ms: late_ms.parse().ok()? })
        };
        parse().ok_or_else(|| format!("`{text}` is not RANK:MILLISECONDS, for example 2:40"))
    }
}

/// The variable that names a straggler if no argument does, so that it is not visible in a list of
/// processes.
pub const STRAGGLER: &str = "EXAMPLE_STRAGGLER";

/// The straggler of the argument, or else of the environment.
///
/// # Errors
/// The text of the variable is not `RANK:MILLISECONDS`.
pub fn straggler(argument: Option<Straggler>) -> Result<Option<Straggler>, String> {
    match (argument, config::environment(STRAGGLER)) {
        (Some(straggler), _) => Ok(Some(straggler)),
        (None, Some(text)) => text.parse().map(Some),
        (None, None) => Ok(None),
    }
}

/// Works for `work_ms`, plus the delay if this rank is the straggler.
pub fn work(comm: &Communicator, work_ms: u64, straggler: Option<Straggler>) {
    let late_ms = straggler.filter(|s| s.rank == comm.rank().0).map_or(0, |s| s.late_ms);
    if work_ms + late_ms > 0 {
        clock::sleep(Duration::from_millis(work_ms + late_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straggler_is_a_rank_and_milliseconds() {
        assert_eq!("2:40".parse(), Ok(Straggler { rank: 2, late_ms: 40 }));
        for bad in ["", "2", "2:", ":40", "two:40", "2:40:1"] {
            assert!(bad.parse::<Straggler>().is_err(), "{bad}");
        }
    }
}
