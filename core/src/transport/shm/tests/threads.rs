//! Tests with writers and readers on their own threads, both awake and asleep.

use super::*;
use crate::types::{ChannelId, TransportKind};

/// Message lengths around the limits: inside the header, in the slot, several pages.
fn len_of(n: u64) -> usize {
    [0, 8, 40, 41, 64, 100, 4096, 9001][(n % if cfg!(miri) { 6 } else { 8 }) as usize]
}

/// Tries repeatedly, as a driver does: it spins, then yields, then sleeps.
#[cfg(not(miri))]
fn drive(memory: &Arc<RankMemory>, mut ready: impl FnMut() -> bool) {
    let mut waiter = crate::comm::wait::Waiter::new(Arc::clone(memory), crate::comm::wait::Pace::Yield);
    let mut done = ready();
    while !done {
        // The look before a sleep may do the work.
        waiter.idle(&[], crate::comm::wait::SLEEP, &mut || {
            done = ready();
            done
        });
        done = done || ready();
    }
}

/// The same for miri, which cannot read the processor's time counter.
#[cfg(miri)]
fn drive(_: &Arc<RankMemory>, mut ready: impl FnMut() -> bool) {
    while !ready() {
        std::thread::yield_now();
    }
}

fn stream(messages: u64, pause: impl Fn(u64, usize) + Sync, readers: u32) {
    let ranks = ranks(1 + readers);
    let mut sender = Sender::shared(&ranks[0], &ranks[1..]);
    assert_eq!(sender.transport(), TransportKind::InProcess);
    std::thread::scope(|scope| {
        for (reader, own) in ranks[1..].iter().enumerate() {
            let (from, pause) = (&ranks[0], &pause);
            scope.spawn(move || {
                let mut link = Receiver::shared(own, from);
                for n in 1..=messages {
                    pause(n, reader);
                    let mut taken = None;
                    drive(own, || {
                        taken = try_take(&mut link);
                        taken.is_some()
                    });
                    assert_eq!(taken, Some((n, bytes_of(n, len_of(n)))));
                }
            });
        }
        for n in 1..=messages {
            pause(n, usize::MAX);
            drive(&ranks[0], || try_send(&mut sender, n, len_of(n)));
        }
    });
}

#[test]
fn a_wide_lane_reaches_all_readers_in_order() {
    let messages = if cfg!(miri) { 20 } else { 20_000 };
    stream(messages, |_, _| {}, if cfg!(miri) { 2 } else { 3 });
}

#[test]
#[cfg(not(miri))]
fn sleepers_are_woken_by_messages_and_by_credit() {
    // The pauses are longer than a driver spins and yields, so writer and readers sleep in turn,
    // for messages and for free slots.
    let begin = crate::clock::now();
    stream(
        40,
        |n, who| {
            let late = if n <= 20 { usize::MAX } else { 0 };
            if who == late {
                crate::clock::sleep(std::time::Duration::from_millis(3));
            }
        },
        2,
    );
    // Without wake-ups, each of the 40 sleeps would take 200 ms.
    let took = crate::clock::now().since(begin);
    assert!(took < std::time::Duration::from_secs(3), "{took:?}");
}

#[test]
fn two_threads_play_ping_pong() {
    let ranks = ranks(2);
    let rounds = if cfg!(miri) { 10 } else { 50_000 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut to = Sender::pair(&ranks[1], ChannelId(0), &ranks[0]);
            let mut from = Receiver::pair(&ranks[1], ChannelId(0), &ranks[0]);
            for _ in 0..rounds {
                let mut got = None;
                drive(&ranks[1], || {
                    got = try_take(&mut from);
                    got.is_some()
                });
                let n = got.unwrap().0;
                drive(&ranks[1], || try_send(&mut to, n + 1, 8));
            }
        });
        let mut to = Sender::pair(&ranks[0], ChannelId(0), &ranks[1]);
        let mut from = Receiver::pair(&ranks[0], ChannelId(0), &ranks[1]);
        for n in 0..rounds {
            drive(&ranks[0], || try_send(&mut to, n, 8));
            let mut got = None;
            drive(&ranks[0], || {
                got = try_take(&mut from);
                got.is_some()
            });
            assert_eq!(got, Some((n + 1, bytes_of(n + 1, 8))));
        }
    });
}
