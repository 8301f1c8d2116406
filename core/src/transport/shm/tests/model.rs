//! Model tests: a lane behaves as one queue per reader, bounded by the slowest reader.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::plan::{PAIR_SLOT_BYTES, PAIR_SLOTS, SHARED_SLOTS};
use crate::types::ChannelId;

#[derive(Clone, Debug)]
enum Act {
    Send(usize),
    /// Peeks twice at the next message of one reader, and then may free it.
    Take {
        reader: usize,
        free: bool,
    },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let long = if cfg!(miri) { 100 } else { PAIR_SLOT_BYTES as usize };
    let len = prop_oneof![0..48usize, Just(64), Just(long)];
    let act = prop_oneof![
        len.prop_map(Act::Send),
        (0..3usize, any::<bool>()).prop_map(|(reader, free)| Act::Take { reader, free }),
    ];
    prop::collection::vec(act, 1..if cfg!(miri) { 20 } else { 120 })
}

fn check(sender: &mut Sender, receivers: &mut [Receiver], slots: u64, acts: &[Act]) {
    let mut queues: Vec<VecDeque<(u64, usize)>> = vec![VecDeque::new(); receivers.len()];
    let mut taken = vec![0u64; receivers.len()];
    let mut sent = 0;
    for act in acts {
        match *act {
            Act::Send(len) => {
                let free = sent - taken.iter().min().unwrap() < slots;
                assert_eq!(try_send(sender, sent + 1, len), free);
                if free {
                    sent += 1;
                    queues.iter_mut().for_each(|q| q.push_back((sent, len)));
                } else {
                    let slowest = sender.slowest().index() - 1;
                    assert_eq!(taken[slowest], *taken.iter().min().unwrap());
                    assert_eq!(sender.done(), taken[slowest]);
                }
            }
            Act::Take { reader, free } => {
                let reader = reader % receivers.len();
                let link = &mut receivers[reader];
                let expect = queues[reader].front().copied();
                for _ in 0..2 {
                    let found = link.peek().unwrap().map(|m| (m.check, link::load(&m)));
                    assert_eq!(found, expect.map(|(n, len)| (n, bytes_of(n, len))));
                }
                assert_eq!(link.moved(), taken[reader] + u64::from(expect.is_some()));
                if free && expect.is_some() {
                    link.release();
                    queues[reader].pop_front();
                    taken[reader] += 1;
                }
                assert_eq!((link.done(), link.posted()), (taken[reader], taken[reader] + slots));
            }
        }
        assert_eq!((sender.posted(), sender.moved()), (sent, sent));
        assert!(sender.done() <= *taken.iter().min().unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_pair_lane_is_a_bounded_queue(acts in acts()) {
        let ranks = ranks(2);
        let mut sender = Sender::pair(&ranks[0], ChannelId::P2P, &ranks[1]);
        let receiver = Receiver::pair(&ranks[1], ChannelId::P2P, &ranks[0]);
        check(&mut sender, &mut [receiver], u64::from(PAIR_SLOTS), &acts);
    }

    #[test]
    fn a_wide_lane_is_a_queue_per_reader(acts in acts()) {
        let ranks = ranks(4);
        let mut sender = Sender::shared(&ranks[0], &ranks[1..]);
        let mut receivers: Vec<_> = ranks[1..].iter().map(|r| Receiver::shared(r, &ranks[0])).collect();
        check(&mut sender, &mut receivers, u64::from(SHARED_SLOTS), &acts);
    }
}

#[test]
fn lanes_of_one_memory_do_not_meet() {
    let ranks = ranks(3);
    let mut lanes: Vec<(Sender, Receiver)> = Vec::new();
    for from in 0..3 {
        for to in (0..3).filter(|&to| to != from) {
            for channel in [ChannelId(0), ChannelId::P2P] {
                lanes.push((
                    Sender::pair(&ranks[from], channel, &ranks[to]),
                    Receiver::pair(&ranks[to], channel, &ranks[from]),
                ));
            }
        }
    }
    for round in 0..10 {
        for (at, (sender, _)) in lanes.iter_mut().enumerate() {
            assert!(try_send(sender, round * 100 + at as u64, 100 + at));
        }
        for (at, (_, receiver)) in lanes.iter_mut().enumerate() {
            let n = round * 100 + at as u64;
            assert_eq!(try_take(receiver), Some((n, bytes_of(n, 100 + at))));
            assert_eq!(try_take(receiver), None);
        }
    }
}
