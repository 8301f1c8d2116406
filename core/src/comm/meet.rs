//! Who reaches whom, and how: local peers meet over their doors, and all ranks agree who shares memory.
//!
//! Ranks of one host share memory unless no connection leads from one to the other: containers without a common folder or
//! network, or processes of two users. Which pairs these are is found by trying; each rank tries its higher peers and tells
//! everybody where it failed. From that all ranks compute the same groups, in each of which everyone has met everyone, and
//! between which sockets are used as between hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bootstrap::host::Identity as Process;
use crate::clock::Ns;
use crate::comm::links::{Peer, Reach};
use crate::control::courier::Watched;
use crate::error::{Error, ErrorKind, Result};
use crate::text::harmless;
use crate::transport::shm::connect::{Listener, LocalPeer, PeerMemory, Reached};
use crate::transport::shm::local;
use crate::transport::shm::memory::Identity;
use crate::types::{JobId, Rank, TransportKind, TransportReason};

/// The longest reason that is told to all; every pair of a large host may have one.
const LONGEST_REASON: usize = 240;
/// What to do where ranks of one host do not share memory.
const TO_SHARE: &str = "let them share CCL_RUNTIME_DIR or a network namespace, and run as one user";

/// A rank, as it told everybody where it is.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) process: &'a Process,
    /// Where its data listener is.
    pub(super) data: SocketAddr,
    /// Where its memory listener is in the file system.
    pub(super) path: Option<PathBuf>,
    /// The abstract name at which its memory listener is.
    pub(super) name: Option<String>,
}

/// What is known when the doors are open.
#[derive(Debug)]
pub(super) struct Meeting<'a> {
    /// The value of `CCL_TRANSPORT`.
    pub(super) forced: &'a str,
    pub(super) identity: Identity,
    pub(super) job: JobId,
    pub(super) door: &'a Listener,
    pub(super) ranks: Vec<Candidate<'a>>,
    pub(super) deadline: Ns,
}

/// What came of this rank's own attempts, by peer.
#[derive(Debug, Default)]
pub(super) struct Tried {
    met: BTreeMap<Rank, PeerMemory>,
    failed: Vec<Failed>,
}

/// A higher rank whose memory could not be reached, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Failed {
    rank: u32,
    why: String,
}

/// How each rank is reached.
pub(super) struct Met {
    pub(super) peers: Vec<Peer>,
    pub(super) watched: Vec<Watched>,
    /// The host of each rank, as the topology is to see it.
    pub(super) hosts: Vec<u64>,
    /// What one rank of all should say.
    pub(super) note: Option<String>,
}

/// Pairs of ranks of one host between which no connection was made, the lower first, and why.
type Severed = BTreeMap<(u32, u32), String>;

/// What carries the links to a peer, and why; `None`: what `CCL_TRANSPORT` asks for does not reach it.
fn choose(forced: &str, same_host: bool, same_process: bool) -> Option<(TransportKind, TransportReason)> {
    Some(match (forced, same_host, same_process) {
        ("" | "direct", true, true) => (TransportKind::Direct, TransportReason::SameProcess),
        ("" | "shm", true, false) => (TransportKind::Shm, TransportReason::SameHost),
        ("" | "socket", false, _) => (TransportKind::Socket, TransportReason::OtherHost),
        ("shm", true, true) => (TransportKind::Shm, TransportReason::Forced),
        ("socket", true, _) => (TransportKind::Socket, TransportReason::Forced),
        _ => return None,
    })
}

impl Tried {
    /// What everybody must know of it.
    pub(super) fn report(&self) -> Vec<u8> {
        if self.failed.is_empty() {
            return Vec::new();
        }
        serde_json::to_vec(&self.failed).expect("numbers and texts")
    }
}

impl Meeting<'_> {
    fn unreachable(&self, peer: Rank, why: &str) -> Error {
        let what = format!("CCL_TRANSPORT={} does not reach it: {why}", self.forced);
        Error::new(ErrorKind::Unavailable, what)
            .with_peer(peer)
            .hint("leave CCL_TRANSPORT unset to use what reaches each peer")
    }

    /// What should carry the links to a peer.
    fn wanted(&self, peer: Rank) -> Result<(TransportKind, TransportReason)> {
        let own = self.ranks[self.identity.rank.index()].process;
        let process = self.ranks[peer.index()].process;
        let same_host = process.host == own.host;
        let same_process = same_host && process.process == own.process;
        choose(self.forced, same_host, same_process).ok_or_else(|| {
            self.unreachable(peer, if same_host { "it is another process" } else { "it is on another host" })
        })
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let me = self.identity.rank;
        (0..self.ranks.len() as u32).map(Rank).filter(move |rank| *rank != me)
    }

    /// Connects to all higher ranks that should be reached through memory of another process.
    ///
    /// # Errors
    /// The first that answered wrongly or not in time, or what `still` says.
    pub(super) fn try_all(&self, still: &mut dyn FnMut() -> Result<()>) -> Result<Tried> {
        let mut tried = Tried::default();
        for rank in self.others() {
            if self.wanted(rank)?.0 != TransportKind::Shm || rank < self.identity.rank {
                continue;
            }
            let candidate = &self.ranks[rank.index()];
            let peer = LocalPeer { rank, path: candidate.path.clone(), name: candidate.name.clone() };
            match self.door.reach(&peer, self.deadline, still)? {
                Reached::Met(met) => drop(tried.met.insert(rank, met)),
                Reached::Unreachable(why) => {
                    let why = harmless(&why, LONGEST_REASON).into_owned();
                    tried.failed.push(Failed { rank: rank.0, why });
                }
            }
        }
        Ok(tried)
    }

    /// Meets the lower ranks that came, and settles how each rank is reached. `told` is everybody's report.
    ///
    /// # Errors
    /// A peer that cannot be reached as `CCL_TRANSPORT` demands, or that left meanwhile.
    pub(super) fn meet(
        &self,
        tried: Tried,
        told: &[Vec<u8>],
        still: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Met> {
        let Self { forced, identity, ranks, .. } = self;
        let me = identity.rank;
        let severed = severed(told)?;
        let hosts = hosts(ranks, forced, &severed);
        let mut met = tried.met;
        let mut peers = Vec::with_capacity(ranks.len());
        let mut watched = Vec::new();
        for (at, candidate) in ranks.iter().enumerate() {
            let peer = Rank(at as u32);
            let network = Reach::Network(candidate.data);
            let (reach, why) = if peer == me {
                (Reach::Myself, TransportReason::SameProcess)
            } else {
                let (transport, why) = self.wanted(peer)?;
                let is_together = hosts[at] == hosts[me.index()];
                match transport {
                    TransportKind::Socket | TransportKind::Sim => (network, why),
                    TransportKind::Direct | TransportKind::Shm if !is_together => {
                        if *forced == "shm" {
                            let pair = (me.0.min(peer.0), me.0.max(peer.0));
                            let why = severed.get(&pair).map_or("it shares no memory", String::as_str);
                            return Err(self.unreachable(peer, why).hint(TO_SHARE));
                        }
                        (network, TransportReason::NoSharedMemory)
                    }
                    TransportKind::Direct => {
                        let memory = local::find(self.job, Identity { comm: identity.comm, rank: peer });
                        let memory =
                            memory.ok_or_else(|| self.unreachable(peer, "it has left this process"))?;
                        (Reach::Memory(memory), why)
                    }
                    TransportKind::Shm => {
                        let peer_memory = match met.remove(&peer) {
                            Some(peer_memory) => peer_memory,
                            None => self.door.wait_for(peer, self.deadline, still)?,
                        };
                        let reach = Reach::Memory(Arc::clone(&peer_memory.memory));
                        let has_lock = self.has_lock(candidate.process);
                        watched.push(Watched { rank: peer, peer: peer_memory, has_lock });
                        (reach, why)
                    }
                }
            };
            let process = candidate.process;
            peers.push(Peer { reach, why, host: process.host_name.clone(), pid: process.pid });
        }
        Ok(Met { peers, watched, hosts, note: note(me, &severed) })
    }

    /// Whether a peer's lock tells of its life: a process that holds several ranks and maps their files among each other has
    /// lost their locks with the first it closed, and it never sees its own.
    fn has_lock(&self, process: &Process) -> bool {
        let own = self.ranks[self.identity.rank.index()].process;
        let count = self.ranks.iter().filter(|one| one.process.process == process.process).count();
        process.process != own.process && !(count > 1 && self.forced == "shm")
    }
}

/// All pairs that did not meet, from everybody's reports.
fn severed(told: &[Vec<u8>]) -> Result<Severed> {
    let mut severed = Severed::new();
    for (low, report) in (0u32..).zip(told).filter(|(_, report)| !report.is_empty()) {
        let failed: Vec<Failed> = serde_json::from_slice(report).map_err(|e| {
            Error::new(ErrorKind::Mismatch, format!("what rank {low} tells of its peers cannot be read: {e}"))
                .with_peer(Rank(low))
                .hint("run the same version of ccl on all ranks")
        })?;
        // A rank has only its own failures to tell.
        let own = failed.into_iter().filter(|one| one.rank > low && (one.rank as usize) < told.len());
        severed.extend(own.map(|one| ((low, one.rank), harmless(&one.why, LONGEST_REASON).into_owned())));
    }
    Ok(severed)
}

/// The host of each rank, as the topology is to see it: where sockets are forced, everyone has its own.
fn hosts(ranks: &[Candidate<'_>], forced: &str, severed: &Severed) -> Vec<u64> {
    if forced == "socket" {
        return (0..ranks.len() as u64).collect();
    }
    let hosts: Vec<u64> = ranks.iter().map(|rank| rank.process.host).collect();
    groups(&hosts, severed)
}

/// Splits hosts into groups in each of which everyone has met everyone. Each rank joins the first group of its host that has
/// nobody it has not met, so all ranks find the same.
fn groups(hosts: &[u64], severed: &Severed) -> Vec<u64> {
    let mut groups: Vec<Vec<u32>> = Vec::new();
    let mut of_rank = Vec::with_capacity(hosts.len());
    for (rank, host) in (0u32..).zip(hosts) {
        let fits = |group: &Vec<u32>| {
            group.iter().all(|&other| hosts[other as usize] == *host && !severed.contains_key(&(other, rank)))
        };
        let at = groups.iter().position(fits).unwrap_or_else(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[at].push(rank);
        of_rank.push(at as u64);
    }
    of_rank
}

/// What the lowest rank that failed says for all.
fn note(me: Rank, severed: &Severed) -> Option<String> {
    let ((low, high), why) = severed.first_key_value()?;
    let more = match severed.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more pairs)"),
    };
    (*low == me.0).then(|| {
        format!(
            "ranks {low} and {high}{more} are on one host but share no memory, and use sockets: {why}; {TO_SHARE}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_did_not_meet_are_in_different_groups_and_all_others_together() {
        let severed = |pairs: &[(u32, u32)]| pairs.iter().map(|pair| (*pair, String::new())).collect();
        let check = |hosts: &[u64], pairs: &[(u32, u32)], expect: &[u64]| {
            assert_eq!(groups(hosts, &severed(pairs)), expect, "{hosts:?} {pairs:?}");
        };
        check(&[7, 7, 9, 9], &[], &[0, 0, 1, 1]);
        check(&[7, 9, 7, 9], &[], &[0, 1, 0, 1]);
        check(&[7, 7, 7, 7], &[(0, 2), (0, 3), (1, 2), (1, 3)], &[0, 0, 1, 1]);
        check(&[7, 7, 7], &[(0, 1), (0, 2), (1, 2)], &[0, 1, 2]);
        // Rank 2 has met 0, but not 1, which is with 0 already.
        check(&[7, 7, 7], &[(1, 2)], &[0, 0, 1]);
        check(&[7, 7, 9, 7], &[(0, 1)], &[0, 1, 2, 0]);
    }

    #[test]
    fn reports_travel_and_tell_only_of_higher_ranks() {
        let report = |failed: &[(u32, &str)]| {
            let failed = failed.iter().map(|(rank, why)| Failed { rank: *rank, why: (*why).into() });
            Tried { met: BTreeMap::new(), failed: failed.collect() }.report()
        };
        let told =
            [report(&[(2, "no\nway")]), report(&[(0, "a lie"), (2, "none"), (9, "a lie")]), Vec::new()];
        let found = severed(&told).unwrap();
        let expect = [((0, 2), "no\\nway".to_string()), ((1, 2), "none".to_string())];
        assert_eq!(found.clone().into_iter().collect::<Vec<_>>(), expect);
        let said = note(Rank(0), &found).unwrap();
        assert!(said.starts_with("ranks 0 and 2 (and 1 more pairs) are on one host"), "{said}");
        assert_eq!((note(Rank(1), &found), note(Rank(0), &Severed::new())), (None, None));
        assert!(severed(&[b"[".to_vec()]).is_err());
    }

    #[test]
    fn a_setting_is_the_reason_only_where_it_changed_the_choice() {
        let check = |forced, (same_host, same_process), expect| {
            let chosen = choose(forced, same_host, same_process);
            let chosen = chosen.map(|(transport, why)| format!("{transport} {why}"));
            assert_eq!(chosen.as_deref(), expect, "{forced} {same_host} {same_process}");
        };
        let (process, host, none) = ((true, true), (true, false), (false, false));
        check("", process, Some("Direct SameProcess"));
        check("", host, Some("Shm SameHost"));
        check("", none, Some("Socket OtherHost"));
        check("direct", process, Some("Direct SameProcess"));
        check("direct", host, None);
        check("direct", none, None);
        check("shm", process, Some("Shm Forced"));
        check("shm", host, Some("Shm SameHost"));
        check("shm", none, None);
        check("socket", process, Some("Socket Forced"));
        check("socket", host, Some("Socket Forced"));
        check("socket", none, Some("Socket OtherHost"));
    }
}
