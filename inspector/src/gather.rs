//! Asks processes of this kernel for what other hosts know of a job: the ranks that could not be
//! read here. What was read here is never replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::control::gather::{Gathered, GatheredRow, Lack};
use ccl::diagnose::{Census, Given, Job, Unreachable, jobs};
use ccl::snapshot::{PeerSnapshot, ProcessSnapshot, Source, State};
use ccl::types::{CommId, Rank};

use crate::discover::{Findings, Found, door};
use crate::words;

/// How long a process may take for the whole answer: a little more than it gives others.
const WHOLE: Duration = Duration::from_secs(22);
/// After this long no further process is asked.
const LONG: Duration = Duration::from_secs(4);
/// The most processes that are asked, one after the other, as long as ranks are missing.
const MOST_ASKED: usize = 3;

/// What other hosts told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Processes of the job that were not read here.
    pub(crate) given: Vec<Given>,
    /// What else is to be said.
    pub(crate) notes: Vec<String>,
}

/// The processes to be asked, the best first: leaders keep connections to other hosts.
fn askable<'a>(own: &[&'a Found]) -> Vec<&'a Found> {
    let runs = |one: &&&Found| one.given.state() == State::Running && !one.given.process.control.is_empty();
    let mut those: Vec<(bool, &Found)> = Vec::new();
    for one in own.iter().filter(runs) {
        let process = &one.given.process;
        let comms = process.comms.iter().filter(|comm| !comm.ended);
        let spread = comms.filter(|comm| comm.peers.iter().any(|peer| peer.host != process.host_name()));
        let leads = spread.map(|comm| {
            let here = comm.peers.iter().filter(|peer| peer.host == process.host_name());
            let first = here.map(|peer| peer.rank).min();
            // Any rank of the process may tell the members.
            process.comms.iter().any(|own| own.id == comm.id && Some(own.rank) == first)
        });
        let leads: Vec<bool> = leads.collect();
        if !leads.is_empty() {
            those.push((!leads.contains(&true), one));
        }
    }
    those.sort_by_key(|(follows, _)| *follows);
    those.into_iter().map(|(_, one)| one).collect()
}

/// Why ranks are missing in an answer.
fn whys_of(answer: &Gathered) -> impl Iterator<Item = ((CommId, Rank), String)> + '_ {
    let of_one = |lack: &Lack| {
        let (comm, why) = (lack.comm, lack.why.clone());
        lack.ranks.clone().into_iter().map(move |rank| ((comm, rank), why.clone()))
    };
    answer.lacks.iter().flat_map(of_one)
}

/// Who the processes of this kernel are, and who they say that their peers are.
struct Members {
    read: BTreeSet<(u32, u64, u64)>,
    peers: BTreeMap<(CommId, Rank), PeerSnapshot>,
}

impl Members {
    fn of(own: &[&Found]) -> Self {
        let comms = own.iter().flat_map(|one| &one.given.process.comms);
        let peers = comms.flat_map(|comm| comm.peers.iter().map(|peer| ((comm.id, peer.rank), peer.clone())));
        Self { read: own.iter().map(|one| one.who()).collect(), peers: peers.collect() }
    }

    /// Whether a process is one that the peers know under this rank, as far as they know it.
    fn know(&self, process: &ProcessSnapshot) -> bool {
        let mut known = process.comms.iter().filter_map(|comm| self.peers.get(&(comm.id, comm.rank)));
        known.all(|peer| (peer.pid, peer.host.as_str()) == (process.pid, process.host_name()))
    }
}

impl Told {
    /// Asks for the processes in `unreachable`. Those that are told leave it; the others get one
    /// more reason. The job may turn out to be larger.
    pub(crate) fn by_others(findings: &Findings, job: &mut Job, unreachable: &mut Vec<Unreachable>) -> Self {
        let mut told = Self::default();
        if unreachable.is_empty() {
            return told;
        }
        let own: Vec<&Found> = findings.found.iter().filter(|one| one.is_of(job)).collect();
        let members = Members::of(&own);
        let mut whys: BTreeMap<(CommId, Rank), String> = BTreeMap::new();
        let mut census = Census::default();
        own.iter().for_each(|one| census.add(&one.given.process));
        let begun = clock::now();
        for one in askable(&own).into_iter().take(MOST_ASKED) {
            // Hosts that do not answer one do not answer another either, and that takes as long.
            if unreachable.is_empty() || clock::now().since(begun) >= LONG {
                break;
            }
            let asked = clock::now();
            // Others have told what a starved process would still tell.
            let is_enough = |more: &[GatheredRow]| {
                let of_others = more.iter().map(|row| &row.process).filter(|one| members.know(one));
                of_others.for_each(|one| census.add(one));
                census.is_whole()
            };
            match door::control(one).and_then(|mut client| client.gather(WHOLE, is_enough)) {
                Ok(answer) => {
                    whys.extend(whys_of(&answer));
                    told.take(answer, asked, &members);
                }
                Err(why) => {
                    let ProcessSnapshot { pid, host, .. } = &one.given.process;
                    told.notes
                        .push(words::line(&format!("pid {pid} on {host} did not ask other hosts: {why}")));
                }
            }
            unreachable.retain(|one| !told.has(one));
        }
        widen(job, findings, &told.given);
        told.given.retain(|one| job.includes(&one.process));
        for (at, peer) in &members.peers {
            let is_it = |one: &&mut Unreachable| {
                (&one.host, one.pid, &one.recorder) == (&peer.host, peer.pid, &peer.recorder)
            };
            if let (Some(why), Some(one)) = (whys.get(at), unreachable.iter_mut().find(is_it)) {
                one.why = format!("{}; it could not be gathered: {why}", one.why);
            }
        }
        told
    }

    /// Takes what an answer tells of processes that nobody has told of.
    fn take(&mut self, answer: Gathered, asked: Ns, members: &Members) {
        let now = (clock::now(), clock::real_ns());
        for row in answer.rows {
            let process = &row.process;
            let who = (process.pid, process.pid_namespace, process.made_real_ns);
            let is_told = |one: &Given| {
                (one.process.pid, one.process.pid_namespace, one.process.made_real_ns) == who
                    && one.process.boot_id == process.boot_id
            };
            if members.read.contains(&who) || self.given.iter().any(is_told) {
                continue;
            }
            if !members.know(process) {
                let (pid, host) = (process.pid, &process.host);
                self.notes.push(words::line(&format!(
                    "pid {pid} on {host} was gathered under the rank of another process: it is not shown"
                )));
                continue;
            }
            self.given.push(Given { source: Source::Gather, ..row.given(asked, now.0, now.1) });
        }
    }

    /// Whether this process was told.
    fn has(&self, one: &Unreachable) -> bool {
        let is_it =
            |given: &Given| (given.process.pid, given.process.host_name()) == (one.pid, one.host.as_str());
        one.pid != 0 && self.given.iter().any(is_it)
    }
}

/// Joins what the gathered processes connect with the job.
pub(crate) fn widen(job: &mut Job, findings: &Findings, given: &[Given]) {
    if given.is_empty() {
        return;
    }
    let own = findings.found.iter().filter(|one| one.is_of(job)).map(|one| &one.given);
    let all = own.chain(given).map(|one| &one.process);
    if let Some(wider) = jobs(all).into_iter().find(|wider| wider.is_named(job.id)) {
        *job = Job { owner: job.owner, ..wider };
    }
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::CommSnapshot;

    use super::*;

    fn process(pid: u32, host: &str) -> ProcessSnapshot {
        let comm = CommSnapshot { id: CommId(1), rank: Rank(pid), ..CommSnapshot::default() };
        ProcessSnapshot {
            pid,
            host: host.into(),
            alive: true,
            comms: vec![comm],
            ..ProcessSnapshot::default()
        }
    }

    #[test]
    fn who_was_read_here_or_is_somebody_else_is_not_taken() {
        let peer = |pid: u32, host: &str| PeerSnapshot {
            rank: Rank(pid),
            pid,
            host: host.into(),
            ..PeerSnapshot::default()
        };
        let peers = [peer(1, "a"), peer(2, "b"), peer(3, "b")];
        let peers = peers.into_iter().map(|peer| ((CommId(1), peer.rank), peer)).collect();
        let members = Members { read: BTreeSet::from([(1, 0, 0)]), peers };
        let mut told = Told::default();
        // Read here; of another host than known; as known, twice; of a rank that nobody knows.
        let rows = [(1, "a"), (3, "c"), (2, "b"), (2, "b"), (9, "d")]
            .map(|(pid, host)| GatheredRow { process: process(pid, host), ..GatheredRow::default() });
        told.take(Gathered { rows: rows.into(), ..Gathered::default() }, Ns(0), &members);
        let pids: Vec<u32> = told.given.iter().map(|one| one.process.pid).collect();
        assert_eq!((pids, told.notes.len()), (vec![2, 9], 1));
        assert!(told.given.iter().all(|one| one.source == Source::Gather));
        let lacks =
            |pid, host: &str| told.has(&Unreachable { pid, host: host.into(), ..Unreachable::default() });
        assert_eq!([lacks(2, "b"), lacks(3, "b"), lacks(0, "b")], [true, false, false]);
    }
}
