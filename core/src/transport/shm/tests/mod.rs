//! Tests of links over memory: a model, threads, processes, and hostile peers.

#[cfg(not(miri))]
mod connect;
mod hostile;
mod model;
#[cfg(not(miri))]
mod processes;
mod threads;

use std::sync::Arc;

use super::link::{self, Receiver, Sender};
use super::memory::{Identity, Layout, RankMemory};
use crate::types::{CommId, Rank};

/// The memories of `n` ranks of one process, with one channel.
fn ranks(n: u32) -> Vec<Arc<RankMemory>> {
    let layout = Layout::new(n, 1).unwrap();
    (0..n).map(|r| RankMemory::private(id(r), layout).unwrap()).collect()
}

fn id(rank: u32) -> Identity {
    Identity { comm: CommId(1), rank: Rank(rank) }
}

/// The bytes of message `n`, which both sides can compute.
fn bytes_of(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (n.wrapping_mul(31) ^ i ^ (i >> 8)) as u8).collect()
}

/// Sends message `n` if a slot is free.
fn try_send(sender: &mut Sender, n: u64, len: usize) -> bool {
    let Some(slot) = sender.reserve(len as u32).unwrap() else { return false };
    link::store(slot, &bytes_of(n, len));
    sender.publish(n);
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    sender.notify();
    true
}

/// Takes a message if one has arrived, and returns its check and its bytes.
fn try_take(receiver: &mut Receiver) -> Option<(u64, Vec<u8>)> {
    let message = receiver.peek().unwrap()?;
    let taken = (message.check, link::load(&message));
    receiver.release();
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    receiver.notify();
    Some(taken)
}
