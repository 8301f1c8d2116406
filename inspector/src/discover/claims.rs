//! Which recorders are believed if recorders of several users describe the same rank, process or
//! job.
//!
//! Any user may write a recorder that names the job, the rank and the process of another user, and
//! as many recorders as the user likes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ccl::recorder::reader::Reader;
use ccl::snapshot::ProcessSnapshot;
use ccl::types::{CommId, JobId, Rank};

use super::door::Opened;
use super::{Findings, Found};
use crate::words;

/// How much the recorders of one user may report in all, in bytes of memory.
const MOST_OF_A_USER: usize = 64 << 20;
/// How many bytes of another user's files are read.
const MOST_READ: u64 = 1 << 30;

/// The cost of a user's recorders.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cost {
    /// The memory for what they report, in bytes.
    told: usize,
    /// The bytes of their files.
    read: u64,
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Rank(JobId, CommId, Rank),
    /// A pid in its namespace.
    Process(u64, u32),
}

/// How well a claim is founded: is it of the user who asks, and does the claimed process exist?
type Standing = (bool, bool);

impl Findings {
    /// Reads an opened recorder; gives its content and its user.
    ///
    /// # Errors
    /// Why it was not opened, cannot be read, or is not read any more.
    pub(super) fn read(&mut self, opened: Opened) -> Result<(ProcessSnapshot, u32, Reader), String> {
        let (reader, owner) = opened.map_err(|e| words::line(&e.to_string()))?;
        let cost = self.costs.entry(Some(owner)).or_default();
        cost.read = cost.read.saturating_add(reader.size());
        // Empty files may be as large, and as many, as their user likes.
        if owner != rustix::process::geteuid().as_raw() && cost.read > MOST_READ {
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

    /// Puts aside the recorders whose claims contradict better founded claims of another user.
    ///
    /// A job of the user who asks belongs to no other user: a recorder of another user cannot say
    /// who waits in it or how many ranks it has. The recorders of the user who asks come first.
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
        let owners = owners(&self.found);
        self.disputed = disputed(&self.found, me);
        let is_doubtful = |one: &Found| {
            let is_of_mine = one.given.process.comms.iter().any(|comm| own.contains(&comm.job));
            if one.owner != Some(me) && is_of_mine {
                return true;
            }
            let of_another = |claim| best[&claim].1 != one.owner && best[&claim].0 > standing(one, me);
            claims(one).any(of_another) || conflicts(one, &owners, &self.found)
        };
        let mut doubtful: VecDeque<bool> = self.found.iter().map(is_doubtful).collect();
        let (doubtful, kept): (Vec<Found>, Vec<Found>) =
            std::mem::take(&mut self.found).into_iter().partition(|_| doubtful.pop_front() == Some(true));
        self.found = kept;
        for one in doubtful {
            let owner = one.owner.map_or_else(|| "another user".into(), |owner| format!("user {owner}"));
            let why = format!("it is of {owner}, and tells of a job, a rank or a process of somebody else");
            let note = format!("{} is set aside: {why}", words::path(&one.file));
            self.aside.push((ids(&one), note));
            self.refused.push((one.file, why));
        }
    }
}

/// The ids of jobs that a recorder names.
fn ids(one: &Found) -> Vec<JobId> {
    let ids: BTreeSet<JobId> = one.given.process.comms.iter().map(|comm| comm.job).collect();
    ids.into_iter().collect()
}

/// The jobs of which recorders of several users tell, none of them the one who asks, each with
/// those users and a process of each.
///
/// Any user can write any id, and start any number of processes: none is believed more than others,
/// but living ones more than files.
fn disputed(found: &[Found], me: u32) -> BTreeMap<JobId, Vec<(u32, u32)>> {
    let mut tellers: BTreeMap<JobId, BTreeMap<(bool, u32), u32>> = BTreeMap::new();
    for one in found {
        let Some(owner) = one.owner else { continue };
        let pid = one.process.unwrap_or(one.given.process.pid);
        for job in ids(one) {
            tellers.entry(job).or_default().entry((one.process.is_some(), owner)).or_insert(pid);
        }
    }
    let several = tellers.into_iter().filter_map(|(job, tellers)| {
        let is_mine = tellers.keys().any(|(_, owner)| *owner == me);
        let lives = tellers.keys().any(|(lives, _)| *lives);
        let those = tellers.into_iter().filter(|((is_alive, _), _)| *is_alive == lives);
        let those: Vec<(u32, u32)> = those.map(|((_, owner), pid)| (owner, pid)).collect();
        (!is_mine && those.len() > 1).then_some((job, those))
    });
    several.collect()
}

/// The user that owns each job that recorders of several users describe.
///
/// The owner is the user with the most living processes in the job, then with the most recorders.
fn owners(found: &[Found]) -> BTreeMap<JobId, Option<u32>> {
    let mut tellers: BTreeMap<JobId, BTreeMap<Option<u32>, (usize, usize)>> = BTreeMap::new();
    for one in found {
        for job in ids(one) {
            let (living, all) = tellers.entry(job).or_default().entry(one.owner).or_default();
            *living += usize::from(one.process.is_some());
            *all += 1;
        }
    }
    let several = tellers.into_iter().filter(|(_, owners)| owners.len() > 1);
    let most = |owners: BTreeMap<Option<u32>, (usize, usize)>| {
        owners.into_iter().max_by_key(|(owner, count)| (*count, std::cmp::Reverse(*owner)))
    };
    several.filter_map(|(job, owners)| Some((job, most(owners)?.0))).collect()
}

/// Whether a recorder contradicts the recorders of the user who owns the job.
///
/// It does if it reports a communicator of another size, or a rank that they know as another
/// process or not at all.
fn conflicts(one: &Found, owners: &BTreeMap<JobId, Option<u32>>, found: &[Found]) -> bool {
    let process = &one.given.process;
    process.comms.iter().any(|comm| {
        let Some(owner) = owners.get(&comm.job).filter(|owner| **owner != one.owner) else { return false };
        let theirs = found.iter().filter(|other| other.owner == *owner);
        let mut theirs = theirs
            .flat_map(|other| &other.given.process.comms)
            .filter(|other| (other.job, other.id) == (comm.job, comm.id));
        theirs.any(|other| {
            let named = other.peers.iter().find(|peer| peer.world == comm.world);
            let is_named = named.is_some_and(|peer| (peer.pid, &peer.host) == (process.pid, &process.host));
            other.nranks != comm.nranks || !(other.peers.is_empty() || is_named)
        })
    })
}

fn standing(one: &Found, me: u32) -> Standing {
    (one.owner == Some(me), one.process.is_some())
}

fn claims(one: &Found) -> impl Iterator<Item = Claim> + '_ {
    let process = &one.given.process;
    let ranks = process.comms.iter().map(|comm| Claim::Rank(comm.job, comm.id, comm.world));
    ranks.chain([Claim::Process(process.pid_namespace, process.pid)])
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use ccl::diagnose::Given;
    use ccl::snapshot::{CommSnapshot, PeerSnapshot, ProcessSnapshot, Source};

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
        // Of two other users, the one whose process is alive and is the one that its recorder
        // describes.
        check(vec![found(7, false, 8, 1, 2), found(9, true, 8, 1, 2)], &["/9-8"]);
        // A job of the user who asks; a job of two other users; and a rank that left its recorder.
        check(vec![found(7, true, 9, 1, 1), found(0, true, 8, 1, 2)], &["/0-8"]);
        check(vec![found(7, true, 9, 1, 1), found(9, true, 8, 1, 2)], &["/7-9", "/9-8"]);
        check(vec![found(0, true, 9, 1, 2), found(0, false, 8, 1, 2)], &["/0-9", "/0-8"]);
    }

    #[test]
    fn a_job_of_one_user_has_no_ranks_of_another_that_its_ranks_do_not_know() {
        let check = |theirs: &[(u32, u32)], nranks: u32, expect: &[&str]| {
            let peers = theirs.iter().map(|(world, pid)| PeerSnapshot {
                world: Rank(*world),
                pid: *pid,
                ..PeerSnapshot::default()
            });
            let peers: Vec<_> = peers.collect();
            let mut all: Vec<_> = [0, 1].map(|rank| found(7, true, 70 + rank, 1, rank)).into();
            all.iter_mut().for_each(|one| one.given.process.comms[0].peers.clone_from(&peers));
            let mut other = found(9, true, 90, 1, 2);
            other.given.process.comms[0].nranks = nranks;
            all.insert(0, other);
            let mut findings = Findings { found: all, ..Findings::default() };
            findings.settle(0);
            let kept: Vec<_> =
                findings.found.iter().map(|one| one.file.to_string_lossy().into_owned()).collect();
            assert_eq!(kept, expect);
            let notes: Vec<_> =
                findings.aside.iter().map(|(jobs, note)| (jobs.clone(), note.as_str())).collect();
            let set_aside = "/9-90 is set aside: it is of user 9, and tells of a job, a rank or a process of somebody else";
            let expect: &[_] = if kept.len() == 3 { &[] } else { &[(vec![JobId(1)], set_aside)] };
            assert_eq!(notes, expect);
        };
        // The other recorders know the rank as another process, as this one, or not at all; and the
        // case before they know any rank.
        check(&[(0, 70), (1, 71), (2, 72)], 0, &["/7-70", "/7-71"]);
        check(&[(0, 70), (1, 71), (2, 90)], 0, &["/9-90", "/7-70", "/7-71"]);
        check(&[(0, 70), (1, 71)], 0, &["/7-70", "/7-71"]);
        check(&[], 0, &["/9-90", "/7-70", "/7-71"]);
        check(&[], 5, &["/7-70", "/7-71"]);
    }

    #[test]
    fn a_disputed_job_is_of_the_user_with_the_most_living_ranks_in_it() {
        let check = |found: &[Found], expect: Option<u32>| {
            let expect = expect.map(|owner| (JobId(1), Some(owner))).into_iter().collect();
            assert_eq!(owners(found), expect);
        };
        let (lives, file) = (true, false);
        check(&[found(7, lives, 70, 1, 0), found(7, lives, 71, 1, 1), found(9, lives, 90, 2, 0)], None);
        let files = [1, 2, 3].map(|rank| found(9, file, 90 + rank, 1, rank));
        check(&[&files[..], &[found(7, lives, 70, 1, 0)]].concat(), Some(7));
        check(&[&files[..2], &[found(7, file, 70, 1, 0)]].concat(), Some(9));
        // Among equals the choice is always the same.
        check(&[found(9, lives, 90, 1, 1), found(7, lives, 70, 1, 0)], Some(7));
    }

    #[test]
    fn a_job_that_several_other_users_tell_of_is_disputed() {
        let check = |found: &[Found], me: u32, expect: &[(u32, u32)]| {
            let those = disputed(found, me).remove(&JobId(1)).unwrap_or_default();
            assert_eq!(those, expect);
        };
        let (lives, file) = (true, false);
        let both = [found(7, lives, 70, 1, 0), found(9, lives, 90, 1, 0), found(9, lives, 91, 1, 1)];
        check(&both, 0, &[(7, 70), (9, 90)]);
        // Of a job of the one who asks nobody else tells.
        check(&both, 7, &[]);
        // A file weighs nothing beside a process that lives.
        check(&[found(7, lives, 70, 1, 0), found(9, file, 90, 1, 0)], 0, &[]);
        check(&[found(7, file, 70, 1, 0), found(9, file, 90, 1, 0)], 0, &[(7, 70), (9, 90)]);
        check(&[found(7, lives, 70, 1, 0), found(7, file, 71, 1, 1)], 0, &[]);
    }

    #[test]
    fn what_is_told_of_another_communicator_contradicts_nobody() {
        let check = |id: u64, expect: bool| {
            let (own, mut other) = (found(7, true, 70, 1, 0), found(9, true, 90, 1, 1));
            (other.given.process.comms[0].id, other.given.process.comms[0].nranks) = (CommId(id), 5);
            let owners = BTreeMap::from([(JobId(1), Some(7))]);
            assert_eq!(conflicts(&other, &owners, &[own]), expect);
        };
        let of_the_job = CommSnapshot::default().id.0;
        check(of_the_job, true);
        check(of_the_job + 1, false);
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
