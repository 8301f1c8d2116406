//! Leaving a communicator: together, by `finish()`; or all at once, by an abort.

use std::time::Duration;

use crate::bootstrap::notice::{self, Level};
use crate::clock::{self, Ns};
use crate::comm::driver::{Inner, VERDICT, lock};
use crate::control::courier::Finished;
use crate::control::news::{Report, Trouble, Verdict, bounded};
use crate::error::Result;
use crate::types::{Phase, Rank};

/// How long leaving waits for the farewell to be on its way.
const FAREWELL: Duration = Duration::from_secs(1);

impl Inner {
    pub(crate) fn abort(&self, reason: &str) {
        if self.is_stale() {
            return;
        }
        let text = bounded(&format!("rank {} aborted: {reason}", self.rank));
        let report = Report::new(Trouble::Aborted, self.rank, self.rank, text.clone());
        // Through the service thread, so that a caller blocked in this communicator is ended too.
        let courier = lock(&self.courier).clone();
        let verdict = courier.and_then(|courier| courier.report(report, VERDICT));
        let (by, about) = (self.rank, self.rank);
        let verdict = verdict.unwrap_or(Verdict { trouble: Trouble::Aborted, by, about, text });
        self.shared.decided(&verdict);
        let Ok(mut driver) = self.driver() else { return };
        self.look(&mut driver);
        if let Some(failure) = driver.engine.failure().cloned() {
            self.end(&mut driver, failure);
        }
    }

    pub(crate) fn finish(&self) -> Result<()> {
        self.own()?;
        let result = self.complete().and_then(|()| self.wait_for_all());
        let courier = lock(&self.courier).take();
        match (&result, courier) {
            (Ok(()), Some(courier)) => courier.leave(FAREWELL),
            (Err(_), Some(courier)) => courier.flush(VERDICT),
            (_, None) => {}
        }
        self.close();
        result
    }

    /// Drives what is under way to its end.
    fn complete(&self) -> Result<()> {
        let mut driver = self.driver()?;
        self.look(&mut driver);
        let failed = driver.engine.failure().is_some();
        match driver.ended.clone().or_else(|| failed.then(|| self.give_up(&mut driver))) {
            Some(error) => Err(error),
            None => self.drive(&mut driver, &mut |driver| driver.engine.under_way().is_none()),
        }
    }

    /// Says what this rank has called, and waits asleep until all others have finished too: so a
    /// rank that another still needs is there to be asked, and what they called differently is
    /// found.
    fn wait_for_all(&self) -> Result<()> {
        let Some(courier) = lock(&self.courier).clone() else { return Ok(()) };
        let (tally, calls) = {
            let driver = self.driver()?;
            driver.engine.row().phase_began(Phase::Finish, clock::raw());
            (driver.numbers.tally(), driver.links.own_calls().collect())
        };
        let began = clock::now();
        let finished = courier.finish(tally, calls, self.timeout);
        let took = clock::now().since(began);
        let mut driver = self.driver()?;
        driver.engine.row().phase(Phase::Finish, Ns(took.as_nanos() as u64));
        match finished {
            Finished::All => Ok(()),
            // Its work is done, and the others may still need each other.
            Finished::Without(ranks) => {
                let text = format!(
                    "comm {}: rank {} has waited {:?} in finish() for {}, and leaves without",
                    self.name,
                    self.rank,
                    self.timeout,
                    listed(&ranks)
                );
                notice::say(&self.settings, Level::Warn, &text);
                Ok(())
            }
            Finished::Ended(verdict) => {
                // Decided in this very call, perhaps: the service thread has not said so yet.
                self.shared.decided(&verdict);
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
        let courier = lock(&self.courier).take();
        if let Some(courier) = courier {
            courier.flush(VERDICT);
        }
        drop(lock(&self.attended).take());
    }
}

/// Ranks, for people: `ranks 1, 2 and 5`.
fn listed(ranks: &[Rank]) -> String {
    let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match names.split_last() {
        None => "nobody".into(),
        Some((one, [])) => format!("rank {one}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_as_people_do() {
        let list = |ranks: &[u32]| listed(&ranks.iter().copied().map(Rank).collect::<Vec<_>>());
        assert_eq!([list(&[]), list(&[3]), list(&[1, 2, 5])], ["nobody", "rank 3", "ranks 1, 2 and 5"]);
    }
}
