//! Who is awaited, by whom, since when: the ends of the wait-for chains. Without a threshold, so also of a healthy job that is
//! at work; that something stands still, and why, is a verdict and not said here.
//!
//! An *operation* somebody is inside of is found from the op cells: per communicator the lowest collective that is under way
//! on any rank, and per pair the send or receive whose link waits. Its *holders* are, first, the ranks that have not called it
//! (`missing`), and those inside it that are stopped or dead; only if there are none, the links tell: the ends of the chains of
//! waiting links, that is the ranks inside it that do not wait while others wait for them (`inside`).
//!
//! A holder may itself wait in another operation, of this communicator or another. Then it is no end: the edge is followed, and the
//! operation is listed `behind` the one it leads to. What waits in a circle has no end and is listed as it is.
//!
//! A dead rank is a holder where others live, and a stopped one where others run. Where all are dead, as in files, death tells nothing, and the
//! cells are read as they stood.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::{
    Awaited, Behind, CommSnapshot, Direction, LinkSnapshot, OpState, RankSnapshot, State, WaitingLink,
};
use crate::types::{ChannelId, CommId, Rank};

/// The most members of a communicator that are looked for; what a snapshot says of more is not believed.
const MAX_MEMBERS: u32 = 1 << 16;
/// The most that are looked for of all communicators together.
const MAX_UNSEEN: u32 = 1 << 20;
/// The most operations that are listed behind others.
const MAX_BEHIND: usize = 1 << 14;

/// Who is awaited in these ranks of one job, the longest wait first.
#[must_use]
pub fn awaited(ranks: &[RankSnapshot]) -> Vec<Awaited> {
    let job = Job::new(ranks);
    let mut waits: Vec<Wait> = Vec::new();
    for members in job.comms.values() {
        waits.extend(collective(&job, members));
        waits.extend(pairs(&job, members));
    }
    ends(&job, waits)
}

/// One rank's part of a communicator.
#[derive(Clone, Copy)]
struct Member<'a> {
    /// The rank of the job, as an index.
    who: usize,
    state: State,
    comm: &'a CommSnapshot,
}

type Members<'a> = BTreeMap<Rank, Member<'a>>;

struct Job<'a> {
    comms: BTreeMap<CommId, Members<'a>>,
    some_run: bool,
    some_live: bool,
}

impl<'a> Job<'a> {
    fn new(ranks: &'a [RankSnapshot]) -> Self {
        let mut comms: BTreeMap<CommId, Members<'a>> = BTreeMap::new();
        for (who, rank) in ranks.iter().enumerate() {
            for comm in &rank.comms {
                let member = Member { who, state: rank.state, comm };
                let members = comms.entry(comm.id).or_default();
                // Two rows of one rank: the one that has ended is older.
                if members.get(&comm.rank).is_none_or(|before| before.comm.ended) {
                    members.insert(comm.rank, member);
                }
            }
        }
        let some = |states: &[State]| ranks.iter().any(|rank| states.contains(&rank.state));
        Self {
            comms,
            some_run: some(&[State::Running, State::Unknown]),
            some_live: some(&[State::Running, State::Unknown, State::Stopped]),
        }
    }

    /// Whether the state alone makes it a holder.
    fn is_out(&self, state: State) -> bool {
        match state {
            State::Running | State::Unknown => false,
            State::Stopped => self.some_run,
            State::Dead | State::Exited => self.some_live,
        }
    }
}

impl Member<'_> {
    fn is_gone(self) -> bool {
        matches!(self.state, State::Dead | State::Exited)
    }
    /// Whether it takes part no more: it left the communicator, and lives on. Of a dead process what ended before is evidence.
    fn has_left(self) -> bool {
        self.comm.ended && !self.is_gone()
    }
    /// Inside a collective, or out of one by an error.
    fn is_inside(self) -> bool {
        matches!(self.comm.op.state, OpState::Running | OpState::Failed) && !self.has_left()
    }
    /// The last collective it has called.
    fn called(self) -> u64 {
        self.comm.op.called.max(if self.comm.op.state == OpState::Idle { 0 } else { self.comm.op.seq })
    }
    /// Its links that wait: those of collectives, or those of pairs.
    fn waiting(&self, pairs: bool) -> impl Iterator<Item = (&LinkSnapshot, Rank)> {
        let links = self.comm.links.iter().filter(move |link| (link.channel == ChannelId::P2P) == pairs);
        links.filter(|link| link.is_waiting()).filter_map(|link| Some((link, link.waits_for.or(link.peer)?)))
    }
    /// How long it has waited in a collective: on a link, or else since it is inside.
    fn waited_ns(&self) -> u64 {
        self.waiting(false).map(|(link, _)| link.since_ns).max().unwrap_or(self.comm.op.age_ns)
    }
}

/// An operation in which somebody waits. Ranks are those of its communicator.
#[derive(Default)]
struct Wait {
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
    link: Option<WaitingLink>,
}

impl Wait {
    fn holders(&self) -> impl Iterator<Item = Rank> {
        self.missing.iter().chain(&self.inside).copied()
    }
}

/// The lowest collective that is under way, if somebody waits in it.
fn collective(job: &Job<'_>, members: &Members<'_>) -> Option<Wait> {
    let waiters = || members.iter().filter(|(_, m)| m.is_inside() && !job.is_out(m.state));
    let seq = waiters().map(|(_, m)| m.comm.op.seq).min()?;
    let (_, first) = waiters().find(|(_, m)| m.comm.op.seq == seq)?;
    let mut wait = Wait {
        comm: first.comm.id,
        name: first.comm.name.clone(),
        op: first.comm.op.kind.clone(),
        seq,
        by: waiters().map(|(rank, _)| *rank).collect(),
        ..Wait::default()
    };
    let share = MAX_UNSEEN / u32::try_from(job.comms.len()).unwrap_or(u32::MAX).max(1);
    let nranks = first.comm.nranks.min(MAX_MEMBERS).min(share);
    wait.unseen = (0..nranks).map(Rank).filter(|rank| !members.contains_key(rank)).collect();
    for (rank, member) in members {
        if member.called() < seq {
            wait.missing.insert(*rank);
        } else if member.is_inside() && member.comm.op.seq == seq && job.is_out(member.state) {
            wait.inside.insert(*rank);
        }
    }
    if wait.holders().next().is_none() {
        held_inside(members, &mut wait)?;
    }
    wait.by.retain(|rank| !wait.missing.contains(rank) && !wait.inside.contains(rank));
    let by = || wait.by.iter().map(|rank| &members[rank]);
    wait.since_ns = by().map(Member::waited_ns).max().unwrap_or(0);
    wait.tag = by().map(|m| &m.comm.op.tag).find(|tag| !tag.is_empty()).cloned().unwrap_or_default();
    wait.link = longest(&wait, by().flat_map(|m| m.waiting(false).map(|link| (m.comm.rank, link))));
    Some(wait)
}

/// All that were read have called it and none is out: who holds the others up? `None`: nobody waits.
fn held_inside(members: &Members<'_>, wait: &mut Wait) -> Option<()> {
    let inside = |rank: &Rank| wait.by.contains(rank) && members[rank].comm.op.seq == wait.seq;
    let failed = |rank: &Rank| members[rank].comm.op.state == OpState::Failed;
    // Of the dead, those who never came back held up those who came back with an error.
    if wait.by.iter().any(failed) {
        let lost = |rank: &&Rank| inside(rank) && !failed(rank) && members[*rank].state == State::Dead;
        let lost: BTreeSet<Rank> = wait.by.iter().filter(lost).copied().collect();
        if !lost.is_empty() {
            wait.inside = lost;
            return Some(());
        }
    }
    // From those who wait along their links to those who do not.
    let waits = |rank: Rank| members.get(&rank).into_iter().flat_map(|m| m.waiting(false).map(|(_, on)| on));
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
    Some(())
}

/// The links of sends and receives that wait, each an operation of its own.
fn pairs(job: &Job<'_>, members: &Members<'_>) -> Vec<Wait> {
    let mut waits = Vec::new();
    for (rank, member) in members.iter().filter(|(_, m)| !m.has_left() && !job.is_out(m.state)) {
        for (link, peer) in member.waiting(true) {
            let p2p = member.comm.p2p.as_ref();
            let mut wait = Wait {
                comm: member.comm.id,
                name: member.comm.name.clone(),
                op: if link.direction == Direction::Recv { "Recv" } else { "Send" }.into(),
                seq: link.op,
                pair: true,
                tag: p2p.map_or(&member.comm.op.tag, |p2p| &p2p.tag).clone(),
                by: BTreeSet::from([*rank]),
                since_ns: link.since_ns,
                ..Wait::default()
            };
            let holders = match members.get(&peer) {
                None => &mut wait.unseen,
                Some(other) if has_called(other, *rank, link) => &mut wait.inside,
                Some(_) => &mut wait.missing,
            };
            holders.insert(peer);
            wait.link = longest(&wait, std::iter::once((*rank, (link, peer))));
            waits.push(wait);
        }
    }
    waits
}

/// Whether `other` has called the counterpart of what `link` of `rank` works for: pairs count their messages alike.
fn has_called(other: &Member<'_>, rank: Rank, link: &LinkSnapshot) -> bool {
    let opposite = |l: &&LinkSnapshot| {
        l.channel == ChannelId::P2P && l.peer == Some(rank) && l.direction != link.direction
    };
    other.comm.links.iter().find(opposite).is_some_and(|l| l.op >= link.op)
}

/// The link that has waited longest, of those that wait for a holder if there are such.
fn longest<'a>(
    wait: &Wait,
    links: impl Iterator<Item = (Rank, (&'a LinkSnapshot, Rank))>,
) -> Option<WaitingLink> {
    let holders: BTreeSet<Rank> = wait.holders().chain(wait.unseen.iter().copied()).collect();
    let (rank, (link, peer)) = links.max_by_key(|(rank, (link, peer))| {
        (holders.contains(peer), link.since_ns, std::cmp::Reverse(*rank))
    })?;
    Some(WaitingLink {
        rank,
        peer,
        channel: link.channel,
        direction: link.direction,
        transport: link.transport,
        step: link.step,
        waits: link.waits,
        since_ns: link.since_ns,
    })
}

/// Follows holders who wait elsewhere, and keeps the ends.
fn ends(job: &Job<'_>, mut waits: Vec<Wait>) -> Vec<Awaited> {
    // By the rank of the job, the operations in which it waits.
    let mut waits_of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, wait) in waits.iter().enumerate() {
        let who = |rank: &Rank| Some(job.comms[&wait.comm].get(rank)?.who);
        let by: BTreeSet<usize> = wait.by.iter().filter_map(who).collect();
        by.into_iter().for_each(|who| waits_of.entry(who).or_default().push(at));
    }
    // Per operation, those of its holders who wait elsewhere, as ranks of the job; and those who do
    // not.
    let mut leads: Vec<BTreeSet<usize>> = Vec::new();
    let mut held_by: Vec<BTreeSet<Rank>> = Vec::new();
    for (at, wait) in waits.iter().enumerate() {
        let (mut to, mut by) = (BTreeSet::new(), BTreeSet::new());
        for rank in wait.holders() {
            let holder = job.comms[&wait.comm][&rank];
            let those: &[usize] = waits_of.get(&holder.who).map_or(&[], Vec::as_slice);
            if !job.is_out(holder.state) && those.iter().any(|other| *other != at) {
                to.insert(holder.who);
            } else {
                by.insert(rank);
            }
        }
        leads.push(to);
        held_by.push(by);
    }
    let is_end: Vec<bool> =
        held_by.iter().zip(&leads).map(|(by, to)| !by.is_empty() || to.is_empty()).collect();
    // Once for each rank, not for each operation: of those there may be thousands, each of which
    // leads to all others.
    let reached: BTreeMap<usize, BTreeSet<usize>> =
        waits_of.keys().map(|who| (*who, ends_of(*who, &waits_of, &leads, &is_end))).collect();
    let leads_to = |from: usize, at: usize| leads[from].iter().any(|who| reached[who].contains(&at));
    let leads_nowhere = |from: usize| leads[from].iter().all(|who| reached[who].is_empty());
    let shown: Vec<bool> = (0..waits.len()).map(|at| is_end[at] || leads_nowhere(at)).collect();
    let mut found: Vec<Awaited> = Vec::new();
    let mut room = MAX_BEHIND;
    for at in (0..waits.len()).filter(|at| shown[*at]) {
        let held: BTreeSet<Rank> = match is_end[at] {
            true => held_by[at].clone(),
            false => waits[at].holders().collect(),
        };
        let mut behind = Vec::new();
        for other in (0..waits.len()).filter(|other| !shown[*other] && leads_to(*other, at)) {
            if waits[other].comm == waits[at].comm && waits[other].pair && waits[at].pair {
                let (by, since_ns) = (waits[other].by.clone(), waits[other].since_ns);
                waits[at].by.extend(by);
                waits[at].since_ns = waits[at].since_ns.max(since_ns);
            } else if room > 0 {
                room -= 1;
                behind.push(as_behind(&waits[other]));
            }
        }
        let end = as_awaited(&waits[at], &held, behind);
        let same = |one: &&mut Awaited| {
            waits[at].pair
                && (one.comm, &one.op) == (end.comm, &end.op)
                && (&one.missing, &one.inside, &one.unseen) == (&end.missing, &end.inside, &end.unseen)
        };
        match found.iter_mut().find(same) {
            Some(one) => join(one, end),
            None => found.push(end),
        }
    }
    let named = |one: &Awaited| !one.missing.is_empty() || !one.inside.is_empty();
    found.sort_by_key(|one| (!named(one), std::cmp::Reverse(one.since_ns), one.comm, one.seq));
    found
}

/// The ends to which the waits of a rank lead.
fn ends_of(
    from: usize,
    waits_of: &BTreeMap<usize, Vec<usize>>,
    leads: &[BTreeSet<usize>],
    is_end: &[bool],
) -> BTreeSet<usize> {
    let (mut ends, mut seen, mut next) = (BTreeSet::new(), BTreeSet::from([from]), vec![from]);
    while let Some(who) = next.pop() {
        for at in &waits_of[&who] {
            if is_end[*at] {
                ends.insert(*at);
            } else {
                next.extend(leads[*at].iter().filter(|who| seen.insert(**who)));
            }
        }
    }
    ends
}

/// Two pairs that wait for the same rank in the same way are told as one.
fn join(one: &mut Awaited, other: Awaited) {
    let by: BTreeSet<Rank> = one.by.iter().chain(&other.by).copied().collect();
    one.by = by.into_iter().collect();
    if other.since_ns > one.since_ns {
        (one.since_ns, one.seq, one.link) = (other.since_ns, other.seq, other.link);
    }
    one.behind.extend(other.behind);
}

fn as_awaited(wait: &Wait, held: &BTreeSet<Rank>, behind: Vec<Behind>) -> Awaited {
    let of = |ranks: &BTreeSet<Rank>| ranks.intersection(held).copied().collect();
    Awaited {
        comm: wait.comm,
        op: wait.op.clone(),
        seq: wait.seq,
        missing: of(&wait.missing),
        inside: of(&wait.inside),
        by: wait.by.iter().copied().collect(),
        since_ns: wait.since_ns,
        unseen: wait.unseen.iter().copied().collect(),
        name: wait.name.clone(),
        tag: wait.tag.clone(),
        link: wait.link.clone(),
        behind,
    }
}

fn as_behind(wait: &Wait) -> Behind {
    Behind {
        comm: wait.comm,
        name: wait.name.clone(),
        op: wait.op.clone(),
        seq: wait.seq,
        by: wait.by.iter().copied().collect(),
        through: wait.holders().collect(),
    }
}

#[cfg(test)]
mod tests;
