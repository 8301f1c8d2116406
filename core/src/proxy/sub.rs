//! A link of an operation, and the states of its steps.

use crate::event::{Event, Subscriber, publish_at};
use crate::memory::ViewMut;
use crate::transport::{LinkFault, Message, RecvLink, SendLink};
use crate::types::{ChannelId, Direction, ProxyState, Rank};

/// The sub-operation that a link works for: what the link does is done through it.
///
/// Each change of a step's state is published here.
#[derive(Debug)]
pub(crate) struct Sub {
    channel: ChannelId,
    peer: Rank,
    direction: Direction,
    /// The operation, by its place in the order of submission, and its sequence number.
    op: u64,
    seq: u64,
    /// The sequence number of the operation before it, and its last step.
    before: (u64, u64),
    /// The step whose wait for the peer was published.
    told: u64,
}

impl Sub {
    pub(crate) const fn new(channel: ChannelId, peer: Rank, direction: Direction) -> Self {
        Self { channel, peer, direction, op: 0, seq: 0, before: (0, 0), told: 0 }
    }

    /// The link works for this operation from its next step on, so many steps are before that. The
    /// steps of the operation before may still be on their way.
    #[inline]
    pub(crate) const fn serve(&mut self, op: u64, seq: u64, steps: u64) {
        if self.op != op {
            self.before = (self.seq, steps);
            (self.op, self.seq) = (op, seq);
        }
    }

    /// Whether it works for this operation, or has come to a later one.
    #[inline]
    pub(crate) const fn is_of(&self, op: u64) -> bool {
        self.op >= op
    }

    /// The slot of the next message, if one is free.
    pub(crate) fn reserve<S: Subscriber>(
        &mut self,
        link: &mut SendLink,
        total: u32,
        events: &mut S,
    ) -> Result<Option<ViewMut>, LinkFault> {
        let before = link.moved();
        let slot = link.reserve(total)?;
        self.transmitted(link, before, events);
        let step = link.posted() + 1;
        if slot.is_some() {
            self.enter(events, step, ProxyState::SendGPUWait);
        } else {
            self.waits(events, step, ProxyState::SendPeerWait);
        }
        Ok(slot)
    }

    /// Publishes the reserved slot as a message.
    pub(crate) fn publish<S: Subscriber>(&mut self, link: &mut SendLink, check: u64, events: &mut S) {
        let before = link.moved();
        // Before the message can arrive.
        self.enter(events, link.posted() + 1, ProxyState::SendWait);
        link.publish(check);
        self.transmitted(link, before, events);
    }

    /// Moves what can be moved; whether anything moved.
    pub(crate) fn pump_send<S: Subscriber>(
        &mut self,
        link: &mut SendLink,
        events: &mut S,
    ) -> Result<bool, LinkFault> {
        let before = link.moved();
        let any = link.pump()?;
        self.transmitted(link, before, events);
        Ok(any)
    }

    /// The oldest message, if it has arrived whole.
    pub(crate) fn peek<S: Subscriber>(
        &mut self,
        link: &mut RecvLink,
        events: &mut S,
    ) -> Result<Option<Message>, LinkFault> {
        let before = link.moved();
        let message = link.peek()?;
        self.received(link, before, events);
        if message.is_none() {
            self.waits(events, link.done() + 1, ProxyState::RecvWait);
        }
        Ok(message)
    }

    /// Frees the message last peeked.
    pub(crate) fn release<S: Subscriber>(&mut self, link: &mut RecvLink, events: &mut S) {
        link.release();
        self.enter(events, link.done(), ProxyState::Done);
    }

    /// Moves what can be moved; whether anything moved.
    pub(crate) fn pump_recv<S: Subscriber>(&mut self, link: &mut RecvLink, events: &mut S) -> bool {
        let before = link.moved();
        // A fault of a link that no step reads is not an error yet; a step that reads it fails.
        let any = link.pump().unwrap_or(false);
        self.received(link, before, events);
        any
    }

    fn transmitted<S: Subscriber>(&self, link: &SendLink, before: u64, events: &mut S) {
        for step in before..link.moved() {
            self.enter(events, step + 1, ProxyState::Done);
        }
    }

    fn received<S: Subscriber>(&self, link: &RecvLink, before: u64, events: &mut S) {
        for step in before..link.moved() {
            self.enter(events, step + 1, ProxyState::RecvGPUWait);
        }
    }

    /// A step waits for its peer: published once, however often it is looked at.
    fn waits<S: Subscriber>(&mut self, events: &mut S, step: u64, state: ProxyState) {
        if self.told != step && self.enter(events, step, state) {
            self.told = step;
        }
    }

    /// A step enters a state; whether that is published.
    #[inline]
    fn enter<S: Subscriber>(&self, events: &mut S, step: u64, state: ProxyState) -> bool {
        let Some(at) = S::WANTS.then(|| events.stamp(Event::STEPS)).flatten() else { return false };
        let Self { channel, peer, direction, before: (before, last), .. } = *self;
        let seq = if step > last { self.seq } else { before };
        publish_at(events, at, || Event::ProxyStepEntered { channel, peer, direction, seq, step, state });
        true
    }
}
