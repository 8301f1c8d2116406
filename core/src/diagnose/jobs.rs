//! Which communicators are one job, and the number of each rank in it.
//!
//! A job is what communicators connect: the processes that share communicators, transitively. A
//! program that makes its groups from several unique ids has several recorded job ids, and is one
//! job because the groups share processes. The launcher's name connects what shares none yet.
//!
//! Ranks are numbered as in the job's largest communicator. If that has not all processes, they
//! are numbered as the launcher numbered them; if it did not, those outside of the largest
//! communicator follow its ranks.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::{CommSnapshot, PeerSnapshot, ProcessSnapshot};
use crate::types::{CommId, JobId, Rank};

/// A job: what tools show as one.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Job {
    /// The id that is shown: that of the job's largest communicator, and of equal ones the oldest.
    pub id: JobId,
    /// The ids that its communicators carry, that one included. Each names the job.
    pub ids: BTreeSet<JobId>,
    /// The user of its processes, as the owner of their files tells: any user can write a recorder
    /// with another job's ids. `None` if it is not known.
    pub owner: Option<u32>,
}

impl Job {
    /// Whether this is one of its ids.
    #[must_use]
    pub fn is_named(&self, id: JobId) -> bool {
        self.id == id || self.ids.contains(&id)
    }

    /// Whether this process has a rank in it.
    #[must_use]
    pub fn includes(&self, process: &ProcessSnapshot) -> bool {
        process.comms.iter().any(|comm| self.is_named(comm.job))
    }

    /// The communicators of this process that belong to it.
    pub fn rows<'a>(&self, process: &'a ProcessSnapshot) -> impl Iterator<Item = &'a CommSnapshot> {
        process.comms.iter().filter(|comm| self.is_named(comm.job))
    }

    /// The same, and those that a process of the job could not make: they say nothing of who is in
    /// it.
    pub(super) fn shown<'a>(&self, process: &'a ProcessSnapshot) -> impl Iterator<Item = &'a CommSnapshot> {
        let is_in = self.includes(process);
        let rows = process.comms.iter().enumerate();
        let shown = rows
            .filter(move |(at, comm)| self.is_named(comm.job) || is_in && was_given_up(&process.comms, *at));
        shown.map(|(_, comm)| comm)
    }

    /// The id that these processes record now.
    ///
    /// A process that was in init when the job was found may have recorded another id since; the
    /// earlier one then leads to nothing.
    pub(super) fn id_of<'a>(&self, processes: impl Iterator<Item = &'a ProcessSnapshot>) -> JobId {
        let members: Vec<_> = processes.filter(|process| self.includes(process)).collect();
        let is_recorded = members.iter().any(|process| self.rows(process).any(|comm| comm.job == self.id));
        if is_recorded || members.is_empty() { self.id } else { job_of(&members).0.id }
    }
}

impl From<JobId> for Job {
    /// The job of which this id alone is known.
    fn from(id: JobId) -> Self {
        Self { id, ids: BTreeSet::from([id]), owner: None }
    }
}

/// The jobs of these processes, the one with the most ranks first. Processes of several users
/// belong to different jobs, so ask for each user.
#[must_use]
pub fn jobs<'a>(processes: impl IntoIterator<Item = &'a ProcessSnapshot>) -> Vec<Job> {
    let processes: Vec<&ProcessSnapshot> = processes.into_iter().collect();
    let mut sets = Sets::new(processes.len());
    // Of one communicator all ranks record one job.
    let mut by_job = BTreeMap::new();
    for (at, process) in processes.iter().enumerate() {
        for comm in connecting(process) {
            sets.join(at, *by_job.entry(comm.job).or_insert(at));
        }
    }
    join_launches(&processes, &mut sets);
    let mut members: BTreeMap<usize, Vec<&ProcessSnapshot>> = BTreeMap::new();
    for (at, process) in processes.iter().enumerate() {
        if connecting(process).next().is_some() {
            members.entry(sets.root(at)).or_default().push(process);
        }
    }
    let mut jobs: Vec<_> = members.values().map(|members| job_of(members)).collect();
    jobs.sort_by_key(|(job, ranks)| (std::cmp::Reverse(*ranks), job.id));
    jobs.into_iter().map(|(job, _)| job).collect()
}

/// Whether the init of a communicator failed, and its process has not made one like it since. The
/// position of a row tells its age.
fn was_given_up(comms: &[CommSnapshot], at: usize) -> bool {
    let comm = &comms[at];
    let is_like = |other: &CommSnapshot| (&other.name, other.nranks) == (&comm.name, comm.nranks);
    let has_failed = comm.ended && comm.init.is_some() && comm.has_failed();
    has_failed && !comms[at + 1..].iter().any(|other| other.init.is_none() && is_like(other))
}

/// The rows that connect a process with others: those of communicators that it has not left, if it
/// has any.
fn connecting(process: &ProcessSnapshot) -> impl Iterator<Item = &CommSnapshot> {
    let has_left = process.comms.iter().all(|comm| comm.ended);
    process.comms.iter().filter(move |comm| has_left || !comm.ended)
}

/// Joins the processes of one launch that lived at the same time: a launcher's name may be used
/// again.
fn join_launches(processes: &[&ProcessSnapshot], sets: &mut Sets) {
    let mut launches: BTreeMap<JobId, Vec<usize>> = BTreeMap::new();
    for (at, process) in processes.iter().enumerate().filter(|(_, process)| process.launch != JobId(0)) {
        launches.entry(process.launch).or_default().push(at);
    }
    for mut those in launches.into_values() {
        those.sort_by_key(|at| processes[*at].made_real_ns);
        let mut last: Option<(usize, u64)> = None;
        for at in those {
            let ProcessSnapshot { alive, made_real_ns, to_real_ns, .. } = *processes[at];
            let until = if alive { u64::MAX } else { to_real_ns };
            last = Some(match last {
                Some((before, end)) if made_real_ns <= end => {
                    sets.join(at, before);
                    (at, until.max(end))
                }
                _ => (at, until),
            });
        }
    }
}

/// The job of these processes, and the number of its ranks that are among them.
fn job_of(members: &[&ProcessSnapshot]) -> (Job, usize) {
    // By communicator: its job, its size, and the position of its row, which tells its age.
    let mut comms: BTreeMap<CommId, (JobId, u32, usize)> = BTreeMap::new();
    let mut ranks: BTreeMap<CommId, BTreeSet<Rank>> = BTreeMap::new();
    for process in members {
        for (at, comm) in process.comms.iter().enumerate() {
            let known = comms.entry(comm.id).or_insert((comm.job, comm.nranks, at));
            (known.1, known.2) = (known.1.max(comm.nranks), known.2.min(at));
            ranks.entry(comm.id).or_default().insert(comm.rank);
        }
    }
    let ids = members.iter().flat_map(|process| connecting(process)).map(|comm| comm.job).collect();
    let largest = comms.iter().filter(|(_, (job, ..))| BTreeSet::contains(&ids, job));
    let largest = largest
        .max_by_key(|(id, (_, nranks, at))| (*nranks, std::cmp::Reverse(*at), std::cmp::Reverse(**id)));
    let (id, ranks) = largest.map_or_else(Default::default, |(id, (job, ..))| (*job, ranks[id].len()));
    (Job { id, ids, owner: None }, ranks.max(members.len()))
}

/// Disjoint sets of indices.
struct Sets(Vec<usize>);

impl Sets {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }
    fn root(&mut self, mut at: usize) -> usize {
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}

/// A process, as its peers know it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Known {
    /// The name of its recorder, which is its alone; its path, if the name tells of no process;
    /// empty if that names no file.
    recorder: String,
    /// Its host and pid, if it has no such path.
    place: (String, u32),
}

/// The name of a recorder's file, wherever that lies: `PID-NAMESPACE-TIME.rec`. A folder may be
/// copied, moved or named in several ways; the name belongs to one process. `None` if it is not
/// such a name.
pub(super) fn recorder_name(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    let parts: Vec<&str> = name.strip_suffix(".rec")?.split('-').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (parts.len() == 3 && parts.iter().all(is_number)).then_some(name)
}

impl Known {
    fn of(recorder: &str, host: &str, pid: u32) -> Self {
        // A descriptor's path means something else in every process.
        match recorder.is_empty() || recorder.starts_with("/proc/") {
            true => Self { recorder: String::new(), place: (host.to_string(), pid) },
            false => {
                let recorder = recorder_name(recorder).unwrap_or(recorder).to_string();
                Self { recorder, place: Default::default() }
            }
        }
    }
    fn peer(peer: &PeerSnapshot) -> Self {
        Self::of(&peer.recorder, &peer.host, peer.pid)
    }
    fn process(process: &ProcessSnapshot) -> Self {
        Self::of(&process.path, &process.host, process.pid)
    }
}

/// The numbers of the ranks of one job.
#[derive(Debug)]
pub struct Numbers<'a> {
    job: &'a Job,
    /// The numbers of each process's ranks, in order.
    of: BTreeMap<Known, BTreeSet<Rank>>,
    /// The number of ranks of the largest communicator, if it numbers the job; else 0.
    pub nranks: u32,
}

impl<'a> Numbers<'a> {
    /// The numbers of the ranks of these processes, and of those they name.
    #[must_use]
    pub fn new<'p>(job: &'a Job, processes: impl Iterator<Item = &'p ProcessSnapshot> + Clone) -> Self {
        let mut of: BTreeMap<Known, BTreeSet<Rank>> = BTreeMap::new();
        let mut nranks = 0;
        for process in processes.clone().filter(|process| job.includes(process)) {
            let own = of.entry(Known::process(process)).or_default();
            let rows = || job.rows(process);
            own.extend(rows().filter(|comm| comm.job == job.id).map(|comm| comm.world));
            for comm in rows() {
                if comm.job == job.id && comm.rank == comm.world {
                    nranks = nranks.max(comm.nranks);
                }
                for peer in &comm.peers {
                    let theirs = of.entry(Known::peer(peer)).or_default();
                    theirs.extend((comm.job == job.id).then_some(peer.world));
                }
            }
        }
        if of.values().any(BTreeSet::is_empty) {
            match launched(job, processes, &of) {
                Some(launched) => (of, nranks) = (launched, 0),
                None => number_the_rest(&mut of, nranks),
            }
        }
        Self { job, of, nranks }
    }

    /// The number of a rank of a process.
    #[must_use]
    pub fn of_row(&self, process: &ProcessSnapshot, comm: &CommSnapshot) -> Rank {
        // A process may hold several ranks of a communicator.
        let nth =
            || process.comms.iter().filter(|other| other.id == comm.id && other.rank < comm.rank).count();
        self.number(&Known::process(process), (comm.job, comm.world), nth)
    }

    /// The number of a peer, as a row tells of it.
    pub(super) fn of_peer(&self, comm: &CommSnapshot, peer: &PeerSnapshot) -> Rank {
        let process = Known::peer(peer);
        let before = || comm.peers.iter().filter(|other| other.rank < peer.rank);
        let nth = || before().filter(|other| Known::peer(other) == process).count();
        self.number(&process, (comm.job, peer.world), nth)
    }

    /// The number of the `nth` rank of a process in a communicator, recorded as `world` of `job`.
    fn number(&self, process: &Known, (job, world): (JobId, Rank), nth: impl Fn() -> usize) -> Rank {
        match self.of.get(process) {
            Some(own) if job != self.job.id || !own.contains(&world) => {
                let nth = if own.len() > 1 { nth() } else { 0 };
                own.iter().nth(nth).or_else(|| own.last()).copied().unwrap_or(world)
            }
            _ => world,
        }
    }

    /// The processes that are known, with their numbers.
    pub(super) fn all(&self) -> BTreeSet<Rank> {
        self.of.values().flatten().copied().collect()
    }
}

/// The launcher's numbers, if it numbered all of these processes, and each holds one rank.
fn launched<'p>(
    job: &Job,
    processes: impl Iterator<Item = &'p ProcessSnapshot>,
    of: &BTreeMap<Known, BTreeSet<Rank>>,
) -> Option<BTreeMap<Known, BTreeSet<Rank>>> {
    let mut numbered: BTreeMap<Known, BTreeSet<Rank>> =
        of.keys().cloned().map(|key| (key, BTreeSet::new())).collect();
    let mut taken = BTreeSet::new();
    for process in processes.filter(|process| job.includes(process)) {
        let key = Known::process(process);
        let is_one = of.get(&key).is_some_and(|own| own.len() <= 1);
        let rank = process.launch_rank.filter(|rank| is_one && taken.insert(*rank))?;
        numbered.entry(key).or_default().insert(rank);
    }
    let next = taken.last().map_or(0, |last| last.0.saturating_add(1));
    number_the_rest(&mut numbered, next);
    Some(numbered)
}

/// Numbers the processes without a number, from `next` on.
fn number_the_rest(of: &mut BTreeMap<Known, BTreeSet<Rank>>, next: u32) {
    let last = of.values().flatten().max().map_or(0, |last| last.0.saturating_add(1));
    let mut number = next.max(last);
    for own in of.values_mut().filter(|own| own.is_empty()) {
        own.insert(Rank(number));
        number = number.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A communicator of one process: its id, which is also its job's, and its rank of how many.
    type Row = (u64, u32, u32);

    fn process(pid: u32, rows: &[Row]) -> ProcessSnapshot {
        let comm = |&(id, rank, nranks): &Row| CommSnapshot {
            id: CommId(id),
            job: JobId(id),
            rank: Rank(rank),
            world: Rank(rank),
            nranks,
            ..CommSnapshot::default()
        };
        ProcessSnapshot {
            pid,
            host: "a".into(),
            path: format!("/{pid}.rec"),
            alive: true,
            comms: rows.iter().map(comm).collect(),
            ..ProcessSnapshot::default()
        }
    }

    fn found(processes: &[ProcessSnapshot]) -> Vec<(u64, Vec<u64>)> {
        let of = |job: Job| (job.id.0, job.ids.iter().map(|id| id.0).collect());
        jobs(processes).into_iter().map(of).collect()
    }

    /// The numbers of the ranks of each process, in the only job.
    fn numbers(processes: &[ProcessSnapshot]) -> Vec<Vec<u32>> {
        let job = jobs(processes).remove(0);
        let numbers = Numbers::new(&job, processes.iter());
        let of = |process: &ProcessSnapshot| {
            process.comms.iter().map(|comm| numbers.of_row(process, comm).0).collect()
        };
        processes.iter().map(of).collect()
    }

    #[test]
    fn a_communicator_that_could_not_be_made_is_shown_with_those_that_were() {
        // What failed in init, of two sizes; and between them a world of two.
        let mut one = process(10, &[(6, 0, 2), (7, 0, 2), (8, 0, 3), (9, 0, 2)]);
        for at in [0, 2, 3] {
            let row = &mut one.comms[at];
            (row.ended, row.init, row.failure) = (true, Some(Default::default()), Some(Default::default()));
        }
        let shown = |one: &ProcessSnapshot| {
            let job = jobs([one]).remove(0);
            assert_eq!(job.rows(one).map(|row| row.id.0).collect::<Vec<_>>(), [7]);
            job.shown(one).map(|row| row.id.0).collect::<Vec<_>>()
        };
        // The first one was made since.
        assert_eq!(shown(&one), [7, 8, 9]);
        one.comms[0].name = "dp".into();
        assert_eq!(shown(&one), [6, 7, 8, 9]);
        one.comms[2].init = None;
        assert_eq!(shown(&one), [6, 7, 9]);
        // It makes it no rank of another job.
        assert_eq!(found(&[one, process(11, &[(9, 1, 2)])]), [(7, vec![7]), (9, vec![9])]);
    }

    #[test]
    fn what_shares_a_process_is_one_job_whatever_its_ids() {
        // A world of 4; groups of 2 with ids of their own, made before and after it; another job.
        let mut all = vec![
            process(10, &[(5, 0, 2), (7, 0, 4), (8, 0, 2)]),
            process(11, &[(5, 1, 2), (7, 1, 4), (9, 0, 2)]),
            process(12, &[(6, 0, 2), (7, 2, 4), (8, 1, 2)]),
            process(13, &[(6, 1, 2), (7, 3, 4), (9, 1, 2)]),
            process(14, &[(20, 0, 2)]),
            process(15, &[(20, 1, 2)]),
        ];
        assert_eq!(found(&all), [(7, vec![5, 6, 7, 8, 9]), (20, vec![20])]);
        all.reverse();
        assert_eq!(found(&all), [(7, vec![5, 6, 7, 8, 9]), (20, vec![20])]);
        assert_eq!(numbers(&all[2..]), [[3; 3], [2; 3], [1; 3], [0; 3]]);
        // Without a world the groups connect the processes all the same.
        let pairs = [process(1, &[(5, 0, 2)]), process(2, &[(5, 1, 2), (6, 0, 2)]), process(3, &[(6, 1, 2)])];
        assert_eq!(found(&pairs), [(5, vec![5, 6])]);
        assert_eq!(numbers(&pairs), [vec![0], vec![1, 1], vec![2]]);
    }

    #[test]
    fn a_communicator_that_was_left_connects_nothing() {
        let mut one = process(1, &[(5, 0, 2), (6, 0, 2)]);
        one.comms[0].ended = true;
        let all = [one, process(2, &[(5, 1, 2)]), process(3, &[(6, 1, 2)])];
        assert_eq!(found(&all), [(6, vec![6]), (5, vec![5])]);
        // Of a process that has left all, the last ones tell where it was.
        let mut gone = process(1, &[(5, 0, 2)]);
        gone.comms[0].ended = true;
        assert_eq!(found(&[gone, process(2, &[(5, 1, 2)])]), [(5, vec![5])]);
    }

    #[test]
    fn a_launch_connects_the_processes_that_lived_together() {
        let launched = |pid, id, rank, made, alive, until| {
            let mut one = process(pid, &[(id, 0, 2)]);
            (one.launch, one.launch_rank) = (JobId(77), Some(Rank(rank)));
            (one.made_real_ns, one.alive, one.to_real_ns) = (made, alive, until);
            one
        };
        let first = launched(1, 5, 0, 10, false, 20);
        let all = [launched(3, 6, 4, 30, true, 31), first, launched(4, 7, 2, 35, true, 36)];
        assert_eq!(found(&all), [(6, vec![6, 7]), (5, vec![5])]);
        // Nothing has all of them: the launcher numbers them.
        assert_eq!(numbers(&[all[0].clone(), all[2].clone()]), [[4], [2]]);
        // Unless it numbered two alike.
        let mut twice = [all[0].clone(), all[2].clone()];
        twice[0].launch_rank = Some(Rank(2));
        assert_eq!(numbers(&twice), [[0], [2]]);
    }

    #[test]
    fn ranks_of_one_process_keep_their_order_in_every_group() {
        // Two threads a process: ranks 0 and 1, 2 and 3; a group of each process's second.
        let mut all =
            [process(1, &[(5, 0, 4), (5, 1, 4), (6, 0, 2)]), process(2, &[(5, 2, 4), (5, 3, 4), (6, 1, 2)])];
        assert_eq!(numbers(&all), [[0, 1, 0], [2, 3, 2]]);
        // Made from the world, a group says who they are.
        for (at, one) in all.iter_mut().enumerate() {
            (one.comms[2].job, one.comms[2].world) = (JobId(5), Rank(at as u32 * 2 + 1));
        }
        assert_eq!(numbers(&all), [[0, 1, 1], [2, 3, 3]]);
    }

    #[test]
    fn a_recorder_is_known_by_its_name_in_whatever_folder() {
        let name = "27326-4026531836-1795563745140640035.rec";
        for folder in ["", "n1/ccl-0/", "/tmp/copy/", "./"] {
            assert_eq!(recorder_name(&format!("{folder}{name}")), Some(name));
        }
        for other in ["/1.rec", "/1-2-3.sock", "/1-2-.rec", "/1-2-x.rec", "/1-2-3-4.rec", ""] {
            assert_eq!(recorder_name(other), None, "{other}");
        }
        // Two processes with groups of their own ids, read from a copy of their folder.
        let mut all = [process(1, &[(5, 0, 2), (6, 0, 2)]), process(2, &[(5, 1, 2), (6, 1, 2)])];
        let file = |pid: u32| format!("{pid}-4026531836-99.rec");
        let peers: Vec<PeerSnapshot> = (0..2)
            .map(|at| PeerSnapshot {
                rank: Rank(at),
                world: Rank(at),
                pid: at + 1,
                host: "a".into(),
                recorder: format!("/run/ccl-0/{}", file(at + 1)),
                ..PeerSnapshot::default()
            })
            .collect();
        for one in &mut all {
            one.path = format!("copy/{}", file(one.pid));
            one.comms.iter_mut().filter(|comm| comm.id.0 == 6).for_each(|comm| comm.peers = peers.clone());
        }
        let job = jobs(&all).remove(0);
        assert_eq!(Numbers::new(&job, all.iter()).all(), [0, 1].map(Rank).into());
    }

    #[test]
    fn a_process_that_only_a_peer_names_has_a_number() {
        let mut one = process(1, &[(5, 0, 2), (6, 0, 2)]);
        let peer = |pid: u32, rank, world| PeerSnapshot {
            rank: Rank(rank),
            world: Rank(world),
            pid,
            host: "a".into(),
            recorder: format!("/{pid}.rec"),
            ..PeerSnapshot::default()
        };
        one.comms[0].peers = vec![peer(1, 0, 0), peer(2, 1, 1)];
        one.comms[1].peers = vec![peer(1, 0, 0), peer(3, 1, 1)];
        let job = jobs([&one]).remove(0);
        let numbers = Numbers::new(&job, std::iter::once(&one));
        let of = |comm: usize, at: usize| numbers.of_peer(&one.comms[comm], &one.comms[comm].peers[at]).0;
        assert_eq!([of(0, 0), of(0, 1), of(1, 0), of(1, 1)], [0, 1, 0, 2]);
        assert_eq!(numbers.all(), [0, 1, 2].map(Rank).into());
    }
}
