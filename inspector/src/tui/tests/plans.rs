//! The place of each rank in its plan, compared with ranks that run their plans until no rank can
//! move.

use std::collections::{BTreeMap, BTreeSet};

use ccl::collective::Request;
use ccl::plan::select::select;
use ccl::plan::{Operand, PAIR_SLOTS, Plan, Readers, SHARED_SLOTS, Topology};
use ccl::snapshot::{
    BlockedOn, CommSnapshot, Direction, Failure, LinkSnapshot, OpSnapshot, OpState, RankSnapshot, Snapshot,
    Waits,
};
use ccl::types::{Algorithm, ChannelId, CollKind, CommId, Datatype, Rank, ReduceOp};
use crossterm::event::KeyCode;

use super::super::plan::{Planned, Way};
use super::super::scene::Member;
use super::{app, drawn, jobs, press};

const SEQ: u64 = 9;

/// A lane: its channel, its writer, and its reader if it has one.
type Lane = (u16, Rank, Option<Rank>);

/// Ranks that run a plan; some of them have not begun.
struct Simulated {
    topology: Topology,
    request: Request,
    forced: Option<Algorithm>,
    /// Messages published, and messages that each reader has taken.
    published: BTreeMap<Lane, u64>,
    taken: BTreeMap<(Lane, Rank), u64>,
    /// Steps done.
    at: BTreeMap<(Rank, u16), u64>,
}

impl Simulated {
    fn plan(&self, me: Rank) -> Plan {
        Plan::Generated {
            request: self.request,
            shape: select(&self.topology, Rank(0), &self.request, self.forced),
            me,
            terms: None,
        }
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.topology.nranks()).map(Rank)
    }

    /// Whether the next step of `me` reads what `from` writes.
    fn needs(&self, me: Rank, channel: u16, from: Rank) -> bool {
        let (plan, at) = (self.plan(me), self.at.get(&(me, channel)).copied().unwrap_or(0));
        let is_it = |source: &Operand| matches!(source, Operand::Recv { from: it, .. } if *it == from);
        at < plan.len(&self.topology, channel)
            && plan.step(&self.topology, channel, at).sources.iter().any(is_it)
    }

    /// Does the next step of rank `me` on `channel`, if it can; gives whether it did.
    fn advance(&mut self, me: Rank, channel: u16) -> bool {
        let plan = self.plan(me);
        let at = self.at.get(&(me, channel)).copied().unwrap_or(0);
        if channel >= plan.channels() || at >= plan.len(&self.topology, channel) {
            return false;
        }
        let step = plan.step(&self.topology, channel, at);
        let lane = |from: Rank, shared: bool| (channel, from, (!shared).then_some(me));
        for source in &step.sources {
            if let Operand::Recv { from, shared, .. } = source {
                let lane = lane(*from, *shared);
                let taken = self.taken.get(&(lane, me)).copied().unwrap_or(0);
                if self.published.get(&lane).copied().unwrap_or(0) <= taken {
                    return false;
                }
            }
        }
        for to in &step.destinations {
            if let Operand::Send { to, .. } = to {
                let (lane, slots) = match to {
                    Readers::One(to) => ((channel, me, Some(*to)), PAIR_SLOTS),
                    Readers::Group(_) => ((channel, me, None), SHARED_SLOTS),
                };
                let readers = match to {
                    Readers::One(to) => vec![*to],
                    Readers::Group(_) => self.ranks().filter(|rank| *rank != me).collect(),
                };
                let taken = |reader: Rank| self.taken.get(&(lane, reader)).copied().unwrap_or(0);
                let freed = readers.into_iter().map(taken).min().unwrap_or(0);
                if self.published.get(&lane).copied().unwrap_or(0) - freed >= u64::from(slots) {
                    return false;
                }
            }
        }
        for source in &step.sources {
            if let Operand::Recv { from, shared, last: true, .. } = source {
                *self.taken.entry((lane(*from, *shared), me)).or_default() += 1;
            }
        }
        for to in &step.destinations {
            if let Operand::Send { to, last: true, .. } = to {
                let reader = match to {
                    Readers::One(to) => Some(*to),
                    Readers::Group(_) => None,
                };
                *self.published.entry((channel, me, reader)).or_default() += 1;
            }
        }
        self.at.insert((me, channel), at + 1);
        true
    }

    /// Runs all ranks but those outside, until none can move.
    fn run(&mut self, outside: &BTreeSet<Rank>) {
        let channels = self.plan(Rank(0)).channels();
        loop {
            let mut moved = false;
            for rank in self.ranks().filter(|rank| !outside.contains(rank)) {
                for channel in 0..channels {
                    while self.advance(rank, channel) {
                        moved = true;
                    }
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// The content of their recorders, if `before(lane)` messages had gone over each lane earlier.
    fn seen(
        &self,
        outside: &BTreeSet<Rank>,
        before: impl Fn(Lane) -> u64,
    ) -> Vec<(RankSnapshot, CommSnapshot)> {
        let shape = select(&self.topology, Rank(0), &self.request, self.forced);
        let is_shared = shape.algorithm != Algorithm::Ring;
        let one = |me: Rank| {
            let is_outside = outside.contains(&me);
            let mut links = Vec::new();
            for channel in 0..shape.channels {
                let reader = (!is_shared).then(|| self.topology.graph(0).after(me, 1));
                let lane = (channel, me, reader);
                let posted = before(lane) + self.published.get(&lane).copied().unwrap_or(0);
                let base = LinkSnapshot {
                    channel: ChannelId(channel),
                    shared: is_shared,
                    ..LinkSnapshot::default()
                };
                links.push(LinkSnapshot { peer: reader, direction: Direction::Send, posted, ..base.clone() });
                let others = self.ranks().filter(|rank| *rank != me);
                let writers: Vec<Rank> =
                    if is_shared { others.collect() } else { vec![self.topology.graph(0).before(me)] };
                for from in writers {
                    let lane = (channel, from, (!is_shared).then_some(me));
                    let taken = self.taken.get(&(lane, me)).copied().unwrap_or(0);
                    // A shared lane is not mistaken for the lane of its own that it may have, too.
                    let (peer, direction) = (Some(from), Direction::Recv);
                    let own = LinkSnapshot { peer, direction, shared: false, ..base.clone() };
                    links.extend(is_shared.then_some(own));
                    let nothing = self.published.get(&lane).copied().unwrap_or(0) == taken;
                    let waits = !is_outside && nothing && self.needs(me, channel, from);
                    links.push(LinkSnapshot {
                        peer: Some(from),
                        direction: Direction::Recv,
                        moved: before(lane) + self.published.get(&lane).copied().unwrap_or(0),
                        done: before(lane) + taken,
                        waits: if waits { Waits::Peer } else { Waits::Nothing },
                        ..base.clone()
                    });
                }
            }
            let seq = if is_outside { SEQ - 1 } else { SEQ };
            let op = OpSnapshot {
                kind: self.request.kind.to_string(),
                dtype: self.request.dtype.to_string(),
                op: self.request.op.to_string(),
                root: self.request.root,
                count: self.request.count,
                plan: format!("{:016x}", shape.hash(&self.topology)),
                algorithm: shape.algorithm.to_string(),
                topology: format!("{:016x}", self.topology.hash()),
                state: if is_outside { OpState::Idle } else { OpState::Running },
                seq,
                called: seq,
                completed: SEQ - 1,
                ..OpSnapshot::default()
            };
            let nranks = self.topology.nranks();
            let groups = self.ranks().map(|rank| self.topology.group(rank).0).collect();
            let comm = CommSnapshot { rank: me, nranks, op, links, groups, ..CommSnapshot::default() };
            let host = if self.topology.one_host() { 0 } else { me.0 % 2 };
            let rank = RankSnapshot { rank: me, host: format!("host{host}"), ..RankSnapshot::default() };
            (rank, comm)
        };
        self.ranks().map(one).collect()
    }
}

/// The kinds of which places are known: the ranks of others write several lanes on one channel.
fn with_places() -> impl Iterator<Item = CollKind> {
    let kinds = CollKind::ALL.iter().copied().filter(|kind| !kind.is_p2p());
    kinds.filter(|kind| !matches!(kind, CollKind::AllToAll | CollKind::Gather | CollKind::Scatter))
}

#[test]
fn every_rank_is_placed_where_it_stands_in_every_plan() {
    use Algorithm::{Direct, Ring};
    let kinds = with_places();
    let mut placed = 0;
    for (kind, forced) in kinds.flat_map(|kind| [None, Some(Ring), Some(Direct)].map(|forced| (kind, forced)))
    {
        for (hosts, count) in [(vec![0; 4], 3), (vec![0; 5], 1 << 20), (vec![0, 1, 0, 1, 0], 300_000)] {
            let topology = Topology::new(&hosts, 2);
            let count = if kind == CollKind::Barrier { 0 } else { count };
            let request = Request {
                kind,
                dtype: Datatype::F32,
                op: ReduceOp::Sum,
                root: Rank(1),
                count,
                uneven: false,
            };
            for outside in [vec![2], vec![0, 3]] {
                let outside: BTreeSet<Rank> = outside.into_iter().map(Rank).collect();
                let (published, taken, at) = Default::default();
                let topology = topology.clone();
                let mut all = Simulated { topology, request, forced, published, taken, at };
                all.run(&outside);
                // As after broadcasts from different roots: no two lanes alike.
                let seen = all.seen(&outside, |(channel, from, _)| {
                    1000 + 17 * u64::from(channel) + 31 * u64::from(from.0)
                });
                let members: Vec<_> =
                    seen.iter().map(|(rank, comm)| Member { rank, comm, at: (0, 0) }).collect();
                let inside = members.iter().find(|member| !outside.contains(&member.comm.rank)).unwrap();
                let what = format!("{kind} {forced:?} {hosts:?} outside {outside:?}");
                let plan = Planned::of(&members, &inside.comm.op).expect(&what);
                for ((rank, channel), (at, steps)) in plan.places(&members, &inside.comm.op) {
                    let expect = all.at.get(&(rank, channel.0)).copied().unwrap_or(0);
                    assert_eq!(steps, all.plan(rank).len(&all.topology, channel.0), "{what}");
                    assert_eq!(at, expect, "rank {rank} on {channel:?}, {what}");
                    placed += usize::from(!outside.contains(&rank));
                }
                // The place of a rank that waits is known.
                for member in members
                    .iter()
                    .filter(|member| member.comm.links.iter().any(|link| link.waits == Waits::Peer))
                {
                    let places = plan.places(&members, &inside.comm.op);
                    assert!(
                        places.contains_key(&(member.comm.rank, ChannelId(0))),
                        "rank {} of {what}",
                        member.comm.rank
                    );
                }
            }
        }
    }
    println!("cases: places {placed}");
}

#[test]
fn the_ways_of_a_plan_are_those_of_its_steps() {
    use Algorithm::{Direct, Ring};
    for kind in with_places() {
        for forced in [None, Some(Ring), Some(Direct)] {
            for hosts in [vec![0; 4], vec![0, 1, 0]] {
                let topology = Topology::new(&hosts, 2);
                let request = Request {
                    kind,
                    dtype: Datatype::I32,
                    op: ReduceOp::Max,
                    root: Rank(1),
                    count: 50_000,
                    uneven: false,
                };
                let (published, taken, at) = Default::default();
                let all = Simulated { topology, request, forced, published, taken, at };
                let mut expect = BTreeSet::new();
                for me in all.ranks() {
                    let plan = all.plan(me);
                    for channel in 0..plan.channels() {
                        for at in 0..plan.len(&all.topology, channel) {
                            for source in plan.step(&all.topology, channel, at).sources {
                                if let Operand::Recv { from, shared: is_shared, .. } = source {
                                    let channel = ChannelId(channel);
                                    expect.insert(Way { channel, from, to: me, is_shared });
                                }
                            }
                        }
                    }
                }
                let seen = all.seen(&BTreeSet::new(), |_| 0);
                let members: Vec<_> =
                    seen.iter().map(|(rank, comm)| Member { rank, comm, at: (0, 0) }).collect();
                let plan = Planned::of(&members, &members[0].comm.op).unwrap();
                let ways: BTreeSet<_> = plan.ways().into_iter().collect();
                assert_eq!(ways, expect, "{kind} {forced:?} {hosts:?}");
            }
        }
    }
}

/// The matrix of a job, line by line.
fn matrix(job: Snapshot) -> String {
    let mut app = app(job, (140, 24));
    press(&mut app, KeyCode::Char('2'));
    drawn(&app)
}

#[test]
fn who_is_a_call_behind_and_not_awaited_is_no_culprit() {
    let mut job = jobs::hang();
    job.blocked_on.clear();
    let screen = matrix(job);
    assert!(screen.contains("nobody waits") && screen.contains("· at #6"), "{screen}");
    assert!(!screen.contains("NOT CALLED") && !screen.contains('✱'), "{screen}");
}

#[test]
fn who_is_in_a_later_operation_is_done_with_this_one() {
    let mut job = jobs::hang();
    let ahead = &mut job.ranks[0].comms[0];
    (ahead.op.seq, ahead.op.called) = (job.blocked_on[0].seq + 1, job.blocked_on[0].seq + 1);
    let rank = ahead.rank;
    let screen = matrix(job);
    let row = screen
        .lines()
        .find(|line| line.trim_start_matches('│').trim_start().starts_with(&format!("{rank} ")));
    assert!(row.is_some_and(|row| row.contains(" done") && !row.contains("inside")), "{screen}");
}

#[test]
fn a_plan_is_drawn_before_its_links_are_up() {
    let rings = |job: Snapshot| {
        let mut app = app(job, (140, 24));
        press(&mut app, KeyCode::Char('3'));
        drawn(&app)
    };
    let mut job = jobs::hang();
    let comms = |job: &mut Snapshot, change: &dyn Fn(&mut CommSnapshot)| {
        job.ranks.iter_mut().flat_map(|rank| &mut rank.comms).for_each(change);
    };
    comms(&mut job, &|comm| comm.links.clear());
    let screen = rings(job.clone());
    assert!(
        screen.contains("plan: ring, 2 channels, 126 steps") && screen.contains("no link is up yet"),
        "{screen}"
    );
    assert!(screen.contains("ch1 0 ·▸· 1 ·▸· ✱2@0 ·▸· 3 ·▸· 0"), "{screen}");
    assert!(screen.contains("ch0        3     0") && screen.contains("· not up yet"), "{screen}");
    let little = Request {
        kind: CollKind::AllReduce,
        dtype: Datatype::F32,
        op: ReduceOp::Sum,
        root: Rank(0),
        count: 9,
        uneven: false,
    };
    let topology = Topology::new(&[0, 0, 1, 1], 2);
    let plan = select(&topology, Rank(0), &little, None).hash(&topology);
    let mut small = jobs::hang();
    comms(&mut small, &|comm| (comm.op.count, comm.op.plan) = (9, format!("{plan:016x}")));
    let screen = matrix(small);
    assert!(screen.contains("ch0") && !screen.contains("ch1  "), "a column for what is not used: {screen}");
    // A broadcast from rank 1 is a chain: no rank writes to the root.
    let (kind, dtype, op) = (CollKind::Broadcast, Datatype::F32, ReduceOp::Sum);
    let request = Request { kind, dtype, op, root: Rank(1), count: 1 << 20, uneven: false };
    let plan = select(&topology, Rank(0), &request, None).hash(&topology);
    comms(&mut job, &|comm| {
        (comm.op.kind, comm.op.root, comm.op.plan) = ("Broadcast".into(), Rank(1), format!("{plan:016x}"));
    });
    job.blocked_on[0].op = "Broadcast".into();
    let screen = rings(job.clone());
    assert!(screen.contains("ch0 1 ·▸· ✱2@0 ·▸· 3 ·▸· 0\n"), "{screen}");
    // If no input leads to the plan, only the existing links are drawn.
    comms(&mut job, &|comm| comm.op.plan = "1".into());
    assert!(rings(job).contains("the plan of its messages is not known; no link is up"));
}

#[test]
fn a_receive_is_compared_with_sends_and_concerns_two() {
    let comm = |rank: u32, p2p: Option<OpSnapshot>| CommSnapshot {
        id: CommId(1),
        rank: Rank(rank),
        nranks: 4,
        op: OpSnapshot {
            kind: "AllReduce".into(),
            seq: 5,
            called: 5,
            completed: 5,
            state: OpState::Idle,
            ..OpSnapshot::default()
        },
        p2p,
        ..CommSnapshot::default()
    };
    let pair = |kind: &str, seq, state, peer| {
        let (kind, peer) = (kind.to_string(), Some(Rank(peer)));
        Some(OpSnapshot { kind, seq, state, peer, called: seq, completed: seq - 1, ..OpSnapshot::default() })
    };
    let ranks = [
        comm(0, pair("Recv", 37, OpState::Running, 1)),
        comm(1, pair("Send", 90, OpState::Idle, 3)),
        comm(2, None),
        comm(3, pair("Recv", 90, OpState::Idle, 1)),
    ];
    let rank =
        |comm: CommSnapshot| RankSnapshot { rank: comm.rank, comms: vec![comm], ..RankSnapshot::default() };
    let blocked_on = BlockedOn {
        comm: CommId(1),
        op: "Recv".into(),
        seq: 37,
        missing: vec![Rank(1)],
        by: vec![Rank(0)],
        since_ns: 5_000_000_000,
        ..BlockedOn::default()
    };
    let job = Snapshot {
        complete: true,
        blocked_on: vec![blocked_on],
        ranks: ranks.map(rank).to_vec(),
        ..Snapshot::default()
    };
    let cells = |job: Snapshot, title: &str| -> Vec<String> {
        let app = app(job, (140, 24));
        let listing = super::super::views::matrix::listing(&app.scene());
        assert_eq!(listing.columns[2].title, title);
        listing.rows.iter().map(|row| row.cells[2].text.clone()).collect()
    };
    assert_eq!(cells(job.clone(), "#37"), ["▸ inside", "✱ NOT CALLED", "", ""]);
    // No rank blocks others: the operation in focus is still the receive that is under way.
    let mut job = Snapshot { blocked_on: Vec::new(), ..job };
    assert_eq!(cells(job.clone(), "#37"), ["▸ inside", "", "", ""]);
    // If several failed, the one that is reported as failed is in focus.
    for (at, kind, seq, peer) in [(0, "Recv", 37, 1), (1, "Send", 90, 3), (3, "Recv", 90, 1)] {
        job.ranks[at].comms[0].p2p = pair(kind, seq, OpState::Failed, peer);
    }
    let (error, ranks) = ("Peer".into(), vec![Rank(0), Rank(1), Rank(3)]);
    job.failures =
        vec![Failure { comm: CommId(1), op: "Send".into(), seq: 90, error, ranks, ..Failure::default() }];
    let shown = cells(job, "#90");
    assert!(shown[0].is_empty() && shown[1].contains("failed") && shown[3].contains("failed"), "{shown:?}");
}
