//! The share of clients in the service thread's processor time. The same thread handles gossip of
//! deaths and everything else that peers wait for, and on a full machine its time is taken from the
//! ranks.

use std::time::Duration;

use crate::clock::Ns;

/// All clients together get one part in this many of a processor, whatever their number and
/// requests.
const PARTS: u32 = 20;
/// The most they may use at once: many times what an interactive client needs.
pub(super) const AT_ONCE: Duration = Duration::from_millis(200);

/// The processor time that clients have used lately.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// The time used, less what they were granted since.
    used: Duration,
    at: Ns,
}

impl Share {
    /// Nothing used yet.
    pub(super) const fn new() -> Self {
        Self { used: Duration::ZERO, at: Ns(0) }
    }

    /// Adds what was used until now.
    pub(super) fn pay(&mut self, used: Duration, now: Ns) {
        self.used = self.used.saturating_sub(now.since(self.at) / PARTS) + used;
        self.at = now.max(self.at);
    }

    /// When clients are served again, if they have used too much.
    pub(super) fn rests_until(&self) -> Option<Ns> {
        let over = self.used.checked_sub(AT_ONCE).filter(|over| !over.is_zero())?;
        Some(self.at.after(over * PARTS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_above_the_share_is_waited_for() {
        let second = |n: u64| Ns(1_000_000_000_000 + n * 1_000_000_000);
        let mut share = Share::new();
        share.pay(AT_ONCE, second(0));
        assert_eq!(share.rests_until(), None);
        share.pay(Duration::from_millis(50), second(0));
        assert_eq!(share.rests_until(), Some(second(1)));
        share.pay(Duration::ZERO, second(1));
        assert_eq!(share.rests_until(), None);
        // Two seconds grant a tenth of a second.
        share.pay(Duration::from_millis(150), second(3));
        assert_eq!(share.rests_until(), Some(second(4)));
        share.pay(Duration::ZERO, second(1000));
        share.pay(AT_ONCE, second(1000));
        assert_eq!(share.rests_until(), None);
    }
}
