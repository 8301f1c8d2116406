//! Transports: how the messages of a lane travel.
//!
//! A lane (see [`plan`](crate::plan)) has a [`SendLink`] at its writer and a [`RecvLink`] at each
//! reader. An engine requires the following of every link, on every transport:
//!
//! - `reserve` gives the slot of the next message, the same slot until `publish`; `None` while no
//!   slot is free. It never waits.
//! - After `publish` the message is on its way. The caller's buffers are no longer needed once
//!   `moved` has reached the message.
//! - `peek` gives the oldest unfreed message once it is complete, the same one until `release`.
//!   It never waits.
//! - `notify` wakes the other side if it sleeps, so that it sees what was published or released.
//!   One call serves many messages.
//! - `pump` moves what can be moved without waiting. Memory links have nothing to pump.
//! - Counters are monotone and have one writer: `posted >= moved >= done`. A sender counts messages
//!   published (`posted`), handed to the peer's memory or the kernel (`moved`), and taken by the
//!   slowest reader (`done`; the same as `moved` where the transport does not report it). A
//!   receiver counts slots offered, messages that arrived whole, and messages freed.
//! - A message carries the 64-bit `check` of its operation. Links never look at it.
//! - Messages are at most as long as a slot. An arriving message that breaks a bound is a
//!   [`LinkFault`], never a panic.
//! - A fault is final: every later call returns it.

pub(crate) mod carrier;
#[cfg(test)]
#[cfg(not(miri))]
mod conformance;
pub mod faulty;
pub mod ib;
#[cfg(test)]
pub(crate) mod late;
pub(crate) mod line;
pub(crate) mod meet;
pub mod shm;
pub mod sim;
pub mod socket;

use std::fmt;
use std::sync::{Arc, Weak};

use crate::memory::{Lendable, View, ViewMut};
use crate::reactor::Interest;
use crate::recorder::LinkCell;
use crate::snapshot::QueuePairState;
use crate::sys::fds::Fd;
use crate::types::{Rank, TransportKind};

/// A complete message at the head of a receiving link.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The check that its writer gave to `publish`.
    pub check: u64,
    /// The bytes.
    pub data: View,
}

/// Why a link can carry no more messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkFault {
    /// The peer closed its side or died.
    Gone,
    /// The bytes that arrived break the protocol.
    Corrupt(String),
    /// The bytes that arrived are not those that were sent.
    Changed(String),
    /// The operating system refused an operation.
    System(String),
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the peer is gone"),
            Self::Corrupt(what) => write!(f, "what arrived breaks the protocol: {what}"),
            Self::Changed(what) => {
                write!(
                    f,
                    "bytes changed on the way: {what}; look at the memory of both hosts and what is between them"
                )
            }
            Self::System(what) => f.write_str(what),
        }
    }
}

/// What has become of a queue pair of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It has this state, which it had not at the last look.
    State {
        /// Its number.
        number: u32,
        /// The state.
        state: QueuePairState,
    },
    /// A work request of it failed.
    Failed {
        /// Its number.
        number: u32,
        /// The status: `enum ibv_wc_status` of verbs.h.
        status: u32,
        /// The device's own code.
        vendor: u32,
    },
}

/// The writing end of a lane.
///
/// An enum and not a trait object, because dynamic dispatch of a call per step costs too much.
#[derive(Debug)]
pub enum SendLink {
    /// Through memory: of this process, or shared with another.
    Memory(shm::link::Sender),
    /// Through TCP streams.
    Socket(Box<socket::link::Sender>),
    /// Through queue pairs.
    Verbs(Box<ib::link::Sender>),
    /// Through the simulator.
    Sim(sim::Sender),
    /// Through another link, with faults.
    Faulty(Box<faulty::Sender>),
    /// Through transfers that complete late and out of order.
    #[cfg(test)]
    Late(late::Sender),
}

/// The reading end of a lane.
#[derive(Debug)]
pub enum RecvLink {
    /// Through memory: of this process, or shared with another.
    Memory(shm::link::Receiver),
    /// Through TCP streams.
    Socket(Box<socket::link::Receiver>),
    /// Through queue pairs.
    Verbs(Box<ib::link::Receiver>),
    /// Through the simulator.
    Sim(sim::Receiver),
    /// Through another link, with faults.
    Faulty(Box<faulty::Receiver>),
    /// Through transfers that complete late and out of order.
    #[cfg(test)]
    Late(late::Receiver),
}

macro_rules! each {
    ($self:ident, $link:ident => $call:expr) => {
        match $self {
            Self::Memory($link) => $call,
            Self::Socket($link) => $call,
            Self::Verbs($link) => $call,
            Self::Sim($link) => $call,
            Self::Faulty($link) => $call,
            #[cfg(test)]
            Self::Late($link) => $call,
        }
    };
}

impl SendLink {
    /// The slot of the next message, `total` bytes long, if a slot is free.
    #[inline]
    pub fn reserve(&mut self, total: u32) -> Result<Option<ViewMut>, LinkFault> {
        each!(self, link => link.reserve(total))
    }
    /// Publishes the reserved slot as a message.
    #[inline]
    pub fn publish(&mut self, check: u64) {
        each!(self, link => link.publish(check));
    }
    /// Wakes readers that sleep. The caller must have issued a `fence(SeqCst)` after the last
    /// `publish`. Only memory links need it.
    #[inline]
    pub fn notify(&mut self) {
        match self {
            Self::Memory(link) => link.notify(),
            Self::Faulty(link) => link.notify(),
            Self::Socket(_) | Self::Verbs(_) | Self::Sim(_) => {}
            #[cfg(test)]
            Self::Late(_) => {}
        }
    }
    /// Moves what can be moved, and returns whether anything moved.
    #[inline]
    pub fn pump(&mut self) -> Result<bool, LinkFault> {
        each!(self, link => link.pump())
    }
    /// Messages published.
    #[inline]
    pub fn posted(&self) -> u64 {
        each!(self, link => link.posted())
    }
    /// Messages handed to the peer's memory or the kernel.
    #[inline]
    pub fn moved(&self) -> u64 {
        each!(self, link => link.moved())
    }
    /// Messages known to be taken by all readers, as of the last look (taken by `reserve`).
    #[inline]
    pub fn done(&self) -> u64 {
        each!(self, link => link.done())
    }
    /// The reader that has taken the fewest messages. It blocks others where no slot is free.
    pub fn slowest(&self) -> Rank {
        each!(self, link => link.slowest())
    }
    /// The transport that carries the bytes.
    pub fn transport(&self) -> TransportKind {
        each!(self, link => link.transport())
    }
    /// Whether bytes move only when it is pumped.
    pub fn is_pumped(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Verbs(_) => true,
            Self::Sim(link) => link.is_pumped(),
            Self::Faulty(link) => link.is_pumped(),
            Self::Memory(_) => false,
            #[cfg(test)]
            Self::Late(_) => false,
        }
    }
    /// The messages from this one on lie in these bytes, one after another, so many bytes each. A
    /// link whose device reads memory by itself then gives their place for the slot: there is
    /// nothing to copy. The bytes are left alone until the messages have `moved`.
    pub(crate) fn lend(&mut self, first: u64, bytes: (ViewMut, usize), memory: &Arc<Lendable>) {
        if let Self::Verbs(link) = self {
            link.lend(first, bytes, memory);
        }
    }
    /// Adds what shows that it can go on.
    pub fn interests(&self, out: &mut Vec<Interest>) {
        match self {
            Self::Socket(link) => out.extend(link.fds()),
            Self::Verbs(link) => out.extend(link.fds()),
            Self::Faulty(link) => link.interests(out),
            Self::Memory(_) | Self::Sim(_) => {}
            #[cfg(test)]
            Self::Late(_) => {}
        }
    }
    /// Lets its queue pairs, if it has some, be seen in the recorder beside this cell.
    pub fn watched(&mut self, cell: &LinkCell) {
        match self {
            Self::Verbs(link) => link.watched(cell),
            Self::Faulty(link) => link.watched(cell),
            Self::Memory(_) | Self::Socket(_) | Self::Sim(_) => {}
            #[cfg(test)]
            Self::Late(_) => {}
        }
    }
    /// What has become of its queue pairs since the last call.
    pub fn changes(&mut self) -> Vec<Change> {
        match self {
            Self::Verbs(link) => link.changes(),
            Self::Faulty(link) => link.changes(),
            Self::Memory(_) | Self::Socket(_) | Self::Sim(_) => Vec::new(),
            #[cfg(test)]
            Self::Late(_) => Vec::new(),
        }
    }
    /// Its TCP streams, in order, for questions to the kernel; empty for other transports.
    pub fn sockets(&self) -> Vec<Weak<Fd>> {
        match self {
            Self::Socket(link) => link.sockets(),
            Self::Faulty(link) => link.sockets(),
            Self::Memory(_) | Self::Verbs(_) | Self::Sim(_) => Vec::new(),
            #[cfg(test)]
            Self::Late(_) => Vec::new(),
        }
    }
}

impl RecvLink {
    /// The oldest unfreed message, if it has arrived whole.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Message>, LinkFault> {
        each!(self, link => link.peek())
    }
    /// Frees the message last peeked.
    #[inline]
    pub fn release(&mut self) {
        each!(self, link => link.release());
    }
    /// Wakes a writer that sleeps. The caller must have issued a `fence(SeqCst)` after the last
    /// `release`. Only memory links need it.
    #[inline]
    pub fn notify(&mut self) {
        match self {
            Self::Memory(link) => link.notify(),
            Self::Faulty(link) => link.notify(),
            Self::Socket(_) | Self::Verbs(_) | Self::Sim(_) => {}
            #[cfg(test)]
            Self::Late(_) => {}
        }
    }
    /// Moves what can be moved, and returns whether anything moved.
    #[inline]
    pub fn pump(&mut self) -> Result<bool, LinkFault> {
        each!(self, link => link.pump())
    }
    /// Slots offered: the number of messages that the writer may have published without waiting.
    #[inline]
    pub fn posted(&self) -> u64 {
        each!(self, link => link.posted())
    }
    /// Messages that arrived whole (as of the last `peek`).
    #[inline]
    pub fn moved(&self) -> u64 {
        each!(self, link => link.moved())
    }
    /// Messages freed.
    #[inline]
    pub fn done(&self) -> u64 {
        each!(self, link => link.done())
    }
    /// The transport that carries the bytes.
    pub fn transport(&self) -> TransportKind {
        each!(self, link => link.transport())
    }
    /// Whether bytes move only when it is pumped.
    pub fn is_pumped(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Verbs(_) => true,
            Self::Sim(link) => link.is_pumped(),
            Self::Faulty(link) => link.is_pumped(),
            Self::Memory(_) => false,
            #[cfg(test)]
            Self::Late(_) => false,
        }
    }
    /// The messages from this one on are wanted in these bytes, one after another, so many bytes
    /// each. A link whose device writes memory by itself may put them there, and then gives that
    /// place for what it peeks: there is nothing to copy.
    pub(crate) fn lend(&mut self, first: u64, bytes: (ViewMut, usize), memory: &Arc<Lendable>) {
        if let Self::Verbs(link) = self {
            link.lend(first, bytes, memory);
        }
    }
    /// Adds what shows that it can go on.
    pub fn interests(&self, out: &mut Vec<Interest>) {
        match self {
            Self::Socket(link) => out.extend(link.fds()),
            Self::Verbs(link) => out.extend(link.fds()),
            Self::Faulty(link) => link.interests(out),
            Self::Memory(_) | Self::Sim(_) => {}
            #[cfg(test)]
            Self::Late(_) => {}
        }
    }
    /// Lets its queue pairs, if it has some, be seen in the recorder beside this cell.
    pub fn watched(&mut self, cell: &LinkCell) {
        match self {
            Self::Verbs(link) => link.watched(cell),
            Self::Faulty(link) => link.watched(cell),
            Self::Memory(_) | Self::Socket(_) | Self::Sim(_) => {}
            #[cfg(test)]
            Self::Late(_) => {}
        }
    }
    /// What has become of its queue pairs since the last call.
    pub fn changes(&mut self) -> Vec<Change> {
        match self {
            Self::Verbs(link) => link.changes(),
            Self::Faulty(link) => link.changes(),
            Self::Memory(_) | Self::Socket(_) | Self::Sim(_) => Vec::new(),
            #[cfg(test)]
            Self::Late(_) => Vec::new(),
        }
    }
    /// Its TCP streams, in order, for questions to the kernel; empty for other transports.
    pub fn sockets(&self) -> Vec<Weak<Fd>> {
        match self {
            Self::Socket(link) => link.sockets(),
            Self::Faulty(link) => link.sockets(),
            Self::Memory(_) | Self::Verbs(_) | Self::Sim(_) => Vec::new(),
            #[cfg(test)]
            Self::Late(_) => Vec::new(),
        }
    }
}
