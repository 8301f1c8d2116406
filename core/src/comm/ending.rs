//! How a communicator ends: what this rank failed with becomes the decision that all ranks share,
//! and the error of every later call.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock;
use crate::comm::state::{DECISION, Driver, Inner, lock};
use crate::comm::unsatisfiable::lost;
use crate::engine::{Cause, Failure, Wait};
use crate::error::{At, Error, ErrorKind};
use crate::failure::gossip::{Decision, Report, Trouble};
use crate::transport::LinkFault;
use crate::types::{ChannelId, CollKind, Rank, WaitReason};

const CALL_THE_SAME: &str = "make all ranks call the same, in the same order, before they finish()";

impl Inner {
    /// Looks at what the service thread flagged.
    pub(super) fn look(&self, driver: &mut Driver) {
        self.shared.flag.store(false, Ordering::Release);
        driver.links.take_arrivals(&mut driver.engine);
        driver.finished.clone_from(&lock(&self.shared.finished));
        driver.asked.append(&mut lock(&self.shared.asked));
        let decision = lock(&self.shared.decision).clone();
        let failure = match decision {
            Some(decision) => Some(self.told(driver, &decision, driver.engine.failure())),
            None => driver.unfit(),
        };
        if let Some(failure) = failure {
            driver.engine.stop(failure);
        }
    }

    /// Gives the communicator up for `failure`: learns or makes the decision all ranks share, and
    /// keeps the error for later calls.
    pub(super) fn end(&self, driver: &mut Driver, failure: Failure) -> Error {
        if let Some(ended) = &driver.ended {
            return ended.clone();
        }
        driver.engine.stop(failure.clone());
        let (failure, decision) = match &failure.cause {
            Cause::External(_) => (failure, lock(&self.shared.decision).clone()),
            Cause::Link(_) | Cause::Mismatch { .. } | Cause::Differs(_) => {
                let report = self.report(driver, &failure);
                let decision = self.decided(report, DECISION);
                let told = decision.as_ref().map(|told| self.told(driver, told, Some(&failure)));
                (told.unwrap_or(failure), decision)
            }
        };
        // What operations ended with is told as their callers hear it.
        driver.engine.fail(failure.clone(), clock::raw());
        driver.links.clear();
        if let Some(peer) = lost(&failure, decision.as_ref()) {
            driver.engine.lost(peer);
        }
        let error = self.error(driver, &failure);
        let blamed = decision.as_ref().and_then(Decision::blamed);
        driver.engine.row().ended_by(error.kind as u8, blamed, &error.what, clock::raw());
        let error = self.with_job_ranks(error);
        driver.ended = Some(error.clone());
        driver.fail_owned(&error);
        error
    }

    /// Adds which ranks of the job this one and the peer are, if they have other numbers there:
    /// launchers and tools count those.
    fn with_job_ranks(&self, mut error: Error) -> Error {
        let named = [Some(self.rank), error.at.peer].into_iter().flatten();
        let named: Vec<(Rank, Rank)> =
            named.filter_map(|rank| Some((rank, *self.worlds.get(rank.index())?))).collect();
        if named.iter().all(|(rank, of_job)| rank == of_job) {
            return error;
        }
        let pair = |(rank, of_job): &(Rank, Rank)| format!("rank {rank} is rank {of_job}");
        let pairs = named.iter().map(pair).collect::<Vec<_>>().join(", ");
        let before = if error.hint.is_empty() { "" } else { "; " };
        error.hint += &format!("{before}in the job, {pairs}");
        error
    }

    /// The engine has failed: what it failed with, as every call from now on will say it.
    pub(super) fn give_up(&self, driver: &mut Driver) -> Error {
        match driver.engine.failure().cloned() {
            Some(failure) => self.end(driver, failure),
            None => {
                Error::new(ErrorKind::Aborted, "the communicator has ended").in_comm(&self.name, self.rank)
            }
        }
    }

    /// Ends the communicator here and everywhere: the operation under way has `stood` too long, or
    /// that of `wait`, while others moved. The peer that it waits for may wait itself: together the
    /// ranks know for whom all wait in the end.
    pub(super) fn time_out(&self, driver: &mut Driver, wait: Option<Wait>, stood: Duration) {
        let is_its = |one: &&Wait| wait.is_none_or(|wait| wait.op == one.op);
        let waits: Vec<Wait> = driver.engine.waits().iter().filter(is_its).copied().collect();
        let error = self.timed_out(driver, wait, &waits, stood);
        let (peer, channel, op) = (error.at.peer, error.at.channel, error.at.op);
        let about = self.held_by(driver, &waits, peer);
        let report = Report::new(Trouble::TimedOut, self.rank, about, error.what.clone());
        let decision = self.decided(Report { op, channel, ..report }, DECISION);
        let failure = Failure { cause: Cause::External(error), op, peer, channel };
        let told = decision.map(|decision| self.told(driver, &decision, Some(&failure)));
        driver.engine.stop(told.unwrap_or(failure));
    }

    /// The rank that holds this one up, whose deadline has passed in these waits: the peer, or
    /// itself if it lacks what a connection needs. Ranks that wait for this one wait for that rank.
    pub(super) fn held_by(&self, driver: &Driver, waits: &[Wait], peer: Option<Rank>) -> Rank {
        let lacks = self.lacking(driver, waits).is_some();
        peer.filter(|_| !lacks).unwrap_or(self.rank)
    }

    /// Tells the others what this rank has found and fails with, if nothing else was decided
    /// before.
    pub(super) fn tell(&self, report: Report) {
        self.decided(report, Duration::ZERO);
    }

    /// The same; gives what is decided within `limit`.
    fn decided(&self, report: Report, limit: Duration) -> Option<Decision> {
        if self.is_stale() {
            return None;
        }
        let gossip = lock(&self.gossip).clone();
        gossip.and_then(|gossip| gossip.report(report, limit))
    }

    fn report(&self, driver: &Driver, failure: &Failure) -> Report {
        let peer = failure.peer.unwrap_or(self.rank);
        let (trouble, text, open) = match &failure.cause {
            Cause::Link(fault) => {
                let what =
                    if *fault == LinkFault::Gone { "ended".to_string() } else { format!("failed: {fault}") };
                (
                    Trouble::LinkFailed,
                    format!("the link between rank {} and rank {peer} {what}", self.rank),
                    None,
                )
            }
            Cause::Mismatch { ours, theirs } => {
                let (text, open) = driver.sides(ours, *theirs, peer);
                (Trouble::Mismatch, text, open)
            }
            Cause::Differs(text) => (Trouble::Mismatch, text.clone(), None),
            Cause::External(error) => (Trouble::Aborted, error.what.clone(), None),
        };
        let Failure { op, channel, .. } = *failure;
        Report { op, channel, open, ..Report::new(trouble, self.rank, peer, text) }
    }

    /// A decision, as this rank's failure: where it stood, and whom it is about; `own` is what it
    /// has failed with itself.
    fn told(&self, driver: &Driver, decision: &Decision, own: Option<&Failure>) -> Failure {
        let hint = match decision.trouble {
            Trouble::Died | Trouble::Unreachable => driver.links.where_is(decision.about),
            Trouble::Mismatch => CALL_THE_SAME.into(),
            Trouble::TimedOut | Trouble::LinkFailed => match self.lacking(driver, driver.engine.waits()) {
                Some((what, hint)) if decision.text.contains(&what) => hint.into(),
                Some((what, hint)) => format!("{what}: {hint}"),
                None if decision.trouble == Trouble::TimedOut => self.how_to_look(),
                None => String::new(),
            },
            Trouble::Aborted => String::new(),
        };
        let op = own.and_then(|failure| failure.op).or_else(|| driver.engine.under_way());
        // A decision about this rank itself names the other side of a mismatch, or the peer that
        // this rank failed with, if there is one.
        let other = |peer: &Rank| *peer != self.rank;
        let failed_with = || own.filter(|_| decision.trouble != Trouble::Mismatch)?.peer;
        let peer = [Some(decision.about), decision.other, failed_with()].into_iter().flatten().find(other);
        let waits = driver.engine.waits();
        let blocked_on = waits.iter().find(|wait| Some(wait.peer) == peer).map(|wait| wait.channel);
        let failed = own.filter(|failure| failure.peer == peer).and_then(|failure| failure.channel);
        // Otherwise where the rank stands: on the channel of what it waits for, or the first of the
        // operation.
        let first = || op.map(|(kind, _)| first_channel(kind));
        let stands = || waits.first().map(|wait| wait.channel).or_else(first);
        let channel = blocked_on.or(failed).or_else(stands);
        let mut error = Error::new(decision.trouble.kind(), decision.text.clone()).hint(hint);
        (error.at.op, error.at.peer, error.at.channel) = (op, peer, channel);
        Failure { cause: Cause::External(error), op, peer, channel }
    }

    fn error(&self, driver: &Driver, failure: &Failure) -> Error {
        let at = At {
            comm: Some(self.name.clone()),
            rank: Some(self.rank),
            op: failure.op,
            peer: failure.peer,
            channel: failure.channel,
        };
        match &failure.cause {
            Cause::External(error) => {
                let mut error = error.clone();
                error.at = At {
                    op: error.at.op.or(at.op),
                    peer: error.at.peer.or(at.peer),
                    channel: error.at.channel.or(at.channel),
                    ..at
                };
                error
            }
            Cause::Link(fault) => {
                let mut error = Error::new(failure.kind(), fault.to_string())
                    .hint(failure.peer.map_or_else(String::new, |peer| driver.links.where_is(peer)));
                error.at = at;
                error
            }
            Cause::Mismatch { .. } | Cause::Differs(_) => {
                let text = match &failure.cause {
                    Cause::Differs(text) => text,
                    _ => "the peer called something else",
                };
                let mut error = Error::new(ErrorKind::Mismatch, text).hint(CALL_THE_SAME);
                error.at = at;
                error
            }
        }
    }

    fn timed_out(&self, driver: &Driver, stands: Option<Wait>, waits: &[Wait], stood: Duration) -> Error {
        let op = stands.map_or_else(|| driver.engine.under_way(), |wait| driver.engine.op_of(&wait));
        let whom: Vec<String> = waits
            .iter()
            .map(|wait| match wait.reason {
                WaitReason::Proxy => "a slot of the proxy (proxy)".into(),
                reason => format!("rank {} on channel {} ({reason})", wait.peer, wait.channel),
            })
            .collect();
        let whom = whom.join(", ");
        let of = op
            .filter(|_| stands.is_some())
            .map_or_else(String::new, |(kind, seq)| format!(" of {kind} #{seq}"));
        let stood = Duration::from_millis(stood.min(self.timeout).as_millis() as u64);
        let what = format!("rank {} saw no progress{of} for {stood:?}: it waits for {whom}", self.rank);
        let (what, hint) = match self.lacking(driver, waits) {
            Some((lacks, hint)) => (format!("{what}, and {lacks}"), hint.to_string()),
            None => (what, self.how_to_look()),
        };
        let mut error = Error::new(ErrorKind::Timeout, what).hint(hint);
        error.at.op = op;
        let first = waits.iter().find(|wait| wait.reason != WaitReason::Proxy);
        error.at.peer = first.map(|wait| wait.peer);
        error.at.channel = first.map(|wait| wait.channel);
        error
    }

    /// What shows how the ranks of this host stood, also when a log is read after their end: what
    /// fails leaves its recorder.
    fn how_to_look(&self) -> String {
        let path = self.recorder_path().filter(|path| !path.starts_with("/proc"));
        path.as_deref().and_then(std::path::Path::parent).map_or_else(String::new, |folder| {
            format!(
                "look, also after the end, with: ccl-inspect open {} --job {}",
                folder.display(),
                self.job
            )
        })
    }
}

/// The channel on which an operation begins.
pub(super) fn first_channel(kind: CollKind) -> ChannelId {
    if kind.is_p2p() { ChannelId::P2P } else { ChannelId(0) }
}
