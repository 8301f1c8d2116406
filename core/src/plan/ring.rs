//! The ring algorithm, for any topology: each rank sends to the next in the ring and receives from
//! the previous one.
//!
//! The terms are those of NCCL's rings. A *loop* carries one *chunk* per rank around the ring. A
//! chunk travels as a few *messages*, so that a rank forwards the first while it receives the
//! second. Every channel does this with its own share of the elements. With p the place of a rank
//! and chunk numbers modulo n (the number of places):
//!
//! ```text
//!   all-reduce     send p-1 | receive, reduce, send p-2 .. p-(n-1) | receive, reduce, keep, send p
//!                           | receive, keep, send p-1 .. p-(n-2)   | receive, keep p+1
//!   reduce-scatter send p-1 | receive, reduce, send p-2 .. p-(n-1) | receive, reduce, keep p
//!   all-gather     send p   | receive, keep, send p-1 .. p-(n-2)   | receive, keep p-(n-1); keep p
//!   barrier        send     | receive, send (n-2 times)            | receive
//!   broadcast      a chain from the root to the place before it
//!   reduce         a chain from the place after the root to the root
//! ```
//!
//! In place: in all-reduce each chunk of the input is read once, in the first half, and stored to
//! in the second half. In the other collectives a rank stores to its own block only what it
//! computes from it in that very step. No rank stores to the output before the first message of the
//! previous rank has arrived. All-gather keeps the own block last for this reason.
//!
//! Capacity: all ranks begin a loop by sending the messages of one chunk before they receive any.
//! Their number is at most `DEPTH`, one fewer than a lane has slots, so that one slot in the ring
//! is free for the first rank that continues.

use super::layout::{LINE, Rounds, Span, piece, share};
use super::{Graph, Operand, PAIR_SLOTS, Readers, Shape, Step, Topology};
use crate::collective::{Blocks, CallTerms, Request};
use crate::types::{CollKind, Rank};

/// The most messages of a chunk.
const DEPTH: u32 = PAIR_SLOTS - 1;

/// The number of steps of program `channel`.
pub(super) fn len(
    topology: &Topology,
    call: (&Request, Option<&CallTerms>),
    shape: &Shape,
    me: Rank,
    channel: u16,
) -> u64 {
    Ring::new(topology, call, shape, me, channel).map_or(0, |ring| ring.len())
}

/// Step `index` of program `channel`.
pub(super) fn step(
    topology: &Topology,
    call: (&Request, Option<&CallTerms>),
    shape: &Shape,
    me: Rank,
    channel: u16,
    index: u64,
) -> Step {
    Ring::new(topology, call, shape, me, channel).expect("a channel that has steps").step(index)
}

/// The values from which the steps of one rank on one channel are generated.
struct Ring<'a> {
    graph: &'a Graph,
    request: &'a Request,
    /// Those of a call that has a block per rank.
    blocks: Blocks<'a>,
    me: Rank,
    n: u32,
    /// Offset of this channel's share, in the buffer or in every block.
    from: u64,
    /// Of that share; where blocks differ, of the longest one's.
    rounds: Rounds,
    /// Messages of a chunk.
    messages: u32,
    /// Stages of a loop. Each stage has `messages` steps.
    stages: u32,
}

/// One message of a chunk.
struct Piece {
    /// Its offset in the input and the output.
    at: u64,
    len: u32,
}

impl<'a> Ring<'a> {
    /// `None` if this channel has no share of the data.
    fn new(
        topology: &'a Topology,
        (request, terms): (&'a Request, Option<&'a CallTerms>),
        shape: &Shape,
        me: Rank,
        channel: u16,
    ) -> Option<Self> {
        let n = topology.nranks();
        let blocks = Blocks::of(request, terms);
        let most_bytes = blocks.most();
        let (from, bytes) = share(most_bytes, shape.channels, channel);
        // If the request has no elements, channel 0 still announces it.
        if bytes == 0 && (most_bytes > 0 || channel > 0) {
            return None;
        }
        let most = piece(shape.chunk, 1, request.dtype);
        let (rounds, stages) = match request.kind {
            CollKind::AllReduce => (Rounds::new(bytes, n, most * u64::from(DEPTH)), 2 * n - 1),
            CollKind::ReduceScatter => (Rounds::new(bytes, 1, most * u64::from(DEPTH)), n),
            CollKind::AllGather => (Rounds::new(bytes, 1, most * u64::from(DEPTH)), n + 1),
            CollKind::Broadcast | CollKind::Reduce => (Rounds::new(bytes, 1, most), 1),
            // A barrier moves no bytes; the kinds after it have other plans.
            CollKind::Barrier
            | CollKind::Send
            | CollKind::Recv
            | CollKind::AllToAll
            | CollKind::Gather
            | CollKind::Scatter => (Rounds::new(0, 1, 1), n),
        };
        let messages = rounds.most().div_ceil(most).max(1) as u32;
        Some(Self { graph: topology.graph(channel), request, blocks, me, n, from, rounds, messages, stages })
    }

    fn len(&self) -> u64 {
        self.rounds.count * u64::from(self.stages) * u64::from(self.messages)
    }

    fn step(&self, index: u64) -> Step {
        let per_round = u64::from(self.stages) * u64::from(self.messages);
        let (round, within) = (index / per_round, (index % per_round) as u32);
        let (stage, message) = (within / self.messages, within % self.messages);
        match self.request.kind {
            CollKind::AllReduce => self.all_reduce(stage, |chunk| self.slice(round, chunk, message)),
            CollKind::ReduceScatter => self.reduce_scatter(stage, |chunk| self.block(round, chunk, message)),
            CollKind::AllGather => self.all_gather(stage, |chunk| self.block(round, chunk, message)),
            CollKind::Broadcast => self.broadcast(round),
            CollKind::Reduce => self.reduce(round),
            CollKind::Barrier
            | CollKind::Send
            | CollKind::Recv
            | CollKind::AllToAll
            | CollKind::Gather
            | CollKind::Scatter => self.barrier(stage),
        }
    }

    fn all_reduce(&self, stage: u32, piece: impl Fn(u32) -> Piece) -> Step {
        let n = self.n;
        if stage < n - 1 {
            // Chunk p-1 first, then p-2 ... p-(n-1).
            let p = piece(stage + 1);
            return self.pass_on_sum(&p, p.at, stage > 0);
        }
        let p = piece(stage - (n - 1));
        let (output, next) = (Operand::Output { at: p.at }, self.next(p.len));
        match stage - (n - 1) {
            0 => Step::reduce_last(p.len, [self.before(), Operand::Input { at: p.at }], &[output, next]),
            ahead if ahead < n - 1 => Step::copy(p.len, self.before(), &[output, next]),
            _ => Step::copy(p.len, self.before(), &[output]),
        }
    }

    fn reduce_scatter(&self, stage: u32, piece: impl Fn(u32) -> (Piece, u64)) -> Step {
        if stage < self.n - 1 {
            let (p, in_blocks) = piece(stage + 1);
            return self.pass_on_sum(&p, in_blocks, stage > 0);
        }
        let (p, in_blocks) = piece(0);
        let sources = [self.before(), Operand::Input { at: in_blocks }];
        Step::reduce_last(p.len, sources, &[Operand::Output { at: p.at }])
    }

    fn all_gather(&self, stage: u32, piece: impl Fn(u32) -> (Piece, u64)) -> Step {
        let n = self.n;
        let (p, in_blocks) = piece(stage % n);
        let output = Operand::Output { at: in_blocks };
        if stage == 0 {
            Step::copy(p.len, Operand::Input { at: p.at }, &[self.next(p.len)])
        } else if stage < n - 1 {
            Step::copy(p.len, self.before(), &[output, self.next(p.len)])
        } else if stage < n {
            Step::copy(p.len, self.before(), &[output])
        } else {
            Step::copy(p.len, Operand::Input { at: p.at }, &[output])
        }
    }

    fn barrier(&self, stage: u32) -> Step {
        if stage == 0 {
            Step::copy(0, Operand::Input { at: 0 }, &[self.next(0)])
        } else if stage < self.n - 1 {
            Step::copy(0, self.before(), &[self.next(0)])
        } else {
            Step::pass([self.before()])
        }
    }

    fn broadcast(&self, round: u64) -> Step {
        let round = self.rounds.round(round);
        let (at, len) = (self.from + round.at, round.len as u32);
        let (output, next) = (Operand::Output { at }, self.next(len));
        let after_root = self.places_after_root();
        if after_root == 0 {
            Step::copy(len, Operand::Input { at }, &[output, next])
        } else if after_root + 1 < self.n {
            Step::copy(len, self.before(), &[output, next])
        } else {
            Step::copy(len, self.before(), &[output])
        }
    }

    fn reduce(&self, round: u64) -> Step {
        let round = self.rounds.round(round);
        let p = Piece { at: self.from + round.at, len: round.len as u32 };
        let after_root = self.places_after_root();
        if after_root > 0 {
            return self.pass_on_sum(&p, p.at, after_root > 1);
        }
        let sources = [self.before(), Operand::Input { at: p.at }];
        Step::reduce_last(p.len, sources, &[Operand::Output { at: p.at }])
    }

    /// Sends this rank's data, added to the previous rank's data if that rank `sent` any.
    fn pass_on_sum(&self, p: &Piece, input: u64, sent: bool) -> Step {
        let (input, next) = (Operand::Input { at: input }, self.next(p.len));
        if sent {
            Step::reduce(p.len, [self.before(), input], &[next])
        } else {
            Step::copy(p.len, input, &[next])
        }
    }

    /// Message `message` of the all-reduce chunk that is `behind` places behind.
    fn slice(&self, round: u64, behind: u32, message: u32) -> Piece {
        let round = self.rounds.round(round);
        let place = self.graph.place[self.me.index()];
        let chunk = round.part((place + self.n - behind) % self.n);
        let span = self.message(chunk, message);
        Piece { at: self.from + round.at + span.at, len: span.len }
    }

    /// Message `message` of a chunk of the block of the rank `behind` places behind: its offset in
    /// a single block, and in all blocks.
    fn block(&self, round: u64, behind: u32, message: u32) -> (Piece, u64) {
        let round = self.rounds.round(round);
        let owner = self.graph.after(self.me, self.n - behind);
        let span = self.message(round.part(0), message);
        // A block that is shorter than the longest ends before.
        let block = self.blocks.len(owner);
        let at = (self.from + round.at + span.at).min(block);
        let len = (block - at).min(u64::from(span.len)) as u32;
        (Piece { at, len }, self.blocks.at(owner) + at)
    }

    /// Message `message` of a chunk.
    fn message(&self, chunk: Span, message: u32) -> Span {
        if self.messages == 1 {
            return chunk;
        }
        let most = chunk.len.div_ceil(self.messages).next_multiple_of(LINE as u32);
        let at = (message * most).min(chunk.len);
        Span { at: chunk.at + u64::from(at), len: (chunk.len - at).min(most) }
    }

    fn before(&self) -> Operand {
        Operand::Recv { from: self.graph.before(self.me), shared: false, at: 0, last: true }
    }

    fn next(&self, total: u32) -> Operand {
        Operand::Send { to: Readers::One(self.graph.after(self.me, 1)), at: 0, total, last: true }
    }

    /// The number of places from the root to this rank.
    fn places_after_root(&self) -> u32 {
        let place = |rank: Rank| self.graph.place[rank.index()];
        (place(self.me) + self.n - place(self.request.root)) % self.n
    }
}
