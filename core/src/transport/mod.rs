//! Transports: how the messages of a lane travel.
//!
//! A lane (see [`plan`](crate::plan)) has a [`SendLink`] at its writer and a [`RecvLink`] at each reader. What an
//! engine requires of them, whatever carries the bytes:
//!
//! - `reserve` gives the slot of the next message, the same one until `publish`; `None` while no slot is free. It never waits.
//! - After `publish` the message is on its way; the caller's buffers are no longer needed once `moved` has reached it.
//! - `peek` gives the oldest unfreed message, complete, the same one until `release`. It never waits.
//! - `ring` wakes whoever sleeps on the other side for what was published or released; called once for many messages.
//! - `pump` moves what can be moved without waiting. Memory links have nothing to pump.
//! - Counters are monotone and have one writer: `posted >= moved >= done`. Sending: published; handed to the peer's memory or
//!   the kernel; taken by (the slowest of) the readers, or `moved` where the carrier does not say. Receiving: slots offered; messages that
//!   arrived whole; messages freed.
//! - A message carries the 64-bit `check` of its operation. Links never look at it.
//! - Messages are at most as long as a slot. What arrives and breaks a bound is a [`LinkFault`], never a panic.
//! - A fault is final: every later call returns it.

#[cfg(test)]
#[cfg(not(miri))]
mod conformance;
pub mod faulty;
pub mod shm;
pub mod sim;
pub mod socket;

use std::fmt;
use std::sync::Weak;

use crate::memory::{View, ViewMut};
use crate::sys::fds::Fd;
use crate::types::{Rank, TransportKind};

/// A complete message at the head of a receiving link.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// What its writer gave to `publish`.
    pub check: u64,
    /// The bytes.
    pub data: View,
}

/// Why a link carries no more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkFault {
    /// The peer closed its side or died.
    Gone,
    /// What arrived breaks the protocol.
    Corrupt(String),
    /// The operating system's refusal.
    System(String),
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the peer is gone"),
            Self::Corrupt(what) => write!(f, "what arrived breaks the protocol: {what}"),
            Self::System(what) => f.write_str(what),
        }
    }
}

/// The writing end of a lane. An enum, not a trait object: a call per step is too many to dispatch.
#[derive(Debug)]
pub enum SendLink {
    /// Through memory: of this process, or shared with another.
    Memory(shm::link::Sender),
    /// Through TCP streams.
    Socket(Box<socket::link::Sender>),
    /// Through the simulator.
    Sim(sim::Sender),
    /// Through another link, with faults.
    Faulty(Box<faulty::Sender>),
}

/// The reading end of a lane.
#[derive(Debug)]
pub enum RecvLink {
    /// Through memory: of this process, or shared with another.
    Memory(shm::link::Receiver),
    /// Through TCP streams.
    Socket(Box<socket::link::Receiver>),
    /// Through the simulator.
    Sim(sim::Receiver),
    /// Through another link, with faults.
    Faulty(Box<faulty::Receiver>),
}

macro_rules! each {
    ($self:ident, $link:ident => $call:expr) => {
        match $self {
            Self::Memory($link) => $call,
            Self::Socket($link) => $call,
            Self::Sim($link) => $call,
            Self::Faulty($link) => $call,
        }
    };
}

impl SendLink {
    /// The slot of the next message, `total` bytes of it, if one is free.
    #[inline]
    pub fn reserve(&mut self, total: u32) -> Result<Option<ViewMut>, LinkFault> {
        each!(self, link => link.reserve(total))
    }
    /// Sends the reserved slot off.
    #[inline]
    pub fn publish(&mut self, check: u64) {
        each!(self, link => link.publish(check));
    }
    /// Wakes readers that sleep, after a `fence(SeqCst)` behind the last `publish`. Only memory needs it.
    #[inline]
    pub fn ring(&mut self) {
        match self {
            Self::Memory(link) => link.ring(),
            Self::Faulty(link) => link.ring(),
            Self::Socket(_) | Self::Sim(_) => {}
        }
    }
    /// Moves what can be moved; whether anything was.
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
    /// Messages known to be taken by all readers (as of the last look: `reserve` looks when it must).
    #[inline]
    pub fn done(&self) -> u64 {
        each!(self, link => link.done())
    }
    /// The reader that has taken least: who is awaited where no slot is free.
    pub fn slowest(&self) -> Rank {
        each!(self, link => link.slowest())
    }
    /// What carries the bytes.
    pub fn transport(&self) -> TransportKind {
        each!(self, link => link.transport())
    }
    /// Its TCP streams, in order, for whoever asks the kernel about them; none of other carriers.
    pub fn sockets(&self) -> Vec<Weak<Fd>> {
        match self {
            Self::Socket(link) => link.sockets(),
            Self::Faulty(link) => link.sockets(),
            Self::Memory(_) | Self::Sim(_) => Vec::new(),
        }
    }
}

impl RecvLink {
    /// The oldest unfreed message, if it is there whole.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Message>, LinkFault> {
        each!(self, link => link.peek())
    }
    /// Frees the message last peeked.
    #[inline]
    pub fn release(&mut self) {
        each!(self, link => link.release());
    }
    /// Wakes a writer that sleeps, after a `fence(SeqCst)` behind the last `release`. Only memory needs it.
    #[inline]
    pub fn ring(&mut self) {
        match self {
            Self::Memory(link) => link.ring(),
            Self::Faulty(link) => link.ring(),
            Self::Socket(_) | Self::Sim(_) => {}
        }
    }
    /// Moves what can be moved; whether anything was.
    #[inline]
    pub fn pump(&mut self) -> Result<bool, LinkFault> {
        each!(self, link => link.pump())
    }
    /// Slots offered: messages the writer may have published without waiting.
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
    /// What carries the bytes.
    pub fn transport(&self) -> TransportKind {
        each!(self, link => link.transport())
    }
    /// Its TCP streams, in order, for whoever asks the kernel about them; none of other carriers.
    pub fn sockets(&self) -> Vec<Weak<Fd>> {
        match self {
            Self::Socket(link) => link.sockets(),
            Self::Faulty(link) => link.sockets(),
            Self::Memory(_) | Self::Sim(_) => Vec::new(),
        }
    }
}
