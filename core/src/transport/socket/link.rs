//! (stub)
use crate::memory::ViewMut;
use crate::transport::{LinkFault, Message};
use crate::types::{Rank, TransportKind};
/// The writing end.
#[derive(Debug)]
pub struct Sender;
/// The reading end.
#[derive(Debug)]
pub struct Receiver;
impl Sender {
    pub(crate) fn reserve(&mut self, _total: u32) -> Result<Option<ViewMut>, LinkFault> {
        unreachable!()
    }
    pub(crate) fn publish(&mut self, _check: u64) {
        unreachable!()
    }
    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        unreachable!()
    }
    pub(crate) fn posted(&self) -> u64 {
        unreachable!()
    }
    pub(crate) fn moved(&self) -> u64 {
        unreachable!()
    }
    pub(crate) fn done(&self) -> u64 {
        unreachable!()
    }
    pub(crate) fn slowest(&self) -> Rank {
        unreachable!()
    }
    pub(crate) fn transport(&self) -> TransportKind {
        unreachable!()
    }
}
impl Receiver {
    pub(crate) fn peek(&mut self) -> Result<Option<Message>, LinkFault> {
        unreachable!()
    }
    pub(crate) fn release(&mut self) {
        unreachable!()
    }
    pub(crate) fn pump(&mut self) -> Result<bool, LinkFault> {
        unreachable!()
    }
    pub(crate) fn posted(&self) -> u64 {
        unreachable!()
    }
    pub(crate) fn moved(&self) -> u64 {
        unreachable!()
    }
    pub(crate) fn done(&self) -> u64 {
        unreachable!()
    }
    pub(crate) fn transport(&self) -> TransportKind {
        unreachable!()
    }
}
