//! Runs a job of `life`, and gathers what its ranks said.

use std::os::unix::process::ExitStatusExt;

use ccl::control::server::sweep;

use super::{ADDED, Course, Life};
use crate::job::{Job, Line, Setting};
use crate::orders::Orders;

/// For how long a call of the job waits: less than a test does, so that a rank which waits in vain
/// says for whom.
const LIMIT_S: u32 = 20;

/// The result of a job.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Lived {
    /// How it ended, in a few words.
    pub outcome: String,
    /// Everything that is not as it must be.
    pub wrong: Vec<String>,
}

/// How one rank ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) rank: u32,
    pub(super) was_killed: bool,
    pub(super) said: Vec<Line>,
}

impl Ended {
    /// The errors that it met.
    pub(super) fn errors(&self) -> Vec<&Line> {
        self.said.iter().filter(|line| matches!(line, Line::Error { .. })).collect()
    }

    /// The communicators over which an all-reduce was right, with the ranks that took part.
    pub(super) fn reduced(&self) -> Vec<(&str, &[u32])> {
        let mut reduced = Vec::new();
        for line in &self.said {
            if let Line::Reduced { comm, ranks } = line {
                reduced.push((comm.as_str(), ranks.as_slice()));
            }
        }
        reduced
    }
}

impl Life {
    /// Runs it and judges it.
    ///
    /// # Errors
    /// A rank did not end.
    pub fn carry_out(&self) -> Result<Lived, String> {
        let mut job = self.start();
        if let Course::Grow { teller, .. } = self.course {
            self.hand_on(&mut job, teller)?;
        }
        let mut lived = Lived::default();
        let mut all = Vec::new();
        for at in 0..job.workers.len() {
            let Ok(status) = job.workers[at].wait() else { return Err(not_ended(&job)) };
            let was_killed = status.signal() == Some(9);
            let ended = Ended { rank: at as u32, was_killed, said: job.workers[at].said() };
            if !was_killed {
                lived.wrong.extend(unclean(&ended, status.success()));
            }
            if ended.was_killed != self.is_killed(ended.rank) {
                lived.wrong.push(format!("rank {at} ended with {status}"));
            }
            all.push(ended);
        }
        lived.wrong.extend(self.files(&job));
        lived.outcome = self.judge(&all, &mut lived.wrong);
        Ok(lived)
    }

    fn start(&self) -> Job {
        let added = if matches!(self.course, Course::Grow { .. }) { ADDED } else { 0 };
        let mut setting = Setting::new(self.nranks + added, self.transport, Orders::default());
        setting.life = Some(self.to_string());
        let variable = |name: &str, value: String| (name.to_string(), value);
        setting.variables = vec![
            variable("WORLD_SIZE", self.nranks.to_string()),
            variable("CCL_TIMEOUT", LIMIT_S.to_string()),
        ];
        // To tell it from other jobs at its address and to stretch a secret takes a job longer than
        // all else, so not all do.
        if !self.seed.is_multiple_of(3) {
            setting.has_file = true;
            setting.variables.push(variable("TORCHELASTIC_RUN_ID", "life".into()));
        }
        setting.start()
    }

    /// Hands the id of a larger communicator on to those that join.
    fn hand_on(&self, job: &mut Job, teller: u32) -> Result<(), String> {
        let id = |line: &Line| match line {
            Line::Invites { id } => Some(id.clone()),
            _ => None,
        };
        let id = job.workers[teller as usize].hear("an id", 1, id)?.remove(0);
        job.workers[self.nranks as usize..].iter_mut().for_each(|worker| worker.tell(&id));
        Ok(())
    }

    /// Whether this rank ends by a signal.
    pub(super) fn is_killed(&self, rank: u32) -> bool {
        match &self.course {
            Course::Shrink { second, .. } => {
                rank == self.victim || second.is_some_and(|(second, _)| second == rank)
            }
            Course::Split { dies, .. } => *dies && rank == self.victim,
            Course::Tree | Course::Grow { .. } | Course::Revoke { .. } => false,
        }
    }

    /// What the job has left in its folder. What failed leaves its recorder.
    fn files(&self, job: &Job) -> Vec<String> {
        let fails = !matches!(self.course, Course::Tree | Course::Grow { .. });
        if fails {
            // The next process in the folder removes what the dead left.
            sweep(&job.recorders());
        }
        let files = job.files().into_iter().filter(|name| !(fails && name.ends_with(".rec")));
        files.map(|name| format!("{name} is left")).collect()
    }
}

/// What a rank that was not killed has not done, or not freed.
fn unclean(ended: &Ended, is_good: bool) -> Vec<String> {
    let Ended { rank, said, .. } = ended;
    let mut wrong = Vec::new();
    let left = said.iter().find_map(|line| match line {
        Line::Left { left_over } => Some(left_over.clone()),
        _ => None,
    });
    match left {
        Some(left) => wrong.extend(left.iter().map(|what| format!("rank {rank} has left {what}"))),
        None => wrong.push(format!("rank {rank} did not end by itself")),
    }
    if !is_good {
        wrong.push(format!("rank {rank} failed: {said:?}"));
    }
    wrong
}

/// What all ranks said of a job that does not end.
fn not_ended(job: &Job) -> String {
    let lines = (0..).zip(&job.workers).map(|(rank, worker): (u32, _)| {
        let state = if worker.has_ended() { "ended" } else { "did NOT end" };
        format!("rank {rank} {state}: {:?}", worker.said())
    });
    lines.collect::<Vec<_>>().join("\n")
}
