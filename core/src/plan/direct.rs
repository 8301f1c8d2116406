//! The direct algorithm, for ranks of one host: each rank publishes for all others and reads from
//! all others.
//!
//! ```text
//!   all-reduce, chunk k, 3 ranks          stage A   fill a shared message with all slices
//!                                                   but one's own
//!   input of rank 1:  [ s0 | s1 | s2 ]    stage B   reduce one's own slice: own input and the
//!   A message of 1:   [ s0 | s2 ]                   others' A messages -> output, and
//!   R message of 1:   [ s1 reduced ]                published as a result message R
//!                                         stage C   read every other R message into the output
//! ```
//!
//! A *chunk* is the data that one round of messages carries. A *slice* is the part of a chunk that
//! one rank reduces. Each byte is reduced once, by one rank, so that all ranks get the same bits.
//! The stages of successive chunks overlap:
//!
//! ```text
//!   A0 A1 B0 | A2 B1 C0 | A3 B2 C1 | ... | B(K-1) C(K-2) C(K-1)
//! ```
//!
//! A lane thus carries A0 A1 R0 A2 R1 ..., which is also the order in which every reader reads
//! them. The other collectives consist of the same stages: reduce-scatter is A and B; in reduce
//! only the root reads results; all-gather is A (the own block) and B (reading all blocks); barrier
//! is the same without bytes; in a broadcast the root runs A and the others run B.
//!
//! In place: stages B and C overwrite only data that this rank published before (or reduces in that
//! very step). Where a reduction takes several steps through the output, every rank's own data
//! comes first. No output changes before the first message of every rank has arrived. Where stage B
//! alone does not ensure that, an *arrival barrier* runs before it.

use arrayvec::ArrayVec;

use super::layout::{Round, Rounds, Span, piece};
use super::{GroupId, MAX_DESTINATIONS, MAX_SOURCES, Operand, Readers, Shape, Step, Topology};
use crate::collective::{Blocks, CallTerms, Request};
use crate::types::{CollKind, Rank};

/// The readers of every shared lane: on one host there is one group.
pub(super) const ALL: Readers = Readers::Group(GroupId(0));
/// The most ranks of a direct reduction to a root: ranks without an output have nowhere to keep a
/// sum of more sources.
pub(super) const MOST_TO_ROOT: u32 = MAX_SOURCES as u32;

/// The number of steps.
#[inline]
pub(super) fn len(topology: &Topology, call: (&Request, Option<&CallTerms>), shape: &Shape, me: Rank) -> u64 {
    Direct::new(topology, call, shape, me).stages.len()
}

/// Step `index`.
#[inline]
pub(super) fn step(
    topology: &Topology,
    call: (&Request, Option<&CallTerms>),
    shape: &Shape,
    me: Rank,
    index: u64,
) -> Step {
    Direct::new(topology, call, shape, me).step(index)
}

/// Position of a step in the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StageStep {
    /// Step `at` of stage 0, 1 or 2 (A, B, C) of chunk `round`.
    Stage { stage: usize, round: u64, at: u32 },
    /// Step `at` of the arrival barrier.
    Arrival { at: u32 },
}

/// The overlapped stages of `rounds` chunks.
#[derive(Clone, Copy, Debug)]
struct Stages {
    rounds: u64,
    /// Steps of stages A, B and C of one chunk.
    steps: [u32; 3],
    /// Steps of the arrival barrier, just before B0.
    arrivals: u32,
}

impl Stages {
    fn len(&self) -> u64 {
        self.rounds * self.steps.iter().map(|&s| u64::from(s)).sum::<u64>() + u64::from(self.arrivals)
    }

    fn find(&self, index: u64) -> StageStep {
        let arrivals = u64::from(self.arrivals);
        let arrive_at = u64::from(self.steps[0]) * self.rounds.min(2);
        if (arrive_at..arrive_at + arrivals).contains(&index) {
            return StageStep::Arrival { at: (index - arrive_at) as u32 };
        }
        let at = if index < arrive_at { index } else { index - arrivals };
        let found = if self.rounds == 1 {
            self.pick(at, [(0, 0), (1, 0), (2, 0)])
        } else {
            self.pick(at, [(0, 0), (0, 1), (1, 0)]).or_else(|rest| {
                // Groups A(k+2) B(k+1) C(k), then the tail.
                let group: u64 = self.steps.iter().map(|&s| u64::from(s)).sum();
                let (k, last) = ((rest / group).min(self.rounds - 2), self.rounds - 1);
                let tail = k == self.rounds - 2;
                let stages = if tail {
                    [(1, last), (2, last - 1), (2, last)]
                } else {
                    [(0, k + 2), (1, k + 1), (2, k)]
                };
                self.pick(rest - k * group, stages)
            })
        };
        found.unwrap_or_else(|_| panic!("step {index} of a program of {} steps", self.len()))
    }

    /// The stage and round of step `at` if these stages run one after the other.
    ///
    /// Returns the rest of `at` if it lies behind them.
    fn pick(&self, mut at: u64, stages: [(usize, u64); 3]) -> Result<StageStep, u64> {
        for (stage, round) in stages {
            let steps = u64::from(self.steps[stage]);
            if at < steps {
                return Ok(StageStep::Stage { stage, round, at: at as u32 });
            }
            at -= steps;
        }
        Err(at)
    }
}

/// The values from which the steps of one rank are generated.
struct Direct<'a> {
    request: &'a Request,
    /// Those of a call that has a block per rank.
    blocks: Blocks<'a>,
    me: Rank,
    n: u32,
    /// Of the bytes of a rank; where blocks differ, of the longest.
    rounds: Rounds,
    stages: Stages,
}

impl<'a> Direct<'a> {
    fn new(
        topology: &Topology,
        (request, terms): (&'a Request, Option<&'a CallTerms>),
        shape: &Shape,
        me: Rank,
    ) -> Self {
        let n = topology.nranks();
        let blocks = Blocks::of(request, terms);
        let (bytes, at_root) = (blocks.most(), request.root == me);
        let whole = |pieces| piece(shape.chunk, pieces, request.dtype);
        // Numbers of steps that read the messages of all others, and that reduce all ranks' data.
        let takes = (n - 1).div_ceil(MAX_SOURCES as u32);
        let sums = 1 + n.saturating_sub(MAX_SOURCES as u32).div_ceil(MAX_SOURCES as u32 - 1);
        let arrivals = if sums > 1 { takes } else { 0 };
        let (rounds, steps, arrivals) = match request.kind {
            CollKind::AllReduce => (Rounds::new(bytes, n, whole(n - 1)), [2, sums, n - 1], arrivals),
            CollKind::Reduce => {
                let results = if at_root { n - 1 } else { (n - 2).div_ceil(MAX_SOURCES as u32) };
                (Rounds::new(bytes, n, whole(n - 1)), [2, sums, results], arrivals)
            }
            CollKind::ReduceScatter => (Rounds::new(bytes, 1, whole(n - 1)), [n - 1, sums, 0], arrivals),
            CollKind::AllGather => {
                let arrivals = if n > 2 { takes } else { 0 };
                (Rounds::new(bytes, 1, whole(1)), [1, n, 0], arrivals)
            }
            CollKind::Broadcast => {
                (Rounds::new(bytes, 1, whole(1)), if at_root { [1, 0, 0] } else { [0, 1, 0] }, 0)
            }
            // A barrier moves no bytes; the kinds after it have other plans.
            CollKind::Barrier
            | CollKind::Send
            | CollKind::Recv
            | CollKind::AllToAll
            | CollKind::Gather
            | CollKind::Scatter => (Rounds::new(0, 1, 1), [1, takes, 0], 0),
        };
        Self { request, blocks, me, n, rounds, stages: Stages { rounds: rounds.count, steps, arrivals } }
    }

    fn step(&self, index: u64) -> Step {
        let (stage, round, at) = match self.stages.find(index) {
            StageStep::Stage { stage, round, at } => (stage, self.rounds.round(round), at),
            StageStep::Arrival { at } => return pass(self.others(), at, false),
        };
        match (self.request.kind, stage) {
            (CollKind::AllReduce | CollKind::Reduce, 0) => self.fill_slices(round, at),
            (CollKind::AllReduce | CollKind::Reduce | CollKind::ReduceScatter, 1) => self.sum(round, at),
            (CollKind::AllReduce, _) => self.result(round, at),
            (CollKind::Reduce, _) if self.request.root == self.me => self.result(round, at),
            // The root publishes no results: no other rank needs them.
            (CollKind::Reduce, _) => pass(self.others().filter(|&r| r != self.request.root), at, true),
            (CollKind::ReduceScatter, _) => self.fill_block(round, at),
            (CollKind::AllGather | CollKind::Broadcast, 0) => self.publish(round),
            (CollKind::AllGather | CollKind::Broadcast, _) => self.gather(round, at),
            (_, 0) => self.publish(round),
            _ => pass(self.others(), at, true),
        }
    }

    /// The other ranks, starting with the next one, so that the ranks do not all read from the same
    /// rank at the same time.
    fn others(&self) -> impl Iterator<Item = Rank> {
        (0..self.n - 1).map(|ahead| self.other(ahead))
    }

    /// The rank `ahead + 1` places after this one.
    fn other(&self, ahead: u32) -> Rank {
        Rank((self.me.0 + 1 + ahead) % self.n)
    }

    /// The part of a rank's block that belongs to a round: as long as the round, unless the blocks
    /// differ.
    fn chunk(&self, round: Round, rank: Rank) -> Span {
        let len = self.blocks.len(rank);
        let at = round.at.min(len);
        Span { at, len: (len - at).min(round.len) as u32 }
    }

    /// The bytes of the blocks of the first `ahead` ranks after `rank` in a round.
    fn chunks(&self, round: Round, rank: Rank, ahead: u32) -> u32 {
        match self.blocks {
            Blocks::Equal(_) => ahead * round.len as u32,
            Blocks::Uneven(..) => {
                (1..=ahead).map(|ahead| self.chunk(round, Rank((rank.0 + ahead) % self.n)).len).sum()
            }
        }
    }

    /// Stage A of a reduction in slices: the bytes before the own slice, then the bytes after it.
    ///
    /// The second step ends the message.
    fn fill_slices(&self, round: Round, at: u32) -> Step {
        let own = round.part(self.me.0);
        let after = own.at + u64::from(own.len);
        let total = (round.len - u64::from(own.len)) as u32;
        let (from, filled, len) = if at == 0 { (0, 0, own.at) } else { (after, own.at, round.len - after) };
        if at == 0 && len == 0 {
            return Step::nothing();
        }
        let to = Operand::Send { to: ALL, at: filled as u32, total, last: at == 1 };
        Step::copy(len as u32, Operand::Input { at: round.at + from }, &[to])
    }

    /// Stage A of reduce-scatter: copies the chunk of each other rank's block in turn.
    fn fill_block(&self, round: Round, at: u32) -> Step {
        let (rank, others) = (self.other(at), self.n - 1);
        let (filled, total) = (self.chunks(round, self.me, at), self.chunks(round, self.me, others));
        let to = Operand::Send { to: ALL, at: filled, total, last: at + 1 == others };
        let Span { at, len } = self.chunk(round, rank);
        Step::copy(len, Operand::Input { at: self.blocks.at(rank) + at }, &[to])
    }

    /// Offset of the own slice in the A message of `from`.
    fn slice_from(&self, round: Round, from: Rank) -> u32 {
        if self.request.kind == CollKind::ReduceScatter {
            return self.chunks(round, from, (self.me.0 + self.n - from.0 - 1) % self.n);
        }
        let left_out = if from < self.me { round.part(from.0).len } else { 0 };
        round.part(self.me.0).at as u32 - left_out
    }

    /// Stage B of a reduction: step `at` of reducing the own slice.
    fn sum(&self, round: Round, at: u32) -> Step {
        let (n, me, kind) = (self.n, self.me, self.request.kind);
        let own = round.part(me.0);
        let (input, output, len) = if kind == CollKind::ReduceScatter {
            let Span { at, len } = self.chunk(round, me);
            (self.blocks.at(me) + at, at, len)
        } else {
            (round.at + own.at, round.at + own.at, own.len)
        };
        // The first step reduces as many sources as a step can. In each later step the first source
        // is the partial sum.
        let most = MAX_SOURCES as u32;
        let (from, to) =
            if at == 0 { (0, most) } else { (most + (most - 1) * (at - 1), most + (most - 1) * at) };
        let to = to.min(n);
        // In rank order as in the one-shot algorithm; but the own data comes first where later
        // steps could find it overwritten.
        let first = if n <= most { 0 } else { me.0 };
        let so_far = (at > 0).then_some(Operand::Output { at: output });
        let ranks = (from..to).map(|x| Rank((first + x) % n));
        let sources = so_far.into_iter().chain(ranks.map(|r| {
            if r == me {
                Operand::Input { at: input }
            } else {
                Operand::Recv { from: r, shared: true, at: self.slice_from(round, r), last: true }
            }
        }));
        let keeps = kind != CollKind::Reduce || self.request.root == me;
        let publishes = to == n && (kind == CollKind::AllReduce || !keeps);
        let kept = keeps.then_some(Operand::Output { at: output });
        let published = publishes.then_some(Operand::Send { to: ALL, at: 0, total: len, last: true });
        let destinations: ArrayVec<Operand, MAX_DESTINATIONS> = kept.into_iter().chain(published).collect();
        if to == n {
            Step::reduce_last(len, sources, &destinations)
        } else {
            Step::reduce(len, sources, &destinations)
        }
    }

    /// Stage C of a reduction: reads the result of another rank's slice.
    fn result(&self, round: Round, at: u32) -> Step {
        let from = self.other(at);
        let Span { at, len } = round.part(from.0);
        let source = Operand::Recv { from, shared: true, at: 0, last: true };
        Step::copy(len, source, &[Operand::Output { at: round.at + at }])
    }

    /// Stage A where a message is a chunk of the input.
    fn publish(&self, round: Round) -> Step {
        let Span { at, len } = self.chunk(round, self.me);
        let to = Operand::Send { to: ALL, at: 0, total: len, last: true };
        let destinations = [Operand::Output { at }, to];
        let kept = usize::from(self.request.kind != CollKind::Broadcast);
        Step::copy(len, Operand::Input { at }, &destinations[kept..])
    }

    /// Stage B where a message is a chunk of the input.
    ///
    /// A broadcast reads the chunk of the root. An all-gather reads the chunk of each other rank,
    /// and copies the own chunk last.
    fn gather(&self, round: Round, at: u32) -> Step {
        let is_broadcast = self.request.kind == CollKind::Broadcast;
        let from = match at {
            _ if is_broadcast => self.request.root,
            at if at + 1 < self.n => self.other(at),
            _ => self.me,
        };
        let Span { at, len } = self.chunk(round, from);
        let source = if from == self.me {
            Operand::Input { at }
        } else {
            Operand::Recv { from, shared: true, at: 0, last: true }
        };
        let to = if is_broadcast { 0 } else { self.blocks.at(from) };
        Step::copy(len, source, &[Operand::Output { at: to + at }])
    }
}

/// Waits for the next messages of group `at` of `ranks`, and frees them if `last`.
fn pass(ranks: impl Iterator<Item = Rank>, at: u32, last: bool) -> Step {
    let group = ranks.skip(at as usize * MAX_SOURCES).take(MAX_SOURCES);
    Step::pass(group.map(|from| Operand::Recv { from, shared: true, at: 0, last }))
}
