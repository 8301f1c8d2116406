//! The ranks of a job, from start to end: which run, which ended and how, and how the others are
//! ended.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use ccl::config::Settings;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Outputs;
use super::output::Lines;
use crate::discover;

/// How long the other ranks may run after the first failure before they are asked to end.
///
/// Ranks that fail with it may be writing why.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The processes of a job. Each leads a process group.
#[derive(Debug)]
pub(super) struct Ranks {
    running: Vec<(u32, Pid)>,
    endings: JoinSet<Ended>,
    streams: JoinSet<()>,
    grace: Duration,
    /// Whether the others go on when a rank fails.
    keeps_going: bool,
    /// The signal that all running ranks get next, and when.
    due: Option<(Instant, Signal)>,
    /// The signals that were sent to all running ranks.
    sent: Vec<Signal>,
    /// The signal that the user sent to the launcher.
    interrupted: Option<Signal>,
    worst: u8,
}

/// A rank that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    rank: u32,
    pid: u32,
    status: std::io::Result<ExitStatus>,
}

impl Ended {
    /// Its pid and the signal that ended it, if one did.
    fn signal(&self) -> Option<(u32, u8)> {
        let signal = self.status.as_ref().ok()?.signal()?;
        Some((self.pid, u8::try_from(signal).ok()?))
    }
}

impl Ranks {
    /// No ranks yet; ranks that are asked to end will have `grace` to do so. If one fails, the
    /// others are asked to, unless the job `keeps_going`.
    pub(super) fn new(grace: Duration, keeps_going: bool) -> Self {
        Self {
            running: Vec::new(),
            endings: JoinSet::new(),
            streams: JoinSet::new(),
            grace,
            keeps_going,
            due: None,
            sent: Vec::new(),
            interrupted: None,
            worst: 0,
        }
    }

    /// Starts a rank.
    ///
    /// Its standard input is empty: a terminal has one keyboard and the job many ranks.
    ///
    /// # Errors
    /// The system's, if it cannot create a process. That counts as a rank that failed.
    pub(super) fn start(
        &mut self,
        rank: u32,
        mut command: Command,
        outputs: &Outputs,
        width: usize,
    ) -> std::io::Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().inspect_err(|_| self.worst = self.worst.max(1))?;
        // The pid is known until the child is waited for, which happens only below.
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
    ///
    /// Only its launcher learns which signal ended it, and writes that down where it left evidence.
    pub(super) async fn next(&mut self) -> Option<Ended> {
        let ended = self.endings.join_next().await?.ok()?;
        // Ranks find their runtime folder by the same settings.
        if let (Ok(settings), Some((pid, signal))) = (Settings::of_process(), ended.signal()) {
            discover::note_signal(&settings, pid, signal);
        }
        Some(ended)
    }

    /// Records the end of a rank; gives the line to print about it.
    ///
    /// A first failure ends the other ranks a moment later, unless the job keeps going.
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
        if !self.sent.is_empty() || self.due.is_some() || others == 0 {
            return Some(format!("rank {rank} (pid {pid}) {how}"));
        }
        if self.keeps_going {
            return Some(format!("rank {rank} (pid {pid}) {how}; {others} still run"));
        }
        self.due = Some((Instant::now() + LAST_WORDS, Signal::TERM));
        Some(format!("rank {rank} (pid {pid}) {how}; ending the {others} that still run"))
    }

    /// Passes on a signal that the launcher got. A second signal kills the ranks.
    pub(super) fn interrupt(&mut self, signal: Signal) {
        if self.interrupted.replace(signal).is_some() {
            self.kill();
        } else {
            self.end(signal);
        }
    }

    /// Asks all ranks to end with `signal`; they are killed when the grace period is over.
    pub(super) fn end(&mut self, signal: Signal) {
        self.send(signal);
        // A stopped process handles no signal before it continues.
        self.send(Signal::CONT);
        if self.due.is_none_or(|(_, signal)| signal != Signal::KILL) {
            self.due = Some((Instant::now() + self.grace, Signal::KILL));
        }
    }

    /// Becomes ready when the running ranks must be asked to end, or killed.
    pub(super) fn time_is_over(&self) -> impl Future<Output = Signal> + use<> {
        let due = self.due;
        async move {
            match due {
                Some((at, signal)) => {
                    tokio::time::sleep_until(at).await;
                    signal
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Kills all ranks that are left.
    pub(super) fn kill(&mut self) {
        self.send(Signal::KILL);
        self.due = None;
    }

    fn send(&mut self, signal: Signal) {
        self.sent.push(signal);
        for (_, group) in &self.running {
            // A process group that ended at this moment has no process to receive it.
            let _ = kill_process_group(*group, signal);
        }
    }

    /// The highest status of the ranks that ended by themselves and of the interrupting signal.
    pub(super) fn worst(&self) -> u8 {
        self.worst.max(self.interrupted.map_or(0, status_of))
    }

    /// Waits for the rest of the output.
    pub(super) async fn drain(mut self, at_most: Duration) {
        let all = async { while self.streams.join_next().await.is_some() {} };
        // Output that is still open then is held by a process outside this job.
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
        let mut ranks = Ranks::new(Duration::ZERO, false);
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

    #[test]
    fn who_keeps_going_asks_nobody_to_end() {
        for keeps_going in [false, true] {
            let mut ranks = Ranks::new(Duration::ZERO, keeps_going);
            // No process has the other rank's number: nothing is sent before it is due.
            ranks.running = vec![(1, Pid::INIT)];
            let ended = Ended { rank: 0, pid: 7, status: Ok(ExitStatus::from_raw(9)) };
            let said = ranks.note(&ended).unwrap();
            let rest = if keeps_going { "1 still run" } else { "ending the 1 that still run" };
            assert_eq!(said, format!("rank 0 (pid 7) was ended by signal 9; {rest}"));
            assert_eq!((ranks.due.is_none(), ranks.worst()), (keeps_going, 137));
            ranks.running.clear();
        }
    }
}
