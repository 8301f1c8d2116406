//! The plan of an operation, as its ranks made it, and how far each has come in it. Pure.
//!
//! A recorder holds no plan, but the hash of all that a plan is made from. What can differ (who shares a host, how many channels, whether
//! an algorithm was forced) is tried until the hash is met: then the plan is the very one, and step 7 is step 7.
//!
//! Counters of lanes run since the communicator was made. Where they stood when the operation began is told by those who are not
//! in it yet: a lane that one end has not touched for this operation stands there as it did before. From these ends the plan leads on:
//! a rank that is known to wait in step 7 has sent what its first 7 steps send. Where nobody is left outside, nothing is known of it.

use std::collections::BTreeMap;

use ccl::collective::Request;
use ccl::plan::select::select;
use ccl::plan::{Operand, Plan, Readers, Shape, Topology};
use ccl::snapshot::{CommSnapshot, Direction, LinkSnapshot, OpSnapshot, OpState};
use ccl::types::{Algorithm, ChannelId, CollKind, Datatype, Rank, ReduceOp};

use super::scene::{Member, host};

/// The most channels that a setting allows.
const CHANNELS_MAX: u16 = 16;
/// The most ranks whose plan is sought.
const RANKS_MAX: u32 = 4096;
/// The most steps that are walked to find where a rank stands: those who can be placed have not come far, as somebody has not begun.
const WALK_MAX: u64 = 4096;

/// A plan that the ranks agreed on.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    topology: Topology,
    request: Request,
    pub(crate) shape: Shape,
}

/// A rank's place in its program of a channel: steps done, and all steps.
pub(crate) type Place = (u64, u64);

/// Where lanes stood when the operation began, by channel and writer.
type Begun = BTreeMap<(ChannelId, Rank), u64>;

impl Planned {
    /// The plan of a collective; `None` if nothing that could be seen leads to its hash.
    pub(crate) fn of(members: &[Member<'_>], op: &OpSnapshot) -> Option<Self> {
        let nranks = members.first()?.comm.nranks;
        let request = Request {
            kind: named(CollKind::ALL, &op.kind, CollKind::name).filter(|kind| !kind.is_p2p())?,
            dtype: named(Datatype::ALL, &op.dtype, Datatype::name)?,
            op: named(ReduceOp::ALL, &op.op, ReduceOp::name)?,
            root: op.root,
            count: op.count,
        };
        // Snapshots come from anywhere.
        if nranks > RANKS_MAX || request.check(nranks).is_err() {
            return None;
        }
        let wanted = u64::from_str_radix(&op.plan, 16).ok()?;
        for hosts in divisions(members, nranks) {
            let mut topology = Topology::new(&hosts, 1);
            for channels in 1..=CHANNELS_MAX {
                topology.channels = channels;
                let shapes =
                    [None, Some(Algorithm::Ring), Some(Algorithm::Direct), Some(Algorithm::Exchange)]
                        .map(|forced| select(&topology, &request, forced));
                if let Some(shape) = shapes.into_iter().find(|shape| shape.hash(&topology) == wanted) {
                    return Some(Self { topology, request, shape });
                }
            }
        }
        None
    }

    fn of_rank(&self, me: Rank) -> Plan {
        Plan::Generated { request: self.request, shape: self.shape, me }
    }

    fn is_ring(&self) -> bool {
        self.shape.algorithm == Algorithm::Ring
    }

    /// Its channels.
    pub(crate) fn channels(&self) -> impl Iterator<Item = ChannelId> + use<> {
        (0..self.shape.channels).map(ChannelId)
    }

    /// The steps of one rank's program of a channel.
    pub(crate) fn steps(&self, rank: Rank, channel: ChannelId) -> u64 {
        if channel.0 < self.shape.channels && rank.0 < self.topology.nranks() {
            self.of_rank(rank).len(&self.topology, channel.0)
        } else {
            0
        }
    }

    /// From whom to whom its messages go, in the order of the ring.
    pub(crate) fn ways(&self) -> Vec<(ChannelId, Rank, Rank)> {
        let (ring, root) = (&self.topology.ring, self.request.root);
        let mut ways = Vec::new();
        for channel in self.channels() {
            for from in ring.iter().copied().filter(|rank| self.steps(*rank, channel) > 0) {
                if self.is_ring() {
                    let to = self.topology.after(from, 1);
                    // A chain ends where its root is: before it, or at it.
                    let is_open = match self.request.kind {
                        CollKind::Broadcast => to == root,
                        CollKind::Reduce => from == root,
                        _ => false,
                    };
                    ways.extend((!is_open && to != from).then_some((channel, from, to)));
                } else if self.request.kind != CollKind::Broadcast || from == root {
                    ways.extend(ring.iter().filter(|to| **to != from).map(|to| (channel, from, *to)));
                }
            }
        }
        ways
    }

    /// How far each rank has come on each channel, where that is known. `op` is the call that this is the plan of.
    pub(crate) fn places(
        &self,
        members: &[Member<'_>],
        op: &OpSnapshot,
    ) -> BTreeMap<(Rank, ChannelId), Place> {
        let mut members: Vec<&CommSnapshot> = members.iter().map(|member| member.comm).collect();
        members.retain(|comm| comm.rank.0 < self.topology.nranks());
        // Round the ring, so that what one tells is there for the next.
        members.sort_by_key(|comm| self.topology.place[comm.rank.index()]);
        let mut begun = Begun::new();
        let mut places = BTreeMap::new();
        for comm in &members {
            let is_outside =
                comm.op.state == OpState::Idle && comm.op.completed.checked_add(1) == Some(op.seq);
            let is_done = comm.op.completed >= op.seq;
            for channel in self.channels() {
                let all = self.steps(comm.rank, channel);
                if is_outside || is_done {
                    places.insert((comm.rank, channel), (if is_done { all } else { 0 }, all));
                }
                if is_outside {
                    begun.extend(self.sender(comm, channel).map(|link| ((channel, comm.rank), link.posted)));
                    let receivers = self.receivers(comm, channel);
                    begun.extend(receivers.map(|(from, link)| ((channel, from), link.done)));
                }
            }
        }
        // Whoever is inside of the same.
        members.retain(|comm| (comm.op.seq, &comm.op.plan) == (op.seq, &op.plan));
        loop {
            let before = places.len();
            for comm in &members {
                for channel in self.channels().filter(|channel| self.steps(comm.rank, *channel) > 0) {
                    if !places.contains_key(&(comm.rank, channel))
                        && let Some(place) = self.place(comm, channel, &mut begun)
                    {
                        places.insert((comm.rank, channel), place);
                    }
                }
            }
            if places.len() == before {
                return places;
            }
        }
    }

    /// How far one who is inside has come: to the first step whose messages have not all been sent and taken. What it has sent tells where
    /// its own lane stood before.
    fn place(&self, comm: &CommSnapshot, channel: ChannelId, begun: &mut Begun) -> Option<Place> {
        let own = (channel, comm.rank);
        let sender = self.sender(comm, channel);
        let published = sender.and_then(|link| link.posted.checked_sub(*begun.get(&own)?));
        let mut taken = BTreeMap::new();
        let mut is_sure = published.is_some() || !self.writes(comm.rank);
        let mut stuck = false;
        for (from, link) in self.receivers(comm, channel) {
            let since = |counter: u64| counter.checked_sub(*begun.get(&(channel, from))?);
            let (Some(done), Some(arrived)) = (since(link.done), since(link.moved)) else {
                is_sure = false;
                continue;
            };
            taken.insert(from, (done, arrived));
            stuck |= link.is_waiting();
        }
        // Where it waits for a lane that is known, that lane alone says where it is.
        if taken.is_empty() && published.is_none() || !(is_sure || stuck) {
            return None;
        }
        let (plan, all) = (self.of_rank(comm.rank), self.steps(comm.rank, channel));
        let mut sent = 0;
        for at in 0..all.min(WALK_MAX) {
            let step = plan.step(&self.topology, channel.0, at);
            let sends = step.destinations.iter().any(|to| matches!(to, Operand::Send { last: true, .. }));
            // What is only looked at need not be taken, but must be there.
            let is_ahead = |source: &Operand| match source {
                Operand::Recv { from, last, .. } => {
                    taken.get(from).is_some_and(|(done, arrived)| *arrived == 0 || *last && *done == 0)
                }
                _ => false,
            };
            if step.sources.iter().any(is_ahead) || sends && published == Some(sent) {
                if let Some(before) = sender.and_then(|link| link.posted.checked_sub(sent)) {
                    begun.entry(own).or_insert(before);
                }
                return Some((at, all));
            }
            for source in &step.sources {
                if let Operand::Recv { from, last: true, .. } = source
                    && let Some((done, arrived)) = taken.get_mut(from)
                {
                    (*done, *arrived) = (*done - 1, *arrived - 1);
                }
            }
            sent += u64::from(sends);
        }
        (all <= WALK_MAX).then_some((all, all))
    }

    /// Whether a rank sends anything.
    fn writes(&self, rank: Rank) -> bool {
        let root = self.request.root;
        match self.request.kind {
            CollKind::Broadcast if self.is_ring() => self.topology.after(rank, 1) != root,
            CollKind::Broadcast => rank == root,
            CollKind::Reduce if self.is_ring() => rank != root,
            _ => true,
        }
    }

    /// Whom a rank's messages are for.
    fn readers(&self, rank: Rank) -> Readers {
        if self.is_ring() { Readers::One(self.topology.after(rank, 1)) } else { Readers::All }
    }

    /// The lane that a rank writes on a channel, if it is up.
    fn sender<'a>(&self, comm: &'a CommSnapshot, channel: ChannelId) -> Option<&'a LinkSnapshot> {
        let peer = match self.readers(comm.rank) {
            Readers::One(to) => Some(to),
            Readers::All => None,
        };
        let is_it = |link: &&LinkSnapshot| {
            (link.channel, link.direction, link.peer) == (channel, Direction::Send, peer)
        };
        comm.links.iter().find(is_it)
    }

    /// The lanes that a rank reads on a channel, and who writes them. Of two lanes of one writer, one of them to all, nobody can tell which
    /// is which: they are left out.
    fn receivers<'a>(
        &self,
        comm: &'a CommSnapshot,
        channel: ChannelId,
    ) -> impl Iterator<Item = (Rank, &'a LinkSnapshot)> + use<'a> {
        let before = self.is_ring().then(|| self.topology.before(comm.rank));
        let of = move |from: Rank| {
            let is_it = move |link: &&LinkSnapshot| {
                (link.channel, link.direction, link.peer) == (channel, Direction::Recv, Some(from))
            };
            comm.links.iter().filter(is_it)
        };
        let all = comm
            .links
            .iter()
            .filter_map(|link| link.peer)
            .filter(move |from| before.is_none_or(|before| before == *from));
        let all: std::collections::BTreeSet<Rank> = all.collect();
        all.into_iter()
            .filter_map(move |from| Some((from, of(from).next()?)).filter(|_| of(from).count() == 1))
    }
}

/// The member of this name.
fn named<T: Copy>(all: &[T], name: &str, name_of: impl Fn(T) -> &'static str) -> Option<T> {
    all.iter().copied().find(|one| name_of(*one) == name)
}

/// Who may share a host: as the processes say, if all were read; all of them; nobody, as where memory is not to be used.
fn divisions(members: &[Member<'_>], nranks: u32) -> Vec<Vec<u64>> {
    let named: Vec<String> = members.iter().map(|member| host(member.rank)).collect();
    let number = |name: &String| named.iter().position(|one| one == name).unwrap_or(0) as u64;
    let is_whole = members.iter().map(|member| member.comm.rank.0).eq(0..nranks);
    let told = is_whole.then(|| named.iter().map(number).collect());
    told.into_iter().chain([vec![0; nranks as usize], (0..u64::from(nranks)).collect()]).collect()
}
