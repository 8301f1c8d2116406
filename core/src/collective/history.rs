//! The collectives of one rank, long after they have ended: a rank may run far ahead of another
//! that called something else and needs nothing of it.

use std::collections::VecDeque;

use super::Descriptor;

/// The most runs that are kept.
const MOST: usize = 256;

/// Collectives in their order, as runs of the same call: a loop that calls one thing is one run.
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    /// The first call of each run, and their number, oldest first.
    runs: VecDeque<(Descriptor, u64)>,
    /// The hash of the latest call.
    check: u64,
}

impl History {
    /// Adds the next collective; returns its hash, which needs no hashing where a run goes on.
    #[inline(always)]
    pub(super) fn add(&mut self, call: &Descriptor) -> u64 {
        match self.runs.back_mut() {
            Some((first, calls)) if *call == (Descriptor { seq: first.seq + *calls, ..*first }) => {
                *calls += 1;
                self.check = self.check.wrapping_add(Descriptor::STEP);
            }
            _ => self.begin(call),
        }
        self.check
    }

    /// Begins a run.
    fn begin(&mut self, call: &Descriptor) {
        if self.runs.len() == MOST {
            self.runs.pop_front();
        }
        self.runs.push_back((*call, 1));
        self.check = call.hash();
    }

    /// The collective with this number; `None` if it was not called yet, or too long ago.
    pub(super) fn at(&self, seq: u64) -> Option<Descriptor> {
        let after = self.runs.partition_point(|(first, _)| first.seq <= seq);
        let (first, calls) = self.runs.get(after.checked_sub(1)?)?;
        (seq - first.seq < *calls).then_some(Descriptor { seq, ..*first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CollKind, Datatype, Rank, ReduceOp};

    #[test]
    fn a_loop_is_known_from_its_first_call_and_the_oldest_of_many_runs_are_not() {
        let call = |seq, count| Descriptor {
            kind: CollKind::AllGather,
            dtype: Datatype::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            count,
            seq,
            plan: 1,
            uneven: false,
        };
        let mut history = History::default();
        assert_eq!(history.at(1), None);
        // A loop of one call, then one of two.
        let count = |seq: u64| if seq <= 10_000 { 9 } else { seq % 2 };
        for seq in 1..=10_200 {
            assert_eq!(history.add(&call(seq, count(seq))), call(seq, count(seq)).hash());
        }
        for seq in [1, 5_000, 10_000, 10_001, 10_199, 10_200] {
            assert_eq!(history.at(seq), Some(call(seq, count(seq))));
        }
        assert_eq!([history.at(0), history.at(10_201)], [None, None]);
        for seq in 10_201..=10_300 {
            history.add(&call(seq, count(seq)));
        }
        assert_eq!([history.at(10_000), history.at(10_044)], [None, None]);
        assert_eq!(history.at(10_045), Some(call(10_045, 1)));
    }
}
