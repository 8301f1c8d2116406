//! The slots of operations that are moved over the network, and who waits for one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::sys;

/// The slots of a process: as many as NCCL's pool has for a rank. A communicator of `n` ranks has
/// at most `2n - 1` operations under way, a collective and a send and a receive per peer.
const SLOTS: u32 = 2048;

/// How long a driver sleeps at most while slots are short: nobody wakes who waits for one.
pub const LOOK: Duration = Duration::from_millis(1);

static OF_PROCESS: OnceLock<Arc<Pool>> = OnceLock::new();

/// A bounded number of slots. Who waits gets one in turn.
#[derive(Debug)]
pub struct Pool {
    /// Free slots, and in the upper half how many operations wait. While some do, a slot is taken
    /// only under the lock of the queue.
    state: AtomicU64,
    queue: Mutex<Waiting>,
}

/// Operations that wait, in turn.
#[derive(Default, Debug)]
struct Waiting {
    numbers: VecDeque<u64>,
    next: u64,
    /// How often others have found a free slot since the first of them looked or was passed over.
    passed: u32,
}

/// After so many looks of others the first in the queue is passed over: its driver may be blocked
/// in a waker, which is the caller's code. A driver that sleeps looks about as often as another.
const PASSES: u32 = 64;

const ONE_WAITS: u64 = 1 << 32;

/// An operation's claim to a slot.
#[derive(Debug)]
pub struct Claim {
    pool: Arc<Pool>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The operation has not used the network.
    None,
    /// It has given its slot back until it is turned again.
    Rests,
    /// It waits, with this number.
    Queued(u64),
    /// It holds a slot.
    Holds,
}

impl Pool {
    /// A pool of so many slots, at least one.
    #[must_use]
    pub fn new(slots: u32) -> Arc<Self> {
        assert!(slots > 0, "with no slot nothing moves");
        Arc::new(Self { state: AtomicU64::new(u64::from(slots)), queue: Mutex::default() })
    }

    /// The pool that all communicators of the process share.
    #[must_use]
    pub fn of_process() -> Arc<Self> {
        Arc::clone(OF_PROCESS.get_or_init(|| Self::new(SLOTS)))
    }

    /// Gives the process a pool of so many slots, for a test of their shortage; false once a
    /// communicator has the usual one.
    pub fn limit_process(slots: u32) -> bool {
        OF_PROCESS.set(Self::new(slots)).is_ok()
    }

    /// Whether an operation waits for a slot.
    #[inline]
    fn is_wanted(&self) -> bool {
        self.state.load(Ordering::Relaxed) >= ONE_WAITS
    }

    /// Whether no slot is free.
    fn is_full(&self) -> bool {
        self.state.load(Ordering::Relaxed) as u32 == 0
    }

    /// Takes a free slot for which nobody waits.
    #[inline]
    fn take(&self) -> bool {
        let free = |state: u64| (state != 0 && state < ONE_WAITS).then(|| state - 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).is_ok()
    }

    /// Gives a slot back.
    #[inline]
    fn give(&self) {
        self.state.fetch_add(1, Ordering::Release);
    }

    #[cold]
    fn queue_up(&self) -> State {
        let mut queue = self.lock();
        let number = queue.next;
        queue.next += 1;
        queue.numbers.push_back(number);
        self.state.fetch_add(ONE_WAITS, Ordering::Relaxed);
        State::Queued(number)
    }

    /// Takes a slot for the operation that waits with this number, if it is its turn.
    #[cold]
    fn take_in_turn(&self, number: u64) -> bool {
        if self.is_full() {
            return false;
        }
        let mut queue = self.lock();
        // Under the lock the slots only become more: somebody waits, so nobody takes one outside.
        if self.is_full() {
            return false;
        }
        if queue.passed > PASSES {
            queue.numbers.rotate_left(1);
            queue.passed = 0;
        }
        let is_its = queue.numbers.front() == Some(&number);
        if is_its {
            queue.numbers.pop_front();
            queue.passed = 0;
            self.state.fetch_sub(ONE_WAITS + 1, Ordering::Acquire);
        } else {
            queue.passed += 1;
        }
        is_its
    }

    #[cold]
    fn leave_queue(&self, number: u64) {
        let mut queue = self.lock();
        queue.numbers.retain(|waiting| *waiting != number);
        self.state.fetch_sub(ONE_WAITS, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics under this lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Of an operation that has not used the network.
    #[must_use]
    pub const fn new(pool: Arc<Pool>) -> Self {
        Self { pool, state: State::None }
    }

    /// The operation uses the network now: whether it holds a slot. If not, it waits for one, and
    /// this is called again on each turn.
    #[inline]
    pub fn hold(&mut self) -> bool {
        match self.state {
            State::Holds => return true,
            State::None | State::Rests if self.pool.take() => self.state = State::Holds,
            State::None | State::Rests => self.state = self.pool.queue_up(),
            State::Queued(number) if self.pool.take_in_turn(number) => self.state = State::Holds,
            State::Queued(_) => {}
        }
        self.state == State::Holds
    }

    /// Whether the operation has used the network.
    #[inline]
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.state != State::None
    }

    /// Whether it holds a slot.
    #[inline]
    #[must_use]
    pub fn holds(&self) -> bool {
        self.state == State::Holds
    }

    /// Whether it waits for a slot.
    #[inline]
    #[must_use]
    pub const fn waits(&self) -> bool {
        matches!(self.state, State::Queued(_))
    }

    /// Whether slots are so short that its driver has to look again soon: it waits for a slot, or
    /// holds one that somebody may come to want.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.waits() || self.holds() && self.pool.is_full()
    }

    /// The operation did not advance: if another one waits for a slot, it gets this one's, and this
    /// one waits behind all others.
    #[inline]
    pub fn give_way(&mut self) {
        if self.holds() && self.pool.is_wanted() {
            self.state = self.pool.queue_up();
            self.pool.give();
        }
    }

    /// Nobody may turn the operation for a while: it holds no slot meanwhile.
    #[inline]
    pub fn rest(&mut self) {
        if self.holds() {
            self.pool.give();
            self.state = State::Rests;
        }
    }

    /// The operation has ended; the claim is the next one's.
    #[inline]
    pub fn end(&mut self) {
        match std::mem::replace(&mut self.state, State::None) {
            State::None | State::Rests => {}
            State::Holds => self.pool.give(),
            State::Queued(number) => self.pool.leave_queue(number),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A copy in a forked child holds nothing; its parent may have held the lock of the queue.
        if !sys::forked() {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(pool: &Arc<Pool>, count: usize) -> Vec<Claim> {
        (0..count).map(|_| Claim::new(Arc::clone(pool))).collect()
    }

    /// Which of them hold a slot.
    fn holding(claims: &[Claim]) -> Vec<usize> {
        claims.iter().enumerate().filter(|(_, claim)| claim.holds()).map(|(at, _)| at).collect()
    }

    #[test]
    fn slots_go_round_among_those_that_do_not_advance() {
        let pool = Pool::new(2);
        let mut ours = claims(&pool, 5);
        let mut turns = [0; 5];
        for _ in 0..50 {
            for (claim, turns) in ours.iter_mut().zip(&mut turns) {
                *turns += u32::from(claim.hold());
                claim.give_way();
            }
            assert!(holding(&ours).len() <= 2, "{:?}", holding(&ours));
        }
        assert!(turns.iter().all(|turns| *turns >= 10), "{turns:?}");
    }

    #[test]
    fn a_slot_goes_to_who_waits_longest_and_not_to_who_comes_later() {
        let pool = Pool::new(1);
        let mut ours = claims(&pool, 4);
        assert_eq!(ours.iter_mut().map(Claim::hold).collect::<Vec<_>>(), [true, false, false, false]);
        ours[0].end();
        // A slot is free, but whose turn it is has not looked yet.
        assert!(!ours[2].hold() && !ours[0].hold());
        assert!(ours[1].hold());
        // Who gives up waiting holds up nobody.
        ours[2].end();
        ours[1].end();
        assert!(ours[3].hold());
        assert_eq!(holding(&ours), [3]);
        drop(ours);
        assert_eq!(pool.state.load(Ordering::Relaxed), 1, "all is given back");
    }

    #[test]
    fn who_is_not_turned_keeps_no_slot() {
        let pool = Pool::new(1);
        let mut ours = claims(&pool, 2);
        assert!(ours[0].hold());
        assert!(ours[0].is_short() && !ours[1].is_short());
        ours[0].rest();
        assert!(ours[1].hold() && ours[0].is_begun() && !ours[0].hold());
        assert!(ours[0].waits() && ours[0].is_short());
        ours[1].give_way();
        assert!(ours[0].hold() && ours[1].waits());
        // The first in the queue is not turned either.
        let mut third = Claim::new(Arc::clone(&pool));
        assert!(!third.hold());
        ours[0].end();
        let looks = (0..).take_while(|_| !third.hold()).count();
        assert_eq!(looks, PASSES as usize + 1);
    }
}
