//! Whether all ranks of a job were read, by what its communicators say of their size.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::ProcessSnapshot;
use crate::types::{CommId, Rank};

/// The ranks that were read, of each communicator in use.
#[derive(Clone, Default, Debug)]
pub struct Census(BTreeMap<CommId, Ranks>);

#[derive(Clone, Default, Debug)]
struct Ranks {
    /// How many it has; 0 if those that were read have left it.
    all: u32,
    read: BTreeSet<Rank>,
}

impl Census {
    /// Counts a process that was read.
    pub fn add(&mut self, process: &ProcessSnapshot) {
        for comm in &process.comms {
            let ranks = self.0.entry(comm.id).or_default();
            ranks.read.insert(comm.rank);
            if !comm.ended {
                ranks.all = ranks.all.max(comm.nranks);
            }
        }
    }

    /// Whether some were read, and none is left in a communicator that one of them uses.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let has_all = |ranks: &Ranks| ranks.read.len() as u64 >= u64::from(ranks.all);
        !self.0.is_empty() && self.0.values().all(has_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::CommSnapshot;

    #[test]
    fn a_job_is_whole_once_each_rank_of_each_communicator_in_use_was_read() {
        // Of each process the communicators: rank, number of ranks, and whether it has left.
        let check = |processes: &[&[(u64, u32, u32, bool)]], expect: bool| {
            let mut census = Census::default();
            for rows in processes {
                let comm = |(id, rank, nranks, ended): &(u64, u32, u32, bool)| CommSnapshot {
                    id: CommId(*id),
                    rank: Rank(*rank),
                    nranks: *nranks,
                    ended: *ended,
                    ..CommSnapshot::default()
                };
                let comms = rows.iter().map(comm).collect();
                census.add(&ProcessSnapshot { comms, ..ProcessSnapshot::default() });
            }
            assert_eq!(census.is_whole(), expect, "{processes:?}");
        };
        check(&[], false);
        check(&[&[(1, 0, 2, false)]], false);
        check(&[&[(1, 0, 2, false)], &[(1, 0, 2, false)]], false);
        check(&[&[(1, 0, 2, false)], &[(1, 1, 2, false)]], true);
        // One of them is in another communicator with a third.
        check(&[&[(1, 0, 2, false)], &[(1, 1, 2, false), (2, 1, 2, false)]], false);
        // Who has left it was read; who has not may still be there.
        check(&[&[(1, 0, 2, false)], &[(1, 1, 2, true)]], true);
        check(&[&[(1, 0, 2, true), (2, 0, 1, false)]], true);
    }
}
