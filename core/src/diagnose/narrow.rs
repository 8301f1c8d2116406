//! One communicator of a job, and all of them in a line each.

use std::collections::BTreeMap;

use super::{call_name, comm_name};
use crate::snapshot::{CommSnapshot, OpState, Snapshot};
use crate::types::{CommId, Rank};

/// A communicator of a job in a line.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CommLine {
    /// Its id.
    pub id: CommId,
    /// Its name, or its id if it has none.
    pub name: String,
    /// The number of its ranks.
    pub nranks: u32,
    /// Those that were read, as ranks of the job.
    pub ranks: Vec<Rank>,
    /// The latest collective that one of them called, `AllReduce #7`; empty if there was none.
    pub call: String,
    /// The ranks of the job that are inside an operation.
    pub inside: Vec<Rank>,
    /// How long the first of them has been inside.
    pub since_ns: u64,
    /// The ranks of the job on which it failed.
    pub failed: Vec<Rank>,
}

impl Snapshot {
    /// The communicators of the job that have not ended or have failed: the largest first, those of
    /// one name together.
    #[must_use]
    pub fn comm_lines(&self) -> Vec<CommLine> {
        let mut lines: BTreeMap<CommId, (u64, CommLine)> = BTreeMap::new();
        for rank in &self.ranks {
            for comm in rank.comms.iter().filter(|comm| !comm.ended || comm.has_failed()) {
                let (seq, line) = lines.entry(comm.id).or_default();
                (line.id, line.nranks) = (comm.id, comm.nranks);
                line.name = comm_name(&comm.name, comm.id);
                line.ranks.push(rank.rank);
                let op = comm.operation();
                if !op.kind.is_empty() && (line.call.is_empty() || op.seq > *seq) {
                    (*seq, line.call) = (op.seq, call_name(&op.kind, op.seq));
                }
                if comm.has_failed() {
                    line.failed.push(rank.rank);
                } else if op.state == OpState::Running {
                    line.inside.push(rank.rank);
                    line.since_ns = line.since_ns.max(op.age_ns);
                }
            }
        }
        let mut lines: Vec<CommLine> = lines.into_values().map(|(_, line)| line).collect();
        lines.sort_by_cached_key(|line| {
            (std::cmp::Reverse(line.nranks), line.name.clone(), line.ranks.first().copied(), line.id)
        });
        lines
    }

    /// Leaves only the communicators of this name or id.
    ///
    /// # Errors
    /// The names that there are, if none is this one.
    pub fn narrow(&mut self, name: &str) -> Result<(), Vec<String>> {
        let is_meant = |comm: &CommSnapshot| comm.name == name || comm.id.to_string() == name;
        let rows = || self.ranks.iter().flat_map(|rank| &rank.comms);
        if !rows().any(is_meant) {
            let mut names: Vec<String> = rows().map(|comm| comm_name(&comm.name, comm.id)).collect();
            names.sort_unstable();
            names.dedup();
            return Err(names);
        }
        for rank in &mut self.ranks {
            rank.comms.retain(is_meant);
        }
        self.ranks.retain(|rank| !rank.comms.is_empty());
        let left: Vec<CommId> = self.comm_ids().collect();
        self.blocked_on.retain(|one| left.contains(&one.comm));
        self.failures.retain(|one| left.contains(&one.comm));
        self.not_joined.retain(|one| left.contains(&one.comm));
        Ok(())
    }

    fn comm_ids(&self) -> impl Iterator<Item = CommId> {
        self.ranks.iter().flat_map(|rank| &rank.comms).map(|comm| comm.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{BlockedOn, OpSnapshot, RankSnapshot};

    fn job() -> Snapshot {
        let comm = |id: u64, name: &str, rank: u32, nranks: u32, seq: u64, state: OpState| CommSnapshot {
            id: CommId(id),
            name: name.into(),
            rank: Rank(rank),
            nranks,
            op: OpSnapshot { kind: "AllReduce".into(), seq, state, age_ns: seq, ..OpSnapshot::default() },
            ..CommSnapshot::default()
        };
        let rank = |at: u32, comms| RankSnapshot { rank: Rank(at), comms, ..RankSnapshot::default() };
        Snapshot {
            ranks: vec![
                rank(0, vec![comm(1, "world", 0, 3, 7, OpState::Running)]),
                rank(
                    1,
                    vec![comm(2, "data", 0, 2, 4, OpState::Idle), comm(1, "world", 1, 3, 6, OpState::Idle)],
                ),
                rank(
                    2,
                    vec![
                        comm(2, "data", 1, 2, 5, OpState::Failed),
                        comm(1, "world", 2, 3, 7, OpState::Running),
                    ],
                ),
            ],
            blocked_on: [1, 2].map(|id| BlockedOn { comm: CommId(id), ..BlockedOn::default() }).into(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_communicator_has_a_line() {
        let ranks = |all: &[u32]| all.iter().copied().map(Rank).collect::<Vec<_>>();
        let world = CommLine {
            id: CommId(1),
            name: "world".into(),
            nranks: 3,
            ranks: ranks(&[0, 1, 2]),
            call: "AllReduce #7".into(),
            inside: ranks(&[0, 2]),
            since_ns: 7,
            failed: Vec::new(),
        };
        let data = CommLine {
            id: CommId(2),
            name: "data".into(),
            nranks: 2,
            ranks: ranks(&[1, 2]),
            call: "AllReduce #5".into(),
            failed: ranks(&[2]),
            ..CommLine::default()
        };
        assert_eq!(job().comm_lines(), [world, data]);
    }

    #[test]
    fn a_job_is_narrowed_to_a_communicator_by_name_or_id() {
        for name in ["data", "0000000000000002"] {
            let mut job = job();
            job.narrow(name).unwrap();
            assert_eq!(
                job.ranks.iter().map(|rank| (rank.rank.0, rank.comms.len())).collect::<Vec<_>>(),
                [(1, 1), (2, 1)]
            );
            assert_eq!(job.blocked_on.iter().map(|one| one.comm.0).collect::<Vec<_>>(), [2]);
        }
        assert_eq!(job().narrow("date"), Err(vec!["data".into(), "world".into()]));
    }
}
