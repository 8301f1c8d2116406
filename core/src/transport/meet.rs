//! Decides how each rank reaches each other rank: ranks of one host connect to each other, and all
//! ranks agree on which of them share memory.
//!
//! Ranks of one host share memory unless no connection can be made between them: containers without
//! a common folder or network, or processes of two users. The ranks find these pairs by trying.
//! Processes meet once: those that met before, for another communicator, stay met. The first rank
//! of each process tries to connect to the others', and reports its failures to all ranks. From
//! these reports all ranks compute the same groups. Within a group every rank has met every other
//! rank. Between groups the ranks use sockets, as they do between hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bootstrap::host::Identity as Process;
use crate::clock::Ns;
use crate::error::{Error, ErrorKind, Result};
use crate::text::harmless;
use crate::transport::ib::port::Reachable;
use crate::transport::shm::connect::{Listener, LocalPeer, Reached};
use crate::transport::shm::local;
use crate::transport::shm::memory::{Identity, RankMemory};
use crate::transport::shm::peer::PeerProcess;
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
    /// Over queue pairs, which are set up through the peer's data listener.
    Verbs(SocketAddr),
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

/// A rank with the addresses that it announced to all ranks.
#[derive(Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) process: &'a Process,
    /// The address of its data listener.
    pub(crate) data: SocketAddr,
    /// What its ports for queue pairs can reach, if it has any.
    pub(crate) verbs: Option<&'a Reachable>,
    /// The path of its memory listener, if that has one.
    pub(crate) path: Option<PathBuf>,
    /// The abstract name of its memory listener, if that has one.
    pub(crate) name: Option<String>,
    /// Where its memory begins in that of its process.
    pub(crate) memory: u64,
}

/// What is known once all listeners are open.
#[derive(Debug)]
pub(crate) struct Meeting<'a> {
    /// The value of `CCL_TRANSPORT`.
    pub(crate) forced: &'a str,
    /// Why this rank has no ports for queue pairs, if it has none.
    pub(crate) no_ports: &'a str,
    pub(crate) job: JobId,
    /// This rank's own memory.
    pub(crate) own: &'a Arc<RankMemory>,
    pub(crate) door: &'a Listener,
    pub(crate) ranks: Vec<Candidate<'a>>,
    pub(crate) deadline: Ns,
}

/// The processes that this rank has met, and the results of its own attempts.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    met: BTreeMap<u64, Arc<PeerProcess>>,
    failed: Vec<Failed>,
}

/// A higher rank whose memory could not be reached, and the reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Failed {
    rank: u32,
    why: String,
}

/// How each rank is reached.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) peers: Vec<Peer>,
    /// The host of each rank, as the topology shall see it.
    pub(crate) hosts: Vec<u64>,
    /// A message for the user; only one of all ranks has it.
    pub(crate) note: Option<String>,
}

/// Pairs of ranks of one host (the lower rank first) that could not connect, with the reason.
type Severed = BTreeMap<(u32, u32), String>;

/// Whether two ranks can have queue pairs between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pairing {
    /// Neither has ports.
    NoPorts,
    /// One has none, or theirs are of two kinds.
    Unlike,
    /// Both have ports of one kind.
    Alike,
}

impl Pairing {
    fn of(ours: Option<&Reachable>, theirs: Option<&Reachable>) -> Self {
        match (ours, theirs) {
            (None, None) => Self::NoPorts,
            (Some(ours), Some(theirs)) if ours.link_layer == theirs.link_layer => Self::Alike,
            (Some(_), _) | (_, Some(_)) => Self::Unlike,
        }
    }
}

/// The transport of the links to a peer, and why. `None` if the transport that `CCL_TRANSPORT` asks
/// for cannot reach the peer.
fn choose(
    forced: &str,
    (same_host, same_process): (bool, bool),
    pairing: Pairing,
) -> Option<(TransportKind, TransportReason)> {
    Some(match (forced, same_host, same_process) {
        ("" | "in-process", true, true) => (TransportKind::InProcess, TransportReason::SameProcess),
        ("" | "shm", true, false) => (TransportKind::Shm, TransportReason::SameHost),
        ("", false, _) => match pairing {
            Pairing::Alike => (TransportKind::Verbs, TransportReason::OtherHost),
            Pairing::Unlike => (TransportKind::Socket, TransportReason::NoVerbs),
            Pairing::NoPorts => (TransportKind::Socket, TransportReason::OtherHost),
        },
        ("socket", false, _) if pairing == Pairing::Alike => (TransportKind::Socket, TransportReason::Forced),
        ("socket", false, _) => (TransportKind::Socket, TransportReason::OtherHost),
        ("verbs", false, _) if pairing == Pairing::Alike => {
            (TransportKind::Verbs, TransportReason::OtherHost)
        }
        ("shm", true, true) => (TransportKind::Shm, TransportReason::Forced),
        ("socket", true, _) => (TransportKind::Socket, TransportReason::Forced),
        ("verbs", true, _) if pairing == Pairing::Alike => (TransportKind::Verbs, TransportReason::Forced),
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
        let own = self.ranks[self.me().index()].process;
        let process = self.ranks[peer.index()].process;
        let same_host = process.host == own.host;
        let same_process = same_host && process.process == own.process;
        let [ours, theirs] = [self.me(), peer].map(|rank| self.ranks[rank.index()].verbs);
        choose(self.forced, (same_host, same_process), Pairing::of(ours, theirs)).ok_or_else(|| {
            let why = match (self.forced, ours, theirs) {
                ("verbs", None, _) => format!("this rank has no port for queue pairs ({})", self.no_ports),
                ("verbs", _, None) => "it has no port for queue pairs".into(),
                ("verbs", Some(ours), Some(theirs)) => {
                    format!("its ports are {}, and those of this rank {}", theirs.link_layer, ours.link_layer)
                }
                _ if same_host => "it is another process".into(),
                _ => "it is on another host".into(),
            };
            self.unreachable(peer, &why)
        })
    }

    fn me(&self) -> Rank {
        self.own.identity().rank
    }

    fn process(&self, rank: Rank) -> u64 {
        self.ranks[rank.index()].process.process
    }

    /// The lowest rank of the process of a rank.
    fn first_of(&self, rank: Rank) -> Rank {
        let process = self.process(rank);
        let first = (0..).map(Rank).zip(&self.ranks).find(|(_, one)| one.process.process == process);
        first.map_or(rank, |(first, _)| first)
    }

    /// The processes of this host that this one has met before, in other communicators. They stay
    /// met as long as they are held.
    ///
    /// # Errors
    /// A rank cannot be reached as `CCL_TRANSPORT` demands.
    pub(crate) fn known(&self) -> Result<Tried> {
        let mut tried = Tried::default();
        for rank in (0..self.ranks.len() as u32).map(Rank).filter(|rank| *rank != self.me()) {
            if self.wanted(rank)?.0 == TransportKind::Shm {
                let process = self.process(rank);
                tried.met.extend(PeerProcess::find(process).map(|peer| (process, peer)));
            }
        }
        Ok(tried)
    }

    /// For each rank, whether this rank holds its process; to be told to all.
    pub(crate) fn held(&self, known: &Tried) -> Vec<u8> {
        self.ranks.iter().map(|rank| u8::from(known.met.contains_key(&rank.process.process))).collect()
    }

    /// Whether all ranks of the processes of two ranks hold the other process.
    fn both_hold(&self, held: &[Vec<u8>], a: Rank, b: Rank) -> bool {
        let of = |rank: Rank| {
            let process = self.process(rank);
            let its = self.ranks.iter().enumerate().filter(move |(_, one)| one.process.process == process);
            its.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let says = |a: usize, b: usize| held.get(a).and_then(|its| its.get(b)) == Some(&1);
        let (of_a, of_b) = (of(a), of(b));
        of_a.iter().all(|a| of_b.iter().all(|b| says(*a, *b) && says(*b, *a)))
    }

    /// Meets the processes of this host that are not met: the first rank of each process connects
    /// to the first ranks of processes of higher ranks. `held` is what each rank holds.
    ///
    /// # Errors
    /// The error of the first peer that answered wrongly or not in time, or the error of `still`.
    pub(crate) fn try_all(
        &self,
        mut tried: Tried,
        held: &[Vec<u8>],
        still: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Tried> {
        let me = self.me();
        for rank in (0..self.ranks.len() as u32).map(Rank).filter(|rank| self.first_of(*rank) == *rank) {
            if self.process(rank) == self.process(me) || self.wanted(rank)?.0 != TransportKind::Shm {
                continue;
            }
            if self.both_hold(held, me, rank) {
                continue;
            }
            tried.met.remove(&self.process(rank));
            if self.first_of(me) != me || rank < me {
                continue;
            }
            let candidate = &self.ranks[rank.index()];
            let peer = LocalPeer { rank, path: candidate.path.clone(), name: candidate.name.clone() };
            match self.door.reach(&peer, self.deadline, still)? {
                Reached::Met(met) => drop(tried.met.insert(self.process(rank), met)),
                Reached::Unreachable(why) => {
                    let why = harmless(&why, LONGEST_REASON).into_owned();
                    tried.failed.push(Failed { rank: rank.0, why });
                }
            }
        }
        Ok(tried)
    }

    /// Takes the processes that connected to this one, maps the memory of the ranks of this host,
    /// and decides how each rank is reached. `told` holds the report of every rank.
    ///
    /// # Errors
    /// A peer that cannot be reached as `CCL_TRANSPORT` demands, or that left in the meantime.
    pub(crate) fn meet(
        &self,
        mut tried: Tried,
        told: &[Vec<u8>],
        still: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Met> {
        let Self { forced, ranks, .. } = self;
        let me = self.me();
        let severed = self.all_severed(severed(told)?);
        let hosts = hosts(ranks, forced, &severed);
        let mut peers = Vec::with_capacity(ranks.len());
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
                    TransportKind::Verbs => (Reach::Verbs(candidate.data), why),
                    TransportKind::InProcess | TransportKind::Shm if !is_together => {
                        if *forced == "shm" {
                            let pair = (me.0.min(peer.0), me.0.max(peer.0));
                            let why = severed.get(&pair).map_or("it shares no memory", String::as_str);
                            return Err(self.unreachable(peer, why).hint(TO_SHARE));
                        }
                        (network, TransportReason::NoSharedMemory)
                    }
                    TransportKind::InProcess | TransportKind::Shm => {
                        (Reach::Memory(self.memory_of(peer, &mut tried, still)?), why)
                    }
                }
            };
            let process = candidate.process;
            peers.push(Peer { reach, why, host: process.host_name.clone(), pid: process.pid });
        }
        Ok(Met { peers, hosts, note: note(me, &severed) })
    }

    /// The memory of a rank of this host.
    fn memory_of(
        &self,
        rank: Rank,
        tried: &mut Tried,
        still: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<RankMemory>> {
        let identity = Identity { rank, ..self.own.identity() };
        let process = self.process(rank);
        if process == self.process(self.me()) {
            let memory = local::find(self.job, identity);
            let memory = memory.ok_or_else(|| self.unreachable(rank, "it has left this process"))?;
            return if self.forced == "shm" { RankMemory::again(&memory) } else { Ok(memory) };
        }
        let peer = match tried.met.get(&process) {
            Some(peer) => Arc::clone(peer),
            None => {
                let (mine, its) = (self.first_of(self.me()), self.first_of(rank));
                // What connected to the first rank of this process can be found by all.
                let peer = if mine == self.me() {
                    self.door.wait_for(its, self.deadline, still)?
                } else {
                    let peer = PeerProcess::find(process);
                    peer.ok_or_else(|| self.unreachable(rank, "its process has left this one"))?
                };
                tried.met.insert(process, Arc::clone(&peer));
                peer
            }
        };
        RankMemory::of_peer(identity, *self.own.layout(), &peer, self.ranks[rank.index()].memory)
    }

    /// All pairs of ranks whose processes could not connect.
    fn all_severed(&self, firsts: Severed) -> Severed {
        let mut all = Severed::new();
        for ((low, high), why) in &firsts {
            let of = |rank: u32| {
                let process = self.process(Rank(rank));
                (0_u32..).zip(&self.ranks).filter(move |(_, one)| one.process.process == process)
            };
            for (a, _) in of(*low) {
                all.extend(of(*high).map(|(b, _)| ((a.min(b), a.max(b)), why.clone())));
            }
        }
        all
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

/// The host of each rank, as the topology shall see it. Where a transport between hosts is forced,
/// every rank has its own host.
fn hosts(ranks: &[Candidate<'_>], forced: &str, severed: &Severed) -> Vec<u64> {
    if matches!(forced, "socket" | "verbs") {
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
        let choose = |forced, place, pairing| {
            choose(forced, place, pairing).map(|(transport, why)| format!("{transport} {why}"))
        };
        let check = |forced, place, expect| {
            let chosen = choose(forced, place, Pairing::NoPorts);
            assert_eq!(chosen.as_deref(), expect, "{forced} {place:?}");
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
        check("verbs", none, None);
        check("verbs", host, None);
        let check = |forced, place, pairing, expect| {
            assert_eq!(choose(forced, place, pairing).as_deref(), expect, "{forced} {place:?} {pairing:?}");
        };
        check("", none, Pairing::Alike, Some("Verbs OtherHost"));
        check("", none, Pairing::Unlike, Some("Socket NoVerbs"));
        check("", host, Pairing::Alike, Some("Shm SameHost"));
        check("verbs", none, Pairing::Unlike, None);
        check("verbs", host, Pairing::Alike, Some("Verbs Forced"));
        check("socket", none, Pairing::Alike, Some("Socket Forced"));
    }

    #[test]
    fn ports_of_one_kind_reach_each_other() {
        let of = |layer: &str| Reachable { link_layer: layer.into() };
        let (ib, roce) = (of("IB"), of("RoCE"));
        assert_eq!(Pairing::of(Some(&ib), Some(&ib)), Pairing::Alike);
        assert_eq!(Pairing::of(Some(&ib), Some(&roce)), Pairing::Unlike);
        assert_eq!(Pairing::of(None, Some(&roce)), Pairing::Unlike);
        assert_eq!(Pairing::of(None, None), Pairing::NoPorts);
    }
}
