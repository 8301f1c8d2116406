//! Whom all wait for in the end when deadlines pass: most ranks wait for one that waits itself.

use super::{Report, Trouble};
use crate::types::Rank;

/// Ranks of which each waits for the next, as far as it is known: the first is the one that a report
/// names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chain {
    ranks: Vec<Rank>,
    /// The earlier rank for which the last one waits: they wait for each other.
    back_to: Option<Rank>,
}

impl Chain {
    /// The chain that begins with a report of a deadline.
    pub(super) fn of(first: &Report, reports: &[Report]) -> Self {
        let mut ranks = vec![first.about];
        loop {
            let last = ranks[ranks.len() - 1];
            let Some(next) = waits_for(last, reports) else { return Self { ranks, back_to: None } };
            if next == first.from || ranks.contains(&next) {
                return Self { ranks, back_to: Some(next) };
            }
            ranks.push(next);
        }
    }

    /// The rank for which all wait in the end.
    pub(super) fn end(&self) -> Rank {
        self.ranks[self.ranks.len() - 1]
    }

    /// What the first report says, and who waits for whom behind it.
    pub(super) fn say(&self, text: &str) -> String {
        let next = self.ranks.iter().skip(1).copied().chain(self.back_to);
        let pairs = self.ranks.iter().zip(next);
        let pairs: Vec<String> =
            pairs.map(|(rank, next)| format!("rank {rank} waits for rank {next}")).collect();
        let ends = if self.back_to.is_some() { ": they wait for each other" } else { "" };
        match pairs[..] {
            [] => text.to_string(),
            _ => format!("{text}; {}{ends}", pairs.join(", ")),
        }
    }
}

/// The rank for which this one waited when its deadline passed.
fn waits_for(rank: Rank, reports: &[Report]) -> Option<Rank> {
    let is_its = |one: &&Report| one.trouble == Trouble::TimedOut && one.from == rank && one.about != rank;
    reports.iter().find(is_its).map(|report| report.about)
}
