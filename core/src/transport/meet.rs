//! Decides how each rank reaches each other rank: ranks of one host connect to each other, and all
//! ranks agree on which of them share memory.
//!
//! Ranks of one host share memory unless no connection can be made between them: containers without
//! a common folder or network, or processes of two users. The ranks find these pairs by trying.
//! Each rank tries to connect to its higher peers and reports its failures to all ranks. From these
//! reports all ranks compute the same groups. Within a group every rank has met every other rank.
//! Between groups the ranks use sockets, as they do between hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bootstrap::host::Identity as Process;
use crate::clock::Ns;
use crate::error::{Error, ErrorKind, Result};
use crate::text::harmless;
use crate::transport::shm::connect::{Listener, LocalPeer, PeerMemory, Reached};
use crate::transport::shm::local;
use crate::transport::shm::memory::{Identity, RankMemory};
use crate::types::{JobId, Rank, TransportKind, TransportReason};

/// The longest reason that is sent to all ranks. Every pair of ranks of a large host may have one.
const LONGEST_REASON: usize = 240;
/// The hint for ranks of one host that do not share memory.
const TO_SHARE: &str = "let them share CCL_RUNTIME_DIR or a network namespace, and run as one user";

/// How a peer is reached.
#[derive(Debug)]
pub(crate) enum Reach {
    /// The peer is this rank itself.
    Myself,
    /// Through the peer's memory.
    Memory(Arc<RankMemory>),
    /// Through the peer's data listener.
    Network(SocketAddr),
}

/// What this rank knows about a rank.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) reach: Reach,
    /// Why the rank is reached that way.
    pub(crate) why: TransportReason,
    pub(crate) host: String,
    pub(crate) pid: u32,
}

/// A local peer in another process: its memory with its alive lock, and its control connection.
pub(crate) struct Watched {
    pub(crate) rank: Rank,
    pub(crate) peer: PeerMemory,
    /// Whether its alive lock shows whether it lives. A process cannot see its own lock.
    pub(crate) has_lock: bool,
}

/// A rank with the addresses that it announced to all ranks.
#[derive(Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) process: &'a Process,
    /// The address of its data listener.
    pub(crate) data: SocketAddr,
    /// The path of its memory listener, if that has one.
    pub(crate) path: Option<PathBuf>,
    /// The abstract name of its memory listener, if that has one.
    pub(crate) name: Option<String>,
}

/// What is known once all listeners are open.
#[derive(Debug)]
pub(crate) struct Meeting<'a> {
    /// The value of `CCL_TRANSPORT`.
    pub(crate) forced: &'a str,
    pub(crate) identity: Identity,
    pub(crate) job: JobId,
    pub(crate) door: &'a Listener,
    pub(crate) ranks: Vec<Candidate<'a>>,
    pub(crate) deadline: Ns,
}

/// The results of this rank's own attempts, by peer.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    met: BTreeMap<Rank, PeerMemory>,
    failed: Vec<Failed>,
}

/// A higher rank whose memory could not be reached, and the reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Failed {
    rank: u32,
    why: String,
}

/// How each rank is reached.
pub(crate) struct Met {
    pub(crate) peers: Vec<Peer>,
    pub(crate) watched: Vec<Watched>,
    /// The host of each rank, as the topology shall see it.
    pub(crate) hosts: Vec<u64>,
    /// A message for the user; only one of all ranks has it.
    pub(crate) note: Option<String>,
}

/// Pairs of ranks of one host (the lower rank first) that could not connect, with the reason.
type Severed = BTreeMap<(u32, u32), String>;

/// The transport of the links to a peer, and why. `None` if the transport that `CCL_TRANSPORT` asks
/// for cannot reach the peer.
fn choose(forced: &str, same_host: bool, same_process: bool) -> Option<(TransportKind, TransportReason)> {
    Some(match (forced, same_host, same_process) {
        ("" | "in-process", true, true) => (TransportKind::InProcess, TransportReason::SameProcess),
        ("" | "shm", true, false) => (TransportKind::Shm, TransportReason::SameHost),
        ("" | "socket", false, _) => (TransportKind::Socket, TransportReason::OtherHost),
        ("shm", true, true) => (TransportKind::Shm, TransportReason::Forced),
        ("socket", true, _) => (TransportKind::Socket, TransportReason::Forced),
        _ => return None,
    })
}

impl Tried {
    /// This rank's failures, encoded for all ranks; empty if there were none.
    pub(crate) fn report(&self) -> Vec<u8> {
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

    /// The transport that the links to a peer should use, and why.
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
    /// The error of the first peer that answered wrongly or not in time, or the error of `still`.
    pub(crate) fn try_all(&self, still: &mut dyn FnMut() -> Result<()>) -> Result<Tried> {
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

    /// Takes the connections of the lower ranks, and decides how each rank is reached. `told` holds
    /// the report of every rank.
    ///
    /// # Errors
    /// A peer that cannot be reached as `CCL_TRANSPORT` demands, or that left in the meantime.
    pub(crate) fn meet(
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
                    TransportKind::InProcess | TransportKind::Shm if !is_together => {
                        if *forced == "shm" {
                            let pair = (me.0.min(peer.0), me.0.max(peer.0));
                            let why = severed.get(&pair).map_or("it shares no memory", String::as_str);
                            return Err(self.unreachable(peer, why).hint(TO_SHARE));
                        }
                        (network, TransportReason::NoSharedMemory)
                    }
                    TransportKind::InProcess => {
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

    /// Whether a peer's alive lock shows whether the peer lives. A process that holds several ranks
    /// and maps their files loses their locks when it closes the first of those files. A process
    /// also never sees its own locks.
    fn has_lock(&self, process: &Process) -> bool {
        let own = self.ranks[self.identity.rank.index()].process;
        let count = self.ranks.iter().filter(|one| one.process.process == process.process).count();
        process.process != own.process && !(count > 1 && self.forced == "shm")
    }
}

/// All pairs that could not connect, from the reports of all ranks.
fn severed(told: &[Vec<u8>]) -> Result<Severed> {
    let mut severed = Severed::new();
    for (low, report) in (0u32..).zip(told).filter(|(_, report)| !report.is_empty()) {
        let failed: Vec<Failed> = serde_json::from_slice(report).map_err(|e| {
            Error::new(ErrorKind::Mismatch, format!("what rank {low} tells of its peers cannot be read: {e}"))
                .with_peer(Rank(low))
                .hint("run the same version of ccl on all ranks")
        })?;
        // A rank may report only its own failures, which concern higher ranks.
        let own = failed.into_iter().filter(|one| one.rank > low && (one.rank as usize) < told.len());
        severed.extend(own.map(|one| ((low, one.rank), harmless(&one.why, LONGEST_REASON).into_owned())));
    }
    Ok(severed)
}

/// The host of each rank, as the topology shall see it. Where sockets are forced, every rank has
/// its own host.
fn hosts(ranks: &[Candidate<'_>], forced: &str, severed: &Severed) -> Vec<u64> {
    if forced == "socket" {
        return (0..ranks.len() as u64).collect();
    }
    let hosts: Vec<u64> = ranks.iter().map(|rank| rank.process.host).collect();
    groups(&hosts, severed)
}

/// Splits hosts into groups within which every rank has met every other rank. Each rank joins the
/// first group of its host in which it has met all members, so all ranks find the same groups.
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

/// The message for all ranks; only the lower rank of the first pair that failed gets it.
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
        // Rank 2 has met rank 0 but not rank 1, which is already in rank 0's group.
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
        check("", process, Some("InProcess SameProcess"));
        check("", host, Some("Shm SameHost"));
        check("", none, Some("Socket OtherHost"));
        check("in-process", process, Some("InProcess SameProcess"));
        check("in-process", host, None);
        check("in-process", none, None);
        check("shm", process, Some("Shm Forced"));
        check("shm", host, Some("Shm SameHost"));
        check("shm", none, None);
        check("socket", process, Some("Socket Forced"));
        check("socket", host, Some("Socket Forced"));
        check("socket", none, Some("Socket OtherHost"));
    }
}
