//! Leaving a communicator: together by `finish()`, or at once by an abort.

use std::time::Duration;

use crate::bootstrap::fault::name_ranks;
use crate::clock::{self, Ns};
use crate::comm::parking;
use crate::comm::state::{DECISION, Inner, lock};
use crate::error::Result;
use crate::failure::gossip::{Decision, Report, Trouble, bounded};
use crate::failure::task::Finished;
use crate::notice::{self, Level};
use crate::observer::{self, Call};
use crate::types::Phase;

/// How long leaving waits for the farewell to be on its way.
const FAREWELL: Duration = Duration::from_secs(1);

impl Inner {
    pub(crate) fn abort(&self, reason: &str) {
        self.end_all("aborted", reason);
    }

    /// Ends the calls of all ranks; `what` this rank did and why is what they fail with.
    pub(super) fn end_all(&self, what: &str, reason: &str) {
        if self.is_stale() {
            return;
        }
        let text = bounded(&format!("rank {} {what}: {reason}", self.rank));
        let report = Report::new(Trouble::Aborted, self.rank, self.rank, text.clone());
        // Through the service thread, so that a caller blocked in this communicator is ended too.
        let gossip = lock(&self.gossip).clone();
        let decision = gossip.and_then(|gossip| gossip.report(report, DECISION));
        let (by, about) = (self.rank, self.rank);
        let decision =
            decision.unwrap_or(Decision { trouble: Trouble::Aborted, by, about, other: None, text });
        self.shared.decided(&decision);
        let Ok(mut driver) = self.driver() else { return };
        self.look(&mut driver);
        if let Some(failure) = driver.engine.failure().cloned() {
            self.end(&mut driver, failure);
        }
    }

    pub(crate) fn finish(&self) -> Result<()> {
        let _observed = observer::begin(|| Call::Phase(Phase::Finish));
        // An observer may have forked: its child also gets here.
        self.own()?;
        let result = self.complete().and_then(|()| self.wait_for_all());
        let gossip = lock(&self.gossip).take();
        match (&result, gossip) {
            (Ok(()), Some(gossip)) => gossip.leave(FAREWELL),
            (Err(_), Some(gossip)) => gossip.flush(DECISION),
            (_, None) => {}
        }
        self.close();
        result
    }

    /// Drives the operations under way to their end.
    fn complete(&self) -> Result<()> {
        let mut driver = self.driver()?;
        self.look(&mut driver);
        let failed = driver.engine.failure().is_some();
        match driver.ended.clone().or_else(|| failed.then(|| self.give_up(&mut driver))) {
            Some(error) => Err(error),
            None => {
                driver.is_finishing = true;
                driver.engine.attend();
                self.drive(&mut driver, &mut |driver| driver.engine.under_way().is_none())
            }
        }
    }

    /// Reports this rank's calls, and sleeps until all others have finished too. So a rank that
    /// another still needs can be asked, and differences in their calls are found.
    fn wait_for_all(&self) -> Result<()> {
        let Some(gossip) = lock(&self.gossip).clone() else { return Ok(()) };
        let (tally, calls) = {
            let driver = self.driver()?;
            driver.engine.row().phase_began(Phase::Finish, clock::raw());
            (driver.numbers.tally(), driver.links.own_calls().collect())
        };
        let began = clock::now();
        let finished = gossip.finish(tally, calls, self.timeout);
        let took = clock::now().since(began);
        let mut driver = self.driver()?;
        driver.engine.row().phase(Phase::Finish, Ns(took.as_nanos() as u64));
        match finished {
            Finished::All => {
                self.memory.finished();
                Ok(())
            }
            // This rank's work is done, and the others may still need each other.
            Finished::Without(ranks) => {
                let text = format!(
                    "comm {}: rank {} has waited {:?} in finish() for {}, and leaves without",
                    self.name,
                    self.rank,
                    self.timeout,
                    name_ranks(&ranks)
                );
                notice::say(&self.settings, Level::Warn, &text);
                Ok(())
            }
            Finished::Ended(decision) => {
                // The decision may have been made in this very call: the service thread has not
                // flagged it yet.
                self.shared.decided(&decision);
                self.look(&mut driver);
                Err(self.give_up(&mut driver))
            }
        }
    }

    /// Gives everything back: tasks, descriptors, memory. Idempotent.
    pub(crate) fn close(&self) {
        if self.is_stale() {
            return;
        }
        let gossip = lock(&self.gossip).take();
        if let Some(gossip) = gossip {
            gossip.flush(DECISION);
        }
        drop(lock(&self.attended).take());
        // The progress thread may be needed no more.
        parking::tell();
    }
}
