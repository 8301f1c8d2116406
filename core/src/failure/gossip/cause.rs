//! Which of the reports is the cause that becomes the decision. And whom all wait for in the end
//! when deadlines pass: most ranks wait for one that waits itself.

use super::{Gossip, Report, Trouble};
use crate::types::Rank;

impl Gossip {
    /// The report that becomes the decision: the first that is not a consequence of another one.
    /// For a mismatch, a report of both sides is preferred.
    pub(super) fn cause(&self) -> Option<&Report> {
        let cause = self.reports.iter().find(|report| !self.is_consequence(report));
        let first = cause.or_else(|| self.reports.first())?;
        let says_all = |report: &&Report| report.trouble == first.trouble && report.open.is_none();
        match first.trouble {
            Trouble::Mismatch => self.reports.iter().find(says_all).or(Some(first)),
            _ => Some(first),
        }
    }

    /// Whether a deadline has passed at a rank, and nothing is decided yet.
    #[must_use]
    pub(crate) fn is_late(&self) -> bool {
        self.decision.is_none() && self.reports.iter().any(|report| report.trouble == Trouble::TimedOut)
    }

    /// Whether a report is likely to follow from another one: the end of a link always, the end of
    /// a rank that has itself reported such an end or a deadline before it gave up, and a deadline
    /// if something else has happened.
    fn is_consequence(&self, report: &Report) -> bool {
        let gives_up = |other: &Report| matches!(other.trouble, Trouble::LinkFailed | Trouble::TimedOut);
        let gave_up =
            |one: &Report| self.reports.iter().any(|other| gives_up(other) && other.from == one.about);
        let is_more = |other: &Report| match other.trouble {
            Trouble::Died => !gave_up(other),
            Trouble::Unreachable | Trouble::Mismatch => true,
            Trouble::Aborted | Trouble::TimedOut | Trouble::LinkFailed => false,
        };
        match report.trouble {
            Trouble::LinkFailed => true,
            Trouble::Aborted | Trouble::Died => gave_up(report),
            Trouble::TimedOut => self.reports.iter().any(is_more),
            Trouble::Unreachable | Trouble::Mismatch => false,
        }
    }
}

/// Ranks of which each waits for the next, as far as it is known: the first is the one that a
/// report names.
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
