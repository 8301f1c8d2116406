//! What the communicators of a job of processes live through: they are made from one another,
//! shrunk, grown, revoked, and ended while one is being made. Everything that is left open is drawn
//! from a seed. The program `life` is one rank.

mod judge;
mod run;
pub mod tree;

use std::fmt;

use ccl::seed::Seed;
use serde::{Deserialize, Serialize};

use crate::job::Transport;

pub use run::Lived;

/// The reason that a rank gives for an abort.
pub const REASON: &str = "the loss is no number";
/// How many ranks are added to a communicator.
pub const ADDED: u32 = 2;

/// One job: a course of events, and on what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Life {
    /// Where all choices come from.
    pub seed: u64,
    /// How the ranks reach each other.
    pub transport: Transport,
    /// Ranks of the first communicator.
    pub nranks: u32,
    /// Elements of an all-reduce.
    pub count: usize,
    /// The iteration in which a rank deviates, from 1.
    pub at: u64,
    /// The rank that deviates.
    pub victim: u32,
    /// Microseconds until it does.
    pub delay_us: u64,
    /// What happens.
    pub course: Course,
}

/// What happens to the communicators.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Course {
    /// All ranks split, and so do the parts, three levels deep.
    Tree,
    /// The victim is killed in an all-reduce, and the others shrink.
    Shrink {
        /// Another rank that is killed so many microseconds after it began to shrink.
        second: Option<(u32, u64)>,
        /// The ranks that drop the failed communicator as soon as they have another one.
        droppers: Vec<u32>,
    },
    /// Two processes join.
    Grow {
        /// Which of the old ranks hands the id on.
        teller: u32,
        /// Whether the old communicator is finished after the larger one.
        outlives: bool,
    },
    /// The victim revokes the communicator during an all-reduce, and ranks shrink.
    Revoke {
        /// The ranks that are left out.
        exclude: Vec<u32>,
        /// For how many milliseconds they keep the revoked communicator.
        stay_ms: u64,
    },
    /// The victim ends the parent while a child is being made.
    Split {
        /// Whether it dies; otherwise it aborts the parent.
        dies: bool,
        /// Whether it takes part in the split until then.
        inside: bool,
        /// The number of children.
        colours: u32,
    },
}

/// The courses by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    /// [`Course::Tree`].
    Tree,
    /// [`Course::Shrink`].
    Shrink,
    /// [`Course::Grow`].
    Grow,
    /// [`Course::Revoke`].
    Revoke,
    /// [`Course::Split`].
    Split,
}

impl Life {
    /// Draws a job.
    #[must_use]
    pub fn draw(name: Name, transport: Transport, seed: u64) -> Self {
        let mut drawn = Seed(seed).part(name as u64).part(transport as u64);
        let nranks = match name {
            Name::Shrink => 8,
            Name::Tree => 5 + drawn.below(4) as u32,
            Name::Grow => 2 + drawn.below(5) as u32,
            Name::Revoke | Name::Split => 3 + drawn.below(6) as u32,
        };
        let count = drawn.one_of(&[1, 1000, 100_000]);
        let (at, victim) = (1 + drawn.below(5), drawn.below(u64::from(nranks)) as u32);
        // As long as what is under way then takes, and a little longer.
        let delay_us = drawn.below(if name == Name::Split { 5000 } else { 10_000 });
        let course = Course::draw(name, &mut drawn, nranks, victim);
        Self { seed, transport, nranks, count, at, victim, delay_us, course }
    }

    /// What happens, in a few words: the cases that are told apart in a table.
    #[must_use]
    pub fn label(&self) -> String {
        match &self.course {
            Course::Tree => "splits, three levels".into(),
            Course::Shrink { second: None, .. } => "one dies".into(),
            Course::Shrink { second: Some(_), .. } => "one dies, one more in the shrink".into(),
            Course::Grow { .. } => format!("{ADDED} join"),
            Course::Revoke { exclude, .. } if exclude.is_empty() => "revoked, all go on".into(),
            Course::Revoke { .. } => "revoked, some are left out".into(),
            Course::Split { dies, inside, .. } => {
                let how = if *dies { "dies" } else { "aborts" };
                format!("one {how} {} the split", if *inside { "within" } else { "instead of" })
            }
        }
    }
}

impl Course {
    fn draw(name: Name, drawn: &mut Seed, nranks: u32, victim: u32) -> Self {
        match name {
            Name::Tree => Self::Tree,
            Name::Shrink => {
                let other = (victim + 1 + drawn.below(u64::from(nranks) - 1) as u32) % nranks;
                let delay_us = drawn.below(15_000);
                let second = (drawn.below(3) > 0).then_some((other, delay_us));
                Self::Shrink { second, droppers: some(drawn, nranks) }
            }
            Name::Grow => {
                let teller = drawn.below(u64::from(nranks)) as u32;
                Self::Grow { teller, outlives: drawn.below(2) == 0 }
            }
            Name::Revoke => {
                let mut exclude = if drawn.below(3) == 0 { Vec::new() } else { some(drawn, nranks) };
                exclude.truncate(nranks as usize - 1);
                Self::Revoke { exclude, stay_ms: drawn.one_of(&[0, 5, 300]) }
            }
            Name::Split => {
                let (dies, inside) = (drawn.below(2) == 0, drawn.below(2) == 0);
                Self::Split { dies, inside, colours: 1 + drawn.below(2) as u32 }
            }
        }
    }
}

/// About a third of the ranks, ascending.
fn some(drawn: &mut Seed, nranks: u32) -> Vec<u32> {
    (0..nranks).filter(|_| drawn.below(3) == 0).collect()
}

impl fmt::Display for Life {
    /// The argument of the program: `ccl-inspect run -n RANKS -- life 'THIS'` replays it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_the_command_line() {
        for name in [Name::Tree, Name::Shrink, Name::Grow, Name::Revoke, Name::Split] {
            for seed in 0..50 {
                let life = Life::draw(name, Transport::Mixed, seed);
                assert_eq!(serde_json::from_str::<Life>(&life.to_string()).unwrap(), life);
                if let Course::Revoke { exclude, .. } = &life.course {
                    assert!(exclude.len() < life.nranks as usize);
                }
            }
        }
    }
}
