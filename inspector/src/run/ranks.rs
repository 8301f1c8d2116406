//! The ranks of a job, from start to end: who runs, who ended and how, and the ending of the others.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Outputs;
use super::output::Lines;

/// The processes of a job. Each leads a process group.
#[derive(Debug)]
pub(super) struct Ranks {
    running: Vec<(u32, Pid)>,
    endings: JoinSet<Ended>,
    streams: JoinSet<()>,
    grace: Duration,
    /// When those that were asked to end are killed.
    kill_at: Option<Instant>,
    /// What was sent to all that run.
    sent: Vec<Signal>,
    /// What the user sent to the launcher.
    interrupted: Option<Signal>,
    worst: u8,
}

/// A rank that is no more.
#[derive(Debug)]
pub(super) struct Ended {
    rank: u32,
    pid: u32,
    status: std::io::Result<ExitStatus>,
}

impl Ranks {
    /// None yet; those asked to end will have `grace` to do so.
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            running: Vec::new(),
            endings: JoinSet::new(),
            streams: JoinSet::new(),
            grace,
            kill_at: None,
            sent: Vec::new(),
            interrupted: None,
            worst: 0,
        }
    }

    /// Starts one. It reads nothing: a terminal has one keyboard and the job has many ranks.
    ///
    /// # Errors
    /// The system's, if it has no process to give. That counts as a rank that failed.
    pub(super) fn start(
        &mut self,
        rank: u32,
        mut command: Command,
        outputs: &Outputs,
        width: usize,
    ) -> std::io::Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().inspect_err(|_| self.worst = self.worst.max(1))?;
        // Known until the child is waited for, which happens below only.
        let pid = child.id().unwrap_or_default();
        if let Some(stdout) = child.stdout.take() {
            self.streams.spawn(outputs.out.clone().copy(stdout, Lines::new(rank, width)));
        }
        if let Some(stderr) = child.stderr.take() {
            self.streams.spawn(outputs.err.clone().copy(stderr, Lines::new(rank, width)));
        }
        self.running.extend(i32::try_from(pid).ok().and_then(Pid::from_raw).map(|group| (rank, group)));
        self.endings.spawn(async move { Ended { rank, pid, status: child.wait().await } });
        Ok(())
    }

    /// The next rank that ends; `None` when none is left.
    pub(super) async fn next(&mut self) -> Option<Ended> {
        self.endings.join_next().await?.ok()
    }

    /// Takes note of an end. A first failure ends the others; gives the line to say about it.
    pub(super) fn note(&mut self, ended: &Ended) -> Option<String> {
        self.running.retain(|(rank, _)| *rank != ended.rank);
        let (status, how) = match &ended.status {
            Ok(status) => describe(*status),
            Err(e) => (1, format!("cannot be waited for: {e}")),
        };
        let ours = self.sent.iter().any(|signal| status_of(*signal) == status);
        if status == 0 || ours {
            return None;
        }
        self.worst = self.worst.max(status);
        let (rank, pid, others) = (ended.rank, ended.pid, self.running.len());
        if !self.sent.is_empty() || others == 0 {
            return Some(format!("rank {rank} (pid {pid}) {how}"));
        }
        self.end(Signal::TERM);
        Some(format!("rank {rank} (pid {pid}) {how}; ending the {others} that still run"))
    }

    /// Passes on a signal that the launcher got. The second one is meant.
    pub(super) fn interrupt(&mut self, signal: Signal) {
        if self.interrupted.replace(signal).is_some() {
            self.kill();
        } else {
            self.end(signal);
        }
    }

    /// Asks all to end, by `signal`; when the grace period is over they are killed.
    pub(super) fn end(&mut self, signal: Signal) {
        self.send(signal);
        // A stopped process hears nothing before it goes on.
        self.send(Signal::CONT);
        self.kill_at.get_or_insert_with(|| Instant::now() + self.grace);
    }

    /// Becomes ready when those that were asked to end have had their time.
    pub(super) fn grace_is_over(&self) -> impl Future<Output = ()> + use<> {
        let kill_at = self.kill_at;
        async move {
            match kill_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Ends all that are left.
    pub(super) fn kill(&mut self) {
        self.send(Signal::KILL);
        self.kill_at = None;
    }

    fn send(&mut self, signal: Signal) {
        self.sent.push(signal);
        for (_, group) in &self.running {
            // A group that ended this instant has nobody to hear it.
            let _ = kill_process_group(*group, signal);
        }
    }

    /// The highest status among the ranks that ended by themselves, and the interrupting signal's.
    pub(super) fn worst(&self) -> u8 {
        self.worst.max(self.interrupted.map_or(0, status_of))
    }

    /// Waits for the rest of the output.
    pub(super) async fn drain(mut self, at_most: Duration) {
        let all = async { while self.streams.join_next().await.is_some() {} };
        // What is still open then is held by a process that is not of this job.
        let _ = tokio::time::timeout(at_most, all).await;
    }
}

/// The status that a shell would give to a death by this signal.
fn status_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

fn describe(status: ExitStatus) -> (u8, String) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (u8::try_from(code).unwrap_or(1), format!("exited with status {code}")),
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            (u8::try_from(128 + signal).unwrap_or(u8::MAX), format!("was ended by signal {signal}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: &[Signal], statuses: &[i32], expect: u8) {
        let mut ranks = Ranks::new(Duration::ZERO);
        ranks.sent.extend(before);
        for (rank, raw) in (0..).zip(statuses) {
            ranks.note(&Ended { rank, pid: 1, status: Ok(ExitStatus::from_raw(*raw)) });
        }
        assert_eq!(ranks.worst(), expect, "{statuses:?} after {before:?}");
    }

    #[test]
    fn the_worst_status_is_that_of_a_rank_that_ended_by_itself() {
        let exited = |code: i32| code << 8;
        check(&[], &[0, 0], 0);
        check(&[], &[exited(3), exited(7), exited(4)], 7);
        check(&[], &[exited(3), 9], 137);
        check(&[Signal::TERM], &[exited(3), 15, exited(143), 0], 3);
        check(&[Signal::TERM], &[exited(3), 9], 137);
        check(&[Signal::TERM, Signal::KILL], &[exited(3), 9, 11], 139);
    }
}
