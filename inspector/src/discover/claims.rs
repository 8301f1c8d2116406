//! How much the recorders of other users may tell.
//!
//! Any user may write a recorder that names the job, the rank and the process of another user, and
//! as many recorders as the user likes. No user is believed more than others: a job has the
//! recorders of one user, and what it was told to be is all that they may tell later.

use std::collections::BTreeSet;

use ccl::recorder::reader::Reader;
use ccl::snapshot::ProcessSnapshot;
use ccl::types::Rank;

use super::door::Opened;
use super::{Findings, Found};
use crate::words;

/// How much the recorders of one user may report in all, in bytes of memory.
const MOST_OF_A_USER: usize = 64 << 20;
/// How many recorders of another user are read.
const MOST_RECORDERS: usize = 2048;
/// How many bytes of another user's files are read.
const MOST_READ: u64 = 1 << 30;

/// The cost of a user's recorders.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cost {
    /// The memory for what they report, in bytes.
    told: usize,
    /// The bytes of their files.
    read: u64,
    /// How many were read.
    count: usize,
}

/// How many bytes more than twice its first report a recorder of another user may come to report.
const GROWTH: usize = 256 << 10;

/// What a recorder of another user claimed when it was found and judged.
///
/// Later it can neither claim other ranks nor report much more.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    ranks: BTreeSet<Rank>,
    most: usize,
}

impl Claimed {
    pub(super) fn by(process: &mut ProcessSnapshot, owner: u32) -> Option<Self> {
        if owner == rustix::process::geteuid().as_raw() {
            return None;
        }
        let ranks = process.comms.iter().map(|comm| comm.world).collect();
        Some(Self { ranks, most: 2 * process.weight() + GROWTH })
    }

    /// Removes the ranks that it may not report.
    ///
    /// # Errors
    /// It reports too much.
    pub(super) fn bound(&self, process: &mut ProcessSnapshot) -> Result<(), String> {
        process.comms.retain(|comm| self.ranks.contains(&comm.world));
        if process.weight() <= self.most {
            return Ok(());
        }
        Err("it is of another user, and tells far more than at first: what it told then is shown".into())
    }
}

impl Findings {
    /// Reads an opened recorder; gives its content and its user.
    ///
    /// # Errors
    /// Why it was not opened, cannot be read, or is not read any more.
    pub(super) fn read(&mut self, opened: Opened) -> Result<(ProcessSnapshot, u32, Reader), String> {
        let (reader, owner) = opened.map_err(|e| words::line(&e.to_string()))?;
        let cost = self.costs.entry(Some(owner)).or_default();
        cost.read = cost.read.saturating_add(reader.size());
        cost.count += 1;
        // Empty files may be as large, and as many, as their user likes.
        let is_anothers = owner != rustix::process::geteuid().as_raw();
        if is_anothers && cost.count > MOST_RECORDERS {
            return Err(format!("user {owner} has more than {MOST_RECORDERS} recorders"));
        }
        if is_anothers && cost.read > MOST_READ {
            return Err(format!(
                "the recorders of user {owner} are larger than {} MiB in all",
                MOST_READ >> 20
            ));
        }
        Ok((reader.snapshot().map_err(|e| words::line(&e.to_string()))?, owner, reader))
    }

    /// Keeps a recorder that was read, unless the recorders of its user report too much with it.
    pub(super) fn add(&mut self, mut found: Found) {
        let told = &mut self.costs.entry(found.owner).or_default().told;
        let weight = found.given.process.weight();
        if *told + weight > MOST_OF_A_USER {
            let why = format!("the recorders of its user tell more than {} MiB in all", MOST_OF_A_USER >> 20);
            return self.refused.push((found.file, why));
        }
        *told += weight;
        self.found.push(found);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use ccl::diagnose::Given;
    use ccl::snapshot::{CommSnapshot, PeerSnapshot, ProcessSnapshot, Source};
    use ccl::types::JobId;

    fn found(owner: u32, is_held: bool, pid: u32, job: u64, rank: u32) -> Found {
        let comm = CommSnapshot { job: JobId(job), world: Rank(rank), ..CommSnapshot::default() };
        let process = ProcessSnapshot { pid, comms: vec![comm], ..ProcessSnapshot::default() };
        Found {
            given: Given { process, source: Source::File, letter: None, ended: false },
            process: is_held.then_some(pid),
            file: PathBuf::from(format!("/{owner}-{pid}")),
            owner: Some(owner),
            claimed: None,
        }
    }

    #[test]
    fn what_another_users_recorder_tells_later_is_bounded_by_what_it_told_at_first() {
        let mut first = found(7, true, 9, 1, 5).given.process;
        let nobody = u32::MAX;
        let claimed = Claimed::by(&mut first, nobody).unwrap();
        let told = |ranks: &[u32], peers: usize| {
            let peer = PeerSnapshot { recorder: "x".repeat(4000), ..PeerSnapshot::default() };
            let comm = |rank: &u32| CommSnapshot {
                world: Rank(*rank),
                peers: vec![peer.clone(); peers],
                ..CommSnapshot::default()
            };
            ProcessSnapshot { comms: ranks.iter().map(comm).collect(), ..ProcessSnapshot::default() }
        };
        let mut other = told(&[0, 5, 2], 10);
        assert!(claimed.bound(&mut other).is_ok());
        assert_eq!(other.comms.iter().map(|comm| comm.world).collect::<Vec<_>>(), [Rank(5)]);
        assert!(claimed.bound(&mut told(&[5], 100)).is_err());
        let own = rustix::process::geteuid().as_raw();
        assert!(Claimed::by(&mut first, own).is_none());
    }

    #[test]
    fn very_many_recorders_of_a_user_cost_no_more_than_some() {
        let mut findings = Findings::default();
        for pid in 0..100 {
            let mut fat = found(7, false, pid, 1, pid);
            let peer = PeerSnapshot { recorder: "x".repeat(4000), ..PeerSnapshot::default() };
            fat.given.process.comms[0].peers = vec![peer; 1000];
            findings.add(fat);
        }
        findings.add(found(0, true, 200, 2, 0));
        assert!((10..20).contains(&findings.found.len()), "{}", findings.found.len());
        assert_eq!(findings.found.last().and_then(|one| one.owner), Some(0));
        assert_eq!(findings.refused.len() + findings.found.len(), 101);
    }
}
