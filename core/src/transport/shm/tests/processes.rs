//! Tests with two processes.

use super::*;
use crate::comm::wait::{Pace, SLEEP, Waiter};
use crate::sys::process;
use crate::transport::shm::arena::Arena;
use crate::types::{ChannelId, TransportKind};

#[test]
fn two_processes_exchange_messages() {
    const ROUNDS: u64 = 2_000;
    let layout = Layout::new(2, 1).unwrap();
    let arena = Arena::new().unwrap();
    let memories = [0, 1].map(|r| RankMemory::shared(id(r), layout, &arena).unwrap());
    // The parent maps both memories as a peer would. So it does not matter that the fork closes the
    // child's copies of the descriptors.
    let peers = [0, 1].map(|r| RankMemory::again(&memories[r]).unwrap());
    let run = |me: usize| {
        let (own, peer) = (&memories[me], &peers[1 - me]);
        let mut to = Sender::pair(own, ChannelId(0), peer);
        let mut from = Receiver::pair(own, ChannelId(0), peer);
        assert_eq!(to.transport(), TransportKind::Shm);
        assert_eq!(from.transport(), TransportKind::Shm);
        let mut waiter = Waiter::new(Arc::clone(own), Pace::Spin);
        let (mut sent, mut taken) = (0, 0);
        while sent < ROUNDS || taken < ROUNDS {
            // The child sometimes pauses, so that the parent sleeps.
            if me == 1 && taken % 500 == 499 && sent == taken {
                crate::clock::sleep(std::time::Duration::from_millis(5));
            }
            let mut moved = sent < ROUNDS && try_send(&mut to, sent + 1, (sent % 20_000) as usize);
            sent += u64::from(moved);
            if let Some((n, bytes)) = try_take(&mut from) {
                taken += 1;
                assert_eq!((n, bytes), (taken, bytes_of(taken, ((taken - 1) % 20_000) as usize)));
                moved = true;
            }
            if moved {
                waiter.reset();
            } else {
                waiter.idle(&[], SLEEP, &mut || from.peek().unwrap().is_some());
            }
        }
        0
    };
    let pid = process::fork(|| run(1));
    run(0);
    assert_eq!(process::wait(pid), Some(0));
}
