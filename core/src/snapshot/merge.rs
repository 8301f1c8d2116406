//! From the readings of processes to the snapshot of a job.

use std::collections::BTreeMap;

use super::{
    CommSnapshot, Missing, PeerSnapshot, ProcessSnapshot, RankSnapshot, SCHEMA, Snapshot, Source, State,
};
use crate::diagnose::awaited::awaited;
use crate::types::{JobId, Rank};

/// The most ranks that are looked for; what a file says of more is not believed.
const MAX_RANKS: u32 = 1 << 16;

/// One process's reading, and what only whoever took it knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    /// The reading.
    pub process: ProcessSnapshot,
    /// How it was taken.
    pub source: Source,
    /// The state letter of the process in /proc, if it could be read: R, S, D, T, t, Z, X.
    pub letter: Option<char>,
}

impl Given {
    /// How the process is: alive if it holds its lock.
    #[must_use]
    pub fn state(&self) -> State {
        match (self.process.alive, self.letter) {
            (true, Some('T' | 't')) => State::Stopped,
            // Its memory is being torn down: the lock goes last.
            (true, Some('Z' | 'X' | 'x')) => State::Dead,
            (true, _) => State::Running,
            (false, _) if self.process.left => State::Exited,
            (false, _) => State::Dead,
        }
    }
}

/// A process that is known of and could not be read. What is not known is left empty.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Unreachable {
    /// Its host.
    pub host: String,
    /// Its pid, as it sees it.
    pub pid: u32,
    /// The path of its recorder.
    pub recorder: String,
    /// Why not.
    pub why: String,
}

/// The jobs of which these readings tell, the one with the most ranks first.
#[must_use]
pub fn jobs(given: &[Given]) -> Vec<JobId> {
    let mut counts: BTreeMap<JobId, usize> = BTreeMap::new();
    for comm in given.iter().flat_map(|one| &one.process.comms) {
        *counts.entry(comm.job).or_default() += 1;
    }
    let mut jobs: Vec<JobId> = counts.keys().copied().collect();
    jobs.sort_by_key(|job| (std::cmp::Reverse(counts[job]), *job));
    jobs
}

/// The snapshot of `job`, or of the one with the most ranks: its ranks as they were read, those that are known of but were not, and who is awaited.
#[must_use]
pub fn merge(given: &[Given], job: Option<JobId>, unreachable: &[Unreachable]) -> Snapshot {
    let job = job.or_else(|| jobs(given).first().copied()).unwrap_or_default();
    let mut notes = Vec::new();
    let ranks = ranks_of(given, job, &mut notes);
    let missing = missing(given, job, &ranks, unreachable);
    let mut awaited = awaited(&ranks);
    // Who was read late may have called what who was read early is seen to lack. A wait that began before the first reading
    // and stood at the last was one.
    let skew_ns = skew_ns(given, job);
    awaited.retain(|one| one.since_ns >= skew_ns);
    Snapshot {
        schema: SCHEMA.into(),
        job,
        complete: missing.is_empty() && !ranks.is_empty(),
        missing,
        awaited,
        from_real_ns: given.iter().map(|one| one.process.from_real_ns).min().unwrap_or(0),
        to_real_ns: given.iter().map(|one| one.process.to_real_ns).max().unwrap_or(0),
        ranks,
        notes,
    }
}

/// How far apart the readings of processes that ran meanwhile lie.
fn skew_ns(given: &[Given], job: JobId) -> u64 {
    let ran =
        |one: &&Given| one.state() == State::Running && one.process.comms.iter().any(|comm| comm.job == job);
    let running = || given.iter().filter(ran).map(|one| &one.process);
    if running().count() < 2 {
        return 0;
    }
    let first = running().map(|process| process.from_real_ns).min().unwrap_or(0);
    running().map(|process| process.to_real_ns).max().unwrap_or(0).saturating_sub(first)
}

fn ranks_of(given: &[Given], job: JobId, notes: &mut Vec<String>) -> Vec<RankSnapshot> {
    let mut ranks: BTreeMap<Rank, (&Given, RankSnapshot)> = BTreeMap::new();
    for one in given {
        let mut comms: BTreeMap<Rank, Vec<CommSnapshot>> = BTreeMap::new();
        for comm in one.process.comms.iter().filter(|comm| comm.job == job) {
            let comm = CommSnapshot { peers: Vec::new(), ..comm.clone() };
            comms.entry(comm.world).or_default().push(comm);
        }
        for (rank, comms) in comms {
            let found = (one, rank_of(one, rank, comms));
            let Some((before, _)) = ranks.get(&rank) else {
                ranks.insert(rank, found);
                continue;
            };
            // One rank, two recorders: its process left the first one behind. The later tells more.
            let later = |one: &Given| (one.process.alive, one.process.made_real_ns);
            let (kept, other) = if later(one) > later(before) { (one, *before) } else { (*before, one) };
            notes.push(format!(
                "rank {rank} has two recorders: {} is shown, {} is not",
                kept.process.path, other.process.path
            ));
            if std::ptr::eq(kept, one) {
                ranks.insert(rank, found);
            }
        }
        for overflow in &one.process.overflow {
            notes.push(format!(
                "pid {} on {}: {} rows of {} found no place in its recorder and are not shown",
                one.process.pid, one.process.host, overflow.rows, overflow.table
            ));
        }
        if one.process.truncated {
            notes
                .push(format!("{} is truncated: what is shown of it may be old or absent", one.process.path));
        }
    }
    ranks.into_values().map(|(_, rank)| rank).collect()
}

fn rank_of(one: &Given, rank: Rank, comms: Vec<CommSnapshot>) -> RankSnapshot {
    let process = &one.process;
    RankSnapshot {
        rank,
        pid: process.pid,
        host: process.host.clone(),
        state: one.state(),
        source: one.source,
        comms,
        outer_pid: process.outer_pid,
        host_id: process.host_id.clone(),
        letter: one.letter,
        recorder: process.path.clone(),
        failed: process.failed,
        heartbeat_ns: process.heartbeat_ns,
        overflow: process.overflow.iter().fold(0, |sum, table| sum.saturating_add(table.rows)),
        to_real_ns: process.to_real_ns,
    }
}

/// The ranks of the communicator that the job began with, less those that were read.
fn missing(given: &[Given], job: JobId, ranks: &[RankSnapshot], unreachable: &[Unreachable]) -> Vec<Missing> {
    let comms = || given.iter().flat_map(|one| &one.process.comms).filter(|comm| comm.job == job);
    let world = comms().filter(|comm| comm.rank == comm.world).map(|comm| comm.nranks).max().unwrap_or(0);
    let mut known: BTreeMap<Rank, &PeerSnapshot> = BTreeMap::new();
    for peer in comms().flat_map(|comm| &comm.peers) {
        known.entry(peer.world).or_insert(peer);
    }
    (0..world.min(MAX_RANKS))
        .map(Rank)
        .filter(|rank| ranks.binary_search_by_key(rank, |r| r.rank).is_err())
        .map(|rank| explain(rank, known.get(&rank).copied(), unreachable))
        .collect()
}

fn explain(rank: Rank, peer: Option<&PeerSnapshot>, unreachable: &[Unreachable]) -> Missing {
    let Some(peer) = peer else {
        let why = "no rank that was read says where it is".into();
        return Missing { rank, why, ..Missing::default() };
    };
    let tried = unreachable.iter().find(|one| {
        let by_path = !one.recorder.is_empty() && one.recorder == peer.recorder;
        by_path || (one.pid == peer.pid && one.pid != 0 && one.host == peer.host)
    });
    let why = match tried {
        Some(one) => one.why.clone(),
        None if peer.recorder.is_empty() => "it has no recorder".into(),
        None => format!("its recorder {} was not read", peer.recorder),
    };
    Missing { rank, host: peer.host.clone(), pid: peer.pid, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::OpState;
    use crate::types::CommId;

    fn comm(job: u64, rank: u32, world: u32, nranks: u32) -> CommSnapshot {
        CommSnapshot {
            id: CommId(1),
            job: JobId(job),
            rank: Rank(rank),
            world: Rank(world),
            nranks,
            ..CommSnapshot::default()
        }
    }

    fn process(pid: u32, comms: Vec<CommSnapshot>) -> Given {
        let process = ProcessSnapshot {
            pid,
            host: "a".into(),
            alive: true,
            path: format!("/{pid}.rec"),
            comms,
            ..ProcessSnapshot::default()
        };
        Given { process, source: Source::Mapping, letter: Some('S') }
    }

    fn peer(world: u32, pid: u32) -> PeerSnapshot {
        PeerSnapshot {
            world: Rank(world),
            pid,
            host: "b".into(),
            recorder: format!("/{pid}.rec"),
            ..PeerSnapshot::default()
        }
    }

    #[test]
    fn ranks_that_were_not_read_are_listed_with_the_reason() {
        let mut known = comm(7, 0, 0, 4);
        known.peers = vec![peer(2, 22), peer(3, 33)];
        // Two ranks of one process; one is a member of a split of which it is rank 0.
        let given = [process(11, vec![known, comm(7, 1, 1, 4), comm(7, 0, 1, 2), comm(8, 0, 0, 9)])];
        let tried = [Unreachable {
            recorder: "/22.rec".into(),
            why: "permission denied".into(),
            ..Unreachable::default()
        }];
        let job = merge(&given, None, &tried);
        assert_eq!(job.job, JobId(7));
        assert_eq!(job.ranks.iter().map(|r| (r.rank.0, r.comms.len())).collect::<Vec<_>>(), [(0, 1), (1, 2)]);
        assert!(!job.complete);
        let why: Vec<_> = job.missing.iter().map(|m| (m.rank.0, m.pid, m.why.as_str())).collect();
        assert_eq!(why, [(2, 22, "permission denied"), (3, 33, "its recorder /33.rec was not read")]);
        assert!(job.ranks.iter().all(|rank| rank.comms.iter().all(|comm| comm.peers.is_empty())));
        let other = merge(&given, Some(JobId(8)), &[]);
        assert_eq!(other.missing.len(), 8);
        assert_eq!(other.missing[0].why, "no rank that was read says where it is");
        assert!(!merge(&[], None, &[]).complete);
    }

    #[test]
    fn what_only_the_moments_of_reading_tell_is_not_said() {
        let awaited = |read_apart_ns: u64| {
            let mut given = [process(11, vec![comm(7, 0, 0, 2)]), process(12, vec![comm(7, 1, 1, 2)])];
            (given[0].process.from_real_ns, given[0].process.to_real_ns) = (1_000, 1_100);
            (given[1].process.from_real_ns, given[1].process.to_real_ns) =
                (1_000 + read_apart_ns, 1_100 + read_apart_ns);
            // Rank 1, read later, is in a call that rank 0 had not made when it was read.
            (given[0].process.comms[0].op.called, given[0].process.comms[0].op.seq) = (4, 4);
            let op = &mut given[1].process.comms[0].op;
            (op.state, op.called, op.seq, op.age_ns) = (OpState::Running, 5, 5, 10_000);
            merge(&given, None, &[]).awaited.iter().map(|one| one.missing.clone()).collect::<Vec<_>>()
        };
        assert_eq!(awaited(5_000), [vec![Rank(0)]]);
        assert!(awaited(20_000).is_empty());
    }

    #[test]
    fn the_state_is_that_of_the_lock_then_of_the_letter() {
        let mut one = process(1, vec![]);
        let mut state = |alive, left, letter| {
            (one.process.alive, one.process.left, one.letter) = (alive, left, letter);
            one.state()
        };
        assert_eq!(state(true, false, None), State::Running);
        assert_eq!(state(true, false, Some('D')), State::Running);
        assert_eq!(state(true, false, Some('T')), State::Stopped);
        assert_eq!(state(true, false, Some('t')), State::Stopped);
        assert_eq!(state(true, false, Some('Z')), State::Dead);
        assert_eq!(state(false, false, Some('S')), State::Dead);
        assert_eq!(state(false, true, None), State::Exited);
    }

    #[test]
    fn of_two_recorders_of_a_rank_the_living_one_is_shown() {
        let mut old = process(1, vec![comm(7, 0, 0, 1)]);
        old.process.alive = false;
        old.process.made_real_ns = 9;
        let new = process(2, vec![comm(7, 0, 0, 1)]);
        for given in [[old.clone(), new.clone()], [new, old]] {
            let job = merge(&given, None, &[]);
            assert_eq!(job.ranks[0].pid, 2);
            assert_eq!(job.notes, ["rank 0 has two recorders: /2.rec is shown, /1.rec is not"]);
            assert!(job.complete);
        }
    }
}
