//! A look of the watchdog at its job: what the processes of this host and, by the gathering, those
//! of other hosts record, and the verdicts on it. Runs in a thread of its own.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::alarm::Told;
use crate::clock;
use crate::control::gather::{GatheredRow, Gathering, Lack, Piece, read_host};
use crate::diagnose::{BETWEEN, Census, Given, Job, Unreachable, jobs, merge, unread_peers};
use crate::recorder::Recorder;
use crate::snapshot::{CommSnapshot, OpState, RankSnapshot, Reason, Snapshot, Source, State};
use crate::types::{CommId, Rank};

/// How long other hosts may take to answer: hosts that do not are given up after 5 s.
const GATHER: Duration = Duration::from_secs(8);

/// For how long a debugger may hold a process that does not count as stopped: longer than
/// `ccl-inspect stack` does, 6 s, and than a sign of life takes, 1 s.
const HELD: Duration = Duration::from_secs(8);

/// What was seen of the job.
pub(super) struct Looked {
    /// The job, judged.
    pub(super) job: Snapshot,
    /// This process among its ranks.
    pub(super) me: Option<Rank>,
    /// Whether no lower process of the job waits and could tell.
    pub(super) is_first: bool,
    /// What other watchdogs tell.
    pub(super) told: Vec<Told>,
}

/// Looks at the job of this process; `None` if it has left meanwhile. `stands`: a stall
/// is told already.
pub(super) fn look(
    recorder: &Weak<Recorder>,
    (patience_ns, stall_ns): (u64, u64),
    stands: bool,
) -> Option<Looked> {
    let Reading { mut job, mut held, path: own } = read(recorder, true)?;
    let mut held_before = Vec::new();
    let before = job.wants_second_reading(stall_ns).then(|| job.clone());
    if before.is_some() {
        clock::sleep(BETWEEN);
        // Hosts that did not answer would take as long again.
        let gathers = job.complete || job.ranks.iter().any(|rank| rank.source == Source::Gather);
        held_before = held;
        Reading { job, held, .. } = read(recorder, gathers)?;
    }
    job.judge(before.as_ref(), stall_ns);
    // Nothing is known yet of a process that a debugger holds. What was told before stays told.
    if !stands {
        let is_held = |rank: &Rank| held.contains(rank) || held_before.contains(rank);
        job.verdicts.retain(|verdict| !verdict.culprits.iter().any(|one| is_held(&one.rank)));
    }
    let is_own = |rank: &&RankSnapshot| (rank.pid, &rank.recorder) == (std::process::id(), &own);
    let me = job.ranks.iter().find(is_own).map(|rank| rank.rank);
    // A frozen process tells nothing.
    let is_held = |rank: &RankSnapshot| {
        let frozen = job.verdicts.iter().filter(|one| one.reason == Reason::Frozen);
        frozen.flat_map(|one| &one.culprits).any(|one| one.rank == rank.rank)
    };
    let waits = |rank: &&RankSnapshot| {
        rank.state == State::Running && is_waiting(rank, patience_ns) && !is_held(rank)
    };
    let first = job.ranks.iter().filter(waits).map(|rank| rank.rank).min();
    let others = job.ranks.iter().filter(|rank| Some(rank.rank) != me && rank.state == State::Running);
    let told = others.filter_map(|rank| rank.facts.stall.as_ref().filter(|told| told.is_own).map(Told::from));
    let told = told.collect();
    Some(Looked { is_first: me.is_none() || first.is_none_or(|first| Some(first) >= me), me, told, job })
}

fn is_waiting(rank: &RankSnapshot, patience_ns: u64) -> bool {
    let ops =
        rank.comms.iter().filter(|comm| !comm.ended).flat_map(|comm| [Some(&comm.op), comm.p2p.as_ref()]);
    let is_old = |comm: &CommSnapshot| {
        let lasted = comm.phase.as_ref().map(|phase| phase.duration_ns);
        comm.finishes() && lasted.is_some_and(|ns| ns >= patience_ns)
    };
    ops.flatten().any(|op| op.state == OpState::Running && op.age_ns >= patience_ns)
        || rank.comms.iter().any(is_old)
}

/// The job, as it was read once.
struct Reading {
    job: Snapshot,
    /// The ranks that a debugger has held for a moment.
    held: Vec<Rank>,
    /// The recorder of this process.
    path: String,
}

/// One reading, of this host only unless it `gathers`.
fn read(recorder: &Weak<Recorder>, gathers: bool) -> Option<Reading> {
    let asked = clock::now();
    let (rows, lacks) = match Gathering::known().filter(|_| gathers) {
        Some(gathering) => gathered(&gathering)?,
        None => read_host(&recorder.upgrade()?),
    };
    let own = recorder.upgrade()?.reader().snapshot().ok()?;
    let (now, real_ns) = (clock::now(), clock::real_ns());
    let mut held = Vec::new();
    let given = rows.into_iter().map(|mut row| {
        // Whom a debugger holds for a moment, as `ccl-inspect stack` does, nobody has stopped. All
        // threads of the process stand meanwhile.
        let is_held = row.letter == Some('t') && row.process.heartbeat_ns < HELD.as_nanos() as u64;
        if is_held {
            row.letter = None;
            held.push((row.process.pid, row.process.path.clone()));
        }
        row.given(asked, now, real_ns)
    });
    let mut given: Vec<Given> = given.collect();
    let job = jobs(given.iter().map(|one| &one.process)).into_iter().find(|job| job.includes(&own))?;
    // What the program could not make and goes on without holds nobody up.
    given.iter_mut().for_each(|one| one.process.comms.retain(|row| job.is_named(row.job)));
    let unreachable = unreachable(&given, &job, &lacks);
    let job = merge(&given, &job, &unreachable);
    let is_held = |rank: &&RankSnapshot| held.iter().any(|it| (it.0, &it.1) == (rank.pid, &rank.recorder));
    let held = job.ranks.iter().filter(is_held).map(|rank| rank.rank).collect();
    Some(Reading { job, held, path: own.path })
}

/// What all hosts tell that can be reached, this one included.
fn gathered(gathering: &Arc<Gathering>) -> Option<(Vec<GatheredRow>, Vec<Lack>)> {
    let (call, called) = mpsc::channel();
    let wake = move || {
        // Nobody waits any more.
        let _ = call.send(());
    };
    let ticket = gathering.ask(wake).ok()?;
    let end = clock::now().after(GATHER);
    let (mut rows, mut lacks, mut census) = (Vec::new(), Vec::new(), Census::default());
    loop {
        for piece in ticket.take() {
            match piece {
                Piece::Row(row) => {
                    census.add(&row.process);
                    rows.push(*row);
                }
                Piece::Lack(lack) => lacks.push(lack),
                Piece::Done => return Some((rows, lacks)),
            }
        }
        // A process that is not given the processor would be waited for, though others have told of
        // its host.
        if census.is_whole() {
            return Some((rows, lacks));
        }
        let left = end.since(clock::now());
        match called.recv_timeout(left) {
            Ok(()) => {}
            // What has come by now counts.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Some((rows, lacks)),
        }
    }
}

/// The processes that are known and were not read.
fn unreachable(given: &[Given], job: &Job, lacks: &[Lack]) -> Vec<Unreachable> {
    let mut whys: BTreeMap<(CommId, Rank), &str> = BTreeMap::new();
    for lack in lacks {
        whys.extend(lack.ranks.iter().map(|rank| ((lack.comm, *rank), lack.why.as_str())));
    }
    let rows = given.iter().flat_map(|one| job.rows(&one.process)).filter(|comm| !comm.ended);
    let rows: Vec<_> = rows.map(|row| (row, ())).collect();
    let why = |comm, rank| whys.get(&(comm, rank)).map_or("nobody has read it", |why| why).to_string();
    let unread = unread_peers(&rows).into_iter();
    unread.map(|(comm, peer, ())| Unreachable::of(peer, why(comm, peer.rank))).collect()
}
