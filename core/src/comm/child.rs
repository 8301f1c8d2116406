//! Communicators made from another one: its children.
//!
//! A child needs no rendezvous. Its ranks tell each other over the parent where they are, and it
//! has the parent's key and job.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use crate::bootstrap::agreement::{differing, own_settings};
use crate::bootstrap::frame::printable;
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::root_task::{RootHandle, create};
use crate::clock;
use crate::collective::PartOf;
use crate::comm::cards::{Exchange, tell_peers};
use crate::comm::exchange::{OverGossip, OverParent};
use crate::comm::gathers;
use crate::comm::init::{self, Base, Gathered, Own};
use crate::comm::phases::Phases;
use crate::comm::report;
use crate::comm::services::ProcessServices;
use crate::comm::state::{Inner, lock};
use crate::comm::{Communicator, Config};
use crate::config::{Key, Settings};
use crate::control::gather::Member;
use crate::diagnose::ranks_text;
use crate::error::{Error, ErrorKind, Result};
use crate::failure::gossip::{Attempt, bounded};
use crate::recorder::{CommInfo, CommRow};
use crate::text::harmless;
use crate::transport::ib::port::Reachable;
use crate::transport::meet::{Peer, Reach};
use crate::transport::shm::local;
use crate::transport::shm::memory::{Identity, RankMemory};
use crate::types::{CommId, Phase, Rank, TransportKind, TransportReason, runs};

/// The words that each rank says in a split: the number of the child, whether it takes part, its
/// colour, its key.
const WORDS: usize = 4;
/// The rounds in which a child is made: where the memory of each rank is, and the conclusion.
const ROUNDS: u32 = 2;

impl Communicator {
    /// Divides the communicator: the ranks that give the same colour get a communicator of their
    /// own, in which they are ordered by `key`, then by their rank here.
    ///
    /// A rank whose colour is `None` gets none. The name of `config` is that of the child; empty:
    /// `NAME/N.COLOUR`, the name of this communicator, how many were made from it before, and the
    /// colour. Its settings are those of this communicator, unless `config` has others; ranks reach
    /// each other as in this communicator, whatever settings say (`CCL_TRANSPORT`,
    /// `CCL_SOCKET_IFNAME`, `CCL_HOSTID`).
    ///
    /// It is collective: all ranks of this communicator call it, in the same order as its
    /// collectives. On one host it takes no connection. The child lives on when this communicator
    /// has finished or failed.
    ///
    /// # Errors
    /// The failure of this communicator; `Mismatch` if a rank called something else or has other
    /// settings; `Timeout` if a rank has not called it for `CCL_TIMEOUT` seconds; `Unavailable`, on
    /// all ranks of one colour, if one of them cannot make its part.
    pub fn split(&self, colour: Option<u32>, key: i32, config: Config) -> Result<Option<Self>> {
        let made = self.inner.tagged("split", || split(&self.inner, colour, key, &config))?;
        Ok(made.map(|inner| Self { inner, finished: false }))
    }

    /// Makes a communicator of the ranks that are left: without the dead, without those that left,
    /// and without the ranks of `exclude`, which do not call this.
    ///
    /// It serves a communicator that has failed or was [revoked](Self::revoke), and one that goes
    /// on. It waits for all ranks that are left, also for one that is inside a call of another
    /// communicator: where a program has several, [revoke](Self::revoke) them first, so that each
    /// such call ends. If one more rank dies meanwhile, it is left out too. The ranks keep their
    /// order. The name of `config` is that of the new communicator; empty: `NAME/left.N`.
    ///
    /// It is collective among the ranks that are left.
    ///
    /// # Errors
    /// `Mismatch` if ranks gave different lists, `Timeout` naming the ranks that did not call it
    /// within `CCL_TIMEOUT`, `Usage` if this rank is in the list, or as [`init`](Self::init).
    pub fn shrink(&self, exclude: &[Rank], config: Config) -> Result<Self> {
        shrink(&self.inner, exclude, &config).map(|inner| Self { inner, finished: false })
    }

    /// Ends the calls of all ranks: each fails with `Aborted` and `reason`, as after
    /// [`abort`](Self::abort). The communicator then serves [`shrink`](Self::shrink) only.
    ///
    /// A program with several communicators revokes them all before it shrinks one, here its
    /// groups:
    ///
    /// ```no_run
    /// # use ccl::{Communicator, Config, Result};
    /// fn recover(world: &Communicator, groups: &[Communicator]) -> Result<Communicator> {
    ///     groups.iter().for_each(|group| group.revoke("a rank died"));
    ///     world.revoke("a rank died");
    ///     world.shrink(&[], Config::default())
    /// }
    /// ```
    ///
    /// It takes bounded time and never waits for peers.
    pub fn revoke(&self, reason: &str) {
        self.inner.end_all("revoked it", reason);
    }

    /// Makes an id with which new ranks and the ranks of this communicator make a larger one.
    ///
    /// It is collective. The new ranks call [`init`](Self::init) with the
    /// [id](Invitation::id), the ranks of this communicator [`grow`](Self::grow).
    ///
    /// # Errors
    /// The failure of this communicator; `Unavailable` if rank 0 cannot make an id.
    pub fn invite(&self) -> Result<Invitation> {
        self.inner.tagged("invite", || invite(&self.inner))
    }

    /// Makes a communicator of this one's ranks and `added` new ones, which follow these: the first
    /// has the rank that is this communicator's number of ranks.
    ///
    /// It returns when the new ranks have joined, with [`init`](Self::init) and the id of the
    /// invitation. This communicator stays as it is. The name of `config` is that of the new
    /// communicator; empty: `NAME/grown`.
    ///
    /// # Errors
    /// As [`init`](Self::init).
    pub fn grow(&self, invitation: &Invitation, added: u32, config: Config) -> Result<Self> {
        let Inner { rank, nranks, ref name, ref settings, .. } = *self.inner;
        let nranks = nranks.checked_add(added).ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("{added} ranks are too many")).in_comm(name, rank)
        })?;
        let name = if config.name.is_empty() { format!("{name}/grown") } else { config.name };
        let settings = config.settings.or_else(|| Some(settings.clone()));
        Self::init(&invitation.id, rank.0, nranks, Config { name, settings })
    }
}

/// What new ranks need to join the ranks of a communicator.
///
/// Keep it until the larger communicator exists.
#[derive(Debug)]
#[must_use = "dropped on rank 0, it ends the init of the larger communicator"]
pub struct Invitation {
    id: UniqueId,
    /// On rank 0.
    _root: Option<RootHandle>,
}

impl Invitation {
    /// The id, equal on all ranks.
    #[must_use]
    pub const fn id(&self) -> &UniqueId {
        &self.id
    }
}

impl Inner {
    /// Shows a text beside the operations that are carried out within `work`.
    fn tagged<T>(&self, text: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let former = self.driver().map(|driver| driver.tag.clone()).unwrap_or_default();
        self.tag(text);
        let done = work();
        self.tag(&former);
        done.map_err(|mut error| {
            error.what = format!("in {text}(): {}", error.what);
            error
        })
    }
}

fn split(parent: &Arc<Inner>, colour: Option<u32>, key: i32, config: &Config) -> Result<Option<Arc<Inner>>> {
    let nth = parent.children.fetch_add(1, Ordering::Relaxed);
    let members = parts(parent, nth, colour, key)?;
    let mut ranks = OverParent::new(parent, members.clone(), ROUNDS);
    let Some(colour) = colour else {
        ranks.conclude(None)?;
        return Ok(None);
    };
    let part = Part {
        parent,
        id: CommId::of_child(parent.id, nth, colour),
        name: named(config, || format!("{}/{nth}.{colour}", parent.name)),
        members,
        settings: config.settings.clone().unwrap_or_else(|| parent.settings.clone()),
    };
    let made = part
        .row(Phase::Exchange)
        .and_then(|(services, row, phases)| part.make(&services, row, phases, &mut ranks));
    let concluded = ranks.conclude(made.as_ref().err());
    let made = match &concluded {
        // Peers that heard earlier that the parent failed may have given their parts back.
        Err(error) if made.is_err() && parent.has_failed().is_some() => Err(error.clone()),
        _ => made,
    };
    part.concluded(made, concluded).map(Some)
}

/// The ranks of this rank's part, in the order of the part; for a rank without a colour, the others
/// without one.
fn parts(parent: &Arc<Inner>, nth: u32, colour: Option<u32>, key: i32) -> Result<Vec<Rank>> {
    let (takes_part, of) = (colour.is_some(), colour.unwrap_or(0));
    let own = [i64::from(nth), i64::from(takes_part), i64::from(of), i64::from(key)];
    let said = parent.gather_words(PartOf::Split, &own)?;
    let mut members = Vec::new();
    for (at, words) in (0_u32..).zip(said.chunks_exact(WORDS)) {
        if words[0] != own[0] {
            let what = format!("rank {at} did not call split() for the same child");
            return Err(Error::new(ErrorKind::Mismatch, what)
                .with_peer(Rank(at))
                .hint("make all ranks call the same, in the same order")
                .in_comm(&parent.name, parent.rank));
        }
        if words[1..3] == own[1..3] {
            members.push((words[3], Rank(at)));
        }
    }
    members.sort_unstable();
    Ok(members.into_iter().map(|(_, rank)| rank).collect())
}

fn shrink(parent: &Arc<Inner>, exclude: &[Rank], config: &Config) -> Result<Arc<Inner>> {
    let here = |error: Error| error.in_comm(&parent.name, parent.rank);
    parent.own().map_err(here)?;
    let exclude: BTreeSet<Rank> = exclude.iter().copied().collect();
    if exclude.contains(&parent.rank) || exclude.iter().any(|rank| rank.0 >= parent.nranks) {
        let listed: Vec<Rank> = exclude.iter().copied().collect();
        let (rank, nranks) = (parent.rank, parent.nranks);
        let what = format!("rank {rank} cannot leave {} out of {nranks} ranks", ranks_text(&listed));
        return Err(here(Error::new(ErrorKind::Usage, what)));
    }
    let Some(gossip) = lock(&parent.gossip).clone() else {
        return Err(here(Error::new(ErrorKind::Usage, "the communicator is closed")));
    };
    // One after the other: all ranks number them alike.
    let mut shrunk = lock(&parent.shrunk);
    let mut left_over = parent.timeout;
    loop {
        let nth = *shrunk;
        let without: BTreeSet<Rank> = gossip.gone().into_iter().chain(exclude.iter().copied()).collect();
        let attempt = Attempt { nth, without: without.into_iter().collect() };
        let mut ranks = OverGossip::new(Arc::clone(&gossip), parent, attempt, left_over);
        let made = left(parent, (nth, &exclude), &mut ranks, config);
        if made.is_err() && ranks.has_grown() {
            // One more died: those that are left try again without it.
            continue;
        }
        if let Some(theirs) = ranks.behind() {
            // The others gave an attempt up that this rank did not take part in.
            *shrunk = theirs;
            left_over = ranks.left_over();
            continue;
        }
        if let Err(error) = &made {
            ranks.give_up(error);
        }
        *shrunk = nth.saturating_add(1);
        return made;
    }
}

/// One attempt to make a communicator of the ranks that are left.
fn left(
    parent: &Arc<Inner>,
    (nth, exclude): (u32, &BTreeSet<Rank>),
    ranks: &mut OverGossip,
    config: &Config,
) -> Result<Arc<Inner>> {
    let members = ranks.members().to_vec();
    let words: Vec<u32> = members.iter().map(|rank| rank.0).collect();
    let part = Part {
        parent,
        id: CommId::of_left(parent.id, nth, &words),
        name: named(config, || format!("{}/left.{nth}", parent.name)),
        members,
        settings: config.settings.clone().unwrap_or_else(|| parent.settings.clone()),
    };
    let (services, row, mut phases) = part.row(Phase::CheckIn)?;
    row.init_until(Some(clock::now().after(parent.timeout)));
    let listed: Vec<u8> = exclude.iter().flat_map(|rank| rank.0.to_le_bytes()).collect();
    ranks.round(&listed, &mut |missing| row.absent(missing.len() as u32, &runs(missing)))?;
    row.absent(0, &[]);
    row.init_until(None);
    phases.begin(Phase::Exchange, &row);
    let made = part.make(&services, row, phases, ranks);
    let concluded = match &made {
        Ok(_) => ranks.all_gather(&[]).map(drop),
        Err(_) => Ok(()),
    };
    part.concluded(made, concluded)
}

fn invite(parent: &Arc<Inner>) -> Result<Invitation> {
    let made = if parent.rank == Rank(0) { Some(create(&parent.settings)) } else { None };
    let said = match &made {
        Some(Ok((id, _))) => id.to_bytes().to_vec(),
        Some(Err(error)) => bounded(&error.what).into_bytes(),
        None => Vec::new(),
    };
    let blocks = parent.gather_blocks(PartOf::Invite, &said)?;
    let (id, root) = match made.transpose()? {
        Some((id, root)) => (id, Some(root)),
        None => {
            let id = blocks[0].as_slice().try_into().ok().and_then(|bytes| UniqueId::from_bytes(bytes).ok());
            let why = || {
                let what = format!("rank 0 cannot make an id: {}", printable(&blocks[0]));
                Error::new(ErrorKind::Unavailable, what).in_comm(&parent.name, parent.rank)
            };
            (id.ok_or_else(why)?, None)
        }
    };
    Ok(Invitation { id, _root: root })
}

fn named(config: &Config, otherwise: impl FnOnce() -> String) -> String {
    if config.name.is_empty() { otherwise() } else { config.name.clone() }
}

/// What each rank of a child tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    /// Where its memory begins in that of its process.
    memory: u64,
    /// The settings that must be equal on all ranks.
    settings: Vec<(String, String)>,
    /// How its queue pairs can be reached now: a port may have gone down since the parent was made.
    verbs: Option<Reachable>,
}

impl Said {
    /// Tells all ranks, and returns what all told, if their settings agree.
    fn exchange(&self, ranks: &mut dyn Exchange) -> Result<Vec<Self>> {
        let own = serde_json::to_vec(self)
            .map_err(|e| Error::new(ErrorKind::System, format!("writing where memory is: {e}")))?;
        let read = |(rank, block): (usize, Vec<u8>)| {
            serde_json::from_slice(&block).map_err(|e| {
                let what = format!("what rank {rank} tells of its part cannot be read: {e}");
                Error::new(ErrorKind::Mismatch, harmless(&what, usize::MAX)).with_peer(Rank(rank as u32))
            })
        };
        let all = ranks.all_gather(&own)?.into_iter().enumerate().map(read).collect::<Result<Vec<Self>>>()?;
        let settings: Vec<_> = all.iter().map(|said| said.settings.as_slice()).collect();
        match differing(&settings) {
            Some(fault) => {
                let what = harmless(&fault.text, usize::MAX);
                Err(Error::new(ErrorKind::Mismatch, what).hint("give all ranks the same"))
            }
            None => Ok(all),
        }
    }
}

/// This rank's part of a communicator that is made of ranks of a parent.
struct Part<'a> {
    parent: &'a Arc<Inner>,
    id: CommId,
    name: String,
    /// Its ranks, as ranks of the parent.
    members: Vec<Rank>,
    settings: Settings,
}

impl Part<'_> {
    fn rank(&self) -> Rank {
        let own = self.members.iter().position(|member| *member == self.parent.rank);
        Rank(own.unwrap_or(0) as u32)
    }

    fn worlds(&self) -> Vec<Rank> {
        self.members.iter().map(|member| self.parent.worlds[member.index()]).collect()
    }

    /// The row that shows it from now on, in the first phase of its init.
    fn row(&self, first: Phase) -> Result<(Arc<ProcessServices>, CommRow, Phases)> {
        let (services, _) = ProcessServices::of_process(&self.settings)?;
        let world = self.parent.worlds[self.parent.rank.index()];
        let (rank, nranks) = (self.rank(), self.members.len() as u32);
        let info = CommInfo { id: self.id, job: self.parent.job, name: &self.name, rank, nranks, world };
        let row = services.recorder().comm(info);
        row.begin_level(&self.settings);
        let mut phases = Phases::of(&self.settings);
        phases.begin(first, &row);
        Ok((services, row, phases))
    }

    fn make(
        &self,
        services: &Arc<ProcessServices>,
        row: CommRow,
        mut phases: Phases,
        ranks: &mut dyn Exchange,
    ) -> Result<Arc<Inner>> {
        let base = Base {
            name: &self.name,
            job: self.parent.job,
            key: self.parent.key.clone(),
            identity: Identity { comm: self.id, rank: self.rank() },
            worlds: self.worlds(),
            ip: self.parent.ip,
            settings: &self.settings,
            services,
            gathers: self.gathers(),
        };
        let own = Own::take(&base)?;
        let said = Said {
            memory: own.memory.at().unwrap_or(0),
            settings: own_settings(&self.settings),
            verbs: own.ports.reachable(),
        };
        let all = said.exchange(ranks)?;
        let peers = self.peers((&own.memory, said.verbs.as_ref()), &all)?;
        own.post.met();
        let of_members = |member: &Rank| Arc::clone(&self.parent.cards[member.index()]);
        let cards: Vec<_> = self.members.iter().map(of_members).collect();
        tell_peers(&row, &base.worlds, &cards);
        let hosts = self.members.iter().map(|member| self.parent.hosts[member.index()]).collect();
        let mut events = row.events();
        phases.end(&row);
        phases.publish(&mut events);
        let inner = init::assemble(base, row, Gathered { own, cards, hosts, peers, events }, None)?;
        report::made(&inner, &self.settings, &phases);
        Ok(inner)
    }

    /// What gathers for the parent, if it serves this one too.
    fn gathers(&self) -> Option<Arc<Member>> {
        let serves = gathers::same_leaders(&self.parent.cards, &self.members);
        lock(&self.parent.attended).as_ref().and_then(|kept| kept.gathers.clone()).filter(|_| serves)
    }

    /// How this rank reaches the others: as in the parent, but over sockets where queue pairs have
    /// no port any more.
    fn peers(&self, (own, ours): (&Arc<RankMemory>, Option<&Reachable>), said: &[Said]) -> Result<Vec<Peer>> {
        let asked = self.settings.text(Key::Transport);
        let driver = self.parent.driver()?;
        let mut peers = Vec::with_capacity(self.members.len());
        for (at, member) in self.members.iter().enumerate() {
            let rank = Rank(at as u32);
            let known = &driver.links.peers[member.index()];
            let is_alike = ours.is_some() && ours == said[at].verbs.as_ref();
            let mut why = known.why;
            let reach = match &known.reach {
                Reach::Myself => Reach::Myself,
                Reach::Verbs(address) if !is_alike && asked != "verbs" => {
                    why = if asked.is_empty() { TransportReason::NoVerbs } else { TransportReason::Forced };
                    Reach::Network(*address)
                }
                Reach::Network(address) => Reach::Network(*address),
                Reach::Verbs(address) => Reach::Verbs(*address),
                Reach::Memory(memory) => {
                    let identity = Identity { comm: self.id, rank };
                    Reach::Memory(self.memory_of(identity, memory, (own, said[at].memory))?)
                }
            };
            peers.push(Peer { reach, why, host: known.host.clone(), pid: known.pid });
        }
        Ok(peers)
    }

    /// The memory of a rank of this host, whose memory in the parent is `in_parent`.
    fn memory_of(
        &self,
        identity: Identity,
        in_parent: &Arc<RankMemory>,
        (own, place): (&Arc<RankMemory>, u64),
    ) -> Result<Arc<RankMemory>> {
        if let Some(process) = in_parent.peer() {
            return RankMemory::of_peer(identity, *own.layout(), process, place);
        }
        let gone = || {
            let what = format!("rank {} has left this process", identity.rank);
            Error::new(ErrorKind::Unavailable, what).with_peer(identity.rank)
        };
        let found = local::find(self.parent.job, identity).ok_or_else(gone)?;
        match in_parent.transport() {
            TransportKind::Shm => RankMemory::again(&found),
            _ => Ok(found),
        }
    }

    /// What was made, if no rank of the part has failed to make its own.
    fn concluded(&self, made: Result<Arc<Inner>>, concluded: Result<()>) -> Result<Arc<Inner>> {
        let made = made.and_then(|inner| match concluded {
            Ok(()) => Ok(inner),
            Err(error) => {
                // Others may have concluded that all went well.
                inner.end_all("gave up", &error.what);
                inner.close();
                Err(error)
            }
        });
        made.map_err(|error| match error.at.comm {
            // The ranks that it names are those of that communicator.
            Some(_) => error,
            None => error.in_comm(&self.name, self.rank()),
        })
    }
}
