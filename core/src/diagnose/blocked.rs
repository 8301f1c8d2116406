//! Blocked on: which ranks block others, which ranks they block, and since when: the ends of the
//! wait-for chains.
//!
//! There is no threshold, so a healthy job at work has entries too. That a job is stuck, and why,
//! is a conclusion that is not drawn here.
//!
//! An *operation* in progress is found from the op cells: per communicator the lowest collective
//! that is under way on any rank, and per pair of ranks the send or receive that waits. Its
//! *holders* are, first, the ranks that have not called it (`missing`) and the ranks inside it that
//! are stopped or dead. Only if there are none, the waits decide: the holders are the ends of the
//! chains of waits, that is the ranks inside the operation that do not wait while others wait for
//! them (`inside`). The waits come from the links, or from the operation's own cell where the link
//! is not made yet. `finish()`, which all ranks call too, is one more operation.
//!
//! A rank that is stopped inside, and whose links wait for ranks that have not called, does not
//! block the others: they are blocked on the ranks that have not called, whenever the rank was
//! stopped.
//!
//! A rank may have noted a wait that is over: its peer has handed over the message, or has freed
//! the slot, by the counters of both ends. Such a rank waits for nobody: it is starved, or stopped,
//! and is itself the end of the chain (`blocked/met.rs`).
//!
//! A holder may itself wait in another operation, of this communicator or another. Then it is not
//! an end: the edge is followed, and the operation is listed `behind` the operation that it leads
//! to. A wait that is much younger than the operation's is no reason for it: such a holder is busy
//! elsewhere, and an end. A cycle of waits has no end. Within one communicator it is listed as it
//! is; through several, the rank that went on while others waited for it stands for it, or else the
//! one for which the most processes wait.
//!
//! A dead rank is a holder if other ranks live, and a stopped rank if other ranks run. If all ranks
//! are dead, as in files, death does not distinguish them, and the cells are read as they were. If
//! the cells name no holder, the rank whose last sign of life is clearly the earliest is taken to
//! be the holder.

mod ends;
mod met;

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnose::standing::has_called;
use crate::diagnose::{FINISH, silent_first};
use crate::snapshot::{
    BlockedOn, CommSnapshot, Direction, LinkSnapshot, OpSnapshot, OpState, OpWait, RankSnapshot, State,
    Transport, WaitingLink, Waits,
};
use crate::types::{ChannelId, CommId, Phase, Rank};

/// The most members of a communicator that are looked for; a larger number in a snapshot is not
/// believed.
const MAX_MEMBERS: u32 = 1 << 16;
/// The most members that are looked for in all communicators together.
const MAX_UNSEEN: u32 = 1 << 20;

/// The ranks that block others among these ranks of one job, the longest wait first.
#[must_use]
pub fn blocked_on(ranks: &[RankSnapshot]) -> Vec<BlockedOn> {
    let job = Job::new(ranks);
    let mut waits: Vec<WaitEdges> = Vec::new();
    for members in job.comms.values() {
        waits.extend(collective(&job, members));
        waits.extend(pairs(&job, members));
        waits.extend(finishing(&job, members));
    }
    ends::ends(&job, waits)
}

/// One rank's part of a communicator.
struct Member<'a> {
    /// The index of the rank in the job.
    who: usize,
    state: State,
    comm: &'a CommSnapshot,
    /// The time from which its ages count.
    at_ns: u64,
    /// Its waits, in collectives and in sends and receives.
    waits: [Vec<Edge>; 2],
    /// Whether it had waits there, and all of them are over: it has only to go on.
    is_met: [bool; 2],
}

type Members<'a> = BTreeMap<Rank, Member<'a>>;

struct Job<'a> {
    comms: BTreeMap<CommId, Members<'a>>,
    some_run: bool,
    some_live: bool,
    /// If all ranks are dead: the rank whose last sign of life is clearly the earliest.
    silent: Option<usize>,
}

impl<'a> Job<'a> {
    fn new(ranks: &'a [RankSnapshot]) -> Self {
        let mut comms: BTreeMap<CommId, Members<'a>> = BTreeMap::new();
        for (who, rank) in ranks.iter().enumerate() {
            for comm in &rank.comms {
                let waits = [false, true].map(|pairs| Edge::all(comm, pairs));
                let (state, at_ns) = (rank.state, rank.to_real_ns);
                let member = Member { who, state, comm, at_ns, waits, is_met: [false; 2] };
                let members = comms.entry(comm.id).or_default();
                // Two rows of one rank: the row that has ended is the older one.
                if members.get(&comm.rank).is_none_or(|before| before.comm.ended) {
                    members.insert(comm.rank, member);
                }
            }
        }
        comms.values_mut().for_each(met::remove);
        let some = |states: &[State]| ranks.iter().any(|rank| states.contains(&rank.state));
        Self {
            comms,
            some_run: some(&[State::Running, State::Unknown]),
            some_live: some(&[State::Running, State::Unknown, State::Stopped]),
            silent: silent_first(ranks)
                .map(|(at, _)| at)
                .filter(|_| ranks.iter().all(|rank| rank.state == State::Dead)),
        }
    }

    /// Whether the state alone makes a rank a holder.
    fn is_out(&self, state: State) -> bool {
        match state {
            State::Running | State::Unknown => false,
            State::Stopped => self.some_run,
            State::Dead | State::Exited | State::Left => self.some_live,
        }
    }
}

impl Member<'_> {
    const fn is_gone(&self) -> bool {
        self.state.is_gone()
    }
    /// Whether it left the communicator and lives on. A dead process's ended rows are evidence.
    const fn has_left(&self) -> bool {
        self.comm.ended && !self.is_gone()
    }
    /// Whether it is inside a collective, or left one by an error.
    const fn is_inside(&self) -> bool {
        matches!(self.comm.op.state, OpState::Running | OpState::Failed) && !self.has_left()
    }
    /// Its waits, in collectives or in sends and receives.
    fn waiting(&self, pairs: bool) -> impl Iterator<Item = Edge> {
        self.waits[usize::from(pairs)].iter().copied()
    }
    /// Whether somebody waits for a call of it: an operation that was only begun does not block the
    /// rank.
    fn is_attended(&self, pairs: bool) -> bool {
        !self.own(pairs).is_some_and(|wait| wait.unattended)
    }
    /// Whether somebody waits for that send or receive. The cell of the operation tells the longest
    /// wait of those, so nobody waits for one that has waited for longer.
    fn waits_for(&self, pair: &Edge) -> bool {
        self.own(true).is_none_or(|own| !own.unattended && pair.since_ns <= own.since_ns)
    }
    /// The wait in its own cell, in collectives or in sends and receives.
    fn own(&self, pairs: bool) -> Option<&OpWait> {
        let op = if pairs { self.comm.p2p.as_ref() } else { Some(&self.comm.op) };
        op.and_then(|op| op.wait.as_ref())
    }
    /// How long it has waited in a collective: since its links or its cell began to wait, or else
    /// since it is inside.
    fn waited_ns(&self) -> u64 {
        self.waiting(false).map(|edge| edge.since_ns).max().unwrap_or(self.comm.op.age_ns)
    }
}

/// A wait of one rank for another.
#[derive(Clone, Copy)]
struct Edge {
    peer: Rank,
    channel: ChannelId,
    direction: Direction,
    transport: Transport,
    /// The number of messages moved.
    step: u64,
    /// The number of the send or receive that waits.
    seq: u64,
    waits: Waits,
    since_ns: u64,
}

impl Edge {
    /// The waits of a rank, in collectives or in sends and receives. One for a slot of the proxy is
    /// no wait for another rank: other operations of its own process hold the slots.
    fn all(comm: &CommSnapshot, pairs: bool) -> Vec<Self> {
        let links = comm.links.iter().filter(|link| (link.channel == ChannelId::P2P) == pairs);
        let mut edges: Vec<Self> = links.filter_map(Self::of_link).collect();
        let op = if pairs { comm.p2p.as_ref() } else { Some(&comm.op) };
        if let Some(own) = op.and_then(Self::of_op) {
            match edges.iter_mut().find(|edge| edge.is_of(&own)) {
                // Somebody may wait for it only since a moment ago.
                Some(edge) => edge.since_ns = edge.since_ns.min(own.since_ns),
                None => edges.push(own),
            }
        }
        edges
    }

    fn of_link(link: &LinkSnapshot) -> Option<Self> {
        let &LinkSnapshot { channel, direction, transport, step, waits, since_ns, op: seq, .. } = link;
        let peer = link.waits_for.or(link.peer).filter(|_| link.is_waiting() && waits.is_for_rank())?;
        Some(Self { peer, channel, direction, transport, step, seq, waits, since_ns })
    }

    /// The wait in the operation's own cell.
    fn of_op(op: &OpSnapshot) -> Option<Self> {
        let wait = op.wait.as_ref().filter(|wait| wait.waits.is_for_rank())?;
        let &OpWait { waits, peer, channel, direction, since_ns, .. } = wait;
        let transport = Transport::Unknown;
        Some(Self { peer, channel, direction, transport, step: 0, seq: op.seq, waits, since_ns })
    }

    /// Whether both describe the same wait.
    fn is_of(&self, other: &Self) -> bool {
        (self.peer, self.channel, self.direction) == (other.peer, other.channel, other.direction)
    }
}

/// An operation in which ranks wait. Ranks are those of its communicator.
#[derive(Default)]
struct WaitEdges {
    comm: CommId,
    name: String,
    op: String,
    seq: u64,
    pair: bool,
    tag: String,
    by: BTreeSet<Rank>,
    missing: BTreeSet<Rank>,
    inside: BTreeSet<Rank>,
    unseen: BTreeSet<Rank>,
    since_ns: u64,
    p99_ns: u64,
    link: Option<WaitingLink>,
}

impl WaitEdges {
    fn holders(&self) -> impl Iterator<Item = Rank> {
        self.missing.iter().chain(&self.inside).copied()
    }
}

/// The lowest collective that is under way, if a rank waits in it.
fn collective(job: &Job<'_>, members: &Members<'_>) -> Option<WaitEdges> {
    let waiters = || members.iter().filter(|(_, m)| m.is_inside() && !job.is_out(m.state));
    let seq = waiters().map(|(_, m)| m.comm.op.seq).min()?;
    let (_, first) = waiters().find(|(_, m)| m.comm.op.seq == seq)?;
    let mut wait = WaitEdges {
        comm: first.comm.id,
        name: first.comm.name.clone(),
        op: first.comm.op.kind.clone(),
        seq,
        by: waiters().map(|(rank, _)| *rank).collect(),
        ..WaitEdges::default()
    };
    wait.unseen = unseen(job, members, first.comm.nranks);
    for (rank, member) in members {
        if member.comm.last_called() < seq {
            wait.missing.insert(*rank);
        } else if member.is_inside() && member.comm.op.seq == seq && job.is_out(member.state) {
            wait.inside.insert(*rank);
        }
    }
    // Ranks that have not called it, or are out, hold up those at work in it too.
    let holds_all = wait.holders().next().is_some();
    if !holds_all {
        held_inside(job, members, &mut wait)?;
    }
    let (waits_too, inside) =
        wait.inside.iter().copied().partition(|rank| waits_too(members, &wait.missing, *rank));
    wait.inside = inside;
    wait.by.extend::<BTreeSet<Rank>>(waits_too);
    wait.by.retain(|rank| !wait.missing.contains(rank) && !wait.inside.contains(rank));
    // A rank whose message has come waits for nobody.
    wait.by.retain(|rank| !members[rank].is_met[0]);
    if wait.by.is_empty() && wait.inside.is_empty() {
        return None;
    }
    let is_attended = |rank: &Rank| members[rank].is_attended(false);
    if !wait.by.is_empty() && !wait.by.iter().any(is_attended) {
        return None;
    }
    wait.by.retain(is_attended);
    let by = || wait.by.iter().map(|rank| &members[rank]);
    // Otherwise only real waits count: a rank that does not wait is at work, if slowly.
    // One that failed has no waits any more.
    let has_failed = |m: &Member<'_>| m.comm.op.state == OpState::Failed;
    let waited_ns = |m: &Member<'_>| match holds_all || has_failed(m) {
        true => m.waited_ns(),
        false => m.waiting(false).map(|edge| edge.since_ns).max().unwrap_or(0),
    };
    wait.since_ns = by().map(waited_ns).max().unwrap_or(0);
    wait.p99_ns = by().filter(|m| m.comm.op.seq == seq).map(|m| m.comm.op.p99_ns).max().unwrap_or(0);
    // The tag of a rank that is further on describes a later operation.
    let is_here = |m: &&Member<'_>| m.comm.op.seq == seq && m.comm.last_called() == seq;
    let tags = by().filter(is_here).map(|m| &m.comm.op.tag);
    wait.tag = tags.into_iter().find(|tag| !tag.is_empty()).cloned().unwrap_or_default();
    wait.link = longest(&wait, by().flat_map(|m| m.waiting(false).map(|edge| (m.comm.rank, edge))));
    Some(wait)
}

/// The members of a communicator that were not read.
fn unseen(job: &Job<'_>, members: &Members<'_>, nranks: u32) -> BTreeSet<Rank> {
    let share = MAX_UNSEEN / u32::try_from(job.comms.len()).unwrap_or(u32::MAX).max(1);
    (0..nranks.min(MAX_MEMBERS).min(share)).map(Rank).filter(|rank| !members.contains_key(rank)).collect()
}

/// Finds the holders where all ranks that were read have called it and no state decides. `None` if
/// no rank waits.
fn held_inside(job: &Job<'_>, members: &Members<'_>, wait: &mut WaitEdges) -> Option<()> {
    let inside = |rank: &Rank| wait.by.contains(rank) && members[rank].comm.op.seq == wait.seq;
    let failed = |rank: &Rank| members[rank].comm.op.state == OpState::Failed;
    // Of the dead, the ranks that never returned blocked the ranks that returned with an error.
    if wait.by.iter().any(failed) {
        let lost = |rank: &&Rank| inside(rank) && !failed(rank) && members[*rank].state == State::Dead;
        let lost: BTreeSet<Rank> = wait.by.iter().filter(lost).copied().collect();
        if !lost.is_empty() {
            wait.inside = lost;
            return Some(());
        }
    }
    // Follows the links from the ranks that wait to the ranks that do not.
    let waits =
        |rank: Rank| members.get(&rank).into_iter().flat_map(|m| m.waiting(false).map(|edge| edge.peer));
    let mut reached: BTreeSet<Rank> = BTreeSet::new();
    let mut next: Vec<Rank> = wait.by.iter().copied().filter(|rank| waits(*rank).next().is_some()).collect();
    if next.is_empty() {
        return None;
    }
    while let Some(rank) = next.pop() {
        if reached.insert(rank) {
            next.extend(waits(rank));
        }
    }
    let ends = reached.into_iter().filter(|rank| waits(*rank).next().is_none());
    wait.inside = ends.filter(inside).collect();
    // A rank that waits gives signs of life. A process that stopped giving them while the others
    // went on was stopped, or starved.
    if wait.inside.is_empty() && !wait.by.iter().any(failed) {
        let is_silent = |rank: &Rank| Some(members[rank].who) == job.silent;
        wait.inside = wait.by.iter().copied().filter(|rank| inside(rank) && is_silent(rank)).collect();
    }
    Some(())
}

/// Whether a rank that is stopped inside itself waits for ranks that have not called: then it does
/// not block the others.
fn waits_too(members: &Members<'_>, missing: &BTreeSet<Rank>, rank: Rank) -> bool {
    if missing.is_empty() || members[&rank].state != State::Stopped {
        return false;
    }
    let waits =
        |rank: Rank| members.get(&rank).into_iter().flat_map(|m| m.waiting(false).map(|edge| edge.peer));
    let (mut seen, mut next): (BTreeSet<Rank>, Vec<Rank>) = (BTreeSet::new(), waits(rank).collect());
    let mut leads_there = false;
    while let Some(peer) = next.pop() {
        let mut on = waits(peer).peekable();
        match missing.contains(&peer) {
            true => leads_there = true,
            // It waits for itself, or for a rank that has work.
            false if peer == rank || on.peek().is_none() => return false,
            false if seen.insert(peer) => next.extend(on),
            false => {}
        }
    }
    leads_there
}

/// The ranks that wait in `finish()`, and those that have not called it.
fn finishing(job: &Job<'_>, members: &Members<'_>) -> Option<WaitEdges> {
    let finishes = |m: &Member<'_>| m.comm.finishes() && !m.has_left() && !job.is_out(m.state);
    let waiters = || members.iter().filter(|(_, m)| finishes(m));
    let (_, first) = waiters().next()?;
    // Who has passed it leaves, and says so a moment later.
    let has_passed =
        |m: &Member<'_>| m.comm.ended || m.comm.phases.iter().any(|one| one.phase == Phase::Finish.name());
    let absent = |(_, m): &(&Rank, &Member<'_>)| !m.comm.finishes() && !has_passed(m);
    let lasted = |m: &Member<'_>| m.comm.phase.as_ref().map_or(0, |phase| phase.duration_ns);
    let wait = WaitEdges {
        comm: first.comm.id,
        name: first.comm.name.clone(),
        op: FINISH.into(),
        tag: first.comm.op.tag.clone(),
        by: waiters().map(|(rank, _)| *rank).collect(),
        missing: members.iter().filter(absent).map(|(rank, _)| *rank).collect(),
        unseen: unseen(job, members, first.comm.nranks),
        since_ns: waiters().map(|(_, m)| lasted(m)).max().unwrap_or(0),
        ..WaitEdges::default()
    };
    (!wait.missing.is_empty() || !wait.unseen.is_empty()).then_some(wait)
}

/// The sends and receives that wait, each as an operation.
fn pairs(job: &Job<'_>, members: &Members<'_>) -> Vec<WaitEdges> {
    let mut waits = Vec::new();
    let waits_there = |m: &Member<'_>| !m.has_left() && !job.is_out(m.state);
    for (rank, member) in members.iter().filter(|(_, m)| waits_there(m)) {
        for edge in member.waiting(true).filter(|edge| member.waits_for(edge)) {
            let p2p = member.comm.p2p.as_ref();
            let kind = if edge.direction == Direction::Recv { "Recv" } else { "Send" };
            let mut wait = WaitEdges {
                comm: member.comm.id,
                name: member.comm.name.clone(),
                op: kind.into(),
                seq: edge.seq,
                pair: true,
                tag: p2p.map_or(&member.comm.op.tag, |p2p| &p2p.tag).clone(),
                by: BTreeSet::from([*rank]),
                since_ns: edge.since_ns,
                p99_ns: member.comm.p99_ns(ChannelId::P2P),
                ..WaitEdges::default()
            };
            let holders = match members.get(&edge.peer) {
                None => &mut wait.unseen,
                Some(other) if has_called(other.comm, *rank, kind, edge.seq) => &mut wait.inside,
                Some(_) => &mut wait.missing,
            };
            holders.insert(edge.peer);
            wait.link = longest(&wait, std::iter::once((*rank, edge)));
            waits.push(wait);
        }
    }
    waits
}

/// The link that has waited longest, if possible of those that wait for a holder.
fn longest(wait: &WaitEdges, edges: impl Iterator<Item = (Rank, Edge)>) -> Option<WaitingLink> {
    let holders: BTreeSet<Rank> = wait.holders().chain(wait.unseen.iter().copied()).collect();
    let (rank, edge) = edges
        .max_by_key(|(rank, edge)| (holders.contains(&edge.peer), edge.since_ns, std::cmp::Reverse(*rank)))?;
    let Edge { peer, channel, direction, transport, step, waits, since_ns, .. } = edge;
    Some(WaitingLink { rank, peer, channel, direction, transport, step, waits, since_ns })
}

#[cfg(test)]
mod tests;
