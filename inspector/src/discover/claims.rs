//! What is believed where recorders of several users tell of the same. Any user may write a
//! recorder that names the job, the rank and the process of another, and as many recorders as it
//! likes.

use std::collections::{BTreeMap, BTreeSet};

use ccl::snapshot::ProcessSnapshot;
use ccl::types::{JobId, Rank};

use super::door::Opened;
use super::{Findings, Found};
use crate::words;

/// How much the recorders of one user may tell in all, in bytes of memory.
const MOST_OF_A_USER: usize = 64 << 20;
/// How many bytes of files of another user are read.
const MOST_READ: u64 = 1 << 30;

/// What the recorders of a user cost.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cost {
    /// Memory for what they tell, in bytes.
    told: usize,
    /// The bytes of their files.
    read: u64,
}

/// By how much one recorder of another user may come to tell more than twice what it told at first.
const GROWTH: usize = 256 << 10;

/// What a recorder of another user told when it was found, and was judged by: what it tells later
/// cannot be of other ranks, nor much more.
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

    /// Takes away what it may not tell.
    ///
    /// # Errors
    /// It tells too much.
    pub(super) fn bound(&self, process: &mut ProcessSnapshot) -> Result<(), String> {
        process.comms.retain(|comm| self.ranks.contains(&comm.world));
        if process.weight() <= self.most {
            return Ok(());
        }
        Err("it is of another user, and tells far more than at first: what it told then is shown".into())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Rank(JobId, Rank),
    /// A pid in its namespace.
    Process(u64, u32),
}

/// How well a claim is founded: by the user who asks, and by the process of which it tells.
type Standing = (bool, bool);

impl Findings {
    /// Reads what was opened; and whose it is.
    ///
    /// # Errors
    /// Why it was not opened, cannot be read, or is not read any more.
    pub(super) fn read(&mut self, opened: Opened) -> Result<(ProcessSnapshot, u32), String> {
        let (reader, owner) = opened.map_err(|e| words::line(&e.to_string()))?;
        let cost = self.costs.entry(Some(owner)).or_default();
        cost.read = cost.read.saturating_add(reader.size());
        // Files with nothing in them may be as large, and as many, as their user likes.
        if owner != rustix::process::geteuid().as_raw() && cost.read > MOST_READ {
            return Err(format!(
                "the recorders of user {owner} are larger than {} MiB in all",
                MOST_READ >> 20
            ));
        }
        Ok((reader.snapshot().map_err(|e| words::line(&e.to_string()))?, owner))
    }

    /// Keeps a recorder that was read, if its user's do not tell too much with it.
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

    /// Puts recorders aside that claim what one of another user claims with better reason. A job of
    /// the user who asks is of no other user: nobody else can tell who waits in it, nor how many ranks it has.
    /// The own ones come first.
    pub(super) fn settle(&mut self, me: u32) {
        self.found.sort_by_key(|one| one.owner != Some(me));
        let own = self.found.iter().filter(|one| one.owner == Some(me));
        let own: BTreeSet<JobId> =
            own.flat_map(|one| one.given.process.comms.iter().map(|comm| comm.job)).collect();
        let mut best: BTreeMap<Claim, (Standing, Option<u32>)> = BTreeMap::new();
        for one in &self.found {
            let mine = (standing(one, me), one.owner);
            for claim in claims(one) {
                let known = best.entry(claim).or_insert(mine);
                if known.0 < mine.0 {
                    *known = mine;
                }
            }
        }
        let is_doubtful = |one: &Found| {
            let is_of_mine = one.given.process.comms.iter().any(|comm| own.contains(&comm.job));
            if one.owner != Some(me) && is_of_mine {
                return true;
            }
            let of_another = |claim| best[&claim].1 != one.owner && best[&claim].0 > standing(one, me);
            claims(one).any(of_another)
        };
        let (doubtful, kept) = std::mem::take(&mut self.found).into_iter().partition(is_doubtful);
        self.found = kept;
        let why = |one: Found| {
            let owner = one.owner.map_or_else(|| "another user".into(), |owner| format!("user {owner}"));
            (one.file, format!("it is of {owner}, and tells of a job, a rank or a process of somebody else"))
        };
        let doubtful: Vec<Found> = doubtful;
        self.refused.extend(doubtful.into_iter().map(why));
    }
}

fn standing(one: &Found, me: u32) -> Standing {
    (one.owner == Some(me), one.process.is_some())
}

fn claims(one: &Found) -> impl Iterator<Item = Claim> + '_ {
    let process = &one.given.process;
    let ranks = process.comms.iter().map(|comm| Claim::Rank(comm.job, comm.world));
    ranks.chain([Claim::Process(process.pid_namespace, process.pid)])
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ccl::snapshot::{CommSnapshot, Given, PeerSnapshot, ProcessSnapshot, Source};

    use super::*;

    fn found(owner: u32, is_held: bool, pid: u32, job: u64, rank: u32) -> Found {
        let comm = CommSnapshot { job: JobId(job), world: Rank(rank), ..CommSnapshot::default() };
        let process = ProcessSnapshot { pid, comms: vec![comm], ..ProcessSnapshot::default() };
        Found {
            given: Given { process, source: Source::File, letter: None },
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
    fn who_claims_a_rank_or_a_process_of_another_user_is_put_aside() {
        let check = |found: Vec<Found>, expect: &[&str]| {
            let mut findings = Findings { found, ..Findings::default() };
            findings.settle(0);
            let kept: Vec<_> =
                findings.found.iter().map(|one| one.file.to_string_lossy().into_owned()).collect();
            assert_eq!(kept, expect);
        };
        // A rank of the job of the user who asks, dead or alive; and its process.
        check(vec![found(7, true, 9, 1, 2), found(0, false, 8, 1, 2)], &["/0-8"]);
        check(vec![found(0, true, 8, 1, 2), found(7, false, 8, 3, 0)], &["/0-8"]);
        // Of two others, whose process lives and is the one it tells of.
        check(vec![found(7, false, 8, 1, 2), found(9, true, 8, 1, 2)], &["/9-8"]);
        // A job of the user who asks; one of two others; and what a rank left behind.
        check(vec![found(7, true, 9, 1, 1), found(0, true, 8, 1, 2)], &["/0-8"]);
        check(vec![found(7, true, 9, 1, 1), found(9, true, 8, 1, 2)], &["/7-9", "/9-8"]);
        check(vec![found(0, true, 9, 1, 2), found(0, false, 8, 1, 2)], &["/0-9", "/0-8"]);
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
