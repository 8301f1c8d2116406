//! Wraps any link with a fault: the code paths stay the same, but one message misbehaves.
//!
//! A fault names the message at which it begins (counted from 1). `Hold` hides one message for a
//! number of looks. `Cut` silently lets nothing through from that message on. `Close` ends the
//! link. `Corrupt` changes the check of one message, `Flip` a bit of its bytes.

use std::sync::Weak;

use crate::memory::{ViewMut, view_of, view_of_mut};
use crate::reactor::Interest;
use crate::recorder::LinkCell;
use crate::reduce::{self, Store};
use crate::sys::fds::Fd;
use crate::transport::{Change, LinkFault, Message, RecvLink, SendLink};
use crate::types::{Rank, TransportKind};

/// The kind of fault, and the message at which it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Message `at` is hidden during the first `looks` looks.
    Hold {
        /// The message, counted from 1.
        at: u64,
        /// Calls of `peek` at the receiver, or of `reserve` at the sender.
        looks: u32,
    },
    /// Nothing passes from message `at` on, and neither end learns of it, like a cut cable.
    Cut {
        /// The message, counted from 1.
        at: u64,
    },
    /// The link ends before message `at`.
    Close {
        /// The message, counted from 1.
        at: u64,
    },
    /// Message `at` carries a wrong check.
    Corrupt {
        /// The message, counted from 1.
        at: u64,
    },
    /// A bit of the first byte of message `at` is another one, if the message has any. At a sender.
    Flip {
        /// The message, counted from 1.
        at: u64,
    },
}

/// A writing end with a fault.
#[derive(Debug)]
pub struct Sender {
    inner: SendLink,
    fault: Fault,
    looks: u32,
    /// The message that is being filled.
    filling: ViewMut,
}

/// A reading end with a fault.
#[derive(Debug)]
pub struct Receiver {
    inner: RecvLink,
    fault: Fault,
    looks: u32,
}

impl Sender {
    /// Wraps a link.
    #[must_use]
    pub const fn new(inner: SendLink, fault: Fault) -> Self {
        Self { inner, fault, looks: 0, filling: ViewMut::EMPTY }
    }
    pub(crate) fn reserve(&mut self, total: u32) -> Result<Option<ViewMut>, LinkFault> {
        let message = self.inner.posted() + 1;
        match self.fault {
            Fault::Hold { at, looks } if message == at && self.looks < looks => {
                self.looks += 1;
                Ok(None)
            }
            Fault::Close { at } if message >= at => Err(LinkFault::Gone),
            Fault::Cut { at } if message >= at => Ok(None),
            Fault::Hold { .. }
            | Fault::Cut { .. }
            | Fault::Close { .. }
            | Fault::Corrupt { .. }
            | Fault::Flip { .. } => {
                let slot = self.inner.reserve(total)?;
                self.filling = slot.unwrap_or(self.filling);
                Ok(slot)
            }
        }
    }
    pub(crate) fn publish(&mut self, check: u64) {
        let at = self.inner.posted() + 1;
        if self.fault == (Fault::Flip { at }) && !self.filling.is_empty() {
            let (byte, mut other) = (self.filling.part(0, 1), [0_u8]);
            reduce::copy(view_of_mut(&mut other), byte.read(), Store::Plain);
            other[0] ^= 0x10;
            reduce::copy(byte, view_of(&other), Store::Plain);
        }
        let hit = self.fault == (Fault::Corrupt { at });
        self.inner.publish(if hit { !check } else { check });
    }
    pub(crate) fn notify(&mut self) {
        self.inner.notify();
    }
    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        self.inner.pump()
    }
    pub(crate) fn posted(&self) -> u64 {
        self.inner.posted()
    }
    pub(crate) fn moved(&self) -> u64 {
        self.inner.moved()
    }
    pub(crate) fn done(&self) -> u64 {
        self.inner.done()
    }
    pub(crate) fn slowest(&self) -> Rank {
        self.inner.slowest()
    }
    pub(crate) fn transport(&self) -> TransportKind {
        self.inner.transport()
    }
    pub(crate) fn is_pumped(&self) -> bool {
        self.inner.is_pumped()
    }
    pub(crate) fn watched(&mut self, cell: &LinkCell) {
        self.inner.watched(cell);
    }
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        self.inner.changes()
    }
    pub(crate) fn sockets(&self) -> Vec<Weak<Fd>> {
        self.inner.sockets()
    }
    pub(crate) fn interests(&self, out: &mut Vec<Interest>) {
        self.inner.interests(out);
    }
}

impl Receiver {
    /// Wraps a link.
    #[must_use]
    pub const fn new(inner: RecvLink, fault: Fault) -> Self {
        Self { inner, fault, looks: 0 }
    }
    pub(crate) fn peek(&mut self) -> Result<Option<Message>, LinkFault> {
        let message = self.inner.done() + 1;
        match self.fault {
            Fault::Hold { at, looks } if message == at && self.looks < looks => {
                self.looks += 1;
                Ok(None)
            }
            Fault::Close { at } if message >= at => Err(LinkFault::Gone),
            Fault::Cut { at } if message >= at => Ok(None),
            Fault::Corrupt { at } if message == at => {
                Ok(self.inner.peek()?.map(|m| Message { check: !m.check, ..m }))
            }
            Fault::Hold { .. }
            | Fault::Cut { .. }
            | Fault::Close { .. }
            | Fault::Corrupt { .. }
            | Fault::Flip { .. } => self.inner.peek(),
        }
    }
    pub(crate) fn release(&mut self) {
        self.inner.release();
    }
    pub(crate) fn notify(&mut self) {
        self.inner.notify();
    }
    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        self.inner.pump()
    }
    pub(crate) fn posted(&self) -> u64 {
        self.inner.posted()
    }
    pub(crate) fn moved(&self) -> u64 {
        self.inner.moved()
    }
    pub(crate) fn done(&self) -> u64 {
        self.inner.done()
    }
    pub(crate) fn transport(&self) -> TransportKind {
        self.inner.transport()
    }
    pub(crate) fn is_pumped(&self) -> bool {
        self.inner.is_pumped()
    }
    pub(crate) fn watched(&mut self, cell: &LinkCell) {
        self.inner.watched(cell);
    }
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        self.inner.changes()
    }
    pub(crate) fn sockets(&self) -> Vec<Weak<Fd>> {
        self.inner.sockets()
    }
    pub(crate) fn interests(&self, out: &mut Vec<Interest>) {
        self.inner.interests(out);
    }
}
