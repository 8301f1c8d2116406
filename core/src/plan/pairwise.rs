//! All-to-all, gather and scatter, for any topology: every rank sends its blocks straight to the
//! ranks that they are for.
//!
//! In each round a rank sends a message to each of its receivers, and then reads one from each of
//! its senders. The next rank is the first receiver and the previous one the first sender, so that
//! not all ranks send to one. The own block is copied at the end of a round.
//!
//! ```text
//!   round 0    send to all | all senders' messages have arrived | read all | copy the own block
//!   round 1    send to all | read all | copy the own block
//! ```
//!
//! A pair that has less to exchange than others takes part in fewer rounds. It has one message at
//! least, since a block of no elements announces itself too.
//!
//! Nothing gets stuck, with one slot per lane or more: what a rank waits for is a send of the same
//! round, which precedes all reads, or a read of an earlier round.
//!
//! In place: block r of the output takes the place of block r of the input. Of both, a round moves
//! the same range, and sends before it reads.

use super::layout::piece;
use super::{MAX_SOURCES, Operand, Readers, Shape, Step, Topology};
use crate::collective::{Blocks, CallTerms, Request};
use crate::types::{CollKind, Rank};

/// The number of steps.
pub(super) fn len(topology: &Topology, call: (&Request, Option<&CallTerms>), shape: &Shape, me: Rank) -> u64 {
    Pairwise::new(topology, call, shape, me).len()
}

/// Step `index`.
pub(super) fn step(
    topology: &Topology,
    call: (&Request, Option<&CallTerms>),
    shape: &Shape,
    me: Rank,
    index: u64,
) -> Step {
    Pairwise::new(topology, call, shape, me).step(index)
}

/// The values from which the steps of one rank are generated.
struct Pairwise<'a> {
    request: &'a Request,
    me: Rank,
    n: u32,
    /// The blocks that this rank sends, and those that it gets.
    sent: Blocks<'a>,
    received: Blocks<'a>,
    /// How many ranks it sends to, and reads from; whether it has a block for itself.
    sends: u64,
    reads: u64,
    keeps: bool,
    /// Bytes of a message.
    most: u64,
}

impl<'a> Pairwise<'a> {
    fn new(
        topology: &Topology,
        (request, terms): (&'a Request, Option<&'a CallTerms>),
        shape: &Shape,
        me: Rank,
    ) -> Self {
        let (n, is_root) = (topology.nranks(), request.root == me);
        let others = u64::from(n - 1);
        let (sends, reads, keeps) = match (request.kind, is_root) {
            (CollKind::Gather, true) => (0, others, true),
            (CollKind::Gather, false) => (1, 0, false),
            (CollKind::Scatter, true) => (others, 0, true),
            (CollKind::Scatter, false) => (0, 1, false),
            _ => (others, others, true),
        };
        let (sent, received) = (Blocks::of(request, terms), Blocks::received(request, terms));
        let most = piece(shape.chunk, 1, request.dtype);
        Self { request, me, n, sent, received, sends, reads, keeps, most }
    }

    fn len(&self) -> u64 {
        let rounds = self.sent.most().max(self.received.most()).div_ceil(self.most).max(1);
        rounds * self.steps() + self.arrivals()
    }

    /// Steps of a round.
    const fn steps(&self) -> u64 {
        self.sends + self.reads + self.keeps as u64
    }

    /// Steps that wait for the first messages of all senders: no output changes before these were
    /// compared.
    const fn arrivals(&self) -> u64 {
        if self.reads > 1 { self.reads.div_ceil(MAX_SOURCES as u64) } else { 0 }
    }

    fn step(&self, index: u64) -> Step {
        let (sends, arrivals) = (self.sends, self.arrivals());
        if (sends..sends + arrivals).contains(&index) {
            let first = (index - sends) * MAX_SOURCES as u64;
            let senders = (first..self.reads).take(MAX_SOURCES).map(|nth| self.sender(nth));
            return Step::pass(senders.map(|from| message_of(from, false)));
        }
        let index = if index < sends { index } else { index - arrivals };
        let (round, at) = (index / self.steps(), index % self.steps());
        let step = if at < sends {
            self.send(round, at)
        } else if at < sends + self.reads {
            self.read(round, at - sends)
        } else {
            self.keep(round)
        };
        step.unwrap_or_else(Step::nothing)
    }

    fn send(&self, round: u64, nth: u64) -> Option<Step> {
        let to = self.receiver(nth);
        let (at, len) = self.part(self.sent.len(to), round)?;
        let message = Operand::Send { to: Readers::One(to), at: 0, total: len, last: true };
        Some(Step::copy(len, Operand::Input { at: self.input(to) + at }, &[message]))
    }

    fn read(&self, round: u64, nth: u64) -> Option<Step> {
        let from = self.sender(nth);
        let (at, len) = self.part(self.received.len(from), round)?;
        Some(Step::copy(len, message_of(from, true), &[Operand::Output { at: self.output(from) + at }]))
    }

    fn keep(&self, round: u64) -> Option<Step> {
        let (at, len) = self.part(self.sent.len(self.me), round)?;
        let (input, output) = (self.input(self.me) + at, self.output(self.me) + at);
        Some(Step::copy(len, Operand::Input { at: input }, &[Operand::Output { at: output }]))
    }

    /// The rank that this one sends to after `nth` others.
    fn receiver(&self, nth: u64) -> Rank {
        match self.request.kind {
            CollKind::Gather => self.request.root,
            _ => Rank((self.me.0 + 1 + nth as u32) % self.n),
        }
    }

    /// The rank that this one reads from after `nth` others.
    fn sender(&self, nth: u64) -> Rank {
        match self.request.kind {
            CollKind::Scatter => self.request.root,
            _ => Rank((self.me.0 + self.n - 1 - nth as u32) % self.n),
        }
    }

    /// Where the block for a rank begins in the input: that of a gather has one block.
    fn input(&self, to: Rank) -> u64 {
        if self.request.kind == CollKind::Gather { 0 } else { self.sent.at(to) }
    }

    /// Where the block of a rank begins in the output: that of a scatter has one block.
    fn output(&self, from: Rank) -> u64 {
        if self.request.kind == CollKind::Scatter { 0 } else { self.received.at(from) }
    }

    /// What a round moves of a block of `len` bytes, as (first byte, bytes); `None` if it ends
    /// before.
    fn part(&self, len: u64, round: u64) -> Option<(u64, u32)> {
        let at = round * self.most;
        let is_in = at < len || round == 0;
        is_in.then(|| (at, (len - at).min(self.most) as u32))
    }
}

/// The next message of a rank, which the step frees if it is its `last` read.
const fn message_of(from: Rank, last: bool) -> Operand {
    Operand::Recv { from, shared: false, at: 0, last }
}
