//! What was gathered: rows, what is missing, and how far clocks are apart.

use serde::{Deserialize, Serialize};

use super::super::wire::is_plausible;
use crate::clock::Ns;
use crate::diagnose::Given;
use crate::snapshot::{ClockOffset, ProcessSnapshot, Source};
use crate::text::harmless;
use crate::types::{CommId, Rank};

/// The most ranks of a statement on what is missing.
const MAX_LACKING: usize = 1 << 16;
/// The most bytes of a reason.
const MAX_WHY: usize = 1 << 10;

/// A process as a process of its host has read it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct GatheredRow {
    /// The reading.
    pub process: ProcessSnapshot,
    /// The state letter in the /proc of its host, if it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letter: Option<char>,
    /// Whether /proc shows there that it has ended.
    pub ended: bool,
    /// Its clock; absent if it has the kernel of the process that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockOffset>,
}

/// Ranks of which nothing was gathered, and why.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Lack {
    /// The communicator whose ranks they are.
    pub comm: CommId,
    /// The ranks.
    pub ranks: Vec<Rank>,
    /// The reason.
    pub why: String,
}

/// A part of an answer.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Gathered {
    /// The processes that were read.
    pub rows: Vec<GatheredRow>,
    /// What is missing.
    pub lacks: Vec<Lack>,
    /// Whether more parts follow.
    pub more: bool,
}

impl GatheredRow {
    /// The row of a line of JSON, which may hold anything; `None` if no recorder could hold it.
    #[must_use]
    pub fn of_line(line: &[u8]) -> Option<Self> {
        let row = is_plausible(line).then(|| serde_json::from_slice::<Self>(line).ok())?;
        row.and_then(|mut row| row.is_believed().then_some(row))
    }

    /// The row as a reading, with the times of this kernel's clocks: it was asked for at `asked`,
    /// and it is `now` and `real_ns`. What was read while it lived was read between the two.
    #[must_use]
    pub fn given(self, asked: Ns, now: Ns, real_ns: u64) -> Given {
        let Self { mut process, letter, ended, clock } = self;
        let source = if clock.is_some() { Source::Gather } else { Source::Mapping };
        process.clock_error_ns = clock.map(|clock| clock.error_ns);
        let clock = clock.unwrap_or_default();
        let first = if process.alive { asked.0 } else { 0 };
        let here = |mono_ns: u64, error_ns: i128| {
            let ns = i128::from(mono_ns) - i128::from(clock.offset_ns) + error_ns;
            (ns.clamp(0, i128::from(u64::MAX)) as u64).clamp(first, now.0.max(first))
        };
        let error_ns = i128::from(clock.error_ns);
        if process.to_mono_ns != 0 {
            process.from_mono_ns = here(process.from_mono_ns, -error_ns);
            process.to_mono_ns = here(process.to_mono_ns, error_ns);
            let real = |mono_ns: u64| real_ns.saturating_sub(now.0.saturating_sub(mono_ns));
            (process.from_real_ns, process.to_real_ns) =
                (real(process.from_mono_ns), real(process.to_mono_ns));
        }
        for op in process.comms.iter_mut().flat_map(|comm| &mut comm.history.ops) {
            let here = |ns: u64| ns.saturating_add_signed(clock.offset_ns.saturating_neg());
            (op.called_ns, op.ended_ns) = (here(op.called_ns), here(op.ended_ns));
        }
        Given { process, source, letter, ended }
    }

    /// Whether a recorder could hold it; makes its texts harmless.
    pub(crate) fn is_believed(&mut self) -> bool {
        self.letter = self.letter.filter(char::is_ascii_alphabetic);
        self.process.is_believed()
    }
}

impl Lack {
    /// Whether it is small enough; makes its text harmless.
    pub(crate) fn is_believed(&mut self) -> bool {
        self.why = harmless(&self.why, MAX_WHY).into_owned();
        self.ranks.len() <= MAX_LACKING
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{CommSnapshot, History, PastOp};

    #[test]
    fn times_are_moved_to_the_clock_of_who_asks_and_stay_between_question_and_answer() {
        let check = |alive: bool, (from, to): (u64, u64), (offset_ns, error_ns): (i64, u64), expect| {
            let process = ProcessSnapshot {
                alive,
                from_mono_ns: from,
                to_mono_ns: to,
                from_real_ns: 7,
                ..ProcessSnapshot::default()
            };
            let clock = Some(ClockOffset { offset_ns, error_ns });
            let row = GatheredRow { process, clock, ..GatheredRow::default() };
            let one = row.given(Ns(1_000), Ns(2_000), 10_000).process;
            assert_eq!((one.from_mono_ns, one.to_mono_ns, one.from_real_ns, one.to_real_ns), expect);
            assert_eq!(one.clock_error_ns, Some(error_ns));
        };
        check(true, (5_500, 5_600), (4_000, 10), (1_490, 1_610, 9_490, 9_610));
        check(true, (500, 600), (-1_000, 900), (1_000, 2_000, 9_000, 10_000));
        check(true, (500, 600), (i64::MAX, u64::MAX), (1_000, 2_000, 9_000, 10_000));
        // It died long before.
        check(false, (4_100, 4_200), (4_000, 10), (90, 210, 8_090, 8_210));
        check(true, (0, 0), (4_000, 10), (0, 0, 7, 0));
    }

    #[test]
    fn past_operations_are_moved_too() {
        let past = |called_ns, ended_ns| PastOp { seq: 1, called_ns, ended_ns, ..PastOp::default() };
        let history = History { ops: vec![past(5_000, 5_100)], ..History::default() };
        let comms = vec![CommSnapshot { history, ..CommSnapshot::default() }];
        let process = ProcessSnapshot { alive: true, comms, ..ProcessSnapshot::default() };
        let given = |clock| {
            let row = GatheredRow { process: process.clone(), clock, ..GatheredRow::default() };
            let process = row.given(Ns(1_000), Ns(2_000), 10_000).process;
            (process.comms[0].history.ops[0], process.clock_error_ns)
        };
        let clock = ClockOffset { offset_ns: 4_000, error_ns: 10 };
        assert_eq!(given(Some(clock)), (past(1_000, 1_100), Some(10)));
        assert_eq!(given(None), (past(5_000, 5_100), None));
    }
}
