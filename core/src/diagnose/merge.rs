//! Merging the readings of processes to the snapshot of a job.

use std::collections::{BTreeMap, BTreeSet};

use super::standing::CLEARLY_NS;
use crate::diagnose::blocked::blocked_on;
use crate::diagnose::failed::{failed, is_under_way, replaced};
use crate::diagnose::jobs::{Job, Numbers, recorder_name};
use crate::diagnose::joining::{self, joining, of_this_run};
use crate::diagnose::{killed, overflow};
use crate::snapshot::update::grow;
use crate::snapshot::{
    BlockedOn, CommSnapshot, Culprit, Missing, PeerSnapshot, ProcessSnapshot, RankSnapshot, SCHEMA, Snapshot,
    Source, State,
};
use crate::types::{CommId, Rank};

/// The most ranks that are looked for; a larger number in a file is not believed.
const MAX_RANKS: u32 = 1 << 16;

/// One process's reading, with facts that only the reader knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    /// The reading.
    pub process: ProcessSnapshot,
    /// How it was taken.
    pub source: Source,
    /// The state letter of the process in /proc, if it could be read: R, S, D, T, t, Z, X.
    pub letter: Option<char>,
    /// Whether /proc shows that the process has ended.
    pub ended: bool,
}

impl Given {
    /// The state of the process: alive if it holds its lock.
    ///
    /// A recorder that was given back does not show what its process does since.
    #[must_use]
    pub fn state(&self) -> State {
        match (self.process.alive, self.letter) {
            (true, Some('T' | 't')) => State::Stopped,
            // The process's memory is being torn down: the lock is released last.
            (true, Some('Z' | 'X' | 'x')) if self.process.left => State::Exited,
            (true, Some('Z' | 'X' | 'x')) => State::Dead,
            (true, _) => State::Running,
            (false, Some('Z' | 'X' | 'x')) if self.process.left => State::Exited,
            (false, _) if self.process.left && self.ended => State::Exited,
            (false, _) if self.process.left => State::Left,
            // What its process does since is not in it.
            (false, _) if self.source == Source::Copy => State::Unknown,
            (false, _) => State::Dead,
        }
    }
}

/// A known process that could not be read. Unknown fields are empty.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Unreachable {
    /// Its host.
    pub host: String,
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// The path of its recorder.
    pub recorder: String,
    /// Why it could not be read.
    pub why: String,
}

/// The members that these rows name and that none of them is of: each process once, with the
/// communicator and with what comes with the row that names it.
#[must_use]
pub fn unread_peers<'a, T: Copy>(rows: &[(&'a CommSnapshot, T)]) -> Vec<(CommId, &'a PeerSnapshot, T)> {
    let read: BTreeSet<(CommId, Rank)> = rows.iter().map(|(row, _)| (row.id, row.rank)).collect();
    let mut unread = BTreeMap::new();
    for (row, with) in rows {
        for peer in row.peers.iter().filter(|peer| !read.contains(&(row.id, peer.rank))) {
            let process = (&peer.host, peer.pid, &peer.recorder);
            unread.entry(process).or_insert((row.id, peer, *with));
        }
    }
    unread.into_values().collect()
}

impl Unreachable {
    /// A member that is known and could not be read.
    #[must_use]
    pub fn of(peer: &PeerSnapshot, why: String) -> Self {
        Self { host: peer.host.clone(), pid: peer.pid, recorder: peer.recorder.clone(), why }
    }
}

/// The snapshot of a job from the readings of its processes.
///
/// It has the ranks that were read, the known ranks that were not, and the ranks that block others.
#[must_use]
pub fn merge(given: &[Given], job: &Job, unreachable: &[Unreachable]) -> Snapshot {
    let job = &Job { id: job.id_of(given.iter().map(|one| &one.process)), ..job.clone() };
    let mut notes = Vec::new();
    let given = &*of_this_run(given, job, &mut notes);
    let numbers = Numbers::new(job, given.iter().map(|one| &one.process));
    let ranks = ranks_of(given, (job, &numbers), &mut notes);
    let not_joined = joining(&ranks);
    let mut missing = missing(given, (job, &numbers), &ranks, unreachable);
    let known = ranks.len() + missing.len();
    for one in &mut missing {
        let mut of_all = not_joined.iter().filter(|waits| waits.is_of(known));
        if let Some(why) = of_all.find_map(|waits| waits.why(one.rank)).filter(|_| one.pid == 0) {
            one.why = why;
        }
    }
    let mut blocked_on = blocked_on(&ranks);
    let mut failures = failed(&ranks);
    joining::ended(&ranks, &not_joined, &mut failures);
    // A failed operation no longer waits.
    let waited = killed::waited(&ranks, &failures);
    let has_failed = |one: &BlockedOn| failures.iter().any(|failure| failure.comm == one.comm);
    blocked_on.retain(|one| !has_failed(one) || is_under_way(&ranks, one));
    if let Some(waited) = waited {
        let first = waited.first().map(|one| one.comm);
        failures.iter_mut().for_each(|failure| failure.follows = failure.follows.or(first));
        blocked_on = waited;
    }
    // A rank that was read late may have called what a rank that was read early seems to lack. Only
    // a wait that began before the first reading and lasted until the last is certain.
    let skew_ns = skew_ns(given, job);
    blocked_on.retain(|one| one.since_ns >= skew_ns);
    for one in &mut blocked_on {
        one.culprits = culprits(&ranks, one.comm, one.missing.iter().chain(&one.inside));
    }
    for one in &mut failures {
        one.culprits = culprits(&ranks, one.comm, one.blamed.iter());
    }
    notes.extend(replaced::take(&ranks, &mut failures));
    Snapshot {
        schema: SCHEMA.into(),
        job: job.id,
        complete: missing.is_empty() && !ranks.is_empty(),
        missing,
        blocked_on,
        failures,
        not_joined,
        verdicts: Vec::new(),
        from_real_ns: given.iter().map(|one| one.process.from_real_ns).min().unwrap_or(0),
        to_real_ns: given.iter().map(|one| one.process.to_real_ns).max().unwrap_or(0),
        ranks,
        notes,
    }
}

/// The processes of these ranks of a communicator.
fn culprits<'a>(ranks: &[RankSnapshot], comm: CommId, those: impl Iterator<Item = &'a Rank>) -> Vec<Culprit> {
    let those: BTreeSet<Rank> = those.copied().collect();
    let is_one = |row: &CommSnapshot| row.id == comm && those.contains(&row.rank);
    let found = ranks.iter().filter(|rank| rank.comms.iter().any(is_one));
    found.map(|one| Culprit { rank: one.rank, pid: one.pid, host: one.host.clone() }).collect()
}

/// The time span of the readings of running processes.
fn skew_ns(given: &[Given], job: &Job) -> u64 {
    let ran = |one: &&Given| one.state() == State::Running && job.includes(&one.process);
    let running = || given.iter().filter(ran).map(|one| &one.process);
    if running().count() < 2 {
        return 0;
    }
    // On the monotonic clock, if all readings have it.
    let is_told = running().all(|process| process.to_mono_ns != 0);
    let of = |process: &ProcessSnapshot| match is_told {
        true => (process.from_mono_ns, process.to_mono_ns),
        false => (process.from_real_ns, process.to_real_ns),
    };
    let first = running().map(|process| of(process).0).min().unwrap_or(0);
    running().map(|process| of(process).1).max().unwrap_or(0).saturating_sub(first)
}

fn ranks_of(
    given: &[Given],
    (job, numbers): (&Job, &Numbers<'_>),
    notes: &mut Vec<String>,
) -> Vec<RankSnapshot> {
    let mut ranks: BTreeMap<Rank, (&Given, RankSnapshot)> = BTreeMap::new();
    let ends = ends(given, job);
    let mut grouped: BTreeSet<CommId> = BTreeSet::new();
    for one in given {
        let mut comms: BTreeMap<Rank, Vec<CommSnapshot>> = BTreeMap::new();
        for comm in job.shown(&one.process) {
            let world = numbers.of_row(&one.process, comm);
            let mut comm = CommSnapshot { peers: Vec::new(), world, ..comm.clone() };
            // Once per communicator: all ranks tell the same.
            if !comm.groups.is_empty() && !grouped.insert(comm.id) {
                comm.groups.clear();
            }
            comms.entry(comm.world).or_default().push(comm);
        }
        let later_ns = later_ns(&one.process, &ends);
        for (rank, mut comms) in comms {
            comms.iter_mut().for_each(|comm| grow(comm, later_ns));
            let mut found = (one, rank_of(one, rank, comms));
            found.1.to_mono_ns = one.process.to_mono_ns.saturating_add(later_ns);
            let Some((before, _)) = ranks.get(&rank) else {
                ranks.insert(rank, found);
                continue;
            };
            // Its process left the first one behind, or two have one rank.
            let later = |one: &Given| (one.process.alive, one.process.made_real_ns);
            let (kept, other) = if later(one) > later(before) { (one, *before) } else { (*before, one) };
            let told = |one: &Given| format!("{} of pid {}", one.process.path, one.process.pid);
            notes.push(format!(
                "rank {rank} has two recorders: {} is shown, {} is not",
                told(kept),
                told(other)
            ));
            if std::ptr::eq(kept, one) {
                ranks.insert(rank, found);
            }
        }
        if one.process.truncated {
            notes
                .push(format!("{} is truncated: what is shown of it may be old or absent", one.process.path));
        }
    }
    let mut ranks: Vec<RankSnapshot> = ranks.into_values().map(|(_, rank)| rank).collect();
    name_alike(&mut ranks);
    notes.extend(overflow::rows(given.iter().map(|one| &one.process)));
    notes.extend(overflow::communicators(&ranks));
    ranks
}

/// Gives all rows of a communicator the name that its lowest rank has for it: the ranks that join
/// one may call it otherwise than those that grew.
fn name_alike(ranks: &mut [RankSnapshot]) {
    let mut names: BTreeMap<CommId, (Rank, String)> = BTreeMap::new();
    for row in ranks.iter().flat_map(|rank| &rank.comms).filter(|row| !row.name.is_empty()) {
        let named = names.entry(row.id).or_insert_with(|| (row.rank, row.name.clone()));
        if row.rank < named.0 {
            *named = (row.rank, row.name.clone());
        }
    }
    for row in ranks.iter_mut().flat_map(|rank| &mut rank.comms) {
        if let Some((_, name)) = names.get(&row.id) {
            row.name.clone_from(name);
        }
    }
}

/// By kernel, the last sign of life of a job's processes there, if all of them ended and none
/// failed.
type Ends<'a> = BTreeMap<&'a str, Option<u64>>;

fn ends<'a>(given: &'a [Given], job: &Job) -> Ends<'a> {
    let mut ends = Ends::new();
    for one in given.iter().filter(|one| job.includes(&one.process)) {
        let has_failed = one.process.comms.iter().any(CommSnapshot::has_failed);
        let sign = Some(one.process.to_mono_ns).filter(|_| one.state() == State::Dead && !has_failed);
        let last = ends.entry(&one.process.boot_id).or_insert(sign);
        *last = last.zip(sign).map(|(last, sign)| last.max(sign));
    }
    ends
}

/// How long before the job's last sign of life this process gave its last one.
///
/// Only if all its processes on that kernel ended together: then their states are shown as of one
/// moment. A process that was silent for longer may have ended before, and so may a process that
/// failed.
fn later_ns(process: &ProcessSnapshot, ends: &Ends<'_>) -> u64 {
    let last = ends.get(process.boot_id.as_str()).copied().flatten().unwrap_or(0);
    let later_ns = last.saturating_sub(process.to_mono_ns);
    if process.to_mono_ns != 0 && later_ns < CLEARLY_NS { later_ns } else { 0 }
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
        comms_without_row: process.comms_without_row,
        facts: process.facts.shown(matches!(one.state(), State::Running | State::Stopped)),
        ports: process.ports.clone(),
        boot_id: process.boot_id.clone(),
        to_mono_ns: process.to_mono_ns,
        clock_error_ns: process.clock_error_ns,
        to_real_ns: process.to_real_ns,
    }
}

/// The ranks of the job that were not read.
fn missing(
    given: &[Given],
    (job, numbers): (&Job, &Numbers<'_>),
    ranks: &[RankSnapshot],
    unreachable: &[Unreachable],
) -> Vec<Missing> {
    let mut missing = numbers.all();
    missing.extend((0..numbers.nranks.min(MAX_RANKS)).map(Rank));
    missing.retain(|rank| ranks.binary_search_by_key(rank, |r| r.rank).is_err());
    if missing.is_empty() {
        return Vec::new();
    }
    let comms = given.iter().flat_map(|one| job.rows(&one.process));
    let mut known: BTreeMap<Rank, &PeerSnapshot> = BTreeMap::new();
    for (comm, peer) in comms.flat_map(|comm| comm.peers.iter().map(move |peer| (comm, peer))) {
        known.entry(numbers.of_peer(comm, peer)).or_insert(peer);
    }
    missing.into_iter().map(|rank| explain(rank, known.get(&rank).copied(), unreachable)).collect()
}

fn explain(rank: Rank, peer: Option<&PeerSnapshot>, unreachable: &[Unreachable]) -> Missing {
    let Some(peer) = peer else {
        let why = "no rank that was read says where it is".into();
        return Missing { rank, why, ..Missing::default() };
    };
    let tried = unreachable.iter().find(|one| {
        let name = |path| recorder_name(path).unwrap_or(path);
        let by_path = !one.recorder.is_empty() && name(&one.recorder) == name(&peer.recorder);
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
mod tests;
