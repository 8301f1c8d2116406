//! What a snapshot of a job with several communicators says, compared with what it must say.

use std::collections::BTreeSet;

use ccl::diagnose::verdicts;
use ccl::snapshot::{BlockedOn, Class, Snapshot};
use ccl::types::{CommId, Rank};

use super::{Drawn, Says};

/// What a verdict takes for a stall: the default of `CCL_STALL_AFTER`.
const STALL_NS: u64 = 30_000_000_000;

/// The ranks of the job that these ranks of a communicator are.
fn ranks_of(job: &Snapshot, comm: CommId, ranks: &[Rank]) -> BTreeSet<Rank> {
    job.job_ranks(comm, ranks).into_iter().collect()
}

/// The ranks of the job that wait for the first culprit, directly or behind others.
#[must_use]
pub fn waiting(job: &Snapshot, one: &BlockedOn) -> BTreeSet<Rank> {
    let behind = one.behind.iter().flat_map(|behind| ranks_of(job, behind.comm, &behind.by));
    ranks_of(job, one.comm, &one.by).into_iter().chain(behind).collect()
}

/// What a snapshot says first: the class and the communicator, and the ranks named.
fn said(job: &Snapshot) -> (String, BTreeSet<Rank>) {
    if let Some(one) = job.failures.first() {
        let says = if one.error == "Mismatch" { Says::Differs } else { Says::Died };
        // Of two ranks that call different things none is to blame: both are shown.
        let culprits: BTreeSet<Rank> = one.culprits.iter().map(|culprit| culprit.rank).collect();
        let calls = one.calls.iter().flat_map(|called| ranks_of(job, one.comm, &called.ranks)).collect();
        let both = if culprits.is_empty() { calls } else { culprits };
        return (format!("{says} {}", one.name), both);
    }
    let Some(one) = job.said().next() else { return (Says::Nothing.to_string(), BTreeSet::new()) };
    let says = if one.culprits.is_empty() { Says::Link } else { Says::Waits };
    (format!("{says} {}", one.name), one.culprits.iter().map(|culprit| culprit.rank).collect())
}

/// Whether the first verdict is of the drawn class, and blames nobody else.
fn wrong_verdict(expect: &mut impl FnMut(bool, String), drawn: &Drawn, job: &Snapshot) {
    let verdicts = verdicts(job, Some(job), STALL_NS);
    let Some(first) = verdicts.first() else { return };
    let classes: &[Class] = match drawn.scenario.expect {
        Says::Nothing => &[],
        Says::Link => &[Class::Link],
        Says::Differs => &[Class::Mismatch],
        Says::Died => &[Class::PeerDead, Class::Aborted],
        Says::Waits => &[Class::NotJoined, Class::StuckLocal, Class::Deadlock],
    };
    expect(classes.contains(&first.class), format!("the verdict is not one of {classes:?}: {first:?}"));
    let culprits = drawn.culprits();
    let is_named = first.culprits.iter().any(|one| culprits.contains(&one.rank.0));
    expect(first.culprits.is_empty() || is_named, format!("the verdict blames another: {first:?}"));
}

impl Drawn {
    /// What a snapshot says in a few words, and everything in it that is not as it must be.
    #[must_use]
    pub fn judge(&self, job: &Snapshot) -> (String, Vec<String>) {
        let (said, named) = said(job);
        let mut wrong = Vec::new();
        let mut expect = |holds: bool, what: String| {
            if !holds {
                wrong.push(what);
            }
        };
        expect(said == self.expected(), format!("said {said:?}: {}", ccl::diagnose::render_answer(job)));
        wrong_verdict(&mut expect, self, job);
        let victim = Rank(self.victim);
        let culprits: BTreeSet<Rank> = self.culprits().into_iter().map(Rank).collect();
        let numbers: Vec<u32> = job.ranks.iter().map(|rank| rank.rank.0).collect();
        let is_pair = self.members(&self.group, self.victim).len() == 2;
        let is_right = match self.scenario.expect {
            Says::Nothing | Says::Link => named.is_empty(),
            Says::Differs if is_pair => named.contains(&victim),
            // Too few had called to say which call is the wrong one: the calls tell it apart.
            Says::Differs if named.len() > 1 => {
                let calls = job.failures.first().map_or(&[][..], |one| &one.calls);
                let is_half = calls.iter().any(|call| call.ranks.len() * 2 >= numbers.len());
                !is_half && calls.iter().any(|call| call.ranks == [victim])
            }
            Says::Differs | Says::Died | Says::Waits => named == culprits,
        };
        expect(is_right, format!("named {named:?}"));
        let all: Vec<u32> = (0..self.nranks()).collect();
        expect(numbers == all, format!("ranks {numbers:?}, missing {:?}", job.missing));
        if let Some(first) = job.failures.first() {
            let others = &job.failures[1..];
            expect(first.follows.is_none(), "the first failure follows another".into());
            expect(others.iter().all(|one| one.follows.is_some()), format!("several causes: {others:?}"));
        } else if let Some(one) = job.said().next() {
            let all: BTreeSet<Rank> = all.into_iter().map(Rank).collect();
            let others: BTreeSet<Rank> = all.difference(&culprits).copied().collect();
            let mut waiting = waiting(job, one);
            waiting.retain(|rank| !culprits.contains(rank));
            expect(waiting == others, format!("waiting are {waiting:?}"));
            expect(job.said().count() == 1, "several are said to block the others".into());
        }
        (said, wrong)
    }
}
