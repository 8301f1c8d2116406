//! A protocol violation of a peer becomes a fault, and the fault is final.

use std::sync::atomic::Ordering;

use super::*;
use crate::plan::{LaneId, PAIR_SLOT_BYTES, PAIR_SLOTS, Readers};
use crate::transport::LinkFault;
use crate::types::ChannelId;

const LANE: LaneId = LaneId { readers: Readers::One(Rank(1)), channel: ChannelId(0) };

/// Lets a receiver take `before` messages of rank 0. The writer then stores `lie` as {seq, len} of
/// the next message.
fn check(before: u64, lie: (u64, u32), expect: &str) {
    let ranks = ranks(2);
    let mut sender = Sender::pair(&ranks[0], ChannelId(0), &ranks[1]);
    let mut receiver = Receiver::pair(&ranks[1], ChannelId(0), &ranks[0]);
    for n in 1..=before {
        assert!(try_send(&mut sender, n, 8));
        assert!(try_take(&mut receiver).is_some());
    }
    let at = ranks[0].layout().lane(LANE).headers + 64 * (before % u64::from(PAIR_SLOTS)) as usize;
    ranks[0].mapping().u32_at(at + 16).store(lie.1, Ordering::Relaxed);
    ranks[0].mapping().u64_at(at).store(lie.0, Ordering::Release);
    let fault = LinkFault::Corrupt(expect.to_string());
    assert_eq!(receiver.peek().unwrap_err(), fault);
    // A correct header that comes later does not undo the fault.
    ranks[0].mapping().u32_at(at + 16).store(8, Ordering::Relaxed);
    ranks[0].mapping().u64_at(at).store(before + 1, Ordering::Release);
    assert_eq!(receiver.peek().unwrap_err(), fault);
    assert_eq!(receiver.pump().unwrap_err(), fault);
}

#[test]
fn a_header_that_lies_is_a_fault() {
    check(0, (1, PAIR_SLOT_BYTES + 1), "32769 bytes in a slot of 32768");
    check(5, (6, u32::MAX), "4294967295 bytes in a slot of 32768");
    check(0, (5, 8), "message 5 where 1 was expected");
    check(5, (0, 8), "message 0 where 6 was expected");
    check(5, (u64::MAX, 8), "message 18446744073709551615 where 6 was expected");
}

#[test]
fn a_length_that_changes_after_it_was_checked_changes_nothing() {
    let ranks = ranks(2);
    let mut sender = Sender::pair(&ranks[0], ChannelId(0), &ranks[1]);
    let mut receiver = Receiver::pair(&ranks[1], ChannelId(0), &ranks[0]);
    assert!(try_send(&mut sender, 1, 100));
    assert_eq!(receiver.peek().unwrap().unwrap().data.len(), 100);
    let at = ranks[0].layout().lane(LANE).headers;
    ranks[0].mapping().u32_at(at + 16).store(u32::MAX, Ordering::Relaxed);
    assert_eq!(receiver.peek().unwrap().unwrap().data.len(), 100);
}

#[test]
fn an_ack_that_lies_is_a_fault() {
    for (lie, expect) in [
        (5, "rank 1 acknowledged 5 messages after 0, of 4"),
        (u64::MAX, "rank 1 acknowledged 18446744073709551615 messages after 0, of 4"),
    ] {
        let ranks = ranks(2);
        let mut sender = Sender::pair(&ranks[0], ChannelId(0), &ranks[1]);
        for n in 1..=u64::from(PAIR_SLOTS) {
            assert!(try_send(&mut sender, n, 8));
        }
        let at = ranks[1].layout().ack(Rank(0), LANE);
        ranks[1].mapping().u64_at(at).store(lie, Ordering::Release);
        let fault = LinkFault::Corrupt(expect.to_string());
        assert_eq!(sender.reserve(8).unwrap_err(), fault);
        ranks[1].mapping().u64_at(at).store(4, Ordering::Release);
        assert_eq!(sender.reserve(8).unwrap_err(), fault);
        assert_eq!(sender.pump().unwrap_err(), fault);
    }
}
