//! From events to facts, for one rank of one communicator. Pure: recorded events go in, facts come
//! out.

use std::sync::Arc;

use ccl::clock::{Anchor, Raw, Scale};
use ccl::event::Event;
use ccl::event::assembly::{self, Assembly, Item, MessageEnd, Outcome};
use ccl::recorder::Recorded;
use ccl::types::{CollKind, Phase, Rank};

use super::fact::{Fact, Operation, Owner, Stall, What};
use super::ids::About;

/// The conversion of raw times to nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) scale: Scale,
    pub(super) anchor: Anchor,
}

impl Time {
    fn real_ns(&self, raw: Raw) -> u64 {
        self.anchor.real_ns_at(self.scale.mono(raw))
    }
}

/// The state of one rank so far.
#[derive(Debug)]
pub(super) struct SpanBuilder {
    owner: Arc<Owner>,
    assembly: Assembly,
    /// When the first phase of init began.
    init_from: Option<u64>,
    /// The tag last used: most operations share one text.
    tag: Option<Arc<str>>,
}

impl SpanBuilder {
    pub(super) fn of(owner: Arc<Owner>) -> Self {
        Self { owner, assembly: Assembly::default(), init_from: None, tag: None }
    }

    /// Handles missing events before the next one: the operations of the messages that are kept are
    /// lost. Returns the number of these messages.
    pub(super) fn gap(&mut self) -> u64 {
        self.assembly.lost()
    }

    /// Takes the next event; facts go to `out`. Returns the number of events that there was no
    /// space for.
    pub(super) fn next(&mut self, recorded: &Recorded, time: &Time, out: &mut Vec<Fact>) -> u64 {
        let at = recorded.raw;
        if let Event::PhaseEnded { phase, duration_ns } = recorded.event {
            self.phase(phase, duration_ns, time.real_ns(at), out);
        }
        if let Event::StallFound { standing, class, reason, culprit, since_ns } = recorded.event {
            let to = time.real_ns(at);
            let stall = Stall { standing, class, reason, culprit, told_ns: to };
            out.push(self.fact(What::Stall(stall), to.saturating_sub(since_ns), to));
        }
        match self.assembly.take(at, &recorded.event) {
            Item::Ended(operation, messages) => {
                self.ended(&operation, &messages, time, out);
                0
            }
            Item::Message { is_kept, .. } => u64::from(!is_kept),
            Item::Other => 0,
        }
    }

    fn about(&self, kind: CollKind, seq: u64, other: Option<Rank>) -> About {
        let me = self.owner.rank;
        match (kind, other) {
            (CollKind::Send, other) => About::Pair(me, other.unwrap_or(me), seq),
            (CollKind::Recv, other) => About::Pair(other.unwrap_or(me), me, seq),
            (
                CollKind::AllReduce
                | CollKind::AllGather
                | CollKind::ReduceScatter
                | CollKind::Broadcast
                | CollKind::Reduce
                | CollKind::Barrier
                | CollKind::AllToAll
                | CollKind::Gather
                | CollKind::Scatter,
                _,
            ) => About::Collective(seq),
        }
    }

    fn fact(&self, what: What, from_ns: u64, to_ns: u64) -> Fact {
        Fact { owner: Arc::clone(&self.owner), what, from_ns, to_ns, tag: None }
    }

    fn phase(&mut self, phase: Phase, duration_ns: u64, to: u64, out: &mut Vec<Fact>) {
        let from = to.saturating_sub(duration_ns);
        out.push(self.fact(What::Phase(phase), from, to));
        let began = self.init_from.map_or(from, |began| began.min(from));
        self.init_from = Some(began);
        // The last phase.
        if phase == Phase::Barrier {
            out.push(self.fact(What::Init, began, to));
        }
    }

    fn ended(
        &mut self,
        ended: &assembly::Operation,
        messages: &[(MessageEnd, Raw)],
        time: &Time,
        out: &mut Vec<Fact>,
    ) {
        let assembly::Operation { kind, seq, other, bytes, outcome, .. } = *ended;
        let about = self.about(kind, seq, other);
        let (how, failed) = match outcome {
            Outcome::Completed { dtype, op, algorithm } => (Some((dtype, op, algorithm)), None),
            Outcome::Failed { error, blamed } => (None, Some((error, blamed))),
        };
        for (message, since) in messages {
            let what = What::Message { about, message: *message };
            out.push(self.fact(what, time.real_ns(*since), time.real_ns(message.at)));
        }
        let to = time.real_ns(ended.ended);
        let from = to.saturating_sub(time.scale.ns(ended.ticks()));
        let root = other.filter(|_| kind.has_root());
        let operation = Operation { about, kind, bytes, root, how, failed };
        let tag = self.tag(ended.called);
        out.push(Fact { tag, ..self.fact(What::Operation(operation), from, to) });
    }

    /// The tag of an operation that was called at that time.
    fn tag(&mut self, called: Raw) -> Option<Arc<str>> {
        let tag = self.assembly.tag(called)?;
        if self.tag.as_deref() != Some(tag) {
            self.tag = Some(tag.into());
        }
        self.tag.clone()
    }
}

#[cfg(test)]
mod tests;
