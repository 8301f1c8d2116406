//! The plan of an operation, as its ranks computed it, and the step that each rank has reached.
//! Pure.
//!
//! A recorder does not hold a plan, but what it is made from: the request, the algorithm, the group
//! of each rank, and the hashes of the topology and of all together. The number of channels follows
//! from the hash. Then the plan is exactly the ranks' plan, and step 7 is step 7.
//!
//! The counters of lanes count since the communicator was created. Where they stood when the
//! operation began follows from the ranks that are not in it yet: a lane that one end has not
//! touched for this operation stands there as it did before. From these ends the plan leads on: a
//! rank that is known to wait in step 7 has sent the messages of its first 7 steps. If every rank
//! is inside, no starting point is known.

use std::collections::BTreeMap;

use ccl::collective::Request;
use ccl::plan::select::select;
use ccl::plan::{LaneSet, Operand, Plan, Shape, Topology};
use ccl::snapshot::{CommSnapshot, Direction, LinkSnapshot, OpSnapshot, OpState};
use ccl::types::{Algorithm, ChannelId, CollKind, Datatype, Rank, ReduceOp};

use super::scene::Member;

/// The most channels that a setting allows.
const CHANNELS_MAX: u16 = 16;
/// The most ranks whose plan is searched for.
const RANKS_MAX: u32 = 4096;
/// The most steps walked to find a rank's place.
///
/// A rank whose place can be known has not come far, because another rank has not begun.
const WALK_MAX: u64 = 4096;

/// A plan that the ranks agreed on.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    topology: Topology,
    request: Request,
    pub(crate) shape: Shape,
}

/// A rank's place in its program of a channel: steps done, and all steps.
pub(crate) type StepsDone = (u64, u64);

/// A lane from its writer to one of its readers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Way {
    pub(crate) channel: ChannelId,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// Whether it is a shared lane: two ranks may have one and a lane of their own.
    pub(crate) is_shared: bool,
}

/// Which lanes a collective uses, where its plan is not known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uses {
    kind: CollKind,
    root: Rank,
    algorithm: Algorithm,
}

/// The counters of the lanes when the operation began, by channel and writer.
type Begun = BTreeMap<(ChannelId, Rank), u64>;

impl Planned {
    /// The plan of a collective; `None` if no visible input leads to its hash.
    pub(crate) fn of(members: &[Member<'_>], op: &OpSnapshot) -> Option<Self> {
        let nranks = members.first()?.comm.nranks;
        // What `split()` and `invite()` consist of.
        let kind = if op.kind.ends_with("()") { CollKind::AllGather.name() } else { &op.kind };
        let request = Request {
            kind: named(CollKind::ALL, kind, CollKind::name).filter(|kind| !kind.is_p2p())?,
            dtype: named(Datatype::ALL, &op.dtype, Datatype::name)?,
            op: named(ReduceOp::ALL, &op.op, ReduceOp::name)?,
            root: op.root,
            count: op.count,
            uneven: false,
        };
        // Snapshots may hold anything.
        if nranks > RANKS_MAX || request.check(nranks).is_err() {
            return None;
        }
        let hash = |text: &str| u64::from_str_radix(text, 16).ok();
        let (plan, wanted) = (hash(&op.plan)?, hash(&op.topology)?);
        let algorithm = named(Algorithm::ALL, &op.algorithm, Algorithm::name)?;
        // Of these no places are known: their ranks write several lanes on one channel. The counts
        // of blocks that differ are in no cell.
        let has_places = |algorithm| !matches!(algorithm, Algorithm::Tree | Algorithm::Pairwise);
        if !has_places(algorithm) || op.uneven {
            return None;
        }
        let groups = groups(members, nranks)?;
        let mut topologies = (1..=CHANNELS_MAX).map(|channels| Topology::new(&groups, channels));
        let topology = topologies.find(|topology| topology.hash() == wanted)?;
        let shape = select(&topology, Rank(0), &request, Some(algorithm));
        (has_places(shape.algorithm) && shape.hash(&topology) == plan).then_some(Self {
            topology,
            request,
            shape,
        })
    }

    fn of_rank(&self, me: Rank) -> Plan {
        Plan::Generated { request: self.request, shape: self.shape, me, terms: None }
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

    /// The ways of its messages, in ring order.
    pub(crate) fn ways(&self) -> Vec<Way> {
        let (ring, root) = (&self.topology.graph(0).ring, self.request.root);
        let mut ways = Vec::new();
        for channel in self.channels() {
            for from in ring.iter().copied().filter(|rank| self.steps(*rank, channel) > 0) {
                for lane in self.lanes(from).written_by(&self.topology, from) {
                    let way = |to, is_shared| Way { channel, from, to, is_shared };
                    let Some(to) = lane.reader() else {
                        let readers = ring
                            .iter()
                            .filter(|to| lane.is_read_by(&self.topology, **to) && self.writes(from));
                        ways.extend(readers.map(|to| way(*to, true)));
                        continue;
                    };
                    // A chain ends where its root is: before it, or at it.
                    let is_open = match self.request.kind {
                        CollKind::Broadcast => to == root,
                        CollKind::Reduce => from == root,
                        _ => false,
                    };
                    ways.extend((!is_open && lane.id.channel == channel).then(|| way(to, false)));
                }
            }
        }
        ways
    }

    /// The lanes of a rank.
    const fn lanes(&self, rank: Rank) -> LaneSet {
        LaneSet::of(&self.request, &self.shape, rank)
    }

    /// How far each rank has come on each channel, where that is known. `op` is the call that this
    /// is the plan of.
    pub(crate) fn places(
        &self,
        members: &[Member<'_>],
        op: &OpSnapshot,
    ) -> BTreeMap<(Rank, ChannelId), StepsDone> {
        let mut members: Vec<&CommSnapshot> = members.iter().map(|member| member.comm).collect();
        members.retain(|comm| comm.rank.0 < self.topology.nranks());
        // In ring order, so that the result for one rank is ready for the next.
        members.sort_by_key(|comm| self.topology.graph(0).place[comm.rank.index()]);
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
        // Only the ranks inside the same call.
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

    /// The place of a rank that is inside: the first step with messages not yet sent and taken.
    ///
    /// The messages it has sent show where its own lane stood before.
    fn place(&self, comm: &CommSnapshot, channel: ChannelId, begun: &mut Begun) -> Option<StepsDone> {
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
        // If the rank waits on a lane with a known start, that lane alone gives its place.
        if taken.is_empty() && published.is_none() || !(is_sure || stuck) {
            return None;
        }
        let (plan, all) = (self.of_rank(comm.rank), self.steps(comm.rank, channel));
        let mut sent = 0;
        for at in 0..all.min(WALK_MAX) {
            let step = plan.step(&self.topology, channel.0, at);
            let sends = step.destinations.iter().any(|to| matches!(to, Operand::Send { last: true, .. }));
            // A message that is only read need not have been taken, but must have arrived.
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

    /// Whether a rank sends messages.
    fn writes(&self, rank: Rank) -> bool {
        let root = self.request.root;
        match self.request.kind {
            CollKind::Broadcast if self.is_ring() => self.topology.graph(0).after(rank, 1) != root,
            CollKind::Broadcast => rank == root,
            CollKind::Reduce if self.is_ring() => rank != root,
            _ => true,
        }
    }

    /// The link of the lane that a rank writes on a channel, if it is up.
    fn sender<'a>(&self, comm: &'a CommSnapshot, channel: ChannelId) -> Option<&'a LinkSnapshot> {
        let lanes = self.lanes(comm.rank).written_by(&self.topology, comm.rank);
        let lane = lanes.iter().find(|lane| lane.id.channel == channel)?;
        let is_it = |link: &&LinkSnapshot| {
            (link.channel, link.direction, link.peer) == (channel, Direction::Send, lane.reader())
        };
        comm.links.iter().find(is_it)
    }

    /// The links of the lanes that a rank reads on a channel, and who writes them. Where a rank has
    /// two lanes of one writer and it is not recorded which link is which, both are left out.
    fn receivers<'a>(
        &self,
        comm: &'a CommSnapshot,
        channel: ChannelId,
    ) -> impl Iterator<Item = (Rank, &'a LinkSnapshot)> + use<'a> {
        let mut links: BTreeMap<Rank, Vec<&LinkSnapshot>> = BTreeMap::new();
        for link in comm.links.iter().filter(|l| (l.channel, l.direction) == (channel, Direction::Recv)) {
            links.entry(link.peer.unwrap_or_default()).or_default().push(link);
        }
        let mut lanes = self.lanes(comm.rank).read_by(&self.topology, comm.rank);
        lanes.retain(|lane| lane.id.channel == channel);
        lanes.into_iter().filter_map(move |lane| match links.get(&lane.from)?.as_slice() {
            [link] => Some((lane.from, *link)),
            several => {
                let mut own = several.iter().filter(|link| link.shared == lane.reader().is_none());
                own.next().filter(|_| own.next().is_none()).map(|link| (lane.from, *link))
            }
        })
    }
}

impl Uses {
    /// Those of a collective; `None` if it does not say how it is shared out.
    pub(crate) fn of(op: &OpSnapshot) -> Option<Self> {
        let kind = named(CollKind::ALL, &op.kind, CollKind::name).filter(|kind| !kind.is_p2p())?;
        let algorithm = named(Algorithm::ALL, &op.algorithm, Algorithm::name)?;
        Some(Self { kind, root: op.root, algorithm })
    }

    /// Whether it uses a way.
    pub(crate) fn has(self, way: Way) -> bool {
        match self.algorithm {
            Algorithm::Ring => !way.is_shared && way.channel != ChannelId::P2P,
            Algorithm::Direct | Algorithm::OneShot => way.is_shared,
            Algorithm::Tree => way.channel == ChannelId(0),
            Algorithm::Pairwise => {
                let is_of_kind = match self.kind {
                    CollKind::Gather => way.to == self.root,
                    CollKind::Scatter => way.from == self.root,
                    _ => true,
                };
                is_of_kind && !way.is_shared && way.channel == ChannelId(0)
            }
            Algorithm::Pair => way.channel == ChannelId::P2P,
        }
    }

    /// Who sends to whom, in words; `None` if the algorithm does not say.
    pub(crate) fn text(self) -> Option<String> {
        let root = self.root;
        (self.algorithm == Algorithm::Pairwise).then(|| match self.kind {
            CollKind::Gather => format!("all send to the root {root}"),
            CollKind::Scatter => format!("the root {root} sends to all"),
            _ => "each rank sends to each directly".into(),
        })
    }
}

/// The member of this name.
fn named<T: Copy>(all: &[T], name: &str, name_of: impl Fn(T) -> &'static str) -> Option<T> {
    all.iter().copied().find(|one| name_of(*one) == name)
}

/// The group of each rank, as a member of the communicator tells.
fn groups(members: &[Member<'_>], nranks: u32) -> Option<Vec<u64>> {
    let of_all = members.iter().map(|member| &member.comm.groups).find(|all| all.len() == nranks as usize)?;
    Some(of_all.iter().copied().map(u64::from).collect())
}
