//! What the ranks of a job must have said, by its course.

use std::collections::BTreeSet;
use std::time::Duration;

use super::run::Ended;
use super::{ADDED, Course, Life, REASON};
use crate::job::Line;

/// How soon a rank learns that a communicator has ended.
const AT_ONCE: Duration = Duration::from_secs(1);

/// What is wrong, with the rank that it is about.
struct Wrong<'a>(&'a mut Vec<String>);

impl Wrong<'_> {
    fn unless(&mut self, holds: bool, rank: u32, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(format!("rank {rank}: {}", what()));
        }
    }
}

/// The kinds of results of all ranks, each once.
fn said_by_all(results: impl Iterator<Item = String>) -> String {
    let all: BTreeSet<String> = results.collect();
    all.into_iter().collect::<Vec<_>>().join(" | ")
}

impl Life {
    /// The result in a few words; adds what is wrong.
    pub(super) fn judge(&self, all: &[Ended], wrong: &mut Vec<String>) -> String {
        let wrong = &mut Wrong(wrong);
        match &self.course {
            Course::Tree => tree(all, wrong),
            Course::Shrink { second, .. } => self.shrunk(all, second.map(|(second, _)| second), wrong),
            Course::Grow { .. } => self.grown(all, wrong),
            Course::Revoke { exclude, .. } => self.revoked(all, exclude, wrong),
            Course::Split { inside, colours, .. } => self.split(all, *inside, *colours, wrong),
        }
    }

    fn survivors<'a>(&self, all: &'a [Ended]) -> impl Iterator<Item = &'a Ended> {
        all.iter().filter(|one| !self.is_killed(one.rank))
    }

    fn shrunk(&self, all: &[Ended], second: Option<u32>, wrong: &mut Wrong<'_>) -> String {
        let left: Vec<u32> = (0..self.nranks).filter(|rank| !self.is_killed(*rank)).collect();
        let mut result = |one: &Ended| {
            let (rank, errors, reduced) = (one.rank, one.errors(), one.reduced());
            let first = errors.first().is_some_and(|line| is_about(line, "world", "Peer", self.victim));
            // Both may have died before the others learned of the first.
            let other = errors.first().zip(second);
            let other = other.is_some_and(|(line, second)| is_about(line, "world", "Peer", second));
            wrong.unless(first || other, rank, || format!("does not name rank {}: {errors:?}", self.victim));
            let is_right = reduced.len() == 1 && reduced[0].1 == left;
            wrong.unless(is_right, rank, || format!("reduced {reduced:?}, not over {left:?}: {errors:?}"));
            // Its number in the communicator without the first.
            let at = second.map(|second| second - u32::from(second > self.victim));
            let again = errors.get(1).map(|line| {
                let is_named = at.is_some_and(|at| is_about(line, "world/left.0", "Peer", at));
                wrong.unless(is_named, rank, || format!("then does not name rank {second:?}: {line:?}"));
                is_death(line)
            });
            match (again, reduced.first()) {
                (None, Some((name, _))) => format!("{name} at once"),
                (Some(true), Some((name, _))) => format!("{name} after one more death"),
                (Some(false), Some((name, _))) => format!("{name} after a link ended"),
                (_, None) => "no communicator".into(),
            }
        };
        said_by_all(self.survivors(all).map(&mut result))
    }

    fn grown(&self, all: &[Ended], wrong: &mut Wrong<'_>) -> String {
        let everyone: Vec<u32> = (0..self.nranks + ADDED).collect();
        let mut result = |one: &Ended| {
            let (rank, reduced) = (one.rank, one.reduced());
            let name = if rank < self.nranks { "world/grown" } else { "grown" };
            let is_right = reduced.contains(&(name, everyone.as_slice())) && one.errors().is_empty();
            wrong.unless(is_right, rank, || format!("reduced {reduced:?}: {:?}", one.errors()));
            if is_right { format!("{name} is right") } else { "no communicator".into() }
        };
        said_by_all(all.iter().map(&mut result))
    }

    fn revoked(&self, all: &[Ended], exclude: &[u32], wrong: &mut Wrong<'_>) -> String {
        let left: Vec<u32> = (0..self.nranks).filter(|rank| !exclude.contains(rank)).collect();
        let when = deviated(all);
        let mut result = |one: &Ended| {
            let (rank, errors, reduced) = (one.rank, one.errors(), one.reduced());
            let why = format!("rank {} revoked it: {REASON}", self.victim);
            let is_told = match errors.as_slice() {
                [Line::Error { kind, text, .. }] => kind == "Aborted" && text.contains(&why),
                _ => false,
            };
            wrong.unless(is_told, rank, || format!("does not say {why:?}: {errors:?}"));
            let took = errors.first().and_then(|error| took(when, error));
            let is_soon = took.is_some_and(|took| took <= AT_ONCE);
            wrong.unless(is_soon, rank, || format!("says so after {took:?}"));
            if exclude.contains(&rank) {
                wrong.unless(reduced.is_empty(), rank, || format!("goes on: {reduced:?}"));
                return "left out".into();
            }
            let is_right = reduced == [("world/left.0", left.as_slice())];
            wrong.unless(is_right, rank, || format!("reduced {reduced:?}, not over {left:?}"));
            if is_right { "world/left.0 is right".into() } else { "no communicator".into() }
        };
        said_by_all(all.iter().map(&mut result))
    }

    fn split(&self, all: &[Ended], inside: bool, colours: u32, wrong: &mut Wrong<'_>) -> String {
        let when = deviated(all);
        let mut result = |one: &Ended| {
            let (rank, errors, reduced) = (one.rank, one.errors(), one.reduced());
            if rank == self.victim && !inside {
                return "aborted".into();
            }
            let colour = rank % colours;
            let child: Vec<u32> = (0..self.nranks).filter(|rank| rank % colours == colour).collect();
            for error in &errors {
                let is_named = self.names_the_victim(error, &child);
                wrong.unless(is_named, rank, || format!("does not name rank {}: {error:?}", self.victim));
                let took = took(when, error);
                let is_soon = took.is_some_and(|took| took <= AT_ONCE);
                wrong.unless(is_soon, rank, || format!("says so after {took:?}: {error:?}"));
            }
            // Whatever became of the child, the parent has failed.
            let last = errors.last().is_some_and(|error| is_of(error, "world"));
            wrong.unless(last, rank, || format!("knows nothing of the parent: {errors:?}"));
            if reduced.is_empty() {
                return match errors.first() {
                    Some(error) if is_of(error, "world") => "the split fails".into(),
                    Some(error) if is_death(error) => "a rank of the child dies".into(),
                    _ => "a rank gave up".into(),
                };
            }
            let is_right = inside && reduced.iter().all(|(_, ranks)| *ranks == child) && errors.len() == 1;
            wrong.unless(is_right, rank, || format!("reduced {reduced:?}, not over {child:?}: {errors:?}"));
            "the child is right".into()
        };
        said_by_all(self.survivors(all).map(&mut result))
    }

    /// Whether an error says that the victim ended the parent: in the parent's numbers, or as one
    /// of the ranks of a child.
    fn names_the_victim(&self, error: &Line, child: &[u32]) -> bool {
        let Line::Error { kind, text, comm, peer, .. } = error else { return false };
        let why = match self.course {
            Course::Split { dies: true, .. } => "the process of rank",
            _ => REASON,
        };
        let here = if comm == "world" {
            Some(self.victim)
        } else {
            child.iter().position(|rank| *rank == self.victim).map(|at| at as u32)
        };
        // Who called the abort names nobody else.
        let is_named =
            here.is_some() && *peer == here || comm == "world" && kind == "Aborted" && peer.is_none();
        // A rank of a child gave up, for what happened to the parent.
        let is_passed_on = text.contains(&format!("rank {} aborted: {REASON}", self.victim))
            || text.contains(&format!("the process of rank {} ended", self.victim));
        text.contains(why) && (is_named || is_passed_on)
    }
}

fn tree(all: &[Ended], wrong: &mut Wrong<'_>) -> String {
    let mut is_right = true;
    for one in all {
        let errors = one.errors();
        let holds = errors.is_empty() && !one.reduced().is_empty();
        wrong.unless(holds, one.rank, || format!("{errors:?}"));
        is_right = is_right && holds;
    }
    if is_right { "all are right".into() } else { "an error".into() }
}

/// When the victim did what the others must notice.
fn deviated(all: &[Ended]) -> Option<u64> {
    all.iter().flat_map(|one| &one.said).find_map(|line| match line {
        Line::Deviates { at_ns } => Some(*at_ns),
        _ => None,
    })
}

/// How long after that an error came.
fn took(when: Option<u64>, error: &Line) -> Option<Duration> {
    let Line::Error { at_ns, .. } = error else { return None };
    when.map(|when| Duration::from_nanos(at_ns.saturating_sub(when)))
}

fn is_about(error: &Line, of: &str, wanted: &str, whom: u32) -> bool {
    let Line::Error { comm, kind, peer, text, .. } = error else { return false };
    comm == of && kind == wanted && *peer == Some(whom) && text.contains(&format!("rank {whom}"))
}

fn is_of(error: &Line, name: &str) -> bool {
    matches!(error, Line::Error { comm, .. } if comm == name)
}

/// Whether an error says that a process ended, not only what followed from that.
fn is_death(error: &Line) -> bool {
    matches!(error, Line::Error { text, .. } if text.contains("the process of rank"))
}
