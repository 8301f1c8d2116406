//! The slots of operations that are moved over the network, and who waits for one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::clock::{self, Ns};
use crate::sys;

/// The slots of a process: as many as NCCL's pool has for a rank. A communicator of `n` ranks has
/// at most `2n - 1` claims: of its collective, and of its sends and its receives per peer.
const SLOTS: u32 = 2048;

/// How long a driver sleeps at most while no slot is free: nobody wakes who waits for one.
pub const LOOK: Duration = Duration::from_millis(1);

static OF_PROCESS: OnceLock<Arc<Pool>> = OnceLock::new();

/// A bounded number of slots. Who waits gets one in turn.
#[derive(Debug)]
pub struct Pool {
    /// Free slots, and in the upper half how many operations wait. While some do, a slot is taken
    /// only under the lock of the queue.
    state: AtomicU64,
    queue: Mutex<Waiting>,
    clock: fn() -> Ns,
}

/// Operations that wait, in turn.
#[derive(Default, Debug)]
struct Waiting {
    /// They grow.
    numbers: VecDeque<u64>,
    next: u64,
    /// Since when another one has found a free slot that the first of them has not taken.
    idle_since: Option<Ns>,
}

/// The first in the queue that has not taken a free slot for so long is passed over, and queues
/// anew when it looks again: its driver may be blocked in a waker, which is the caller's code. One
/// that only sleeps looks every [`LOOK`].
const PATIENCE: Duration = Duration::from_millis(4);

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
        Self::timed_by(slots, clock::now)
    }

    /// The same, with its clock: a simulation must not depend on the time that it takes.
    #[must_use]
    pub fn timed_by(slots: u32, clock: fn() -> Ns) -> Arc<Self> {
        assert!(slots > 0, "with no slot nothing moves");
        Arc::new(Self { state: AtomicU64::new(u64::from(slots)), queue: Mutex::default(), clock })
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
        self.state.fetch_add(ONE_WAITS, Ordering::Relaxed);
        self.lock().add()
    }

    /// Takes a slot for the operation that waits with this number, if it is its turn.
    #[cold]
    fn take_in_turn(&self, number: u64) -> State {
        let mut queue = self.lock();
        let Some(first) = queue.numbers.front().copied().filter(|first| *first <= number) else {
            // It was passed over.
            self.state.fetch_add(ONE_WAITS, Ordering::Relaxed);
            return queue.add();
        };
        // Under the lock the slots only become more: somebody waits, so nobody takes one outside.
        if self.is_full() {
            return State::Queued(number);
        }
        if first == number {
            queue.remove_first();
            self.state.fetch_sub(ONE_WAITS + 1, Ordering::Acquire);
            return State::Holds;
        }
        let now = (self.clock)();
        if now.since(*queue.idle_since.get_or_insert(now)) >= PATIENCE {
            queue.remove_first();
            self.state.fetch_sub(ONE_WAITS, Ordering::Relaxed);
        }
        State::Queued(number)
    }

    #[cold]
    fn leave_queue(&self, number: u64) {
        let mut queue = self.lock();
        if let Ok(at) = queue.numbers.binary_search(&number) {
            queue.numbers.remove(at);
            queue.idle_since = None;
            self.state.fetch_sub(ONE_WAITS, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics under this lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn add(&mut self) -> State {
        let number = self.next;
        self.next += 1;
        self.numbers.push_back(number);
        State::Queued(number)
    }

    fn remove_first(&mut self) {
        self.numbers.pop_front();
        self.idle_since = None;
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
            State::Queued(number) => self.state = self.pool.take_in_turn(number),
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
    }

    #[test]
    fn who_does_not_take_a_free_slot_is_passed_over_and_queues_anew() {
        static NOW: AtomicU64 = AtomicU64::new(0);
        let pool = Pool::timed_by(1, || Ns(NOW.load(Ordering::Relaxed)));
        let mut ours = claims(&pool, 3);
        assert_eq!(ours.iter_mut().map(Claim::hold).collect::<Vec<_>>(), [true, false, false]);
        ours[0].end();
        // The first in the queue is not turned.
        assert!((0..1000).all(|_| !ours[2].hold()));
        NOW.fetch_add(PATIENCE.as_nanos() as u64, Ordering::Relaxed);
        assert!(!ours[2].hold() && ours[2].hold());
        // It costs nobody anything while it does not look.
        assert!(!pool.is_wanted());
        ours[2].give_way();
        assert!(ours[2].holds());
        assert!(!ours[1].hold() && pool.is_wanted());
        ours[2].give_way();
        assert!(ours[1].hold());
        // Who was passed over and gives up leaves nothing behind.
        let mut late = Claim::new(Arc::clone(&pool));
        ours[1].give_way();
        ours[2].end();
        assert!(!late.hold() && ours[1].waits());
        NOW.fetch_add(PATIENCE.as_nanos() as u64, Ordering::Relaxed);
        drop((ours, late));
        assert_eq!(pool.state.load(Ordering::Relaxed), 1);
    }
}
